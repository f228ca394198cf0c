"""How long the launches of the same kernel take: by GPU and over time, of the kernels that hold most of the time.

Kernels are the same that have name, grid and block in common. The run is cut in parts; what is usual for a kernel is
the median of the means of its parts, so that one stall of many launches leaves it alone, in one pass of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.analysis.selection import Task
from nsystui.analysis.triage.case import Case
from nsystui.analysis.where import Condition, duration, job_start, where
from nsystui.store import tables

PARTS = 12
MOST_KERNELS = 40
"""So many kernels are looked at: those that hold most of the time."""
FEWEST = 24
"""Launches of a kernel on a GPU that are enough to tell what is usual."""

_NO_SIZE = -1


@dataclass(frozen=True)
class Kernel:
    """Kernels that are the same, by ``name`` and ``shape`` (grid and block)."""

    name: str
    shape: tuple[int, ...]

    @property
    def words(self) -> str:
        """``name <<<132·1·1, 384·1·1>>>``, or the name alone where no shape is known."""
        if _NO_SIZE in self.shape:
            return self.name
        grid, block = ("·".join(map(str, part)) for part in (self.shape[:3], self.shape[3:]))
        return f"{self.name} <<<{grid}, {block}>>>"


@dataclass(frozen=True, eq=False)
class Launches:
    """The launches of one kernel on one GPU, arrays of shape ``(PARTS,)``: how many in each part, ns in sum."""

    kernel: Kernel
    task: Task
    device: int
    counts: NDArray[np.int64]
    totals: NDArray[np.int64]
    longest: int

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.totals.sum())

    @property
    def means(self) -> NDArray[np.float64]:
        """The mean of each part, NaN where there is no launch."""
        found = np.full(PARTS, np.nan)
        np.divide(self.totals, self.counts, out=found, where=self.counts > 0)
        return found

    @property
    def usual(self) -> float:
        """ns"""
        return float(np.nanmedian(self.means))


def kernel_launches(case: Case) -> list[Launches]:
    """The launches of the kernels with most time but NCCL's, by kernel and GPU, from the first step on."""
    return case.once("kernel-launches", lambda: _load(case))


def _load(case: Case) -> list[Launches]:
    table = tables.kernels
    start = job_start(table)
    bounds = part_bounds(case)
    if not bounds:
        return []
    begin = sa.case({report: lo for report, (lo, _) in bounds.items()}, value=table.c.report)
    width = sa.case({report: max(hi - lo, 1) for report, (lo, hi) in bounds.items()}, value=table.c.report)
    part = sa.func.least(((start - begin) * PARTS).op("//")(width), PARTS - 1).label("part")
    keys = shape_columns()
    top = top_kernels(case)
    places = (table.c.report, table.c.process, table.c.device)
    time = duration(table)
    query = (
        sa.select(*places, *keys, part, sa.func.count(), sa.cast(sa.func.sum(time), sa.BigInteger), sa.func.max(time))
        .join_from(table, top, sa.and_(*(key == top.c[key.name] for key in keys)))
        .where(*conditions(case), start >= begin)
        .group_by(*places, *keys, part)
    )
    found: dict[tuple[Any, ...], Launches] = {}
    for report, process, device, *key, number, count, total, longest in case.job.session.rows(query):
        place = (report, process, device, *key)
        if place not in found:
            kernel = Kernel(str(key[0]), tuple(int(size) for size in key[1:]))
            zeros = np.zeros(PARTS, np.int64), np.zeros(PARTS, np.int64)
            found[place] = Launches(kernel, Task(report, process), device, *zeros, 0)
        own = found[place]
        own.counts[number], own.totals[number] = count, total
        found[place] = Launches(own.kernel, own.task, own.device, own.counts, own.totals, max(own.longest, longest))
    return [found[place] for place in sorted(found)]


def part_bounds(case: Case) -> dict[int, tuple[int, int]]:
    """By report from its first step (or first event) to its end, job time: what is cut in ``PARTS``."""
    bounds: dict[int, tuple[int, int]] = {}
    for device in case.devices:
        window, report = case.working(device), device.device.task.task.report
        before = bounds.get(report, (window.start, window.end))
        bounds[report] = (min(before[0], window.start), max(before[1], window.end))
    return bounds


def shape_columns() -> list[sa.Label[Any]]:
    """What makes kernels the same."""
    columns = tables.kernels.c
    sizes = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
    name = sa.func.coalesce(columns.short_name, "(no name)").label("kernel")
    return [name, *(sa.func.coalesce(columns[size], _NO_SIZE).label(f"key_{size}") for size in sizes)]


def conditions(case: Case) -> list[Condition]:
    """Kernels but NCCL's, of the selection."""
    columns = tables.kernels.c
    is_nccl = sa.cast(columns.is_nccl, sa.Boolean)
    return [*where(tables.kernels, case.chosen), sa.not_(is_nccl), columns.end.is_not(None)]


def top_kernels(case: Case, chosen: Sequence[Kernel] | None = None) -> sa.CTE:
    """The keys of the kernels with most time, or of those that are given."""
    keys = shape_columns()
    if chosen is not None:
        columns = [sa.column(key.name, key.type) for key in keys]
        values = sa.values(*columns, name="given").data([(one.name, *one.shape) for one in chosen])
        return sa.select(values).cte("top")
    time = sa.func.sum(duration(tables.kernels))
    query = sa.select(*keys).where(*conditions(case)).group_by(*keys).order_by(time.desc(), *keys).limit(MOST_KERNELS)
    return query.cte("top")
