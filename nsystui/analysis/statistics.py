"""The statistics that every summary shows, as ``nsys stats`` defines them (domain §4.1).

Median is the mean of the two middle values, the standard deviation is the sample's (n−1; 0 for one value), and a
share is a share of the sum over all rows of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nsystui.analysis.answer import Column, Unit

DURATION_KEYS = ("share", "total", "count", "avg", "median", "min", "max", "stddev")


def duration_columns(count: str) -> tuple[Column, ...]:
    """The statistics of durations with nsys's CSV headers; ``count`` is what nsys calls the number of rows."""
    return (
        Column("share", "Time (%)", "time %", Unit.PERCENT, 1, 0),
        Column("total", "Total Time (ns)", "total", Unit.DURATION, None, 0),
        Column("count", count, "count", Unit.COUNT, None, 1),
        Column("avg", "Avg (ns)", "avg", Unit.DURATION, 1, 3),
        Column("median", "Med (ns)", "median", Unit.DURATION, 1, 2),
        Column("min", "Min (ns)", "min", Unit.DURATION, None, 5),
        Column("max", "Max (ns)", "max", Unit.DURATION, None, 4),
        Column("stddev", "StdDev (ns)", "stddev", Unit.DURATION, 1, 6),
    )


def measures(value: sa.ColumnElement[Any]) -> list[sa.ColumnElement[Any]]:
    """The aggregates over ``value`` (ns or bytes) that the statistics are made of."""
    return [
        sa.cast(sa.func.sum(value), sa.BigInteger).label("total"),
        sa.func.count().label("count"),
        sa.func.avg(value).label("avg"),
        sa.cast(sa.func.median(value), sa.Double).label("median"),
        sa.func.min(value).label("min"),
        sa.func.max(value).label("max"),
        sa.func.coalesce(sa.func.stddev_samp(value), 0.0).label("stddev"),
    ]


def summary(
    table: sa.FromClause,
    value: sa.ColumnElement[Any],
    keys: Sequence[sa.Label[Any]],
    conditions: Sequence[sa.ColumnElement[bool]],
    first: sa.ColumnElement[Any] | None = None,
) -> sa.Select[Any]:
    """One row for each combination of ``keys`` with every statistic of ``value``, largest total first.

    Equal totals are in the order of the keys, or of the least ``first`` (a row number: as the export has them).
    """
    tie = [] if first is None else [sa.func.min(first).label("first")]
    chosen = sa.select(*keys, *measures(value), *tie).select_from(table).where(*conditions)
    grouped = chosen.group_by(*[key.element for key in keys]).subquery()
    share = (100.0 * grouped.c.total / sa.func.nullif(sa.func.sum(grouped.c.total).over(), 0)).label("share")
    ties = ["first"] if tie else [key.key for key in reversed(keys)]
    order = [grouped.c.total.desc(), *[grouped.c[name] for name in ties]]
    return sa.select(sa.func.coalesce(share, 0.0).label("share"), *grouped.c).order_by(*order)
