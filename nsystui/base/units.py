"""Units: wording of values on screens, parsing durations and sizes, and answers in another unit of time.

The rules of wording, the same on every screen:

* Durations pick ns, µs, ms or s by size and keep at most four significant digits: ``2.453 ms``, ``320 µs``, ``41.3 s``.
* Points in time are seconds with nine decimals in groups of three, ``6.412 018 233 s``, because neighbouring events can
  be one nanosecond apart.
* Amounts of bytes have base 1024 and binary names (``227 KiB``, ``1.5 MiB``), rates base 1000 and decimal names
  (``212 GB/s``), like NCCL's busbw. Only tables of ``nsystui stats`` have columns of megabytes, with MB (10⁶ bytes) in
  the heading and three decimals, as in nsys.
* Digits before the decimal point are never rounded away: values beyond the largest unit have more digits.
* A value that is missing, or not a finite number, is ``–``: missing is not zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from enum import Enum
from typing import TypeGuard

from nsystui.base.answer import UNKNOWN, Answer, Column, Row, Unit, Value, adapted
from nsystui.base.errors import UsageError
from nsystui.base.text import LARGEST_NUMBER, safe_text

MISSING = "–"
MEGABYTE = 1_000_000.0  # bytes, as in nsys

_NEARLY_ZERO = 0.005  # ns or bytes: less is a rounding error
_Scales = tuple[tuple[int, str], ...]
_DURATIONS: _Scales = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))
_BYTES: _Scales = ((1, "B"), (1024, "KiB"), (1024**2, "MiB"), (1024**3, "GiB"), (1024**4, "TiB"))
_RATES: _Scales = ((1, "B/s"), (10**3, "kB/s"), (10**6, "MB/s"), (10**9, "GB/s"))
_FREQUENCIES: _Scales = ((1, "Hz"), (10**3, "kHz"), (10**6, "MHz"), (10**9, "GHz"))


def _four_digits(number: float) -> str:
    """Return at most four significant digits without trailing zeros, but all before the point."""
    if abs(number) >= 999.95:  # four digits would round to 1000
        return f"{number:,.0f}"
    return f"{number:.4g}" if number else "0"


def _three_digits(number: float) -> str:
    """Return three significant digits, or a whole number."""
    if abs(number) >= 999.5 or abs(number) < _NEARLY_ZERO or number == round(number):
        return f"{number + 0.0:,.0f}".removeprefix("-" * (abs(number) < _NEARLY_ZERO))
    return f"{number:#.3g}".rstrip(".")


def _scaled(value: float, scales: _Scales, limit: int, digits: int = 4) -> str:
    """Return ``value`` in the first scale in which it is less than ``limit`` after rounding to 3 or 4 ``digits``."""
    words = _four_digits if digits == 4 else _three_digits
    for size, name in scales[:-1]:
        if abs(value) < limit * size:
            number = value / size
            # 999 950 ns is not "1,000 µs": a value that rounds up to the limit has the next scale.
            if abs(float(f"{number:.{digits}g}")) < limit:
                return f"{words(number)} {name}"
    size, name = scales[-1]
    return f"{words(value / size)} {name}"


def _time(value: float) -> str:
    ns = round(value)
    seconds, remainder = divmod(abs(ns), 1_000_000_000)
    digits = f"{remainder:09d}"
    return f"{'-' if ns < 0 else ''}{seconds:,}.{digits[:3]} {digits[3:6]} {digits[6:]} s"


def _count(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else _four_digits(value)


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def numbered(noun: str, number: Value) -> str:
    """Return ``device 3`` (``d3`` for ``d``), or ``unknown device`` for `UNKNOWN`."""
    if number == UNKNOWN:
        return f"unknown {'device' if noun == 'd' else noun}"
    return f"{noun}{number}" if noun == "d" else f"{noun} {number}"


_WORDINGS: dict[Unit, Callable[[float], str]] = {
    Unit.TIME: _time,
    Unit.DURATION: lambda ns: _scaled(ns, _DURATIONS, 1000),
    Unit.CHANGE: lambda ns: ("+" if ns > 0 else "") + _scaled(ns, _DURATIONS, 1000),
    Unit.BYTES: lambda size: _scaled(size, _BYTES, 1024),
    **dict.fromkeys((Unit.MEGABYTES, Unit.MEGABYTE_RATE), "{:,.3f}".format),
    Unit.RATE: lambda rate: _scaled(rate, _RATES, 1000),
    Unit.FREQUENCY: lambda frequency: _scaled(frequency, _FREQUENCIES, 1000),
    Unit.PERCENT: lambda percent: f"{round(percent, 1) + 0.0:.1f} %",
    Unit.COUNT: _count,
    Unit.RATIO: _four_digits,
    **dict.fromkeys(
        (Unit.NUMBER, Unit.TICK_RATE, Unit.MICROSECONDS, Unit.MILLISECONDS, Unit.SECONDS, Unit.TEXT), _plain
    ),
    Unit.DEVICE: lambda number: "unknown device" if number == UNKNOWN else _plain(number),
    Unit.STREAM: lambda number: "unknown stream" if number == UNKNOWN else _plain(number),
}


def format_value(unit: Unit, value: Value) -> str:
    """Return ``value`` in the words of a screen; text, in a column of any unit, is made safe by `safe_text`.

    TIME, DURATION and CHANGE are in ns, MEGABYTES in 10⁶ bytes, RATE in bytes per second, MEGABYTE_RATE in 10⁶ bytes
    per second, FREQUENCY in Hz, PERCENT in percent (14.6, not 0.146).
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    return safe_text(value) if isinstance(value, str) else _WORDINGS[unit](value)


def size_label(size: int) -> str:
    """Return a size in bytes as one word: ``64KiB``."""
    return format_value(Unit.BYTES, size).replace(" ", "")


_DURATION = re.compile(r"([0-9]+(?: [0-9]+)*(?:\.[0-9]+(?: [0-9]+)*)?|\.[0-9]+) *(ns|us|µs|μs|ms|s)?", re.IGNORECASE)
_NS_PER = {"ns": 1, "us": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_MAX_DURATION = 2**63 - 1


def parse_duration(text: str, span: str = "") -> int:
    """Parse ``1.5ms``, ``250us``, ``3 s`` or ``0`` as whole ns; errors quote ``span``, which contains ``text``.

    Groups of digits, as on screens (``6.412 018 s``), are accepted. Raises UsageError for numbers without a unit, which
    nsys takes for ns and many users for seconds, and for commas, which may group digits or begin the decimals.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a time: give a number with ns, us, ms or s, such as 250us or 1.5s")
    number, unit = match.groups()
    # Decimal: a float has 16 digits, and a time up to 19. casefold maps both characters for µ to one.
    value = Decimal(number.replace(" ", ""))
    if value and not unit:
        readings = [re.sub(r"(?<=[0-9])\s*(?=[:/]|$)", suffix, (span or text).strip()) for suffix in ("ns", "s")]
        raise UsageError(f"time {span or text!r} has no unit: write {' or '.join(readings)}")
    ns = round(value * _NS_PER[(unit or "ns").casefold()])
    if ns > _MAX_DURATION:
        raise UsageError(f"{text!r} is longer than the {_MAX_DURATION} ns that an export can hold")
    return ns


_SCALES: dict[Unit, _Scales] = {
    **dict.fromkeys((Unit.DURATION, Unit.CHANGE), _DURATIONS),
    Unit.BYTES: _BYTES,
    Unit.RATE: _RATES,
    Unit.FREQUENCY: _FREQUENCIES,
}

_MIN_LARGEST = 10
"""A largest value below 10 of a unit gets the next smaller unit (``2,646.183 ms``), unless whole or a rate."""


def _is_finite(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _scale_of(unit: Unit, numbers: Sequence[float], largest: float) -> tuple[float, str]:
    """Return the size and symbol of the unit that suits the largest number."""
    scales = _SCALES[unit]
    index = max((index for index, (size, _) in enumerate(scales) if largest >= size), default=0)
    is_whole = all(number % scales[index][0] == 0 for number in numbers)
    if index and largest < _MIN_LARGEST * scales[index][0] and not is_whole and unit is not Unit.RATE:
        index -= 1
    return scales[index]


@dataclass(frozen=True)
class Wording:
    """The wording of all values of a column: one unit, named in the heading, and the same decimals.

    A number's length shows its magnitude. ``symbol`` is the unit, ``size`` its size in the unit of the values,
    ``decimals`` the digits after the point (``None``: varying). If small values would be zero in the unit of the
    largest, each cell has its unit.
    """

    unit: Unit
    symbol: str = ""
    size: float = 1
    decimals: int | None = None

    @classmethod
    def of(cls, unit: Unit, values: Sequence[Value]) -> Wording:
        """Return the wording that suits the largest of ``values``."""
        if unit in _FIXED:
            return _FIXED[unit]
        if unit is Unit.COUNT and any(isinstance(value, float) and value % 1 for value in values):
            return cls(unit, "", 1, 1)
        numbers = [abs(value) for value in values if _is_finite(value)]
        if unit not in _SCALES or (values and not numbers):
            return cls(unit)
        largest = max(numbers, default=0)
        size, symbol = _scale_of(unit, numbers, largest)
        if all(number % size == 0 for number in numbers):
            return cls(unit, symbol, size, 0)
        decimals = 3 if largest < 1000 * size else 1
        is_zero = any(_NEARLY_ZERO <= number < 0.5 * 10**-decimals * size for number in numbers)
        return cls(unit) if is_zero else cls(unit, symbol, size, decimals)

    def heading(self, label: str) -> str:
        """Return ``total ms``, ``total ms/step`` for ``total/step``, or the label if it already names the unit."""
        if not self.symbol or label.endswith(self.symbol):
            return label
        per = "/step" if label.endswith("/step") else ""
        return f"{label.removesuffix(per)} {self.symbol}{per}"

    def cell(self, value: Value) -> str:
        """Return ``value`` without the unit of the heading; percentages too small for the decimals have one digit."""
        if not _is_finite(value):
            return format_value(self.unit, value)
        text = "0" if self.decimals is None else f"{value / self.size:,.{self.decimals}f}"
        is_zero = not float(text.replace(",", ""))
        if self.unit in _SCALES and (not self.symbol or (is_zero and abs(value) >= _NEARLY_ZERO)):
            sign = "+" * (self.unit is Unit.CHANGE and value >= _NEARLY_ZERO)
            return sign + _scaled(value, _SCALES[self.unit], 1024 if self.unit is Unit.BYTES else 1000, 3)
        if self.decimals is None:
            return format_value(self.unit, value).removesuffix(f" {self.symbol}")
        if not is_zero:
            return "+" * (self.unit is Unit.CHANGE and value > 0) + text
        is_small = value > 0 and self.unit not in _SCALES
        return f"{Decimal(f'{value:.0e}'):f}"[:5] if is_small else text.removeprefix("-")

    def words(self, value: Value) -> str:
        """Return ``value`` with four digits, in the column's unit unless that unit is over 1000 times as large."""
        if not _is_finite(value) or self.unit not in _SCALES:
            return format_value(self.unit, value)
        if not self.symbol or 0 < abs(value) < self.size / 1000:
            return format_value(self.unit, value)
        sign = "+" if self.unit is Unit.CHANGE and value > 0 else ""
        return f"{sign}{_four_digits(value / self.size)} {self.symbol}"


_FIXED = {
    Unit.PERCENT: Wording(Unit.PERCENT, "%", 1, 1),
    Unit.TIME: Wording(Unit.TIME, "s"),
    Unit.RATIO: Wording(Unit.RATIO, "", 1, 2),
}
"""The wordings that do not depend on the values."""


def wordings(columns: Sequence[Column], rows: Sequence[Row]) -> list[Wording]:
    """Return the wording of each column that suits ``rows``.

    Columns of one scale, shown or hidden, share the unit that suits their largest value, so that narrower tables have
    the same numbers.
    """
    values_by_scale: dict[tuple[Unit, str], list[Value]] = {column.scale: [] for column in columns}
    for column, values in zip(columns, zip(*rows, strict=True), strict=False):
        values_by_scale[column.scale].extend(values)
    wordings_by_scale = {scale: Wording.of(scale[0], values) for scale, values in values_by_scale.items()}
    return [wordings_by_scale[column.scale] for column in columns]


_NUMBER = re.compile(r"(?P<whole>[-+]?[0-9][0-9,]*)(?P<fraction>\.[0-9 ]*[0-9])?(?P<unit> [^0-9\s]\S*)?")


def _parts(cell: str) -> tuple[str, str, str]:
    """Split a worded value: text before the decimal point, from the point on, and a blank with the unit."""
    match = _NUMBER.fullmatch(cell)
    if match is None:  # "–", or text: aligned with the ends of whole numbers
        return cell, "", ""
    return match["whole"], match["fraction"] or "", match["unit"] or ""


def align_decimal(cells: Sequence[str]) -> list[str]:
    """Pad a column of worded values to one width, aligning decimal points and units."""
    parts = list(map(_parts, cells))
    whole, fraction, unit = (max((len(part[index]) for part in parts), default=0) for index in range(3))
    return [f"{text:>{whole}}{decimals:<{fraction}}{symbol:>{unit}}" for text, decimals, symbol in parts]


def round_half_up(value: float, decimals: int) -> float:
    """Round halves away from zero, like the SQL of nsys: 1607.35 to 1607.4; ``round`` returns 1607.3.

    Numbers that are not halves in decimal are left to ``round``, which is ten times as fast.
    """
    if repr(value).partition(".")[2][decimals:] != "5":
        return round(value, decimals)
    step = Decimal(1).scaleb(-decimals)
    return float(Decimal(repr(value)).quantize(step, ROUND_HALF_UP)) if abs(value) < 1e15 else value


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) *([KMGT]?)(i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parse a size as whole bytes: ``512M`` and ``512MiB`` have base 1024, ``512MB`` has base 1000.

    Raises UsageError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size: give a number with M or G, such as 512M or 1.5G")
    number, unit, ending = match.groups()
    base = 1000 if (ending or "").upper() == "B" else 1024
    size = int(Decimal(number) * base ** ("", "K", "M", "G", "T").index(unit.upper()))
    if size > LARGEST_NUMBER:
        raise UsageError(f"{text!r} is too large")
    return size


def size_words(size: int) -> str:
    """Return a size in the form of an option: whole MiB, rounded up."""
    return f"{-(-size // (1 << 20))}MiB"


class TimeUnit(Enum):
    """A unit of time: its symbol in headers, its length in ns, the decimals in files, and its other names.

    The decimals of µs and ms are as in nsys; no nsys output in seconds is known.
    """

    NANOSECONDS = ("ns", 1, 1, "nsec", "nanoseconds")
    MICROSECONDS = ("us", 1_000, 3, "usec", "microseconds")
    MILLISECONDS = ("ms", 1_000_000, 4, "msec", "milliseconds")
    SECONDS = ("s", 1_000_000_000, 5, "sec", "seconds")

    def __init__(self, symbol: str, ns: int, decimals: int, *names: str) -> None:
        self.symbol, self.ns, self.decimals, self.words = symbol, ns, decimals, (symbol, *names)


def time_unit_of(text: str) -> TimeUnit:
    """Parse a unit such as ``usec``. Raises UsageError, which lists the accepted words."""
    for unit in TimeUnit:
        if text.lower() in unit.words:
            return unit
    accepted = ", ".join(word for unit in TimeUnit for word in unit.words)
    raise UsageError(f"time unit {text!r}: write one of {accepted}")


def in_unit(answer: Answer, unit: TimeUnit) -> Answer:
    """Return ``answer`` with durations and points in time in ``unit``; unchanged for ns.

    Values are rounded twice, as in nsys, which rounds the ns in SQL, and the scaled value (also megabytes) with C's
    formatting.
    """
    if unit is TimeUnit.NANOSECONDS:
        return answer

    def in_columns(column: Column) -> Column:
        header, label = column.header.replace("(ns)", f"({unit.symbol})"), f"{column.label} {unit.symbol}"
        return replace(column, header=header, label=label, unit=Unit(unit.symbol), decimals=unit.decimals)

    def scaled(column: Column, value: Value) -> Value:
        if not _is_time(column) or value is None or isinstance(value, str):
            return value
        return round(round_half_up(float(value), column.decimals or 0) / unit.ns, unit.decimals)

    return replace(
        adapted(answer),
        columns=tuple(in_columns(column) if _is_time(column) else column for column in answer.columns),
        change=lambda rows: [tuple(map(scaled, answer.columns, row)) for row in rows],
    )


def _is_time(column: Column) -> bool:
    return column.unit in (Unit.TIME, Unit.DURATION)
