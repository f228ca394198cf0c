"""Launches that take far longer than is usual for their kernel: than the median of its launches (`kernel_times`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import shorten
from nsystui.questions.queries.conditions import duration, job_start
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_times import (
    FEWEST,
    Kernel,
    KernelLaunches,
    begins,
    conditions,
    given_kernels,
    kernel_launches,
    limit_of,
    part_bounds,
    shape_columns,
    spreads,
    tails,
)
from nsystui.store import tables

_NAME = "kernel-outliers"
_RARE = 0.03
"""If a larger share of the launches is long, on a GPU or on all, the kernel has two kinds of work, and no outliers."""
_COLUMNS = (
    RANK,
    DEVICE.with_importance(2),
    Column("lost", header="Over the Usual (ns)", label="over usual", unit=Unit.DURATION),
    Column("count", header="Outliers", label="outliers", unit=Unit.COUNT),
    Column("launches", header="Launches", label="of", unit=Unit.COUNT, importance=1),
    Column("usual", header="Usual (ns)", label="usual", unit=Unit.DURATION, decimals=0),
    Column("mad", header="MAD (ns)", label="MAD", unit=Unit.DURATION, decimals=0, importance=2),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION),
    Column("kernel", header="Kernel", label="kernel"),
)


class _Row(NamedTuple):
    rank: int | None
    device: int
    lost: int
    outliers: int
    launches: int
    usual: float
    mad: float
    max: int
    kernel: str


def check(case: Case) -> Sequence[Finding | NotChecked]:
    launches = [one for one in kernel_launches(case) if one.count >= FEWEST]
    if not launches:
        return [NotChecked(_NAME, f"needs a kernel that a GPU runs {FEWEST} times or more")]
    suspects = _suspects(case, launches)
    if not suspects:
        return []
    limits = case.thresholds
    usual = spreads(case, suspects)
    above = {kernel: one.above(limits.outlier, limits.outlier_score) for kernel, one in usual.items()}
    counted = {(one.task, one.device, one.kernel): one.count for one in launches}
    rows: list[_Row] = []
    worst: tuple[int, Window] | None = None
    found = list(_outliers(case, above))
    long = _sums((kernel, count) for _, _, kernel, count, *_ in found)
    every = _sums((one.kernel, one.count) for one in launches)
    for task, device, kernel, count, time, longest, start in found:
        of, one = counted.get((task, device, kernel), 0), usual[kernel]
        if count <= _RARE * of and long[kernel] <= _RARE * every[kernel]:
            lost = round(time - count * one.median)
            rank = case.rank_of.get(task)
            rows.append(_Row(rank, device, lost, count, of, one.median, one.mad, longest, kernel.words))
            if worst is None or longest > worst[0]:
                worst = longest, Window(start, start + longest)
    cost = case.mean(row.lost for row in rows)
    if worst is None or case.percent(cost) < limits.outlier_percent:
        return []
    rows.sort(key=lambda row: (-row.lost, str(row)))
    return [_finding(case, rows, cost, worst[1])]


def _sums(counts: Iterable[tuple[Kernel, int]]) -> dict[Kernel, int]:
    found: dict[Kernel, int] = {}
    for kernel, count in counts:
        found[kernel] = found.get(kernel, 0) + count
    return found


def _suspects(case: Case, launches: Sequence[KernelLaunches]) -> list[Kernel]:
    """The kernels that may have outliers that count, by what is known without a look at single launches.

    No median is less than the shortest launch: what is not longer than that by the factor is no outlier. And so many
    are rare, each at most as long as the longest, that together they may not be worth a word.
    """
    limits = case.thresholds
    shortest: dict[Kernel, int] = {}
    for one in launches:
        shortest[one.kernel] = min(one.shortest, shortest.get(one.kernel, one.shortest))
    may = [one for one in launches if one.longest > limits.outlier * shortest[one.kernel]]
    most = case.mean(
        min(one.total - one.count * shortest[one.kernel], _RARE * one.count * (one.longest - shortest[one.kernel]))
        for one in may
    )
    if not may or case.percent(most) < limits.outlier_percent:
        return []
    found = tails(case, list(dict.fromkeys(one.kernel for one in may)), limits.outlier, limits.outlier_score, _RARE)
    is_worth_it = case.percent(case.mean(found.values())) >= limits.outlier_percent
    return [kernel for kernel, time in found.items() if time > 0] if is_worth_it else []


def _finding(case: Case, rows: Sequence[_Row], cost: int, where: Window) -> Finding:
    worst = rows[0]
    count = sum(row.outliers for row in rows)
    sentence = (
        f"{number_of(count, 'kernel')} took more than {case.thresholds.outlier:g} times what is usual for their like, "
        f"{time_words(cost)} over it on each GPU; most of it on rank {worst.rank} in {shorten(worst.kernel, 48)} "
        f"(up to {time_words(worst.max)} instead of {time_words(worst.usual)})"
    )
    advice = Advice(
        "look at what ran beside them (Timeline): other streams, copies, another process on this GPU, page faults",
        "the same launch on the same GPU takes as long as before, unless something takes the GPU from it",
    )
    measured = (
        "time of these launches over the median of their kernel (name, grid and block alike), where they are rare (3 % "
        f"or less) and lie far outside of its spread (modified z-score {case.thresholds.outlier_score:g}); mean over "
        "the GPUs"
    )
    ranks = tuple(sorted({row.rank for row in rows if row.rank is not None}))
    evidence = TableAnswer(_NAME, _COLUMNS, rows, len(rows))
    door, share = Door("kernels"), case.percent(cost)
    return Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence, where, ranks)


def _outliers(case: Case, limits: Mapping[Kernel, float]) -> Iterator[tuple[Task, int, Kernel, int, int, int, int]]:
    """Task, device and kernel; of its launches above the limit how many, their time in sum, the longest, its start."""
    table = tables.kernels
    keys, (is_own, own) = shape_columns(), given_kernels(limits)
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
        .join_from(table, own, is_own)
        # The least of all says the same, of rows that need not be joined then.
        .where(
            *conditions(case),
            start >= begins(part_bounds(case)),
            time > min(limits.values()),
            time > limit_of(own),
        )
        .group_by(*places, *keys)
    )
    for report, process, device, name, *rest in case.job.session.rows(query):
        kernel = Kernel(str(name), tuple(int(size) for size in rest[:6]))
        count, total, longest, first = (int(value) for value in rest[6:])
        yield Task(report, process), int(device), kernel, count, total, longest, first
