"""The loader of NVTX: the ranges of a report, and the API calls whose GPU work is projected onto them.

The screens and the reports of ``nsys stats`` both read through it (docs/exports.md#nvtx, docs/exports.md#launches) and
differ in what they ask for:

* The screens read a report whole, so that what they compute is kept. A range that never ended has no length, and
  whole CUDA graph launches are GPU work.
* ``nsys stats`` narrows each table by the selection on its own: a call in the window lies outside every range if its
  range is not in the window. An unfinished range ends at the last time in the NVTX table, the second row that
  ``--cudabacktrace`` writes for a call is a call too, and whole graph launches are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.questions.algebra.projection import LaunchCalls
from nsystui.questions.events.kinds import KIND_TABLES, EventKind
from nsystui.questions.queries.conditions import Condition, where
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]
Flags = NDArray[np.bool_]
Arrays = TypeVar("Arrays", bound=Any)

LABEL = KIND_TABLES[EventKind.NVTX].name
"""The name of a range in SQL as nsys writes it: ``domain:text``, and the bare text in the default domain."""

_SUFFIXES = [sa.func.nullif(sa.func.instr(LABEL, f", {word} ="), 0) for word in ("seq", "op_id", "sizes")]
_FOLDED = sa.func.coalesce(sa.func.left(LABEL, sa.func.least(*_SUFFIXES) - 1), LABEL)
FOLDED_LABEL = sa.func.coalesce(sa.func.nullif(_FOLDED, ""), "[no name]", type_=sa.Text)
"""The same without what PyTorch appends to the names of operators (``, seq = 7, op_id = 9, sizes = …``)."""

PUSH_POP_TYPES = (59, 70)
START_END_TYPES = (60, 71)

_CALL_TABLES = (tables.api_calls, tables.api_backtraces)
_GPU_TABLES_OF_NSYS = (tables.kernels, tables.memory_ops)
_SLICE_CALLS = 1 << 17, 1 << 19
_CALL = 160
"""The fewest and most calls of a slice, and the bytes that each takes with its GPU operation."""


@dataclass
class Texts:
    """Texts by number: a million rows share a few hundred long names, and several reports the same numbers."""

    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The texts in the order of their numbers."""
        return list(self.numbers)

    def coded(self, texts: NDArray[Any]) -> SmallInts:
        """Return the numbers of ``texts``; a text that has none yet gets the next one."""
        numbers, listed = self.numbers, texts.tolist()
        for text in dict.fromkeys(listed):
            numbers.setdefault(text, len(numbers))
        return np.fromiter(map(numbers.__getitem__, listed), np.int32, len(listed))

    def ranks(self) -> Ints:
        """Return the position of each text in alphabetical (code point) order; shape ``(len(texts),)``."""
        ranks = np.empty(len(self.numbers), np.int64)
        ranks[[self.numbers[text] for text in sorted(self.numbers)]] = np.arange(len(ranks))
        return ranks


def coded_arrays(
    session: Session, query: sa.Select[Any], types: Mapping[str, type[np.generic]], texts: Mapping[str, Texts]
) -> dict[str, NDArray[Any]]:
    """Read the columns of ``query`` named in ``types``, none of which may have missing values; text columns as numbers.

    A text is in memory once, however many rows have it: the rows are read a batch at a time. ``texts`` has the numbers
    of each text column.
    """
    batches = []
    for batch in session.array_batches(query):
        coded = {key: numbers.coded(batch[key]) for key, numbers in texts.items()}
        batches.append({key: coded.get(key, batch[key]).astype(kind) for key, kind in types.items()})
    if not batches:
        return {key: np.empty(0, kind) for key, kind in types.items()}
    columns = {}
    for key in types:
        columns[key] = np.concatenate([batch.pop(key) for batch in batches])
        if len(batches) > 1:
            give_back()
    return columns


@dataclass(frozen=True, eq=False)
class Ranges:
    """n ranges of one report, ordered by start and row. Shapes ``(n,)``; times in ns on the report's own clock.

    ``name``: a number of the texts that the ranges were read with. ``row``: nsys's ``RangeId``. ``thread``: NVIDIA's
    globalTid, 0 where the export has none. ``is_open``: the range was never closed. ``is_whole``: it ended on the
    thread it began on.
    """

    name: SmallInts
    row: Ints
    start: Ints
    end: Ints
    thread: Ints
    is_push_pop: Flags
    is_open: Flags
    is_whole: Flags

    def __len__(self) -> int:
        return len(self.row)

    def only(self, chosen: Flags | Ints) -> Self:
        """Return the ranges that are ``chosen``, by a flag for each of them or by their indices."""
        return replace(self, **{item.name: getattr(self, item.name)[chosen] for item in fields(self)})

    def moved(self, offset: int) -> Self:
        """Return the ranges with ``offset`` (ns) added to their times."""
        return replace(self, start=self.start + offset, end=self.end + offset)


_RANGE_TYPES: dict[str, type[np.generic]] = {
    "row": np.int64,
    "start": np.int64,
    "end": np.int64,
    "thread": np.int64,
    "is_push_pop": np.bool_,
    "is_open": np.bool_,
    "is_whole": np.bool_,
}


def read_ranges(
    session: Session,
    report: Report,
    texts: Texts,
    label: sa.ColumnElement[Any] = LABEL,
    end_of_open: int = 0,
    conditions: Iterable[Condition] = (),
    name_size: int = 0,
) -> Ranges:
    """Read the ranges of ``report`` that meet ``conditions``, named by ``label``.

    ``end_of_open`` is the time at which a range ends that was never closed; a range does not end before its start.
    ``name_size`` is how many bytes a name takes in the answer: raises ExportError for more names than fit into the
    limit of memory.
    """
    parts = []
    for part in range_parts(session, report, texts, label, end_of_open, conditions):
        session.limits.check_held(report.path, len(texts.numbers), name_size, "names of NVTX ranges")
        parts.append(part)
    found = joined(parts) if len(parts) > 1 else parts[0]
    order: Ints = np.lexsort((found.row, found.start))
    return found if bool((np.diff(order) > 0).all()) else found.only(order)


_SLICE_RANGES = 1 << 18
NAME_SIZE = 900
"""Bytes that a name takes in a report of ``nsys stats``, with its ranges and its row."""


def range_parts(
    session: Session,
    report: Report,
    texts: Texts,
    label: sa.ColumnElement[Any] = LABEL,
    end_of_open: int = 0,
    conditions: Iterable[Condition] = (),
) -> Iterator[Ranges]:
    """Yield the ranges of `read_ranges` a slice of the rows at a time, in no order."""
    columns, part = tables.nvtx_ranges.c, session.part([report.index])
    thread = sa.func.coalesce(columns.thread, 0)
    query = sa.select(
        columns.start,
        sa.func.greatest(columns.start, sa.func.coalesce(columns.end, end_of_open)).label("end"),
        columns.end.is_(None).label("is_open"),
        thread.label("thread"),
        (sa.func.coalesce(columns.end_thread, thread) == thread).label("is_whole"),
        columns.event_type.in_(PUSH_POP_TYPES).label("is_push_pop"),
        columns.row,
        sa.func.coalesce(label, "").label("name"),
    ).where(columns.report == report.index, columns.start.is_not(None), *conditions)
    slices: list[Condition] = [sa.true()]
    if (count := report.count(tables.nvtx_ranges)) > _SLICE_RANGES:
        mine = columns.report == report.index
        ((first, last),) = part.rows(sa.select(sa.func.min(columns.row), sa.func.max(columns.row)).where(mine))
        width = -(-(last - first + 1) * _SLICE_RANGES // count)
        slices = [columns.row.between(start, start + width - 1) for start in range(first, last + 1, width)]
    for rows in slices:
        found = part.arrays(query.where(rows))
        values = {key: np.ma.getdata(found[key]).astype(kind, copy=False) for key, kind in _RANGE_TYPES.items()}
        yield Ranges(name=texts.coded(np.ma.getdata(found["name"])), **values)


def ranges_as_nsys(session: Session, report: Report, selection: Selection, texts: Texts) -> Ranges:
    """Read the selected ranges of a report in job time, for ``nsys stats``.

    The name filter is left out, for it must not change the nesting. A range that ended on another thread than it began
    on is left out too: no thread contains it.
    """
    last = last_times()
    end = session.part([report.index]).scalar(sa.select(last.c.time).where(last.c.report == report.index))
    chosen = where(tables.nvtx_ranges, selection)
    ranges = read_ranges(session, report, texts, end_of_open=end or 0, conditions=chosen, name_size=NAME_SIZE)
    return ranges.only(ranges.is_whole).moved(report.clock_offset)


def last_times() -> sa.Subquery:
    """Select the last time in the NVTX tables of each report, on its own clock."""
    ranges, marks = tables.nvtx_ranges.c, tables.nvtx_marks.c
    times = sa.union_all(
        sa.select(ranges.report, sa.func.greatest(ranges.start, ranges.end).label("time")),
        sa.select(marks.report, marks.start.label("time")),
    ).subquery()
    return sa.select(times.c.report, sa.func.max(times.c.time).label("time")).group_by(times.c.report).subquery()


def has_launches(report: Report) -> bool:
    """Tell whether a report says which range launched which GPU work: it has API calls and GPU work."""
    return bool(report.count(tables.api_calls)) and any(report.count(table) for table in GPU_TABLES)


@dataclass(frozen=True, eq=False)
class LaunchCallColumns(LaunchCalls):
    """m API calls that launched GPU work, with the correlation id of each. Shapes ``(m,)``."""

    correlation: Ints

    def on_lanes(self, threads: Ints) -> LaunchCallColumns:
        """Return the calls with the places of their threads among ``threads``, ascending, instead of these."""
        return replace(self, threads=np.searchsorted(threads, self.threads))

    def moved(self, offset: int) -> LaunchCallColumns:
        """Return the calls with ``offset`` (ns) added to their times and to those of their GPU work."""
        keys = ("starts", "ends", "op_start", "op_end")
        return replace(self, **{key: getattr(self, key) + offset for key in keys})


def launch_parts(session: Session, report: Report, selection: Selection, threads: Ints) -> Iterator[LaunchCallColumns]:
    """Yield the launching calls of ``threads`` (globalTid) of ``report``, some at a time; times on its own clock.

    Only the devices and streams of the selection count: operations elsewhere are not projected.
    """
    chosen = Selection(devices=selection.devices, streams=selection.streams)
    calls = _selected([tables.api_calls], _LAUNCH_KEYS, chosen, report)
    work = _selected([tables.of(table) for table in GPU_TABLES], _WORK_KEYS, chosen, report)
    return _launch_parts(session, calls, [calls.c.thread.in_(threads.tolist())], work)


def launch_parts_as_nsys(session: Session, report: Report, selection: Selection) -> Iterator[LaunchCallColumns]:
    """Yield the selected calls with selected GPU work of a report in job time, some at a time, for ``nsys stats``.

    All calls of a correlation id are in one part.
    """
    calls = calls_as_nsys(selection, _LAUNCH_KEYS, report)
    work = _selected(_GPU_TABLES_OF_NSYS, _WORK_KEYS, selection, report)
    return (part.moved(report.clock_offset) for part in _launch_parts(session, calls, [], work))


def calls_as_nsys(selection: Selection, keys: Sequence[str], report: Report | None = None) -> sa.Subquery:
    """Select the columns ``keys`` of the selected API calls, with the second rows that ``--cudabacktrace`` writes.

    nsys counts those too: the GPU work of such a call counts twice wherever it does not count distinct ids.
    """
    return _selected(_CALL_TABLES, keys, selection, report)


_WORK_KEYS = ("report", "process", "correlation_id", "start", "end")
_LAUNCH_KEYS = (*_WORK_KEYS, "thread")


def _selected(
    of_tables: Sequence[sa.Table], keys: Sequence[str], selection: Selection, report: Report | None
) -> sa.Subquery:
    """The columns ``keys`` of the selected rows of some tables, of one report or of all."""
    parts = []
    for table in of_tables:
        is_own = [] if report is None else [table.c.report == report.index]
        parts.append(sa.select(*[table.c[key] for key in keys]).where(*where(table, selection), *is_own))
    return sa.union_all(*parts).subquery()


def _launch_parts(
    session: Session, calls: sa.Subquery, conditions: Sequence[Condition], work: sa.Subquery
) -> Iterator[LaunchCallColumns]:
    """The calls of a report that meet ``conditions`` and launched some of ``work``, a slice of the ids at a time."""
    ids = calls.c.correlation_id
    ((count, first, last),) = session.rows(sa.select(sa.func.count(), sa.func.min(ids), sa.func.max(ids)))
    first, last = first or 0, last or 0
    # The ids count up with the calls: a slice of them lies in few row groups of every table.
    least, most = _SLICE_CALLS
    width = -(-(last - first + 1) // max(count // max(min(session.limits.rows_at_once(_CALL), most), least), 1))
    keys = ("process", "correlation_id", "start", "end")
    for start in range(first, last + 1, width):

        def read(rows: sa.Subquery, names: Sequence[str], *those: Condition, start: int = start) -> dict[str, Ints]:
            is_there = [rows.c[name].is_not(None) for name in ("process", "start", "end")]
            in_slice = rows.c.correlation_id.between(start, start + width - 1)
            query = sa.select(*(rows.c[name] for name in names)).where(in_slice, *is_there, *those)
            return {name: np.ma.getdata(values) for name, values in session.arrays(query).items()}

        operations = _Operations.of(read(work, keys), start)
        yield operations.launched_by(read(calls, (*keys, "thread"), *conditions))


@dataclass(frozen=True, eq=False)
class _Operations:
    """The GPU operations of launches, of which each has a key, ascending: its process and correlation id.

    ``first``, ``last``, ``time``: first start, last end and summed durations of its operations. Arrays, not SQL: the
    ids of a slice lie close together and nearly in order, so that to look one up is cheaper than to join.
    """

    least: int
    processes: Ints
    key: Ints
    first: Ints
    last: Ints
    time: Ints

    @classmethod
    def of(cls, work: Mapping[str, Ints], least: int) -> _Operations:
        """``least``: the smallest id that there can be."""
        processes = np.unique(work["process"])
        keys = _launch_keys(processes, work, least)
        order = np.argsort(keys, kind="stable")
        keys, start, end = keys[order], work["start"][order], work["end"][order]
        edges = np.flatnonzero(np.diff(keys, prepend=-1))
        if not len(edges):
            return cls(least, processes, keys, start, end, start)
        first, last = np.minimum.reduceat(start, edges), np.maximum.reduceat(end, edges)
        return cls(least, processes, keys[edges], first, last, np.add.reduceat(end - start, edges))

    def launched_by(self, calls: Mapping[str, Ints]) -> LaunchCallColumns:
        """Those of ``calls`` that launched operations."""
        keys = _launch_keys(self.processes, calls, self.least)
        place = np.searchsorted(self.key, keys)
        place[place == len(self.key)] = 0
        rows = np.flatnonzero(self.key[place] == keys) if len(self.key) else place[:0]
        place = place[rows]
        start, end, thread, ids = (calls[name][rows] for name in ("start", "end", "thread", "correlation_id"))
        return LaunchCallColumns(start, end, thread, self.first[place], self.last[place], self.time[place], ids)


def _launch_keys(processes: Ints, rows: Mapping[str, Ints], least: int) -> Ints:
    """A number for the process and correlation id of each row, -1 for processes that are not among these."""
    if not len(processes):
        return np.full(len(rows["process"]), -1)
    place = np.minimum(np.searchsorted(processes, rows["process"]), len(processes) - 1)
    known = processes[place] == rows["process"]
    return np.where(known, place * _MOST_IDS + rows["correlation_id"] - least, -1)


_MOST_IDS = 1 << 33
"""More than there are correlation ids, of 32 bits."""


def matching(texts: Texts, selection: Selection) -> Flags:
    """Tell whether each text passes the name filter; shape ``(len(texts),)``."""
    wanted = selection.name
    if wanted is None:
        return np.ones(len(texts.numbers), np.bool_)
    return np.array([wanted.matches(text) for text in texts.numbers], np.bool_)


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Join frozen dataclasses of arrays of one kind, the rows of each part after those of the parts before it."""
    arrays = {item.name: np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(parts[0])}
    return replace(parts[0], **arrays)
