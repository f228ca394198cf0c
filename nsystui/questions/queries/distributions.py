"""Distributions of values: histograms and percentiles, exact medians in little memory, and densities on a grid.

A database's own median keeps every value until the end: a gigabyte for the kernels of 64 ranks. `medians` counts the
values of each group in narrow classes in one pass, and a second one reads only the values of the class in the middle,
each of them once with its count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import ArrayLike, NDArray

from nsystui.store.session import Session

_MOST_BARS = 12
# Steps within a decade: the coarsest that still give enough bars are taken.
_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))


@dataclass(frozen=True)
class Distribution:
    """Counts between ``edges`` (one more than counts; each bar includes its lower edge), and key figures, ns."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    minimum: float
    median: float
    p95: float
    maximum: float


def distribution(values: Any, is_linear: bool = False) -> Distribution:
    """The distribution of an array of numbers; all zero where it is empty.

    The edges are round and grow with the values where that makes four bars or more, else (and with ``is_linear``) they
    are equally far apart; the last bar includes its upper edge.
    """
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        return Distribution((), (), 0, 0.0, 0.0, 0.0, 0.0)
    low, high = float(data.min()), float(data.max())
    edges = np.linspace(low, max(high, low + 1), 9).tolist() if is_linear else _edges(low, high)
    counts, _ = np.histogram(data, bins=np.asarray(edges))
    return Distribution(
        tuple(edges),
        tuple(int(number) for number in counts),
        len(data),
        low,
        float(np.median(data)),
        float(np.percentile(data, 95)),
        high,
    )


def _edges(low: float, high: float) -> list[float]:
    """Round edges around [low, high]: at most about a dozen bars, as fine as that allows."""
    if low < 0:  # clocks that disagree: one bar holds them all
        return [low, *_edges(0.0, max(high, 0.0))]
    best: list[float] = []
    for steps in _STEPS:
        edges = _decade_edges(max(low, 1.0), max(high, 1.0), steps)
        if low < 1.0:
            edges = [0.0, *edges]
        if not best or len(edges) - 1 <= _MOST_BARS:
            best = edges
    if len(best) - 1 < 4 and high > low:
        return [float(edge) for edge in np.unique(np.linspace(low, high, 9))]
    return best


def _decade_edges(low: float, high: float, steps: tuple[float, ...]) -> list[float]:
    # One decade more on either side: the logarithm of 999 999 999 999 999 is 15.
    first, last = int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1
    grid = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    start = max((number for number, edge in enumerate(grid) if edge <= low), default=0)
    end = next((number for number, edge in enumerate(grid) if edge > high), len(grid) - 1)
    return grid[start : end + 1]


MANY = 1 << 24
"""Rows from which on the second pass costs less than the memory."""

CLASSES_PER_OCTAVE = 64.0
_AT_ONCE = 100_000


def medians(
    session: Session,
    table: sa.FromClause,
    value: sa.ColumnElement[Any],
    group: sa.ColumnElement[int],
    conditions: Sequence[sa.ColumnElement[bool]],
    quarter: int = 2,
) -> dict[int, float]:
    """The median of ``value`` (integers) for each ``group``: the mean of the two middle values.

    With ``quarter`` 1 or 3 the lower or the upper quartile, as `statistics.quartiles` defines them. Groups are numbers,
    for the database keeps those of a hundred thousand classes in a few MB, and texts in gigabytes. Groups without any
    value are not in it.
    """
    known = [*conditions, value.is_not(None)]
    klass = class_of(value)
    counted = sa.select(group, klass, sa.func.count()).select_from(table).where(*known).group_by(group, klass)
    counts = _sorted(session, counted)
    wanted = {number: middle_classes(own, quarter) for number, own in _by_group(counts)}
    if not wanted:
        return {}

    # Given as values the classes are known to be few: the rows go past them, not the other way round.
    columns = (sa.column("group", group.type), sa.column("class", sa.Integer))
    classes = [(number, one) for number, (middle, _, _) in wanted.items() for one in middle]
    chosen = sa.select(sa.values(*columns, name="given").data(classes)).cte("chosen")
    inside = (
        sa.select(group, value, sa.func.count())
        .join_from(table, chosen, sa.and_(group == chosen.c["group"], klass == chosen.c["class"]))
        .where(*known)
        .group_by(group, value)
    )
    values = _sorted(session, inside)
    return {number: middle(own, *wanted[number][1:], quarter) for number, own in _by_group(values)}


def _sorted(session: Session, query: sa.Select[*tuple[Any, ...]]) -> list[tuple[int, int, int]]:
    """The rows of a query of three numbers."""
    return sorted((int(a), int(b), int(c)) for batch in session.batches(query, _AT_ONCE) for a, b, c in batch)


def _by_group(rows: Iterable[tuple[int, int, int]]) -> Iterable[tuple[int, list[tuple[int, int]]]]:
    """The (number, count) pairs that end the rows of each group, which come one after the other."""
    for group, own in groupby(rows, lambda row: row[0]):
        yield group, [(number, count) for _, number, count in own]


def _middles(total: int, quarter: int) -> tuple[int, int]:
    """The places of the two values of which the median of ``total`` values (or a quartile) is the mean."""
    return -(-total * quarter // 4) - 1, total * quarter // 4


def middle_classes(counts: Sequence[tuple[int, int]], quarter: int = 2) -> tuple[list[int], int, int]:
    """The classes that hold the two middle values, how many values come before them, and how many there are."""
    total = sum(count for _, count in counts)
    lower, upper = _middles(total, quarter)
    found: list[int] = []
    before = first = 0
    for number, count in counts:
        if before <= upper and before + count > lower:
            first = first if found else before
            found.append(number)
        before += count
    return found, first, total


def middle(values: Sequence[tuple[int, int]], before: int, total: int, quarter: int = 2) -> float:
    """The mean of the two middle values of ``total``, of which ``before`` are less than all of ``values``."""
    low = high = 0
    lower, upper = _middles(total, quarter)
    for value, count in values:
        if before <= lower < before + count:
            low = value
        if before <= upper < before + count:
            high = value
        before += count
    return (low + high) / 2.0


def class_of(value: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """A number that never falls as values rise: 64 for each doubling; what is below 0 has one for itself."""
    octaves = sa.func.log2(sa.cast(sa.func.greatest(value, 0), sa.Double) + 1.0)
    scaled = sa.cast(sa.func.floor(octaves * CLASSES_PER_OCTAVE), sa.Integer)
    return sa.case((value < 0, -1), else_=scaled)


@dataclass(frozen=True)
class Density:
    """``counts[row][column]`` points, the first row with the largest y; the axes are logarithmic.

    ``x`` and ``y`` are the values at the two ends of the axes.
    """

    counts: Sequence[Sequence[int]]
    x: tuple[float, float]
    y: tuple[float, float]


def log_density(x: ArrayLike, y: ArrayLike, columns: int, rows: int) -> Density | None:
    """The points of which both values are above 0; ``None`` where there are none, or no room for them."""
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    is_shown = (xs > 0) & (ys > 0)  # false for what is missing, too
    xs, ys = xs[is_shown], ys[is_shown]
    if not len(xs) or columns < 1 or rows < 1:
        return None
    x_ends, y_ends = _ends(xs), _ends(ys)
    column = _places(xs, x_ends, columns)
    row = rows - 1 - _places(ys, y_ends, rows)
    counts = np.bincount(row * columns + column, minlength=rows * columns).reshape(rows, columns)
    return Density(counts.tolist(), x_ends, y_ends)


Cells = list[tuple[int, int]]


def curve_places(
    series: Sequence[tuple[ArrayLike, ArrayLike]], columns: int, rows: int, top: float
) -> tuple[list[Cells], tuple[float, float]] | None:
    """The cells (row, column) of the points of each series, and the ends of x: x is logarithmic, y goes from 0 to top.

    A point is shown where its x is above 0. ``None`` where there are none, or no room for them.
    """
    points = [tuple(np.asarray(values, np.float64) for values in one) for one in series]
    known = np.concatenate([xs[xs > 0] for xs, _ in points]) if points else np.zeros(0)
    if not len(known) or columns < 1 or rows < 1:
        return None
    ends = _ends(known)
    cells = []
    for xs, ys in points:
        is_shown = xs > 0
        row = np.clip(rows - 1 - (ys[is_shown] / top * rows).astype(np.int64), 0, rows - 1)
        cells.append(list(zip(row.tolist(), _places(xs[is_shown], ends, columns).tolist(), strict=True)))
    return cells, ends


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """The least and the largest value; of one value alone half of it and twice as much."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low / 2 or low, high * 2)


def _places(values: NDArray[np.float64], ends: tuple[float, float], cells: int) -> NDArray[np.int64]:
    low, high = np.log(ends[0]), np.log(ends[1])
    if high <= low:  # neighbours among the numbers that a float can be
        return np.zeros(len(values), np.int64)
    places = ((np.log(values) - low) / (high - low) * cells).astype(np.int64)
    return np.asarray(np.minimum(places, cells - 1), np.int64)
