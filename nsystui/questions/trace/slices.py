"""The events of a trace for another tool: which kinds, in one shape for all, read band by band of time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection
from nsystui.questions.events.kinds import GPU_KINDS, KIND_TABLES, RUNTIMES, EventKind, kinds_of
from nsystui.questions.events.listing import EventList
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names, name_of
from nsystui.questions.nvtx.loading import START_END_TYPES
from nsystui.questions.queries.conditions import Condition, is_launched_by, where
from nsystui.questions.queries.time_index import ByTable
from nsystui.store import tables
from nsystui.store.session import Session

ON_CPU = (EventKind.API, EventKind.SYNC, EventKind.NVTX, *RUNTIMES, EventKind.OS)
TRACED = (*GPU_KINDS, EventKind.API, EventKind.NVTX, EventKind.MARK, *RUNTIMES)
"""The kinds in a trace by default: OS runtime calls are many and seldom the question, and a synchronisation is what an
API call waits for."""

METRICS = "metrics"


@dataclass(frozen=True)
class Contents:
    """The contents of a trace: kinds of events, and samples of GPU metrics."""

    kinds: tuple[EventKind, ...] = TRACED
    metrics: bool = True

    @classmethod
    def of(cls, text: str) -> Contents:
        """``kernel,nccl,metrics`` as contents, `TRACED` and metrics for an empty text; raises UsageError."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not words:
            return cls()
        return cls(kinds_of(",".join(word for word in words if word != METRICS)), METRICS in words)

    def there(self, session: Session) -> Contents:
        """The contents that the open reports have."""
        metrics = self.metrics and bool(session.count(tables.gpu_metrics))
        return Contents(tuple(kind for kind in self.kinds if session.count(KIND_TABLES[kind].table)), metrics)

    def among(self, kinds: Collection[EventKind]) -> tuple[EventKind, ...]:
        """The contents that are of ``kinds``."""
        return tuple(kind for kind in self.kinds if kind in kinds)


Expression = sa.ColumnElement[Any]
Query = sa.Select[Any] | sa.CompoundSelect[Any]

_TEXTS = frozenset({"kind", "group", "name", "domain", "function", "communicator", "grid", "block"})
KERNEL_FACTS = ("grid", "block", "registers_per_thread")
"""The fields that say how a kernel was launched."""


def slices(
    session: Session,
    selection: Selection,
    kinds: Sequence[EventKind],
    fields: Sequence[str],
    names: Names = Names.SHORT,
    extra: ByTable = lambda table: [],
) -> Query:
    """The selected events of ``kinds``, with these fields; what a kind has not is NULL.

    Fields: ``kind``, ``kind_order``, ``report``, ``row``, ``start`` and ``end`` (job time in ns; an event that
    never ended has no length), ``name``, ``process``, ``thread``, ``device``, ``stream``,
    ``correlation_id``, ``group`` (``p2p``, ``collective``, ``wait`` or ``other`` of MPI; of OpenACC the end of its
    table's name), ``domain`` (of NVTX; empty for the default one), ``is_loose`` (1 for an NVTX range that need not
    nest: a start/end range, or one that ended on another thread), ``bytes`` (of a memory operation, or the message of
    an NCCL call), ``communicator``, ``graph_node_id``; of kernels ``grid`` and ``block`` (``8x1x1``), and
    ``registers_per_thread``; any other column of the kind's own table. At least one kind. ``extra`` narrows the
    selection further.
    """
    parts = [_one_kind(kind, selection, fields, names).where(*extra(KIND_TABLES[kind].table)) for kind in kinds]
    return sa.union_all(*parts) if len(parts) > 1 else parts[0]


def _one_kind(kind: EventKind, selection: Selection, fields: Sequence[str], names: Names) -> sa.Select[Any]:
    source = KIND_TABLES[kind]
    known = _expressions(kind, source.table, names)
    conditions: list[Condition] = where(source.table, selection, source.name)
    if source.condition is not None:
        conditions.append(source.condition)
    rows_of: sa.FromClause = source.table
    if kind is EventKind.SYNC and "thread" in fields:
        # The thread of a synchronisation is not recorded, but its call is.
        calls = tables.api_calls.c
        call = (calls.report, calls.process, calls.correlation_id)
        threads = sa.select(*call, sa.func.min(calls.thread).label("thread"))
        waiting = threads.where(calls.correlation_id.is_not(None)).group_by(*call).subquery()
        known["thread"] = waiting.c.thread
        rows_of = source.table.outerjoin(waiting, is_launched_by(source.table, waiting))
    if kind is EventKind.NVTX and not {"bytes", "communicator"}.isdisjoint(fields):
        payload, ranges = tables.nccl_calls, source.table
        is_same = sa.and_(payload.c.report == ranges.c.report, payload.c.row == ranges.c.row)
        rows_of = ranges.outerjoin(payload, is_same)
    missing = {field: sa.cast(sa.null(), sa.Text if field in _TEXTS else sa.BigInteger) for field in fields}
    columns = [(missing | known)[field].label(field) for field in fields]
    return sa.select(*columns).select_from(rows_of).where(*conditions)


def _expressions(kind: EventKind, table: sa.Table, names: Names) -> dict[str, Expression]:
    columns = table.c
    start = columns.start + columns.clock_offset
    known: dict[str, Expression] = {column.name: column for column in columns}
    name: Expression = KIND_TABLES[kind].name
    if kind in (EventKind.KERNEL, EventKind.NCCL):
        name = name_of(table, names)
        for shape in ("grid", "block"):
            x, y, z = (sa.cast(columns[f"{shape}_{axis}"], sa.Text) for axis in "xyz")
            known[shape] = x + "x" + y + "x" + z
    elif kind in (EventKind.NVTX, EventKind.MARK):
        name = columns.name
        known["domain"] = sa.func.coalesce(columns.domain, "")
    elif kind is EventKind.MPI:
        known["group"] = columns.call_type
    elif kind is EventKind.OPENACC:
        known["group"] = columns.kind
    known |= {
        "kind": sa.literal(kind.value, sa.Text),
        "kind_order": sa.literal(kind.order, sa.BigInteger),
        "start": start,
        "end": _end(table, start),
        "name": sa.func.coalesce(name, ""),
    }
    if kind is EventKind.NVTX:
        is_loose = sa.or_(columns.event_type.in_(START_END_TYPES), columns.end_thread != columns.thread)
        known["is_loose"] = sa.case((is_loose, 1), else_=0)
        known["bytes"] = tables.nccl_calls.c.message_size
        known["communicator"] = tables.nccl_calls.c.communicator
    return known


def _end(table: sa.Table, start: Expression) -> Expression:
    """Return the end of each event, at least its start; an event without an end has no length."""
    if "end" not in table.c:
        return start
    return sa.func.greatest(start, table.c.end + table.c.clock_offset, type_=sa.BigInteger)


def with_calls(rows: sa.Subquery, selection: Selection, extra: Sequence[Condition] = ()) -> sa.Select[Any]:
    """The rows of GPU work with ``call_start`` (job time, ns) and ``call_thread`` of the API call that launched each.

    Both are missing where the selection has no such call. ``extra`` are conditions on the calls that are looked at.
    """
    columns = tables.api_calls.c
    place = (columns.report, columns.process, columns.correlation_id)
    start = columns.start + columns.clock_offset
    calls = (
        sa.select(
            *place, sa.func.min(start).label("call_start"), sa.func.arg_min(columns.thread, start).label("call_thread")
        )
        .where(*where(tables.api_calls, selection, columns.name), columns.correlation_id.is_not(None), *extra)
        .group_by(*place)
        .subquery()
    )
    launched = rows.outerjoin(calls, is_launched_by(rows, calls))
    return sa.select(*rows.c, calls.c.call_start, calls.c.call_thread).select_from(launched)


BAND = 400_000  # events


def bands(job: OpenJob, selection: Selection, kinds: Sequence[EventKind], most: int = BAND) -> tuple[ByTable, ...]:
    """Conditions, for any event table, that choose the events of one band after the other by their starts.

    A band has ``most`` events, or a few more where many start at once; none where nothing is selected.
    """
    if not kinds:
        return ()
    events = EventList.build(job.session, selection, job.ranks, kinds)
    index = events.index
    found, edge, last = [], 0, index.bins
    while edge < last and len(events):
        further = int(np.searchsorted(index.before, index.before[edge] + most, "right")) - 1
        further = min(max(further, edge + 1), last)
        found.append(index.within(edge, further))
        edge = further
    return tuple(found)
