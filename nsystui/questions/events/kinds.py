"""The kinds of events: their names, and their tables as rows of a common shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa

from nsystui.base.errors import members_of
from nsystui.base.selection import Selection
from nsystui.base.types import Condition, Expression, Query
from nsystui.questions.queries.conditions import job_start, label, where
from nsystui.questions.queries.tasks import RankedTask, rank_of
from nsystui.store import tables


class EventKind(Enum):
    """The kind of an event; the value is its name everywhere: on screen, in CSV, on the command line."""

    API = "api"
    KERNEL = "kernel"
    NCCL = "nccl"
    MEMORY = "memory"
    GRAPH = "graph"
    HOST_FUNCTION = "hostfunc"
    SYNC = "sync"
    NVTX = "nvtx"
    MARK = "mark"
    MPI = "mpi"
    UCX = "ucx"
    OPENACC = "openacc"
    OPENMP = "openmp"
    OVERHEAD = "overhead"
    OS = "os"

    @property
    def on_stream(self) -> bool:
        """Whether it is work of a stream, which an API call may have launched."""
        return self in STREAM_KINDS

    @property
    def order(self) -> int:
        """Its position among the kinds, which sorts events with the same start."""
        return list(EventKind).index(self)


GPU_KINDS = (EventKind.KERNEL, EventKind.NCCL, EventKind.MEMORY, EventKind.GRAPH)
STREAM_KINDS = (*GPU_KINDS, EventKind.HOST_FUNCTION)
"""Also the functions on the CPU that streams run."""

RUNTIMES = {
    EventKind.MPI: "MPI", EventKind.UCX: "UCX", EventKind.OPENACC: "OpenACC", EventKind.OPENMP: "OpenMP",
    EventKind.OVERHEAD: "CUDA overhead",
}  # fmt: skip
"""The kinds for libraries and runtimes on CPU threads, and their names."""

DEFAULT_KINDS = (EventKind.API, *STREAM_KINDS, EventKind.SYNC, EventKind.NVTX, EventKind.MARK, *RUNTIMES)
"""OS runtime calls are many and seldom relevant: shown on request, or with little else."""


def kinds_of(text: str) -> tuple[EventKind, ...]:
    """Parse ``kernel,nccl``. Raises UsageError for a word that is not a kind."""
    return members_of(text, EventKind, "kind")


@dataclass(frozen=True)
class KindTable:
    """A kind's table, name expression, and the condition that excludes other kinds."""

    table: sa.Table
    name: Expression
    condition: Condition | None = None


KIND_TABLES: dict[EventKind, KindTable] = {
    EventKind.API: KindTable(tables.api_calls, tables.api_calls.c.name),
    EventKind.KERNEL: KindTable(tables.kernels, tables.kernels.c.name, tables.kernels.c.is_nccl == 0),
    EventKind.NCCL: KindTable(tables.kernels, tables.kernels.c.name, tables.kernels.c.is_nccl == 1),
    EventKind.MEMORY: KindTable(tables.memory_ops, tables.memory_ops.c.operation),
    EventKind.GRAPH: KindTable(
        tables.graph_launches, sa.literal("CUDA graph ", sa.Text) + sa.cast(tables.graph_launches.c.graph_id, sa.Text)
    ),
    EventKind.HOST_FUNCTION: KindTable(tables.host_functions, sa.literal("host function", sa.Text)),
    EventKind.SYNC: KindTable(tables.syncs, tables.syncs.c.sync_type),
    EventKind.NVTX: KindTable(tables.nvtx_ranges, label(tables.nvtx_ranges)),
    EventKind.MARK: KindTable(tables.nvtx_marks, label(tables.nvtx_marks)),
    EventKind.MPI: KindTable(tables.mpi_calls, tables.mpi_calls.c.name),
    EventKind.UCX: KindTable(tables.ucx_calls, tables.ucx_calls.c.name),
    EventKind.OPENACC: KindTable(tables.openacc_events, tables.openacc_events.c.name),
    EventKind.OPENMP: KindTable(tables.openmp_events, tables.openmp_events.c.name),
    EventKind.OVERHEAD: KindTable(tables.cuda_overhead, tables.cuda_overhead.c.name),
    EventKind.OS: KindTable(tables.os_calls, tables.os_calls.c.name),
}


_NO_STREAM = 0xFFFFFFFF
"""The stream of a synchronisation that waits for no single stream."""


def _or_null(table: sa.Table, name: str) -> Expression:
    column: Expression = table.c[name] if name in table.c else sa.cast(sa.null(), sa.BigInteger)
    return column.label(name)


def events_query(
    kind: EventKind, selection: Selection, ranks: Sequence[RankedTask], extra: Sequence[Condition] = ()
) -> Query:
    """Select events of a kind in the common shape; times in job time, ns."""
    source = KIND_TABLES[kind]
    table = source.table
    is_sync = table is tables.syncs
    end = table.c.end if "end" in table.c else table.c.start
    conditions = [*where(table, selection, source.name), *extra]
    if source.condition is not None:
        conditions.append(source.condition)
    return sa.select(
        job_start(table).label("start"),
        (end - table.c.start).label("duration"),
        sa.literal(kind.value, sa.Text).label("kind"),
        sa.literal(kind.order, sa.BigInteger).label("kind_order"),
        source.name.label("name"),
        rank_of(table, ranks).label("rank"),
        table.c.report,
        table.c.process,
        _or_null(table, "thread"),
        _or_null(table, "device"),
        sa.func.nullif(table.c.stream, _NO_STREAM).label("stream") if is_sync else _or_null(table, "stream"),
        _or_null(table, "correlation_id"),
        table.c.row,
    ).where(*conditions)
