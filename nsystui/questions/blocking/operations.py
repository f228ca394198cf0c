"""The NVTX operations of a step: how often each range begins, and its time on CPU and GPU."""

from collections.abc import Mapping

import numpy as np

from nsystui.base.answer import Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted
from nsystui.base.types import Flags, Floats, Ints
from nsystui.questions.algebra.nesting import NO_PARENT
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.paths import template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.ranks.steps import StepTimes, step_times
from nsystui.questions.steps.kernels_in_steps import launched
from nsystui.questions.steps.times import Steps
from nsystui.store import tables

OPERATION_COLUMNS = (
    Column("share", header="Of Step (%)", label="of step", unit=Unit.PERCENT, decimals=1, has_bar=True),
    Column("gpu", header="GPU Projected per Step (ns)", label="GPU/step", unit=Unit.DURATION, decimals=0),
    Column("cpu", header="CPU per Step (ns)", label="CPU/step", unit=Unit.DURATION, decimals=0),
    Column("count", header="Count per Step", label="n/step", unit=Unit.NUMBER, decimals=2, importance=1),
    Column("name", header="Range", label="range"),
)
_REPLAYED = Column("replayed", header="GPU Replayed per Step (ns)", label="captured", unit=Unit.DURATION, decimals=0)


def operations_of_steps(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the ranges that begin in a selected step on the CPU, by name without numbers: means over the steps.

    ``gpu``: projected time, missing if no range of the name launched anything; ``share``: of the mean step. Ranges
    include inner ranges, so that rows overlap. Rows are sorted by GPU time, then CPU time. ``replayed``, if any: the
    kernels that CUDA graphs replay in a step and that were captured, before it or in it, in ranges of the name.
    """
    steps = job.steps(step_name)
    tasks = {rank.task for rank in selected_ranks(job.ranks, selection)}
    times = {task: spans for task, spans in step_times(steps, selection.window).items() if task in tasks}
    count = sum(len(spans) for spans in times.values())
    if not count:
        return TableAnswer("operations", OPERATION_COLUMNS, [], 0, steps.notes)
    ranges = job.nvtx_ranges(Selection(tasks=frozenset(times), devices=selection.devices, streams=selection.streams))
    is_in_step = _are_in(steps, times, *ranges.owners, ranges.values("start"))
    templates = [template(name) for name in ranges.names]
    code_of = {word: code for code, word in enumerate(dict.fromkeys(templates))}
    name_codes = np.array([code_of[word] for word in templates], np.int64)
    codes = name_codes[ranges.columns["name"][is_in_step]]
    columns = (ranges.values("length"), ranges.values("gpu_length"), ranges.columns["op_count"] > 0)
    counts = np.bincount(codes, minlength=len(code_of))
    cpu, on_gpu, launches = (np.bincount(codes, weights[is_in_step], len(code_of)) for weights in columns)
    replayed = np.bincount(name_codes, _replayed(job, steps, times, ranges), len(code_of)) / count
    has_replays = bool(replayed.any())
    mean_length = sum(int(spans.duration.sum()) for spans in times.values()) / count
    table_rows: list[Row] = []
    for word, code in code_of.items():
        if (counts[code] or replayed[code]) and (selection.name is None or selection.name.matches(word)):
            time = on_gpu[code] / count if launches[code] else None
            all_time = (time or 0) + replayed[code]
            share = 100.0 * all_time / mean_length if mean_length and (launches[code] or all_time) else None
            on_cpu = (cpu[code] / count, round(counts[code] / count, 2)) if counts[code] else (None, None)
            table_rows.append((share, time, *on_cpu, word, *[replayed[code] or None] * has_replays))
    table_rows.sort(key=lambda row: (-(row[0] or 0), -(row[2] or 0), str(row[4])))  # type: ignore[operator]
    note = f"means over {counted(count, 'step')}; a range belongs to the step in which it begins on the CPU"
    shown = (*OPERATION_COLUMNS, *[_REPLAYED] * has_replays)
    return TableAnswer("operations", shown, table_rows, len(table_rows), (*steps.notes, note, *ranges.notes))


def _are_in(steps: Steps, times: Mapping[Task, StepTimes], report: Ints, process: Ints, moments: Ints) -> Flags:
    numbers, is_in_step = steps.numbers_at(report, process, moments), np.zeros(len(moments), bool)
    for task, spans in times.items():
        is_in_step |= (report == task.report) & (process == task.process) & np.isin(numbers, spans.numbers)
    return is_in_step


def _replayed(job: OpenJob, steps: Steps, times: Mapping[Task, StepTimes], ranges: NvtxRanges) -> Floats:
    """Sum the kernels that graphs replay in steps, by the name of each range around their capture, ns."""

    def number_of(report: Ints, process: Ints, launch: Ints, _: Ints, node: Ints) -> Ints:
        is_in_step = _are_in(steps, times, report, process, launch)
        return np.where(is_in_step, ranges.around_captures(report, process, node), NO_PARENT)

    sums = np.zeros(len(ranges.names))
    conditions = [tables.kernels.c.graph_node_id.is_not(None), *where(tables.kernels, ranges.selection)]
    columns = {"time": duration(tables.kernels)}
    for around, batch in launched(number_of, job.session, tables.kernels, columns, conditions):
        time = batch["time"]
        while len(inside := np.flatnonzero(around >= 0)):
            around, time = around[inside], time[inside]
            sums += np.bincount(ranges.values("name", around), time, len(sums))
            around = ranges.values("parent", around)
    return sums
