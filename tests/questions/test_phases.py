"""Steps of exports without ranges of steps: found by repetition in the GPU's work, or of servers, with their phases."""

import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from statistics import median

import campaign
import pytest
from support import records, session_over
from synthetic import ExportWriter, training_job
from synthetic.gpu_program import Program
from synthetic.server_program import ADAM, CONTEXT, DECODE, FLASH, FMHA, GEMM, MS, ORDER, PREFILL, SPLIT, US, Server
from triaging import finding, judged, told, triaged

from nsystui.base.anchors import ANCHORS
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task
from nsystui.questions.blocking.budget import budget_of_each_step
from nsystui.questions.blocking.phase_table import budget_of_phases
from nsystui.questions.job.job import OpenJob
from nsystui.questions.ranks.steps import every_step, steps_across_ranks
from nsystui.questions.steps.phases import PHASES, phase_named
from nsystui.questions.steps.times import Steps
from nsystui.questions.triage.case import Case
from nsystui.questions.triage.thresholds import Thresholds


@pytest.fixture
def server(tmp_path) -> Server:
    return Server(tmp_path / "server.sqlite")


def opened_job(server: Server) -> closing[OpenJob]:
    server.export.close()
    return closing(OpenJob(session_over(server.export.path)))


def phases_of(server: Server, name: str | None = None) -> list[str | None]:
    with opened_job(server) as job:
        return [row["phase"] for row in records(every_step(job.ranks, job.steps(name)))]


@pytest.fixture
def forward(server) -> Server:
    server.forward_all()
    return server


class TestChosenSteps:
    def test_a_step_ends_at_the_next_one_of_its_name_whatever_its_phase(self, forward):
        """A step ends before a prefill that follows it; otherwise it would take twice its time."""
        with opened_job(forward) as job:
            found = records(every_step(job.ranks, job.steps(r"_forward_step (\d+): 0 ctx")))
            parts = records(budget_of_each_step(job, Selection(), r"_forward_step (\d+): 0 ctx"))
        assert [row["step"] for row in found] == [number for number, one in enumerate(ORDER) if one == DECODE]
        assert {row["duration"] for row in found[:-1]} == {97_400 * US} and not any(row["slow"] for row in found)
        assert [row["duration"] for row in parts] == [row["duration"] for row in found]

    @pytest.mark.campaign
    def test_ranges_of_other_names_between_them_end_none(self, server):
        for number in range(6):
            server.step(f"step {number}", eager=[(GEMM, MS)])
            server.export.nvtx_range(server.main, server.now + 1, server.now + 2, f"other {number}")
            server.now += 100 * US
        with opened_job(server) as job:
            (found,) = job.steps(r"^step [024]").of_task.values()
            durations = [row["duration"] for row in records(every_step(job.ranks, job.steps("^step [024]")))]
        assert found.numbers.tolist() == [0, 2, 4] and found.outside == 3 * MS
        assert durations == [MS + 126 * US] * 3


class TestNames:
    @pytest.mark.parametrize(("name", "phase"), [
        ("[Executor] _forward_step 3: 1 ctx reqs, 31 gen reqs", "mixed"),
        ("[Executor] _forward_step 3: 4 ctx reqs, 0 gen reqs", "prefill"),
        ("[Executor] _forward_step 3: 0 ctx reqs, 31 gen reqs", "decode"),
        ("[Executor] _forward_step 3: 0 ctx reqs, 0 gen reqs", None),
        ("execute_context_2(512)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_8(8)", "decode"),
        ("execute_context_1(128)_generation_7(7)", "mixed"),
        ("Decode step 12", "decode"),
        ("prefill_iter 1", "prefill"),
        ("forward_extend", "prefill"),
        ("ModelRunner.forward_decode", "decode"),
        ("forward_mixed", "mixed"),
        ("decoder_step 3", None),
        ("decode images 3", None),
        ("step 7", None),
    ])  # fmt: skip
    def test_a_name_tells_a_phase(self, name, phase):
        code = phase_named(name)
        assert (PHASES[code] if code >= 0 else None) == phase

    def test_slow_steps_are_so_among_those_of_their_phase(self, server):
        server.forward_all()
        server.step("[Executor] _forward_step 11: 0 ctx reqs, 9 gen reqs", replayed=[(GEMM, 200 * MS)])
        server.forward(12, DECODE)
        with opened_job(server) as job:
            steps = job.steps()
            assert "phases, by the names of their ranges: 3 prefill, 9 decode, 1 mixed" in steps.notes
            tables = [every_step(job.ranks, steps), steps_across_ranks(job.ranks, steps)]
            tables.append(budget_of_each_step(job, Selection()))
        for table in tables:
            assert [row["step"] for row in records(table) if row["slow"]] == [11]


class TestKernels:
    """Phases of steps whose names do not show them."""

    def steps(self, server: Server, *works: dict[str, Sequence[tuple[str, int]]]) -> Server:
        for number, work in enumerate([*works] * 3):
            server.step(f"step {number}", **work)
        return server

    def test_replayed_steps_decode_and_eager_attention_prefills(self, server):
        eager, replayed = {"eager": [(GEMM, MS), (FMHA, MS)]}, {"replayed": [(GEMM, MS), (FMHA, MS)]}
        assert phases_of(self.steps(server, eager, replayed, replayed)) == ["prefill", "decode", "decode"] * 3

    @pytest.mark.campaign
    def test_a_graph_that_was_traced_as_a_whole_is_replayed(self, server):
        for number in range(6):
            if number % 2:
                server.step(f"step {number}", eager=[(FLASH, MS)])
                continue
            start = server.now
            server.graph((start + US, start + 2 * US), (start + 5 * US, start + MS))
            server.now += 2 * MS
            server.export.nvtx_range(server.main, start, server.now, f"step {number}")
        assert phases_of(server) == ["decode", "prefill"] * 3

    @pytest.mark.campaign
    @pytest.mark.parametrize("works", [
        [{"eager": [(FLASH, MS)]}],  # an encoder: nothing decodes
        [{"replayed": [(GEMM, MS)]}, {"eager": [(GEMM, MS)]}],  # no attention
        [{"replayed": [(FLASH, MS)], "eager": [(ADAM, US)]}],  # it trains
    ])  # fmt: skip
    def test_without_evidence_there_is_no_phase(self, server, works):
        self.steps(server, *works)
        with opened_job(server) as job:
            assert {row["phase"] for row in records(every_step(job.ranks, job.steps()))} == {None}
            assert not any(note.startswith("phases") for note in job.steps().notes)
            assert [row["phase"] for row in records(budget_of_phases(job, Selection()))] == ["all"]

    @pytest.mark.campaign
    @pytest.mark.parametrize("seed", range(4))
    def test_steps_of_chance_have_the_phases_of_a_naive_count(self, server, seed):
        dice, kernels = random.Random(seed), {FMHA: "", FLASH: "", GEMM: "", SPLIT: "decode", CONTEXT: "prefill"}
        expected: list[str | None] = []
        for number in range(60):
            eager, replayed = (
                [(dice.choice([GEMM, GEMM, GEMM, *kernels]), dice.randrange(US, MS)) for _ in range(dice.randrange(4))]
                for _ in range(2)
            )
            server.step(f"step {number}", eager or [(GEMM, US)], replayed)
            is_replayed = sum(time for _, time in replayed) > sum(time for _, time in eager or [(GEMM, US)])
            told = {kernels[name] for name, _ in eager + replayed} - {""}
            if is_replayed and "prefill" not in told:
                told.add("decode")
            if not is_replayed and any(name in (FMHA, FLASH) for name, _ in eager):
                told.add("prefill")
            expected.append("mixed" if len(told) == 2 else next(iter(told), None))
        assert phases_of(server) == expected and len(set(expected)) == 4

    @pytest.mark.campaign
    def test_steps_of_a_process_without_gpu_work_have_none(self, server):
        """Another process of the export has GPU work and phases."""
        other = Program(server.export, 4000)
        for number in range(4):
            server.export.nvtx_range(other.main, 100 * number, 100 * number + 50, f"step {number}")
        self.steps(server, {"eager": [(FLASH, MS)]}, {"replayed": [(FLASH, MS)]})
        with opened_job(server) as job:
            found = {task: one.phases.tolist() for task, one in job.steps().of_task.items()}
        assert found[Task(0, server.process.global_id)] == [0, 1] * 3
        assert all(set(phases) == {-1} for task, phases in found.items() if task.process != server.process.global_id)


class TestTable:
    @pytest.mark.campaign
    def test_each_phase_has_its_own_budget(self, forward):
        with opened_job(forward) as job:
            each = records(budget_of_each_step(job, Selection()))
            found = {row["phase"]: row for row in records(budget_of_phases(job, Selection()))}
        assert list(found) == ["all", "prefill", "decode", "mixed"]
        for phase, row in found.items():
            own = [one for one in each if phase in ("all", one["phase"])]
            times = [one["duration"] for one in own]
            assert (row["count"], row["median"], row["min"], row["max"]) == (
                len(own), median(times), min(times), max(times)
            )  # fmt: skip
            for part in ("compute", "starved", "unresolved", "stalled", "tail"):
                assert row[part] == median(one[part] for one in own)
            assert row["share"] == pytest.approx(100 * sum(times) / sum(one["duration"] for one in each))

    @pytest.mark.parametrize("launch", ["cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000"])
    def test_measures_of_the_host_are_those_of_a_naive_count(self, server, launch):
        """A step prepares for 400 µs, of which its predecessor's kernels hide 100; its kernel may be a graph's."""
        prepared, calls = [], []
        for number in range(5):
            start = server.now
            prepared.append((start - 100 * US, start + 300 * US))
            server.export.nvtx_range(server.helper, *prepared[-1], "_prepare_tp_inputs")
            calls.append((start + 310 * US, start + 360 * US))
            kernel = (start + 400 * US, start + 1000 * US)
            server.kernel(None, kernel, name=GEMM, correlation_id=server.call(launch, calls[-1]))
            server.now = kernel[1]
            server.export.nvtx_range(
                server.main, start, server.now, f"[Executor] _forward_step {number}: 0 ctx reqs, 1 gen reqs"
            )
        with opened_job(server) as job:
            every, decode = records(budget_of_phases(job, Selection()))
            advice = finding(judged(job, rules=("host_bound",)), "host-bound").advice.text
        assert ("replay decode steps as CUDA graphs" in advice) == (launch == "cudaLaunchKernel_v7000")
        time = 5 * 1000 * US
        idle, exposed, total = 5 * 400 * US, 5 * 300 * US, 5 * 300 * US + 4 * 100 * US
        expected = {
            "idle": 100 * idle / time, "launch": 100 * 5 * 50 * US / time, "exposed": 100 * exposed / total,
            "of_time": 100 * exposed / time, "of_idle": 100 * exposed / idle,
        }  # fmt: skip
        assert {key: every[key] for key in expected} == pytest.approx(expected)
        assert (every["host_bound"], decode["host_bound"]) == ("yes", "yes")

    @pytest.mark.campaign
    def test_a_decode_step_may_be_idle_for_less_than_a_prefill_step(self, server):
        """250 of each 1000 µs are idle: two measures for steps that decode, none for prefills."""
        for number in range(12):
            start = server.now
            server.kernel((start, start + 5 * US), (start + 250 * US, start + 1000 * US), name=GEMM)
            server.now += 1000 * US
            requests = "0 ctx reqs, 1 gen reqs" if number % 2 else "1 ctx reqs, 0 gen reqs"
            server.export.nvtx_range(server.main, start, server.now, f"[Executor] _forward_step {number}: {requests}")
        with opened_job(server) as job:
            found = {row["phase"]: row for row in records(budget_of_phases(job, Selection()))}
        assert {phase: row["host_bound"] for phase, row in found.items()} == {
            "all": "no", "prefill": "no", "decode": "yes"
        }  # fmt: skip
        assert found["all"]["exposed"] is None  # no range for preparation by the host


class TestTriage:
    RULES = ("step_times",)

    @pytest.mark.campaign
    def test_prefills_among_decodes_are_neither_slow_nor_a_warm_up_nor_a_drift(self, server):
        """Prefills are first, and more frequent later."""
        for number in range(60):
            server.forward(number, PREFILL if number < 3 or (number > 30 and number % 2) else DECODE)
        server.export.close()
        assert not triaged(server.export.path, rules=self.RULES).findings

    def test_a_slow_step_is_held_against_those_of_its_phase(self, server):
        for number in range(40):
            server.forward(number, PREFILL if number % 2 else DECODE)
        server.step("[Executor] _forward_step 40: 0 ctx reqs, 9 gen reqs", replayed=[(GEMM, 290 * MS)])
        server.forward(41, DECODE)
        server.export.close()
        found = finding(triaged(server.export.path, settings=["slow_step_percent=1"], rules=self.RULES), "slow-steps")
        told(found, "1 of 40 steps (number 40) took more than 1.5 times the rank's median step of the same phase.")
        assert found.cost == pytest.approx(290 * MS + 26 * US - 97_400 * US)


OPTIMIZER = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int)"
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
        step = [*layers(4), *[OPTIMIZER, OPTIMIZER, "scale(int)", OPTIMIZER]]
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
        kind, number, _ = found(job([*layers(4) * 3, OPTIMIZER, TO_HOST] * 5))
        assert (kind, number) == ("optimizer", 4)


class TestEnds:
    @pytest.mark.campaign
    def test_warm_up_and_a_start_in_the_middle_of_a_step_are_left_out(self, job):
        step = [*layers(4), OPTIMIZER]
        training = job([*["benchmark(int)"] * 40, *step, *step[10:], *step * 6, *step[:12]])
        assert found(training) == ("optimizer", 6, [len(step)])
        assert "where the capture starts or ends with no whole step" in training.steps().notes[-1]

    def test_two_whole_steps_are_no_repetition(self, job):
        assert found(job([*layers(4), OPTIMIZER] * 2)) is None


@pytest.mark.campaign
class TestNone:
    @pytest.mark.parametrize("operations", [
        Random(3).choices([*LAYER, OPTIMIZER, ALL_REDUCE, TO_HOST, TO_DEVICE], k=2_000),
        [name for size in (3, 1, 2, 4, 1, 3, 2, 1) for name in (*layers(size), OPTIMIZER, TO_HOST)],
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

    def test_iterations_that_each_copy_to_the_host_are_steps_unless_they_may_be_layers(self, job):
        iteration = ["gemm(int)", "relu(int)", "relu(int)", "gemm(int)", "relu(int)", "gemm(int)", TO_HOST]
        assert found(job(iteration * 20))[0] == "kernels"
        assert found(job([*iteration * 4, "embed(int)"] * 5)) is None

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
        run = job([*part * 3, OPTIMIZER] * 8)
        assert found(run)[0] == "optimizer"
        assert any("say otherwise" in note and "--steps-by kernels" in note for note in run.steps().notes)

    def test_the_job_may_choose(self, job):
        run = job([*layers(4, ALL_REDUCE), OPTIMIZER, TO_HOST] * 8)
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
        first, second = OpenJob(opened(*paths)).steps().of_task.values()
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
