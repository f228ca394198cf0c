"""Kernels with the API calls that launched them, as ``nsys stats`` has them (``cuda_kern_exec_*``,
docs/numbers.md#nsys-stats).

A kernel waits in the queue from the end of its call to its own start; one that starts while the call still runs was
never queued. With ``--cudabacktrace`` a call is recorded twice, and nsys counts its kernel with both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nsystui.base.answer import Answer, TableAnswer
from nsystui.base.columns import COUNT, PID, TID, Column, Unit
from nsystui.base.selection import Selection
from nsystui.exports.identifiers import pid_column, tid_column
from nsystui.questions import statistics
from nsystui.questions.kernels import block_of, grid_of, name_of
from nsystui.questions.paged import PagedAnswer
from nsystui.questions.stats.cuda_launch_ranges import LaunchRanges, launched_by
from nsystui.questions.stats.kernel_names import KERNEL_PLACE, RangeNamed, range_named_frame
from nsystui.questions.stats.kernel_notes import notes
from nsystui.questions.stats.report import Ask, Options
from nsystui.questions.where import where
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

_KERNELS = tables.kernels

_TRACE_COLUMNS = (
    Column("api_start", header="API Start (ns)", label="api start", unit=Unit.TIME),
    Column("api", header="API Dur (ns)", label="api", unit=Unit.DURATION, importance=1),
    Column("queue_start", header="Queue Start (ns)", label="queue start", unit=Unit.TIME, importance=4),
    Column("queue", header="Queue Dur (ns)", label="queue", unit=Unit.DURATION, importance=1),
    Column("kernel_start", header="Kernel Start (ns)", label="kernel start", unit=Unit.TIME, importance=4),
    Column("kernel", header="Kernel Dur (ns)", label="kernel", unit=Unit.DURATION),
    Column("total", header="Total Dur (ns)", label="total", unit=Unit.DURATION, importance=1),
    PID.with_importance(3),
    TID.with_importance(3),
    Column("device", header="DevId", label="dev", unit=Unit.NUMBER, importance=2),
    Column("function", header="API Function", label="function", importance=2),
    Column("grid", header="GridXYZ", label="grid", importance=5),
    Column("block", header="BlockXYZ", label="block", importance=5),
    Column("name", header="Kernel Name", label="name"),
)
_MEASURES = (("total", "T"), ("api", "A"), ("queue", "Q"), ("kernel", "K"))
_SUM_COLUMNS = (
    PID.with_importance(3),
    TID.with_importance(3),
    Column("device", header="DevId", label="dev", unit=Unit.NUMBER, importance=2),
    COUNT.with_importance(1),
    Column("queued", header="QCount", label="queued", unit=Unit.COUNT, importance=2),
    *(column for key, word in _MEASURES for column in statistics.spread_columns(f"{key}_", word)),
    Column("function", header="API Name", label="function", importance=2),
    Column("name", header="Kernel Name", label="name"),
)


def _calls(selection: Selection) -> sa.Subquery:
    """The calls, and the second rows of those that were recorded twice."""
    parts = []
    for table in (tables.api_calls, tables.api_backtraces):
        columns = (
            table.c[key] for key in ("report", "process", "thread", "correlation_id", "row", "start", "end", "name")
        )
        parts.append(sa.select(*columns).where(*where(table, selection)))
    return sa.union_all(*parts).subquery()


class _Executions:
    """The join of kernels and calls as parts of queries; times in ns."""

    def __init__(self, selection: Selection, options: Options) -> None:
        kernels, self.calls = _KERNELS.c, _calls(selection)
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

    def select(self, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        joined = _KERNELS.join(self.calls, launched_by(_KERNELS, self.calls))
        return sa.select(*columns).select_from(joined).where(*self._conditions)


def _trace_query(selection: Selection, options: Options) -> sa.Select[Any]:
    rows = _Executions(selection, options)
    kernels, calls, moved = _KERNELS.c, rows.calls.c, _KERNELS.c.clock_offset
    return rows.select(
        (calls.start + moved).label("api_start"),
        sa.case((rows.is_queued, calls.end + moved)).label("queue_start"),
        (kernels.start + moved).label("kernel_start"),
        *rows.durations,
        *rows.thread,
        calls.name.label("function"),
        grid_of(_KERNELS).label("grid"),
        block_of(_KERNELS).label("block"),
        rows.name.label("name"),
        kernels.report.label("kernel_report"),
        kernels.row.label("kernel_row"),
        calls.row.label("call_row"),
    )


def _trace(session: Session, selection: Selection, options: Options) -> Answer:
    """``cuda_kern_exec_trace``: a row for each kernel and call, starts in job time."""
    query = _trace_query(selection, options)
    found, everything = (
        sa.select(sa.func.count()).select_from(rows.subquery()) for rows in (query, _trace_query(Selection(), options))
    )
    columns = (*_TRACE_COLUMNS, *KERNEL_PLACE) if options.nvtx_name else _TRACE_COLUMNS
    ties = ("kernel_report", "kernel_row", "call_row")
    whole = PagedAnswer.of(
        session,
        "cuda-kern-exec-trace",
        columns,
        query,
        found,
        everything,
        ("api_start", False),
        ties,
        notes(session, options, tables.api_calls),
    )
    return RangeNamed(whole, LaunchRanges.find(session, selection)) if options.nvtx_name else whole


def _summary(session: Session, selection: Selection, options: Options) -> TableAnswer:
    """``cuda_kern_exec_sum``: a row for each thread, device, function and kernel, longest mean total first."""
    rows = _Executions(selection, options)
    groups = _frame_groups(session, selection, rows) if options.nvtx_name else _groups(session, rows)
    order = ["total_avg", "function", "name", "report", "pid", "tid", "device"]
    frame = groups.sort_values(order, ascending=[False] + [True] * (len(order) - 1), kind="stable")
    return TableAnswer.of_frame(
        "cuda-kern-exec-sum",
        _SUM_COLUMNS,
        frame.reset_index(drop=True),
        None,
        notes(session, options, tables.api_calls),
    )


_KEYS = ("report", "pid", "tid", "device", "function", "name")


def _groups(session: Session, rows: _Executions) -> pd.DataFrame:
    inner = rows.select(
        _KERNELS.c.report, *rows.thread, rows.calls.c.name.label("function"), rows.name.label("name"), *rows.durations
    ).subquery()
    keys = [inner.c[key] for key in _KEYS]
    spreads = (part for key, _ in _MEASURES for part in statistics.spread(inner.c[key], f"{key}_"))
    counts = (sa.func.count().label("count"), sa.func.count(inner.c.queue).label("queued"))
    return session.frame(sa.select(*keys, *counts, *spreads).group_by(*keys))


def _frame_groups(session: Session, selection: Selection, rows: _Executions) -> pd.DataFrame:
    """The same groups of kernels behind their ranges."""
    query = rows.select(_KERNELS.c.report, *rows.thread, *rows.durations)
    frame = range_named_frame(session, selection, query, rows.name, {"function": rows.calls.c.name})
    by_key = frame.groupby(list(_KEYS), observed=True, sort=False, dropna=False)
    spreads = [statistics.frame_spread(by_key[key], f"{key}_") for key, _ in _MEASURES]
    groups = by_key.agg(count=("kernel", "size"), queued=("queue", "count"))
    return groups.join(spreads).reset_index()


ASK: dict[str, Ask] = {
    "cuda_kern_exec_sum": _summary,
    "cuda_kern_exec_trace": _trace,
}
