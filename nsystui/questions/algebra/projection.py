"""The GPU projection of CPU ranges: from when to when the GPU worked on what an NVTX range launched.

NVIDIA's ``nvtx_gpu_proj_trace``: a GPU operation belongs to every range of the same thread that contains its API call
whole (``range.start <= call.start and call.end <= range.end``), and the projected range spans from the first of these
operations to the end of the last, idle time between them included. A call that starts inside a range and ends after it
belongs to the ancestors that contain it whole, and to no other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nsystui.questions.algebra.intervals import Times, as_times
from nsystui.questions.algebra.nesting import one_timeline


@dataclass(frozen=True, eq=False)
class LaunchCalls:
    """The m API calls that put work on a GPU, one row for each (process, correlation id); every array is ``(m,)``.

    ``starts``, ``ends``, ``threads``: the call on the CPU. ``op_start``, ``op_end``: the first start and the last end
    of its GPU operations (one for a kernel, many for a CUDA graph traced by node). ``op_time``: the sum of their
    durations. Times are int64 ns. Calls without a GPU operation must not be in it.
    """

    starts: Times
    ends: Times
    threads: Times
    op_start: Times
    op_end: Times
    op_time: Times

    def __post_init__(self) -> None:
        lengths = set()
        for name in ("starts", "ends", "threads", "op_start", "op_end", "op_time"):
            array = as_times(getattr(self, name), name)
            object.__setattr__(self, name, array)
            lengths.add(len(array))
        if len(lengths) > 1:
            raise ValueError(f"the columns of the calls differ in length: {sorted(lengths)}")


@dataclass(frozen=True, eq=False)
class Projection:
    """The GPU work that n ranges launched, aligned with them: every array has the shape ``(n,)`` and is int64.

    ``op_count``: GPU operations, one for each correlation id (``NumGPUOps`` of nsys). ``start``, ``end``: the projected
    range, ns; both are 0 where ``op_count`` is 0. ``op_time``: the sum of the durations of the operations, ns; less
    than ``end - start`` where the GPU idles in between, more where operations overlap.
    """

    op_count: NDArray[np.int64]
    start: Times
    end: Times
    op_time: Times


def project(starts: ArrayLike, ends: ArrayLike, threads: ArrayLike, calls: LaunchCalls) -> Projection:
    """Projects the n ranges (shape ``(n,)`` each, ns) through ``calls`` onto the GPU.

    The tree of the ranges is not needed, so ranges that overlap without nesting get exact answers too.
    O((n + m) log m); calls that contain other launching calls multiply it by their depth, which is 1 in every
    export seen (2 where a runtime call and a driver call inside it both launched something).

    Raises ``ValueError`` where the shapes differ, ``TypeError`` for times that are not integers.
    """
    begin, finish, lanes = as_times(starts, "starts"), as_times(ends, "ends"), as_times(threads, "threads")
    n = len(begin)
    count, busy = np.zeros(n, np.int64), np.zeros(n, np.int64)
    first = np.full(n, np.iinfo(np.int64).max)
    last = np.full(n, np.iinfo(np.int64).min)
    for inside in calls_inside(begin, finish, lanes, calls.starts, calls.ends, calls.threads):
        rows = np.flatnonzero(inside.until > inside.since)
        since, until = inside.since[rows], inside.until[rows]
        total = np.concatenate((as_times([0]), np.cumsum(calls.op_time[inside.calls])))
        count[rows] += until - since
        busy[rows] += total[until] - total[since]
        first[rows] = np.minimum(first[rows], _fold(np.minimum, calls.op_start[inside.calls], since, until))
        last[rows] = np.maximum(last[rows], _fold(np.maximum, calls.op_end[inside.calls], since, until))
    is_empty = count == 0
    first[is_empty] = last[is_empty] = 0
    return Projection(count, first, last, busy)


@dataclass(frozen=True, eq=False)
class Delays:
    """A `Projection` by the starts of its n ranges: integers of 32 bits, or of 64 where these do not hold them.

    ``delay``: from the start of the range to that of the projected one, ns; ``length``: that of the projected one, ns.
    """

    op_count: NDArray[np.integer[Any]]
    delay: NDArray[np.integer[Any]]
    length: NDArray[np.integer[Any]]
    op_time: NDArray[np.integer[Any]]


_BLOCK = 1 << 12


def project_parts(
    starts: Times, lengths: NDArray[np.integer[Any]], threads: NDArray[np.integer[Any]], parts: Iterable[LaunchCalls]
) -> Delays:
    """`project` with the calls a part at a time, each of which only the ranges that it touches are projected through.

    The ranges must be in order of start; ``lengths`` are in ns. Millions of calls need the memory of one part, which is
    the smaller the closer together in time its calls are.
    """
    n = len(starts)
    count, first, last, busy = _zeros(n), _zeros(n), _zeros(n), _zeros(n)
    blocks = [slice(begin, begin + _BLOCK) for begin in range(0, n, _BLOCK)]
    reach = np.array([(starts[block] + lengths[block]).max() for block in blocks], np.int64)
    for calls in parts:
        if not len(calls.starts):
            continue
        until = int(np.searchsorted(starts, calls.ends.max(), side="right"))
        touched = np.flatnonzero(reach[: -(-until // _BLOCK)] >= calls.starts.min())
        rows = (touched[:, np.newaxis] * _BLOCK + np.arange(_BLOCK)).ravel()
        rows = rows[: np.searchsorted(rows, until)]
        found = project(starts[rows], starts[rows] + lengths[rows], threads[rows], calls)
        has_work = found.op_count > 0
        rows = rows[has_work]
        start, end = found.start[has_work] - starts[rows], found.end[has_work] - starts[rows]
        is_first = count[rows] == 0
        first = _with(first, rows, np.where(is_first, start, np.minimum(first[rows], start)))
        last = _with(last, rows, np.where(is_first, end, np.maximum(last[rows], end)))
        busy = _with(busy, rows, busy[rows] + found.op_time[has_work])
        count = _with(count, rows, count[rows] + found.op_count[has_work])
    last = _with(last, slice(None), last.astype(np.int64) - first)
    return Delays(count, first, last, busy)


def _zeros(n: int) -> NDArray[np.integer[Any]]:
    return np.zeros(n, np.int32)


def _with(
    array: NDArray[np.integer[Any]], rows: NDArray[np.int64] | slice, values: NDArray[np.int64]
) -> NDArray[np.integer[Any]]:
    """The array with these values in these rows; a wider one where it cannot hold them."""
    limits = np.iinfo(array.dtype)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        array = array.astype(np.int64)
    array[rows] = values
    return array


@dataclass(frozen=True, eq=False)
class Inside:
    """Some of the calls (by their places), so ordered that those inside range i are ``calls[since[i]:until[i]]``.

    ``since``, ``until``: shape ``(n,)`` for n ranges; a range with none of these calls has ``until <= since``.
    """

    calls: NDArray[np.int64]
    since: NDArray[np.int64]
    until: NDArray[np.int64]


def calls_inside(
    starts: Times, ends: Times, threads: Times, call_starts: Times, call_ends: Times, call_threads: Times
) -> Iterator[Inside]:
    """The pairs of m calls and n ranges of the same thread that contain them whole (both ends included).

    Each call is in exactly one of the parts. Raises ``ValueError`` where the shapes of the ranges differ.
    """
    if not starts.shape == ends.shape == threads.shape:
        raise ValueError(f"{len(starts)} starts, {len(ends)} ends and {len(threads)} threads")
    n = len(starts)
    if not n or not len(call_starts):
        return
    line_start, line_end = one_timeline(
        np.concatenate((starts, call_starts)),
        np.concatenate((ends, np.maximum(call_starts, call_ends))),
        np.concatenate((threads, call_threads)),
    )
    for layer in _layers(line_start[n:], line_end[n:]):
        # Starts and ends both ascend in a layer, so the calls inside a range are neighbours.
        since = np.searchsorted(line_start[n:][layer], line_start[:n], side="left")
        until = np.searchsorted(line_end[n:][layer], line_end[:n], side="right")
        yield Inside(layer, since, until)


def are_outside(inside: Iterable[Inside], calls: int) -> NDArray[np.bool_]:
    """Whether each of the calls lies in no range, by the parts that `calls_inside` gives; shape ``(calls,)``."""
    outside = np.ones(calls, np.bool_)
    for part in inside:
        rows = np.flatnonzero(part.until > part.since)
        edges = np.zeros(len(part.calls) + 1, np.int64)
        np.add.at(edges, part.since[rows], 1)
        np.add.at(edges, part.until[rows], -1)
        outside[part.calls] = np.cumsum(edges[:-1]) == 0
    return outside


def _layers(starts: Times, ends: Times) -> Iterator[NDArray[np.int64]]:
    """The calls in as few groups as it takes for starts and ends both to ascend in each.

    That is one group unless a call contains another. Greedy (patience sorting): each call goes to the first group
    whose last end does not lie after its own.
    """
    order = np.lexsort((ends, starts))
    if bool((np.diff(ends[order]) >= 0).all()):
        yield order
        return
    minus_last_ends: list[int] = []  # of each group; ascending, for bisect
    group = np.empty(len(order), np.int64)
    for place, end in enumerate(ends[order].tolist()):
        chosen = bisect_left(minus_last_ends, -end)
        if chosen == len(minus_last_ends):
            minus_last_ends.append(-end)
        else:
            minus_last_ends[chosen] = -end
        group[place] = chosen
    by_group = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[by_group], np.arange(1, len(minus_last_ends)))
    for places in np.split(by_group, edges):
        yield order[places]


def _fold(op: np.ufunc, values: Times, since: Times, until: Times) -> Times:
    """``op`` (minimum or maximum) over ``values[since[i]:until[i]]`` for each i; no slice may be empty.

    A sparse table: any slice is two, possibly overlapping, pieces whose length is a power of two, so one pass for each
    power does all slices in O((slices + values) log values), and only the current pass is kept.
    """
    power = np.frexp(until - since)[1] - 1
    result = np.empty(len(since), np.int64)
    table = values
    for exponent in range(int(power.max(initial=-1)) + 1):
        step = 1 << exponent
        rows = np.flatnonzero(power == exponent)
        result[rows] = op(table[since[rows]], table[until[rows] - step])
        table = op(table[:-step], table[step:])
    return result
