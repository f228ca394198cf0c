"""Interval algebra on int64 nanoseconds: what "busy", "overlap", "exposed" and "idle" are computed with.

Every interval is half open, ``[start, end)``. The formulas of docs/numbers.md#gpu-time are written with it: U(X) is
``union(starts, ends)``, |U(X)| its ``length``, exposed communication ``subtract(U(C), U(K)).length`` (HTA's
``get_comm_comp_overlap``, POP's device metrics). Only `disjoint_runs` loops over intervals in Python.

A GPU can have ten million intervals, 153 MiB. Large sets are therefore combined one slice of time after the other, so
that only the result takes memory, and `Intervals.clip` and `Intervals.gaps` copy as little of the set as possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.int64]

_BLOCK = 4096
"""Intervals whose lengths `Intervals.before` adds up at once."""
_SLICE = 16
"""Blocks that are combined at once."""


def as_times(values: ArrayLike, name: str = "times") -> Times:
    """``values`` as a one-dimensional int64 array (a copy only where needed).

    Raises ``TypeError`` for floats: as a float, a time loses nanoseconds silently, and NaN becomes a wild number.
    """
    array = np.atleast_1d(np.asarray(values))
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, not of shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integer nanoseconds, not {array.dtype}")
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Intervals:
    """A set of points in time as disjoint intervals: ``starts`` and ``ends`` are sorted, and no two touch.

    Shapes are ``(n,)`` and ``(n,)``, in ns. Made by :func:`union`; build it directly only from arrays that are so.
    """

    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    @property
    def lengths(self) -> Times:
        """Return the length of each interval, ns, shape ``(n,)``."""
        return self.ends - self.starts

    @property
    def length(self) -> int:
        """The time covered, ns (``len()`` is the number of intervals)."""
        return int(self.lengths.sum())

    def chosen(self, rows: NDArray[np.bool_]) -> Intervals:
        """Return the intervals for which ``rows``, shape ``(n,)``, is true."""
        return Intervals(self.starts[rows], self.ends[rows])

    def clip(self, lo: int, hi: int) -> Intervals:
        """The part inside ``[lo, hi)``; empty where ``hi <= lo``."""
        if hi <= lo or not len(self) or self.starts[0] >= hi or self.ends[-1] <= lo:
            return EMPTY
        first = int(np.searchsorted(self.ends, lo, side="right"))
        last = int(np.searchsorted(self.starts, hi, side="left"))
        starts, ends = self.starts[first:last], self.ends[first:last]
        if (starts[:1] < lo).any():
            starts = np.maximum(starts, lo)
        if (ends[-1:] > hi).any():
            ends = np.minimum(ends, hi)
        return Intervals(starts, ends)

    def gaps(self, lo: int, hi: int) -> Intervals:
        """The part of ``[lo, hi)`` that is not covered: the complement inside the window."""
        if hi <= lo:
            return EMPTY
        inside = self.clip(lo, hi)
        starts = np.concatenate((as_times([lo]), inside.ends))
        ends = np.concatenate((inside.starts, as_times([hi])))
        # An interval at the edge of the window leaves a gap of nothing.
        real = slice(int(starts[0] == ends[0]), len(starts) - int(starts[-1] == ends[-1]))
        return Intervals(starts[real], ends[real])

    @cached_property
    def _covered_before(self) -> Times:
        """The time covered before each block of ``_BLOCK`` intervals, and before the end, ns."""
        sums = np.add.reduceat(self.lengths, np.arange(0, len(self), _BLOCK))
        return np.concatenate((as_times([0]), np.cumsum(sums)))

    def before(self, times: Times) -> tuple[Times, Times]:
        """The time covered before each of ``times``, and how far the interval around it reaches beyond it, ns."""
        if not len(self) or not len(times):
            return np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
        number = np.searchsorted(self.starts, times, side="right")
        if len(self) < _BLOCK:
            covered = np.append(0, np.cumsum(self.lengths))[number]
        else:
            block = number // _BLOCK
            covered = self._covered_before[block]
            order = np.argsort(block, kind="stable")
            for rows in np.split(order, np.flatnonzero(np.diff(block[order])) + 1):
                first = int(block[rows[0]]) * _BLOCK
                lengths = self.ends[first : first + _BLOCK] - self.starts[first : first + _BLOCK]
                covered[rows] += np.append(0, np.cumsum(lengths))[number[rows] - first]
        beyond = np.maximum(np.where(number > 0, self.ends[number - 1] - times, 0), 0)
        return covered - beyond, beyond

    def covered(self, starts: Times, ends: Times) -> Times:
        """The time covered of each span ``[starts[i], ends[i])``, ns."""
        if not len(self):
            return np.zeros(len(starts), np.int64)
        return self.before(ends)[0] - self.before(starts)[0]

    def shifted(self, offset: int) -> Intervals:
        """Return the same intervals ``offset`` ns later."""
        return Intervals(self.starts + offset, self.ends + offset) if offset else self

    def length_within(self, lo: int, hi: int) -> int:
        """Return the time covered in ``[lo, hi)``, ns; 0 if ``hi <= lo``."""
        return self.clip(lo, hi).length

    def shared_with(self, other: Intervals) -> int:
        """Return the time that both sets cover, ns."""
        return int(self.covered(other.starts, other.ends).sum())


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """Everything covered by at least one of the ranges ``[starts[i], ends[i])``, in any order.

    Intervals that touch become one. A range of no length covers nothing, and one that ends before it starts is
    damage: both are dropped. Ranges in order that do not touch are not copied. O(n log n); close to O(n) where they are
    nearly in order (10 million: half a second).

    Raises ``ValueError`` where the shapes differ, ``TypeError`` for times that are not integers.
    """
    begin, finish = as_times(starts, "starts"), as_times(ends, "ends")
    if begin.shape != finish.shape:
        raise ValueError(f"{len(begin)} starts but {len(finish)} ends")
    real = finish > begin
    if not real.all():
        begin, finish = begin[real], finish[real]
    if not len(begin):
        return EMPTY
    if (begin[1:] > finish[:-1]).all():
        return Intervals(begin, finish)
    # Starts and ends are sorted apart, which no longer says what belongs together, and need not: the first j+1 ranges
    # to start are all over before the next one starts exactly when the (j+1)th smallest end lies before that start.
    # The stable sort takes little more than a look where the times are nearly in order, as in an export.
    begin, finish = np.sort(begin, kind="stable"), np.sort(finish, kind="stable")
    is_gap = begin[1:] > finish[:-1]
    is_first = np.concatenate(([True], is_gap))
    is_last = np.concatenate((is_gap, [True]))
    return Intervals(begin[is_first], finish[is_last])


def slices(*sets: Intervals) -> Iterator[list[Intervals]]:
    """Yield the parts of each set in one slice of time after the other: in each about ``_SLICE`` blocks.

    An interval across the end of a slice is cut there.
    """
    cuts = np.sort(np.concatenate([one.starts[::_BLOCK] for one in sets]))[::_SLICE].tolist()
    last = max((int(one.ends[-1]) for one in sets if len(one)), default=0)
    for lo, hi in pairwise([*cuts, last]):
        yield [one.clip(lo, hi) for one in sets]


def _in_slices(combine: Callable[..., Intervals], *sets: Intervals) -> Intervals:
    """Combine sets in slices of time; an interval that was cut between two slices becomes one again."""
    count = sum(map(len, sets))
    if count <= _SLICE * _BLOCK:
        return combine(*sets)
    starts, ends, filled = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for parts in slices(*sets):
        part = combine(*parts)
        is_cut = filled > 0 and len(part) > 0 and bool(part.starts[0] == ends[filled - 1])
        starts[filled : filled + len(part) - is_cut] = part.starts[is_cut:]
        filled += len(part) - is_cut
        ends[filled - len(part) : filled] = part.ends
    starts.resize(filled, refcheck=False)
    ends.resize(filled, refcheck=False)
    return Intervals(starts, ends)


def merge(*parts: Intervals) -> Intervals:
    """Everything covered by at least one of ``parts``."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else EMPTY
    return _in_slices(_merge, *filled)


def _merge(*parts: Intervals) -> Intervals:
    return union(np.concatenate([part.starts for part in parts]), np.concatenate([part.ends for part in parts]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Everything covered by both ``a`` and ``b``."""
    if not len(a) or not len(b):
        return EMPTY
    return _in_slices(_intersect, a, b.clip(int(a.starts[0]), int(a.ends[-1])))


def _intersect(a: Intervals, b: Intervals) -> Intervals:
    # Interval i of a meets the run first[i] … last[i]-1 of b; the runs together hold at most len(a) + len(b) pairs.
    first = np.searchsorted(b.ends, a.starts, side="right")
    last = np.searchsorted(b.starts, a.ends, side="left")
    pairs = last - first
    of_a = np.repeat(np.arange(len(a)), pairs)
    place_in_run = np.arange(len(of_a)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    of_b = first[of_a] + place_in_run
    return Intervals(np.maximum(a.starts[of_a], b.starts[of_b]), np.minimum(a.ends[of_a], b.ends[of_b]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Everything covered by ``a`` and not by ``b``."""
    if not len(a) or not len(b):
        return a
    return _in_slices(_subtract, a, b.clip(int(a.starts[0]), int(a.ends[-1])))


def _subtract(a: Intervals, b: Intervals) -> Intervals:
    return _intersect(a, b.gaps(int(a.starts[0]), int(a.ends[-1]))) if len(a) and len(b) else a


def put_intervals(arrays: dict[str, NDArray[Any]], key: str, *sets: Intervals) -> None:
    """Add sets to ``arrays`` under names that begin with ``key``: `intervals_at` reads them.

    Lengths, and steps from end to end, are small numbers: they take half of the memory, or less.
    """
    arrays[f"{key}.lengths"] = _narrow(np.concatenate([EMPTY.starts, *(one.lengths for one in sets)]))
    sizes = np.array([len(one) for one in sets], np.int64)
    first = np.cumsum(sizes) - sizes
    ends = np.concatenate([*(one.ends for one in sets), as_times(0)])
    steps = np.zeros(len(ends) - 1, np.int64)
    np.subtract(ends[1:-1], ends[:-2], out=steps[1:])
    steps[first[sizes > 0]] = 0
    arrays |= {f"{key}.sizes": sizes, f"{key}.firsts": ends[first], f"{key}.steps": _narrow(steps)}


def _narrow(numbers: Times) -> NDArray[Any]:
    """Return positive numbers in as few bytes as possible, but not as uint64: int64 and uint64 give floats."""
    return numbers.astype(np.min_scalar_type(most)) if (most := numbers.max(initial=0)) < 1 << 32 else numbers


def intervals_at(arrays: Mapping[str, NDArray[Any]], key: str) -> Iterator[Intervals]:
    """Yield the sets that `put_intervals` added, in their order."""
    steps, lengths = (arrays[f"{key}.{name}"] for name in ("steps", "lengths"))
    cuts = pairwise([0, *np.cumsum(arrays[f"{key}.sizes"]).tolist()])
    for first, (low, high) in zip(arrays[f"{key}.firsts"].tolist(), cuts, strict=True):
        ends = np.cumsum(steps[low:high], dtype=np.int64)
        ends += first
        yield Intervals(ends - lengths[low:high], ends)


def covered_per_bin(intervals: Intervals, lo: int, hi: int, bins: int) -> NDArray[np.float64]:
    """The covered time of each of ``bins`` equal spans of ``[lo, hi)``, ns.

    Shape ``(bins,)``. Exact also where a bin is no whole number of ns; the sum is the length of ``clip(lo, hi)``.
    Divide by ``(hi - lo) / bins`` for a utilisation. O(n + bins log n).

    Raises ``ValueError`` where ``bins < 1`` or ``hi < lo``.
    """
    if bins < 1:
        raise ValueError(f"at least one bin is needed, not {bins}")
    if hi < lo:
        raise ValueError(f"the window ends ({hi}) before it starts ({lo})")
    if not len(intervals):
        return np.zeros(bins)
    # Edge k lies at lo + k·(hi-lo)/bins = whole[k] + part[k]/bins ns, kept in integers so that nothing is rounded
    # (and split this way so that no product overflows).
    k = np.arange(bins + 1, dtype=np.int64)
    ns, rest = divmod(hi - lo, bins)
    whole = lo + ns * k + rest * k // bins
    part = rest * k % bins
    # Intervals begin and end on whole ns, so the ns in which an edge lies is covered in full or not at all.
    covered, beyond = intervals.before(whole)
    return np.diff(covered) + np.diff(np.where(beyond > 0, part, 0)) / bins


def disjoint_runs(spans: NDArray[np.int64], starts: Times, ends: Times) -> Iterator[NDArray[np.int64]]:
    """Yield ``spans`` (indices into ``starts`` and ``ends``) in runs by start; within a run none overlaps another."""
    order = spans[np.lexsort((ends[spans], starts[spans]))]
    if (starts[order][1:] >= ends[order][:-1]).all():
        yield order
        return
    runs: dict[int, list[int]] = {}
    last_ends: list[tuple[int, int]] = []  # the end of each run, and which run it is; the earliest first
    for span, start, end in zip(order.tolist(), starts[order].tolist(), ends[order].tolist(), strict=True):
        run = heapq.heappop(last_ends)[1] if last_ends and last_ends[0][0] <= start else len(runs)
        runs.setdefault(run, []).append(span)
        heapq.heappush(last_ends, (end, run))
    yield from (np.array(run, np.int64) for run in runs.values())
