"""The time window of a question: the user's, or the span of job time that is shown without one.

Times are ns on the job's clock (a report's own time plus its ``clock_offset``). A session may be far longer than what
was recorded in it (a capture of 0.3 s in a run of two minutes), so the default is to fit the events
(docs/exports.md#time).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from nsystui.base.selection import Selection, Window
from nsystui.exports import canonical
from nsystui.store.report import Report, has_span
from nsystui.store.session import Session

_WORK = tuple(table.name for table in canonical.TABLES if has_span(table) and table is not canonical.OS_CALLS)


def recorded(report: Report) -> Window:
    """The whole session of a report: from 0, or its first event if that is earlier, to its duration or last event.

    Events may start slightly before 0 and end after the duration (docs/exports.md#time). Empty where the export says
    neither.
    """
    start = min(0, report.packed.first_event or 0)
    end = max(start, report.metadata.duration or 0, report.packed.last_event or 0)
    return Window(start + report.clock_offset, end + report.clock_offset)


def event_span(report: Report) -> Window | None:
    """The span from the first event of a report to the end of its last; ``None`` where it has none.

    Samples and diagnostics are no events: they do not stretch it.
    """
    first, last = report.packed.first_event, report.packed.last_event
    if first is None or last is None:
        return None
    return Window(first + report.clock_offset, max(first, last) + report.clock_offset)


def selected_reports(session: Session, selection: Selection) -> list[Report]:
    """The reports of the selected tasks; all of them where no tasks are selected."""
    if selection.tasks is None:
        return list(session.reports)
    wanted = {task.report for task in selection.tasks}
    return [report for report in session.reports if report.index in wanted]


def edges_of(window: Window, bins: int) -> list[int]:
    """The ``bins + 1`` edges of equal spans of a window, ns, rounded down."""
    width = window.end - window.start
    return [window.start + number * width // bins for number in range(bins + 1)]


def report_at(session: Session, index: int) -> Report:
    """The open report with this index. Raises KeyError where there is none."""
    reports = session.reports
    place = bisect_left(reports, index, key=lambda report: report.index)
    if place == len(reports) or reports[place].index != index:
        raise KeyError(f"report {index} is not open")
    return reports[place]


def extent(session: Session, selection: Selection, fit: bool = True) -> Window:
    """The selection's window; without one, the span of the selected tasks' reports.

    ``fit`` takes the span of their events, of OS runtime calls only where no report has others, and their sessions only
    where there is no event at all; without ``fit`` it is the span of their sessions. Every rank has the same extent, so
    that shares of it compare (docs/numbers.md#conventions). ``Window(0, 0)`` where no report is open.
    """
    if selection.window is not None:
        return selection.window
    reports = selected_reports(session, selection)
    working = [report for report in reports if any(map(report.packed.max_rows, _WORK))] or reports
    spans = [span for report in working if fit and (span := event_span(report)) is not None]
    spans = spans or [recorded(report) for report in reports] or [Window(0, 0)]
    return Window(min(span.start for span in spans), max(span.end for span in spans))


def extents(session: Session, selection: Selection) -> dict[int, Window]:
    """The window in which each report (by index) is judged.

    That is ``extent`` for every report of one job. Reports that share no clock, two runs opened side by side, are
    judged each over its own events, for a span from one run to the other would mean nothing.
    """
    reports = selected_reports(session, selection)
    if selection.window is not None or shares_clock(reports):
        window = extent(session, selection)
        return {report.index: window for report in reports}
    return {report.index: event_span(report) or recorded(report) for report in reports}


def shares_clock(reports: Sequence[Report]) -> bool:
    """Whether the times of these reports lie on one clock: one report, or all aligned (docs/ranks.md#clock)."""
    return len(reports) <= 1 or all(report.on_job_clock for report in reports)
