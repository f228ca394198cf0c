"""The verdict of a comparison: whether B is faster than A, by time, and the parts of time that made it so.

See docs/numbers.md#verdict. The time compared is the first of these that both sides have:

* that of a step, where the steps of both have one name and hold most of the job: the mean from the first that is not
  slow on;
* that of the same work: where both sides run mostly the same kernels, which take as long, and launch all of them so
  many times more or less often, the time between start-up and tail by these launches;
* that of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from operator import mul

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Unit, Value
from nsystui.base.selection import Task, Window
from nsystui.base.units import format_value
from nsystui.questions.compare.pairs import BOTH, Compared
from nsystui.questions.compare.side import Side, smart_names_of
from nsystui.questions.host.time_budget import Budget, device_budgets, in_sum
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.questions.queries.conditions import where
from nsystui.questions.ranks.steps import StepTimes, step_times
from nsystui.store import tables

CHANGED = 5.0
"""By so many % the time of the unit differs if B is faster or slower."""

_PARTS = {
    "compute": ("compute",),
    "exposed NCCL": ("exposed_nccl",),
    "memory": ("memory",),
    "graphs": ("graph",),
    "start-up": ("startup",),
    "gaps": ("long_gaps", "short_gaps"),
    "tail": ("tail",),
    "not recorded": ("unrecorded",),
}
_AROUND = ("start-up", "tail", "not recorded")
"""The parts before and after the work."""
_TOLD = 3
_TOLD_SHARE = 0.05
"""Parts that changed by less of the whole change are not told."""
_COMMON, _ALIKE, _SAME_WORK = 0.8, 0.15, 0.02
_MOST = 0.5
_OTHER_WORK = 10
"""Work is another where most of the kernel time is in kernels that have so many times the threads, or more."""


class ComparedBy(Enum):
    """What is compared by its time."""

    STEP = "a step"
    WORK = "the same work"
    JOB = "the job"


@dataclass(frozen=True)
class Timed:
    """The time of a unit and that of all of the job by part, ns; and how many units it has."""

    parts: Mapping[str, float]
    whole: Mapping[str, float]
    count: float = 1

    @property
    def unit(self) -> float:
        return sum(self.parts.values())

    @property
    def job(self) -> float:
        return sum(self.whole.values())


@dataclass(frozen=True)
class Verdict:
    """B against A. ``least``: by so many % the time must differ.

    ``also``: by what else the sides compare: the job, or the steps that hold too little of it to decide.
    ``other_work``: why the times of the sides do not compare; empty where they do.
    """

    basis: ComparedBy
    a: Timed
    b: Timed
    least: float = CHANGED
    also: Verdict | None = None
    other_work: str = ""

    @property
    def percent(self) -> float:
        """The change of the time of a unit, % of A's."""
        return 100 * (self.b.unit / self.a.unit - 1)

    @property
    def is_slower(self) -> bool:
        return not self.other_work and self.b.unit >= self.a.unit * (1 + self.least / 100)

    @property
    def is_faster(self) -> bool:
        return not self.other_work and self.a.unit >= self.b.unit * (1 + self.least / 100)

    @property
    def is_no_worse(self) -> bool:
        """Whether no time got worse: neither that of the unit nor, for as many units, that of what else is told."""
        also = self._also
        is_worse_there = (
            also is not None and also.is_slower and (also.basis is ComparedBy.STEP or self.a.count == self.b.count)
        )
        return not (self.is_slower or is_worse_there or self.other_work)

    @property
    def _also(self) -> Verdict | None:
        """What else the sides compare by, where it differs."""
        also = self.also and replace(self.also, least=self.least)
        return also if also is not None and (also.is_slower or also.is_faster) else None

    def points(self, cost_a: float, cost_b: float, once: bool = False) -> float:
        """By how much a cost of a unit grew, % of the time of A's unit; a cost that is paid once, % of A's time."""
        if once:
            return 100 * (cost_b - cost_a) / self.a.job
        return 100 * (cost_b / self.b.count - cost_a / self.a.count) / self.a.unit

    @property
    def words(self) -> str:
        """``9.5 × slower: the job takes 25.08 s instead of 2.627 s (start-up +24.46 s, memory -2.001 s)``."""
        head = f"times cannot be compared, {self.other_work}" if self.other_work else "about as fast"
        if self.is_slower or self.is_faster:
            ratio = max(self.a.unit, self.b.unit) / min(self.a.unit, self.b.unit)
            shown = f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"
            head = f"{shown} × {'slower' if self.is_slower else 'faster'}"
        told = f"{head}: {self._times}"
        also = self._also
        if also is None:
            return told
        joined = "and" if (also.is_slower, also.is_faster) == (self.is_slower, self.is_faster) else "but"
        steps = next((one for one in (self, also) if one.basis is ComparedBy.STEP and one.a.count != one.b.count), None)
        counts = f", of {steps.b.count:,} steps instead of {steps.a.count:,}" if steps is not None else ""
        return f"{told}; {joined} {also._times}{counts}"

    @property
    def _times(self) -> str:
        """The times of both sides, and the parts of them that changed most."""
        after, before = (format_value(Unit.DURATION, sum(one.parts.values())) for one in (self.b, self.a))
        changes = {name: self.b.parts[name] - self.a.parts[name] for name in _PARTS}
        least = _TOLD_SHARE * max(map(abs, changes.values()))
        largest = sorted(changes, key=lambda name: -abs(changes[name]))[:_TOLD]
        told = [f"{name} {format_value(Unit.CHANGE, changes[name])}" for name in largest if abs(changes[name]) > least]
        return f"{self.basis.value} takes {after} instead of {before}" + (f" ({', '.join(told)})" if told else "")


def verdict(a: Side, b: Side, launched: Compared, step_range: str | None = None) -> Verdict | None:
    """The verdict on B. ``launched``: the kernels of both; ``None`` where a side has no GPU work."""
    both = _stepped(a, step_range), _stepped(b, step_range)
    whole = [_whole(side, other) for side, other in ((a, b), (b, a))]
    if not all(one is not None and one.time for one, _ in whole):
        return None
    whole_times = [_timed(budget, gpus) for budget, gpus in whole if budget is not None]
    first, second = (Timed(parts, parts) for parts in whole_times)
    job = Verdict(ComparedBy.JOB, first, second, other_work=_other_work(a, b, launched))
    names = {name for one in both for name in one.names}
    if all(one.windows for one in both) and len(names) == 1:
        found = []
        for side, one, times in zip((a, b), both, whole_times, strict=True):
            found.append(Timed(one.parts(side, step_range), times, one.count))
        if all(one.unit for one in found):
            steps = Verdict(ComparedBy.STEP, found[0], found[1], also=job, other_work=job.other_work)
            if all(one.unit * one.count > _MOST * one.job for one in found):
                return steps
            job = replace(job, also=replace(steps, also=None))
    work = _work(launched)
    if work is not None and abs(work - 1) > _SAME_WORK:
        found = [
            Timed({name: 0.0 if name in _AROUND else time / count for name, time in times.items()}, times, count)
            for times, count in zip(whole_times, (1, work), strict=True)
        ]
        if all(one.unit for one in found):
            return Verdict(ComparedBy.WORK, found[0], found[1], also=replace(job, also=None, other_work=""))
    return job


def _whole(side: Side, other: Side) -> tuple[Budget | None, int]:
    """The budget of all GPUs of a side, and their number."""
    chosen = side.judged_beside(other)
    tasks = {item.task for item in side.ranks}
    found = [one for one in device_budgets(side.job, chosen) if one.device.task.task in tasks]
    return (in_sum(found) if found else None), max(len(found), 1)


def _timed(budget: Budget, gpus: float) -> dict[str, float]:
    return {name: sum(getattr(budget, part) for part in parts) / gpus for name, parts in _PARTS.items()}


@dataclass(frozen=True)
class _Steps:
    """The steady steps of a side by task: from when to when, and how many; and what their ranges are called."""

    windows: Mapping[Task, Window]
    counts: Mapping[Task, int]
    names: frozenset[str]

    @property
    def count(self) -> int:
        """The steps of a rank."""
        return max(self.counts.values())

    def parts(self, side: Side, step_range: str | None) -> dict[str, float]:
        """The parts of the time of a step, ns, the mean over the GPUs."""
        found = device_budgets(side.job, side.selection, step_range, self.windows)
        parts = dict.fromkeys(_PARTS, 0.0)
        for one in found:
            for name, time in _timed(one.budget, self.counts[one.device.task.task] * len(found)).items():
                parts[name] += time
        return parts


def _stepped(side: Side, step_range: str | None) -> _Steps:
    steps = side.job.steps(step_range)
    tasks = {item.task for item in side.ranks}
    times = {
        task: one for task, one in step_times(steps, side.selection.window).items() if task in tasks and one.on_gpu
    }
    steady = {task: (one, one.first_steady) for task, one in times.items()}
    return _Steps(
        {task: _from(one, first) for task, (one, first) in steady.items()},
        {task: len(one) - first for task, (one, first) in steady.items()},
        frozenset(steps.of_task[task].name for task in times),
    )


def _from(times: StepTimes, first: int) -> Window:
    return Window(int(times.start[first]), int((times.start + times.duration).max()))


def _work(launched: Compared) -> float | None:
    """How many times the work of A B does; ``None`` where the kernels do not tell."""
    rows = [row for row in launched.records() if not is_nccl_kernel(str(row["name"]))]
    times = np.array([float(row["total_a"] or 0) + float(row["total_b"] or 0) for row in rows])
    whole = times.sum()
    is_common = np.array([row["status"] == BOTH for row in rows], bool)
    if not whole or times[is_common].sum() < _COMMON * whole:
        return None
    kept = [row for row, common in zip(rows, is_common.tolist(), strict=True) if common]
    pairs = np.array([[float(row[key] or 0) for key in ("count_a", "count_b", "total_a", "total_b")] for row in kept])
    times, ratios = times[is_common], pairs[:, 1] / pairs[:, 0]
    lengths = (pairs[:, 3] / pairs[:, 2]) / ratios
    order = np.argsort(ratios)
    middle = float(ratios[order][np.searchsorted(np.cumsum(times[order]), times.sum() / 2)])
    is_alike = (np.abs(lengths - 1) <= _ALIKE) & (np.abs(ratios / middle - 1) <= _ALIKE)
    return middle if times[is_alike].sum() >= _COMMON * whole else None


def _other_work(a: Side, b: Side, launched: Compared) -> str:
    """Say which kernel has other work: the largest, where kernels with such launches take most of the kernel time.

    Empty where the numbers of threads are alike, or are not known.
    """
    rows = [row for row in launched.records() if not is_nccl_kernel(str(row["name"]))]
    times = {row["name"]: float(row["total_a"] or 0) + float(row["total_b"] or 0) for row in rows}
    threads = [_threads(side) for side in (a, b)]
    ratios = {name: threads[1][name] / threads[0][name] for name in times if name in threads[0] and name in threads[1]}
    others = [name for name, ratio in ratios.items() if not 1 / _OTHER_WORK < ratio < _OTHER_WORK]
    if sum(times[name] for name in others) <= _MOST * sum(times.values()):
        return ""
    largest = max(others, key=lambda name: times[name])
    ratio = ratios[largest]
    many = f"{ratio:,.0f} × the threads" if ratio > 1 else f"1/{1 / ratio:,.0f} of the threads"
    return f"a launch of {smart_names_of(a, b).get(str(largest), largest)} has {many}"


def _threads(side: Side) -> dict[Value, float]:
    """The mean number of threads in a launch of each kernel, where the export tells grid and block."""
    kernels = tables.kernels.c
    sizes = [sa.cast(kernels[f"{what}_{axis}"], sa.Double) for what in ("grid", "block") for axis in "xyz"]
    query = sa.select(kernels.name, sa.func.avg(reduce(mul, sizes))).where(*where(tables.kernels, side.selection))
    return {name: mean for name, mean in side.job.session.rows(query.group_by(kernels.name)) if mean}
