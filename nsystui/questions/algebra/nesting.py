"""The tree of NVTX ranges on each thread.

As in NVIDIA's ``nvtx_pushpop_trace`` and ``nvtx_gpu_proj_trace``, the parent of a range is the tightest range of the
same thread that contains it, in any domain: the smallest ``(c.start - p.start) + (p.end - c.end)``. A range may share
its start or its end with its parent.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nsystui.base.types import Array, Flags, Ints
from nsystui.questions.algebra.intervals import Times, as_times

_Rows = Ints
SmallRows = NDArray[np.int32]
NO_PARENT = -1


@dataclass(frozen=True, eq=False)
class Nesting:
    """The tree over n ranges; arrays of shape ``(n,)``, int64.

    ``parent``: the row of the parent, -1 for a root. ``level``: 0 for a root. ``child_time``: the summed durations of
    the direct children, ns (``DurChild`` of nsys). ``self_time``: the time without a direct child, ns: ``DurNonChild``
    of nsys, but never negative, because nsys subtracts overlaps of crossing children (of two domains) twice.
    ``child_count``: the number of direct children.
    """

    parent: _Rows
    level: _Rows
    child_time: Times
    self_time: Times
    child_count: _Rows


def nest(starts: ArrayLike, ends: ArrayLike, threads: ArrayLike) -> Nesting:
    """Nest n ranges of any number of threads; shapes ``(n,)``, times in ns.

    Ranges that overlap without nesting (start/end ranges may) are not each other's parents. The parent is the later of
    equally tight containers; of identical ranges, the earlier row contains the later row. A range that ends before it
    starts has length 0.

    O(n log n) for strictly nested ranges, such as push/pop ranges (1 million in about half a second); stretches with
    other ranges cost a few times as much. Depth costs nothing.

    Raises ``ValueError`` if the shapes differ, and ``TypeError`` for times that are not integers.
    """
    begin, finish, lanes = as_times(starts, "starts"), as_times(ends, "ends"), as_times(threads, "threads")
    parents, level, self_time = tree_of(begin, finish, lanes)
    parent, has_parent = parents.astype(np.int64), parents >= 0
    child_time = np.zeros(len(begin), np.int64)
    np.add.at(child_time, parent[has_parent], np.maximum(finish - begin, 0)[has_parent])
    child_count = np.bincount(parent[has_parent], minlength=len(begin))
    return Nesting(parent, level.astype(np.int64), child_time, self_time, child_count)


_BLOCK = 1 << 18  # ranges nested at a time: each temporarily takes some 200 bytes


def tree_of(starts: Array, ends: Array, threads: Array) -> tuple[SmallRows, SmallRows, Times]:
    """Return ``parent``, ``level`` and ``self_time`` of `nest`, for millions of ranges in little memory.

    Ranges are nested in blocks by start, with the earlier open ranges, which include all containers.
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
        block_parents, preorder = _nested(begin, finish, lanes)
        is_new = np.arange(len(rows)) >= len(is_open)
        level[block] = _levels(block_parents)[is_new]
        parent[block] = _rows_of(rows, block_parents)[is_new]
        children = np.flatnonzero(is_new & (block_parents >= 0))
        np.subtract.at(self_time, rows[block_parents[children]], (finish - begin)[children])
        repeated, times = _sibling_overlaps(begin, finish, block_parents, preorder[block_parents[preorder] >= 0])
        is_counted = is_new[repeated]
        np.add.at(self_time, rows[block_parents[repeated[is_counted]]], times[is_counted])
        if until < len(starts):
            is_open = rows[finish >= starts[until if order is None else order[until]]]
        done = until
    return parent, level, self_time


def _end_of_block(starts: Times, order: _Rows | None, until: int) -> int:
    """Return ``until``, or slightly more: ranges that start together may contain each other, and share a block."""
    if until >= len(starts):
        return len(starts)
    last_start = starts[until - 1 if order is None else order[until - 1]]
    if order is None:
        return int(np.searchsorted(starts, last_start, side="right"))
    return int(np.searchsorted(starts, last_start, side="right", sorter=order))


def _nested(begin: Times, finish: Times, lanes: Times) -> tuple[_Rows, _Rows]:
    if not len(begin):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    line_start, line_end = one_timeline(begin, finish, lanes)
    # Pre-order: containers precede their ranges. The stable sort puts the earlier of equal ranges outside.
    order = np.lexsort((-line_end, line_start))
    parent = np.empty(len(begin), np.int64)
    parent[order] = _rows_of(order, _parents(line_start[order], line_end[order], (finish - begin)[order]))
    return parent, order


def _sibling_overlaps(starts: Times, ends: Times, parent: _Rows, children: _Rows) -> tuple[_Rows, Times]:
    """Return children and their overlaps with earlier siblings, ns, subtracted twice by parents.

    ``children``: the rows with a parent; siblings are sorted by start.
    """
    children = children[np.argsort(parent[children], kind="stable")]
    group = parent[children]
    begin, end = starts[children], ends[children]
    is_next = np.concatenate(([False], group[1:] == group[:-1]))[: len(children)]
    if not (is_next[1:] & (begin[1:] < end[:-1])).any():
        return children[:0], begin[:0]
    # The latest end of earlier children of the same parent: a running maximum of ranks among all ends. An offset
    # restarts it for each parent.
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(len(end), np.int64)
    rank[by_end] = np.arange(len(end))
    first = (np.cumsum(~is_next) - 1) * len(end)
    reach = end[by_end[np.maximum.accumulate(first + rank) - first]]
    overlap = np.where(is_next[1:], np.minimum(reach[:-1], end[1:]) - begin[1:], 0)
    return children[1:], np.maximum(overlap, 0)


def one_timeline(starts: Times, ends: Times, threads: Times) -> tuple[Times, Times]:
    """Shift ``starts`` and ``ends`` so that threads follow each other on one time line without touching.

    One sweep then replaces a loop over threads. Order and containment on a thread stay, but not lengths: if the time
    line would exceed int64, ranks replace times. The arrays must not be empty.
    """
    # For few threads, a search is several times as fast as the inverse from ``unique``.
    lane = np.searchsorted(np.unique(threads), threads)
    first, last = int(starts.min()), int(ends.max())
    if (int(lane.max()) + 1) * (last - first + 1) > np.iinfo(np.int64).max:
        ranks = np.unique(np.concatenate((starts, ends)), return_inverse=True)[1].astype(np.int64)
        starts, ends = ranks[: len(starts)], ranks[len(starts) :]
        first, last = 0, int(ranks.max())
    shift = lane * (last - first + 1) - first
    return starts + shift, ends + shift


def _rows_of(order: _Rows, indices: _Rows) -> _Rows:
    return np.where(indices >= 0, order[indices], NO_PARENT)


def _levels(parent: _Rows) -> _Rows:
    """Count each row's ancestors; each pass doubles the levels climbed (pointer doubling)."""
    level = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    climbing = np.flatnonzero(ancestor >= 0)
    while len(climbing):
        above = ancestor[climbing]
        # Read both before writing: a row must add its ancestor's level from the start of the pass.
        step, further = level[above], ancestor[above]
        level[climbing] += step
        ancestor[climbing] = further
        climbing = climbing[further >= 0]
    return level


def _parents(starts: Times, ends: Times, duration: Times) -> _Rows:
    parent, is_wrong = _parents_where_nested(starts, ends)
    if is_wrong.any():
        # Redo only islands (spans of time whose edges no range crosses or touches) with a wrong parent.
        reach = np.maximum.accumulate(ends)
        island = np.concatenate(([0], np.cumsum(starts[1:] > reach[:-1])))
        is_bad = np.zeros(island[-1] + 1, bool)
        is_bad[island[is_wrong]] = True
        again = np.flatnonzero(is_bad[island])
        parent[again] = _rows_of(again, _parents_of_any(ends[again], duration[again]))
    return parent


def _parents_where_nested(starts: Times, ends: Times) -> tuple[_Rows, Flags]:
    """Return the parents if ranges nest strictly, and a mask of at least one range per island with wrong parents."""
    n = len(starts)
    is_point = starts == ends
    solid_ends, points = np.sort(ends[~is_point]), starts[is_point]
    # A range's level is the number of earlier ranges in pre-order that are open at its start. A range that ends then is
    # closed for its successor, but contains a range without length at that moment.
    closed = np.searchsorted(solid_ends, starts, side="right")
    closed[is_point] = np.searchsorted(solid_ends, points, side="left")
    closed += np.searchsorted(points, starts, side="left")
    level = np.arange(n) - closed

    # The parent is the last earlier range one level up: a binary search among all (level, index).
    by_level = np.argsort(level, kind="stable")
    last_above = np.searchsorted(level[by_level] * n + by_level, (level - 1) * n + np.arange(n)) - 1
    parent = np.where(level > 0, by_level[last_above], NO_PARENT)

    # If ranges cross, the innermost open range does not contain the new range.
    is_wrong = (level > 0) & (ends[parent] < ends)
    # A range without length where a range ends and the next starts is in both: the tighter range is its parent.
    solid_starts = starts[~is_point]
    is_wrong[is_point] |= _is_in(points, solid_ends) & _is_in(points, solid_starts)
    return parent, is_wrong


def _is_in(values: Times, ordered: Times) -> Flags:
    return np.searchsorted(ordered, values, side="left") < np.searchsorted(ordered, values, side="right")


def _parents_of_any(ends: Times, duration: Times) -> _Rows:
    """Return the parents of any ranges in pre-order. O(n log n).

    Containers of a range precede it and do not end before it does; the parent is the tightest. Divide and conquer, with
    all parts of one size in one step: in each block, the right half needs from the left half the tightest range that
    does not end earlier, a running minimum once the block is sorted by descending end.
    """
    n = len(ends)
    size = 1 << (n - 1).bit_length()  # whole blocks only; the padding never wins
    indices = np.arange(n)
    by_tightness = np.lexsort((-indices, duration))
    rank = np.full(size, size, np.int64)
    rank[by_tightness] = indices
    best = np.full(size, size, np.int64)
    blocks = np.concatenate((np.argsort(-ends, kind="stable"), np.arange(n, size))).reshape(1, size)
    while size > 1:
        size //= 2
        is_left = (blocks & size) == 0  # a block has consecutive indices, so this bit separates its halves
        tightest = np.minimum.accumulate(np.where(is_left, rank[blocks], len(rank)), axis=1)
        left, right = blocks[is_left], blocks[~is_left]
        best[right] = np.minimum(best[right], tightest[~is_left])
        blocks = np.stack((left.reshape(-1, size), right.reshape(-1, size)), axis=1).reshape(-1, size)
    best = best[:n]
    return np.where(best < n, by_tightness[np.minimum(best, n - 1)], NO_PARENT)
