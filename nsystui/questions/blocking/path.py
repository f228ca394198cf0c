"""The critical path of an iteration: what its time went to, walked back from its end (docs/path.md#critical-path).

From a GPU operation the path goes to its producer, if that ended after the launching call had returned, else to that
call. From a CPU call it goes to what its thread did before, or, out of a synchronising call, to the operation that the
thread waited for. Out of a collective it goes to the rank that came last. So the pieces of the path cover the iteration
once, and their sum is the iteration.

A thread that makes no CUDA call for a while, in which another launching thread of its process does, is taken to wait
for that one, as the autograd thread of PyTorch and the main thread do for each other: this is inferred.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import FILES_ONLY, NAME, PROCESS_ID, RANK, REPORT_ID, ROW_ID, START, Column, TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.blocking.dependencies import (
    COLOURS,
    NCCL,
    NONE,
    OPERATIONS,
    host_calls_of,
    operations_of,
    unresolved_waits,
)
from nsystui.questions.collectives.waiting import NOBODY, Arrivals
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.host.naming import ThreadRanges
from nsystui.questions.host.segments import NO_SEGMENTS, Segments, one_after_the_other, outermost, pairs
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.questions.queries.kernel_names import communicating
from nsystui.questions.queries.process_rows import ProcessRows
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.queries.time_window import extent, report_at
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables

CPU, LAUNCH_DELAY, KERNEL_DELAY, SYNCHRONISATION, UNRESOLVED = range(10, 15)
KINDS = {
    **dict(enumerate(OPERATIONS)),
    CPU: "CPU",
    LAUNCH_DELAY: "launch delay",
    KERNEL_DELAY: "delay between operations",
    SYNCHRONISATION: "return from synchronisation",
    UNRESOLVED: "unresolved",
}
CATEGORIES = {**dict(enumerate(COLOURS)), CPU: "cpu"}
"""The colours of the kinds that are work; in all others the path waits."""
OUTSIDE = "outside of CUDA calls"
_QUIET = 100_000
"""A thread that makes no CUDA call for so long, ns, may have waited for another one."""
_MOST = 1_000_000
"""So many operations of a rank are walked at most."""


class PathPiece(NamedTuple):
    """A stretch of the path, job time, ns: on the GPU an operation (its ``table`` and ``row``), else of a thread."""

    start: int
    end: int
    task: Task
    kind: int
    thread: int
    table: int
    row: int
    launched: int
    """When the operation was launched, by ``thread``; of a piece on the CPU, its start."""
    begun: int
    """When the operation began; of a piece on the CPU, its start."""


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The path of an iteration of a task, ``pieces`` by time; they cover ``window`` (job time) once."""

    task: Task
    window: Window
    pieces: tuple[PathPiece, ...]


def critical_path(job: OpenJob, task: Task, window: Window) -> CriticalPath:
    """Walk back from the end of an iteration of a task. Raises UsageError where it has too many operations."""
    return walked(job, task, window)[1]


class _Place(NamedTuple):
    """Where the path is at a moment (job time): in an operation, or before it if not ``is_begun``; else on a thread."""

    task: Task
    time: int
    operation: int = NONE
    is_begun: bool = True
    thread: int = NONE


class _Side:
    """The operations and CUDA calls of a process in a window, as lists; job time."""

    def __init__(self, job: OpenJob, task: Task, window: Window) -> None:
        offset = report_at(job.session, task.report).clock_offset
        own = Window(window.start - offset, window.end - offset)
        process = ProcessRows(job.session.part([task.report]), task)
        work = operations_of(process, own, communicating(process.session))
        if len(work) > _MOST:
            raise UsageError(f"{len(work):,} operations are too many for one path: choose a shorter time (--time A:B)")
        calls = host_calls_of(process, own, work)
        self.start, self.end = ((times + offset).tolist() for times in (work.start, work.end))
        # A call that returned after its copy had ended queued it long before.
        queued = np.where((work.table == 1) & (work.end <= work.returned), work.called, work.returned)
        self.called, self.queued = (
            np.where(work.thread == NONE, NONE, times + offset).tolist() for times in (work.called, queued)
        )
        every = np.arange(len(work))
        free = np.maximum(work.returned, np.append(work.end, NONE)[work.producer])
        held = work.last_ended(every >= 0, every, work.unseen, free)
        self.held = np.where(held > free, held + offset, NONE).tolist()
        self.thread, self.producer, self.kind = (one.tolist() for one in (work.thread, work.producer, work.kind))
        self.table, self.row, self.inside_graph = (one.tolist() for one in (work.table, work.row, work.inside_graph))
        self.place_of_kernel = {row: at for at, row in enumerate(self.row) if self.table[at] == 0}
        self.launching = frozenset(self.thread) - {NONE}
        self.names = calls.names
        self.calls_of: dict[int, Segments] = {}
        self.ends_of: dict[int, list[int]] = {}
        self.waits_of: dict[int, tuple[list[int], list[int], list[int]]] = {}
        """Of each thread the calls that waited for an operation: ends, ascending, starts, operations."""
        for thread in np.unique(calls.thread).tolist():
            rows = np.flatnonzero(calls.thread == thread)
            rows = rows[np.argsort(calls.end[rows], kind="stable")]
            self.calls_of[thread] = outermost(calls.start[rows] + offset, calls.end[rows] + offset, calls.name[rows])
            self.ends_of[thread] = (calls.end[rows] + offset).tolist()
            rows = rows[calls.operation[rows] != NONE]
            starts, ends = (times[rows] + offset for times in (calls.start, calls.end))
            self.waits_of[thread] = ends.tolist(), starts.tolist(), calls.operation[rows].tolist()


class _Walk:
    """The way back through the operations and threads of the ranks: ``pieces``, the last one first."""

    def __init__(self, job: OpenJob, window: Window) -> None:
        self.job, self.window = job, window
        self.pieces: list[PathPiece] = []
        self.sides: dict[Task, _Side] = {}

    def side(self, task: Task) -> _Side:
        if task not in self.sides:
            self.sides[task] = _Side(self.job, task, self.window)
        return self.sides[task]

    @cached_property
    def latest(self) -> dict[tuple[int, int], tuple[Task, int]]:
        """The rank that came last at the collective of a kernel (report, row), and its kernel, of the window."""
        found: dict[tuple[int, int], tuple[Task, int]] = {}
        for group in self.job.collectives().groups:
            arrivals = Arrivals.of(group, self.window)
            for place, last in zip(arrivals.operations.tolist(), arrivals.last.tolist(), strict=True):
                if last != NOBODY:
                    source = group.members[last].task, int(group.row[last, place])
                    for member, row in zip(group.members, group.row[:, place].tolist(), strict=True):
                        found[member.task.report, row] = source
        return found

    def last(self, task: Task) -> _Place:
        """Where the path ends: before what begins then, in what runs then, or on the thread of the last launch."""
        side, until = self.side(task), self.window.end
        places = range(len(side.start))
        if until in side.start:
            return _Place(task, until, side.start.index(until), is_begun=False)
        running = [place for place in places if side.start[place] < until <= side.end[place]]
        if running:
            return _Place(task, until, min(running, key=lambda place: (side.kind[place], place)))
        ended = [place for place in places if side.end[place] < until]
        last = max(ended, key=lambda place: side.end[place], default=NONE)
        return _Place(task, until, thread=side.thread[last] if ended else NONE)

    def add(self, place: _Place, start: int, kind: int, operation: int = NONE) -> int:
        """Adds the piece from ``start`` to a place, if there is one; returns where it starts in the window."""
        side, start = self.side(place.task), max(start, self.window.start)
        if start < place.time:
            of: tuple[int, ...] = (place.thread, NONE, NONE, start, start)
            if operation != NONE:
                lists = (side.thread, side.table, side.row, side.called, side.start)
                of = tuple(values[operation] for values in lists)
            self.pieces.append(PathPiece(start, place.time, place.task, kind, *of))
        return min(start, place.time)

    def before(self, at: _Place) -> _Place | None:
        """Add the piece that ends at a place, and return where the path was before; ``None`` where it began."""
        if at.time <= self.window.start:
            return None
        side = self.side(at.task)
        if at.operation == NONE:
            return self._before_on_cpu(at, side)
        one = at.operation
        if at.is_begun:
            late = self.latest.get((at.task.report, side.row[one])) if side.kind[one] == NCCL else None
            if late is not None and late[0] != at.task:
                other = self.side(late[0])
                source = other.place_of_kernel.get(late[1])
                if source is not None and other.start[source] < at.time:
                    # Until the last rank came, there was nothing to transfer.
                    time = self.add(at, other.start[source], NCCL, operation=one)
                    return _Place(late[0], time, source, is_begun=False)
            return at._replace(time=self.add(at, side.start[one], side.kind[one], operation=one), is_begun=False)
        producer, queued = side.producer[one], side.queued[one]
        freed = min(side.end[producer], at.time) if producer != NONE else self.window.start
        if queued != NONE and side.held[one] > max(freed, queued):
            at = at._replace(time=self.add(at, max(freed, queued), UNRESOLVED, operation=one))
        if queued == NONE or side.inside_graph[one] or freed > queued or freed == at.time:
            kind = UNRESOLVED if NONE in (producer, queued) else KERNEL_DELAY
            time = self.add(at, freed, kind, operation=one)
            return None if producer == NONE else _Place(at.task, time, producer)
        time = self.add(at, min(queued, at.time), LAUNCH_DELAY, operation=one)
        return _Place(at.task, time, thread=side.thread[one])

    def _before_on_cpu(self, at: _Place, side: _Side) -> _Place | None:
        ends, starts, operations = side.waits_of.get(at.thread, ([], [], []))
        number = bisect_right(ends, at.time) - 1
        while number >= 0 and side.end[operations[number]] <= starts[number]:
            number -= 1  # what it waited for had ended before
        waited = ends[number] if number >= 0 else self.window.start
        other = self._handed_over(at, side, waited)
        if other is not None:
            return _Place(at.task, self.add(at, other[0], CPU), thread=other[1])
        time = self.add(at, waited, CPU)
        if number < 0:
            return None
        source = operations[number]
        freed = min(side.end[source], time)
        time = self.add(at._replace(time=time), freed, SYNCHRONISATION)
        return _Place(at.task, time, source)

    def _handed_over(self, at: _Place, side: _Side, since: int) -> tuple[int, int] | None:
        """When and by which thread the thread was last woken after ``since``, as far as that may be inferred.

        Another launching thread must have made calls for half of a time in which this one made none.
        """
        own = side.calls_of.get(at.thread, NO_SEGMENTS).within(Intervals(np.array([since]), np.array([at.time])))
        quiet_from, quiet_to = np.append(since, own.ends), np.append(own.starts, at.time)
        for gap in np.flatnonzero(quiet_to - quiet_from >= _QUIET)[::-1].tolist():
            start, end = int(quiet_from[gap]), int(quiet_to[gap])
            for thread in side.launching - {at.thread}:
                ends = side.ends_of[thread]
                first, last = bisect_right(ends, start), bisect_right(ends, end) - 1
                if last > first and 2 * (ends[last] - ends[first]) >= end - start:
                    return ends[last], thread
        return None


def walked(job: OpenJob, task: Task, window: Window) -> tuple[_Walk, CriticalPath]:
    """The critical path, and what was read for it."""
    walk = _Walk(job, window)
    place: _Place | None = walk.last(task)
    while place is not None:
        place = walk.before(place)
    return walk, CriticalPath(task, window, tuple(walk.pieces[::-1]))


class Named(NamedTuple):
    """A piece with its kernel or CUDA call, and the NVTX range that its thread was in, where that was asked for."""

    piece: PathPiece
    name: str
    range: str


def named_pieces(job: OpenJob, task: Task, window: Window) -> list[Named]:
    """Walk the critical path, see `critical_path`; pieces on the CPU are cut where calls begin and end."""
    walk, path = walked(job, task, window)
    return _named(job, path.pieces, walk.sides, with_ranges=False)


def _named(job: OpenJob, pieces: Sequence[PathPiece], calls: Mapping[Task, _Side], with_ranges: bool) -> list[Named]:
    """Name the pieces; those on the CPU are cut where calls begin and end, and where NVTX ranges do."""
    texts = _texts(job, pieces)
    ranges = ThreadRanges.load(job) if with_ranges else None
    around: dict[tuple[Task, int], Segments] = {}
    if ranges is not None and pieces:
        when = Window(min(min(one.start, one.launched) for one in pieces), max(one.end for one in pieces))
        for task, thread in {(one.task, one.thread) for one in pieces}:
            around[task, thread] = ranges.of(task, (task.report, thread), when)
    found: list[Named] = []
    for piece in pieces:
        own = around.get((piece.task, piece.thread))
        if piece.kind not in (CPU, SYNCHRONISATION):
            name = texts.get((piece.task.report, piece.table, piece.row), "")
            found.append(Named(piece, name, _range_at(ranges, own, piece.launched)))
            continue
        side = calls[piece.task]
        whole = Intervals(np.array([piece.start]), np.array([piece.end]))
        outside = Segments(whole.starts, whole.ends, np.array([len(side.names)]))
        parts = one_after_the_other(side.calls_of.get(piece.thread, NO_SEGMENTS).within(whole), outside)
        cuts = pairs(Intervals(parts.starts, parts.ends), own if own is not None else outside)
        for start, end, part in zip(cuts.starts.tolist(), cuts.ends.tolist(), cuts.span.tolist(), strict=True):
            name = (*side.names, OUTSIDE)[parts.labels[part]]
            found.append(Named(piece._replace(start=start, end=end), name, _range_at(ranges, own, start)))
    return found


def _range_at(ranges: ThreadRanges | None, own: Segments | None, time: int) -> str:
    if ranges is None or own is None:
        return ""
    place = int(np.searchsorted(own.starts, time, side="right")) - 1
    return ranges.names[int(own.labels[place])]


def _texts(job: OpenJob, pieces: Sequence[PathPiece]) -> dict[tuple[int, int, int], str]:
    """The names of the operations of pieces by report, table and row."""
    found: dict[tuple[int, int, int], str] = {}
    smart = job.smart_names()
    for number, name in enumerate((tables.kernels.c.name, tables.memory_ops.c.operation)):
        rows = {(one.task.report, one.row) for one in pieces if one.table == number}
        columns = name.table.c
        for report in {report for report, _ in rows}:
            query = sa.select(columns.row, name).where(columns.report == report)
            query = query.where(columns.row.in_(sorted(row for own, row in rows if own == report)))
            for row, text in job.session.rows(query):
                found[report, number, row] = smart.get(text or "", text or "")
    return found


GROUPINGS = ("name", "kind", "range", "rank", "piece")
COLUMNS = (
    Column("kind", header="Kind", label="kind"),
    Column("time", header="Time (ns)", label="time", unit=Unit.DURATION),
    Column("share", header="Share (%)", label="share %", unit=Unit.PERCENT, decimals=2, has_bar=True),
    Column("pieces", header="Pieces", label="pieces", unit=Unit.COUNT, importance=2),
    Column("longest", header="Longest (ns)", label="longest", unit=Unit.DURATION, compared="time", importance=3),
    START.with_importance(4),
    RANK.with_importance(1),
    Column("range", header="NVTX Range", label="NVTX range", importance=1),
    NAME,
    REPORT_ID,
    PROCESS_ID,
    ROW_ID,
    Column("event", header="Event", label="event", importance=FILES_ONLY),
    Column("event_start", header="Event Start (ns)", label="event start", unit=Unit.TIME, importance=FILES_ONLY),
)
_EVENTS = (EventKind.KERNEL, EventKind.MEMORY, EventKind.GRAPH)


def path_table(
    job: OpenJob, selection: Selection, by: str = "name", step: int | None = None, step_name: str | None = None
) -> TableAnswer:
    """Tabulate the critical path of an iteration by one of `GROUPINGS`, most time first; pieces in their order.

    The iteration is that of the first selected rank which has this step; without ``step``, the selected time, else the
    step whose time is nearest to the median, else all of the rank's time. ``start`` and the event are those of the
    longest piece. Raises UsageError where there is no such step.
    """
    if not selected_ranks(job.ranks, selection):
        return TableAnswer("path", COLUMNS, [], 0, ("No selected process used a GPU, so there is no path.",))
    task, window, words = _iteration(job, selection, step, step_name)
    walk, path = walked(job, task, window)
    ranks = {one.task: one.rank for one in job.ranks}
    groups: dict[tuple[Any, ...], list[Named]] = {}
    for number, one in enumerate(_named(job, path.pieces, walk.sides, by == "range")):
        kind, rank = KINDS[one.piece.kind], ranks.get(one.piece.task)
        key: dict[str, tuple[Any, ...]] = {
            "name": (kind, None, None, one.name or None),
            "kind": (kind, None, None, None),
            "range": (kind, None, one.range or None, None),
            "rank": (kind, rank, None, None),
            "piece": (kind, rank, None, one.name or None, number),
        }
        groups.setdefault(key[by], []).append(one)
    whole = window.end - window.start
    rows: list[tuple[Any, ...]] = []
    for (kind, rank, around, name, *_), own in groups.items():
        longest, called, _ = max(own, key=lambda one: one.piece.end - one.piece.start)
        time = sum(one.piece.end - one.piece.start for one in own)
        event: tuple[Any, ...] = (longest.task.report, longest.task.process, None, None, None)
        if longest.table != NONE:
            is_nccl = longest.table == 0 and is_nccl_kernel(called)
            what = EventKind.NCCL if is_nccl else _EVENTS[longest.table]
            event = (*event[:2], longest.row, what.value, longest.begun)
        figures = (time, 100.0 * time / whole, len(own), longest.end - longest.start, longest.start)
        rows.append((kind, *figures, rank, around, name, *event))
    if by != "piece":
        rows.sort(key=lambda row: -row[1])
    shown = [any(value is not None for value in values) for values in zip(*rows, strict=True)]
    columns = (
        one if is_shown else one.with_importance(FILES_ONLY) for one, is_shown in zip(COLUMNS, shown, strict=True)
    )
    notes = (words, *unresolved_waits(job.session, walk.sides))
    return TableAnswer("path", tuple(columns) if rows else COLUMNS, rows, len(rows), notes)


def _iteration(job: OpenJob, selection: Selection, step: int | None, step_name: str | None) -> tuple[Task, Window, str]:
    """Choose the iteration: its task and window, and a sentence that says which it is."""
    chosen = selected_ranks(job.ranks, selection)
    steps = step_times(job.steps(step_name))
    for one in chosen:
        own = steps.get(one.task)
        if own is None or not own.on_gpu or (selection.window is not None and step is None):
            continue
        nearest = np.argsort(np.abs(own.duration - own.median))
        places = nearest if step is None else np.flatnonzero(own.numbers == step)
        if len(places):
            window = own.window(int(places[0]))
            which = "" if step is not None else ", which is nearest to the median"
            time = format_value(Unit.DURATION, window.end - window.start)
            words = f"The path is that of step {own.numbers[places[0]]} of rank {one.rank}{which}: {time}."
            return one.task, window, words
    if step is not None:
        raise UsageError(f"no selected rank has a step {step}; `nsystui steps --every` lists them")
    window = selection.window or extent(job.session, Selection(tasks=frozenset({chosen[0].task})))
    time = format_value(Unit.DURATION, window.end - window.start)
    return chosen[0].task, window, f"The path is that of the selected time of rank {chosen[0].rank}: {time}."
