"""How long the launches of the same kernel take: by GPU and over time, of the kernels that hold most of the time.

Kernels are the same that have name, grid and block in common. The run is cut in parts; what is usual for a kernel on a
GPU is the median of the means of its parts, so that one stall of many launches leaves it alone, in one pass of sums.
(`kernel_spread` has the medians of the launches themselves, for those kernels that may have outliers.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Task
from nsystui.questions.conditions import Condition, by_report, duration, job_start, where
from nsystui.questions.triage.case import Case
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
    """The launches of one kernel on one GPU, arrays of shape ``(PARTS,)``: how many in each part, ns in sum and mean.

    ``means`` has NaN where there is no launch; ``usual`` is their median, ns.
    """

    kernel: Kernel
    task: Task
    device: int
    counts: NDArray[np.int64]
    totals: NDArray[np.int64]
    means: NDArray[np.float64]
    usual: float
    longest: int
    shortest: int

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.totals.sum())


def kernel_launches(case: Case) -> list[Launches]:
    """The launches of the kernels with most time but NCCL's, by kernel and GPU, from the first step on."""
    return case.once("kernel-launches", lambda: _load(case))


_PLACE = ["report", "process", "device"]
_NAME, _SIZES = "kernel", [f"key_{axis}" for axis in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")]


def _load(case: Case) -> list[Launches]:
    bounds = part_bounds(case)
    if not bounds:
        return []
    rows = case.job.session.frame(_grouped(case, bounds).limit(_MOST_GROUPS))
    if len(rows) == _MOST_GROUPS:  # grids that are never the same: only now it pays to look for the largest first
        rows = case.job.session.frame(_grouped(case, bounds, _top(case)))
    keys = [_NAME, *_SIZES]
    sums = rows.groupby(keys, sort=False)["total"].sum().reset_index()
    sums = sums.sort_values(["total", *keys], ascending=[False, *[True] * len(keys)], kind="stable")[:MOST_KERNELS]
    top = rows.merge(sums[keys], on=keys)
    groups = top.groupby([*_PLACE, *keys], sort=True)
    number, part = groups.ngroup().to_numpy(np.int64), top["part"].to_numpy(np.int64)
    counts = np.zeros((groups.ngroups, PARTS), np.int64)
    totals = np.zeros_like(counts)
    counts[number, part], totals[number, part] = top["count"], top["total"]
    means = np.full(counts.shape, np.nan)
    np.divide(totals, counts, out=means, where=counts > 0)
    usual = np.nanmedian(means, axis=1).tolist() if len(means) else []
    extremes = groups.agg(longest=("longest", "max"), shortest=("shortest", "min")).reset_index()
    return [
        Launches(
            Kernel(str(name), tuple(int(size) for size in sizes)),
            Task(int(report), int(process)),
            int(device),
            counts[place],
            totals[place],
            means[place],
            usual[place],
            int(longest),
            int(shortest),
        )
        for place, (report, process, device, name, *sizes, longest, shortest) in enumerate(
            zip(*(extremes[key].tolist() for key in extremes), strict=True)
        )
    ]


def _grouped(case: Case, bounds: Mapping[int, tuple[int, int]], top: sa.CTE | None = None) -> sa.Select[Any]:
    """Place, kernel and part; how many launches, their time in sum, the longest and the shortest."""
    table = tables.kernels
    begin, start, time, keys = begins(bounds), job_start(table), duration(table), shape_columns()
    width = by_report(table, {report: max(hi - lo, 1) for report, (lo, hi) in bounds.items()})
    part = sa.func.least(((start - begin) * PARTS).op("//")(width), PARTS - 1).label("part")
    places = [table.c[key] for key in _PLACE]
    query = sa.select(
        *places,
        *keys,
        part,
        sa.func.count().label("count"),
        sa.cast(sa.func.sum(time), sa.BigInteger).label("total"),
        sa.func.max(time).label("longest"),
        sa.func.min(time).label("shortest"),
    )
    if top is not None:
        query = query.join_from(table, top, sa.and_(*(key == top.c[key.name] for key in keys)))
    return query.where(*conditions(case), start >= begin).group_by(*places, *keys, part)


def begins(bounds: Mapping[int, tuple[int, int]]) -> sa.ColumnElement[Any]:
    """From when on the kernels of a report count, job time; NULL for a report without bounds."""
    return by_report(tables.kernels, {report: lo for report, (lo, _) in bounds.items()})


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
    name = sa.func.coalesce(columns.short_name, "(no name)").label(_NAME)
    return [name, *(sa.func.coalesce(columns[key.removeprefix("key_")], _NO_SIZE).label(key) for key in _SIZES)]


def conditions(case: Case) -> list[Condition]:
    """Kernels but NCCL's, of the selection."""
    columns = tables.kernels.c
    is_nccl = sa.cast(columns.is_nccl, sa.Boolean)
    return [*where(tables.kernels, case.chosen), sa.not_(is_nccl), columns.end.is_not(None)]


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
