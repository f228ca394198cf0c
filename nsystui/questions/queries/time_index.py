"""The time index of a list: how many of its rows start in each bin of time.

It finds the n-th of millions of rows without sorting or reading those before it: only the bins that hold a page are
read, and Parquet skips the rest. The event list and the paged tables share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.questions.queries.conditions import Condition, job_start
from nsystui.store.session import Session

Counts = NDArray[np.int64]

ByTable = Callable[[sa.Table], list[Condition]]
"""Conditions that are alike for every table of events."""

_BINS = 4096


@dataclass(frozen=True, eq=False)
class TimeIndex:
    """Bins of ``width`` ns of job time from ``low`` on; the first and the last hold what starts outside of them too.

    ``before``, shape ``(bins + 1,)``: how many rows start before each bin, and in the end how many there are.
    ``offsets``: the clock offsets of the reports, ns.
    """

    low: int
    width: int
    before: Counts
    offsets: Sequence[int] = (0,)

    @classmethod
    def of_counts(cls, session: Session, low: int, width: int, counts: Counts) -> TimeIndex:
        """The index of rows of which ``counts`` start in each bin; shape ``(bins,)``, at least one."""
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        return cls(low, width, before, [report.clock_offset for report in session.reports] or [0])

    @classmethod
    def of_table(cls, session: Session, table: sa.Table, query: sa.Select[Any]) -> TimeIndex:
        """The index of the rows of ``query``, which selects from ``table``, over about the time of the reports."""
        facts = [(report.packed, report.clock_offset) for report in session.reports]
        firsts = [known.first_event + offset for known, offset in facts if known.first_event is not None]
        lasts = [known.last_event + offset for known, offset in facts if known.last_event is not None]
        low, high = min(firsts, default=0), max(lasts, default=0)
        width = max(-(-(high - low + 1) // _BINS), 1)
        place = sa.func.divide(job_start(table) - low, width, type_=sa.BigInteger)
        number = sa.func.greatest(0, sa.func.least(_BINS - 1, place)).label("bin")
        counted = query.with_only_columns(number, sa.func.count()).group_by(sa.text("bin"))
        return cls.of_counts(session, low, width, _filled(session, counted, _BINS))

    @classmethod
    def of_starts(cls, session: Session, starts: sa.ColumnElement[int], low: int, high: int, width: int) -> TimeIndex:
        """The index of rows that start at ``starts`` (job time), the first at ``low`` and the last at ``high``."""
        number = sa.func.divide(starts - low, width, type_=sa.BigInteger).label("bin")
        columns: list[sa.ColumnElement[Any]] = [number, sa.func.count()]
        counted = sa.select(*columns).group_by(number)
        return cls.of_counts(session, low, width, _filled(session, counted, (high - low) // width + 1))

    @property
    def bins(self) -> int:
        """The number of bins."""
        return len(self.before) - 1

    @property
    def rows(self) -> int:
        """The number of rows that have a start."""
        return int(self.before[-1])

    def bins_of(self, first: int, last: int) -> tuple[int, int]:
        """The half-open range of bins that holds the rows ``first`` to ``last - 1``, of which there must be some."""
        start = min(int(np.searchsorted(self.before, first, "right")) - 1, self.bins - 1)
        return start, max(int(np.searchsorted(self.before, last, "left")), start + 1)

    def bin_at(self, moment: int) -> int:
        """The bin that holds ``moment``, job time in ns; it may lie outside of 0 to ``bins - 1``."""
        return (moment - self.low) // self.width

    def start_of(self, number: int) -> int:
        """When a bin starts, job time in ns."""
        return self.low + number * self.width

    def within(self, first: int, last: int) -> ByTable:
        """The condition that a row starts in the bins from ``first`` to before ``last``."""
        low = None if first <= 0 else self.start_of(first)
        high = None if last >= self.bins else self.start_of(last)
        return self.starting(low, high)

    def starting(self, low: int | None, high: int | None) -> ByTable:
        """The condition that a row starts in ``[low, high)`` of job time; ``None`` for no bound."""
        offsets = self.offsets

        def conditions(table: sa.Table) -> list[Condition]:
            start, offset = table.c.start, table.c.clock_offset
            found: list[Condition] = []
            # The bounds without the offset say less where clocks differ, but are constants: only such bounds let
            # Parquet skip row groups.
            if low is not None:
                found.append(start >= low - max(offsets))
            if high is not None:
                found.append(start < high - min(offsets))
            if len(set(offsets)) > 1:
                found += [start >= low - offset] if low is not None else []
                found += [start < high - offset] if high is not None else []
            return found

        return conditions


def _filled(session: Session, counted: sa.Select[Any], bins: int) -> Counts:
    """The rows of each bin, of a query for bins and their counts."""
    counts = np.zeros(bins, np.int64)
    for number, count in session.rows(counted):
        if number is not None:
            counts[number] = count
    return counts
