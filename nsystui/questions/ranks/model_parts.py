"""Model parts: ranks that run the same kernels, such as a pipeline stage or an expert group.

Two ranks are of one part if kernels (also NCCL's) that only one of them runs, by bare name, take at most 2 % of its
time. If all have steps, launches per step must also differ by at most 2 %, but only if this makes parts of equal size
with two ranks or more: a single rank that launches more has uneven work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Task
from nsystui.base.text import ranks_named
from nsystui.base.types import Floats
from nsystui.questions.queries.conditions import duration, of_reports
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.steps.times import Steps
from nsystui.store import tables
from nsystui.store.remember import json_array, json_of
from nsystui.store.report import Report
from nsystui.store.session import Session

_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class ModelParts:
    """The part of each rank (``A`` has the lowest rank), empty if all ranks are of one part."""

    of_task: Mapping[Task, str]
    operations: Mapping[Task, float]  # a rank's median number of GPU operations launched per step

    def words(self, ranks: Sequence[RankedTask]) -> str:
        """Return ``the ranks form 2 model parts by their kernels: A (ranks 0, 1), B (ranks 2, 3)``; empty for one."""
        parts: dict[str, list[int]] = {}
        for item in (rank for rank in ranks if rank.task in self.of_task):
            parts.setdefault(self.of_task[item.task], []).append(item.rank)
        texts = (f"{part} ({ranks_named(group)})" for part, group in parts.items())
        return f"the ranks form {len(parts)} model parts by their kernels: {', '.join(texts)}" if len(parts) > 1 else ""

    @classmethod
    def load(cls, session: Session, ranks: Sequence[RankedTask], steps: Steps) -> ModelParts:
        """Group the ranks of one job."""
        operations = {task: float(np.median(item.gpu.op_count)) for task, item in steps.of_task.items() if len(item)}
        if len(ranks) < 2 or not shares_clock(session.reports):
            return cls({}, operations)
        work = _work(session)
        tasks = [item.task for item in ranks if item.task in work]
        names = list(dict.fromkeys(name for task in tasks for name in work[task]))
        figures = np.array([[work[task].get(name, (0, 0)) for name in names] for task in tasks], float)
        groups = _grouped(figures)
        if tasks and operations.keys() >= set(tasks):
            figures[:, :, 0] /= [[len(steps.of_task[task])] for task in tasks]
            finer = _grouped(figures, by_launches=True)
            sizes = {len(group) for group in finer}
            groups = finer if len(sizes) == 1 and sizes != {1} else groups
        letters = [f"{ascii_uppercase[number % 26]}{number // 26 or ''}" for number in range(len(groups))]
        part_by_task = {tasks[index]: part for part, group in zip(letters, groups, strict=True) for index in group}
        return cls(part_by_task if len(groups) > 1 else {}, operations)


def _grouped(figures: Floats, by_launches: bool = False) -> list[list[int]]:
    """Group ranks that run the kernels of the group's first; ``figures``: launches and time, ``(ranks, names, 2)``."""
    groups, remaining = [], np.arange(len(figures))
    while len(remaining):
        (counts, times), (first, time) = (np.moveaxis(figures[remaining], 2, 0), figures[remaining[0]].T)
        is_same = (times * (first == 0)).sum(axis=1) <= _TOLERANCE * times.sum(axis=1)
        is_same &= (time * (counts == 0)).sum(axis=1) <= _TOLERANCE * time.sum()
        if by_launches:
            is_same &= np.abs(counts - first).sum(axis=1) <= _TOLERANCE * np.maximum(counts.sum(axis=1), first.sum())
        groups.append(remaining[is_same].tolist())
        remaining = remaining[~is_same]
    return groups


def _work(session: Session) -> dict[Task, dict[str, tuple[int, int]]]:
    """Return launches and time, ns, of a rank's kernels by bare name."""

    def compute(part: Session, reports: list[Report]) -> dict[int, dict[str, Any]]:
        kernels = tables.kernels
        keys = (kernels.c.report, kernels.c.process, sa.func.coalesce(kernels.c.short_name, kernels.c.name, ""))
        time = sa.cast(sa.func.greatest(sa.func.sum(duration(kernels)), 0), sa.BigInteger)
        filters = (of_reports(kernels.c.report, {report.index for report in reports}), kernels.c.process.is_not(None))
        rows = part.rows(sa.select(*keys, sa.func.count(), time).where(*filters).group_by(*keys))
        return {item.index: {"work": json_array([row[1:] for row in rows if row[0] == item.index])} for item in reports}

    with_kernels = [report for report in session.reports if report.count(tables.kernels)]
    work: dict[Task, dict[str, tuple[int, int]]] = {}
    for index, arrays in of_each_report(session, with_kernels, "kernel-work", compute, table=tables.kernels).items():
        for process, name, count, time in json_of(arrays["work"]):
            work.setdefault(Task(index, process), {})[name] = (count, time)
    return work
