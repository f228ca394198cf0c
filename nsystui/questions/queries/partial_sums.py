"""Statistics of groups from whole numbers that add up, so that workers of a cluster can compute them.

Medians take two more passes (`distributions.medians`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from nsystui.base.types import Condition, Expression, Labelled
from nsystui.questions.queries.derived import rows_by_report
from nsystui.questions.queries.distributions import group_number, medians
from nsystui.store.session import Session

_Key = tuple[Any, ...]


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
    """Measures of a group of ``count`` rows, ``known`` of them with a value, as in `statistics.spread`.

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


def measures_by_key(session: Session, of: ValueRows) -> dict[_Key, Measures]:
    """Compute the measures of each group by its keys, as `statistics.grouped` does with one query."""
    value, keys, number = of.value, [key.element for key in of.keys], group_number(of.keys)
    total, first = sa.cast(sa.func.sum(value), sa.BigInteger), sa.null() if of.first is None else sa.func.min(of.first)
    ends = sa.func.min(value), sa.func.max(value)
    sums = sa.func.count(), sa.func.count(value), total, squares(value), *ends, first, sa.func.min(number)
    groups: dict[_Key, Measures] = {}
    numbers: set[tuple[int, _Key]] = set()
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


def _add(groups: dict[_Key, Measures], key: _Key, addend: Measures) -> None:
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
