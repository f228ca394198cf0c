"""The time window of a question: the user's, or by default the span of the events in job time.

Times are ns on the job's clock (`Report.job_time`). A session may be far longer than its events, such as a capture of
0.3 s in a run of two minutes, so the default fits the events (docs/exports.md#time).
"""

from bisect import bisect_left
from collections.abc import Sequence

from nsystui.base.selection import Selection, Window
from nsystui.exports import canonical
from nsystui.store.report import Report, has_span
from nsystui.store.session import Session

_CUDA = ("kernels", "memory_ops", "graph_launches", "api_calls")
_WORK = tuple(table.name for table in canonical.TABLES if has_span(table) and table is not canonical.OS_CALLS)


def recorded(report: Report) -> Window:
    """Return the whole session: from 0, or its first event if earlier, to its duration or last event.

    Events may start slightly before 0 and end after the duration (docs/exports.md#time). The window is empty if neither
    is recorded.
    """
    start = min(0, report.packed.first_event or 0)
    end = max(start, report.metadata.duration or 0, report.packed.last_event or 0)
    return Window(report.job_time(start), report.job_time(end))


def event_span(report: Report) -> Window | None:
    """Return the span from the first event of a report to the end of its last event, if any.

    Samples and diagnostics do not extend it; OS runtime calls extend it only if there are no other events.
    """
    first, last = report.packed.first_event, report.packed.last_event
    if first is None or last is None:
        return None
    return Window(report.job_time(first), report.job_time(max(first, last)))


def selected_reports(session: Session, selection: Selection) -> list[Report]:
    """Return the reports of the selected tasks, by default all."""
    if selection.tasks is None:
        return list(session.reports)
    indices = {task.report for task in selection.tasks}
    return [report for report in session.reports if report.index in indices]


def edges_of(window: Window, bins: int) -> list[int]:
    """Return the ``bins + 1`` edges of equal spans of a window, ns, rounded down."""
    width = window.end - window.start
    return [window.start + number * width // bins for number in range(bins + 1)]


def report_at(session: Session, index: int) -> Report:
    """Return the open report with an index. Raises KeyError if it is not open."""
    reports = session.reports
    position = bisect_left(reports, index, key=lambda report: report.index)
    if position == len(reports) or reports[position].index != index:
        raise KeyError(f"report {index} is not open")
    return reports[position]


def extent(session: Session, selection: Selection, fit: bool = True) -> Window:
    """Return the selection's window, or else the span of the selected tasks' reports.

    With ``fit`` it is the span of the events of reports with CUDA events, else with any, else with OS runtime calls; of
    the sessions only without any events. Without ``fit`` it is the span of their sessions. All ranks have the same
    extent, so their shares are comparable (docs/numbers.md#conventions). ``Window(0, 0)`` if no report is open.
    """
    if selection.window is not None:
        return selection.window
    reports = selected_reports(session, selection)
    with_rows = ([report for report in reports if any(map(report.packed.max_rows, names))] for names in (_CUDA, _WORK))
    working = next(filter(None, with_rows), reports)
    spans = [span for report in working if fit and (span := event_span(report)) is not None]
    spans = spans or [recorded(report) for report in reports] or [Window(0, 0)]
    return Window(min(span.start for span in spans), max(span.end for span in spans))


def extents(session: Session, selection: Selection) -> dict[int, Window]:
    """Return the window of each report, by its index, as the base of shares.

    It is `extent` for all reports of one job. Reports without a common clock (two runs opened together) have the span
    of their own events.
    """
    reports = selected_reports(session, selection)
    if selection.window is not None or shares_clock(reports):
        window = extent(session, selection)
        return {report.index: window for report in reports}
    return {report.index: event_span(report) or recorded(report) for report in reports}


def shares_clock(reports: Sequence[Report]) -> bool:
    """Return whether the reports have a common clock: one report, or all aligned (docs/ranks.md#clock)."""
    return len(reports) <= 1 or all(report.on_job_clock for report in reports)
