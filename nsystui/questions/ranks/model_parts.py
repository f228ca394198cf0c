"""Model parts: ranks that run the same kernels, such as those of a pipeline stage or of an expert group.

Ranks are of one part if the kernels (NCCL's too) whose bare names the other lacks take at most 2 % of the time of each.
Where all have steps, their launches in a step also differ by at most 2 %, if this gives parts of equal size, two ranks
or more: a single rank that launches more has uneven work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Task
from nsystui.base.text import few_numbers
from nsystui.questions.queries.conditions import duration, of_reports
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.steps.times import Steps
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class ModelParts:
    """The part of each rank (``A`` is that of the lowest rank), none where all are of one."""

    of_task: Mapping[Task, str]
    operations: Mapping[Task, float]
    """The median number of GPU operations that a rank launches in a step."""

    def words(self, ranks: Sequence[RankedTask]) -> str:
        """``the ranks form 2 model parts by their kernels: A (ranks 0, 1), B (ranks 2, 3)``; empty for one."""
        found: dict[str, list[int]] = {}
        for item in (one for one in ranks if one.task in self.of_task):
            found.setdefault(self.of_task[item.task], []).append(item.rank)
        told = (f"{part} (rank{'s' if len(own) > 1 else ''} {few_numbers(own)})" for part, own in found.items())
        return f"the ranks form {len(found)} model parts by their kernels: {', '.join(told)}" if len(found) > 1 else ""

    @classmethod
    def load(cls, session: Session, ranks: Sequence[RankedTask], steps: Steps) -> ModelParts:
        """Group the ranks of one job."""
        of_step = {task: float(np.median(own.gpu.op_count)) for task, own in steps.of_task.items() if len(own)}
        if len(ranks) < 2 or not shares_clock(session.reports):
            return cls({}, of_step)
        work = _work(session)
        tasks = [item.task for item in ranks if item.task in work]
        names = list(dict.fromkeys(name for task in tasks for name in work[task]))
        figures = np.array([[work[task].get(name, (0, 0)) for name in names] for task in tasks], float)
        groups = _grouped(figures)
        if tasks and of_step.keys() >= set(tasks):
            figures[:, :, 0] /= [[len(steps.of_task[task])] for task in tasks]
            finer = _grouped(figures, by_launches=True)
            sizes = {len(group) for group in finer}
            groups = finer if len(sizes) == 1 and sizes != {1} else groups
        letters = [f"{ascii_uppercase[number % 26]}{number // 26 or ''}" for number in range(len(groups))]
        found = {tasks[place]: part for part, own in zip(letters, groups, strict=True) for place in own}
        return cls(found if len(groups) > 1 else {}, of_step)


def _grouped(figures: NDArray[np.float64], by_launches: bool = False) -> list[list[int]]:
    """Group ranks with the first that runs the same kernels; launches and time, shape ``(ranks, names, 2)``."""
    groups, left = [], np.arange(len(figures))
    while len(left):
        (launches, times), (own, time) = np.moveaxis(figures[left], 2, 0), figures[left[0]].T
        is_same = (times * (own == 0)).sum(axis=1) <= _TOLERANCE * times.sum(axis=1)
        is_same &= (time * (launches == 0)).sum(axis=1) <= _TOLERANCE * time.sum()
        if by_launches:
            is_same &= np.abs(launches - own).sum(axis=1) <= _TOLERANCE * np.maximum(launches.sum(axis=1), own.sum())
        groups.append(left[is_same].tolist())
        left = left[~is_same]
    return groups


def _work(session: Session) -> dict[Task, dict[str, tuple[int, int]]]:
    """The launches and the time, ns, of each kernel of a rank by its bare name."""

    def compute(part: Session, reports: list[Report]) -> dict[int, dict[str, Any]]:
        kernels = tables.kernels
        place = (kernels.c.report, kernels.c.process, sa.func.coalesce(kernels.c.short_name, kernels.c.name, ""))
        time = sa.cast(sa.func.greatest(sa.func.sum(duration(kernels)), 0), sa.BigInteger)
        chosen = (of_reports(kernels.c.report, {one.index for one in reports}), kernels.c.process.is_not(None))
        rows = part.rows(sa.select(*place, sa.func.count(), time).where(*chosen).group_by(*place))
        return {one.index: {"work": json_array([row[1:] for row in rows if row[0] == one.index])} for one in reports}

    having = [one for one in session.reports if one.count(tables.kernels)]
    work: dict[Task, dict[str, tuple[int, int]]] = {}
    for index, arrays in of_each_report(session, having, "kernel-work", compute, by=tables.kernels).items():
        for process, name, count, time in json_of(arrays["work"]):
            work.setdefault(Task(index, process), {})[name] = (count, time)
    return work
