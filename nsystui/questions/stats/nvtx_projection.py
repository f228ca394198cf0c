"""NVTX ranges with the GPU work that they launched, counted as ``nsys stats`` counts it.

See docs/numbers.md#nsys-stats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nsystui.questions.nesting import NO_PARENT, nest, one_timeline
from nsystui.questions.nvtx.loading import Flags, Ints, Launches, Ranges
from nsystui.questions.projection import Inside, calls_inside, project


@dataclass(frozen=True, eq=False)
class ProjectedRanges(Ranges):
    """The n ranges that launched GPU work. Shapes ``(n,)``.

    ``gpu_start``, ``gpu_end``: from the first operation to the end of the last, job time in ns. ``op_count``: their
    different correlation ids. ``parent``: an index or -1; what is around such a range is one too. ``level``: how many
    ranges are around it. ``child_count``: how many are right inside it.
    """

    gpu_start: Ints
    gpu_end: Ints
    op_count: Ints
    parent: Ints
    level: Ints
    child_count: Ints


def projected(ranges: Ranges, launches: Launches, before: int = 0) -> ProjectedRanges:
    """Projects the ranges of a report; ``parent`` counts from ``before``, the number of those of other reports."""
    found = project(ranges.start, ranges.end, ranges.thread, launches)
    nesting = nest(ranges.start, ranges.end, ranges.thread)
    chosen = np.flatnonzero(found.op_count)
    place = np.full(len(ranges) + 1, NO_PARENT, np.int64)  # the last one is that of no parent
    place[chosen] = np.arange(len(chosen))
    parent = place[nesting.parent[chosen]]
    return ProjectedRanges(
        **{key: values[chosen] for key, values in vars(ranges).items()},
        gpu_start=found.start[chosen],
        gpu_end=found.end[chosen],
        op_count=_distinct_ids(ranges, launches, found.op_count)[chosen],
        parent=np.where(parent == NO_PARENT, NO_PARENT, parent + before),
        level=nesting.level[chosen],
        child_count=np.bincount(parent[parent != NO_PARENT], minlength=len(chosen)),
    )


def _distinct_ids(ranges: Ranges, launches: Launches, calls: Ints) -> Ints:
    """How many correlation ids the calls inside each range have; ``calls`` is how many calls. Shapes ``(n,)``.

    Of the calls of an id on a thread only those count that contain no other, for a range with the outer one has the
    inner one. Those overlap without nesting, so a range has neighbours of them: as many, less the spans from one to
    the end of the next that it has, is one.
    """
    order = np.lexsort((-launches.ends, launches.starts, launches.correlation, launches.threads))
    start, end, thread = launches.starts[order], launches.ends[order], launches.threads[order]
    is_same = (np.diff(launches.correlation[order]) == 0) & (np.diff(thread) == 0)
    if not is_same.any():
        return calls
    group = np.concatenate(([0], np.cumsum(~is_same)))
    line_end = one_timeline(start, end, group)[1]
    later = np.minimum.accumulate(line_end[::-1])[::-1]
    kept = np.flatnonzero(np.append(line_end[:-1] < later[1:], True))
    start, end, thread, group = start[kept], end[kept], thread[kept], group[kept]
    joint = np.flatnonzero(np.diff(group) == 0)
    return _count(ranges, start, end, thread) - _count(ranges, start[joint], end[joint + 1], thread[joint])


def _count(ranges: Ranges, start: Ints, end: Ints, thread: Ints) -> Ints:
    counts = np.zeros(len(ranges), np.int64)
    for part in calls_inside(ranges.start, ranges.end, ranges.thread, start, end, thread):
        counts += np.maximum(part.until - part.since, 0)
    return counts


def are_outside(inside: Iterable[Inside], calls: int) -> Flags:
    """Whether each of the calls lies in no range, of what `calls_inside` found; shape ``(calls,)``."""
    outside = np.ones(calls, np.bool_)
    for part in inside:
        rows = np.flatnonzero(part.until > part.since)
        edges = np.zeros(len(part.calls) + 1, np.int64)
        np.add.at(edges, part.since[rows], 1)
        np.add.at(edges, part.until[rows], -1)
        outside[part.calls] = np.cumsum(edges[:-1]) == 0
    return outside
