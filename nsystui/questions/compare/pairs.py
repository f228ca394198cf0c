"""The rows of every comparison: names that both sides have, or only one side.

``difference`` is B − A, split into the effects of count n and of mean duration t. Each effect is at the mean of the
other figure. They add up to the difference, except for rounding; swapping sides changes their signs:

    n_b·t_b − n_a·t_a  =  (n_b − n_a)·(t_a + t_b)/2  +  (t_b − t_a)·(n_a + n_b)/2

A mean over different things has no meaning: the split of a row of several kernels is the sum of their splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nsystui.base.answer import FILES_ONLY, Column, Row, TableAnswer, Unit, Value, order_of
from nsystui.questions.compare.side import Basis

NEW, GONE, BOTH = "new", "gone", "both"

Key = tuple[Value, ...]
"""The values of a row in the columns that identify it."""


Figures = Mapping[str, float | None]
"""A row's ``count``, ``total`` and ``median`` of durations (ns) on one side, and values of `Extra` columns."""


@dataclass(frozen=True)
class Measured:
    """A row on one side. ``parts``: the figures of each kernel by name, in a row of several."""

    figures: Figures
    parts: Mapping[Value, Figures] = field(default_factory=dict)


@dataclass(frozen=True)
class Extra:
    """A pair of columns: ``{key}_a`` and ``{key}_b``, labelled ``A label`` and ``B label``.

    A sum is divided by the table's unit (`Basis.each`). With ``difference``, the label of a third column,
    ``{key}_difference`` is B − A, ns.
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


_TOTAL = Extra("total", "Total", "", Unit.DURATION, None, 1, is_sum=True)
_COUNT = Extra("count", "Count", "count", Unit.COUNT, None, 4, is_sum=True)
_MEDIAN = Extra("median", "Med", "median", Unit.DURATION, 1, 5)


def columns(names: Sequence[Column], basis: Basis, extras: Sequence[Extra] = (), what: str = "") -> tuple[Column, ...]:
    """Return the columns of a table with rows identified by ``names``; ``what`` precedes ``Total`` in the headers."""
    per = f" per {basis.each.capitalize()}" if basis.each else ""
    over = "Steps" if basis.by_step else "Ranks"
    title = f"{what} " if what else ""
    digits = 1 if per else None
    common = (replace(_TOTAL, title=f"{title}Total"), _COUNT, _MEDIAN)
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
    key, header = f"{extra.key}_difference", f"{extra.title} Difference{per} (ns)"
    change = Column(key, header=header, label=extra.difference, unit=Unit.CHANGE, decimals=decimals)
    return [change.with_importance(max(extra.importance - 1, 0)), *pair]


def compared(
    name: str, names: Sequence[Column], sides: tuple[Mapping[Key, Measured], Mapping[Key, Measured]], basis: Basis,
    notes: Sequence[str] = (), extras: Sequence[Extra] = (), what: str = "",
) -> Compared:  # fmt: skip
    """Return the table of two sides, largest difference first; ``names`` are the key columns of ``sides``.

    If a side has no ranks in ``basis``, its values are missing, and no row is new or gone.
    """
    nothing = Measured({"count": 0, "total": 0, **{extra.key: 0 for extra in extras if extra.is_sum}})
    cells = {}
    for key in dict.fromkeys((*sides[0], *sides[1])):
        a, b = (
            side.get(key, nothing) if number else None for side, number in zip(sides, (basis.a, basis.b), strict=True)
        )
        cells[key] = _cells(a, b, basis, extras)
    change = sum(abs(difference) for difference, *_ in cells.values() if difference is not None)

    def order(key: Key) -> tuple[bool, float, str]:
        difference, totals, _ = cells[key]
        size = max(total or 0 for total in totals) if difference is None else abs(difference)
        return difference is None, -size, str(key)

    rows: list[Row] = []
    for key in sorted(cells, key=order):
        difference, _, others = cells[key]
        share = None if difference is None else 100.0 * abs(difference) / change if change else 0.0
        rows.append((difference, share, *others, *key))
    return Compared(name, columns(names, basis, extras, what), rows, len(rows), tuple(notes), basis.each)


_Pair = tuple[float | None, float | None]


def _cells(
    a: Measured | None, b: Measured | None, basis: Basis, extras: Sequence[Extra]
) -> tuple[float | None, _Pair, Row]:
    """Return the difference of the totals, the totals, and the cells from ``ratio`` to ``status``."""
    figures = None if a is None else a.figures, None if b is None else b.figures
    totals, counts, medians, *more = (_pair(extra, *figures, basis) for extra in (_TOTAL, _COUNT, _MEDIAN, *extras))
    more_cells: list[float | None] = []
    for extra, pair in zip(extras, more, strict=True):
        more_cells += (minus(pair[1], pair[0]), *pair) if extra.difference else pair
    sums = [None if side is None else side["total"] for side in figures]
    status = None if None in counts else NEW if not counts[0] else BOTH if counts[1] else GONE
    cells = (ratio(*totals), *totals, *counts, *medians, *_split(a, b, basis), *more_cells, *sums, status)
    return minus(totals[1], totals[0]), totals, cells


def _pair(extra: Extra, a: Figures | None, b: Figures | None, basis: Basis) -> _Pair:
    """Return a figure of both sides; a sum is divided by the basis."""
    pair = []
    for figures, divisor in zip((a, b), basis.divisors, strict=True):
        value = None if figures is None else figures.get(extra.key)
        pair.append(value if value is None or not extra.is_sum or divisor == 1 else value / divisor)
    return pair[0], pair[1]


def minus(b: float | None, a: float | None) -> float | None:
    return None if a is None or b is None else b - a


def ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a and b is not None else None


_ABSENT: Figures = {"count": 0, "total": 0}


def _split(a: Measured | None, b: Measured | None, basis: Basis) -> _Pair:
    """Split the difference by count and duration; a row of several kernels is the sum of their splits."""
    if a is None or b is None:
        return None, None
    if not a.parts and not b.parts:
        return _split_figures(a.figures, b.figures, basis)
    names = dict.fromkeys((*a.parts, *b.parts))
    splits = [_split_figures(a.parts.get(name, _ABSENT), b.parts.get(name, _ABSENT), basis) for name in names]
    by_count, by_duration = zip(*splits, strict=True)
    return (None, None) if None in by_count else (sum(by_count), sum(by_duration))


def _split_figures(a: Figures, b: Figures, basis: Basis) -> _Pair:
    """Split two totals' difference by count and duration; ``None`` twice if a figure is missing.

    A row on only one side differs by count.
    """
    (count_a, count_b), (total_a, total_b) = (_pair(extra, a, b, basis) for extra in (_COUNT, _TOTAL))
    if count_a is None or count_b is None or total_a is None or total_b is None:
        return None, None
    if not count_a or not count_b:
        return float(total_b - total_a), 0.0
    mean_a, mean_b = total_a / count_a, total_b / count_b
    return (count_b - count_a) * (mean_a + mean_b) / 2, (mean_b - mean_a) * (count_a + count_b) / 2
