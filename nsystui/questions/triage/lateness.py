"""Why a rank is late: what takes longer on it than on the ranks that wait for it (docs/triage.md#lateness)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nsystui.base.selection import Task, Window
from nsystui.base.text import few_numbers
from nsystui.base.types import Floats, Ints
from nsystui.questions.algebra.intervals import Intervals, Times, intersect
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.triage.case import Case, LateCause, LateRank, rank_words, time_words
from nsystui.questions.triage.rules.input_pipeline import loading_of

if TYPE_CHECKING:
    from nsystui.questions.collectives.waiting import Arrivals

_NEARLY_ALL, _MAIN = 0.9, 0.1
"""A rank is late in every step if it is in this share of the steps with at least `_MAIN` of the largest delay."""


def late_rank(case: Case, arrivals: Sequence[Arrivals], tasks: Sequence[Task], is_straggler: bool) -> LateRank:
    """Return the delays by step of ranks that arrive together, and the cause if they are stragglers."""
    from nsystui.questions.collectives.waiting import Arrivals

    rows_late, by_step, steps = dict[tuple[Arrivals, int], Ints](), Counter[int](), case.steps.get(tasks[0])
    for batch in arrivals:
        for index in (index for index, member in enumerate(batch.group.members) if member.task in tasks):
            rows = rows_late[batch, index] = np.flatnonzero(batch.last == index)
            if steps is not None:
                starts = batch.group.start[index, batch.operations[rows]]
                in_step = np.searchsorted(steps.start, starts, side="right") - 1
                for step, delay in zip(in_step.tolist(), batch.spread[rows].tolist(), strict=True):
                    if step >= 0:
                        by_step[int(steps.numbers[step])] += delay
    total = len(steps) if steps is not None else 0
    main = [number for number, delay in by_step.items() if delay >= _MAIN * max(by_step.values())]
    late = LateRank(tasks, is_straggler, by_step, is_rare=2 * len(main) < total)
    (batch, index), rows = max(rows_late.items(), key=lambda item: item[0][0].spread[item[1]].sum())
    if not is_straggler or not len(rows) or not case.lacking_work.isdisjoint(tasks):
        return late
    operations = batch.operations[rows]
    before = _excess(case, batch, tasks, operations[operations > 0] if operations.any() else operations)
    is_rare = 0 < len(main) < _NEARLY_ALL * total
    in_steps = _excess(case, batch, tasks) if main and not is_rare else {}
    causes, words = dict[Task, LateCause](), []
    for part, cause_of_part in reversed([*enumerate(LateCause, 1)]):
        late_tasks = [task for task in before if _cause(before[task]) == part]
        causes |= dict.fromkeys(late_tasks, cause_of_part)
        for task in late_tasks[:1]:
            time, when = before[task][part], "before a collective"
            if is_rare:
                when = f"in {len(main)} of {total} steps ({few_numbers(main)})"
                time *= max(len(rows) / len(main), 1)
            elif task in in_steps and in_steps[task][part] > 0:
                time, when = in_steps[task][part], "a step"
            who = rank_words(sorted(case.rank_of[task] for task in late_tasks))
            whose = f"{who} because " * (len(late_tasks) < len(before))
            words.append(f"{whose}{cause_of_part.value[len(late_tasks) > 1]} {time_words(time)} longer {when}")
    cause = causes[tasks[0]] if len({causes.get(task) for task in tasks}) == 1 and causes else None
    return replace(late, causes=causes, cause=cause, words=", ".join(words))


def _excess(case: Case, batch: Arrivals, tasks: Sequence[Task], operations: Ints | None = None) -> dict[Task, Floats]:
    """Return how much longer the parts of `_spent` take on late tasks than on the others in the median, ns.

    Before each of ``operations``, since the previous collective; or in steady steps, as in `compare.verdict`.
    """
    from nsystui.questions.collectives.matching import Member

    devices = {Member(*gpu.device.key): gpu for gpu in case.devices}
    start, spent = batch.group.start, dict[Member, Floats]()
    for other, member in enumerate(batch.group.members):
        device, steps = devices.get(member), case.steps.get(member.task)
        if device is None:
            continue
        if operations is not None:
            begin, end = start[other, operations - 1], start[other, operations]
            begin = np.where(operations, begin, device.parts.kernels.starts[:1].min(initial=end[0]))
        elif steps is not None:
            begin, end = (times[steps.first_steady :] for times in (steps.start, steps.start + steps.duration))
        else:
            continue
        parts = loading_of(case, [member.task]), case.host_functions[member.task]
        spent[member] = _spent(device, parts, begin, end) / len(end)
    usual = [parts for member, parts in spent.items() if member.task not in tasks]
    late = {member.task: parts for member, parts in spent.items() if member.task in tasks} if usual else {}
    return {task: parts - np.median(usual, axis=0) for task, parts in late.items()}


def _spent(device: DeviceIntervals, of_idle: Sequence[Intervals], begin: Times, end: Times) -> Times:
    """Return the time without exposed communication between ``begin`` and ``end``, and its parts by `LateCause`, ns."""
    idle = device.idle(Window(int(begin.min()), int(max(begin.min(), end.max()))))
    work = device.parts.exposed_nccl, device.parts.kernels, device.parts.memory_only
    parts = *work, idle, *(intersect(idle, part) for part in of_idle)
    communicated, *times = (part.covered(begin, end).sum() for part in parts)
    return np.array([(end - begin).sum() - communicated, *times])


def _cause(excess: Floats) -> int:
    """Return the index in `_spent` of the part with half of the delay or more, or of half of its idle time, or 0."""
    part = 1 + int(excess[1:4].argmax())
    if not 0 < excess[0] <= 2 * excess[part]:
        return 0
    inside = 4 + int(excess[4:].argmax())
    return inside if part == 3 and 2 * excess[inside] >= excess[3] else part
