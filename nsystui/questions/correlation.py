"""Between a CPU API call and the GPU work it launched, by (report, process, correlation id).

See docs/exports.md#launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import Row, Value
from nsystui.base.selection import Selection
from nsystui.exports.canonical import NO_PROCESS
from nsystui.questions.event_kinds import KIND_TABLES, EventKind, events_query
from nsystui.questions.events import EVENT_COLUMNS, EventKey, _public
from nsystui.questions.tasks import RankedTask
from nsystui.store import tables
from nsystui.store.session import Session

_LAUNCHED = (EventKind.KERNEL, EventKind.NCCL, EventKind.MEMORY, EventKind.GRAPH)


@dataclass(frozen=True)
class Partners:
    """What belongs to an event on the other side. ``reason`` says why ``rows`` (of an event list) is empty."""

    rows: tuple[Row, ...]
    reason: str = ""


@dataclass(frozen=True)
class Launch:
    """Times of a launch in ns: call start to work start, and call end to work start (``None`` if it began before)."""

    delay: int
    queue: int | None


def partners(session: Session, key: EventKey, ranks: Sequence[RankedTask]) -> Partners:
    """The GPU work of an API call (a graph launch may have many), or the API call of GPU work or a sync."""
    if key.kind is not EventKind.API and not key.kind.on_gpu and key.kind is not EventKind.SYNC:
        return Partners((), f"{key.kind.value} events have no correlation id")
    table, session = KIND_TABLES[key.kind].table, session.part([key.report])
    own = session.rows(
        sa.select(table.c.process, table.c.correlation_id).where(
            table.c.report == key.report, table.c.row == key.row, _at(table, key)
        )
    )
    if not own or own[0][1] is None or own[0][0] in (None, NO_PROCESS):
        return Partners((), "this row records no correlation id")
    process, correlation_id = own[0]
    wanted = _LAUNCHED if key.kind is EventKind.API else (EventKind.API,)
    rows = _by_correlation(session, wanted, key.report, process, correlation_id, ranks)
    if rows:
        return Partners(rows)
    if key.kind is EventKind.API:
        return Partners((), "this call launched no GPU work")
    return Partners((), "its API call was not recorded (launched before the capture, or API rows were not traced)")


def _at(table: sa.Table, key: EventKey) -> sa.ColumnElement[bool]:
    """The event's own start: it lets Parquet skip all but one row group."""
    return table.c.start == key.start - table.c.clock_offset


def _by_correlation(
    session: Session,
    kinds: Sequence[EventKind],
    report: int,
    process: int,
    correlation_id: int,
    ranks: Sequence[RankedTask],
) -> tuple[Row, ...]:
    parts = []
    for kind in kinds:
        columns = KIND_TABLES[kind].table.c
        conditions = [
            columns.report == report,
            columns.process == process,
            columns.correlation_id == correlation_id,
        ]
        parts.append(events_query(kind, Selection(), ranks, conditions))
    rows = (sa.union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    return tuple(session.rows(sa.select(*_public(rows)).order_by(rows.c.start, rows.c.kind_order, rows.c.row)))


def launch(call: Row, work: Row) -> Launch:
    """The delays between an API call and its work, both rows of an event list.

    CUPTI's clocks may place a kernel less than a microsecond before its call: the delay is then 0
    (docs/exports.md#launches).
    """
    starts = [_value(row, "start") for row in (call, work)]
    call_end = int(starts[0] or 0) + int(_value(call, "duration") or 0)
    queue = int(starts[1] or 0) - call_end
    return Launch(max(int(starts[1] or 0) - int(starts[0] or 0), 0), queue if queue >= 0 else None)


def _value(row: Row, key: str) -> Value:
    return row[[column.key for column in EVENT_COLUMNS].index(key)]


def facts(session: Session, key: EventKey) -> list[tuple[str, Any, str]]:
    """What the export says of one event beyond its row: (word, value, canonical field), for a detail panel."""
    table, session = KIND_TABLES[key.kind].table, session.part([key.report])
    found = session.rows(sa.select(table).where(table.c.report == key.report, table.c.row == key.row, _at(table, key)))
    if not found:
        return []
    values = dict(zip((column.name for column in table.c), found[0], strict=True))
    places = {"report", "clock_offset", "row", "start", "end", "process", "thread"}
    hidden = places | {"is_nccl", "is_memset", "event_type"}
    shown = [
        (name.replace("_", " "), value, name)
        for name, value in values.items()
        if value not in (None, "") and name not in hidden
    ]
    return [*shown, *_thread_name(session, key.report, values.get("thread"))]


def _thread_name(session: Session, report: int, thread: int | None) -> list[tuple[str, Any, str]]:
    if thread is None:
        return []
    table = tables.threads
    query = sa.select(table.c.name).where(table.c.report == report, table.c.thread == thread).limit(1)
    name = session.scalar(query)
    return [("thread name", name, "thread_name")] if name else []
