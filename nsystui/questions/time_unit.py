"""An answer with its times in another unit than ns, as ``nsys stats --timeunit`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nsystui.base.answer import Answer, Changed, Row, Value
from nsystui.base.columns import Column, Unit
from nsystui.base.errors import UsageError
from nsystui.base.units import round_half_up


class TimeUnit(Enum):
    """A unit of time: what stands in a header, ns in one of it, and the decimals that a file gets.

    The decimals of µs and ms are those that nsys prints; of seconds no output of it is known.
    """

    NANOSECONDS = ("ns", 1, 1)
    MICROSECONDS = ("us", 1_000, 3)
    MILLISECONDS = ("ms", 1_000_000, 4)
    SECONDS = ("s", 1_000_000_000, 5)

    def __init__(self, symbol: str, ns: int, decimals: int) -> None:
        self.symbol, self.ns, self.decimals = symbol, ns, decimals


_WORDS = {
    TimeUnit.NANOSECONDS: ("ns", "nsec", "nanoseconds"),
    TimeUnit.MICROSECONDS: ("us", "usec", "microseconds"),
    TimeUnit.MILLISECONDS: ("ms", "msec", "milliseconds"),
    TimeUnit.SECONDS: ("s", "sec", "seconds"),
}


def time_unit_of(text: str) -> TimeUnit:
    """``usec`` as a unit; raises UsageError with the words there are."""
    for unit, words in _WORDS.items():
        if text.lower() in words:
            return unit
    known = ", ".join(word for words in _WORDS.values() for word in words)
    raise UsageError(f"time unit {text!r}: write one of {known}")


def in_unit(answer: Answer, unit: TimeUnit) -> Answer:
    """``answer`` with every duration and point in time in ``unit``; unchanged for ns."""
    return answer if unit is TimeUnit.NANOSECONDS else _Scaled(answer, unit)


@dataclass(frozen=True)
class _Scaled(Changed):
    """Values are scaled after they were rounded as in ns, which is the order in which nsys does it.

    Its SQL rounds the ns, and C's formatting what they are in another unit, as it does with megabytes.
    """

    unit: TimeUnit

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(self._column(column) if _is_time(column) else column for column in self.whole.columns)

    def _column(self, column: Column) -> Column:
        symbol = self.unit.symbol
        return replace(
            column,
            header=column.header.replace("(ns)", f"({symbol})"),
            label=f"{column.label} {symbol}",
            unit=Unit.NUMBER,
            decimals=self.unit.decimals,
        )

    def changed(self, rows: Sequence[Row]) -> Sequence[Row]:
        columns = self.whole.columns
        return [tuple(self._value(column, value) for column, value in zip(columns, row, strict=True)) for row in rows]

    def _value(self, column: Column, value: Value) -> Value:
        if not _is_time(column) or value is None or isinstance(value, str):
            return value
        ns = round_half_up(float(value), column.decimals or 0)
        return round(ns / self.unit.ns, self.unit.decimals)


def _is_time(column: Column) -> bool:
    return column.unit in (Unit.TIME, Unit.DURATION)
