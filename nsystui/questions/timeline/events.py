"""The single events of lanes: GPU operations, NVTX ranges, calls; the longest, neighbours, matches of a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Answer, Row, record
from nsystui.base.selection import NameFilter, Task, Window
from nsystui.questions.events.kinds import GPU_KINDS, KIND_TABLES, EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, EventList, columns_of, event_row, key_of
from nsystui.questions.gpu.device_time import STREAM_KEYS
from nsystui.questions.host.segments import RUNNING
from nsystui.questions.nccl.names import collective_of_kernel
from nsystui.questions.queries.conditions import Condition, given, job_start, matches
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.questions.queries.time_window import event_span, report_at
from nsystui.questions.timeline.lanes import LaneIdentity, ThreadEvents, Timeline
from nsystui.store.session import Session

_CATEGORY = {"kernel": "compute", "nccl": "nccl", "memory": "memory", "graph": "graph"}
_MOST_SPANS = 4000
# Rows that a search for a neighbour reads first, about, and how much wider each next one is.
_NEAR_ROWS = 256
_GROWTH = 32
_RUN = 256


@dataclass(frozen=True)
class EventSpan:
    """A single event, drawn with its name where there is room: job time in ns, category as in ``lane_work``."""

    start: int
    end: int
    name: str
    category: str


# -- the common shape -------------------------------------------------------------------------------------------------


def _operations(
    timeline: Timeline, lanes: Sequence[LaneIdentity], extra: Any
) -> sa.CompoundSelect[Any] | sa.Select[Any]:
    """The selected GPU operations of some lanes in the shape of the event list; ``extra`` gives more conditions."""
    parts, streams = [], timeline.selection.streams
    for of_table in (EventKind.KERNEL, EventKind.MEMORY, EventKind.GRAPH):
        table, name = KIND_TABLES[of_table].table, KIND_TABLES[of_table].name
        if not timeline.session.count(table):
            continue
        columns = table.c
        kind: sa.ColumnElement[Any] = sa.literal(of_table.value, sa.Text)
        order: sa.ColumnElement[Any] = sa.literal(of_table.order, sa.BigInteger)
        if of_table is EventKind.KERNEL:  # one scan for those of NCCL and all others
            kind = sa.case((columns.is_nccl == 1, EventKind.NCCL.value), else_=kind)
            order = sa.case((columns.is_nccl == 1, EventKind.NCCL.order), else_=order)
        query = sa.select(
            job_start(table).label("start"),
            (columns.end - columns.start).label("duration"),
            kind.label("kind"),
            order.label("kind_order"),
            name.label("name"),
            sa.literal(lanes[0].rank, sa.BigInteger).label("rank"),
            columns.report,
            columns.process,
            sa.cast(sa.null(), sa.BigInteger).label("thread"),
            columns.device,
            columns.stream,
            columns.correlation_id,
            columns.row,
        ).where(_on_lanes(table, lanes), columns.end.is_not(None), *extra(table, name))
        parts.append(query if streams is None else query.where(columns.stream.in_(sorted(streams))))
    return sa.union_all(*parts) if len(parts) > 1 else parts[0]


def _on_lanes(table: sa.Table, lanes: Sequence[LaneIdentity]) -> Condition:
    """Whether an operation is on one of the lanes; what is on a lane of its device is not looked for on its streams."""
    places = _by_place(lanes)
    devices = [place for place in places if place[-1] is None]
    streams = [place for place in places if place[-1] is not None and (*place[:-1], None) not in places]
    keys = ("report", *STREAM_KEYS)
    chosen: list[Condition] = []
    for own, some in ((keys[:-1], devices), (keys, streams)):
        if some:
            values = given({key: [place[number] for place in some] for number, key in enumerate(own)})
            chosen.append(sa.tuple_(*(table.c[key] for key in own)).in_(values))
    return sa.or_(*chosen)


def _overlapping(timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window) -> Any:
    """The condition that an operation runs in ``window``; constants first, which Parquet can skip row groups by."""
    offsets = {timeline.clock_offset(lane) for lane in lanes}

    def conditions(table: sa.Table, name: sa.ColumnElement[Any]) -> list[Condition]:
        start, end, offset = table.c.start, table.c.end, table.c.clock_offset
        constant = [start < window.end - min(offsets), end > window.start - max(offsets)]
        return constant if len(offsets) == 1 else [*constant, start < window.end - offset, end > window.start - offset]

    return conditions


def _part(timeline: Timeline, lanes: Sequence[LaneIdentity]) -> Session:
    """The reports of some lanes."""
    return timeline.session.part(lane.task.report for lane in lanes)


# -- what a picture needs ---------------------------------------------------------------------------------------------


def long_events(
    timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window, least: int
) -> dict[LaneIdentity, list[EventSpan]]:
    """Find the operations of GPU lanes that overlap ``window`` and take at least ``least`` ns, by lane and start.

    The longest 4,000 of them where there are more.
    """
    found: dict[LaneIdentity, list[EventSpan]] = {lane: [] for lane in lanes}
    if not lanes:
        return found
    inside, places = _overlapping(timeline, lanes, window), _by_place(lanes)

    def long_ones(table: sa.Table, name: sa.ColumnElement[Any]) -> list[Condition]:
        return [*inside(table, name), table.c.end - table.c.start >= least]

    rows = _operations(timeline, lanes, long_ones).subquery()
    keys = [rows.c[key] for key in ("report", "process", "device", "stream", "start", "duration", "kind", "name")]
    query = sa.select(*keys).order_by(rows.c.duration.desc(), rows.c.start).limit(_MOST_SPANS)
    for report, process, device, stream, start, duration, kind, name in _part(timeline, lanes).rows(query):
        shown = timeline.names.get(name, name or "")
        if kind == EventKind.NCCL.value:  # in a few cells the collective says more than how the name begins
            shown = collective_of_kernel(shown) or shown
        span = EventSpan(start, start + duration, shown, _CATEGORY[kind])
        for place in {(report, process, device, stream), (report, process, device, None)} & places.keys():
            found[places[place]].append(span)
    return {lane: sorted(spans, key=lambda span: span.start) for lane, spans in found.items()}


def matching_columns(
    timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window, count: int, wanted: NameFilter
) -> dict[LaneIdentity, set[int]]:
    """Find which of ``count`` columns of ``window`` hold an operation whose name passes, by lane."""
    found: dict[LaneIdentity, set[int]] = {lane: set() for lane in lanes}
    if not lanes:
        return found
    inside, places = _overlapping(timeline, lanes, window), _by_place(lanes)
    rows = _operations(timeline, lanes, lambda table, name: [*inside(table, name), matches(name, wanted)]).subquery()
    width = max(window.end - window.start, 1)

    def column(time: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        place = sa.func.divide((time - window.start) * count, width, type_=sa.BigInteger)
        return sa.func.greatest(0, sa.func.least(count - 1, place))

    keys = (rows.c.report, rows.c.process, rows.c.device, rows.c.stream)
    last = rows.c.start + sa.func.greatest(rows.c.duration, 1) - 1
    query = sa.select(*keys, column(rows.c.start), column(last)).distinct()
    for report, process, device, stream, first, final in _part(timeline, lanes).rows(query):
        for place in {(report, process, device, stream), (report, process, device, None)} & places.keys():
            found[places[place]].update(range(int(first), int(final) + 1))
    return found


def _by_place(lanes: Sequence[LaneIdentity]) -> dict[tuple[int | None, ...], LaneIdentity]:
    """The lanes by (report, process, device, stream), which is ``None`` for that of a device."""
    return {(lane.task.report, lane.task.process, lane.device, lane.stream): lane for lane in lanes}


# -- single events ----------------------------------------------------------------------------------------------------


def longest_in(timeline: Timeline, lane: LaneIdentity, window: Window) -> tuple[Row | None, int]:
    """Find the operation that takes up most of ``window``, a row of the event list, and how many run in it."""
    rows = _operations(timeline, [lane], _overlapping(timeline, [lane], window)).subquery()
    inside = sa.func.least(rows.c.start + rows.c.duration, window.end) - sa.func.greatest(rows.c.start, window.start)
    number = sa.func.count().over().label("number")
    query = sa.select(*columns_of(rows), number).order_by(inside.desc(), rows.c.start, rows.c.row).limit(1)
    for *row, count in _part(timeline, [lane]).rows(query):
        return tuple(row), int(count)
    return None, 0


@dataclass
class Neighbours:
    """The operations next to a moment on a lane; the last run of them stays at hand, for a key that is held."""

    timeline: Timeline
    _lane: LaneIdentity | None = None
    _low: int = 0
    _high: int = 0
    _rows: Sequence[Row] = ()

    def find(self, lane: LaneIdentity, time: int, forward: bool) -> Row | None:
        """Find the first operation that starts after ``time``, or the last before it; ``None`` at the ends."""
        if lane == self._lane and self._low - 1 <= time <= self._high:
            for row in self._rows if forward else reversed(self._rows):
                start = key_of(row).start
                if start > time if forward else start < time:
                    return row
        for low, high in self._spans(lane, time, forward):
            rows = self._run(lane, low, high, forward)
            if rows:
                # A run that was cut says nothing of what lies beyond its last row.
                cut = len(rows) == _RUN
                self._lane, self._rows = lane, rows if forward else rows[::-1]
                furthest = key_of(rows[-1]).start
                self._low = furthest if cut and not forward else low
                self._high = furthest + 1 if cut and forward else high
                return rows[0]
        return None

    def _run(self, lane: LaneIdentity, low: int, high: int, forward: bool) -> Sequence[Row]:
        """The operations that start in ``[low, high)``, nearest first, not all of very many."""
        timeline = self.timeline
        offset = timeline.clock_offset(lane)

        def conditions(table: sa.Table, name: sa.ColumnElement[Any]) -> list[Condition]:
            return [table.c.start >= low - offset, table.c.start < high - offset]

        rows = _operations(timeline, [lane], conditions).subquery()
        order = (rows.c.start, rows.c.kind_order, rows.c.row)
        query = sa.select(*columns_of(rows)).order_by(*[column if forward else column.desc() for column in order])
        return _part(timeline, [lane]).rows(query.limit(_RUN))

    def _spans(self, lane: LaneIdentity, time: int, forward: bool) -> Iterator[tuple[int, int]]:
        """Spans of time on one side of a moment, each further than the one before and wider."""
        report = report_at(self.timeline.session, lane.task.report)
        whole = event_span(report)
        if whole is None:
            return
        count = sum(report.count(table) for table in GPU_TABLES)
        width = max((whole.end - whole.start) * _NEAR_ROWS // max(count, 1), 1)
        edge = time + 1 if forward else time
        while edge < whole.end + 1 if forward else edge > whole.start:
            further = edge + width if forward else edge - width
            yield (edge, further) if forward else (further, edge)
            edge, width = further, width * _GROWTH


def thread_spans(timeline: Timeline, lane: LaneIdentity, window: Window, count: int) -> list[EventSpan]:
    """Return the ranges or calls of a lane that take a column or more of ``count`` columns of ``window``, by start.

    Push/pop ranges of one thread and level follow one another; start/end ranges may overlap.
    """
    own = timeline.events(lane)
    least = (window.end - window.start) / count
    if own.follow:
        # The last range that starts before the end of each column: whatever is as long as a column is among them, for
        # no other range can start in the same column after it.
        edges = window.start - (-np.arange(1, count + 1) * (window.end - window.start) // count)
        rows = np.unique(np.searchsorted(own.start, edges, side="left") - 1)
        rows = rows[rows >= 0]
    else:
        rows = _inside(own, window)
    rows = rows[(own.end[rows] - own.start[rows] >= least) & (own.end[rows] > window.start)]
    return [
        EventSpan(int(own.start[row]), int(own.end[row]), own.names[int(own.name[row])], own.category_of(row))
        for row in rows.tolist()
    ]


def _inside(level: ThreadEvents, window: Window) -> NDArray[np.int64]:
    """The ranges that overlap ``window``."""
    last = int(np.searchsorted(level.start, window.end, side="left"))
    return np.flatnonzero(level.end[:last] > window.start)


def matching_ranges(timeline: Timeline, lane: LaneIdentity, window: Window, count: int, wanted: NameFilter) -> set[int]:
    """Find which of ``count`` columns of ``window`` hold a range or call of a lane whose name passes."""
    level = timeline.events(lane)
    passes = np.array([wanted.matches(name) for name in level.names], bool)
    rows = _inside(level, window)
    rows = rows[passes[level.name[rows]]]
    width = max(window.end - window.start, 1)
    first = np.clip((level.start[rows] - window.start) * count // width, 0, count - 1)
    final = np.clip(
        (np.maximum(level.end[rows], level.start[rows] + 1) - 1 - window.start) * count // width, 0, count - 1
    )
    # Where ranges begin and end, summed up along the columns, says where there are any.
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, final + 1, -1)
    return set(np.flatnonzero(np.cumsum(change[:-1]) > 0).tolist())


def range_next_to(timeline: Timeline, lane: LaneIdentity, time: int, forward: bool) -> Row | None:
    """Find the first range of a lane that starts after ``time``, or the last that starts before it; a row of events."""
    level = timeline.events(lane)
    place = int(np.searchsorted(level.start, time, side="right" if forward else "left")) - (0 if forward else 1)
    return _row(timeline, lane, level, place) if 0 <= place < len(level.start) else None


def longest_range_in(timeline: Timeline, lane: LaneIdentity, window: Window) -> tuple[Row | None, int]:
    """Find the range that takes up most of ``window``, a row of the event list, and how many overlap it."""
    level = timeline.events(lane)
    place = longest_place_in(level, window)
    return (None, 0) if place is None else (_row(timeline, lane, level, place), len(_inside(level, window)))


def longest_place_in(level: ThreadEvents, window: Window) -> int | None:
    """Find the number of the range, call or stretch that takes up most of ``window``; ``None`` where there is none."""
    rows = _inside(level, window)
    if not len(rows):
        return None
    inside = np.minimum(level.end[rows], window.end) - np.maximum(level.start[rows], window.start)
    return int(rows[int(np.argmax(inside))])


@dataclass(frozen=True)
class CpuInterval:
    """A time in which a thread ran one function (``place``: among the stretches of its lane) or had no CPU (``state``).

    ``node``: of the stack that was sampled, 0 for none.
    """

    window: Window
    place: int | None
    state: int
    node: int = 0


def cpu_interval_in(timeline: Timeline, lane: LaneIdentity, window: Window) -> CpuInterval | None:
    """Tell what a thread ran in most of ``window``, else its state in the middle; ``None`` if nothing is recorded."""
    own = timeline.events(lane)
    place = longest_place_in(own, window)
    if place is not None:
        found = Window(int(own.start[place]), int(own.end[place]))
        return CpuInterval(found, place, RUNNING, int(own.row[place]))
    states, middle = timeline.cpu_work(lane).states.get(lane.thread or 0), (window.start + window.end) // 2
    number = -1 if states is None else int(np.searchsorted(states.starts, middle, side="right")) - 1
    if states is None or number < 0 or middle >= int(states.ends[number]):
        return None
    found = Window(int(states.starts[number]), int(states.ends[number]))
    return CpuInterval(found, None, int(states.labels[number]))


def cpu_interval_next_to(
    timeline: Timeline, lane: LaneIdentity, time: int, forward: bool, wanted: NameFilter | None = None
) -> int | None:
    """Find where the next interval of a lane of a CPU begins, or the one before: another function or another state.

    Of a path it is the next piece. With ``wanted`` those of names that pass.
    """
    own = timeline.events(lane)
    states = timeline.cpu_work(lane).states.get(lane.thread or 0) if lane.is_cpu else None
    if wanted is not None:
        starts = own.start[np.array([wanted.matches(name) for name in own.names], bool)[own.name]]
    else:
        starts = own.start if states is None else np.union1d(own.start, states.starts)
    place = int(np.searchsorted(starts, time, side="right" if forward else "left")) - (0 if forward else 1)
    return int(starts[place]) if 0 <= place < len(starts) else None


def _row(timeline: Timeline, lane: LaneIdentity, level: ThreadEvents, place: int) -> Row | None:
    if level.kind is None:
        return None
    key = EventKey(lane.task.report, level.kind, int(level.row[place]), int(level.start[place]))
    return event_row(timeline.session, key, timeline.ranks)


def lane_events(timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window) -> Answer:
    """List the events of the ranks, devices and streams of ``lanes`` that overlap ``window``, in order of start.

    A lane of a GPU stands for all of its streams; NVTX ranges and calls are in it where one of the lanes is of that
    kind, of every level and thread of the ranks.
    """
    gpu = [lane for lane in lanes if not lane.is_host]
    streams = {lane.stream for lane in gpu}
    whole = timeline.selection.streams
    chosen = frozenset(stream for stream in streams if stream is not None)
    devices = frozenset(lane.device for lane in gpu if lane.device is not None)
    selection = replace(
        timeline.selection,
        window=window,
        tasks=frozenset(lane.task for lane in lanes),
        devices=devices if gpu else timeline.selection.devices,
        streams=whole if None in streams or not streams else chosen,
    )
    hosts = {lane.calls or EventKind.NVTX for lane in lanes if lane.is_host and not lane.has_stretches}
    kinds = [kind for kind in EventKind if kind in hosts and timeline.session.count(KIND_TABLES[kind].table)]
    if gpu:
        kinds = [*GPU_KINDS, *kinds]
    return replace(EventList.build(timeline.session, selection, timeline.ranks, kinds), name="timeline")


# -- matches of a name over all lanes ---------------------------------------------------------------------------------


_KEYS = tuple(column.key for column in EVENT_COLUMNS)
_MOST_SEARCHED = 16_000_000
"""Ranges and calls of all ranks among which a name is looked for; of more only those of opened ranks are read."""
_TIES = 256
"""Operations that start together, at most, among which the one on the next lane is looked for."""


@dataclass(frozen=True)
class Match:
    """An event whose name passes, a row of the event list, and the lane on which it is shown."""

    lane: LaneIdentity
    row: Row


@dataclass(frozen=True, eq=False)
class Matches:
    """The events of some lanes whose names pass ``wanted`` and that start in ``window``, in order of start and lane.

    A lane of a GPU whose streams are shown too stands back behind these: no operation counts twice.
    """

    timeline: Timeline
    lanes: tuple[LaneIdentity, ...]
    window: Window
    wanted: NameFilter
    is_whole: bool = True
    """Whether ``lanes`` has the ranges and calls of every selected rank."""
    _found: dict[LaneIdentity, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    """The places among the events of a lane of a thread, and the starts, of those that match."""

    @classmethod
    def of(cls, timeline: Timeline, opened: frozenset[Task], window: Window, wanted: NameFilter) -> Matches:
        """Make the matches on all selected ranks; of a job with very many ranges and calls, inside opened ranks only.

        A GPU of a rank that is not opened is one lane. Blocks while the ranks are read.
        """
        tasks = frozenset(item.task for item in timeline.tasks)
        is_whole = tasks <= opened or sum(map(timeline.rows_inside, tasks)) <= _MOST_SEARCHED
        lanes, _ = timeline.lanes(tasks if is_whole else opened)
        return cls(
            timeline,
            tuple(
                lane  # what ran on a CPU is no event
                for lane in lanes
                if not lane.is_cpu and (lane.is_host or lane.stream is None or lane.task in opened)
            ),
            window,
            wanted,
            is_whole,
        )

    def count(self) -> int:
        """Count the matches."""
        total = sum(len(self._of(lane)[1]) for lane in self.lanes if lane.is_host)
        gpu = self._gpu()
        if gpu:
            rows = self._operations(gpu, self.window.start, self.window.end).subquery()
            query = sa.select(sa.func.count()).select_from(rows)
            total += int(_part(self.timeline, gpu).scalar(query) or 0)
        return total

    def next_to(self, time: int, lane: LaneIdentity | None, forward: bool) -> Match | None:
        """Find the match after an event at ``time`` on ``lane`` (before the first lane: ``None``), or before it."""
        place = self.lanes.index(lane) if lane in self.lanes else -1
        here = (time, place)
        found: list[tuple[tuple[int, int], Row | int]] = []
        for number, one in enumerate(self.lanes):
            if one.is_host:
                starts = self._of(one)[1]
                # On lanes further on what starts at the same time counts as well.
                further = number > place if forward else number < place
                side: Literal["left", "right"] = "left" if forward == further else "right"
                index = int(np.searchsorted(starts, time, side=side)) - (0 if forward else 1)
                if 0 <= index < len(starts):
                    found.append(((int(starts[index]), number), index))
        gpu = self._gpu()
        for row in self._near(gpu, time, forward) if gpu else ():
            key = (key_of(row).start, self._lane_of(row, gpu))
            if key > here if forward else key < here:
                found.append((key, row))
        if not found:
            return None
        (_, number), what = (min if forward else max)(found, key=lambda item: item[0])
        chosen = self.lanes[number]
        if not isinstance(what, int):
            return Match(
                chosen, tuple(chosen.rank if key == "rank" else value for key, value in zip(_KEYS, what, strict=True))
            )
        own = self.timeline.events(chosen)
        shown = _row(self.timeline, chosen, own, int(self._of(chosen)[0][what]))
        return None if shown is None else Match(chosen, shown)

    def _gpu(self) -> list[LaneIdentity]:
        """The lanes of GPUs on which operations are shown."""
        with_streams = {(lane.task, lane.device) for lane in self.lanes if lane.stream is not None}
        return [
            lane
            for lane in self.lanes
            if not lane.is_host and (lane.stream is not None or (lane.task, lane.device) not in with_streams)
        ]

    def _of(self, lane: LaneIdentity) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if lane not in self._found:
            own = self.timeline.events(lane)
            passes = np.array([self.wanted.matches(name) for name in own.names], bool)
            inside = (own.start >= self.window.start) & (own.start < self.window.end)
            places = np.flatnonzero(inside & passes[own.name])
            self._found[lane] = places, own.start[places]
        return self._found[lane]

    def _operations(self, gpu: list[LaneIdentity], low: int, high: int) -> sa.CompoundSelect[Any] | sa.Select[Any]:
        """The operations that pass and start in ``[low, high)``."""

        def conditions(table: sa.Table, name: sa.ColumnElement[Any]) -> list[Condition]:
            return [job_start(table) >= low, job_start(table) < high, matches(name, self.wanted)]

        return _operations(self.timeline, gpu, conditions)

    def _near(self, gpu: list[LaneIdentity], time: int, forward: bool) -> Sequence[Row]:
        """The next operations on one side of a moment, with those that start at it."""
        low, high = (time, self.window.end) if forward else (self.window.start, time + 1)
        rows = self._operations(gpu, low, high).subquery()
        order = (rows.c.start, rows.c.row)
        query = sa.select(*columns_of(rows)).order_by(*[column if forward else column.desc() for column in order])
        return _part(self.timeline, gpu).rows(query.limit(_TIES))

    def _lane_of(self, row: Row, gpu: list[LaneIdentity]) -> int:
        values = record(EVENT_COLUMNS, row)
        device = (values["report"], values["process"], values["device"])
        for lane in gpu:
            is_same = (lane.task.report, lane.task.process, lane.device) == device
            if is_same and lane.stream in (None, values["stream"]):
                return self.lanes.index(lane)
        return 0
