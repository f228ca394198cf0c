"""How the launches of a kernel scatter: their median, and the median of how far they are from it (MAD).

Neither minds the outliers themselves, however large they are, as a mean and a standard deviation would. Both are exact,
over all launches of the kernel on all GPUs, and looked for of the kernels in question alone: it takes four passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nsystui.analysis.medians import medians
from nsystui.analysis.triage.case import Case
from nsystui.analysis.triage.kernel_times import Kernel, begins, conditions, part_bounds, shape_columns
from nsystui.analysis.where import duration, job_start
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
