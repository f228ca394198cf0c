"""The GPU projection against every pair of range and call, and against NVIDIA's."""

import csv
import statistics
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import SHARED, native, shared

from nsystui.questions.algebra.nesting import nest
from nsystui.questions.algebra.projection import LaunchCalls, Projection, project

Range = tuple[int, int, int]  # start, end, thread
Call = tuple[int, int, int, int, int, int]  # start, end, thread, first op start, last op end, op time


def spans(most: int, number: int) -> st.SearchStrategy[list[Range]]:
    one = st.tuples(st.integers(0, 20), st.integers(0, most), st.integers(0, 1))
    return st.lists(one.map(lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])), max_size=number)


@st.composite
def calls_on_the_gpu(draw: st.DrawFn, most: int) -> list[Call]:
    calls = []
    for start, end, thread in draw(spans(most, 10)):
        op_start, length, idle = draw(st.integers(-5, 50)), draw(st.integers(0, 9)), draw(st.integers(0, 3))
        calls.append((start, end, thread, op_start, op_start + length + idle, length))
    return calls


def launch_calls(calls: list[Call]) -> LaunchCalls:
    columns = zip(*calls, strict=True) if calls else [()] * 6
    return LaunchCalls(*(np.array(column, dtype=np.int64) for column in columns))


def check_against_definition(ranges: list[Range], calls: list[Call]) -> None:
    columns = zip(*ranges, strict=True) if ranges else ([], [], [])
    result = project(*(np.array(column, dtype=np.int64) for column in columns), launch_calls(calls))
    assert len(result.op_count) == len(ranges)
    for row, (start, end, thread) in enumerate(ranges):
        inside = [call for call in calls if call[2] == thread and start <= call[0] and call[1] <= end]
        assert result.op_count[row] == len(inside)
        assert result.op_time[row] == sum(call[5] for call in inside)
        assert result.start[row] == min((call[3] for call in inside), default=0)
        assert result.end[row] == max((call[4] for call in inside), default=0)


ONE = (1, 2, 1, 3, 4, 1)
STEP_AND_FORWARD = [(0, 100, 1), (10, 50, 1)]
# The second call starts in forward and ends after it: only the ancestor contains it.
OUTLIVES = [(20, 25, 1, 1000, 1100, 100), (45, 55, 1, 1200, 1500, 300)]


@pytest.mark.campaign
@given(spans(20, 12), calls_on_the_gpu(2), calls_on_the_gpu(15))
@example(STEP_AND_FORWARD, OUTLIVES, [])
@example([], [], [ONE])
@example([(0, 9, 2)], [ONE], [])  # another thread's call
def test_every_range_gets_the_calls_it_contains(ranges, calls, nested):
    """Calls inside calls count too."""
    check_against_definition(ranges, calls)
    check_against_definition(ranges, nested)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        LaunchCalls(*(np.zeros(size, np.int64) for size in (2, 2, 2, 2, 2, 1)))
    with pytest.raises(ValueError, match="2 starts, 2 ends and 1 threads"):
        project([1, 2], [3, 4], [1], launch_calls([]))
    with pytest.raises(TypeError, match="integer"):
        project([0.5], [1.0], [1], launch_calls([]))


@pytest.mark.parametrize("seed", range(8))
def test_ranges_with_up_to_forty_calls(seed):
    """More calls in a range than hypothesis draws."""
    drawn = np.random.default_rng(seed)
    starts, lengths = drawn.integers(0, 60, 30), drawn.integers(0, 60, 30)
    calls = [
        (at, at + 1, 0, *sorted(drawn.integers(0, 999, 2).tolist()), 1) for at in drawn.integers(0, 99, 40).tolist()
    ]
    check_against_definition([(at, at + span, 0) for at, span in zip(starts, lengths, strict=True)], calls)


def test_many_ranges_and_calls():
    n = 200_000
    starts = np.arange(n)
    calls = np.arange(n) * 2
    launches = LaunchCalls(calls, calls + 1, np.zeros(n, np.int64), calls + 100, calls + 150, np.full(n, 50))
    result = project(starts, 3 * n - starts, np.zeros(n, np.int64), launches)  # 200,000 levels deep
    assert (result.op_count[0], result.op_time[0]) == (n, 50 * n)
    assert (result.start[0], result.end[0]) == (100, 2 * (n - 1) + 150)


@pytest.fixture(scope="module")
def ddp() -> tuple[list[tuple[int, int, int, int, str]], Projection, np.ndarray]:
    """Return the ranges of the real DDP export (id, start, end, thread, name), their projection and levels."""
    (export,) = shared("ddp-a100-rank0of4")
    ranges = native(
        export,
        """
        WITH domains AS (SELECT domainId, globalTid & ~0xFFFFFF AS process, text FROM NVTX_EVENTS
                         WHERE eventType = 75)
        SELECT n.rowid, n.start, n.end, n.globalTid, ifnull(d.text || ':', '') || coalesce(n.text, s.value)
        FROM NVTX_EVENTS AS n LEFT JOIN StringIds AS s ON s.id = n.textId
        LEFT JOIN domains AS d ON d.domainId = n.domainId AND d.process = n.globalTid & ~0xFFFFFF
        WHERE n.eventType IN (59, 60, 70, 71) AND n.endGlobalTid IS NULL
        """,
    )
    calls = native(
        export,
        """
        WITH ops AS (SELECT start, end, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL
           UNION ALL SELECT start, end, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_MEMCPY
           UNION ALL SELECT start, end, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_MEMSET)
        SELECT r.start, r.end, r.globalTid, min(o.start), max(o.end), sum(o.end - o.start)
        FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r
        JOIN ops AS o ON o.correlationId = r.correlationId AND o.globalPid = r.globalTid & ~0xFFFFFF
        WHERE r.eventClass IN (0, 1) GROUP BY r.rowid
        """,
    )
    _, starts, ends, threads, _ = (np.array(column) for column in zip(*ranges, strict=True))
    return ranges, project(starts, ends, threads, launch_calls(calls)), nest(starts, ends, threads).level


def nvidias(report: str, name: str, *keys: str) -> dict[tuple[str, str], tuple[float, ...]]:
    """Return a table of ``nsys stats`` by number and name of a range.

    The row without either, which sums the work launched outside of every range, is left out.
    """
    with (SHARED / f"nsys-stats/ddp-a100-rank0of4/{report}.csv").open() as table:
        rows = [row for row in csv.DictReader(table) if row[name] and row.get("RangeId", name)]
    return {(row.get("RangeId", ""), row[name]): tuple(float(row[key]) for key in keys) for row in rows}


@pytest.mark.campaign
def test_the_projection_is_nvidias(ddp):
    """Every row equals ``nsys stats -r nvtx_gpu_proj_trace``."""
    ranges, found, levels = ddp
    columns = (found.start, found.end - found.start, found.op_count, levels)
    ours = {
        (str(ranges[row][0]), ranges[row][4]): tuple(int(column[row]) for column in columns)
        for row in np.flatnonzero(found.op_count)
    }
    keys = ("Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps", "Lvl")
    theirs = nvidias("nvtx_gpu_proj_trace", "Name", *keys)
    assert len(theirs) == 2410
    assert ours == theirs


def test_the_sums_are_nvidias(ddp):
    """Totals, medians and extremes equal ``nsys stats -r nvtx_gpu_proj_sum``."""
    ranges, found, _ = ddp
    by_name = defaultdict(list)
    for row in np.flatnonzero(found.op_count):
        by_name["", ranges[row][4]].append(row)
    ours = {}
    for name, rows in by_name.items():
        times = (found.end[rows] - found.start[rows]).tolist()
        ops = int(found.op_count[rows].sum())
        ours[name] = (sum(times), len(times), statistics.median(times), min(times), max(times), ops)
    keys = ("Total Proj Time (ns)", "Range Instances", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)")
    theirs = nvidias("nvtx_gpu_proj_sum", "Range", *keys, "Total GPU Ops")
    assert len(theirs) > 70
    assert ours == theirs
