"""Disjoint labelled stretches of time on threads: calls, scheduling, samples.

nsys's own NVTX ranges show when threads hold Python's GIL and wait for it (docs/exports.md#python).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.base.types import Array, Condition, Expression, Ints
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, merge, union
from nsystui.questions.nvtx.loading import Numbers, coded_arrays
from nsystui.questions.queries.conditions import given, of_reports, where
from nsystui.store import tables
from nsystui.store.session import Session

Thread = tuple[int, int]
"""A thread: report index, and NVIDIA's globalTid."""
NO_THREAD = -1
"""The globalTid of an unknown thread."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Ascending disjoint stretches ``[start, end)`` in job time, ns, each with a label; shapes ``(n,)``."""

    starts: Times
    ends: Times
    labels: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def covered(self) -> Intervals:
        """The time covered, job time."""
        return union(self.starts, self.ends)

    def labelled(self, *labels: int) -> Intervals:
        """Return the time of segments with these labels, job time."""
        if not len(self):
            return EMPTY
        has_label = np.isin(self.labels, labels)
        return union(self.starts[has_label], self.ends[has_label])

    def within(self, spans: Intervals) -> Segments:
        """Return the parts within ``spans``."""
        if not len(self) or not len(spans):
            return NO_SEGMENTS
        pieces = pairs(spans, self)
        return Segments(pieces.starts, pieces.ends, self.labels[pieces.segment])


NO_SEGMENTS = Segments(*(np.empty(0, np.int64),) * 3)


@dataclass(frozen=True, eq=False)
class SpanPieces:
    """The intersections of spans and segments, with both indices; shapes ``(n,)``."""

    starts: Times
    ends: Times
    span: Ints
    segment: Ints


def pairs(spans: Intervals, segments: Segments) -> SpanPieces:
    """Cut ``segments`` into the pieces that lie within ``spans``, in order."""
    # Like `intersect`, with the indices.
    first = np.searchsorted(segments.ends, spans.starts, side="right")
    last = np.searchsorted(segments.starts, spans.ends, side="left")
    count = np.maximum(last - first, 0)
    span = np.repeat(np.arange(len(spans)), count)
    segment = first[span] + np.arange(len(span)) - np.repeat(np.cumsum(count) - count, count)
    starts = np.maximum(spans.starts[span], segments.starts[segment])
    return SpanPieces(starts, np.minimum(spans.ends[span], segments.ends[segment]), span, segment)


def outermost(starts: Times, ends: Times, labels: Ints) -> Segments:
    """Make segments of a thread's outermost calls; a call that overlaps an earlier call is cut."""
    if (np.diff(starts) <= 0).any():
        order = np.lexsort((-ends, starts))
        starts, ends, labels = starts[order], ends[order], labels[order]
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1])) if len(ends) else ends
    starts = np.maximum(starts, reach)
    is_kept = ends > starts
    return Segments(starts[is_kept], ends[is_kept], labels[is_kept])


def one_after_the_other(*layers: Segments) -> Segments:
    """Overlay layers: each moment belongs to the first layer that covers it."""
    filled = [layer for layer in layers if len(layer)]
    if len(filled) < 2:
        return filled[0] if filled else NO_SEGMENTS
    parts: list[Segments] = []
    taken = EMPTY
    for layer in filled:
        parts.append(layer.within(taken.gaps(-FAR, FAR)))
        taken = merge(taken, layer.covered)
    columns = ([getattr(part, key) for part in parts] for key in ("starts", "ends", "labels"))
    starts, ends, labels = map(np.concatenate, columns)
    order = np.argsort(starts, kind="stable")
    return Segments(starts[order], ends[order], labels[order])


FAR = 1 << 61
"""Later than any time, ns."""


def by_thread(columns: Mapping[str, Array]) -> dict[Thread, Ints]:
    """Return each thread's row indices, by ``report`` and ``thread``, without rows that have no thread."""
    thread = np.ma.filled(columns["thread"], NO_THREAD).astype(np.int64)
    report = columns["report"].astype(np.int64)
    order = np.lexsort((thread, report))
    is_new = (np.diff(report[order]) != 0) | (np.diff(thread[order]) != 0)
    groups = np.split(order, np.flatnonzero(is_new) + 1) if len(order) else []
    return {
        (int(report[group[0]]), int(thread[group[0]])): np.sort(group)
        for group in groups
        if thread[group[0]] != NO_THREAD
    }


@dataclass(frozen=True, eq=False)
class Calls:
    """The outermost calls of one table by thread, labelled by index into ``names``.

    ``chains``: each segment's call chain number, or -1, if requested.
    """

    names: tuple[str, ...]
    threads: Mapping[Thread, Segments]
    chains: Mapping[Thread, Ints] = field(default_factory=dict)


NO_CALLS = Calls((), {})


def calls_of(
    session: Session, table: sa.FromClause, selection: Selection, spans: Sequence[tuple[Task, int, int]] | None = None,
    chain: Expression | None = None, text_of: Mapping[int, str] | None = None,
) -> Calls:  # fmt: skip
    """Read the outermost calls of ``table`` in the selection on each thread, labelled by name.

    With ``spans``, read only calls `near` a span. ``text_of``, from an earlier `texts_by_hash`, saves time.
    """
    columns = table.c
    if isinstance(table, sa.Table) and not session.count(table):
        return NO_CALLS
    conditions = [*where(table, selection.with_name(None)), *([] if spans is None else [near(table, spans)])]
    thread_id = sa.func.coalesce(columns.thread, NO_THREAD).label("thread")
    start = (columns.start + columns.clock_offset).label("start")
    # A call that never returned lasts forever.
    end = sa.func.coalesce(columns.end + columns.clock_offset, FAR).label("end")
    # A text for each of millions of rows would take most of the time.
    query = sa.select(columns.report, thread_id, start, end, sa.func.hash(columns.name).label("name"))
    types = _CALL_TYPES
    if chain is not None:
        query, types = query.add_columns(sa.func.coalesce(chain, -1).label("chain")), types | {"chain": np.int64}
    hashes = Numbers()
    arrays = coded_arrays(session.array_batches(query.where(*conditions)), types, {"name": hashes})
    if text_of is None:
        text_of = texts_by_hash(session, table) if hashes.numbers else {}
    labels, threads, chains = [text_of[key] for key in hashes.numbers], {}, {}
    for thread, rows in by_thread(arrays).items():
        outer = outermost(arrays["start"][rows], arrays["end"][rows], np.arange(len(rows)))
        threads[thread] = Segments(outer.starts, outer.ends, arrays["name"][rows][outer.labels].astype(np.int64))
        if chain is not None:
            chains[thread] = arrays["chain"][rows][outer.labels].astype(np.int64)
    return Calls(tuple(labels), threads, chains)


def texts_by_hash(session: Session, table: sa.FromClause) -> dict[int, str]:
    """Return the names in ``table``, each by its hash in DuckDB."""
    names = sa.select(table.c.name).distinct().subquery("names").c.name
    return dict(session.rows(sa.select(sa.func.hash(names), sa.func.coalesce(names, ""))))


_CALL_TYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(("report", "thread", "start", "end"), np.int64),
    "name": np.int32,
}
_MIN_WIDTH, _MAX_CELLS = 1_000_000, 1 << 12


def near(table: sa.FromClause, spans: Sequence[tuple[Task, int, int]]) -> Condition:
    """Select rows that are long, unfinished, or begin near a span: all that overlap it, and few more."""
    columns = table.c
    width = max(sum(end - start for _, start, end in spans) // _MAX_CELLS, _MIN_WIDTH)
    # SQL divides towards zero.
    edges = ((task, start // width - 1, end // width + 2) for task, start, end in spans)
    cells = {(task.report, task.process, n) for task, first, last in edges for n in range(first, last)}
    begin = (columns.start + columns.clock_offset).op("//", precedence=8)(width)
    is_near = sa.tuple_(columns.report, columns.process, begin).in_(
        given(dict(zip(("report", "process", "begin"), zip(*cells, strict=True), strict=True)))
    )
    return sa.or_(is_near, columns.end.is_(None), columns.end - columns.start > width)


RUNNING, RUNNABLE, BLOCKED, OFF = STATES = range(4)
"""On a CPU; off it but runnable; off it and waiting; off it for an unrecorded reason."""

_CAN_RUN = ("running", "unscheduled")
_WAITS = ("interruptible", "uninterruptible", "stopped", "terminated", "waiting", "OS runtime")


@dataclass(frozen=True, eq=False)
class Scheduling:
    """The scheduling of threads.

    ``threads``: the state (`STATES`) from the first event to the last. ``places``: the CPU of the event before each
    state. ``cpus``: the time in `RUNNING`, labelled by CPU. ``switches``, ``moves``: the times, ns, at which the thread
    left a CPU, and resumed on another CPU.
    """

    threads: Mapping[Thread, Segments]
    cpus: Mapping[Thread, Segments]
    places: Mapping[Thread, Ints]
    switches: Mapping[Thread, Times]
    moves: Mapping[Thread, Times]


def scheduling_of(session: Session, selection: Selection) -> Scheduling:
    """Read the scheduling of all threads in the selected tasks' reports, ignoring the window.

    A state lasts until the next event.
    """
    threads, cpus, places, switches, moves = {}, {}, {}, {}, {}
    if session.count(tables.sched_events):
        columns = tables.sched_events.c
        time = (columns.time + columns.clock_offset).label("time")
        state = sa.case((columns.state.in_(_CAN_RUN), RUNNABLE), (columns.state.in_(_WAITS), BLOCKED), else_=OFF)
        cpu = sa.func.coalesce(columns.cpu, -1).label("cpu")
        is_in = sa.func.coalesce(columns.is_in, 0).label("is_in")
        query = sa.select(columns.report, columns.thread, time, cpu, is_in, state.label("state"))
        unfiltered = selection.with_name(None).with_window(None).with_tasks(None)
        query = query.where(*where(tables.sched_events, unfiltered)).order_by(time, columns.row)
        if selection.tasks is not None:
            query = query.where(of_reports(columns.report, {task.report for task in selection.tasks}))
        events = session.arrays(query)
        for thread, rows in by_thread(events).items():
            times, runs = events["time"][rows].astype(np.int64), events["is_in"][rows] > 0
            states, on_cpus = np.where(runs, RUNNING, events["state"][rows]), events["cpu"][rows].astype(np.int64)
            lasts = times[1:] > times[:-1]
            threads[thread] = Segments(times[:-1][lasts], times[1:][lasts], states[:-1][lasts].astype(np.int64))
            places[thread] = on_cpus[:-1][lasts]
            ran = lasts & runs[:-1]
            cpus[thread] = Segments(times[:-1][ran], times[1:][ran], on_cpus[:-1][ran])
            switches[thread] = times[~runs]
            moves[thread] = times[1:][runs[1:] & (on_cpus[1:] != on_cpus[:-1])]
    return Scheduling(threads, cpus, places, switches, moves)


DOMAIN = "GIL Trace"
RECORD = "--trace=cuda,nvtx,osrt,python-gil"
_HELD, _WAITED = "Holding GIL", "Waiting for GIL"


@dataclass(frozen=True)
class Gil:
    """The time in which each thread holds its process's GIL, and waits for it, job time."""

    held: Mapping[Thread, Intervals] = field(default_factory=dict)
    waited: Mapping[Thread, Intervals] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.held or self.waited)


def gil_of(session: Session, selection: Selection, spans: Sequence[tuple[Task, int, int]] | None = None) -> Gil:
    """Read the GIL's ranges in a selection, with ``spans`` as in `calls_of`; empty if not recorded."""
    table = tables.nvtx_ranges
    if not session.count(table):
        return Gil()
    # The row that names the domain may be missing.
    is_in_domain = sa.or_(table.c.domain == DOMAIN, table.c.domain.is_(None)), table.c.end.is_not(None)
    is_gil = (*is_in_domain, table.c.name.in_((_HELD, _WAITED)))
    calls = calls_of(session, sa.select(table).where(*is_gil).subquery("gil"), selection, spans)
    parts: dict[str, dict[Thread, Intervals]] = {_HELD: {}, _WAITED: {}}
    for thread, segments in calls.threads.items():
        for label, name in enumerate(calls.names):
            parts[name][thread] = segments.labelled(label)
    return Gil(parts[_HELD], parts[_WAITED])
