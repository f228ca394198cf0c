"""The rows of every comparison: names that both sides have, or only one side.

``difference`` is B − A, split into the effects of count n and of mean duration t. Each effect is at the mean of the
other figure. They add up to the difference, except for rounding; swapping sides changes their signs:

    n_b·t_b − n_a·t_a  =  (n_b − n_a)·(t_a + t_b)/2  +  (t_b − t_a)·(n_a + n_b)/2

A mean over different things has no meaning: the split of a row of several kernels is the sum of their splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nsystui.base.answer import FILES_ONLY, Column, Row, TableAnswer, Unit, Value, order_of
from nsystui.questions.compare.side import Basis

NEW, GONE, BOTH = "new", "gone", "both"

Key = tuple[Value, ...]
"""The values of a row in the columns that identify it."""


@dataclass(frozen=True)
class Measured:
    """A row's figures on one side: count, sum and median of the durations (ns), and more by key.

    ``sums`` are divided by the table's unit (`Basis.each`), ``values`` are not. ``parts``: the figures of each kernel
    by name, in a row of several.
    """

    count: int
    total: int | None
    median: float | None = None
    sums: Mapping[str, float | None] | None = None
    values: Mapping[str, Value] | None = None
    parts: Mapping[Value, Measured] | None = None


@dataclass(frozen=True)
class Extra:
    """A pair of columns: ``{key}_a`` and ``{key}_b``, labelled ``A label`` and ``B label``.

    With ``difference``, the label of a third column, ``{key}_difference`` is B − A, ns.
    """

    key: str
    title: str
    label: str
    unit: Unit
    decimals: int | None
    importance: int
    is_sum: bool = False
    difference: str = ""


@dataclass(frozen=True)
class Compared(TableAnswer):
    """A table whose difference columns sort by absolute value. ``each``: see `Basis`."""

    each: str = ""

    def sorted_by(self, key: str, descending: bool) -> Compared:
        column = next(column for column in self.columns if column.key == key)
        if column.unit is not Unit.CHANGE:
            return super().sorted_by(key, descending)
        sizes = [abs(change) if isinstance(change, int | float) else None for change in self.cells(key)]
        return replace(self, rows=[self.rows[index] for index in order_of(sizes, descending)])


def columns(names: Sequence[Column], basis: Basis, extras: Sequence[Extra] = (), what: str = "") -> tuple[Column, ...]:
    """Return the columns of a table with rows identified by ``names``; ``what`` precedes ``Total`` in the headers."""
    per = f" per {basis.each.capitalize()}" if basis.each else ""
    over = "Steps" if basis.by_step else "Ranks"
    title = f"{what} " if what else ""
    digits = 1 if per else None
    common = (
        Extra("total", f"{title}Total", "", Unit.DURATION, None, 1, is_sum=True),
        Extra("count", "Count", "count", Unit.COUNT, None, 4, is_sum=True),
        Extra("median", "Med", "median", Unit.DURATION, 1, 5),
    )
    change = partial(Column, unit=Unit.CHANGE)
    return (
        change("difference", header=f"{title}Difference{per} (ns)", label="B − A", decimals=digits),
        Column("share", header="Of All Change (%)", label="of change %", unit=Unit.PERCENT, decimals=1, importance=3),
        Column("ratio", header="B / A", label="B/A", unit=Unit.RATIO, decimals=4, importance=3),
        *(column for extra in common for column in columns_of(extra, basis)),
        change("by_count", header=f"Difference by Count{per} (ns)", label="more calls", decimals=1, importance=3),
        change(
            "by_duration", header=f"Difference by Duration{per} (ns)", label="longer calls", decimals=1, importance=2
        ),
        *(column for extra in extras for column in columns_of(extra, basis)),
        Column("sum_a", header=f"Sum A over {over} (ns)", label="A sum", unit=Unit.DURATION, importance=FILES_ONLY),
        Column("sum_b", header=f"Sum B over {over} (ns)", label="B sum", unit=Unit.DURATION, importance=FILES_ONLY),
        Column("status", header="Status", label="side"),
        *names,
    )


def columns_of(extra: Extra, basis: Basis) -> list[Column]:
    """Return the columns of a pair, with its difference if requested."""
    each = basis.each if extra.is_sum else ""
    per, short = (f" per {each.capitalize()}", f"/{each}") if each else ("", "")
    decimals = 1 if each else extra.decimals
    unit = {Unit.DURATION: " (ns)", Unit.CHANGE: " (ns)", Unit.RATE: " (B/s)"}.get(extra.unit, "")
    side_column = partial(Column, unit=extra.unit, decimals=decimals, importance=extra.importance)
    pair = []
    for side in "AB":
        header, label = f"{extra.title} {side}{per}{unit}", f"{side} {extra.label}".rstrip() + short
        pair.append(side_column(f"{extra.key}_{side.lower()}", header=header, label=label))
    if not extra.difference:
        return pair
    change = Column(
        f"{extra.key}_difference",
        header=f"{extra.title} Difference{per} (ns)",
        label=extra.difference,
        unit=Unit.CHANGE,
        decimals=decimals,
        importance=max(extra.importance - 1, 0),
    )
    return [change, *pair]


def compared(
    name: str,
    names: Sequence[Column],
    sides: tuple[Mapping[Key, Measured], Mapping[Key, Measured]],
    basis: Basis,
    notes: Sequence[str] = (),
    extras: Sequence[Extra] = (),
    what: str = "",
) -> Compared:
    """Return the table of two sides, largest difference first; ``names`` are the key columns of ``sides``.

    If a side has no ranks in ``basis``, its values are missing, and no row is new or gone.
    """
    a, b = sides
    table_rows = [_row(key, a.get(key), b.get(key), basis, extras) for key in dict.fromkeys((*a, *b))]
    change = sum(abs(row.difference) for row in table_rows if row.difference is not None)
    table_rows.sort(key=lambda row: (row.difference is None, -abs(row.difference or row.size), str(row.key)))
    rows = [row.cells(change) for row in table_rows]
    return Compared(name, columns(names, basis, extras, what), rows, len(rows), tuple(notes), basis.each)


@dataclass(frozen=True)
class _Row:
    key: Key
    difference: float | None
    size: float  # sort key of a row without a difference, ns
    others: tuple[Value, ...]

    def cells(self, change: float) -> Row:
        share = None if self.difference is None else 100.0 * abs(self.difference) / change if change else 0.0
        return (self.difference, share, *self.others, *self.key)


_NOTHING = Measured(0, 0)


def _row(key: Key, a: Measured | None, b: Measured | None, basis: Basis, extras: Sequence[Extra]) -> _Row:
    divisors = basis.divisors
    first, second = (a or _NOTHING) if basis.a else None, (b or _NOTHING) if basis.b else None
    totals = _each(first, divisors[0], "total"), _each(second, divisors[1], "total")
    counts = _each(first, divisors[0], "count"), _each(second, divisors[1], "count")
    medians = [side.median if side is not None else None for side in (first, second)]
    difference = minus(totals[1], totals[0])
    extra_values = [cell for extra in extras for cell in _extra_cells(first, second, divisors, extra)]
    sums = [side.total if side is not None else None for side in (first, second)]
    cells = (ratio(*totals), *totals, *counts, *medians, *_split(first, second, divisors), *extra_values, *sums)
    size = 0 if difference is not None else max(total or 0 for total in totals)
    return _Row(key, difference, size, (*cells, _status(a, b, basis)))


def _each(side: Measured | None, divisor: int, what: str) -> float | None:
    value = getattr(side, what) if side is not None else None
    return value if value is None or divisor == 1 else value / divisor


def _extra_cells(a: Measured | None, b: Measured | None, divisors: tuple[int, int], extra: Extra) -> Sequence[Value]:
    pair = _extra(a, divisors[0], extra), _extra(b, divisors[1], extra)
    if not extra.difference:
        return pair
    first, second = (value if isinstance(value, int | float) else None for value in pair)
    return (minus(second, first), *pair)


def _extra(side: Measured | None, divisor: int, extra: Extra) -> Value:
    if side is None:
        return None
    if not extra.is_sum:
        return (side.values or {}).get(extra.key)
    value = (side.sums or {}).get(extra.key) if side.count else 0
    return value if value is None or divisor == 1 else value / divisor


def minus(b: float | None, a: float | None) -> float | None:
    return None if a is None or b is None else b - a


def ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a and b is not None else None


def _status(a: Measured | None, b: Measured | None, basis: Basis) -> str | None:
    if not basis.a or not basis.b:
        return None
    if a is None or not a.count:
        return NEW
    return BOTH if b is not None and b.count else GONE


_Split = tuple[float | None, float | None]


def _split(a: Measured | None, b: Measured | None, divisors: tuple[int, int]) -> _Split:
    if a is not None and b is not None and (a.parts or b.parts):
        sides = a.parts or {}, b.parts or {}
        splits = [
            _split(sides[0].get(name, _NOTHING), sides[1].get(name, _NOTHING), divisors)
            for name in dict.fromkeys((*sides[0], *sides[1]))
        ]
        return _sum([by_count for by_count, _ in splits]), _sum([by_duration for _, by_duration in splits])
    figures = [
        _each(side, divisor, what)
        for what in ("count", "total")
        for side, divisor in zip((a, b), divisors, strict=True)
    ]
    return split(*figures)


def _sum(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None


def split(count_a: float | None, count_b: float | None, total_a: float | None, total_b: float | None) -> _Split:
    """Split two totals' difference by count and duration; ``None`` twice if an argument is missing.

    A row on only one side differs by count.
    """
    if count_a is None or count_b is None or total_a is None or total_b is None:
        return None, None
    if not count_a or not count_b:
        return float(total_b - total_a), 0.0
    mean_a, mean_b = total_a / count_a, total_b / count_b
    return (count_b - count_a) * (mean_a + mean_b) / 2, (mean_b - mean_a) * (count_a + count_b) / 2
