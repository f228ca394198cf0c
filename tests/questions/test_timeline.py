"""The lanes of the timeline, the dominant kind in their columns, and moves between events, against brute force."""

from itertools import pairwise

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from support import edit, native
from synthetic import ExportWriter
from synthetic.writing.writer import START_END

from nsystui.base.answer import record
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.questions.algebra.intervals import Intervals, union
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS
from nsystui.questions.gpu.device_time import BusyParts
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.around import path_at
from nsystui.questions.timeline.events import (
    EventSpan,
    Matches,
    Neighbours,
    long_events,
    longest_in,
    longest_range_in,
    range_next_to,
    thread_spans,
)
from nsystui.questions.timeline.lanes import (
    CATEGORIES,
    IDLE,
    UNSEEN,
    LaneColumns,
    LaneIdentity,
    LaneWork,
    Timeline,
    columns,
)
from nsystui.questions.timeline.picture import LanePicture, lane_pictures, lane_text
from nsystui.store.session import Session

RANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), max_size=8)


@pytest.fixture(scope="session")
def job(demo_session) -> OpenJob:
    return OpenJob(demo_session)


@pytest.fixture(scope="session")
def timeline(job) -> Timeline:
    return Timeline.of(job, Selection())


@pytest.fixture(scope="session")
def opened_lanes(timeline) -> list[LaneIdentity]:
    lanes, is_whole = timeline.lanes(frozenset({timeline.ranks[0].task}))
    assert is_whole
    return list(lanes)


def first_rank(session: Session) -> tuple[Timeline, list[LaneIdentity]]:
    timeline = Timeline.of(OpenJob(session), Selection())
    return timeline, list(timeline.lanes(frozenset({timeline.ranks[0].task}))[0])


def stream_lanes(lanes: list[LaneIdentity]) -> list[LaneIdentity]:
    return [lane for lane in lanes if lane.stream is not None]


def operations(job: OpenJob, lane: LaneIdentity) -> list[tuple[int, int, str, str]]:
    """Return start, end (job time), category and name of the events on a lane of rank 0, with SQLite."""
    report = next(report for report in job.session.reports if report.index == lane.task.report)
    where = f"WHERE globalPid = {lane.task.process} AND deviceId = {lane.device}"
    where += f" AND streamId = {lane.stream}" if lane.stream is not None else ""
    kernels = "SELECT start, end, value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds ON id = k.shortName "
    found = [
        (start, end, "nccl" if name.startswith("nccl") else "compute", name)
        for start, end, name in native(report.path, kernels + where)
    ]
    for table in ("MEMCPY", "MEMSET"):
        rows = native(report.path, f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{table} {where}")
        found += [(start, end, "memory", "") for start, end in rows]
    moved = report.clock_offset
    return sorted((start + moved, end + moved, category, name) for start, end, category, name in found)


def brute_force(parts: dict[str, list[tuple[int, int]]], window: Window, count: int) -> list[tuple[str, float]]:
    """Return the dominant category and the busy share of each column, ns by ns (columns of whole ns only)."""
    width = (window.end - window.start) // count
    covered = {
        name: {t for start, length in ranges for t in range(start, start + length)} for name, ranges in parts.items()
    }
    found = []
    for number in range(count):
        cell = range(window.start + number * width, window.start + (number + 1) * width)
        spent = {name: sum(t in times for t in cell) for name, times in covered.items()}
        best = max(spent, key=lambda name: spent[name], default="idle")
        busy = sum(any(t in times for times in covered.values()) for t in cell) / width
        found.append((best if spent and spent[best] else "idle", busy))
    return found


def set_of(ranges: list[tuple[int, int]]) -> Intervals:
    starts = np.array([start for start, _ in ranges], np.int64)
    return union(starts, starts + np.array([length for _, length in ranges], np.int64))


@pytest.mark.campaign
@given(RANGES, RANGES, RANGES, st.integers(0, 100), st.integers(1, 12), st.integers(1, 9))
def test_the_part_that_covers_most_of_a_column_dominates_it(kernels, nccl, memory, start, width, count):
    parts = {"compute": kernels, "nccl": nccl, "memory": memory}
    kinds = [set_of(ranges) for ranges in (*parts.values(), [])]
    work = LaneWork.of_device(BusyParts.of(*kinds), Window(0, 1000))
    window = Window(start, start + width * count)
    found = columns(work, window, count)
    expected = brute_force(parts, window, count)
    assert [CATEGORIES[number] for number in found.category] == [name for name, _ in expected]
    assert found.busy.tolist() == pytest.approx([busy for _, busy in expected])


def test_a_column_outside_of_the_recording_is_not_idle():
    work = LaneWork.of_device(BusyParts.of(set_of([(10, 5)]), set_of([]), set_of([]), set_of([])), Window(5, 20))
    found = columns(work, Window(0, 30), 6)
    assert found.category.tolist() == [UNSEEN, IDLE, 1, IDLE, UNSEEN, UNSEEN]
    assert np.isnan(found.busy).tolist() == [True, False, False, False, True, True]


@pytest.mark.campaign
def test_columns_of_the_demo_are_those_of_its_operations(job, timeline, opened_lanes):
    whole, count = job.extent(), 50
    middle = (whole.start + whole.end) // 2
    for window in (whole, Window(middle, middle + 1_000_000)):
        for lane in [lane for lane in opened_lanes if not lane.is_host and lane.rank == 0]:
            found = columns(timeline.work(lane), window, count)
            edges = [window.start + (window.end - window.start) * k / count for k in range(count + 1)]
            for number, (low, high) in enumerate(pairwise(edges)):
                inside = [one for one in operations(job, lane) if one[0] < high and one[1] > low]
                spent = {
                    category: covered([(a, b) for a, b, kind, _ in inside if kind == category], low, high)
                    for category in ("compute", "nccl", "memory")
                }
                best, name = max(spent.values()), CATEGORIES[found.category[number]]
                assert spent[name] == pytest.approx(best) if best > 0 else name == "idle"
                everything = covered([(a, b) for a, b, *_ in inside], low, high)
                assert found.busy[number] == pytest.approx(everything / (high - low))


def covered(ranges: list[tuple[int, int]], low: float, high: float) -> float:
    """Return how much of ``[low, high)`` the ranges cover together."""
    total, reached = 0.0, low
    for start, end in sorted(ranges):
        begin = max(start, reached)
        if min(end, high) > begin:
            total += min(end, high) - begin
            reached = min(end, high)
    return total


@pytest.mark.campaign
def test_calls_of_no_known_thread_have_no_lane(tmp_path, opened):
    path = synthetic.simulation_export(tmp_path / "rank0.sqlite")
    acc = ("DATA", "LAUNCH", "OTHER")
    edit(path, *(f"UPDATE CUPTI_ACTIVITY_KIND_OPENACC_{kind} SET globalTid = NULL" for kind in acc))
    assert EventKind.OPENACC not in {lane.calls for lane in first_rank(opened(path))[1]}


def test_what_is_not_in_memory_is_left_out_until_there_is_time(demo_session):
    fresh = Timeline.of(OpenJob(demo_session), Selection())
    task = fresh.ranks[1].task
    lanes, is_whole = fresh.lanes(frozenset({task}), wait=False)
    assert not is_whole and len(lanes) == 4
    assert len(fresh.lanes(frozenset({task}))[0]) > 4
    assert fresh.lanes(frozenset({task}), wait=False)[1]


def test_the_selection_says_which_ranks_and_streams_there_are(job, timeline, opened_lanes):
    stream = stream_lanes(opened_lanes)[1]
    chosen = Timeline.of(job, Selection(tasks=frozenset({stream.task}), streams=frozenset({stream.stream})))
    lanes, _ = chosen.lanes(frozenset({stream.task}))
    assert {lane.rank for lane in lanes} == {0}
    gpu = [lane for lane in lanes if not lane.is_host]
    assert [lane.stream for lane in gpu] == [None, stream.stream]
    assert chosen.work(gpu[0]).length == timeline.work(stream).length


@pytest.mark.campaign
def test_next_and_previous_visit_every_operation_of_a_lane(job, timeline, opened_lanes):
    for lane in [lane for lane in opened_lanes if not lane.is_host and lane.rank == 0]:
        starts = sorted({start for start, *_ in operations(job, lane)})
        neighbours = Neighbours(timeline)
        time, seen = starts[0] - 1, []
        while (row := neighbours.find(lane, time, forward=True)) is not None:
            time = int(row[0])
            seen.append(time)
        assert seen == starts
        while (row := neighbours.find(lane, time, forward=False)) is not None:
            time = int(row[0])
            seen.append(time)
        assert seen[len(starts) :] == starts[-2::-1]
        for start in starts[:: max(len(starts) // 7, 1)]:
            assert Neighbours(timeline).find(lane, start, True) == neighbours.find(lane, start, True)


def test_the_longest_of_a_span_and_how_many_there_are(job, timeline, opened_lanes):
    lane = stream_lanes(opened_lanes)[0]
    own = operations(job, lane)
    window = Window(own[3][0], own[40][1])
    inside = [(min(b, window.end) - max(a, window.start)) for a, b, *_ in own if a < window.end and b > window.start]
    row, count = longest_in(timeline, lane, window)
    assert count == len(inside) and int(row[3]) == max(inside)
    assert longest_in(timeline, lane, Window(own[-1][1] + 10, own[-1][1] + 20)) == (None, 0)


def test_long_events_are_those_of_each_lane(job, timeline, opened_lanes):
    lanes = [lane for lane in opened_lanes if not lane.is_host]
    window = job.extent()
    own = {lane: operations(job, lane) for lane in lanes}
    least = sorted(b - a for a, b, *_ in own[lanes[0]])[-20]
    found = long_events(timeline, lanes, window, least)
    for lane in lanes:
        expected = [(a, b, kind) for a, b, kind, _ in own[lane] if b - a >= least]
        assert sorted((span.start, span.end, span.category) for span in found[lane]) == sorted(expected)


def test_marked_columns_hold_an_operation_of_that_name(job, timeline, opened_lanes):
    lanes = [lane for lane in opened_lanes if lane.rank == 0]
    window, count, wanted = job.extent(), 40, NameFilter("allreduce")
    pictures = {picture.lane: picture for picture in lane_pictures(timeline, lanes, window, count, wanted)}
    length = window.end - window.start
    for lane in [lane for lane in lanes if not lane.is_host]:
        expected = set()
        for start, end, _, name in operations(job, lane):
            if "allreduce" in name.lower():
                first, last = ((time - window.start) * count // length for time in (start, end - 1))
                expected |= set(range(first, last + 1))
        assert pictures[lane].marked == expected
    assert any(picture.marked for picture in pictures.values())


def test_the_calls_of_a_thread_are_events_of_its_lanes(job, timeline, opened_lanes):
    lanes = [lane for lane in opened_lanes if lane.calls is EventKind.API]
    report = next(one for one in job.session.reports if one.index == lanes[0].task.report)
    expected = native(report.path, "SELECT globalTid, start FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start")
    assert {lane.thread for lane in lanes} == {thread for thread, _ in expected}
    for lane in lanes:
        own = timeline.events(lane)
        assert own.start.tolist() == [time + report.clock_offset for thread, time in expected if thread == lane.thread]
        row = range_next_to(timeline, lane, int(own.start[2]), True)
        assert row[0] == own.start[3] and row[1] == "api"
        assert timeline.lane_of(record(EVENT_COLUMNS, row)) == lane


@pytest.mark.parametrize(("word", "most"), [
    ("allreduce", 8),
    ("step", 4),
    *[pytest.param(word, 40, marks=pytest.mark.campaign) for word in ("allreduce", "cudaLaunch", "step")],
])  # fmt: skip
def test_matches_are_visited_in_order_of_time_and_lane_and_counted(job, timeline, opened_lanes, word, most):
    window = job.extent()
    matches = Matches(timeline, tuple(opened_lanes), window, NameFilter(word))
    expected = []
    for lane in [lane for lane in opened_lanes if lane.is_host or lane.stream is not None or lane.rank != 0]:
        if lane.is_host:
            own = timeline.events(lane)
            names = [own.names[number] for number in own.name.tolist()]
            starts = own.start.tolist()
        else:
            starts, names = zip(*[(start, name) for start, _, _, name in operations(job, lane)], strict=True)
        found = [start for start, name in zip(starts, names, strict=True) if word.lower() in name.lower()]
        expected += [(start, opened_lanes.index(lane)) for start in found]
    assert matches.count() == len(expected)
    seen, here = [], (window.start - 1, None)
    while len(seen) < most and (found := matches.next_to(*here, forward=True)) is not None:
        here = (int(found.row[0]), found.lane)
        seen.append((here[0], opened_lanes.index(found.lane)))
    assert seen == sorted(expected)[:most]
    back = [seen[-1]]
    while len(back) < len(seen):
        found = matches.next_to(back[-1][0], opened_lanes[back[-1][1]], forward=False)
        back.append((int(found.row[0]), opened_lanes.index(found.lane)))
    assert back[::-1] == seen
    assert matches.next_to(*seen[0][:1], opened_lanes[seen[0][1]], forward=False) is None


def test_the_path_to_a_moment_is_what_is_open_then(timeline, opened_lanes):
    outer, inner = opened_lanes[1], opened_lanes[2]
    level = timeline.events(inner)
    time = int(level.start[0] + level.end[0]) // 2
    path = path_at(timeline.session, inner.task.report, inner.thread, time)
    around, _ = longest_range_in(timeline, outer, Window(time, time + 1))
    assert path[:2] == (around[2], level.names[int(level.name[0])])


def test_ranges_that_overlap_are_all_there_and_threads_that_share_a_name_have_their_number(opened, tmp_path):
    """A path to a moment has no range that ends then."""
    with ExportWriter(tmp_path / "ranges.sqlite") as export:
        process = export.process(4711)
        export.kernel(process, 0, 7, 10, 20, name="saxpy(float *)", correlation_id=1)
        threads = [(4711, "python"), (4712, "python"), (4713, "python"), (4714, "loader")]
        main, other, *rest = (export.thread(process, tid, name) for tid, name in threads)
        for start, end, name in ((0, 900, "loop"), (0, 100, "step 0"), (100, 300, "step 1"), (100, 150, "load")):
            export.nvtx_range(main, start, end, name)
        for number, (start, end) in enumerate(((0, 1000), (10, 1100), (200, 250))):
            export.nvtx_range(other, start, end, f"range {number}", style=START_END)
        for thread in rest:
            export.nvtx_range(thread, 0, 100, "work")
    session = opened(export.path)
    timeline, lanes = first_rank(session)
    lanes = [lane for lane in lanes if lane.is_host]
    names = {lane.name for lane in lanes} - {""}  # ranges inside the range of the lane above have no name
    assert names == {"python", "python 4712", "python 4713", "loader"}
    number = next(lane.thread for lane in lanes if lane.name == "python")
    assert path_at(session, 0, number, 100) == ("loop", "step 1", "load")
    assert path_at(session, 0, number, 100, until=300) == ("loop", "step 1")
    overlapping = [lane for lane in lanes if lane.thread & 0xFFFFFF == 4712]
    spans = [span for lane in overlapping for span in thread_spans(timeline, lane, Window(0, 1000), 10)]
    assert {(span.name, span.end) for span in spans} == {("range 0", 1000), ("range 1", 1100)}


def drawn(count: int, category: list[int], busy: list[float], spans: tuple[EventSpan, ...] = ()) -> str:
    made = LaneColumns(Window(0, 10 * count), np.array(category, np.int8), np.array(busy), {})
    return lane_text(LanePicture(LaneIdentity.__new__(LaneIdentity), made, None, spans)).with_names()


def test_letters_say_category_and_whether_half_of_the_column_is_busy():
    assert drawn(7, [1, 1, 2, 3, 4, 0, UNSEEN], [0.5, 0.49, 1, 0.1, 1, 0, np.nan]) == "KkNmG ·"
    assert drawn(3, [5, 5, 0], [0.6, 0.2, 0]) == "═─ "


def test_a_name_stands_in_the_columns_of_its_event():
    full = [1.0] * 12
    assert drawn(12, [1] * 12, full, (EventSpan(20, 100, "sgemm", "compute"),)) == "KK│sgemm KKK"
    assert drawn(12, [1] * 12, full, (EventSpan(-50, 60, "sgemm", "compute"),)) == "‹sgemKKKKKKK"
    assert drawn(12, [1] * 12, full, (EventSpan(20, 60, "sgemm", "compute"),)) == "K" * 12
    assert drawn(12, [2] * 12, full, (EventSpan(20, 100, "sgemm", "compute"),)) == "N" * 12
    assert (
        drawn(12, [5] * 12, full, (EventSpan(0, 70, "a\x1bb", "nvtx"), EventSpan(70, 90, "x", "nvtx")))
        == "│a␛b═══│════"
    )
    assert drawn(12, [1] * 12, full, (EventSpan(0, 120, "日本語", "compute"),)) == "│??? KKKKKKK"
    # A name begins in the first column that its event dominates.
    assert drawn(12, [1] * 2 + [2] * 10, full, (EventSpan(10, 120, "AllReduce", "nccl"),)) == "KK│AllRedu…N"
    # Two events share a column: the first keeps a letter before the second begins.
    both = (EventSpan(0, 65, "scale", "compute"), EventSpan(65, 120, "add", "compute"))
    assert drawn(12, [1] * 12, full, both) == "│scalK│add K"
