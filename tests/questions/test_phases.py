"""Steps of inference servers: their phases, the times of each phase, and whether the host bounds it."""

import random
from collections.abc import Sequence
from contextlib import closing
from statistics import median

import pytest
from support import records, session_over
from synthetic.gpu_program import Program
from synthetic.server_program import ADAM, CONTEXT, DECODE, FLASH, FMHA, GEMM, MS, ORDER, PREFILL, SPLIT, US, Server
from triaging import finding, told, triaged

from nsystui.base.selection import Selection, Task
from nsystui.questions.blocking.budget import budget_of_each_step
from nsystui.questions.blocking.phase_table import budget_of_phases
from nsystui.questions.job.job import OpenJob
from nsystui.questions.ranks.steps import every_step, steps_across_ranks
from nsystui.questions.steps.phases import PHASES, phase_named


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
        found = phases_of(self.steps(server, eager, replayed, replayed))
        assert found == ["prefill", "decode", "decode"] * 3

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

    def test_measures_of_the_host_are_those_of_a_naive_count(self, server):
        """A step prepares for 400 µs, of which its predecessor's kernels hide 100."""
        prepared, calls = [], []
        for number in range(5):
            start = server.now
            prepared.append((start - 100 * US, start + 300 * US))
            server.export.nvtx_range(server.helper, *prepared[-1], "_prepare_tp_inputs")
            calls.append((start + 310 * US, start + 360 * US))
            kernel = (start + 400 * US, start + 1000 * US)
            server.kernel(calls[-1], kernel, name=GEMM)
            server.now = kernel[1]
            server.export.nvtx_range(
                server.main, start, server.now, f"[Executor] _forward_step {number}: 0 ctx reqs, 1 gen reqs"
            )
        with opened_job(server) as job:
            every, decode = records(budget_of_phases(job, Selection()))
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
