"""NVTX ranges on the CPU, as ``nsys stats`` has them (docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nsystui.base.answer import DURATION, END, NAME, PID, START, TID, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.exports.metadata import pid_of, tid_of
from nsystui.questions.algebra.nesting import NO_PARENT, nest
from nsystui.questions.nvtx.listing import nvtx_summary
from nsystui.questions.nvtx.loading import (
    PUSH_POP_TYPES,
    START_END_TYPES,
    Ints,
    Ranges,
    Texts,
    joined,
    matching,
    ranges_as_nsys,
)
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.stats.report import Ask, ReportOptions
from nsystui.store import tables
from nsystui.store.session import Session


@dataclass(frozen=True)
class RangeTrace:
    """An answer whose row i is that of ``rows`` for ``order[i]``."""

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
        place = [column.key for column in self.columns].index(key)
        values = [row[place] for row in self.rows(self.order.tolist())]
        known = [index for index, value in enumerate(values) if value is not None]
        unknown = [index for index, value in enumerate(values) if value is None]
        known.sort(key=lambda index: values[index], reverse=descending)  # type: ignore[arg-type, return-value]
        return replace(self, order=self.order[known + unknown])


MOST_AROUND = 100
"""The levels of a range that its texts show: with all levels of deep chains they would take gigabytes."""


def stacks(indices: Sequence[int], parent: Ints, row: Ints) -> list[str]:
    """``:35:37:38`` for each of the ranges: the rows of those around it from the outermost on, then its own.

    Of more than `MOST_AROUND` the innermost, after ``:…``.
    """
    known: dict[int, str] = {}
    for index in indices:
        chain: list[int] = []
        at = index
        while at >= 0 and at not in known and len(chain) <= MOST_AROUND:
            chain.append(at)
            at = int(parent[at])
        if len(chain) > MOST_AROUND:
            known[index] = ":…" + "".join(f":{row[inner]}" for inner in chain[MOST_AROUND - 1 :: -1])
            continue
        text = known.get(at, "")
        for inner in reversed(chain):
            text = f"{text}:{row[inner]}"
            if (deeper := text.count(":") - MOST_AROUND) > 0:
                text = ":…:" + text.split(":", deeper + 1)[-1]
            known[inner] = text
    return [known[index] for index in indices]


def depth_note(level: Ints) -> str:
    """What is to be said of ranges on these levels; empty where nothing is."""
    levels = int(level.max(initial=0)) + 1
    note = (
        f"ranges are nested {levels:,} levels deep: RangeStack has the {MOST_AROUND} innermost, ParentId leads to all"
    )
    return note if levels > MOST_AROUND else ""


def parent_rows(indices: Sequence[int], parent: Ints, row: Ints) -> list[int | None]:
    """The row of the range right around each of the ranges, ``None`` for an outermost one."""
    above = parent[np.array(indices, np.int64)].tolist()
    return [int(row[index]) if index >= 0 else None for index in above]


def by_start(start: Ints, end: Ints, row: Ints) -> Ints:
    """The order in which nsys lists ranges. Shapes ``(n,)``.

    Of ranges that start together the one that ends first comes first: so it is in the only two cases known.
    """
    order: Ints = np.lexsort((row, end, start))
    return order


def pids(thread: Ints) -> list[int]:
    """The process numbers of NVIDIA's serialised thread ids."""
    numbers: list[int] = pid_of(thread).tolist()
    return numbers


def tids(thread: Ints) -> list[int]:
    """The thread numbers of NVIDIA's serialised thread ids."""
    numbers: list[int] = tid_of(thread).tolist()
    return numbers


def style(is_push_pop: bool) -> str:
    """The word of nsys for push/pop and for start/end ranges."""
    return "PushPop" if is_push_pop else "StartEnd"


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
    Column("level", header="Lvl", label="level", unit=Unit.NUMBER, importance=4),
    Column("child_count", header="NumChild", label="children", unit=Unit.COUNT, importance=4),
    Column("row", header="RangeId", label="id", unit=Unit.NUMBER, importance=5),
    Column("parent_row", header="ParentId", label="parent", unit=Unit.NUMBER, importance=5),
    Column("stack", header="RangeStack", label="stack", importance=6),
    Column("tree", header="NameTree", label="range"),
)


def _of_one_style(session: Session, selection: Selection, types: tuple[int, ...], name: str) -> TableAnswer:
    answer = nvtx_summary(session, selection, types=types)
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
            ["--" * min(level, MOST_AROUND) + name for level, name in zip(levels, names, strict=True)],
        )
        return list(zip(*columns, strict=True))


def _push_pop_trace(session: Session, selection: Selection, _: ReportOptions) -> RangeTrace:
    """``nvtx_pushpop_trace``: every range with its children and the ranges around it, by start in job time."""
    texts, parts, before = Texts(), [], 0
    for report in session.reports:
        ranges = ranges_as_nsys(session, report, selection, texts)
        part = _Nested.of(ranges.only(ranges.is_push_pop), before)
        parts.append(part)
        before += len(part)
    nested = joined(parts)
    order = by_start(nested.start, nested.end, nested.row)
    chosen = order[matching(texts, selection)[nested.name[order]]]
    notes = (missing_note(session, tables.nvtx_ranges), depth_note(nested.level))
    rows = partial(nested.rows, texts.texts)
    total = len(order) if selection.is_everything else None
    return RangeTrace("nvtx-pushpop-trace", _TRACE_COLUMNS, chosen, rows, tuple(filter(None, notes)), total)


ASK: dict[str, Ask] = {
    "nvtx_sum": lambda session, selection, _: replace(nvtx_summary(session, selection), name="nvtx-sum"),
    "nvtx_pushpop_sum": lambda session, selection, _: _of_one_style(
        session, selection, PUSH_POP_TYPES, "nvtx-pushpop-sum"
    ),
    "nvtx_startend_sum": lambda session, selection, _: _of_one_style(
        session, selection, START_END_TYPES, "nvtx-startend-sum"
    ),
    "nvtx_pushpop_trace": _push_pop_trace,
}
