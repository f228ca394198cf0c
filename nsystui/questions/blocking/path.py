"""The critical path of an iteration: its time, walked back from its end (docs/path.md#critical-path).

From a GPU operation, the path continues at its producer if that ended after the launching call had returned, else at
the call. From a CPU call, it continues at the thread's previous work; from a synchronising call, at the operation that
the thread waited for; from a collective, at the last rank to arrive. So the pieces cover the iteration exactly once.

If a thread makes no CUDA call for a while, and another launching thread of its process does, the path infers that the
first waits for the second, as PyTorch's main and autograd threads do. If pages of unified memory move during a kernel,
and it ends while the thread makes no CUDA call, the path infers that the thread waits for the kernel's results.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import (
    FILES_ONLY,
    NAME,
    PROCESS_ID,
    RANK,
    REPORT_ID,
    ROW_ID,
    START,
    Column,
    TableAnswer,
    Unit,
    for_files,
)
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.blocking.dependencies import (
    COLOURS,
    COMPUTE,
    MIGRATION,
    NCCL,
    NONE,
    OPERATIONS,
    host_calls_of,
    operations_of,
    unresolved_waits,
)
from nsystui.questions.capture.launch_account import lost_work_notes
from nsystui.questions.collectives.waiting import NOBODY, Arrivals
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.host.naming import ThreadRanges
from nsystui.questions.host.segments import NO_SEGMENTS, Segments, one_after_the_other, outermost, pairs
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.questions.queries.captures import NO_NODE
from nsystui.questions.queries.communication import communicating
from nsystui.questions.queries.process_rows import ProcessRows
from nsystui.questions.queries.tasks import ROLE, selected_ranks
from nsystui.questions.queries.time_window import extent, report_at
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables

CPU, LAUNCH_DELAY, KERNEL_DELAY, SYNCHRONISATION, UNRESOLVED = range(10, 15)
KINDS = {
    **dict(enumerate(OPERATIONS)), CPU: "CPU", LAUNCH_DELAY: "launch delay", KERNEL_DELAY: "delay between operations",
    SYNCHRONISATION: "return from synchronisation", UNRESOLVED: "unresolved",
}  # fmt: skip
CATEGORIES = {**dict(enumerate(COLOURS)), CPU: "cpu"}
"""The colours of working kinds; in other kinds, the path waits."""
OUTSIDE = "outside of CUDA calls"
_MIN_QUIET = 100_000
"""The shortest time without CUDA calls in which a thread may wait for another, ns."""
_MAX_OPERATIONS = 1_000_000
"""The most operations of a rank to walk."""


class PathPiece(NamedTuple):
    """A stretch of the path, job time, ns: a GPU operation (``table`` and ``row``), or a thread's time."""

    start: int
    end: int
    task: Task
    kind: int
    thread: int
    table: int
    row: int
    launched: int  # when ``thread`` launched the operation; on the CPU, the piece's start
    begun: int  # when the operation began; on the CPU, the piece's start


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The path of a task's iteration; ``pieces``, by time, cover ``window`` (job time) once."""

    task: Task
    window: Window
    pieces: tuple[PathPiece, ...]


class _Position(NamedTuple):
    """The path at a moment (job time): in an operation, or before it if not ``is_begun``; else on a thread."""

    task: Task
    time: int
    operation: int = NONE
    is_begun: bool = True
    thread: int = NONE


class _Side:
    """A process's operations and CUDA calls in a window, as lists; job time."""

    def __init__(self, job: OpenJob, task: Task, window: Window) -> None:
        offset = report_at(job.session, task.report).clock_offset
        local_window = Window(window.start - offset, window.end - offset)
        process = ProcessRows(job.session.part([task.report]), task)
        work = operations_of(process, local_window, communicating(process.session))
        if len(work) > _MAX_OPERATIONS:
            raise UsageError(f"{len(work):,} operations are too many for one path: choose a shorter time (--time A:B)")
        calls = host_calls_of(process, local_window, work)
        self.start, self.end = ((times + offset).tolist() for times in (work.start, work.end))
        # A call that returned after its copy's end queued it long before.
        queued = np.where((work.table == 1) & (work.end <= work.returned), work.called, work.returned)
        self.called, self.queued = (
            np.where(work.thread == NONE, NONE, times + offset).tolist() for times in (work.called, queued)
        )
        freed = np.maximum(work.returned, np.append(work.end, NONE)[work.producer])
        held = work.last_ended(work.kind != MIGRATION, np.arange(len(work)), work.unseen, freed)
        self.held = np.where(held > freed, held + offset, NONE).tolist()
        moved = np.append(work.end, NONE)[work.migration]
        self.migration = np.where(moved > freed, work.migration, NONE).tolist()
        moves = np.sort(work.end[work.kind == MIGRATION])
        has_moves = np.searchsorted(moves, work.end) > np.searchsorted(moves, work.start)
        indices = np.flatnonzero(has_moves & (work.kind == COMPUTE)).tolist()
        self.moving = sorted((self.end[index], index) for index in indices)
        """The kernels during which pages moved, by end."""
        self.thread, self.producer, self.kind = (item.tolist() for item in (work.thread, work.producer, work.kind))
        self.table, self.row, self.inside_graph = (item.tolist() for item in (work.table, work.row, work.inside_graph))
        self.index_of_kernel = {row: index for index, row in enumerate(self.row) if self.table[index] == 0}
        self.launching, self.names = frozenset(self.thread) - {NONE}, calls.names
        self.calls_of: dict[int, Segments] = {}
        self.ends_of: dict[int, list[int]] = {}
        self.waits_of: dict[int, tuple[list[int], list[int], list[int]]] = {}
        """The calls of each thread that waited for an operation: ends, ascending, starts, operations."""
        for thread in np.unique(calls.thread).tolist():
            rows = np.flatnonzero(calls.thread == thread)
            rows = rows[np.argsort(calls.end[rows], kind="stable")]
            self.calls_of[thread] = outermost(calls.start[rows] + offset, calls.end[rows] + offset, calls.name[rows])
            self.ends_of[thread] = (calls.end[rows] + offset).tolist()
            rows = rows[calls.operation[rows] != NONE]
            starts, ends = (times[rows] + offset for times in (calls.start, calls.end))
            self.waits_of[thread] = ends.tolist(), starts.tolist(), calls.operation[rows].tolist()

    def is_in_call(self, thread: int, time: int) -> bool:
        calls = self.calls_of.get(thread, NO_SEGMENTS)
        index = int(np.searchsorted(calls.starts, time)) - 1
        return index >= 0 and bool(calls.ends[index] > time)


class _Walk:
    """The walk back through operations and threads of the ranks; ``pieces``, the last first."""

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
        """The last rank to arrive at each kernel's collective (report, row) in the window, and its kernel."""
        sources: dict[tuple[int, int], tuple[Task, int]] = {}
        for group in self.job.collectives().groups:
            arrivals = Arrivals.of(group, self.window)
            for index, last_member in zip(arrivals.operations.tolist(), arrivals.last.tolist(), strict=True):
                if last_member != NOBODY:
                    source = group.members[last_member].task, int(group.row[last_member, index])
                    for member, row in zip(group.members, group.row[:, index].tolist(), strict=True):
                        sources[member.task.report, row] = source
        return sources

    def last(self, task: Task) -> _Position:
        """Return the position at the window's end: an operation that begins or runs then, or the last thread."""
        side, end = self.side(task), self.window.end
        operations = [index for index, kind in enumerate(side.kind) if kind != MIGRATION]
        begun = next((index for index in operations if side.start[index] == end), NONE)
        if begun != NONE:
            return _Position(task, end, begun, is_begun=False)
        running = [index for index in operations if side.start[index] < end <= side.end[index]]
        if running:
            return _Position(task, end, min(running, key=lambda index: (side.kind[index], index)))
        ended = [index for index in operations if side.end[index] < end]
        last = max(ended, key=lambda index: side.end[index], default=NONE)
        return _Position(task, end, thread=side.thread[last] if ended else NONE)

    def add(self, position: _Position, start: int, kind: int, operation: int = NONE) -> int:
        """Add the piece from ``start`` to a position, if it has a length; return its start in the window."""
        side, start = self.side(position.task), max(start, self.window.start)
        if start < position.time:
            facts: tuple[int, ...] = (position.thread, NONE, NONE, start, start)
            if operation != NONE:
                lists = (side.thread, side.table, side.row, side.called, side.start)
                facts = tuple(column[operation] for column in lists)
            self.pieces.append(PathPiece(start, position.time, position.task, kind, *facts))
        return min(start, position.time)

    def before(self, at: _Position) -> _Position | None:
        """Add the piece that ends at a position; return the previous position, or ``None`` at the beginning."""
        if at.time <= self.window.start:
            return None
        side = self.side(at.task)
        if at.operation == NONE:
            return self._before_on_cpu(at, side)
        index = at.operation
        if at.is_begun:
            is_kernel = (side.kind[index], side.table[index]) == (NCCL, 0)
            late = self.latest.get((at.task.report, side.row[index])) if is_kernel else None
            if late is not None and late[0] != at.task:
                other = self.side(late[0])
                source = other.index_of_kernel.get(late[1])
                if source is not None and other.start[source] < at.time:
                    # Before the last rank arrived, there was nothing to transfer.
                    time = self.add(at, other.start[source], NCCL, operation=index)
                    return _Position(late[0], time, source, is_begun=False)
            return at._replace(time=self.add(at, side.start[index], side.kind[index], operation=index), is_begun=False)
        producer, queued = side.producer[index], side.queued[index]
        freed = min(side.end[producer], at.time) if producer != NONE else self.window.start
        if queued != NONE and side.held[index] > max(freed, queued):
            at = at._replace(time=self.add(at, max(freed, queued), UNRESOLVED, operation=index))
        elif queued != NONE and (moved := side.migration[index]) != NONE:
            at = at._replace(time=self.add(at, side.end[moved], KERNEL_DELAY, operation=index))
            at = at._replace(time=self.add(at, max(freed, queued), MIGRATION, operation=moved))
        if queued == NONE or side.inside_graph[index] or freed > queued or freed == at.time:
            kind = UNRESOLVED if NONE in (producer, queued) else KERNEL_DELAY
            time = self.add(at, freed, kind, operation=index)
            return None if producer == NONE else _Position(at.task, time, producer)
        time = self.add(at, min(queued, at.time), LAUNCH_DELAY, operation=index)
        return _Position(at.task, time, thread=side.thread[index])

    def _before_on_cpu(self, at: _Position, side: _Side) -> _Position | None:
        ends, starts, operations = side.waits_of.get(at.thread, ([], [], []))
        index = bisect_right(ends, at.time) - 1
        while index >= 0 and side.end[operations[index]] <= starts[index]:
            index -= 1  # the operation ended before the call
        waited = ends[index] if index >= 0 else self.window.start
        handover = self._handed_over(at, side, waited)
        if handover is not None:
            return _Position(at.task, self.add(at, handover[0], CPU), thread=handover[1])
        moving = side.moving[: bisect_right(side.moving, (at.time, len(side.end)))][-1:]
        if moving and moving[0][0] > waited and not side.is_in_call(at.thread, moving[0][0]):
            return _Position(at.task, self.add(at, moving[0][0], CPU), moving[0][1])
        time = self.add(at, waited, CPU)
        if index < 0:
            return None
        source = operations[index]
        freed = min(side.end[source], time)
        time = self.add(at._replace(time=time), freed, SYNCHRONISATION)
        return _Position(at.task, time, source)

    def _handed_over(self, at: _Position, side: _Side, since: int) -> tuple[int, int] | None:
        """Infer when, and by which thread, the thread was last woken after ``since``, if possible.

        Another launching thread must have made calls for half of this thread's time without calls.
        """
        calls = side.calls_of.get(at.thread, NO_SEGMENTS).within(Intervals(np.array([since]), np.array([at.time])))
        quiet_from, quiet_to = np.append(since, calls.ends), np.append(calls.starts, at.time)
        for gap in np.flatnonzero(quiet_to - quiet_from >= _MIN_QUIET)[::-1].tolist():
            start, end = int(quiet_from[gap]), int(quiet_to[gap])
            for thread in side.launching - {at.thread}:
                ends = side.ends_of.get(thread, [])
                first, last = bisect_right(ends, start), bisect_right(ends, end) - 1
                if last > first and 2 * (ends[last] - ends[first]) >= end - start:
                    return ends[last], thread
        return None


def walked(job: OpenJob, task: Task, window: Window) -> tuple[_Walk, CriticalPath]:
    """Return the critical path, and the data read for it."""
    walk = _Walk(job, window)
    position: _Position | None = walk.last(task)
    while position is not None:
        position = walk.before(position)
    return walk, CriticalPath(task, window, tuple(walk.pieces[::-1]))


class Named(NamedTuple):
    """A piece with its kernel or CUDA call, and its thread's NVTX range, if requested."""

    piece: PathPiece
    name: str
    range: str

    @property
    def event(self) -> tuple[Any, ...]:
        """The report, process, row, kind and start of the piece's event, as far as it has one."""
        piece = self.piece
        if piece.table == NONE:
            return piece.task.report, piece.task.process, None, None, None
        is_nccl = piece.table == 0 and is_nccl_kernel(self.name)
        kind = EventKind.NCCL if is_nccl else EVENTS[piece.table]
        return piece.task.report, piece.task.process, piece.row, kind.value, piece.begun


def named_pieces(job: OpenJob, task: Task, window: Window) -> list[Named]:
    """Walk the critical path (`critical_path`); pieces on the CPU are cut at the edges of calls."""
    walk, path = walked(job, task, window)
    return _named(job, path.pieces, walk.sides, with_ranges=False)


def _named(job: OpenJob, pieces: Sequence[PathPiece], sides: Mapping[Task, _Side], with_ranges: bool) -> list[Named]:
    """Name the pieces, cut on the CPU at the edges of calls and NVTX ranges."""
    texts = _texts(job, pieces)
    ranges = ThreadRanges.load(job) if with_ranges else None
    ranges_of: dict[tuple[Task, int], Segments] = {}
    if ranges is not None and pieces:
        window = Window(min(min(piece.start, piece.launched) for piece in pieces), max(piece.end for piece in pieces))
        for task, thread in {(piece.task, piece.thread) for piece in pieces}:
            ranges_of[task, thread] = ranges.of(task, (task.report, thread), window)
    names_on_gpu = iter(_ranges_of(ranges, [piece for piece in pieces if piece.table != NONE], texts))
    named: list[Named] = []
    for piece in pieces:
        thread_ranges = ranges_of.get((piece.task, piece.thread))
        if piece.table != NONE:
            named.append(Named(piece, texts[piece.task.report, piece.table, piece.row][0], next(names_on_gpu)))
            continue
        side = sides[piece.task]
        span = Intervals(np.array([piece.start]), np.array([piece.end]))
        outside = Segments(span.starts, span.ends, np.array([len(side.names)]))
        parts = one_after_the_other(side.calls_of.get(piece.thread, NO_SEGMENTS).within(span), outside)
        cuts = pairs(Intervals(parts.starts, parts.ends), thread_ranges if thread_ranges is not None else outside)
        for start, end, part in zip(cuts.starts.tolist(), cuts.ends.tolist(), cuts.span.tolist(), strict=True):
            name = (*side.names, OUTSIDE)[parts.labels[part]]
            named.append(Named(piece._replace(start=start, end=end), name, _range_at(ranges, thread_ranges, start)))
    return named


def _range_at(ranges: ThreadRanges | None, thread_ranges: Segments | None, time: int) -> str:
    if ranges is None or thread_ranges is None:
        return ""
    index = int(np.searchsorted(thread_ranges.starts, time, side="right")) - 1
    return ranges.names[int(thread_ranges.labels[index])]


def _ranges_of(ranges: ThreadRanges | None, pieces: Sequence[PathPiece], texts: _Texts) -> list[str]:
    """Return each operation's NVTX range (`ThreadRanges.of_operations`); a late launch is in its own range."""
    if ranges is None:
        return [""] * len(pieces)
    operations = []
    for task, piece in ((piece.task, piece) for piece in pieces):
        node = NO_NODE if piece.kind == LAUNCH_DELAY else texts[task.report, piece.table, piece.row][1]
        operations.append((task.report, task.process, piece.launched, piece.thread, node))
    labels, is_captured = ranges.of_operations(*np.array(operations, np.int64).reshape(-1, 5).T)
    words = np.where(is_captured, "captured in ", "").tolist()
    return [f"{word}{ranges.names[label]}" for word, label in zip(words, labels.tolist(), strict=True)]


_Texts = dict[tuple[int, int, int], tuple[str, int]]


def _texts(job: OpenJob, pieces: Sequence[PathPiece]) -> _Texts:
    """Return the names and graph nodes of the pieces' operations by report, table and row."""
    names: _Texts = defaultdict(lambda: ("", NO_NODE))
    smart = job.smart_names()
    for table, name in enumerate((tables.kernels.c.name, tables.memory_ops.c.operation)):
        rows = {(piece.task.report, piece.row) for piece in pieces if piece.table == table}
        columns = name.table.c
        for report in {report for report, _ in rows}:
            node = sa.func.coalesce(columns.graph_node_id, NO_NODE)
            query = sa.select(columns.row, name, node).where(columns.report == report)
            query = query.where(columns.row.in_(sorted(row for index, row in rows if index == report)))
            for row, text, number in job.session.rows(query):
                names[report, table, row] = smart.get(text or "", text or ""), number
    return names


GROUPINGS = ("name", "kind", "range", "rank", "role", "piece")
COLUMNS = (
    Column("kind", header="Kind", label="kind"), Column("time", header="Time (ns)", label="time", unit=Unit.DURATION),
    Column("share", header="Share (%)", label="share %", unit=Unit.PERCENT, decimals=2, has_bar=True),
    Column("pieces", header="Pieces", label="pieces", unit=Unit.COUNT, importance=2),
    Column("longest", header="Longest (ns)", label="longest", unit=Unit.DURATION, compared="time", importance=3),
    START.with_importance(4), RANK.with_importance(1),
    Column("range", header="NVTX Range", label="NVTX range", importance=1), NAME, REPORT_ID, PROCESS_ID, ROW_ID,
    Column("event", header="Event", label="event", importance=FILES_ONLY),
    Column("event_start", header="Event Start (ns)", label="event start", unit=Unit.TIME, importance=FILES_ONLY),
)  # fmt: skip
EVENTS = (EventKind.KERNEL, EventKind.MEMORY, EventKind.GRAPH, EventKind.HOST_FUNCTION)
"""The kinds of operations by table (`Operations.table`)."""


def path_table(
    job: OpenJob, selection: Selection, by: str = "name", step: int | None = None, step_name: str | None = None
) -> TableAnswer:
    """Tabulate the critical path of an iteration by one of `GROUPINGS`, most time first; pieces in their order.

    The iteration is ``step`` of the first selected rank that has it, else the selected time, else the step closest to
    the median, else all of the rank's time. ``start`` and the event describe the longest piece. Raises UsageError if
    there is no such step.
    """
    if not selected_ranks(job.ranks, selection):
        return TableAnswer("path", COLUMNS, [], 0, ("No selected process used a GPU, so there is no path.",))
    task, window, words = _iteration(job, selection, step, step_name)
    walk, path = walked(job, task, window)
    ranks = {item.task: item.role if by == "role" else item.rank for item in job.ranks}
    groups: dict[tuple[Any, ...], list[Named]] = {}
    for index, named in enumerate(_named(job, path.pieces, walk.sides, by == "range")):
        kind, rank, name = KINDS[named.piece.kind], ranks.get(named.piece.task), named.name or None
        key: dict[str, tuple[Any, ...]] = {
            "name": (kind, None, None, name),
            "kind": (kind, None, None, None),
            "range": (kind, None, named.range or None, None),
            **dict.fromkeys(("rank", "role"), (kind, rank, None, None)),
            "piece": (kind, rank, None, name, index),
        }
        groups.setdefault(key[by], []).append(named)
    total = window.end - window.start
    rows: list[tuple[Any, ...]] = []
    for (kind, rank, range_name, name, *_), pieces in groups.items():
        longest = max(pieces, key=lambda named: named.piece.end - named.piece.start)
        time, (start, end, *_) = sum(named.piece.end - named.piece.start for named in pieces), longest.piece
        figures = (time, 100.0 * time / total, len(pieces), end - start, start)
        rows.append((kind, *figures, rank, range_name, name, *longest.event))
    if by != "piece":
        rows.sort(key=lambda row: -row[1])
    columns = [ROLE if by == "role" and item.key == RANK.key else item for item in COLUMNS]
    empty = [item.key for item, cells in zip(columns, zip(*rows, strict=True), strict=False) if set(cells) == {None}]
    notes = (words, *unresolved_waits(job.session, walk.sides), *lost_work_notes(job.session, selection))
    return TableAnswer("path", for_files(columns, empty) if rows else COLUMNS, rows, len(rows), notes)


def _iteration(job: OpenJob, selection: Selection, step: int | None, step_name: str | None) -> tuple[Task, Window, str]:
    ranks = selected_ranks(job.ranks, selection)
    steps = step_times(job.steps(step_name))
    if step is None and selection.window is not None:
        step = selection.window.step
    for rank in ranks:
        times = steps.get(rank.task)
        if times is None or not times.on_gpu or (selection.window is not None and step is None):
            continue
        nearest = np.argsort(np.abs(times.duration - times.median))
        indices = nearest if step is None else np.flatnonzero(times.numbers == step)
        if len(indices):
            window = times.window(int(indices[0]))
            reason = "" if step is not None else ", which is nearest to the median"
            time = format_value(Unit.DURATION, window.end - window.start)
            words = f"The path is that of step {times.numbers[indices[0]]} of rank {rank.rank}{reason}: {time}."
            return rank.task, window, words
    if step is not None:
        raise UsageError(f"no selected rank has a step {step}; `nsystui steps --every` lists them")
    window = selection.window or extent(job.session, Selection(tasks=frozenset({ranks[0].task})))
    time = format_value(Unit.DURATION, window.end - window.start)
    return ranks[0].task, window, f"The path is that of the selected time of rank {ranks[0].rank}: {time}."
