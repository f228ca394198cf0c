"""The GPU projection of CPU ranges: the span in which the GPU worked on an NVTX range's launches.

NVIDIA's ``nvtx_gpu_proj_trace``: a GPU operation belongs to all ranges of the same thread that contain its complete API
call (``range.start <= call.start and call.end <= range.end``). The projected range spans from the start of the first
operation to the end of the last, including idle time. A call that ends after a range belongs only to the ancestors that
contain it completely.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nsystui.base.types import Flags, Ints
from nsystui.questions.algebra.intervals import Times, as_times


@dataclass(frozen=True, eq=False)
class LaunchCalls:
    """The m API calls that launched GPU work, one for each (process, correlation id); arrays of shape ``(m,)``.

    ``starts``, ``ends``, ``threads``: the call on the CPU. ``op_start``, ``op_end``: first start and last end of its
    GPU operations (one for a kernel, many for a CUDA graph traced by node). ``op_time``: the sum of their durations.
    Times are int64 ns. Each call has a GPU operation.
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
    """The GPU work that n ranges launched; arrays of shape ``(n,)``, int64.

    ``op_count``: GPU operations, one for each correlation id (``NumGPUOps`` of nsys). ``start``, ``end``: the projected
    range, ns; both are 0 if ``op_count`` is 0. ``op_time``: the sum of the durations of the operations, ns; less than
    ``end - start`` if the GPU idles, more if operations overlap.
    """

    op_count: Ints
    start: Times
    end: Times
    op_time: Times


def project(starts: ArrayLike, ends: ArrayLike, threads: ArrayLike, calls: LaunchCalls) -> Projection:
    """Project n ranges (shapes ``(n,)``, ns) through ``calls`` onto the GPU.

    Exact also for ranges that overlap without nesting. O((n + m) log m), times the depth of launching calls inside each
    other, which is 1 in all exports seen (2 if a runtime call and a driver call inside it both launched work).

    Raises ``ValueError`` if the shapes differ, and ``TypeError`` for times that are not integers.
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
    """A `Projection` relative to the starts of its n ranges: integers of 32 bits, or 64 if necessary.

    ``delay``: from the range's start to the projected range's, ns; ``length``: of the projected range, ns.
    """

    op_count: NDArray[np.integer[Any]]
    delay: NDArray[np.integer[Any]]
    length: NDArray[np.integer[Any]]
    op_time: NDArray[np.integer[Any]]


_BLOCK = 1 << 12


def project_parts(
    starts: Times, lengths: NDArray[np.integer[Any]], threads: NDArray[np.integer[Any]], parts: Iterable[LaunchCalls]
) -> Delays:
    """Project ranges as `project` does, one part of the calls at a time.

    Ranges must be sorted by start; ``lengths`` are in ns. Needs the memory of one part and the ranges that it touches:
    few if its calls are close in time.
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
        projection = project(starts[rows], starts[rows] + lengths[rows], threads[rows], calls)
        has_work = projection.op_count > 0
        rows = rows[has_work]
        start, end = projection.start[has_work] - starts[rows], projection.end[has_work] - starts[rows]
        is_first = count[rows] == 0
        first = _assigned(first, rows, np.where(is_first, start, np.minimum(first[rows], start)))
        last = _assigned(last, rows, np.where(is_first, end, np.maximum(last[rows], end)))
        busy = _assigned(busy, rows, busy[rows] + projection.op_time[has_work])
        count = _assigned(count, rows, count[rows] + projection.op_count[has_work])
    last = _assigned(last, slice(None), last.astype(np.int64) - first)
    return Delays(count, first, last, busy)


def _zeros(n: int) -> NDArray[np.integer[Any]]:
    return np.zeros(n, np.int32)


def _assigned(array: NDArray[np.integer[Any]], rows: Ints | slice, values: Ints) -> NDArray[np.integer[Any]]:
    limits = np.iinfo(array.dtype)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        array = array.astype(np.int64)
    array[rows] = values
    return array


@dataclass(frozen=True, eq=False)
class Inside:
    """Some calls (by index), ordered so that the calls inside range i are ``calls[since[i]:until[i]]``.

    ``since``, ``until``: shape ``(n,)`` for n ranges; a range without such calls has ``until <= since``.
    """

    calls: Ints
    since: Ints
    until: Ints


def calls_inside(
    starts: Times, ends: Times, threads: Times, call_starts: Times, call_ends: Times, call_threads: Times
) -> Iterator[Inside]:
    """Yield, for n ranges, the calls of the same thread that each range contains (both ends included).

    Each call is in exactly one part. Raises ``ValueError`` if the shapes of the ranges differ.
    """
    from nsystui.questions.algebra.nesting import one_timeline

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
        # Starts and ends ascend in a layer, so the calls inside a range are consecutive.
        since = np.searchsorted(line_start[n:][layer], line_start[:n], side="left")
        until = np.searchsorted(line_end[n:][layer], line_end[:n], side="right")
        yield Inside(layer, since, until)


def are_outside(inside: Iterable[Inside], calls: int) -> Flags:
    """Return whether each call is in no range, from the parts of `calls_inside`; shape ``(calls,)``."""
    outside = np.ones(calls, np.bool_)
    for part in inside:
        rows = np.flatnonzero(part.until > part.since)
        edges = np.zeros(len(part.calls) + 1, np.int64)
        np.add.at(edges, part.since[rows], 1)
        np.add.at(edges, part.until[rows], -1)
        outside[part.calls] = np.cumsum(edges[:-1]) == 0
    return outside


def _layers(starts: Times, ends: Times) -> Iterator[Ints]:
    """Yield the calls in the fewest groups in which both starts and ends ascend.

    Greedy (patience sorting): each call is added to the first group whose last end is not after its end.
    """
    order = np.lexsort((ends, starts))
    if bool((np.diff(ends[order]) >= 0).all()):
        yield order
        return
    minus_last_ends: list[int] = []  # per group; ascending, for bisect
    group = np.empty(len(order), np.int64)
    for index, end in enumerate(ends[order].tolist()):
        group_index = bisect_left(minus_last_ends, -end)
        if group_index == len(minus_last_ends):
            minus_last_ends.append(-end)
        else:
            minus_last_ends[group_index] = -end
        group[index] = group_index
    by_group = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[by_group], np.arange(1, len(minus_last_ends)))
    for indices in np.split(by_group, edges):
        yield order[indices]


def _fold(op: np.ufunc, values: Times, since: Times, until: Times) -> Times:
    """Return ``op`` (minimum or maximum) over ``values[since[i]:until[i]]`` for each i; no slice may be empty.

    A sparse table: a slice is the union of two pieces whose length is a power of two, and one pass computes all
    pieces of a length: O((slices + values) log values).
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
