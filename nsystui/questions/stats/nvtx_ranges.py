"""NVTX ranges on the CPU, as in ``nsys stats`` (docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nsystui.base.answer import DURATION, END, NAME, PID, START, TID, Column, Row, TableAnswer, Unit, order_of
from nsystui.base.selection import Selection
from nsystui.base.types import Ints
from nsystui.exports.metadata import pid_of, tid_of
from nsystui.questions.algebra.nesting import NO_PARENT, nest
from nsystui.questions.nvtx.listing import nvtx_summary
from nsystui.questions.nvtx.loading import (
    PUSH_POP_TYPES,
    START_END_TYPES,
    Ranges,
    Texts,
    joined,
    matching,
    ranges_as_nsys,
)
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.stats.report import AskReport, ReportOptions
from nsystui.store import tables
from nsystui.store.session import Session


@dataclass(frozen=True)
class RangeTrace:
    """An answer with a row of ``rows`` for each index in ``order``."""

    name: str
    columns: tuple[Column, ...]
    order: Ints
    rows: Callable[[Sequence[int]], list[Row]]
    notes: tuple[str, ...] = ()
    total: int | None = None

    def __len__(self) -> int:
        return len(self.order)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.rows(self.order[offset : offset + limit].tolist())

    def sorted_by(self, key: str, descending: bool) -> RangeTrace:
        column_index = [column.key for column in self.columns].index(key)
        values = [row[column_index] for row in self.rows(self.order.tolist())]
        return replace(self, order=self.order[order_of(values, descending)])


MAX_LEVELS = 100
"""Limit of the levels in texts: all levels of deep chains would take gigabytes."""


def stacks(indices: Sequence[int], parent: Ints, row: Ints) -> list[str]:
    """Return ``:35:37:38`` for each range: the rows of the ranges around it, outermost first, and its own row.

    A longer chain lists its innermost `MAX_LEVELS` rows after ``:…``.
    """
    text_by_index: dict[int, str] = {}
    for index in indices:
        chain: list[int] = []
        outer = index
        while outer >= 0 and outer not in text_by_index and len(chain) <= MAX_LEVELS:
            chain.append(outer)
            outer = int(parent[outer])
        if len(chain) > MAX_LEVELS:
            text_by_index[index] = ":…" + "".join(f":{row[inner]}" for inner in chain[MAX_LEVELS - 1 :: -1])
            continue
        text = text_by_index.get(outer, "")
        for inner in reversed(chain):
            text = f"{text}:{row[inner]}"
            if (deeper := text.count(":") - MAX_LEVELS) > 0:
                text = ":…:" + text.split(":", deeper + 1)[-1]
            text_by_index[inner] = text
    return [text_by_index[index] for index in indices]


def depth_note(level: Ints) -> str:
    """Return a note if ranges on these levels are too deep for their texts, else empty."""
    levels = int(level.max(initial=0)) + 1
    note = f"ranges are nested {levels:,} levels deep: RangeStack has the {MAX_LEVELS} innermost, ParentId leads to all"
    return note if levels > MAX_LEVELS else ""


def parent_rows(indices: Sequence[int], parent: Ints, row: Ints) -> list[int | None]:
    """Return the row of each range's parent, or ``None`` for an outermost range."""
    above = parent[np.array(indices, np.int64)].tolist()
    return [int(row[index]) if index >= 0 else None for index in above]


def by_start(start: Ints, end: Ints, row: Ints) -> Ints:
    """Return the order in which nsys lists ranges. Shapes ``(n,)``.

    If ranges start together, the first to end is first, as in the only two known cases.
    """
    order: Ints = np.lexsort((row, end, start))
    return order


def pids(thread: Ints) -> list[int]:
    """Return the process numbers in NVIDIA's serialised thread ids."""
    numbers: list[int] = pid_of(thread).tolist()
    return numbers


def tids(thread: Ints) -> list[int]:
    """Return the thread numbers in NVIDIA's serialised thread ids."""
    numbers: list[int] = tid_of(thread).tolist()
    return numbers


def style(is_push_pop: bool) -> str:
    """Return nsys's word for push/pop and for start/end ranges."""
    return "PushPop" if is_push_pop else "StartEnd"


NESTED = (
    Column("level", header="Lvl", label="level", unit=Unit.NUMBER, importance=4),
    Column("child_count", header="NumChild", label="children", unit=Unit.COUNT, importance=4),
    Column("row", header="RangeId", label="id", unit=Unit.NUMBER, importance=5),
    Column("parent_row", header="ParentId", label="parent", unit=Unit.NUMBER, importance=5),
    Column("stack", header="RangeStack", label="stack", importance=6),
)
"""The place of a range among the ranges around it."""
_TRACE_COLUMNS = (
    START,
    END.with_importance(4),
    DURATION,
    Column(
        "child_time", header="DurChild (ns)", label="children", unit=Unit.DURATION, compared="duration", importance=3
    ),
    Column("self_time", header="DurNonChild (ns)", label="self", unit=Unit.DURATION, compared="duration", importance=1),
    NAME.with_importance(5),
    PID.with_importance(2),
    TID.with_importance(1),
    *NESTED,
    Column("tree", header="NameTree", label="range"),
)


def _of_one_style(session: Session, selection: Selection, types: tuple[int, ...], name: str) -> TableAnswer:
    answer = nvtx_summary(session, selection, types=types)
    return replace(answer.with_columns(tuple(column for column in answer.columns if column.key != "style")), name=name)


@dataclass(frozen=True, eq=False)
class _Nested(Ranges):
    """Push/pop ranges with their parents, as indices or -1, and the other fields of `nesting.Nesting`."""

    parent: Ints
    level: Ints
    child_time: Ints
    child_count: Ints

    @classmethod
    def of(cls, ranges: Ranges, offset: int) -> _Nested:
        """Nest push/pop ranges; ``offset``: the number of ranges of earlier reports."""
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
        selected = np.array(indices, np.int64)
        start, end, child_time = self.start[selected], self.end[selected], self.child_time[selected]
        names = [texts[number] for number in self.name[selected].tolist()]
        levels = self.level[selected].tolist()
        columns = (
            start.tolist(),
            end.tolist(),
            (end - start).tolist(),
            child_time.tolist(),
            (end - start - child_time).tolist(),
            names,
            pids(self.thread[selected]),
            tids(self.thread[selected]),
            levels,
            self.child_count[selected].tolist(),
            self.row[selected].tolist(),
            parent_rows(indices, self.parent, self.row),
            stacks(indices, self.parent, self.row),
            ["--" * min(level, MAX_LEVELS) + name for level, name in zip(levels, names, strict=True)],
        )
        return list(zip(*columns, strict=True))


def _push_pop_trace(session: Session, selection: Selection, _: ReportOptions) -> RangeTrace:
    """Answer ``nvtx_pushpop_trace``: all ranges with children and parents, by start in job time."""
    texts, parts, offset = Texts(), [], 0
    for report in session.reports:
        ranges = ranges_as_nsys(session, report, selection, texts)
        part = _Nested.of(ranges.only(ranges.is_push_pop), offset)
        parts.append(part)
        offset += len(part)
    nested = joined(parts)
    order = by_start(nested.start, nested.end, nested.row)
    selected = order[matching(texts, selection)[nested.name[order]]]
    notes = (*missing_notes(session, tables.nvtx_ranges), depth_note(nested.level))
    rows = partial(nested.rows, texts.texts)
    total = len(order) if selection.is_everything else None
    return RangeTrace("nvtx-pushpop-trace", _TRACE_COLUMNS, selected, rows, tuple(filter(None, notes)), total)


ASK: dict[str, AskReport] = {
    "nvtx_sum": lambda session, selection, _: replace(nvtx_summary(session, selection), name="nvtx-sum"),
    "nvtx_pushpop_sum": lambda session, selection, _: _of_one_style(
        session, selection, PUSH_POP_TYPES, "nvtx-pushpop-sum"
    ),
    "nvtx_startend_sum": lambda session, selection, _: _of_one_style(
        session, selection, START_END_TYPES, "nvtx-startend-sum"
    ),
    "nvtx_pushpop_trace": _push_pop_trace,
}
