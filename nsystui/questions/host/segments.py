"""Stretches of time on threads that have no moment in common, each with a label: calls, scheduling, samples.

When threads hold Python's GIL and wait for it, NVTX ranges of nsys's own say (docs/exports.md#python).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Task
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, merge, union
from nsystui.questions.nvtx.loading import Texts, coded_arrays
from nsystui.questions.queries.conditions import of_reports, where
from nsystui.store import tables
from nsystui.store.session import Session

Thread = tuple[int, int]
"""A thread: the index of its report, and NVIDIA's globalTid."""
NO_THREAD = -1
"""In the place of the globalTid of what no thread is known of."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Stretches ``[start, end)`` in job time, ns, in order and without overlaps, each with a label; shapes ``(n,)``."""

    starts: Times
    ends: Times
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def covered(self) -> Intervals:
        """The time that they cover, job time."""
        return union(self.starts, self.ends)

    def labelled(self, *labels: int) -> Intervals:
        """Return the time that those with one of these labels cover, job time."""
        chosen = np.isin(self.labels, labels)
        return union(self.starts[chosen], self.ends[chosen])

    def within(self, spans: Intervals) -> Segments:
        """Cut out the parts that lie within ``spans``."""
        if not len(self) or not len(spans):
            return NO_SEGMENTS
        pieces = pairs(spans, self)
        return Segments(pieces.starts, pieces.ends, self.labels[pieces.segment])


NO_SEGMENTS = Segments(*(np.empty(0, np.int64),) * 3)


@dataclass(frozen=True, eq=False)
class SpanPieces:
    """What spans and segments have in common: the place of the span and of the segment of each piece."""

    starts: Times
    ends: Times
    span: NDArray[np.int64]
    segment: NDArray[np.int64]


def pairs(spans: Intervals, segments: Segments) -> SpanPieces:
    """Cut ``segments`` into the pieces that lie within ``spans``, in order."""
    # As in `intersect`, where nothing says which is which.
    first = np.searchsorted(segments.ends, spans.starts, side="right")
    last = np.searchsorted(segments.starts, spans.ends, side="left")
    count = np.maximum(last - first, 0)
    span = np.repeat(np.arange(len(spans)), count)
    segment = first[span] + np.arange(len(span)) - np.repeat(np.cumsum(count) - count, count)
    starts = np.maximum(spans.starts[span], segments.starts[segment])
    ends = np.minimum(spans.ends[span], segments.ends[segment])
    return SpanPieces(starts, ends, span, segment)


def outermost(starts: Times, ends: Times, labels: NDArray[np.int64]) -> Segments:
    """Make segments of the calls of a thread: of nested calls the outermost; of one that outlasts another, the rest."""
    order = np.lexsort((-ends, starts))
    starts, ends, labels = starts[order], ends[order], labels[order]
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1])) if len(ends) else ends
    starts = np.maximum(starts, reach)
    kept = ends > starts
    return Segments(starts[kept], ends[kept], labels[kept])


def one_after_the_other(*layers: Segments) -> Segments:
    """Lay several layers over each other: a moment belongs to the first that has it."""
    filled = [layer for layer in layers if len(layer)]
    if len(filled) < 2:
        return filled[0] if filled else NO_SEGMENTS
    parts: list[Segments] = []
    taken = EMPTY
    for layer in filled:
        parts.append(layer.within(taken.gaps(-FAR, FAR)))
        taken = merge(taken, layer.covered)
    starts, ends, labels = (
        np.concatenate([getattr(part, key) for part in parts]) for key in ("starts", "ends", "labels")
    )
    order = np.argsort(starts, kind="stable")
    return Segments(starts[order], ends[order], labels[order])


FAR = 1 << 61
"""Later than any time, ns."""


def by_thread(found: Mapping[str, NDArray[Any]]) -> dict[Thread, NDArray[np.int64]]:
    """Find the places of the rows of each thread, by ``report`` and ``thread``; those of no thread are in none."""
    thread = np.ma.filled(found["thread"], NO_THREAD).astype(np.int64)
    report = found["report"].astype(np.int64)
    order = np.lexsort((thread, report))
    is_new = np.concatenate(
        ([True], (np.diff(report[order]) != 0) | (np.diff(thread[order]) != 0)) if len(order) else ([],)
    ).astype(bool)
    groups = np.split(order, np.flatnonzero(is_new)[1:]) if len(order) else []
    return {
        (int(report[group[0]]), int(thread[group[0]])): np.sort(group)
        for group in groups
        if thread[group[0]] != NO_THREAD
    }


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of one table by thread: the outermost, labelled by their places in ``names``.

    ``chains``: the number of the call chain of each segment, -1 for none, where it was asked for.
    """

    names: tuple[str, ...]
    threads: Mapping[Thread, Segments]
    chains: Mapping[Thread, NDArray[np.int64]] = field(default_factory=dict)


NO_CALLS = Calls((), {})


def calls_of(
    session: Session,
    table: sa.FromClause,
    selection: Selection,
    spans: Sequence[tuple[Task, int, int]] | None = None,
    chain: sa.ColumnElement[Any] | None = None,
) -> Calls:
    """Read the outermost calls of ``table`` in the selection on each thread, under their names.

    With ``spans`` of tasks (dozens: each row is compared with all of its process), those that overlap one.
    """
    columns = table.c
    if isinstance(table, sa.Table) and not session.count(table):
        return NO_CALLS
    query = sa.select(
        columns.report,
        sa.func.coalesce(columns.thread, NO_THREAD).label("thread"),
        (columns.start + columns.clock_offset).label("start"),
        # A call that never returned goes on.
        sa.func.coalesce(columns.end + columns.clock_offset, FAR).label("end"),
        sa.func.coalesce(columns.name, "").label("name"),
        sa.func.coalesce(chain if chain is not None else sa.null(), -1).label("chain"),
    ).where(*where(table, selection.with_name(None)))
    if spans is not None:
        query = query.where(_overlaps(table, spans))
    texts = Texts()
    found = coded_arrays(session, query, _CALL_TYPES, {"name": texts})
    threads, chains = {}, {}
    for thread, rows in by_thread(found).items():
        own = outermost(found["start"][rows], found["end"][rows], np.arange(len(rows)))
        threads[thread] = Segments(own.starts, own.ends, found["name"][rows][own.labels].astype(np.int64))
        if chain is not None:
            chains[thread] = found["chain"][rows][own.labels].astype(np.int64)
    return Calls(tuple(texts.texts), threads, chains)


_CALL_TYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(("report", "thread", "start", "end", "chain"), np.int64),
    "name": np.int32,
}
_SPAN = ("report", "process", "lo", "hi")


_LEAST_WIDTH = 1_000_000


def _overlaps(table: sa.FromClause, spans: Sequence[tuple[Task, int, int]]) -> sa.ColumnElement[bool]:
    """Whether a row overlaps one of the spans of its process."""
    columns, offset = table.c, table.c.clock_offset
    asked = sa.values(*(sa.column(key, sa.BigInteger) for key in _SPAN), name="asked").data(
        [(task.report, task.process, start, end) for task, start, end in spans]
    )
    own = sa.select(asked).cte("wanted").c
    is_within = (columns.start < own.hi - offset, sa.or_(columns.end > own.lo - offset, columns.end.is_(None)))
    exactly = sa.exists().where(columns.report == own.report, columns.process == own.process, *is_within)
    return sa.and_(exactly, may_overlap(table, spans))


def may_overlap(table: sa.FromClause, spans: Sequence[tuple[Task, int, int]]) -> sa.ColumnElement[bool]:
    """Whether a row is long or begins near one of the spans: most do not, and a look at the time alone costs little."""
    columns = table.c
    width = max(sum(end - start for _, start, end in spans) // len(spans), _LEAST_WIDTH)
    edges = ((start // width - 2, end // width + 1) for _, start, end in spans)  # SQL divides towards zero
    near = sorted({part for first, last in edges for part in range(first, last + 1)})
    is_near = (columns.start + columns.clock_offset).op("//", precedence=8)(width).in_(near)
    return sa.or_(is_near, columns.end.is_(None), columns.end - columns.start > width)


RUNNING, RUNNABLE, BLOCKED, OFF = STATES = range(4)
"""On a CPU; off it though it could run; off it because it waits; off it, and the export does not say why."""

_CAN_RUN = ("running", "unscheduled")
_WAITS = ("interruptible", "uninterruptible", "stopped", "terminated", "waiting", "OS runtime")


@dataclass(frozen=True, eq=False)
class Scheduling:
    """The scheduling of threads.

    ``threads``: from its first event to its last, when each was in which of `STATES`. ``places``: the CPU of the event
    that began each of these. ``cpus``: those of `RUNNING` under the number of the CPU. ``switches`` and ``moves``: the
    times, ns, at which it left a CPU, and came to another one than before.
    """

    threads: Mapping[Thread, Segments]
    cpus: Mapping[Thread, Segments]
    places: Mapping[Thread, NDArray[np.int64]]
    switches: Mapping[Thread, Times]
    moves: Mapping[Thread, Times]

    def reports(self) -> frozenset[int]:
        """Return the indices of the reports that have any."""
        return frozenset(report for report, _ in self.threads)


def scheduling_of(session: Session, selection: Selection) -> Scheduling:
    """Read the scheduling of all threads of the selected tasks' reports, whatever the window.

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
        wide = selection.with_name(None).with_window(None).with_tasks(None)
        query = query.where(*where(tables.sched_events, wide)).order_by(time, columns.row)
        if selection.tasks is not None:
            query = query.where(of_reports(columns.report, {task.report for task in selection.tasks}))
        found = session.arrays(query)
        for thread, rows in by_thread(found).items():
            moment, came = found["time"][rows].astype(np.int64), found["is_in"][rows] > 0
            now, place = np.where(came, RUNNING, found["state"][rows]), found["cpu"][rows].astype(np.int64)
            kept = moment[1:] > moment[:-1]
            threads[thread] = Segments(moment[:-1][kept], moment[1:][kept], now[:-1][kept].astype(np.int64))
            places[thread] = place[:-1][kept]
            ran = kept & came[:-1]
            cpus[thread] = Segments(moment[:-1][ran], moment[1:][ran], place[:-1][ran])
            switches[thread] = moment[~came]
            moves[thread] = moment[1:][came[1:] & (place[1:] != place[:-1])]
    return Scheduling(threads, cpus, places, switches, moves)


DOMAIN = "GIL Trace"
RECORD = "--trace=cuda,nvtx,osrt,python-gil"
_HELD, _WAITED = "Holding GIL", "Waiting for GIL"


@dataclass(frozen=True)
class Gil:
    """When each thread holds the GIL of its process, and when it waits for it, job time."""

    held: Mapping[Thread, Intervals] = field(default_factory=dict)
    waited: Mapping[Thread, Intervals] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.held or self.waited)


def gil_of(session: Session, selection: Selection, spans: Sequence[tuple[Task, int, int]] | None = None) -> Gil:
    """Read the GIL in a selection, with ``spans`` of tasks as in `calls_of`; empty where it is not recorded."""
    table = tables.nvtx_ranges
    if not session.count(table):
        return Gil()
    # The row that names the domain may be missing.
    is_known = sa.or_(table.c.domain == DOMAIN, table.c.domain.is_(None)), table.c.end.is_not(None)
    is_own = (*is_known, table.c.name.in_((_HELD, _WAITED)))
    found = calls_of(session, sa.select(table).where(*is_own).subquery("gil"), selection, spans)
    parts: dict[str, dict[Thread, Intervals]] = {_HELD: {}, _WAITED: {}}
    for thread, segments in found.threads.items():
        for number, name in enumerate(found.names):
            parts[name][thread] = segments.labelled(number)
    return Gil(parts[_HELD], parts[_WAITED])
