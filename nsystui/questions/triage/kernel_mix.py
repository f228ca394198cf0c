"""The work of kernels by name, with families and precisions: what several rules share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import NAME, Column, Unit
from nsystui.base.kernel_families import family_of, precision_of
from nsystui.questions.conditions import duration, where
from nsystui.questions.kernels import FAMILY, PRECISION
from nsystui.questions.triage.case import Case
from nsystui.store import tables

_COLUMNS = (
    Column("time", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    Column("launches", header="Instances", label="count", unit=Unit.COUNT),
    FAMILY,
    PRECISION,
    NAME,
)


class NameWork(NamedTuple):
    """The launches of one kernel by its full name; ``time`` is the sum of their durations over all GPUs, ns."""

    time: int
    launches: int
    family: str
    precision: str | None
    name: str


def kernel_mix(case: Case) -> list[NameWork]:
    """All selected kernels, those with most time first."""
    return case.once("kernel-mix", lambda: _load(case))


def _load(case: Case) -> list[NameWork]:
    table = tables.kernels
    name = sa.func.coalesce(table.c.name, "").label("name")
    time = sa.cast(sa.func.sum(duration(table)), sa.BigInteger).label("time")
    query = (
        sa.select(name, time, sa.func.count())
        .where(*where(table, case.chosen), table.c.end.is_not(None))
        .group_by(name)
        .order_by(time.desc(), name)
    )
    rows, own = case.job.session.rows(query), case.job.families
    return [NameWork(int(time), count, family_of(name, own), precision_of(name), name) for name, time, count in rows]


def shares(works: Iterable[NameWork], key: Callable[[NameWork], str]) -> list[tuple[str, float]]:
    """The time of each group in % of all, the largest first."""
    found = Counter[str]()
    for one in works:
        found[key(one)] += one.time
    whole = found.total()
    return [(word, 100.0 * time / whole) for word, time in found.most_common()] if whole else []


def mix_table(name: str, works: Iterable[NameWork]) -> TableAnswer:
    """The kernels as the evidence of a finding."""
    rows = list(works)
    return TableAnswer(name, _COLUMNS, rows, len(rows))
