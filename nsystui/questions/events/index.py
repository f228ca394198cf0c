"""The time index of the event list; if everything is selected, from cached counts.

Events of each kind are counted in bins of a report's own clock. The bins depend on the other open reports: they are
cached with the counts; counts of other bins are ignored.
"""

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection
from nsystui.base.types import Expression, Ints, Query
from nsystui.questions.events.kinds import KIND_TABLES, EventKind, events_query
from nsystui.questions.queries.conditions import by_report, job_start, of_reports
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_index import TimeIndex
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session

_ROWS_PER_BIN = 200
_MAX_BINS = 1 << 16
_NO_EVENTS = TimeIndex.of_counts(0, 1, np.zeros(1, np.int64))


def event_index(
    session: Session, selection: Selection, kinds: Sequence[EventKind], ranks: Sequence[RankedTask]
) -> TimeIndex:
    """Count the selected events of ``kinds`` per bin of time."""
    if not kinds:
        return _NO_EVENTS
    if selection.is_everything:
        offsets = {report.index: report.clock_offset for report in session.reports}
        extents = [(offsets[index], *span) for kind in kinds for index, span in spans(session, kind).items()]
        if not extents:
            return _NO_EVENTS
        low = min(offset + first for offset, first, _, _ in extents)
        high = max(offset + last for offset, _, last, _ in extents)
        width = _width(low, high, sum(number for *_, number in extents))
        bins = (high - low) // width + 1
        counts = sum((counts_per_bin(session, kind, low, width, bins) for kind in kinds), np.zeros(bins, np.int64))
        return TimeIndex.of_counts(low, width, counts)
    starts = [job_start(KIND_TABLES[kind].table).label("start") for kind in kinds]
    parts = [
        events_query(kind, selection, ranks).with_only_columns(start) for kind, start in zip(kinds, starts, strict=True)
    ]
    rows = (sa.union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    low, high, number = session.rows(
        sa.select(sa.func.min(rows.c.start), sa.func.max(rows.c.start), sa.func.count()).select_from(rows)
    )[0]
    if not number:
        return _NO_EVENTS
    return TimeIndex.of_starts(session, rows.c.start, low, high, _width(low, high, number))


def count_all(session: Session, kind: EventKind) -> int:
    """Count the events of a kind in all reports."""
    source = KIND_TABLES[kind]
    if source.condition is None:
        return session.count(source.table)
    return sum(number for _, _, number in spans(session, kind).values())


def _width(low: int, high: int, number: int) -> int:
    return (high - low) // min(max(number // _ROWS_PER_BIN, 1), _MAX_BINS) + 1


def spans(session: Session, kind: EventKind) -> dict[int, tuple[int, int, int]]:
    """Return (first start, last start, number) of the events of a kind by report index, ns on the report's clock.

    Reports without such events are left out.
    """

    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        start = KIND_TABLES[kind].table.c.start
        query = _of_kind(kind, reports, sa.func.min(start), sa.func.max(start), sa.func.count())
        rows = {report: span for report, *span in part.rows(query.group_by(KIND_TABLES[kind].table.c.report))}
        return {report.index: {"span": np.array(rows.get(report.index, []), np.int64)} for report in reports}

    with_events = [report for report in session.reports if report.count(KIND_TABLES[kind].table)]
    stored = of_each_report(session, with_events, f"span-{kind.value}", compute, table=KIND_TABLES[kind].table)
    return {index: tuple(arrays["span"].tolist()) for index, arrays in stored.items() if len(arrays["span"])}


def counts_per_bin(session: Session, kind: EventKind, low: int, width: int, bins: int) -> Ints:
    """Count the events of a kind that start in each bin of ``width`` ns from ``low`` (job time); shape ``(bins,)``.

    Raises ``ValueError`` if an event starts before ``low``.
    """
    table, with_events = KIND_TABLES[kind].table, spans(session, kind)
    reports = [report for report in session.reports if report.index in with_events]
    grids = {report.index: [low - report.clock_offset, width, bins] for report in reports}

    def compute(part: Session, missing: list[Report]) -> dict[int, Arrays]:
        begin = by_report(table, {report.index: grids[report.index][0] for report in missing})
        bin_of_event = sa.func.divide(table.c.start - begin, width, type_=sa.BigInteger)
        first = sa.func.min(table.c.start - begin).label("first")
        query = _of_kind(kind, missing, bin_of_event.label("bin"), first, sa.func.count().label("events"))
        columns = part.arrays(query.group_by(table.c.report, sa.text("bin")))
        rows = {name: np.ma.getdata(column) for name, column in columns.items()}
        if len(rows["first"]) and rows["first"].min() < 0:
            raise ValueError("an event starts before the first bin")
        arrays_by_report: dict[int, Arrays] = {}
        for report in missing:
            is_of_report = rows["report"] == report.index
            counts = np.zeros(bins, np.int64)
            counts[rows["bin"][is_of_report]] = rows["events"][is_of_report]
            arrays_by_report[report.index] = {"grid": np.array(grids[report.index], np.int64), "counts": counts}
        return arrays_by_report

    arrays_by_report = of_each_report(
        session, reports, f"starts-{kind.value}", compute,
        lambda report, arrays: arrays["grid"].tolist() == grids[report.index], table=table,
    )  # fmt: skip
    return sum((arrays["counts"] for arrays in arrays_by_report.values()), np.zeros(bins, np.int64))


def _of_kind(kind: EventKind, reports: Sequence[Report], *columns: Expression) -> Query:
    source = KIND_TABLES[kind]
    report, start = source.table.c.report, source.table.c.start
    query = sa.select(report, *columns).where(of_reports(report, {item.index for item in reports}), start.is_not(None))
    return query if source.condition is None else query.where(source.condition)
