"""Clocks of hosts that drift apart: found by collectives, corrected in all times, and reported."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from support import edit, native, session_over
from synthetic.demo.model import nccl_kernel
from synthetic.illnesses import one_gpu
from synthetic.writing.target import CaptureSession

from nsystui.base.resources import Limits
from nsystui.base.selection import Selection, Task
from nsystui.cli import main
from nsystui.exports.discover import packed_reports
from nsystui.questions.collectives.alignment import ClockMode, fit_clock
from nsystui.questions.collectives.matching import UNKNOWN, KernelSequence, MatchedCollectives, Member, match, sequences
from nsystui.questions.collectives.waiting import Arrivals, lateness
from nsystui.questions.job.job import OpenJob
from nsystui.questions.job.on_dask import ReportPlace, compute_there
from nsystui.questions.queries.time_window import extent
from nsystui.store import tables
from nsystui.store.cache import Cache
from nsystui.store.session import Session

MS = 1_000_000
SECOND = 1_000 * MS
LATE = 1_600_000
ALL_REDUCE = nccl_kernel("AllReduce").name
Drift = Callable[[int], int]


def by(ppm: float) -> Drift:
    """Return the clock that is ahead by ``ppm`` of the time."""
    return lambda time: int(time * ppm * 1e-6)


def write_job(
    folder: Path, drifts: Sequence[Drift], *, steps: int = 40, every: int = 15 * SECOND, offset: int = 0, noise: int = 0
) -> list[Path]:
    """Write a rank per clock; the second half is on another host, ``offset`` ns ahead, and late to each AllReduce."""
    folder.mkdir(parents=True, exist_ok=True)
    variation = random.Random(7)
    paths = [folder / f"rank{rank}.sqlite" for rank in range(len(drifts))]
    for rank, (path, drift) in enumerate(zip(paths, drifts, strict=True)):
        other = rank >= len(paths) // 2
        session = CaptureSession(
            hostname="host-b" if other else "host-a",
            utc_epoch_ns=CaptureSession.utc_epoch_ns + offset * other,
            environment={"RANK": str(rank), "WORLD_SIZE": str(len(paths))},
            duration=steps * every + drift(steps * every),
        )
        with one_gpu(path, session=session) as gpu:
            for step in range(steps):
                begin, late, end = step * every + MS, LATE * other, (step + 1) * every - 10 * MS
                times = (begin, begin + 1_000, end - 4 * MS + late, end + variation.randint(0, noise), end + 9 * MS)
                start, launch, called, ended, last = (time + drift(time) for time in times)
                gpu.kernel(start + 20_000, called, launch)
                gpu.kernel(called, ended, launch + 5_000, ALL_REDUCE, stream=20)
                gpu.export.nvtx_range(gpu.main, start, last, f"step {step}")
    return paths


def job_of(session: Session, mode: ClockMode = ClockMode.COLLECTIVES) -> OpenJob:
    job = OpenJob(session)
    job.align(mode)
    return job


def note_of(job: OpenJob) -> str:
    assert job.alignment is not None
    return job.alignment.words(job.session.reports)


def rates_of(job: OpenJob) -> list[float]:
    return [report.clock_rate for report in job.session.reports]


def waits_of(job: OpenJob) -> list[int]:
    groups = match(sequences(job.session, job.session.reports)).groups
    times = lateness([Arrivals.of(group) for group in groups])
    return [times[item.task].suffered for item in job.ranks]


def times_of(session: Session, table: sa.Table) -> list[list[int]]:
    """Return the job times of the events of each report, by row."""
    columns = table.c
    times = [(edge + columns.clock_offset).label(edge.name) for edge in (columns.start, columns.end)]
    rows = session.rows(sa.select(columns.report, *times).order_by(columns.report, columns.row))
    return [[time for index, *edges in rows if index == report.index for time in edges] for report in session.reports]


def steps_of(job: OpenJob) -> tuple[list[int], list[int]]:
    """Return the time and the number of GPU operations of each step of all ranks."""
    steps = job.steps().of_task.values()
    times = np.concatenate([each.ends - each.starts for each in steps])
    return times.tolist(), np.concatenate([each.gpu.op_count for each in steps]).tolist()


FAST = "every host"
DRIFTS = {
    "the second host is 50 ppm fast": ([0, 0, 50, 50], 50), "the second host is 50 ppm slow": ([0, 0, -50, -50], 50),
    "5 ppm": ([0, 0, 5, 5], 5), "two of four hosts": ([0, 0, 30, 30, 0, 0, -20, -20], 50),
    "every host": ([7, -12, 33, 90], 102), "two reports": ([0, 50], 50),
}  # fmt: skip


@pytest.mark.parametrize(("ppm", "most", "offset"), [
    pytest.param(*drift, offset, id=f"{name}, {offset}", marks=[pytest.mark.campaign] * (name != FAST or not offset))
    for name, drift in DRIFTS.items()
    for offset in (0, 11_560 * MS)
])  # fmt: skip
def test_clocks_that_drift_are_corrected_and_the_note_has_offset_drift_and_residual(
    tmp_path, opened, ppm, most, offset
):
    job = job_of(opened(*write_job(tmp_path, list(map(by, ppm)), offset=offset)))
    (group,) = match(sequences(job.session, job.session.reports)).groups
    assert group.end.shape == (len(ppm), 40) and np.ptp(group.end, axis=0).max() <= 100
    assert job.alignment is not None and job.alignment.fit.error <= 10
    note = note_of(job)
    assert f"drifted by up to {most} ppm, which is corrected" in note and "residual" in note
    assert ("were up to 11.56 s apart at first and drifted" in note) == bool(offset) != ("clocks drifted" in note)
    half = len(ppm) // 2
    assert waits_of(job) == pytest.approx([40 * LATE] * half + [0] * half, abs=40 * 500)


@pytest.mark.campaign
def test_the_waits_of_noisy_ends_are_right_within_the_residual(tmp_path, opened):
    job = job_of(opened(*write_job(tmp_path, list(map(by, [0, 0, 50, 50])), noise=40_000)))
    assert job.alignment is not None and job.alignment.fit.error < 20_000
    assert "drifted by up to 50 ppm" in note_of(job)
    (group,) = match(sequences(job.session, job.session.reports)).groups
    assert np.ptp(group.end, axis=0).max() < 60_000
    assert waits_of(job)[:2] == pytest.approx([40 * LATE] * 2, abs=40 * 20_000)


@pytest.mark.campaign
def test_all_times_of_a_drifting_job_are_those_of_a_job_with_one_clock(tmp_path, opened):
    drifting = job_of(opened(*write_job(tmp_path / "a", list(map(by, [0, 0, 50, 50])))))
    steady = job_of(opened(*write_job(tmp_path / "b", list(map(by, [0, 0, 0, 0])))))
    for table in (tables.kernels, tables.api_calls, tables.nvtx_ranges):
        pairs = zip(times_of(drifting.session, table), times_of(steady.session, table), strict=True)
        assert all(corrected == pytest.approx(times, abs=3) for corrected, times in pairs)
    spans = [extent(job.session, Selection(), fit) for job in (drifting, steady) for fit in (True, False)]
    assert (spans[0].start, spans[0].end) == pytest.approx((spans[2].start, spans[2].end), abs=3)
    assert (spans[1].start, spans[1].end) == pytest.approx((spans[3].start, spans[3].end), abs=3)
    # A step is as long as its events say, so its kernels stay within it.
    (first, counts), (second, steady_counts) = (steps_of(job) for job in (drifting, steady))
    assert first == pytest.approx(second, abs=3) and counts == steady_counts == [2] * 4 * 40


@pytest.mark.parametrize(("lost", "noise"), [((5,), 0), ((0, 1, 2), 0), ((5, 17, 30), 20_000), ((38, 39), 20_000)])
def test_a_rank_that_lacks_a_few_collectives_has_the_drift_of_its_clock(tmp_path, opened, lost, noise):
    paths = write_job(tmp_path, [by(0), by(0), by(50), by(50)], noise=noise)
    (stream,) = native(paths[3], "SELECT group_concat(rowid) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE streamId = 20")[0]
    rows = stream.split(",")
    edit(paths[3], f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid IN ({','.join(rows[step] for step in lost)})")
    job = job_of(opened(*paths))
    assert "UTC only" not in note_of(job) and f"refined by {40 - len(lost)} collectives" in note_of(job)
    assert rates_of(job)[3] - rates_of(job)[0] == pytest.approx(-50e-6, rel=0.01)


@pytest.mark.campaign
def test_a_job_without_drift_has_its_shifts_alone(tmp_path, opened):
    job = job_of(opened(*write_job(tmp_path, list(map(by, [0, 0, 0, 0])), noise=40_000)))
    assert not any(rates_of(job)) and "drift" not in note_of(job)
    stored = [[time - report.clock_offset for time in times] for report, times in zip(
        job.session.reports, times_of(job.session, tables.kernels), strict=True)]  # fmt: skip
    job.align(ClockMode.OWN)
    assert stored == times_of(job.session, tables.kernels)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "drift",
    [by(50), lambda time: 30 * MS * (time > 300 * SECOND)],
    ids=["too few collectives", "a clock that was set once"],
)
def test_a_drift_that_cannot_be_estimated_is_unknown(tmp_path, opened, drift):
    few = drift(SECOND) != 0
    paths = write_job(tmp_path, [by(0), drift], steps=5 if few else 40, every=(120 if few else 15) * SECOND)
    job = job_of(opened(*paths))
    assert not any(rates_of(job)) and note_of(job).endswith("; a drift of the clocks could not be estimated")


@pytest.mark.campaign
def test_a_short_capture_has_no_drift(tmp_path, opened):
    job = job_of(opened(*write_job(tmp_path, list(map(by, [0, 0, 50, 50])), every=20 * MS)))
    assert not any(rates_of(job)) and "drift" not in note_of(job)
    assert waits_of(job) == pytest.approx([40 * LATE] * 2 + [0, 0], abs=40 * 500)


def test_results_of_other_clocks_are_not_mixed(tmp_path):
    paths = write_job(tmp_path / "job", list(map(by, [0, 0, 50, 50])))
    found: dict[ClockMode, list[list[int]]] = {}
    for mode in (ClockMode.COLLECTIVES, ClockMode.UTC, ClockMode.COLLECTIVES, ClockMode.UTC):
        session = session_over(*paths, cache=Cache(tmp_path / "cache"))
        job = job_of(session, mode)
        ends = [sequence.end.tolist() for sequence in sequences(session, session.reports)]
        assert found.setdefault(mode, ends) == ends
        job.align(ClockMode.UTC if mode is ClockMode.COLLECTIVES else ClockMode.COLLECTIVES)
        job.align(mode)
        assert found[mode] == [sequence.end.tolist() for sequence in sequences(session, session.reports)]
        session.close()
    assert (
        np.ptp(found[ClockMode.UTC], axis=0).max() > 29 * MS > 100 > np.ptp(found[ClockMode.COLLECTIVES], axis=0).max()
    )


def test_workers_have_the_clocks_of_the_session(tmp_path, opened):
    paths = write_job(tmp_path / "job", list(map(by, [0, 50])))
    assert main(["pack", *map(str, paths), "-o", str(tmp_path / "packed")]) == 0
    session = opened(*sorted(packed_reports(tmp_path / "packed")))
    job_of(session)
    places = [ReportPlace(it.index, str(it.path), it.clock_offset, it.clock_rate) for it in session.reports]
    computed = compute_there(places, Limits(), lambda there, _: times_of(there, tables.kernels))
    assert computed.result == times_of(session, tables.kernels)


def sequence(rank: int, ends: np.ndarray) -> KernelSequence:
    names, count = np.array(["AllReduce"] * len(ends), object), len(ends)
    unknown = np.full(count, UNKNOWN)
    return KernelSequence(Member(Task(rank, 1), 0), "", 7, names, unknown, np.arange(count), ends - 2 * MS, ends)


def members_of(groups: Sequence[MatchedCollectives]) -> list[list[int]]:
    return sorted([member.task.report for member in group.members] for group in groups)


@pytest.mark.parametrize(("ppm", "expected"), [(50, [[0, 2], [1, 3]]), (-400, [[0, 2], [1, 3]])])
def test_groups_side_by_side_are_separated_although_clocks_drift(ppm, expected):
    generator = np.random.default_rng(3)
    ends = [np.cumsum(generator.integers(900, 1_100, 300)) * MS for _ in range(2)]
    ranks = [sequence(rank, ends[rank % 2] + (ends[rank % 2] * ppm * (rank > 1) // 10**6)) for rank in range(4)]
    groups = match(ranks).groups
    assert members_of(groups) == expected
    assert max(map(abs, fit_clock(groups).rates.values())) == pytest.approx(abs(ppm) * 1e-6, rel=1e-3)


def test_a_steady_difference_that_no_clock_has_keeps_groups_apart():
    ends = np.arange(1, 301) * SECOND
    ranks = [sequence(rank, ends + ends * (rank > 1) // 1_000) for rank in range(4)]
    assert members_of(match(ranks).groups) == [[0, 1], [2, 3]]


def test_a_few_disturbed_collectives_do_not_change_the_rate():
    ends = np.arange(1, 101) * SECOND
    disturbed = ends + ends * 20 // 10**6
    disturbed[[3, 40, 41, 80]] += 50 * MS
    fit = fit_clock(match([sequence(0, ends), sequence(1, disturbed)]).groups)
    assert fit.rates == {1: pytest.approx(-20e-6, rel=1e-3)} and fit.error is not None and fit.error < 1_000


def test_clocks_of_reports_that_share_no_collective_follow_from_others_in_between():
    """Data parallel groups over three hosts, and a group within each host; no payload names a communicator."""
    generator, ppm, offset = np.random.default_rng(5), [0, 50, -30], [0, 300 * MS, -7 * MS]
    across, within = ([np.cumsum(generator.integers(900, 1_100, 300)) * MS for _ in range(n)] for n in (2, 3))
    ranks = []
    for rank in range(6):
        for stream, right in enumerate((across[rank % 2], within[rank // 2])):
            ends = right + right * ppm[rank // 2] // 10**6 + offset[rank // 2]
            ranks.append(replace(sequence(rank, ends), stream=stream))
    groups = match(ranks).groups
    assert members_of(groups) == [[0, 1], [0, 2, 4], [1, 3, 5], [2, 3], [4, 5]]
    fit = fit_clock(groups)
    for rank in range(6):
        host, reference = rank // 2, rank // 2 * 2
        assert fit.rates.get(rank, 0) - fit.rates.get(0, 0) == pytest.approx(-ppm[host] * 1e-6, abs=1e-8)
        assert fit.shifts[rank] == pytest.approx(fit.shifts[reference], abs=1_000)
        assert fit.shifts[rank] - fit.shifts[0] == pytest.approx(-offset[host], abs=20_000)
