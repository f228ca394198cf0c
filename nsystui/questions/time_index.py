"""Where the rows of a page lie in time: the n-th row of millions, without sorting or reading those before it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from nsystui.questions.conditions import job_start
from nsystui.store.session import Session

_SPANS = 4096


class Span(NamedTuple):
    """A span of job time, ``None`` for no end, that holds the rows of a page; ``before`` rows start earlier."""

    low: int | None
    high: int | None
    before: int


@dataclass(frozen=True, eq=False)
class TimeIndex:
    """How many of the rows of ``table`` under some conditions start in each of many equal spans of job time.

    ``query`` selects from ``table``; it is asked once, when the first page is.
    """

    session: Session
    table: sa.Table
    query: sa.Select[Any]

    @cached_property
    def _grid(self) -> tuple[int, int]:
        """Where the spans begin and how wide they are, ns: about the extent of the reports. Others fit in as well."""
        facts = [(report.packed, report.clock_offset) for report in self.session.reports]
        firsts = [known.first_event + offset for known, offset in facts if known.first_event is not None]
        lasts = [known.last_event + offset for known, offset in facts if known.last_event is not None]
        low, high = min(firsts, default=0), max(lasts, default=0)
        return low, max(-(-(high - low + 1) // _SPANS), 1)

    @cached_property
    def _before(self) -> list[int]:
        """How many rows start before each span, and in the end how many there are."""
        low, width = self._grid
        place = sa.func.divide(job_start(self.table) - low, width, type_=sa.BigInteger)
        span = sa.func.greatest(0, sa.func.least(_SPANS - 1, place))
        counted = self.query.with_only_columns(span.label("span"), sa.func.count()).group_by(sa.text("span"))
        counts = {int(number): int(count) for number, count in self.session.rows(counted) if number is not None}
        before = [0]
        for number in range(_SPANS):
            before.append(before[-1] + counts.get(number, 0))
        return before

    @property
    def rows(self) -> int:
        """How many rows have a start."""
        return self._before[-1]

    def span(self, first: int, last: int) -> Span:
        """The span of the rows ``first`` to ``last - 1`` in order of start, of which there must be some."""
        from bisect import bisect_left, bisect_right

        low, width = self._grid
        start = min(bisect_right(self._before, first) - 1, _SPANS - 1)
        end = max(bisect_left(self._before, last), start + 1)
        return Span(
            low + start * width if start > 0 else None,
            low + end * width if end < _SPANS else None,
            self._before[start],
        )

    def rows_after(self, span: Span) -> int:
        """How many rows start behind a span of this index."""
        low, width = self._grid
        return 0 if span.high is None else self.rows - self._before[(span.high - low) // width]

    def within(self, query: sa.Select[Any], span: Span) -> sa.Select[Any]:
        """``query``, a select from the table, for the rows in a span."""
        offsets = [report.clock_offset for report in self.session.reports]
        starts = self.table.c.start
        if span.low is not None:
            # The bound without the offset, which differs from report to report, lets Parquet skip what is before.
            query = query.where(starts >= span.low - max(offsets), job_start(self.table) >= span.low)
        if span.high is not None:
            query = query.where(starts < span.high - min(offsets), job_start(self.table) < span.high)
        return query
