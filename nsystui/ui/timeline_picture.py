"""What the timeline screen shows: the lanes, and of those in sight what is drawn of them, asked for in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nsystui.base.columns import Unit
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.job import Job
from nsystui.questions.missing import missing_note
from nsystui.questions.timeline.lanes import Lane, Timeline
from nsystui.questions.timeline.picture import (
    LanePicture,
    has_names,
    lane_label,
    lane_pictures,
    lane_text,
    plain_pictures,
)
from nsystui.store import tables
from nsystui.ui.widgets.lanes import LaneLine
from nsystui.ui.zooming import inside

# A query plans for every open report: up to so many, names come with the first picture.
_FEW_REPORTS = 16
_MOST_RANGES = 2_000_000


@dataclass(frozen=True)
class Wanted:
    """What to draw: the viewed window (``None``: all of the selection), the columns, and which lanes are in sight.

    ``lane`` is the one to have in sight, where it is known, else that at ``first``. Unless ``rests``, what takes time
    (opening a rank, names among many reports) may be left for later. ``found`` are the names to mark.
    """

    view: Window | None
    columns: int
    lines: int
    first: int
    lane: Lane | None
    opened: frozenset[Task] | None
    rests: bool
    found: NameFilter | None
    label_width: int = 20


@dataclass(frozen=True, eq=False)
class TimelinePicture:
    """Everything on the screen; ``pictures`` are those of the lanes in sight, by index. ``base`` is what ``0`` views.

    ``is_whole`` says whether asking again at rest would show more.
    """

    timeline: Timeline
    base: Window
    window: Window
    lanes: tuple[Lane, ...]
    opened: frozenset[Task]
    pictures: Mapping[int, LanePicture]
    labels: tuple[str, ...]
    lines: Mapping[int, LaneLine]
    is_whole: bool
    notes: tuple[str, ...]


def timeline_picture(job: Job, selection: Selection, wanted: Wanted) -> TimelinePicture:
    """The picture of a selection. Blocks: call it in a thread."""
    timeline = Timeline.of(job, selection)
    base = job.extent(selection)
    window = (inside(wanted.view, base) or base) if wanted.view is not None else base
    opened = _opened_first(job, timeline) if wanted.opened is None else wanted.opened
    lanes, has_all = timeline.lanes(opened, wanted.rests)
    sight = _in_sight(lanes, wanted)
    chosen = [lanes[number] for number in sight]
    with_names = wanted.rests or (len(job.session.reports) <= _FEW_REPORTS and wanted.found is None)
    draw = lane_pictures if with_names else plain_pictures
    pictures = dict(zip(sight, _drawn(draw is lane_pictures, timeline, chosen, window, wanted), strict=True))
    gpu = [lane for lane in chosen if not lane.is_nvtx]
    is_whole = has_all and (with_names or not (wanted.found or has_names(timeline, gpu, window)))
    labels = tuple(_label(lane, opened, wanted.label_width) for lane in lanes)
    lines = {number: line_of(picture) for number, picture in pictures.items()}
    notes = timeline.busy.notes if lanes else (missing_note(job.session, tables.kernels),)
    return TimelinePicture(timeline, base, window, lanes, opened, pictures, labels, lines, is_whole, notes)


def _opened_first(job: Job, timeline: Timeline) -> frozenset[Task]:
    """A rank that is alone is opened, unless that takes much time and memory."""
    tasks = [item.task for item in timeline.tasks]
    ranges = sum(report.count(tables.nvtx_ranges) for report in job.session.reports)
    return frozenset(tasks if len(tasks) == 1 and ranges <= _MOST_RANGES else ())


def _drawn(
    with_names: bool, timeline: Timeline, lanes: list[Lane], window: Window, wanted: Wanted
) -> list[LanePicture]:
    if with_names:
        return lane_pictures(timeline, lanes, window, wanted.columns, wanted.found)
    return plain_pictures(timeline, lanes, window, wanted.columns)


def _in_sight(lanes: tuple[Lane, ...], wanted: Wanted) -> list[int]:
    """The lanes to draw: those on the screen, or around the lane that is to be there."""
    first = wanted.first
    if wanted.lane in lanes:
        place = lanes.index(wanted.lane)
        if not first <= place < first + wanted.lines:
            first = place - wanted.lines // 2
    first = max(0, min(first, len(lanes) - wanted.lines))
    # A page more on each side would be waiting for the next page key, but costs as much as what is seen.
    return list(range(first, min(first + wanted.lines, len(lanes))))


def _label(lane: Lane, opened: frozenset[Task], width: int) -> str:
    """The label of a lane; the name of a thread only where there is room for it."""
    is_gpu = lane.stream is None and not lane.is_nvtx
    label = lane_label(lane, lane.task in opened if is_gpu else None)
    return lane_label(replace(lane, name="")) if lane.name and len(label) > width else label


def line_of(picture: LanePicture) -> LaneLine:
    """What is drawn of a lane, with how busy it is at the right."""
    drawn = lane_text(picture)
    value = "–" if picture.busy is None else format_value(Unit.PERCENT, 100 * picture.busy)
    return LaneLine(drawn.text, drawn.styles, drawn.marked, value)
