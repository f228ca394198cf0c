"""One kernel, by its full name with the template's arguments, that takes most of the time of all but NCCL's."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nsystui.base.kernel_names import smart_names
from nsystui.base.text import shorten
from nsystui.questions.kernels.summary import Names, kernel_summary
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables


def check(case: Case) -> Sequence[Finding | NotChecked]:
    table = tables.kernels
    session = case.job.session
    if not session.count(table):
        return [NotChecked("dominant-kernel", "needs kernels: record with `nsys profile -t cuda`")]
    time = sa.func.sum(duration(table)).label("time")
    full_name = sa.func.coalesce(table.c.name, table.c.short_name, "").label("full_name")
    query = (
        sa.select(full_name, time, sa.func.count())
        .where(*where(table, case.chosen), sa.not_(sa.cast(table.c.is_nccl, sa.Boolean)), table.c.end.is_not(None))
        .group_by(full_name)
        .order_by(time.desc(), full_name)
    )
    rows = session.rows(query)
    whole = sum(int(time) for _, time, _ in rows)
    if not whole:
        return []
    name, spent, count = rows[0]
    if 100 * int(spent) < case.thresholds.dominant_percent * whole:
        return []
    cost = case.mean([int(spent)])
    if case.percent(cost) < case.thresholds.dominant_cost_percent:
        return []
    shown = smart_names(name for name, *_ in rows)[name]
    sentence = (
        f"one kernel, {shorten(shown or '(no name)', 48)}, takes {100 * int(spent) / whole:.0f} % "
        "of the time of all kernels "
        f"but NCCL's ({time_words(cost)} on each GPU, {number_of(count, 'launch')})"
    )
    advice = Advice(
        "profile it with Nsight Compute (ncu)", "what it gains, the job gains; no other kernel can gain as much"
    )
    evidence = kernel_summary(session, case.chosen, Names.SMART)
    measured = "sum of the durations of its launches; mean over the GPUs"
    share = case.percent(cost)
    door = Door("kernels")
    return [Finding("dominant-kernel", Severity.INFO, sentence, advice, door, cost, share, measured, evidence)]
