"""Summaries and instances of memory operations, and of API, OS runtime, MPI and library calls.

The tables have the columns, order and values of nsys's ``cuda_gpu_mem_time_sum``, ``cuda_gpu_mem_size_sum`` (but sizes
in bytes), ``cuda_api_sum`` and ``osrt_sum``; calls that ``--cudabacktrace`` wrote twice count once.

`MemoryCalls` classifies memory operations by their calls, like nsys's rules (docs/numbers.md#expert-rules), but matches
operation and call by (report, process, correlation id).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import sqlalchemy as sa

from nsystui.base.answer import (
    BYTES,
    COUNT,
    DURATION,
    PROCESS_ID,
    RANK,
    REPORT_ID,
    ROW_ID,
    START,
    Column,
    Row,
    TableAnswer,
    Unit,
)
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted
from nsystui.base.types import Condition, Expression
from nsystui.exports.metadata import tid_column
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.queries import statistics
from nsystui.questions.queries.conditions import duration, is_launched_by, job_end, job_start, where
from nsystui.questions.queries.data_notes import missing_notes, mpi_notes, unrecorded_notes
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.mpi import has_mpi, mpi_rows
from nsystui.questions.queries.process_rows import times_by_task
from nsystui.questions.queries.statistics import ValueRows
from nsystui.questions.queries.tasks import RankedTask, rank_of
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.queries.paged import PagedAnswer


@dataclass(frozen=True)
class Work:
    """An activity to summarise by name: its table, and nsys's headings for count and name."""

    name: str
    table: sa.Table
    label: Expression
    count_header: str
    name_header: str


MEMORY = Work("memory", tables.memory_ops, tables.memory_ops.c.operation, "Count", "Operation")
API = Work("api", tables.api_calls, tables.api_calls.c.name, "Num Calls", "Name")
OS = Work("os", tables.os_calls, tables.os_calls.c.name, "Num Calls", "Name")
MPI = Work("mpi", tables.mpi_calls, tables.mpi_calls.c.name, "Num Calls", "Name")
LIBRARIES = Work("libraries", tables.library_calls, tables.library_calls.c.name, "Num Calls", "Name")
OVERHEAD = Work("overhead", tables.profiler_overhead, tables.profiler_overhead.c.name, "Count", "Activity")
WORKS = {work.name: work for work in (MEMORY, API, OS, MPI)}
"""The activities that have their own view, by name."""


def work_summary(session: Session, selection: Selection, work: Work) -> TableAnswer:
    """Summarise an activity by name: share of the time, statistics of durations, ns."""
    columns = (*statistics.duration_columns(work.count_header), Column("name", header=work.name_header, label="name"))

    def ask() -> list[Row]:
        return statistics.summary_rows(session, work_rows(session, selection, work), columns)

    rows = of_all_reports(session, selection, work.table, work.name, ask)
    if selection.is_everything:
        total = sum(name is not None for *_, name in rows)
    else:
        total = statistics.number_of_values(session, rows_of(session, work)[1])
    if work is MPI:
        return TableAnswer(work.name, columns, rows, total, mpi_notes(session))
    notes = missing_notes(session, work.table)
    notes += tuple(unrecorded_notes(session, only=[work.table.name] * (work is MEMORY)))
    if work is API and (second_rows := session.count(tables.api_backtraces)):
        notes += (f"calls count once; nsys stats also counts {counted(second_rows, 'second row')} of --cudabacktrace",)
    return TableAnswer(work.name, columns, rows, total, notes)


def work_rows(session: Session, selection: Selection, work: Work) -> ValueRows:
    """Return the rows of an activity by name; equal totals keep the order of rows, as in nsys."""
    table, label = rows_of(session, work)
    return ValueRows(table, duration(table), [label.label("name")], where(table, selection, label), table.c.row)


def rows_of(session: Session, work: Work) -> tuple[sa.FromClause, Expression]:
    """Return an activity's rows and their names' expression; MPI calls may be NVTX ranges."""
    if work is not MPI:
        return work.table, work.label
    rows = mpi_rows(session)
    return rows, rows.c.name


def has_rows(session: Session, work: Work) -> bool:
    """Return whether the session has rows of an activity."""
    return has_mpi(session) if work is MPI else session.count(work.table) > 0


def profiler_overhead(session: Session, selection: Selection) -> Mapping[Task, Intervals]:
    """Return the union of the overhead that nsys recorded in each selected process; job time."""
    table = OVERHEAD.table
    if not session.count(table):
        return {}
    query = sa.select(table.c.report, table.c.process, job_start(table).label("start"), job_end(table).label("end"))
    return times_by_task(session, query.where(*overhead_conditions(selection), table.c.start.is_not(None)))


def overhead_conditions(selection: Selection) -> list[Condition]:
    """Return the conditions for the selected processes and window, ignoring the name filter."""
    table, unnamed = OVERHEAD.table, Selection(selection.window, selection.tasks)
    return [*where(table, unnamed), table.c.end.is_not(None), table.c.process.is_not(None)]


SIZE_COLUMNS = (
    Column("total", header="Total (B)", label="total", unit=Unit.BYTES),
    COUNT,
    Column("avg", header="Avg (B)", label="avg", unit=Unit.BYTES, decimals=1, importance=1),
    Column("median", header="Med (B)", label="median", unit=Unit.BYTES, decimals=1, importance=2),
    Column("min", header="Min (B)", label="min", unit=Unit.BYTES, importance=3),
    Column("max", header="Max (B)", label="max", unit=Unit.BYTES, importance=2),
    Column("stddev", header="StdDev (B)", label="stddev", unit=Unit.BYTES, decimals=1, importance=4),
    Column("name", header="Operation", label="operation"),
)


def size_rows(selection: Selection) -> ValueRows:
    """Return the bytes of the selected memory operations by kind."""
    table = tables.memory_ops
    name = table.c.operation
    return ValueRows(table, table.c.bytes, [name.label("name")], where(table, selection, name))


def memory_sizes(session: Session, selection: Selection) -> TableAnswer:
    """Summarise the bytes by kind of memory operation: the rows of nsys's ``cuda_gpu_mem_size_sum``."""
    rows = statistics.summary_rows(session, size_rows(selection), SIZE_COLUMNS)
    notes = (*missing_notes(session, tables.memory_ops), *unrecorded_notes(session, only=["memory_ops"]))
    return TableAnswer("memory-sizes", SIZE_COLUMNS, rows, len(rows), notes)


INSTANCE_COLUMNS = (
    START, DURATION, RANK.with_importance(1), Column("place", header="Where", label="where", importance=2),
    BYTES.with_importance(1), Column("detail", header="Detail", label="detail", importance=3), REPORT_ID, PROCESS_ID,
    ROW_ID,
)  # fmt: skip


def work_instances(
    session: Session, selection: Selection, work: Work, name: str, ranks: Sequence[RankedTask] = ()
) -> PagedAnswer:
    """List the operations or calls called ``name``, by page; start in job time, ns."""
    from nsystui.questions.queries.paged import PagedAnswer

    table, label = rows_of(session, work)
    if "device" in table.c:
        location = sa.func.concat("d", sa.cast(table.c.device, sa.Text), " s", sa.cast(table.c.stream, sa.Text))
    else:
        location = sa.func.concat("t", sa.cast(tid_column(table.c.thread), sa.Text))
    sizes = [table.c[key] for key in ("bytes", "send_bytes") if key in table.c]
    size = sizes[0] if sizes else sa.cast(sa.null(), sa.BigInteger)
    query = sa.select(
        job_start(table).label("start"), duration(table).label("duration"), rank_of(table, ranks).label("rank"),
        location.label("place"), size.label("bytes"), _detail(table).label("detail"), table.c.report, table.c.process,
        table.c.row,
    ).where(*where(table, selection.with_name(None)), label == name)  # fmt: skip
    everything = sa.select(table.c.row).where(label == name)
    answer = PagedAnswer.of(session, f"{work.name}-instances", INSTANCE_COLUMNS, query, everything)
    return answer.with_time_index(table) if isinstance(table, sa.Table) else answer


def _detail(table: sa.FromClause) -> Expression:
    if table is tables.memory_ops:
        return sa.func.concat_ws(" → ", table.c.source_memory, table.c.target_memory)
    if "remote_rank" in table.c:
        peer = sa.func.coalesce(table.c.remote_rank, table.c.root_rank)
        return sa.case((peer.is_(None), sa.null()), else_=sa.func.concat("peer ", sa.cast(peer, sa.Text)))
    if "library" in table.c:
        return table.c.library
    if "return_value" in table.c:
        return sa.func.concat("returned ", sa.cast(table.c.return_value, sa.Text))
    return sa.cast(sa.null(), sa.Text)


_HOST_TO_DEVICE = 1
_STAGED = 64_000
"""Bytes up to which a synchronous host-to-device copy's call returns before the copy is done."""


class MemoryCalls(Enum):
    """Classes of memory operations that can block the CPU."""

    SYNCHRONOUS_COPIES = "synchronous copies"
    PAGEABLE_COPIES = "pageable copies"
    SYNCHRONOUS_MEMSETS = "synchronous memsets"


def with_calls() -> sa.Join:
    """Join the memory operations with the calls that launched them."""
    memory, calls = tables.memory_ops, tables.api_calls
    return memory.join(calls, is_launched_by(memory, calls))


def are(kind: MemoryCalls) -> list[Condition]:
    """Return the conditions for rows of ``kind`` in `with_calls`."""
    memory, name = tables.memory_ops.c, tables.api_calls.c.name
    is_async = sa.func.contains(sa.func.lower(name), "async", type_=sa.Boolean)
    is_set = sa.cast(memory.is_memset, sa.Boolean)
    if kind is MemoryCalls.SYNCHRONOUS_MEMSETS:
        return [
            is_set,
            name.startswith("cudaMemset"),
            sa.not_(is_async),
            memory.target_memory.in_(["Pinned", "Managed"]),
        ]
    is_copy = [sa.not_(is_set), name.startswith("cudaMemcpy")]
    if kind is MemoryCalls.PAGEABLE_COPIES:
        return [*is_copy, is_async, sa.or_(memory.source_memory == "Pageable", memory.target_memory == "Pageable")]
    is_staged = sa.and_(memory.copy_kind == _HOST_TO_DEVICE, memory.bytes <= _STAGED)
    is_within_device = sa.and_(memory.source_device.is_not(None), memory.source_device == memory.target_device)
    return [
        *is_copy,
        sa.not_(is_async),
        sa.not_(sa.func.coalesce(is_staged, sa.false())),
        sa.not_(sa.func.coalesce(is_within_device, sa.false())),
    ]
