"""What the reports hold, and what nsys said of its own capture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import COUNT, Column, Unit
from nsystui.base.selection import Selection
from nsystui.base.text import few, which_of
from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable
from nsystui.questions.extent import selected_reports
from nsystui.questions.where import Condition, matches
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

DIAGNOSTIC_COLUMNS = (
    Column("severity", header="Severity", label="severity"),
    COUNT,
    Column("report", header="Report", label="report", importance=1),
    Column("time", header="First Time (ns)", label="first", unit=Unit.TIME, importance=2),
    Column("text", header="Text", label="text"),
)
_WARNING, _ERROR = 2, 3
_LOST = re.compile(r"\blost\b|\bdropp|\bnot all\b|overflow|incomplete|discarded|truncated", re.IGNORECASE)


def diagnostics_table(session: Session, selection: Selection) -> TableAnswer:
    """What nsys recorded about the capture: one row for each text and severity, errors first, then warnings.

    ``time`` is the first time it was said, in job time. Of the selection the reports of its tasks and the name filter
    apply (to the text): what went wrong with a capture concerns every window and every process of it. The notes tell
    of lost events, for then the numbers of every other table are too small.
    """
    reports = selected_reports(session, selection)
    table = tables.diagnostics
    of_reports = table.c.report.in_([report.index for report in reports])
    named = [matches(table.c.text, selection.name)] if selection.name is not None else []
    names = {report.index: report.name for report in reports}
    found = _said(session, [of_reports, *named])
    rows: list[Row] = []
    for severity, count, spread, report, time, text in found:
        rows.append((severity, count, names[report] if spread == 1 else f"{spread} reports", time, text))
    every = _said(session, [of_reports]) if named else found
    return TableAnswer("diagnostics", DIAGNOSTIC_COLUMNS, rows, len(every), tuple(_diagnostic_notes(reports, every)))


def _said(session: Session, conditions: Sequence[Condition]) -> list[tuple[Any, ...]]:
    """(severity, count, reports, one report, first time, text), worst first."""
    table = tables.diagnostics
    if not session.count(table):
        return []
    urgency = sa.case((table.c.severity == _ERROR, 0), (table.c.severity == _WARNING, 1), else_=2)
    first = sa.func.min(table.c.time + table.c.clock_offset)
    query = (
        sa.select(
            table.c.severity_name,
            sa.func.count(),
            sa.func.count(table.c.report.distinct()),
            sa.func.min(table.c.report),
            first,
            table.c.text,
        )
        .where(*conditions)
        .group_by(table.c.severity, table.c.severity_name, table.c.text)
        .order_by(urgency, first.nulls_last(), table.c.severity_name, table.c.text)
    )
    return list(session.rows(query))


def _diagnostic_notes(reports: Sequence[Report], said: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    lost = [text.strip() for level, *_, text in said if level in ("Warning", "Error") and _LOST.search(text or "")]
    if lost:
        yield f"events may be missing, so that counts and times are too small: {few(list(dict.fromkeys(lost)))}"
    silent = [report.name for report in reports if not report.count(tables.diagnostics)]
    if silent:
        yield f"no diagnostics in {which_of(silent, len(reports))}: nsys 2024.4 and later write them"


CONTENTS_COLUMNS = (
    Column("table", header="Table", label="table"),
    Column("what", header="What", label="what", importance=2),
    Column("rows", header="Rows", label="rows", unit=Unit.COUNT),
    Column("reports", header="Reports", label="reports", unit=Unit.COUNT, importance=3),
    Column("first", header="First (ns)", label="first", unit=Unit.TIME, importance=4),
    Column("last", header="Last (ns)", label="last", unit=Unit.TIME, importance=4),
    Column("record", header="To Record It", label="to record it", importance=1),
)


def contents_table(session: Session) -> TableAnswer:
    """One row for each canonical event table: its rows in all reports, and in how many reports it has any.

    ``first`` and ``last`` are the first start and the last end (or moment) in job time, ns. ``record`` says what to
    record where a report has none of it, and is missing where all have some.
    """
    rows = [_contents_row(session, table) for table in canonical.TABLES if "row" in table.field_names]
    return TableAnswer("contents", CONTENTS_COLUMNS, rows, len(rows))


def _contents_row(session: Session, table: CanonicalTable) -> Row:
    having = sum(report.count(table) > 0 for report in session.reports)
    record = table.record if having < len(session.reports) else None
    first, last = _times(session, table) if having else (None, None)
    return (table.name, table.what, session.count(table), having, first, last, record)


def _times(session: Session, table: CanonicalTable) -> tuple[int | None, int | None]:
    """The first and the last time of a table that has rows."""
    columns = tables.METADATA.tables[table.name].c
    start = columns.start if "start" in columns else columns.time
    # A range that was never closed has no end, and reaches at least to its start.
    end = sa.func.greatest(columns.end, start) if "end" in columns else start
    offset = columns.clock_offset
    ((first, last),) = session.rows(sa.select(sa.func.min(start + offset), sa.func.max(end + offset)))
    return first, last
