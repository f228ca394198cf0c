"""The picture on the timeline: the lanes, and the lines of the visible lanes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

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
from nsystui.questions.queries.data_notes import missing_notes
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
from nsystui.ui.pictures.selection import inside
from nsystui.ui.widgets.lane_chart import LaneLine
from nsystui.ui.widgets.panels import PartLine

# Queries are planned for every open report: with at most this many, the first picture has names.
_FEW_REPORTS = 16
_MOST_ROWS = 4_000_000
# The busy share at which a column is full.
_FULL = 15 / 16
# A lane busy for a smaller share of the selected time stays one row high.
_QUIET = 0.01


@dataclass(frozen=True)
class TimelineRequest:
    """The request for a picture: the window in view (``None``: all of the selection), its columns, the visible lanes.

    Shows ``lane`` if given, else lanes from ``first`` on. Unless ``rests``, slow work (opening a rank, names among many
    reports) may be deferred. ``path``: the lane of a critical path, below the first GPU of its rank.
    """

    view: Window | None
    columns: int
    lines: int
    first: int
    lane: LaneIdentity | None
    opened: frozenset[Task] | None
    rests: bool
    marked_names: NameFilter | None
    label_width: int = 22
    path: LaneIdentity | None = None


@dataclass(frozen=True, eq=False)
class TimelinePicture:
    """Everything on the screen; ``pictures`` has the visible lanes, by index. Key ``0`` shows ``base``.

    ``is_whole``: whether a request that ``rests`` would show no more.
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


def timeline_picture(job: OpenJob, selection: Selection, request: TimelineRequest) -> TimelinePicture:
    """Return the picture of a selection. Blocks."""
    timeline = Timeline.of(job, selection)
    base = job.extent(selection)
    window = (inside(request.view, base) or base) if request.view is not None else base
    opened = _opened(timeline, request)
    lanes, is_complete = timeline.lanes(opened, request.rests)
    if request.path is not None and request.path.task in opened:
        timeline.paths[request.path] = path_events(job, request.path)
        # Below the first lane of its rank.
        below = 1 + [*map(attrgetter("task"), lanes), request.path.task].index(request.path.task)
        lanes = (*lanes[:below], request.path, *lanes[below:])
    visible = _visible(lanes, request)
    visible_lanes = lanes[visible.start : visible.stop]
    with_names = request.rests or (len(job.session.reports) <= _FEW_REPORTS and request.marked_names is None)
    if with_names:
        drawn = lane_pictures(timeline, visible_lanes, window, request.columns, request.marked_names)
    else:
        drawn = plain_pictures(timeline, visible_lanes, window, request.columns)
    pictures = dict(zip(visible, drawn, strict=True))
    gpu = [lane for lane in visible_lanes if not lane.is_host]
    is_whole = is_complete and (with_names or not (request.marked_names or has_names(timeline, gpu, window)))
    labels = tuple(_label(lane, opened, request.label_width) for lane in lanes)
    lines = dict(zip(visible, map(line_of, drawn), strict=True))
    notes = (*timeline.left_out(opened), *timeline.busy.notes)
    notes = notes if lanes else missing_notes(job.session, tables.kernels)
    kinds = tuple(map(partial(_kind, timeline, base), lanes)) if len(lanes) <= request.lines else ("",) * len(lanes)
    return TimelinePicture(timeline, base, window, lanes, opened, pictures, labels, kinds, lines, is_whole, notes)


def _opened(timeline: Timeline, request: TimelineRequest) -> frozenset[Task]:
    """Return the requested open ranks, else the rank of the cursor, unless that takes much time and memory."""
    opened, tasks = request.opened, [rank.task for rank in timeline.tasks]
    if opened is not None and (not opened or opened & set(tasks)):
        return opened
    task = request.lane.task if request.lane is not None and request.lane.task in tasks else next(iter(tasks), None)
    return frozenset({task} if task is not None and timeline.rows_inside(task) <= _MOST_ROWS else ())


def _visible(lanes: tuple[LaneIdentity, ...], request: TimelineRequest) -> range:
    """Return the lanes to draw: from the first, or around the requested lane."""
    first = request.first
    if request.lane in lanes:
        index = lanes.index(request.lane)
        if not first <= index < first + request.lines:
            first = index - request.lines // 2
    first = max(0, min(first, len(lanes) - request.lines))
    # No extra page on each side: it would serve the next page key, but cost as much as the visible page.
    return range(first, min(first + request.lines, len(lanes)))


def _kind(timeline: Timeline, base: Window, lane: LaneIdentity) -> str:
    """Return the kind of a lane, by which it grows if there is room; empty for quiet lanes."""
    if lane.stream is None and not lane.is_host:
        return "gpu"
    is_quiet = timeline.work(lane).busy_within(base) < _QUIET * (base.end - base.start)
    return "" if is_quiet else "host" if lane.is_host else "stream"


def _label(lane: LaneIdentity, opened: frozenset[Task], width: int) -> str:
    is_gpu = lane.stream is None and not lane.is_host
    return cut_end(lane_label(lane, lane.task in opened if is_gpu else None), width)


def line_of(picture: LanePicture) -> LaneLine:
    """Return the line of a lane, with its busy share at the right."""
    drawn = lane_text(picture)
    value = "–" if picture.busy is None else format_value(Unit.PERCENT, 100 * picture.busy)
    return LaneLine(
        drawn.with_names(), drawn.categories, drawn.busy, drawn.shades, tuple(_names(drawn)), drawn.marked, value
    )


def _names(drawn: LaneText) -> Iterator[tuple[int, str]]:
    """Yield the names that fit their events, whole or cut, with columns; a blank follows a cut name."""
    for name in drawn.names:
        full_columns = [column for column in range(name.first, name.last + 1) if drawn.busy[column] >= _FULL]
        room = name.last - full_columns[0] if full_columns else 0
        full_text = shown_name(name.text, len(name.text))
        text = full_text if full_columns and len(full_text) == room + 1 else shown_name(name.text, room)
        if text and (text.endswith("…") or text == full_text):
            yield full_columns[0], text


LOW, HEIGHT = 5, 6
"""Lines of the details on low and on other terminals."""
_WORDS = {
    "compute": "compute", "nccl": "NCCL", "memory": "memory", "graph": "graph", "nvtx": "ranges", "api": "API",
    "os": "calls", "cpu": "on CPU",
}  # fmt: skip


@dataclass(frozen=True)
class EventFacts:
    """The event under the cursor, if any, as a row of the event list, and its details."""

    row: Row | None
    title: str
    details: Sequence[Sequence[str]] = ()
    """Paragraphs of facts below the title."""
    interval: CpuInterval | None = None
    """The interval under the cursor, on the lane of a CPU."""


# -- shown at once ----------------------------------------------------------------------------------------------------


def column_line(
    picture: LanePicture, column: int, times: tuple[int, int], time: int, mark: int | None, width: int
) -> PartLine:
    """Return the cursor's time and its column's contents; categories are letters if their words do not fit."""
    parts: PartLine = []
    if mark is not None:
        parts += [(f"◆ {format_value(Unit.DURATION, abs(time - mark))}", "bold"), (" from the mark  ", "")]
    moment, length = format_value(Unit.TIME, time), format_value(Unit.DURATION, times[1] - times[0])
    parts += [(moment, "bold"), (f"  column {length}:", "")]
    if picture.columns.category[column] < 0:
        return [*parts, (" not recorded", "dim")]
    shares = {name: share[column] for name, share in picture.columns.shares.items() if share[column] > 0}
    idle, line = 1 - float(picture.columns.busy[column]), parts
    rest: PartLine = [(f"  {'off CPU' if picture.lane.is_cpu else 'idle'} {_percent(idle)}", "dim")] if idle > 0 else []
    for words in (_WORDS, {**_WORDS, **LETTERS}):
        texts = (" ".join(filter(None, (words[name], _percent(share)))) for name, share in shares.items())
        line = [*parts, *((f"  {text}", name) for text, name in zip(texts, shares, strict=True)), *rest]
        if sum(len(text) for text, _ in line) <= width:
            break
    return line


def _percent(share: float) -> str:
    return format_value(Unit.PERCENT, 100 * float(share))


# -- looked up when the cursor rests ----------------------------------------------------------------------------------


def event_facts(job: OpenJob, timeline: Timeline, lane: LaneIdentity, window: Window, row: Row | None) -> EventFacts:
    """Return ``row``, or the event that fills most of ``window`` on a lane. Blocks."""
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
            return EventFacts(None, "too many events in this column: + zooms in, ] moves to the next event")
        else:
            row, count = longest_in(timeline, lane, window)
    if row is None:
        title, *facts = _meanwhile(job, timeline, lane, window)
        return EventFacts(None, title, [[fact] for fact in (*facts, "] and [ go to the next and the previous event")])
    _, origin, path, position, _ = event_details(job, row)
    prefix = f"the longest of {count:,} in this column, " if count > 1 else ""
    details = [[prefix + position[0], *position[1:]], *([fact] for fact in (*origin, *path))]
    return EventFacts(row, _full_name(timeline, row), details)


def _path_facts(job: OpenJob, timeline: Timeline, lane: LaneIdentity, window: Window) -> EventFacts:
    """Return the piece of a critical path that fills most of ``window``, and its operation or call."""
    events = path_events(job, lane)
    subject, index = lane.name or "the selected time", longest_place_in(events, window)
    if index is None:
        return EventFacts(None, f"the critical path is that of {subject}: I shows that of the step here")
    piece = events.pieces[index].piece
    length, row = piece.end - piece.start, row_of_piece(timeline, lane, piece)
    name = _full_name(timeline, row) if row is not None else events.pieces[index].name
    title = f"{KINDS[piece.kind]} {format_value(Unit.DURATION, length)}{f': {name}' if name else ''}"
    rank = next((ranked.rank for ranked in timeline.ranks if ranked.task == piece.task), lane.rank)
    share = _percent(length / int(events.end[-1] - events.start[0]))
    facts = [f"on the critical path of {subject}, {share} of it", f"rank {rank}"]
    details = [] if row is None else [[fact] for part in event_details(job, row)[1:4] for fact in part[:3]]
    return EventFacts(row, title, [facts, *details])


_STATES = {RUNNABLE: "was runnable, but had no CPU", BLOCKED: "waited", OFF: "was off the CPU"}
_CALLERS = 12  # the most that are shown


def _cpu_facts(
    timeline: Timeline, lane: LaneIdentity, window: Window, interval: CpuInterval | None
) -> Iterator[list[str]]:
    """Yield a thread's function in most of ``window`` and its callers; its state if it did not run."""
    events, cpu = timeline.events(lane), timeline.cpu_work(lane)
    thread = lane.thread or 0
    if interval is None:
        yield ["the thread was not recorded here"]
    else:
        length = format_value(Unit.DURATION, interval.window.end - interval.window.start)
        start = format_value(Unit.TIME, interval.window.start)
        when = f"for {length} from {start} · rank {lane.rank} thread {tid_of(thread)}"
        if interval.place is None:
            yield [f"the thread {_STATES.get(interval.state, 'ran')} {when}"]
        else:
            name = events.names[int(events.name[interval.place])]
            yield [name if name == ON_CPU else f"{name} (sampled)"]
            yield [f"on a CPU {when}"]
        if cpu.tree is not None and interval.node:
            yield ["stack", cpu.tree.words(interval.node, _CALLERS)]
    path = path_at(timeline.session, lane.task.report, thread, (window.start + window.end) // 2)
    yield [f"NVTX {' › '.join(path)}" if path else "in no NVTX range"]


def _full_name(timeline: Timeline, row: Row) -> str:
    full = str(record(EVENT_COLUMNS, row)["name"] or "")
    smart = timeline.names.get(full, full)
    return full if smart == full else f"{smart}    {full}"


def _meanwhile(job: OpenJob, timeline: Timeline, lane: LaneIdentity, window: Window) -> Iterator[str]:
    """Yield what happened while a lane was idle: ranges and longest call of the main thread, causes."""
    ranked = next((ranked for ranked in timeline.tasks if ranked.task == lane.task), None)
    if lane.is_host or ranked is None or ranked.pid is None:
        yield "nothing here"
        return
    middle = (window.start + window.end) // 2
    thread = lane.task.process | ranked.pid
    path = path_at(timeline.session, lane.task.report, thread, middle)
    yield f"nothing ran here; the main thread was in {' › '.join(path)}" if path else "nothing ran here"
    lanes, _ = timeline.lanes(frozenset({lane.task}), wait=False)
    call_lanes = [host for host in lanes if host.task == lane.task and host.thread == thread and host.calls is not None]
    longest = list(filter(None, (longest_range_in(timeline, host, window)[0] for host in call_lanes)))
    if longest:
        event = record(EVENT_COLUMNS, max(longest, key=lambda row: record(EVENT_COLUMNS, row)["duration"] or 0))
        yield f"in the call {event['name']}, {format_value(Unit.DURATION, event['duration'])}"
    if lane.stream is None and lane.device is not None and timeline.session.count(tables.api_calls):
        yield f"the GPU was idle here: {causes_in(job, lane.task, lane.device, window.start, window.end)}"


# -- from event to event ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundEvent:
    """An event and its lane, or the reason why it is missing."""

    row: Row | None
    lane: LaneIdentity | None
    reason: str = ""


def partner_of(timeline: Timeline, row: Row) -> FoundEvent:
    """Return the call that launched an operation, or the first operation that a call launched. Blocks."""
    key = key_of(row)
    if key.kind is not EventKind.API and not key.kind.on_stream:
        return FoundEvent(None, None, f"{key.kind.value} events launch nothing: c goes between a call and its GPU work")
    answer = partners(timeline.session, key, timeline.ranks)
    if not answer.rows:
        return FoundEvent(None, None, answer.reason)
    lane = timeline.lane_of(record(EVENT_COLUMNS, answer.rows[0]))
    if lane is None:
        return FoundEvent(None, None, "the partner has no lane here: ⏎ opens the event, then c opens its partner")
    return FoundEvent(answer.rows[0], lane)


def place_of(timeline: Timeline, key: EventKey) -> FoundEvent:
    """Return an event and its lane by its key. Blocks."""
    row = event_row(timeline.session, key, timeline.ranks)
    lane = None if row is None else timeline.lane_of(record(EVENT_COLUMNS, row))
    return FoundEvent(row, lane, "" if lane is not None else "the timeline has no lane for this event in the selection")
