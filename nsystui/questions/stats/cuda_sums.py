"""Summaries of CUDA work and calls by name, as in ``nsys stats``, also by the NVTX range around the launch.

A kernel keeps its name alone if its launch was not recorded, is in no range, or in a range without a text. Domains are
not shown. The selection's name filter applies to the kernel's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import NAME, Answer, Column, Row, TableAnswer, Unit, Value, adapted
from nsystui.base.selection import Selection
from nsystui.base.types import Array, Condition, Expression, Ints, Labelled, Query
from nsystui.base.units import MEGABYTE
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.algebra.nesting import one_timeline
from nsystui.questions.kernels.activities import MEMORY, SIZE_COLUMNS, memory_sizes, work_rows, work_summary
from nsystui.questions.kernels.summary import Names, block_of, grid_of, kernel_notes, name_of
from nsystui.questions.nvtx.loading import Texts, read_ranges
from nsystui.questions.queries import statistics
from nsystui.questions.queries.conditions import duration, is_launched_by, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.statistics import ValueRows
from nsystui.questions.stats.report import AskReport, ReportOptions
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd


def notes(session: Session, options: ReportOptions, *needed: sa.Table) -> tuple[str, ...]:
    """Return the notes of a report on kernels; ``needed``: the other tables that it reads."""
    ranges = (tables.nvtx_ranges,) if options.nvtx_name else ()
    return (*kernel_notes(session), *missing_notes(session, *needed, *ranges))


class Coded:
    """A text column as indices into the sorted list of its distinct texts; a missing text is the empty text.

    ``conditions`` on the table of the column narrow the list.
    """

    def __init__(self, column: Expression, *conditions: Condition) -> None:
        self._column = sa.func.coalesce(column, "")
        distinct = sa.select(self._column.label("text")).where(*conditions).distinct().subquery()
        number = sa.func.row_number().over(order_by=distinct.c.text) - 1
        self._numbers = sa.select(distinct.c.text, number.label("number")).subquery()

    def added_to(self, query: Query, label: str) -> Query:
        """Return ``query``, a select from the table of the column, with the index as its last column."""
        numbers = self._numbers.c
        return query.add_columns(numbers.number.label(label)).join(self._numbers, numbers.text == self._column)

    def texts(self, session: Session) -> list[str]:
        """Return the distinct texts, sorted."""
        query = sa.select(self._numbers.c.text).order_by(self._numbers.c.text)
        return [str(text) for text in session.arrays(query)["text"]]


_Rows = Ints
_Spans = tuple[Times, Times, Times]  # starts, ends, threads
NO_RANGE = -1


def innermost(ranges: _Spans, calls: _Spans) -> _Rows:
    """Return, for each call, the index of the range around it on its thread that starts last, or -1; shape ``(m,)``.

    ``ranges`` and ``calls`` are (starts, ends, threads) of n ranges and m calls, ns. If ranges start together, the
    inner range is the shorter, or the later if they are equal. A range that ends before it starts has no length.
    O((n + m) log n).
    """
    n = len(ranges[0])
    if not n or not len(calls[0]):
        return np.full(len(calls[0]), NO_RANGE, np.int64)
    starts, ends, threads = (np.concatenate(pair) for pair in zip(ranges, calls, strict=True))
    starts, ends = one_timeline(starts, np.maximum(starts, ends), threads)
    order = np.lexsort((-ends[:n], starts[:n]))
    index = _last_reaching(ends[:n][order], np.searchsorted(starts[:n][order], starts[n:], side="right"), ends[n:])
    return np.where(index >= 0, order[index], NO_RANGE)


def _last_reaching(values: Times, before: _Rows, minimum: Times) -> _Rows:
    """Return, for each i, the last index in ``values[: before[i]]`` of a value of at least ``minimum[i]``, or -1.

    All searches climb a pyramid of maxima together to the nearest such block on the left, and then descend in it.
    """
    # ``values``, then the maxima of each full block of 2, 4, 8 … values.
    pyramid = [values]
    while len(pyramid[-1]) > 1:
        full = pyramid[-1][: len(pyramid[-1]) & ~1]
        pyramid.append(np.maximum(full[::2], full[1::2]))
    left = before.copy()  # all values from here on are too small
    height = np.full(len(before), -1)
    for level, maxima in enumerate(pyramid):
        searching = np.flatnonzero((height < 0) & ((left >> level) & 1 == 1))
        reaches = maxima[(left[searching] >> level) - 1] >= minimum[searching]
        height[searching[reaches]] = level
        left[searching[~reaches]] -= 1 << level
    index = np.where(height >= 0, (left >> np.maximum(height, 0)) - 1, -1)
    for level in range(len(pyramid) - 1, 0, -1):
        descending = np.flatnonzero(height >= level)
        right = 2 * index[descending] + 1
        index[descending] = right - (pyramid[level - 1][right] < minimum[descending])
    return index


@dataclass(frozen=True, eq=False)
class LaunchRanges:
    """The NVTX range around each kernel's launch, if any.

    ``by_report``: for each report, the kernels' row numbers, ascending, and the indices of their range names in
    ``texts``; two int64 arrays of one length.
    """

    by_report: Mapping[int, tuple[_Rows, _Rows]]
    texts: Sequence[str]

    @classmethod
    def find(cls, session: Session, selection: Selection) -> LaunchRanges:
        """Find the ranges among the selected calls and ranges: nsys applies a time window to each table."""
        by_report: dict[int, tuple[_Rows, _Rows]] = {}
        texts: list[str] = []
        for report in session.reports:
            rows, codes, names = _launch_ranges(session.part([report.index]), selection, report)
            by_report[report.index] = rows, codes + len(texts)
            texts += names
        return cls(by_report, texts)

    def of(self, report: Array, row: Array) -> _Rows:
        """Return indices in ``texts`` by report and row number of kernels, -1 without a range."""
        indices = np.full(len(row), NO_RANGE, np.int64)
        for index, (rows, codes) in self.by_report.items():
            in_report = np.flatnonzero(report == index)
            if len(rows) and len(in_report):
                position = np.minimum(np.searchsorted(rows, row[in_report]), len(rows) - 1)
                indices[in_report] = np.where(rows[position] == row[in_report], codes[position], NO_RANGE)
        return indices


def _launch_ranges(session: Session, selection: Selection, report: Report) -> tuple[_Rows, _Rows, list[str]]:
    """Return the rows of kernels with a range, their range names' indices, and the names."""
    ranges, calls, kernels = tables.nvtx_ranges, tables.api_calls, tables.kernels
    texts = Texts()
    conditions = [ranges.c.end.is_not(None), *where(ranges, selection)]
    spans = read_ranges(session, report, texts, ranges.c.name, conditions=conditions)
    query = (
        sa.select(calls.c.start, calls.c.end, calls.c.thread, kernels.c.row)
        .select_from(kernels.join(calls, is_launched_by(kernels, calls)))
        .where(kernels.c.report == report.index, calls.c.end.is_not(None))
        .where(*where(kernels, selection), *where(calls, selection))
    )
    start, end, thread, row = (np.ma.getdata(values) for values in session.arrays(query).values())
    range_index = innermost((spans.start, spans.end, spans.thread), (start, end, thread))
    has_range = np.flatnonzero(range_index >= 0)
    range_index, row = range_index[has_range], row[has_range]
    # A kernel with several calls (one inside another) gets the range that starts last.
    order = np.lexsort((spans.start[range_index], row))
    last = order[np.append(np.diff(row[order]) > 0, True)[: len(order)]]
    # Sorted texts are faster to join with kernel names and to sort.
    return row[last], texts.ranks()[spans.name[range_index[last]]], sorted(texts.texts)


def _with_range(text: str, kernel: str) -> str:
    return f"{text}/{kernel}" if text else kernel


def range_named_frame(
    session: Session, selection: Selection, query: Query, kernel_name: Expression,
    text_columns: Mapping[str, Expression],
) -> pd.DataFrame:  # fmt: skip
    """Return the rows of ``query``, a select from the kernels, with ``name``: range and kernel.

    ``text_columns``: more text columns by key; all texts are categories.
    """
    import pandas as pd

    kernels = Coded(kernel_name)
    row_key = (tables.kernels.c.report.label("kernel_report"), tables.kernels.c.row.label("kernel_row"))
    query = kernels.added_to(query.add_columns(*row_key), "kernel_name")
    coded = {key: Coded(column) for key, column in text_columns.items()}
    for key, column in coded.items():
        query = column.added_to(query, key)
    frame = session.frame(query)
    for key, column in coded.items():
        frame[key] = pd.Categorical.from_codes(frame[key], column.texts(session))
    ranges = LaunchRanges.find(session, selection)
    codes = ranges.of(frame.pop("kernel_report").to_numpy(), frame.pop("kernel_row").to_numpy())
    texts = kernels.texts(session)
    # A pair of a range and a kernel is one number, so that each name is built once.
    pairs, pair = np.unique(codes * len(texts) + frame.pop("kernel_name").to_numpy(), return_inverse=True)
    split = [divmod(number, len(texts)) for number in pairs.tolist()]
    names = [_with_range("" if code == NO_RANGE else ranges.texts[code], texts[kernel]) for code, kernel in split]
    distinct, name = np.unique(np.array(names, dtype=object), return_inverse=True)
    return frame.assign(name=pd.Categorical.from_codes(name[pair], distinct))


KERNEL_PLACE = (
    Column("kernel_report", header="", label="", unit=Unit.NUMBER),
    Column("kernel_row", header="", label="", unit=Unit.NUMBER),
)
"""The hidden columns that identify a kernel for `range_named`: report and row number, ``None`` for other rows."""


def range_named(answer: Answer, ranges: LaunchRanges) -> Answer:
    """Return ``answer`` without its columns `KERNEL_PLACE`, and with ranges before the kernels' names."""
    keys = [column.key for column in answer.columns]
    shown = tuple(column for column in answer.columns if column not in KERNEL_PLACE)

    def change(rows: Sequence[Row]) -> Sequence[Row]:
        columns: Sequence[Row] = list(zip(*rows, strict=True)) or [()] * len(keys)
        cells = dict(zip(keys, columns, strict=True))
        report, number = (
            np.array([NO_RANGE if part is None else part for part in cells[column.key]], np.int64)
            for column in KERNEL_PLACE
        )
        codes = ranges.of(report, number).tolist()
        named = zip(("" if code == NO_RANGE else ranges.texts[code] for code in codes), cells["name"], strict=True)
        cells["name"] = tuple(_with_range(text, str(name or "")) if text else name for text, name in named)
        return list(zip(*(cells[column.key] for column in shown), strict=True))

    return replace(adapted(answer), columns=shown, change=change, sorted_as={"name": None})


_KERNELS, _MEMORY_OPS, _CALLS, _BACKTRACES = tables.kernels, tables.memory_ops, tables.api_calls, tables.api_backtraces

_NO_COLUMNS: Mapping[str, Expression] = MappingProxyType({})

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


def sizes_as_nsys(session: Session, selection: Selection) -> TableAnswer:
    """Answer ``cuda_gpu_mem_size_sum``: the bytes of `memory_sizes` in MB of 10⁶."""
    answer, columns, cells = memory_sizes(session, selection), list[Column](), list[Sequence[Value]]()
    for column in SIZE_COLUMNS:
        values = answer.cells(column.key)
        if column.unit is Unit.BYTES:
            values = [value / MEGABYTE if isinstance(value, int | float) else value for value in values]
            header, label = column.header.replace("(B)", "(MB)"), f"{column.label} MB"
            column = replace(column, header=header, label=label, unit=Unit.MEGABYTES, decimals=3)
        columns.append(column)
        cells.append(values)
    return replace(answer, columns=tuple(columns), rows=list(zip(*cells, strict=True)))


def api_summary_as_nsys(session: Session, selection: Selection) -> TableAnswer:
    """Answer ``cuda_api_sum``; rows that ``--cudabacktrace`` writes twice count twice, as in nsys."""
    calls = _api_calls(selection)
    # Equal totals are sorted by name, then by version.
    keys = [calls.c.version.label("version"), calls.c.name.label("name")]
    rows = statistics.summary_rows(session, ValueRows(calls, calls.c.duration, keys, []), _API_COLUMNS)
    return TableAnswer("cuda-api-sum", _API_COLUMNS, rows, len(rows), missing_notes(session, _CALLS))


def _api_calls(selection: Selection) -> sa.Subquery:
    """Select calls with a hidden version; second rows of ``--cudabacktrace`` are apart, because they lack it."""
    parts = [
        sa.select(table.c.name, version.label("version"), duration(table).label("duration")).where(
            *where(table, selection, table.c.name)
        )
        for table, version in ((_CALLS, _CALLS.c.versioned_name), (_BACKTRACES, _BACKTRACES.c.name))
    ]
    return sa.union_all(*parts).subquery()


def kernels_as_nsys(session: Session, selection: Selection, names: Names) -> TableAnswer:
    """Answer ``cuda_gpu_kern_sum``: one row per kernel name, with NVIDIA's columns."""

    def ask() -> list[Row]:
        return statistics.summary_rows(session, kernel_rows(selection, names), _KERNEL_COLUMNS)

    rows = of_all_reports(session, selection, _KERNELS, f"cuda_gpu_kern_sum {names.value}", ask)
    total = len(rows) if selection.is_everything else statistics.number_of_values(session, name_of(_KERNELS, names))
    return TableAnswer("cuda-gpu-kern-sum", _KERNEL_COLUMNS, rows, total, kernel_notes(session))


def kernel_rows(selection: Selection, names: Names, shape: Sequence[Labelled] = ()) -> ValueRows:
    """Return the selected kernels by ``shape``, if given, and name."""
    name = name_of(_KERNELS, names)
    return ValueRows(_KERNELS, duration(_KERNELS), [*shape, name.label("name")], where(_KERNELS, selection, name))


def _kernels(session: Session, selection: Selection, options: ReportOptions) -> Answer:
    if not options.nvtx_name:
        return kernels_as_nsys(session, selection, options.names)
    # For equal totals, nsys puts fewer instances first here (seen once, in h100-2rank-moe-before).
    frame = statistics.with_shares(_range_groups(session, selection, options), ("count", "name"))
    return TableAnswer.of_arrays("cuda-gpu-kern-sum", _KERNEL_COLUMNS, frame, None, notes(session, options))


def _shapes(session: Session, selection: Selection, options: ReportOptions) -> Answer:
    """Answer ``cuda_gpu_kern_gb_sum``."""
    shape = {"grid": grid_of(_KERNELS), "block": block_of(_KERNELS)}
    if not options.nvtx_name:
        kernels = kernel_rows(selection, options.names, [column.label(key) for key, column in shape.items()])
        rows = statistics.summary_rows(session, kernels, _SHAPE_COLUMNS)
        return TableAnswer("cuda-gpu-kern-gb-sum", _SHAPE_COLUMNS, rows, None, kernel_notes(session))
    groups = _range_groups(session, selection, options, shape)
    frame = statistics.with_shares(groups, ("count", "name", "block", "grid"))
    return TableAnswer.of_arrays("cuda-gpu-kern-gb-sum", _SHAPE_COLUMNS, frame, None, notes(session, options))


def _range_groups(
    session: Session, selection: Selection, options: ReportOptions, text_columns: Mapping[str, Expression] = _NO_COLUMNS
) -> pd.DataFrame:
    name = name_of(_KERNELS, options.names)
    query = sa.select(duration(_KERNELS).label("duration")).where(*where(_KERNELS, selection, name))
    rows = range_named_frame(session, selection, query, name, text_columns)
    groups = rows.groupby(["name", *text_columns], observed=True, sort=False, dropna=False)["duration"]
    return groups.agg(total="sum", count="size").join(statistics.frame_spread(groups)).reset_index()


def _kernel_groups(session: Session, selection: Selection, options: ReportOptions) -> pd.DataFrame:
    if options.nvtx_name:
        return _range_groups(session, selection, options)
    return statistics.group_frame(session, kernel_rows(selection, options.names))


def _memory_groups(session: Session, selection: Selection) -> pd.DataFrame:
    return statistics.group_frame(session, work_rows(session, selection, MEMORY)._replace(first=None))


def _gpu_work(session: Session, selection: Selection, options: ReportOptions) -> TableAnswer:
    """Answer ``cuda_gpu_sum``."""
    frame = _together(
        CUDA_KERNEL=_kernel_groups(session, selection, options), MEMORY_OPER=_memory_groups(session, selection)
    )
    return TableAnswer.of_arrays("cuda-gpu-sum", _UNION_COLUMNS, frame, None, notes(session, options, _MEMORY_OPS))


def _calls_and_gpu_work(session: Session, selection: Selection, options: ReportOptions) -> TableAnswer:
    """Answer ``cuda_api_gpu_sum``."""
    calls = _api_calls(selection)
    keys = [calls.c.name.label("name"), calls.c.version.label("version")]
    frame = _together(
        CUDA_API=statistics.group_frame(session, ValueRows(calls, calls.c.duration, keys, [])),
        CUDA_KERNEL=_kernel_groups(session, selection, options),
        MEMORY_OPER=_memory_groups(session, selection),
    )
    return TableAnswer.of_arrays(
        "cuda-api-gpu-sum", _UNION_COLUMNS, frame, None, notes(session, options, _CALLS, _MEMORY_OPS)
    )


def _together(**categories: pd.DataFrame) -> pd.DataFrame:
    """Join all categories' groups; shares are of the time of all categories."""
    import pandas as pd

    parts = [part.astype({"name": object}).assign(category=category) for category, part in categories.items()]
    # If all parts are empty, the first part still has the columns.
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return statistics.with_shares(frame, ("name",))


ASK: dict[str, AskReport] = {
    "cuda_api_gpu_sum": _calls_and_gpu_work,
    "cuda_api_sum": lambda session, selection, _: api_summary_as_nsys(session, selection),
    "cuda_gpu_kern_gb_sum": _shapes,
    "cuda_gpu_kern_sum": _kernels,
    "cuda_gpu_mem_size_sum": lambda session, selection, _: sizes_as_nsys(session, selection),
    "cuda_gpu_mem_time_sum": lambda session, selection, _: work_summary(session, selection, MEMORY),
    "cuda_gpu_sum": _gpu_work,
}
