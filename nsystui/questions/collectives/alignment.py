"""One clock for all reports of a job, from UTC and from collectives, and its residual error (docs/ranks.md#clock).

A synchronous collective of all ranks ends at the same time on each, within microseconds inside a machine and tens of
microseconds over a network. If a report's ends are later than the mean of all reports, its clock is ahead by as much.
The median over the collectives ignores a few disturbed collectives. If the difference grows with time, the clocks drift
(`clock_rates`): this is corrected first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from nsystui.base.answer import Unit
from nsystui.base.text import counted
from nsystui.base.types import Floats
from nsystui.base.units import format_value
from nsystui.questions.collectives.matching import (
    FEWEST_TO_DECIDE,
    STREAM_COLUMNS,
    MatchedCollectives,
    clock_rates,
    match,
    stream_sequences,
)
from nsystui.questions.queries.time_window import shares_clock
from nsystui.store.report import Clock, Report, aligned
from nsystui.store.session import Session

ENDING_TOGETHER = ("AllReduce", "AllGather")
"""Collectives that no rank can leave before the last rank has contributed."""

_APART = 1_000_000
"""The least reported distance of the hosts' clocks, ns: UTC by NTP is exact to about 1 ms."""
_PPM = 1e-6


@dataclass(frozen=True)
class ClockFit:
    """The clocks according to ``collectives`` collectives, by the indices of reports that took part.

    Corrected times are ``time × (1 + rate) + shift``, ns; ``rates`` contain only clocks that drift. ``errors``: the
    corrected ends' median deviation from the mean, ns; missing with a single collective.
    """

    shifts: Mapping[int, int] = field(default_factory=dict)
    errors: Mapping[int, int] = field(default_factory=dict)
    collectives: int = 0
    rates: Mapping[int, float] = field(default_factory=dict)

    def _with(self, reports: Sequence[int], rates: Floats, skew: Floats, deviations: Floats) -> ClockFit:
        """Return the fit with reports ahead by ``skew``, ns."""
        residual = np.median(np.abs(deviations - np.median(deviations, axis=1, keepdims=True)), axis=1)
        errors = zip(reports, np.rint(residual).astype(int).tolist(), strict=True) if deviations.shape[1] > 1 else ()
        drifting = {report: rate for report, rate in zip(reports, rates.tolist(), strict=True) if rate}
        shifts = dict(zip(reports, (-np.rint(skew).astype(np.int64)).tolist(), strict=True))
        return ClockFit(
            {**self.shifts, **shifts}, {**self.errors, **dict(errors)}, self.collectives, {**self.rates, **drifting}
        )

    @property
    def error(self) -> int | None:
        """The largest error, ns."""
        return max(self.errors.values(), default=None)

    @property
    def words(self) -> str:
        """The residual, and the corrected offset and drift."""
        residual = "residual " + ("not known" if self.error is None else format_value(Unit.DURATION, self.error))
        gap = max(self.shifts.values()) - min(self.shifts.values())
        apart = f"were up to {format_value(Unit.DURATION, gap)} apart" * (gap >= _APART)
        if self.rates:
            drift = f"drifted by up to {np.ptp([0.0, *self.rates.values()]) / _PPM:.3g} ppm, which is corrected"
            apart = f"{apart} at first and {drift}" if apart else drift
        unknown = "; a drift of the clocks could not be estimated" * (not self.rates and (self.error or 0) >= _APART)
        return residual + (f"; the hosts' clocks {apart}" if apart else "") + unknown


def fit_clock(groups: Sequence[MatchedCollectives]) -> ClockFit:
    """Return the shifts and rates that make the ends of collectives coincide.

    Fits the largest set of reports first, then reports that share collectives with these.
    """
    usable = [group for group in groups if len(group.reports) > 1 and _end_together(group).any()]
    if not usable:
        return ClockFit()
    widest = max((group.reports for group in usable), key=lambda reports: (len(reports), sorted(reports)))
    reports = sorted(widest)
    ends = np.hstack([_ends(group, reports) for group in usable if group.reports == widest])
    rates = clock_rates(ends[0], ends)
    # The first report with the median rate keeps its clock: rounding makes rates equal.
    median = np.abs(rates[:, None] - rates).sum(axis=1).round(7).argmin()
    rates = clock_rates(ends[median], ends)
    deviations = ends - ends.min(axis=0) + rates[:, None] * ends
    deviations -= deviations.mean(axis=0)
    skew = np.median(deviations, axis=1)
    # The shifts add up to 0: the job as a whole is not moved.
    fit = ClockFit(collectives=ends.shape[1])._with(reports, rates, skew - skew.mean(), deviations)
    others = sorted(usable, key=lambda group: -_end_together(group).sum())
    while group := next(
        (group for group in others if 0 < len(group.reports & fit.shifts.keys()) < len(group.reports)), None
    ):
        others.remove(group)
        known, reports = sorted(group.reports & fit.shifts.keys()), sorted(group.reports - fit.shifts.keys())
        ends, right = _ends(group, reports), _ends(group, known)
        drifts, shifts = (np.array([values.get(report, 0) for report in known]) for values in (fit.rates, fit.shifts))
        right = (right + drifts[:, None] * right + shifts[:, None]).mean(axis=0)
        rates = clock_rates(right, ends)
        deviations = ends - right + rates[:, None] * ends
        joined = fit._with(reports, rates, np.median(deviations, axis=1), deviations)
        if len(right) >= FEWEST_TO_DECIDE and (joined.error or 0) <= max(fit.error or 0, _APART):
            fit = joined
    return fit


def _end_together(group: MatchedCollectives) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(group.collective.astype(str), ENDING_TOGETHER)


def _ends(group: MatchedCollectives, reports: Sequence[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the ends of the collectives in each report, the mean over its members; shape ``(reports, n)``."""
    member_reports = np.array([member.task.report for member in group.members])
    # Floats are exact to the ns within 100 days.
    ends = group.end[:, _end_together(group)].astype(np.float64)
    return np.stack([ends[member_reports == report].mean(axis=0) for report in reports])


class ClockMode(Enum):
    """The alignment to make: UTC refined by collectives, UTC alone, or each report from its own start."""

    COLLECTIVES = "collectives"
    UTC = "utc"
    OWN = "own"


@dataclass(frozen=True)
class Alignment:
    """The alignment of a session's reports; ``fit`` is empty unless collectives were used."""

    mode: ClockMode = ClockMode.UTC
    fit: ClockFit = field(default_factory=ClockFit)

    def words(self, reports: Sequence[Report]) -> str:
        """Return ``clock: UTC, refined by 2,208 collectives, residual 14 µs``, or nothing for a single report."""
        if len(reports) < 2:
            return ""
        if self.mode is ClockMode.OWN:
            return "clock: not aligned, each report counts from its own start"
        if not shares_clock(reports):
            return "clock: the reports have no common clock"
        if self.mode is ClockMode.UTC:
            return "clock: UTC of the hosts, which may be milliseconds apart"
        if not self.fit.shifts:
            kinds = " or ".join(ENDING_TOGETHER)
            return (
                f"clock: UTC of the hosts, which may be milliseconds apart (the reports share no {kinds} to refine it)"
            )
        collectives = counted(self.fit.collectives, "collective")
        unaligned = len(reports) - len(self.fit.shifts)
        only_utc = f"; UTC only for {counted(unaligned, 'report', among=len(reports))}" if unaligned else ""
        return f"clock: UTC, refined by {collectives}, {self.fit.words}{only_utc}"


def columns_read() -> dict[str, tuple[str, ...]]:
    """Return the columns that ``align`` reads if it uses collectives."""
    return {"kernels": STREAM_COLUMNS}


def align(session: Session, mode: ClockMode) -> Alignment:
    """Align the clocks of a session's reports, and return how."""
    if mode is ClockMode.OWN:
        session.set_clock(Clock(is_common=False))
        return Alignment(mode)
    if session.clock.rates:  # sequences must not contain an earlier correction
        session.set_clock(Clock())
    fit = ClockFit()
    on_utc = aligned(session.reports)
    if mode is ClockMode.COLLECTIVES and len(on_utc) > 1 and shares_clock(on_utc):
        fit = fit_clock(match(stream_sequences(session, on_utc)).groups)
    # The fit is in job time, and the rate of a report applies to its own time.
    turned = {item.index: round(fit.rates.get(item.index, 0.0) * item.clock_offset) for item in on_utc}
    shifts = {index: shift + turned[index] for index, shift in fit.shifts.items()}
    session.set_clock(Clock(shifts=shifts, rates=fit.rates))
    return Alignment(mode, fit)
