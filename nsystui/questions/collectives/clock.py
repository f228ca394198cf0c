"""One clock from the collectives that all ranks took part in (docs/ranks.md#clock).

Such a collective ends at the same time on every rank, within microseconds inside a machine and tens of microseconds
over a network. How much later a report's clock says that they end than the mean of all is how much it is ahead; the
median over the collectives does not mind a few that were disturbed. (``nsys_jax`` of JAX's toolbox does the same.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nsystui.questions.collectives.matched import MatchedCollectives

ENDING_TOGETHER = ("AllReduce", "AllGather")
"""Collectives that no rank can leave before the last one has brought its part."""


@dataclass(frozen=True)
class ClockFit:
    """What the collectives say of the clocks.

    ``shifts``: ns to add to the times of a report, by its index; only of those that took part. ``errors``: the median
    deviation of a report's ends from the mean after that, ns; missing where only one collective was there to tell.
    ``collectives``: how many were used.
    """

    shifts: Mapping[int, int] = field(default_factory=dict)
    errors: Mapping[int, int] = field(default_factory=dict)
    collectives: int = 0

    @property
    def error(self) -> int | None:
        """The largest of the errors, ns."""
        return max(self.errors.values(), default=None)


def fit_clock(groups: Sequence[MatchedCollectives]) -> ClockFit:
    """The shifts that make the ends of collectives coincide.

    Those are used in which most reports took part; without any of two reports there is nothing to shift.
    """
    usable = [group for group in groups if len(group.reports) > 1 and _kinds(group).any()]
    if not usable:
        return ClockFit()
    widest = max((group.reports for group in usable), key=lambda reports: (len(reports), sorted(reports)))
    reports = sorted(widest)
    ends = np.hstack([_ends(group, reports) for group in usable if group.reports == widest])
    off = ends - ends.mean(axis=0)
    skew = np.median(off, axis=1)
    count = ends.shape[1]
    rest = np.median(np.abs(off - skew[:, None]), axis=1)
    errors = dict(zip(reports, np.rint(rest).astype(int).tolist(), strict=True)) if count > 1 else {}
    # The job as a whole is not moved: what one report gains the others lose.
    shifts = -np.rint(skew - skew.mean()).astype(np.int64)
    return ClockFit(dict(zip(reports, shifts.tolist(), strict=True)), errors, count)


def _kinds(group: MatchedCollectives) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(group.collective.astype(str), ENDING_TOGETHER)


def _ends(group: MatchedCollectives, reports: Sequence[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """When the collectives ended in each report, shape ``(reports, n)``: the mean of its members."""
    of_member = np.array([member.task.report for member in group.members])
    # From a near moment: a float holds differences to the ns, but not the hours since the start.
    ends = (group.end - group.end.min(axis=0))[:, _kinds(group)].astype(np.float64)
    return np.stack([ends[of_member == report].mean(axis=0) for report in reports])
