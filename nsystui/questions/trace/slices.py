"""The events of a trace: their kinds, a common form of their rows, and bands of time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection
from nsystui.base.types import AnyQuery, Condition, Expression, Query
from nsystui.questions.events.kinds import KIND_TABLES, RUNTIMES, STREAM_KINDS, EventKind, kinds_of
from nsystui.questions.events.listing import EventList
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names, name_of
from nsystui.questions.nvtx.loading import START_END_TYPES
from nsystui.questions.queries.conditions import is_launched_by, where
from nsystui.questions.queries.time_index import ByTable
from nsystui.store import tables
from nsystui.store.session import Session

ON_CPU = (EventKind.API, EventKind.SYNC, EventKind.NVTX, *RUNTIMES, EventKind.OS)
TRACED = (*STREAM_KINDS, EventKind.API, EventKind.NVTX, EventKind.MARK, *RUNTIMES)
"""The default kinds of a trace, without OS runtime calls (many, seldom relevant) and synchronisations (API calls show
them).
"""

METRICS = "metrics"


@dataclass(frozen=True)
class Contents:
    """The contents of a trace: kinds of events, and samples of GPU metrics."""

    kinds: tuple[EventKind, ...] = TRACED
    metrics: bool = True

    @classmethod
    def of(cls, text: str) -> Contents:
        """Parse ``kernel,nccl,metrics``; empty means `TRACED` and metrics. Raises UsageError for an unknown kind."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not words:
            return cls()
        return cls(kinds_of(",".join(word for word in words if word != METRICS)), METRICS in words)

    def available_in(self, session: Session) -> Contents:
        """Return the contents that the open reports have."""
        metrics = self.metrics and bool(session.count(tables.gpu_metrics))
        return Contents(tuple(kind for kind in self.kinds if session.count(KIND_TABLES[kind].table)), metrics)

    def among(self, kinds: Collection[EventKind]) -> tuple[EventKind, ...]:
        """Return the traced kinds among ``kinds``."""
        return tuple(kind for kind in self.kinds if kind in kinds)


_TEXTS = frozenset({"kind", "group", "name", "domain", "function", "communicator", "grid", "block"})
KERNEL_FACTS = ("grid", "block", "registers_per_thread")
"""Fields that describe a kernel's launch."""


def slices(
    session: Session,
    selection: Selection,
    kinds: Sequence[EventKind],
    fields: Sequence[str],
    names: Names = Names.SHORT,
    extra: ByTable = lambda table: [],
) -> AnyQuery:
    """Select the events of ``kinds`` (at least one) with these fields; fields that a kind lacks are NULL.

    Fields: ``kind``, ``kind_order``, ``report``, ``row``, ``start`` and ``end`` (job time, ns; an unended event has
    no length), ``name``, ``process``, ``thread``, ``device``, ``stream``, ``correlation_id``, ``group`` (MPI: ``p2p``,
    ``collective``, ``wait`` or ``other``; OpenACC: the end of its table's name), ``domain`` (NVTX; empty for
    the default domain), ``is_loose`` (1 for an NVTX range that need not nest: a start/end range, or ended on another
    thread), ``bytes`` (memory operations, NCCL messages), ``communicator``, ``graph_node_id``; for kernels ``grid`` and
    ``block`` (``8x1x1``) and ``registers_per_thread``; any other column of the kind's table. ``extra`` adds conditions.
    """
    parts = [_one_kind(kind, selection, fields, names).where(*extra(KIND_TABLES[kind].table)) for kind in kinds]
    return sa.union_all(*parts) if len(parts) > 1 else parts[0]


def _one_kind(kind: EventKind, selection: Selection, fields: Sequence[str], names: Names) -> Query:
    source = KIND_TABLES[kind]
    expressions = _expressions(kind, source.table, names)
    conditions: list[Condition] = where(source.table, selection, source.name)
    if source.condition is not None:
        conditions.append(source.condition)
    source_rows: sa.FromClause = source.table
    if kind is EventKind.SYNC and "thread" in fields:
        # Synchronisations are recorded without a thread, unlike their calls.
        calls = tables.api_calls.c
        call = (calls.report, calls.process, calls.correlation_id)
        threads = sa.select(*call, sa.func.min(calls.thread).label("thread"))
        call_threads = threads.where(calls.correlation_id.is_not(None)).group_by(*call).subquery()
        expressions["thread"] = call_threads.c.thread
        source_rows = source.table.outerjoin(call_threads, is_launched_by(source.table, call_threads))
    if kind is EventKind.NVTX and not {"bytes", "communicator"}.isdisjoint(fields):
        payload, ranges = tables.nccl_calls, source.table
        is_same = sa.and_(payload.c.report == ranges.c.report, payload.c.row == ranges.c.row)
        source_rows = ranges.outerjoin(payload, is_same)
    missing = {field: sa.cast(sa.null(), sa.Text if field in _TEXTS else sa.BigInteger) for field in fields}
    columns = [(missing | expressions)[field].label(field) for field in fields]
    return sa.select(*columns).select_from(source_rows).where(*conditions)


def _expressions(kind: EventKind, table: sa.Table, names: Names) -> dict[str, Expression]:
    columns = table.c
    start = columns.start + columns.clock_offset
    expressions: dict[str, Expression] = {column.name: column for column in columns}
    name: Expression = KIND_TABLES[kind].name
    if kind in (EventKind.KERNEL, EventKind.NCCL):
        name = name_of(table, names)
        for shape in ("grid", "block"):
            x, y, z = (sa.cast(columns[f"{shape}_{axis}"], sa.Text) for axis in "xyz")
            expressions[shape] = x + "x" + y + "x" + z
    elif kind in (EventKind.NVTX, EventKind.MARK):
        name = columns.name
        expressions["domain"] = sa.func.coalesce(columns.domain, "")
    elif kind is EventKind.MPI:
        expressions["group"] = columns.call_type
    elif kind is EventKind.OPENACC:
        expressions["group"] = columns.kind
    expressions |= {
        "kind": sa.literal(kind.value, sa.Text),
        "kind_order": sa.literal(kind.order, sa.BigInteger),
        "start": start,
        "end": _end(table, start),
        "name": sa.func.coalesce(name, ""),
    }
    if kind is EventKind.NVTX:
        is_loose = sa.or_(columns.event_type.in_(START_END_TYPES), columns.end_thread != columns.thread)
        expressions["is_loose"] = sa.case((is_loose, 1), else_=0)
        expressions["bytes"] = tables.nccl_calls.c.message_size
        expressions["communicator"] = tables.nccl_calls.c.communicator
    return expressions


def _end(table: sa.Table, start: Expression) -> Expression:
    if "end" not in table.c:
        return start
    return sa.func.greatest(start, table.c.end + table.c.clock_offset, type_=sa.BigInteger)


def with_calls(rows: sa.Subquery, selection: Selection, extra: Sequence[Condition] = ()) -> AnyQuery:
    """Add ``call_start`` (job time, ns) and ``call_thread`` of the launching API call to rows of GPU work.

    Both are missing if the selection has no such call. ``extra`` are conditions on the calls to read.
    """
    columns = tables.api_calls.c
    key = (columns.report, columns.process, columns.correlation_id)
    start = columns.start + columns.clock_offset
    calls = (
        sa.select(
            *key, sa.func.min(start).label("call_start"), sa.func.arg_min(columns.thread, start).label("call_thread")
        )
        .where(*where(tables.api_calls, selection, columns.name), columns.correlation_id.is_not(None), *extra)
        .group_by(*key)
        .subquery()
    )
    launched = rows.outerjoin(calls, is_launched_by(rows, calls))
    return sa.select(*rows.c, calls.c.call_start, calls.c.call_thread).select_from(launched)


BAND = 400_000  # events


def bands(job: OpenJob, selection: Selection, kinds: Sequence[EventKind], limit: int = BAND) -> tuple[ByTable, ...]:
    """Return conditions, for any event table, that select consecutive bands of events by start.

    A band has at most ``limit`` events, unless more start at once. Returns no bands if nothing is selected.
    """
    if not kinds:
        return ()
    events = EventList.build(job.session, selection, job.ranks, kinds)
    index = events.index
    conditions, edge, last = [], 0, index.bins
    while edge < last and len(events):
        next_edge = int(np.searchsorted(index.before, index.before[edge] + limit, "right")) - 1
        next_edge = min(max(next_edge, edge + 1), last)
        conditions.append(index.within(edge, next_edge))
        edge = next_edge
    return tuple(conditions)
