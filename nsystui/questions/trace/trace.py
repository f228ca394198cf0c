"""A trace of a selection: its layout, and its events batch by batch in the order that a format needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.selection import Selection, Window
from nsystui.questions.collectives.alignment import Alignment, ClockMode
from nsystui.questions.events.kinds import GPU_KINDS, KIND_TABLES, EventKind
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names
from nsystui.questions.queries.conditions import Condition, is_launched_by, where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.time_index import ByTable
from nsystui.questions.queries.time_window import selected_reports
from nsystui.questions.trace.layout import TraceLayout
from nsystui.questions.trace.slices import KERNEL_FACTS, ON_CPU, TRACED, Contents, bands, slices, with_calls
from nsystui.store import tables
from nsystui.store.session import Session

Batches = Iterator[Sequence[tuple[Any, ...]]]
_BATCH = 5_000  # the rows that a writer holds in memory

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


def _all(table: sa.Table) -> list[Condition]:
    return []


@dataclass(frozen=True)
class Trace:
    """The events of a trace, read in the bands of time of ``parts``.

    ``span``: from the first start to the last end of it, ns of job time.
    """

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
        """A trace of what is there of ``contents``."""
        there = contents.there(job.session)
        parts = bands(job, selection, there.kinds)
        layout = TraceLayout.of(job, selection, there, parts)
        clock = (job.alignment or Alignment(ClockMode.UTC)).words(job.session.reports)
        span = _span(job.session, selection, there)
        return cls(job.session, selection, there, names, layout, parts, span, clock, _notes(job, contents, there))

    def host_slices(self) -> Batches:
        """Calls and ranges by start on each track, the longer first where two start at once.

        Rows of `HOST_FIELDS`, `HOST_DETAILS`.
        """
        fields = (*HOST_FIELDS, *HOST_DETAILS)
        for part in self.parts:
            rows = self._rows(ON_CPU, (*fields, "kind_order", "row"), part)
            if rows is not None:
                track = ("report", "process", "thread", "kind_order", "domain")
                order = [*(rows.c[field] for field in (*track, "start")), rows.c.end.desc(), rows.c.row]
                yield from self.session.batches(_chosen(rows, fields).order_by(*order), _BATCH)

    def gpu_slices(self) -> Batches:
        """GPU work by start on each stream: rows of `GPU_FIELDS`, `GPU_DETAILS`, ``call_start``, ``call_thread``."""
        fields = (*GPU_FIELDS, *GPU_DETAILS)
        order = ("report", "process", "device", "stream", "start", "end", "kind_order", "row")
        for part in self.parts:
            rows = self._rows(GPU_KINDS, (*fields, "kind_order", "row"), part)
            if rows is None:
                return
            if EventKind.API in self.contents.kinds:
                calls = self._of_correlations(rows)(tables.api_calls)
                rows = with_calls(rows, self.selection, calls).subquery()
                query = _chosen(rows, (*fields, "call_start", "call_thread"))
            else:
                query = _with_nothing(_chosen(rows, fields), "call_start", "call_thread")
            yield from self.session.batches(query.order_by(*(rows.c[field] for field in order)), _BATCH)

    def marks(self) -> Batches:
        """NVTX marks: rows of `HOST_FIELDS`."""
        for part in self.parts:
            rows = self._rows((EventKind.MARK,), (*HOST_FIELDS, "row"), part)
            if rows is not None:
                order = (rows.c.report, rows.c.start, rows.c.row)
                yield from self.session.batches(_chosen(rows, HOST_FIELDS).order_by(*order), _BATCH)

    def samples(self) -> Batches:
        """GPU metrics: rows of report, the machine's number of the GPU, metric, time (job time, ns), value."""
        columns = tables.gpu_metrics.c
        query = self._samples(columns.report, columns.gpu, columns.metric, _MOMENT, columns.value)
        if query is not None:
            yield from self.session.batches(query, _BATCH)  # as they lie: no band of time, and nothing to be sorted

    def samples_by_time(self) -> Batches:
        """The same by time: rows of time, report, the machine's number of the GPU, metric, value."""
        columns = tables.gpu_metrics.c
        query = self._samples(_MOMENT, columns.report, columns.gpu, columns.metric, columns.value)
        if query is not None:
            order = (_MOMENT, columns.report, columns.gpu, columns.metric_id, columns.row)
            yield from self.session.batches(query.order_by(*order), _BATCH)

    def metrics(self) -> list[tuple[int, int | None, int | None, str | None]]:
        """Report, the machine's number of the GPU, NVIDIA's number and the name of every metric that was sampled."""
        columns = tables.gpu_metrics.c
        query = self._samples(columns.report, columns.gpu, columns.metric_id, columns.metric)
        return [] if query is None else [(*row,) for row in self.session.rows(query.distinct())]

    def users_of(self, report: int, gpu: int) -> set[int]:
        """The processes that use a GPU, by the machine's number of it."""
        known = tables.devices.c
        query = sa.select(known.process).where(known.report == report, known.gpu == gpu)
        return {process for (process,) in self.session.rows(query)}

    def _samples(self, *columns: sa.ColumnElement[Any]) -> sa.Select[Any] | None:
        if not self.layout.sampled:
            return None
        known = tables.gpu_metrics.c
        conditions = where(tables.gpu_metrics, self.selection, known.metric)
        is_finite = sa.func.isfinite(known.value, type_=sa.Boolean)
        return sa.select(*columns).where(*conditions, known.report.in_(self.layout.sampled), is_finite)

    def by_time(self) -> Batches:
        """Every event by its start.

        Rows of `TIMED_FIELDS`, and of the first work that an API call launched device, stream, start, bytes and kind.
        """
        for part in self.parts:
            rows = self._rows(tuple(EventKind), (*TIMED_FIELDS, "kind_order", "row"), part)
            if rows is None:
                return
            query = _chosen(rows, TIMED_FIELDS)
            launched = self._first_launched(part)
            if launched is None:
                query = _with_nothing(query, "to_device", "to_stream", "to", "size", "to_kind")
            else:
                is_call = sa.and_(rows.c.kind == EventKind.API.value, is_launched_by(launched, rows))
                to = ("to_device", "to_stream", "to", "size", "to_kind")
                query = query.add_columns(*(launched.c[field] for field in to))
                query = query.select_from(rows.outerjoin(launched, is_call))
            order = (rows.c.start, rows.c.end.desc(), rows.c.kind_order, rows.c.report, rows.c.row)
            yield from self.session.batches(query.order_by(*order), _BATCH)

    def name_values(self) -> Batches:
        """Yield every name that occurs: rows of `NAME_FIELDS`, in no order."""
        rows = self._rows(tuple(EventKind), NAME_FIELDS)
        if rows is not None:
            yield from self.session.batches(_chosen(rows, NAME_FIELDS).distinct(), _BATCH)

    def functions(self) -> list[tuple[str, str]]:
        """Every (group, function) of OpenACC events that occurs."""
        rows = self._rows((EventKind.OPENACC,), ("group", "function"))
        if rows is None:
            return []
        query = _chosen(rows, ("group", "function")).where(rows.c.function.is_not(None))
        return [(group or "", function) for group, function in self.session.rows(query.distinct())]

    def _rows(self, kinds: Sequence[EventKind], fields: Sequence[str], part: ByTable = _all) -> sa.Subquery | None:
        chosen = self.contents.among(kinds)
        if not chosen:
            return None
        return slices(self.session, self.selection, chosen, fields, self.names, part).subquery()

    def _first_launched(self, part: ByTable) -> sa.Subquery | None:
        """The first GPU work that each API call of a band launched."""
        calls = self._rows((EventKind.API,), ("report", "correlation_id"), part)
        fields = ("report", "process", "correlation_id", "device", "stream", "start", "bytes", "kind")
        rows = self._rows(GPU_KINDS, fields, self._of_correlations(calls)) if calls is not None else None
        if rows is None:
            return None
        place = (rows.c.report, rows.c.process, rows.c.correlation_id)
        first = {
            "to_device": rows.c.device,
            "to_stream": rows.c.stream,
            "size": sa.func.coalesce(rows.c.bytes, 0),
            "to_kind": rows.c.kind,
        }
        picked = [sa.func.arg_min(column, rows.c.start).label(name) for name, column in first.items()]
        query = sa.select(*place, sa.func.min(rows.c.start).label("to"), *picked)
        return query.where(rows.c.correlation_id.is_not(None)).group_by(*place).subquery()

    def _of_correlations(self, rows: sa.Subquery) -> ByTable:
        """The condition that a row may have to do with one of ``rows``: its correlation id is between theirs.

        Ids grow with time, so that of the other side, too, little more than a band is read.
        """
        columns = rows.c
        ends = (sa.func.min(columns.correlation_id), sa.func.max(columns.correlation_id))
        known = self.session.rows(sa.select(columns.report, *ends).group_by(columns.report))

        def conditions(table: sa.Table) -> list[Condition]:
            spans = [
                sa.and_(table.c.report == report, table.c.correlation_id.between(low, high))
                for report, low, high in known
                if low is not None
            ]
            return [sa.or_(*spans) if spans else sa.false()]

        return conditions


def _with_nothing(query: sa.Select[Any], *names: str) -> sa.Select[Any]:
    return query.add_columns(*(sa.cast(sa.null(), sa.BigInteger).label(name) for name in names))


def _notes(job: OpenJob, asked: Contents, there: Contents) -> tuple[str, ...]:
    """The notes of a trace: what the exports lack, and clocks that have nothing to do with each other."""
    lacking = [kind for kind in asked.kinds if kind not in there.kinds]
    if asked.kinds == TRACED:  # few jobs have all of it
        lacking = [kind for kind in lacking if kind in (EventKind.API, EventKind.NVTX)]
        lacking += () if there.among(GPU_KINDS) else (EventKind.KERNEL,)
    notes = [missing_note(job.session, KIND_TABLES[kind].table) for kind in lacking]
    if not job.shares_clock:
        notes.append("the reports are of different runs: their times cannot be compared")
    return tuple(dict.fromkeys(filter(None, notes)))


def _chosen(rows: sa.Subquery, fields: Sequence[str]) -> sa.Select[Any]:
    return sa.select(*(rows.c[field] for field in fields))


def _span(session: Session, selection: Selection, contents: Contents) -> Window:
    """From the first start to the last end, samples included; empty where nothing is selected."""
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
    known = [(first, last) for first, last in spans if first is not None]
    return Window(min(first for first, _ in known), max(last for _, last in known)) if known else Window(0, 0)
