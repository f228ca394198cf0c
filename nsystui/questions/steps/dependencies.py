"""What each operation of a GPU waited for, as far as an export tells (docs/path.md#dependencies).

An operation begins when its launching call has queued it and its *producer* has ended. The producer is the one that
ends last of

* the operation before it in its stream;
* for each ``cudaStreamWaitEvent`` on that stream between the launches of the two, the last operation launched into the
  stream of the matching ``cudaEventRecord`` before that record;
* between the legacy default stream of a context and its blocking streams, the last operation that was launched into the
  other one before.

Correlation ids order the calls of a process, whatever its threads. A handle of an event is used again and again: the
record that counts is the last one before the wait, or where both have an ``eventSyncId``, the one with the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Task, Window
from nsystui.exports.metadata import pid_of
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.conditions import is_launched_by
from nsystui.questions.queries.time_window import report_at
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
    context: Numbers
    stream: Numbers
    start: Times
    end: Times
    kind: Numbers
    correlation: Times
    called: Times
    returned: Times
    thread: Times
    inside_graph: Numbers
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
            sa.func.coalesce(columns.context, NONE).label("context"),
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
        return Operations(**dict.fromkeys((item.name for item in fields(Operations)), nothing))
    joined = {key: np.concatenate([one[key] for one in found]) for key in found[0]}
    order = np.lexsort((joined["end"], joined["start"]))
    work = {key: values[order] for key, values in joined.items()}
    called, returned, thread = _launches(session, task, work["correlation"])
    inside = work.pop("is_node").astype(bool)
    ids, firsts = np.unique(work["correlation"], return_index=True)
    earlier = _begun(session, task, window, work["correlation"][inside]) if window is not None and inside.any() else []
    inside[firsts[~np.isin(ids, earlier)]] = False
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


def _begun(session: Session, task: Task, window: Window, ids: Times) -> list[int]:
    """Find the graph launches among ``ids`` of which an operation ended before ``window``, and so was not read."""
    found = []
    for table in (tables.kernels, tables.memory_ops):
        columns = table.c
        query = sa.select(columns.correlation_id).where(
            columns.report == task.report,
            columns.process == task.process,
            columns.graph_node_id.is_not(None),
            columns.end <= window.start,
            columns.correlation_id.between(int(ids.min()), int(ids.max())),
        )
        found += [number for (number,) in session.rows(query.distinct())] if session.count(table) else []
    return found


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
    context, end = work["context"], work["end"]
    order = np.lexsort((np.arange(len(end)), work["stream"], context))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(context[order]) != 0) | (np.diff(work["stream"][order]) != 0)
    # One ascending number of (stream, greatest id so far): where a call stands among the operations of a stream.
    which = np.cumsum(is_first) - 1
    launched = np.maximum.accumulate((which << _SHIFT) + work["correlation"][order])
    streams = zip(context[order][is_first].tolist(), work["stream"][order][is_first].tolist(), strict=True)
    number: dict[tuple[int, int], int] = {place: at for at, place in enumerate(streams)}

    def last_before(stream: Times, correlation: Times) -> Times:
        """The last operation that was launched into each stream before each call, ``NONE`` where there is none."""
        place = np.searchsorted(launched, (stream << _SHIFT) + correlation, side="left") - 1
        is_there = (stream >= 0) & (place >= 0)
        is_there[is_there] &= which[place[is_there]] == stream[is_there]
        return np.where(is_there, order[np.maximum(place, 0)], NONE)

    waiters, sources = [order[1:][~is_first[1:]]], [order[:-1][~is_first[1:]]]
    waits, records = _events(session, task)
    record = _matching(waits, records)
    known = np.flatnonzero(record != NONE)
    waiting, recorded = (
        np.array([number.get(place, NONE) for place in zip(*(rows[key][at].tolist() for key in _STREAM), strict=True)])
        for rows, at in ((waits, known), (records, record[known]))
    )
    if len(known):
        after = np.searchsorted(launched, (waiting << _SHIFT) + waits["correlation"][known], side="right")
        is_there = (waiting != NONE) & (after < len(order))
        is_there[is_there] &= which[after[is_there]] == waiting[is_there]
        waiters.append(order[after[is_there]])
        sources.append(last_before(recorded, records["correlation"][record[known]])[is_there])
    for default, blocking in _default_streams(session, task, number):
        for stream, other in ((default, blocking), (blocking, default)):
            own = order[which == stream]
            waiters.append(own)
            sources.append(last_before(np.full(len(own), other), work["correlation"][own]))
    waiter, source = np.concatenate(waiters), np.concatenate(sources)
    waiter, source = waiter[source != NONE], source[source != NONE]
    latest = np.lexsort((end[source], waiter))
    producer = np.full(len(end), NONE, np.int64)
    # Of several values for one place the last stays.
    producer[waiter[latest]] = source[latest]
    return producer


_STREAM = ("context", "stream")


def _default_streams(session: Session, task: Task, number: Mapping[tuple[int, int], int]) -> Iterator[tuple[int, int]]:
    """The legacy default stream of each context and each blocking stream beside it, where both have operations."""
    pid, streams = pid_of(task.process), report_at(session, task.report).metadata.blocking_streams
    own = [one for one in streams if one.pid == pid and (one.context, one.stream) in number]
    for one, other in product(own, repeat=2):
        if one.is_default and not other.is_default and one.context == other.context:
            yield number[one.context, one.stream], number[other.context, other.stream]


def _events(session: Session, task: Task) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """The waits of streams for events, and the records of events, of a process; with stream and key."""
    found = []
    calls = tables.api_calls
    for table in (tables.syncs, tables.cuda_events):
        columns = table.c
        query = sa.select(
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
            names = (*_STREAM, "event", "event_sync", "correlation")
            found.append({name: np.zeros(0, np.int64) for name in names})
    return found[0], found[1]


def _matching(waits: dict[str, Numbers], records: dict[str, Numbers]) -> Times:
    """The place in ``records`` of what each wait waits for, ``NONE`` where it was not recorded before."""
    found = np.full(len(waits["correlation"]), NONE, np.int64)
    if not len(records["correlation"]):
        return found
    # An eventSyncId is of one record; a handle is of the last record of its event before the wait.
    for names in (("context", "event"), ("event_sync",)):
        own, known = (np.stack([rows[name].astype(np.int64) for name in names]) for rows in (waits, records))
        _, number = np.unique(np.concatenate([own, known], axis=1), axis=1, return_inverse=True)
        own, known = np.split(number.reshape(-1), [len(found)])
        keys = (known << _SHIFT) + records["correlation"]
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys[order], (own << _SHIFT) + waits["correlation"], side="left") - 1
        record = order[np.maximum(place, 0)]
        one, other = waits["event_sync"], records["event_sync"][record]
        is_same = (one == other) | (one == NONE) | (other == NONE)
        is_known = (place >= 0) & (known[record] == own) & (waits[names[-1]] != NONE) & is_same
        found = np.where(is_known, record, found)
    return found
