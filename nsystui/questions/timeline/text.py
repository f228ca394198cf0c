"""The lanes of a job as lines of text, and as a table with as many columns of time."""

from __future__ import annotations

from nsystui.base import terminal
from nsystui.base.answer import Answer
from nsystui.base.columns import Unit
from nsystui.base.selection import Selection
from nsystui.base.text import fit, safe_text
from nsystui.base.units import format_value
from nsystui.questions.job import Job
from nsystui.questions.question import Drawing
from nsystui.questions.timeline.lanes import Timeline
from nsystui.questions.timeline.picture import LEGEND, LanePicture, lane_label, lane_pictures, lane_text, timeline_table

_LABEL, _VALUE, _LEAST = 20, 8, 10


def lanes_as_table(job: Job, selection: Selection, width: int | None, all_lanes: bool) -> Answer:
    """A row for each lane and each of ``width`` columns of time (``None``: as many as the terminal has)."""
    pictures, notes = _pictures(job, selection, width or terminal.text_width(120), all_lanes)
    return timeline_table(pictures, notes)


def lanes_as_text(job: Job, selection: Selection, width: int | None, all_lanes: bool) -> Drawing | None:
    """A line for each lane in ``width`` cells (``None``: the terminal's), below a legend; ``None`` without lanes."""
    count = max((width or terminal.text_width(120)) - _LABEL - _VALUE, _LEAST)
    pictures, notes = _pictures(job, selection, count, all_lanes)
    return Drawing(_lines(pictures), notes) if pictures else None


def _pictures(job: Job, selection: Selection, count: int, all_lanes: bool) -> tuple[list[LanePicture], tuple[str, ...]]:
    timeline = Timeline.of(job, selection)
    opened = frozenset(item.task for item in timeline.tasks) if all_lanes else frozenset()
    lanes, _ = timeline.lanes(opened)
    return lane_pictures(timeline, lanes, job.extent(selection), count), timeline.busy.notes


def _lines(pictures: list[LanePicture]) -> list[str]:
    window = pictures[0].columns.window
    start, length = format_value(Unit.TIME, window.start), format_value(Unit.DURATION, window.end - window.start)
    column = format_value(Unit.DURATION, (window.end - window.start) / len(pictures[0].columns.busy))
    lines = [f"{start} + {length}, a column is {column}; {LEGEND}"]
    for picture in pictures:
        busy = "–" if picture.busy is None else format_value(Unit.PERCENT, 100 * picture.busy)
        label = fit(safe_text(lane_label(picture.lane).strip()), _LABEL - 1)
        lines.append(f"{label} {lane_text(picture).text}{busy.rjust(_VALUE)}")
    return lines
