"""Summaries by name of CUDA work and calls as ``nsys stats`` has them, also by the NVTX range around the launch.

A kernel whose launch was not recorded, or is in no range, keeps its name alone; so does one in a range without a text.
The domain of the range is not shown. The name filter of the selection looks at the kernel's own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import NAME, Answer, Changed, Column, Row, TableAnswer, Unit, iter_rows
from nsystui.base.selection import Selection
from nsystui.base.units import MEGABYTE
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.algebra.nesting import one_timeline
from nsystui.questions.kernels.activities import MEMORY, SIZE_COLUMNS, memory_sizes, work_summary
from nsystui.questions.kernels.summary import Names, block_of, grid_of, kernel_notes, name_of
from nsystui.questions.nvtx.loading import Texts, read_ranges
from nsystui.questions.queries import statistics
from nsystui.questions.queries.conditions import duration, is_launched_by, where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.stats.report import Ask, ReportOptions
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd


def notes(session: Session, options: ReportOptions, *needed: sa.Table) -> tuple[str, ...]:
    """The notes of a report on kernels; ``needed`` are the other tables that it reads."""
    ranges = (tables.nvtx_ranges,) if options.nvtx_name else ()
    lacking = (missing_note(session, table) for table in (*needed, *ranges))
    return (*kernel_notes(session), *(note for note in lacking if note))


class Coded:
    """A text column as the places of its texts in the list of those that differ; a missing text is the empty one.

    ``conditions`` are on the table of the column and narrow the list.
    """

    def __init__(self, column: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> None:
        self._column = sa.func.coalesce(column, "")
        different = sa.select(self._column.label("text")).where(*conditions).distinct().subquery()
        number = sa.func.row_number().over(order_by=different.c.text) - 1
        self._numbers = sa.select(different.c.text, number.label("number")).subquery()

    def added_to(self, query: sa.Select[Any], label: str) -> sa.Select[Any]:
        """``query``, which selects from the table of the column, with the number as its last column."""
        numbers = self._numbers.c
        return query.add_columns(numbers.number.label(label)).join(self._numbers, numbers.text == self._column)

    def texts(self, session: Session) -> list[str]:
        """The texts that differ, in order."""
        query = sa.select(self._numbers.c.text).order_by(self._numbers.c.text)
        return [str(text) for text in session.arrays(query)["text"]]


Rows = NDArray[np.int64]
Spans = tuple[Times, Times, Times]  # starts, ends, threads
NO_RANGE = -1


def innermost(ranges: Spans, calls: Spans) -> Rows:
    """For each call the index of the range that encloses it on its thread and starts last, -1 where none does.

    ``ranges`` and ``calls`` are (starts, ends, threads) of n ranges and m calls, in ns; the result has the shape
    ``(m,)``. Of ranges that start together the shorter is the inner one, of equal ones the later. What ends before it
    starts counts as without length. O((n + m) log n).
    """
    n = len(ranges[0])
    if not n or not len(calls[0]):
        return np.full(len(calls[0]), NO_RANGE, np.int64)
    starts, ends, threads = (np.concatenate(pair) for pair in zip(ranges, calls, strict=True))
    starts, ends = one_timeline(starts, np.maximum(starts, ends), threads)
    order = np.lexsort((-ends[:n], starts[:n]))
    begun = np.searchsorted(starts[:n][order], starts[n:], side="right")
    place = _last_reaching(ends[:n][order], begun, ends[n:])
    return np.where(place >= 0, order[place], NO_RANGE)


def _last_reaching(values: Times, before: Rows, least: Times) -> Rows:
    """For each i the last place in ``values[: before[i]]`` with a value of ``least[i]`` or more, -1 where none has it.

    All questions climb a pyramid of maxima together, each to the nearest block on its left that has such a value, and
    come down again inside that block.
    """
    # ``values``, then the maxima of every whole block of 2, 4, 8 … of them.
    pyramid = [values]
    while len(pyramid[-1]) > 1:
        whole = pyramid[-1][: len(pyramid[-1]) & ~1]
        pyramid.append(np.maximum(whole[::2], whole[1::2]))
    left = before.copy()  # from here on to the right everything is too small
    height = np.full(len(before), -1)
    for level, maxima in enumerate(pyramid):
        asks = np.flatnonzero((height < 0) & ((left >> level) & 1 == 1))
        reaches = maxima[(left[asks] >> level) - 1] >= least[asks]
        height[asks[reaches]] = level
        left[asks[~reaches]] -= 1 << level
    place = np.where(height >= 0, (left >> np.maximum(height, 0)) - 1, -1)
    for level in range(len(pyramid) - 1, 0, -1):
        down = np.flatnonzero(height >= level)
        right = 2 * place[down] + 1
        place[down] = right - (pyramid[level - 1][right] < least[down])
    return place


@dataclass(frozen=True, eq=False)
class LaunchRanges:
    """The NVTX range around the launch of each kernel that has one.

    ``by_report``: for each report the row numbers of these kernels, ascending, and where the names of their ranges are
    in ``texts``; two int64 arrays of one length.
    """

    by_report: Mapping[int, tuple[Rows, Rows]]
    texts: Sequence[str]

    @classmethod
    def find(cls, session: Session, selection: Selection) -> LaunchRanges:
        """Among the selected calls and ranges: nsys applies a time window to each table."""
        by_report: dict[int, tuple[Rows, Rows]] = {}
        texts: list[str] = []
        for report in session.reports:
            rows, codes, names = _launch_ranges(session.part([report.index]), selection, report)
            by_report[report.index] = rows, codes + len(texts)
            texts += names
        return cls(by_report, texts)

    def of(self, report: NDArray[Any], row: NDArray[Any]) -> Rows:
        """The indices in ``texts`` of the ranges of kernels by report and row number, -1 for those without a range."""
        found = np.full(len(row), NO_RANGE, np.int64)
        for index, (rows, codes) in self.by_report.items():
            own = np.flatnonzero(report == index)
            if len(rows) and len(own):
                place = np.minimum(np.searchsorted(rows, row[own]), len(rows) - 1)
                found[own] = np.where(rows[place] == row[own], codes[place], NO_RANGE)
        return found


def _launch_ranges(session: Session, selection: Selection, report: Report) -> tuple[Rows, Rows, list[str]]:
    """The rows of the kernels of one report that have a range, the numbers of the names of their ranges, the names."""
    ranges, calls, kernels = tables.nvtx_ranges, tables.api_calls, tables.kernels
    texts = Texts()
    is_wanted = [ranges.c.end.is_not(None), *where(ranges, selection)]
    around = read_ranges(session, report, texts, ranges.c.name, conditions=is_wanted)
    query = (
        sa.select(calls.c.start, calls.c.end, calls.c.thread, kernels.c.row)
        .select_from(kernels.join(calls, is_launched_by(kernels, calls)))
        .where(kernels.c.report == report.index, calls.c.end.is_not(None))
        .where(*where(kernels, selection), *where(calls, selection))
    )
    start, end, thread, row = (np.ma.getdata(values) for values in session.arrays(query).values())
    chosen = innermost((around.start, around.end, around.thread), (start, end, thread))
    has_range = np.flatnonzero(chosen >= 0)
    chosen, row = chosen[has_range], row[has_range]
    # A kernel that has several calls (one inside another) has the range that starts last.
    order = np.lexsort((around.start[chosen], row))
    last = order[np.append(np.diff(row[order]) > 0, True)[: len(order)]]
    # Texts in order are put together with the names of kernels, and sorted, faster.
    return row[last], texts.ranks()[around.name[chosen[last]]], sorted(texts.texts)


def _behind(text: str, kernel: str) -> str:
    return f"{text}/{kernel}" if text else kernel


def range_named_frame(
    session: Session,
    selection: Selection,
    query: sa.Select[Any],
    kernel_name: sa.ColumnElement[Any],
    words: Mapping[str, sa.ColumnElement[Any]],
) -> pd.DataFrame:
    """The rows of ``query``, a select from the kernels, with the ``name`` of each behind its range.

    ``words`` are more text columns by their keys; all texts are categories.
    """
    import pandas as pd

    kernels = Coded(kernel_name)
    place = (tables.kernels.c.report.label("kernel_report"), tables.kernels.c.row.label("kernel_row"))
    query = kernels.added_to(query.add_columns(*place), "kernel_name")
    coded = {key: Coded(column) for key, column in words.items()}
    for key, column in coded.items():
        query = column.added_to(query, key)
    frame = session.frame(query)
    for key, column in coded.items():
        frame[key] = pd.Categorical.from_codes(frame[key], column.texts(session))
    ranges = LaunchRanges.find(session, selection)
    codes = ranges.of(frame.pop("kernel_report").to_numpy(), frame.pop("kernel_row").to_numpy())
    texts = kernels.texts(session)
    # A pair of a range and a kernel as one number, so that every name is put together once.
    pairs, pair = np.unique(codes * len(texts) + frame.pop("kernel_name").to_numpy(), return_inverse=True)
    split = [divmod(number, len(texts)) for number in pairs.tolist()]
    names = [_behind("" if code == NO_RANGE else ranges.texts[code], texts[kernel]) for code, kernel in split]
    different, name = np.unique(np.array(names, dtype=object), return_inverse=True)
    return frame.assign(name=pd.Categorical.from_codes(name[pair], different))


KERNEL_PLACE = (
    Column("kernel_report", header="", label="", unit=Unit.NUMBER),
    Column("kernel_row", header="", label="", unit=Unit.NUMBER),
)
"""The columns by which ``RangeNamed`` knows a kernel: its report and row number, ``None`` for what is no kernel."""


@dataclass(frozen=True)
class RangeNamed(Changed):
    """The rows of ``whole``, which has the columns ``KERNEL_PLACE``: without those, and with ranges before names."""

    ranges: LaunchRanges

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.whole.columns if column not in KERNEL_PLACE)

    def changed(self, rows: Sequence[Row]) -> Sequence[Row]:
        keys = [column.key for column in self.whole.columns]
        columns: Sequence[Row] = list(zip(*rows, strict=True)) or [()] * len(keys)
        cells = dict(zip(keys, columns, strict=True))
        report, number = (
            np.array([NO_RANGE if part is None else part for part in cells[column.key]], np.int64)
            for column in KERNEL_PLACE
        )
        codes = self.ranges.of(report, number).tolist()
        texts = ("" if code == NO_RANGE else self.ranges.texts[code] for code in codes)
        named = zip(texts, cells["name"], strict=True)
        cells["name"] = tuple(_behind(text, str(name or "")) if text else name for text, name in named)
        return list(zip(*(cells[column.key] for column in self.columns), strict=True))

    def sorted_by(self, key: str, descending: bool) -> Answer:
        if key != "name":
            return super().sorted_by(key, descending)
        rows = list(iter_rows(self))
        return TableAnswer(self.name, self.columns, rows, self.total, self.notes).sorted_by(key, descending)


_KERNELS, _MEMORY_OPS, _CALLS, _DOUBLES = tables.kernels, tables.memory_ops, tables.api_calls, tables.api_backtraces

_NO_WORDS: Mapping[str, sa.ColumnElement[Any]] = MappingProxyType({})

_API_COLUMNS = (*statistics.duration_columns("Num Calls"), NAME)
_KERNEL_COLUMNS = (*statistics.duration_columns("Instances"), NAME)
_SHAPE_COLUMNS = (
    *statistics.duration_columns("Instances"),
    Column("grid", header="GridXYZ", label="grid"),
    Column("block", header="BlockXYZ", label="block"),
    NAME,
)
_UNION_COLUMNS = (
    *statistics.duration_columns("Instances"),
    Column("category", header="Category", label="category", importance=2),
    Column("name", header="Operation", label="operation"),
)
_SIZE_COLUMNS = tuple(
    replace(
        column, header=column.header.replace("(B)", "(MB)"), label=f"{column.label} MB", unit=Unit.MEGABYTES, decimals=3
    )
    if column.unit is Unit.BYTES
    else column
    for column in SIZE_COLUMNS
)


def sizes_as_nsys(session: Session, selection: Selection) -> TableAnswer:
    """``cuda_gpu_mem_size_sum``: the bytes of `memory_sizes` in MB of 10⁶."""
    answer = memory_sizes(session, selection)
    in_megabytes = [column.unit is Unit.MEGABYTES for column in _SIZE_COLUMNS]
    rows = [
        tuple(
            value / MEGABYTE if is_size and isinstance(value, int | float) else value
            for is_size, value in zip(in_megabytes, row, strict=True)
        )
        for row in answer.rows
    ]
    return replace(answer, columns=_SIZE_COLUMNS, rows=rows)


def api_summary_as_nsys(session: Session, selection: Selection) -> TableAnswer:
    """``cuda_api_sum``: with the rows that ``--cudabacktrace`` writes a second time, as nsys counts them."""
    calls = _api_calls(selection)
    # Of equal totals the first by name comes first, then by version.
    keys = [calls.c.version.label("version"), calls.c.name.label("name")]
    rows = statistics.summary_rows(session, calls, calls.c.duration, keys, [], _API_COLUMNS)
    note = missing_note(session, _CALLS)
    return TableAnswer("cuda-api-sum", _API_COLUMNS, rows, len(rows), (note,) if note else ())


def _api_calls(selection: Selection) -> sa.Subquery:
    """The calls by their names with the version, which is not shown but keeps the second rows apart: they have none."""
    parts = [
        sa.select(table.c.name, version.label("version"), duration(table).label("duration")).where(
            *where(table, selection, table.c.name)
        )
        for table, version in ((_CALLS, _CALLS.c.versioned_name), (_DOUBLES, _DOUBLES.c.name))
    ]
    return sa.union_all(*parts).subquery()


def kernels_as_nsys(session: Session, selection: Selection, names: Names) -> TableAnswer:
    """``cuda_gpu_kern_sum``: one row for each kernel name, with NVIDIA's columns, whatever the kernel screen shows."""
    name = name_of(_KERNELS, names)

    def ask() -> list[Row]:
        return _kernel_rows(session, selection, name, [name.label("name")], _KERNEL_COLUMNS)

    rows = of_all_reports(session, selection, _KERNELS, f"cuda_gpu_kern_sum {names.value}", ask)
    is_whole = selection.is_everything
    total = len(rows) if is_whole else statistics.number_of_values(session, name)
    return TableAnswer("cuda-gpu-kern-sum", _KERNEL_COLUMNS, rows, total, kernel_notes(session))


def _kernel_rows(
    session: Session,
    selection: Selection,
    name: sa.ColumnElement[Any],
    keys: Sequence[sa.Label[Any]],
    columns: tuple[Column, ...],
) -> list[Row]:
    conditions = where(_KERNELS, selection, name)
    return statistics.summary_rows(session, _KERNELS, duration(_KERNELS), keys, conditions, columns)


def _kernels(session: Session, selection: Selection, options: ReportOptions) -> Answer:
    if not options.nvtx_name:
        return kernels_as_nsys(session, selection, options.names)
    # Of equal totals nsys has the one of fewer instances first here (seen once, in h100-2rank-moe-before).
    frame = statistics.with_shares(_range_groups(session, selection, options), ("count", "name"))
    return TableAnswer.of_frame("cuda-gpu-kern-sum", _KERNEL_COLUMNS, frame, None, notes(session, options))


def _shapes(session: Session, selection: Selection, options: ReportOptions) -> Answer:
    """``cuda_gpu_kern_gb_sum``."""
    shape = {"grid": grid_of(_KERNELS), "block": block_of(_KERNELS)}
    if not options.nvtx_name:
        name = name_of(_KERNELS, options.names)
        keys = [*(column.label(key) for key, column in shape.items()), name.label("name")]
        rows = _kernel_rows(session, selection, name, keys, _SHAPE_COLUMNS)
        return TableAnswer("cuda-gpu-kern-gb-sum", _SHAPE_COLUMNS, rows, None, kernel_notes(session))
    groups = _range_groups(session, selection, options, shape)
    frame = statistics.with_shares(groups, ("count", "name", "block", "grid"))
    return TableAnswer.of_frame("cuda-gpu-kern-gb-sum", _SHAPE_COLUMNS, frame, None, notes(session, options))


def _range_groups(
    session: Session,
    selection: Selection,
    options: ReportOptions,
    words: Mapping[str, sa.ColumnElement[Any]] = _NO_WORDS,
) -> pd.DataFrame:
    """The kernels by their names behind their ranges, and by ``words``."""
    name = name_of(_KERNELS, options.names)
    query = sa.select(duration(_KERNELS).label("duration")).where(*where(_KERNELS, selection, name))

    rows = range_named_frame(session, selection, query, name, words)
    groups = rows.groupby(["name", *words], observed=True, sort=False, dropna=False)["duration"]
    return groups.agg(total="sum", count="size").join(statistics.frame_spread(groups)).reset_index()


def _kernel_groups(session: Session, selection: Selection, options: ReportOptions) -> pd.DataFrame:
    if options.nvtx_name:
        return _range_groups(session, selection, options)
    return _groups(session, selection, _KERNELS, name_of(_KERNELS, options.names))


def _groups(session: Session, selection: Selection, table: sa.Table, name: sa.ColumnElement[Any]) -> pd.DataFrame:
    conditions = where(table, selection, name)
    return statistics.group_frame(session, table, duration(table), [name.label("name")], conditions)


def _gpu_work(session: Session, selection: Selection, options: ReportOptions) -> TableAnswer:
    """``cuda_gpu_sum``."""
    frame = _together(
        CUDA_KERNEL=_kernel_groups(session, selection, options),
        MEMORY_OPER=_groups(session, selection, _MEMORY_OPS, _MEMORY_OPS.c.operation),
    )
    return TableAnswer.of_frame("cuda-gpu-sum", _UNION_COLUMNS, frame, None, notes(session, options, _MEMORY_OPS))


def _calls_and_gpu_work(session: Session, selection: Selection, options: ReportOptions) -> TableAnswer:
    """``cuda_api_gpu_sum``."""
    calls = _api_calls(selection)
    keys = [calls.c.name.label("name"), calls.c.version.label("version")]
    frame = _together(
        CUDA_API=statistics.group_frame(session, calls, calls.c.duration, keys, []),
        CUDA_KERNEL=_kernel_groups(session, selection, options),
        MEMORY_OPER=_groups(session, selection, _MEMORY_OPS, _MEMORY_OPS.c.operation),
    )
    return TableAnswer.of_frame(
        "cuda-api-gpu-sum", _UNION_COLUMNS, frame, None, notes(session, options, _CALLS, _MEMORY_OPS)
    )


def _together(**categories: pd.DataFrame) -> pd.DataFrame:
    """The groups of all categories in one table; a share is one of the time of all."""
    import pandas as pd

    parts = [part.astype({"name": object}).assign(category=category) for category, part in categories.items()]
    # Where every part is empty the first one still has the columns.
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return statistics.with_shares(frame, ("name",))


ASK: dict[str, Ask] = {
    "cuda_api_gpu_sum": _calls_and_gpu_work,
    "cuda_api_sum": lambda s, w, _: api_summary_as_nsys(s, w),
    "cuda_gpu_kern_gb_sum": _shapes,
    "cuda_gpu_kern_sum": _kernels,
    "cuda_gpu_mem_size_sum": lambda s, w, _: sizes_as_nsys(s, w),
    "cuda_gpu_mem_time_sum": lambda s, w, _: work_summary(s, w, MEMORY),
    "cuda_gpu_sum": _gpu_work,
}
