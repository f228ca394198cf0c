"""Time in which a GPU was idle while the profiler worked: it is no time of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import COUNT, NAME, Column, TableAnswer, Unit
from nsystui.questions.algebra.intervals import EMPTY
from nsystui.questions.gpu.profiler_overhead import overhead_conditions
from nsystui.questions.queries.conditions import duration
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import DIAGNOSTICS, Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "profiler-overhead"
_COLUMNS = (
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    COUNT,
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=1),
    NAME,
)


class _Row(NamedTuple):
    total: int
    entries: int
    max: int
    name: str | None


def check(case: Case) -> Sequence[Finding | NotChecked]:
    table = tables.profiler_overhead
    if not case.job.session.count(table) or not case.devices:
        return [NotChecked(_NAME, "needs GPU work and the times of the profiler's own work: these exports have none")]
    own = [case.overhead.get(one.device.task.task, EMPTY) for one in case.devices]
    idle = [case.idle(one).shared_with(part) for one, part in zip(case.devices, own, strict=True)]
    cost = case.mean(idle)
    if case.percent(cost) < case.thresholds.overhead_percent:
        return []
    rows = _by_name(case)
    count = sum(row.entries for row in rows)
    sentence = (
        f"GPUs are idle for {time_words(cost)} each while the profiler itself works ({number_of(count, 'time')}; "
        f"most of it: {rows[0].name or '(no name)'}): this is not time of the program"
    )
    advice = Advice(
        "record less (no backtraces, no sampling, fewer traces), and flush seldom (--cuda-flush-interval)",
        "the program waits while nsys allocates or writes its buffers, which no run without it does",
    )
    measured = (
        "idle time of a GPU inside its work in which its process has an entry in PROFILER_OVERHEAD; mean over the GPUs"
    )
    evidence = TableAnswer(_NAME, _COLUMNS, rows, len(rows))
    share, door = case.percent(cost), Door(DIAGNOSTICS)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


def _by_name(case: Case) -> list[_Row]:
    table = tables.profiler_overhead
    total = sa.cast(sa.func.sum(duration(table)), sa.BigInteger).label("total")
    query = (
        sa.select(total, sa.func.count(), sa.func.max(duration(table)), table.c.name)
        .where(*overhead_conditions(case.chosen))
        .group_by(table.c.name)
        .order_by(total.desc(), table.c.name)
    )
    return [_Row(*row) for row in case.job.session.rows(query)]
