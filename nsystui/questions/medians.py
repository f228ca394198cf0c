"""Exact medians of many million values in little memory.

A database's own median keeps every value until the end: a gigabyte for the kernels of 64 ranks. Here one pass counts
the values of each group in narrow classes, and a second one looks only at the values of the class in the middle, each
of them once with how often it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from nsystui.store.session import Session

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
) -> dict[int, float]:
    """The median of ``value`` (integers) for each ``group``: the mean of the two middle values.

    Groups are numbers, for the database keeps those of a hundred thousand classes in a few MB, and texts in gigabytes.
    Groups without any value are not in it.
    """
    known = [*conditions, value.is_not(None)]
    klass = class_of(value)
    counted = sa.select(group, klass, sa.func.count()).select_from(table).where(*known).group_by(group, klass)
    counts = _sorted(session, counted)
    wanted = {number: _middle_classes(own) for number, own in _by_group(counts)}
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
    return {number: _middle(own, *wanted[number][1:]) for number, own in _by_group(values)}


def _sorted(session: Session, query: sa.Select[*tuple[Any, ...]]) -> list[tuple[int, int, int]]:
    """The rows of a query of three numbers."""
    return sorted((int(a), int(b), int(c)) for batch in session.batches(query, _AT_ONCE) for a, b, c in batch)


def _by_group(rows: Iterable[tuple[int, int, int]]) -> Iterable[tuple[int, list[tuple[int, int]]]]:
    """The (number, count) pairs that end the rows of each group, which come one after the other."""
    for group, own in groupby(rows, lambda row: row[0]):
        yield group, [(number, count) for _, number, count in own]


def _middle_classes(counts: Sequence[tuple[int, int]]) -> tuple[list[int], int, int]:
    """The classes that hold the two middle values, how many values come before them, and how many there are."""
    total = sum(count for _, count in counts)
    found: list[int] = []
    before = first = 0
    for number, count in counts:
        if before <= total // 2 and before + count > (total - 1) // 2:
            first = first if found else before
            found.append(number)
        before += count
    return found, first, total


def _middle(values: Sequence[tuple[int, int]], before: int, total: int) -> float:
    """The mean of the two middle values of ``total``, of which ``before`` are less than all of ``values``."""
    low = high = 0
    for value, count in values:
        if before <= (total - 1) // 2 < before + count:
            low = value
        if before <= total // 2 < before + count:
            high = value
        before += count
    return (low + high) / 2.0


def class_of(value: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """A number that never falls as values rise: 64 for each doubling; what is below 0 has one for itself."""
    octaves = sa.func.log2(sa.cast(sa.func.greatest(value, 0), sa.Double) + 1.0)
    scaled = sa.cast(sa.func.floor(octaves * CLASSES_PER_OCTAVE), sa.Integer)
    return sa.case((value < 0, -1), else_=scaled)
