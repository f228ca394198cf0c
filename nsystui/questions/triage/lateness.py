"""Why a rank is late: what takes longer on it than on the ranks that wait for it (docs/triage.md#lateness)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nsystui.base.selection import Task, Window
from nsystui.base.text import few_numbers
from nsystui.questions.algebra.intervals import EMPTY, intersect
from nsystui.questions.collectives.matching import Member
from nsystui.questions.collectives.waiting import Arrivals
from nsystui.questions.triage.case import KERNELS_LONGER, LOADER, STALL, Case, LateRank, time_words
from nsystui.questions.triage.rules.input_pipeline import loading_ranges

_TAKES = {LOADER: "its data loader takes", STALL: "its GPU idles", KERNELS_LONGER: "its kernels take"}


def late_rank(case: Case, arrivals: Sequence[Arrivals], task: Task, is_straggler: bool) -> LateRank:
    """Return a rank's delays by step, and the cause if it is a straggler.

    From the collective before until it arrives, its time by part is compared with the median of the others. The part
    with half of the delay or more is the cause. Idle time is the data loader's if half of it is in a loader's range.
    """
    devices = {Member(gpu.device.task.task, gpu.device.device): gpu for gpu in case.devices}
    loading = loading_ranges(case) if is_straggler else {}
    by_step: Counter[int] = Counter()
    excess, count, steps = np.zeros(4), 0, case.steps.get(task)
    for batch in arrivals:
        members = batch.group.members
        for index in (index for index, member in enumerate(members) if member.task == task):
            rows = np.flatnonzero(batch.last == index)
            starts = batch.group.start[index, batch.operations[rows]]
            in_step = np.searchsorted(steps.start, starts, side="right") - 1 if steps is not None else starts
            for step, delay in zip(in_step.tolist(), batch.spread[rows].tolist(), strict=True):
                if steps is not None and step >= 0:
                    by_step[int(steps.numbers[step])] += delay
            operations = batch.operations[rows][batch.operations[rows] > 0]
            spent = {}
            for other, member in enumerate(members):
                device = devices.get(member)
                if device is not None and is_straggler and len(operations):
                    begin, end = batch.group.end[other, operations - 1], batch.group.start[other, operations]
                    idle = device.idle(Window(int(begin.min()), int(max(begin.min(), end.max()))))
                    parts = (idle, intersect(idle, loading.get(member.task, EMPTY)), device.parts.kernels)
                    spent[other] = [(end - begin).sum(), *(part.covered(begin, end).sum() for part in parts)]
            of_late = spent.pop(index, None)
            if of_late is not None and spent:
                excess, count = excess + of_late - np.median(list(spent.values()), axis=0), count + len(operations)
    total = len(steps) if steps is not None else 0
    is_rare = 2 * len(by_step) < total
    kind, time = _cause(*excess.tolist())
    if not count or not time or task in case.once("lost kernels", set):
        return LateRank(task, is_straggler, by_step, is_rare)
    when = f"in {len(by_step)} of {total} steps ({few_numbers(by_step)})" if is_rare else "a step"
    time /= min(count, len(by_step)) or count
    words = f"{_TAKES[kind]} {time_words(time)} longer {when if by_step else 'before a collective'}"
    return LateRank(task, is_straggler, by_step, is_rare, kind, words)


def _cause(delay: float, idle: float, loading: float, kernels: float) -> tuple[str, float]:
    """Return the part with half of a delay or more, and its time; 0 if no part has as much. All in ns."""
    kind, time = KERNELS_LONGER, kernels
    if 2 * idle >= delay:
        kind, time = (LOADER, loading) if 2 * loading >= idle else (STALL, idle)
    return kind, time if 0 < delay <= 2 * time else 0.0
