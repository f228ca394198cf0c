"""When rows of a table were, merged for each process or GPU: what several rules subtract and intersect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Task
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, union
from nsystui.questions.conditions import Condition, job_start, where
from nsystui.questions.triage.case import Case

Place = tuple[Task, int]
"""A process and one of its devices."""

_NO_DEVICE = -1


@dataclass(frozen=True, eq=False)
class Spans:
    """The union of the rows of each process (and device), job time, and how many rows these are."""

    merged: dict[Place, Intervals]
    count: int

    def of(self, task: Task, device: int = _NO_DEVICE) -> Intervals:
        return self.merged.get((task, device), EMPTY)


def spans(case: Case, table: sa.FromClause, conditions: Sequence[Condition] = (), by_device: bool = False) -> Spans:
    """The selected rows of ``table`` that have an end, by process, or by process and device."""
    columns = table.c
    device = columns.device if by_device else sa.literal(_NO_DEVICE)
    query = sa.select(
        columns.report,
        columns.process,
        device.label("device"),
        job_start(table).label("start"),
        (columns.end + columns.clock_offset).label("end"),
    ).where(
        *where(table, case.chosen if by_device else Selection(case.chosen.window, case.chosen.tasks)),
        *conditions,
        columns.end.is_not(None),
        columns.process.is_not(None),
        *([columns.device.is_not(None)] if by_device else []),
    )
    parts: dict[Place, list[tuple[Times, Times]]] = {}
    count = 0
    for batch in case.job.session.array_batches(query):
        count += len(batch["start"])
        for place, rows in places_in(batch):
            parts.setdefault(place, []).append((batch["start"][rows], batch["end"][rows]))
    merged = {
        place: union(np.concatenate([start for start, _ in own]), np.concatenate([end for _, end in own]))
        for place, own in parts.items()
    }
    return Spans(merged, count)


def places_in(batch: Mapping[str, NDArray[Any]]) -> Iterator[tuple[Place, NDArray[np.bool_]]]:
    """The process and device of the rows of a batch, and which rows are theirs."""
    columns = [batch[key].astype(np.int64) for key in ("report", "process", "device")]
    changes = np.flatnonzero(np.logical_or.reduce([column[1:] != column[:-1] for column in columns])) + 1
    # Rows of one place mostly stand together, so few need to be told apart.
    firsts = np.concatenate(([0], changes)) if len(columns[0]) else changes
    for report, process, device in sorted({tuple(int(column[row]) for column in columns) for row in firsts.tolist()}):
        is_own = [column == key for column, key in zip(columns, (report, process, device), strict=True)]
        yield (Task(report, process), device), np.logical_and.reduce(is_own)
