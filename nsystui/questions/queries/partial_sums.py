"""The statistics of groups of rows that lie with the workers of a cluster, exactly as one query over all rows has them.

Each task returns whole numbers that add up: the sums of each group, and its values counted in narrow classes
(`distributions.class_of`: 64 for each doubling). The counts of all tasks tell in which one or two classes the middle
values of a group lie, and a second round returns the values of these, each once with its count: the median is exact.

What a task returns in the first round is bounded by its groups: for each its keys, six sums, and the classes that it
has, a few hundred where its values spread over a thousandfold. In the second it is, for each group, at most the whole
numbers in two classes: 2 % of the median, and never more than the group has rows.
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
from numpy.typing import NDArray

from nsystui.questions.queries.conditions import given
from nsystui.questions.queries.derived import on_workers, pickled, query_of, task_runs
from nsystui.questions.queries.distributions import class_of, middle, middle_classes
from nsystui.store.report import Report
from nsystui.store.session import Session

Key = tuple[Any, ...]
_Value = tuple[Key, int, int]
_AT_ONCE = 10_000


class HugeInteger(sa.types.UserDefinedType[int]):
    """DuckDB's integers of 128 bits: the square of a day in ns has 28 digits."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """Return DuckDB's name of the type."""
        return "HUGEINT"


def squares(value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Select the sum of the squares of integers."""
    huge = sa.cast(value, HugeInteger())
    return sa.func.sum(huge * huge, type_=HugeInteger())


@dataclass(slots=True)
class Measures:
    """The measures of a group from the sums over its ``known`` values (of ``count`` rows): as in ``spread``.

    ``total``, ``min`` and ``max`` are ``None`` without values. ``first`` is the smallest of the row numbers, where they
    were asked for. The ``median`` follows from more than sums.
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
        """The standard deviation of the sample, 0 for one value."""
        if self.total is None or self.squares is None or self.known < 2:
            return 0.0
        spread = self.known * self.squares - self.total * self.total
        return math.sqrt(float(spread) / float(self.known * (self.known - 1)))


class PartialSums(NamedTuple):
    """The groups of some reports (by index): keys, sums of each, and an array of (group, class, number of values)."""

    reports: list[int]
    keys: list[Key]
    sums: list[Measures]
    classes: NDArray[np.int64]


def groups_of_parts(
    session: Session,
    table: sa.FromClause,
    value: sa.ColumnElement[Any],
    keys: Sequence[sa.Label[Any]],
    conditions: Sequence[sa.ColumnElement[bool]],
    first: sa.ColumnElement[Any] | None = None,
) -> dict[Key, Measures]:
    """Compute the measures of each group by its keys: what ``statistics.grouped`` asks of all rows at once."""
    klass = class_of(value).label("class")
    rows = sa.select(*keys, klass, value.label("value")).select_from(table).where(*conditions)
    tie = sa.null() if first is None else sa.func.min(first)
    sums = rows.with_only_columns(*keys, klass, *_sums(value), tie.label("first")).group_by(
        *[key.element for key in keys], klass
    )
    counted = table.left if isinstance(table, sa.Join) else table
    table_of_rows = counted if isinstance(counted, sa.Table) else None
    having = [one for one in session.reports if table_of_rows is None or one.count(table_of_rows)]
    runs = task_runs(session, having, table_of_rows)
    compute = partial(_part, pickled(sums), len(keys))
    parts = list(on_workers(session, [(run, compute) for run in runs], "sums"))

    groups: dict[Key, Measures] = {}
    counts: dict[Key, Counter[int]] = {}
    for part in parts:
        for key, measures in zip(part.keys, part.sums, strict=True):
            _add(groups, key, measures)
        for group, one, number in part.classes.tolist():
            counts.setdefault(part.keys[group], Counter())[one] += number

    wanted = {key: middle_classes(sorted(counted.items())) for key, counted in counts.items()}
    by_index = {report.index: report for report in session.reports}
    work = []
    for part in parts:
        chosen = {key: wanted[key][0] for key in part.keys if key in wanted}
        if chosen:
            work.append(([by_index[index] for index in part.reports], partial(_values, pickled(rows), chosen)))
    values: dict[Key, Counter[int]] = {key: Counter() for key in wanted}
    for found in on_workers(session, work, "medians"):
        for key, value_of, number in found:
            values[key][value_of] += number
    for key, (_, before, total) in wanted.items():
        groups[key].median = middle(sorted(values[key].items()), before, total)
    return groups


def _sums(value: sa.ColumnElement[Any]) -> list[sa.ColumnElement[Any]]:
    """The fields of ``Measures``, but the last two."""
    return [
        sa.func.count().label("count"),
        sa.func.count(value).label("known"),
        sa.cast(sa.func.sum(value), sa.BigInteger).label("total"),
        squares(value).label("squares"),
        sa.func.min(value).label("min"),
        sa.func.max(value).label("max"),
    ]


def _part(query: bytes, keys: int, session: Session, reports: list[Report]) -> PartialSums:
    """Runs on a worker: the groups of the rows of ``query``, which has ``keys``, the class and the measures."""
    groups: dict[Key, Measures] = {}
    place: dict[Key, int] = {}
    classes = []
    for rows in session.batches(query_of(query), _AT_ONCE):
        for row in rows:
            key, measures = tuple(row[:keys]), Measures(*row[keys + 1 :])
            number = place.setdefault(key, len(place))
            if measures.known:
                classes.append((number, row[keys], measures.known))
            _add(groups, key, measures)
    indices = [report.index for report in reports]
    return PartialSums(indices, list(groups), list(groups.values()), np.array(classes, np.int64).reshape(-1, 3))


def _values(query: bytes, chosen: Mapping[Key, Sequence[int]], session: Session, _: list[Report]) -> list[_Value]:
    """Runs on a worker: of the rows of ``query`` those in the ``chosen`` classes of a group, as values with counts."""
    rows = query_of(query).subquery("rows")
    groups = list(chosen)
    places = [(number, klass) for number, key in enumerate(groups) for klass in chosen[key]]
    keys = [f"key_{at}" for at in range(len(groups[0]))]
    names = list(rows.c.keys())[: len(keys)]
    lists = {key: [groups[number][at] for number, _ in places] for at, key in enumerate(keys)}
    chosen_rows = given({"group": [number for number, _ in places], "class": [klass for _, klass in places], **lists})
    own = chosen_rows.subquery("chosen")
    is_same = [rows.c[name].is_not_distinct_from(own.c[key]) for name, key in zip(names, keys, strict=True)]
    inside = (
        sa.select(own.c.group, rows.c.value, sa.func.count())
        .join_from(rows, own, sa.and_(rows.c["class"] == own.c["class"], *is_same))
        .where(rows.c.value.is_not(None))
        .group_by(own.c.group, rows.c.value)
    )
    return [
        (groups[group], value, number) for batch in session.batches(inside, _AT_ONCE) for group, value, number in batch
    ]


def _add(groups: dict[Key, Measures], key: Key, more: Measures) -> None:
    """Takes in the measures of another part of a group."""
    one = groups.setdefault(key, more)
    if one is more:
        return
    one.count, one.known = one.count + more.count, one.known + more.known
    one.total, one.squares = (
        _both(int.__add__, *pair) for pair in ((one.total, more.total), (one.squares, more.squares))
    )
    one.min, one.first = (_both(min, *pair) for pair in ((one.min, more.min), (one.first, more.first)))
    one.max = _both(max, one.max, more.max)


def _both(function: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else function(a, b)
