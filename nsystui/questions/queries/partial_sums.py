"""Statistics of groups spread over a cluster's workers, equal to a single query's over all rows.

Workers return whole numbers that add up: the sums of each group, and counts of its values in narrow classes
(`distributions.class_of`: 64 per doubling). The sums of the counts show which one or two classes hold a group's middle
values; a second round returns the different values in these classes with their counts, so the median is exact.

The first round returns for each group its keys, six sums, and its classes: a few hundred if its values spread a
thousandfold. The second returns at most the whole numbers in two classes: 2 % of the median, and never more than the
group's rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.types import Condition, Expression, Ints, Labelled, Query
from nsystui.questions.queries.conditions import given
from nsystui.questions.queries.derived import on_workers, pickled, query_of, task_runs
from nsystui.questions.queries.distributions import class_of, middle, middle_classes
from nsystui.store.report import Report
from nsystui.store.session import Session

_Key = tuple[Any, ...]
_Value = tuple[_Key, int, int]
_BATCH_ROWS = 10_000


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

    ``total``, ``min`` and ``max`` are ``None`` without values. ``first`` is the smallest row number, if requested; the
    ``median`` needs more than sums.
    """

    count: int
    known: int
    total: int | None
    squares: int | None
    min: int | None
    max: int | None
    first: int | None = None
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


class PartialSums(NamedTuple):
    """The groups of ``reports`` (indices): keys and sums by group, and rows (group, class, number of values)."""

    reports: list[int]
    keys: list[_Key]
    sums: list[Measures]
    classes: Ints


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


def groups_of_parts(session: Session, of: ValueRows) -> dict[_Key, Measures]:
    """Compute the measures of each group by its keys, as `statistics.grouped` does with one query."""
    value, keys = of.value, of.keys
    klass = class_of(value).label("class")
    rows = sa.select(*keys, klass, value.label("value")).select_from(of.table).where(*of.conditions)
    first_row = sa.null() if of.first is None else sa.func.min(of.first)
    sums = rows.with_only_columns(*keys, klass, *_sums(value), first_row.label("first")).group_by(
        *[key.element for key in keys], klass
    )
    counted = of.counted
    with_rows = [report for report in session.reports if counted is None or report.count(counted)]
    runs = task_runs(session, with_rows, counted)
    compute = partial(_partial_sums, pickled(sums), len(keys))
    parts = list(on_workers(session, [(run, compute) for run in runs], "sums"))

    groups: dict[_Key, Measures] = {}
    counts: dict[_Key, Counter[int]] = {}
    for part in parts:
        for key, measures in zip(part.keys, part.sums, strict=True):
            _add(groups, key, measures)
        for group, class_number, number in part.classes.tolist():
            counts.setdefault(part.keys[group], Counter())[class_number] += number

    for key, median in _medians(session, parts, rows, counts).items():
        groups[key].median = median
    return groups


def _medians(
    session: Session, parts: Sequence[PartialSums], rows: Query, counts: Mapping[_Key, Counter[int]]
) -> dict[_Key, float]:
    """Return the median of each group, by a second pass over the values of its middle classes; ``counts``: by class."""
    middles = {key: middle_classes(sorted(counted.items())) for key, counted in counts.items()}
    by_index = {report.index: report for report in session.reports}
    work = []
    for part in parts:
        classes = {key: middles[key][0] for key in part.keys if key in middles}
        if classes:
            work.append(([by_index[index] for index in part.reports], partial(_middle_values, pickled(rows), classes)))
    values: dict[_Key, Counter[int]] = {key: Counter() for key in middles}
    for value_counts in on_workers(session, work, "medians"):
        for key, middle_value, number in value_counts:
            values[key][middle_value] += number
    return {key: middle(sorted(values[key].items()), before, total) for key, (_, before, total) in middles.items()}


def _sums(value: Expression) -> list[Expression]:
    return [
        sa.func.count().label("count"),
        sa.func.count(value).label("known"),
        sa.cast(sa.func.sum(value), sa.BigInteger).label("total"),
        squares(value).label("squares"),
        sa.func.min(value).label("min"),
        sa.func.max(value).label("max"),
    ]


def _partial_sums(query: bytes, keys: int, session: Session, reports: list[Report]) -> PartialSums:
    """Sum the rows of ``query`` (``keys`` keys, the class, the measures) by group, on a worker."""
    groups: dict[_Key, Measures] = {}
    group_indices: dict[_Key, int] = {}
    classes = []
    for rows in session.batches(query_of(query), _BATCH_ROWS):
        for row in rows:
            key, measures = tuple(row[:keys]), Measures(*row[keys + 1 :])
            group = group_indices.setdefault(key, len(group_indices))
            if measures.known:
                classes.append((group, row[keys], measures.known))
            _add(groups, key, measures)
    indices = [report.index for report in reports]
    return PartialSums(indices, list(groups), list(groups.values()), np.array(classes, np.int64).reshape(-1, 3))


def _middle_values(
    query: bytes, classes: Mapping[_Key, Sequence[int]], session: Session, _: list[Report]
) -> list[_Value]:
    """Return (key, value, count) of the rows in each group's classes, on a worker."""
    rows = query_of(query).subquery("rows")
    groups = list(classes)
    pairs = [(number, klass) for number, key in enumerate(groups) for klass in classes[key]]
    keys = [f"key_{index}" for index in range(len(groups[0]))]
    names = list(rows.c.keys())[: len(keys)]
    key_columns = {key: [groups[number][index] for number, _ in pairs] for index, key in enumerate(keys)}
    given_rows = given(
        {"group": [number for number, _ in pairs], "class": [klass for _, klass in pairs], **key_columns}
    )
    chosen = given_rows.subquery("chosen")
    is_same = [rows.c[name].is_not_distinct_from(chosen.c[key]) for name, key in zip(names, keys, strict=True)]
    counts = (
        sa.select(chosen.c.group, rows.c.value, sa.func.count())
        .join_from(rows, chosen, sa.and_(rows.c["class"] == chosen.c["class"], *is_same))
        .where(rows.c.value.is_not(None))
        .group_by(chosen.c.group, rows.c.value)
    )
    return [
        (groups[group], value, number)
        for batch in session.batches(counts, _BATCH_ROWS)
        for group, value, number in batch
    ]


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
