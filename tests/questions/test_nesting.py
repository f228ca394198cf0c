"""The tree of ranges, and their GPU projection, against the definitions for every pair; tests/parity has NVIDIA's."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsystui.questions.algebra.nesting import nest
from nsystui.questions.algebra.projection import LaunchCalls, project

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
    with pytest.raises(ValueError, match="differ in length"):
        LaunchCalls(*(np.zeros(size, np.int64) for size in (2, 2, 2, 2, 2, 1)))
    with pytest.raises(ValueError, match="2 starts, 2 ends and 1 threads"):
        project([1, 2], [3, 4], [1], launch_calls([]))
    with pytest.raises(TypeError, match="integer"):
        project([0.5], [1.0], [1], launch_calls([]))


@pytest.mark.campaign
def test_a_chain_of_200_000_ranges():
    n = 200_000
    starts = np.arange(n)
    ends = 3 * n - starts  # one inside the other, 200,000 levels deep
    result = nest(starts, ends, np.zeros(n, np.int64))
    assert (result.parent.tolist(), result.level.tolist()) == (list(range(-1, n - 1)), list(range(n)))
    ends[0] = n + 1  # now the outermost range ends first
    assert nest(starts, ends, np.zeros(n, np.int64)).parent.tolist() == [-1, -1, *range(1, n - 1)]


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


def check_projection(ranges: list[Range], calls: list[Call]) -> None:
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
    check_projection(ranges, calls)
    check_projection(ranges, nested)


@pytest.mark.parametrize("seed", range(8))
def test_ranges_with_up_to_forty_calls(seed):
    """More calls in a range than hypothesis draws."""
    drawn = np.random.default_rng(seed)
    starts, lengths = drawn.integers(0, 60, 30), drawn.integers(0, 60, 30)
    calls = [
        (at, at + 1, 0, *sorted(drawn.integers(0, 999, 2).tolist()), 1) for at in drawn.integers(0, 99, 40).tolist()
    ]
    check_projection([(at, at + span, 0) for at, span in zip(starts, lengths, strict=True)], calls)


def test_many_ranges_and_calls():
    n = 200_000
    starts = np.arange(n)
    calls = np.arange(n) * 2
    launches = LaunchCalls(calls, calls + 1, np.zeros(n, np.int64), calls + 100, calls + 150, np.full(n, 50))
    result = project(starts, 3 * n - starts, np.zeros(n, np.int64), launches)  # 200,000 levels deep
    assert (result.op_count[0], result.op_time[0]) == (n, 50 * n)
    assert (result.start[0], result.end[0]) == (100, 2 * (n - 1) + 150)
