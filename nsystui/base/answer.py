"""An answer: the columns and rows that a question gives, ready to be shown or written, knowing neither.

Screens and commands show the same answers, so that a number is the same number everywhere. Rows are plain tuples of
``int``, ``float``, ``str`` and ``None`` (``None`` is "the export does not say"), aligned with ``columns``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Self, overload, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


FILES_ONLY = 9
"""The importance of a column that only files get: it identifies a row, and is not shown on a screen."""


UNKNOWN = -1
"""The device or stream of an event that names none. It is a number, so it is grouped and sorted like others."""


class Unit(Enum):
    """The quantity of a value: it decides the alignment and the words on a screen. Files always get the plain value."""

    TIME = "time"  # ns: a point in time
    DURATION = "duration"  # ns
    CHANGE = "change"  # ns more, or fewer, than something else: a screen shows the sign
    MICROSECONDS = "us"  # a time or duration of a report of `nsystui stats` with --timeunit
    MILLISECONDS = "ms"
    SECONDS = "s"
    BYTES = "bytes"
    MEGABYTES = "megabytes"  # of 10⁶ bytes: in the reports of `nsystui stats` alone, as nsys has them
    MEGABYTE_RATE = "megabyte rate"  # 10⁶ bytes per second: there as well
    PERCENT = "percent"
    COUNT = "count"
    RATIO = "ratio"  # one number over another
    NUMBER = "number"  # a number that is not a count: an id, a grid size
    RATE = "rate"  # bytes per second
    FREQUENCY = "frequency"  # Hz
    TICK_RATE = "tick rate"  # ticks per millisecond: how long a network adapter waits to send
    DEVICE = "device"  # the number of a device; files get nothing for `UNKNOWN`
    STREAM = "stream"
    TEXT = "text"


_SUFFIXES = {
    Unit.TIME: "ns",
    Unit.DURATION: "ns",
    Unit.CHANGE: "ns",
    Unit.MICROSECONDS: "us",
    Unit.MILLISECONDS: "ms",
    Unit.SECONDS: "s",
    Unit.BYTES: "bytes",
    Unit.MEGABYTES: "mb",
    Unit.MEGABYTE_RATE: "mb_per_s",
    Unit.PERCENT: "percent",
    Unit.RATE: "bytes_per_s",
    Unit.FREQUENCY: "hz",
    Unit.TICK_RATE: "ticks_per_ms",
}
"""The unit of the numbers in files, as a key ends in it; other quantities have none."""


PLACES = (Unit.DEVICE, Unit.STREAM)
"""The units of devices and streams, whose numbers may be `UNKNOWN`."""
_STATISTICS = frozenset({"avg", "average", "mean", "median", "min", "max", "stddev", "p5", "p95", "q1", "q3"})


@dataclass(frozen=True)
class Column:
    """One column of an answer.

    ``key`` is its name in code, ``file_key`` the one in JSON, Parquet and frames, ``header`` its name in CSV and
    Markdown (with the unit, as nsys writes it), ``label`` its heading on a screen. ``decimals`` is how many a file gets
    (``None``: an integer or text as it is). ``importance`` decides which columns leave first on a narrow screen: 0
    stays, higher numbers leave earlier, and ``FILES_ONLY`` is never shown. ``has_bar``: a screen draws the value as a
    bar, too: a percentage of the whole, another value of the column's maximum. ``stack``: the keys of the columns that
    the bar is made of, with their categories; each is at most what those before it leave of the value, and what they
    all leave is of the last category.
    ``compared``: the key of another column with which this one is compared, see ``scale``.
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

    @property
    def file_key(self) -> str:
        """The key with the unit of the values at its end: ``total_ns``.

        A name that an export gives, such as ``SMs Active [Throughput %]``, may end in a unit of its own.
        """
        suffix = _SUFFIXES.get(self.unit)
        if suffix is None or f"_{self.key}".endswith((f"_{suffix}", "]")):
            return self.key
        return f"{self.key}_{suffix}"

    @property
    def scale(self) -> tuple[Unit, str]:
        """Columns of the same scale share one unit on a screen.

        Those are the statistics of one quantity (``queue_avg``, ``queue_max``; ``min_a``, ``min_b`` of two jobs), and
        columns with those that they name in ``compared``.
        """
        words = re.split("[_-]", self.compared or self.key)
        rest = [word for word in words if word not in _STATISTICS and word not in ("a", "b")]
        return self.unit, " ".join([*rest, "statistics"] if _STATISTICS.intersection(words) else rest)

    def with_importance(self, importance: int) -> Column:
        """The same column, which leaves a narrow screen earlier or later."""
        return replace(self, importance=importance)


RANK = Column("rank", header="Rank", label="rank", unit=Unit.NUMBER)
HOST = Column("host", header="Host", label="host")
DEVICE = Column("device", header="Device", label="dev", unit=Unit.DEVICE)
STREAM = Column("stream", header="Strm", label="strm", unit=Unit.STREAM)
STEP = Column("step", header="Step", label="step", unit=Unit.NUMBER)
NAME = Column("name", header="Name", label="name")
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
"""The number of the native row: report, process and row number identify a row of a table."""


Value = int | float | str | None
Row = tuple[Value, ...]
Record = Mapping[str, Value]
"""The values of a row by the keys of its columns."""


def record(columns: Sequence[Column], row: Row) -> dict[str, Value]:
    """The values of a row by the keys of its columns."""
    return dict(zip((column.key for column in columns), row, strict=True))


def key_named(columns: Iterable[Column], name: str) -> str | None:
    """The key of the column that a user calls ``name``: by its name in files, or by the key; ``None`` without one."""
    keys = {column.key: column.key for column in columns}
    return (keys | {column.file_key: column.key for column in columns}).get(name)


class Answer(Protocol):
    """Rows that are fetched by position: a small table, or a window on millions of rows."""

    @property
    def name(self) -> str:
        """A word for file names and JSON, such as ``kernels``."""

    @property
    def columns(self) -> tuple[Column, ...]: ...

    @property
    def total(self) -> int | None:
        """The number of rows without the filter (the M of "N of M"); ``None`` where that has no meaning."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that belong to the numbers: what is missing and how to record it, what differs from nsys."""

    def __len__(self) -> int: ...

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        """The rows from ``offset`` on, at most ``limit``."""

    def sorted_by(self, key: str, descending: bool) -> Answer:
        """The same answer in another order; ``None`` comes last either way."""


@runtime_checkable
class Streamed(Protocol):
    """An answer that gives all of its rows faster in one go than page by page."""

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        """All rows in order, ``size`` at a time."""


def row_batches(answer: Answer, size: int = 10_000) -> Iterator[Sequence[Row]]:
    """Every row of ``answer``, ``size`` at a time, so that a file of any length needs little memory."""
    if isinstance(answer, Streamed):
        yield from answer.stream(size)
    else:
        for offset in range(0, len(answer), size):
            yield answer.page(offset, size)


def column_batches(answer: Answer, size: int = 10_000) -> Iterator[Sequence[Sequence[Value]]]:
    """The columns of every ``size`` rows of ``answer``, the last ones of fewer.

    Of an answer that is kept by column no row is made.
    """
    if isinstance(answer, TableAnswer) and isinstance(answer.rows, _MadeRows):
        yield from (answer.rows.columns(slice(start, start + size)) for start in range(0, len(answer), size))
        return
    rows = iter_rows(answer)
    while batch := list(islice(rows, size)):
        yield list(zip(*batch, strict=True))


def iter_rows(answer: Answer, size: int = 10_000) -> Iterator[Row]:
    """Every row of ``answer``, fetched ``size`` at a time."""
    for batch in row_batches(answer, size):
        yield from batch


@dataclass(frozen=True)
class TableAnswer:
    """An answer whose rows are in memory: a list of them, a frame (see `of_frame`) or arrays (see `of_arrays`)."""

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    total: int | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_frame(
        cls,
        name: str,
        columns: tuple[Column, ...],
        frame: pd.DataFrame,
        total: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> Self:
        """The rows of ``frame``, whose columns have the keys of ``columns``; it may have others besides."""
        return cls(name, columns, FrameRows(frame, tuple(column.key for column in columns)), total, notes)

    @classmethod
    def of_arrays(
        cls,
        name: str,
        columns: tuple[Column, ...],
        arrays: Mapping[str, np.ndarray[Any, Any]],
        total: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> Self:
        """The same of arrays of one length, texts as objects: a million rows are written without pandas."""
        return cls(name, columns, ArrayRows(arrays, tuple(column.key for column in columns)), total, notes)

    def __post_init__(self) -> None:
        if isinstance(self.rows, FrameRows | ArrayRows):
            return
        if not all(type(cell) in _PLAIN_KINDS and cell == cell for row in self.rows for cell in row):  # not NaN
            object.__setattr__(self, "rows", [tuple(_plain(row)) for row in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.rows[offset : offset + limit]

    def cells(self, key: str) -> list[Value]:
        """The values of one column, in the order of the rows."""
        if isinstance(self.rows, FrameRows | ArrayRows):
            return self.rows.cells(key)
        position = [column.key for column in self.columns].index(key)
        return [row[position] for row in self.rows]

    def records(self) -> list[dict[str, Value]]:
        """The rows as dictionaries by the keys of the columns."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]

    def with_columns(self, columns: tuple[Column, ...]) -> Self:
        """The answer with these columns, by their keys, of those that it has."""
        if isinstance(self.rows, FrameRows | ArrayRows):
            return replace(self, columns=columns, rows=replace(self.rows, keys=tuple(column.key for column in columns)))
        cells = [self.cells(column.key) for column in columns]
        return replace(self, columns=columns, rows=list(zip(*cells, strict=True)))

    def sorted_by(self, key: str, descending: bool) -> Self:
        cells: list[Any] = self.cells(key)
        known = [position for position, cell in enumerate(cells) if cell is not None]
        missing = [position for position, cell in enumerate(cells) if cell is None]
        order = [*sorted(known, key=cells.__getitem__, reverse=descending), *missing]
        if isinstance(self.rows, FrameRows | ArrayRows):
            return replace(self, rows=self.rows.taken(order))
        return replace(self, rows=[self.rows[position] for position in order])

    def frame(self) -> pd.DataFrame:
        """The rows as a frame with the keys of the columns; numbers that may be missing are ``Int64`` or floats."""
        if isinstance(self.rows, FrameRows):
            return self.rows.frame
        import pandas as pd

        if isinstance(self.rows, ArrayRows):
            return pd.DataFrame({**self.rows.arrays})
        cells = list(zip(*self.rows, strict=True)) if self.rows else [()] * len(self.columns)
        series = {}
        for column, values in zip(self.columns, cells, strict=True):
            # A missing value is NaN among floats, which are written with decimals, and NA in ``Int64``.
            dtype = "object" if column.unit is Unit.TEXT else "Int64" if column.decimals is None else "float64"
            series[column.key] = pd.Series(list(values), dtype=dtype)
        return pd.DataFrame(series)


class _MadeRows(Sequence[Row]):
    """Rows as tuples of Python values, made on demand: most of a large table is never needed."""

    @overload
    def __getitem__(self, position: int) -> Row: ...
    @overload
    def __getitem__(self, position: slice) -> list[Row]: ...
    def __getitem__(self, position: int | slice) -> Row | list[Row]:
        if isinstance(position, int):
            return self[position : position + 1 or None][0]
        return list(zip(*self.columns(position), strict=True))

    def columns(self, position: slice) -> list[list[Value]]:
        """The rows of a slice, column by column."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Row]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none


@dataclass(frozen=True, eq=False)
class ArrayRows(_MadeRows):
    """The rows of arrays of one length."""

    arrays: Mapping[str, np.ndarray[Any, Any]]
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrays[self.keys[0]])

    def columns(self, position: slice) -> list[list[Value]]:
        return [_plain(self.arrays[key][position].tolist()) for key in self.keys]

    def cells(self, key: str) -> list[Value]:
        """One column."""
        return _plain(self.arrays[key].tolist())

    def taken(self, order: Sequence[int]) -> ArrayRows:
        """The rows at these places, in this order."""
        return replace(self, arrays={key: values[list(order)] for key, values in self.arrays.items()})


@dataclass(frozen=True, eq=False)
class FrameRows(_MadeRows):
    """The rows of a frame."""

    frame: pd.DataFrame
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.frame)

    def columns(self, position: slice) -> list[list[Value]]:
        chosen = self.frame.iloc[position]
        return [_plain(chosen[key].tolist()) for key in self.keys]

    def cells(self, key: str) -> list[Value]:
        """One column."""
        return _plain(self.frame[key].tolist())

    def taken(self, order: Sequence[int]) -> FrameRows:
        """The rows at these places, in this order."""
        return replace(self, frame=self.frame.iloc[list(order)].reset_index(drop=True))


_PLAIN_KINDS = {int, float, str, type(None)}


def _plain(cells: Iterable[Any]) -> list[Value]:
    """Scalars of numpy and pandas as Python's own; NaN and NA as ``None``."""
    values = list(cells)
    kinds = set(map(type, values))
    if kinds <= _PLAIN_KINDS and (float not in kinds or all(value == value for value in values)):
        return values  # found at the speed of C: rows come in millions
    return [_plain_value(value) for value in values]


def _plain_value(value: Any) -> Value:
    if value is None or type(value).__name__ == "NAType":
        return None
    if hasattr(value, "item"):
        value = value.item()
    return None if value != value else value  # NaN is not equal to itself


@dataclass(frozen=True)
class Wrapped:
    """Another answer, changed in what a subclass says."""

    whole: Answer

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.whole.columns

    @property
    def total(self) -> int | None:
        return self.whole.total

    @property
    def notes(self) -> tuple[str, ...]:
        return self.whole.notes

    def __len__(self) -> int:
        return len(self.whole)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.whole.page(offset, limit)

    def sorted_by(self, key: str, descending: bool) -> Answer:
        return replace(self, whole=self.whole.sorted_by(key, descending))


@dataclass(frozen=True)
class Changed(Wrapped):
    """Another answer with every row changed by ``changed``, which a subclass has."""

    def changed(self, rows: Sequence[Row]) -> Sequence[Row]:
        raise NotImplementedError

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.changed(self.whole.page(offset, limit))

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        return map(self.changed, row_batches(self.whole, size))


@dataclass(frozen=True)
class Head(Wrapped):
    """The first ``limit`` rows of another answer."""

    limit: int

    def __len__(self) -> int:
        return min(len(self.whole), max(self.limit, 0))

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.whole.page(offset, min(limit, max(len(self) - offset, 0)))
