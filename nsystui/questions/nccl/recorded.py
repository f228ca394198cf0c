"""What the store has of NCCL: its calls, its kernels with their launches, and PyTorch's labels. Times are job time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from nsystui.questions.conditions import job_start
from nsystui.questions.kernels import rank_of
from nsystui.questions.tasks import RankedTask
from nsystui.store import tables

Reports = Collection[int] | None
"""Indices of reports; ``None`` for all that are open."""


def calls_query(ranks: Sequence[RankedTask], reports: Reports = None) -> sa.Select[Any]:
    """Every NCCL API call by (report, thread, start); ``rank`` is that in the job, ``end`` may be missing."""
    table = tables.nccl_calls
    columns = table.c
    return (
        sa.select(
            columns.report,
            columns.process,
            columns.row,
            columns.thread,
            job_start(table).label("start"),
            _job_end(table).label("end"),
            columns.name,
            rank_of(table, ranks).label("rank"),
            columns.message_size,
            columns.communicator,
            columns.ranks,
            columns.peer,
            columns.root,
            columns.reduction,
            columns.datatype,
            columns.size_source,
        )
        .where(*_of(columns.report, reports))
        .order_by(columns.report, columns.thread, columns.start, columns.row)
    )


def kernels_query(ranks: Sequence[RankedTask], reports: Reports = None) -> sa.Select[Any]:
    """Every NCCL kernel with its launch, by report and start of the launch (of the kernel where it was not recorded).

    The launch is the API call of the same (report, process, correlation id) (docs/exports.md#launches). Should an
    export have several, the kernel comes once for each, the earliest first.
    """
    table, calls = tables.kernels, tables.api_calls
    columns = table.c
    is_launch = sa.and_(
        calls.c.report == columns.report,
        calls.c.process == columns.process,
        calls.c.correlation_id == columns.correlation_id,
    )
    return (
        sa.select(
            columns.report,
            columns.process,
            columns.row,
            job_start(table).label("start"),
            _job_end(table).label("end"),
            columns.device,
            columns.context,
            columns.stream,
            columns.short_name.label("name"),
            columns.correlation_id,
            columns.graph_node_id,
            rank_of(table, ranks).label("rank"),
            calls.c.thread,
            job_start(calls).label("launch_start"),
            _job_end(calls).label("launch_end"),
        )
        .select_from(table.outerjoin(calls, is_launch))
        .where(columns.is_nccl == 1, *_of(columns.report, reports))
        .order_by(columns.report, sa.func.coalesce(calls.c.start, columns.start), columns.row)
    )


def labels_query(reports: Reports = None) -> sa.Select[Any]:
    """PyTorch's labels around NCCL calls, without what differs from call to call: ``nccl:all_to_all``.

    They are ranges of the default domain (docs/nccl.md#pairing).
    """
    table = tables.nvtx_ranges
    columns = table.c
    return sa.select(
        columns.report,
        columns.thread,
        job_start(table).label("start"),
        _job_end(table).label("end"),
        sa.func.regexp_extract(columns.name, "^nccl:[a-z_]+").label("name"),
    ).where(
        sa.func.starts_with(columns.name, "nccl:"),
        sa.func.coalesce(columns.domain, "") == "",
        columns.end.is_not(None),
        columns.end_thread.is_(None),
        *_of(columns.report, reports),
    )


def first_correlations_query(reports: Reports = None) -> sa.Select[Any]:
    """The first correlation id that each process has an API call for; the ids ascend while a process runs."""
    columns = tables.api_calls.c
    first = sa.func.min(columns.correlation_id).label("first_correlation_id")
    query = sa.select(columns.report, columns.process, first).where(*_of(columns.report, reports))
    return query.group_by(columns.report, columns.process)


def _of(report: sa.ColumnElement[int], reports: Reports) -> list[sa.ColumnElement[bool]]:
    return [] if reports is None else [report.in_(sorted(reports))]


def _job_end(table: sa.FromClause) -> sa.ColumnElement[int]:
    return table.c.end + table.c.clock_offset
