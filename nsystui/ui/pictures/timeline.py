"""The picture on the timeline: the lanes, and the lines of those in sight, asked for in one go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nsystui.base.answer import Row, Unit, record
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.exports.metadata import tid_of
from nsystui.questions.blocking.path import KINDS
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, event_row, key_of, partners
from nsystui.questions.host.gaps import causes_in
from nsystui.questions.host.segments import BLOCKED, OFF, RUNNABLE
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.around import path_at
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.timeline.cpu import ON_CPU
from nsystui.questions.timeline.events import (
    CpuInterval,
    cpu_interval_in,
    longest_in,
    longest_place_in,
    longest_range_in,
)
from nsystui.questions.timeline.lanes import LaneIdentity, Timeline
from nsystui.questions.timeline.path import path_events, row_of_piece
from nsystui.questions.timeline.picture import (
    LETTERS,
    LanePicture,
    LaneText,
    cut_end,
    has_names,
    lane_label,
    lane_pictures,
    lane_text,
    plain_pictures,
    shown_name,
)
from nsystui.store import tables
from nsystui.ui.pictures.details import event_details
from nsystui.ui.pictures.zoom import inside
from nsystui.ui.widgets.lane_chart import LaneLine
from nsystui.ui.widgets.panels import Part

# A query plans for every open report: up to so many, names come with the first picture.
_FEW_REPORTS = 16
_MOST_ROWS = 4_000_000
# The share from which on a column is filled.
_FULL = 15 / 16
# The share of the selected time below which a lane stays one row high.
_QUIET = 0.01


@dataclass(frozen=True)
class TimelineRequest:
    """The request for a picture: the window in view (``None``: all of the selection), its columns, the lanes in sight.

    ``lane`` is the one to have in sight, where it is known, else that at ``first``. Unless ``rests``, what takes time
    (opening a rank, names among many reports) may be left for later. ``found`` are the names to mark,
    ``path`` the lane of a critical path, below the first GPU of its rank while that is open.
    """

    view: Window | None
    columns: int
    lines: int
    first: int
    lane: LaneIdentity | None
    opened: frozenset[Task] | None
    rests: bool
    found: NameFilter | None
    label_width: int = 22
    path: LaneIdentity | None = None


@dataclass(frozen=True, eq=False)
class TimelinePicture:
    """Everything on the screen; ``pictures`` are those of the lanes in sight, by index. ``base`` is what ``0`` views.

    ``is_whole`` says whether asking again at rest would show more.
    """

    timeline: Timeline
    base: Window
    window: Window
    lanes: tuple[LaneIdentity, ...]
    opened: frozenset[Task]
    pictures: Mapping[int, LanePicture]
    labels: tuple[str, ...]
    kinds: tuple[str, ...]
    lines: Mapping[int, LaneLine]
    is_whole: bool
    notes: tuple[str, ...]


def timeline_picture(job: OpenJob, selection: Selection, wanted: TimelineRequest) -> TimelinePicture:
    """The picture of a selection. Blocks: call it in a thread."""
    timeline = Timeline.of(job, selection)
    base = job.extent(selection)
    window = (inside(wanted.view, base) or base) if wanted.view is not None else base
    opened = wanted.opened
    if opened is None or (opened and not opened & {item.task for item in timeline.tasks}):
        # The rank of the cursor is opened, unless that takes much time and memory.
        tasks = [item.task for item in timeline.tasks]
        first = wanted.lane.task if wanted.lane is not None and wanted.lane.task in tasks else next(iter(tasks), None)
        opened = frozenset({first} if first is not None and timeline.rows_inside(first) <= _MOST_ROWS else ())
    lanes, has_all = timeline.lanes(opened, wanted.rests)
    if (path := wanted.path) is not None and path.task in opened:
        timeline.paths[path] = path_events(job, path)
        place = 1 + next((number for number, lane in enumerate(lanes) if lane.task == path.task), len(lanes))
        lanes = (*lanes[:place], path, *lanes[place:])
    sight = _in_sight(lanes, wanted)
    chosen = [lanes[number] for number in sight]
    with_names = wanted.rests or (len(job.session.reports) <= _FEW_REPORTS and wanted.found is None)
    if with_names:
        drawn = lane_pictures(timeline, chosen, window, wanted.columns, wanted.found)
    else:
        drawn = plain_pictures(timeline, chosen, window, wanted.columns)
    pictures = dict(zip(sight, drawn, strict=True))
    gpu = [lane for lane in chosen if not lane.is_host]
    is_whole = has_all and (with_names or not (wanted.found or has_names(timeline, gpu, window)))
    labels = tuple(_label(lane, opened, wanted.label_width) for lane in lanes)
    lines = {number: line_of(picture) for number, picture in pictures.items()}
    notes = (*timeline.left_out(opened), *timeline.busy.notes)
    notes = notes if lanes else (missing_note(job.session, tables.kernels),)
    kinds = tuple(_kind(timeline, lane, base) if len(lanes) <= wanted.lines else "" for lane in lanes)
    return TimelinePicture(timeline, base, window, lanes, opened, pictures, labels, kinds, lines, is_whole, notes)


def _in_sight(lanes: tuple[LaneIdentity, ...], wanted: TimelineRequest) -> list[int]:
    """The lanes to draw: those on the screen, or around the lane that is to be there."""
    first = wanted.first
    if wanted.lane in lanes:
        place = lanes.index(wanted.lane)
        if not first <= place < first + wanted.lines:
            first = place - wanted.lines // 2
    first = max(0, min(first, len(lanes) - wanted.lines))
    # A page more on each side would be waiting for the next page key, but costs as much as what is seen.
    return list(range(first, min(first + wanted.lines, len(lanes))))


def _kind(timeline: Timeline, lane: LaneIdentity, base: Window) -> str:
    """By which a lane grows where there is room; hardly busy ones do not."""
    if lane.stream is None and not lane.is_host:
        return "gpu"
    is_quiet = timeline.work(lane).busy_within(base) < _QUIET * (base.end - base.start)
    return "" if is_quiet else "host" if lane.is_host else "stream"


def _label(lane: LaneIdentity, opened: frozenset[Task], width: int) -> str:
    """The label of a lane, cut at its end."""
    is_gpu = lane.stream is None and not lane.is_host
    return cut_end(lane_label(lane, lane.task in opened if is_gpu else None), width)


def line_of(picture: LanePicture) -> LaneLine:
    """The line of a lane, with how busy it is at the right."""
    drawn = lane_text(picture)
    value = "–" if picture.busy is None else format_value(Unit.PERCENT, 100 * picture.busy)
    return LaneLine(
        drawn.with_names(), drawn.categories, drawn.busy, drawn.shades, tuple(_names(drawn)), drawn.marked, value
    )


def _names(drawn: LaneText) -> Iterator[tuple[int, str]]:
    """The names that fit into their events, or of which enough does; a blank stays behind one that is cut."""
    for name in drawn.names:
        full = [column for column in range(name.first, name.last + 1) if drawn.busy[column] >= _FULL]
        room = name.last - full[0] if full else 0
        whole = shown_name(name.text, len(name.text))
        text = whole if full and len(whole) == room + 1 else shown_name(name.text, room)
        if text and (text.endswith("…") or text == whole):
            yield full[0], text


Line = list[Part]
LOW, HEIGHT = 5, 6
"""Lines of the details on a terminal of few lines, and on others."""
_WIDE = 100
_WORDS = {
    "compute": "compute",
    "nccl": "NCCL",
    "memory": "memory",
    "graph": "graph",
    "nvtx": "ranges",
    "api": "API",
    "os": "calls",
    "cpu": "on CPU",
}


@dataclass(frozen=True)
class EventFacts:
    """The event under the cursor, if there is one, as a row of the event list, and its details."""

    row: Row | None
    title: str
    details: Sequence[Sequence[str]] = ()
    """Paragraphs of facts below the title."""
    interval: CpuInterval | None = None
    """Of a lane of a CPU."""


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
            words = [word or LETTERS.get(name, ""), _percent(shares[column])]
            parts.append(("  " + " ".join(filter(None, words)), name))
    idle = 1 - float(picture.columns.busy[column])
    if idle > 0:
        parts.append((f"  {'off CPU' if picture.lane.is_cpu else 'idle'} {_percent(idle)}", "dim"))
    return parts


def _percent(share: float) -> str:
    return format_value(Unit.PERCENT, 100 * float(share))


# -- when the cursor rests --------------------------------------------------------------------------------------------


def event_facts(job: OpenJob, timeline: Timeline, lane: LaneIdentity, window: Window, row: Row | None) -> EventFacts:
    """The event ``row``, or the one that takes up most of ``window`` on a lane. Blocks: call it in a thread."""
    if lane.path is not None:
        return _path_facts(job, timeline, lane, window)
    if lane.is_cpu:
        interval = cpu_interval_in(timeline, lane, window)
        (title, *_), *details = _cpu_facts(timeline, lane, window, interval)
        return EventFacts(None, title, details, interval)
    count = 1
    if row is None:
        if lane.is_host:
            row, count = longest_range_in(timeline, lane, window)
        elif not has_names(timeline, [lane], window):
            return EventFacts(None, "too many events in this column: + zooms in, ] goes to the next one")
        else:
            row, count = longest_in(timeline, lane, window)
    if row is None:
        title, *others = _meanwhile(job, timeline, lane, window)
        return EventFacts(None, title, [[fact] for fact in (*others, "] and [ go to the next and the previous event")])
    _, origin, path, place, _ = event_details(job, row)
    which = f"the longest of {count:,} in this column, " if count > 1 else ""
    details = [[which + place[0], *place[1:]], *([fact] for fact in (*origin, *path))]
    return EventFacts(row, _full_name(timeline, row), details)


def _path_facts(job: OpenJob, timeline: Timeline, lane: LaneIdentity, window: Window) -> EventFacts:
    """The piece of a critical path that takes most of ``window``, and its operation or call."""
    own = path_events(job, lane)
    whose, place = lane.name or "the selected time", longest_place_in(own, window)
    if place is None:
        return EventFacts(None, f"the critical path is that of {whose}: I shows that of the step here")
    piece = own.pieces[place].piece
    length, row = piece.end - piece.start, row_of_piece(timeline, lane, piece)
    name = _full_name(timeline, row) if row is not None else own.pieces[place].name
    title = f"{KINDS[piece.kind]} {format_value(Unit.DURATION, length)}{f': {name}' if name else ''}"
    rank = next((item.rank for item in timeline.ranks if item.task == piece.task), lane.rank)
    share = _percent(length / int(own.end[-1] - own.start[0]))
    facts = [f"on the critical path of {whose}, {share} of it", f"rank {rank}"]
    details = [] if row is None else [[fact] for part in event_details(job, row)[1:4] for fact in part[:3]]
    return EventFacts(row, title, [facts, *details])


_STATES = {RUNNABLE: "was runnable, but had no CPU", BLOCKED: "waited", OFF: "was off the CPU"}
_CALLERS = 12
"""Callers of a function that are told at most."""


def _cpu_facts(
    timeline: Timeline, lane: LaneIdentity, window: Window, found: CpuInterval | None
) -> Iterator[list[str]]:
    """What a thread ran in most of ``window`` and who called that; when it did not run, in which state it was."""
    own, cpu = timeline.events(lane), timeline.cpu_work(lane)
    thread = lane.thread or 0
    if found is None:
        yield ["nothing was recorded of the thread here"]
    else:
        length = format_value(Unit.DURATION, found.window.end - found.window.start)
        start = format_value(Unit.TIME, found.window.start)
        when = f"for {length} from {start} · rank {lane.rank} thread {tid_of(thread)}"
        if found.place is None:
            yield [f"the thread {_STATES.get(found.state, 'ran')} {when}"]
        else:
            name = own.names[int(own.name[found.place])]
            yield [name if name == ON_CPU else f"{name} (sampled)"]
            yield [f"on a CPU {when}"]
        if cpu.tree is not None and found.node:
            yield ["stack", cpu.tree.words(found.node, _CALLERS)]
    path = path_at(timeline.session, lane.task.report, thread, (window.start + window.end) // 2)
    yield [f"NVTX {' › '.join(path)}" if path else "in no NVTX range"]


def _full_name(timeline: Timeline, row: Row) -> str:
    full = str(record(EVENT_COLUMNS, row)["name"] or "")
    smart = timeline.names.get(full, full)
    return full if smart == full else f"{smart}    {full}"


def _meanwhile(job: OpenJob, timeline: Timeline, lane: LaneIdentity, window: Window) -> Iterator[str]:
    """What was done while nothing ran on a lane: the ranges of the main thread, its longest call, the causes."""
    item = next((item for item in timeline.tasks if item.task == lane.task), None)
    if lane.is_host or item is None or item.pid is None:
        yield "nothing here"
        return
    middle = (window.start + window.end) // 2
    thread = lane.task.process | item.pid
    path = path_at(timeline.session, lane.task.report, thread, middle)
    yield f"nothing ran here; the main thread was in {' › '.join(path)}" if path else "nothing ran here"
    lanes, _ = timeline.lanes(frozenset({lane.task}), wait=False)
    calls = [one for one in lanes if one.task == lane.task and one.thread == thread and one.calls is not None]
    found = [row for row in (longest_range_in(timeline, one, window)[0] for one in calls) if row is not None]
    if found:
        values = record(EVENT_COLUMNS, max(found, key=lambda row: record(EVENT_COLUMNS, row)["duration"] or 0))
        yield f"in the call {values['name']}, {format_value(Unit.DURATION, values['duration'])}"
    if lane.stream is None and lane.device is not None and timeline.session.count(tables.api_calls):
        yield f"the GPU was idle here: {causes_in(job, lane.task, lane.device, window.start, window.end)}"


# -- from event to event ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundEvent:
    """An event and its lane, or the reason why there is none."""

    row: Row | None
    lane: LaneIdentity | None
    reason: str = ""


def partner_of(timeline: Timeline, row: Row) -> FoundEvent:
    """The call that launched an operation, or the first operation that a call launched. Blocks."""
    key = key_of(row)
    if key.kind is not EventKind.API and not key.kind.on_gpu:
        return FoundEvent(None, None, f"{key.kind.value} events launch nothing: c goes between a call and its GPU work")
    found = partners(timeline.session, key, timeline.ranks)
    if not found.rows:
        return FoundEvent(None, None, found.reason)
    lane = timeline.lane_of(record(EVENT_COLUMNS, found.rows[0]))
    if lane is None:
        return FoundEvent(None, None, "its partner has no lane here: ⏎ opens the event, then c goes there")
    return FoundEvent(found.rows[0], lane)


def place_of(timeline: Timeline, key: EventKey) -> FoundEvent:
    """An event by its key. Blocks."""
    row = event_row(timeline.session, key, timeline.ranks)
    lane = None if row is None else timeline.lane_of(record(EVENT_COLUMNS, row))
    return FoundEvent(row, lane, "" if lane is not None else "the timeline has no lane for this event in the selection")
