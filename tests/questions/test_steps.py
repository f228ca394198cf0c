"""Steps from NVTX ranges that repeat, by the GPU work that they launch, or by the user's choice."""

import re
from collections import Counter
from contextlib import closing
from functools import partialmethod
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from campaign import first
from support import native, session_over
from synthetic import ExportWriter, empty_export, training_job
from synthetic.demo import Thread

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task
from nsystui.questions.blocking.operations import operations_of_steps
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.bandwidth import in_steps
from nsystui.questions.nccl.grouping import selected
from nsystui.questions.queries.conditions import where
from nsystui.questions.ranks.steps import step_times, window_of_step
from nsystui.questions.steps import task_steps
from nsystui.questions.steps import times as steps
from nsystui.questions.steps.task_steps import NO_STEP, TaskSteps
from nsystui.questions.steps.times import Steps
from nsystui.store import tables


class Run:
    """A process whose ranges and launches are written one by one; times in µs."""

    def __init__(self, export: ExportWriter, pid: int = 5000, name: str = "python") -> None:
        self.export = export
        self.process = export.process(pid, name)
        self.main = export.thread(self.process, pid, "python")
        self.autograd = export.thread(self.process, pid + 1, "autograd")
        self.correlation = count(1)

    def range(self, name: str, start: int, end: int | None, thread: Thread | None = None) -> None:
        self.export.nvtx_range(thread or self.main, 1000 * start, None if end is None else 1000 * end, name)

    def launch(
        self, start: int, runs: int, length: int = 10, thread: Thread | None = None, name: str = "gemm(int)"
    ) -> None:
        """Write a kernel launched at ``start`` that runs from ``runs`` on for ``length``."""
        correlation, call = next(self.correlation), 1000 * start
        self.export.api(thread or self.main, call, call + 500, "cudaLaunchKernel_v7000", correlation)
        times = (1000 * runs, 1000 * (runs + length))
        self.export.kernel(self.process, 0, 7, *times, name=name, correlation_id=correlation)

    def series(self, name: str, steps: int = 3, length: int = 90, offset: int = 10, every: int = 1) -> None:
        """Write ranges ``name`` (with the number of the step) and a launch every 100 µs."""
        for step in range(steps):
            if step % every == 0:
                self.range(name.format(step // every), 100 * step, 100 * step + length)
            self.launch(100 * step + offset, 100 * step + offset + 10)


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(ExportWriter(tmp_path / "run.sqlite"))


def steps_of(run: Run, name: str | None = None) -> Steps:
    run.export.close()
    with closing(OpenJob(session_over(run.export.path))) as job:
        return job.steps(name)


class Found(Run):
    """Each method writes a process of one export, and returns the expected steps.

    That is a name, numbers, or attributes of its steps and of their work on the GPU.
    """

    def numbered_ranges_that_hold_the_work_are_steps(self):
        for number in range(4):
            start = 100 * number
            self.range(f"step {number + 7}", start, start + 90)
            self.range(f"data copy in {number}", start + 1, start + 5)
            self.launch(start + 3, start + 10)
            self.launch(start + 20, start + 40)
        starts = [0, 100_000, 200_000, 300_000]
        return {"name": "step *", "numbers": [7, 8, 9, 10], "starts": starts, "ends": [one + 90_000 for one in starts]}

    def the_gpu_works_later_and_for_every_thread(self):
        """The backward pass is launched by another thread, and the GPU is behind by more than a step."""
        for number in range(3):
            start = 100 * number
            self.range(f"step {number}", start, start + 100)
            self.launch(start + 10, start + 200)
            self.launch(start + 50, start + 240, thread=self.autograd)
        starts = [200_000, 300_000, 400_000]
        ends = [one + 50_000 for one in starts]
        return {"gpu.op_count": [2] * 3, "gpu.start": starts, "gpu.end": ends, "gpu.op_time": [20_000] * 3}

    def names_on_another_thread_are_no_steps_of_this_one(self):
        self.series("step {}", 5)
        for step in range(5):
            self.range("step 1", 100 * step, 100 * step + 95, self.autograd)  # always the same name: no series of steps
        return {"name": "step *", "ends": [1000 * (100 * step + 90) for step in range(5)]}

    def a_step_without_gpu_work_has_no_span_there(self):
        for number in range(3):
            self.range(f"step {number}", 100 * number, 100 * number + 50)
        self.launch(10, 20)
        return {"gpu.op_count": [1, 0, 0], "gpu.start": [20_000, 0, 0], "gpu.end": [30_000, 0, 0]}

    def the_outermost_of_equal_words_counts(self):
        self.series("train_step {}")
        for number in range(3):
            start = 100 * number
            self.range(f"optimizer step {number}", start + 50, start + 90)
            self.launch(start + 60, start + 70, length=12)
        return {"name": "train_step *"}

    def _words_come_before_width(self, outer: str, inner: str, expected: str):
        self.series(outer, 9, length=299, offset=20, every=3)
        for number in range(9):
            self.range(inner.format(number), 100 * number + 10, 100 * number + 80)
            self.launch(100 * number + 40, 100 * number + 50, name="cross_entropy(int)")  # layers have no loss
        return {"name": expected}

    step_before_epoch = partialmethod(_words_come_before_width, "epoch {}", "step {}", "step *")
    iteration_before_chunk = partialmethod(_words_come_before_width, "chunk {}", "iteration {}", "iteration *")
    profilers_step_first = partialmethod(_words_come_before_width, "iter {}", "ProfilerStep#{}", "ProfilerStep#*")
    of_other_words_the_wider_first = partialmethod(_words_come_before_width, "phase {}", "part {}", "phase *")

    def _numbered(self, name: str, numbers: list[int], expected: list[int] | None):
        for place, number in enumerate(numbers):
            self.range(name.format(number), 100 * place, 100 * place + 90)
            self.launch(100 * place + 10, 100 * place + 20)
        return expected and {"numbers": expected}

    numbers_that_begin_anew_give_places = partialmethod(_numbered, "step {}", [0, 1, 2] * 2, [0, 1, 2, 3, 4, 5])
    of_several_numbers_that_which_counts = partialmethod(_numbered, "epoch 4 step {} of 9", [5, 6, 7], [5, 6, 7])
    # The ranges hold all work and have numbers, but these repeat.
    layers_are_no_steps = partialmethod(_numbered, "layer_{}", [0, 1, 2] * 2, None)
    layers_of_one_pass_are_no_steps = partialmethod(_numbered, "layer_{}", [0, 1, 2, 3], None)
    of_several_rising_numbers_the_steps = partialmethod(_numbered, "step {0}: {0}0 batches", [4, 6, 9], [4, 6, 9])
    of_rising_numbers_of_steps_the_slowest = partialmethod(_numbered, "step {0}9 step {0}", [4, 5, 6], [4, 5, 6])
    ids_are_no_numbers_of_steps = partialmethod(_numbered, "execute 429496729{0}", [6, 7, 8], [0, 1, 2])
    a_number_of_requests_is_none_of_steps = partialmethod(
        _numbered, "_forward_step {0}: 0 ctx reqs, 1{0} gen reqs", [4, 7, 9], [4, 7, 9]
    )

    a_rising_batch_size_counts_no_steps = partialmethod(_numbered, "train_step bs={0}", [8, 9, 12], [0, 1, 2])
    of_amounts_and_steps_the_steps = partialmethod(
        _numbered, "execute_{0} seq_len={0} num_tokens: 3{0} rank {0}", [8, 9, 12], [8, 9, 12]
    )
    amounts_before_their_units_count_no_steps = partialmethod(
        _numbered, "train_step of {0} new tokens, {0}_MiB loss={0}.5", [8, 9, 12], [0, 1, 2]
    )
    a_step_before_amounts_counts = partialmethod(_numbered, "step {0} tokens=5{0} 1{0} reqs", [8, 9, 12], [8, 9, 12])
    rising_requests_count_no_steps = partialmethod(
        _numbered, "execute_context_1(512)_generation_{0}({0})", [8, 9, 12], [0, 1, 2]
    )
    rising_cached_requests_count_no_steps = partialmethod(_numbered, "execute_new_1_cached_{0}", [8, 9, 12], [0, 1, 2])
    amounts_alone_are_no_steps = partialmethod(_numbered, "decode batch_size={0} seqs[{0}] chunk {0}", [8, 9, 12], None)

    def half_of_the_work_is_enough(self):
        self.series("step {}", length=50)
        for place in range(3):
            self.launch(100 * place + 60, 100 * place + 70)
        return {"numbers": [0, 1, 2]}

    def _no_series(self, *ranges: tuple[str, int, int | None]) -> None:
        for name, start, end in ranges:
            self.range(name, start, end)
        for place in range(3):
            self.launch(100 * place + 10, 100 * place + 20)

    two_are_no_series = partialmethod(_no_series, ("step 0", 0, 90), ("step 1", 100, 190))
    overlaps = partialmethod(_no_series, ("step 0", 0, 150), ("step 1", 100, 250), ("step 2", 200, 350))
    none_of_the_work = partialmethod(_no_series, ("step 0", 400, 500), ("step 1", 500, 600), ("step 2", 600, 700))
    never_closed = partialmethod(_no_series, ("step 0", 0, 90), ("step 1", 100, 190), ("step 2", 200, None))


NAMES = [name for name in vars(Found) if not name.startswith("_")]


@pytest.fixture(
    scope="module", params=[None, pytest.param(3, marks=pytest.mark.campaign)], ids=["whole", "in portions"]
)
def found(request, tmp_path_factory) -> dict[str, tuple[Any, TaskSteps | None]]:
    """Return the expectation and steps of each process; calls are joined with operations at once or in portions."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setattr(task_steps, "_CALLS_AT_ONCE", request.param)
        export = ExportWriter(tmp_path_factory.mktemp("steps") / "steps.sqlite")
        runs = {name: Found(export, 6000 + 10 * number) for number, name in enumerate(NAMES)}
        expected = {name: getattr(run, name)() for name, run in runs.items()}
        of_task = steps_of(runs[NAMES[0]]).of_task
    return {name: (expected[name], of_task.get(Task(0, run.process.global_id))) for name, run in runs.items()}


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_a_process(found, name):
    expected, own = found[name]
    if expected is None:
        assert own is None
    else:
        told = {key: attrgetter(key)(own) for key in expected}
        assert {key: value if isinstance(value, str) else value.tolist() for key, value in told.items()} == expected


@pytest.mark.campaign
def test_without_gpu_work_the_words_alone_tell(run):
    for place in range(3):
        run.range(f"step {place}", 100 * place, 100 * place + 50)
        run.range(f"phase {place}", 100 * place, 100 * place + 60)
    (found,) = steps_of(run).of_task.values()
    assert found.name == "step *"


ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int)"
XLA = "XlaModule:#hlo_module={},program_id={}#"


class TestWithoutNumbers:
    @staticmethod
    def repeat(run: Run, *parts: tuple[str, int], outer: str = "", times: int = 6, optimizer: int = 0) -> None:
        """Write rounds of ranges ``parts`` that each launch some kernels, in a range ``outer``, 1 ms apart.

        Every ``optimizer`` rounds, the optimizer runs.
        """
        for number in range(times):
            begin = start = 1000 * number
            for name, launches in parts:
                run.range(name, start, start + 20 * launches)
                for launch in range(launches):
                    run.launch(start + 20 * launch + 5, start + 20 * launch + 15)
                start += 20 * launches
            if optimizer and (number + 1) % optimizer == 0:
                run.launch(start + 5, start + 15, name=ADAM)
            if outer:
                run.range(outer, begin, start + 20)

    @pytest.mark.campaign
    @pytest.mark.parametrize("name", first(
        2, ["train_step", "gpu_model_runner: forward", "Executor._forward_step", "execute_model", "EngineCore.step"]
    ))  # fmt: skip
    def test_a_range_that_repeats_and_holds_the_work_is_a_step(self, run, name):
        self.repeat(run, ("forward", 4), ("backward", 8), outer=name)
        (found,) = steps_of(run).of_task.values()
        assert (found.name, found.numbers.tolist(), found.gpu.op_count.tolist()) == (name, [*range(6)], [12] * 6)

    @pytest.mark.parametrize(("names", "name"), [
        ([f"execute_context_1({size})_generation_0(0)" for size in (9, 1, 7)], "execute_context_*(*)_generation_*(*)"),
        (["forward_extend", "forward_decode", "forward_decode"], "forward_<phase>"),
    ])  # fmt: skip
    def test_ranges_that_differ_in_sizes_or_phases_are_steps_of_one_name(self, run, names, name):
        for number, text in enumerate(names * 2):
            run.range(text, 1000 * number, 1000 * number + 90)
            run.range("run_batch", 1000 * number - 5, 1000 * number + 95)
            run.launch(1000 * number + 5, 1000 * number + 10)
        (found,) = steps_of(run).of_task.values()
        assert (found.name, len(found)) == (name, 6)

    def test_of_nested_ranges_of_one_name_the_outer_counts(self, run):
        self.repeat(run, ("execute_model", 4), outer="execute_model")
        (found,) = steps_of(run).of_task.values()
        assert (found.name, found.ends[0]) == ("execute_model", 100_000)

    @pytest.mark.campaign
    @pytest.mark.parametrize("name", ["backward_step", "TransformerLayer"])
    def test_parts_of_steps_are_only_proposed(self, run, name):
        self.repeat(run, ("other", 2), (name, 4))
        steps = steps_of(run)
        assert not steps.of_task
        assert f"the likeliest are `{name}` (6): --steps-by nvtx takes them as steps" in steps.why_none[0]

    def test_micro_batches_are_no_steps_if_the_optimizer_runs_less_often(self, run):
        self.repeat(run, ("training_step", 4), times=12, optimizer=3)
        (found,) = steps_of(run).of_task.values()
        assert (found.anchor, len(found)) == ("optimizer", 4)

    @pytest.mark.parametrize("name", first(
        1, ["DeepSpeedZeroOptimizer_Stage3.step", "Optimizer.step#Muon.step", "[Strategy]DDP.optimizer_step"]
    ))  # fmt: skip
    def test_steps_end_with_the_range_of_an_optimizer_whose_kernels_have_any_name(self, run, name):
        self.repeat(run, *(("training_step", 12), ("DeepSpeedZeroOptimizer_Stage3.backward", 2)) * 2, (name, 2))
        (found,) = steps_of(run).of_task.values()
        assert (found.anchor, found.gpu.op_count.tolist()) == ("optimizer", [30] * 6)

    @pytest.mark.campaign
    @pytest.mark.parametrize("name", ["train_step", "Trainer.once"])
    def test_a_range_counts_before_an_optimizer_that_runs_in_it(self, run, name):
        self.repeat(run, ("first", 2), ("second", 2), outer=name, optimizer=1)
        (found,) = steps_of(run).of_task.values()
        assert (found.anchor, found.name) == ("nvtx", name)

    def test_a_process_without_gpu_work_may_have_the_ranges(self, run):
        thread = run.export.thread(run.export.process(4000, "engine"), 4000, "engine")
        self.repeat(run, ("forward", 4))
        for number in range(6):
            run.range("EngineCore.step", 1000 * number, 1000 * number + 200, thread)
        ((task, found),) = steps_of(run).of_task.items()
        assert (task.process, found.name, len(found)) == (run.process.global_id, "EngineCore.step", 6)

    def test_a_round_of_programs_is_a_step(self, run):
        programs = [(XLA.format(f"jit_train_step_{number}", number + 7), 3) for number in range(3)]
        self.repeat(run, *programs)
        (found,) = steps_of(run).of_task.values()
        assert found.name == "XlaModule:#hlo_module=jit_train_step_* and 2 more"
        assert (found.numbers.tolist(), found.gpu.op_count.tolist()) == ([*range(6)], [9] * 6)

    @pytest.mark.parametrize("name", first(1, [
        "thunk {}", "ExecuteThunk {}", "execute layer {}", "layers.{}.batch_norm", "microbatch {}", "req-{} execute",
        "execute id={}", "iter 3 layer {}",
    ]))  # fmt: skip
    def test_numbers_of_parts_and_requests_are_no_steps(self, run, name):
        for number in range(30):
            run.range(f"Thunk:#hlo_op=fusion.{number},unique_id={2**32 + number}#", 100 * number, 100 * number + 90)
            run.range(name.format(2**32 + number), 100 * number + 1, 100 * number + 80)
            run.launch(100 * number + 5, 100 * number + 10, name=f"fusion_{number % 3}(int)")
        assert not steps_of(run).of_task

    def test_ranges_without_a_word_count_next_to_a_process_with_numbered_steps(self, run):
        other = Run(run.export, 6000)
        run.series("iteration {}")
        for number in range(6):
            other.range(f"round {number}", 1000 * number, 1000 * number + 90)
            other.launch(1000 * number + 5, 1000 * number + 15, name=ADAM)
        found = steps_of(run).of_task
        assert {task.process: len(steps) for task, steps in found.items()} == {
            run.process.global_id: 3,
            other.process.global_id: 6,
        }

    @pytest.mark.campaign
    def test_ranks_have_ranges_of_one_name(self, tmp_path, opened):
        ranks = [Run(ExportWriter(tmp_path / f"rank{rank}.sqlite"), 5000 + rank) for rank in range(3)]
        for rank, run in enumerate(ranks):
            self.repeat(run, ("forward", 4), outer="train_step")
            for number in range(6 if rank == 1 else 0):
                run.range(f"iteration {number}", 1000 * number - 1, 1000 * number + 200)
            run.export.close()
        job = OpenJob(opened(*(run.export.path for run in ranks)))
        assert [found.name for found in job.steps().of_task.values()] == ["train_step"] * 3

    def test_ranks_of_each_role_have_ranges_of_one_name(self, tmp_path, opened):
        names = ("train_step", "train_step", "execute_model")
        roles = ("ray::Trainer", "ray::Trainer", "ray::Rollout")
        ranks = [Run(ExportWriter(tmp_path / f"{n}.sqlite"), 5000 + n, role) for n, role in enumerate(roles)]
        for name, run in zip(names, ranks, strict=True):
            self.repeat(run, ("forward", 4), outer=name)
            run.export.close()
        found = OpenJob(opened(*(run.export.path for run in ranks))).steps()
        assert sorted(steps.name for steps in found.of_task.values()) == sorted(names)
        assert {int(steps.numbers[0]) for steps in found.of_task.values()} == {0}
        window = window_of_step(found, 0, next(task for task in found.of_task if task.report == 2))
        assert [task.report for task, times in step_times(found, window).items() if len(times)] == [2]

    @pytest.mark.campaign
    def test_a_rank_without_the_ranges_makes_all_use_the_optimizer(self, tmp_path, opened):
        ranks = [Run(ExportWriter(tmp_path / f"rank{rank}.sqlite"), 5000 + rank) for rank in range(2)]
        for name, run in zip(("train_step", ""), ranks, strict=True):
            self.repeat(run, ("forward", 2), ("backward", 4), outer=name, optimizer=1)
            run.export.close()
        job = OpenJob(opened(*(run.export.path for run in ranks)))
        assert [found.anchor for found in job.steps().of_task.values()] == ["optimizer"] * 2


class TestNamed:
    @pytest.mark.campaign
    def test_the_user_may_name_the_ranges(self, run):
        for place in range(2):
            run.range(f"Train {30 + place}", 100 * place, 100 * place + 90)
            run.range("Train inner", 100 * place + 10, 100 * place + 20)
        run.launch(300, 310)
        (found,) = steps_of(run, "^Train").of_task.values()
        assert (found.name, found.numbers.tolist()) == ("^Train", [30, 31])
        assert found.ends.tolist() == [90_000, 190_000]

    @pytest.mark.campaign
    def test_numbers_are_those_that_ascend_or_those_of_a_group(self, run, opened):
        for place, loss in ((8, 2), (9, 5)):
            run.range(f"rank 3 it {place}/9 loss {loss}", 100 * place, 100 * place + 90)
        run.export.close()
        job = OpenJob(opened(run.export.path))
        numbers = {r"it \d+": [8, 9], r"rank 3 it (\d+)": [8, 9], r"loss (\d)": [2, 5], "/9": [8, 9], "(rank)": [0, 1]}
        for name, expected in numbers.items():
            (found,) = job.steps(name).of_task.values()
            assert found.numbers.tolist() == expected, name
        assert job.steps("nothing").notes == ("no steps: no NVTX range is called `nothing`",)
        with pytest.raises(UsageError):
            job.steps("(")

    def test_of_several_threads_the_one_that_holds_most(self, run):
        run.range("pass", 0, 50, run.autograd)
        run.range("pass", 100, 200, run.main)
        run.launch(120, 130)
        (found,) = steps_of(run, "pass").of_task.values()
        assert found.starts.tolist() == [100_000]


class TestPlaces:
    @pytest.mark.campaign
    def test_a_time_belongs_to_the_step_around_it(self, run):
        for number, start in ((4, 0), (5, 100), (6, 100_000)):
            run.range(f"step {number}", start, start + 50)
            run.launch(start + 1, start + 10)
        steps = steps_of(run)
        ((task, found),) = steps.of_task.items()
        times = np.array([-1, 0, 49_999, 50_000, 100_000, 100_049_999, 100_050_000], np.int64)
        reports, processes = np.full(7, task.report), np.full(7, task.process)
        expected = [NO_STEP, 4, 4, NO_STEP, 5, 6, NO_STEP]
        assert steps.numbers_at(reports, processes, times).tolist() == found.numbers_at(times).tolist() == expected
        assert set(steps.numbers_at(reports + 1, processes, times).tolist()) == {NO_STEP}


class TestJobs:
    @pytest.mark.campaign
    def test_ranks_without_steps_are_named(self, tmp_path, opened):
        paths = training_job(tmp_path, ranks=2, steps=3, layers=1)
        other = Run(ExportWriter(tmp_path / "rank7.sqlite"))
        other.launch(10, 20)
        other.export.close()
        steps = OpenJob(opened(*paths, other.export.path)).steps()
        assert steps.why_none[0].startswith("no steps of rank 7: no NVTX ranges named as steps")

    def test_nothing_to_find(self, tmp_path, opened):
        for paths in ([], [empty_export(tmp_path / "empty.sqlite")]):
            assert not OpenJob(opened(*paths)).steps().of_task


class TestGolden:
    def test_ddp_has_59_steps_of_8_all_reduces(self, shared_export, opened):
        job = OpenJob(opened(shared_export("ddp-a100-rank0of4")))
        ((task, found),) = job.steps().of_task.items()
        assert isinstance(task, Task)
        assert (found.name, found.numbers.tolist()) == ("step *", list(range(59)))
        assert (found.starts[0], found.ends[0]) == (7_948_364, 35_096_540)
        assert (found.starts[58], found.ends[58]) == (1_785_094_512, 1_814_212_735)
        assert in_steps(job.pairing(), job.steps()).kernels["step"].value_counts().tolist() == [8] * 59


@pytest.mark.campaign
def test_ranges_nested_in_each_other_are_work_by_their_number(tmp_path, monkeypatch):
    """Each name is read a few times, however deep the chain is."""
    looks: list[int] = []
    monkeypatch.setattr(steps, "len", lambda what: looks.append(1) or len(what), raising=False)
    counted = []
    for depth in (100, 400):
        looks.clear()
        nested = Run(ExportWriter(tmp_path / f"{depth}.sqlite"))
        for level in range(depth):
            nested.range(f"level {level}", level, 2 * depth - level)
        nested.launch(depth, depth + 10)
        assert not steps_of(nested).of_task
        counted.append(len(looks))
    assert 0 < counted[1] <= 4 * counted[0] + 100


def test_operations_of_a_step_are_the_ranges_that_begin_in_one(demo_session):
    """The naive result pairs each NVTX range of a report with the step range around its start, on any thread."""
    job = OpenJob(demo_session)
    rows = {row["name"]: row for row in operations_of_steps(job, Selection()).records()}
    counts, times = Counter[str](), Counter[str]()
    steps = 0
    for report in demo_session.reports:
        ranges = native(
            report.path,
            'SELECT e.start, e."end" - e.start, coalesce(e.text, s.value) FROM NVTX_EVENTS e '
            'LEFT JOIN StringIds s ON s.id = e.textId WHERE e.eventType = 59 AND e."end" IS NOT NULL '
            "AND coalesce(e.domainId, 0) = 0",
        )
        spans = [(start, start + length) for start, length, text in ranges if re.fullmatch(r"step \d+", text)]
        steps += len(spans)
        for start, length, text in ranges:
            if any(low <= start < high for low, high in spans):
                counts[re.sub(r"\d+", "*", text)] += 1
                times[re.sub(r"\d+", "*", text)] += length
    for name in ("step *", "forward", "layer_* backward", "optimizer"):
        assert rows[name]["count"] == pytest.approx(counts[name] / steps, abs=0.005)
        assert rows[name]["cpu"] == pytest.approx(times[name] / steps)
    job_steps = step_times(job.steps())
    mean = sum(int(one.duration.sum()) for one in job_steps.values()) / steps
    assert rows["forward"]["share"] == pytest.approx(100 * rows["forward"]["gpu"] / mean)


def test_a_selected_step_has_its_ranges_and_kernels_on_all_ranks(demo_session):
    """The ranks are ms apart, and their CPUs run ahead."""
    job = OpenJob(demo_session)
    selection = Selection(window=window_of_step(job.steps(), 1))
    ranges, table = job.nvtx_ranges(selection), tables.kernels
    assert {name for name in (ranges.names[code] for code in ranges.values("name")) if name.startswith("step")} == {
        "step 1"
    }
    seen = set(demo_session.rows(sa.select(table.c.report, table.c.row).where(*where(table, selection))))
    nccl = selected(job.pairing().kernels, selection)
    assert {*zip(nccl["report"], nccl["row"], strict=True)} <= seen
    for times in step_times(job.steps()).values():
        of_rank = Selection(window=times.at(times.numbers == 1).window(0), tasks=frozenset({times.task}))
        count = len(demo_session.rows(sa.select(table.c.row).where(*where(table, of_rank))))
        assert count == sum(report == times.task.report for report, _ in seen) > 0
