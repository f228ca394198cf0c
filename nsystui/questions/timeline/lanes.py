"""The lanes of a selection: for each rank its GPUs, and where it is opened, its streams and NVTX threads as well.

A column of a lane is dominated by the category that covers most of it, each category by itself: U(X) as in
``nsystui.questions.gpu.device_time``. How busy the column is, is the union of them all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Task, Window
from nsystui.exports.identifiers import process_of, tid_of
from nsystui.questions.algebra.interval_blocks import IntervalBlocks, blocks_of
from nsystui.questions.algebra.intervals import Times, union
from nsystui.questions.derived import of_each_report
from nsystui.questions.gpu.device_time import STREAM_KEYS, BusyParts, busy_parts, of_arrays, to_arrays
from nsystui.questions.nvtx.ranges import ranges_of
from nsystui.questions.tasks import GPU_TABLES, selected_ranks
from nsystui.questions.time_window import recorded, report_at
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.gpu.utilisation import BusyIntervals
    from nsystui.questions.job import Job
    from nsystui.questions.tasks import RankedTask
    from nsystui.store.results import Arrays


CATEGORIES = ("idle", "compute", "nccl", "memory", "graph", "nvtx")
"""The categories that may dominate a column, by their numbers in ``Columns.category``."""

IDLE = CATEGORIES.index("idle")
UNSEEN = -1
"""The number of a column in which the report was not recording."""

_PARTS = (("compute", "kernels"), ("nccl", "nccl"), ("memory", "memory"), ("graph", "graph"))


@dataclass(frozen=True, eq=False)
class LaneWork:
    """The busy times of a lane (job time). ``parts`` by category may overlap; ``apart`` are these without overlaps."""

    parts: tuple[tuple[str, IntervalBlocks], ...]
    apart: tuple[IntervalBlocks, ...]
    recorded: Window

    @classmethod
    def of_device(cls, parts: BusyParts, recorded: Window) -> LaneWork:
        """The work of a GPU or of a stream."""
        named = [(category, getattr(parts, name)) for category, name in _PARTS]
        return cls(
            tuple((category, blocks) for category, blocks in named if len(blocks)),
            tuple(blocks for blocks in parts.disjoint if len(blocks)),
            recorded,
        )

    @property
    def length(self) -> int:
        """The time in which it was busy, ns."""
        return sum(blocks.length for blocks in self.apart)

    def busy_within(self, window: Window) -> int:
        """The part of ``window`` in which it was busy, ns."""
        return sum(blocks.length_within(window.start, window.end) for blocks in self.apart)


@dataclass(frozen=True, eq=False)
class Columns:
    """The contents of n equal spans of a window; arrays of the shape ``(n,)``.

    ``category``: the number in ``CATEGORIES`` of what covers most of it, ``IDLE`` where nothing ran, ``UNSEEN`` outside
    the recording. ``busy``: the share of it in which anything ran, 0 to 1, NaN where unseen. ``shares``: the same
    for each category that the lane has, which may sum up to more.
    """

    window: Window
    category: NDArray[np.int8]
    busy: NDArray[np.float64]
    shares: dict[str, NDArray[np.float64]]


def columns(work: LaneWork, window: Window, count: int) -> Columns:
    """The category that dominates each of ``count`` columns of ``window``. Raises ``ValueError`` where ``count < 1``.

    Costs milliseconds however long the lane is: see ``interval_blocks``.
    """
    lo, hi = window.start, window.end
    width = max(hi - lo, 1) / count
    known: dict[int, NDArray[np.float64]] = {}

    def share(blocks: IntervalBlocks) -> NDArray[np.float64]:
        if id(blocks) not in known:
            known[id(blocks)] = blocks.covered_per_bin(lo, hi, count) / width
        return known[id(blocks)]

    shares = {category: share(blocks) for category, blocks in work.parts}
    busy = np.minimum(sum((share(blocks) for blocks in work.apart), np.zeros(count)), 1.0)
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
    return Columns(window, category, busy, shares)


LEVELS = 4
"""The number of outermost levels of push/pop ranges that have lanes; deeper ones are in the NVTX tree only."""
_LANES = LEVELS + 1

Stream = tuple[int, int, int]
"""(process, CUDA ordinal of the device, stream)."""


@dataclass(frozen=True, eq=False)
class NvtxLevel:
    """The push/pop ranges of a thread at one nesting level, or its start/end ranges.

    There are n of them by start, in job time (ns); arrays have the shape ``(n,)``. ``name``: index into the
    names of the report; ``row``: the row in ``nvtx_ranges``. ``work`` is their union.
    """

    start: Times
    end: Times
    name: NDArray[np.int32]
    row: NDArray[np.int64]
    work: LaneWork
    follow: bool
    """Whether no range starts before the one before it ends (start/end ranges may)."""


@dataclass(frozen=True, eq=False)
class ReportLanes:
    """The lanes of a report. ``threads`` has the levels of each thread (globalTid), outermost first, and
    last, as level ``None``, its start/end ranges."""

    streams: Mapping[Stream, LaneWork]
    threads: Mapping[int, Mapping[int | None, NvtxLevel]]
    names: tuple[str, ...]
    thread_names: Mapping[int, str]

    @property
    def size(self) -> int:
        """The number of intervals in memory: about eight bytes each, of ranges three times that."""
        held = sum(len(blocks) for work in self.streams.values() for blocks in work.apart)
        return held + 3 * sum(len(level.start) for levels in self.threads.values() for level in levels.values())

    @classmethod
    def load(cls, session: Session, report: Report) -> ReportLanes:
        """Reads the lanes of ``report``; what is expensive to compute is kept next to the pack."""
        names, threads = _threads(session, report)
        return cls(_streams(session, report), threads, names, _thread_names(session, report))


def _streams(session: Session, report: Report) -> dict[Stream, LaneWork]:
    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        return {one.index: _stream_arrays(part, one) for one in reports}

    stored = of_each_report(session, [report], "streams", compute)[report.index]
    found = of_arrays(stored, report.clock_offset, STREAM_KEYS)
    seen = recorded(report)
    return {(place[0], place[1], place[2]): LaneWork.of_device(parts, seen) for place, parts in found.items()}


def _stream_arrays(session: Session, report: Report) -> Arrays:
    used: set[tuple[int, ...]] = set()
    for table in GPU_TABLES:
        if report.count(table):
            columns = [table.c[key] for key in STREAM_KEYS]
            has_all = [column.is_not(None) for column in columns]
            query = sa.select(*columns).where(table.c.report == report.index, *has_all).distinct()
            used |= {(report.index, *row) for row in session.rows(query)}
    places = sorted(used)
    parts = busy_parts(session, STREAM_KEYS, places)
    return to_arrays({place[1:]: found for place, found in zip(places, parts, strict=True)}, STREAM_KEYS)


def _threads(session: Session, report: Report) -> tuple[tuple[str, ...], dict[int, Mapping[int | None, NvtxLevel]]]:
    if not report.count(tables.nvtx_ranges):
        return (), {}
    ranges = ranges_of(session, report)
    found: dict[int, Mapping[int | None, NvtxLevel]] = {}
    is_outer = np.flatnonzero(ranges["level"] < LEVELS)
    # One sort by thread and level; ranges lie by start already, and a stable sort leaves them so.
    level_of = np.where(ranges["is_push_pop"], ranges["level"], LEVELS)[is_outer]
    place = ranges["lane"][is_outer].astype(np.int64) * _LANES + level_of
    order = is_outer[np.argsort(place, kind="stable")]
    edges = np.searchsorted(np.sort(place, kind="stable"), np.arange(len(ranges["threads"]) * _LANES + 1))
    for number, thread in enumerate(ranges["threads"].tolist()):
        levels: dict[int | None, NvtxLevel] = {}
        for level in range(_LANES):
            rows = order[edges[number * _LANES + level] : edges[number * _LANES + level + 1]]
            if len(rows):
                levels[level if level < LEVELS else None] = _level(ranges, rows, report)
        found[thread] = levels
    return tuple(json_of(ranges["names"])), found


def _level(ranges: Arrays, rows: NDArray[np.int64], report: Report) -> NvtxLevel:
    start = ranges["start"][rows] + report.clock_offset
    end = start + ranges["length"][rows]
    blocks = blocks_of(union(start, end))
    work = LaneWork((("nvtx", blocks),), (blocks,), recorded(report))
    follow = bool((start[1:] >= end[:-1]).all())
    return NvtxLevel(start, end, ranges["name"][rows].astype(np.int32), ranges["row"][rows], work, follow)


def _thread_names(session: Session, report: Report) -> dict[int, str]:
    known = tables.threads.c
    query: sa.Select[Any] = sa.select(known.thread, known.name).where(
        known.report == report.index, known.name.is_not(None)
    )
    return dict(session.rows(query)) if report.count(tables.threads) else {}


# Intervals that may stay in memory of ranks that were opened; those of the one opened last always do.
_MOST_HELD = 16_000_000


@dataclass(frozen=True)
class Lane:
    """The identity of a lane: a GPU of a rank, one stream of it, or NVTX ranges of one of its threads.

    ``device`` is the CUDA ordinal, ``thread`` NVIDIA's globalTid; ``level`` is the nesting level of push/pop ranges, 0
    for the outermost, and ``None`` for start/end ranges.
    """

    task: Task
    rank: int
    device: int | None = None
    stream: int | None = None
    thread: int | None = None
    level: int | None = 0
    name: str = field(default="", compare=False)
    """That of the thread."""

    @property
    def is_nvtx(self) -> bool:
        return self.thread is not None


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
    _devices: dict[tuple[Task, int], LaneWork] = field(default_factory=dict)
    _reports: OrderedDict[int, ReportLanes] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, job: Job, selection: Selection) -> Timeline:
        """The timeline of a selection, kept with the job. Blocks while the GPUs' intervals are read."""
        wide = selection.with_window(None).with_name(None)

        def make() -> Timeline:
            made = cls(job.session, wide, job.ranks, job.busy(wide))
            for item in made.busy.devices:
                place = (item.device.task.task, item.device.device)
                made._devices[place] = LaneWork.of_device(item.parts, item.recorded)
            return made

        return job.once(("timeline", wide), make)

    @property
    def tasks(self) -> list[RankedTask]:
        """The selected ranks in order."""
        return selected_ranks(self.ranks, self.selection)

    # -- which lanes ----------------------------------------------------------------------------------------------

    def lanes(self, opened: frozenset[Task], wait: bool = True) -> tuple[tuple[Lane, ...], bool]:
        """The lanes by rank, and whether they are all.

        Of an opened rank the NVTX ranges of its main thread lie above the GPUs, those of others below; each GPU is
        followed by its streams, the busiest first.

        Unless ``wait``, an opened rank whose report is not in memory shows its GPUs alone for now.
        """
        found: list[Lane] = []
        is_whole = True
        for item in self.tasks:
            inside = self._inside(item.task, wait) if item.task in opened else None
            is_whole = is_whole and (inside is not None or item.task not in opened)
            found += self._lanes_of(item, inside)
        return tuple(found), is_whole

    def has_inside(self, task: Task) -> bool:
        """Whether a rank has lanes that it shows only when it is opened."""
        report = report_at(self.session, task.report)
        return any(report.count(table) for table in (tables.kernels, tables.memory_ops, tables.nvtx_ranges))

    def _lanes_of(self, item: RankedTask, inside: ReportLanes | None) -> Iterator[Lane]:
        threads = [] if inside is None else self._threads(item, inside)
        for thread in threads[:1]:
            yield from self._nvtx_lanes(item, thread, inside)
        for device in item.devices:
            if (item.task, device) in self._devices:
                yield Lane(item.task, item.rank, device)
                if inside is not None:
                    yield from self._stream_lanes(item, device, inside)
        for thread in threads[1:]:
            yield from self._nvtx_lanes(item, thread, inside)

    def _threads(self, item: RankedTask, inside: ReportLanes) -> list[int]:
        """The threads of a rank with NVTX ranges: the main thread, then those that spend the most time in ranges."""
        own = {thread: levels for thread, levels in inside.threads.items() if process_of(thread) == item.task.process}
        main = item.pid
        return sorted(own, key=lambda thread: (tid_of(thread) != main, -_outermost(own[thread]).work.length, thread))

    def _nvtx_lanes(self, item: RankedTask, thread: int, inside: ReportLanes | None) -> Iterator[Lane]:
        assert inside is not None
        name = inside.thread_names.get(thread, "")
        for level in inside.threads[thread]:
            yield Lane(item.task, item.rank, thread=thread, level=level, name=name)

    def _stream_lanes(self, item: RankedTask, device: int, inside: ReportLanes) -> Iterator[Lane]:
        chosen = self.selection.streams
        own = {
            stream: work
            for (process, ordinal, stream), work in inside.streams.items()
            if (process, ordinal) == (item.task.process, device) and (chosen is None or stream in chosen)
        }
        for stream in sorted(own, key=lambda stream: (-own[stream].length, stream)):
            yield Lane(item.task, item.rank, device, stream)

    # -- what is on them ------------------------------------------------------------------------------------------

    def work(self, lane: Lane) -> LaneWork:
        """The busy times of a lane. Raises ``KeyError`` for a lane that is not of this timeline."""
        if lane.thread is not None:
            return self.nvtx(lane).work
        if lane.device is not None and lane.stream is not None:
            return self._inside_now(lane.task).streams[lane.task.process, lane.device, lane.stream]
        return self._devices[lane.task, lane.device or 0]

    def nvtx(self, lane: Lane) -> NvtxLevel:
        """The ranges of an NVTX lane."""
        return self._inside_now(lane.task).threads[lane.thread or 0][lane.level]

    def nvtx_names(self, lane: Lane) -> tuple[str, ...]:
        """The names that ``NvtxLevel.name`` is the index in."""
        return self._inside_now(lane.task).names

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
            loaded = ReportLanes.load(self.session, report_at(self.session, task.report))
            self._reports[task.report] = loaded
            while len(self._reports) > 1 and sum(one.size for one in self._reports.values()) > _MOST_HELD:
                self._reports.popitem(last=False)
            return loaded

    def clock_offset(self, lane: Lane) -> int:
        """The clock offset of the lane's report: added to its times it gives job time, ns."""
        return report_at(self.session, lane.task.report).clock_offset


def _outermost(levels: Mapping[int | None, NvtxLevel]) -> NvtxLevel:
    return next(iter(levels.values()))
