"""The interval algebra against sets of nanoseconds."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsystui.base.selection import Task, Window
from nsystui.questions.algebra import intervals
from nsystui.questions.algebra.intervals import (
    EMPTY,
    Intervals,
    covered_per_bin,
    intersect,
    intervals_at,
    merge,
    put_intervals,
    slices,
    subtract,
    union,
)
from nsystui.questions.gpu.device_time import BusyParts, Device, DeviceIntervals
from nsystui.questions.queries.tasks import RankedTask

NS = st.integers(-30, 30)
RANGES = st.lists(st.tuples(NS, NS), max_size=12)
WINDOWS = st.tuples(NS, NS)
TASK = RankedTask(Task(0, 1), 0, "order", None, "host", 1, "python", "run", (0,), ())


@pytest.fixture(
    autouse=True, scope="module", params=[(2, 2), (intervals._BLOCK, intervals._SLICE)], ids=["cut", "whole"]
)
def small_slices(request) -> Iterator[None]:
    """Cut a few intervals into many slices, or leave them in a single slice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "_BLOCK", request.param[0])
        patch.setattr(intervals, "_SLICE", request.param[1])
        yield


def points(ranges: list[tuple[int, int]]) -> set[int]:
    """Return the whole ns inside any of the ranges; backward and empty windows contain no point."""
    return {ns for start, end in ranges for ns in range(start, end)}


def made(ranges: list[tuple[int, int]]) -> Intervals:
    return union([start for start, _ in ranges], [end for _, end in ranges])


def points_of(intervals: Intervals) -> set[int]:
    """Return the covered ns, after a check of the invariants of every result."""
    starts, ends = intervals.starts, intervals.ends
    assert starts.dtype == ends.dtype == np.int64
    assert (ends > starts).all()
    assert (starts[1:] > ends[:-1]).all(), "intervals must be sorted and must not touch"
    return points(list(zip(starts.tolist(), ends.tolist(), strict=True)))


@pytest.mark.campaign
@given(RANGES)
def test_union_covers_what_any_range_covers(ranges):
    result = made(ranges)
    assert points_of(result) == points(ranges)
    assert result.length == len(points(ranges))


@pytest.mark.campaign
@given(RANGES, RANGES)
def test_intersection_difference_and_merge_are_those_of_sets(a, b):
    assert points_of(intersect(made(a), made(b))) == points(a) & points(b)
    assert points_of(subtract(made(a), made(b))) == points(a) - points(b)
    assert points_of(merge(made(a), made(b))) == points(a) | points(b)


@pytest.mark.campaign
@given(st.lists(RANGES, max_size=5))
def test_merging_many_sets_is_the_union_of_all_ranges(parts):
    assert merge(*map(made, parts)) == made([pair for ranges in parts for pair in ranges])


@given(st.lists(RANGES, min_size=1, max_size=3))
def test_slices_hold_everything_once_and_in_order(parts):
    sets, found = [made(ranges) for ranges in parts], [list[Intervals]() for _ in parts]
    until = -1000
    for here in slices(*sets):
        assert all(one.starts[0] >= until for one in here if len(one))
        until = max((int(one.ends[-1]) for one in here if len(one)), default=until)
        for pieces, one in zip(found, here, strict=True):
            pieces.append(one)
    assert [merge(*pieces) for pieces in found] == sets
    assert [sum(one.length for one in pieces) for pieces in found] == [one.length for one in sets]


@given(RANGES, RANGES, WINDOWS)
def test_covered_time_is_that_of_the_points(ranges, others, window):
    busy, other = made(ranges), made(others)
    assert busy.length_within(*window) == len(points(ranges) & points([window]))
    assert busy.shared_with(other) == len(points(ranges) & points(others))
    starts, ends = (np.array([pair[edge] for pair in others], np.int64) for edge in (0, 1))
    expected = [busy.length_within(start, end) - busy.length_within(end, start) for start, end in others]
    assert busy.covered(starts, ends).tolist() == expected


@given(RANGES, st.integers(-(2**40), 2**40))
def test_shifting_moves_every_interval(ranges, offset):
    busy = made(ranges)
    assert busy.shifted(offset) == Intervals(busy.starts + offset, busy.ends + offset)


@given(st.lists(RANGES, max_size=4), st.sampled_from([1, 2**16, 2**32, 2**33 + 1]))
def test_arrays_hold_the_same_intervals(parts, scale):
    sets = [Intervals(one.starts * scale, one.ends * scale) for one in map(made, parts)]
    arrays: dict[str, np.ndarray] = {}
    put_intervals(arrays, "busy", *sets)
    assert all(array.dtype.kind in "iu" and array.ndim == 1 for array in arrays.values())
    found = list(intervals_at(arrays, "busy"))
    assert found == sets and {one.starts.dtype for one in found} | {one.ends.dtype for one in found} <= {
        np.int64(0).dtype
    }


@pytest.mark.campaign
@given(RANGES, RANGES, WINDOWS)
def test_gaps_of_a_device_lie_between_its_first_and_its_last_work(kernels, copies, window):
    window = Window(*sorted(window))
    device = DeviceIntervals(
        Device(TASK, 0, None, None), window, BusyParts.of(kernels=made(kernels), memory=made(copies))
    )
    active = merge(made(kernels), made(copies)).clip(window.start, window.end)
    span = device.worked(window)
    assert device.active(window) == active
    assert device.idle(window) == active.gaps(window.start, window.end)
    assert span == (Window(int(active.starts[0]), int(active.ends[-1])) if len(active) else None)
    assert device.gaps(window) == (active.gaps(span.start, span.end) if span else EMPTY)


@given(RANGES, WINDOWS)
def test_clip_and_gaps_split_the_window(ranges, window):
    inside = made(ranges).clip(*window)
    gaps = made(ranges).gaps(*window)
    assert points_of(inside) == points(ranges) & points([window])
    assert points_of(gaps) == points([window]) - points(ranges)


@pytest.mark.campaign
@given(RANGES, NS, st.integers(0, 60), st.integers(1, 40))
def test_coverage_per_bin_is_exact(ranges, lo, span, bins):
    covered = covered_per_bin(made(ranges), lo, lo + span, bins)
    for k in range(bins):
        left, right = lo + Fraction(span * k, bins), lo + Fraction(span * (k + 1), bins)
        inside = sum(max(Fraction(0), min(right, ns + 1) - max(left, ns)) for ns in points(ranges))
        assert covered[k] == pytest.approx(float(inside), abs=1e-12)
    assert covered.sum() == pytest.approx(made(ranges).clip(lo, lo + span).length, abs=1e-9)


def test_touching_intervals_become_one_and_empty_or_backward_ones_vanish():
    assert union([0, 10, 30, 50], [10, 20, 30, 40]) == Intervals(np.array([0]), np.array([20]))
    assert union([], []) == union([5, 7], [5, 6]) == EMPTY


def test_nothing_and_everything():
    some = union([10], [20])
    assert intersect(some, EMPTY) == subtract(EMPTY, some) == EMPTY.clip(0, 9) == some.clip(9, 9) == merge() == EMPTY
    assert EMPTY.gaps(3, 8) == union([3], [8]) and some.gaps(10, 20) == EMPTY
    assert EMPTY.length == 0 and some != "an interval"
    assert covered_per_bin(EMPTY, 0, 10, 5).tolist() == [0.0] * 5
    assert covered_per_bin(some, 15, 15, 2).tolist() == [0.0, 0.0]


def test_times_since_1970_lose_nothing():
    now = 1_760_000_000_123_456_789
    assert covered_per_bin(union([now + 1], [now + 4]), now, now + 10, 10).tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    # A window of years times many bins overflows int64.
    assert math.fsum(covered_per_bin(union([0], [now]), 0, now, 1_000_000)) == pytest.approx(now, rel=1e-15)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="2 starts but 1 ends"):
        union([1, 2], [3])
    with pytest.raises(ValueError, match="one-dimensional"):
        union([[1, 2]], [[3, 4]])
    with pytest.raises(TypeError, match="integer"):
        union([1.5], [2.5])
    with pytest.raises(ValueError, match="at least one bin"):
        covered_per_bin(EMPTY, 0, 1, 0)
    with pytest.raises(ValueError, match="ends"):
        covered_per_bin(EMPTY, 1, 0, 4)


def test_a_million_intervals_keep_their_length():
    rng = np.random.default_rng(1)
    starts = np.sort(rng.integers(0, 10**11, 1_000_000))
    busy = union(starts, starts + rng.integers(0, 10**5, 1_000_000))
    assert covered_per_bin(busy, 0, 10**11, 1000).sum() == pytest.approx(busy.clip(0, 10**11).length)
