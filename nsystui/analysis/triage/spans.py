"""When rows of a table were, merged for each process or GPU: what several rules subtract and intersect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.analysis.intervals import EMPTY, Intervals, Times, union
from nsystui.analysis.selection import Selection, Task
from nsystui.analysis.triage.case import Case
from nsystui.analysis.where import Condition, job_start, where

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


def spans(case: Case, table: sa.Table, conditions: Sequence[Condition] = (), by_device: bool = False) -> Spans:
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
        keys = np.stack([batch["report"], batch["process"], batch["device"]]).astype(np.int64)
        places, own = np.unique(keys, axis=1, return_inverse=True)
        for number, (report, process, ordinal) in enumerate(places.T.tolist()):
            rows = own.reshape(-1) == number
            place = (Task(report, process), ordinal)
            parts.setdefault(place, []).append((batch["start"][rows], batch["end"][rows]))
    merged = {
        place: union(np.concatenate([start for start, _ in own]), np.concatenate([end for _, end in own]))
        for place, own in parts.items()
    }
    return Spans(merged, count)
