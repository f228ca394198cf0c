"""Ranks compared: odd figures, step times, and the maps of all ranks."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import edit, records, session_over, shared
from synthetic import cpu_only_export
from synthetic.demo import TrainingJob
from synthetic.illnesses import pipeline_stages

from nsystui.base.answer import Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.algebra.projection import Projection
from nsystui.questions.blocking.budget import iterations, unprofiled_note
from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.collectives.waiting import collective_kinds, collective_operations
from nsystui.questions.job.job import OpenJob
from nsystui.questions.ranks.heat import PARTS, Merge, RankMap, scaled, time_map
from nsystui.questions.ranks.steps import NO_GAP, StepTimes, every_step, figures, step_times, steps_across_ranks
from nsystui.questions.ranks.table import Measure, is_odd, rank_table, scores
from nsystui.questions.steps.task_steps import TaskSteps
from nsystui.questions.triage.run import triage

ANY = Measure("x", 0.0)
EVERYTHING = Selection()


class TestOddity:
    @pytest.mark.parametrize(("values", "measure", "is_last_odd"), [
        ([10.0, 10.1, 9.9, 10.0, 14.0], ANY, True),
        ([5.0, 5.0, 5.0, 5.0, 8.0], ANY, True),  # found although the other ranks agree to the last digit
        ([5.0, 5.0, 5.0, 5.0, 5.4], Measure("x", 2.0), False),  # too small to matter
        ([100.0, 100.0, 100.0, 100.0, 101.0], Measure("x", 0.0, 0.02), False),
        ([5.0, 5.0, 5.0, 5.0, 0.0], ANY, True),
        ([5.0, 5.0, 5.0, 5.0, 0.0], Measure("x", 0.0, only_high=True), False),
    ])  # fmt: skip
    def test_one_among_many_stands_out(self, values, measure, is_last_odd):
        assert list(map(is_odd, scores(values, measure))) == [False, False, False, False, is_last_odd]

    def test_of_a_few_nobody_is_odd_and_missing_stays_missing(self):
        assert scores([1.0, 2.0, 900.0], ANY) == [None] * 3
        assert scores([None, 1.0, 1.0, 1.0, 1.0], ANY)[0] is None

    @pytest.mark.campaign
    @given(st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=40), st.floats(-1e6, 1e6))
    def test_at_least_half_of_the_ranks_are_never_odd(self, values, shift):
        assert sum(map(is_odd, scores([value + shift for value in values], ANY))) <= len(values) / 2


def task_steps(*gpu: tuple[int, int]) -> TaskSteps:
    starts, ends = np.array(gpu, np.int64).T
    has_work = (ends > starts).astype(np.int64)
    work = Projection(has_work, starts * has_work, ends * has_work, ends - starts)
    numbers = np.arange(len(gpu))
    return TaskSteps(Task(0, 1), "step *", numbers, 100 * numbers, 100 * numbers + 100, work)


class TestStepTimes:
    def test_a_step_lasts_until_the_next_one_that_launched_something_begins(self):
        times = StepTimes.of(task_steps((10, 30), (50, 80), (90, 100)))
        assert times.duration.tolist() == [50, 40, 10] and times.on_gpu
        times = StepTimes.of(task_steps((10, 30), (0, 0), (90, 100)))
        assert times.numbers.tolist() == [0, 2] and times.duration.tolist() == [90, 10]
        times = StepTimes.of(task_steps((0, 0), (0, 0)))  # without launches, the time on the CPU
        assert times.duration.tolist() == [100, 100] and not times.on_gpu

    def test_idle_time_before_the_first_operation_belongs_to_the_step_whose_range_it_is_in(self):
        """The ranges are 100 ns long: the GPU is idle from 30 to 170, of which the second step has 70 ns."""
        times = StepTimes.of(task_steps((10, 30), (170, 190), (195, 240)))
        assert times.start.tolist() == [0, 100, 195] and times.duration.tolist() == [100, 95, 45]
        overlapping = StepTimes.of(task_steps((10, 130), (170, 190)))  # earlier work runs on into its range
        assert overlapping.start.tolist() == [0, 130]

    def test_slow_is_more_than_one_and_a_half_medians(self):
        times = StepTimes.of(task_steps((0, 10), (10, 20), (20, 30), (30, 46), (46, 56)))
        assert times.is_slow.tolist() == [False, False, False, True, False]
        found = figures(times)
        assert found is not None and (found.count, found.median, found.slow, found.most) == (5, 10, 1, 16)

    def test_the_gap_between_steps_is_from_the_last_operation_of_one_to_the_first_of_the_next(self):
        times = StepTimes.of(task_steps((10, 30), (50, 80), (75, 100), (0, 0), (400, 420)))
        assert times.gap.tolist() == [20, 0, 300, NO_GAP]
        found = figures(times)
        assert found is not None and (found.gap_p50, found.gap_p90) == (20, 244)
        single = figures(StepTimes.of(task_steps((10, 30))))
        assert single is not None and single.gap_p50 is None

    @pytest.mark.campaign
    def test_an_unprofiled_step_is_compared_with_the_median_and_the_work_of_the_gpu(self, opened):
        job = OpenJob(opened(*shared("dataloader-bound-a100")))
        note = unprofiled_note(job, EVERYTHING, 190_000_000)
        # A step takes 200.7 ms; the GPU is busy except in late launches and stalled time
        assert "takes 190 ms, in this capture 200.7 ms (+5.6 %)" in note
        (one,) = iterations(job, EVERYTHING)
        left = format_value(Unit.DURATION, 190_000_000 - float(np.median(one.of.busy)))
        assert f"leaves {left} of an unprofiled step to the CPU alone" in note

    def test_the_steps_of_a_real_run(self, opened):
        (times,) = step_times(OpenJob(opened(*shared("ddp-a100-rank0of4"))).steps()).values()
        found = figures(times)
        assert found is not None and found.count == 59 and times.on_gpu
        assert 29e6 < found.p5 <= found.median <= found.p95 < 32e6

    def test_a_window_chooses_the_steps_that_begin_in_it(self, demo_session):
        job = OpenJob(demo_session)
        task, own = next(iter(step_times(job.steps()).items()))
        assert step_times(job.steps(), own.window(1))[task].numbers.tolist() == [own.numbers[1]]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    job = OpenJob(session_over(*TrainingJob(ranks=8, steps=6, layers=2).write(tmp_path_factory.mktemp("eight"))))
    job.align(ClockMode.COLLECTIVES)
    yield job
    job.close()


class TestTable:
    @staticmethod
    def rows(job: OpenJob, selection: Selection = EVERYTHING) -> list[dict[str, Any]]:
        return records(rank_table(job.session, selection, job.ranks, job.rank_facts(selection)))

    def test_only_selected_ranks_have_rows_but_lateness_is_among_all(self, job):
        late = {row["rank"]: row["late"] for row in self.rows(job)}
        (row,) = self.rows(job, Selection(tasks=frozenset({job.ranks[2].task})))
        assert row["late"] == late[2] and row["odd"] is None

    @pytest.mark.campaign
    def test_ranks_with_the_same_kernels_are_of_one_model_part(self, job, tmp_path):
        assert {row["part"] for row in self.rows(job)} == {None}
        with closing(OpenJob(session_over(*pipeline_stages(tmp_path).paths))) as job:
            rows = self.rows(job)
            notes = rank_table(job.session, EVERYTHING, job.ranks, job.rank_facts(EVERYTHING)).notes
        assert [(row["rank"], row["part"], row["step_operations"]) for row in rows] == [
            (0, "A", 7), (1, "A", 7), (2, "B", 4), (3, "B", 4)
        ]  # fmt: skip
        assert any("A (ranks 0, 1), B (ranks 2, 3); ranks of different parts have different work" in n for n in notes)

    def test_a_part_of_a_job_says_so(self, opened):
        job = OpenJob(opened(*shared("alcf-allgather-rank0", "alcf-allgather-rank4")))
        answer = rank_table(job.session, Selection(), job.ranks, job.rank_facts(Selection()))
        assert any(note.startswith("2 of 8 ranks are open") for note in answer.notes)
        rows = records(answer)
        assert [(row["rank"], row["late"]) for row in rows] == [(0, 0), (4, 1)]
        assert rows[1]["median_lateness"] == 166_884_618 and rows[1]["step_median"] is None

    def test_without_gpu_work_nothing_is_made_up(self, tmp_path, opened):
        for row in self.rows(OpenJob(opened(cpu_only_export(tmp_path / "cpu.sqlite")))):
            assert row["busy_percent"] is None and row["late"] is None and row["wait_caused"] is None


class TestCollectiveTables:
    @staticmethod
    def operations(job: OpenJob, selection: Selection = EVERYTHING) -> list[dict[str, Any]]:
        return records(collective_operations(selection, job.ranks, job.collectives()))

    def test_transfer_and_waiting_of_a_kind_are_those_of_its_operations(self, job):
        for kind in records(collective_kinds(EVERYTHING, job.ranks, job.collectives())):
            own = [row for row in self.operations(job) if row["collective"] == kind["collective"]]
            assert kind["operations"] == len(own)
            assert kind["transfer"] == sum(row["transfer"] for row in own)
            assert kind["waiting"] * kind["ranks"] == pytest.approx(sum(row["waiting"] for row in own))

    def test_both_ways_to_tell_who_is_late_agree(self, job):
        late = [row for row in self.operations(job) if row["late_rank"] is not None]
        assert late and all(abs(row["late_by"] - row["start_spread"]) < 10_000 for row in late)

    def test_a_filter_and_a_window_choose(self, job):
        starts = [row["start"] for row in self.operations(job)]
        some = self.operations(job, Selection(window=Window(starts[3], starts[5])))
        assert [row["start"] for row in some] == starts[3:5]
        named = collective_operations(EVERYTHING.with_name("gather"), job.ranks, job.collectives())
        assert {row["collective"] for row in records(named)} == {"AllGather"} and named.total == len(starts)


class TestStepTables:
    def test_across_ranks_names_the_slowest(self, job):
        every = records(every_step(job.ranks, job.steps()))
        for row in records(steps_across_ranks(job.ranks, job.steps())):
            own = {one["rank"]: one["duration"] for one in every if one["step"] == row["step"]}
            assert row["max"] == max(own.values()) == own[row["slowest"]] and row["spread"] == row["max"] - row["min"]


@pytest.mark.campaign
def test_different_runs_are_not_compared(tmp_path, opened):
    """Two ranks of a run, and two of a run one day later."""
    two_runs = TrainingJob(steps=3, layers=1, gpu_metrics=False).write(tmp_path)
    for path in two_runs[2:]:
        edit(path, "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 86400000000000")
    job = OpenJob(opened(*two_runs))
    assert not job.shares_clock
    matching = job.collectives()
    assert matching.unmatched and all(len(group.reports) == 1 for group in matching.groups)
    answer = rank_table(job.session, Selection(), job.ranks, job.rank_facts(Selection()))
    assert not any(row["odd"] for row in records(answer))
    assert any("of different runs" in note for note in answer.notes)
    found = triage(job)
    assert "different-runs" in {one.id for one in found.findings}
    assert "different-work" in {one.rule for one in found.not_checked}


@pytest.mark.campaign
def test_two_runs_on_one_machine_are_told_apart_by_their_times(tmp_path, opened):
    """The second run begins a minute after the start of the first, which has long ended."""
    first, second, *_ = TrainingJob(ranks=4, steps=2, layers=1, gpu_metrics=False).write(tmp_path)
    later = "utcEpochNs = utcEpochNs + 60000000000, systemClockNs = systemClockNs + 60000000000"
    edit(second, f"UPDATE TARGET_INFO_SESSION_START_TIME SET {later}")
    job = OpenJob(opened(first, second))
    assert not job.shares_clock
    assert job.several_runs.endswith(f"`nsystui {first} -- {second}` compares them")


class TestMap:
    def test_over_time_it_is_what_the_gpu_screen_draws(self, job):
        busy, window = job.busy(Selection()), job.extent()
        for figure, lane in PARTS.items():
            shown = time_map(job.session, Selection(), job.ranks, busy, window, 20, figure)
            for values, device in zip(shown.values, busy.devices, strict=True):
                np.testing.assert_array_equal(values, device.share(lane, window, 20))

    @given(st.integers(1, 30), st.integers(1, 12))
    def test_every_rank_is_on_one_line_of_few(self, count, lines):
        shown = RankMap("busy", tuple(range(count)), np.zeros((count, 1)), (Window(0, 1),))  # type: ignore[arg-type]
        groups = shown.grouped(lines)
        assert len(groups) <= lines and [rank for group in groups for rank in group] == list(range(count))

    def test_what_stands_for_several_ranks(self):
        values = np.array([[0.0, np.nan, np.nan], [0.5, 0.25, np.nan], [1.0, 0.75, np.nan]])
        shown = RankMap("busy", (0, 1, 2), values, (Window(0, 1),) * 3)  # type: ignore[arg-type]
        groups = shown.grouped(1)
        for merge, expected in ((Merge.MEAN, [0.5, 0.5]), (Merge.MINIMUM, [0.0, 0.25]), (Merge.MAXIMUM, [1.0, 0.75])):
            (line,) = shown.merged(groups, merge)
            assert line[:2].tolist() == expected and np.isnan(line[2])

    def test_steps_that_hardly_differ_are_drawn_alike(self):
        close = scaled(np.array([[100.0, 101.0, np.nan]]), is_of_steps=True)
        assert close[0, 1] < 0.4 and close[0, 0] == pytest.approx(0.1) and np.isnan(close[0, 2])
        far = scaled(np.array([[100.0, 300.0]]), is_of_steps=True)
        assert far.tolist() == [[pytest.approx(0.1), pytest.approx(1.0)]]
