"""The single CUDA calls and GPU operations, as ``nsys stats`` has them (``cuda_*_trace``,
docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import Answer
from nsystui.base.columns import DURATION, NAME, START, STREAM, Column, Unit
from nsystui.base.selection import Selection
from nsystui.base.units import MEGABYTE
from nsystui.exports.identifiers import pid_column, tid_column
from nsystui.questions.kernels import name_of
from nsystui.questions.missing import missing_note
from nsystui.questions.paged import PagedAnswer
from nsystui.questions.stats.cuda_launch_ranges import LaunchRanges
from nsystui.questions.stats.kernel_names import KERNEL_PLACE, RangeNamed
from nsystui.questions.stats.kernel_notes import notes
from nsystui.questions.stats.report import Ask, Options
from nsystui.questions.where import duration, job_start, where
from nsystui.store import tables
from nsystui.store.session import Session

_KERNELS, _MEMORY_OPS = tables.kernels, tables.memory_ops
_NS_IN_A_SECOND = 1_000_000_000

_API_COLUMNS = (
    START,
    DURATION,
    NAME,
    Column("result", header="Result", label="result", unit=Unit.NUMBER, importance=2),
    Column("correlation_id", header="CorrID", label="corr", unit=Unit.NUMBER, importance=2),
    Column("pid", header="Pid", label="pid", unit=Unit.NUMBER, importance=1),
    Column("tid", header="Tid", label="tid", unit=Unit.NUMBER, importance=1),
    Column("priority", header="T-Pri", label="prio", unit=Unit.NUMBER, importance=4),
    Column("thread_name", header="Thread Name", label="thread", importance=3),
)
_GPU_COLUMNS = (
    START,
    DURATION,
    Column("correlation_id", header="CorrId", label="corr", unit=Unit.NUMBER, importance=3),
    Column("grid_x", header="GrdX", label="grid x", unit=Unit.NUMBER, importance=5),
    Column("grid_y", header="GrdY", label="grid y", unit=Unit.NUMBER, importance=5),
    Column("grid_z", header="GrdZ", label="grid z", unit=Unit.NUMBER, importance=5),
    Column("block_x", header="BlkX", label="block x", unit=Unit.NUMBER, importance=5),
    Column("block_y", header="BlkY", label="block y", unit=Unit.NUMBER, importance=5),
    Column("block_z", header="BlkZ", label="block z", unit=Unit.NUMBER, importance=5),
    Column("registers", header="Reg/Trd", label="regs", unit=Unit.NUMBER, importance=6),
    Column("static_memory", header="StcSMem (MB)", label="static MB", unit=Unit.MEGABYTES, decimals=3, importance=6),
    Column("dynamic_memory", header="DymSMem (MB)", label="dynamic MB", unit=Unit.MEGABYTES, decimals=3, importance=6),
    Column("bytes", header="Bytes (MB)", label="MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
    Column("throughput", header="Throughput (MB/s)", label="MB/s", unit=Unit.MEGABYTES, decimals=3, importance=2),
    Column("source", header="SrcMemKd", label="from", importance=4),
    Column("target", header="DstMemKd", label="to", importance=4),
    Column("device", header="Device", label="device", importance=1),
    Column("context", header="Ctx", label="ctx", unit=Unit.NUMBER, importance=4),
    Column("green_context", header="GreenCtx", label="green", unit=Unit.NUMBER, importance=6),
    STREAM.with_importance(1),
    NAME,
)


def _calls_query(selection: Selection) -> sa.Select[Any]:
    parts = []
    for table in (tables.api_calls, tables.api_backtraces):
        columns = table.c
        part = sa.select(
            job_start(table).label("start"),
            duration(table).label("duration"),
            columns.name.label("name"),
            columns.return_value.label("result"),
            columns.correlation_id,
            pid_column(columns.process).label("pid"),
            tid_column(columns.thread).label("tid"),
            columns.report,
            columns.row,
            columns.thread,
        )
        parts.append(part.where(*where(table, selection, columns.name)))
    calls, threads = sa.union_all(*parts).subquery(), _threads()
    found = sa.and_(threads.c.report == calls.c.report, threads.c.thread == calls.c.thread)
    return sa.select(*calls.c, threads.c.priority, threads.c.thread_name).select_from(calls.outerjoin(threads, found))


def _threads() -> sa.Subquery:
    """One row for a thread, so that the join never doubles a call."""
    columns = tables.threads.c
    described = (sa.func.min(columns.priority).label("priority"), sa.func.min(columns.name).label("thread_name"))
    return sa.select(columns.report, columns.thread, *described).group_by(columns.report, columns.thread).subquery()


def _api_trace(session: Session, selection: Selection, _: Options) -> PagedAnswer:
    """``cuda_api_trace``: every row of calls, the second ones of ``--cudabacktrace`` too; start in job time."""
    query, everything = _calls_query(selection), _calls_query(Selection())
    note = missing_note(session, tables.api_calls)
    return PagedAnswer.of(
        session,
        "cuda-api-trace",
        _API_COLUMNS,
        query,
        _count(query),
        _count(everything),
        ("start", False),
        ("report", "row"),
        (note,) if note else (),
    )


def _count(query: sa.Select[Any]) -> sa.Select[Any]:
    return sa.select(sa.func.count()).select_from(query.subquery())


def _gpu_names() -> sa.Subquery:
    """The GPUs by the machine's own numbers: the one that nsys takes has the number that CUDA gave the device."""
    columns = tables.devices.c
    named = sa.func.min(columns.name).label("gpu_name")
    return sa.select(columns.report, columns.gpu, named).group_by(columns.report, columns.gpu).subquery()


def _no_number(label: str) -> sa.Label[Any]:
    return sa.cast(sa.null(), sa.BigInteger).label(label)


def _megabytes(size: sa.ColumnElement[Any], label: str) -> sa.Label[Any]:
    return (size / MEGABYTE).label(label)


def _throughput(table: sa.Table) -> sa.ColumnElement[Any]:
    """Bytes per second as nsys has them: the inverse of the duration is a whole number. Missing without a duration."""
    per_second = sa.literal(_NS_IN_A_SECOND).op("//")(sa.func.nullif(duration(table), 0))
    return table.c.bytes * sa.cast(per_second, sa.Double)


_GRID = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def _kernel_rows(selection: Selection, options: Options) -> sa.Select[Any]:
    columns, name = _KERNELS.c, name_of(_KERNELS, options.names)
    rows = sa.select(
        sa.literal(0).label("kind"),
        *_place(_KERNELS),
        *(columns[key] for key in _GRID),
        columns.registers_per_thread.label("registers"),
        _megabytes(columns.static_shared_memory, "static_memory"),
        _megabytes(columns.dynamic_shared_memory, "dynamic_memory"),
        _no_number("bytes"),
        _no_number("throughput"),
        sa.null().label("source"),
        sa.null().label("target"),
        name.label("name"),
        columns.report.label("kernel_report"),
        columns.row.label("kernel_row"),
    )
    return rows.where(*where(_KERNELS, selection, name))


def _memory_rows(selection: Selection) -> sa.Select[Any]:
    columns = _MEMORY_OPS.c
    is_memset = columns.is_memset == 1
    rows = sa.select(
        sa.literal(1).label("kind"),
        *_place(_MEMORY_OPS),
        *(_no_number(key) for key in (*_GRID, "registers", "static_memory", "dynamic_memory")),
        _megabytes(columns.bytes, "bytes"),
        _megabytes(_throughput(_MEMORY_OPS), "throughput"),
        # nsys has the memory of a memset where a copy comes from.
        sa.case((is_memset, columns.target_memory), else_=columns.source_memory).label("source"),
        sa.case((is_memset, sa.null()), else_=columns.target_memory).label("target"),
        columns.operation.label("name"),
        _no_number("kernel_report"),
        _no_number("kernel_row"),
    )
    return rows.where(*where(_MEMORY_OPS, selection, columns.operation))


def _place(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    columns = table.c
    return [
        columns.report,
        columns.row,
        job_start(table).label("start"),
        duration(table).label("duration"),
        columns.correlation_id,
        columns.device.label("device_number"),
        columns.context,
        sa.func.nullif(columns.green_context, 0).label("green_context"),
        columns.stream,
    ]


def _gpu_query(selection: Selection, options: Options) -> sa.Select[Any]:
    rows = sa.union_all(_kernel_rows(selection, options), _memory_rows(selection)).subquery()
    gpus = _gpu_names()
    joined = rows.outerjoin(gpus, sa.and_(gpus.c.report == rows.c.report, gpus.c.gpu == rows.c.device_number))
    number = sa.cast(rows.c.device_number, sa.Text)
    device = sa.func.concat(gpus.c.gpu_name, " (", number, ")")
    return sa.select(*rows.c, device.label("device")).select_from(joined)


def _gpu_trace(session: Session, selection: Selection, options: Options) -> Answer:
    """``cuda_gpu_trace``: kernels and memory operations; start in job time. Whole graph launches are not in it."""
    query, everything = _gpu_query(selection, options), _gpu_query(Selection(), options)
    whole = PagedAnswer.of(
        session,
        "cuda-gpu-trace",
        (*_GPU_COLUMNS, *KERNEL_PLACE) if options.nvtx_name else _GPU_COLUMNS,
        query,
        _count(query),
        _count(everything),
        ("start", False),
        ("report", "kind", "row"),
        notes(session, options, _MEMORY_OPS),
    )
    return RangeNamed(whole, LaunchRanges.find(session, selection)) if options.nvtx_name else whole


ASK: dict[str, Ask] = {
    "cuda_api_trace": _api_trace,
    "cuda_gpu_trace": _gpu_trace,
}
