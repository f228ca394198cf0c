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

Where a wait or its record is not in the export, the producer may be another operation: `Operations.unseen`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Unit
from nsystui.base.selection import Task, Window
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.exports.metadata import pid_of
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.process_rows import ProcessRows
from nsystui.questions.queries.recording import recording_advice
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.session import Session

Numbers = NDArray[Any]

COMPUTE, NCCL, COMMUNICATION, TO_DEVICE, TO_HOST, ON_DEVICE, OTHER_COPY, MEMSET = range(8)
"""Kinds of operations. Whole CUDA graphs are compute."""
OPERATIONS = (
    *("compute", "NCCL", "other communication", "copy to the GPU", "copy to the host", "copy on the GPU"),
    *("other copy", "memset"),
)
COLOURS = ("compute", "nccl", "nccl", *["memory"] * 5)
"""The name and the colour of each kind."""
_COPIES = {1: TO_DEVICE, 2: TO_HOST, 8: ON_DEVICE}

NONE = -1
_SHIFT = 34
"""Correlation ids have 32 bits: a stream and an id fit into one number."""


@dataclass(frozen=True, eq=False)
class Operations:
    """The m operations of a process on its GPUs by start; own clock, ns; shapes ``(m,)``.

    ``correlation``: the id of the launching call. ``called``, ``returned``: when that call began and ended; ``thread``:
    who made it; all ``NONE`` where the export has no such call. ``inside_graph``: whether another operation of the same
    launch began before. ``producer``: the place of the operation that it waited for, or ``NONE``. ``unseen``: it may
    also have waited for any operation launched before the call with this id; ``NONE`` if all its waits are recorded.
    ``row``, ``table`` (0 kernels, 1 memory operations, 2 graphs) say which row of the export it is.
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
    unseen: Times
    row: Times
    table: Numbers

    def __len__(self) -> int:
        return len(self.start)

    def last_ended(self, kinds: Numbers, at: Times, unseen: Times, since: Times) -> Times:
        """Return when the last operation that may have held those at the places ``at`` ended, or ``since``, ns.

        It is one of ``kinds`` (bool), ended before they began, and was launched before the calls ``unseen``.
        """
        rows = np.flatnonzero(kinds)
        rows = rows[np.argsort(self.end[rows], kind="stable")]
        end = np.append(self.end[rows], np.iinfo(np.int64).min)
        launched = np.append(np.where(self.called == NONE, NONE, self.correlation)[rows], NONE)
        place = np.searchsorted(end[:-1], self.start[at], side="right") - 1
        place[unseen == NONE] = NONE
        while (is_later := (launched[place] >= unseen) & (end[place] > since) & (place != NONE)).any():
            place[is_later] -= 1
        ended: Times = np.maximum(end[place], since)
        return ended


def operations_of(rows: ProcessRows, window: Window | None, communication: Collection[str]) -> Operations:
    """Read the operations of a process that run in ``window`` (own clock), and what each waited for.

    Those are read too that begin after the window until the first compute kernel does, for it ends the last gap.
    Without a ``window`` all are read; shared rows have none. ``communication``: the names of kernels that communicate
    without NCCL.
    """
    session, task = rows.session, rows.task
    found: list[dict[str, Numbers]] = []
    until = None if window is None else _until(session, task, window, communication)
    for number, table in enumerate((tables.kernels, tables.memory_ops, tables.graph_launches)):
        if not session.count(table):
            continue
        is_inside = () if window is None else (table.c.end > window.start, table.c.start <= until)
        read = rows.arrays(table.name, partial(_work, table, communication), table, *is_inside)
        arrays = {key: np.ma.getdata(values) for key, values in read.items()}
        found.append({**arrays, "table": np.full(len(arrays["start"]), number, np.int8)})
    if not found:
        nothing = np.zeros(0, np.int64)
        return Operations(**dict.fromkeys((item.name for item in fields(Operations)), nothing))
    joined = {key: np.concatenate([one[key] for one in found]) for key in found[0]}
    order = np.lexsort((joined["end"], joined["start"]))
    work = {key: values[order] for key, values in joined.items()}
    called, returned, thread = _launches(rows, work["correlation"])
    inside = work.pop("is_node").astype(bool)
    ids, firsts = np.unique(work["correlation"], return_index=True)
    earlier = _begun(session, task, window, work["correlation"][inside]) if window is not None and inside.any() else []
    inside[firsts[~np.isin(ids, earlier)]] = False
    producer, unseen = _producers(rows, work, window)
    launches = {"called": called, "returned": returned, "thread": thread, "inside_graph": inside}
    return Operations(**work, **launches, producer=producer, unseen=unseen)


def _work(table: sa.Table, communication: Collection[str]) -> sa.Select[Any]:
    """Select the operations of a table of GPU work, in the columns of `Operations`."""
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
    return sa.select(
        columns.device,
        sa.func.coalesce(columns.context, NONE).label("context"),
        columns.stream,
        columns.start,
        columns.end,
        columns.row,
        sa.cast(kind, sa.SmallInteger).label("kind"),
        sa.func.coalesce(columns.correlation_id, NONE).label("correlation"),
        node.is_not(None).label("is_node"),
    ).where(columns.start.is_not(None), columns.end.is_not(None))


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


def _launched_before(rows: ProcessRows, window: Window) -> dict[tuple[int, int], int]:
    """The greatest id of the operations of each stream (context, stream) that ended before ``window``."""
    found: dict[tuple[int, int], int] = {}
    for table in (tables.kernels, tables.memory_ops, tables.graph_launches):
        columns = table.c
        place = sa.func.coalesce(columns.context, NONE), columns.stream
        query = sa.select(*place, sa.func.max(sa.func.coalesce(columns.correlation_id, NONE))).where(
            columns.report == rows.task.report, columns.process == rows.task.process, columns.end <= window.start
        )
        for *stream, last in rows.session.rows(query.group_by(*place)) if rows.session.count(table) else ():
            found[*stream] = max(found.get((*stream,), NONE), last)
    return found


def _launches(rows: ProcessRows, ids: Times) -> tuple[Times, Times, Times]:
    """When the launching call of each operation began and returned, and its thread; ``NONE`` where there is none."""
    calls, unknown = tables.api_calls.c, np.full(len(ids), NONE, np.int64)
    known = ids[ids != NONE]
    if not len(known) or not rows.session.count(tables.api_calls):
        return unknown, unknown, unknown

    def query() -> sa.Select[Any]:
        columns = sa.select(calls.correlation_id, calls.start, calls.end, calls.thread)
        return columns.where(calls.correlation_id.is_not(None), calls.end.is_not(None))

    is_near = () if rows.is_shared else (calls.correlation_id.between(int(known.min()), int(known.max())),)
    read = rows.arrays("launches", query, tables.api_calls, *is_near)
    found = {key: np.ma.filled(values, NONE) for key, values in read.items()}
    place = _places(found["correlation_id"], ids)
    called, returned, thread = (np.append(found[key], NONE)[place] for key in ("start", "end", "thread"))
    return called, returned, thread


def _places(ids: Times, wanted: Times) -> Times:
    """The place of each of ``wanted`` in ``ids``, ``NONE`` where it is not there."""
    if not len(ids):
        return np.full(len(wanted), NONE, np.int64)
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where((ids[place] == wanted) & (wanted != NONE), place, NONE)


def _last_to_end(count: int, end: Times, waiters: Sequence[Times], sources: Sequence[Times]) -> Times:
    """What each of ``count`` waiters waited for: of its sources the one that ended last, or ``NONE``."""
    waiter, source = np.concatenate(waiters), np.concatenate(sources)
    is_known = (waiter != NONE) & (source != NONE)
    waiter, source = waiter[is_known], source[is_known]
    latest = np.argsort(end[source], kind="stable")
    found = np.full(count, NONE, np.int64)
    # Of several values for one place the last stays.
    found[waiter[latest]] = source[latest]
    return found


class _Streams:
    """The operations of each stream in order, to be found by the correlation ids of calls."""

    def __init__(self, context: Numbers, stream: Numbers, correlation: Times) -> None:
        self.order = np.lexsort((np.arange(len(stream)), stream, context))
        context, stream = context[self.order], stream[self.order]
        self.is_first = np.ones(len(stream), bool)
        self.is_first[1:] = (np.diff(context) != 0) | (np.diff(stream) != 0)
        # One ascending number of (stream, greatest id so far): where a call stands among the operations of a stream.
        self.which = np.cumsum(self.is_first) - 1
        self._launched = np.maximum.accumulate((self.which << _SHIFT) + correlation[self.order])
        self.places = [*zip(context[self.is_first].tolist(), stream[self.is_first].tolist(), strict=True)]
        numbers = {place: at for at, place in enumerate(self.places)}
        # A trace that does not say the context of a call has one.
        self._number: dict[tuple[int, int], int] = {(NONE, stream): at for (_, stream), at in numbers.items()} | numbers

    def __len__(self) -> int:
        return int(self.is_first.sum())

    def number(self, context: int, stream: int) -> int:
        """The number of a stream here, ``NONE`` where it has no operations."""
        return self._number.get((context, stream), NONE)

    def numbers(self, rows: Mapping[str, Numbers], at: Numbers) -> Times:
        """The numbers of the streams of some rows."""
        places = zip(rows["context"][at].tolist(), rows["stream"][at].tolist(), strict=True)
        return np.array([self._number.get(place, NONE) for place in places], np.int64)

    def last_before(self, stream: Times, correlation: Times) -> Times:
        """The last operation that was launched into each stream before each call, ``NONE`` where there is none."""
        place = np.searchsorted(self._launched, (stream << _SHIFT) + correlation, side="left") - 1
        return self._at(place, stream)

    def first_after(self, stream: Times, correlation: Times) -> Times:
        """The first operation that was launched into each stream after each call, ``NONE`` where there is none."""
        return self._at(np.searchsorted(self._launched, (stream << _SHIFT) + correlation, side="right"), stream)

    def _at(self, place: Numbers, stream: Times) -> Times:
        is_there = (stream >= 0) & (place >= 0) & (place < len(self.order))
        is_there[is_there] &= self.which[place[is_there]] == stream[is_there]
        found = np.full(len(place), NONE, np.int64)
        found[is_there] = self.order[place[is_there]]
        return found


def _producers(rows: ProcessRows, work: dict[str, Numbers], window: Window | None) -> tuple[Times, Times]:
    """Find `Operations.producer`, of several producers the last to end, and `Operations.unseen`."""
    streams, end = _Streams(work["context"], work["stream"], work["correlation"]), work["end"]
    waiters, sources = [streams.order[1:][~streams.is_first[1:]]], [streams.order[:-1][~streams.is_first[1:]]]
    events = _Events.of(rows)
    waits, records = events.waits, events.records
    known = np.flatnonzero(events.of_record != NONE)
    waiters.append(streams.first_after(streams.numbers(waits, known), waits["correlation"][known]))
    record = events.of_record[known]
    sources.append(streams.last_before(streams.numbers(records, record), records["correlation"][record]))
    metadata = report_at(rows.session, rows.task.report).metadata
    told = metadata.blocking_streams_by_pid.get(pid_of(rows.task.process), ())
    numbers = [(one, streams.number(one.context, one.stream)) for one in told]
    # The legacy default stream of a context and each blocking stream beside it wait for each other.
    for (one, stream), (two, other) in product((pair for pair in numbers if pair[1] != NONE), repeat=2):
        if one.is_default != two.is_default and one.context == two.context:
            own = streams.order[streams.which == stream]
            waiters.append(own)
            sources.append(streams.last_before(np.full(len(own), other), work["correlation"][own]))
    return _last_to_end(len(end), end, waiters, sources), _unseen(rows, work, streams, events, window)


def _unseen(
    rows: ProcessRows, work: dict[str, Numbers], streams: _Streams, events: _Events, window: Window | None
) -> Times:
    """Find `Operations.unseen`: the last call that is in question, between an operation and the one before it.

    A wait without a row may be of any stream. An export without any event and any wait has recorded no dependency
    between streams: all work that was launched before a kernel may then have held it.
    """
    if not len(events.calls) and not report_at(rows.session, rows.task.report).count(tables.cuda_events):
        return work["correlation"]
    found = np.full(len(work["start"]), NONE, np.int64)
    lost, at = np.setdiff1d(events.calls, events.waits["correlation"]), np.flatnonzero(events.of_record == NONE)
    stream, wait = streams.numbers(events.waits, at), events.waits["correlation"][at]
    earlier = {} if window is None or not len(lost) + len(at) else _launched_before(rows, window)
    for number, place in enumerate(streams.places):
        calls = np.union1d(lost, wait[stream == number])
        calls = calls[calls > earlier.get(place, NONE)]
        waiter = streams.first_after(np.full(len(calls), number), calls)
        records = np.where(np.isin(calls, lost), _before(events.recorded, calls), _before(events.lost, calls))
        np.maximum.at(found, waiter[waiter != NONE], records[waiter != NONE])
    return found


_KEYS = ("context", "stream", "event", "event_sync", "correlation_id")


def _of_events(rows: ProcessRows, table: sa.Table) -> dict[str, Numbers]:
    """The rows of ``table`` of a process that have a call, with stream and event."""
    found = dict.fromkeys(_KEYS, np.zeros(0, np.int64))
    query = sa.select(*(table.c[key] for key in _KEYS)).where(table.c.correlation_id.is_not(None))
    if rows.session.count(table) and rows.session.count(tables.api_calls):
        read = rows.arrays(f"{table.name} by call", lambda: query, table)
        found = {key: np.ma.filled(values, NONE).astype(np.int64) for key, values in read.items()}
    return {**found, "correlation": found["correlation_id"]}


def _matching(waits: dict[str, Numbers], records: dict[str, Numbers], lost: Times) -> Times:
    """Find the index in ``records`` of the event of each wait, ``NONE`` if it was not recorded before.

    A handle may mean one of the calls ``lost`` instead, which recorded an event but have no row.
    """
    found = np.full(len(waits["correlation"]), NONE, np.int64)
    if not len(records["correlation"]):
        return found
    # An eventSyncId is of one record; a handle is of the last record of its event before the wait.
    for names in (("context", "event"), ("event_sync",)):
        own, known = (np.stack([rows[name] for name in names]) for rows in (waits, records))
        _, number = np.unique(np.concatenate([own, known], axis=1), axis=1, return_inverse=True)
        own, known = np.split(number.reshape(-1), [len(found)])
        keys = (known << _SHIFT) + records["correlation"]
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys[order], (own << _SHIFT) + waits["correlation"], side="left") - 1
        record = order[np.maximum(place, 0)]
        one, other = waits["event_sync"], records["event_sync"][record]
        losses = (np.searchsorted(lost, ids) for ids in (waits["correlation"], records["correlation"][record]))
        is_same = np.where((one == NONE) | (other == NONE), np.equal(*losses), one == other)
        is_known = (place >= 0) & (known[record] == own) & (waits[names[-1]] != NONE) & is_same
        found = np.where(is_known, record, found)
    return found


@dataclass(frozen=True, eq=False)
class _Events:
    """The synchronisations of a process, by the names of their calls, and the records of its events.

    Versions of nsys number the types of synchronisation differently. ``calls``, ``recorded``: the ids, ascending, of
    the calls that made a stream wait, and that recorded an event; those without a row count only if their thread does
    not capture a CUDA graph. ``lost``: the ids of ``recorded`` without a row. ``of_record``: the index in ``records``
    of the event of each of ``waits``, or ``NONE``.
    """

    calls: Times
    recorded: Times
    lost: Times
    records: dict[str, Numbers]
    waits: dict[str, Numbers]
    of_record: Times
    by_stream: dict[str, Numbers]
    by_event: dict[str, Numbers]

    @classmethod
    def of(cls, rows: ProcessRows) -> _Events:
        """Read the rows and calls of a process."""
        columns = tables.api_calls.c
        kind = sa.case(*((columns.name.contains(name), number) for number, name in enumerate(_EVENT_CALLS)))
        query = sa.select(columns.correlation_id, columns.thread, kind.label("kind"))
        query = query.where(kind.is_not(None), columns.correlation_id.is_not(None))
        records, syncs = (_of_events(rows, table) for table in (tables.cuda_events, tables.syncs))
        ids = thread = number = np.zeros(0, np.int64)
        if rows.session.count(tables.api_calls):
            read = rows.arrays("calls for events", lambda: query, tables.api_calls)
            ids, thread, number = (np.ma.filled(read[key], NONE) for key in ("correlation_id", "thread", "kind"))
        is_real = np.ones(len(ids), bool)
        for one in np.unique(thread[number == _BEGIN]):
            begun, ended = (np.sort(ids[(thread == one) & (number == edge)]) for edge in (_BEGIN, _END))
            is_real &= (thread != one) | (np.searchsorted(begun, ids) <= np.searchsorted(ended, ids))
        waits, *others = (
            {key: values[np.isin(syncs["correlation"], ids[number == kind])] for key, values in syncs.items()}
            for kind in range(_RECORD)
        )
        calls, recorded = (
            np.union1d(ids[is_real & (number == kind)], found["correlation"])
            for kind, found in ((0, waits), (_RECORD, records))
        )
        lost = np.setdiff1d(recorded, records["correlation"])
        return cls(calls, recorded, lost, records, waits, _matching(waits, records, lost), *others)


def _before(ids: Times, calls: Times) -> Times:
    """Return the last of some ascending ids before each call; 0, which is before the capture, if none is."""
    return np.append(ids, 0)[np.searchsorted(ids, calls) - 1]


_EVENT_CALLS = ("StreamWaitEvent", "StreamSynchronize", "EventSynchronize", "EventRecord", "BeginCapture", "EndCapture")
_RECORD, _BEGIN, _END = range(3, len(_EVENT_CALLS))


def unresolved_waits(session: Session, tasks: Collection[Task]) -> list[str]:
    """Say of how many ``cudaStreamWaitEvent`` calls of some processes no record of the event is in the export."""
    whole, lost, is_lacking = 0, 0, False
    for rows in ProcessRows.each(session, tasks) if session.count(tables.api_calls) else ():
        events = _Events.of(rows)
        count = len(events.calls) - int((events.of_record != NONE).sum())
        whole, lost = whole + len(events.calls), lost + count
        is_lacking |= count > 0 and not report_at(session, rows.task.report).count(tables.cuda_events)
    if not lost:
        return []
    how = f" ({recording_advice(session, session.reports, canonical.CUDA_EVENTS)})" if is_lacking else ""
    return [
        f"{lost:,} of {whole:,} waits of streams for events ({format_value(Unit.PERCENT, 100 * lost / whole)}) are "
        f"unresolved, as no record of the event is in the export: what they held may be blocked by any work{how}"
    ]


@dataclass(frozen=True, eq=False)
class CudaCalls:
    """The n CUDA calls of a process by start; own clock, ns; shapes ``(n,)``.

    ``name``: places in ``names``. ``operation``: the place of the operation that the thread waited for in the call, the
    last one of those, or ``NONE``.
    """

    thread: Times
    start: Times
    end: Times
    name: Numbers
    names: tuple[str, ...]
    operation: Times


def host_calls_of(rows: ProcessRows, window: Window, work: Operations) -> CudaCalls:
    """Read the CUDA calls of a process in ``window`` (own clock), and for which of its operations each waited.

    ``cudaStreamSynchronize`` waits for what was launched into the stream before it, ``cudaEventSynchronize`` for what
    was before the record of the event, ``cudaDeviceSynchronize`` for everything; a call that copies or sets memory
    waited for its own operation if it returned after that.
    """
    columns = tables.api_calls.c
    if not rows.session.count(tables.api_calls):
        nothing = np.zeros(0, np.int64)
        return CudaCalls(nothing, nothing, nothing, nothing, (), nothing)
    is_inside = columns.end > window.start, columns.start < window.end

    def query() -> sa.Select[Any]:
        call = sa.select(columns.thread, columns.start, columns.end, columns.correlation_id, columns.name)
        return call.where(columns.thread.is_not(None)).order_by(columns.start, columns.end.desc())

    found = rows.arrays("calls", query, tables.api_calls, *is_inside)
    thread, start, end, ids = (np.ma.filled(found[key], NONE).astype(np.int64) for key in _CALL)
    names, name = np.unique(np.ma.filled(found["name"], "").astype(str), return_inverse=True)
    streams = _Streams(work.context, work.stream, work.correlation)
    copies = np.append(np.flatnonzero(work.table == 1), NONE)
    own = copies[_places(work.correlation[copies[:-1]], ids)]
    read = _Events.of(rows)
    waits, events, records = read.by_stream, read.by_event, read.records
    record = _matching(events, records, read.lost)
    known = np.flatnonzero(record != NONE)
    at_stream = streams.numbers(waits, np.arange(len(waits["correlation"])))
    at_record = streams.numbers(records, record[known])
    whole = np.flatnonzero([("DeviceSynchronize" in one) or ("CtxSynchronize" in one) for one in names])
    every = ids[np.isin(name, whole) & (ids != NONE)]
    callers = [waits["correlation"], events["correlation"][known], *[every] * len(streams)]
    sources = [
        np.where(np.append(work.end, NONE)[own] <= end, own, NONE),
        streams.last_before(at_stream, waits["correlation"]),
        streams.last_before(at_record, records["correlation"][record[known]]),
        *(streams.last_before(np.full(len(every), number), every) for number in range(len(streams))),
    ]
    waiters = [np.arange(len(ids)), _places(ids, np.concatenate(callers))]
    operation = _last_to_end(len(ids), work.end, waiters, sources)
    return CudaCalls(thread, start, end, name.reshape(-1), tuple(names.tolist()), operation)


_CALL = ("thread", "start", "end", "correlation_id")
