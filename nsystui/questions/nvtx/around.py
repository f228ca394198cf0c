"""NVTX ranges around an event: the open ranges of its thread, or its launching call's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import record
from nsystui.base.types import Expression, Query
from nsystui.exports.metadata import pid_of, process_of
from nsystui.questions.algebra.nesting import NO_PARENT
from nsystui.questions.events.kinds import KIND_TABLES, EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, event_row, key_of, partners
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.captures import Captures
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.session import Session

_MAX_DEPTH = 64


@dataclass(frozen=True)
class Around:
    """The range around an event, or the ``reason`` why there is no range, or why the range is around a capture."""

    key: EventKey | None
    reason: str = ""


def path_at(session: Session, report: int, thread: int, time: int, until: int | None = None) -> tuple[str, ...]:
    """Return the names of a thread's (globalTid) ranges open at ``time`` (job time, ns), outermost first.

    With ``until``, only ranges that last until then.
    """
    table = tables.nvtx_ranges
    if not session.count(table):
        return ()
    order = (table.c.start, table.c.end.desc(), table.c.row)
    query = _open_at(session, report, thread, time, FOLDED_LABEL, until=until).order_by(*order).limit(_MAX_DEPTH)
    return tuple(name or "" for (name,) in session.part([report]).rows(query))


def range_around(session: Session, key: EventKey, ranks: Sequence[RankedTask]) -> Around:
    """Find the deepest range around an event's capture, else around its launching call, else around the event."""
    if key.kind is EventKind.NVTX:
        return Around(key)  # the event is a range
    if not session.count(tables.nvtx_ranges):
        return Around(None, "no NVTX range was recorded")
    captured = capture_of(session, key)
    if captured is not None and (deepest := _deepest(session, key.report, *captured)) is not None:
        return Around(deepest, "a CUDA graph replays this operation, which was captured in this range")
    row = event_row(session, key, ranks)
    if row is not None and record(EVENT_COLUMNS, row)["tid"] is None:
        launches = partners(session, key, ranks)
        if not launches.rows:
            return Around(None, launches.reason)
        row = launches.rows[0]
    if row is None:
        return Around(None, "this event no longer exists")
    values, event = record(EVENT_COLUMNS, row), key_of(row)
    thread = int(values["process"] or 0) | int(values["tid"] or 0)
    around = _deepest(session, event.report, thread, event.start)
    reason = "" if around else f"no NVTX range is open on this thread ({values['tid']})"
    main = process_of(thread) | pid_of(thread)
    if reason and (open_on_main := path_at(session, event.report, main, event.start)):
        reason += f"; {open_on_main[-1]} is open on the main thread"
    return Around(around, reason)


def _deepest(session: Session, report: int, thread: int, time: int) -> EventKey | None:
    table, offset = tables.nvtx_ranges, report_at(session, report).clock_offset
    query = _open_at(session, report, thread, time, table.c.row, table.c.start)
    rows = session.part([report]).rows(query.order_by(table.c.start.desc(), table.c.end, table.c.row.desc()).limit(1))
    return next((EventKey(report, EventKind.NVTX, row, start + offset) for row, start in rows), None)


def _open_at(
    session: Session, report: int, thread: int, time: int, *columns: Expression, until: int | None = None
) -> Query:
    table, offset = tables.nvtx_ranges, report_at(session, report).clock_offset
    start, end, moment = table.c.start, table.c.end, time - offset
    last = moment if until is None else until - offset
    return sa.select(*columns).where(
        table.c.report == report,
        table.c.thread == thread,
        start <= moment,
        # A range that ends at the moment is over, unless its length is 0.
        sa.and_(end >= last, sa.or_(end > moment, start == moment)),
    )


def paths_around(ranges: NvtxRanges, moments: Sequence[tuple[int, int, int]]) -> list[str | None]:
    """Return ``outer › inner``, the push/pop ranges around each (report, thread, job time), or ``None``."""
    if not len(ranges):
        return [None] * len(moments)
    report, thread, times = np.array(moments, np.int64).reshape(-1, 3).T
    innermost = ranges.innermost_at(ranges.lanes_of(report, thread), times)
    numbers, inverse = np.unique(innermost, return_inverse=True)
    paths: list[str | None] = []
    for number in numbers.tolist():
        names: list[str] = []
        while number != NO_PARENT:
            names.append(ranges.names[ranges.value("name", number)])
            number = ranges.value("parent", number)
        paths.append(" › ".join(reversed(names)) or None)
    return [paths[index] for index in inverse.tolist()]


def capture_of(session: Session, key: EventKey) -> tuple[int, int] | None:
    """Return thread (globalTid) and job time of the capture of a graph's operation; ``None`` for other events."""
    table = KIND_TABLES[key.kind].table
    if "graph_node_id" not in table.c:
        return None
    report = report_at(session, key.report)
    is_event = [table.c.row == key.row, table.c.start == key.start - report.clock_offset]
    query = sa.select(table.c.process, table.c.graph_node_id).where(table.c.report == key.report, *is_event)
    rows = session.part([key.report]).rows(query.where(table.c.graph_node_id.is_not(None)))
    thread, time = Captures.of(session, report).at(*np.array(rows, np.int64).reshape(-1, 2).T)
    return (int(thread[0]), int(time[0]) + report.clock_offset) if (thread >= 0).any() else None
