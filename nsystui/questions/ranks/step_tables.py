"""The steps of a job as tables: by rank, across ranks, and each by itself (docs/ranks.md#steps)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nsystui.base.answer import Row, TableAnswer, Value
from nsystui.base.columns import DURATION, RANK, START, STEP, Column, Unit
from nsystui.base.selection import Task, Window
from nsystui.questions.ranks.step_times import SLOW, StepTimes, figures, step_times
from nsystui.questions.steps import Steps
from nsystui.questions.tasks import RankedTask

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
    Column("first", header="First Step (ns)", label="first", unit=Unit.DURATION, importance=4),
    Column("measured", header="Measured", label="measured on", importance=5),
    Column("range", header="NVTX Range", label="NVTX range", importance=3),
)
ACROSS_COLUMNS = (
    STEP,
    START.with_importance(2),
    Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=3),
    Column("duration", header="Median over Ranks (ns)", label="median", unit=Unit.DURATION, decimals=0),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=2),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION),
    Column("spread", header="Spread (ns)", label="spread", unit=Unit.DURATION, importance=1),
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
    Column("cpu_duration", header="CPU Duration (ns)", label="on CPU", unit=Unit.DURATION, importance=2),
    Column("op_time", header="GPU Work (ns)", label="GPU work", unit=Unit.DURATION, importance=3),
)

_SLOW = "slow"


def steps_by_rank(ranks: Sequence[RankedTask], steps: Steps, window: Window | None = None) -> TableAnswer:
    """A row for each of these ranks with steps in ``window``, and before them one over all (``rank`` is ``all``)."""
    times = _times(ranks, steps, window)
    rows: list[Row] = []
    for item in ranks:
        own = times.get(item.task)
        if own is not None:
            where = "GPU" if own.on_gpu else "CPU"
            rows.append((str(item.rank), *_figures(own), int(own.duration[0]), where, steps.of_task[item.task].name))
    if len(rows) > 1:
        rows.insert(0, ("all", *_over_all(list(times.values())), None, None, None))
    return TableAnswer("steps", BY_RANK_COLUMNS, rows, max(len(rows), len(steps.of_task)), _notes(steps, times))


def _times(ranks: Sequence[RankedTask], steps: Steps, window: Window | None) -> dict[Task, StepTimes]:
    found = step_times(steps, window)
    return {item.task: found[item.task] for item in ranks if item.task in found}


def _figures(times: StepTimes) -> tuple[Value, ...]:
    found = figures(times)
    assert found is not None
    return (found.count, found.median, found.p5, found.p95, found.least, found.most, found.cv, found.slow)


def _over_all(every: Sequence[StepTimes]) -> tuple[Value, ...]:
    """The figures of the steps of all ranks together; slow are those that are slow on their rank."""
    values = np.concatenate([one.duration for one in every])
    low, high = np.percentile(values, [5, 95])
    cv = 100.0 * float(values.std(ddof=1) / values.mean()) if len(values) > 1 and values.mean() else None
    slow = sum(int(one.is_slow.sum()) for one in every)
    extremes = (int(values.min()), int(values.max()))
    return (len(values), float(np.median(values)), float(low), float(high), *extremes, cv, slow)


def _notes(steps: Steps, times: Mapping[Task, StepTimes]) -> tuple[str, ...]:
    notes = [*steps.notes]
    if any(one.on_gpu for one in times.values()):
        notes.append("a step lasts from its first GPU operation to the first one of the next step")
    if any(not one.on_gpu for one in times.values()):
        notes.append("where the launches of a step are not known its time is that on the CPU")
    if times:
        notes.append(f"slow: more than {SLOW} times the median")
    return tuple(notes)


def steps_across_ranks(ranks: Sequence[RankedTask], steps: Steps, window: Window | None = None) -> TableAnswer:
    """A row for each step number: how long it took on those of these ranks that have it, and which was slowest.

    ``start`` is the first of the ranks. A step is slow whose median over the ranks is more than 1.5 times that of all
    steps.
    """
    times = _times(ranks, steps, window)
    found: dict[int, list[tuple[int, int, int]]] = {}
    for item in ranks:
        own = times.get(item.task)
        if own is not None:
            for number, start, duration in zip(
                own.numbers.tolist(), own.start.tolist(), own.duration.tolist(), strict=True
            ):
                found.setdefault(number, []).append((duration, item.rank, start))
    medians = {number: float(np.median([one[0] for one in every])) for number, every in found.items()}
    middle = float(np.median(list(medians.values()))) if medians else 0.0
    rows: list[Row] = []
    for number, every in sorted(found.items()):
        longest, shortest = max(every), min(every)
        slowest = longest[1] if len(every) > 1 else None
        ratio = 100.0 * medians[number] / middle if middle else None
        rows.append(
            (
                number,
                min(one[2] for one in every),
                len(every),
                medians[number],
                shortest[0],
                longest[0],
                longest[0] - shortest[0],
                slowest,
                ratio,
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
        median = float(np.median(own.duration))
        ratios = 100.0 * own.duration / median if median else np.full(len(own), np.nan)
        columns = (own.numbers, own.start, own.duration, ratios, own.is_slow, own.cpu_start, own.cpu_duration)
        for *values, is_slow, cpu_start, cpu, op_time in zip(
            *(column.tolist() for column in (*columns, own.op_time)), strict=True
        ):
            rows.append((item.rank, *values, _SLOW if is_slow else None, cpu_start, cpu, op_time))
    return TableAnswer("every-step", STEP_COLUMNS, rows, sum(map(len, steps.of_task.values())), _notes(steps, times))
