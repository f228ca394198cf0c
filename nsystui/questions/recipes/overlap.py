"""How much of each kernel's time the other kind, NCCL or compute, ran beside it (docs/recipes.md#overlap)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Answer, Row, TableAnswer
from nsystui.base.columns import NAME, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.algebra.interval_blocks import NO_BLOCKS
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.conditions import where
from nsystui.questions.device_time import DeviceIntervals
from nsystui.questions.job import Job
from nsystui.questions.kernels import kernel_notes
from nsystui.questions.recipes.asking import Ask, Options, of_each_rank
from nsystui.store import tables

_COLUMNS = (
    Column("kind", header="Kind", label="kind", importance=1),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=1),
    Column("overlap", header="Overlap Sum (ns)", label="overlap", unit=Unit.DURATION),
    Column("overlap_percent", header="Overlap (%)", label="overlap %", unit=Unit.PERCENT, decimals=1),
    Column("alone", header="Alone (ns)", label="alone", unit=Unit.DURATION, importance=2),
    NAME,
)
_KINDS = {1: "communication", 0: "compute"}
_PLACE = ("report", "process", "device")


def _asked(job: Job, selection: Selection, options: Options) -> Answer:
    if options.by_rank:
        return of_each_rank(job, selection, lambda _, own: _overlaps(job, own))
    return _overlaps(job, selection)


def _overlaps(job: Job, selection: Selection) -> Answer:
    """One row for each kernel name, longest total first.

    ``overlap`` is the sum over its launches of the time in which a kernel of the other kind ran on the same device of
    the same process; two that run side by side both count. ``alone`` is the rest of ``total``.
    """
    table = tables.kernels
    place = [table.c[key] for key in (*_PLACE, "is_nccl")]
    name = sa.func.coalesce(table.c.name, "").label("name")
    moved = [(table.c[key] + table.c.clock_offset).label(f"job_{key}") for key in ("start", "end")]
    known = [table.c.start.is_not(None), table.c.end.is_not(None), table.c.device.is_not(None)]
    query = sa.select(*place, name, *moved).where(*where(table, selection, table.c.name), *known)
    devices = {_place_of(item): item for item in job.busy(Selection(tasks=selection.tasks)).devices}
    sums: dict[tuple[int, str], list[int]] = {}
    if job.session.count(table):
        for batch in job.session.array_batches(query):
            starts, ends = batch["job_start"], np.maximum(batch["job_end"], batch["job_start"])
            is_nccl = batch["is_nccl"].astype(bool)
            overlap = _beside(devices, [batch[key] for key in _PLACE], is_nccl, starts, ends)
            columns = (is_nccl.tolist(), batch["name"].tolist(), (ends - starts).tolist(), overlap.tolist())
            _add(sums, zip(*columns, strict=True))
    largest_first = sorted(sums.items(), key=lambda item: (-item[1][0], item[0][1]))
    rows: list[Row] = [
        (_KINDS[kind], total, count, overlap, 100.0 * overlap / total if total else None, total - overlap, name)
        for (kind, name), (total, count, overlap) in largest_first
    ]
    total_rows = len(rows) if selection.is_everything else None
    return TableAnswer("nccl-gpu-overlap", _COLUMNS, rows, total_rows, kernel_notes(job.session))


def _place_of(item: DeviceIntervals) -> tuple[int, int, int]:
    task = item.device.task.task
    return task.report, task.process, item.device.device


def _beside(
    devices: dict[tuple[int, int, int], DeviceIntervals],
    places: Sequence[Times],
    is_nccl: NDArray[np.bool_],
    starts: Times,
    ends: Times,
) -> Times:
    """How long the other kind ran during each kernel, ns."""
    found = np.zeros(len(starts), np.int64)
    for place in {tuple(one) for one in zip(*(values.tolist() for values in places), strict=True)}:
        is_here = np.logical_and.reduce([values == own for values, own in zip(places, place, strict=True)])
        parts = devices[place].parts if place in devices else None
        for kind in (False, True):
            rows = np.flatnonzero(is_here & (is_nccl == kind))
            other = NO_BLOCKS if parts is None else parts.kernels if kind else parts.nccl
            after, _ = other.before(ends[rows])
            before, _ = other.before(starts[rows])
            found[rows] = after - before
    return found


def _add(sums: dict[tuple[int, str], list[int]], kernels: Iterable[tuple[bool, str, int, int]]) -> None:
    for kind, name, length, overlap in kernels:
        own = sums.setdefault((int(kind), name), [0, 0, 0])
        own[0] += length
        own[1] += 1
        own[2] += overlap


ASK: dict[str, Ask] = {"nccl_gpu_overlap_trace": _asked}
