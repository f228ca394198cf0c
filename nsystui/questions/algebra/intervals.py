"""Interval algebra on int64 nanoseconds: the basis of "busy", "overlap", "exposed" and "idle".

Intervals are half open, ``[start, end)``. In the formulas of docs/numbers.md#gpu-time, U(X) is ``union(starts, ends)``,
|U(X)| its ``length``, and exposed communication ``subtract(U(C), U(K)).length`` (HTA's ``get_comm_comp_overlap``, POP's
device metrics). Only `disjoint_runs` loops over intervals in Python.

A GPU can have ten million intervals, 153 MiB: large sets are combined in slices of time; `Intervals.clip` and
`Intervals.gaps` copy as little as possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from nsystui.base.types import Array, Flags, Floats, Ints

Times = Ints

_BLOCK = 4096  # intervals per partial sum of `Intervals.before`
_SLICE = 16  # blocks per slice of time


def as_times(values: ArrayLike, name: str = "times") -> Times:
    """Return ``values`` as a one-dimensional int64 array, copied only if necessary.

    Raises ``TypeError`` for floats, which silently lose nanoseconds, and turn NaN into arbitrary numbers.
    """
    array = np.atleast_1d(np.asarray(values))
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, not of shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integer nanoseconds, not {array.dtype}")
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Intervals:
    """Sorted, disjoint intervals that do not touch, as `union` returns them; shapes ``(n,)``, ns."""

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
        """Each interval's length, ns, shape ``(n,)``."""
        return self.ends - self.starts

    @property
    def length(self) -> int:
        """The time covered, ns (``len()`` is the number of intervals)."""
        return int(self.lengths.sum())

    def chosen(self, rows: Flags | Ints | slice) -> Intervals:
        """Return the intervals at ``rows``: a mask, shape ``(n,)``, indices or a slice."""
        return Intervals(self.starts[rows], self.ends[rows])

    def clip(self, lo: int, hi: int) -> Intervals:
        """Return the part inside ``[lo, hi)``; empty if ``hi <= lo``."""
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
        """Return the uncovered part of ``[lo, hi)``."""
        if hi <= lo:
            return EMPTY
        inside = self.clip(lo, hi)
        starts = np.concatenate((as_times([lo]), inside.ends))
        ends = np.concatenate((inside.starts, as_times([hi])))
        # An interval at the edge of the window leaves an empty gap.
        nonempty = slice(int(starts[0] == ends[0]), len(starts) - int(starts[-1] == ends[-1]))
        return Intervals(starts[nonempty], ends[nonempty])

    @cached_property
    def _covered_before(self) -> Times:
        """The time covered before each block of ``_BLOCK`` intervals, and before the end, ns."""
        sums = np.add.reduceat(self.lengths, np.arange(0, len(self), _BLOCK))
        return np.concatenate((as_times([0]), np.cumsum(sums)))

    def before(self, times: Times) -> tuple[Times, Times]:
        """Return the time covered before each of ``times``, and the rest of the interval around it, ns."""
        if not len(self) or not len(times):
            return np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
        index = np.searchsorted(self.starts, times, side="right")
        if len(self) < _BLOCK:
            covered = np.append(0, np.cumsum(self.lengths))[index]
        else:
            block = index // _BLOCK
            covered = self._covered_before[block]
            order = np.argsort(block, kind="stable")
            for rows in np.split(order, np.flatnonzero(np.diff(block[order])) + 1):
                first = int(block[rows[0]]) * _BLOCK
                lengths = self.ends[first : first + _BLOCK] - self.starts[first : first + _BLOCK]
                covered[rows] += np.append(0, np.cumsum(lengths))[index[rows] - first]
        beyond = np.maximum(np.where(index > 0, self.ends[index - 1] - times, 0), 0)
        return covered - beyond, beyond

    def covered(self, starts: Times, ends: Times) -> Times:
        """Return the time covered in each span ``[starts[i], ends[i])``, ns."""
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
    """Return the union of ranges ``[starts[i], ends[i])`` in any order.

    Touching intervals are joined. Ranges of no length, and damaged ranges of negative length, are dropped. Sorted
    ranges that do not touch are not copied. O(n log n); near O(n) for nearly sorted ranges (10 million: 0.5 s).

    Raises ``ValueError`` if the shapes differ, and ``TypeError`` for times that are not integers.
    """
    begin, finish = as_times(starts, "starts"), as_times(ends, "ends")
    if begin.shape != finish.shape:
        raise ValueError(f"{len(begin)} starts but {len(finish)} ends")
    has_length = finish > begin
    if not has_length.all():
        begin, finish = begin[has_length], finish[has_length]
    if not len(begin):
        return EMPTY
    if (begin[1:] > finish[:-1]).all():
        return Intervals(begin, finish)
    # Starts and ends can be sorted separately: the first j+1 ranges to start are all over before the next range starts
    # if and only if the (j+1)th smallest end is before that start. A stable sort of nearly sorted times, as in exports,
    # costs little more than a comparison.
    begin, finish = np.sort(begin, kind="stable"), np.sort(finish, kind="stable")
    is_gap = begin[1:] > finish[:-1]
    is_first = np.concatenate(([True], is_gap))
    is_last = np.concatenate((is_gap, [True]))
    return Intervals(begin[is_first], finish[is_last])


def slices(*sets: Intervals) -> Iterator[list[Intervals]]:
    """Yield the parts of all sets in consecutive slices of about ``_SLICE`` blocks, which cut intervals."""
    cuts = np.sort(np.concatenate([item.starts[::_BLOCK] for item in sets]))[::_SLICE].tolist()
    last = max((int(item.ends[-1]) for item in sets if len(item)), default=0)
    for lo, hi in pairwise([*cuts, last]):
        yield [item.clip(lo, hi) for item in sets]


def _in_slices(combine: Callable[..., Intervals], *sets: Intervals) -> Intervals:
    """Combine sets in slices of time, and rejoin intervals that a slice cut."""
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
    """Return the union of ``parts``."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else EMPTY
    return _in_slices(_merge, *filled)


def _merge(*parts: Intervals) -> Intervals:
    return union(np.concatenate([part.starts for part in parts]), np.concatenate([part.ends for part in parts]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that both ``a`` and ``b`` cover."""
    if not len(a) or not len(b):
        return EMPTY
    return _in_slices(_intersect, a, b.clip(int(a.starts[0]), int(a.ends[-1])))


def _intersect(a: Intervals, b: Intervals) -> Intervals:
    # Interval i of a overlaps the run first[i] … last[i]-1 of b; all runs together have at most len(a) + len(b) pairs.
    first = np.searchsorted(b.ends, a.starts, side="right")
    pairs = np.searchsorted(b.starts, a.ends, side="left") - first
    of_a = np.repeat(np.arange(len(a)), pairs)
    index_in_run = np.arange(len(of_a)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    of_b = first[of_a] + index_in_run
    return Intervals(np.maximum(a.starts[of_a], b.starts[of_b]), np.minimum(a.ends[of_a], b.ends[of_b]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the part of ``a`` that ``b`` does not cover."""
    if not len(a) or not len(b):
        return a
    return _in_slices(_subtract, a, b.clip(int(a.starts[0]), int(a.ends[-1])))


def _subtract(a: Intervals, b: Intervals) -> Intervals:
    return _intersect(a, b.gaps(int(a.starts[0]), int(a.ends[-1]))) if len(a) and len(b) else a


def put_intervals(arrays: dict[str, Array], key: str, *sets: Intervals) -> None:
    """Add sets to ``arrays`` under names that begin with ``key``, for `intervals_at`.

    Lengths and differences of successive ends take at most half of the memory.
    """
    arrays[f"{key}.lengths"] = _narrow(np.concatenate([EMPTY.starts, *(item.lengths for item in sets)]))
    sizes = np.array([len(item) for item in sets], np.int64)
    first = np.cumsum(sizes) - sizes
    ends = np.concatenate([*(item.ends for item in sets), as_times(0)])
    steps = np.zeros(len(ends) - 1, np.int64)
    np.subtract(ends[1:-1], ends[:-2], out=steps[1:])
    steps[first[sizes > 0]] = 0
    arrays |= {f"{key}.sizes": sizes, f"{key}.firsts": ends[first], f"{key}.steps": _narrow(steps)}


def _narrow(numbers: Times) -> Array:
    """Return positive numbers in few bytes, but not as uint64: int64 and uint64 combine to floats."""
    return numbers.astype(np.min_scalar_type(largest)) if (largest := numbers.max(initial=0)) < 1 << 32 else numbers


def intervals_at(arrays: Mapping[str, Array], key: str) -> Iterator[Intervals]:
    """Yield the sets that `put_intervals` added, in order."""
    steps, lengths = (arrays[f"{key}.{name}"] for name in ("steps", "lengths"))
    cuts = pairwise([0, *np.cumsum(arrays[f"{key}.sizes"]).tolist()])
    for first, (low, high) in zip(arrays[f"{key}.firsts"].tolist(), cuts, strict=True):
        ends = np.cumsum(steps[low:high], dtype=np.int64)
        ends += first
        yield Intervals(ends - lengths[low:high], ends)


def covered_per_bin(intervals: Intervals, lo: int, hi: int, bins: int) -> Floats:
    """Return the time covered in each of ``bins`` equal spans of ``[lo, hi)``, ns, shape ``(bins,)``.

    Exact even if the bins are not whole ns; the sum is the length of ``clip(lo, hi)``. O(n + bins log n).

    Raises ``ValueError`` if ``bins < 1`` or ``hi < lo``.
    """
    if bins < 1:
        raise ValueError(f"at least one bin is needed, not {bins}")
    if hi < lo:
        raise ValueError(f"the window ends ({hi}) before it starts ({lo})")
    if not len(intervals):
        return np.zeros(bins)
    # Edge k is at lo + k·(hi-lo)/bins = whole[k] + part[k]/bins ns: integers avoid rounding, and the split avoids
    # overflow.
    k = np.arange(bins + 1, dtype=np.int64)
    ns, remainder = divmod(hi - lo, bins)
    whole = lo + ns * k + remainder * k // bins
    part = remainder * k % bins
    # Intervals have whole ns, so the ns around an edge is covered completely or not at all.
    covered, beyond = intervals.before(whole)
    return np.diff(covered) + np.diff(np.where(beyond > 0, part, 0)) / bins


def disjoint_runs(spans: Ints, starts: Times, ends: Times) -> Iterator[Ints]:
    """Yield ``spans`` (indices into ``starts`` and ``ends``) in runs by start, without overlaps."""
    order = spans[np.lexsort((ends[spans], starts[spans]))]
    if (starts[order][1:] >= ends[order][:-1]).all():
        yield order
        return
    runs: dict[int, list[int]] = {}
    last_ends: list[tuple[int, int]] = []  # (end, index) of each run, earliest end first
    for span, start, end in zip(order.tolist(), starts[order].tolist(), ends[order].tolist(), strict=True):
        run = heapq.heappop(last_ends)[1] if last_ends and last_ends[0][0] <= start else len(runs)
        runs.setdefault(run, []).append(span)
        heapq.heappush(last_ends, (end, run))
    yield from (np.array(run, np.int64) for run in runs.values())
