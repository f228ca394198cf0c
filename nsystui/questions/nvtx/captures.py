"""The captures of CUDA graphs: by which thread, and when, a program made the nodes that graphs replay.

A replayed operation names a copy of a node. The original of the copy, possibly over several copies, was made in the
capture: docs/exports.md#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection
from nsystui.exports import canonical
from nsystui.questions.algebra.projection import are_outside, calls_inside
from nsystui.questions.events.kinds import KIND_TABLES
from nsystui.questions.events.listing import EventKey
from nsystui.questions.nvtx.loading import Flags, Ints
from nsystui.questions.queries.conditions import duration, of_reports, where
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.recording import option_advice, recording_advice
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

UNRECORDED, AMBIGUOUS = -1, -2
"""Instead of a thread: no record of the capture is in the export, or several originals or launches are possible."""


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

    def inside(self, thread: int, start: int, end: int) -> list[int]:
        """Return the nodes that a thread captured between two times."""
        nodes: list[int] = self.node[(self.thread == thread) & (self.time >= start) & (self.time <= end)].tolist()
        return nodes


def capture_of(session: Session, key: EventKey) -> tuple[int, int] | None:
    """Return thread (globalTid) and job time of the capture of a graph's operation; ``None`` for other events."""
    table = KIND_TABLES[key.kind].table
    if "graph_node_id" not in table.c:
        return None
    report = report_at(session, key.report)
    query = sa.select(table.c.process, table.c.graph_node_id).where(
        table.c.report == key.report,
        table.c.row == key.row,
        table.c.start == key.start - report.clock_offset,
        table.c.graph_node_id.is_not(None),
    )
    for process, node in session.part([key.report]).rows(query):
        (thread,), (time,) = Captures.of(session, report).at(np.array([process]), np.array([node]))
        return (int(thread), int(time) + report.clock_offset) if thread >= 0 else None
    return None


_NOTHING = np.zeros(0, np.int64)


def _captures(session: Session, reports: list[Report]) -> dict[int, Arrays]:
    return {report.index: vars(_resolved(session.part([report.index]), report)) for report in reports}


def _resolved(session: Session, report: Report) -> Captures:
    """Follow each node to its original, and find the original's capture."""
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
    used = np.unique(row[row >= 0])
    thread[used], time[used] = _at_launches(session, report, thread[used], time[used])
    threads = np.where(row >= 0, thread[row] if len(row) else row, row)
    times = np.where(threads >= 0, time[row] if len(row) else row, 0)
    return Captures(owners[keys // len(numbers)] if len(keys) else keys, numbers[keys % len(numbers)], threads, times)


def _at_launches(session: Session, report: Report, thread: Ints, time: Ints) -> tuple[Ints, Ints]:
    """Return thread and time of m originals, in their order, with the times of their launches where nsys was late.

    Some versions of nsys write the nodes of a capture after its end. Then the nodes belong to the launches in it, in
    their order, if there are as many; otherwise they are ambiguous.
    """
    threads = np.unique(thread).tolist()
    begun = _calls(session, report, threads, "BeginCapture")
    if not len(begun[0]):
        return thread, time
    ended, copying = (_calls(session, report, threads, name) for name in ("EndCapture", "Instantiate"))
    span = int(begun[1].min()), int(ended[1].max(initial=begun[1].min()))
    launches = _calls(session, report, threads, "Launch|Memcpy|Memset|GraphAdd", *span)
    # A copy of a node that is unknown as one.
    thread = np.where(_are_inside(copying, thread, time), UNRECORDED, thread)
    is_late = ~_are_inside(launches, thread, time)
    for number in np.unique(begun[0]).tolist():
        nodes = np.flatnonzero(thread == number)
        (begins, _), (ends, _), (starts, returns) = (
            [times[calls[0] == number] for times in calls[1:]] for calls in (begun, ended, launches)
        )
        starts = starts[returns > np.maximum.accumulate(np.append(0, returns))[:-1]]  # a driver's call inside another
        edges = np.append(np.searchsorted(time[nodes], begins), len(nodes)).tolist()
        for begin, until, first, last in zip(begins, np.append(begins[1:], _NEVER), edges, edges[1:], strict=False):
            end = min(ends[ends > begin].min(initial=_NEVER), until)
            captured, group = starts[(starts >= begin) & (starts < end)], nodes[first:last]
            if end == until or not is_late[group].all() or (time[group] < end).any():
                continue
            if len(captured) == len(group):
                time[group] = captured
            else:
                thread[group] = AMBIGUOUS
    return thread, time


_NEVER = np.iinfo(np.int64).max


def _calls(
    session: Session, report: Report, threads: Sequence[int], names: str, first: int = -_NEVER, last: int = _NEVER
) -> tuple[Ints, Ints, Ints]:
    """Read thread, start and end of the calls that match ``names`` and begin between two times, by start."""
    columns = tables.api_calls.c
    is_named = sa.func.regexp_matches(columns.name, names, type_=sa.Boolean)
    query = sa.select(columns.thread, columns.start, columns.end).where(
        columns.report == report.index, columns.thread.in_(threads), columns.start.between(first, last), is_named
    )
    arrays = session.arrays(query.order_by(columns.start, columns.end.desc())) if report.count(tables.api_calls) else {}
    thread, start, end = (np.ma.getdata(arrays.get(key, _NOTHING)) for key in ("thread", "start", "end"))
    return thread, start, end


def _are_inside(calls: tuple[Ints, Ints, Ints], thread: Ints, time: Ints) -> Flags:
    """Return whether each of m moments is inside a call of its thread; shape ``(m,)``."""
    return ~are_outside(calls_inside(calls[1], calls[2], calls[0], time, time, thread), len(time))


@dataclass(frozen=True, eq=False)
class Replays:
    """The replayed operations of a report, summed by node; own clock, ns; shapes ``(n,)``.

    ``count`` operations took ``total``. ``thread`` and ``time``: as in `Captures`.
    """

    thread: Ints
    time: Ints
    count: Ints
    total: Ints

    @classmethod
    def of(cls, session: Session, report: Report, selection: Selection) -> Replays:
        """Sum the operations on the devices and streams of ``selection``."""
        gpu_selection = Selection(devices=selection.devices, streams=selection.streams)
        parts: list[tuple[Any, ...]] = []
        for table in (tables.kernels, tables.memory_ops):
            columns = table.c
            is_replayed = [columns.report == report.index, columns.graph_node_id.is_not(None), columns.end.is_not(None)]
            query = sa.select(columns.process, columns.graph_node_id, sa.func.count(), _total(table))
            query = query.where(*is_replayed, *where(table, gpu_selection)).group_by(columns.process, columns[_NODE])
            parts += session.rows(query) if report.count(table) else []
        process, node, count, total = np.array(parts, np.int64).reshape(-1, 4).T
        return cls(*Captures.of(session, report).at(process, node), count, total)


_NODE = "graph_node_id"


def _total(table: sa.Table) -> sa.ColumnElement[int]:
    return sa.cast(sa.func.sum(duration(table)), sa.BigInteger)


def capture_notes(session: Session) -> tuple[str, ...]:
    """Return why replayed operations do not belong to the range in which they were captured, and what to record."""
    reports = [report for report in session.reports if report.count(tables.nvtx_ranges)]
    notes = []
    whole = [report for report in reports if report.count(tables.graph_launches)]
    if whole:
        advice = option_advice(whole, canonical.GRAPH_NODES.options)
        notes.append(f"CUDA graphs were traced whole: for the ranges in which their kernels were captured, {advice}")
    counts = {UNRECORDED: 0, AMBIGUOUS: 0}
    lacking, total, replaying = [], 0, set()
    for columns in (tables.kernels.c, tables.memory_ops.c):
        query = sa.select(columns.report).where(of_reports(columns.report, {report.index for report in reports}))
        replaying |= {report for (report,) in session.rows(query.where(columns[_NODE].is_not(None)).distinct())}
    for report in (report for report in reports if report.index in replaying):
        replays = Replays.of(session, report, Selection())
        total += int(replays.count.sum())
        for reason in counts:
            counts[reason] += int(replays.count[replays.thread == reason].sum())
        lacking += [report] if (replays.thread == UNRECORDED).any() else []
    if counts[UNRECORDED]:
        advice = recording_advice(session, lacking, canonical.GRAPH_NODES)
        of_all = f"{counts[UNRECORDED]:,} of {total:,} operations of CUDA graphs"
        notes.append(f"the capture of {of_all} is not in the export: {advice}")
    if counts[AMBIGUOUS]:
        notes.append(
            f"{counts[AMBIGUOUS]:,} of {total:,} operations of CUDA graphs are attributed to no range of a capture: "
            "the origin of their nodes is ambiguous"
        )
    return tuple(notes)
