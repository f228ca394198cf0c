"""What the NVTX reports of ``nsys stats`` read of one export: ranges, launching API calls, numbered texts.

Each table is narrowed by the selection on its own, as nsys does it: a call in the window stands outside of every range
if its range is not in the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection
from nsystui.exports.identifiers import pid_of, tid_of
from nsystui.questions.conditions import Condition, job_start, where
from nsystui.questions.nvtx.listing import last_times
from nsystui.questions.nvtx.ranges import LABEL, PUSH_POP_TYPES, START_END_TYPES, Flags, Ints, SmallInts
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

Held = TypeVar("Held", bound=Any)

ALL_TYPES = (*PUSH_POP_TYPES, *START_END_TYPES)


@dataclass
class Texts:
    """Texts by number, the same numbers over all reports: a million rows share a few hundred long names."""

    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The texts in the order of their numbers."""
        return list(self.numbers)

    def numbered(self, text: str) -> int:
        """The number of ``text``, a new one if it has none."""
        return self.numbers.setdefault(text, len(self.numbers))

    def ranks(self) -> Ints:
        """The place of each text in alphabetical (code point) order; shape ``(len(texts),)``."""
        ranks = np.empty(len(self.numbers), np.int64)
        ranks[[number for _, number in sorted(self.numbers.items())]] = np.arange(len(ranks))
        return ranks


@dataclass(frozen=True)
class TextColumn:
    """The distinct texts of a column as a table to join with, so that a query brings numbers instead of texts."""

    text: sa.ColumnElement[str]
    distinct: sa.Subquery
    first_rows: Ints
    numbers: SmallInts

    @classmethod
    def of(
        cls,
        session: Session,
        texts: Texts,
        table: sa.Table,
        text: sa.ColumnElement[str],
        conditions: Sequence[Condition],
    ) -> TextColumn:
        """Numbers the texts of the rows that meet ``conditions``, which must be of one report; NULL is empty."""
        filled = sa.func.coalesce(text, "", type_=sa.Text)
        first = sa.func.min(table.c.row).label("first")
        query = sa.select(filled.label("text"), first).where(*conditions).group_by(filled)
        names, rows = (np.ma.getdata(held) for held in session.arrays(query.order_by(first)).values())
        return cls(filled, query.subquery(), rows, np.array([texts.numbered(name) for name in names], np.int32))

    @property
    def first(self) -> sa.ColumnElement[int]:
        """What a query selects in place of the text: the first row that has it."""
        return self.distinct.c.first

    @property
    def is_joined(self) -> Condition:
        """The condition on which ``distinct`` is joined."""
        return self.distinct.c.text == self.text

    def of_rows(self, first: Ints) -> SmallInts:
        """The numbers of the texts of rows by what ``first`` gave for them."""
        numbers: SmallInts = self.numbers[np.searchsorted(self.first_rows, first)]
        return numbers


@dataclass(frozen=True, eq=False)
class Ranges:
    """n ranges of one report, by start and row. Shapes ``(n,)``; times are job time in ns.

    ``name``: the number of ``domain:text``. ``row``: nsys's ``RangeId``. A range that was never closed ends at the last
    time of the NVTX table of its report.
    """

    name: SmallInts
    row: Ints
    start: Ints
    end: Ints
    thread: Ints
    is_push_pop: Flags

    def __len__(self) -> int:
        return len(self.row)


def read_ranges(
    session: Session, report: Report, selection: Selection, texts: Texts, types: Sequence[int] = ALL_TYPES
) -> Ranges:
    """The selected ranges of the event types; the name filter is left out, for it must not change the nesting.

    Ranges that ended on another thread than they began on are left out too: no thread contains them.
    """
    session = session.part([report.index])
    table, last = tables.nvtx_ranges, last_times()
    columns = table.c
    conditions = [
        columns.report == report.index,
        columns.start.is_not(None),
        columns.event_type.in_(types),
        sa.or_(columns.end_thread.is_(None), columns.end_thread == columns.thread),
        *where(table, selection),
    ]
    names = TextColumn.of(session, texts, table, LABEL, conditions)
    query = (
        sa.select(
            names.first.label("name"),
            columns.row,
            job_start(table).label("start"),
            (sa.func.coalesce(columns.end, last.c.time) + columns.clock_offset).label("end"),
            sa.func.coalesce(columns.thread, 0).label("thread"),
            columns.event_type.in_(PUSH_POP_TYPES).label("is_push_pop"),
        )
        .select_from(table.join(names.distinct, names.is_joined).join(last, last.c.report == columns.report))
        .where(*conditions)
        .order_by(columns.start, columns.row)
    )
    first, row, start, end, thread, is_push_pop = (np.ma.getdata(held) for held in session.arrays(query).values())
    return Ranges(names.of_rows(first), row, start, np.maximum(start, end), thread, is_push_pop)


@dataclass(frozen=True, eq=False)
class Launches:
    """m API calls that launched GPU work. Shapes ``(m,)``; times are job time in ns.

    ``op_start``, ``op_end``: the first start and last end of the kernels, copies and memsets of their correlation id.
    """

    start: Ints
    end: Ints
    thread: Ints
    correlation: Ints
    op_start: Ints
    op_end: Ints


def read_launches(session: Session, report: Report, selection: Selection) -> Launches:
    """The selected calls with selected work of a report. Whole CUDA graph launches are no work here, as in nsys."""
    calls, work = selected_calls(report, selection), _work(report, selection)
    query = sa.select(
        calls.c.start, calls.c.end, calls.c.thread, calls.c.correlation_id, work.c.first, work.c.last
    ).join_from(calls, work, launched(calls, work))
    found = session.part([report.index]).arrays(query)
    start, end, thread, correlation, first, last = map(np.ma.getdata, found.values())
    moved = report.clock_offset
    return Launches(start + moved, end + moved, thread, correlation, first + moved, last + moved)


def launched(calls: sa.Subquery, work: sa.FromClause) -> Condition:
    """The condition on which the calls of a report are joined with GPU work of the same report."""
    return sa.and_(work.c.process == calls.c.process, work.c.correlation_id == calls.c.correlation_id)


def selected_calls(report: Report, selection: Selection) -> sa.Subquery:
    """The selected API calls of a report, on its own clock, with the rows that ``--cudabacktrace`` writes twice.

    nsys counts those too, so that the work of such a call counts twice wherever it does not count distinct ids.
    """
    parts = []
    for table in (tables.api_calls, tables.api_backtraces):
        columns = table.c
        parts.append(
            sa.select(columns.start, columns.end, columns.thread, columns.process, columns.correlation_id).where(
                columns.report == report.index,
                columns.start.is_not(None),
                columns.end.is_not(None),
                *where(table, selection),
            )
        )
    return sa.union_all(*parts).subquery()


def _work(report: Report, selection: Selection) -> sa.Subquery:
    """One row for each (process, correlation id): from when to when the GPU did the selected work of it."""
    parts = []
    for table in (tables.kernels, tables.memory_ops):
        columns = table.c
        parts.append(
            sa.select(columns.process, columns.correlation_id, columns.start, columns.end).where(
                columns.report == report.index,
                columns.correlation_id.is_not(None),
                columns.end.is_not(None),
                *where(table, selection),
            )
        )
    work = sa.union_all(*parts).subquery()
    return (
        sa.select(
            work.c.process,
            work.c.correlation_id,
            sa.func.min(work.c.start).label("first"),
            sa.func.max(work.c.end).label("last"),
        )
        .group_by(work.c.process, work.c.correlation_id)
        .subquery()
    )


def matching(texts: Texts, selection: Selection) -> Flags:
    """Whether each text passes the name filter; shape ``(len(texts),)``."""
    wanted = selection.name
    if wanted is None:
        return np.ones(len(texts.numbers), np.bool_)
    return np.array([wanted.matches(text) for text in texts.numbers], np.bool_)


def joined(parts: Sequence[Held]) -> Held:
    """Frozen dataclasses of arrays of one kind as one, the rows of each part behind those of the parts before it."""
    arrays = {item.name: np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(parts[0])}
    return replace(parts[0], **arrays)


def pids(thread: Ints) -> list[int]:
    """The process numbers of NVIDIA's serialised thread ids."""
    numbers: list[int] = pid_of(thread).tolist()
    return numbers


def tids(thread: Ints) -> list[int]:
    """The thread numbers of NVIDIA's serialised thread ids."""
    numbers: list[int] = tid_of(thread).tolist()
    return numbers


def style(is_push_pop: bool) -> str:
    """How nsys calls the two sorts of ranges."""
    return "PushPop" if is_push_pop else "StartEnd"
