"""The ranges of an NVTX lane: those wide enough for a name, those before and after a moment, the path to a call."""

from __future__ import annotations

from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Row
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.questions.event_kinds import EventKind, events_query
from nsystui.questions.events import _public
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.timeline.gpu_events import Span
from nsystui.questions.timeline.lanes import Lane, Timeline
from nsystui.questions.timeline.report_lanes import NvtxLevel
from nsystui.store import tables

_DEEPEST = 64


def nvtx_spans(timeline: Timeline, lane: Lane, window: Window, count: int) -> list[Span]:
    """The ranges of a lane that take a column or more of ``count`` columns of ``window``, by start.

    Push/pop ranges of one thread and level follow one another; start/end ranges may overlap.
    """
    level, names = timeline.nvtx(lane), timeline.nvtx_names(lane)
    least = (window.end - window.start) / count
    rows = _last_of_columns(level, window, count) if level.follow else _inside(level, window)
    rows = rows[(level.end[rows] - level.start[rows] >= least) & (level.end[rows] > window.start)]
    return [
        Span(int(level.start[row]), int(level.end[row]), names[int(level.name[row])], "nvtx") for row in rows.tolist()
    ]


def _last_of_columns(level: NvtxLevel, window: Window, count: int) -> NDArray[np.int64]:
    """The last range that starts before the end of each column: whatever is as long as a column is among them.

    Of ranges that follow one another, no other can start in the same column after it.
    """
    edges = window.start - (-np.arange(1, count + 1) * (window.end - window.start) // count)
    rows = np.unique(np.searchsorted(level.start, edges, side="left") - 1)
    return np.asarray(rows[rows >= 0], np.int64)


def _inside(level: NvtxLevel, window: Window) -> NDArray[np.int64]:
    """The ranges that overlap ``window``."""
    last = int(np.searchsorted(level.start, window.end, side="left"))
    return np.flatnonzero(level.end[:last] > window.start)


def matching_ranges(timeline: Timeline, lane: Lane, window: Window, count: int, wanted: NameFilter) -> set[int]:
    """Which of ``count`` columns of ``window`` hold a range of a lane whose name passes."""
    level, names = timeline.nvtx(lane), timeline.nvtx_names(lane)
    passes = np.array([wanted.matches(name) for name in names], bool)
    rows = _inside(level, window)
    rows = rows[passes[level.name[rows]]]
    width = max(window.end - window.start, 1)
    first = np.clip((level.start[rows] - window.start) * count // width, 0, count - 1)
    final = np.clip(
        (np.maximum(level.end[rows], level.start[rows] + 1) - 1 - window.start) * count // width, 0, count - 1
    )
    # Where ranges begin and end, summed up along the columns, says where there are any.
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, final + 1, -1)
    return set(np.flatnonzero(np.cumsum(change[:-1]) > 0).tolist())


def range_next_to(timeline: Timeline, lane: Lane, time: int, forward: bool) -> Row | None:
    """The first range of a lane that starts after ``time``, or the last that starts before it; a row of events."""
    level = timeline.nvtx(lane)
    place = int(np.searchsorted(level.start, time, side="right" if forward else "left")) - (0 if forward else 1)
    return _row(timeline, lane, level, place) if 0 <= place < len(level.start) else None


def longest_range_in(timeline: Timeline, lane: Lane, window: Window) -> tuple[Row | None, int]:
    """The range that takes up most of ``window``, a row of the event list, and how many overlap it."""
    level = timeline.nvtx(lane)
    rows = _inside(level, window)
    if not len(rows):
        return None, 0
    inside = np.minimum(level.end[rows], window.end) - np.maximum(level.start[rows], window.start)
    return _row(timeline, lane, level, int(rows[int(np.argmax(inside))])), len(rows)


def _row(timeline: Timeline, lane: Lane, level: NvtxLevel, place: int) -> Row | None:
    table = tables.nvtx_ranges
    start = int(level.start[place]) - timeline.clock_offset(lane)
    conditions = [
        table.c.report == lane.task.report,
        table.c.start == start,
        table.c.row == int(level.row[place]),
    ]
    ranks = [item for item in timeline.ranks if item.task == lane.task]
    rows = events_query(EventKind.NVTX, Selection(), ranks, conditions).subquery()
    found = timeline.session.part([lane.task.report]).rows(sa.select(*_public(rows)))
    return found[0] if found else None


def path_at(timeline: Timeline, report: int, thread: int, time: int) -> tuple[str, ...]:
    """The names of the ranges of a thread (globalTid) that are open at ``time`` (job time, ns), outermost first."""
    table = tables.nvtx_ranges
    if not timeline.session.count(table):
        return ()
    moved = next(one.clock_offset for one in timeline.session.reports if one.index == report)
    ends: sa.ColumnElement[Any] = table.c.end
    query = (
        sa.select(FOLDED_LABEL)
        .where(
            table.c.report == report,
            table.c.thread == thread,
            table.c.start <= time - moved,
            sa.or_(ends >= time - moved, ends.is_(None)),
        )
        .order_by(table.c.start, ends.desc(), table.c.row)
        .limit(_DEEPEST)
    )
    return tuple(name or "" for (name,) in timeline.session.part([report]).rows(query))
