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

from nsystui.base.selection import Task
from nsystui.base.text import few_numbers
from nsystui.questions.queries.conditions import duration
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.steps.times import Steps
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

_TOLERANCE = 0.02
_Work = Mapping[str, tuple[float, int]]
"""The launches (in a step) and the time, ns, of each kernel of a rank by its bare name."""


@dataclass(frozen=True, eq=False)
class ModelParts:
    """The part of each rank (``A`` is that of the lowest rank), none where all are of one."""

    of_task: Mapping[Task, str]
    operations: Mapping[Task, float]
    """The median number of GPU operations that a rank launches in a step."""

    def words(self, ranks: Sequence[RankedTask]) -> str:
        """``the ranks form 2 model parts with different kernels: A (ranks 0, 1), B (ranks 2, 3)``; empty for one."""
        found: dict[str, list[int]] = {}
        for item in (one for one in ranks if one.task in self.of_task):
            found.setdefault(self.of_task[item.task], []).append(item.rank)
        told = (f"{part} (rank{'s' if len(own) > 1 else ''} {few_numbers(own)})" for part, own in found.items())
        text = f"the ranks form {len(found)} model parts with different kernels: {', '.join(told)}"
        return text if len(found) > 1 else ""

    @classmethod
    def load(cls, session: Session, ranks: Sequence[RankedTask], steps: Steps) -> ModelParts:
        """Group the ranks of one job."""
        of_step = {task: float(np.median(own.gpu.op_count)) for task, own in steps.of_task.items() if len(own)}
        if len(ranks) < 2 or not shares_clock(session.reports):
            return cls({}, of_step)
        work = _work(session, {task: len(steps.of_task[task]) for task in of_step})
        tasks = [item.task for item in ranks if item.task in work]
        groups, finer = (_grouped(tasks, work, by_launches) for by_launches in (False, True))
        sizes = {len(group) for group in finer}
        groups = finer if of_step.keys() >= set(tasks) and len(sizes) == 1 and sizes != {1} else groups
        names = [f"{ascii_uppercase[number % 26]}{number // 26 or ''}" for number in range(len(groups))]
        found = {task: name for name, own in zip(names, groups, strict=True) for task in own}
        return cls(found if len(groups) > 1 else {}, of_step)


def _grouped(tasks: Sequence[Task], work: Mapping[Task, _Work], by_launches: bool) -> list[list[Task]]:
    """Group the tasks that run the same kernels as the first of a group."""
    groups: dict[Task, list[Task]] = {}
    for task in tasks:
        first = next((one for one in groups if _is_same(work[one], work[task], by_launches)), task)
        groups.setdefault(first, []).append(task)
    return list(groups.values())


def _is_same(one: _Work, other: _Work, by_launches: bool) -> bool:
    for own, others in ((one, other), (other, one)):
        lacking = sum(time for name, (_, time) in own.items() if name not in others)
        if lacking > _TOLERANCE * sum(time for _, time in own.values()):
            return False
    off = sum(abs(one.get(name, (0, 0))[0] - other.get(name, (0, 0))[0]) for name in one.keys() | other.keys())
    return not by_launches or off <= _TOLERANCE * max(sum(count for count, _ in own.values()) for own in (one, other))


def _work(session: Session, steps: Mapping[Task, int]) -> Mapping[Task, _Work]:
    def compute(part: Session, reports: list[Report]) -> dict[int, dict[str, Any]]:
        kernels = tables.kernels
        place = (kernels.c.report, kernels.c.process, sa.func.coalesce(kernels.c.short_name, kernels.c.name, ""))
        time = sa.cast(sa.func.coalesce(sa.func.sum(duration(kernels)), 0), sa.BigInteger)
        chosen = (kernels.c.report.in_([one.index for one in reports]), kernels.c.process.is_not(None))
        rows = part.rows(sa.select(*place, sa.func.count(), time).where(*chosen).group_by(*place))
        return {one.index: {"work": json_array([row[1:] for row in rows if row[0] == one.index])} for one in reports}

    having = [one for one in session.reports if one.count(tables.kernels)]
    work: dict[Task, dict[str, tuple[float, int]]] = {}
    for index, arrays in of_each_report(session, having, "kernel-work", compute, by=tables.kernels).items():
        for process, name, count, time in json_of(arrays["work"]):
            task = Task(index, process)
            work.setdefault(task, {})[name] = (count / steps.get(task, 1), time)
    return work
