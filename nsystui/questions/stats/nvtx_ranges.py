"""NVTX ranges on the CPU, as in ``nsys stats`` (docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsystui.base.answer import DURATION, END, NAME, PID, START, TID, Column, Row, TableAnswer, Unit, Value, order_of
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


@dataclass(frozen=True, eq=False)
class NestedRanges(Ranges):
    """Ranges with their parents, as indices or -1. Shapes ``(n,)``.

    ``level``: the number of ranges around each. ``child_count``: the number of direct children.
    """

    parent: Ints
    level: Ints
    child_count: Ints

    def cells(self, indices: Ints, texts: Sequence[str]) -> dict[str, Sequence[Value]]:
        """Return the cells of these ranges in a trace, by key of its columns."""
        part = self.only(indices)
        return {
            "name": [texts[number] for number in part.name.tolist()],
            "start": part.start.tolist(),
            "duration": (part.end - part.start).tolist(),
            "style": [style(flag) for flag in part.is_push_pop.tolist()],
            "pid": pid_of(part.thread).tolist(),
            "tid": tid_of(part.thread).tolist(),
            "level": part.level.tolist(),
            "child_count": part.child_count.tolist(),
            "row": part.row.tolist(),
            "parent_row": [int(self.row[index]) if index >= 0 else None for index in part.parent.tolist()],
            "stack": _stacks(indices.tolist(), self.parent, self.row),
        }


@dataclass(frozen=True)
class RangeTrace:
    """A row of each of ``ranges`` in ``order``; the negative numbers in it, from -1 down, are rows of ``outside``."""

    name: str
    columns: tuple[Column, ...]
    ranges: NestedRanges
    texts: Sequence[str]
    order: Ints
    outside: Sequence[Row] = ()
    notes: tuple[str, ...] = ()
    total: int | None = None

    @classmethod
    def of(
        cls, name: str, columns: tuple[Column, ...], ranges: NestedRanges, texts: Texts, selection: Selection,
        notes: Sequence[str], outside: Sequence[Row] = (),
    ) -> RangeTrace:  # fmt: skip
        """Return the ranges that the selection names, as nsys orders them by start, after ``outside``.

        If ranges start together, the first to end is first, as in the only two known cases.
        """
        order = np.lexsort((ranges.row, ranges.end, ranges.start))
        order = np.concatenate((-1 - np.arange(len(outside)), order[matching(texts, selection)[ranges.name[order]]]))
        levels = int(ranges.level.max(initial=0)) + 1
        if levels > MAX_LEVELS:
            stack = f"RangeStack has the {MAX_LEVELS} innermost, ParentId leads to all"
            notes = (*notes, f"ranges are nested {levels:,} levels deep: {stack}")
        total = len(order) if selection.is_everything else None
        return cls(name, columns, ranges, texts.texts, order, outside, tuple(notes), total)

    def __len__(self) -> int:
        return len(self.order)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self._rows(self.order[offset : offset + limit])

    def sorted_by(self, key: str, descending: bool) -> RangeTrace:
        column_index = [column.key for column in self.columns].index(key)
        values = [row[column_index] for row in self._rows(self.order)]
        return replace(self, order=self.order[order_of(values, descending)])

    def _rows(self, indices: Ints) -> list[Row]:
        cells = self.ranges.cells(indices[indices >= 0], self.texts)
        rows: Iterator[Row] = zip(*(cells[column.key] for column in self.columns), strict=True)
        return [next(rows) if index >= 0 else self.outside[-1 - index] for index in indices.tolist()]


MAX_LEVELS = 100
"""Limit of the levels in texts: all levels of deep chains would take gigabytes."""


def _stacks(indices: Sequence[int], parent: Ints, row: Ints) -> list[str]:
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


def _of_one_style(name: str, types: tuple[int, ...]) -> AskReport:
    def ask(session: Session, selection: Selection, _: ReportOptions) -> TableAnswer:
        answer = nvtx_summary(session, selection, types=types)
        columns = tuple(column for column in answer.columns if column.key != "style")
        return replace(answer.with_columns(columns), name=name)

    return ask


@dataclass(frozen=True, eq=False)
class _PushPopRanges(NestedRanges):
    """Push/pop ranges; ``child_time``: see `nesting.Nesting`."""

    child_time: Ints

    def cells(self, indices: Ints, texts: Sequence[str]) -> dict[str, Sequence[Value]]:
        cells, part = super().cells(indices, texts), self.only(indices)
        levels = np.minimum(part.level, MAX_LEVELS).tolist()
        return {
            **cells,
            "end": part.end.tolist(),
            "child_time": part.child_time.tolist(),
            "self_time": (part.end - part.start - part.child_time).tolist(),
            "tree": ["--" * level + str(name) for level, name in zip(levels, cells["name"], strict=True)],
        }


def _push_pop_trace(session: Session, selection: Selection, _: ReportOptions) -> RangeTrace:
    """Answer ``nvtx_pushpop_trace``: all ranges with children and parents, by start in job time."""
    texts, parts, offset = Texts(), [], 0
    for report in session.reports:
        ranges = ranges_as_nsys(session, report, selection, texts)
        ranges = ranges.only(ranges.is_push_pop)
        nesting = nest(ranges.start, ranges.end, ranges.thread)
        parent = np.where(nesting.parent == NO_PARENT, NO_PARENT, nesting.parent + offset)
        nested = {key: getattr(nesting, key) for key in ("level", "child_count", "child_time")}
        parts.append(_PushPopRanges(**vars(ranges), parent=parent, **nested))
        offset += len(ranges)
    notes = missing_notes(session, tables.nvtx_ranges)
    return RangeTrace.of("nvtx-pushpop-trace", _TRACE_COLUMNS, joined(parts), texts, selection, notes)


ASK: dict[str, AskReport] = {
    "nvtx_sum": lambda session, selection, _: replace(nvtx_summary(session, selection), name="nvtx-sum"),
    "nvtx_pushpop_sum": _of_one_style("nvtx-pushpop-sum", PUSH_POP_TYPES),
    "nvtx_startend_sum": _of_one_style("nvtx-startend-sum", START_END_TYPES),
    "nvtx_pushpop_trace": _push_pop_trace,
}
