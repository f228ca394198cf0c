"""An answer: the columns and rows that a question gives, ready to be shown or written, knowing neither.

Screens and commands show the same answers, so that a number is the same number everywhere. Rows are plain tuples of
``int``, ``float``, ``str`` and ``None`` (``None`` is "the export does not say"), aligned with ``columns``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pandas as pd

Value = int | float | str | None
Row = tuple[Value, ...]


FILES_ONLY = 9
"""The importance of a column that only files get: what tells a row from any other, which nobody reads on a screen."""


class Unit(Enum):
    """What a value measures; it decides alignment and how a screen words it. Files always get the plain value."""

    TIME = "time"  # ns: a point in time
    DURATION = "duration"  # ns
    CHANGE = "change"  # ns more, or fewer, than something else: a screen shows the sign
    BYTES = "bytes"
    MEGABYTES = (
        "megabytes"  # of 10⁶ bytes, or these per second: in the reports of `nsystui stats` alone, as nsys has them
    )
    PERCENT = "percent"
    COUNT = "count"
    NUMBER = "number"  # a number that is not a count: an id, a grid size
    RATE = "rate"  # bytes per second
    TEXT = "text"


@dataclass(frozen=True)
class Column:
    """One column of an answer.

    ``key`` is its name in code and in JSON, ``header`` its name in CSV and Markdown (with the unit, as nsys writes it),
    ``label`` its heading on a screen. ``decimals`` is how many a file gets (``None``: an integer or text as it is).
    ``importance`` decides which columns leave first on a narrow screen: 0 stays, higher
    numbers leave earlier, and ``FILES_ONLY`` is never shown.
    """

    key: str
    header: str
    label: str
    unit: Unit = Unit.TEXT
    decimals: int | None = None
    importance: int = 0


class Answer(Protocol):
    """Rows that can be asked for by position: a small frame, or a window on millions of rows."""

    @property
    def name(self) -> str:
        """A word for file names and JSON, such as ``kernels``."""

    @property
    def columns(self) -> tuple[Column, ...]: ...

    @property
    def total(self) -> int | None:
        """How many rows there are without the filter (the M of "N of M"); ``None`` where that has no meaning."""

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


def iter_rows(answer: Answer, size: int = 10_000) -> Iterator[Row]:
    """Every row of ``answer``, fetched ``size`` at a time."""
    for batch in row_batches(answer, size):
        yield from batch


def _plain(value: Any) -> Value:
    """A numpy or pandas scalar as Python's own; NaN and NA as ``None``."""
    if value is None or type(value).__name__ == "NAType":
        return None
    if hasattr(value, "item"):
        value = value.item()
    return None if value != value else value  # NaN is not equal to itself


@dataclass(frozen=True)
class FrameAnswer:
    """An answer that fits in memory: a pandas frame whose columns are the keys of ``columns`` (others are ignored)."""

    name: str
    columns: tuple[Column, ...]
    frame: pd.DataFrame
    total: int | None = None
    notes: tuple[str, ...] = ()
    _rows: list[Row] = field(default_factory=list, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.frame)

    def rows(self) -> list[Row]:
        """Every row as plain Python values (computed once)."""
        if len(self._rows) != len(self.frame):
            self._rows[:] = self._plain_rows(0, len(self.frame))
        return self._rows

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        if len(self._rows) == len(self.frame):
            return self._rows[offset : offset + limit]
        return self._plain_rows(offset, offset + limit)

    def _plain_rows(self, first: int, last: int) -> list[Row]:
        chosen = [self.frame[column.key].iloc[first:last] for column in self.columns]
        return list(zip(*([_plain(value) for value in series.tolist()] for series in chosen), strict=True))

    def sorted_by(self, key: str, descending: bool) -> FrameAnswer:
        frame = self.frame.sort_values(key, ascending=not descending, kind="stable", na_position="last")
        return replace(self, frame=frame.reset_index(drop=True), _rows=[])


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
