"""Launches that take far longer than the others of their kernel, and kernels that become slower during the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.analysis.answer import Column, Row, Unit
from nsystui.analysis.rows import answer_of
from nsystui.analysis.selection import Task, Window
from nsystui.analysis.triage.case import Case, number_of, rank_words, time_words
from nsystui.analysis.triage.finding import Advice, Finding, NotChecked, Severity, Shown
from nsystui.analysis.triage.kernel_times import (
    FEWEST,
    LIMIT,
    PARTS,
    Kernel,
    Launches,
    conditions,
    given_kernels,
    kernel_launches,
    part_bounds,
    shape_columns,
    usual_times,
)
from nsystui.analysis.where import duration, job_start
from nsystui.store import tables
from nsystui.text import shorten

_THIRD = PARTS // 3
_RARE = 0.03
"""If a larger share of the launches is long, the kernel has two kinds of work, and no outliers."""
_CLOCK_FELL = 0.03
_SHOWN = Shown("Kernels", "kernels")
_PACE = (
    Column("rank", "Rank", "rank", Unit.NUMBER, None, 0),
    Column("device", "Device", "dev", Unit.NUMBER, None, 2),
    Column("lost", "Lost (ns)", "lost", Unit.DURATION, None, 0),
    Column("count", "Launches", "launches", Unit.COUNT, None, 1),
    Column("first", "First Third (ns)", "first third", Unit.DURATION, 0, 0),
    Column("last", "Last Third (ns)", "last third", Unit.DURATION, 0, 0),
    Column("kernel", "Kernel", "kernel", Unit.TEXT, None, 0),
)
_OUTLIERS = (
    Column("rank", "Rank", "rank", Unit.NUMBER, None, 0),
    Column("device", "Device", "dev", Unit.NUMBER, None, 2),
    Column("lost", "Over the Usual (ns)", "over usual", Unit.DURATION, None, 0),
    Column("count", "Outliers", "outliers", Unit.COUNT, None, 0),
    Column("launches", "Launches", "of", Unit.COUNT, None, 1),
    Column("usual", "Usual (ns)", "usual", Unit.DURATION, 0, 0),
    Column("max", "Max (ns)", "max", Unit.DURATION, None, 0),
    Column("kernel", "Kernel", "kernel", Unit.TEXT, None, 0),
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    launches = [one for one in kernel_launches(case) if one.count >= FEWEST]
    if not launches:
        return [NotChecked("kernel-pace", f"needs a kernel that a GPU runs {FEWEST} times or more")]
    found = [_outliers(case, launches), _slower(case, launches)]
    return [one for one in found if one is not None]


# -- kernels that become slower ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pace:
    """Medians of the part means of each third of the run, ns, and what is over the first one in sum."""

    launches: Launches
    first: float
    last: float
    lost: int


def _slower(case: Case, launches: Sequence[Launches]) -> Finding | None:
    paces = [pace for one in launches if (pace := _pace(one, case.thresholds.pace_growth)) is not None]
    cost = case.mean(pace.lost for pace in paces)
    if not paces or case.percent(cost) < case.thresholds.pace_percent:
        return None
    weights = np.array([pace.launches.total for pace in paces], float)
    growth = float(np.average([100 * (pace.last / pace.first - 1) for pace in paces], weights=weights))
    ranks = sorted({case.rank_of[pace.launches.task] for pace in paces if pace.launches.task in case.rank_of})
    clock = _clock(case)
    whose = rank_words(ranks) if len(ranks) < len(case.ranks) else "all ranks"
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
    evidence = answer_of("slow-pace", _PACE, rows, len(rows))
    share, severity = case.percent(cost), Severity.WARNING
    return Finding("slow-pace", severity, sentence, advice, _SHOWN, cost, share, measured, evidence, ranks=tuple(ranks))


def _pace(one: Launches, growth: float) -> _Pace | None:
    thirds = one.means.reshape(3, _THIRD)
    if (np.isfinite(thirds).sum(axis=1) < 2).any():
        return None
    first, middle, last = np.nanmedian(thirds, axis=1).tolist()
    if last < (1 + growth / 100) * first or not first <= middle <= last:
        return None
    lost = np.maximum(one.totals - one.counts * first, 0).sum()
    return _Pace(one, first, last, int(lost))


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


# -- outliers ---------------------------------------------------------------------------------------------------------


def _outliers(case: Case, launches: Sequence[Launches]) -> Finding | None:
    factor = case.thresholds.outlier
    usual = usual_times(launches)
    suspects = {one.kernel: usual[one.kernel] for one in launches if one.longest > factor * usual[one.kernel]}
    if not suspects:
        return None
    counted = {(one.task, one.device, one.kernel): one.count for one in launches}
    rows: list[Row] = []
    worst: tuple[int, Window] | None = None
    for task, device, kernel, count, time, longest, start in _rows(case, suspects, factor):
        of, rank = counted.get((task, device, kernel), 0), case.rank_of.get(task)
        lost = round(time - count * suspects[kernel])
        if count <= _RARE * of:
            rows.append((rank, device, lost, count, of, suspects[kernel], longest, kernel.words))
            if worst is None or longest > worst[0]:
                worst = longest, Window(start, start + longest)
    cost = case.mean(int(row[2] or 0) for row in rows)
    if not rows or worst is None or case.percent(cost) < case.thresholds.outlier_percent:
        return None
    rows.sort(key=lambda row: (-int(row[2] or 0), str(row)))
    first = rows[0]
    count = sum(int(row[3] or 0) for row in rows)
    sentence = (
        f"{number_of(count, 'kernel')} took more than {factor:g} times what is usual for their like, "
        f"{time_words(cost)} over it on each GPU; most of it on rank {first[0]} in {shorten(str(first[7]), 48)} "
        f"(up to {time_words(int(first[6] or 0))} instead of {time_words(float(first[5] or 0))})"
    )
    advice = Advice(
        "look at what ran beside them (Timeline): other streams, copies, another process on this GPU, page faults",
        "the same launch on the same GPU takes as long as before, unless something takes the GPU from it",
    )
    measured = (
        "time of these launches over the usual of their kernel (name, grid and block alike; median of the means of "
        "parts of the run), where they are rare (3 % or less); mean over the GPUs"
    )
    ranks = tuple(sorted({int(row[0]) for row in rows if isinstance(row[0], int)}))
    evidence = answer_of("kernel-outliers", _OUTLIERS, rows, len(rows))
    share, name = case.percent(cost), "kernel-outliers"
    return Finding(name, Severity.WARNING, sentence, advice, _SHOWN, cost, share, measured, evidence, worst[1], ranks)


def _rows(
    case: Case, suspects: Mapping[Kernel, float], factor: float
) -> Iterator[tuple[Task, int, Kernel, int, int, int, int]]:
    """Task, device and kernel; of its outliers: how many, their time in sum, the longest, and when that began."""
    table = tables.kernels
    keys, top = shape_columns(), given_kernels({kernel: factor * usual for kernel, usual in suspects.items()})
    bounds = part_bounds(case)
    begin = sa.case({report: lo for report, (lo, _) in bounds.items()}, value=table.c.report)
    time, start = duration(table), job_start(table)
    places = (table.c.report, table.c.process, table.c.device)
    query = (
        sa.select(
            *places,
            *keys,
            sa.func.count(),
            sa.cast(sa.func.sum(time), sa.BigInteger),
            sa.func.max(time),
            sa.func.arg_max(start, time),
        )
        .join_from(table, top, sa.and_(*(key == top.c[key.name] for key in keys)))
        # The least of all says the same, of rows that need not be joined then.
        .where(*conditions(case), start >= begin, time > factor * min(suspects.values()), time > top.c[LIMIT])
        .group_by(*places, *keys)
    )
    for report, process, device, name, *rest in case.job.session.rows(query):
        kernel = Kernel(str(name), tuple(int(size) for size in rest[:6]))
        count, total, longest, first = (int(value) for value in rest[6:])
        yield Task(report, process), int(device), kernel, count, total, longest, first
