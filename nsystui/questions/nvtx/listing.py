"""NVTX tables: summary by name, tree, instances of a name, a range's GPU work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import (
    DEVICE,
    DURATION,
    NAME,
    PID,
    PROCESS_ID,
    RANK,
    REPORT_ID,
    ROW_ID,
    START,
    STREAM,
    TID,
    Column,
    TableAnswer,
    Unit,
)
from nsystui.base.selection import Selection
from nsystui.base.types import Ints, Query
from nsystui.exports.metadata import pid_column, tid_column, tid_of
from nsystui.questions.events.kinds import GPU_KINDS, KIND_TABLES, events_query
from nsystui.questions.nvtx import loading
from nsystui.questions.nvtx.paths import NO_NODE, Folding, TreeGrouping, numbered, template
from nsystui.questions.nvtx.tree import NvtxTree
from nsystui.questions.queries import statistics
from nsystui.questions.queries.captures import Captures
from nsystui.questions.queries.conditions import duration, given, job_start, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.queries.statistics import ValueRows
from nsystui.questions.queries.tasks import ROLE, RankedTask, rank_of
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.database import check_held
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.nvtx.ranges import NvtxRanges


_SUMMARY_COLUMNS = (
    *statistics.duration_columns("Instances"),
    Column("style", header="Style", label="style", importance=4),
    Column("name", header="Range", label="range"),
)


_TYPES = (*loading.PUSH_POP_TYPES, *loading.START_END_TYPES)


def range_rows(selection: Selection, types: Sequence[int] = _TYPES) -> ValueRows:
    """Return ranges of event types by style and name, as `nvtx_summary` describes."""
    table, last = tables.nvtx_ranges, loading.last_times()
    length = sa.func.coalesce(table.c.end, last.c.time) - table.c.start
    conditions = [table.c.event_type.in_(types), table.c.start.is_not(None), *where(table, selection, loading.LABEL)]
    keys = [loading.STYLE.label("style"), loading.LABEL.label("name")]
    return ValueRows(table.join(last, last.c.report == table.c.report), length, keys, conditions)


def nvtx_summary(
    session: Session,
    selection: Selection,
    *,
    fold: Folding = Folding.NONE,
    types: Sequence[int] = _TYPES,
    as_nsys: bool = True,
) -> TableAnswer:
    """Summarise the ranges by name and style: statistics of the durations on the CPU, ns.

    Columns, order and values equal ``nvtx_sum`` (docs/numbers.md#nsys-stats): a range that never ended ends at the last
    time of any NVTX range or mark of its report; unless ``as_nsys``, it is left out. Unless ``fold`` is ``NONE``, all
    calls of an operator or module share a row; with ``ALL``, also numbered names. The name filter applies to
    ``domain:text``. ``types`` are event types. Raises ExportError if the names exceed the memory limit.
    """
    table = tables.nvtx_ranges
    name = loading.LABEL if fold is Folding.NONE else loading.FOLDED_LABEL
    has_end = sa.true() if as_nsys else table.c.end.is_not(None)
    ranges = range_rows(selection, types)
    conditions = [*ranges.conditions, has_end]
    if session.count(table) > session.limits.most_held(loading.NAME_SIZE):
        names = session.scalar(sa.select(sa.func.approx_count_distinct(name)).where(*conditions))
        largest = max(session.reports, key=lambda report: report.count(table))
        check_held(session.limits, largest.path, names, loading.NAME_SIZE, "names of NVTX ranges")
    if fold is Folding.ALL:
        templates = {text: template(text) for (text,) in session.rows(sa.select(name).where(*conditions).distinct())}
        shared = numbered(templates)
        folded = [(text, folded) for text, folded in templates.items() if folded in shared]
        names = given({"name": [text for text, _ in folded], "template": [text for _, text in folded]}).subquery()
        is_same = names.c.name == name
        name = sa.func.coalesce(sa.select(names.c.template).where(is_same).scalar_subquery(), name, type_=sa.Text)
    ranges = ranges._replace(keys=[ranges.keys[0], name.label("name")], conditions=conditions)
    frame = statistics.summary_frame(session, ranges, _SUMMARY_COLUMNS)
    groups = sa.select(loading.STYLE, name).where(table.c.event_type.in_(types), has_end)
    total = len(frame) if selection.is_everything else statistics.number_of_groups(session, groups)
    return TableAnswer.of_arrays("nvtx-summary", _SUMMARY_COLUMNS, frame, total, missing_notes(session, table))


REPLAYED = Column("replayed", header="GPU Replayed (ns)", label="captured", unit=Unit.DURATION, compared="total")


def nvtx_names(job: OpenJob, selection: Selection, fold: Folding) -> TableAnswer:
    """Summarise ended ranges (`nvtx_summary`), with the time that CUDA graphs replay of each name."""
    answer = nvtx_summary(job.session, selection, fold=fold, as_nsys=False)
    if not job.session.count(tables.graph_nodes):
        return answer
    ranges = job.nvtx_ranges(selection)
    replayed = ranges.values("replayed")
    rows = np.flatnonzero(replayed)
    names = [ranges.names[name] for name in ranges.values("name", rows).tolist()]
    listed, times = set(answer.cells("name")), Counter[str]()
    for name, time in zip(ranges.full_names(rows) if fold is Folding.NONE else names, replayed[rows], strict=True):
        times[name if name in listed else template(name)] += int(time)
    cells = [(*row, times[str(name)] or None) for row, name in zip(answer.rows, answer.cells("name"), strict=True)]
    return replace(answer, columns=(*answer.columns, REPLAYED), rows=cells) if times else answer


_MAX_NAMES, _ENDS = 32, 8
"""The most names in a path, and the numbers of outermost and innermost names of deeper paths."""
TREE_COLUMNS = (
    Column("path", header="Path", label="range"),
    Column("level", header="Level", label="level", unit=Unit.NUMBER, importance=4),
    Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=1),
    Column("total", header="Total Time (ns)", label="wall total", unit=Unit.DURATION),
    Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1, importance=3),
    Column("self", header="Self Time (ns)", label="self", unit=Unit.DURATION, compared="total", importance=3),
    Column("gpu_total", header="GPU Projected (ns)", label="GPU total", unit=Unit.DURATION, compared="total"),
    Column("gpu_median", header="GPU Projected Med (ns)", label="GPU med", unit=Unit.DURATION, compared="avg",
        decimals=1).with_importance(2), Column("gpu_ops", header="GPU Ops", label="ops", unit=Unit.COUNT, importance=2),
    RANK.with_importance(1), Column("thread", header="Tid", label="tid", unit=Unit.NUMBER, importance=3),
)  # fmt: skip


def tree_columns(by: TreeGrouping) -> tuple[Column, ...]:
    """Return the columns of a tree; by role, the role replaces the rank."""
    return tuple(ROLE if by is TreeGrouping.ROLE and item.key == RANK.key else item for item in TREE_COLUMNS)


_OPEN = Column("open", header="Never Ended", label="never ended", unit=Unit.COUNT)


def nvtx_tree_table(tree: NvtxTree, depth: int | None = None) -> TableAnswer:
    """List the paths of ``tree``, each below its parent, siblings in natural order, to ``depth`` levels.

    ``Path`` joins the names with ``›``; beyond 32 names, it shows the 8
    outermost, the 8 innermost, and the depth. ``Level`` is 0 for an outermost range. Ranks and threads are columns, not
    rows; they are missing if a path merges several. Sums are over the ranges of the path: overlapping time counts for
    each. ``replayed`` is a column if a range captured replayed work.
    """
    rows = list(_rows(tree, depth))
    columns = (*tree_columns(tree.by), *[REPLAYED] * tree.has_replays, *[_OPEN] * tree.has_open)
    return TableAnswer("nvtx", columns, rows, len(tree) - tree.maker.paths.groups, tree.ranges.notes)


def _rows(tree: NvtxTree, depth: int | None) -> Iterator[tuple[Any, ...]]:
    maker, groups = tree.maker, tree.maker.paths.groups
    no_names: tuple[str, ...] = ()
    waiting = [(number, no_names, 0) for number in maker.sorted_paths(NO_NODE, tree.natural_order)[::-1].tolist()]
    while waiting:
        number, names, level = waiting.pop()
        name_count = 0
        if number >= groups:
            node = maker.path_node(number)
            name_count = level + 1
            names = (*(names if name_count <= _MAX_NAMES else (*names[:_ENDS], *names[_ENDS + 1 :])), node.label)
            path = " › ".join(names)
            if name_count > _MAX_NAMES:
                path = " › ".join((*names[:_ENDS], "…", *names[-_ENDS:])) + f" ({name_count:,} levels)"
            tid = None if node.thread is None else tid_of(node.thread)
            gpu = (node.gpu_total, node.gpu_median, node.gpu_ops)
            times = (node.total, node.average, node.self_total) if node.ended else (None,) * 3
            more = (*[node.replayed] * tree.has_replays, *[node.open_count] * tree.has_open)
            owner = node.role if tree.by is TreeGrouping.ROLE else node.rank
            yield (path, level, node.ended, *times, *gpu, owner, tid, *more)
        if depth is None or name_count < depth:
            waiting += [
                (child, names, name_count) for child in maker.sorted_paths(number, tree.natural_order)[::-1].tolist()
            ]


INSTANCE_COLUMNS = (
    START, DURATION, Column("style", header="Style", label="style", importance=2), RANK.with_importance(1),
    PID.with_importance(2), TID.with_importance(1), REPORT_ID, ROW_ID,
)  # fmt: skip


def range_names(session: Session, limit: int) -> list[str]:
    """Return at most ``limit`` names of ranges (``domain:text``), most frequent first."""
    name = loading.LABEL.label("name")
    query = sa.select(name).where(name.is_not(None)).group_by(name).order_by(sa.func.count().desc(), name).limit(limit)
    return [str(row[0]) for row in session.rows(query)]


def range_instances(session: Session, selection: Selection, name: str, ranks: Sequence[RankedTask] = ()) -> PagedAnswer:
    """List the ranges called ``name`` (``domain:text``, also without PyTorch's arguments), by the page.

    Start in job time, ns. A range that was never closed has no duration.
    """
    table = tables.nvtx_ranges
    is_named = sa.or_(loading.LABEL.in_([name]), loading.FOLDED_LABEL.in_([name]))
    query = sa.select(
        job_start(table).label("start"),
        duration(table).label("duration"),
        loading.STYLE.label("style"),
        rank_of(table, ranks).label("rank"),
        pid_column(table.c.process).label("pid"),
        tid_column(table.c.thread).label("tid"),
        table.c.report,
        table.c.row,
    ).where(*where(table, selection.with_name(None)), is_named, table.c.start.is_not(None))
    everything = sa.select(table.c.row).where(is_named)
    return PagedAnswer.of(session, "nvtx-instances", INSTANCE_COLUMNS, query, everything).with_time_index(table)


LAUNCHED_COLUMNS = (
    START, DURATION, Column("kind", header="Kind", label="kind", importance=1), NAME, RANK.with_importance(3),
    DEVICE.with_importance(2), STREAM.with_importance(1),
    Column("call", header="API Function", label="launched by", importance=2),
    Column("correlation_id", header="CorrId", label="corr", unit=Unit.NUMBER, importance=4), REPORT_ID, PROCESS_ID,
    ROW_ID,
)  # fmt: skip


def kernels_of(ranges: NvtxRanges, index: int, ranks: Sequence[RankedTask] = ()) -> PagedAnswer:
    """List the GPU work that a range launched (kernels, NCCL, memory operations, CUDA graphs), by start.

    ``index`` is the range's index in ``ranges``. The launching API calls are of its thread and lie fully inside, so
    the rows are exactly the operations of its projection. If it launched nothing, the rows are the operations that CUDA
    graphs replay of it. Start in job time, ns; ``kind`` and ``row`` form an event's key. Raises ``IndexError`` if there
    is no such range.
    """
    lane, offset = ranges.lane_of(index), _clock_offset(ranges, index)
    calls = tables.api_calls
    start, end = (ranges.value(edge, index) - offset for edge in ("start", "end"))
    is_inside = (calls.c.thread == lane.thread, calls.c.start >= start, calls.c.end <= end)
    inside, nodes = [calls.c.report == lane.report, *is_inside], None
    if ranges.value("op_count", index) <= 0:
        captures = Captures.of(ranges.session, report_at(ranges.session, lane.report))
        is_captured = (captures.thread == lane.thread) & (captures.time >= start) & (captures.time <= end)
        inside, nodes = [calls.c.report == lane.report, calls.c.process == lane.process], captures.node[is_captured]
    launches = sa.select(calls.c.correlation_id, calls.c.name).where(*inside).subquery()
    work = _work(ranges, index, launches, ranks, nodes)
    query = sa.select(
        *(launches.c.name.label("call") if column.key == "call" else work.c[column.key] for column in LAUNCHED_COLUMNS)
    ).join_from(work, launches, work.c.correlation_id == launches.c.correlation_id)
    return PagedAnswer.of(ranges.session, "nvtx-gpu-work", LAUNCHED_COLUMNS, query, ties=("kind", "row"))


def _work(
    ranges: NvtxRanges, index: int, launches: sa.Subquery, ranks: Sequence[RankedTask], nodes: Ints | None
) -> sa.Subquery:
    """Select the process's GPU operations with correlation ids of ``launches``, or of nodes of graphs."""
    gpu_selection = Selection(devices=ranges.selection.devices, streams=ranges.selection.streams)
    lane, offset = ranges.lane_of(index), _clock_offset(ranges, index)
    parts: list[Query] = []
    for kind in GPU_KINDS:
        columns = KIND_TABLES[kind].table.c
        conditions = [columns.report == lane.report, columns.process == lane.process]
        if nodes is not None:
            conditions.append(columns.graph_node_id.in_(nodes.tolist()) if "graph_node_id" in columns else sa.false())
        else:
            conditions += [
                columns.correlation_id.in_(sa.select(launches.c.correlation_id)),
                # All these operations lie in the projection: the bounds let Parquet skip row groups.
                columns.start >= ranges.value("gpu_start", index) - offset,
                columns.end <= ranges.value("gpu_end", index) - offset,
            ]
        parts.append(events_query(kind, gpu_selection, ranks, conditions))
    return sa.union_all(*parts).subquery()


def _clock_offset(ranges: NvtxRanges, index: int) -> int:
    """Return a number: Parquet skips row groups only for constants."""
    return report_at(ranges.session, ranges.lane_of(index).report).clock_offset
