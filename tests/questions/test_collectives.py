"""Collectives across ranks: kernels of the same collective, clocks that are ahead, late ranks and waits."""

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import edit, job_of, shared
from synthetic import cpu_only_export

from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.questions.collectives.alignment import ClockMode, fit_clock
from nsystui.questions.collectives.matching import UNKNOWN, KernelSequence, MatchedCollectives, Member, match, sequences
from nsystui.questions.collectives.waiting import NOBODY, Arrivals, collective_operations, lateness
from nsystui.questions.job.job import OpenJob
from nsystui.store.cache import Cache
from nsystui.store.report import aligned
from nsystui.store.session import Session

MS = 1_000_000


def sequence(
    report: int,
    starts: Sequence[int],
    ends: Sequence[int],
    *,
    communicator: str = "",
    stream: int = 7,
    collectives: Sequence[str] | None = None,
) -> KernelSequence:
    names = ["AllReduce"] * len(starts) if collectives is None else list(collectives)
    return KernelSequence(
        Member(Task(report, 1), 0), communicator, stream, np.array(names, object), np.full(len(starts), UNKNOWN),
        np.arange(len(starts)), np.array(starts, np.int64), np.array(ends, np.int64),
    )  # fmt: skip


def group_of(*ranks: tuple[Sequence[int], Sequence[int]]) -> MatchedCollectives:
    (found,) = match([sequence(number, *times) for number, times in enumerate(ranks)]).groups
    return found


class TestMatching:
    def test_ranks_with_the_same_operations_in_the_same_order_belong_together(self):
        names = ["AllReduce", "AllGather"]
        (group,) = match([sequence(rank, [0, 10], [5, 15], collectives=names) for rank in range(3)]).groups
        assert [member.task.report for member in group.members] == [0, 1, 2]
        assert group.start.shape == (3, 2) and group.collective.tolist() == names

    def test_a_rank_with_another_number_of_operations_is_left_out_and_told(self):
        matching = match([sequence(0, [0, 9], [5, 14]), sequence(1, [0, 9], [5, 14]), sequence(2, [0], [5])])
        assert [len(group.members) for group in matching.groups] == [2]
        assert [member.task.report for member in matching.unmatched] == [2]

    def test_communicators_keep_ranks_apart(self):
        ranks = [sequence(rank, [0], [5], communicator="ab"[rank // 2]) for rank in range(4)]
        found = {group.communicator: [m.task.report for m in group.members] for group in match(ranks).groups}
        assert found == {"a": [0, 1], "b": [2, 3]}

    def test_groups_side_by_side_are_told_apart_by_their_ends(self):
        random = np.random.default_rng(5)
        starts = np.cumsum(random.integers(2 * MS, 4 * MS, 40))
        ends = [starts + random.integers(MS // 2, 2 * MS, 40) for _ in range(2)]
        ranks = [
            sequence(rank, starts + clock, ends[rank % 2] + clock + random.integers(0, 2_000, 40))
            for rank, clock in enumerate([0, 30 * MS, -5 * MS, 12 * MS])
        ]
        found = sorted([member.task.report for member in group.members] for group in match(ranks).groups)
        assert found == [[0, 2], [1, 3]]

    def test_the_streams_of_a_rank_go_in_their_order(self):
        groups = match([sequence(rank, [0], [5], stream=stream) for rank in range(2) for stream in (7, 9)]).groups
        assert [len(group.members) for group in groups] == [2, 2]
        assert all(len(group.reports) == 2 for group in groups)

    @pytest.mark.campaign
    def test_what_is_kept_is_the_same_again(self, demo_job, tmp_path):
        found = []
        for _ in range(2):
            with closing(Session(Cache(tmp_path))) as session:
                for path in demo_job[:2]:
                    session.add(path)
                groups = match(sequences(session, session.reports)).groups
            found.append([(group.communicator, group.size.tolist(), group.start.tolist()) for group in groups])
        assert found[0] == found[1]


class TestClock:
    @pytest.mark.campaign
    @given(st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=6), st.integers(1, 30))
    def test_clocks_that_are_only_shifted_are_found_to_the_nanosecond(self, clocks, count):
        ends = np.arange(1, count + 1) * 10 * MS
        starts = ends - 3 * MS
        found = fit_clock([group_of(*[(starts + clock, ends + clock) for clock in clocks])])
        placed = {clock + found.shifts[number] for number, clock in enumerate(clocks)}
        assert max(placed) - min(placed) <= 1
        assert (found.error is None) == (count == 1)

    def test_a_few_disturbed_operations_do_not_matter(self):
        ends = np.arange(1, 21) * 10 * MS
        disturbed = ends.copy()
        disturbed[[3, 7]] += 5 * MS
        found = fit_clock([group_of((ends - MS, ends), (ends - MS + 400, disturbed + 400))])
        assert found.shifts[0] - found.shifts[1] == 400 and found.error == 0

    def test_only_what_all_can_leave_together_counts(self):
        ends = [5, 15]
        rooted = ["Broadcast", "ReduceScatter"]
        ranks = [sequence(rank, [0, 10], ends, collectives=rooted) for rank in range(2)]
        assert not fit_clock(match(ranks).groups).shifts

    def test_the_widest_group_is_used(self):
        world = [sequence(rank, [0], [100 + rank], communicator="world") for rank in range(3)]
        pair = [sequence(rank, [0], [900 * rank], communicator="pair") for rank in range(2)]
        assert fit_clock(match([*world, *pair]).groups).shifts == {0: 1, 1: 0, 2: -1}

    @pytest.mark.campaign
    def test_clocks_of_hosts_that_are_far_apart_are_reported(self, demo_job, opened, tmp_path):
        paths = [shutil.copy(demo_job[rank], tmp_path) for rank in (0, 2)]
        edit(Path(paths[1]), "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 2000000000")
        job = OpenJob(opened(*map(Path, paths)))
        job.align(ClockMode.COLLECTIVES)
        assert "the hosts' clocks were up to 2 s apart" in job.alignment.words(job.session.reports)

    @pytest.mark.campaign
    def test_the_demo_is_put_right_or_left_as_it_is(self, demo_job, opened):
        job = OpenJob(opened(*demo_job))
        before = [report.clock_offset for report in job.session.reports]
        job.align(ClockMode.COLLECTIVES)
        moved = [report.clock_offset - old for report, old in zip(job.session.reports, before, strict=True)]
        # The second host's clock is 85 µs ahead.
        assert np.mean(moved[:2]) - np.mean(moved[2:]) == pytest.approx(85_000, abs=1_500)
        assert job.alignment is not None and job.alignment.fit.error < 3_000
        assert "residual" in job.alignment.words(job.session.reports)
        version = job.session.version
        job.align(ClockMode.OWN)
        assert [report.clock_offset for report in job.session.reports] == [0] * 4 and job.session.version > version
        job.align(ClockMode.UTC)
        assert job.session.reports == aligned(job.session.reports)

    @pytest.mark.campaign
    def test_the_real_pair_ends_together(self, opened):
        job = OpenJob(opened(*shared("alcf-allgather-rank0", "alcf-allgather-rank4")))
        (raw,) = match(sequences(job.session, job.session.reports)).groups
        by_rank = {item.rank: lateness([Arrivals.of(raw)])[item.task] for item in job.ranks}
        assert (by_rank[0].late, by_rank[4].late) == (0, 1), "the late rank"
        assert by_rank[4].caused == by_rank[0].suffered == 166_884_618
        assert abs(int(np.ptp(raw.start)) - 167 * MS) < MS // 10
        assert 0 < np.ptp(raw.end) < 120_000
        job.align(ClockMode.COLLECTIVES)
        (fitted,) = match(sequences(job.session, job.session.reports)).groups
        assert np.ptp(fitted.end) <= 1


class TestWaiting:
    def test_the_shortest_kernel_came_last_whatever_the_clock(self):
        late = group_of(([0], [100 * MS]), ([10**12 + 60 * MS], [10**12 + 100 * MS]), ([1], [100 * MS]))
        arrivals = Arrivals.of(late)
        assert arrivals.last.tolist() == [1] and arrivals.transfer.tolist() == [40 * MS]
        found = lateness([arrivals])
        assert found[Task(1, 1)].late == 1 and found[Task(1, 1)].suffered == 0
        assert found[Task(1, 1)].caused == (60 * MS + 60 * MS - 1) // 2
        assert found[Task(0, 1)].suffered == 60 * MS and found[Task(0, 1)].median_lateness is None

    def test_nearly_together_is_nobody_late(self):
        assert Arrivals.of(group_of(([0], [100 * MS]), ([9_000], [100 * MS]))).last.tolist() == [NOBODY]

    def test_what_a_root_may_leave_early_does_not_count(self):
        ranks = [sequence(rank, [0], [(1 + rank) * MS], collectives=["Broadcast"]) for rank in range(2)]
        assert not len(Arrivals.of(match(ranks).groups[0]).operations)

    def test_a_window_chooses_operations_by_their_first_start(self):
        group = group_of(([0, 50], [10, 60]), ([2, 52], [10, 60]))
        assert Arrivals.of(group, Window(40, 51)).operations.tolist() == [1]

    @pytest.mark.campaign
    @given(st.lists(st.lists(st.integers(1, 10**9), min_size=3, max_size=3), min_size=1, max_size=20))
    def test_transfer_and_waiting_are_all_of_the_time(self, durations):
        ends = np.arange(1, len(durations) + 1) * 10**10
        lengths = np.array(durations).T
        found = lateness([Arrivals.of(group_of(*[(ends - own, ends) for own in lengths]))])
        for rank, own in enumerate(lengths):
            assert found[Task(rank, 1)].suffered + found[Task(rank, 1)].transfer == own.sum()
        assert sum(one.late for one in found.values()) <= len(durations)


def test_a_job_without_nccl_has_nothing_to_match(tmp_path, opened):
    session = opened(cpu_only_export(tmp_path / "cpu.sqlite"))
    assert match(sequences(session, session.reports)).groups == ()


@pytest.mark.parametrize(
    ("ranks", "name", "note"),
    [(1, "", "no two ranks share"), (2, "SendRecv", "is in the selection"), (0, "", "of NCCL was recorded")],
)
def test_a_table_without_collectives_has_the_only_reason(tmp_path, demo_job, ranks, name, note):
    with job_of(*(demo_job[:ranks] or [cpu_only_export(tmp_path / "cpu.sqlite")])) as job:
        answer = collective_operations(Selection(name=NameFilter(name) if name else None), job.ranks, job.collectives())
        assert not answer.rows and len(answer.notes) == 1 and note in answer.notes[0]
