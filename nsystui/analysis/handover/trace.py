"""A trace of a selection: its layout, and its events batch by batch in the order that a format needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.analysis.alignment import Alignment, ClockMode
from nsystui.analysis.event_kinds import EventKind
from nsystui.analysis.extent import selected_reports
from nsystui.analysis.handover.kinds import ON_CPU, ON_GPU, Contents
from nsystui.analysis.handover.layout import Lanes, Layout
from nsystui.analysis.handover.slices import KERNEL_FACTS, slices, with_calls
from nsystui.analysis.job import Job
from nsystui.analysis.kernels import Names
from nsystui.analysis.missing import missing_note
from nsystui.analysis.selection import Selection, Window
from nsystui.analysis.where import where
from nsystui.store import tables
from nsystui.store.session import Session

Batches = Iterator[Sequence[tuple[Any, ...]]]
_BATCH = 20_000  # rows at once: what a writer holds in memory

HOST_FIELDS = ("report", "process", "thread", "kind", "domain", "start", "end", "name")
HOST_DETAILS = ("is_loose", "correlation_id", "bytes", "communicator")
GPU_FIELDS = ("report", "process", "device", "stream", "kind", "start", "end", "name")
GPU_DETAILS = ("correlation_id", "bytes", "graph_node_id", *KERNEL_FACTS)
TIMED_FIELDS = (
    *("report", "process", "thread", "device", "stream", "kind", "domain", "is_loose"),
    *("start", "end", "name", "bytes", "correlation_id"),
)


@dataclass(frozen=True)
class Trace:
    """What is handed over. ``span``: from the first start to the last end of it, ns of job time."""

    session: Session
    selection: Selection
    contents: Contents
    names: Names
    layout: Layout
    span: Window
    clock: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job, selection: Selection, contents: Contents, names: Names = Names.SHORT) -> Trace:
        """A trace of what is there of ``contents``."""
        there = contents.there(job.session)
        layout = Layout.of(job, selection, there)
        clock = (job.alignment or Alignment(ClockMode.UTC)).words(job.session.reports)
        span = _span(job.session, selection, there)
        return cls(job.session, selection, there, names, layout, span, clock, _notes(job, there))

    def host_slices(self) -> Batches:
        """Calls and ranges by track and start, the longer first where two start at once: rows of `HOST_FIELDS`,
        `HOST_DETAILS`."""
        rows = self._rows(ON_CPU, (*HOST_FIELDS, *HOST_DETAILS, "kind_order", "row"))
        if rows is None:
            return iter(())
        track = ("report", "process", "thread", "kind_order", "domain")
        order = [*(rows.c[field] for field in (*track, "start")), rows.c.end.desc(), rows.c.row]
        return self.session.batches(_chosen(rows, (*HOST_FIELDS, *HOST_DETAILS)).order_by(*order), _BATCH)

    def gpu_slices(self) -> Batches:
        """GPU work by stream and start: rows of `GPU_FIELDS`, `GPU_DETAILS`, ``call_start``, ``call_thread``."""
        fields = (*GPU_FIELDS, *GPU_DETAILS)
        rows = self._rows(ON_GPU, (*fields, "kind_order", "row"))
        if rows is None:
            return iter(())
        if EventKind.API in self.contents.kinds:
            rows = with_calls(rows, self.selection).subquery()
            query = _chosen(rows, (*fields, "call_start", "call_thread"))
        else:
            nothing = sa.cast(sa.null(), sa.BigInteger)
            query = _chosen(rows, fields).add_columns(nothing.label("call_start"), nothing.label("call_thread"))
        order = ("report", "process", "device", "stream", "start", "end", "kind_order", "row")
        return self.session.batches(query.order_by(*(rows.c[field] for field in order)), _BATCH)

    def marks(self) -> Batches:
        """NVTX marks: rows of `HOST_FIELDS`."""
        rows = self._rows((EventKind.MARK,), (*HOST_FIELDS, "row"))
        if rows is None:
            return iter(())
        order = (rows.c.report, rows.c.start, rows.c.row)
        return self.session.batches(_chosen(rows, HOST_FIELDS).order_by(*order), _BATCH)

    def samples(self) -> Batches:
        """GPU metrics: rows of report, the machine's number of the GPU, metric, time (job time, ns), value."""
        if not self.layout.sampled:
            return iter(())
        columns = tables.gpu_metrics.c
        time = (columns.time + columns.clock_offset).label("moment")
        query = (
            sa.select(columns.report, columns.gpu, columns.metric, time, columns.value)
            .where(*where(tables.gpu_metrics, self.selection, columns.metric))
            .where(columns.report.in_(self.layout.sampled), sa.func.isfinite(columns.value, type_=sa.Boolean))
            .order_by(columns.report, columns.gpu, columns.metric, time)
        )
        return self.session.batches(query, _BATCH)

    def by_time(self) -> Batches:
        """Every event by its start: rows of `TIMED_FIELDS`, and of the first work that an API call launched ``device``,
        ``stream``, start and bytes."""
        rows = self._rows(tuple(EventKind), (*TIMED_FIELDS, "kind_order", "row"))
        if rows is None:
            return iter(())
        launched = self._first_launched()
        query = _chosen(rows, TIMED_FIELDS)
        if launched is None:
            nothing = sa.cast(sa.null(), sa.BigInteger)
            query = query.add_columns(*(nothing.label(name) for name in ("to_device", "to_stream", "to", "size")))
        else:
            is_call = sa.and_(
                rows.c.kind == EventKind.API.value,
                launched.c.report == rows.c.report,
                launched.c.process == rows.c.process,
                launched.c.correlation_id == rows.c.correlation_id,
            )
            query = query.add_columns(launched.c.to_device, launched.c.to_stream, launched.c.to, launched.c.size)
            query = query.select_from(rows.outerjoin(launched, is_call))
        order = (rows.c.start, rows.c.end.desc(), rows.c.kind_order, rows.c.report, rows.c.row)
        return self.session.batches(query.order_by(*order), _BATCH)

    def crossing(self) -> dict[tuple[int, int | None, int | None, int | None, int | None, int], int]:
        """The lane of every GPU operation that is not on the first one, by report, process, device, stream,
        correlation id and start: few, for seldom does work of one stream overlap."""
        crowded = [stream for stream in self.layout.streams if stream.lanes > 1]
        place = ("report", "process", "device", "stream", "correlation_id", "start")
        rows = self._rows(ON_GPU, (*place, "end", "kind_order", "row")) if crowded else None
        if rows is None:
            return {}
        columns = rows.c
        on_stream = [
            sa.and_(
                columns.report == one.task.report,
                columns.process.is_not_distinct_from(one.task.process),
                columns.device.is_not_distinct_from(one.device),
                columns.stream.is_not_distinct_from(one.stream),
            )
            for one in crowded
        ]
        order = (columns.start, columns.end.desc(), columns.kind_order, columns.report, columns.row)
        query = _chosen(rows, (*place, "end")).where(sa.or_(*on_stream)).order_by(*order)
        lanes, found = Lanes(), {}
        for batch in self.session.batches(query, _BATCH):
            for row in batch:
                lane = lanes.lane(row[:4], row[5], row[6])
                if lane:
                    found[row[:6]] = lane
        return found

    def name_values(self) -> list[tuple[str, str, int, str]]:
        """Every (kind, domain, is_loose, name) that occurs, sorted."""
        rows = self._rows(tuple(EventKind), ("kind", "domain", "is_loose", "name"))
        if rows is None:
            return []
        loose = sa.func.coalesce(rows.c.is_loose, 0)
        found = self.session.rows(
            sa.select(rows.c.kind, sa.func.coalesce(rows.c.domain, ""), loose, rows.c.name).distinct()
        )
        return sorted((kind, domain, is_loose, name) for kind, domain, is_loose, name in found)

    def _rows(self, kinds: Sequence[EventKind], fields: Sequence[str]) -> sa.Subquery | None:
        chosen = self.contents.among(kinds)
        if not chosen:
            return None
        return slices(self.session, self.selection, chosen, fields, self.names).subquery()

    def _first_launched(self) -> sa.Subquery | None:
        if EventKind.API not in self.contents.kinds:
            return None
        fields = ("report", "process", "correlation_id", "device", "stream", "start", "bytes")
        rows = self._rows(ON_GPU, fields)
        if rows is None:
            return None
        place = (rows.c.report, rows.c.process, rows.c.correlation_id)
        first = {"to_device": rows.c.device, "to_stream": rows.c.stream, "size": sa.func.coalesce(rows.c.bytes, 0)}
        picked = [sa.func.arg_min(column, rows.c.start).label(name) for name, column in first.items()]
        query = sa.select(*place, sa.func.min(rows.c.start).label("to"), *picked)
        return query.where(rows.c.correlation_id.is_not(None)).group_by(*place).subquery()


def _notes(job: Job, contents: Contents) -> tuple[str, ...]:
    """What to know of the trace: what the exports lack, and clocks that have nothing to do with each other."""
    gpu = "" if contents.among(ON_GPU) else missing_note(job.session, tables.kernels)
    api = "" if EventKind.API in contents.kinds else missing_note(job.session, tables.api_calls)
    nvtx = "" if EventKind.NVTX in contents.kinds else missing_note(job.session, tables.nvtx_ranges)
    apart = (
        "" if job.shares_clock else "the reports are of different runs: their times have nothing to do with each other"
    )
    return tuple(note for note in (gpu, api, nvtx, apart) if note)


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
