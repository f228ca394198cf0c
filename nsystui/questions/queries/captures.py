"""The captures of CUDA graphs: when and on which thread the replayed nodes were made.

A replayed operation names a copy of a node. The original, possibly several copies back, was made in the capture:
docs/exports.md#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection
from nsystui.base.text import counted
from nsystui.base.types import Flags, Ints
from nsystui.exports import canonical
from nsystui.questions.algebra.projection import are_outside, calls_inside
from nsystui.questions.queries.conditions import duration, of_reports, where
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.recording import option_advice
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session

NO_NODE = -1
UNRECORDED, AMBIGUOUS = -1, -2
"""Instead of a thread: the capture is not recorded, or several originals or launches are possible."""


@dataclass(frozen=True, eq=False)
class Captures:
    """The n nodes of a report's graphs by process and number; own clock, ns; shapes ``(n,)``.

    ``thread`` (globalTid) and ``time``: the capture of the node's original.
    """

    process: Ints
    node: Ints
    thread: Ints
    time: Ints

    @classmethod
    def of(cls, session: Session, report: Report) -> Captures:
        """Return the captures of a report, computed once."""
        reports = [report] if report.count(tables.graph_nodes) else []
        arrays = of_each_report(session, reports, "graph-captures", _captures, in_memory=True)
        return cls(**arrays.get(report.index, dict.fromkeys(("process", "node", "thread", "time"), _NOTHING)))

    def at(self, process: Ints, node: Ints) -> tuple[Ints, Ints]:
        """Return thread and time of the captures of m operations; shapes ``(m,)``."""
        index = np.full(len(node), len(self.node))
        for number in np.unique(self.process).tolist():
            first, last = np.searchsorted(self.process, [number, number + 1])
            rows = np.flatnonzero(process == number)
            places = first + np.minimum(np.searchsorted(self.node[first:last], node[rows]), last - first - 1)
            is_same = self.node[places] == node[rows]
            index[rows[is_same]] = places[is_same]
        return np.append(self.thread, UNRECORDED)[index], np.append(self.time, 0)[index]


_NOTHING = np.zeros(0, np.int64)


def _captures(session: Session, reports: list[Report]) -> dict[int, Arrays]:
    return {report.index: vars(_resolved(session.part([report.index]), report)) for report in reports}


def _resolved(session: Session, report: Report) -> Captures:
    columns = tables.graph_nodes.c
    names = ("process", "thread", "time", "node", "original")
    has_value = [columns[name].is_not(None) for name in names[:-1]]
    query = sa.select(*(columns[name] for name in names)).where(columns.report == report.index, *has_value)
    rows = session.arrays(query.order_by(columns.time, columns.row))
    process, thread, time, node = (np.ma.getdata(rows[name]).astype(np.int64) for name in names[:-1])
    original = np.ma.filled(rows["original"], np.iinfo(np.int64).min).astype(np.int64)
    is_copy = ~np.ma.getmaskarray(rows["original"]) & (original != node)
    owners, owner = np.unique(np.concatenate((process, process[is_copy])), return_inverse=True)
    numbers, number = np.unique(np.concatenate((node, original[is_copy])), return_inverse=True)
    keys, index = np.unique(owner * len(numbers) + number, return_inverse=True)
    index, originals = np.split(index, [len(node)])
    copies = index[is_copy]
    above = np.full(len(keys), UNRECORDED)
    above[copies] = originals
    is_certain = above == UNRECORDED
    root = np.where(is_certain, np.arange(len(keys)), above)
    ambiguous = copies[above[copies] != originals]
    root[ambiguous] = ambiguous
    for _ in range(len(keys).bit_length()):
        root = root[root]
    made = np.full(len(keys), UNRECORDED)
    rows_made = np.flatnonzero(~is_copy)[::-1]  # a node's first row counts
    made[index[rows_made]] = rows_made
    row = np.where(is_certain[root], made[root], AMBIGUOUS)  # in a loop, no node is the original
    copied = np.full(len(keys), _NEVER)
    copied[copies] = time[is_copy]
    updates = _last_updates(session, report)
    is_stale = copied < np.array([updates.get(number, -_NEVER) for number in owners.tolist()])[keys // len(numbers)]
    row[is_stale & (row >= 0)] = AMBIGUOUS  # the copy may run what another capture recorded
    used = np.unique(row[row >= 0])
    thread[used], time[used] = _at_launches(session, report, thread[used], time[used])
    threads = np.where(row >= 0, thread[row] if len(row) else row, row)
    times = np.where(threads >= 0, time[row] if len(row) else row, 0)
    return Captures(owners[keys // len(numbers)] if len(keys) else keys, numbers[keys % len(numbers)], threads, times)


def _last_updates(session: Session, report: Report) -> dict[int, int]:
    """Return when each process last updated a graph, of which no row says which nodes it replaces."""
    calls = tables.api_calls.c
    query = sa.select(calls.process, sa.func.max(calls.start)).where(
        calls.report == report.index,
        calls.name.contains("GraphExecUpdate"),
        sa.func.coalesce(calls.return_value, 0) == 0,
    )
    return dict(session.rows(query.group_by(calls.process))) if report.count(tables.api_calls) else {}


def _at_launches(session: Session, report: Report, thread: Ints, time: Ints) -> tuple[Ints, Ints]:
    """Return thread and time of m originals, in order; of their launches if nsys was late.

    Some versions of nsys write a capture's nodes after its end: in order of its launches if as many, else ambiguous.
    """
    copies = "Instantiate|GraphClone|GraphExecUpdate|AddChildGraph|GraphLaunch"
    threads, names = np.unique(thread).tolist(), ("BeginCapture", "EndCapture", copies)
    begun, ended, copying = (_calls(session, report, threads, name) for name in names)
    span = int(begun[1].min(initial=_NEVER)), int(time.max(initial=-_NEVER))
    launches, adding = (_calls(session, report, threads, names, *span) for names in (_CAPTURED, "GraphAdd"))
    is_unknown = _are_inside(copying, thread, time) | (time < 0)  # a copy of an unknown node, or before the recording
    thread = np.where(is_unknown, UNRECORDED, thread)
    is_added = _are_inside(adding, thread, time)
    is_late = ~_are_inside(launches, thread, time) & ~is_added
    for number in np.unique(begun[0]).tolist():
        nodes = np.flatnonzero((thread == number) & ~is_added)  # nodes that no capture makes have their time
        (begins, _), (ends, _), (starts, returns) = (
            [times[calls[0] == number] for times in calls[1:]] for calls in (begun, ended, launches)
        )
        starts = starts[returns > np.maximum.accumulate(np.append(0, returns))[:-1]]  # a driver's call inside another
        for late, captured in _late_captures(begins, ends, nodes, time[nodes], is_late, starts):
            if len(captured) == len(late):
                time[late] = captured
            else:
                thread[late] = AMBIGUOUS
    return thread, time


_CAPTURED = "^cu[a-z]*(Graph)?(Launch|Memcpy|Memset)"
"""Calls that a capture makes into nodes."""


def _late_captures(
    begins: Ints, ends: Ints, nodes: Ints, written: Ints, is_late: Flags, starts: Ints
) -> Iterator[tuple[Ints, Ints]]:
    """Yield the nodes that nsys wrote after each capture of a thread, and the ``starts`` of the capture's launches.

    A launch is of the last capture to begin; if no node follows that capture, also of the capture around it.
    """
    edges = np.concatenate((begins, ends))
    order = np.argsort(edges, kind="stable")
    groups = np.split(nodes, np.searchsorted(written, edges[order]))[1:]
    launched = np.split(starts, np.searchsorted(starts, edges[order]))[1:]
    open_captures: list[list[Ints] | None] = []  # the launches of each, or None if nsys wrote a node in it
    for edge, group, group_starts in zip(order.tolist(), groups, launched, strict=True):
        if edge < len(begins):
            open_captures.append([])
        elif open_captures and (parts := open_captures.pop()) is not None:
            late, group = group[is_late[group]], group[~is_late[group]]  # other calls add the others
            captured = np.sort(np.concatenate(parts))
            yield late, captured
            group_starts = group_starts if len(late) else np.concatenate((captured, group_starts))
        if open_captures and (outer := open_captures[-1]) is not None:
            outer.append(group_starts)
            open_captures[-1] = None if len(group) else outer


_NEVER = np.iinfo(np.int64).max


def _calls(
    session: Session, report: Report, threads: Sequence[int], names: str, first: int = -_NEVER, last: int = _NEVER
) -> tuple[Ints, Ints, Ints]:
    """Read thread, start and end of calls that match ``names`` and begin between two times, by start."""
    columns = tables.api_calls.c
    is_named = sa.func.regexp_matches(columns.name, names, type_=sa.Boolean)
    query = sa.select(columns.thread, columns.start, columns.end).where(
        columns.report == report.index, columns.thread.in_(threads), columns.start.between(first, last), is_named
    )
    arrays = session.arrays(query.order_by(columns.start, columns.end.desc())) if report.count(tables.api_calls) else {}
    thread, start, end = (np.ma.getdata(arrays.get(key, _NOTHING)) for key in ("thread", "start", "end"))
    return thread, start, end


def _are_inside(calls: tuple[Ints, Ints, Ints], thread: Ints, time: Ints) -> Flags:
    """Return whether each moment is inside its thread's calls; ``(m,)``."""
    return ~are_outside(calls_inside(calls[1], calls[2], calls[0], time, time, thread), len(time))


def replays_of(session: Session, report: Report, selection: Selection) -> tuple[Ints, Ints, Ints, Ints]:
    """Return thread and time of each node's capture, with count and time (ns) of its selected operations."""
    rows: list[tuple[int, ...]] = []
    for table in (tables.kernels, tables.memory_ops):
        keys, total = (table.c.process, table.c.graph_node_id), sa.cast(sa.func.sum(duration(table)), sa.BigInteger)
        is_replay = [table.c.report == report.index, table.c.graph_node_id.is_not(None), table.c.end.is_not(None)]
        on_gpu = where(table, Selection(devices=selection.devices, streams=selection.streams))
        rows += session.rows(sa.select(*keys, sa.func.count(), total).where(*is_replay, *on_gpu).group_by(*keys))
    process, node, count, time = np.array(rows, np.int64).reshape(-1, 4).T
    return (*Captures.of(session, report).at(process, node), count, time)


def capture_notes(session: Session) -> tuple[str, ...]:
    """Return why graphs' operations lack the range of their capture, and what to record."""
    reports = {report.index: report for report in session.reports if report.count(tables.nvtx_ranges)}
    total, counts, advice, replaying = 0, {UNRECORDED: 0, AMBIGUOUS: 0}, canonical.GRAPH_NODES.record, set()
    for columns in (tables.kernels.c, tables.memory_ops.c):
        query = sa.select(columns.report).where(of_reports(columns.report, reports), columns.graph_node_id.is_not(None))
        replaying |= {index for (index,) in session.rows(query.distinct())}
    for index in replaying:
        thread, _, count, _ = replays_of(session, reports[index], Selection())
        total += int(count.sum())
        counts = {reason: number + int(count[thread == reason].sum()) for reason, number in counts.items()}
    lost, unclear = counts.values()
    whole = [report for report in reports.values() if report.count(tables.graph_launches)]
    notes = {
        f"for the ranges in which CUDA graphs were captured, {option_advice(whole, _NODES)}": len(whole),
        f"{counted(lost, _OPERATION, 'have', total)} no recorded capture: {advice}": lost,
        f"{counted(unclear, _OPERATION, 'are', total)} not attributed: the capture is ambiguous": unclear,
    }
    return tuple(note for note, is_needed in notes.items() if is_needed)


_OPERATION = "CUDA graph operation"
_NODES = canonical.GRAPH_NODES.options
