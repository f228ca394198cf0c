"""One clock for all reports of a job, and how good it is (docs/ranks.md#clock)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import sqlalchemy as sa

from nsystui.base.columns import Unit
from nsystui.base.units import format_value
from nsystui.questions.collectives.clock import ENDING_TOGETHER, ClockFit, fit_clock
from nsystui.questions.collectives.matched import match
from nsystui.questions.collectives.sequences import STREAM_COLUMNS, stream_sequences
from nsystui.questions.extent import shares_clock
from nsystui.store import tables
from nsystui.store.report import Clock, Report, aligned
from nsystui.store.session import Session


class ClockMode(Enum):
    """What puts the reports on one clock: UTC and then collectives, UTC alone, or nothing (each from its own start)."""

    COLLECTIVES = "collectives"
    UTC = "utc"
    OWN = "own"


@dataclass(frozen=True)
class Alignment:
    """How the reports of a session were put on one clock. ``fit`` is empty unless collectives told."""

    mode: ClockMode = ClockMode.UTC
    fit: ClockFit = field(default_factory=ClockFit)

    def words(self, reports: Sequence[Report]) -> str:
        """``clock: UTC, then 2,208 collectives: residual 14 µs``; empty where there is one report only."""
        if len(reports) < 2:
            return ""
        if self.mode is ClockMode.OWN:
            return "clock: not aligned, each report counts from its own start"
        if not shares_clock(reports):
            return "clock: the reports lie on no common one"
        if self.mode is ClockMode.UTC:
            return "clock: UTC of the hosts, which may be milliseconds apart"
        if not self.fit.shifts:
            kinds = " or ".join(ENDING_TOGETHER)
            return (
                f"clock: UTC of the hosts, which may be milliseconds apart (no {kinds} of several reports to refine it)"
            )
        number = self.fit.collectives
        told = f"{number:,} collective" + ("" if number == 1 else "s")
        error = "not known" if self.fit.error is None else format_value(Unit.DURATION, self.fit.error)
        rest = len(reports) - len(self.fit.shifts)
        only_utc = f"; UTC only for {rest} of {len(reports)} reports" if rest else ""
        return f"clock: UTC, then {told}: residual {error}{only_utc}"


def columns_read() -> dict[sa.Table, tuple[str, ...]]:
    """The columns that ``align`` reads where collectives are to tell."""
    return {tables.kernels: STREAM_COLUMNS}


def align(session: Session, mode: ClockMode) -> Alignment:
    """Puts the reports of a session on one clock, and tells how."""
    if mode is ClockMode.OWN:
        session.set_clock(Clock(is_common=False))
        return Alignment(mode)
    fit = ClockFit()
    on_utc = aligned(session.reports)
    if mode is ClockMode.COLLECTIVES and len(on_utc) > 1 and shares_clock(on_utc):
        fit = fit_clock(match(stream_sequences(session, on_utc)).groups)
    session.set_clock(Clock(shifts=fit.shifts))
    return Alignment(mode, fit)
