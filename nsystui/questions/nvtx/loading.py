"""A report's NVTX ranges, and the API calls whose GPU work is projected onto them.

The screens and the reports of ``nsys stats`` use it differently (docs/exports.md#nvtx, docs/exports.md#launches):

* The screens read all ranges of a report, so that derived results can be saved. A range that never ended has no length,
  and whole CUDA graph launches are GPU work.
* ``nsys stats`` applies the selection to each table separately: a call in the window lies outside every range if its
  range is not in the window. An unfinished range ends at the last time in the NVTX tables. The second row that
  ``--cudabacktrace`` writes for a call counts as a call, and whole graph launches are left out.
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
from nsystui.base.types import Array, Condition, Expression, Flags, Ints
from nsystui.questions.algebra.projection import LaunchCalls
from nsystui.questions.queries.conditions import label as label_of
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.store import tables
from nsystui.store.database import check_held
from nsystui.store.report import Report
from nsystui.store.session import Session

SmallInts = NDArray[np.int32]
_Arrays = TypeVar("_Arrays", bound=Any)

LABEL = label_of(tables.nvtx_ranges)
FOLDED_LABEL = tables.nvtx_ranges.c.folded
"""`LABEL` without arguments, shapes and ids of a call."""

PUSH_POP_TYPES = (59, 70)
START_END_TYPES = (60, 71)
STYLE = sa.case((tables.nvtx_ranges.c.event_type.in_(PUSH_POP_TYPES), "PushPop"), else_="StartEnd")
"""A range's style in SQL, in nsys's words."""

_CALL_TABLES = (tables.api_calls, tables.api_backtraces)
_GPU_TABLES_OF_NSYS = (tables.kernels, tables.memory_ops)
_SLICE_CALLS = 1 << 17, 1 << 19
_CALL_SIZE = 160
"""Memory for a call with its GPU operation, bytes; `_SLICE_CALLS`: fewest and most calls of a slice."""


@dataclass
class Texts:
    """Codes for texts: a million rows, also of several reports, share a few hundred long names."""

    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The texts in the order of their codes."""
        return list(self.numbers)

    def coded(self, texts: Array) -> SmallInts:
        """Return the codes of ``texts``; a new text gets the next code."""
        numbers, listed = self.numbers, texts.tolist()
        for text in dict.fromkeys(listed):
            numbers.setdefault(text, len(numbers))
        return np.fromiter(map(numbers.__getitem__, listed), np.int32, len(listed))

    def ranks(self) -> Ints:
        """Return each text's index in code point order; shape ``(len(texts),)``."""
        ranks = np.empty(len(self.numbers), np.int64)
        ranks[[self.numbers[text] for text in sorted(self.numbers)]] = np.arange(len(ranks))
        return ranks


@dataclass
class Numbers:
    """Codes for the few different numbers of long arrays, such as threads or hashes of names."""

    numbers: dict[int, int] = field(default_factory=dict)

    def coded(self, values: Array) -> SmallInts:
        """Return the codes of ``values``; a new number gets the next code."""
        unique, codes = np.unique(values, return_inverse=True)
        for value in unique[by_appearance(codes, len(unique))].tolist():
            self.numbers.setdefault(value, len(self.numbers))
        return np.array([self.numbers[value] for value in unique.tolist()], np.int32)[codes]


_BATCH_ROWS = 1 << 18


def by_appearance(codes: Array, limit: int) -> Ints:
    """Return the different codes, all below ``limit``, in order of appearance."""
    first = np.full(limit, len(codes))
    for start in range(0, len(codes), _BATCH_ROWS)[::-1]:
        batch = codes[start : start + _BATCH_ROWS]
        first[batch[::-1]] = np.arange(start, start + len(batch))[::-1]
    return np.argsort(first, kind="stable")[: int(np.count_nonzero(first < len(codes)))]


def coded_arrays(
    read: Iterable[Mapping[str, Array]],
    types: Mapping[str, type[np.generic]],
    texts: Mapping[str, Texts] | Mapping[str, Numbers],
) -> dict[str, Array]:
    """Join batches of columns as ``types``, without missing values; texts become codes of ``texts``.

    Batches keep each text in memory once.
    """
    batches = []
    for batch in read:
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

    ``name``: a code of `Texts`. ``row``: nsys's ``RangeId``. ``thread``: NVIDIA's globalTid, 0 if missing. ``is_open``:
    the range was never closed. ``is_whole``: it ended on the thread it began on.
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

    def only(self, selected: Flags | Ints) -> Self:
        """Return the ranges that are ``selected`` by flags or by indices."""
        return replace(self, **{item.name: getattr(self, item.name)[selected] for item in fields(self)})

    def moved(self, offset: int) -> Self:
        """Return the ranges with ``offset`` (ns) added to their times."""
        return replace(self, start=self.start + offset, end=self.end + offset)


_RANGE_TYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(("row", "start", "end", "thread"), np.int64),
    **dict.fromkeys(("is_push_pop", "is_open", "is_whole"), np.bool_),
}


def read_ranges(
    session: Session,
    report: Report,
    texts: Texts,
    label: Expression = LABEL,
    end_of_open: int = 0,
    conditions: Iterable[Condition] = (),
    name_size: int = 0,
) -> Ranges:
    """Read the ranges of ``report`` that meet ``conditions``, named by ``label``.

    A range that was never closed ends at ``end_of_open``, but not before its start. Raises ExportError if the names,
    with ``name_size`` bytes each, exceed the memory limit.
    """
    parts = []
    for part in range_parts(session, report, texts, label, end_of_open, conditions):
        check_held(session.limits, report.path, len(texts.numbers), name_size, "names of NVTX ranges")
        parts.append(part)
    ranges = joined(parts) if len(parts) > 1 else parts[0]
    order: Ints = np.lexsort((ranges.row, ranges.start))
    return ranges if bool((np.diff(order) > 0).all()) else ranges.only(order)


_SLICE_RANGES = 1 << 18
NAME_SIZE = 900
"""Bytes of a name in a report of ``nsys stats``, with its ranges and its row."""


def range_parts(
    session: Session,
    report: Report,
    texts: Texts,
    label: Expression = LABEL,
    end_of_open: int = 0,
    conditions: Iterable[Condition] = (),
) -> Iterator[Ranges]:
    """Yield the ranges of `read_ranges` by slices of rows, in no order."""
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
        is_of_report = columns.report == report.index
        ((first, last),) = part.rows(sa.select(sa.func.min(columns.row), sa.func.max(columns.row)).where(is_of_report))
        width = -(-(last - first + 1) * _SLICE_RANGES // count)
        slices = [columns.row.between(start, start + width - 1) for start in range(first, last + 1, width)]
    for in_slice in slices:
        arrays = part.arrays(query.where(in_slice))
        values = {key: np.ma.getdata(arrays[key]).astype(kind, copy=False) for key, kind in _RANGE_TYPES.items()}
        yield Ranges(name=texts.coded(np.ma.getdata(arrays["name"])), **values)


def ranges_as_nsys(session: Session, report: Report, selection: Selection, texts: Texts) -> Ranges:
    """Read the selected ranges of a report in job time, for ``nsys stats``.

    Ignores the name filter, which must not change the nesting. Leaves out ranges that ended on another thread, because
    no thread contains them.
    """
    last = last_times()
    end = session.part([report.index]).scalar(sa.select(last.c.time).where(last.c.report == report.index))
    conditions = where(tables.nvtx_ranges, selection)
    ranges = read_ranges(session, report, texts, end_of_open=end or 0, conditions=conditions, name_size=NAME_SIZE)
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
    """Return whether a report has API calls and GPU work to project ranges."""
    return bool(report.count(tables.api_calls)) and any(report.count(table) for table in GPU_TABLES)


@dataclass(frozen=True, eq=False)
class LaunchCallColumns(LaunchCalls):
    """m API calls that launched GPU work, with the correlation id of each. Shapes ``(m,)``."""

    correlation: Ints

    def on_lanes(self, threads: Ints) -> LaunchCallColumns:
        """Return the calls with indices into ``threads``, ascending, instead of thread ids."""
        return replace(self, threads=np.searchsorted(threads, self.threads))

    def moved(self, offset: int) -> LaunchCallColumns:
        """Return the calls with ``offset`` (ns) added to all times."""
        return replace(self, **{key: getattr(self, key) + offset for key in ("starts", "ends", "op_start", "op_end")})


def launch_parts(session: Session, report: Report, selection: Selection, threads: Ints) -> Iterator[LaunchCallColumns]:
    """Yield the launching calls of ``threads`` (globalTid) of ``report`` in parts; times on its own clock.

    Only operations on selected devices and streams count.
    """
    gpu_selection = Selection(devices=selection.devices, streams=selection.streams)
    calls = _selected([tables.api_calls], _LAUNCH_KEYS, gpu_selection, report)
    work = _selected([tables.of(table) for table in GPU_TABLES], _WORK_KEYS, gpu_selection, report)
    return _launch_parts(session, calls, [calls.c.thread.in_(threads.tolist())], work)


def launch_parts_as_nsys(session: Session, report: Report, selection: Selection) -> Iterator[LaunchCallColumns]:
    """Yield the selected calls with selected GPU work of a report in job time, in parts, for ``nsys stats``.

    All calls of a correlation id are in one part.
    """
    calls = calls_as_nsys(selection, _LAUNCH_KEYS, report)
    work = _selected(_GPU_TABLES_OF_NSYS, _WORK_KEYS, selection, report)
    return (part.moved(report.clock_offset) for part in _launch_parts(session, calls, [], work))


def calls_as_nsys(selection: Selection, keys: Sequence[str], report: Report | None = None) -> sa.Subquery:
    """Select the columns ``keys`` of the selected API calls, with the second rows that ``--cudabacktrace`` writes.

    nsys counts these too: the GPU work of such a call counts twice, except in counts of distinct ids.
    """
    return _selected(_CALL_TABLES, keys, selection, report)


_WORK_KEYS = ("report", "process", "correlation_id", "start", "end")
_LAUNCH_KEYS = (*_WORK_KEYS, "thread")


def _selected(
    source_tables: Sequence[sa.Table], keys: Sequence[str], selection: Selection, report: Report | None
) -> sa.Subquery:
    parts = []
    for table in source_tables:
        is_of_report = [] if report is None else [table.c.report == report.index]
        parts.append(sa.select(*[table.c[key] for key in keys]).where(*where(table, selection), *is_of_report))
    return sa.union_all(*parts).subquery()


def _launch_parts(
    session: Session, calls: sa.Subquery, conditions: Sequence[Condition], work: sa.Subquery
) -> Iterator[LaunchCallColumns]:
    """Yield the calls that meet ``conditions`` and launched ``work``, by slices of correlation ids."""
    ids = calls.c.correlation_id
    ((count, first, last),) = session.rows(sa.select(sa.func.count(), sa.func.min(ids), sa.func.max(ids)))
    first, last = first or 0, last or 0
    # Ids ascend with the calls, so a slice of ids lies in few row groups of each table.
    low, high = _SLICE_CALLS
    width = -(-(last - first + 1) // max(count // max(min(session.limits.rows_at_once(_CALL_SIZE), high), low), 1))
    keys = ("process", "correlation_id", "start", "end")
    for start in range(first, last + 1, width):

        def read(rows: sa.Subquery, names: Sequence[str], *extra: Condition, start: int = start) -> dict[str, Ints]:
            has_value = [rows.c[name].is_not(None) for name in ("process", "start", "end")]
            in_slice = rows.c.correlation_id.between(start, start + width - 1)
            query = sa.select(*(rows.c[name] for name in names)).where(in_slice, *has_value, *extra)
            return {name: np.ma.getdata(values) for name, values in session.arrays(query).items()}

        yield _Operations.of(read(work, keys), start).launched_by(read(calls, (*keys, "thread"), *conditions))


@dataclass(frozen=True, eq=False)
class _Operations:
    """GPU operations by launch; the ``key`` of a launch (process and correlation id) is ascending.

    ``first``, ``last``, ``time``: first start, last end and summed durations of its operations. Arrays, not SQL: the
    ids of a slice are close together and nearly sorted, so a lookup is cheaper than a join.
    """

    first_id: int
    processes: Ints
    key: Ints
    first: Ints
    last: Ints
    time: Ints

    @classmethod
    def of(cls, work: Mapping[str, Ints], first_id: int) -> _Operations:
        """Group operations by launch; ``first_id`` is the smallest possible id."""
        processes = np.unique(work["process"])
        keys = _launch_keys(processes, work, first_id)
        order = np.argsort(keys, kind="stable")
        keys, start, end = keys[order], work["start"][order], work["end"][order]
        edges = np.flatnonzero(np.diff(keys, prepend=-1))
        if not len(edges):
            return cls(first_id, processes, keys, start, end, start)
        first, last = np.minimum.reduceat(start, edges), np.maximum.reduceat(end, edges)
        return cls(first_id, processes, keys[edges], first, last, np.add.reduceat(end - start, edges))

    def launched_by(self, calls: Mapping[str, Ints]) -> LaunchCallColumns:
        keys = _launch_keys(self.processes, calls, self.first_id)
        index = np.searchsorted(self.key, keys)
        index[index == len(self.key)] = 0
        rows = np.flatnonzero(self.key[index] == keys) if len(self.key) else index[:0]
        index = index[rows]
        start, end, thread, ids = (calls[name][rows] for name in ("start", "end", "thread", "correlation_id"))
        return LaunchCallColumns(start, end, thread, self.first[index], self.last[index], self.time[index], ids)


def _launch_keys(processes: Ints, rows: Mapping[str, Ints], first_id: int) -> Ints:
    """Return a number for each row's process and correlation id, -1 if ``processes`` lacks the process."""
    if not len(processes):
        return np.full(len(rows["process"]), -1)
    index = np.minimum(np.searchsorted(processes, rows["process"]), len(processes) - 1)
    has_work = processes[index] == rows["process"]
    return np.where(has_work, index * _MAX_IDS + rows["correlation_id"] - first_id, -1)


_MAX_IDS = 1 << 33
"""More than the number of 32-bit correlation ids."""


def matching(texts: Texts, selection: Selection) -> Flags:
    """Return whether each text passes the name filter; shape ``(len(texts),)``."""
    name_filter = selection.name
    return np.array([name_filter is None or name_filter.matches(text) for text in texts.numbers], np.bool_)


def joined(parts: Sequence[_Arrays]) -> _Arrays:
    """Join frozen dataclasses of arrays of one class, part by part."""
    arrays = {item.name: np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(parts[0])}
    return replace(parts[0], **arrays)
