"""The lanes of a selection: the GPUs of each rank, and, if the rank is opened, its streams and threads.

A column of a lane has the category that covers most of it, each counted by itself: U(X) as in
``nsystui.questions.gpu.device_time``. The busy share of the column is the union of all categories.
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
from nsystui.base.text import counted
from nsystui.base.types import Floats, Ints, Query
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.exports.metadata import pid_of, process_of, tid_of
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, covered_per_bin, union
from nsystui.questions.events.kinds import KIND_TABLES, RUNTIMES, EventKind
from nsystui.questions.gpu.device_time import STREAM_KEYS, BusyParts, busy_parts, merged, of_arrays, to_arrays
from nsystui.questions.nvtx.chains import PUSH_POP
from nsystui.questions.nvtx.columns import RangeColumns
from nsystui.questions.nvtx.loading import Texts, coded_arrays
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.tasks import GPU_TABLES, RankedTask, selected_ranks
from nsystui.questions.queries.time_window import recorded, report_at
from nsystui.questions.timeline.cpu import CpuWork, events_of
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.gpu.utilisation import BusyIntervals
    from nsystui.questions.job.job import OpenJob
    from nsystui.store.remember import Arrays


CATEGORIES = ("idle", "compute", "nccl", "memory", "graph", "nvtx", "api", "os", "cpu")
"""The categories of columns, by their numbers in ``LaneColumns.category``."""

IDLE = CATEGORIES.index("idle")
UNSEEN = -1
"""The number of a column outside the recording."""

_PARTS = (("compute", "kernels"), ("nccl", "nccl"), ("memory", "memory"), ("graph", "graph"))


@dataclass(frozen=True, eq=False)
class LaneWork:
    """The busy times of a lane, job time: ``parts`` by category, which may overlap, and ``apart``, disjoint."""

    parts: tuple[tuple[str, Intervals], ...]
    apart: tuple[Intervals, ...]
    recorded: Window

    @classmethod
    def of_device(cls, parts: BusyParts, recorded: Window, host_functions: Intervals = EMPTY) -> LaneWork:
        """Return the work of a GPU or stream, which host functions do not make busy."""
        named = [*((category, getattr(parts, name)) for category, name in _PARTS), ("cpu", host_functions)]
        return cls(
            tuple((category, busy) for category, busy in named if len(busy)),
            tuple(busy for busy in parts.disjoint if len(busy)),
            recorded,
        )

    @property
    def length(self) -> int:
        """The busy time, ns."""
        return sum(busy.length for busy in self.apart)

    def busy_within(self, window: Window) -> int:
        """Return the busy time in ``window``, ns."""
        return sum(busy.length_within(window.start, window.end) for busy in self.apart)


@dataclass(frozen=True, eq=False)
class LaneColumns:
    """The contents of n equal spans of a window; arrays have shape ``(n,)``.

    ``category``: the number in ``CATEGORIES`` of the largest share, ``IDLE`` if nothing ran, ``UNSEEN`` outside the
    recording. ``busy``: the share with any work, 0 to 1, NaN if unseen. ``shares`` of each category may overlap.
    """

    window: Window
    category: NDArray[np.int8]
    busy: Floats
    shares: dict[str, Floats]


def columns(work: LaneWork, window: Window, count: int) -> LaneColumns:
    """Return the contents of ``count`` columns of ``window``. Raises ``ValueError`` if ``count < 1``."""
    lo, hi = window.start, window.end
    width = max(hi - lo, 1) / count
    cached: dict[int, Floats] = {}

    def share(part: Intervals) -> Floats:
        if id(part) not in cached:
            cached[id(part)] = covered_per_bin(part, lo, hi, count) / width
        return cached[id(part)]

    shares = {category: share(part) for category, part in work.parts}
    busy = np.minimum(sum((share(part) for part in work.apart), np.zeros(count)), 1.0)
    category = np.full(count, IDLE, np.int8)
    largest = np.zeros(count)
    for name, covered in shares.items():  # of equal shares, the first stays
        category[(covered > largest)] = CATEGORIES.index(name)
        largest = np.maximum(largest, covered)
    edges = lo + np.arange(count + 1) * (hi - lo) / count
    unseen = (edges[1:] <= work.recorded.start) | (edges[:-1] >= work.recorded.end)
    category[unseen & (category == IDLE)] = UNSEEN
    busy[unseen & (busy == 0)] = np.nan
    return LaneColumns(window, category, busy, shares)


LEVELS = 4
"""The number of outermost push/pop levels with lanes; deeper levels are only in the NVTX tree."""
_LANES = LEVELS + 1

_Stream = tuple[int, int, int]
"""(process, CUDA ordinal of the device, stream)."""


CALL_KINDS = {EventKind.API: "api", EventKind.OS: "os", **dict.fromkeys(RUNTIMES, "os")}
"""The kinds of calls with lanes, and their categories."""

MOST_STREAMS = 4_096
"""The most streams of a report with lanes: the streams with the most operations."""

MOST_CALLS = 8_000_000
"""The most calls of one kind in a report that lanes read, about thirty bytes each."""


@dataclass(frozen=True, eq=False)
class ThreadEvents:
    """Ranges of a thread at one push/pop level, its start/end ranges, its calls of one kind, or its stretches on CPUs.

    Stretches are no events: their ``kind`` is ``None``, and ``row`` is the node of the stack. Times are job time, ns,
    and arrays have shape ``(n,)``, in order of start. ``name``: index into ``names``; ``row``: the row in the table of
    ``kind``; ``work``: the union.
    """

    kind: EventKind | None
    names: tuple[str, ...]

    start: Times
    end: Times
    name: NDArray[np.int32]
    row: Ints
    work: LaneWork
    follow: bool  # whether the events follow one another (start/end ranges and nested calls may overlap)

    def category_of(self, index: int) -> str:
        """Return the category of an event, of `CATEGORIES`."""
        return _category(self.kind)


def _category(kind: EventKind | None) -> str:
    return "cpu" if kind is None else CALL_KINDS.get(kind, "nvtx")


@dataclass(frozen=True, eq=False)
class ReportLanes:
    """The lanes of a report.

    ``threads`` has the push/pop levels of each thread (globalTid), outermost first, then its start/end ranges as level
    ``None``; ``calls`` its calls by kind; ``running`` its stretches on CPUs, with stacks and states in ``cpu``.
    ``other_streams``: the number of streams without a lane.
    """

    streams: Mapping[_Stream, LaneWork]
    other_streams: int
    threads: Mapping[int, Mapping[int | None, ThreadEvents]]
    calls: Mapping[int, Mapping[EventKind, ThreadEvents]]
    running: Mapping[int, ThreadEvents]
    thread_names: Mapping[int, str]
    cpu: CpuWork

    @property
    def size(self) -> int:
        """The number of intervals in memory, about 16 bytes each; ranges and calls count three times."""
        intervals = sum(len(busy) for work in self.streams.values() for busy in work.apart)
        ranges = sum(len(events.start) for levels in self.threads.values() for events in levels.values())
        calls = sum(len(events.start) for kinds in self.calls.values() for events in kinds.values())
        return intervals + 3 * (ranges + calls + sum(len(events.start) for events in self.running.values()))

    @classmethod
    def load(cls, session: Session, report: Report, tasks: frozenset[Task]) -> ReportLanes:
        """Load the lanes of ``report``, in which ``tasks`` ran; expensive results are cached."""
        cpu = CpuWork.load(session, report, tasks)
        running = {
            thread: _thread_events(None, cpu.names, (start, end), name, node, report)
            for thread, (start, end, name, node) in cpu.threads.items()
        }
        names = _thread_names(session, report)
        return cls(*_streams(session, report), _ranges(session, report), _calls(session, report), running, names, cpu)


def _streams(session: Session, report: Report) -> tuple[dict[_Stream, LaneWork], int]:
    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        return {part_report.index: _stream_arrays(part, part_report) for part_report in reports}

    stored = of_each_report(session, [report], "streams", compute)[report.index]
    parts_by_stream = of_arrays(stored, report.clock_offset, STREAM_KEYS)
    recording = recorded(report)
    places = [(report.index, *key) for key in parts_by_stream]
    functions = merged(session, canonical.HOST_FUNCTIONS, ("report", *STREAM_KEYS), places)
    streams = {}
    for number, (key, parts) in enumerate(parts_by_stream.items()):
        ran = functions[number, 0].shifted(report.clock_offset)
        streams[key[0], key[1], key[2]] = LaneWork.of_device(parts, recording, ran)
    return streams, int(stored["others"][0])


def _stream_arrays(session: Session, report: Report) -> Arrays:
    counts: Counter[tuple[int, ...]] = Counter()
    for table in map(tables.of, GPU_TABLES):
        if report.count(table):
            columns = [table.c[key] for key in STREAM_KEYS]
            has_all = [column.is_not(None) for column in columns]
            query = sa.select(*columns, sa.func.count()).where(table.c.report == report.index, *has_all)
            for *stream, count in session.rows(query.group_by(*columns)):
                counts[report.index, *stream] += count
    streams = sorted(sorted(counts, key=lambda stream: (-counts[stream], stream))[:MOST_STREAMS])
    stream_parts = busy_parts(session, STREAM_KEYS, streams)
    arrays = to_arrays({stream[1:]: arrays for stream, arrays in zip(streams, stream_parts, strict=True)}, STREAM_KEYS)
    return {**arrays, "others": np.array([len(counts) - len(streams)])}


def _ranges(session: Session, report: Report) -> dict[int, Mapping[int | None, ThreadEvents]]:
    if not report.count(tables.nvtx_ranges):
        return {}
    range_columns = RangeColumns(session, report)
    ranges = {key: range_columns[key] for key in ("lane", "level", "flags", "start", "length", "name", "row")}
    names = tuple(range_columns.names)
    levels_by_thread: dict[int, Mapping[int | None, ThreadEvents]] = {}
    is_outer = np.flatnonzero(ranges["level"] < LEVELS)
    # One stable sort by thread and level keeps the ranges in order of start.
    level_of = np.where(ranges["flags"] & PUSH_POP, ranges["level"], LEVELS)[is_outer]
    lane_level = ranges["lane"][is_outer].astype(np.int64) * _LANES + level_of
    order = is_outer[np.argsort(lane_level, kind="stable")]
    threads = range_columns.threads.tolist()
    edges = np.searchsorted(np.sort(lane_level, kind="stable"), np.arange(len(threads) * _LANES + 1))
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
        levels_by_thread[thread] = levels
    return levels_by_thread


def _thread_events(
    kind: EventKind | None,
    names: tuple[str, ...],
    times: tuple[Times, Times],
    name: NDArray[np.int32],
    row: Ints,
    report: Report,
) -> ThreadEvents:
    start, end = times
    busy = union(start, end)
    work = LaneWork(((_category(kind), busy),), (busy,), recorded(report))
    return ThreadEvents(kind, names, start, end, name, row, work, bool((start[1:] >= end[:-1]).all()))


_RARE = 100
"""Threads on CPUs for less than 1/100 of the recording have no lane for that alone."""

_CALL_TYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(("start", "end", "thread", "row"), np.int64), "name": np.int32
}  # fmt: skip


def _calls(session: Session, report: Report) -> dict[int, Mapping[EventKind, ThreadEvents]]:
    calls_by_thread: dict[int, dict[EventKind, ThreadEvents]] = {}
    for kind in CALL_KINDS:
        table = KIND_TABLES[kind].table
        if 0 < report.count(table) <= MOST_CALLS:
            for thread, events in _calls_of(session, report, kind, table).items():
                calls_by_thread.setdefault(thread, {})[kind] = events
    return dict(calls_by_thread)


def _calls_of(session: Session, report: Report, kind: EventKind, table: sa.Table) -> dict[int, ThreadEvents]:
    columns, texts = table.c, Texts()
    query = sa.select(
        columns.start,
        sa.func.greatest(columns.start, sa.func.coalesce(columns.end, columns.start)).label("end"),
        columns.thread,
        sa.func.coalesce(columns.name, "").label("name"),
        columns.row,
    ).where(columns.report == report.index, columns.start.is_not(None), columns.thread.is_not(None))
    rows = coded_arrays(session.part([report.index]).array_batches(query), _CALL_TYPES, {"name": texts})
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
    events_by_thread, names = {}, tuple(texts.texts)
    for first, last in pairwise([*firsts.tolist(), len(thread)]):
        part = {key: column[first:last] for key, column in rows.items()}
        times = part["start"], part["end"]
        events_by_thread[int(thread[first])] = _thread_events(kind, names, times, part["name"], part["row"], report)
    return events_by_thread


def _thread_names(session: Session, report: Report) -> dict[int, str]:
    """Number the names that threads of a process share, except the main thread's."""
    columns = tables.threads.c
    query: Query = sa.select(columns.thread, columns.name).where(
        columns.report == report.index, columns.name.is_not(None)
    )
    names: dict[int, str] = dict(session.rows(query)) if report.count(tables.threads) else {}
    name_counts = Counter((process_of(thread), name) for thread, name in names.items())

    def is_shared(thread: int, name: str) -> bool:
        return name_counts[process_of(thread), name] > 1 and tid_of(thread) != pid_of(thread)

    return {thread: f"{name} {tid_of(thread)}" if is_shared(thread, name) else name for thread, name in names.items()}


# The most intervals of opened ranks in memory; the last opened rank always stays.
_MAX_INTERVALS = 8_000_000


@dataclass(frozen=True)
class LaneIdentity:
    """The identity of a lane: a rank's GPU or stream, or NVTX ranges or calls of a thread of the rank.

    With ``is_cpu``, it shows the thread's functions on CPUs, and its times off CPUs; with ``path``, the critical path
    of the rank in that time.

    ``device`` is the CUDA ordinal, ``thread`` NVIDIA's globalTid, ``level`` the nesting level of push/pop ranges (0:
    the outermost; ``None``: start/end ranges), and ``calls`` the kind of calls (``None``: NVTX).
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
    """The thread's name, on its first lane; a GPU's number, if the rank has several; a path's step."""

    @property
    def is_host(self) -> bool:
        """Whether it belongs to a thread or a path, not to a GPU."""
        return self.thread is not None or self.path is not None

    @property
    def has_stretches(self) -> bool:
        """Whether it shows stretches of time that are not events."""
        return self.is_cpu or self.path is not None


@dataclass
class Timeline:
    """The lanes of a job for a selection, independent of its window and name filter.

    The GPUs' intervals are read for the whole selection, and shared with other screens. The lanes inside a rank are
    read when it is opened, and freed after other ranks were opened.
    """

    session: Session
    selection: Selection
    ranks: tuple[RankedTask, ...]
    busy: BusyIntervals
    names: Mapping[str, str] = field(default_factory=dict)  # the smart names of kernels by full name
    paths: dict[LaneIdentity, ThreadEvents] = field(default_factory=dict)
    """The pieces of the critical paths that have lanes."""
    _devices: dict[tuple[Task, int], LaneWork] = field(default_factory=dict)
    _reports: OrderedDict[int, ReportLanes] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, job: OpenJob, selection: Selection) -> Timeline:
        """Return the timeline of a selection, cached in the job. Blocks while the GPUs' intervals are read."""
        full_selection = selection.with_window(None).with_name(None)

        def make() -> Timeline:
            timeline = cls(job.session, full_selection, job.ranks, job.busy(full_selection), job.smart_names())
            for device in timeline.busy.devices:
                key = device.device.key
                timeline._devices[key] = LaneWork.of_device(device.parts, device.recorded)
            return timeline

        return job.once(("timeline", full_selection), make)

    @property
    def tasks(self) -> list[RankedTask]:
        """The selected ranks in order."""
        return selected_ranks(self.ranks, self.selection)

    def lanes(self, opened: frozenset[Task], wait: bool = True) -> tuple[tuple[LaneIdentity, ...], bool]:
        """List the lanes by rank, and return whether the list is complete.

        In an opened rank, the main thread's lanes follow the first GPU, and streams, busiest first, follow their GPU;
        other threads are last. Unless ``wait``, an opened rank shows only GPUs until its report is in memory.
        """
        lanes: list[LaneIdentity] = []
        is_whole = True
        for rank in self.tasks:
            inside = self._inside(rank.task, wait) if rank.task in opened else None
            is_whole = is_whole and (inside is not None or rank.task not in opened)
            lanes += self._lanes_of(rank, inside)
        return tuple(lanes), is_whole

    def has_inside(self, task: Task) -> bool:
        """Return whether a rank has lanes that only opening it shows."""
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
        """Return notes on opened ranks' calls and streams that are too many for lanes."""
        notes = []
        for rank in self.tasks:
            if rank.task in opened:
                report = report_at(self.session, rank.task.report)
                for kind in CALL_KINDS:
                    count = report.count(KIND_TABLES[kind].table)
                    if count > MOST_CALLS:
                        notes.append(
                            f"rank {rank.rank}: its {count:,} {kind.value} calls are too many for lanes; 6 Events "
                            f"lists them"
                        )
                inside = self._inside(rank.task, wait=False)
                if inside is not None and inside.other_streams:
                    notes.append(
                        f"rank {rank.rank}: the {MOST_STREAMS:,} streams with the most operations have lanes, "
                        f"{counted(inside.other_streams, 'other', 'have')} none"
                    )
        return tuple(notes)

    def _lanes_of(self, rank: RankedTask, inside: ReportLanes | None) -> Iterator[LaneIdentity]:
        threads = [] if inside is None else self._threads(rank, inside)
        devices = [device for device in rank.devices if (rank.task, device) in self._devices]
        main_threads, other_threads = (threads[:1], threads[1:]) if devices else ([], threads)
        for index, device in enumerate(devices):
            yield LaneIdentity(
                rank.task, rank.rank, device, name=format_value(Unit.DEVICE, device) if len(devices) > 1 else ""
            )
            if inside is not None:
                for thread in main_threads if index == 0 else ():
                    yield from self._thread_lanes(rank, thread, inside)
                yield from self._stream_lanes(rank, device, inside)
        if inside is None:
            return
        for thread in other_threads:
            yield from self._thread_lanes(rank, thread, inside)

    def _threads(self, rank: RankedTask, inside: ReportLanes) -> list[int]:
        """Return a rank's threads: the main thread, then by time in ranges, in calls, and on CPUs.

        Threads without ranges and calls are included if they ran for 1/100 of the time.
        """
        recorded_time = [(thread, cpu.work.length, cpu.work.recorded) for thread, cpu in inside.running.items()]
        ran = [thread for thread, length, window in recorded_time if _RARE * length >= window.end - window.start]
        shown = {thread for thread in (*inside.threads, *inside.calls, *ran) if process_of(thread) == rank.task.process}

        def in_ranges(thread: int) -> int:
            return next((level.work.length for level in inside.threads.get(thread, {}).values()), 0)

        def in_calls(thread: int, kind: EventKind) -> int:
            events = inside.calls.get(thread, {}).get(kind)
            return 0 if events is None else events.work.length

        def order(thread: int) -> tuple[Any, ...]:
            calls = (-in_calls(thread, kind) for kind in CALL_KINDS)
            ran = inside.running.get(thread)
            return tid_of(thread) != rank.pid, -in_ranges(thread), *calls, -(ran.work.length if ran else 0), thread

        return sorted(shown, key=order)

    def _thread_lanes(self, rank: RankedTask, thread: int, inside: ReportLanes) -> Iterator[LaneIdentity]:
        name = inside.thread_names.get(thread) or f"t{tid_of(thread)}"
        for level in inside.threads.get(thread, ()):
            yield LaneIdentity(rank.task, rank.rank, thread=thread, level=level, name=name)
            name = ""
        for kind in inside.calls.get(thread, ()):
            yield LaneIdentity(rank.task, rank.rank, thread=thread, calls=kind, name=name)
            name = ""
        if thread in inside.running:
            yield LaneIdentity(rank.task, rank.rank, thread=thread, is_cpu=True, name=name)

    def _stream_lanes(self, rank: RankedTask, device: int, inside: ReportLanes) -> Iterator[LaneIdentity]:
        selected = self.selection.streams
        work_by_stream = {
            stream: work
            for (process, ordinal, stream), work in inside.streams.items()
            if (process, ordinal) == (rank.task.process, device) and (selected is None or stream in selected)
        }
        for stream in sorted(work_by_stream, key=lambda stream: (-work_by_stream[stream].length, stream)):
            yield LaneIdentity(rank.task, rank.rank, device, stream)

    def work(self, lane: LaneIdentity) -> LaneWork:
        """Return the busy times of a lane. Raises ``KeyError`` if the lane is not in this timeline."""
        if lane.is_host:
            return self.events(lane).work
        if lane.device is not None and lane.stream is not None:
            return self._inside_now(lane.task).streams[lane.task.process, lane.device, lane.stream]
        return self._devices[lane.task, lane.device or 0]

    def events(self, lane: LaneIdentity) -> ThreadEvents:
        """Return the ranges, calls or stretches of a thread's lane, or the pieces of a path."""
        if lane.path is not None:
            return self.paths[lane]
        inside, thread = self._inside_now(lane.task), lane.thread or 0
        if lane.is_cpu:
            return inside.running[thread]
        return inside.threads[thread][lane.level] if lane.calls is None else inside.calls[thread][lane.calls]

    def cpu_work(self, lane: LaneIdentity) -> CpuWork:
        """Return the work of the threads on CPUs in the report of a lane."""
        return self._inside_now(lane.task).cpu

    def lane_of(self, event: Mapping[str, Any]) -> LaneIdentity | None:
        """Find the lane of an event list's row in an opened rank, if its kind has lanes.

        Blocks while the rank's lanes are read.
        """
        task_key = (event["report"], event["process"])
        rank = next((rank for rank in self.tasks if (rank.task.report, rank.task.process) == task_key), None)
        kind = EventKind(event["kind"])
        if rank is None:
            return None
        inside = self._inside_now(rank.task)
        if kind.on_stream:
            key = (rank.task.process, event["device"], event["stream"])
            return LaneIdentity(rank.task, rank.rank, *key[1:]) if key in inside.streams else None
        thread = int(event["process"] or 0) | int(event["tid"] or 0)
        if kind in inside.calls.get(thread, {}):
            return LaneIdentity(rank.task, rank.rank, thread=thread, calls=kind)
        for level, events in inside.threads.get(thread, {}).items():
            if kind is EventKind.NVTX and event["row"] in events.row:
                return LaneIdentity(rank.task, rank.rank, thread=thread, level=level)
        return None

    def _inside_now(self, task: Task) -> ReportLanes:
        inside = self._inside(task, True)
        assert inside is not None
        return inside

    def _inside(self, task: Task, wait: bool) -> ReportLanes | None:
        with self._lock:
            if task.report in self._reports:
                self._reports.move_to_end(task.report)
                return self._reports[task.report]
            if not wait:
                return None
            tasks = frozenset(rank.task for rank in self.ranks if rank.task.report == task.report)
            loaded = ReportLanes.load(self.session, report_at(self.session, task.report), tasks)
            self._reports[task.report] = loaded
            while len(self._reports) > 1 and sum(lanes.size for lanes in self._reports.values()) > _MAX_INTERVALS:
                self._reports.popitem(last=False)
            return loaded

    def clock_offset(self, lane: LaneIdentity) -> int:
        """Return the clock offset of a lane's report, ns, which turns its times into job time."""
        return report_at(self.session, lane.task.report).clock_offset
