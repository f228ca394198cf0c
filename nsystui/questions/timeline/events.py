"""The events of lanes (GPU operations, NVTX ranges, calls): longest, neighbours, matches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Row, record
from nsystui.base.selection import NameFilter, Task, Window
from nsystui.base.types import AnyQuery, Condition, Expression, Ints
from nsystui.questions.events.kinds import KIND_TABLES, EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, columns_of, event_row, key_of
from nsystui.questions.gpu.device_time import STREAM_KEYS
from nsystui.questions.host.segments import RUNNING
from nsystui.questions.nccl.names import collective_of_kernel
from nsystui.questions.queries.conditions import given, job_start, matches, starts_within
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.questions.queries.time_window import event_span, report_at
from nsystui.questions.timeline.lanes import LaneIdentity, ThreadEvents, Timeline
from nsystui.store.session import Session
from nsystui.store.tables import MOST_OFFSET

_CATEGORY = {"kernel": "compute", "nccl": "nccl", "memory": "memory", "graph": "graph", "hostfunc": "cpu"}
_MAX_SPANS = 4000
# Approximate rows in the first search for a neighbour, and growth of the span in each further search.
_FIRST_ROWS = 256
_GROWTH = 32
_MAX_RUN = 256


@dataclass(frozen=True)
class EventSpan:
    """An event, drawn with its name if there is room: job time in ns, a category of `lanes.CATEGORIES`."""

    start: int
    end: int
    name: str
    category: str


# -- the common shape -------------------------------------------------------------------------------------------------


def _operations(timeline: Timeline, lanes: Sequence[LaneIdentity], extra: Any) -> AnyQuery:
    """Select operations of streams as rows of the event list; ``extra`` returns more conditions."""
    parts, streams = [], timeline.selection.streams
    for event_kind in (EventKind.KERNEL, EventKind.MEMORY, EventKind.GRAPH, EventKind.HOST_FUNCTION):
        table, name = KIND_TABLES[event_kind].table, KIND_TABLES[event_kind].name
        if not timeline.session.count(table):
            continue
        columns = table.c
        kind: Expression = sa.literal(event_kind.value, sa.Text)
        order: Expression = sa.literal(event_kind.order, sa.BigInteger)
        if event_kind is EventKind.KERNEL:  # one scan for NCCL and all other kernels
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
    """Return the condition; streams are omitted if their device has a lane."""
    lanes_by_key = _lanes_by_key(lanes)
    devices = [key for key in lanes_by_key if key[-1] is None]
    streams = [key for key in lanes_by_key if key[-1] is not None and (*key[:-1], None) not in lanes_by_key]
    all_names = ("report", *STREAM_KEYS)
    conditions: list[Condition] = []
    for names, lane_keys in ((all_names[:-1], devices), (all_names, streams)):
        if lane_keys:
            values = given({name: [key[index] for key in lane_keys] for index, name in enumerate(names)})
            conditions.append(sa.tuple_(*(table.c[name] for name in names)).in_(values))
    return sa.or_(*conditions)


def _overlapping(window: Window) -> Any:
    """Return the condition; its constants let DuckDB skip row groups."""

    def conditions(table: sa.Table, name: Expression) -> list[Condition]:
        end, low = table.c.end, window.start
        return [*starts_within(table, None, window.end), end > low - MOST_OFFSET, end > low - table.c.clock_offset]

    return conditions


def _part(timeline: Timeline, lanes: Sequence[LaneIdentity]) -> Session:
    return timeline.session.part(lane.task.report for lane in lanes)


# -- events of pictures ------------------------------------------------------------------------------------------------


def long_events(
    timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window, min_length: int
) -> dict[LaneIdentity, list[EventSpan]]:
    """Find operations of GPU lanes that overlap ``window`` and take at least ``min_length`` ns, by lane and start.

    Returns at most the 4,000 longest.
    """
    spans_by_lane: dict[LaneIdentity, list[EventSpan]] = {lane: [] for lane in lanes}
    if not lanes:
        return spans_by_lane
    overlaps, lanes_by_key = _overlapping(window), _lanes_by_key(lanes)

    def are_long(table: sa.Table, name: Expression) -> list[Condition]:
        return [*overlaps(table, name), table.c.end - table.c.start >= min_length]

    rows = _operations(timeline, lanes, are_long).subquery()
    columns = [rows.c[key] for key in ("report", "process", "device", "stream", "start", "duration", "kind", "name")]
    query = sa.select(*columns).order_by(rows.c.duration.desc(), rows.c.start).limit(_MAX_SPANS)
    for report, process, device, stream, start, duration, kind, name in _part(timeline, lanes).rows(query):
        shown = timeline.names.get(name, name or "")
        if kind == EventKind.NCCL.value:  # clearer in a few cells than the beginning of the name
            shown = collective_of_kernel(shown) or shown
        span = EventSpan(start, start + duration, shown, _CATEGORY[kind])
        for key in {(report, process, device, stream), (report, process, device, None)} & lanes_by_key.keys():
            spans_by_lane[lanes_by_key[key]].append(span)
    return {lane: sorted(spans, key=lambda span: span.start) for lane, spans in spans_by_lane.items()}


def matching_columns(
    timeline: Timeline, lanes: Sequence[LaneIdentity], window: Window, count: int, wanted: NameFilter
) -> dict[LaneIdentity, set[int]]:
    """Find the columns (of ``count``) of ``window`` with an operation whose name passes, by lane."""
    columns_by_lane: dict[LaneIdentity, set[int]] = {lane: set() for lane in lanes}
    if not lanes:
        return columns_by_lane
    overlaps, lanes_by_key = _overlapping(window), _lanes_by_key(lanes)
    rows = _operations(timeline, lanes, lambda table, name: [*overlaps(table, name), matches(name, wanted)]).subquery()
    width = max(window.end - window.start, 1)

    def column(time: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        number = sa.func.divide((time - window.start) * count, width, type_=sa.BigInteger)
        return sa.func.greatest(0, sa.func.least(count - 1, number))

    columns = (rows.c.report, rows.c.process, rows.c.device, rows.c.stream)
    last = rows.c.start + sa.func.greatest(rows.c.duration, 1) - 1
    query = sa.select(*columns, column(rows.c.start), column(last)).distinct()
    for report, process, device, stream, first, final in _part(timeline, lanes).rows(query):
        for key in {(report, process, device, stream), (report, process, device, None)} & lanes_by_key.keys():
            columns_by_lane[lanes_by_key[key]].update(range(int(first), int(final) + 1))
    return columns_by_lane


def _lanes_by_key(lanes: Sequence[LaneIdentity]) -> dict[tuple[int | None, ...], LaneIdentity]:
    return {(lane.task.report, lane.task.process, lane.device, lane.stream): lane for lane in lanes}


# -- single events ----------------------------------------------------------------------------------------------------


def longest_in(timeline: Timeline, lane: LaneIdentity, window: Window) -> tuple[Row | None, int]:
    """Find the operation with the most time in ``window``, a row of the event list, and count all in it."""
    rows = _operations(timeline, [lane], _overlapping(window)).subquery()
    overlap = sa.func.least(rows.c.start + rows.c.duration, window.end) - sa.func.greatest(rows.c.start, window.start)
    number = sa.func.count().over().label("number")
    query = sa.select(*columns_of(rows), number).order_by(overlap.desc(), rows.c.start, rows.c.row).limit(1)
    for *row, count in _part(timeline, [lane]).rows(query):
        return tuple(row), int(count)
    return None, 0


@dataclass
class Neighbours:
    """The operations next to a moment on a lane; the last rows are cached for a held key."""

    timeline: Timeline
    _lane: LaneIdentity | None = None
    _low: int = 0
    _high: int = 0
    _rows: Sequence[Row] = ()

    def find(self, lane: LaneIdentity, time: int, forward: bool) -> Row | None:
        """Return the first operation that starts after ``time``, or the last before it, if any."""
        if lane == self._lane and self._low - 1 <= time <= self._high:
            for row in self._rows if forward else reversed(self._rows):
                start = key_of(row).start
                if start > time if forward else start < time:
                    return row
        for low, high in self._spans(lane, time, forward):
            rows = self._run(lane, low, high, forward)
            if rows:
                # Beyond the last row of a run that was cut, nothing is known.
                is_cut = len(rows) == _MAX_RUN
                self._lane, self._rows = lane, rows if forward else rows[::-1]
                last_start = key_of(rows[-1]).start
                self._low = last_start if is_cut and not forward else low
                self._high = last_start + 1 if is_cut and forward else high
                return rows[0]
        return None

    def _run(self, lane: LaneIdentity, low: int, high: int, forward: bool) -> Sequence[Row]:
        """Return operations that start in ``[low, high)``, nearest first, at most `_MAX_RUN`."""
        timeline = self.timeline
        offset = timeline.clock_offset(lane)

        def conditions(table: sa.Table, name: Expression) -> list[Condition]:
            return [table.c.start >= low - offset, table.c.start < high - offset]

        rows = _operations(timeline, [lane], conditions).subquery()
        order = (rows.c.start, rows.c.kind_order, rows.c.row)
        query = sa.select(*columns_of(rows)).order_by(*[column if forward else column.desc() for column in order])
        return _part(timeline, [lane]).rows(query.limit(_MAX_RUN))

    def _spans(self, lane: LaneIdentity, time: int, forward: bool) -> Iterator[tuple[int, int]]:
        report = report_at(self.timeline.session, lane.task.report)
        extent = event_span(report)
        if extent is None:
            return
        count = sum(report.count(table) for table in GPU_TABLES)
        width = max((extent.end - extent.start) * _FIRST_ROWS // max(count, 1), 1)
        edge = time + 1 if forward else time
        while edge < extent.end + 1 if forward else edge > extent.start:
            next_edge = edge + width if forward else edge - width
            yield (edge, next_edge) if forward else (next_edge, edge)
            edge, width = next_edge, width * _GROWTH


def thread_spans(timeline: Timeline, lane: LaneIdentity, window: Window, count: int) -> list[EventSpan]:
    """Return a lane's ranges or calls at least as long as a column of ``window``, by start.

    Push/pop ranges of a thread and level follow one another; start/end ranges may overlap.
    """
    level = timeline.events(lane)
    min_length = (window.end - window.start) / count
    if level.follow:
        # The last range that starts before the end of each column: these include all ranges as long as a column,
        # because no other range can start after them in the same column.
        edges = window.start - (-np.arange(1, count + 1) * (window.end - window.start) // count)
        rows = np.unique(np.searchsorted(level.start, edges, side="left") - 1)
        rows = rows[rows >= 0]
    else:
        rows = _inside(level, window)
    rows = rows[(level.end[rows] - level.start[rows] >= min_length) & (level.end[rows] > window.start)]
    return [
        EventSpan(int(level.start[row]), int(level.end[row]), level.names[int(level.name[row])], level.category_of(row))
        for row in rows.tolist()
    ]


def _inside(level: ThreadEvents, window: Window) -> Ints:
    last = int(np.searchsorted(level.start, window.end, side="left"))
    return np.flatnonzero(level.end[:last] > window.start)


def matching_ranges(timeline: Timeline, lane: LaneIdentity, window: Window, count: int, wanted: NameFilter) -> set[int]:
    """Find the columns (of ``count``) of ``window`` with a range or call of a lane whose name passes."""
    level = timeline.events(lane)
    passes = np.array([wanted.matches(name) for name in level.names], bool)
    rows = _inside(level, window)
    rows = rows[passes[level.name[rows]]]
    width = max(window.end - window.start, 1)
    first = np.clip((level.start[rows] - window.start) * count // width, 0, count - 1)
    final = np.clip(
        (np.maximum(level.end[rows], level.start[rows] + 1) - 1 - window.start) * count // width, 0, count - 1
    )
    # The cumulative sum of begins and ends is the number of ranges in each column.
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, final + 1, -1)
    return set(np.flatnonzero(np.cumsum(change[:-1]) > 0).tolist())


def range_next_to(timeline: Timeline, lane: LaneIdentity, time: int, forward: bool) -> Row | None:
    """Find the first range that starts after ``time``, or the last before it: a row of the event list."""
    level = timeline.events(lane)
    index = int(np.searchsorted(level.start, time, side="right" if forward else "left")) - (0 if forward else 1)
    return _row(timeline, lane, level, index) if 0 <= index < len(level.start) else None


def longest_range_in(timeline: Timeline, lane: LaneIdentity, window: Window) -> tuple[Row | None, int]:
    """Find the range with the most time in ``window``, a row of the event list, and count all in it."""
    level = timeline.events(lane)
    index = longest_place_in(level, window)
    return (None, 0) if index is None else (_row(timeline, lane, level, index), len(_inside(level, window)))


def longest_place_in(level: ThreadEvents, window: Window) -> int | None:
    """Find the index of the range, call or stretch with the most time in ``window``, if any."""
    rows = _inside(level, window)
    if not len(rows):
        return None
    overlap = np.minimum(level.end[rows], window.end) - np.maximum(level.start[rows], window.start)
    return int(rows[int(np.argmax(overlap))])


@dataclass(frozen=True)
class CpuInterval:
    """A time in which a thread ran one function (``place``: index of the lane's stretch) or had no CPU (``state``).

    ``node``: the sampled stack, or 0.
    """

    window: Window
    place: int | None
    state: int
    node: int = 0


def cpu_interval_in(timeline: Timeline, lane: LaneIdentity, window: Window) -> CpuInterval | None:
    """Find the longest stretch of a thread in ``window``, else its state in the middle, if recorded."""
    events = timeline.events(lane)
    index = longest_place_in(events, window)
    if index is not None:
        interval = Window(int(events.start[index]), int(events.end[index]))
        return CpuInterval(interval, index, RUNNING, int(events.row[index]))
    states, middle = timeline.cpu_work(lane).states.get(lane.thread or 0), (window.start + window.end) // 2
    state_index = -1 if states is None else int(np.searchsorted(states.starts, middle, side="right")) - 1
    if states is None or state_index < 0 or middle >= int(states.ends[state_index]):
        return None
    interval = Window(int(states.starts[state_index]), int(states.ends[state_index]))
    return CpuInterval(interval, None, int(states.labels[state_index]))


def cpu_interval_next_to(
    timeline: Timeline, lane: LaneIdentity, time: int, forward: bool, wanted: NameFilter | None = None
) -> int | None:
    """Find the start of the next (or previous) interval of a CPU lane, with another function or state.

    On a path, intervals are pieces. ``wanted`` limits them to names that pass.
    """
    events = timeline.events(lane)
    states = timeline.cpu_work(lane).states.get(lane.thread or 0) if lane.is_cpu else None
    if wanted is not None:
        starts = events.start[np.array([wanted.matches(name) for name in events.names], bool)[events.name]]
    else:
        starts = events.start if states is None else np.union1d(events.start, states.starts)
    index = int(np.searchsorted(starts, time, side="right" if forward else "left")) - (0 if forward else 1)
    return int(starts[index]) if 0 <= index < len(starts) else None


def _row(timeline: Timeline, lane: LaneIdentity, level: ThreadEvents, index: int) -> Row | None:
    if level.kind is None:
        return None
    key = EventKey(lane.task.report, level.kind, int(level.row[index]), int(level.start[index]))
    return event_row(timeline.session, key, timeline.ranks)


# -- matches of a name over all lanes ---------------------------------------------------------------------------------


_KEYS = tuple(column.key for column in EVENT_COLUMNS)
_MAX_SEARCHED = 16_000_000
"""The most ranges and calls that a search reads; if all ranks have more, it reads opened ranks only."""
_MAX_TIES = 256
"""The most operations with one start that are searched for the next lane."""


@dataclass(frozen=True)
class Match:
    """An event whose name passes, as a row of the event list, and the lane that shows it."""

    lane: LaneIdentity
    row: Row


@dataclass(frozen=True, eq=False)
class Matches:
    """The events of some lanes with a ``wanted`` name that start in ``window``, in order of start and lane.

    A GPU's lane is ignored if lanes of its streams are shown, so that no operation counts twice.
    """

    timeline: Timeline
    lanes: tuple[LaneIdentity, ...]
    window: Window
    wanted: NameFilter
    is_whole: bool = True  # whether ``lanes`` has the ranges and calls of all selected ranks
    _matches_by_lane: dict[LaneIdentity, tuple[Ints, Ints]] = field(default_factory=dict)
    """Indices of the matching events of a thread's lane, and their starts."""

    @classmethod
    def of(cls, timeline: Timeline, opened: frozenset[Task], window: Window, wanted: NameFilter) -> Matches:
        """Return the matches on all selected ranks, or on opened ranks if ranges and calls are too many.

        A GPU is one lane if its rank is not opened. Blocks while the ranks are read.
        """
        tasks = frozenset(rank.task for rank in timeline.tasks)
        is_whole = tasks <= opened or sum(map(timeline.rows_inside, tasks)) <= _MAX_SEARCHED
        lanes, _ = timeline.lanes(tasks if is_whole else opened)
        return cls(
            timeline,
            tuple(
                lane  # stretches on CPUs are not events
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
            total += int(_part(self.timeline, gpu).scalar(sa.select(sa.func.count()).select_from(rows)) or 0)
        return total

    def next_to(self, time: int, lane: LaneIdentity | None, forward: bool) -> Match | None:
        """Find the match after (or before) an event at ``time`` on ``lane`` (``None``: before the first lane)."""
        position = (time, self.lanes.index(lane) if lane in self.lanes else -1)
        candidates: list[tuple[tuple[int, int], Row | int]] = [*self._next_on_host(position, forward)]
        gpu = self._gpu()
        for row in self._near(gpu, time, forward) if gpu else ():
            key = (key_of(row).start, self._lane_of(row, gpu))
            if key > position if forward else key < position:
                candidates.append((key, row))
        if not candidates:
            return None
        (_, index), best = (min if forward else max)(candidates, key=lambda item: item[0])
        target = self.lanes[index]
        if not isinstance(best, int):
            return Match(
                target, tuple(target.rank if key == "rank" else value for key, value in zip(_KEYS, best, strict=True))
            )
        events = self.timeline.events(target)
        row_of_match = _row(self.timeline, target, events, int(self._of(target)[0][best]))
        return None if row_of_match is None else Match(target, row_of_match)

    def _next_on_host(self, position: tuple[int, int], forward: bool) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield start and lane, and the index on the lane, of each thread's match after (or before) a position."""
        for index, lane in enumerate(self.lanes):
            if lane.is_host:
                starts = self._of(lane)[1]
                # On further lanes, events with the same start count, too.
                is_further = index > position[1] if forward else index < position[1]
                side: Literal["left", "right"] = "left" if forward == is_further else "right"
                match_index = int(np.searchsorted(starts, position[0], side=side)) - (0 if forward else 1)
                if 0 <= match_index < len(starts):
                    yield (int(starts[match_index]), index), match_index

    def _gpu(self) -> list[LaneIdentity]:
        with_streams = {(lane.task, lane.device) for lane in self.lanes if lane.stream is not None}
        return [
            lane
            for lane in self.lanes
            if not lane.is_host and (lane.stream is not None or (lane.task, lane.device) not in with_streams)
        ]

    def _of(self, lane: LaneIdentity) -> tuple[Ints, Ints]:
        if lane not in self._matches_by_lane:
            events = self.timeline.events(lane)
            passes = np.array([self.wanted.matches(name) for name in events.names], bool)
            is_inside = (events.start >= self.window.start) & (events.start < self.window.end)
            indices = np.flatnonzero(is_inside & passes[events.name])
            self._matches_by_lane[lane] = indices, events.start[indices]
        return self._matches_by_lane[lane]

    def _operations(self, gpu: list[LaneIdentity], low: int, high: int) -> AnyQuery:
        def conditions(table: sa.Table, name: Expression) -> list[Condition]:
            return [*starts_within(table, low, high), matches(name, self.wanted)]

        return _operations(self.timeline, gpu, conditions)

    def _near(self, gpu: list[LaneIdentity], time: int, forward: bool) -> Sequence[Row]:
        low, high = (time, self.window.end) if forward else (self.window.start, time + 1)
        rows = self._operations(gpu, low, high).subquery()
        order = (rows.c.start, rows.c.row)
        query = sa.select(*columns_of(rows)).order_by(*[column if forward else column.desc() for column in order])
        return _part(self.timeline, gpu).rows(query.limit(_MAX_TIES))

    def _lane_of(self, row: Row, gpu: list[LaneIdentity]) -> int:
        event = record(EVENT_COLUMNS, row)
        device = (event["report"], event["process"], event["device"])
        for lane in gpu:
            is_same = (lane.task.report, lane.task.process, lane.device) == device
            if is_same and lane.stream in (None, event["stream"]):
                return self.lanes.index(lane)
        return 0
