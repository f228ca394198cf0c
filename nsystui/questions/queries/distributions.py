"""Distributions of values: histograms and percentiles, exact medians in little memory, and places of curves on a grid.

A database's median keeps all values: a gigabyte for the kernels of 64 ranks. `medians` counts each group's values in
narrow classes; a second pass counts the different values in the middle classes only.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import ArrayLike

from nsystui.base.types import Condition, Expression, Floats, Ints, Labelled, Query
from nsystui.questions.queries.derived import rows_by_report
from nsystui.store.session import Session

_MAX_BARS = 12
# Steps within a decade, coarsest first: the finest with at most `_MAX_BARS` bars are taken.
_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))


@dataclass(frozen=True)
class Distribution:
    """Counts between ``edges`` (one more than counts; lower edges are inclusive), and key figures, ns."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    minimum: float
    median: float
    p95: float
    maximum: float


def distribution(values: Any) -> Distribution:
    """Return the distribution of an array; all zero if it is empty.

    The edges are round and grow with the values if that makes four bars or more; otherwise they are
    equally spaced. The last bar includes its upper edge.
    """
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        return Distribution((), (), 0, 0.0, 0.0, 0.0, 0.0)
    low, high = float(data.min()), float(data.max())
    edges = _edges(low, high)
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
    """Return round edges around [low, high], the finest with at most about a dozen bars; equal steps if under four."""
    if low < 0:  # durations across clocks that disagree: one bar holds all negative values
        return [low, *_edges(0.0, max(high, 0.0))]
    best: list[float] = []
    for steps in _STEPS:
        edges = _decade_edges(max(low, 1.0), max(high, 1.0), steps)
        if low < 1.0:
            edges = [0.0, *edges]
        if not best or len(edges) - 1 <= _MAX_BARS:
            best = edges
    if len(best) - 1 < 4 and high > low:
        return [float(edge) for edge in np.unique(np.linspace(low, high, 9))]
    return best


def _decade_edges(low: float, high: float, steps: tuple[float, ...]) -> list[float]:
    # One more decade on either side, because the logarithm of 999 999 999 999 999 rounds to 15.
    first, last = int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1
    grid = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    start = max((number for number, edge in enumerate(grid) if edge <= low), default=0)
    end = next((number for number, edge in enumerate(grid) if edge > high), len(grid) - 1)
    return grid[start : end + 1]


CLASSES_PER_OCTAVE = 64.0


def medians(
    session: Session,
    table: sa.FromClause,
    value: Expression,
    group: sa.ColumnElement[int],
    conditions: Sequence[Condition],
    quarter: int = 2,
) -> dict[int, float]:
    """Return the median of ``value`` (integers) for each ``group``: the mean of the two middle values.

    With ``quarter`` 1 or 3, return a quartile as in `statistics.quartiles`. Groups without values are omitted. Groups
    are numbers: a hundred thousand classes take a few MB of the database's memory, but gigabytes with texts as groups.
    """
    with_value = [*conditions, value.is_not(None)]
    klass = class_of(value)
    counts_query = sa.select(group, klass, sa.func.count()).select_from(table).where(*with_value).group_by(group, klass)
    counts = _sorted(session, counts_query)
    middles = {number: middle_classes(pairs, quarter) for number, pairs in _grouped(counts)}
    if not middles:
        return {}

    # DuckDB sees that VALUES are few, and builds its hash table from them instead of the rows.
    columns = (sa.column("group", group.type), sa.column("class", sa.Integer))
    class_rows = [(number, class_number) for number, (middle, _, _) in middles.items() for class_number in middle]
    classes = sa.select(sa.values(*columns, name="given").data(class_rows)).cte("chosen")
    values_query = (
        sa.select(group, value, sa.func.count())
        .join_from(table, classes, sa.and_(group == classes.c["group"], klass == classes.c["class"]))
        .where(*with_value)
        .group_by(group, value)
    )
    values = _sorted(session, values_query)
    return {number: middle(pairs, *middles[number][1:], quarter) for number, pairs in _grouped(values)}


def _sorted(session: Session, query: Query) -> list[tuple[int, int, int]]:
    """Return group, class or value, and number of rows, ascending; workers return parts of the number."""
    counts = Counter[tuple[int, int]]()
    for group, value, count in rows_by_report(session, query):
        counts[int(group), int(value)] += int(count)
    return sorted((*key, count) for key, count in counts.items())


def _grouped(rows: Iterable[tuple[int, int, int]]) -> Iterable[tuple[int, list[tuple[int, int]]]]:
    for group, items in groupby(rows, lambda row: row[0]):
        yield group, [(number, count) for _, number, count in items]


def _middle_indices(total: int, quarter: int) -> tuple[int, int]:
    """Return the indices of the two sorted values whose mean is the median (or quartile)."""
    return -(-total * quarter // 4) - 1, total * quarter // 4


def middle_classes(counts: Sequence[tuple[int, int]], quarter: int = 2) -> tuple[list[int], int, int]:
    """Return the classes of the two middle values, and the numbers of values in lower classes and in all."""
    total = sum(count for _, count in counts)
    lower, upper = _middle_indices(total, quarter)
    classes: list[int] = []
    passed = before = 0
    for number, count in counts:
        if passed <= upper and passed + count > lower:
            before = before if classes else passed
            classes.append(number)
        passed += count
    return classes, before, total


def middle(values: Sequence[tuple[int, int]], before: int, total: int, quarter: int = 2) -> float:
    """Return the mean of the two middle values of ``total``; ``before`` of them are less than all ``values``."""
    low = high = 0
    lower, upper = _middle_indices(total, quarter)
    for value, count in values:
        if before <= lower < before + count:
            low = value
        if before <= upper < before + count:
            high = value
        before += count
    return (low + high) / 2.0


def group_number(keys: Sequence[Labelled]) -> sa.ColumnElement[int]:
    """Select a number of 63 bits for each combination of ``keys``."""
    return sa.cast(sa.func.hash(*[key.element for key in keys]).op(">>")(1), sa.BigInteger)


def class_of(value: Expression) -> sa.ColumnElement[int]:
    """Select a value's class: 64 ascending classes per doubling, and -1 for values below 0."""
    octaves = sa.func.log2(sa.cast(sa.func.greatest(value, 0), sa.Double) + 1.0)
    scaled = sa.cast(sa.func.floor(octaves * CLASSES_PER_OCTAVE), sa.Integer)
    return sa.case((value < 0, -1), else_=scaled)


Cells = list[tuple[int, int]]


def curve_places(
    series: Sequence[tuple[ArrayLike, ArrayLike]], columns: int, rows: int, top: float
) -> tuple[list[Cells], tuple[float, float]] | None:
    """Return the cells (row, column) of each series' points with x > 0, and the ends of x.

    x is logarithmic, y linear from 0 to ``top``. ``None`` without such points or cells.
    """
    points = [tuple(np.asarray(values, np.float64) for values in pair) for pair in series]
    positive = np.concatenate([xs[xs > 0] for xs, _ in points]) if points else np.zeros(0)
    if not len(positive) or columns < 1 or rows < 1:
        return None
    ends = _ends(positive)
    cells = []
    for xs, ys in points:
        is_shown = xs > 0
        row_indices = np.clip(rows - 1 - (ys[is_shown] / top * rows).astype(np.int64), 0, rows - 1)
        cells.append(list(zip(row_indices.tolist(), _cell_indices(xs[is_shown], ends, columns).tolist(), strict=True)))
    return cells, ends


def _ends(values: Floats) -> tuple[float, float]:
    """Return the smallest and the largest value; for a single value, its half and its double."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low / 2 or low, high * 2)


def _cell_indices(values: Floats, ends: tuple[float, float], cells: int) -> Ints:
    low, high = np.log(ends[0]), np.log(ends[1])
    if high <= low:  # adjacent floats may have equal logarithms
        return np.zeros(len(values), np.int64)
    indices = ((np.log(values) - low) / (high - low) * cells).astype(np.int64)
    return np.asarray(np.minimum(indices, cells - 1), np.int64)
