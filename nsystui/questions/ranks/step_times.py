"""How long the steps of each rank took (docs/ranks.md#steps).

On the GPU a step lasts from the start of its first operation to that of the next step's, without holes; the last one to
the end of its last operation. On the CPU it is the NVTX range, which runs ahead of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Task, Window
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.steps import Steps, TaskSteps

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
    def is_slow(self) -> NDArray[np.bool_]:
        return self.duration > SLOW * np.median(self.duration) if len(self) else np.zeros(0, bool)

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
    if not len(times):
        return None
    values = times.duration
    cv = 100.0 * float(values.std(ddof=1) / values.mean()) if len(values) > 1 and values.mean() else None
    low, high = np.percentile(values, [5, 95])
    slow = int(times.is_slow.sum())
    return StepFigures(
        len(values), float(np.median(values)), float(low), float(high), int(values.min()), int(values.max()), cv, slow
    )


def step_times(steps: Steps, window: Window | None = None) -> Mapping[Task, StepTimes]:
    """The times of the steps of every task that has any in ``window``."""
    found = {task: StepTimes.of(one).within(window) for task, one in steps.of_task.items()}
    return {task: one for task, one in found.items() if len(one)}
