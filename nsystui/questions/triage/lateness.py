"""Why a rank is late: what takes longer on it than on the ranks that wait for it (docs/triage.md#lateness)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nsystui.base.selection import Task, Window
from nsystui.base.text import few_numbers
from nsystui.base.types import Floats
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect
from nsystui.questions.collectives.matching import Member
from nsystui.questions.collectives.waiting import Arrivals
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.ranks.steps import StepTimes
from nsystui.questions.triage.case import KERNELS_LONGER, LOADER, STALL, Case, LateRank, time_words
from nsystui.questions.triage.rules.input_pipeline import loading_ranges

_TAKES = {LOADER: "its data loader takes", STALL: "its GPU idles", KERNELS_LONGER: "its kernels take"}
_TAKE = {LOADER: "their data loaders take", STALL: "their GPUs idle", KERNELS_LONGER: "their kernels take"}
_NEARLY_ALL, _MAIN = 0.9, 0.1
"""A rank is late in every step if it is in this share of the steps with at least `_MAIN` of the largest delay."""


def late_rank(case: Case, arrivals: Sequence[Arrivals], tasks: Sequence[Task], is_straggler: bool) -> LateRank:
    """Return the delays by step of ranks that arrive together, and the cause if they are stragglers.

    From the collective (or capture's first kernel) before until the last arrives, its time by part is compared with the
    median of the other ranks. The part with half of the delay or more is the cause. Idle time is the data loader's if
    half of it is in a loader's range.
    """
    steps = case.steps.get(tasks[0])
    by_step = _delays(arrivals, tasks, steps) if steps is not None else Counter[int]()
    excess, count = _excess(case, arrivals, tasks) if is_straggler else (np.zeros(4), 0)
    total = len(steps) if steps is not None else 0
    main = [number for number, delay in by_step.items() if delay >= _MAIN * max(by_step.values())]
    is_rare = 2 * len(main) < total
    kind, time = _cause(*excess.tolist())
    if not count or not time or not case.once("lost kernels", set).isdisjoint(tasks):
        return LateRank(tasks, is_straggler, by_step, is_rare)
    when = f"in {len(main)} of {total} steps ({few_numbers(main)})" if len(main) < _NEARLY_ALL * total else "a step"
    time /= min(count, len(main)) or count
    takes = (_TAKE if len(tasks) > 1 else _TAKES)[kind]
    words = f"{takes} {time_words(time)} longer {when if main else 'before a collective'}"
    return LateRank(tasks, is_straggler, by_step, is_rare, kind, words)


def _late_members(arrivals: Sequence[Arrivals], tasks: Sequence[Task]) -> list[tuple[Arrivals, int]]:
    return [
        (batch, index) for batch in arrivals for index, member in enumerate(batch.group.members) if member.task in tasks
    ]


def _delays(arrivals: Sequence[Arrivals], tasks: Sequence[Task], steps: StepTimes) -> Counter[int]:
    """Return the delay of late tasks by number of the step, ns."""
    by_step: Counter[int] = Counter()
    for batch, index in _late_members(arrivals, tasks):
        rows = np.flatnonzero(batch.last == index)
        starts = batch.group.start[index, batch.operations[rows]]
        positions = np.searchsorted(steps.start, starts, side="right") - 1
        for position, delay in zip(positions.tolist(), batch.spread[rows].tolist(), strict=True):
            if position >= 0:
                by_step[int(steps.numbers[position])] += delay
    return by_step


def _excess(case: Case, arrivals: Sequence[Arrivals], tasks: Sequence[Task]) -> tuple[Floats, int]:
    """Return the four times for `_cause` by which late tasks exceed the other ranks, ns; and of how many operations."""
    devices = {Member(gpu.device.task.task, gpu.device.device): gpu for gpu in case.devices}
    loading = loading_ranges(case)
    excess, count = np.zeros(4), 0
    for batch, index in _late_members(arrivals, tasks):
        operations, spent = batch.operations[batch.last == index], dict[int, Times]()
        operations = operations[operations > 0] if operations.any() else operations
        for other, member in enumerate(batch.group.members) if len(operations) else ():
            device = devices.get(member)
            if device is not None and (other == index or member.task not in tasks):
                begin, end = batch.group.end[other, operations - 1], batch.group.start[other, operations]
                begin = np.where(operations, begin, device.parts.kernels.starts[:1].min(initial=end[0]))
                spent[other] = _spent(device, loading.get(member.task, EMPTY), begin, end)
        if (of_late := spent.pop(index, None)) is not None and spent:
            excess, count = excess + of_late - np.median(list(spent.values()), axis=0), count + len(operations)
    return excess, count


def _spent(device: DeviceIntervals, loading: Intervals, begin: Times, end: Times) -> Times:
    """Return the four times for `_cause` between ``begin`` and ``end``, ns."""
    idle = device.idle(Window(int(begin.min()), int(max(begin.min(), end.max()))))
    parts = (idle, intersect(idle, loading), device.parts.kernels)
    return np.array([(end - begin).sum(), *(part.covered(begin, end).sum() for part in parts)])


def _cause(delay: float, idle: float, loading: float, kernels: float) -> tuple[str, float]:
    """Return the part with half of a delay or more, and its time; 0 if no part has as much. All in ns."""
    kind, time = KERNELS_LONGER, kernels
    if 2 * idle >= delay:
        kind, time = (LOADER, loading) if 2 * loading >= idle else (STALL, idle)
    return kind, time if 0 < delay <= 2 * time else 0.0
