"""Traces: a selection's layout, and its events in batches, in the order that a format needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.selection import Selection, Window
from nsystui.base.types import Condition, Expression, Query
from nsystui.questions.collectives.alignment import Alignment, ClockMode
from nsystui.questions.events.kinds import GPU_KINDS, KIND_TABLES, STREAM_KINDS, EventKind
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names
from nsystui.questions.queries.conditions import is_launched_by, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.time_index import ByTable
from nsystui.questions.queries.time_window import selected_reports
from nsystui.questions.trace.layout import TraceLayout
from nsystui.questions.trace.slices import KERNEL_FACTS, ON_CPU, TRACED, Contents, bands, slices, with_calls
from nsystui.store import tables
from nsystui.store.session import Session

Batches = Iterator[Sequence[tuple[Any, ...]]]
_BATCH = 5_000  # rows that a writer holds in memory

HOST_FIELDS = ("report", "process", "thread", "kind", "domain", "start", "end", "name")
HOST_DETAILS = ("is_loose", "correlation_id", "bytes", "communicator")
GPU_FIELDS = ("report", "process", "device", "stream", "kind", "start", "end", "name")
GPU_DETAILS = ("correlation_id", "bytes", "graph_node_id", *KERNEL_FACTS)
NAME_FIELDS = ("kind", "group", "domain", "is_loose", "name")
TIMED_FIELDS = (
    *("report", "process", "thread", "device", "stream", "start", "end", *NAME_FIELDS),
    *("bytes", "send_bytes", "recv_bytes", "correlation_id", "graph_id", "graph_exec_id", "graph_node_id"),
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread"),
    *("static_shared_memory", "dynamic_shared_memory", "local_memory_total", "event_kind", "function"),
)


_MOMENT = (tables.gpu_metrics.c.time + tables.gpu_metrics.c.clock_offset).label("moment")


@dataclass(frozen=True)
class Trace:
    """The events of a trace, read in the bands ``parts``; ``span`` is from first start to last end, job time, ns."""

    session: Session
    selection: Selection
    contents: Contents
    names: Names
    layout: TraceLayout
    parts: tuple[ByTable, ...]
    span: Window
    clock: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: OpenJob, selection: Selection, contents: Contents, names: Names = Names.SHORT) -> Trace:
        """Return the trace of the available ``contents``."""
        available = contents.available_in(job.session)
        parts = bands(job, selection, available.kinds)
        layout = TraceLayout.of(job, selection, available, parts)
        clock = (job.alignment or Alignment(ClockMode.UTC)).words(job.session.reports)
        span = _span(job.session, selection, available)
        return cls(
            job.session, selection, available, names, layout, parts, span, clock, _notes(job, contents, available)
        )

    def host_slices(self) -> Batches:
        """Yield rows of `HOST_FIELDS`, `HOST_DETAILS`: calls and ranges of each track by start, then longest first."""
        fields = (*HOST_FIELDS, *HOST_DETAILS)
        track = ("report", "process", "thread", "kind_order", "domain")
        for rows in self._bands(ON_CPU, (*fields, "kind_order", "row")):
            order = [*(rows.c[field] for field in (*track, "start")), rows.c.end.desc(), rows.c.row]
            yield from self.session.batches(_select(rows, fields).order_by(*order), _BATCH)

    def gpu_slices(self) -> Batches:
        """Yield rows of `GPU_FIELDS`, `GPU_DETAILS`, ``call_start``, ``call_thread``: each stream's work by start."""
        fields = (*GPU_FIELDS, *GPU_DETAILS)
        order = ("report", "process", "device", "stream", "start", "end", "kind_order", "row")
        for rows in self._bands(STREAM_KINDS, (*fields, "kind_order", "row")):
            has_calls = EventKind.API in self.contents.kinds
            calls = self._in_correlation_range(rows)(tables.api_calls) if has_calls else [sa.false()]
            launched = with_calls(rows, self.selection, calls).subquery()
            query = _select(launched, (*fields, "call_start", "call_thread"))
            yield from self.session.batches(query.order_by(*(launched.c[field] for field in order)), _BATCH)

    def marks(self) -> Batches:
        """Yield rows of `HOST_FIELDS`: NVTX marks."""
        for rows in self._bands((EventKind.MARK,), (*HOST_FIELDS, "row")):
            order = (rows.c.report, rows.c.start, rows.c.row)
            yield from self.session.batches(_select(rows, HOST_FIELDS).order_by(*order), _BATCH)

    def samples(self, by_time: bool = False) -> Batches:
        """Yield job time (ns), report, the machine's GPU number, metric and value of each sample of a metric."""
        columns = tables.gpu_metrics.c
        query = self._samples(_MOMENT, columns.report, columns.gpu, columns.metric, columns.value)
        if query is not None:  # neither sorted nor read in bands, unless by time
            order = (_MOMENT, columns.report, columns.gpu, columns.metric_id, columns.row)
            yield from self.session.batches(query.order_by(*order) if by_time else query, _BATCH)

    def metrics(self) -> list[tuple[int, int | None, int | None, str | None]]:
        """Return report, the machine's GPU number, NVIDIA's number and name of each sampled metric."""
        columns = tables.gpu_metrics.c
        query = self._samples(columns.report, columns.gpu, columns.metric_id, columns.metric)
        return [] if query is None else [(*row,) for row in self.session.rows(query.distinct())]

    def users_of(self, report: int, gpu: int) -> set[int]:
        """Return the processes that use a GPU, by the machine's number."""
        devices = tables.devices.c
        query = sa.select(devices.process).where(devices.report == report, devices.gpu == gpu)
        return {process for (process,) in self.session.rows(query)}

    def _samples(self, *columns: Expression) -> Query | None:
        if not self.layout.sampled:
            return None
        metrics = tables.gpu_metrics.c
        conditions = where(tables.gpu_metrics, self.selection, metrics.metric)
        is_finite = sa.func.isfinite(metrics.value, type_=sa.Boolean)
        return sa.select(*columns).where(*conditions, metrics.report.in_(self.layout.sampled), is_finite)

    def by_time(self) -> Batches:
        """Yield all events by start: rows of `TIMED_FIELDS`, and the first work that an API call launched.

        The columns of the launched work are device, stream, start, bytes and kind.
        """
        for part in self.parts:
            rows = self._rows(tuple(EventKind), (*TIMED_FIELDS, "kind_order", "row"), part)
            if rows is None:
                return
            query, work_fields = _select(rows, TIMED_FIELDS), ("to_device", "to_stream", "to", "size", "to_kind")
            launched = self._first_launched(part)
            if launched is None:
                query = query.add_columns(*(sa.cast(sa.null(), sa.BigInteger).label(name) for name in work_fields))
            else:
                is_call = sa.and_(rows.c.kind == EventKind.API.value, is_launched_by(launched, rows))
                query = query.add_columns(*(launched.c[field] for field in work_fields))
                query = query.select_from(rows.outerjoin(launched, is_call))
            order = (rows.c.start, rows.c.end.desc(), rows.c.kind_order, rows.c.report, rows.c.row)
            yield from self.session.batches(query.order_by(*order), _BATCH)

    def name_values(self) -> Batches:
        """Yield the distinct rows of `NAME_FIELDS`, unordered."""
        rows = self._rows(tuple(EventKind), NAME_FIELDS)
        if rows is not None:
            yield from self.session.batches(_select(rows, NAME_FIELDS).distinct(), _BATCH)

    def functions(self) -> list[tuple[str, str]]:
        """Return the distinct (group, function) of OpenACC events."""
        rows = self._rows((EventKind.OPENACC,), ("group", "function"))
        if rows is None:
            return []
        query = _select(rows, ("group", "function")).where(rows.c.function.is_not(None))
        return [(group or "", function) for group, function in self.session.rows(query.distinct())]

    def _bands(self, kinds: Sequence[EventKind], fields: Sequence[str]) -> Iterator[sa.Subquery]:
        bands = (self._rows(kinds, fields, part) for part in self.parts)
        yield from (rows for rows in bands if rows is not None)

    def _rows(
        self, kinds: Sequence[EventKind], fields: Sequence[str], part: ByTable = lambda table: []
    ) -> sa.Subquery | None:
        available = self.contents.among(kinds)
        if not available:
            return None
        return slices(self.session, self.selection, available, fields, self.names, part).subquery()

    def _first_launched(self, part: ByTable) -> sa.Subquery | None:
        calls = self._rows((EventKind.API,), ("report", "correlation_id"), part)
        fields = ("report", "process", "correlation_id", "device", "stream", "start", "bytes", "kind")
        rows = self._rows(STREAM_KINDS, fields, self._in_correlation_range(calls)) if calls is not None else None
        if rows is None:
            return None
        key = (rows.c.report, rows.c.process, rows.c.correlation_id)
        size = sa.func.coalesce(rows.c.bytes, 0)
        columns = {"to_device": rows.c.device, "to_stream": rows.c.stream, "size": size, "to_kind": rows.c.kind}
        first_work = [sa.func.arg_min(column, rows.c.start).label(name) for name, column in columns.items()]
        query = sa.select(*key, sa.func.min(rows.c.start).label("to"), *first_work)
        return query.where(rows.c.correlation_id.is_not(None)).group_by(*key).subquery()

    def _in_correlation_range(self, rows: sa.Subquery) -> ByTable:
        """Return conditions for correlation ids in the range of ``rows``: a short range, because ids grow with time."""
        columns = rows.c
        limits = (sa.func.min(columns.correlation_id), sa.func.max(columns.correlation_id))
        id_ranges = self.session.rows(sa.select(columns.report, *limits).group_by(columns.report))

        def conditions(table: sa.Table) -> list[Condition]:
            spans = [
                sa.and_(table.c.report == report, table.c.correlation_id.between(low, high))
                for report, low, high in id_ranges
                if low is not None
            ]
            return [sa.or_(*spans) if spans else sa.false()]

        return conditions


def _notes(job: OpenJob, requested: Contents, available: Contents) -> tuple[str, ...]:
    missing = [kind for kind in requested.kinds if kind not in available.kinds]
    if requested.kinds == TRACED:  # few jobs have all kinds
        missing = [kind for kind in missing if kind in (EventKind.API, EventKind.NVTX)]
        missing += () if available.among(GPU_KINDS) else (EventKind.KERNEL,)
    notes = missing_notes(job.session, *(KIND_TABLES[kind].table for kind in missing))
    if not job.shares_clock:
        notes += ("the reports are of different runs: their times cannot be compared",)
    return tuple(dict.fromkeys(notes))


def _select(rows: sa.Subquery, fields: Sequence[str]) -> Query:
    return sa.select(*(rows.c[field] for field in fields))


def _span(session: Session, selection: Selection, contents: Contents) -> Window:
    """Return the span from first start to last end, including samples; 0 to 0 if empty."""
    spans: list[tuple[Any, ...]] = []
    if contents.kinds:
        rows = slices(session, selection, contents.kinds, ("start", "end")).subquery()
        spans += session.rows(sa.select(sa.func.min(rows.c.start), sa.func.max(rows.c.end)))
    if contents.metrics:
        columns = tables.gpu_metrics.c
        time = columns.time + columns.clock_offset
        reports = [report.index for report in selected_reports(session, selection)]
        query = sa.select(sa.func.min(time), sa.func.max(time)).where(columns.report.in_(reports))
        spans += session.rows(query.where(*where(tables.gpu_metrics, selection, columns.metric)))
    extents = [(first, last) for first, last in spans if first is not None]
    return Window(min(first for first, _ in extents), max(last for _, last in extents)) if extents else Window(0, 0)
