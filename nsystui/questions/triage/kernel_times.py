"""Durations of the launches of the same kernel: by GPU, over time, and their spread (median and MAD).

Kernels are the same if full name, grid and block are. The usual duration of a kernel on a GPU is the median of the
means over parts of the run: one stall of many launches does not change it, and a single pass of sums is enough.

`spreads` returns median and MAD (median distance from the median) of all launches on all GPUs, which outliers do not
affect. Both are exact and take four passes, so `tails` first selects the kernels in one pass.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Task
from nsystui.base.types import Condition, Expression, Floats, Ints, Labelled, Query, grouped
from nsystui.questions.queries.communication import communicates
from nsystui.questions.queries.conditions import by_report, duration, job_start, where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.distributions import CLASSES_PER_OCTAVE, class_of, medians
from nsystui.questions.triage.case import Case, once
from nsystui.store import tables

PARTS = 12
MOST_KERNELS = 40
"""The number of kernels examined: the longest in total."""
FEWEST = 24
"""The minimum number of launches of a kernel on a GPU for a usual duration."""

_NO_SIZE = -1
_MAX_GROUPS = 100_000


@dataclass(frozen=True)
class Kernel:
    """A kernel's identity: ``name`` (in full, with its template) and ``shape`` (grid and block)."""

    name: str
    shape: tuple[int, ...]

    @property
    def words(self) -> str:
        """``name <<<132·1·1, 384·1·1>>>`` with the smart name; without a known shape, only the name."""
        from nsystui.base.kernel_names import smart_name

        if _NO_SIZE in self.shape:
            return smart_name(self.name)
        grid, block = ("·".join(map(str, part)) for part in (self.shape[:3], self.shape[3:]))
        return f"{smart_name(self.name)} <<<{grid}, {block}>>>"


@dataclass(frozen=True, eq=False)
class KernelLaunches:
    """The launches of one kernel on one GPU, by part: count, total and mean (ns), shape ``(PARTS,)``.

    ``means`` is NaN for a part without launches; ``usual`` is the median of the means, ns.
    """

    kernel: Kernel
    task: Task
    device: int
    counts: Ints
    totals: Ints
    means: Floats
    usual: float
    longest: int
    shortest: int

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.totals.sum())


_GPU = ["report", "process", "device"]
_NAME, _SIZES = "kernel", [f"key_{axis}" for axis in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")]


@once
def kernel_launches(case: Case) -> list[KernelLaunches]:
    """Return the launches of the longest compute kernels in the steady state, by kernel and GPU."""
    bounds = part_bounds(case)
    if not bounds:
        return []
    question, compute = f"kernel-launches {_local_bounds(case, bounds)}", partial(_top_rows, case, bounds)
    rows = of_all_reports(case.job.session, case.scope, tables.kernels, question, compute)
    key_size = len(_GPU) + 1 + len(_SIZES)
    parts = grouped((row[:key_size], row[key_size:]) for row in rows)
    return [_launches(key, parts[key]) for key in sorted(parts)]


def _local_bounds(case: Case, bounds: Mapping[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return the bounds on each report's own clock, which identify cached rows."""
    offsets = {report.index: report.clock_offset for report in case.reports}
    return [(report, lo - offsets[report], hi - offsets[report]) for report, (lo, hi) in sorted(bounds.items())]


def _top_rows(case: Case, bounds: Mapping[int, tuple[int, int]]) -> list[tuple[Any, ...]]:
    rows = case.job.session.rows(_grouped(case, bounds).limit(_MAX_GROUPS))
    if len(rows) == _MAX_GROUPS:  # grids keep changing: only then it pays to select the largest first
        keys, time = shape_columns(), sa.func.sum(duration(tables.kernels))
        largest = sa.select(*keys).where(*conditions(case)).group_by(*keys).order_by(time.desc(), *keys)
        rows = case.job.session.rows(_grouped(case, bounds, largest.limit(MOST_KERNELS).cte("top")))
    start, end = len(_GPU), len(_GPU) + 1 + len(_SIZES)
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        _, _, time, _, _ = row[end:]
        sums[row[start:end]] += time
    top = set(sorted(sums, key=lambda kernel: (-sums[kernel], kernel))[:MOST_KERNELS])
    return [row for row in rows if row[start:end] in top and None not in row[:start]]


def _launches(key: tuple[Any, ...], parts: Sequence[tuple[int, ...]]) -> KernelLaunches:
    report, process, device, name, *shape = key
    counts, totals = np.zeros(PARTS, np.int64), np.zeros(PARTS, np.int64)
    means = np.full(PARTS, np.nan)
    part, counted, times, longest, shortest = zip(*parts, strict=True)
    counts[list(part)], totals[list(part)] = counted, times
    np.divide(totals, counts, out=means, where=counts > 0)
    usual = float(np.nanmedian(means))
    task, kernel = Task(report, process), Kernel(name, tuple(shape))
    return KernelLaunches(kernel, task, device, counts, totals, means, usual, max(longest), min(shortest))


def _grouped(case: Case, bounds: Mapping[int, tuple[int, int]], top: sa.CTE | None = None) -> Query:
    """Select count, total, longest and shortest time of the launches by GPU, kernel and part."""
    table = tables.kernels
    begin, start, time, keys = begins(bounds), job_start(table), duration(table), shape_columns()
    width = by_report(table, {report: max(hi - lo, 1) for report, (lo, hi) in bounds.items()})
    part = sa.func.least(((start - begin) * PARTS).op("//")(width), PARTS - 1).label("part")
    gpu_columns = [table.c[key] for key in _GPU]
    sums = sa.func.count().label("count"), sa.cast(sa.func.sum(time), sa.BigInteger).label("total")
    extremes = sa.func.max(time).label("longest"), sa.func.min(time).label("shortest")
    query = sa.select(*gpu_columns, *keys, part, *sums, *extremes)
    if top is not None:
        query = query.join_from(table, top, sa.and_(*(key == top.c[key.name] for key in keys)))
    return query.where(*conditions(case), start >= begin).group_by(*gpu_columns, *keys, part)


def begins(bounds: Mapping[int, tuple[int, int]]) -> Expression:
    """Return the time from which a report's kernels count, job time; NULL without bounds."""
    return by_report(tables.kernels, {report: lo for report, (lo, _) in bounds.items()})


def part_bounds(case: Case) -> dict[int, tuple[int, int]]:
    """Return each report's steady state, job time, divided into ``PARTS``."""
    bounds: dict[int, tuple[int, int]] = {}
    for device in case.devices:
        window, report = case.working(device), device.device.task.task.report
        before = bounds.get(report, (window.start, window.end))
        bounds[report] = (min(before[0], window.start), max(before[1], window.end))
    return bounds


def shape_columns() -> list[Labelled]:
    """Return the columns that identify a kernel."""
    columns = tables.kernels.c
    name = sa.func.coalesce(columns.name, columns.short_name, "(no name)").label(_NAME)
    return [name, *(sa.func.coalesce(columns[key.removeprefix("key_")], _NO_SIZE).label(key) for key in _SIZES)]


def conditions(case: Case) -> list[Condition]:
    """Return conditions for selected kernels that do not communicate."""
    kernels = tables.kernels
    return [*where(kernels, case.scope), sa.not_(communicates(case.communicating)), kernels.c.end.is_not(None)]


_NORMAL = 0.6745
"""MAD / standard deviation of normally distributed values."""
_NUMBER, LIMIT = "number", "least"


@dataclass(frozen=True)
class KernelSpread:
    """Median and MAD of a kernel's durations, ns."""

    median: float
    mad: float

    def above(self, times: float, score: float) -> float:
        """Return the shortest duration, ns, of ``times`` the median and a modified z-score of ``score``.

        The score is 0.6745 · (x − median) / MAD (Iglewicz and Hoaglin 1993), as for ranks (`ranks.table.scores`).
        """
        return max(times * self.median, self.median + score * self.mad / _NORMAL)


@dataclass(frozen=True, eq=False)
class Classes:
    """A kernel's launches in narrow duration classes (`distributions.class_of`), the shortest first.

    Number, count of launches and total time (ns) of each class, shapes ``(n,)``.
    """

    number: Ints
    count: Ints
    total: Ints

    def tail(self, times: float, score: float, rare: float) -> float:
        """Return an upper bound of the time over the median, ns, of all launches above `KernelSpread.above`.

        0 if these are certainly more than the share ``rare`` of all launches.
        """
        low, high = _edge(self.number), _edge(self.number + 1)
        lower, upper = self._middle(np.arange(len(self.count)))
        low_median, high_median = low[lower], high[upper]
        # Bounds of each class's distance from the median, which is between `low_median` and `high_median`.
        near = np.maximum(np.maximum(low - high_median, low_median - high), 0.0)
        far = np.maximum(high - low_median, high_median - low)
        nearest = near[self._middle(np.argsort(near, kind="stable"))[0]]
        farthest = far[self._middle(np.argsort(far, kind="stable"))[1]]
        certain = low >= KernelSpread(high_median, farthest).above(times, score)
        if self.count[certain].sum() > rare * self.count.sum():
            return 0.0
        possible = high > KernelSpread(low_median, nearest).above(times, score)
        return float((self.total - self.count * low_median)[possible].sum())

    def _middle(self, order: Ints) -> tuple[int, int]:
        """Return the classes, in ``order``, of the two middle launches."""
        until, count = np.cumsum(self.count[order]), int(self.count.sum())
        lower, upper = np.searchsorted(until, ((count - 1) // 2, count // 2), side="right")
        return int(order[lower]), int(order[upper])


def _edge(number: Ints) -> Floats:
    edges: Floats = np.exp2(number / CLASSES_PER_OCTAVE) - 1.0
    return edges


def tails(case: Case, kernels: Sequence[Kernel], times: float, score: float, rare: float) -> dict[Kernel, float]:
    """Return `Classes.tail` for each kernel."""
    bounds = part_bounds(case)
    if not kernels or not bounds:
        return {}
    table, (is_given, given) = tables.kernels, given_kernels(dict.fromkeys(kernels, 0.0))
    time, number = duration(table), given.c[_NUMBER]
    group = class_of(time).label("class")
    total = sa.cast(sa.func.sum(time), sa.BigInteger).label("total")
    query = (
        sa.select(number, group, sa.func.count().label("count"), total)
        .join_from(table, given, is_given)
        .where(*conditions(case), job_start(table) >= begins(bounds))
        .group_by(number, group)
        .order_by(number, group)
    )
    session, cache_key = case.job.session, f"kernel-tails {_local_bounds(case, bounds)} {list(kernels)}"
    rows = of_all_reports(session, case.scope, table, cache_key, lambda: session.rows(query))
    numbers, *columns = np.array(rows, np.int64).reshape(-1, 4).T
    tails_by_kernel = {}
    for index, kernel in enumerate(kernels):
        is_kernel = numbers == index
        if is_kernel.any():
            tails_by_kernel[kernel] = Classes(*(column[is_kernel] for column in columns)).tail(times, score, rare)
    return tails_by_kernel


def spreads(case: Case, kernels: Sequence[Kernel]) -> dict[Kernel, KernelSpread]:
    """Return each launched kernel's spread in the steady state."""
    middles = _medians(case, dict.fromkeys(kernels, 0.0))
    deviations = _medians(case, {kernel: round(middle) for kernel, middle in middles.items()}, is_distance=True)
    return {kernel: KernelSpread(middle, deviations[kernel]) for kernel, middle in middles.items()}


def _medians(case: Case, given: Mapping[Kernel, float], is_distance: bool = False) -> dict[Kernel, float]:
    bounds = part_bounds(case)
    if not given or not bounds:
        return {}
    table = tables.kernels
    is_given, kernels = given_kernels(given)
    value = duration(table)
    if is_distance:
        value = sa.func.abs(value - sa.cast(kernels.c[LIMIT], sa.BigInteger))
    selected = [*conditions(case), job_start(table) >= begins(bounds)]
    medians_by_index = medians(case.job.session, table.join(kernels, is_given), value, kernels.c[_NUMBER], selected)
    return {kernel: medians_by_index[index] for index, kernel in enumerate(given) if index in medians_by_index}


def given_kernels(limits: Mapping[Kernel, float]) -> tuple[Condition, sa.CTE]:
    """Return the condition that a row is of a given kernel, and the numbered kernels with `LIMIT` (ns)."""
    keys = [sa.column(key.name, key.type) for key in shape_columns()]
    columns = [sa.column(_NUMBER, sa.BigInteger), *keys, sa.column(LIMIT, sa.Double)]
    rows = [(number, kernel.name, *kernel.shape, limit) for number, (kernel, limit) in enumerate(limits.items())]
    given = sa.select(sa.values(*columns, name="given").data(rows)).cte("own")
    return sa.and_(*(key == given.c[key.name] for key in shape_columns())), given
