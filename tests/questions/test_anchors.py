"""Steps of exports without NVTX ranges of steps are found by repetition in the GPU's work."""

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random

import campaign
import pytest
from support import session_over
from synthetic import ExportWriter, training_job

from nsystui.base.anchors import ANCHORS
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection
from nsystui.questions.job.job import OpenJob
from nsystui.questions.steps.times import Steps
from nsystui.questions.triage.case import Case
from nsystui.questions.triage.thresholds import Thresholds

ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LAYER = ("gemm(int)", "relu(int)", "layer_norm(int)")
TO_HOST, TO_DEVICE = "DtoH", "HtoD"


def layers(number: int, *after: str) -> list[str]:
    """Return the names of forward and backward passes of some layers, with ``after`` following each backward pass."""
    return [*LAYER * number, "loss_fwd(int)", *("gemm_backward(int)", "relu_backward(int)", *after) * number]


@pytest.fixture
def job(tmp_path) -> Iterator[Callable[[Iterable[str]], OpenJob]]:
    """Yield a function that opens a job of one process with these operations, 10 µs each, mostly every 20 µs."""
    opened = []

    def write(operations: Iterable[str]) -> OpenJob:
        path = tmp_path / "run.sqlite"
        export = ExportWriter(path)
        process = export.process(5000, "python")
        thread = export.thread(process, 5000, "python")
        start = 0
        for number, name in zip(count(1), operations, strict=False):
            start += 100_000 if name == TO_DEVICE else 20_000  # the CPU waits for input
            export.api(thread, start, start + 500, "cudaLaunchKernel_v7000", number)
            times = (start + 5_000, start + 15_000)
            if name in (TO_HOST, TO_DEVICE):
                export.memcpy(process, 0, 7, *times, kind=name, size=4096, correlation_id=number)
            else:
                export.kernel(process, 0, 7, *times, name=name, correlation_id=number)
        export.close()
        opened.append(OpenJob(session_over(path)))
        return opened[-1]

    yield write
    for one in opened:
        one.close()


def found(job: OpenJob, anchor: str | None = None) -> tuple[str, int, list[int]] | None:
    """Return the anchor, the number of steps and their numbers of operations."""
    every = list(Steps.load(job.session, job.ranks, None, anchor).of_task.values())
    return (every[0].anchor, len(every[0]), sorted(set(every[0].gpu.op_count.tolist()))) if every else None


class TestAnchors:
    def test_a_step_ends_with_the_burst_of_the_optimizer(self, job):
        step = [*layers(4), *[ADAM, ADAM, "scale(int)", ADAM]]
        training = job(step * 6)
        assert found(training) == ("optimizer", 6, [len(step)])
        (steps,) = training.steps().of_task.values()
        assert steps.starts[1] == 20_000 * (len(step) + 1)
        assert (steps.ends[:-1] == steps.starts[1:]).all()
        assert steps.gpu.start[1] == steps.starts[1] + 5_000

    def test_collectives_in_groups(self, job):
        step = layers(4, ALL_REDUCE)
        assert found(job(step * 6), "collectives") == ("collectives", 5, [len(step)])

    @pytest.mark.campaign
    @pytest.mark.parametrize(("step", "times", "number"), [
        ([TO_DEVICE, *layers(4), "update(int)", TO_HOST], 6, 6),
        # Each of 20 layers has 12 kernels, and only 3 kernels end a step.
        ([*[f"part{part}(int)" for part in range(12)] * 20, "head(int)", "sample(int)", TO_HOST], 5, 4),
    ])  # fmt: skip
    def test_any_operation_that_comes_back_once_a_step_and_those_of_layers_do_not(self, job, step, times, number):
        assert found(job(step * times)) == ("kernels", number, [len(step)])

    @pytest.mark.campaign
    def test_a_check_every_few_steps_does_not_make_longer_ones(self, job):
        step = [TO_DEVICE, *(f"part{part}(int)" for part in range(30)), TO_HOST]
        check = ["norm_check(int)", "norm_report(int)"]
        assert found(job([*step * 5, *check] * 5))[1] in (24, 25)

    @pytest.mark.campaign
    def test_gradient_accumulation_counts_steps_of_the_optimizer(self, job):
        training = job([*layers(4) * 3, ADAM, TO_HOST] * 5)
        kind, number, _ = found(training)
        assert (kind, number) == ("optimizer", 4)


class TestEnds:
    @pytest.mark.campaign
    def test_warm_up_and_a_start_in_the_middle_of_a_step_are_left_out(self, job):
        step = [*layers(4), ADAM]
        training = job([*["benchmark(int)"] * 40, *step, *step[10:], *step * 6, *step[:12]])
        assert found(training) == ("optimizer", 6, [len(step)])
        assert "where the capture starts or ends with no whole step" in training.steps().notes[-1]

    def test_two_whole_steps_are_no_repetition(self, job):
        assert found(job([*layers(4), ADAM] * 2)) is None


@pytest.mark.campaign
class TestNone:
    @pytest.mark.parametrize("operations", [
        Random(3).choices([*LAYER, ADAM, ALL_REDUCE, TO_HOST, TO_DEVICE], k=2_000),
        [name for size in (3, 1, 2, 4, 1, 3, 2, 1) for name in (*layers(size), ADAM, TO_HOST)],
    ], ids=["random order", "steps of many sizes"])  # fmt: skip
    def test_what_does_not_repeat_has_no_steps(self, job, operations):
        run = job(operations)
        assert all(found(run, anchor) is None for anchor in (None, *ANCHORS))
        assert run.steps().why_none[0].endswith("the GPU's work does not repeat regularly")

    @pytest.mark.parametrize(("iteration", "size"), [
        (["vectorAdd(int)"], 1),
        (["read(int)", "solve(int)", "solve(int)", "solve(int)", "write(int)"], 5),
        # Copies at other distances are no reason against iterations.
        (["read(int)", "solve(int)", "write(int)", None], 3),
    ])  # fmt: skip
    def test_kernels_that_repeat_are_iterations_that_nothing_judges(self, job, iteration, size):
        copies = Random(5)
        names = [[TO_DEVICE] * copies.randrange(3) if name is None else [name] for _ in range(60) for name in iteration]
        run = job([name for part in names for name in part])
        assert found(run) is None
        assert "does not repeat" not in run.steps().why_none[0]
        assert "--steps-by kernels" in run.steps().why_none[0]
        anchor, times, sizes = found(run, "kernels")
        assert anchor == "kernels" and times in (59, 60) and size in sizes
        run.steps_by = "kernels"
        assert not Case(run, Selection(), Thresholds()).steps

    def test_launches_that_are_not_recorded_are_named(self, tmp_path):
        export = ExportWriter(tmp_path / "run.sqlite")
        process = export.process(5000, "python")
        for number in range(9):
            export.kernel(process, 0, 7, 100 * number, 100 * number + 50, name="gemm(int)", correlation_id=number)
        export.close()
        with closing(OpenJob(session_over(export.path))) as run:
            assert run.steps().why_none[0].endswith("no CUDA runtime and driver calls in this export")

    def test_layers_alone_are_offered_and_not_taken(self, job):
        run = job([f"part{part}(int)" for part in range(30)] * 12)
        assert found(run) is None
        assert re.search("30 operations come back 1[12] times.*--steps-by kernels", run.steps().notes[0])
        assert found(run, "kernels")[2] == [30]
        assert found(job([*layers(8), TO_HOST])) is None


class TestSeveralAnchors:
    def test_one_that_disagrees_is_named_with_its_flag(self, job):
        part = [TO_DEVICE, *(f"part{part}(int)" for part in range(30)), "loss_fwd(int)", TO_HOST]
        run = job([*part * 3, ADAM] * 8)
        assert found(run)[0] == "optimizer"
        assert any("say otherwise" in note and "--steps-by kernels" in note for note in run.steps().notes)

    def test_the_job_may_choose(self, job):
        run = job([*layers(4, ALL_REDUCE), ADAM, TO_HOST] * 8)
        assert [run.next_steps_by() for _ in range(4)] == ["collectives", "kernels", None, "collectives"]
        run.steps_by = "graph"
        assert run.steps().notes == ("no steps: no launches of one CUDA graph at regular distances in the GPU's work",)
        with pytest.raises(UsageError):
            run.steps("step")


def without_nvtx(paths: Sequence[Path], directory: Path) -> list[Path]:
    """Return copies of exports without their NVTX ranges."""
    copies = []
    for path in paths:
        copies.append(Path(shutil.copy(path, directory / path.name)))
        copies[-1].chmod(0o644)
        with closing(sqlite3.connect(copies[-1])) as export:
            export.execute("DELETE FROM NVTX_EVENTS")
            export.commit()
    return copies


@pytest.mark.campaign
class TestRanks:
    def test_all_ranks_have_the_same_steps_at_the_same_time(self, tmp_path, opened):
        (tmp_path / "copies").mkdir()
        paths = without_nvtx(training_job(tmp_path, ranks=2, steps=6, layers=4), tmp_path / "copies")
        steps = OpenJob(opened(*paths)).steps()
        first, second = steps.of_task.values()
        assert first.anchor == second.anchor and first.numbers.tolist() == second.numbers.tolist()
        assert abs(first.gpu.start - second.gpu.start).max() < first.median / 2

    def test_one_rank_without_ranges_makes_all_use_the_work_of_the_gpu(self, tmp_path, opened):
        (tmp_path / "copies").mkdir()
        first, second = training_job(tmp_path, ranks=2, steps=6, layers=4)
        steps = OpenJob(opened(first, *without_nvtx([second], tmp_path / "copies"))).steps()
        assert {one.anchor for one in steps.of_task.values()} == {"optimizer"}
        assert len(steps.of_task) == 2


class TestGolden:
    @pytest.mark.campaign
    @pytest.mark.parametrize(("name", "anchor", "number"), [
        ("ddp-a100-rank0of4", "optimizer", 58),
        ("ddp-a100-nobroadcast-rank0of4", "optimizer", 58),
        ("dataloader-bound-a100", "kernels", 59),
        ("ai-training-before", "kernels", 58),
    ])  # fmt: skip
    def test_without_ranges_as_many_steps_of_the_same_length(
        self, shared_export, opened, tmp_path, name, anchor, number
    ):
        """The first or the last of the 59 steps in NVTX ranges may be missing."""
        path = shared_export(name)
        (copy,) = without_nvtx([path], tmp_path)
        (ranges,) = OpenJob(opened(path)).steps().of_task.values()
        (steps,) = OpenJob(opened(copy)).steps().of_task.values()
        assert (steps.anchor, len(steps), len(ranges)) == (anchor, number, 59)
        assert steps.median == pytest.approx(ranges.median, rel=0.002)

    def test_launches_of_one_graph(self, shared_export, opened):
        assert found(OpenJob(opened(shared_export("cuda-graphs")))) == ("graph", 10, [4])

    @pytest.mark.parametrize("name", campaign.first(1, ["h100-2rank-moe-before", "h100-2rank-moe-after"]))
    def test_a_window_of_layers_has_no_steps(self, shared_export, opened, name):
        steps = OpenJob(opened(shared_export(name))).steps()
        assert not steps.of_task
        assert "157 operations come back" in steps.why_none[0]
