"""The steps of each rank: their times, and their tables by rank, across ranks and one by one (docs/ranks.md#steps).

On the GPU a step lasts from the start of its first operation to that of the next step's, without holes; the last one to
the end of its last operation. On the CPU it is the NVTX range, which runs ahead of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nsystui.base.answer import DURATION, RANK, START, STEP, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.steps.task_steps import TaskSteps
from nsystui.questions.steps.times import Steps

SLOW = 1.5
"""A step is slow that takes more than so many times the median of its rank."""


@dataclass(frozen=True, eq=False)
class StepTimes:
    """The n steps of a task; arrays of shape ``(n,)``, job time and durations in ns.

    ``start``, ``duration``: on the GPU where the steps launched something, else on the CPU (``on_gpu``).
    """

    task: Task
    numbers: Times
    start: Times
    duration: Times
    cpu_start: Times
    cpu_duration: Times
    op_time: Times
    on_gpu: bool

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def of(cls, steps: TaskSteps) -> StepTimes:
        """Steps that launched nothing are left out where others did."""
        cpu = steps.ends - steps.starts
        has_work = steps.gpu.op_count > 0
        if not has_work.any():
            zero = np.zeros(len(steps), np.int64)
            return cls(steps.task, steps.numbers, steps.starts, cpu, steps.starts, cpu, zero, on_gpu=False)
        start, end = steps.gpu.start[has_work], steps.gpu.end[has_work]
        until = np.append(start[1:], end[-1:])
        # Work of two steps may be on the GPU at once, in streams of their own: then each has its own span.
        duration = np.where(until > start, until - start, end - start)
        rest = (steps.numbers, steps.starts, cpu, steps.gpu.op_time)
        numbers, cpu_start, cpu, op_time = (values[has_work] for values in rest)
        return cls(steps.task, numbers, start, duration, cpu_start, cpu, op_time, on_gpu=True)

    def within(self, window: Window | None) -> StepTimes:
        """The steps that begin in a window."""
        if window is None:
            return self
        chosen = (self.start >= window.start) & (self.start < window.end)
        names = ("numbers", "start", "duration", "cpu_start", "cpu_duration", "op_time")
        return StepTimes(self.task, **{name: getattr(self, name)[chosen] for name in names}, on_gpu=self.on_gpu)

    @property
    def median(self) -> float:
        """The median of all steps, ns; NaN of none."""
        return float(np.median(self.duration))

    @property
    def is_slow(self) -> NDArray[np.bool_]:
        return self.duration > SLOW * self.median if len(self) else np.zeros(0, bool)

    @property
    def first_steady(self) -> int:
        """The place of the first step that is not slow."""
        return int(np.argmin(self.is_slow))

    def window(self, place: int) -> Window:
        """The span of a step, ns."""
        start = int(self.start[place])
        return Window(start, start + max(int(self.duration[place]), 1))


@dataclass(frozen=True)
class StepFigures:
    """Key figures of some steps; times in ns, ``cv`` (standard deviation / mean) in percent, missing of one step."""

    count: int
    median: float
    p5: float
    p95: float
    least: int
    most: int
    cv: float | None
    slow: int


def figures(times: StepTimes) -> StepFigures | None:
    """The key figures of the steps of a task; ``None`` where it has none."""
    return figures_of_all([times]) if len(times) else None


def figures_of_all(every: Sequence[StepTimes]) -> StepFigures:
    """The key figures of the steps of some tasks together, of which there must be one; slow are those of their rank."""
    values = np.concatenate([one.duration for one in every])
    low, high = np.percentile(values, [5, 95])
    return StepFigures(
        count=len(values),
        median=float(np.median(values)),
        p5=float(low),
        p95=float(high),
        least=int(values.min()),
        most=int(values.max()),
        cv=100.0 * float(values.std(ddof=1) / values.mean()) if len(values) > 1 and values.mean() else None,
        slow=sum(int(one.is_slow.sum()) for one in every),
    )


def step_times(steps: Steps, window: Window | None = None) -> Mapping[Task, StepTimes]:
    """The times of the steps of every task that has any in ``window``."""
    found = {task: StepTimes.of(one).within(window) for task, one in steps.of_task.items()}
    return {task: one for task, one in found.items() if len(one)}


_FIGURES = (
    Column("count", header="Steps", label="steps", unit=Unit.COUNT),
    Column("median", header="Median (ns)", label="median", unit=Unit.DURATION, decimals=0),
    Column("p5", header="P5 (ns)", label="p5", unit=Unit.DURATION, decimals=0, importance=2),
    Column("p95", header="P95 (ns)", label="p95", unit=Unit.DURATION, decimals=0, importance=1),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=3),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=1),
    Column("cv", header="CV (%)", label="CV %", unit=Unit.PERCENT, decimals=2, importance=1),
    Column("slow", header="Slow Steps", label="slow", unit=Unit.COUNT),
)
BY_RANK_COLUMNS = (
    Column("rank", header="Rank", label="rank"),
    *_FIGURES,
    Column("first", header="First Step (ns)", label="first", unit=Unit.DURATION, compared="median", importance=4),
    Column("measured", header="Measured", label="measured on", importance=5),
    Column("anchor", header="Anchor", label="anchor", importance=3),
)
ACROSS_COLUMNS = (
    STEP,
    START.with_importance(2),
    Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=3),
    Column("duration", header="Median over Ranks (ns)", label="median", unit=Unit.DURATION, compared="min", decimals=0),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=2),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION),
    Column("spread", header="Spread (ns)", label="spread", unit=Unit.DURATION, compared="min", importance=1),
    Column("slowest", header="Slowest Rank", label="slowest rank", unit=Unit.NUMBER, importance=1),
    Column("ratio", header="Of Median Step (%)", label="of median", unit=Unit.PERCENT, decimals=1, importance=1),
    Column("slow", header="Slow", label="slow", importance=1),
)
STEP_COLUMNS = (
    RANK,
    STEP,
    START,
    DURATION,
    Column("ratio", header="Of Median (%)", label="of median", unit=Unit.PERCENT, decimals=1, importance=1),
    Column("slow", header="Slow", label="slow", importance=1),
    Column("cpu_start", header="CPU Start (ns)", label="CPU start", unit=Unit.TIME, importance=3),
    Column(
        "cpu_duration",
        header="CPU Duration (ns)",
        label="on CPU",
        unit=Unit.DURATION,
        compared="duration",
        importance=2,
    ),
    Column("op_time", header="GPU Work (ns)", label="GPU work", unit=Unit.DURATION, compared="duration", importance=3),
)

_SLOW = "slow"


def steps_by_rank(ranks: Sequence[RankedTask], steps: Steps, window: Window | None = None) -> TableAnswer:
    """A row for each of these ranks with steps in ``window``, and before them one over all (``rank`` is ``all``)."""
    times = _times(ranks, steps, window)
    rows: list[Row] = []
    for item in ranks:
        own = times.get(item.task)
        if own is not None:
            rest = (int(own.duration[0]), "GPU" if own.on_gpu else "CPU", steps.of_task[item.task].name)
            rows.append((str(item.rank), *astuple(figures_of_all([own])), *rest))
    if len(rows) > 1:
        rows.insert(0, ("all", *astuple(figures_of_all(list(times.values()))), None, None, None))
    return TableAnswer("steps", BY_RANK_COLUMNS, rows, max(len(rows), len(steps.of_task)), _notes(steps, times))


def _times(ranks: Sequence[RankedTask], steps: Steps, window: Window | None) -> dict[Task, StepTimes]:
    found = step_times(steps, window)
    return {item.task: found[item.task] for item in ranks if item.task in found}


def _notes(steps: Steps, times: Mapping[Task, StepTimes]) -> tuple[str, ...]:
    notes = [*steps.notes]
    if any(one.on_gpu for one in times.values()):
        notes.append("a step lasts from its first GPU operation to the first one of the next step")
    if any(not one.on_gpu for one in times.values()):
        notes.append("where the launches of a step are not known, its time is that on the CPU")
    if times:
        notes.append(f"slow: more than {SLOW} times the median")
    return tuple(notes)


class _OnRank(NamedTuple):
    """A step on a rank, ns."""

    duration: int
    rank: int
    start: int


def steps_across_ranks(ranks: Sequence[RankedTask], steps: Steps, window: Window | None = None) -> TableAnswer:
    """A row for each step number: how long it took on those of these ranks that have it, and which was slowest.

    ``start`` is the first of the ranks. A step is slow whose median over the ranks is more than 1.5 times that of all
    steps.
    """
    times = _times(ranks, steps, window)
    found: dict[int, list[_OnRank]] = {}
    for item in ranks:
        own = times.get(item.task)
        if own is not None:
            columns = (own.numbers.tolist(), own.start.tolist(), own.duration.tolist())
            for number, start, duration in zip(*columns, strict=True):
                found.setdefault(number, []).append(_OnRank(duration, item.rank, start))
    medians = {number: float(np.median([one.duration for one in every])) for number, every in found.items()}
    middle = float(np.median(list(medians.values()))) if medians else 0.0
    rows: list[Row] = []
    for number, every in sorted(found.items()):
        longest, shortest = max(every), min(every)
        rows.append(
            (
                number,
                min(one.start for one in every),
                len(every),
                medians[number],
                shortest.duration,
                longest.duration,
                longest.duration - shortest.duration,
                longest.rank if len(every) > 1 else None,
                100.0 * medians[number] / middle if middle else None,
                _SLOW if medians[number] > SLOW * middle else None,
            )
        )
    total = len({number for own in steps.of_task.values() for number in own.numbers.tolist()})
    return TableAnswer("steps-across", ACROSS_COLUMNS, rows, total, _notes(steps, times))


def every_step(ranks: Sequence[RankedTask], steps: Steps, window: Window | None = None) -> TableAnswer:
    """A row for each step of each of these ranks, by rank and time."""
    times = _times(ranks, steps, window)
    rows: list[Row] = []
    for item in ranks:
        own = times.get(item.task)
        if own is None:
            continue
        ratios = 100.0 * own.duration / own.median if own.median else np.full(len(own), np.nan)
        columns = (own.numbers, own.start, own.duration, ratios, own.is_slow, own.cpu_start, own.cpu_duration)
        for *values, is_slow, cpu_start, cpu, op_time in zip(
            *(column.tolist() for column in (*columns, own.op_time)), strict=True
        ):
            rows.append((item.rank, *values, _SLOW if is_slow else None, cpu_start, cpu, op_time))
    return TableAnswer("every-step", STEP_COLUMNS, rows, sum(map(len, steps.of_task.values())), _notes(steps, times))
