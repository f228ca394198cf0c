"""Kernels that become slower during the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, Column, Row, TableAnswer, Unit
from nsystui.questions.triage.case import Case, rank_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_times import FEWEST, PARTS, KernelLaunches, kernel_launches, part_bounds
from nsystui.store import tables

_THIRD = PARTS // 3
_CLOCK_FELL = 0.03
_DOOR = Door("kernels")
_PACE = (
    RANK,
    DEVICE.with_importance(2),
    Column("lost", header="Lost (ns)", label="lost", unit=Unit.DURATION),
    Column("count", header="Launches", label="launches", unit=Unit.COUNT, importance=1),
    Column("first", header="First Third (ns)", label="first third", unit=Unit.DURATION, decimals=0),
    Column("last", header="Last Third (ns)", label="last third", unit=Unit.DURATION, decimals=0),
    Column("kernel", header="Kernel", label="kernel"),
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    launches = [one for one in kernel_launches(case) if one.count >= FEWEST]
    if not launches:
        return [NotChecked("kernel-pace", f"needs a kernel that a GPU runs {FEWEST} times or more")]
    found = _slower(case, launches)
    return [] if found is None else [found]


@dataclass(frozen=True)
class _Pace:
    """Medians of the part means of each third of the run, ns, and what is over the first one in sum."""

    launches: KernelLaunches
    first: float
    last: float
    lost: int


def _slower(case: Case, launches: Sequence[KernelLaunches]) -> Finding | None:
    paces = list(_paces(launches, case.thresholds.pace_growth))
    cost = case.mean(pace.lost for pace in paces)
    if not paces or case.percent(cost) < case.thresholds.pace_percent:
        return None
    weights = np.array([pace.launches.total for pace in paces], float)
    growth = float(np.average([100 * (pace.last / pace.first - 1) for pace in paces], weights=weights))
    ranks = sorted({case.rank_of[pace.launches.task] for pace in paces if pace.launches.task in case.rank_of})
    clock = _clock(case)
    whose = rank_words(ranks, case.ranks) if len(ranks) < len(case.ranks) else "all ranks"
    sentence = (
        f"kernels become slower during the run: in the last third the same launches take {growth:.0f} % longer than in "
        f"the first, on {whose}; {time_words(cost)} on each GPU"
    )
    advice = Advice(
        "look at clocks, power and temperature over the run (--gpu-metrics-devices=all records clocks); else at inputs "
        "that grow",
        "the same grid on the same GPU takes as long as before, unless its clock sinks or its data are others",
    )
    if clock is not None and clock[1] < (1 - _CLOCK_FELL) * clock[0]:
        sentence += f"; the GPU clock falls from {clock[0]:,.0f} to {clock[1]:,.0f} MHz"
        advice = Advice(
            "look at power cap, temperature and cooling (nvidia-smi -q -d PERFORMANCE), or lock the clocks",
            "the clock sinks with them: the GPU throttles",
        )
    paces.sort(key=lambda pace: (-pace.lost, pace.launches.kernel.words))
    rows: list[Row] = [
        (
            case.rank_of.get(pace.launches.task),
            pace.launches.device,
            pace.lost,
            pace.launches.count,
            pace.first,
            pace.last,
            pace.launches.kernel.words,
        )
        for pace in paces
    ]
    measured = (
        "time of the launches over the usual of the first third (name, grid and block alike; medians of parts), of "
        "kernels that grow from third to third; mean over the GPUs"
    )
    evidence = TableAnswer("slow-pace", _PACE, rows, len(rows))
    share, severity = case.percent(cost), Severity.WARNING
    return Finding("slow-pace", severity, sentence, advice, _DOOR, cost, share, measured, evidence, ranks=tuple(ranks))


def _paces(launches: Sequence[KernelLaunches], growth: float) -> Iterator[_Pace]:
    """The kernels that grow from third to third, by ``growth`` percent in all."""
    known = [one for one in launches if (np.isfinite(one.means).reshape(3, _THIRD).sum(axis=1) >= 2).all()]
    thirds = np.array([one.means for one in known]).reshape(len(known), 3, _THIRD)
    for one, (first, middle, last) in zip(known, np.nanmedian(thirds, axis=2).tolist(), strict=True):
        if last >= (1 + growth / 100) * first and first <= middle <= last:
            lost = np.maximum(one.totals - one.counts * first, 0).sum()
            yield _Pace(one, first, last, int(lost))


def _clock(case: Case) -> tuple[float, float] | None:
    """The mean GPU clock in the first and the last third of the run, MHz; ``None`` where it was not sampled."""
    table = tables.gpu_metrics
    bounds = list(part_bounds(case).values())
    if not case.job.session.count(table) or not bounds:
        return None
    lo, hi = min(start for start, _ in bounds), max(end for _, end in bounds)
    third, time = (hi - lo) // 3, table.c.time + table.c.clock_offset
    is_first, is_last = time.between(lo, lo + third), time.between(hi - third, hi)
    query = sa.select(sa.func.avg(table.c.value).filter(is_first), sa.func.avg(table.c.value).filter(is_last)).where(
        table.c.report.in_(sorted(report.index for report in case.reports)),
        table.c.metric.startswith("GPC Clock Frequency"),
    )
    ((first, last),) = case.job.session.rows(query)
    if first is None or last is None:
        return None
    scale = 1e-6 if first > 1e6 else 1.0  # before schema 3.13 in Hz
    return scale * float(first), scale * float(last)
