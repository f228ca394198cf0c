"""The time over which efficiencies are computed: one for every rank."""

from __future__ import annotations

from nsystui.base.columns import Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Window
from nsystui.base.units import format_value
from nsystui.questions.time_window import extent, recorded, selected_reports, shares_clock
from nsystui.store.session import Session


def common_window(session: Session, selection: Selection) -> Window:
    """The selection's window; without one, the events of the selected reports as far as all of them were recording.

    From the first event of the selected reports to their last, cut to what is common to their sessions: never each
    rank's own duration, and no rank is idle because it was not recorded (docs/numbers.md#efficiency-window). Job time,
    ns.

    Raises UsageError where the reports share no clock or no time.
    """
    reports = selected_reports(session, selection)
    if not shares_clock(reports):
        raise UsageError("these reports share no clock: choose the ranks of one of them (--ranks, or r on a screen)")
    if selection.window is not None or not reports:
        return extent(session, selection)
    events, sessions = extent(session, selection), [recorded(report) for report in reports]
    start = max(events.start, *(one.start for one in sessions))
    end = min(events.end, *(one.end for one in sessions))
    if end <= start and events.end > events.start:
        raise UsageError("at no time were all of these ranks recorded: choose ranks (--ranks) or a time (--time)")
    return Window(start, max(start, end))


def window_note(session: Session, selection: Selection, window: Window) -> str:
    """From when to when, in words."""
    width = format_value(Unit.DURATION, window.end - window.start)
    span = f"{width} from {format_value(Unit.TIME, window.start)}"
    if selection.window is not None:
        return f"100 % is the selected time, {span}, of each GPU"
    many = len(selected_reports(session, selection)) > 1
    what = "the time in which every selected report was recording events" if many else "from first to last event"
    events = extent(session, selection)
    if window != events:
        whole = format_value(Unit.DURATION, events.end - events.start)
        span += f" (in other tables {whole}, from first to last event)"
    return f"100 % is {what}, {span}, of each GPU"
