"""What each operation of a GPU waited for, as far as an export tells (docs/path.md#dependencies).

An operation begins when its launching call has queued it and its *producer* has ended. The producer is the one that
ends last of

* the operation before it in its stream;
* for each ``cudaStreamWaitEvent`` on that stream between the launches of the two, the last operation launched into the
  stream of the matching ``cudaEventRecord`` before that record.

Correlation ids order the calls of a process, whatever its threads. A handle of an event is used again and again: the
record that counts is the last one before the wait, or where both have an ``eventSyncId``, the one with the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Task, Window
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.conditions import is_launched_by
from nsystui.store import tables
from nsystui.store.session import Session

Numbers = NDArray[Any]

COMPUTE, NCCL, COMMUNICATION, TO_DEVICE, TO_HOST, ON_DEVICE, OTHER_COPY, MEMSET = range(8)
"""Kinds of operations. Whole CUDA graphs are compute."""
_COPIES = {1: TO_DEVICE, 2: TO_HOST, 8: ON_DEVICE}

NONE = -1
_SHIFT = 34
"""Correlation ids have 32 bits: a stream and an id fit into one number."""


@dataclass(frozen=True, eq=False)
class Operations:
    """The m operations of a process on its GPUs by start; own clock, ns; shapes ``(m,)``.

    ``correlation``: the id of the launching call. ``called``, ``returned``: when that call began and ended; ``thread``:
    who made it; all ``NONE`` where the export has no such call. ``inside_graph``: whether another operation of the same
    launch began before. ``producer``: the place of the operation that it waited for, or ``NONE``. ``row``, ``table``
    (0 kernels, 1 memory operations, 2 graphs) say which row of the export it is.
    """

    device: Numbers
    stream: Numbers
    start: Times
    end: Times
    kind: Numbers
    correlation: Times
    called: Times
    returned: Times
    thread: Times
    inside_graph: NDArray[np.bool_]
    producer: Times
    row: Times
    table: Numbers

    def __len__(self) -> int:
        return len(self.start)


def operations_of(session: Session, task: Task, window: Window | None, communication: Collection[str]) -> Operations:
    """Read the operations of a process that run in ``window`` (own clock), and what each waited for.

    Those are read too that begin after the window until the first compute kernel does, for it ends the last gap.
    ``communication``: the names of kernels that communicate without NCCL.
    """
    found: list[dict[str, Numbers]] = []
    until = None if window is None else _until(session, task, window, communication)
    for number, table in enumerate((tables.kernels, tables.memory_ops, tables.graph_launches)):
        if not session.count(table):
            continue
        columns = table.c
        if table is tables.kernels:
            is_other = columns.name.in_(sorted(communication)) if communication else sa.false()
            kind: Any = sa.case((columns.is_nccl == 1, NCCL), (is_other, COMMUNICATION), else_=COMPUTE)
        elif table is tables.memory_ops:
            copies = sa.case(_COPIES, value=columns.copy_kind, else_=OTHER_COPY)
            kind = sa.case((columns.is_memset == 1, MEMSET), else_=copies)
        else:
            kind = sa.literal(COMPUTE)
        node = columns.graph_node_id if "graph_node_id" in columns else sa.literal(None)
        query = sa.select(
            columns.device,
            columns.stream,
            columns.start,
            columns.end,
            columns.row,
            sa.cast(kind, sa.SmallInteger).label("kind"),
            sa.func.coalesce(columns.correlation_id, NONE).label("correlation"),
            node.is_not(None).label("is_node"),
        ).where(
            columns.report == task.report,
            columns.process == task.process,
            columns.start.is_not(None),
            columns.end.is_not(None),
        )
        if window is not None:
            query = query.where(columns.end > window.start, columns.start <= until)
        arrays = {key: np.ma.getdata(values) for key, values in session.arrays(query).items()}
        found.append({**arrays, "table": np.full(len(arrays["start"]), number, np.int8)})
    if not found:
        nothing = np.zeros(0, np.int64)
        return Operations(*[nothing] * 9, nothing.astype(bool), *[nothing] * 3)
    joined = {key: np.concatenate([one[key] for one in found]) for key in found[0]}
    order = np.lexsort((joined["end"], joined["start"]))
    work = {key: values[order] for key, values in joined.items()}
    called, returned, thread = _launches(session, task, work["correlation"])
    inside = work.pop("is_node").astype(bool)
    _, firsts = np.unique(work["correlation"], return_index=True)
    inside[firsts] = False
    producer = _producers(session, task, work)
    return Operations(**work, called=called, returned=returned, thread=thread, inside_graph=inside, producer=producer)


def _until(session: Session, task: Task, window: Window, communication: Collection[str]) -> int:
    """When the first compute begins after ``window`` on each of the GPUs of a process: the last of these moments."""
    found: dict[int, int] = {}
    for table in (tables.kernels, tables.graph_launches):
        columns = table.c
        query = sa.select(columns.device, sa.func.min(columns.start)).where(
            columns.report == task.report, columns.process == task.process, columns.start >= window.end
        )
        if table is tables.kernels:
            query = query.where(columns.is_nccl == 0, columns.name.not_in(sorted(communication)))
        for device, first in session.rows(query.group_by(columns.device)) if session.count(table) else ():
            found[device] = min(found.get(device, first), first)
    return max([window.end, *found.values()])


def _launches(session: Session, task: Task, ids: Times) -> tuple[Times, Times, Times]:
    """When the launching call of each operation began and returned, and its thread; ``NONE`` where there is none."""
    calls, unknown = tables.api_calls, np.full(len(ids), NONE, np.int64)
    known = ids[ids != NONE]
    if not len(known) or not session.count(calls):
        return unknown, unknown, unknown
    query = sa.select(calls.c.correlation_id, calls.c.start, calls.c.end, calls.c.thread).where(
        calls.c.report == task.report,
        calls.c.process == task.process,
        calls.c.correlation_id.between(int(known.min()), int(known.max())),
        calls.c.end.is_not(None),
    )
    found = {key: np.ma.filled(values, NONE) for key, values in session.arrays(query).items()}
    order = np.argsort(found["correlation_id"], kind="stable")
    keys = found["correlation_id"][order]
    place = np.minimum(np.searchsorted(keys, ids), max(len(keys) - 1, 0))
    is_known = keys[place] == ids if len(keys) else np.zeros(len(ids), bool)
    values = (found[key][order] for key in ("start", "end", "thread"))
    called, returned, thread = (np.where(is_known, value[place], NONE) if len(keys) else unknown for value in values)
    return called, returned, thread


def _producers(session: Session, task: Task, work: dict[str, Numbers]) -> Times:
    """The place of the operation that each waited for, the last to end, or ``NONE``."""
    device, end = work["device"], work["end"]
    order = np.lexsort((np.arange(len(end)), work["stream"], device))
    is_same = np.zeros(len(order), bool)
    is_same[1:] = (np.diff(device[order]) == 0) & (np.diff(work["stream"][order]) == 0)
    producer = np.full(len(end), NONE, np.int64)
    producer[order[1:][is_same[1:]]] = order[:-1][is_same[1:]]
    waits, records = _events(session, task)
    if not len(waits["correlation"]) or not len(records["correlation"]):
        return producer
    # One ascending number of (stream, greatest id so far): where a call stands among the operations of a stream.
    streams = np.unique(np.stack([device, work["stream"]]), axis=1)
    number = {place: at for at, place in enumerate(map(tuple, streams.T.tolist()))}
    which = np.cumsum(~is_same) - 1
    base = which << _SHIFT
    launched = np.maximum.accumulate(base + work["correlation"][order])

    def key(rows: dict[str, Numbers], at: Numbers) -> Times:
        places = zip(rows["device"][at].tolist(), rows["stream"][at].tolist(), strict=True)
        own = np.array([number.get(place, NONE) for place in places], np.int64)
        return np.where(own == NONE, NONE, (own << _SHIFT) + rows["correlation"][at])

    record = _matching(waits, records)
    at = np.flatnonzero(record != NONE)
    waiting, recorded = key(waits, at), key(records, record[at])
    after = np.searchsorted(launched, waiting, side="right")
    before = np.searchsorted(launched, recorded, side="left") - 1
    is_real = (waiting != NONE) & (recorded != NONE) & (after < len(order)) & (before >= 0)
    is_real[is_real] &= which[after[is_real]] == waiting[is_real] >> _SHIFT
    is_real[is_real] &= which[before[is_real]] == recorded[is_real] >> _SHIFT
    waiter, source = order[after[is_real]], order[before[is_real]]
    latest = np.lexsort((end[source], waiter))
    waiter, source = waiter[latest], source[latest]
    is_last = np.append(np.diff(waiter) > 0, True)[: len(waiter)]
    waiter, source = waiter[is_last], source[is_last]
    earlier = producer[waiter]
    is_later = (earlier == NONE) | (end[source] > end[earlier])
    producer[waiter[is_later]] = source[is_later]
    return producer


def _events(session: Session, task: Task) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """The waits of streams for events, and the records of events, of a process; with device, stream and key."""
    found = []
    calls = tables.api_calls
    for table in (tables.syncs, tables.cuda_events):
        columns = table.c
        query = sa.select(
            columns.device,
            columns.stream,
            columns.context,
            columns.event,
            columns.event_sync,
            columns.correlation_id.label("correlation"),
        ).where(columns.report == task.report, columns.process == task.process, columns.correlation_id.is_not(None))
        if table is tables.syncs:
            # By the name of the call, for versions of nsys number the types of synchronisation differently.
            query = query.join_from(table, calls, is_launched_by(table, calls))
            query = query.where(calls.c.name.contains("StreamWaitEvent"))
        if session.count(table) and session.count(calls):
            found.append({key: np.ma.filled(values, NONE) for key, values in session.arrays(query).items()})
        else:
            names = ("device", "stream", "context", "event", "event_sync", "correlation")
            found.append({name: np.zeros(0, np.int64) for name in names})
    return found[0], found[1]


def _matching(waits: dict[str, Numbers], records: dict[str, Numbers]) -> Times:
    """The place in ``records`` of what each wait waits for, ``NONE`` where it was not recorded before."""
    found = np.full(len(waits["correlation"]), NONE, np.int64)
    # An eventSyncId is of one record; a handle is of the last record of its event before the wait.
    for names in (("context", "event"), ("event_sync",)):
        own, known = (np.stack([rows[name].astype(np.int64) for name in names]) for rows in (waits, records))
        _, number = np.unique(np.concatenate([own, known], axis=1), axis=1, return_inverse=True)
        own, known = np.split(number.reshape(-1), [len(found)])
        keys = (known << _SHIFT) + records["correlation"]
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys[order], (own << _SHIFT) + waits["correlation"], side="left") - 1
        record = order[np.maximum(place, 0)]
        is_known = (place >= 0) & (known[record] == own) & (waits[names[-1]] != NONE)
        found = np.where(is_known, record, found)
    return found
