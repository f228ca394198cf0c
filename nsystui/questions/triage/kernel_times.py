"""Durations of the launches of the same kernel: by GPU, over time, and how they scatter (median and MAD).

Kernels are the same that have full name, grid and block in common. The run is cut in parts; the usual duration of a
kernel on a GPU is the median of the means of its parts, so that one stall of many launches does not change it, and one
pass of sums is enough.

`spreads` gives the medians of the launches themselves, and of their distances from it (MAD), for the kernels that may
have outliers. Neither is affected by the outliers themselves, as a mean and a standard deviation would be. Both are
exact, over all launches of the kernel on all GPUs, and take four passes: `tails` finds in one the kernels that are
worth them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.kernel_names import smart_name
from nsystui.base.selection import Task
from nsystui.questions.queries.conditions import Condition, by_report, duration, job_start, where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.distributions import CLASSES_PER_OCTAVE, class_of, medians
from nsystui.questions.queries.kernel_names import communicates
from nsystui.questions.triage.case import Case
from nsystui.store import tables

PARTS = 12
MOST_KERNELS = 40
"""So many kernels are looked at: those that hold most of the time."""
FEWEST = 24
"""The minimum of launches of a kernel on a GPU for a usual duration."""

_NO_SIZE = -1
_MOST_GROUPS = 100_000


@dataclass(frozen=True)
class Kernel:
    """Kernels that are the same, by ``name`` (in full, with its template) and ``shape`` (grid and block)."""

    name: str
    shape: tuple[int, ...]

    @property
    def words(self) -> str:
        """``name <<<132·1·1, 384·1·1>>>`` with the smart name, which is alone where no shape is known."""
        if _NO_SIZE in self.shape:
            return smart_name(self.name)
        grid, block = ("·".join(map(str, part)) for part in (self.shape[:3], self.shape[3:]))
        return f"{smart_name(self.name)} <<<{grid}, {block}>>>"


@dataclass(frozen=True, eq=False)
class KernelLaunches:
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


def kernel_launches(case: Case) -> list[KernelLaunches]:
    """Return the launches in the steady state of the longest kernels except NCCL's, by kernel and GPU."""
    return case.once("kernel-launches", lambda: _load(case))


_PLACE = ["report", "process", "device"]
_NAME, _SIZES = "kernel", [f"key_{axis}" for axis in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")]


def _load(case: Case) -> list[KernelLaunches]:
    bounds = part_bounds(case)
    if not bounds:
        return []
    compute = partial(_of_top, case, bounds)
    rows = of_all_reports(
        case.job.session, case.chosen, tables.kernels, f"kernel-launches {_own(case, bounds)}", compute
    )
    shape = len(_PLACE) + 1 + len(_SIZES)
    parts: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    for row in rows:
        parts.setdefault(row[:shape], []).append(row[shape:])
    return [_launches(key, parts[key]) for key in sorted(parts)]


def _own(case: Case, bounds: Mapping[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The bounds on the clock of each report, which says what was kept of them."""
    offsets = {report.index: report.clock_offset for report in case.reports}
    return [(report, lo - offsets[report], hi - offsets[report]) for report, (lo, hi) in sorted(bounds.items())]


def _of_top(case: Case, bounds: Mapping[int, tuple[int, int]]) -> list[tuple[Any, ...]]:
    """The rows of `_grouped` of the kernels with most time."""
    rows = case.job.session.rows(_grouped(case, bounds).limit(_MOST_GROUPS))
    if len(rows) == _MOST_GROUPS:  # grids that are never the same: only now it pays to look for the largest first
        keys, time = shape_columns(), sa.func.sum(duration(tables.kernels))
        largest = sa.select(*keys).where(*conditions(case)).group_by(*keys).order_by(time.desc(), *keys)
        rows = case.job.session.rows(_grouped(case, bounds, largest.limit(MOST_KERNELS).cte("top")))
    place, shape = len(_PLACE), len(_PLACE) + 1 + len(_SIZES)
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        _, _, time, _, _ = row[shape:]
        sums[row[place:shape]] += time
    top = set(sorted(sums, key=lambda kernel: (-sums[kernel], kernel))[:MOST_KERNELS])
    return [row for row in rows if row[place:shape] in top and None not in row[:place]]


def _launches(key: tuple[Any, ...], parts: Sequence[tuple[int, ...]]) -> KernelLaunches:
    """The launches of ``key``: place, name and shape; ``parts`` as they are selected by `_grouped`."""
    report, process, device, name, *shape = key
    counts, totals = np.zeros(PARTS, np.int64), np.zeros(PARTS, np.int64)
    means = np.full(PARTS, np.nan)
    part, counted, times, longest, shortest = zip(*parts, strict=True)
    counts[list(part)], totals[list(part)] = counted, times
    np.divide(totals, counts, out=means, where=counts > 0)
    usual = float(np.nanmedian(means))
    task, kernel = Task(report, process), Kernel(name, tuple(shape))
    return KernelLaunches(kernel, task, device, counts, totals, means, usual, max(longest), min(shortest))


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
    """The time from which the kernels of a report count, job time; NULL for a report without bounds."""
    return by_report(tables.kernels, {report: lo for report, (lo, _) in bounds.items()})


def part_bounds(case: Case) -> dict[int, tuple[int, int]]:
    """Return the steady state of each report, job time, which is cut into ``PARTS``."""
    bounds: dict[int, tuple[int, int]] = {}
    for device in case.devices:
        window, report = case.working(device), device.device.task.task.report
        before = bounds.get(report, (window.start, window.end))
        bounds[report] = (min(before[0], window.start), max(before[1], window.end))
    return bounds


def shape_columns() -> list[sa.Label[Any]]:
    """The columns by which launches are of the same kernel."""
    columns = tables.kernels.c
    name = sa.func.coalesce(columns.name, columns.short_name, "(no name)").label(_NAME)
    return [name, *(sa.func.coalesce(columns[key.removeprefix("key_")], _NO_SIZE).label(key) for key in _SIZES)]


def conditions(case: Case) -> list[Condition]:
    """The selected kernels that do not communicate."""
    kernels = tables.kernels
    return [*where(kernels, case.chosen), sa.not_(communicates(case.communicating)), kernels.c.end.is_not(None)]


_NORMAL = 0.6745
"""Of values that are spread normally MAD is so many standard deviations."""
_NUMBER, _LIMIT = "number", "least"


@dataclass(frozen=True)
class KernelSpread:
    """The median and the MAD of a kernel's durations, ns."""

    median: float
    mad: float

    def above(self, times: float, score: float) -> float:
        """The duration from which a launch takes ``times`` the median and has a modified z-score of ``score``, ns.

        That is 0.6745 · (x − median) / MAD (Iglewicz and Hoaglin 1993), as for ranks (`ranks.table.scores`).
        """
        return max(times * self.median, self.median + score * self.mad / _NORMAL)


@dataclass(frozen=True, eq=False)
class Classes:
    """The launches of a kernel in narrow classes (`medians.class_of`), the shortest first.

    Of each, shapes ``(n,)``: its number, how many launches it holds, and their time in sum, ns.
    """

    number: NDArray[np.int64]
    count: NDArray[np.int64]
    total: NDArray[np.int64]

    def tail(self, times: float, score: float, rare: float) -> float:
        """An upper bound of the summed time over the median of the launches above `Spread.above`, ns.

        0 where these are certainly more than a share of ``rare`` of all.
        """
        low, high = _edge(self.number), _edge(self.number + 1)
        lower, upper = self._middle(np.arange(len(self.count)))
        least, most = low[lower], high[upper]
        # A distance from the median is at least that of the class from where it may lie, and at most to its far end.
        near = np.maximum(np.maximum(low - most, least - high), 0.0)
        far = np.maximum(high - least, most - low)
        nearest = near[self._middle(np.argsort(near, kind="stable"))[0]]
        farthest = far[self._middle(np.argsort(far, kind="stable"))[1]]
        certain = low >= KernelSpread(most, farthest).above(times, score)
        if self.count[certain].sum() > rare * self.count.sum():
            return 0.0
        possible = high > KernelSpread(least, nearest).above(times, score)
        return float((self.total - self.count * least)[possible].sum())

    def _middle(self, order: NDArray[np.int64]) -> tuple[int, int]:
        """The classes of the two launches in the middle, with the classes in some order."""
        until, count = np.cumsum(self.count[order]), int(self.count.sum())
        lower, upper = np.searchsorted(until, ((count - 1) // 2, count // 2), side="right")
        return int(order[lower]), int(order[upper])


def _edge(number: NDArray[np.int64]) -> NDArray[np.float64]:
    """The least value of a class."""
    found: NDArray[np.float64] = np.exp2(number / CLASSES_PER_OCTAVE) - 1.0
    return found


def tails(case: Case, kernels: Sequence[Kernel], times: float, score: float, rare: float) -> dict[Kernel, float]:
    """The result of `Classes.tail` for each kernel."""
    bounds = part_bounds(case)
    if not kernels or not bounds:
        return {}
    table, (is_own, own) = tables.kernels, given_kernels(dict.fromkeys(kernels, 0.0))
    time, number = duration(table), own.c[_NUMBER]
    group = class_of(time).label("class")
    total = sa.cast(sa.func.sum(time), sa.BigInteger).label("total")
    query = (
        sa.select(number, group, sa.func.count().label("count"), total)
        .join_from(table, own, is_own)
        .where(*conditions(case), job_start(table) >= begins(bounds))
        .group_by(number, group)
        .order_by(number, group)
    )
    session, asked = case.job.session, f"kernel-tails {_own(case, bounds)} {list(kernels)}"
    rows = of_all_reports(session, case.chosen, table, asked, lambda: session.rows(query))
    numbers, *columns = np.array(rows, np.int64).reshape(-1, 4).T
    found = {}
    for place, kernel in enumerate(kernels):
        of_kernel = numbers == place
        if of_kernel.any():
            found[kernel] = Classes(*(column[of_kernel] for column in columns)).tail(times, score, rare)
    return found


def spreads(case: Case, kernels: Sequence[Kernel]) -> dict[Kernel, KernelSpread]:
    """Return the spread in the steady state of each of some kernels that have launches."""
    middles = _medians(case, dict.fromkeys(kernels, 0.0))
    off = _medians(case, {kernel: round(middle) for kernel, middle in middles.items()}, is_distance=True)
    return {kernel: KernelSpread(middle, off[kernel]) for kernel, middle in middles.items()}


def _medians(case: Case, given: Mapping[Kernel, float], is_distance: bool = False) -> dict[Kernel, float]:
    """The medians of the durations, or of their distances from the numbers that are given."""
    bounds = part_bounds(case)
    if not given or not bounds:
        return {}
    table = tables.kernels
    rows, own = given_kernels(given)
    value = duration(table)
    if is_distance:
        value = sa.func.abs(value - sa.cast(own.c[_LIMIT], sa.BigInteger))
    known = [*conditions(case), job_start(table) >= begins(bounds)]
    found = medians(case.job.session, table.join(own, rows), value, own.c[_NUMBER], known)
    return {kernel: found[number] for number, kernel in enumerate(given) if number in found}


def given_kernels(limits: Mapping[Kernel, float]) -> tuple[sa.ColumnElement[bool], sa.CTE]:
    """Some kernels, numbered in their order, each with a number of ns; and which rows of `kernels` are theirs."""
    keys = [sa.column(key.name, key.type) for key in shape_columns()]
    columns = [sa.column(_NUMBER, sa.BigInteger), *keys, sa.column(_LIMIT, sa.Double)]
    rows = [(number, one.name, *one.shape, limit) for number, (one, limit) in enumerate(limits.items())]
    own = sa.select(sa.values(*columns, name="given").data(rows)).cte("own")
    return sa.and_(*(key == own.c[key.name] for key in shape_columns())), own


def limit_of(own: sa.CTE) -> sa.ColumnElement[float]:
    """The number of ns of a row of ``given_kernels``."""
    return own.c[_LIMIT]
