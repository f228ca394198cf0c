"""NVTX as tables: the summary of ``nsys stats -r nvtx_sum``, and the tree as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import RANK, Column, Unit
from nsystui.base.selection import Selection
from nsystui.exports.identifiers import tid_of
from nsystui.questions import statistics
from nsystui.questions.missing import missing_note
from nsystui.questions.nvtx.loading import FOLDED_LABEL, LABEL, PUSH_POP_TYPES, START_END_TYPES, last_times
from nsystui.questions.nvtx.node import Order
from nsystui.questions.nvtx.paths import NO_NODE
from nsystui.questions.nvtx.tree import NvtxTree
from nsystui.questions.where import where
from nsystui.store import tables
from nsystui.store.session import Session

_SUMMARY_COLUMNS = (
    *statistics.duration_columns("Instances"),
    Column("style", header="Style", label="style", importance=4),
    Column("name", header="Range", label="range"),
)


def nvtx_summary(
    session: Session,
    selection: Selection,
    *,
    fold_suffixes: bool = False,
    types: Sequence[int] = (*PUSH_POP_TYPES, *START_END_TYPES),
) -> TableAnswer:
    """One row for each range name and style: statistics of the durations on the CPU, ns.

    Columns, order and values are those of ``nvtx_sum`` (docs/numbers.md#nsys-stats): a range that was never closed ends
    at the last time of any NVTX range or mark of its report. With ``fold_suffixes`` the calls of one PyTorch operator
    are one row. The name filter looks at ``domain:text``. ``types`` are the event types of the ranges that count.
    """
    table = tables.nvtx_ranges
    name = FOLDED_LABEL if fold_suffixes else LABEL
    style = sa.case((table.c.event_type.in_(PUSH_POP_TYPES), "PushPop"), else_="StartEnd")
    last = last_times()
    of_types = table.c.event_type.in_(types)
    duration = sa.func.coalesce(table.c.end, last.c.time) - table.c.start
    query = statistics.summary(
        table.join(last, last.c.report == table.c.report),
        duration,
        [style.label("style"), name.label("name")],
        [of_types, table.c.start.is_not(None), *where(table, selection, LABEL)],
    )
    frame, note = session.frame(query), missing_note(session, table)
    total = len(frame)
    if not selection.is_everything:
        groups = sa.select(style, name).where(of_types).distinct().subquery()
        total = int(session.scalar(sa.select(sa.func.count()).select_from(groups)))
    return TableAnswer.of_frame("nvtx-summary", _SUMMARY_COLUMNS, frame, total, (note,) if note else ())


MOST_LEVELS = 1_000
"""So many levels of paths are listed unasked: each path has the names of all around it."""
TREE_COLUMNS = (
    Column("path", header="Path", label="range"),
    Column("level", header="Level", label="level", unit=Unit.NUMBER, importance=4),
    Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=1),
    Column("total", header="Total Time (ns)", label="wall total", unit=Unit.DURATION),
    Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1, importance=3),
    Column("self", header="Self Time (ns)", label="self", unit=Unit.DURATION, importance=3),
    Column("gpu_total", header="GPU Projected (ns)", label="GPU total", unit=Unit.DURATION),
    Column(
        "gpu_median", header="GPU Projected Med (ns)", label="GPU med", unit=Unit.DURATION, decimals=1, importance=2
    ),
    Column("gpu_ops", header="GPU Ops", label="ops", unit=Unit.COUNT, importance=2),
    RANK.with_importance(1),
    Column("thread", header="Tid", label="tid", unit=Unit.NUMBER, importance=3),
)


def nvtx_tree_table(tree: NvtxTree, depth: int | None = None, order: Order | str = Order.TOTAL) -> TableAnswer:
    """The paths of ``tree``, each below the one around it, siblings in ``order``; only the outermost ``depth`` levels.

    Unless that is given they are ``MOST_LEVELS``, and a note tells of paths that are deeper.
    ``Path`` joins the names with ``›``, ``Level`` is 0 for an outermost range. Ranks and threads are columns here, not
    rows; they are missing where ranges of several are merged. Sums are over the ranges of the path: the time of ranges
    that overlap counts for each.
    """
    import pandas as pd

    levels = MOST_LEVELS if depth is None else depth
    rows = list(_rows(tree, levels, Order(order)))
    total, notes = len(tree) - tree.maker.paths.groups, tree.ranges.notes
    if depth is None and len(rows) < total:
        deeper = f"{total - len(rows):,} paths more than {MOST_LEVELS:,} levels deep are left out: --depth shows more"
        notes = (*notes, deeper)
    frame = pd.DataFrame(rows, columns=[column.key for column in TREE_COLUMNS])
    for column in TREE_COLUMNS:
        if column.unit is not Unit.TEXT:
            frame[column.key] = frame[column.key].astype("Int64" if column.decimals is None else "Float64")
    return TableAnswer.of_frame("nvtx", TREE_COLUMNS, frame, total, notes)


def _rows(tree: NvtxTree, depth: int, order: Order) -> Iterator[tuple[Any, ...]]:
    maker, groups = tree.maker, tree.maker.paths.groups
    waiting = [(number, "", 0) for number in maker.sorted_paths(NO_NODE, order)[::-1].tolist()]
    while waiting:
        number, above, level = waiting.pop()
        path, inner = "", 0
        if number >= groups:
            node = maker.path_node(number)
            path, inner = f"{above} › {node.label}" if above else node.label, level + 1
            tid = None if node.thread is None else tid_of(node.thread)
            gpu = (node.gpu_total, node.gpu_median, node.gpu_ops)
            yield (path, level, node.count, node.total, node.average, node.self_total, *gpu, node.rank, tid)
        if inner < depth:
            waiting += [(child, path, inner) for child in maker.sorted_paths(number, order)[::-1].tolist()]
