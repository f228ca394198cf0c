"""The NVTX ranges around an event: those that are open on its thread, or on the thread of the call that launched it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import record
from nsystui.questions.algebra.nesting import NO_PARENT
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, event_row, key_of, partners
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.session import Session

_DEEPEST = 64


@dataclass(frozen=True)
class Around:
    """The range around an event, or the ``reason`` why there is none."""

    key: EventKey | None
    reason: str = ""


def path_at(session: Session, report: int, thread: int, time: int, until: int | None = None) -> tuple[str, ...]:
    """Return the names of the ranges of a thread (globalTid) that are open at ``time`` (job time, ns), outermost first.

    With ``until`` only those that last as long as that.
    """
    table = tables.nvtx_ranges
    if not session.count(table):
        return ()
    order = (table.c.start, table.c.end.desc(), table.c.row)
    query = _open_at(session, report, thread, time, FOLDED_LABEL, until=until).order_by(*order).limit(_DEEPEST)
    return tuple(name or "" for (name,) in session.part([report]).rows(query))


def range_around(session: Session, key: EventKey, ranks: Sequence[RankedTask]) -> Around:
    """Find the deepest range around the call that launched an event, or around an event of a thread."""
    if key.kind is EventKind.NVTX:
        return Around(key)  # a range is its own
    if not session.count(tables.nvtx_ranges):
        return Around(None, "no NVTX range was recorded")
    row = event_row(session, key, ranks)
    if row is not None and record(EVENT_COLUMNS, row)["tid"] is None:
        found = partners(session, key, ranks)
        if not found.rows:
            return Around(None, found.reason)
        row = found.rows[0]
    if row is None:
        return Around(None, "this event no longer exists")
    values, own = record(EVENT_COLUMNS, row), key_of(row)
    thread = int(values["process"] or 0) | int(values["tid"] or 0)
    table = tables.nvtx_ranges
    query = _open_at(session, own.report, thread, own.start, table.c.row, table.c.start)
    query = query.order_by(table.c.start.desc(), table.c.end, table.c.row.desc()).limit(1)
    deepest = session.part([own.report]).rows(query)
    if not deepest:
        return Around(None, "no NVTX range is around this event")
    number, start = deepest[0]
    return Around(EventKey(own.report, EventKind.NVTX, number, start + report_at(session, own.report).clock_offset))


def _open_at(
    session: Session, report: int, thread: int, time: int, *columns: sa.ColumnElement[Any], until: int | None = None
) -> sa.Select[Any]:
    table, offset = tables.nvtx_ranges, report_at(session, report).clock_offset
    start, end, moment = table.c.start, table.c.end, time - offset
    last = moment if until is None else until - offset
    return sa.select(*columns).where(
        table.c.report == report,
        table.c.thread == thread,
        start <= moment,
        # A range that ends at the moment is over, unless it has no length.
        sa.and_(end >= last, sa.or_(end > moment, start == moment)),
    )


def paths_around(ranges: NvtxRanges, moments: Sequence[tuple[int, int, int]]) -> list[str | None]:
    """Return ``outer › inner``, the push/pop ranges around each (report, thread, job time), or ``None``."""
    if not len(ranges):
        return [None] * len(moments)
    lanes = {(lane.report, lane.thread): number for number, lane in enumerate(ranges.lanes)}
    lane_of = np.array([lanes.get(moment[:2], -1) for moment in moments], np.int64)
    times = np.array([time for *_, time in moments], np.int64)
    innermost = ranges.innermost_at(lane_of, times)
    numbers, places = np.unique(innermost, return_inverse=True)
    paths: list[str | None] = []
    for number in numbers.tolist():
        names: list[str] = []
        while number != NO_PARENT:
            names.append(ranges.names[ranges.value("name", number)])
            number = ranges.value("parent", number)
        paths.append(" › ".join(reversed(names)) or None)
    return [paths[place] for place in places.tolist()]
