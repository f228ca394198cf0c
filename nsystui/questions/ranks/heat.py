"""Maps of all ranks: activity over time, and the duration of each step.

If there are more ranks than lines, neighbours share a line: their mean, minimum or maximum, so that an odd rank shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

import numpy as np

from nsystui.base.answer import DURATION, END, RANK, START, STEP, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Floats
from nsystui.questions.gpu.metrics import MetricLane, metric_lanes, metric_sources
from nsystui.questions.gpu.utilisation import BusyIntervals
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import edges_of
from nsystui.questions.ranks.steps import StepTimes
from nsystui.store.session import Session

PARTS = {
    "busy": "busy", "compute": "kernels", "NCCL": "nccl", "exposed NCCL": "exposed_nccl", "memory": "memory",
    "graph": "graph",
}  # fmt: skip
"""Figures that a map over time can show for every job, with their names in `DeviceIntervals.share`."""


class Merge(Enum):
    """The value of ranks that share a line."""

    MEAN = "mean"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"


@dataclass(frozen=True, eq=False)
class RankMap:
    """One figure of m ranks in n columns.

    ``values``, shape ``(m, n)``: shares of 0 to 1 over time, or step durations, ns; NaN if missing. ``columns`` are
    spans of time, or the steps with ``numbers``, shape ``(n,)``.
    """

    figure: str
    ranks: tuple[RankedTask, ...]
    values: Floats
    columns: tuple[Window, ...]
    numbers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_of_steps(self) -> bool:
        return bool(self.numbers)

    def grouped(self, lines: int) -> list[tuple[RankedTask, ...]]:
        """Return the ranks in equal groups, except the last, for at most ``lines`` lines."""
        size = max(1, -(-len(self.ranks) // max(1, lines)))
        return [self.ranks[first : first + size] for first in range(0, len(self.ranks), size)]

    def merged(self, groups: Sequence[Sequence[RankedTask]], merge: Merge) -> Floats:
        """Return the values of each group, shape ``(groups, n)``."""
        merged, first = [], 0
        for group in groups:
            merged.append(_merged(self.values[first : first + len(group)], merge))
            first += len(group)
        return np.stack(merged) if merged else np.zeros((0, len(self.columns)))


def _merged(values: Floats, merge: Merge) -> Floats:
    if merge is Merge.MEAN:
        return np.asarray(np.ma.masked_invalid(values).mean(axis=0).filled(np.nan), float)
    fold = np.fmin if merge is Merge.MINIMUM else np.fmax
    return np.asarray(fold.reduce(values, axis=0), float)


def scaled(values: Floats, is_of_steps: bool) -> Floats:
    """Return values as shares of 0 to 1 for a drawing: steps from 0.1 for the shortest to 1 for the longest.

    A spread below 5 % of the longest is not stretched to the full range.
    """
    if not is_of_steps or not np.isfinite(values).any():
        return values
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    span = max(high - low, 0.05 * high, 1.0)
    shares: Floats = 0.1 + 0.9 * (values - low) / span
    return shares


def time_map(
    session: Session, selection: Selection, ranks: Sequence[RankedTask], busy: BusyIntervals, window: Window, bins: int,
    figure: str,
) -> RankMap:  # fmt: skip
    """Return every rank's figure over ``window`` in ``bins`` equal spans: the mean of its GPUs.

    ``figure``: one of ``PARTS``, or a GPU metric (see ``figures_of``). ``busy`` is of the same selection.
    """
    rows: dict[Task, list[Floats]] = {}
    if figure in PARTS:
        for item in busy.devices:
            rows.setdefault(item.device.task.task, []).append(item.share(PARTS[figure], window, bins))
    else:
        sources = [source for source in metric_sources(session, selection) if source.label == figure]
        rows = _metrics(busy, metric_lanes(session, selection, window, bins, sources))
    shown_ranks = tuple(item for item in ranks if item.task in rows)
    values = [_merged(np.stack(rows[item.task]), Merge.MEAN) for item in shown_ranks]
    spans = tuple(Window(first, last) for first, last in pairwise(edges_of(window, bins)))
    return RankMap(figure, shown_ranks, np.stack(values) if values else np.zeros((0, bins)), spans, notes=busy.notes)


def figures_of(session: Session, selection: Selection) -> tuple[str, ...]:
    """Return this job's figures that a map over time can show."""
    return (*PARTS, *dict.fromkeys(source.label for source in metric_sources(session, selection)))


def _metrics(busy: BusyIntervals, lanes: Sequence[MetricLane]) -> dict[Task, list[Floats]]:
    values_by_gpu = {(lane.source.report, lane.source.gpu): lane.values / 100.0 for lane in lanes}
    values_by_task: dict[Task, list[Floats]] = {}
    for item in busy.devices:
        task, gpu = item.device.task.task, item.device.gpu
        values = values_by_gpu.get((task.report, gpu)) if gpu is not None else None
        if values is not None:
            values_by_task.setdefault(task, []).append(values)
    return values_by_task


def step_map(ranks: Sequence[RankedTask], times: Mapping[Task, StepTimes], notes: tuple[str, ...]) -> RankMap:
    """Return each rank's step durations, with a column for each step number."""
    shown_ranks = tuple(item for item in ranks if item.task in times)
    numbers = sorted({number for item in shown_ranks for number in times[item.task].numbers.tolist()})
    columns = {number: index for index, number in enumerate(numbers)}
    values = np.full((len(shown_ranks), len(numbers)), np.nan)
    spans: dict[int, Window] = {}
    for line, item in enumerate(shown_ranks):
        steps = times[item.task]
        for index, number in enumerate(steps.numbers.tolist()):
            values[line, columns[number]] = steps.duration[index]
            span, merged = steps.window(index), spans.get(number)
            spans[number] = span if merged is None else Window(min(merged.start, span.start), max(merged.end, span.end))
    return RankMap("step time", shown_ranks, values, tuple(spans[number] for number in numbers), tuple(numbers), notes)


def map_table(shown: RankMap) -> TableAnswer:
    """Return a map as a table: a row for each rank and column."""
    value = Column("value", header=f"{shown.figure} (%)", label=f"{shown.figure} %", unit=Unit.PERCENT, decimals=2)
    value = replace(DURATION, decimals=0) if shown.is_of_steps else value
    columns = (RANK, *[STEP] * shown.is_of_steps, START, END.with_importance(3), value)
    rows: list[Row] = []
    for item, values in zip(shown.ranks, shown.values.tolist(), strict=True):
        for column, (span, value) in enumerate(zip(shown.columns, values, strict=True)):
            step = (shown.numbers[column],) if shown.is_of_steps else ()
            rows.append((item.rank, *step, span.start, span.end, value if shown.is_of_steps else 100.0 * value))
    return TableAnswer("rank-map", columns, rows, len(rows), shown.notes)
