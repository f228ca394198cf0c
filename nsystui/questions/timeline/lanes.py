"""The lanes of a selection: for each rank its GPUs, and where it is opened, its streams and its threads as well.

A column of a lane is dominated by the category that covers most of it, each category by itself: U(X) as in
``nsystui.questions.gpu.device_time``. How busy the column is, is the union of them all.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Unit
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.exports.metadata import pid_of, process_of, tid_of
from nsystui.questions.algebra.intervals import Intervals, Times, covered_per_bin, union
from nsystui.questions.events.kinds import KIND_TABLES, RUNTIMES, EventKind
from nsystui.questions.gpu.device_time import STREAM_KEYS, BusyParts, busy_parts, of_arrays, to_arrays
from nsystui.questions.nvtx.chains import PUSH_POP
from nsystui.questions.nvtx.columns import RangeColumns
from nsystui.questions.nvtx.loading import Texts, coded_arrays
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.tasks import GPU_TABLES, selected_ranks
from nsystui.questions.queries.time_window import recorded, report_at
from nsystui.questions.timeline.cpu import CpuWork, events_of
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.gpu.utilisation import BusyIntervals
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.queries.tasks import RankedTask
    from nsystui.store.results import Arrays


CATEGORIES = ("idle", "compute", "nccl", "memory", "graph", "nvtx", "api", "os", "cpu")
"""The categories that may dominate a column, by their numbers in ``Columns.category``."""

IDLE = CATEGORIES.index("idle")
UNSEEN = -1
"""The number of a column in which the report was not recording."""

_PARTS = (("compute", "kernels"), ("nccl", "nccl"), ("memory", "memory"), ("graph", "graph"))


@dataclass(frozen=True, eq=False)
class LaneWork:
    """The busy times of a lane (job time). ``parts`` by category may overlap; ``apart`` are these without overlaps."""

    parts: tuple[tuple[str, Intervals], ...]
    apart: tuple[Intervals, ...]
    recorded: Window

    @classmethod
    def of_device(cls, parts: BusyParts, recorded: Window) -> LaneWork:
        """Make the work of a GPU or of a stream."""
        named = [(category, getattr(parts, name)) for category, name in _PARTS]
        return cls(
            tuple((category, busy) for category, busy in named if len(busy)),
            tuple(busy for busy in parts.disjoint if len(busy)),
            recorded,
        )

    @property
    def length(self) -> int:
        """The time in which it was busy, ns."""
        return sum(busy.length for busy in self.apart)

    def busy_within(self, window: Window) -> int:
        """Return the part of ``window`` in which it was busy, ns."""
        return sum(busy.length_within(window.start, window.end) for busy in self.apart)


@dataclass(frozen=True, eq=False)
class LaneColumns:
    """The contents of n equal spans of a window; arrays of the shape ``(n,)``.

    ``category``: the number in ``CATEGORIES`` of what covers most of it, ``IDLE`` where nothing ran, ``UNSEEN`` outside
    the recording. ``busy``: the share of it in which anything ran, 0 to 1, NaN where unseen. ``shares``: the same
    for each category that the lane has, which may sum up to more.
    """

    window: Window
    category: NDArray[np.int8]
    busy: NDArray[np.float64]
    shares: dict[str, NDArray[np.float64]]


def columns(work: LaneWork, window: Window, count: int) -> LaneColumns:
    """Find what dominates each of ``count`` columns of ``window``. Raises ``ValueError`` where ``count < 1``."""
    lo, hi = window.start, window.end
    width = max(hi - lo, 1) / count
    known: dict[int, NDArray[np.float64]] = {}

    def share(part: Intervals) -> NDArray[np.float64]:
        if id(part) not in known:
            known[id(part)] = covered_per_bin(part, lo, hi, count) / width
        return known[id(part)]

    shares = {category: share(part) for category, part in work.parts}
    busy = np.minimum(sum((share(part) for part in work.apart), np.zeros(count)), 1.0)
    category = np.full(count, IDLE, np.int8)
    most = np.zeros(count)
    for name, covered in shares.items():  # the first of equals stays
        more = covered > most
        category[more] = CATEGORIES.index(name)
        most = np.maximum(most, covered)
    edges = lo + np.arange(count + 1) * (hi - lo) / count
    unseen = (edges[1:] <= work.recorded.start) | (edges[:-1] >= work.recorded.end)
    category[unseen & (category == IDLE)] = UNSEEN
    busy[unseen & (busy == 0)] = np.nan
    return LaneColumns(window, category, busy, shares)


LEVELS = 4
"""The number of outermost levels of push/pop ranges that have lanes; deeper ones are in the NVTX tree only."""
_LANES = LEVELS + 1

Stream = tuple[int, int, int]
"""(process, CUDA ordinal of the device, stream)."""


CALL_KINDS = {EventKind.API: "api", EventKind.OS: "os", **dict.fromkeys(RUNTIMES, "os")}
"""The kinds of calls that have lanes, and their categories."""

MOST_STREAMS = 4_096
"""Streams of a report that have lanes: those with the most operations."""

MOST_CALLS = 8_000_000
"""Calls of one kind in a report that are read for lanes: they stay in memory, about thirty bytes each."""


@dataclass(frozen=True, eq=False)
class ThreadEvents:
    """The push/pop ranges of a thread at one nesting level, its start/end ranges, its calls of one kind, or its
    stretches on CPUs, which are no events: their ``kind`` is ``None``, and their ``row`` the node of the stack.

    There are n of them by start, in job time (ns); arrays have the shape ``(n,)``. ``name``: index into ``names``;
    ``row``: the row in the table of their ``kind``. ``work`` is their union.
    """

    kind: EventKind | None
    names: tuple[str, ...]

    start: Times
    end: Times
    name: NDArray[np.int32]
    row: NDArray[np.int64]
    work: LaneWork
    follow: bool
    """Whether none starts before the one before it ends (start/end ranges and nested calls may)."""

    def category_of(self, place: int) -> str:
        """Return the category of one of them, of `CATEGORIES`."""
        return _category(self.kind)


def _category(kind: EventKind | None) -> str:
    return "cpu" if kind is None else CALL_KINDS.get(kind, "nvtx")


@dataclass(frozen=True, eq=False)
class ReportLanes:
    """The lanes of a report. ``threads`` has the levels of each thread (globalTid), outermost first, and
    last, as level ``None``, its start/end ranges; ``calls`` has the calls of each thread by kind, ``running`` its
    stretches on CPUs, of which ``cpu`` says more. ``other_streams``: how many streams have no lane."""

    streams: Mapping[Stream, LaneWork]
    other_streams: int
    threads: Mapping[int, Mapping[int | None, ThreadEvents]]
    calls: Mapping[int, Mapping[EventKind, ThreadEvents]]
    running: Mapping[int, ThreadEvents]
    thread_names: Mapping[int, str]
    cpu: CpuWork

    @property
    def size(self) -> int:
        """The number of intervals in memory: about 16 bytes each, of ranges three times that."""
        held = sum(len(busy) for work in self.streams.values() for busy in work.apart)
        ranges = sum(len(events.start) for levels in self.threads.values() for events in levels.values())
        calls = sum(len(events.start) for own in self.calls.values() for events in own.values())
        return held + 3 * (ranges + calls + sum(len(events.start) for events in self.running.values()))

    @classmethod
    def load(cls, session: Session, report: Report, tasks: frozenset[Task]) -> ReportLanes:
        """Load the lanes of ``report``, in which ``tasks`` ran; what is expensive is kept beside the pack."""
        cpu = CpuWork.load(session, report, tasks)
        running = {
            thread: _thread_events(None, cpu.names, (own.start, own.end), own.name, own.node, report)
            for thread, own in cpu.threads.items()
        }
        return cls(
            *_streams(session, report),
            _ranges(session, report),
            _calls(session, report),
            running,
            _thread_names(session, report),
            cpu,
        )


def _streams(session: Session, report: Report) -> tuple[dict[Stream, LaneWork], int]:
    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        return {one.index: _stream_arrays(part, one) for one in reports}

    stored = of_each_report(session, [report], "streams", compute)[report.index]
    found = of_arrays(stored, report.clock_offset, STREAM_KEYS)
    seen = recorded(report)
    streams = {(place[0], place[1], place[2]): LaneWork.of_device(parts, seen) for place, parts in found.items()}
    return streams, int(stored["others"][0])


def _stream_arrays(session: Session, report: Report) -> Arrays:
    used: Counter[tuple[int, ...]] = Counter()
    for table in map(tables.of, GPU_TABLES):
        if report.count(table):
            columns = [table.c[key] for key in STREAM_KEYS]
            has_all = [column.is_not(None) for column in columns]
            query = sa.select(*columns, sa.func.count()).where(table.c.report == report.index, *has_all)
            for *place, count in session.rows(query.group_by(*columns)):
                used[report.index, *place] += count
    places = sorted(sorted(used, key=lambda place: (-used[place], place))[:MOST_STREAMS])
    parts = busy_parts(session, STREAM_KEYS, places)
    found = to_arrays({place[1:]: found for place, found in zip(places, parts, strict=True)}, STREAM_KEYS)
    return {**found, "others": np.array([len(used) - len(places)])}


def _ranges(session: Session, report: Report) -> dict[int, Mapping[int | None, ThreadEvents]]:
    if not report.count(tables.nvtx_ranges):
        return {}
    own = RangeColumns(session, report)
    ranges = {key: own[key] for key in ("lane", "level", "flags", "start", "length", "name", "row")}
    names = tuple(own.names)
    found: dict[int, Mapping[int | None, ThreadEvents]] = {}
    is_outer = np.flatnonzero(ranges["level"] < LEVELS)
    # One sort by thread and level; ranges lie by start already, and a stable sort leaves them so.
    level_of = np.where(ranges["flags"] & PUSH_POP, ranges["level"], LEVELS)[is_outer]
    place = ranges["lane"][is_outer].astype(np.int64) * _LANES + level_of
    order = is_outer[np.argsort(place, kind="stable")]
    threads = own.threads.tolist()
    edges = np.searchsorted(np.sort(place, kind="stable"), np.arange(len(threads) * _LANES + 1))
    for number, thread in enumerate(threads):
        levels: dict[int | None, ThreadEvents] = {}
        for level in range(_LANES):
            rows = order[edges[number * _LANES + level] : edges[number * _LANES + level + 1]]
            if len(rows):
                start = ranges["start"][rows].astype(np.int64) + report.clock_offset
                times = start, start + ranges["length"][rows]
                name, row = ranges["name"][rows].astype(np.int32), ranges["row"][rows].astype(np.int64)
                events = _thread_events(EventKind.NVTX, names, times, name, row, report)
                levels[level if level < LEVELS else None] = events
        found[thread] = levels
    return found


def _thread_events(
    kind: EventKind | None,
    names: tuple[str, ...],
    times: tuple[Times, Times],
    name: NDArray[np.int32],
    row: NDArray[np.int64],
    report: Report,
) -> ThreadEvents:
    start, end = times
    busy = union(start, end)
    work = LaneWork(((_category(kind), busy),), (busy,), recorded(report))
    return ThreadEvents(kind, names, start, end, name, row, work, bool((start[1:] >= end[:-1]).all()))


_RARE = 100
"""A thread that was on CPUs for less than such a part of the recording has no lane for that alone."""

_CALL_TYPES: dict[str, type[np.generic]] = {
    "start": np.int64,
    "end": np.int64,
    "thread": np.int64,
    "name": np.int32,
    "row": np.int64,
}


def _calls(session: Session, report: Report) -> dict[int, Mapping[EventKind, ThreadEvents]]:
    found: dict[int, dict[EventKind, ThreadEvents]] = {}
    for kind in CALL_KINDS:
        table = KIND_TABLES[kind].table
        if 0 < report.count(table) <= MOST_CALLS:
            for thread, events in _calls_of(session, report, kind, table).items():
                found.setdefault(thread, {})[kind] = events
    return dict(found)


def _calls_of(session: Session, report: Report, kind: EventKind, table: sa.Table) -> dict[int, ThreadEvents]:
    columns, texts = table.c, Texts()
    query = sa.select(
        columns.start,
        sa.func.greatest(columns.start, sa.func.coalesce(columns.end, columns.start)).label("end"),
        columns.thread,
        sa.func.coalesce(columns.name, "").label("name"),
        columns.row,
    ).where(columns.report == report.index, columns.start.is_not(None), columns.thread.is_not(None))
    rows = coded_arrays(session.part([report.index]), query, _CALL_TYPES, {"name": texts})
    give_back()
    thread, start = rows["thread"], rows["start"]
    if not ((thread[1:] > thread[:-1]) | ((thread[1:] == thread[:-1]) & (start[1:] >= start[:-1]))).all():
        order = np.lexsort((start, thread))
        rows = {key: rows.pop(key)[order] for key in list(rows)}
        del order
    thread = rows.pop("thread")
    firsts = np.flatnonzero(np.append(True, thread[1:] != thread[:-1])[: len(thread)])
    rows["start"] += report.clock_offset
    rows["end"] += report.clock_offset
    give_back()
    found, names = {}, tuple(texts.texts)
    for first, last in pairwise([*firsts.tolist(), len(thread)]):
        own = {key: values[first:last] for key, values in rows.items()}
        times = own["start"], own["end"]
        found[int(thread[first])] = _thread_events(kind, names, times, own["name"], own["row"], report)
    return found


def _thread_names(session: Session, report: Report) -> dict[int, str]:
    """The names of threads; of those of a process that share a name, all but the main thread have their number too."""
    known = tables.threads.c
    query: sa.Select[Any] = sa.select(known.thread, known.name).where(
        known.report == report.index, known.name.is_not(None)
    )
    names: dict[int, str] = dict(session.rows(query)) if report.count(tables.threads) else {}
    alike = Counter((process_of(thread), name) for thread, name in names.items())

    def is_shared(thread: int, name: str) -> bool:
        return alike[process_of(thread), name] > 1 and tid_of(thread) != pid_of(thread)

    return {thread: f"{name} {tid_of(thread)}" if is_shared(thread, name) else name for thread, name in names.items()}


# Intervals that may stay in memory of ranks that were opened; those of the one opened last always do.
_MOST_HELD = 8_000_000


@dataclass(frozen=True)
class LaneIdentity:
    """The identity of a lane: a GPU of a rank, one stream of it, or NVTX ranges or calls of one of its threads.

    With ``is_cpu`` it shows what the thread ran on CPUs, and when it was off them; with ``path`` the critical path of
    the rank in that time.

    ``device`` is the CUDA ordinal, ``thread`` NVIDIA's globalTid; ``level`` is the nesting level of push/pop ranges, 0
    for the outermost, and ``None`` for start/end ranges. ``calls`` is the kind of the calls, ``None`` for NVTX.
    """

    task: Task
    rank: int
    device: int | None = None
    stream: int | None = None
    thread: int | None = None
    level: int | None = 0
    calls: EventKind | None = None
    is_cpu: bool = False
    path: Window | None = None
    name: str = field(default="", compare=False)
    """That of the thread, on the first of its lanes; of a GPU its number, where the rank has several; of a path the
    step."""

    @property
    def is_host(self) -> bool:
        """Whether it is of a thread or a path, not of a GPU."""
        return self.thread is not None or self.path is not None

    @property
    def has_stretches(self) -> bool:
        """Whether it shows stretches of time that are no events."""
        return self.is_cpu or self.path is not None


@dataclass
class Timeline:
    """The lanes of a job for one selection, whatever its window and name filter.

    The intervals of the GPUs are those of the whole selection, which other screens ask for as well; what lies inside a
    rank is read when it is opened, and let go when others were opened since.
    """

    session: Session
    selection: Selection
    ranks: tuple[RankedTask, ...]
    busy: BusyIntervals
    names: Mapping[str, str] = field(default_factory=dict)
    """The smart name of every kernel by its full name."""
    paths: dict[LaneIdentity, ThreadEvents] = field(default_factory=dict)
    """The pieces of the critical paths that have lanes."""
    _devices: dict[tuple[Task, int], LaneWork] = field(default_factory=dict)
    _reports: OrderedDict[int, ReportLanes] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, job: OpenJob, selection: Selection) -> Timeline:
        """The timeline of a selection, kept with the job. Blocks while the GPUs' intervals are read."""
        wide = selection.with_window(None).with_name(None)

        def make() -> Timeline:
            made = cls(job.session, wide, job.ranks, job.busy(wide), job.smart_names())
            for item in made.busy.devices:
                place = (item.device.task.task, item.device.device)
                made._devices[place] = LaneWork.of_device(item.parts, item.recorded)
            return made

        return job.once(("timeline", wide), make)

    @property
    def tasks(self) -> list[RankedTask]:
        """The selected ranks in order."""
        return selected_ranks(self.ranks, self.selection)

    def lanes(self, opened: frozenset[Task], wait: bool = True) -> tuple[tuple[LaneIdentity, ...], bool]:
        """List the lanes by rank, and tell whether they are all.

        Of an opened rank the lanes of its main thread follow its first GPU, then the streams of each GPU, the busiest
        first, then the lanes of other threads.

        Unless ``wait``, an opened rank whose report is not in memory shows its GPUs alone for now.
        """
        found: list[LaneIdentity] = []
        is_whole = True
        for item in self.tasks:
            inside = self._inside(item.task, wait) if item.task in opened else None
            is_whole = is_whole and (inside is not None or item.task not in opened)
            found += self._lanes_of(item, inside)
        return tuple(found), is_whole

    def has_inside(self, task: Task) -> bool:
        """Tell whether a rank has lanes that it shows only when it is opened."""
        report = report_at(self.session, task.report)
        calls = [KIND_TABLES[kind].table for kind in CALL_KINDS]
        work = (tables.kernels, tables.memory_ops, tables.nvtx_ranges, tables.host_samples, tables.sched_events)
        return any(report.count(table) for table in (*work, *calls))

    def rows_inside(self, task: Task) -> int:
        """Count the ranges, calls, samples and scheduling events that opening a rank reads."""
        report = report_at(self.session, task.report)
        calls = [report.count(KIND_TABLES[kind].table) for kind in CALL_KINDS]
        read = [count for count in (*calls, events_of(report)) if count <= MOST_CALLS]
        return report.count(tables.nvtx_ranges) + sum(read)

    def left_out(self, opened: frozenset[Task]) -> tuple[str, ...]:
        """Return notes on the calls and streams of opened ranks that are too many for lanes."""
        found = []
        for item in self.tasks:
            if item.task in opened:
                report = report_at(self.session, item.task.report)
                for kind in CALL_KINDS:
                    count = report.count(KIND_TABLES[kind].table)
                    if count > MOST_CALLS:
                        found.append(
                            f"rank {item.rank}: its {count:,} {kind.value} calls are too many for lanes; 6 Events "
                            f"lists them"
                        )
                inside = self._inside(item.task, wait=False)
                if inside is not None and inside.other_streams:
                    found.append(
                        f"rank {item.rank}: the {MOST_STREAMS:,} streams with the most operations have lanes, "
                        f"{inside.other_streams:,} others have none"
                    )
        return tuple(found)

    def _lanes_of(self, item: RankedTask, inside: ReportLanes | None) -> Iterator[LaneIdentity]:
        threads = [] if inside is None else self._threads(item, inside)
        devices = [device for device in item.devices if (item.task, device) in self._devices]
        main, others = (threads[:1], threads[1:]) if devices else ([], threads)
        for number, device in enumerate(devices):
            yield LaneIdentity(
                item.task, item.rank, device, name=format_value(Unit.DEVICE, device) if len(devices) > 1 else ""
            )
            if inside is not None:
                for thread in main if number == 0 else ():
                    yield from self._thread_lanes(item, thread, inside)
                yield from self._stream_lanes(item, device, inside)
        if inside is None:
            return
        for thread in others:
            yield from self._thread_lanes(item, thread, inside)

    def _threads(self, item: RankedTask, inside: ReportLanes) -> list[int]:
        """The threads of a rank: the main thread, then by the time that they spend in ranges, in calls, and on CPUs.

        Threads with neither ranges nor calls are there that ran for a hundredth of the time.
        """
        recorded_time = [(thread, one.work.length, one.work.recorded) for thread, one in inside.running.items()]
        ran = [thread for thread, length, seen in recorded_time if _RARE * length >= seen.end - seen.start]
        own = {thread for thread in (*inside.threads, *inside.calls, *ran) if process_of(thread) == item.task.process}

        def in_ranges(thread: int) -> int:
            return next((level.work.length for level in inside.threads.get(thread, {}).values()), 0)

        def in_calls(thread: int, kind: EventKind) -> int:
            events = inside.calls.get(thread, {}).get(kind)
            return 0 if events is None else events.work.length

        def place(thread: int) -> tuple[Any, ...]:
            calls = (-in_calls(thread, kind) for kind in CALL_KINDS)
            ran = inside.running.get(thread)
            return tid_of(thread) != item.pid, -in_ranges(thread), *calls, -(ran.work.length if ran else 0), thread

        return sorted(own, key=place)

    def _thread_lanes(self, item: RankedTask, thread: int, inside: ReportLanes) -> Iterator[LaneIdentity]:
        name = inside.thread_names.get(thread) or f"t{tid_of(thread)}"
        for level in inside.threads.get(thread, ()):
            yield LaneIdentity(item.task, item.rank, thread=thread, level=level, name=name)
            name = ""
        for kind in inside.calls.get(thread, ()):
            yield LaneIdentity(item.task, item.rank, thread=thread, calls=kind, name=name)
            name = ""
        if thread in inside.running:
            yield LaneIdentity(item.task, item.rank, thread=thread, is_cpu=True, name=name)

    def _stream_lanes(self, item: RankedTask, device: int, inside: ReportLanes) -> Iterator[LaneIdentity]:
        chosen = self.selection.streams
        own = {
            stream: work
            for (process, ordinal, stream), work in inside.streams.items()
            if (process, ordinal) == (item.task.process, device) and (chosen is None or stream in chosen)
        }
        for stream in sorted(own, key=lambda stream: (-own[stream].length, stream)):
            yield LaneIdentity(item.task, item.rank, device, stream)

    def work(self, lane: LaneIdentity) -> LaneWork:
        """Return the busy times of a lane. Raises ``KeyError`` for a lane that is not of this timeline."""
        if lane.is_host:
            return self.events(lane).work
        if lane.device is not None and lane.stream is not None:
            return self._inside_now(lane.task).streams[lane.task.process, lane.device, lane.stream]
        return self._devices[lane.task, lane.device or 0]

    def events(self, lane: LaneIdentity) -> ThreadEvents:
        """Return the ranges, calls or stretches on CPUs of a lane of a thread; the pieces of a path."""
        if lane.path is not None:
            return self.paths[lane]
        inside, thread = self._inside_now(lane.task), lane.thread or 0
        if lane.is_cpu:
            return inside.running[thread]
        return inside.threads[thread][lane.level] if lane.calls is None else inside.calls[thread][lane.calls]

    def cpu_work(self, lane: LaneIdentity) -> CpuWork:
        """Return what is known of the threads on CPUs in the report of a lane."""
        return self._inside_now(lane.task).cpu

    def lane_of(self, values: Mapping[str, Any]) -> LaneIdentity | None:
        """Find the lane of a row of the event list, in an opened rank; ``None`` where events of its kind have none.

        Blocks while what is inside the rank is read.
        """
        same = (values["report"], values["process"])
        item = next((item for item in self.tasks if (item.task.report, item.task.process) == same), None)
        kind = EventKind(values["kind"])
        if item is None:
            return None
        inside = self._inside_now(item.task)
        if kind.on_gpu:
            place = (item.task.process, values["device"], values["stream"])
            return LaneIdentity(item.task, item.rank, *place[1:]) if place in inside.streams else None
        thread = int(values["process"] or 0) | int(values["tid"] or 0)
        if kind in inside.calls.get(thread, {}):
            return LaneIdentity(item.task, item.rank, thread=thread, calls=kind)
        for level, events in inside.threads.get(thread, {}).items():
            if kind is EventKind.NVTX and values["row"] in events.row:
                return LaneIdentity(item.task, item.rank, thread=thread, level=level)
        return None

    def _inside_now(self, task: Task) -> ReportLanes:
        found = self._inside(task, True)
        assert found is not None
        return found

    def _inside(self, task: Task, wait: bool) -> ReportLanes | None:
        with self._lock:
            if task.report in self._reports:
                self._reports.move_to_end(task.report)
                return self._reports[task.report]
            if not wait:
                return None
            tasks = frozenset(item.task for item in self.ranks if item.task.report == task.report)
            loaded = ReportLanes.load(self.session, report_at(self.session, task.report), tasks)
            self._reports[task.report] = loaded
            while len(self._reports) > 1 and sum(one.size for one in self._reports.values()) > _MOST_HELD:
                self._reports.popitem(last=False)
            return loaded

    def clock_offset(self, lane: LaneIdentity) -> int:
        """Return the clock offset of the lane's report: added to its times it gives job time, ns."""
        return report_at(self.session, lane.task.report).clock_offset
