"""The API calls that launched GPU work, as the projection needs them, and the GPU work of a single range.

A GPU operation belongs to its API call by (report, process, correlation id) (docs/exports.md#launches). Kernels,
copies, memsets and whole CUDA graph launches count; ``nsys stats -r nvtx_gpu_proj_sum`` of 2023.4 leaves the graph
launches out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nsystui.base.columns import DEVICE, DURATION, NAME, RANK, START, STREAM, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.event_kinds import EventKind, events_query
from nsystui.questions.paged import PagedAnswer
from nsystui.questions.tasks import RankedTask
from nsystui.store import tables

if TYPE_CHECKING:
    from nsystui.questions.nvtx.ranges import NvtxRanges

_GPU_KINDS = (EventKind.KERNEL, EventKind.NCCL, EventKind.MEMORY, EventKind.GRAPH)


LAUNCHED_COLUMNS = (
    START,
    DURATION,
    Column("kind", header="Kind", label="kind", importance=1),
    NAME,
    RANK.with_importance(3),
    DEVICE.with_importance(2),
    STREAM.with_importance(1),
    Column("call", header="API Function", label="launched by", importance=2),
    Column("correlation_id", header="CorrId", label="corr", unit=Unit.NUMBER, importance=4),
    Column("report", header="Report", label="report", unit=Unit.NUMBER, importance=9),
    Column("process", header="Process", label="process", unit=Unit.NUMBER, importance=9),
    Column("row", header="Row", label="row", unit=Unit.NUMBER, importance=9),
)


def kernels_of(ranges: NvtxRanges, index: int, ranks: Sequence[RankedTask] = ()) -> PagedAnswer:
    """The GPU work that one range launched (kernels, NCCL, memory operations, CUDA graphs), in order of start.

    ``index`` is the range's place in ``ranges``. Its API calls are those of the same thread that lie in it whole, so
    that the rows are just the operations that its projection spans. Start in job time, ns; ``kind`` and ``row`` make an
    event's key. Raises ``IndexError`` where there is no such range.
    """
    lane, moved = ranges.lane_of(index), _clock_offset(ranges, index)
    calls = tables.api_calls
    inside = [
        calls.c.report == lane.report,
        calls.c.thread == lane.thread,
        calls.c.start >= int(ranges.start[index]) - moved,
        calls.c.end <= int(ranges.end[index]) - moved,
        sa.true() if ranges.op_count[index] > 0 else sa.false(),
    ]
    launches = sa.select(calls.c.correlation_id, calls.c.name).where(*inside).subquery()
    work = _work(ranges, index, launches, ranks)
    query = sa.select(
        *(launches.c.name.label("call") if column.key == "call" else work.c[column.key] for column in LAUNCHED_COLUMNS)
    ).join_from(work, launches, work.c.correlation_id == launches.c.correlation_id)
    count = sa.select(sa.func.count()).select_from(query.subquery())
    return PagedAnswer.of(
        ranges.session, "nvtx-gpu-work", LAUNCHED_COLUMNS, query, count, count, ("start", False), ("kind", "row")
    )


def _work(ranges: NvtxRanges, index: int, launches: sa.Subquery, ranks: Sequence[RankedTask]) -> sa.Subquery:
    """The selected GPU operations of the range's process whose correlation id is among ``launches``."""
    chosen = Selection(devices=ranges.selection.devices, streams=ranges.selection.streams)
    lane, moved = ranges.lane_of(index), _clock_offset(ranges, index)
    parts: list[sa.Select[Any]] = []
    for kind in _GPU_KINDS:
        columns = _table(kind).c
        conditions = [
            columns.report == lane.report,
            columns.process == lane.process,
            columns.correlation_id.in_(sa.select(launches.c.correlation_id)),
            # All of them lie in the projection: Parquet need not read what lies elsewhere.
            columns.start >= int(ranges.gpu_start[index]) - moved,
            columns.end <= int(ranges.gpu_end[index]) - moved,
        ]
        parts.append(events_query(kind, chosen, ranks, conditions))
    return sa.union_all(*parts).subquery()


def _clock_offset(ranges: NvtxRanges, index: int) -> int:
    """The offset of a range's report as a number: bounds with the column of that name skip no row groups."""
    number = ranges.lane_of(index).report
    return next(report.clock_offset for report in ranges.session.reports if report.index == number)


def _table(kind: EventKind) -> sa.Table:
    if kind is EventKind.MEMORY:
        return tables.memory_ops
    return tables.graph_launches if kind is EventKind.GRAPH else tables.kernels
