"""Sets of intervals in blocks: a third of the memory of ``Intervals``, and questions that look at few of them.

The edges of an interval set ascend, so a block is its first edge and the steps from there, of 32 bits at most: a block
ends where a step would not fit. Most steps need 16 of them, for kernels and the gaps between them are short. How much
of a set lies before a point in time follows from what the blocks before it cover and from the one block that holds the
point, whatever the number of intervals. Sets of any size are made and combined a slice of time at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, as_times, merge, subtract, union

BLOCK = 4096
"""Intervals in a block at most."""
_SLICE = 8
_AT_ONCE = 8
# The longest step of a block, ns.
_LONGEST = (1 << 32) - 1
_HALF = (1 << 16) - 1
_PENDING = 16 * BLOCK

Halves = NDArray[np.uint16]


class EdgeSteps(NamedTuple):
    """The steps of a block from edge to edge, ns, the first of which is 0.

    ``low``, shape ``(2 n,)`` for n intervals: their lower 16 bits. ``high``: the upper 16 bits of those that have any,
    at ``places`` in the block; both ``(k,)``.
    """

    low: Halves
    places: Halves
    high: Halves

    @classmethod
    def of(cls, steps: Times) -> EdgeSteps:
        """The steps of a block, each of 0 to 2^32 - 1 ns."""
        places = np.flatnonzero(steps > _HALF)
        return cls((steps & _HALF).astype(np.uint16), places.astype(np.uint16), (steps[places] >> 16).astype(np.uint16))

    @property
    def intervals(self) -> int:
        """The number of intervals."""
        return len(self.low) // 2

    def edges(self, first: int) -> Times:
        """The starts and ends of the intervals, the first of which starts at ``first``."""
        steps = self.low.astype(np.int64)
        steps[self.places] += self.high.astype(np.int64) << 16
        steps[0] = first
        return np.cumsum(steps, out=steps)


@dataclass(frozen=True, eq=False)
class IntervalBlocks:
    """A set of points in time as k blocks of disjoint intervals, in order.

    ``firsts``, shape ``(k,)``: the first start of each block, ns. ``covered``, ``(k,)``: the time that each covers, ns.
    ``steps``: those of each block. Made by ``blocks_of``, a ``BlockBuilder`` or a ``UnionBuilder``.
    """

    firsts: Times
    covered: Times
    steps: tuple[EdgeSteps, ...]

    def __len__(self) -> int:
        """The number of intervals (one longer than four seconds may be in pieces)."""
        return sum(steps.intervals for steps in self.steps)

    @property
    def length(self) -> int:
        """The time covered, ns."""
        return int(self.covered.sum())

    def shifted(self, offset: int) -> IntervalBlocks:
        """The same ``offset`` ns later."""
        return replace(self, firsts=self.firsts + offset) if offset and len(self.firsts) else self

    @cached_property
    def _covered_before(self) -> Times:
        return np.concatenate((as_times([0]), np.cumsum(self.covered)))

    def _edges_of(self, block: int) -> Times:
        return self.steps[block].edges(int(self.firsts[block]))

    def before(self, times: Times) -> tuple[Times, NDArray[np.bool_]]:
        """The time covered before each of ``times``, ns, and whether the ns that begins there is covered."""
        covered, is_inside = np.zeros(len(times), np.int64), np.zeros(len(times), np.bool_)
        block = np.searchsorted(self.firsts, times, side="right") - 1
        for number in np.unique(block[block >= 0]).tolist():
            chosen = block == number
            edges, wanted = self._edges_of(number), times[chosen]
            starts, ends = edges[::2], edges[1::2]
            place = np.searchsorted(starts, wanted, side="right")
            inside = np.cumsum(ends - starts)[place - 1]
            beyond = np.maximum(ends[place - 1] - wanted, 0)
            covered[chosen] = self._covered_before[number] + inside - beyond
            is_inside[chosen] = beyond > 0
        return covered, is_inside

    def length_within(self, lo: int, hi: int) -> int:
        """The time covered in ``[lo, hi)``, ns; 0 where ``hi <= lo``."""
        if not len(self.firsts):
            return 0
        covered, _ = self.before(as_times([lo, max(lo, hi)]))
        return int(covered[1] - covered[0])

    def covered_per_bin(self, lo: int, hi: int, bins: int) -> NDArray[np.float64]:
        """The covered time of each of ``bins`` equal spans of ``[lo, hi)``, ns; see ``intervals.covered_per_bin``.

        Raises ``ValueError`` where ``bins < 1`` or ``hi < lo``.
        """
        if bins < 1:
            raise ValueError(f"at least one bin is needed, not {bins}")
        if hi < lo:
            raise ValueError(f"the window ends ({hi}) before it starts ({lo})")
        # Edge k lies at whole[k] + part[k]/bins ns: see intervals.covered_per_bin.
        k = np.arange(bins + 1, dtype=np.int64)
        ns, rest = divmod(hi - lo, bins)
        whole, part = lo + ns * k + rest * k // bins, rest * k % bins
        covered, is_inside = self.before(whole)
        return np.diff(covered) + np.diff(np.where(is_inside, part, 0)) / bins

    def clip(self, lo: int, hi: int) -> Intervals:
        """The part inside ``[lo, hi)`` as plain intervals; empty where ``hi <= lo``."""
        first = max(int(np.searchsorted(self.firsts, lo, side="right")) - 1, 0)
        last = int(np.searchsorted(self.firsts, hi, side="left"))
        if hi <= lo or last <= first:
            return EMPTY
        edges = np.concatenate([self._edges_of(number) for number in range(first, last)])
        return _joined(edges[::2], edges[1::2]).clip(lo, hi)

    def whole(self) -> Intervals:
        """All of it as plain intervals."""
        return self.clip(int(self.firsts[0]), self.end) if len(self.firsts) else EMPTY

    def parts(self) -> Iterator[Intervals]:
        """All of it as plain intervals, some blocks' at a time and in order; no interval is cut."""
        open_starts, open_ends = EMPTY.starts, EMPTY.ends
        for first in range(0, len(self.firsts), _SLICE):
            blocks = range(first, min(first + _SLICE, len(self.firsts)))
            edges = np.concatenate([self._edges_of(number) for number in blocks])
            part = _joined(np.concatenate((open_starts, edges[::2])), np.concatenate((open_ends, edges[1::2])))
            # The next block may go on with the last one.
            open_starts, open_ends = part.starts[-1:], part.ends[-1:]
            yield Intervals(part.starts[:-1], part.ends[:-1])
        yield Intervals(open_starts, open_ends)

    def covered_in(self, starts: Times, ends: Times) -> Times:
        """The time covered in each span ``[start, end)``, ns; shapes ``(n,)``."""
        return self.before(ends)[0] - self.before(starts)[0]

    def shared_with(self, other: Intervals) -> int:
        """The time that lies in both, ns."""
        return int(self.covered_in(other.starts, other.ends).sum())

    @property
    def end(self) -> int:
        """The end of the last interval, ns; there must be one."""
        return int(self._edges_of(len(self.firsts) - 1)[-1])


NO_BLOCKS = IntervalBlocks(np.empty(0, np.int64), np.empty(0, np.int64), ())


def blocks_of(intervals: Intervals) -> IntervalBlocks:
    """Plain intervals as blocks."""
    builder = BlockBuilder()
    builder.append(intervals)
    return builder.blocks()


@dataclass
class BlockBuilder:
    """Puts together a set from parts that follow each other in time; where two touch, they become one."""

    _parts: list[IntervalBlocks] = field(default_factory=list)
    _pending: list[Intervals] = field(default_factory=list)
    _count: int = 0

    @property
    def end(self) -> int | None:
        """The end of the set so far, ns."""
        return int(self._pending[-1].ends[-1]) if self._pending else None

    def append(self, part: Intervals) -> None:
        """Adds intervals, none of which starts before ``end``."""
        if not len(part):
            return
        if self._pending and part.starts[0] == self.end:
            before = self._pending.pop()
            part = Intervals(
                np.concatenate((before.starts, part.starts[1:])), np.concatenate((before.ends[:-1], part.ends))
            )
            self._count -= len(before)
        self._pending.append(part)
        self._count += len(part)
        if self._count >= _PENDING:
            self._pack(keep=1)

    def _pack(self, keep: int) -> None:
        """Packs what is pending but the last ``keep`` intervals, which the next part may touch."""
        starts = np.concatenate([part.starts for part in self._pending])
        ends = np.concatenate([part.ends for part in self._pending])
        packed = len(starts) - keep
        self._parts.append(_packed(starts[:packed], ends[:packed]))
        self._pending = [Intervals(starts[packed:], ends[packed:])] if keep else []
        self._count = keep

    def blocks(self) -> IntervalBlocks:
        """The whole set; the builder is empty then."""
        if self._pending:
            self._pack(keep=0)
        parts, self._parts = self._parts, []
        if not parts:
            return NO_BLOCKS
        return IntervalBlocks(
            np.concatenate([part.firsts for part in parts]),
            np.concatenate([part.covered for part in parts]),
            tuple(steps for part in parts for steps in part.steps),
        )


@dataclass
class UnionBuilder:
    """The union of ranges that come in batches, in any order; ranges that are nearly in order cost least."""

    _runs: list[BlockBuilder] = field(default_factory=list)
    _pending: Intervals = field(default_factory=lambda: EMPTY)

    def add(self, starts: Times, ends: Times) -> None:
        """Adds ranges as ``intervals.union`` takes them."""
        self._pending = merge(self._pending, union(starts, ends))
        # What comes next may start before what is pending ends, but hardly before all of it.
        if len(self._pending) >= 2 * _PENDING:
            self._keep(len(self._pending) - _PENDING)

    def _keep(self, count: int) -> None:
        """Gives the first ``count`` pending intervals to a run that they follow, or to a new one."""
        starts, ends = self._pending.starts, self._pending.ends
        part, self._pending = Intervals(starts[:count], ends[:count]), Intervals(starts[count:], ends[count:])
        if not count:
            return
        run = next((run for run in self._runs if run.end is None or run.end <= part.starts[0]), None)
        if run is None:
            run = BlockBuilder()
            self._runs.append(run)
        run.append(part)

    def blocks(self) -> IntervalBlocks:
        """The union; the builder is empty then."""
        self._keep(len(self._pending))
        runs = [run.blocks() for run in self._runs]
        self._runs = []
        if len(runs) < 2:
            return runs[0] if runs else NO_BLOCKS
        return combined(runs, merge)


def union_blocks(starts: Times, ends: Times) -> IntervalBlocks:
    """Return ``intervals.union`` of millions of ranges, nearly in order, in the memory of a part of them."""
    builder = UnionBuilder()
    for part in (slice(first, first + _PENDING) for first in range(0, len(starts), _PENDING)):
        builder.add(starts[part], ends[part])
    return builder.blocks()


def combined(sets: Sequence[IntervalBlocks], combine: Callable[..., Intervals]) -> IntervalBlocks:
    """One set made of several: ``combine`` is `merge`, `intersect` or `subtract`, and is given a slice of each."""
    while combine is merge and len(sets) > _AT_ONCE:  # each slice of time looks at every set
        sets = [combined(sets[at : at + _AT_ONCE], merge) for at in range(0, len(sets), _AT_ONCE)]
    builder = BlockBuilder()
    for parts in slices(sets):
        builder.append(combine(*parts))
    return builder.blocks()


def without(blocks: IntervalBlocks, taken: Intervals) -> IntervalBlocks:
    """Everything in ``blocks`` that is not in ``taken``."""
    if not len(taken):
        return blocks
    builder = BlockBuilder()
    for part in blocks.parts():
        builder.append(subtract(part, taken))
    return builder.blocks()


def slices(sets: Sequence[IntervalBlocks], window: tuple[int, int] | None = None) -> Iterator[list[Intervals]]:
    """The parts of each set in one slice of time after the other; no slice holds many intervals.

    Only what lies in ``window``, ``[start, end)``, where there is one. An interval across a slice's end is cut there.
    """
    firsts = distinct(np.concatenate([one.firsts for one in sets]))
    if not len(firsts):
        return
    start, end = int(firsts[0]), max(one.end for one in sets if len(one.firsts))
    if window is not None:
        start, end = max(start, window[0]), min(end, window[1])
    inside = firsts[(firsts > start) & (firsts < end)]
    for lo, hi in pairwise([start, *inside[_SLICE - 1 :: _SLICE].tolist(), end]):
        yield [one.clip(lo, hi) for one in sets]


def _joined(starts: Times, ends: Times) -> Intervals:
    """Sorted disjoint intervals, of which some may touch, as a set in which none do."""
    is_gap = starts[1:] > ends[:-1]
    if is_gap.all():
        return Intervals(np.ascontiguousarray(starts), np.ascontiguousarray(ends))
    return Intervals(starts[np.concatenate(([True], is_gap))], ends[np.concatenate((is_gap, [True]))])


def _packed(starts: Times, ends: Times) -> IntervalBlocks:
    """Intervals as blocks, of which each begins with a step of 0."""
    if not len(starts):
        return NO_BLOCKS
    if (ends - starts).max() > _LONGEST:
        # An interval that is too long for one step is cut into pieces that touch.
        pieces = np.maximum(-(-(ends - starts) // _LONGEST), 1)
        which = np.repeat(np.arange(len(starts)), pieces)
        number = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = starts[which] + number * _LONGEST
        ends = np.minimum(starts + _LONGEST, ends[which])
    count = len(starts)
    far = np.flatnonzero(starts[1:] - ends[:-1] > _LONGEST) + 1
    bounds = distinct(np.concatenate((np.arange(0, count, BLOCK), far)))
    edges = np.column_stack((starts, ends)).ravel()
    steps = np.diff(edges, prepend=edges[:1])
    steps[2 * bounds] = 0
    covered = np.add.reduceat(ends - starts, bounds)
    return IntervalBlocks(starts[bounds], covered, tuple(map(EdgeSteps.of, np.split(steps, 2 * bounds[1:]))))


def put_blocks(arrays: dict[str, NDArray[Any]], key: str, *sets: IntervalBlocks) -> None:
    """Adds sets of intervals to ``arrays``, under names that begin with ``key``; ``blocks_at`` is the inverse."""
    steps = [own for one in sets for own in one.steps]
    arrays[f"{key}.sizes"] = np.array([len(one.firsts) for one in sets], np.int64)
    for name in ("firsts", "covered"):
        arrays[f"{key}.{name}"] = np.concatenate([getattr(one, name) for one in (NO_BLOCKS, *sets)])
    for name in EdgeSteps._fields:
        parts = [getattr(own, name) for own in steps]
        arrays[f"{key}.{name}"] = np.concatenate([np.empty(0, np.uint16), *parts])
        arrays[f"{key}.{name}.sizes"] = np.array([len(part) for part in parts], np.int64)


def blocks_at(arrays: Mapping[str, NDArray[Any]], key: str) -> Iterator[IntervalBlocks]:
    """The sets of intervals that ``put_blocks`` added, in their order."""
    parts = [_split(arrays[f"{key}.{name}"], arrays[f"{key}.{name}.sizes"]) for name in EdgeSteps._fields]
    steps = tuple(map(EdgeSteps._make, zip(*parts, strict=True)))
    firsts, covered, end = arrays[f"{key}.firsts"], arrays[f"{key}.covered"], 0
    for size in arrays[f"{key}.sizes"].tolist():
        here, end = slice(end, end + size), end + size
        yield IntervalBlocks(firsts[here], covered[here], steps[here]) if size else NO_BLOCKS


def _split(joined: NDArray[Any], sizes: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(joined, np.cumsum(sizes)[:-1]) if len(sizes) else []
