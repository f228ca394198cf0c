"""The NVTX operations of a step: how often each range begins in one, and how long it takes on the CPU and the GPU."""

from __future__ import annotations

import numpy as np

from nsystui.base.answer import Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.paths import template
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.ranks.steps import step_times
from nsystui.questions.steps.task_steps import NO_STEP

OPERATION_COLUMNS = (
    Column("share", header="Of Step (%)", label="of step", unit=Unit.PERCENT, decimals=1, has_bar=True),
    Column("gpu", header="GPU Projected per Step (ns)", label="GPU a step", unit=Unit.DURATION, decimals=0),
    Column("cpu", header="CPU per Step (ns)", label="CPU a step", unit=Unit.DURATION, decimals=0),
    Column("count", header="Count per Step", label="a step", unit=Unit.NUMBER, decimals=2, importance=1),
    Column("name", header="Range", label="range"),
)


def operations_of_steps(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the ranges that begin in a selected step on the CPU, by name without numbers: means over the steps.

    ``gpu``: the projected time, missing where no range of the name launched anything; ``share``: of the mean step. Each
    range counts with all that it holds, so that rows overlap. The largest GPU time comes first, then CPU time.
    """
    steps = job.steps(step_name)
    tasks = {item.task for item in selected_ranks(job.ranks, selection)}
    every = {task: one for task, one in step_times(steps, selection.window).items() if task in tasks}
    count = sum(len(one) for one in every.values())
    if not count:
        return TableAnswer("operations", OPERATION_COLUMNS, [], 0, steps.notes)
    ranges = job.nvtx_ranges(Selection(tasks=frozenset(every), devices=selection.devices, streams=selection.streams))
    start, lane, length = ranges.start, ranges.lane, ranges.duration
    gpu, is_projected = ranges.gpu_duration, ranges.op_count > 0
    chosen = np.zeros(len(ranges), bool)
    for number, one in enumerate(ranges.lanes):
        task = Task(one.report, one.process)
        if task in every:
            rows = np.flatnonzero(lane == number)
            own = steps.of_task[task]
            place = own.places_at(start[rows])
            chosen[rows] = (place != NO_STEP) & np.isin(own.numbers[place], every[task].numbers)
    words = [template(name) for name in ranges.names]
    known = {word: number for number, word in enumerate(dict.fromkeys(words))}
    codes = np.array([known[word] for word in words], np.int64)[ranges.name[chosen]]
    counts, cpu, on_gpu, launched = (
        np.bincount(codes, weights, len(known))
        for weights in (None, length[chosen], np.where(is_projected, gpu, 0)[chosen], is_projected[chosen])
    )
    middle = sum(int(one.duration.sum()) for one in every.values()) / count
    rows_of: list[Row] = []
    for word, number in known.items():
        if counts[number] and (selection.name is None or selection.name.matches(word)):
            time = on_gpu[number] / count if launched[number] else None
            share = None if time is None or not middle else 100.0 * time / middle
            rows_of.append((share, time, cpu[number] / count, round(counts[number] / count, 2), word))
    rows_of.sort(key=lambda row: (-(row[1] or 0), -(row[2] or 0), str(row[-1])))  # type: ignore[operator]
    notes = (*steps.notes, f"means over {count:,} steps; a range belongs to the step in which it begins on the CPU")
    return TableAnswer("operations", OPERATION_COLUMNS, rows_of, len(rows_of), (*notes, *ranges.notes))
