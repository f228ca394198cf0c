"""The open reports: their origin and ranks, their tables, and nsys's messages about the capture."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import COUNT, DURATION, HOST, Column, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection
from nsystui.base.text import few, which_of
from nsystui.base.types import Condition
from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.metadata import Metadata
from nsystui.questions.queries.conditions import matches, of_reports
from nsystui.questions.queries.recording import recording_advice
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import event_span, selected_reports
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

COLUMNS = (
    Column("report", header="Report", label="report"), Column("ranks", header="Ranks", label="ranks"),
    Column("rank_source", header="Ranks From", label="ranks from", importance=2),
    Column("nsys", header="nsys", label="nsys", importance=1),
    Column("schema", header="Schema", label="schema", importance=3), HOST.with_importance(1),
    Column("gpus", header="GPUs", label="GPUs", importance=1),
    Column("driver", header="Driver", label="driver", importance=4),
    Column("cuda", header="CUDA", label="CUDA", importance=4),
    Column("command", header="Command", label="command", importance=5),
    Column("started", header="Started (UTC)", label="started (UTC)", importance=3), DURATION.with_importance(1),
    Column("first_event", header="First Event (ns)", label="first event", unit=Unit.TIME, importance=6),
    Column("last_event", header="Last Event (ns)", label="last event", unit=Unit.TIME, importance=6),
    Column("graph_trace", header="CUDA Graph Trace", label="graph trace", importance=6),
    Column("json", header="JSON Included", label="JSON", importance=7),
    Column("blobs", header="Blobs Included", label="blobs", importance=7),
    Column("path", header="Path", label="path", importance=8),
)  # fmt: skip


def reports_table(session: Session, ranks: Sequence[RankedTask]) -> TableAnswer:
    """Tabulate the reports in the order of the command line, and each capture. Times of events are in job time, ns.

    ``gpus`` are the models of the GPUs that the report's tasks used, or if not recorded, of all GPUs of the host.
    ``graph_trace``: whether CUDA graphs were traced by ``node`` or as a whole (``graph``). The captured environment is
    not shown; ``rank_source`` shows whether rank numbers are from it.
    """
    rows = [
        _row(source, [item for item in ranks if item.task.report == report.index])
        for report in session.reports
        for source in report.sources
    ]
    notes = []
    for origin in dict.fromkeys(report.metadata.made_of for report in session.reports if report.metadata.made_of):
        names = [report.name for report in session.reports if report.metadata.made_of == origin]
        lacks = "no OS calls, CPU samples, scheduling, GPU or network metrics, and no calls of MPI"
        which = which_of(names, len(session.reports))
        notes.append(f"{which}: made of a {origin}, which has {lacks} (nsystui help exports)")
    return TableAnswer("reports", COLUMNS, rows, len(rows), tuple(notes))


def _row(report: Report, tasks: Sequence[RankedTask]) -> Row:
    facts = report.metadata
    span = event_span(report)
    models = Counter(
        filter(None, [name for item in tasks for name in item.gpu_names] or [gpu.name for gpu in facts.gpus])
    )
    gpus = ", ".join(model if count == 1 else f"{count}× {model}" for model, count in models.items())
    start = facts.session_start_utc
    started = None if start is None else datetime.fromtimestamp(start // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    texts = (facts.host, gpus, facts.driver_version, facts.cuda_version, facts.command)
    return (
        report.name,
        ",".join(str(item.rank) for item in tasks) or None,
        tasks[0].source if tasks else None,
        facts.nsys_version or facts.made_of or None,
        None if facts.made_of else facts.schema_version or None,
        *(text or None for text in texts),
        started,
        facts.duration,
        *((span.start, span.end) if span else (None, None)),
        facts.graph_trace_mode.lower() or None,
        _option_of_export(facts, facts.json_included),
        _option_of_export(facts, facts.blobs_included),
        str(report.path),
    )


def _option_of_export(facts: Metadata, is_given: bool) -> str | None:
    """Return yes or no, or ``None`` if `nsys export` did not make the file."""
    return None if facts.made_of else "yes" if is_given else "no"


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
    """Tabulate nsys's messages about the capture by text and severity, errors first, then warnings.

    ``time`` is the time of the first message, job time. The selection's reports and name filter (on the text) apply,
    but not its window and processes: a problem of a capture concerns all of it. The notes report lost events, which
    make all other tables' numbers too small.
    """
    reports = selected_reports(session, selection)
    table = tables.diagnostics
    is_of_reports = of_reports(table.c.report, {report.index for report in reports})
    name_conditions = [matches(table.c.text, selection.name)] if selection.name is not None else []
    names = {report.index: report.name for report in reports}
    messages = _messages(session, [is_of_reports, *name_conditions])
    rows: list[Row] = []
    for severity, count, report_count, report, time, text in messages:
        rows.append((severity, count, names[report] if report_count == 1 else f"{report_count} reports", time, text))
    all_messages = _messages(session, [is_of_reports]) if name_conditions else messages
    notes = []
    if lost := lost_events((level, text) for level, *_, text in all_messages):
        notes.append(f"events may be missing, so counts and times may be too low: {few(lost)}")
    if silent := [report.name for report in reports if not report.count(tables.diagnostics)]:
        notes.append(f"no diagnostics in {which_of(silent, len(reports))}: nsys 2024.4 and later write them")
    return TableAnswer("diagnostics", DIAGNOSTIC_COLUMNS, rows, len(all_messages), tuple(notes))


def _messages(session: Session, conditions: Sequence[Condition]) -> list[tuple[Any, ...]]:
    """Return (severity, count, reports, smallest report index, first time, text), worst first."""
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


def lost_events(messages: Iterable[tuple[Value, Value]]) -> list[str]:
    """Return the messages (severity, text) that report events missing from the export."""
    texts = (str(text or "").strip() for level, text in messages if level in ("Warning", "Error"))
    return [text for text in dict.fromkeys(texts) if _LOST.search(text)]


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
    """Tabulate the canonical event tables: rows in all reports, and number of reports with rows.

    ``first`` and ``last`` are the first start and the last end (or moment), job time, ns. ``record`` is the recording
    advice for reports without rows, if any.
    """
    rows: list[Row] = []
    for table in (table for table in canonical.TABLES if "row" in table.field_names):
        lacking = [report for report in session.reports if not report.count(table)]
        reports_with_rows = len(session.reports) - len(lacking)
        record = recording_advice(session, lacking, table).removeprefix("record with ") if lacking else None
        times = _times(session, table) if reports_with_rows else (None, None)
        rows.append((table.name, table.what, session.count(table), reports_with_rows, *times, record))
    return TableAnswer("contents", CONTENTS_COLUMNS, rows, len(rows))


def _times(session: Session, table: CanonicalTable) -> tuple[int | None, int | None]:
    columns = tables.METADATA.tables[table.name].c
    if not {"start", "time"} & set(table.field_names):
        return None, None
    start = columns.start if "start" in columns else columns.time
    # A range that was never closed has no end, but lasts at least to its start.
    end = sa.func.greatest(columns.end, start) if "end" in columns else start
    offset = columns.clock_offset
    ((first, last),) = session.rows(sa.select(sa.func.min(start + offset), sa.func.max(end + offset)))
    return first, last
