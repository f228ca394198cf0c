"""The training steps of two sides: how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import Row
from nsystui.base.columns import Column, Unit
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.comparison.pairs import Compared
from nsystui.questions.comparison.side import Side, both
from nsystui.questions.ranks.steps import StepTimes, step_times

COLUMNS = (
    Column("difference", header="Median Difference (ns)", label="B − A", unit=Unit.CHANGE, decimals=1),
    Column("ratio", header="B / A", label="B/A", unit=Unit.COUNT, decimals=4, importance=1),
    Column("median_a", header="Med A (ns)", label="A median", unit=Unit.DURATION, decimals=1),
    Column("median_b", header="Med B (ns)", label="B median", unit=Unit.DURATION, decimals=1),
    Column("p95_a", header="p95 A (ns)", label="A p95", unit=Unit.DURATION, decimals=1, importance=1),
    Column("p95_b", header="p95 B (ns)", label="B p95", unit=Unit.DURATION, decimals=1, importance=1),
    Column(
        "p95_difference", header="p95 Difference (ns)", label="p95 B − A", unit=Unit.CHANGE, decimals=1, importance=2
    ),
    Column("count_a", header="Steps A", label="A steps", unit=Unit.COUNT, importance=1),
    Column("count_b", header="Steps B", label="B steps", unit=Unit.COUNT, importance=1),
    Column("min_a", header="Min A (ns)", label="A min", unit=Unit.DURATION, importance=4),
    Column("min_b", header="Min B (ns)", label="B min", unit=Unit.DURATION, importance=4),
    Column("max_a", header="Max A (ns)", label="A max", unit=Unit.DURATION, importance=4),
    Column("max_b", header="Max B (ns)", label="B max", unit=Unit.DURATION, importance=4),
    Column("name", header="Of Each Step", label="of each step"),
)
STEP, ON_CPU, GPU_TIME = "step", "on the CPU", "GPU operations, sum of durations"


@dataclass(frozen=True)
class Spread:
    """Of some durations, ns: how many, median, 95th percentile, least and largest; ``None`` of none."""

    count: int
    median: float | None = None
    p95: float | None = None
    minimum: int | None = None
    maximum: int | None = None

    @classmethod
    def of(cls, values: Times) -> Spread:
        if not len(values):
            return cls(0)
        median, p95 = float(np.median(values)), float(np.percentile(values, 95))
        return cls(len(values), median, p95, int(values.min()), int(values.max()))


def steps(a: Side, b: Side, name: str | None = None) -> Compared:
    """The steps of both sides that begin in their windows; every rank's step counts.

    ``name`` is a regular expression for the ranges that are steps (see `Job.steps`). A row for the time of a step as
    the screen of the ranks has it (`ranks.step_times`), its NVTX range on the CPU, and the sum of the durations of its
    GPU operations.
    """
    found = [spreads(side, name) for side in (a, b)]
    rows = [_row(what, found[0][what], found[1][what]) for what in (STEP, ON_CPU, GPU_TIME)]
    has_any = any(one[STEP].count for one in found)
    notes = (*both(*(side.job.steps(name).notes for side in (a, b))), *_clocks(a, b, name))
    return Compared("diff-steps", COLUMNS, rows if has_any else [], len(rows) if has_any else 0, notes)


def spreads(side: Side, name: str | None = None) -> dict[str, Spread]:
    """How long the steps of a side take, by the names of the rows."""
    found = _times(side, name)
    on_gpu = [one for one in found if one.on_gpu]
    return {
        STEP: Spread.of(_joined([one.duration for one in found])),
        ON_CPU: Spread.of(_joined([one.cpu_duration for one in found])),
        GPU_TIME: Spread.of(_joined([one.op_time for one in on_gpu])),
    }


def _times(side: Side, name: str | None) -> list[StepTimes]:
    tasks = {item.task for item in side.ranks}
    found = step_times(side.job.steps(name), side.selection.window)
    return [one for task, one in found.items() if task in tasks]


def _clocks(a: Side, b: Side, name: str | None) -> tuple[str, ...]:
    """A sentence where a step of one side is its time on the GPU, and of the other on the CPU."""
    kinds = {one.on_gpu for side in (a, b) for one in _times(side, name)}
    return ("not every step has GPU work: a step without any is its time on the CPU",) if len(kinds) > 1 else ()


def _joined(parts: Sequence[Times]) -> Times:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _row(what: str, a: Spread, b: Spread) -> Row:
    difference = None if a.median is None or b.median is None else b.median - a.median
    far = None if a.p95 is None or b.p95 is None else b.p95 - a.p95
    ratio = b.median / a.median if a.median and b.median is not None else None
    pairs = (a.minimum, b.minimum, a.maximum, b.maximum)
    counts = (a.count or None, b.count or None)
    return (difference, ratio, a.median, b.median, a.p95, b.p95, far, *counts, *pairs, what)
