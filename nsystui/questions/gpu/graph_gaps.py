"""Idle time of GPUs inside replays of CUDA graphs, which the host cannot cause (docs/numbers.md#gaps)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Task, Window
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.derived import of_each_report
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

TRACED = 5_000
"""The longest gap that tracing by node may make, ns: about 2 µs are usual (github.com/AMD-AGI/TraceLens/issues/728)."""
_KEYS = ("process", "device", "begin", "end")


def graph_gaps(session: Session, gpus: Iterable[DeviceIntervals]) -> dict[tuple[Task, int], Intervals]:
    """Return the idle time of each GPU inside replays, by task and device of each of its processes; job time.

    An idle gap is inside a replay if an operation ends it whose graph launch had begun on the GPU before the gap. GPUs
    without such gaps are left out.
    """
    reports = {report.index: report for report in session.reports}
    gpus = list(gpus)
    indices = sorted({task.report for gpu in gpus for task in gpu.tasks})
    arrays = of_each_report(
        session, [reports[index] for index in indices], "graph-gaps", _waits, table=canonical.KERNELS
    )
    gaps: dict[tuple[Task, int], Intervals] = {}
    for gpu in gpus:
        edges = []
        for task, device in places_of(gpu):
            process, ordinal, *times = (arrays[task.report][key] for key in _KEYS)
            is_here = (process == task.process) & (ordinal == device)
            edges.append(np.stack(times)[:, is_here] + reports[task.report].clock_offset)
        begin, end = np.concatenate(edges, axis=1)
        if not len(end):
            continue
        order = np.lexsort((begin, end))
        begin, end = begin[order], end[order]
        idle = gpu.idle(Window(int(begin.min()), int(end[-1]) + 1))
        index = np.minimum(np.searchsorted(end, idle.ends), len(end) - 1)
        is_inside = end[index] == idle.ends
        # If streams are selected, the gap may have begun before the replay.
        inside = Intervals(np.maximum(idle.starts, begin[index])[is_inside], idle.ends[is_inside])
        gaps |= dict.fromkeys(places_of(gpu), inside)
    return gaps


def places_of(gpu: DeviceIntervals) -> list[tuple[Task, int]]:
    """Return task and CUDA ordinal of a GPU in each of its processes."""
    return [(device.task.task, device.device) for device in gpu.devices]


def _waits(session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """Return when each launch's operations on a device pause, on the reports' clocks."""
    nodes, keys = [], ("report", "process", "device", "correlation_id", "start", "end")
    for table in (tables.kernels, tables.memory_ops):
        columns = table.c
        is_timed = columns.start.is_not(None), columns.end.is_not(None), columns.correlation_id > 0
        is_node = of_reports(columns.report, {report.index for report in reports}), columns.graph_node_id.is_not(None)
        if session.count(table):
            nodes.append(sa.select(*(columns[key] for key in keys)).where(*is_node, *is_timed))
    empty = {key: np.zeros(0, np.int64) for key in _KEYS}
    if not nodes:
        return {report.index: empty for report in reports}
    node = sa.union_all(*nodes).subquery().c
    ended = sa.func.max(node.end).over(
        partition_by=[node[key] for key in keys[:4]], order_by=node.start, rows=(None, -1)
    )
    waits = sa.select(*(node[key] for key in keys[:3]), ended.label("begin"), node.start.label("end")).subquery()
    rows = session.arrays(sa.select(waits).where(waits.c.begin < waits.c.end))
    return {
        report.index: {key: np.ma.getdata(rows[key])[rows["report"] == report.index] for key in _KEYS}
        for report in reports
    }
