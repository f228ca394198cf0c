"""Lanes over a window: columns with the names of events, as lines of text and as a table."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nsystui.base import terminal
from nsystui.base.answer import DEVICE, DURATION, RANK, START, STREAM, Answer, Column, Row, TableAnswer, Unit
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.base.text import fit, safe_text, width_of
from nsystui.base.units import format_value, numbered
from nsystui.exports.metadata import tid_of
from nsystui.questions.events.kinds import RUNTIMES, EventKind
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import TextDrawing
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.questions.queries.time_window import event_span
from nsystui.questions.timeline.events import EventSpan, long_events, matching_columns, matching_ranges, thread_spans
from nsystui.questions.timeline.lanes import CATEGORIES, IDLE, UNSEEN, LaneColumns, LaneIdentity, Timeline, columns

NAMED_COLUMNS = 5
"""The least columns of an event with a name."""

# Up to about this many visible operations are read one by one; otherwise columns are enough, and fast.
_MAX_OPERATIONS = 150_000


@dataclass(frozen=True, eq=False)
class LanePicture:
    """One lane over a window, with its widest events by start in ``spans``.

    ``marked``: the columns with a wanted name, ``None`` without a search. ``busy``: the share of the window with any
    work, ``None`` for an empty window or outside the recording.
    """

    lane: LaneIdentity
    columns: LaneColumns
    busy: float | None
    spans: tuple[EventSpan, ...] = ()
    marked: frozenset[int] | None = None


def lane_pictures(
    timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window, count: int, wanted: NameFilter | None = None
) -> list[LanePicture]:
    """Draw ``lanes`` in ``count`` columns, with events of at least ``NAMED_COLUMNS``, and matches."""
    gpu = [lane for lane in lanes if not lane.is_host]
    named: dict[LaneIdentity, list[EventSpan]] = {}
    if has_names(timeline, gpu, window):
        min_length = -(-(window.end - window.start) * (NAMED_COLUMNS - 1) // count)
        named = long_events(timeline, gpu, window, min_length)
    marked = matching_columns(timeline, gpu, window, count, wanted) if wanted is not None else {}
    pictures = []
    for picture in plain_pictures(timeline, lanes, window, count):
        lane, matches = picture.lane, None
        if wanted is not None:
            is_host = lane.is_host
            matches = frozenset(matching_ranges(timeline, lane, window, count, wanted) if is_host else marked[lane])
        spans = picture.spans if lane.is_host else tuple(named.get(lane, ()))
        pictures.append(replace(picture, spans=spans, marked=matches))
    return pictures


def plain_pictures(timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window, count: int) -> list[LanePicture]:
    """Draw lanes without matches and names of GPU work: no query, milliseconds per lane for any window."""
    pictures = []
    for lane in lanes:
        work = timeline.work(lane)
        length = window.end - window.start
        is_recorded = window.start < work.recorded.end and window.end > work.recorded.start
        busy = min(work.busy_within(window) / length, 1.0) if length > 0 and is_recorded else None
        spans = tuple(thread_spans(timeline, lane, window, count)) if lane.is_host else ()
        pictures.append(LanePicture(lane, columns(work, window, count), busy, spans))
    return pictures


def has_names(timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window) -> bool:
    """Return whether the window is short enough to read single operations of GPU lanes."""
    return len(lanes) > 0 and operations(timeline, lanes, window) <= _MAX_OPERATIONS


def operations(timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window) -> int:
    """Estimate how many operations of the lanes' reports are in ``window``."""
    total = 0.0
    for report in timeline.session.reports:
        lane = next((lane for lane in lanes if lane.task.report == report.index and not lane.is_host), None)
        if lane is not None:
            span = event_span(report) or timeline.work(lane).recorded
            rows = sum(report.count(table) for table in GPU_TABLES)
            inside = max(0, min(window.end, span.end) - max(window.start, span.start))
            total += rows * inside / max(span.end - span.start, 1)
    return int(total)


LETTERS = {"compute": "K", "nccl": "N", "memory": "M", "graph": "G", "api": "A", "os": "O", "cpu": "C"}
"""The letters of categories: upper case if a column is busy for half its time or more."""

RANGE, THIN_RANGE = "═", "─"
"""NVTX ranges that cover half of a column or more, and less."""

NOTHING, NO_DATA = " ", "·"
BEGIN, BEGAN_BEFORE = "│", "‹"
LEGEND = (
    "K compute  N NCCL  M memory  G graph  A API  O OS, MPI, UCX, OpenACC, OpenMP  C CPU  "
    "(lower case: less than half of the column)"
)
_HALF = 0.5
_MIN_CUT = 6
"""In fewer cells, the beginning of a name is useless."""


@dataclass(frozen=True)
class EventName:
    """The name of an event on a lane: the columns that it may use, and whether it began before them."""

    first: int
    last: int
    text: str
    is_cut: bool


@dataclass(frozen=True)
class LaneText:
    """A lane of n columns: its letters, and the category (or ``""``) and busy share of each column.

    ``shades`` (0 or 1) of neighbouring events differ. ``names`` do not overlap.
    """

    text: str
    categories: tuple[str, ...]
    busy: tuple[float, ...]
    shades: tuple[int, ...]
    names: tuple[EventName, ...] = ()
    marked: frozenset[int] | None = None

    def with_names(self) -> str:
        """Return the letters, overwritten by the names."""
        cells = list(self.text)
        for name in self.names:
            # The last column keeps its letter, which shows the category.
            is_range = self.categories[name.first] == "nvtx"
            room = name.last - name.first + 1 - (1 if is_range else 2)
            text = (BEGAN_BEFORE if name.is_cut else BEGIN) + shown_name(name.text, room)
            if not is_range and len(text) <= room:
                text += " "
            cells[name.first : name.first + len(text)] = text
        return "".join(cells)


def lane_text(picture: LanePicture) -> LaneText:
    """Draw a lane."""
    cells, categories, busy_shares = [], [], []
    for category, busy in zip(picture.columns.category.tolist(), picture.columns.busy.tolist(), strict=True):
        is_work = category not in (UNSEEN, IDLE)
        name = CATEGORIES[category] if is_work else ""
        if not is_work:
            cells.append(NO_DATA if category == UNSEEN else NOTHING)
        elif name == "nvtx":
            cells.append(RANGE if busy >= _HALF else THIN_RANGE)
        else:
            cells.append(LETTERS[name] if busy >= _HALF else LETTERS[name].lower())
        categories.append(name)
        busy_shares.append(busy if is_work else 0.0)
    names, shades = _names_of(picture, categories)
    return LaneText("".join(cells), tuple(categories), tuple(busy_shares), tuple(shades), tuple(names), picture.marked)


def column_of(time: int, window: Window, count: int) -> int:
    """Return the column of ``window`` that contains ``time``, which may be outside of 0 to ``count - 1``."""
    return (time - window.start) * count // max(window.end - window.start, 1)


def _names_of(picture: LanePicture, categories: list[str]) -> tuple[list[EventName], list[int]]:
    window, count = picture.columns.window, len(categories)
    firsts = [*(column_of(span.start, window, count) for span in picture.spans), count]
    names, shades = [], [0] * count
    shade = 0
    for span, following in zip(picture.spans, firsts[1:], strict=True):
        first, last = column_of(span.start, window, count), column_of(max(span.end - 1, span.start), window, count)
        is_cut = first < 0
        first, last = max(first, 0), min(last, count - 1)
        if following > first:
            last = min(last, following - 1)
        # If another category takes most of the columns, the name would be wrong.
        if first > last or categories[(first + last) // 2] != span.category:
            continue
        first += categories[first : last + 1].index(span.category)
        shade = 1 - shade
        for column in range(first, last + 1):
            if categories[column] == span.category:
                shades[column] = shade
        room = last - first + 1
        if room >= (2 if span.category == "nvtx" else NAMED_COLUMNS):
            names.append(EventName(first, last, span.name if room >= NAMED_COLUMNS else "", is_cut))
    return names, shades


def cut_end(text: str, room: int) -> str:
    """Cut a text at its end to ``room`` cells; characters that are not one cell wide become ``?``."""
    text = "".join(char if width_of(char) == 1 else "?" for char in safe_text(text))
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def shown_name(name: str, room: int) -> str:
    """Cut a name to ``room`` cells; in a few cells, without an ellipsis."""
    return cut_end(name, room) if room >= _MIN_CUT else cut_end(name, len(name))[: max(room, 0)]


_WORDS = {EventKind.API: "API", EventKind.OS: "OS", **RUNTIMES}


def lane_label(lane: LaneIdentity, is_open: bool | None = None) -> str:
    """Return the label of a lane: ``rank 0 GPU``, or below it ``path step 5``, ``stream 7``, ``NVTX python``, ``API``.

    ``is_open`` adds a sign before the rank: whether its lanes are shown.
    """
    if lane.has_stretches:
        return f"  {'path' if lane.path is not None else 'CPU'} {lane.name}".rstrip()
    if lane.calls is not None:
        return f"  {_WORDS[lane.calls]} {lane.name}".rstrip()
    if lane.thread is not None:
        if lane.level is None:
            return f"  start/end {lane.name}".rstrip()
        return f"  NVTX {lane.name}".rstrip() if not lane.level else f"       ·{lane.level + 1} {lane.name}".rstrip()
    if lane.stream is not None:
        return f"  {numbered('stream', lane.stream)}"
    sign = "" if is_open is None else "▾ " if is_open else "▸ "
    return f"{sign}rank {lane.rank} GPU {lane.name}".rstrip()


_SHARES = ("compute", "nccl", "memory", "graph", "nvtx", "api", "os", "cpu")

TIMELINE_COLUMNS = (
    RANK,
    Column("lane", header="Lane", label="lane"),
    DEVICE,
    STREAM,
    Column("tid", header="Tid", label="tid", unit=Unit.NUMBER, importance=1),
    Column("level", header="NVTX Level", label="level", unit=Unit.NUMBER, importance=1),
    START,
    DURATION.with_importance(1),
    Column("category", header="Category", label="category"),
    Column("busy", header="Busy (%)", label="busy", unit=Unit.PERCENT, decimals=3),
    *(Column(name, header=f"{name} (%)", label=name, unit=Unit.PERCENT, decimals=3, importance=2) for name in _SHARES),
    Column("event", header="Event", label="event"),
)


def timeline_table(pictures: Sequence[LanePicture], notes: tuple[str, ...] = ()) -> Answer:
    """Tabulate the dominating category of each column of each lane, and the share of each category in percent.

    ``event`` is an event that covers all of the column. Values are missing outside the recording.
    """
    rows = [row for picture in pictures for row in _rows(picture)]
    return TableAnswer("timeline", TIMELINE_COLUMNS, rows, notes=notes)


def _rows(picture: LanePicture) -> Iterator[Row]:
    lane, cells = picture.lane, picture.columns
    count = len(cells.category)
    lo, length = cells.window.start, cells.window.end - cells.window.start
    thread = None if lane.thread is None else tid_of(lane.thread)
    is_range = lane.is_host and lane.calls is None and not lane.has_stretches
    is_kind = {"path": lane.path is not None, "CPU": lane.is_cpu, "NVTX": is_range, "GPU": lane.stream is None}
    kind = next((word for word, holds in is_kind.items() if holds), "stream")
    kind = kind if lane.calls is None else _WORDS[lane.calls]
    lane_cells = (lane.rank, kind, lane.device, lane.stream, thread, lane.level if is_range else None)
    for index, (category, busy) in enumerate(zip(cells.category.tolist(), cells.busy.tolist(), strict=True)):
        first, last = lo + index * length // count, lo + (index + 1) * length // count
        is_seen = category != UNSEEN
        shares = [
            100.0 * float(cells.shares[name][index]) if is_seen and name in cells.shares else None for name in _SHARES
        ]
        event = next((span.name for span in picture.spans if span.start <= first and span.end >= last), None)
        yield (
            *lane_cells,
            first,
            last - first,
            CATEGORIES[category] if is_seen else None,
            None if math.isnan(busy) else 100.0 * busy,
            *shares,
            event,
        )


_LABEL, _VALUE, _MIN_COLUMNS = 20, 8, 10


def lanes_as_table(job: OpenJob, selection: Selection, width: int | None, all_lanes: bool) -> Answer:
    """Tabulate each lane and each of ``width`` columns of time (``None``: as many as the terminal has)."""
    pictures, notes = pictures_of(job, selection, width or terminal.text_width(120), all_lanes)
    return timeline_table(pictures, notes)


def lanes_as_text(job: OpenJob, selection: Selection, width: int | None, all_lanes: bool) -> TextDrawing | None:
    """Draw a legend and a line of ``width`` cells (``None``: the terminal's) for each lane, if there are lanes."""
    count = max((width or terminal.text_width(120)) - _LABEL - _VALUE, _MIN_COLUMNS)
    pictures, notes = pictures_of(job, selection, count, all_lanes)
    if not pictures:
        return None
    window = pictures[0].columns.window
    start, length = format_value(Unit.TIME, window.start), format_value(Unit.DURATION, window.end - window.start)
    column = format_value(Unit.DURATION, (window.end - window.start) / len(pictures[0].columns.busy))
    lines = [f"{start} + {length}, a column is {column}; {LEGEND}"]
    for picture in pictures:
        busy = "–" if picture.busy is None else format_value(Unit.PERCENT, 100 * picture.busy)
        label = fit(safe_text(lane_label(picture.lane)), _LABEL - 1)
        lines.append(f"{label} {lane_text(picture).with_names()}{busy.rjust(_VALUE)}")
    return TextDrawing(lines, notes)


def pictures_of(
    job: OpenJob, selection: Selection, count: int, all_lanes: bool
) -> tuple[list[LanePicture], tuple[str, ...]]:
    """Draw the lanes of a selection in ``count`` columns, and return notes on them."""
    timeline = Timeline.of(job, selection)
    opened = frozenset(rank.task for rank in timeline.tasks) if all_lanes else frozenset()
    lanes, _ = timeline.lanes(opened)
    notes = (*timeline.busy.notes, *timeline.left_out(opened))
    return lane_pictures(timeline, lanes, job.extent(selection), count), notes
