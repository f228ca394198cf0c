"""The time index of a list: the number of its rows that start in each bin of time.

It finds the n-th of millions of rows without a sort: only a page's bins are read, and Parquet skips all others. The
event list and the paged tables share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Window
from nsystui.base.types import Condition, Expression, Ints, Query
from nsystui.questions.queries.conditions import job_start, starts_within
from nsystui.questions.queries.time_window import event_span
from nsystui.store.session import Session

ByTable = Callable[[sa.Table], list[Condition]]
"""Conditions that apply to any table of events."""

_BINS = 4096


@dataclass(frozen=True, eq=False)
class TimeIndex:
    """Bins of ``width`` ns of job time from ``low`` on; the first and the last bin also hold earlier and later starts.

    ``before``, shape ``(bins + 1,)``: the number of rows that start before each bin, then the number of all rows.
    """

    low: int
    width: int
    before: Ints

    @classmethod
    def of_counts(cls, low: int, width: int, counts: Ints) -> TimeIndex:
        """Index rows by the ``counts`` that start in each bin; shape ``(bins,)``, at least one bin."""
        return cls(low, width, np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))))

    @classmethod
    def of_table(cls, session: Session, table: sa.Table, query: Query) -> TimeIndex:
        """Index the rows of ``query``, which selects from ``table``, over the time of the reports' events."""
        spans = [span for report in session.reports if (span := event_span(report)) is not None] or [Window(0, 0)]
        low, high = min(span.start for span in spans), max(span.end for span in spans)
        width = max(-(-(high - low + 1) // _BINS), 1)
        bin_number = sa.func.divide(job_start(table) - low, width, type_=sa.BigInteger)
        number = sa.func.greatest(0, sa.func.least(_BINS - 1, bin_number)).label("bin")
        counted = query.with_only_columns(number, sa.func.count()).group_by(sa.text("bin"))
        return cls.of_counts(low, width, _filled(session, counted, _BINS))

    @classmethod
    def of_starts(cls, session: Session, starts: sa.ColumnElement[int], low: int, high: int, width: int) -> TimeIndex:
        """Index rows by ``starts``, job time, all in ``[low, high]``."""
        number = sa.func.divide(starts - low, width, type_=sa.BigInteger).label("bin")
        columns: list[Expression] = [number, sa.func.count()]
        counted = sa.select(*columns).group_by(number)
        return cls.of_counts(low, width, _filled(session, counted, (high - low) // width + 1))

    @property
    def bins(self) -> int:
        """The number of bins."""
        return len(self.before) - 1

    @property
    def rows(self) -> int:
        """The number of rows with a start."""
        return int(self.before[-1])

    def bins_of(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of bins that holds rows ``first`` to ``last - 1``, at least one row."""
        start = min(int(np.searchsorted(self.before, first, "right")) - 1, self.bins - 1)
        return start, max(int(np.searchsorted(self.before, last, "left")), start + 1)

    def bin_at(self, moment: int) -> int:
        """Return the bin that holds ``moment``, job time, ns; it may lie outside of 0 to ``bins - 1``."""
        return (moment - self.low) // self.width

    def start_of(self, number: int) -> int:
        """Return the start of a bin, job time, ns."""
        return self.low + number * self.width

    def within(self, first: int, last: int) -> ByTable:
        """Return the conditions that a row starts in bins ``first`` to ``last - 1``."""
        low = None if first <= 0 else self.start_of(first)
        return self.starting(low, None if last >= self.bins else self.start_of(last))

    def starting(self, low: int | None, high: int | None) -> ByTable:
        """Return the conditions that a row starts in ``[low, high)`` of job time; ``None`` is no bound."""
        return lambda table: starts_within(table, low, high)


def _filled(session: Session, counted: Query, bins: int) -> Ints:
    """Return the rows per bin, shape ``(bins,)``, of a query for bins and their counts."""
    counts = np.zeros(bins, np.int64)
    for number, count in session.rows(counted):
        if number is not None:
            counts[number] = count
    return counts
