"""How long the launches of the same kernel take: by GPU and over time, of the kernels that hold most of the time.

Kernels are the same that have name, grid and block in common. The run is cut in parts; what is usual for a kernel is
the median of the means of its parts, so that one stall of many launches leaves it alone, in one pass of sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_MOST_GROUPS = 1_000_000


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
    bounds = part_bounds(case)
    if not bounds:
        return []
    rows = case.job.session.rows(_grouped(case, bounds).limit(_MOST_GROUPS))
    if len(rows) == _MOST_GROUPS:  # grids that are never the same: only now it pays to look for the largest first
        rows = case.job.session.rows(_grouped(case, bounds, _top(case)))
    sums: dict[Kernel, int] = {}
    found: dict[tuple[Task, int, Kernel], tuple[NDArray[np.int64], NDArray[np.int64], list[int]]] = {}
    for report, process, device, name, *rest in rows:
        kernel = Kernel(str(name), tuple(int(size) for size in rest[:6]))
        part, count, total, longest = (int(value) for value in rest[6:])
        sums[kernel] = sums.get(kernel, 0) + total
        place = (Task(report, process), int(device), kernel)
        if place not in found:
            found[place] = np.zeros(PARTS, np.int64), np.zeros(PARTS, np.int64), []
        counts, totals, maxima = found[place]
        counts[part], totals[part] = count, total
        maxima.append(longest)
    top = set(sorted(sums, key=lambda kernel: (-sums[kernel], kernel.name, kernel.shape))[:MOST_KERNELS])
    return [
        Launches(kernel, task, device, counts, totals, max(maxima))
        for (task, device, kernel), (counts, totals, maxima) in sorted(found.items(), key=lambda item: _order(item[0]))
        if kernel in top
    ]


def _order(place: tuple[Task, int, Kernel]) -> tuple[Task, int, str, tuple[int, ...]]:
    task, device, kernel = place
    return task, device, kernel.name, kernel.shape


def _grouped(case: Case, bounds: Mapping[int, tuple[int, int]], top: sa.CTE | None = None) -> sa.Select[Any]:
    """Place, kernel and part; how many launches, their time in sum and the longest."""
    table = tables.kernels
    begin = sa.case({report: lo for report, (lo, _) in bounds.items()}, value=table.c.report)
    width = sa.case({report: max(hi - lo, 1) for report, (lo, hi) in bounds.items()}, value=table.c.report)
    start, time, keys = job_start(table), duration(table), shape_columns()
    part = sa.func.least(((start - begin) * PARTS).op("//")(width), PARTS - 1).label("part")
    places = (table.c.report, table.c.process, table.c.device)
    total = sa.cast(sa.func.sum(time), sa.BigInteger)
    query = sa.select(*places, *keys, part, sa.func.count(), total, sa.func.max(time))
    if top is not None:
        query = query.join_from(table, top, sa.and_(*(key == top.c[key.name] for key in keys)))
    return query.where(*conditions(case), start >= begin).group_by(*places, *keys, part)


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


LIMIT = "least"
"""The column of `given_kernels` that is no key."""


def given_kernels(limits: Mapping[Kernel, float]) -> sa.CTE:
    """The keys of some kernels, each with a number, ns."""
    columns = [*(sa.column(key.name, key.type) for key in shape_columns()), sa.column(LIMIT, sa.Double)]
    rows = [(one.name, *one.shape, limit) for one, limit in limits.items()]
    return sa.select(sa.values(*columns, name="given").data(rows)).cte("top")


def usual_times(launches: Sequence[Launches]) -> dict[Kernel, float]:
    """What is usual for each kernel, ns: the median over the GPUs."""
    found: dict[Kernel, list[float]] = {}
    for one in launches:
        found.setdefault(one.kernel, []).append(one.usual)
    return {kernel: float(np.median(times)) for kernel, times in found.items()}


def _top(case: Case) -> sa.CTE:
    """The keys of the kernels with most time."""
    keys = shape_columns()
    time = sa.func.sum(duration(tables.kernels))
    query = sa.select(*keys).where(*conditions(case)).group_by(*keys).order_by(time.desc(), *keys).limit(MOST_KERNELS)
    return query.cte("top")
