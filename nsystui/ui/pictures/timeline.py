"""The picture on the timeline: the lanes, and the lines of those in sight, asked for in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nsystui.base.answer import Row, Value, record
from nsystui.base.columns import Unit
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.data_notes import missing_note
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS, key_of, launch, partners
from nsystui.questions.job import Job
from nsystui.questions.nvtx.listing import path_at
from nsystui.questions.timeline.events import longest_in, longest_range_in
from nsystui.questions.timeline.lanes import Lane, Timeline
from nsystui.questions.timeline.picture import (
    LETTERS,
    LanePicture,
    has_names,
    lane_label,
    lane_pictures,
    lane_text,
    plain_pictures,
)
from nsystui.store import tables
from nsystui.ui.pictures.zoom import inside
from nsystui.ui.widgets.charts import LaneLine
from nsystui.ui.widgets.lines import Part

# A query plans for every open report: up to so many, names come with the first picture.
_FEW_REPORTS = 16
_MOST_RANGES = 2_000_000


@dataclass(frozen=True)
class Wanted:
    """The request for a picture: the window in view (``None``: all of the selection), its columns, the lanes in sight.

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
    """The line of a lane, with how busy it is at the right."""
    drawn = lane_text(picture)
    value = "–" if picture.busy is None else format_value(Unit.PERCENT, 100 * picture.busy)
    return LaneLine(drawn.text, drawn.styles, drawn.marked, value)


Line = list[Part]
HEIGHT = 4
_WIDE = 100
_WORDS = {"compute": "compute", "nccl": "NCCL", "memory": "memory", "graph": "graph", "nvtx": "ranges"}


@dataclass(frozen=True)
class EventFacts:
    """The event under the cursor, if there is one, as a row of the event list, and its details."""

    row: Row | None
    lines: tuple[str, ...]


# -- at once ----------------------------------------------------------------------------------------------------------


def column_line(
    picture: LanePicture, column: int, times: tuple[int, int], time: int, mark: int | None, width: int
) -> Line:
    """When the cursor is, and what its column holds; on a narrow screen categories are letters alone."""
    parts: Line = []
    if mark is not None:
        parts += [(f"◆ {format_value(Unit.DURATION, abs(time - mark))}", "bold"), (" from the mark  ", "")]
    moment, length = format_value(Unit.TIME, time), format_value(Unit.DURATION, times[1] - times[0])
    parts += [(moment, "bold"), (f"  column {length}:", "")]
    if picture.columns.category[column] < 0:
        return [*parts, (" not recorded", "dim")]
    for name, shares in picture.columns.shares.items():
        if shares[column] > 0:
            word = _WORDS[name] if width >= _WIDE or name not in LETTERS else ""
            words = [LETTERS.get(name, ""), word, _percent(shares[column])]
            parts.append(("  " + " ".join(filter(None, words)), name))
    idle = 1 - float(picture.columns.busy[column])
    if idle > 0:
        parts.append((f"  idle {_percent(idle)}", "dim"))
    return parts


def _percent(share: float) -> str:
    return format_value(Unit.PERCENT, 100 * float(share))


# -- when the cursor rests --------------------------------------------------------------------------------------------


def event_facts(timeline: Timeline, lane: Lane, window: Window, row: Row | None) -> EventFacts:
    """The event ``row``, or the one that takes up most of ``window`` on a lane. Blocks: call it in a thread."""
    count = 1
    if row is None:
        if lane.is_nvtx:
            row, count = longest_range_in(timeline, lane, window)
        elif not has_names(timeline, [lane], window):
            return EventFacts(None, ("very many events in this column: + zooms in, ] goes to the next single one",))
        else:
            row, count = longest_in(timeline, lane, window)
    if row is None:
        return EventFacts(None, ("no event here: n and p go to the next and the previous one",))
    values = record(EVENT_COLUMNS, row)
    start, duration = (format_value(unit, values[key]) for unit, key in _TIMES)
    which = f"the longest of {count:,} in this column, " if count > 1 else ""
    return EventFacts(
        row,
        (
            f"{values['kind']}  {values['name'] or ''}",
            f"{which}{duration} from {start} · {_place(values)}",
            _origin(timeline, row),
        ),
    )


def _place(values: dict[str, Value]) -> str:
    """Where it ran, in as few words as a lane's label."""
    if values["device"] is None:
        return f"rank {values['rank']} thread {values['tid']}"
    stream = "" if values["stream"] is None else f" s{values['stream']}"
    return f"rank {values['rank']} d{values['device']}{stream}"


_TIMES = ((Unit.TIME, "start"), (Unit.DURATION, "duration"))


def _origin(timeline: Timeline, row: Row) -> str:
    """The launching call and the NVTX ranges around it; of a range those around itself."""
    key = key_of(row)
    values = record(EVENT_COLUMNS, row)
    if key.kind is EventKind.NVTX:
        thread = int(values["process"] or 0) | int(values["tid"] or 0)
        around = [name for name in path_at(timeline.session, key.report, thread, key.start) if name != values["name"]]
        return f"in {' › '.join(around)}" if around else "in no other range"
    found = partners(timeline.session, key, timeline.ranks)
    if not found.rows:
        return found.reason
    call = record(EVENT_COLUMNS, found.rows[0])
    thread = int(call["process"] or 0) | int(call["tid"] or 0)
    path = path_at(timeline.session, key.report, thread, int(call["start"] or 0))
    inside = f" in {' › '.join(path)}" if path else ""
    delay = format_value(Unit.DURATION, launch(found.rows[0], row).delay)
    return f"launched {delay} before by {call['name']}{inside}"
