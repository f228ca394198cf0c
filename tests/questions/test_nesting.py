"""The tree of ranges against the definition, for every pair, and against NVIDIA's."""

import csv
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import SHARED, native, shared

from nsystui.questions.algebra.nesting import nest

Range = tuple[int, int, int]  # start, end, thread

ANY_RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 1)), max_size=12).map(
    lambda drawn: [(start, start + length, thread) for start, length, thread in drawn]
)


@st.composite
def push_pop_ranges(draw: st.DrawFn) -> list[Range]:
    """Draw ranges that a program pushes and pops on two threads, with equal times, zero lengths and touching ranges."""
    ranges: list[Range] = []
    for thread in (7, 300):
        now, open_starts = 0, []
        for is_push in draw(st.lists(st.booleans(), max_size=16)):
            now += draw(st.integers(0, 2))
            if is_push:
                open_starts.append(now)
            elif open_starts:
                ranges.append((open_starts.pop(), now, thread))
        ranges += [(start, now + 1, thread) for start in reversed(open_starts)]
    # In the order of an export: by start, the outer range first.
    return sorted(ranges, key=lambda item: (item[0], -item[1]))


def parents_by_definition(ranges: list[Range]) -> list[int]:
    """Return parents by comparing every pair: the tightest container, then the latest start, then the previous row."""
    parents = []
    for row, (start, end, thread) in enumerate(ranges):
        containers = [
            (other_end - other_start, -other_start, -other)
            for other, (other_start, other_end, other_thread) in enumerate(ranges)
            if other_thread == thread and other_start <= start and end <= other_end
            if (other_start, other_end) != (start, end) or other < row
        ]
        parents.append(-min(containers)[2] if containers else -1)
    return parents


def check_against_definition(ranges: list[Range]) -> None:
    columns = zip(*ranges, strict=True) if ranges else ([], [], [])
    result = nest(*(np.array(column, dtype=np.int64) for column in columns))
    parents = parents_by_definition(ranges)
    assert result.parent.tolist() == parents
    for row, (start, end, _) in enumerate(ranges):
        children = [ranges[child] for child, parent in enumerate(parents) if parent == row]
        assert result.child_count[row] == len(children)
        assert result.child_time[row] == sum(stop - begin for begin, stop, _ in children)
        busy = {moment for begin, stop, _ in children for moment in range(begin, stop)}
        assert result.self_time[row] == len(set(range(start, end)) - busy)
        level, above = 0, parents[row]
        while above >= 0:
            level, above = level + 1, parents[above]
        assert result.level[row] == level


CROSSING = [(0, 10, 1), (5, 20, 1), (8, 9, 1), (6, 9, 1), (12, 18, 1)]  # 3 is inside 0 and 1, 4 inside 1 only
OF_TWO_DOMAINS = [(0, 10, 1), (0, 8, 1), (4, 10, 1), (20, 25, 1)]  # crossing children are subtracted once
IDENTICAL = [(0, 9, 1)] * 3  # the earlier row is the parent


@given(push_pop_ranges(), ANY_RANGES, st.sampled_from([1, 2, 5, 10**6]))
@example([], CROSSING, 10**6)
@example([], OF_TWO_DOMAINS, 10**6)
@example([], IDENTICAL, 10**6)
def test_ranges_nest_as_defined(strict, crossing, block):
    """Push/pop ranges, crossing ranges, and a few crossing ranges among many; a million are nested in blocks."""
    with mock.patch("nsystui.questions.algebra.nesting._BLOCK", block):
        check_against_definition(strict)
        check_against_definition(crossing)
        for offset in (20, 40):
            check_against_definition(strict + [(start + offset, end + offset, lane) for start, end, lane in crossing])


def test_a_crossing_range_is_no_parent():
    starts, ends, threads = zip(*CROSSING, strict=True)
    result = nest(starts, ends, threads)
    assert (result.parent.tolist(), result.self_time.tolist()) == ([-1, -1, 3, 0, 1], [7, 9, 1, 2, 6])


def test_threads_do_not_mix_even_where_the_time_line_would_overflow():
    big = 2**61
    result = nest([-big, -big, 0, 0, 5, 5], [big, big, 10, 10, 6, 6], [1, 2, 2, 1, 1, 3])
    assert result.parent.tolist() == [-1, -1, 1, 0, 3, -1]
    assert nest([-big, 0, 5, 6, 0], [big, 10, 20, 8, 9], [1, 1, 1, 1, 2]).parent.tolist() == [-1, 0, 0, 1, -1]


def test_nothing_and_a_backward_range():
    result = nest([], [], [])
    assert [len(column) for column in (result.parent, result.level, result.child_time, result.self_time)] == [0] * 4
    result = nest([0, 7], [10, 3], [1, 1])
    assert (result.parent.tolist(), result.self_time.tolist()) == ([-1, 0], [10, 0])


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="2 starts, 1 ends and 2 threads"):
        nest([1, 2], [3], [1, 1])
    with pytest.raises(TypeError, match="integer"):
        nest([0.5], [1.5], [1])


@pytest.mark.campaign
def test_a_chain_of_200_000_ranges():
    n = 200_000
    starts = np.arange(n)
    ends = 3 * n - starts  # one inside the other, 200,000 levels deep
    result = nest(starts, ends, np.zeros(n, np.int64))
    assert (result.parent.tolist(), result.level.tolist()) == (list(range(-1, n - 1)), list(range(n)))
    ends[0] = n + 1  # now the outermost range ends first
    assert nest(starts, ends, np.zeros(n, np.int64)).parent.tolist() == [-1, -1, *range(1, n - 1)]


def test_the_tree_is_nvidias():
    """Level, children and times of every range equal ``nsys stats -r nvtx_pushpop_trace``."""
    (export,) = shared("ddp-a100-rank0of4")
    query = "SELECT rowid, start, end, globalTid FROM NVTX_EVENTS WHERE eventType IN (59, 70) ORDER BY start, end DESC"
    ids, *columns = (np.array(column) for column in zip(*native(export, query), strict=True))
    found = nest(*columns)
    parents = [int(ids[parent]) if parent >= 0 else None for parent in found.parent]
    numbers = (found.level.tolist(), found.child_count.tolist(), found.child_time.tolist(), parents)
    ours = dict(zip(ids.tolist(), zip(*numbers, strict=True), strict=True))
    theirs = {}
    with (SHARED / "nsys-stats/ddp-a100-rank0of4/nvtx_pushpop_trace.csv").open() as lines:
        for line in csv.DictReader(lines):
            row = [int(line[key]) if line[key] else None for key in ("Lvl", "NumChild", "DurChild (ns)", "ParentId")]
            theirs[int(line["RangeId"])] = tuple(row)
    assert len(theirs) == 10_089
    assert ours == theirs
