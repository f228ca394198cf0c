"""An answer: a question's columns and rows, independent of their display or writing.

Screens and commands share answers, and therefore numbers. Rows are tuples of ``int``, ``float``, ``str`` and ``None``
("the export does not say"), in the order of ``columns``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

from nsystui.base.types import Array, DataSeries

if TYPE_CHECKING:
    import pandas as pd


FILES_ONLY = 9
"""The importance of an identifying column, which files contain, but not screens."""


UNKNOWN = -1
"""A device or stream that was not recorded: a number, grouped and sorted like known numbers."""


class Unit(Enum):
    """The quantity of a value. It decides alignment and wording on a screen; files get the plain value."""

    TIME = "time"  # ns
    DURATION = "duration"  # ns
    CHANGE = "change"  # difference, ns: a screen shows the sign
    MICROSECONDS = "us"  # a time or duration of a report of `nsystui stats` with --timeunit
    MILLISECONDS = "ms"
    SECONDS = "s"
    BYTES = "bytes"
    MEGABYTES = "megabytes"  # 10⁶ bytes: only in the reports of `nsystui stats`, as in nsys
    MEGABYTE_RATE = "megabyte rate"  # 10⁶ bytes per second: only in the same reports
    PERCENT = "percent"
    COUNT = "count"
    RATIO = "ratio"  # quotient of two numbers
    NUMBER = "number"  # not a count: an id, a grid size
    RATE = "rate"  # bytes per second
    FREQUENCY = "frequency"  # Hz
    TICK_RATE = "tick rate"  # ticks per millisecond: how long a network adapter waits to send
    DEVICE = "device"  # files leave `UNKNOWN` empty
    STREAM = "stream"
    TEXT = "text"


_SUFFIXES = {
    Unit.TIME: "ns", Unit.DURATION: "ns", Unit.CHANGE: "ns", Unit.MICROSECONDS: "us", Unit.MILLISECONDS: "ms",
    Unit.SECONDS: "s", Unit.BYTES: "bytes", Unit.MEGABYTES: "mb", Unit.MEGABYTE_RATE: "mb_per_s",
    Unit.PERCENT: "percent", Unit.RATE: "bytes_per_s", Unit.FREQUENCY: "hz", Unit.TICK_RATE: "ticks_per_ms",
}  # fmt: skip
"""Endings of keys in files, by unit; other quantities have no ending."""


PLACES = (Unit.DEVICE, Unit.STREAM)
"""Units whose numbers may be `UNKNOWN`."""
_STATISTICS = frozenset({"avg", "average", "mean", "median", "min", "max", "stddev", "p5", "p95", "q1", "q3"})


@dataclass(frozen=True)
class Column:
    """A column of an answer.

    ``key`` is its name in code, ``file_key`` its name in JSON, Parquet and frames, ``header`` its name in CSV and
    Markdown (with the unit, as in nsys), ``label`` its heading on a screen. ``decimals`` is the number of decimals in
    files (``None`` for integers and text). ``importance`` decides which columns a narrow screen hides: higher numbers
    first, 0 never; ``FILES_ONLY`` is always hidden. If ``has_bar``, a screen also draws the value as a bar: percentages
    relative to 100, other values relative to the column's maximum.

    ``stack`` contains the key and category of each column in the bar. A part is at most the value minus the parts
    before it; the remainder has the last category. ``compared`` is the key of a column with the same ``scale``.
    """

    key: str
    _: KW_ONLY
    header: str
    label: str
    unit: Unit = Unit.TEXT
    decimals: int | None = None
    importance: int = 0
    has_bar: bool = False
    stack: tuple[tuple[str, str], ...] = ()
    compared: str = ""
    is_prose: bool = False
    """Whether a screen hides numbers before it cuts this text."""

    @property
    def file_key(self) -> str:
        """The key with the unit of the values at its end: ``total_ns``.

        A name from an export, such as ``SMs Active [Throughput %]``, may already end in a unit.
        """
        suffix = _SUFFIXES.get(self.unit)
        if suffix is None or f"_{self.key}".endswith((f"_{suffix}", "]")):
            return self.key
        return f"{self.key}_{suffix}"

    @property
    def scale(self) -> tuple[Unit, str]:
        """The scale of the values: columns of the same scale share a unit on a screen.

        Statistics of one quantity (``queue_avg``, ``queue_max``; ``min_a``, ``min_b`` of two jobs) have the same scale.
        So have columns linked by ``compared``.
        """
        words = re.split("[_-]", self.compared or self.key)
        subject = [word for word in words if word not in _STATISTICS and word not in ("a", "b")]
        return self.unit, " ".join([*subject, "statistics"] if _STATISTICS.intersection(words) else subject)

    def with_importance(self, importance: int) -> Column:
        return replace(self, importance=importance)


RANK = Column("rank", header="Rank", label="rank", unit=Unit.NUMBER)
HOST = Column("host", header="Host", label="host")
DEVICE = Column("device", header="Device", label="dev", unit=Unit.DEVICE)
STREAM = Column("stream", header="Strm", label="strm", unit=Unit.STREAM)
STEP = Column("step", header="Step", label="step", unit=Unit.NUMBER)
NAME = Column("name", header="Name", label="name")
FAMILY = Column("family", header="Family", label="family")
PRECISION = Column("precision", header="Precision", label="precision")
COLLECTIVE = Column("collective", header="Collective", label="collective")
START = Column("start", header="Start (ns)", label="start", unit=Unit.TIME)
END = Column("end", header="End (ns)", label="end", unit=Unit.TIME)
DURATION = Column("duration", header="Duration (ns)", label="duration", unit=Unit.DURATION)
COUNT = Column("count", header="Count", label="count", unit=Unit.COUNT)
BYTES = Column("bytes", header="Bytes", label="bytes", unit=Unit.BYTES)
PID = Column("pid", header="PID", label="pid", unit=Unit.NUMBER)
TID = Column("tid", header="TID", label="tid", unit=Unit.NUMBER)
REPORT_ID = Column("report", header="Report", label="report", unit=Unit.NUMBER, importance=FILES_ONLY)
PROCESS_ID = Column("process", header="Process", label="process", unit=Unit.NUMBER, importance=FILES_ONLY)
ROW_ID = Column("row", header="Row", label="row", unit=Unit.NUMBER, importance=FILES_ONLY)
"""The number of the native row; with report and process, it identifies a row of a table."""


def for_files(columns: Iterable[Column], keys: Collection[str]) -> tuple[Column, ...]:
    """Return the columns; screens hide the columns with these keys."""
    return tuple(column.with_importance(FILES_ONLY) if column.key in keys else column for column in columns)


Value = int | float | str | None
Row = tuple[Value, ...]
Record = Mapping[str, Value]
"""The values of a row by column key."""


def record(columns: Sequence[Column], row: Row) -> dict[str, Value]:
    return dict(zip((column.key for column in columns), row, strict=True))


_UNIT = re.compile(r" *(\(.*\)|(?<= )([nuμm]?s|%|[kmgt]?i?b(/s)?|[kmg]?hz))$")
"""The unit at the end of a heading in lower case."""


def key_named(columns: Iterable[Column], name: str) -> str | None:
    """Return the key of the column with this key, name in files, or heading with or without unit, if it exists."""
    keys: dict[str, str] = {}
    for column in columns:
        for text in (column.key, column.file_key, column.header, column.label):
            keys.setdefault(_UNIT.sub("", text.casefold()), column.key)
    return keys.get(name) or keys.get(_UNIT.sub("", name.casefold()))


class Answer(Protocol):
    """Rows read by position: a small table, or a window on millions of rows."""

    @property
    def name(self) -> str:
        """A word for file names and JSON, such as ``kernels``."""

    @property
    def columns(self) -> tuple[Column, ...]: ...

    @property
    def total(self) -> int | None:
        """The number of rows before filtering (the M of "N of M"); ``None`` if meaningless."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the numbers: missing data and how to record it, differences from nsys."""

    def __len__(self) -> int: ...

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        """Return at most ``limit`` rows, beginning at ``offset``."""

    def sorted_by(self, key: str, descending: bool) -> Answer:
        """Return the same answer in another order; ``None`` is last in both directions."""


def row_batches(answer: Answer, size: int = 10_000) -> Iterator[Sequence[Row]]:
    """Yield all rows, ``size`` at a time: files of any length need little memory.

    An answer with a method ``stream`` yields them faster than page by page.
    """
    if (stream := getattr(answer, "stream", None)) is not None:
        yield from stream(size)
    else:
        for offset in range(0, len(answer), size):
            yield answer.page(offset, size)


def column_batches(answer: Answer, size: int = 10_000) -> Iterator[Sequence[Sequence[Value]]]:
    """Yield batches of ``size`` rows as columns. Answers stored by column never build row tuples."""
    if isinstance(answer, TableAnswer) and isinstance(answer.rows, ColumnRows):
        yield from (answer.rows.columns(slice(start, start + size)) for start in range(0, len(answer), size))
        return
    rows = iter_rows(answer)
    while batch := list(islice(rows, size)):
        yield list(zip(*batch, strict=True))


def iter_rows(answer: Answer, size: int = 10_000) -> Iterator[Row]:
    """Yield all rows, reading ``size`` at a time."""
    for batch in row_batches(answer, size):
        yield from batch


def order_of(values: Sequence[Any], descending: bool) -> list[int]:
    """Return the indices that sort ``values``; ``None`` is last in both directions, equal values keep their order."""
    present = [index for index, value in enumerate(values) if value is not None]
    missing = [index for index, value in enumerate(values) if value is None]
    return [*sorted(present, key=values.__getitem__, reverse=descending), *missing]


@dataclass(frozen=True)
class TableAnswer:
    """An answer in memory: a list of rows, or a frame or arrays (`of_arrays`)."""

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    total: int | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_arrays(
        cls,
        name: str,
        columns: tuple[Column, ...],
        arrays: Mapping[str, Array] | pd.DataFrame,
        total: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> Self:
        """Wrap arrays of equal length, with texts as objects, or a frame; it may have more columns than ``columns``."""
        rows = ColumnRows(dict(arrays.items()), tuple(column.key for column in columns))
        return cls(name, columns, rows, total, notes)

    def __post_init__(self) -> None:
        if isinstance(self.rows, ColumnRows):
            return
        if not all(type(cell) in _PLAIN_KINDS and cell == cell for row in self.rows for cell in row):  # not NaN
            object.__setattr__(self, "rows", [tuple(_plain(row)) for row in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.rows[offset : offset + limit]

    def cells(self, key: str) -> list[Value]:
        """Return the values of a column."""
        if isinstance(self.rows, ColumnRows):
            return _plain(self.rows.arrays[key].tolist())
        position = [column.key for column in self.columns].index(key)
        return [row[position] for row in self.rows]

    def records(self) -> list[dict[str, Value]]:
        """Return the rows as dictionaries by column key."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]

    def with_columns(self, columns: tuple[Column, ...]) -> Self:
        """Return the answer with a selection of its columns."""
        if isinstance(self.rows, ColumnRows):
            return replace(self, columns=columns, rows=replace(self.rows, keys=tuple(column.key for column in columns)))
        cells = [self.cells(column.key) for column in columns]
        return replace(self, columns=columns, rows=list(zip(*cells, strict=True)))

    def sorted_by(self, key: str, descending: bool) -> Self:
        order = order_of(self.cells(key), descending)
        if isinstance(self.rows, ColumnRows):
            if not order:  # numpy takes no empty list
                return self
            arrays = {key: values.take(order) for key, values in self.rows.arrays.items()}
            return replace(self, rows=replace(self.rows, arrays=arrays))
        return replace(self, rows=[self.rows[position] for position in order])

    def frame(self) -> pd.DataFrame:
        """Return the rows as a frame with the columns' keys; nullable numbers are ``Int64`` or floats."""
        import pandas as pd

        if isinstance(self.rows, ColumnRows):
            return pd.DataFrame({**self.rows.arrays})
        cells = list(zip(*self.rows, strict=True)) if self.rows else [()] * len(self.columns)
        series = {}
        for column, values in zip(self.columns, cells, strict=True):
            # A missing value is NaN in a float column, which is written with decimals, and NA in ``Int64``.
            dtype = "object" if column.unit is Unit.TEXT else "Int64" if column.decimals is None else "float64"
            series[column.key] = pd.Series(list(values), dtype=dtype)
        return pd.DataFrame(series)


@dataclass(frozen=True, eq=False)
class ColumnRows(Sequence[Row]):
    """Rows of arrays or series of equal length; they become tuples on demand: most rows are never shown."""

    arrays: Mapping[str, Array | DataSeries]
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrays[self.keys[0]])

    @overload
    def __getitem__(self, position: int) -> Row: ...
    @overload
    def __getitem__(self, position: slice) -> list[Row]: ...
    def __getitem__(self, position: int | slice) -> Row | list[Row]:
        if isinstance(position, int):
            return self[position : position + 1 or None][0]
        return list(zip(*self.columns(position), strict=True))

    def columns(self, position: slice) -> list[list[Value]]:
        return [_plain(self.arrays[key][position].tolist()) for key in self.keys]

    def __iter__(self) -> Iterator[Row]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list


_PLAIN_KINDS = {int, float, str, type(None)}


def _plain(cells: Iterable[Any]) -> list[Value]:
    """Convert scalars of numpy and pandas; NaN and NA become ``None``."""
    values = list(cells)
    kinds = set(map(type, values))
    if kinds <= _PLAIN_KINDS and (float not in kinds or all(value == value for value in values)):
        return values  # checked at the speed of C, for millions of rows
    return [_plain_value(value) for value in values]


def _plain_value(value: Any) -> Value:
    if value is None or type(value).__name__ == "NAType":
        return None
    if hasattr(value, "item"):
        value = value.item()
    return None if value != value else value  # NaN is not equal to itself


@dataclass(frozen=True)
class Adapted:
    """An answer, ``whole``, under another heading or with other rows: its first ``limit``, or changed by ``change``."""

    whole: Answer
    name: str
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    change: Callable[[Sequence[Row]], Sequence[Row]] | None = None
    limit: int | None = None
    sorted_as: Mapping[str, str | None] = field(default_factory=dict)
    """The column of ``whole`` that sorts a changed column; ``None`` if all rows must be changed before."""

    @property
    def total(self) -> int | None:
        return self.whole.total

    def __len__(self) -> int:
        return len(self.whole) if self.limit is None else min(len(self.whole), max(self.limit, 0))

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        rows = self.whole.page(offset, min(limit, max(len(self) - offset, 0)))
        return self.change(rows) if self.change else rows

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        if self.limit is not None:
            return (self.page(offset, size) for offset in range(0, len(self), size))
        batches = row_batches(self.whole, size)
        return map(self.change, batches) if self.change else batches

    def sorted_by(self, key: str, descending: bool) -> Answer:
        whole_key = self.sorted_as.get(key, key)
        if whole_key is None:
            table = TableAnswer(self.name, self.columns, list(iter_rows(self)), self.total, self.notes)
            return table.sorted_by(key, descending)
        return replace(self, whole=self.whole.sorted_by(whole_key, descending))


def adapted(whole: Answer) -> Adapted:
    """Return ``whole`` with all its properties, for ``replace``."""
    return Adapted(whole, whole.name, whole.columns, whole.notes)


def head(answer: Answer, limit: int) -> Answer:
    """Return the first ``limit`` rows of ``answer``."""
    return replace(adapted(answer), limit=limit)
