"""The tree of NVTX ranges: which range lies in which, on each thread.

As in NVIDIA's ``nvtx_pushpop_trace`` and ``nvtx_gpu_proj_trace``, the parent of a range is the tightest range of the
same thread that contains it, whatever its domain: the smallest ``(c.start - p.start) + (p.end - c.end)``. A range may
share its start or its end with its parent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nsystui.questions.algebra.intervals import Times, as_times

Rows = NDArray[np.int64]
SmallRows = NDArray[np.int32]
NO_PARENT = -1


@dataclass(frozen=True, eq=False)
class Nesting:
    """The tree over n ranges, aligned with them: every array has the shape ``(n,)`` and is int64.

    ``parent``: the row of the parent, -1 for a root. ``level``: 0 for a root. ``child_time``: the durations of the
    direct children added up, ns (``DurChild`` of nsys). ``self_time``: the time in which no direct child runs, ns:
    ``DurNonChild`` of nsys, but where children cross (push/pop ranges of two domains may), which nsys takes away twice:
    never below zero. ``child_count``: the number of direct children.
    """

    parent: Rows
    level: Rows
    child_time: Times
    self_time: Times
    child_count: Rows


def nest(starts: ArrayLike, ends: ArrayLike, threads: ArrayLike) -> Nesting:
    """Nests n ranges of any number of threads; the arguments have the shape ``(n,)``, the times are ns.

    Ranges that overlap without nesting (start/end ranges may) are no parents of each other. Of two containers equally
    tight the one that starts later is the parent; of identical ranges the earlier row contains the later. A range that
    ends before it starts counts as one without length.

    O(n log n) where the ranges of a thread nest strictly, as push/pop ranges do (1 million in about half a second);
    stretches of time that hold others cost a few times as much. Depth costs nothing.

    Raises ``ValueError`` where the shapes differ, ``TypeError`` for times that are not integers.
    """
    begin, finish, lanes = as_times(starts, "starts"), as_times(ends, "ends"), as_times(threads, "threads")
    found, level, self_time = tree_of(begin, finish, lanes)
    parent, has_parent = found.astype(np.int64), found >= 0
    child_time = np.zeros(len(begin), np.int64)
    np.add.at(child_time, parent[has_parent], np.maximum(finish - begin, 0)[has_parent])
    child_count = np.bincount(parent[has_parent], minlength=len(begin))
    return Nesting(parent, level.astype(np.int64), child_time, self_time, child_count)


_BLOCK = 1 << 18
"""The number of ranges that are nested at once: each takes some 200 bytes meanwhile."""


def tree_of(starts: NDArray[Any], ends: NDArray[Any], threads: NDArray[Any]) -> tuple[SmallRows, SmallRows, Times]:
    """``parent``, ``level`` and ``self_time`` of `nest`, for millions of ranges in little memory.

    The ranges are nested a block at a time, in order of start, together with those before that are still open: all that
    contain a range are among these.
    """
    if not starts.shape == ends.shape == threads.shape:
        raise ValueError(f"{len(starts)} starts, {len(ends)} ends and {len(threads)} threads")
    parent, level = np.full(len(starts), NO_PARENT, np.int32), np.zeros(len(starts), np.int32)
    self_time = np.maximum(ends - starts, 0)
    order = None if bool((starts[1:] >= starts[:-1]).all()) else np.argsort(starts, kind="stable")
    is_open, done = np.empty(0, np.int64), 0
    while done < len(starts):
        until = _end_of_block(starts, order, done + max(_BLOCK, 4 * len(is_open)))
        block = np.arange(done, until) if order is None else order[done:until]
        rows = np.concatenate((is_open, block))
        begin, lanes = as_times(starts[rows]), as_times(threads[rows])
        finish = np.maximum(begin, as_times(ends[rows]))
        found, preorder = _nested(begin, finish, lanes)
        is_new = np.arange(len(rows)) >= len(is_open)
        level[block] = _levels(found)[is_new]
        parent[block] = _rows_of(rows, found)[is_new]
        children = np.flatnonzero(is_new & (found >= 0))
        np.subtract.at(self_time, rows[found[children]], (finish - begin)[children])
        twice, times = _taken_twice(begin, finish, found, preorder[found[preorder] >= 0])
        counts = is_new[twice]
        np.add.at(self_time, rows[found[twice[counts]]], times[counts])
        if until < len(starts):
            is_open = rows[finish >= starts[until if order is None else order[until]]]
        done = until
    return parent, level, self_time


def _end_of_block(starts: Times, order: Rows | None, until: int) -> int:
    """``until``, or a few more: ranges that start together are in one block, for each may contain the others."""
    if until >= len(starts):
        return len(starts)
    last = starts[until - 1 if order is None else order[until - 1]]
    if order is None:
        return int(np.searchsorted(starts, last, side="right"))
    return int(np.searchsorted(starts, last, side="right", sorter=order))


def _nested(begin: Times, finish: Times, lanes: Times) -> tuple[Rows, Rows]:
    """The parent of each range, and the ranges in pre-order."""
    if not len(begin):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    line_start, line_end = one_timeline(begin, finish, lanes)
    # Pre-order: a range comes after every range that contains it. The sort is stable: the earlier row is outside.
    order = np.lexsort((-line_end, line_start))
    parent = np.empty(len(begin), np.int64)
    parent[order] = _rows_of(order, _parents(line_start[order], line_end[order], (finish - begin)[order]))
    return parent, order


def _taken_twice(starts: Times, ends: Times, parent: Rows, children: Rows) -> tuple[Rows, Times]:
    """Children, and for each a time, ns, in which it runs after an earlier child and not yet without that one.

    ``children``: the rows that have a parent, those of one parent by start.
    """
    children = children[np.argsort(parent[children], kind="stable")]
    group = parent[children]
    begin, end = starts[children], ends[children]
    is_next = np.concatenate(([False], group[1:] == group[:-1]))[: len(children)]
    if not (is_next[1:] & (begin[1:] < end[:-1])).any():
        return children[:0], begin[:0]
    # How far the earlier children of the same parent reach: a running maximum of places among all ends, which starts
    # anew with each parent because those of a later parent are larger numbers.
    by_end = np.argsort(end, kind="stable")
    place = np.empty(len(end), np.int64)
    place[by_end] = np.arange(len(end))
    first = (np.cumsum(~is_next) - 1) * len(end)
    reach = end[by_end[np.maximum.accumulate(first + place) - first]]
    twice = np.where(is_next[1:], np.minimum(reach[:-1], end[1:]) - begin[1:], 0)
    return children[1:], np.maximum(twice, 0)


def one_timeline(starts: Times, ends: Times, threads: Times) -> tuple[Times, Times]:
    """``starts`` and ``ends`` shifted so that the threads follow one another on one time line and never meet.

    One sweep then does the work of a loop over threads. Order and containment on a thread stay as they are, but not the
    lengths: where the time line would leave int64, ranks stand for the times. The arrays must not be empty.
    """
    # There are few threads: to look each up is several times as fast as the inverse that ``unique`` can give.
    lane = np.searchsorted(np.unique(threads), threads)
    first, last = int(starts.min()), int(ends.max())
    if (int(lane.max()) + 1) * (last - first + 1) > np.iinfo(np.int64).max:
        ranks = np.unique(np.concatenate((starts, ends)), return_inverse=True)[1].astype(np.int64)
        starts, ends = ranks[: len(starts)], ranks[len(starts) :]
        first, last = 0, int(ranks.max())
    shift = lane * (last - first + 1) - first
    return starts + shift, ends + shift


def _rows_of(order: Rows, places: Rows) -> Rows:
    """The rows at ``places`` of ``order``; no place stays no row."""
    return np.where(places >= 0, order[places], NO_PARENT)


def _levels(parent: Rows) -> Rows:
    """The number of ancestors of each row, by pointer doubling: each pass doubles how far up a row has looked."""
    level = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    climbing = np.flatnonzero(ancestor >= 0)
    while len(climbing):
        above = ancestor[climbing]
        # Both are read before either is written: a row must add what its ancestor knew at the start of the pass.
        step, further = level[above], ancestor[above]
        level[climbing] += step
        ancestor[climbing] = further
        climbing = climbing[further >= 0]
    return level


def _parents(starts: Times, ends: Times, duration: Times) -> Rows:
    """The parent of each range in pre-order, as a place in that order."""
    parent, is_wrong = _parents_where_nested(starts, ends)
    if is_wrong.any():
        # Only the islands of time (nothing crosses or touches their edges) that hold such a range are done again.
        reach = np.maximum.accumulate(ends)
        island = np.concatenate(([0], np.cumsum(starts[1:] > reach[:-1])))
        is_bad = np.zeros(island[-1] + 1, bool)
        is_bad[island[is_wrong]] = True
        again = np.flatnonzero(is_bad[island])
        parent[again] = _rows_of(again, _parents_of_any(ends[again], duration[again]))
    return parent


def _parents_where_nested(starts: Times, ends: Times) -> tuple[Rows, NDArray[np.bool_]]:
    """Parents as if the ranges nested strictly, and a mask that has a range in every island where they do not."""
    n = len(starts)
    is_point = starts == ends
    solid_ends, points = np.sort(ends[~is_point]), starts[is_point]
    # A range's level is the number of those before it in pre-order that are still open when it starts. A range that
    # ends right there is over for its successor, but contains a range without length at that very time.
    over = np.searchsorted(solid_ends, starts, side="right")
    over[is_point] = np.searchsorted(solid_ends, points, side="left")
    over += np.searchsorted(points, starts, side="left")
    level = np.arange(n) - over

    # The parent is the last one before that is one level up: a binary search among all (level, place).
    by_level = np.argsort(level, kind="stable")
    found = np.searchsorted(level[by_level] * n + by_level, (level - 1) * n + np.arange(n)) - 1
    parent = np.where(level > 0, by_level[found], NO_PARENT)

    # Where ranges cross, the innermost open range does not contain the one that opens.
    is_wrong = (level > 0) & (ends[parent] < ends)
    # A range without length just where one range ends and the next starts lies in both: the tighter one is the parent.
    solid_starts = starts[~is_point]
    is_wrong[is_point] |= _is_in(points, solid_ends) & _is_in(points, solid_starts)
    return parent, is_wrong


def _is_in(values: Times, ordered: Times) -> NDArray[np.bool_]:
    return np.searchsorted(ordered, values, side="left") < np.searchsorted(ordered, values, side="right")


def _parents_of_any(ends: Times, duration: Times) -> Rows:
    """The parent of each range in pre-order, whatever the ranges do. O(n log n).

    Containers of a range come before it and do not end before it does; the parent is the tightest. Divide and conquer,
    all parts of one size in one step: in every block, what the right half still needs from the left half is the
    tightest range that does not end earlier, a running minimum once the block is in descending order of ends.
    """
    n = len(ends)
    size = 1 << (n - 1).bit_length()  # whole blocks only; the fill-up takes part without ever being the best
    place = np.arange(n)
    by_tightness = np.lexsort((-place, duration))
    rank = np.full(size, size, np.int64)
    rank[by_tightness] = place
    best = np.full(size, size, np.int64)
    blocks = np.concatenate((np.argsort(-ends, kind="stable"), np.arange(n, size))).reshape(1, size)
    while size > 1:
        size //= 2
        is_left = (blocks & size) == 0  # every block holds consecutive places, so this bit tells its halves apart
        tightest = np.minimum.accumulate(np.where(is_left, rank[blocks], len(rank)), axis=1)
        left, right = blocks[is_left], blocks[~is_left]
        best[right] = np.minimum(best[right], tightest[~is_left])
        blocks = np.stack((left.reshape(-1, size), right.reshape(-1, size)), axis=1).reshape(-1, size)
    best = best[:n]
    return np.where(best < n, by_tightness[np.minimum(best, n - 1)], NO_PARENT)
