"""Single CUDA calls, GPU operations and kernel executions, as in ``nsys stats`` (``cuda_*_trace``,
``cuda_kern_exec_*``, docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from nsystui.base.answer import COUNT, DURATION, NAME, PID, START, STREAM, TID, Answer, Column, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.types import Condition, Expression, Query
from nsystui.base.units import MEGABYTE
from nsystui.exports.metadata import pid_column, tid_column
from nsystui.questions.kernels.summary import block_of, grid_of, name_of
from nsystui.questions.nvtx.loading import calls_as_nsys
from nsystui.questions.queries import statistics
from nsystui.questions.queries.conditions import duration, is_launched_by, job_start, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.stats.cuda_sums import KERNEL_PLACE, LaunchRanges, notes, range_named, range_named_frame
from nsystui.questions.stats.report import AskReport, ReportOptions
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

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
    *(
        Column(f"{key}_{axis}", header=f"{title}{axis.upper()}", label=f"{key} {axis}", unit=Unit.NUMBER, importance=5)
        for key, title in (("grid", "Grd"), ("block", "Blk"))
        for axis in "xyz"
    ),
    Column("registers", header="Reg/Trd", label="regs", unit=Unit.NUMBER, importance=6),
    Column("static_memory", header="StcSMem (MB)", label="static MB", unit=Unit.MEGABYTES, decimals=3, importance=6),
    Column("dynamic_memory", header="DymSMem (MB)", label="dynamic MB", unit=Unit.MEGABYTES, decimals=3, importance=6),
    Column("size", header="Bytes (MB)", label="MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
    Column("throughput", header="Throughput (MB/s)", label="MB/s", unit=Unit.MEGABYTE_RATE, decimals=3, importance=2),
    Column("source", header="SrcMemKd", label="from", importance=4),
    Column("target", header="DstMemKd", label="to", importance=4),
    Column("device", header="Device", label="device", importance=1),
    Column("context", header="Ctx", label="ctx", unit=Unit.NUMBER, importance=4),
    Column("green_context", header="GreenCtx", label="green", unit=Unit.NUMBER, importance=6),
    STREAM.with_importance(1),
    NAME,
)


def _calls_query(selection: Selection) -> Query:
    parts = []
    for table in (tables.api_calls, tables.api_backtraces):
        columns = table.c
        times = job_start(table).label("start"), duration(table).label("duration")
        thread = pid_column(columns.process).label("pid"), tid_column(columns.thread).label("tid")
        call = columns.name, columns.return_value.label("result"), columns.correlation_id
        part = sa.select(*times, *call, *thread, columns.report, columns.row, columns.thread)
        parts.append(part.where(*where(table, selection, columns.name)))
    calls, threads = sa.union_all(*parts).subquery(), _threads()
    is_same = sa.and_(threads.c.report == calls.c.report, threads.c.thread == calls.c.thread)
    return sa.select(*calls.c, threads.c.priority, threads.c.thread_name).select_from(calls.outerjoin(threads, is_same))


def _threads() -> sa.Subquery:
    """Select one row per thread, so that the join never doubles a call."""
    columns = tables.threads.c
    described = (sa.func.min(columns.priority).label("priority"), sa.func.min(columns.name).label("thread_name"))
    return sa.select(columns.report, columns.thread, *described).group_by(columns.report, columns.thread).subquery()


def _api_trace(session: Session, selection: Selection, _: ReportOptions) -> PagedAnswer:
    """Answer ``cuda_api_trace``: all calls, also the second rows of ``--cudabacktrace``; start in job time."""
    query, everything = _calls_query(selection), _calls_query(Selection())
    missing = missing_notes(session, tables.api_calls)
    return PagedAnswer.of(session, "cuda-api-trace", _API_COLUMNS, query, everything, missing)


_GRID = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_SHARED = ("report", "row", "correlation_id", "context", "stream")
_OPERATION = (
    "kind", *_SHARED, "start", "duration", "device_number", "green_context", *_GRID, "registers", "static_memory",
    "dynamic_memory", "size", "throughput", "source", "target", "name", "kernel_report", "kernel_row",
)  # fmt: skip


def _operations(table: sa.Table, kind: int, conditions: Sequence[Condition], values: Mapping[str, Expression]) -> Query:
    """Select the columns `_OPERATION` of one table's operations; ``values`` that it lacks are NULL."""
    cells = {"kind": sa.literal(kind), "start": job_start(table), "duration": duration(table), **values}
    cells |= {"device_number": table.c.device, "green_context": sa.func.nullif(table.c.green_context, 0)}
    cells |= {key: table.c[key] for key in _SHARED}
    return sa.select(*(cells.get(key, sa.null()).label(key) for key in _OPERATION)).where(*conditions)


def _kernel_rows(selection: Selection, options: ReportOptions) -> Query:
    columns, name = _KERNELS.c, name_of(_KERNELS, options.names)
    values = {
        **{key: columns[key] for key in _GRID}, "registers": columns.registers_per_thread,
        "static_memory": columns.static_shared_memory / MEGABYTE,
        "dynamic_memory": columns.dynamic_shared_memory / MEGABYTE,
        "name": name, "kernel_report": columns.report, "kernel_row": columns.row,
    }  # fmt: skip
    return _operations(_KERNELS, 0, where(_KERNELS, selection, name), values)


def _memory_rows(selection: Selection) -> Query:
    columns = _MEMORY_OPS.c
    is_memset = columns.is_memset == 1
    # nsys rounds the inverse of the duration down to a whole number; NULL if the duration is 0.
    per_second = sa.literal(_NS_IN_A_SECOND).op("//")(sa.func.nullif(duration(_MEMORY_OPS), 0))
    values = {
        "size": columns.bytes / MEGABYTE,
        "throughput": columns.bytes * sa.cast(per_second, sa.Double) / MEGABYTE,
        # nsys shows the memory of a memset in the source column.
        "source": sa.case((is_memset, columns.target_memory), else_=columns.source_memory),
        "target": sa.case((is_memset, sa.null()), else_=columns.target_memory),
        "name": columns.operation,
    }
    return _operations(_MEMORY_OPS, 1, where(_MEMORY_OPS, selection, columns.operation), values)


def _gpu_query(selection: Selection, options: ReportOptions) -> Query:
    rows = sa.union_all(_kernel_rows(selection, options), _memory_rows(selection)).subquery()
    # Like nsys, take CUDA's number of the device as the machine's number of the GPU.
    columns = tables.devices.c
    named = sa.func.min(columns.name).label("gpu_name")
    gpus = sa.select(columns.report, columns.gpu, named).group_by(columns.report, columns.gpu).subquery()
    joined = rows.outerjoin(gpus, sa.and_(gpus.c.report == rows.c.report, gpus.c.gpu == rows.c.device_number))
    number = sa.cast(rows.c.device_number, sa.Text)
    device = sa.func.concat(gpus.c.gpu_name, " (", number, ")")
    return sa.select(*rows.c, device.label("device")).select_from(joined)


def _gpu_trace(session: Session, selection: Selection, options: ReportOptions) -> Answer:
    """Answer ``cuda_gpu_trace``: kernels and memory operations without whole graph launches; start in job time."""
    query, everything = _gpu_query(selection, options), _gpu_query(Selection(), options)
    columns = (*_GPU_COLUMNS, *KERNEL_PLACE) if options.nvtx_name else _GPU_COLUMNS
    missing, ties = notes(session, options, _MEMORY_OPS), ("report", "kind", "row")
    answer = PagedAnswer.of(session, "cuda-gpu-trace", columns, query, everything, missing, ties=ties)
    return range_named(answer, LaunchRanges.find(session, selection)) if options.nvtx_name else answer


_EXECUTION_COLUMNS = (
    Column("api_start", header="API Start (ns)", label="api start", unit=Unit.TIME),
    Column("api", header="API Dur (ns)", label="api", unit=Unit.DURATION, importance=1),
    Column("queue_start", header="Queue Start (ns)", label="queue start", unit=Unit.TIME, importance=4),
    Column("queue", header="Queue Dur (ns)", label="queue", unit=Unit.DURATION, importance=1),
    Column("kernel_start", header="Kernel Start (ns)", label="kernel start", unit=Unit.TIME, importance=4),
    Column("kernel", header="Kernel Dur (ns)", label="kernel", unit=Unit.DURATION),
    Column("total", header="Total Dur (ns)", label="total", unit=Unit.DURATION, importance=1),
    PID.with_importance(3),
    TID.with_importance(3),
    Column("device", header="DevId", label="dev", unit=Unit.DEVICE, importance=2),
    Column("function", header="API Function", label="function", importance=2),
    Column("grid", header="GridXYZ", label="grid", importance=5),
    Column("block", header="BlockXYZ", label="block", importance=5),
    Column("name", header="Kernel Name", label="name"),
)
_MEASURES = (("total", "T"), ("api", "A"), ("queue", "Q"), ("kernel", "K"))
_EXECUTION_SUM_COLUMNS = (
    PID.with_importance(3),
    TID.with_importance(3),
    Column("device", header="DevId", label="dev", unit=Unit.DEVICE, importance=2),
    COUNT.with_importance(1),
    Column("queued", header="QCount", label="queued", unit=Unit.COUNT, importance=2),
    *(column for key, word in _MEASURES for column in statistics.spread_columns(f"{key}_", word)),
    Column("function", header="API Name", label="function", importance=2),
    Column("name", header="Kernel Name", label="name"),
)


_CALL_KEYS = ("report", "process", "thread", "correlation_id", "row", "start", "end", "name")


class _Executions:
    """The kernels with the API calls that launched them, as parts of queries; times in ns.

    A kernel is queued from the end of its call to its start, if that is later. With ``--cudabacktrace``, a call is
    recorded twice, and its kernel counts twice in nsys.
    """

    def __init__(self, selection: Selection, options: ReportOptions) -> None:
        kernels, self.calls = _KERNELS.c, calls_as_nsys(selection, _CALL_KEYS)
        calls = self.calls.c
        self.name = name_of(_KERNELS, options.names)
        self.is_queued = kernels.start >= calls.end
        self.durations = (
            (calls.end - calls.start).label("api"),
            sa.case((self.is_queued, kernels.start - calls.end)).label("queue"),
            (kernels.end - kernels.start).label("kernel"),
            (sa.func.greatest(calls.end, kernels.end) - calls.start).label("total"),
        )
        self.thread = (
            pid_column(calls.process).label("pid"),
            tid_column(calls.thread).label("tid"),
            kernels.device.label("device"),
        )
        self._conditions = where(_KERNELS, selection, self.name)

    def select(self, *columns: Expression) -> Query:
        joined = _KERNELS.join(self.calls, is_launched_by(_KERNELS, self.calls))
        return sa.select(*columns).select_from(joined).where(*self._conditions)


def _execution_query(selection: Selection, options: ReportOptions) -> Query:
    rows = _Executions(selection, options)
    kernels, calls, offset = _KERNELS.c, rows.calls.c, _KERNELS.c.clock_offset
    queue_start = sa.case((rows.is_queued, calls.end + offset)).label("queue_start")
    starts = (calls.start + offset).label("api_start"), queue_start, (kernels.start + offset).label("kernel_start")
    shape = grid_of(_KERNELS).label("grid"), block_of(_KERNELS).label("block")
    names = calls.name.label("function"), *shape, rows.name.label("name")
    ids = kernels.report.label("kernel_report"), kernels.row.label("kernel_row"), calls.row.label("call_row")
    return rows.select(*starts, *rows.durations, *rows.thread, *names, *ids)


def _execution_trace(session: Session, selection: Selection, options: ReportOptions) -> Answer:
    """Answer ``cuda_kern_exec_trace``: a row per kernel and call, starts in job time."""
    query, everything = (_execution_query(rows, options) for rows in (selection, Selection()))
    columns = (*_EXECUTION_COLUMNS, *KERNEL_PLACE) if options.nvtx_name else _EXECUTION_COLUMNS
    missing, order = notes(session, options, tables.api_calls), ("api_start", False)
    ties = ("kernel_report", "kernel_row", "call_row")
    answer = PagedAnswer.of(session, "cuda-kern-exec-trace", columns, query, everything, missing, order, ties)
    return range_named(answer, LaunchRanges.find(session, selection)) if options.nvtx_name else answer


def _execution_summary(session: Session, selection: Selection, options: ReportOptions) -> TableAnswer:
    """Answer ``cuda_kern_exec_sum``: a row per thread, device, function and kernel, by mean total, descending."""
    rows = _Executions(selection, options)
    groups = (
        _range_execution_groups(session, selection, rows) if options.nvtx_name else _execution_groups(session, rows)
    )
    order = ["total_avg", "function", "name", "report", "pid", "tid", "device"]
    frame = groups.sort_values(order, ascending=[False] + [True] * (len(order) - 1), kind="stable", ignore_index=True)
    missing = notes(session, options, tables.api_calls)
    return TableAnswer.of_arrays("cuda-kern-exec-sum", _EXECUTION_SUM_COLUMNS, frame, None, missing)


_EXECUTION_BYTES = 50
"""Memory for a kernel and its call, with the times for medians, bytes."""
_EXECUTION_KEYS = ("report", "pid", "tid", "device", "function", "name")


def _execution_groups(session: Session, rows: _Executions) -> pd.DataFrame:
    import pandas as pd

    inner = rows.select(
        _KERNELS.c.report, *rows.thread, rows.calls.c.name.label("function"), rows.name.label("name"), *rows.durations
    ).subquery()
    keys = [inner.c[key] for key in _EXECUTION_KEYS]
    spreads = (part for key, _ in _MEASURES for part in statistics.spread(inner.c[key], f"{key}_"))
    counts = (sa.func.count().label("count"), sa.func.count(inner.c.queue).label("queued"))
    query = sa.select(*keys, *counts, *spreads).group_by(*keys)
    # Medians hold the times of all kernels of a query in memory, so each query covers only some names.
    count = session.count(_KERNELS) // session.limits.rows_at_once(_EXECUTION_BYTES) + 1
    part = sa.func.hash(inner.c.name) % count
    frames = [session.frame(query.where(part == number)) for number in range(count)]
    return pd.concat(frames, ignore_index=True)


def _range_execution_groups(session: Session, selection: Selection, rows: _Executions) -> pd.DataFrame:
    """Return the groups of `_execution_groups`, with ranges before kernel names."""
    query = rows.select(_KERNELS.c.report, *rows.thread, *rows.durations)
    frame = range_named_frame(session, selection, query, rows.name, {"function": rows.calls.c.name})
    by_key = frame.groupby(list(_EXECUTION_KEYS), observed=True, sort=False, dropna=False)
    spreads = [statistics.frame_spread(by_key[key], f"{key}_") for key, _ in _MEASURES]
    return by_key.agg(count=("kernel", "size"), queued=("queue", "count")).join(spreads).reset_index()


ASK: dict[str, AskReport] = {
    "cuda_api_trace": _api_trace,
    "cuda_gpu_trace": _gpu_trace,
    "cuda_kern_exec_sum": _execution_summary,
    "cuda_kern_exec_trace": _execution_trace,
}
