"""Idle time of GPUs inside replays of CUDA graphs, which the host cannot cause (docs/numbers.md#gaps)."""

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import counted
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import Intervals, intersect
from nsystui.questions.gpu.device_time import DeviceIntervals, merged
from nsystui.questions.queries.conditions import of_reports, where
from nsystui.questions.queries.derived import of_each_report
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session

TRACED = 5_000
"""The longest gap that tracing by node may make, ns: about 2 µs are usual (github.com/AMD-AGI/TraceLens/issues/728)."""
NODE_TRACING, HOST_NODE = "perhaps node tracing", "host function"
_KEYS = ("process", "device", "begin", "end")


def graph_gaps(session: Session, gpus: Sequence[DeviceIntervals]) -> dict[tuple[Task, int], Intervals]:
    """Return the idle time of each GPU inside replays, by task and device of each of its processes; job time.

    A gap is inside a replay if the graph launch of the operation that ends it had begun on the GPU before it. GPUs
    without such gaps are left out.
    """
    reports = {report.index: report for report in session.reports}
    used = [reports[index] for index in sorted({task.report for gpu in gpus for task in gpu.tasks})]
    arrays = of_each_report(session, used, "graph-gaps", _waits, table=canonical.KERNELS)
    gaps: dict[tuple[Task, int], Intervals] = {}
    for gpu in gpus:
        keys, waits = [device.key for device in gpu.devices], []
        for task, number in keys:
            process, device, *edges = (arrays[task.report][key] for key in _KEYS)
            is_on_gpu = (process == task.process) & (device == number)
            waits.append(np.stack(edges)[:, is_on_gpu] + reports[task.report].clock_offset)
        begin, end = (times := np.concatenate(waits, axis=1))[:, np.lexsort(times)]
        if len(end):
            idle = gpu.idle(Window(int(begin.min()), int(end[-1]) + 1))
            index = np.minimum(np.searchsorted(end, idle.ends), len(end) - 1)
            is_inside = end[index] == idle.ends
            # If streams are selected, the gap may have begun before the replay.
            inside = Intervals(np.maximum(idle.starts, begin[index])[is_inside], idle.ends[is_inside])
            gaps |= dict.fromkeys(keys, inside)
    return gaps


def host_functions(session: Session, tasks: Sequence[Task]) -> dict[Task, Intervals]:
    """Return when functions on the CPU ran that each task's streams wait for; job time."""
    places = [(task.report, task.process) for task in tasks]
    ran = merged(session, canonical.HOST_FUNCTIONS, ("report", "process"), places)
    offsets = {report.index: report.clock_offset for report in session.reports}
    return {task: ran[number, 0].shifted(offsets[task.report]) for number, task in enumerate(tasks)}


def unseen_host_functions(session: Session, selection: Selection) -> tuple[int, str]:
    """Return the number of selected calls that launch functions on the CPU without recorded times, and a note."""
    name = tables.api_calls.c.name
    silent = [report.index for report in session.reports if not report.count(tables.host_functions)]
    is_named = name.contains("LaunchHostFunc") | name.contains("StreamAddCallback")
    conditions = (*where(tables.api_calls, selection), of_reports(tables.api_calls.c.report, silent), is_named)
    query = sa.select(sa.func.count()).select_from(tables.api_calls).where(*conditions)
    number = int(session.scalar(query)) if silent and session.count(tables.api_calls) else 0
    words = f"{counted(number, 'function')} on the CPU that streams wait for (cudaLaunchHostFunc) ran at unknown times"
    return number, f"{words}: idle time may be theirs" if number else ""


def causes_in_graphs(gaps: Intervals, ran: Intervals) -> dict[str, Intervals]:
    """Return the parts of gaps inside graphs that node tracing may make, and in which host functions ``ran``."""
    is_short = gaps.lengths <= TRACED
    return {NODE_TRACING: gaps.chosen(is_short), HOST_NODE: intersect(gaps.chosen(~is_short), ran)}


def _waits(session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """Return when each launch's operations on a device pause, on the reports' clocks."""
    nodes, keys = [], ("report", "process", "device", "correlation_id", "start", "end")
    for table in (tables.kernels, tables.memory_ops):
        columns = table.c
        is_node = columns.graph_node_id.is_not(None), columns.correlation_id > 0, columns.end > columns.start
        is_of_reports = of_reports(columns.report, {report.index for report in reports})
        nodes.append(sa.select(*(columns[key] for key in keys)).where(is_of_reports, *is_node))
    node = sa.union_all(*nodes).subquery().c
    ended = sa.func.max(node.end).over(
        partition_by=[node[key] for key in keys[:4]], order_by=node.start, rows=(None, -1)
    )
    waits = sa.select(*(node[key] for key in keys[:3]), ended.label("begin"), node.start.label("end")).subquery()
    rows = session.arrays(sa.select(waits).where(waits.c.begin < waits.c.end))
    arrays = {key: np.ma.getdata(values) for key, values in rows.items()}
    return {item.index: {key: arrays[key][arrays["report"] == item.index] for key in _KEYS} for item in reports}
