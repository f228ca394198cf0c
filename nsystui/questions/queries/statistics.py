"""Statistics that all summaries show, as ``nsys stats`` defines them (docs/numbers.md#statistics).

The median is the mean of the two middle values, the standard deviation is the sample's (n−1; 0 for one value), and a
share is a part of the sum over all rows of the table.

`places_by` groups rows like pandas: as fast for up to a million rows, without its import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Column, Row, Unit
from nsystui.base.types import Array, Condition, Expression, Ints, Labelled, Query
from nsystui.questions.queries.derived import rows_by_report
from nsystui.store.report import most_rows
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd


class HugeInteger(sa.types.UserDefinedType[int]):
    """DuckDB's 128-bit integer type: the square of a day in ns has 28 digits."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """Return DuckDB's name of the type."""
        return "HUGEINT"


def squares(value: Expression) -> Expression:
    """Select the sum of the squares of integers."""
    huge = sa.cast(value, HugeInteger())
    return sa.func.sum(huge * huge, type_=HugeInteger())


@dataclass(slots=True)
class Measures:
    """Measures of a group of ``count`` rows, ``known`` of them with a value, as in `spread`.

    ``total``, ``min`` and ``max`` are ``None`` without values. ``first`` is the smallest row number, if requested.
    """

    count: int
    known: int
    total: int | None
    squares: int | None
    min: int | None
    max: int | None
    first: int | None
    median: float | None = None

    @property
    def avg(self) -> float | None:
        """The mean; ``None`` without values."""
        return None if self.total is None else float(self.total) / float(self.known)

    @property
    def stddev(self) -> float:
        """The standard deviation of the sample, 0 for a single value."""
        if self.total is None or self.squares is None or self.known < 2:
            return 0.0
        spread = self.known * self.squares - self.total * self.total
        return math.sqrt(float(spread) / float(self.known * (self.known - 1)))


class ValueRows(NamedTuple):
    """The rows behind statistics of ``value`` (integers) for each combination of ``keys``.

    ``first``: a row number, whose smallest orders groups with equal totals.
    """

    table: sa.FromClause
    value: Expression
    keys: Sequence[Labelled]
    conditions: Sequence[Condition]
    first: Expression | None = None

    @property
    def counted(self) -> sa.Table | None:
        """The table whose number of rows is known, if any."""
        table = self.table.left if isinstance(self.table, sa.Join) else self.table
        return table if isinstance(table, sa.Table) else None


MANY = 1 << 24
"""The fewest rows for which a second pass for medians costs less than the memory."""

SPREAD = (
    Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1, importance=3),
    Column("median", header="Med (ns)", label="median", unit=Unit.DURATION, decimals=1, importance=2),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=5),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=4),
    Column("stddev", header="StdDev (ns)", label="stddev", unit=Unit.DURATION, decimals=1, importance=6),
)
"""The columns of `spread` of durations."""


def duration_columns(count: str) -> tuple[Column, ...]:
    """Return the columns of duration statistics with nsys's headers; ``count`` heads the row count."""
    return (
        Column("share", header="Time (%)", label="time %", unit=Unit.PERCENT, decimals=1, has_bar=True),
        Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
        Column("count", header=count, label="count", unit=Unit.COUNT, importance=1),
        *SPREAD,
    )


def measures(value: Expression) -> list[Expression]:
    """Select the aggregates over ``value`` (ns or bytes) behind the statistics."""
    return [sa.cast(sa.func.sum(value), sa.BigInteger).label("total"), sa.func.count().label("count"), *spread(value)]


def spread(value: Expression, prefix: str = "") -> list[Expression]:
    """Select mean, median, minimum, maximum and standard deviation of ``value``, without missing values.

    Mean and deviation use whole numbers, so they do not depend on how the rows are split.
    """
    total, count = sa.cast(sa.func.sum(value), sa.BigInteger), sa.func.count(value)
    huge = sa.cast(total, HugeInteger())
    variance = sa.cast(count * squares(value) - huge * huge, sa.Double) / sa.cast(count * (count - 1), sa.Double)
    deviation = sa.case((count > 1, sa.func.sqrt(variance)), else_=0.0)
    return [
        (sa.cast(total, sa.Double) / sa.cast(count, sa.Double)).label(f"{prefix}avg"),
        sa.cast(sa.func.median(value), sa.Double).label(f"{prefix}median"),
        sa.func.min(value).label(f"{prefix}min"),
        sa.func.max(value).label(f"{prefix}max"),
        deviation.label(f"{prefix}stddev"),
    ]


def quartiles(value: Expression) -> list[Expression]:
    """Select the lower and the upper quartile of ``value`` as nsys computes them (Hyndman and Fan's type 2).

    A quartile is the mean of two values: the smallest with at least 1/4 (3/4) of all values at or below it, and the
    largest with at least 3/4 (1/4) at or above it.
    """

    def quantile(share: float) -> Expression:
        from_below, from_above = sa.func.quantile_disc(value, share), sa.func.quantile_disc(-value, 1.0 - share)
        return (sa.cast(from_below, sa.Double) - sa.cast(from_above, sa.Double)) / 2.0

    return [quantile(0.25).label("q1"), quantile(0.75).label("q3")]


def spread_columns(prefix: str, word: str) -> tuple[Column, ...]:
    """Return the columns of `spread`; ``word`` is nsys's prefix of the headers, as before ``Avg (ns)``."""
    importance = {"avg": 1, "median": 2, "min": 4, "max": 3, "stddev": 5}
    return tuple(
        replace(
            column,
            key=f"{prefix}{column.key}",
            header=f"{word}{column.header}",
            label=f"{word.lower()} {column.label}",
            importance=importance[column.key],
        )
        for column in duration_columns("")
        if column.key in importance
    )


def grouped(rows: ValueRows) -> Query:
    """Select a row for each combination of the keys with the measures of the value, and the minimum of ``first``."""
    first_row = [] if rows.first is None else [sa.func.min(rows.first).label("first")]
    query = sa.select(*rows.keys, *measures(rows.value), *first_row).select_from(rows.table).where(*rows.conditions)
    return query.group_by(*[key.element for key in rows.keys])


def summary(rows: ValueRows) -> Query:
    """Select all statistics for each combination of the keys, largest total first.

    Equal totals are in the order of the keys, or of the smallest ``first`` (the order of the export).
    """
    keys, first = rows.keys, rows.first
    groups = grouped(rows).subquery()
    share = (100.0 * groups.c.total / sa.func.nullif(sa.func.sum(groups.c.total).over(), 0)).label("share")
    ties = [key.key for key in reversed(keys)] if first is None else ["first"]
    order = [groups.c.total.desc(), *[groups.c[name] for name in ties]]
    return sa.select(sa.func.coalesce(share, 0.0).label("share"), *groups.c).order_by(*order)


def summary_rows(session: Session, of: ValueRows, columns: Sequence[Column]) -> list[Row]:
    """Return the rows of `summary` in the order of ``columns``."""
    if session.workers is not None or (of.counted is not None and most_rows(session.reports, of.counted) >= MANY):
        return _ordered(measures_by_key(session, of), of, columns)
    query = summary(of)
    names = list(query.selected_columns.keys())
    indices = [names.index(column.key) for column in columns]
    return [tuple(row[index] for index in indices) for row in rows_by_report(session, query)]


def measures_by_key(session: Session, of: ValueRows) -> dict[Row, Measures]:
    """Compute the measures of each group by its keys, as `grouped` does with one query.

    They are whole numbers that add up, so that workers of a cluster can compute them; medians take two more passes.
    """
    from nsystui.questions.queries.distributions import group_number, medians

    value, keys, number = of.value, [key.element for key in of.keys], group_number(of.keys)
    total, first = sa.cast(sa.func.sum(value), sa.BigInteger), sa.null() if of.first is None else sa.func.min(of.first)
    ends = sa.func.min(value), sa.func.max(value)
    sums = sa.func.count(), sa.func.count(value), total, squares(value), *ends, first, sa.func.min(number)
    groups: dict[Row, Measures] = {}
    numbers: set[tuple[int, Row]] = set()
    rows = sa.select(*of.keys, *sums).select_from(of.table).where(*of.conditions).group_by(*keys)
    for row in rows_by_report(session, rows):
        key = tuple(row[: len(keys)])
        _add(groups, key, Measures(*row[len(keys) : -1]))
        numbers.add((row[-1], key))
    # Two groups may have the same hash, and a worker with another DuckDB may have other hashes.
    if not len(groups) == len(numbers) == len({number for number, _ in numbers}):
        of_keys = sa.select(*of.keys, sa.cast(sa.func.median(value), sa.Double)).select_from(of.table)
        for *values, median in session.rows(of_keys.where(*of.conditions).group_by(*keys)):
            groups[tuple(values)].median = median
        return groups
    median_by_number = medians(session, of.table, value, number, of.conditions)
    for group_index, key in numbers:
        groups[key].median = median_by_number.get(group_index)
    return groups


def _add(groups: dict[Row, Measures], key: Row, addend: Measures) -> None:
    sums = groups.setdefault(key, addend)
    if sums is addend:
        return
    sums.count, sums.known = sums.count + addend.count, sums.known + addend.known
    sums.total, sums.squares = (
        _combined(int.__add__, *pair) for pair in ((sums.total, addend.total), (sums.squares, addend.squares))
    )
    sums.min, sums.first = (_combined(min, *pair) for pair in ((sums.min, addend.min), (sums.first, addend.first)))
    sums.max = _combined(max, sums.max, addend.max)


def _combined(function: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else function(a, b)


def _ordered(groups: Mapping[Row, Measures], of: ValueRows, columns: Sequence[Column]) -> list[Row]:
    def order(group: tuple[Row, Measures]) -> tuple[Any, ...]:
        key, sums = group
        ties = [(tie is None, tie) for tie in (key[::-1] if of.first is None else (sums.first,))]
        return (sums.total is None, -(sums.total or 0), *ties)

    grand_total = sum(sums.total or 0 for sums in groups.values())
    rows = []
    for key, sums in sorted(groups.items(), key=order):
        cells: dict[str, Any] = dict(zip((key.key for key in of.keys), key, strict=True))
        cells["share"] = 100.0 * (sums.total or 0) / grand_total if grand_total else 0.0
        rows.append(tuple(cells[item.key] if item.key in cells else getattr(sums, item.key) for item in columns))
    return rows


def summary_frame(session: Session, of: ValueRows, columns: Sequence[Column]) -> pd.DataFrame:
    """Return the rows of `summary` as a frame, if they are too many for Python tuples."""
    if session.workers is None:
        return session.frame(summary(of))
    return _frame_of(summary_rows(session, of, columns), [column.key for column in columns])


_MEASURES = ("total", "count", "avg", "median", "min", "max", "stddev")


def group_frame(session: Session, of: ValueRows) -> pd.DataFrame:
    """Return the rows of `grouped` as a frame."""
    if session.workers is None:
        return session.frame(grouped(of))
    groups = measures_by_key(session, of)
    rows = [(*key, *(getattr(group, name) for name in _MEASURES)) for key, group in groups.items()]
    return _frame_of(rows, [*(key.key for key in of.keys), *_MEASURES])


def _frame_of(rows: Sequence[Row], names: Sequence[str]) -> pd.DataFrame:
    """Return a frame with a session's types: integers stay integers despite missing values."""
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=list(names), dtype=object)
    integers = ("total", "count", "min", "max")
    kinds = {name: "Int64" if name in integers else "float64" for name in names if name in (*_MEASURES, "share")}
    return frame.astype(kinds)


def number_of_values(session: Session, value: Expression) -> int:
    """Count the different values, except missing values."""
    return number_of_groups(session, sa.select(value.label("value")).where(value.is_not(None)))


def number_of_groups(session: Session, groups: Query) -> int:
    """Count the different rows of a query."""
    if session.workers is None:
        return int(session.scalar(sa.select(sa.func.count()).select_from(groups.distinct().subquery())) or 0)
    return len(set(rows_by_report(session, groups.distinct())))


def frame_spread(groups: pd.api.typing.SeriesGroupBy, prefix: str = "") -> pd.DataFrame:
    """Compute the columns of `spread` for groups in memory."""
    frame = groups.agg(avg="mean", median="median", min="min", max="max", stddev="std")
    frame["stddev"] = frame["stddev"].fillna(0.0)
    return frame.add_prefix(prefix)


def with_shares(groups: pd.DataFrame, ties: Sequence[str]) -> pd.DataFrame:
    """Add each group's share of the total, largest first; the columns ``ties`` order equal totals."""
    grand_total = groups["total"].sum()
    with_share = groups.assign(share=100.0 * groups["total"] / grand_total if grand_total else 0.0)
    order = [False] + [True] * len(ties)
    return with_share.sort_values(["total", *ties], ascending=order, kind="stable").reset_index(drop=True)


def places_by(columns: Iterable[Array]) -> dict[tuple[Any, ...], Ints]:
    """Return the indices of rows with equal values in all ``columns``, by these values, in order of appearance.

    Rows with a missing value are in no group.
    """
    indices_by_key: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        indices_by_key.setdefault(key, []).append(index)
    return {key: np.array(indices, np.int64) for key, indices in indices_by_key.items() if None not in key}
