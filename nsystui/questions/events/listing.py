"""The event list: all events in time order, at any size; and both ends of a launch.

Sorting ten million rows per screen is too slow: events are counted once per bin of time, and a page reads and sorts
only its bins (Parquet skips other row groups).

A name filter excludes kinds without a passing name (`kinds_with_name`), except NVTX ranges: each may have its own.

An API call and its GPU work are linked by (report, process, correlation id): see docs/exports.md#launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import DEVICE, DURATION, PROCESS_ID, RANK, REPORT_ID, ROW_ID, STREAM, Answer, Column, Row, Unit
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.base.types import AnyQuery, Condition, Expression
from nsystui.base.units import format_value, numbered
from nsystui.exports import canonical
from nsystui.exports.canonical import NO_PROCESS
from nsystui.exports.metadata import pid_column, tid_column
from nsystui.questions.events.index import count_all, event_index
from nsystui.questions.events.kinds import DEFAULT_KINDS, KIND_TABLES, STREAM_KINDS, EventKind, events_query
from nsystui.questions.queries.conditions import given, is_launched_by, matches, of_reports, starts_within
from nsystui.questions.queries.derived import rows_of_each_report
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.queries.recording import option_advice, recording_advice
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_index import ByTable, TimeIndex
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

EVENT_COLUMNS = (
    Column("start", header="Start (ns)", label="time", unit=Unit.TIME), Column("kind", header="Kind", label="kind"),
    Column("name", header="Name", label="what"), DURATION, RANK.with_importance(1), DEVICE.with_importance(3),
    STREAM.with_importance(2), Column("tid", header="Tid", label="tid", unit=Unit.NUMBER, importance=2),
    Column("correlation_id", header="CorrId", label="corr", unit=Unit.NUMBER, importance=4),
    Column("pid", header="Pid", label="pid", unit=Unit.NUMBER, importance=5), REPORT_ID, PROCESS_ID, ROW_ID,
)  # fmt: skip
_KEYS = tuple(column.key for column in EVENT_COLUMNS)
_FIRST_SPAN = 64  # bins of the first search, and growth of each further search
_SPAN_GROWTH = 16


@dataclass(frozen=True)
class EventKey:
    """An event's identity: report, kind and row; ``start`` (job time, ns) makes reading it fast."""

    report: int
    kind: EventKind
    row: int
    start: int


def key_of(row: Row) -> EventKey:
    """Return the key of a row of an event list."""
    cells = dict(zip(_KEYS, row, strict=True))
    return EventKey(
        int(cells["report"] or 0), EventKind(cells["kind"]), int(cells["row"] or 0), int(cells["start"] or 0)
    )


@dataclass(frozen=True)
class EventList:
    """The selected events in time order; an ``Answer``."""

    session: Session
    selection: Selection
    kinds: tuple[EventKind, ...]
    ranks: tuple[RankedTask, ...]
    index: TimeIndex
    total: int
    notes: tuple[str, ...] = ()
    name: str = "events"
    columns: tuple[Column, ...] = EVENT_COLUMNS

    @classmethod
    def build(
        cls, session: Session, selection: Selection, ranks: Sequence[RankedTask], kinds: Sequence[EventKind] = ()
    ) -> EventList:
        """Count the events of ``kinds``, by default `default_kinds`."""
        listed = tuple(kinds) or default_kinds(session)
        total = sum(count_all(session, kind) for kind in listed)
        index = event_index(session, selection, listed, ranks)
        notes = (
            () if listed else (f"no events in these exports: {option_advice(session.reports, '-t cuda,nvtx,osrt')}",)
        )
        return cls(session, selection, listed, tuple(ranks), index, total, notes)

    def __len__(self) -> int:
        return self.index.rows

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        """Return up to ``limit`` rows from row ``offset`` on, by start; fewer at the end."""
        offset, limit = max(0, offset), min(limit, len(self) - offset)
        if limit <= 0:
            return []
        first, last = self.index.bins_of(offset, offset + limit)
        rows = self._union(self.index.within(first, last)).subquery()
        ordered = sa.select(*columns_of(rows)).order_by(*_order(rows))
        with self.session.waiting(self.name):
            return self.session.rows(ordered.limit(limit).offset(offset - int(self.index.before[first])))

    def sorted_by(self, key: str, descending: bool) -> Answer:
        """Return the rows in a column's order, or this list if it has no kinds."""
        if (key == "start" and not descending) or not self.kinds:
            return self
        rows = self._union().subquery()
        query = sa.select(*columns_of(rows), rows.c.kind_order)
        order = (key, descending), ("start", "kind_order", "report", "row")
        return PagedAnswer(self.session, self.name, self.columns, query, len(self), self.total, *order, self.notes)

    def position(self, key: EventKey) -> int | None:
        """Return the index of an event in the list, or ``None`` if it is not selected."""
        if key.kind not in self.kinds or not len(self):
            return None
        bin_number = self.index.bin_at(key.start)
        if not 0 <= bin_number < self.index.bins:
            return None
        first = int(self.index.before[bin_number])
        rows = self.page(first, int(self.index.before[bin_number + 1]) - first)
        return next((first + index for index, row in enumerate(rows) if key_of(row) == key), None)

    def at_time(self, moment: int) -> int:
        """Return the index of the first event from ``moment`` on, else of the last event."""
        index = self.index
        if moment <= index.low or not len(self):
            return 0
        bin_number = min(index.bin_at(moment), index.bins - 1)
        earlier = index.starting(index.start_of(bin_number), min(moment, index.start_of(bin_number + 1)))
        number = int(self.session.scalar(sa.select(sa.func.count()).select_from(self._union(earlier).subquery())) or 0)
        return min(int(index.before[bin_number]) + number, max(len(self) - 1, 0))

    def find(
        self, index: int, forward: bool, name: NameFilter | None = None, kind: EventKind | None = None
    ) -> int | None:
        """Return the index of the nearest event after (or before) ``index`` with this name and kind, or ``None``."""
        rows = self.page(index, 1)
        if not rows:
            return None
        event = key_of(rows[0])
        kinds = (kind,) if kind else self.kinds
        if name is not None:
            kinds = kinds_with_name(self.session, kinds, name)
        for first, last in self._spans_from(index, forward) if kinds else ():
            nearest = self._nearest(event, self.index.within(first, last), forward, name, kinds)
            if nearest:
                return self.position(key_of(nearest[0]))
        return None

    def _spans_from(self, index: int, forward: bool) -> Iterator[tuple[int, int]]:
        """Yield all bins on one side of an event, its own first, in growing spans: most matches are near."""
        bin_number = self.index.bins_of(index, index + 1)[0]
        edge, width, last = (bin_number if forward else bin_number + 1), _FIRST_SPAN, self.index.bins
        while edge < last if forward else edge > 0:
            next_edge = min(edge + width, last) if forward else max(edge - width, 0)
            yield (edge, next_edge) if forward else (next_edge, edge)
            edge, width = next_edge, width * _SPAN_GROWTH

    def _nearest(
        self, event: EventKey, bins: ByTable, forward: bool, name: NameFilter | None, kinds: Sequence[EventKind]
    ) -> Sequence[Row]:
        rows = self._union(bins, name, kinds).subquery()
        order, key = _order(rows), (event.start, event.kind.order, event.report, event.row)
        event_key, row_key = sa.tuple_(*[sa.literal(value, sa.BigInteger) for value in key]), sa.tuple_(*order)
        query = (
            sa.select(*columns_of(rows))
            .where(row_key > event_key if forward else row_key < event_key)
            .order_by(*[column if forward else column.desc() for column in order])
            .limit(1)
        )
        return self.session.rows(query)

    def _union(
        self,
        extra: ByTable = lambda table: [],
        name: NameFilter | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AnyQuery:
        parts = []
        for kind in self.kinds if kinds is None else kinds:
            source = KIND_TABLES[kind]
            conditions = extra(source.table)
            if name is not None:
                conditions.append(matches(source.name, name))
            parts.append(events_query(kind, self.selection, self.ranks, conditions))
        return sa.union_all(*parts) if len(parts) > 1 else parts[0]


def _order(rows: sa.Subquery) -> tuple[Expression, ...]:
    return rows.c.start, rows.c.kind_order, rows.c.report, rows.c.row


def default_kinds(session: Session) -> tuple[EventKind, ...]:
    """Return the recorded default kinds, and OS runtime calls unless more than API calls are recorded."""
    present = tuple(kind for kind in DEFAULT_KINDS if session.count(KIND_TABLES[kind].table))
    if {*present} <= {EventKind.API} and session.count(KIND_TABLES[EventKind.OS].table):
        return (*present, EventKind.OS)
    return present


def columns_of(rows: Any) -> list[Expression]:
    """Return the columns of the answer; pid and tid are parts of NVIDIA's ids (docs/exports.md#identifiers)."""
    computed = {
        "tid": tid_column(rows.c.thread).label("tid"),
        "pid": pid_column(sa.func.nullif(rows.c.process, NO_PROCESS)).label("pid"),
    }
    return [computed[key] if key in computed else rows.c[key] for key in _KEYS]


def event_row(session: Session, key: EventKey, ranks: Sequence[RankedTask]) -> Row | None:
    """Read an event as a row of the event list, or ``None`` if it does not exist."""
    table = KIND_TABLES[key.kind].table
    conditions = [table.c.report == key.report, table.c.row == key.row, _at(table, key)]
    rows = events_query(key.kind, Selection(), ranks, conditions).subquery()
    result = session.part([key.report]).rows(sa.select(*columns_of(rows)).limit(1))
    return tuple(result[0]) if result else None


def window_of(row: Row) -> Window:
    """Return the time span of a row of an event list."""
    cells = dict(zip(_KEYS, row, strict=True))
    start = int(cells["start"] or 0)
    return Window.of_event(start, start + int(cells["duration"] or 0))


_FEW_NAMES = frozenset({EventKind.API, EventKind.KERNEL, EventKind.NCCL, EventKind.MEMORY, EventKind.OS})
_MANY = 1_000_000  # with fewer events, a search is as fast as reading their names


def kinds_with_name(session: Session, kinds: Sequence[EventKind], wanted: NameFilter) -> tuple[EventKind, ...]:
    """Return the ``kinds`` that may have an event whose name passes the filter."""
    if any(session.results(report).directory is None for report in session.reports):
        return tuple(kinds)  # reading the names each time would take as long as the search
    searched = [kind for kind in kinds if kind in _FEW_NAMES and session.count(KIND_TABLES[kind].table) >= _MANY]
    names_by_kind = {kind: _names(session, kind) for kind in searched}
    if not any(names_by_kind.values()):
        return tuple(kind for kind in kinds if kind not in names_by_kind)
    # Match with the SQL that searches the events.
    names = given({"name": sorted(set().union(*names_by_kind.values()))}).subquery()
    passing = {name for (name,) in session.rows(sa.select(names.c.name).where(matches(names.c.name, wanted)))}
    return tuple(kind for kind in kinds if kind not in names_by_kind or names_by_kind[kind] & passing)


def _names(session: Session, kind: EventKind) -> frozenset[str]:
    """Return the names in all reports; missing names are empty."""
    source = KIND_TABLES[kind]
    report = source.table.c.report

    def read(part: Session, reports: list[Report]) -> Sequence[Row]:
        query = sa.select(report, sa.func.coalesce(source.name, "")).distinct()
        query = query.where(of_reports(report, {opened.index for opened in reports}))
        return part.rows(query if source.condition is None else query.where(source.condition))

    with_events = [opened for opened in session.reports if opened.count(source.table)]
    rows = rows_of_each_report(session, with_events, f"event-names-{kind.value}", read, table=source.table)
    return frozenset(name for _, name in rows)


@dataclass(frozen=True)
class Partners:
    """The events at a launch's other end, or the ``reason`` for no ``rows`` (of an event list)."""

    rows: tuple[Row, ...]
    reason: str = ""


@dataclass(frozen=True)
class Launch:
    """Times from a call's start and its end to the start of its work, ns (``None`` for a negative ``queue``)."""

    delay: int
    queue: int | None


def partners(session: Session, key: EventKey, ranks: Sequence[RankedTask]) -> Partners:
    """Find the GPU work of an API call (several for a graph launch), or the API call of GPU work or a sync."""
    if key.kind is not EventKind.API and not key.kind.on_stream and key.kind is not EventKind.SYNC:
        return Partners((), f"{key.kind.value} events have no correlation id")
    table, session = KIND_TABLES[key.kind].table, session.part([key.report])
    identity = sa.select(table.c.process, table.c.correlation_id)
    identities = session.rows(identity.where(table.c.report == key.report, table.c.row == key.row, _at(table, key)))
    if not identities or identities[0][1] is None or identities[0][0] in (None, NO_PROCESS):
        return Partners((), "this row has no correlation id")
    process, correlation_id = identities[0]
    parts = []
    for kind in STREAM_KINDS if key.kind is EventKind.API else (EventKind.API,):
        columns = KIND_TABLES[kind].table.c
        is_same = [columns.process == process, columns.correlation_id == correlation_id]
        parts.append(events_query(kind, Selection(), ranks, [columns.report == key.report, *is_same]))
    events = (sa.union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    order = (events.c.start, events.c.kind_order, events.c.row)
    rows = tuple(session.rows(sa.select(*columns_of(events)).order_by(*order)))
    if rows:
        return Partners(rows)
    if key.kind is EventKind.API:
        return Partners((), "this call launched no GPU work")
    return Partners((), "its API call was not recorded (it came before the capture, or API calls were not traced)")


def _at(table: sa.Table, key: EventKey) -> Condition:
    """Return the condition on the event's start, which lets Parquet skip all but one row group."""
    return sa.and_(*starts_within(table, key.start, key.start + 1))


def launch(call: Row, work: Row) -> Launch:
    """Return the delays between an API call and its work, both rows of an event list.

    CUPTI's clocks may place a kernel less than a microsecond before its call: the delay is then 0
    (docs/exports.md#launches).
    """
    start, duration = _KEYS.index("start"), _KEYS.index("duration")
    delay = int(work[start] or 0) - int(call[start] or 0)
    queue = delay - int(call[duration] or 0)
    return Launch(max(delay, 0), queue if queue >= 0 else None)


def facts(session: Session, key: EventKey) -> list[tuple[str, Any, str]]:
    """Return further details of an event as (word, value, canonical field), shown in a panel."""
    table, session = KIND_TABLES[key.kind].table, session.part([key.report])
    rows = session.rows(sa.select(table).where(table.c.report == key.report, table.c.row == key.row, _at(table, key)))
    if not rows:
        return []
    row = dict(zip((column.name for column in table.c), rows[0], strict=True))
    identity_keys = {"report", "clock_offset", "row", "start", "end", "process", "thread"}
    hidden = identity_keys | {"is_nccl", "is_memset", "event_type", "folded"}
    shown = [
        (name.replace("_", " "), value, name)
        for name, value in row.items()
        if value not in (None, "") and name not in hidden
    ]
    threads = tables.threads.c
    is_same = (threads.report == key.report, threads.thread == row.get("thread"))
    name = session.scalar(sa.select(threads.name).where(*is_same).limit(1)) if row.get("thread") else None
    return [*shown, ("thread name", name, "thread_name")] if name else shown


_WAITS = ("EventSynchronize", "WaitEvent")


def waited_for(session: Session, key: EventKey, name: str) -> str:
    """Return ``waited for event 32, recorded on stream 20 1.2 ms before`` (docs/exports.md#cuda-events).

    Empty if the event is not a wait, nor its call.
    """
    syncs, records, calls = tables.syncs, tables.cuda_events, tables.api_calls
    session = session.part([key.report])
    is_call = key.kind is EventKind.API and any(word in name for word in _WAITS)
    if not (is_call or key.kind is EventKind.SYNC) or not session.count(syncs):
        return ""
    wait_query = sa.select(syncs.c.process, syncs.c.context, syncs.c.event, syncs.c.event_sync, syncs.c.start)
    wait_query = wait_query.join_from(syncs, calls, is_launched_by(syncs, calls)).where(
        syncs.c.report == key.report,
        syncs.c.event.is_not(None),
        (calls if is_call else syncs).c.row == key.row,
        # Only the call's name identifies a wait for an event: other waits and queries have event numbers, too.
        sa.or_(*(calls.c.name.contains(word) for word in _WAITS)),
    )
    waits = session.rows(wait_query.limit(1))
    if not waits:
        return ""
    process, context, event, event_sync, start = waits[0]
    words = f"waited for event {event}"
    if not session.count(records):
        record = recording_advice(session, session.reports, canonical.CUDA_EVENTS)
        return f"{words}; to see where it was recorded, {record}"
    query = sa.select(records.c.stream, calls.c.start).join_from(records, calls, is_launched_by(records, calls))
    query = query.where(records.c.report == key.report, records.c.process == process, calls.c.start <= start)
    # Since schema 3.17.2, wait and record share a number; before, an event has a number in its context.
    is_same_event = [records.c.event_sync == event_sync] if event_sync else [
        records.c.event == event, records.c.context == context,
    ]  # fmt: skip
    rows = session.rows(query.where(*is_same_event).order_by(calls.c.start.desc(), records.c.row.desc()).limit(1))
    if not rows:
        return f"{words}; this export has no earlier record of that event"
    stream, recorded = rows[0]
    return f"{words}, recorded on {numbered('stream', stream)} {format_value(Unit.DURATION, start - recorded)} before"
