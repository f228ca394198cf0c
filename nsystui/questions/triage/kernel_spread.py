"""How the launches of a kernel scatter: their median, and the median of how far they are from it (MAD).

Neither minds the outliers themselves, however large they are, as a mean and a standard deviation would. Both are exact,
over all launches of the kernel on all GPUs, and take four passes: `tails` says in one of which kernels it pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.questions.algebra.distributions import CLASSES_PER_OCTAVE, class_of, medians
from nsystui.questions.conditions import duration, job_start
from nsystui.questions.triage.case import Case
from nsystui.questions.triage.kernel_times import Kernel, begins, conditions, part_bounds, shape_columns
from nsystui.store import tables

_NORMAL = 0.6745
"""Of values that are spread normally MAD is so many standard deviations."""
_NUMBER, _LIMIT = "number", "least"


@dataclass(frozen=True)
class Spread:
    """The median and the MAD of a kernel's durations, ns."""

    median: float
    mad: float

    def above(self, times: float, score: float) -> float:
        """From how many ns on a launch takes ``times`` the median, and has a modified z-score of ``score``.

        That is 0.6745 · (x − median) / MAD (Iglewicz and Hoaglin 1993), as ranks are judged by (`ranks.oddity`).
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
        """No less than what is over the median of the launches above `Spread.above`, ns in sum.

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
        certain = low >= Spread(most, farthest).above(times, score)
        if self.count[certain].sum() > rare * self.count.sum():
            return 0.0
        possible = high > Spread(least, nearest).above(times, score)
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
    """What `Classes.tail` says of each kernel."""
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
    rows = case.job.session.arrays(query)
    found = {}
    for place, kernel in enumerate(kernels):
        of_kernel = rows[_NUMBER] == place
        if of_kernel.any():
            classes = Classes(*(np.asarray(rows[key][of_kernel], np.int64) for key in ("class", "count", "total")))
            found[kernel] = classes.tail(times, score, rare)
    return found


def spreads(case: Case, kernels: Sequence[Kernel]) -> dict[Kernel, Spread]:
    """The spread of each of some kernels, from the first step on, without those that have no launch."""
    middles = _medians(case, dict.fromkeys(kernels, 0.0))
    off = _medians(case, {kernel: round(middle) for kernel, middle in middles.items()}, is_distance=True)
    return {kernel: Spread(middle, off[kernel]) for kernel, middle in middles.items()}


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
