"""The verdict of a comparison: whether B is faster than A, and the parts of time that caused it.

See docs/numbers.md#verdict.
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
from nsystui.base.text import ranks_named
from nsystui.base.units import format_value
from nsystui.questions.capture.launch_account import lost_work
from nsystui.questions.collectives.waiting import mainly_late
from nsystui.questions.compare.pairs import BOTH, Compared
from nsystui.questions.compare.side import Side, smart_names_of
from nsystui.questions.host.time_budget import Budget, device_budgets, in_sum
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.questions.queries.conditions import where
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables

CHANGED = 5.0
"""B is faster or slower if the time of the unit differs by at least this many %."""

_WAITING = "exposed NCCL"
_PARTS = {
    "compute": ("compute",),
    _WAITING: ("exposed_nccl",),
    "memory": ("memory",),
    "graphs": ("graph",),
    "start-up": ("startup",),
    "gaps": ("long_gaps", "short_gaps"),
    "in graphs": ("in_graphs",),
    "tail": ("tail",),
    "not recorded": ("unrecorded",),
}
_VERBS = {"compute": ("computes", "compute"), "gaps": ("idles", "idle")}
_AROUND = ("start-up", "tail", "not recorded")
"""The parts before and after the work."""
_MAX_PARTS = 3
_MIN_CHANGE = 0.05
"""The sentence omits changes of at most this share of the largest."""
_COMMON, _ALIKE, _SAME_WORK = 0.8, 0.15, 0.02
_MAJORITY = 0.5
_OTHER_WORK = 10
"""The work differs if most kernel time is in kernels whose numbers of threads differ by at least this factor."""


class ComparedBy(Enum):
    """The unit whose time is compared."""

    STEP = "a step"
    WORK = "the same work"
    JOB = "the job"


@dataclass(frozen=True)
class Timed:
    """The time of a unit and of the job by part, ns, and the number of units in the job."""

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
    """The verdict on B against A. ``least``: the smallest change that counts, %.

    ``also``: a second comparison, of the job, or of steps that cover too little of it to decide. ``other_work``: why
    the times are not comparable, if so.
    """

    basis: ComparedBy
    a: Timed
    b: Timed
    least: float = CHANGED
    also: Verdict | None = None
    other_work: str = ""

    @property
    def is_slower(self) -> bool:
        return not self.other_work and self.b.unit >= self.a.unit * (1 + self.least / 100)

    @property
    def is_faster(self) -> bool:
        return not self.other_work and self.a.unit >= self.b.unit * (1 + self.least / 100)

    @property
    def is_no_worse(self) -> bool:
        """Whether neither the unit nor `also` is slower; a slower job counts only for equally many units."""
        also = self._also
        is_also_worse = (
            also is not None and also.is_slower and (also.basis is ComparedBy.STEP or self.a.count == self.b.count)
        )
        return not (self.is_slower or is_also_worse or self.other_work)

    @property
    def _also(self) -> Verdict | None:
        """The second comparison, if its times differ."""
        also = self.also and replace(self.also, least=self.least)
        return also if also is not None and (also.is_slower or also.is_faster) else None

    def points(self, cost_a: float, cost_b: float, once: bool = False) -> float:
        """Return the growth of a cost per unit, % of A's unit, or of a cost paid once, % of A's job."""
        if once:
            return 100 * (cost_b - cost_a) / self.a.job
        return 100 * (cost_b / self.b.count - cost_a / self.a.count) / self.a.unit

    @property
    def words(self) -> str:
        """``9.5 × slower: the job takes 25.08 s instead of 2.627 s (start-up +24.46 s, memory -2.001 s)``."""
        head = f"not comparable in time, {self.other_work}" if self.other_work else "about as fast"
        if self.is_slower or self.is_faster:
            ratio = max(self.a.unit, self.b.unit) / min(self.a.unit, self.b.unit)
            change = f"{ratio:.1f} ×" if ratio >= 2 else f"{100 * (ratio - 1):.{int(ratio < 1.1)}f} %"
            head = f"{change} {'slower' if self.is_slower else 'faster'}"
        sentence = f"{head}: {self.times}"
        also = self._also
        if also is None:
            return sentence
        joined = "and" if (also.is_slower, also.is_faster) == (self.is_slower, self.is_faster) else "but"
        steps = next(
            (item for item in (self, also) if item.basis is ComparedBy.STEP and item.a.count != item.b.count), None
        )
        counts = f", of {steps.b.count:,} steps instead of {steps.a.count:,}" if steps is not None else ""
        return f"{sentence}; {joined} {also.times}{counts}"

    @property
    def changes(self) -> Mapping[str, float]:
        """The growth of each part, ns."""
        return {name: self.b.parts[name] - self.a.parts[name] for name in _PARTS}

    @property
    def largest_change(self) -> tuple[str, float]:
        """The part that changes most, ns; waiting only if no work differs."""
        work = {name: time for name, time in self.changes.items() if name not in (_WAITING, "not recorded")}
        part = max(work, key=lambda name: abs(work[name]))
        part = part if 100 * abs(work[part]) >= self.a.unit else _WAITING
        return part, self.changes[part]

    @property
    def times(self) -> str:
        after, before = (format_value(Unit.DURATION, sum(side.parts.values())) for side in (self.b, self.a))
        changes = self.changes
        limit = _MIN_CHANGE * max(map(abs, changes.values()))
        largest = sorted(changes, key=lambda name: -abs(changes[name]))[:_MAX_PARTS]
        parts = [f"{name} {format_value(Unit.CHANGE, changes[name])}" for name in largest if abs(changes[name]) > limit]
        times = f"{after} on both sides" if after == before else f"{after} instead of {before}"
        return f"{self.basis.value} takes {times}" + (f" ({', '.join(parts)})" if parts else "")


def verdict(a: Side, b: Side, launched: Compared, step_range: str | None = None) -> Verdict | None:
    """Return the verdict on B, or ``None`` if a side has no GPU work. ``launched``: the kernels of both sides."""
    steps_by_side = _steady_steps(a, step_range), _steady_steps(b, step_range)
    budgets = [_job_budget(side, other) for side, other in ((a, b), (b, a))]
    if not all(budget.time for budget, _ in budgets):
        return None
    job_times = [_timed(*budget) for budget in budgets]
    first, second = (Timed(parts, parts) for parts in job_times)
    named = zip(("A", "B"), (a, b), budgets, strict=True)
    lacking = [name for name, side, (budget, _) in named if budget.unknown or lost_work(side.job.session)]
    if lacking:
        return Verdict(ComparedBy.JOB, first, second, other_work=f"GPU work is missing in {' and '.join(lacking)}")
    job = Verdict(ComparedBy.JOB, first, second, other_work=_other_work(a, b, launched))
    names = {name for side_steps in steps_by_side for name in side_steps.names}
    if all(side_steps.windows for side_steps in steps_by_side) and len(names) == 1:
        timed = []
        for side, side_steps, times in zip((a, b), steps_by_side, job_times, strict=True):
            timed.append(Timed(side_steps.parts(side, step_range), times, side_steps.count))
        if all(item.unit for item in timed):
            steps = Verdict(ComparedBy.STEP, timed[0], timed[1], also=job, other_work=job.other_work)
            if all(item.unit * item.count > _MAJORITY * item.job for item in timed):
                return steps
            job = replace(job, also=replace(steps, also=None))
    work = _work(launched)
    if work is not None and abs(work - 1) > _SAME_WORK:
        timed = [
            Timed({name: 0.0 if name in _AROUND else time / count for name, time in times.items()}, times, count)
            for times, count in zip(job_times, (1, work), strict=True)
        ]
        if all(item.unit for item in timed):
            return Verdict(ComparedBy.WORK, timed[0], timed[1], also=replace(job, also=None, other_work=""))
    return job


def _job_budget(side: Side, other: Side) -> tuple[Budget, int]:
    """Return the budget of a side's GPUs, and their number."""
    selection = side.selection_for_shares(other)
    budgets = [budget for budget in device_budgets(side.job, selection) if budget.device.task.task in side.tasks]
    return in_sum(budgets), max(len(budgets), 1)


def _timed(budget: Budget, gpus: float) -> dict[str, float]:
    return {name: sum(getattr(budget, part) for part in parts) / gpus for name, parts in _PARTS.items()}


def words_of_ranks(a: Side, b: Side, verdict: Verdict) -> str:
    """Say what differs between ranks of a job that take the same time, perhaps because they wait; else return ""."""
    is_at_once = a.job is b.job and a.selection.window == b.selection.window and not a.tasks & b.tasks
    if not is_at_once or verdict.other_work or verdict.is_slower or verdict.is_faster:
        return ""
    timed = verdict.also if verdict.also is not None and verdict.also.basis is ComparedBy.STEP else verdict
    part, time = timed.largest_change
    (more, less), is_alike = (b, a) if time > 0 else (a, b), abs(time) < timed.a.unit / 100
    verb = _VERBS.get(part, ("has", "have"))[len(more.ranks) > 1]
    longer = f"{format_value(Unit.DURATION, abs(time))} {'longer' if part in _VERBS else f'more {part}'}"
    each = "a step" if timed.basis is ComparedBy.STEP else "in the job"
    words = f"{more.named_ranks} {verb} {longer} {each} than {less.named_ranks}"
    if is_alike:
        words = f"{a.named_ranks} and {b.named_ranks} differ by less than 1 % of {timed.basis.value} in every part"
    words += _waiting_words(more, less, timed, is_alike)
    return f"{words[0].upper()}{words[1:]}. {timed.times[0].upper()}{timed.times[1:]}"


def _waiting_words(more: Side, less: Side, timed: Verdict, is_alike: bool) -> str:
    """Name the rank that the ranks wait for, if any; ``more`` is the side with more work unless they are alike."""
    late = mainly_late(more.job.lateness(more.selection))
    if late is None:
        return ""
    is_cause, is_of_b = late in more.tasks and not is_alike, timed.largest_change[1] > 0
    whom = ranks_named(item.rank for item in more.job.ranks if item.task == late)
    wait = "the others wait" if late in more.tasks | less.tasks else "both wait"
    waiting = timed.changes[_WAITING] * (-1 if is_of_b else 1)
    is_straggler = is_cause and 100 * waiting >= CHANGED * timed.a.unit
    return f"; {wait} for {'it' if is_cause and len(more.ranks) == 1 else whom}{': straggler' * is_straggler}"


@dataclass(frozen=True)
class _Steps:
    """A side's steady steps: time window and number by task, and the names of their ranges."""

    windows: Mapping[Task, Window]
    counts: Mapping[Task, int]
    names: frozenset[str]

    @property
    def count(self) -> int:
        """The largest number of steps of a rank."""
        return max(self.counts.values())

    def parts(self, side: Side, step_range: str | None) -> dict[str, float]:
        """Return a step's time by part, ns, the mean over the GPUs."""
        budgets = device_budgets(side.job, side.selection, step_range, self.windows)
        parts = dict.fromkeys(_PARTS, 0.0)
        for budget in budgets:
            for name, time in _timed(budget.budget, self.counts[budget.device.task.task] * len(budgets)).items():
                parts[name] += time
        return parts


def _steady_steps(side: Side, step_range: str | None) -> _Steps:
    steps, tasks = side.job.steps(step_range), side.tasks
    windows, counts = {}, {}
    for task, times in step_times(steps, side.selection.window).items():
        if task in tasks and times.on_gpu:
            first = times.first_steady
            windows[task] = Window(int(times.start[first]), int((times.start + times.duration).max()))
            counts[task] = len(times) - first
    return _Steps(windows, counts, frozenset(steps.of_task[task].name for task in windows))


def _work(launched: Compared) -> float | None:
    """Return B's amount of work as a multiple of A's, if the kernels show it."""
    rows = [row for row in launched.records() if not is_nccl_kernel(str(row["name"]))]
    times = np.array([float(row["total_a"] or 0) + float(row["total_b"] or 0) for row in rows])
    all_time = times.sum()
    is_common = np.array([row["status"] == BOTH for row in rows], bool)
    if not all_time or times[is_common].sum() < _COMMON * all_time:
        return None
    shared = [row for row, common in zip(rows, is_common.tolist(), strict=True) if common]
    pairs = np.array([[float(row[key] or 0) for key in ("count_a", "count_b", "total_a", "total_b")] for row in shared])
    times, ratios = times[is_common], pairs[:, 1] / pairs[:, 0]
    lengths = (pairs[:, 3] / pairs[:, 2]) / ratios
    order = np.argsort(ratios)
    median = float(ratios[order][np.searchsorted(np.cumsum(times[order]), times.sum() / 2)])
    is_alike = (np.abs(lengths - 1) <= _ALIKE) & (np.abs(ratios / median - 1) <= _ALIKE)
    return median if times[is_alike].sum() >= _COMMON * all_time else None


def _other_work(a: Side, b: Side, launched: Compared) -> str:
    """Describe how the largest kernel's threads differ, if such kernels take most time; else empty."""
    rows = [row for row in launched.records() if not is_nccl_kernel(str(row["name"]))]
    times = {row["name"]: float(row["total_a"] or 0) + float(row["total_b"] or 0) for row in rows}
    threads = [_threads(side) for side in (a, b)]
    ratios = {name: threads[1][name] / threads[0][name] for name in times if name in threads[0] and name in threads[1]}
    differing = [name for name, ratio in ratios.items() if not 1 / _OTHER_WORK < ratio < _OTHER_WORK]
    if sum(times[name] for name in differing) <= _MAJORITY * sum(times.values()):
        return ""
    largest = max(differing, key=lambda name: times[name])
    ratio = ratios[largest]
    threads_ratio = f"{ratio:,.0f} × the threads" if ratio > 1 else f"1/{1 / ratio:,.0f} of the threads"
    return f"a launch of {smart_names_of(a, b).get(str(largest), largest)} has {threads_ratio}"


def _threads(side: Side) -> dict[Value, float]:
    """Return the mean threads of a launch of each kernel with recorded grid and block."""
    kernels = tables.kernels.c
    sizes = [sa.cast(kernels[f"{what}_{axis}"], sa.Double) for what in ("grid", "block") for axis in "xyz"]
    query = sa.select(kernels.name, sa.func.avg(reduce(mul, sizes))).where(*where(tables.kernels, side.selection))
    return {name: mean for name, mean in side.job.session.rows(query.group_by(kernels.name)) if mean}
