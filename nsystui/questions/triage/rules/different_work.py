"""Ranks that launch more than the others: what is not divided evenly, however fast a GPU is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nsystui.base.answer import RANK, Column, TableAnswer, Unit
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.triage.case import Case, rank_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity

_NAME = "different-work"
_COLUMNS = (
    RANK,
    Column("kernels", header="Compute Kernels", label="compute kernels", unit=Unit.COUNT),
    Column("steps", header="Steps", label="steps", unit=Unit.COUNT, importance=1),
    Column("compute", header="Compute Time (ns)", label="compute", unit=Unit.DURATION),
)


class _Row(NamedTuple):
    rank: int
    kernels: int
    steps: int | None
    compute: int


def check(case: Case) -> Sequence[Finding | NotChecked]:
    computed = case.computed
    ranks = [item for item in case.ranks if item.task in computed and computed[item.task].time]
    if len(ranks) < 2 or not shares_clock(case.reports):
        return [NotChecked(_NAME, "needs the GPU work of two ranks or more of one job")]
    steps = {len(case.steps[item.task]) if item.task in case.steps else None for item in ranks}
    if len(steps) > 1:
        return [NotChecked(_NAME, "needs ranks with equally many steps: choose a window with --time that all were in")]
    kernels = np.array([computed[item.task].kernels for item in ranks], float)
    busy = np.array([computed[item.task].time for item in ranks], float)
    least = 1 + case.thresholds.work_difference_percent / 100
    more = [item.rank for item, one in zip(ranks, kernels, strict=True) if one > least * np.median(kernels)]
    heaviest = ranks[int(busy.argmax())].rank
    cost = round(float(busy.max() - busy.mean()))
    if heaviest not in more or case.percent(cost) < case.thresholds.work_percent:
        return []
    sentence = (
        f"{rank_words(more, case.ranks)} ran at least {case.thresholds.work_difference_percent:g} % more "
        "kernels than the median rank; "
        f"rank {heaviest} computes {time_words(cost)} longer than the ranks on average"
    )
    advice = Advice(
        "divide layers, experts or samples more evenly",
        "the rank with most work sets the pace of every step that ends in a collective",
    )
    (common,) = steps
    rows = [
        _Row(item.rank, int(count), common, int(time)) for item, count, time in zip(ranks, kernels, busy, strict=True)
    ]
    rows.sort(key=lambda row: (-row.compute, row.rank))
    measured = "compute time |U(K)| of the rank with most, less the mean of all"
    evidence, share = TableAnswer(_NAME, _COLUMNS, rows, len(rows)), case.percent(cost)
    door, ranked = Door("ranks", sort="kernels"), tuple(more)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence, ranks=ranked)]
