"""NVTX ranges on the CPU, as ``nsys stats`` has them (docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import DURATION, END, NAME, PID, START, TID, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.missing import missing_note
from nsystui.questions.nesting import NO_PARENT, nest
from nsystui.questions.nvtx.listing import nvtx_summary
from nsystui.questions.nvtx.ranges import PUSH_POP_TYPES, START_END_TYPES, Ints
from nsystui.questions.stats.nvtx_load import Ranges, Texts, joined, matching, pids, read_ranges, tids
from nsystui.questions.stats.nvtx_trace import Trace, by_start, parent_rows, stacks
from nsystui.questions.stats.report import Ask, Options
from nsystui.store import tables
from nsystui.store.session import Session

_TRACE_COLUMNS = (
    START,
    END.with_importance(4),
    DURATION,
    Column("child_time", header="DurChild (ns)", label="children", unit=Unit.DURATION, importance=3),
    Column("self_time", header="DurNonChild (ns)", label="self", unit=Unit.DURATION, importance=1),
    NAME.with_importance(5),
    PID.with_importance(2),
    TID.with_importance(1),
    Column("level", header="Lvl", label="level", unit=Unit.NUMBER, importance=4),
    Column("child_count", header="NumChild", label="children", unit=Unit.COUNT, importance=4),
    Column("row", header="RangeId", label="id", unit=Unit.NUMBER, importance=5),
    Column("parent_row", header="ParentId", label="parent", unit=Unit.NUMBER, importance=5),
    Column("stack", header="RangeStack", label="stack", importance=6),
    Column("tree", header="NameTree", label="range"),
)


def _summary(session: Session, selection: Selection, _: Options) -> TableAnswer:
    return replace(nvtx_summary(session, selection), name="nvtx-sum")


def _push_pop_summary(session: Session, selection: Selection, _: Options) -> TableAnswer:
    return _of_one_style(nvtx_summary(session, selection, types=PUSH_POP_TYPES), "nvtx-pushpop-sum")


def _start_end_summary(session: Session, selection: Selection, _: Options) -> TableAnswer:
    return _of_one_style(nvtx_summary(session, selection, types=START_END_TYPES), "nvtx-startend-sum")


def _of_one_style(answer: TableAnswer, name: str) -> TableAnswer:
    columns = tuple(column for column in answer.columns if column.key != "style")
    return replace(answer.with_columns(columns), name=name)


@dataclass(frozen=True, eq=False)
class _Nested(Ranges):
    """Push/pop ranges with their places in the tree. ``parent`` is an index or -1; the rest as in `nesting.Nesting`."""

    parent: Ints
    level: Ints
    child_time: Ints
    child_count: Ints

    @classmethod
    def of(cls, ranges: Ranges, offset: int) -> _Nested:
        """``offset``: how many ranges of other reports stand before these."""
        nesting = nest(ranges.start, ranges.end, ranges.thread)
        parent = np.where(nesting.parent == NO_PARENT, NO_PARENT, nesting.parent + offset)
        return cls(
            **vars(ranges),
            parent=parent,
            level=nesting.level,
            child_time=nesting.child_time,
            child_count=nesting.child_count,
        )

    def rows(self, texts: Sequence[str], indices: Sequence[int]) -> list[Row]:
        """The rows of the trace for some of the ranges."""
        chosen = np.array(indices, np.int64)
        start, end, child_time = self.start[chosen], self.end[chosen], self.child_time[chosen]
        names = [texts[number] for number in self.name[chosen].tolist()]
        levels = self.level[chosen].tolist()
        columns = (
            start.tolist(),
            end.tolist(),
            (end - start).tolist(),
            child_time.tolist(),
            (end - start - child_time).tolist(),
            names,
            pids(self.thread[chosen]),
            tids(self.thread[chosen]),
            levels,
            self.child_count[chosen].tolist(),
            self.row[chosen].tolist(),
            parent_rows(indices, self.parent, self.row),
            stacks(indices, self.parent, self.row),
            ["--" * level + name for level, name in zip(levels, names, strict=True)],
        )
        return list(zip(*columns, strict=True))


def _push_pop_trace(session: Session, selection: Selection, _: Options) -> Trace:
    """``nvtx_pushpop_trace``: every range with its children and the ranges around it, by start in job time."""
    texts, parts, before = Texts(), [], 0
    for report in session.reports:
        part = _Nested.of(read_ranges(session, report, selection, texts, PUSH_POP_TYPES), before)
        parts.append(part)
        before += len(part)
    nested = joined(parts)
    order = by_start(nested.start, nested.end, nested.row)
    chosen = order[matching(texts, selection)[nested.name[order]]]
    note = missing_note(session, tables.nvtx_ranges)
    rows = partial(nested.rows, texts.texts)
    total = len(order) if selection.is_everything else None
    return Trace("nvtx-pushpop-trace", _TRACE_COLUMNS, chosen, rows, (note,) if note else (), total)


ASK: dict[str, Ask] = {
    "nvtx_sum": _summary,
    "nvtx_pushpop_sum": _push_pop_summary,
    "nvtx_startend_sum": _start_end_summary,
    "nvtx_pushpop_trace": _push_pop_trace,
}
