"""The NVTX operations of a step: how often each range begins, and its time on the CPU and the GPU."""

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

    ``gpu``: projected time, missing if no range of the name launched anything; ``share``: of the mean step. Ranges
    include inner ranges, so that rows overlap. Rows are sorted by GPU time, then CPU time.
    """
    steps = job.steps(step_name)
    tasks = {rank.task for rank in selected_ranks(job.ranks, selection)}
    times = {task: spans for task, spans in step_times(steps, selection.window).items() if task in tasks}
    count = sum(len(spans) for spans in times.values())
    if not count:
        return TableAnswer("operations", OPERATION_COLUMNS, [], 0, steps.notes)
    ranges = job.nvtx_ranges(Selection(tasks=frozenset(times), devices=selection.devices, streams=selection.streams))
    start, lane, length = ranges.start, ranges.lane, ranges.duration
    gpu, is_projected = ranges.gpu_duration, ranges.op_count > 0
    is_in_step = np.zeros(len(ranges), bool)
    for index, thread in enumerate(ranges.lanes):
        task = Task(thread.report, thread.process)
        if task in times:
            rows = np.flatnonzero(lane == index)
            all_steps = steps.of_task[task]
            positions = all_steps.places_at(start[rows])
            is_in_step[rows] = (positions != NO_STEP) & np.isin(all_steps.numbers[positions], times[task].numbers)
    templates = [template(name) for name in ranges.names]
    code_of = {word: code for code, word in enumerate(dict.fromkeys(templates))}
    codes = np.array([code_of[word] for word in templates], np.int64)[ranges.name[is_in_step]]
    counts, cpu, on_gpu, launched = (
        np.bincount(codes, weights, len(code_of))
        for weights in (None, length[is_in_step], np.where(is_projected, gpu, 0)[is_in_step], is_projected[is_in_step])
    )
    mean_length = sum(int(spans.duration.sum()) for spans in times.values()) / count
    table_rows: list[Row] = []
    for word, code in code_of.items():
        if counts[code] and (selection.name is None or selection.name.matches(word)):
            time = on_gpu[code] / count if launched[code] else None
            share = None if time is None or not mean_length else 100.0 * time / mean_length
            table_rows.append((share, time, cpu[code] / count, round(counts[code] / count, 2), word))
    table_rows.sort(key=lambda row: (-(row[1] or 0), -(row[2] or 0), str(row[-1])))  # type: ignore[operator]
    notes = (*steps.notes, f"means over {count:,} steps; a range belongs to the step in which it begins on the CPU")
    return TableAnswer("operations", OPERATION_COLUMNS, table_rows, len(table_rows), (*notes, *ranges.notes))
