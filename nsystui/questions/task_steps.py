"""The steps of one task, and the form in which they are kept beside a pack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nsystui.base.selection import Task
from nsystui.questions.intervals import Times
from nsystui.questions.projection import Projection
from nsystui.store.results import json_array, json_of

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

NO_STEP = -1

_TIMES = ("starts", "ends")
_GPU = ("op_count", "op_time", "start", "end")


@dataclass(frozen=True, eq=False)
class TaskSteps:
    """The n steps of a task by start. Times are job time, ns; shapes are ``(n,)``.

    ``name``: what the ranges are called, with ``*`` for numbers. ``numbers``: ascending, those in the names; where they
    repeat (steps counted anew in each epoch) or there are none, the places 0, 1, … ``starts``, ``ends``: on the CPU;
    steps do not overlap. ``gpu``: the GPU operations launched in each.
    """

    task: Task
    name: str
    numbers: Times
    starts: Times
    ends: Times
    gpu: Projection

    def __len__(self) -> int:
        return len(self.starts)

    def places_at(self, times: Times) -> Times:
        """The place of the step whose CPU range contains each time (its end excluded), ``NO_STEP`` for none."""
        place = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((place >= 0) & (times < self.ends[place]), place, NO_STEP)


def to_arrays(found: Mapping[Task, TaskSteps], clock_offset: int) -> Arrays:
    """The steps of the tasks of a report one after the other, on the report's own clock."""
    every = list(found.values())
    return {
        "process": np.array([task.process for task in found], np.int64),
        "count": np.array([len(steps) for steps in every], np.int64),
        "names": json_array([steps.name for steps in every]),
        "numbers": _joined([steps.numbers for steps in every]),
        **{name: _joined([getattr(steps, name) for steps in every]) - clock_offset for name in _TIMES},
        **{f"gpu_{name}": _joined([getattr(steps.gpu, name) for steps in every]) for name in _GPU[:2]},
        **{f"gpu_{name}": _joined([getattr(steps.gpu, name) for steps in every]) - clock_offset for name in _GPU[2:]},
    }


def _joined(parts: list[Times]) -> Times:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def of_arrays(report: int, arrays: Arrays, clock_offset: int) -> Iterator[TaskSteps]:
    """The inverse of ``to_arrays``, for a report with this index."""
    first = 0
    names = json_of(arrays["names"])
    for process, count, name in zip(arrays["process"].tolist(), arrays["count"].tolist(), names, strict=True):
        keys = ("numbers", *_TIMES, *(f"gpu_{key}" for key in _GPU))
        own = {key: arrays[key][first : first + count] for key in keys}
        first += count
        starts, ends = (own[key] + clock_offset for key in _TIMES)
        gpu_start, gpu_end = own["gpu_start"] + clock_offset, own["gpu_end"] + clock_offset
        gpu = Projection(own["gpu_op_count"], gpu_start, gpu_end, own["gpu_op_time"])
        yield TaskSteps(Task(report, process), name, own["numbers"], starts, ends, _without_holes(gpu))


def _without_holes(gpu: Projection) -> Projection:
    """What launched nothing has no place in time: 0, on whatever clock."""
    is_empty = gpu.op_count == 0
    return replace(gpu, start=np.where(is_empty, 0, gpu.start), end=np.where(is_empty, 0, gpu.end))
