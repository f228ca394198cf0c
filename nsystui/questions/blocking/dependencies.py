"""Recorded dependencies between a GPU's operations (docs/path.md#dependencies).

An operation begins when its launching call has queued it and its *producer* has ended. Correlation ids order a
process's calls across threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import counted
from nsystui.base.types import Array, Query
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.exports.metadata import pid_of
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.communication import is_nccl_copy
from nsystui.questions.queries.process_rows import ProcessRows
from nsystui.questions.queries.recording import recording_advice
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.session import Session

COMPUTE, NCCL, COMMUNICATION, TO_DEVICE, TO_HOST, ON_DEVICE, OTHER_COPY, MEMSET, MIGRATION, HOST_FUNCTION = range(10)
"""Kinds of operations. Whole CUDA graphs are compute."""
OPERATIONS = (
    *("compute", "NCCL", "other communication", "copy to the GPU", "copy to the host", "copy on the GPU"),
    *("other copy", "memset", "unified memory", "host function"),
)
COLOURS = ("compute", "nccl", "nccl", *["memory"] * 6, "cpu")
"""Name and colour of each kind."""
MIGRATIONS = (11, 12, 13)
"""Unified memory to the device, to the host, between devices (CUpti_ActivityMemcpyKind)."""
_COPIES = {1: TO_DEVICE, 2: TO_HOST, 8: ON_DEVICE, **dict.fromkeys(MIGRATIONS, MIGRATION)}

NONE = -1
_NODES = (tables.kernels, tables.memory_ops, tables.host_functions)
_TABLES = (tables.kernels, tables.memory_ops, tables.graph_launches, tables.host_functions)
_SHIFT = 34
"""Correlation ids have 32 bits: a stream number and an id fit into one integer."""
_FAR = 1 << 61


@dataclass(frozen=True, eq=False)
class Operations:
    """The m operations of a process on its GPUs by start; own clock, ns; shapes ``(m,)``.

    ``correlation``: the id of the launching call. ``called``, ``returned``, ``thread``: the call's begin, end and
    thread, ``NONE`` if it is not in the export. ``inside_graph``: whether an earlier operation has the same launch.
    ``producer``: the index of the operation that it waited for, or ``NONE``. ``unseen``: it may have waited for any
    operation launched before the call with this id; ``NONE`` if all waits are recorded. ``migration``: the last
    migration to end before it began, except during kernels of its GPU, which waited themselves; or ``NONE``.
    ``row``, ``table`` (0 kernels, 1 memory operations, 2 graphs, 3 host functions): its row in the export.
    """

    device: Array
    context: Array
    stream: Array
    start: Times
    end: Times
    kind: Array
    correlation: Times
    called: Times
    returned: Times
    thread: Times
    inside_graph: Array
    producer: Times
    unseen: Times
    migration: Times
    row: Times
    table: Array

    def __len__(self) -> int:
        return len(self.start)

    def last_ended(self, kinds: Array, indices: Times, unseen: Times, since: Times) -> Times:
        """Return the end of the last operation that may have held each of ``indices``, or ``since``, ns.

        It has one of ``kinds`` (bool), ended before the held operation began, and was launched before ``unseen``.
        """
        rows = np.flatnonzero(kinds)
        rows = rows[np.argsort(self.end[rows], kind="stable")]
        end = np.append(self.end[rows], np.iinfo(np.int64).min)
        launched = np.append(np.where(self.called == NONE, NONE, self.correlation)[rows], NONE)
        position = np.searchsorted(end[:-1], self.start[indices], side="right") - 1
        position[unseen == NONE] = NONE
        while (is_later := (launched[position] >= unseen) & (end[position] > since) & (position != NONE)).any():
            position[is_later] -= 1
        ended: Times = np.maximum(end[position], since)
        return ended


def operations_of(rows: ProcessRows, window: Window | None, communication: Collection[str]) -> Operations:
    """Read the operations of a process in ``window`` (own clock), and their dependencies.

    Operations after the window are also read, until the first compute kernel, which ends the last gap. Without
    ``window`` (shared rows), all are read. ``communication``: names of kernels that communicate without NCCL.
    """
    session, task = rows.session, rows.task
    parts: list[dict[str, Array]] = []
    until = None if window is None else _until(rows, window, communication)
    for index, table in enumerate(_TABLES):
        if not session.count(table):
            continue
        is_inside = () if window is None else (table.c.end > window.start, table.c.start <= until)
        columns = rows.arrays(table.name, partial(_work, session, table, communication), table, *is_inside)
        arrays = {key: np.ma.getdata(column) for key, column in columns.items()}
        parts.append({**arrays, "table": np.full(len(arrays["start"]), index, np.int8)})
    if not parts:
        nothing = np.zeros(0, np.int64)
        return Operations(**dict.fromkeys((column.name for column in fields(Operations)), nothing))
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    order = np.lexsort((joined["end"], joined["start"]))
    work = {key: column[order] for key, column in joined.items()}
    for key in ("context", "stream", "correlation"):  # undefined for migrations
        work[key][work["kind"] == MIGRATION] = NONE
    called, returned, thread = _launches(rows, work["correlation"])
    is_node = work.pop("is_node").astype(bool)
    ids, firsts = np.unique(work["correlation"], return_index=True)
    begun = _begun(session, task, window, work["correlation"][is_node]) if window is not None and is_node.any() else []
    is_node[firsts[~np.isin(ids, begun)]] = False
    producer, unseen = _producers(rows, work, window)
    launches = {"called": called, "returned": returned, "thread": thread, "inside_graph": is_node}
    return Operations(**work, **launches, producer=producer, unseen=unseen, migration=_migrations(work))


def _migrations(work: Mapping[str, Array]) -> Times:
    """Return `Operations.migration`."""
    migration = np.full(len(work["start"]), NONE, np.int64)
    for device in np.unique(work["device"][work["kind"] == MIGRATION]):
        rows = np.flatnonzero(work["device"] == device)
        kernels, moves = rows[work["table"][rows] != 1], rows[work["kind"][rows] == MIGRATION]
        moves = moves[np.argsort(work["end"][moves], kind="stable")]
        running = np.searchsorted(work["start"][kernels], work["end"][moves])
        reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(work["end"][kernels]))
        moves = np.append(moves[reach[running] <= work["end"][moves]], NONE)
        migration[rows] = moves[np.searchsorted(work["end"][moves[:-1]], work["start"][rows], side="right") - 1]
    return migration


def _work(session: Session, table: sa.Table, communication: Collection[str]) -> Query:
    columns = table.c
    if table is tables.kernels:
        is_other = columns.name.in_(sorted(communication)) if communication else sa.false()
        kind: Any = sa.case((columns.is_nccl == 1, NCCL), (is_other, COMMUNICATION), else_=COMPUTE)
    elif table is tables.memory_ops:
        copies = sa.case(_COPIES, value=columns.copy_kind, else_=OTHER_COPY)
        kind = sa.case((columns.is_memset == 1, MEMSET), (is_nccl_copy(session), NCCL), else_=copies)
    else:
        kind = sa.literal(COMPUTE if table is tables.graph_launches else HOST_FUNCTION)
    node = columns.graph_node_id if "graph_node_id" in columns else sa.literal(None)
    context = sa.func.coalesce(columns.context, NONE).label("context")
    correlation = sa.func.coalesce(columns.correlation_id, NONE).label("correlation")
    described = sa.cast(kind, sa.SmallInteger).label("kind"), correlation, node.is_not(None).label("is_node")
    query = sa.select(columns.device, context, columns.stream, columns.start, columns.end, columns.row, *described)
    return query.where(columns.start.is_not(None), columns.end.is_not(None))


def _until(rows: ProcessRows, window: Window, communication: Collection[str]) -> int:
    """Return the start of the first compute after ``window``, the latest over the process's GPUs."""
    task, compute = rows.task, [table for table in (tables.kernels, tables.graph_launches) if rows.session.count(table)]
    of_process = {table: (table.c.report == task.report, table.c.process == task.process) for table in compute}
    gpus = rows.once("GPUs", lambda: {
        device for table in compute
        for (device,) in rows.session.rows(sa.select(table.c.device).where(*of_process[table]).distinct())
    })  # fmt: skip
    first_by_device: dict[int, int] = {}
    # The next compute is near: reading all later rows for each slice takes quadratic time.
    for until in (2 * window.end - window.start, _FAR):
        for table in compute:
            columns = table.c
            query = sa.select(columns.device, sa.func.min(columns.start)).where(
                *of_process[table], columns.start.between(window.end, until)
            )
            if table is tables.kernels:
                query = query.where(columns.is_nccl == 0, columns.name.not_in(sorted(communication)))
            for device, first in rows.session.rows(query.group_by(columns.device)):
                first_by_device[device] = min(first_by_device.get(device, first), first)
        if first_by_device.keys() >= gpus:
            break
    return max([window.end, *first_by_device.values()])


def _begun(session: Session, task: Task, window: Window, ids: Times) -> list[int]:
    """Return the graph launches in ``ids`` with an operation that ended before ``window``, and so was not read."""
    launches = []
    for table in _NODES:
        columns = table.c
        query = sa.select(columns.correlation_id).where(columns.report == task.report, columns.process == task.process)
        query = query.where(columns.graph_node_id.is_not(None), columns.end <= window.start)
        query = query.where(columns.correlation_id.between(int(ids.min()), int(ids.max())))
        launches += [correlation for (correlation,) in session.rows(query.distinct())] if session.count(table) else []
    return launches


@dataclass
class _Launched:
    """The largest id of each stream's operations that ended by ``until``."""

    ids: dict[tuple[int, int], int] = field(default_factory=dict)
    until: int = -_FAR


def _launched_before(rows: ProcessRows, window: Window) -> dict[tuple[int, int], int]:
    """Return the largest id of each stream's operations that ended before ``window``."""
    launched = rows.once("launched", _Launched)
    if window.start < launched.until:
        launched.ids, launched.until = {}, -_FAR
    for table in filter(rows.session.count, _TABLES):
        columns = table.c
        stream_columns = sa.func.coalesce(columns.context, NONE), columns.stream
        query = sa.select(*stream_columns, sa.func.max(sa.func.coalesce(columns.correlation_id, NONE))).where(
            columns.report == rows.task.report, columns.process == rows.task.process,
            columns.end > launched.until, columns.end <= window.start,
        )  # fmt: skip
        for *stream, last in rows.session.rows(query.group_by(*stream_columns)):
            launched.ids[*stream] = max(launched.ids.get((*stream,), NONE), last)
    launched.until = window.start
    return launched.ids


def _launches(rows: ProcessRows, ids: Times) -> tuple[Times, Times, Times]:
    calls, unknown = tables.api_calls.c, np.full(len(ids), NONE, np.int64)
    known_ids = ids[ids != NONE]
    if not len(known_ids) or not rows.session.count(tables.api_calls):
        return unknown, unknown, unknown

    def query() -> Query:
        selected = sa.select(calls.correlation_id, calls.start, calls.end, calls.thread)
        return selected.where(calls.correlation_id.is_not(None), calls.end.is_not(None))

    is_near = () if rows.is_shared else (calls.correlation_id.between(int(known_ids.min()), int(known_ids.max())),)
    arrays = rows.arrays("launches", query, tables.api_calls, *is_near)
    columns = {key: np.ma.filled(column, NONE) for key, column in arrays.items()}
    index = _indices_of(columns["correlation_id"], ids)
    called, returned, thread = (np.append(columns[key], NONE)[index] for key in ("start", "end", "thread"))
    return called, returned, thread


def _indices_of(ids: Times, targets: Times) -> Times:
    if not len(ids):
        return np.full(len(targets), NONE, np.int64)
    order = np.argsort(ids, kind="stable")
    index = order[np.minimum(np.searchsorted(ids, targets, sorter=order), len(ids) - 1)]
    return np.where((ids[index] == targets) & (targets != NONE), index, NONE)


def _last_to_end(count: int, end: Times, waiters: Sequence[Times], sources: Sequence[Times]) -> Times:
    """Return for each waiter the source that ended last, or ``NONE``; shape (count,)."""
    waiter, source = np.concatenate(waiters), np.concatenate(sources)
    is_known = (waiter != NONE) & (source != NONE)
    waiter, source = waiter[is_known], source[is_known]
    by_end = np.argsort(end[source], kind="stable")
    producers = np.full(count, NONE, np.int64)
    # The last value of a repeated index is kept.
    producers[waiter[by_end]] = source[by_end]
    return producers


class _Streams:
    """Each stream's operations in order, located by correlation ids."""

    def __init__(self, context: Array, stream: Array, correlation: Times) -> None:
        self.order = np.lexsort((np.arange(len(stream)), stream, context))
        self.order = self.order[stream[self.order] != NONE]
        context, stream = context[self.order], stream[self.order]
        self.is_first = np.ones(len(stream), bool)
        self.is_first[1:] = (np.diff(context) != 0) | (np.diff(stream) != 0)
        # Ascending pairs of stream number and running maximum of ids, as integers.
        self.stream_numbers = np.cumsum(self.is_first) - 1
        self._launched = np.maximum.accumulate((self.stream_numbers << _SHIFT) + correlation[self.order])
        self.keys = [*zip(context[self.is_first].tolist(), stream[self.is_first].tolist(), strict=True)]
        codes = {key: code for code, key in enumerate(self.keys)}
        # A trace that lacks contexts of calls has a single context.
        self._number: dict[tuple[int, int], int] = {(NONE, stream): code for (_, stream), code in codes.items()} | codes

    def __len__(self) -> int:
        return int(self.is_first.sum())

    def number(self, context: int, stream: int) -> int:
        """Return a stream's number, or ``NONE`` if it has no operations."""
        return self._number.get((context, stream), NONE)

    def numbers(self, rows: Mapping[str, Array], indices: Array) -> Times:
        keys = zip(rows["context"][indices].tolist(), rows["stream"][indices].tolist(), strict=True)
        return np.array([self._number.get(key, NONE) for key in keys], np.int64)

    def last_before(self, stream: Times, correlation: Times) -> Times:
        """Return the last operation launched into each stream before each call, or ``NONE``."""
        position = np.searchsorted(self._launched, (stream << _SHIFT) + correlation, side="left") - 1
        return self._at(position, stream)

    def first_after(self, stream: Times, correlation: Times) -> Times:
        """Return the first operation launched into each stream after each call, or ``NONE``."""
        return self._at(np.searchsorted(self._launched, (stream << _SHIFT) + correlation, side="right"), stream)

    def _at(self, position: Array, stream: Times) -> Times:
        is_in_stream = (stream >= 0) & (position >= 0) & (position < len(self.order))
        is_in_stream[is_in_stream] &= self.stream_numbers[position[is_in_stream]] == stream[is_in_stream]
        operations = np.full(len(position), NONE, np.int64)
        operations[is_in_stream] = self.order[position[is_in_stream]]
        return operations


_Columns = dict[str, Array]


def _producers(rows: ProcessRows, work: _Columns, window: Window | None) -> tuple[Times, Times]:
    """Return `Operations.producer` and `Operations.unseen`."""
    streams, end = _Streams(work["context"], work["stream"], work["correlation"]), work["end"]
    waiters, sources = [streams.order[1:][~streams.is_first[1:]]], [streams.order[:-1][~streams.is_first[1:]]]
    events = rows.once("events", partial(_Events.of, rows))
    waits, records = events.waits, events.records
    matched = np.flatnonzero(events.of_record != NONE)
    waiters.append(streams.first_after(streams.numbers(waits, matched), waits["correlation"][matched]))
    record = events.of_record[matched]
    sources.append(streams.last_before(streams.numbers(records, record), records["correlation"][record]))
    metadata = report_at(rows.session, rows.task.report).metadata
    blocking_streams = metadata.blocking_streams_by_pid.get(pid_of(rows.task.process), ())
    numbered = [(stream, streams.number(stream.context, stream.stream)) for stream in blocking_streams]
    # A context's legacy default stream and its blocking streams wait for each other.
    for (stream, number), (other, other_number) in product((pair for pair in numbered if pair[1] != NONE), repeat=2):
        if stream.is_default != other.is_default and stream.context == other.context:
            waiting = streams.order[streams.stream_numbers == number]
            waiters.append(waiting)
            sources.append(streams.last_before(np.full(len(waiting), other_number), work["correlation"][waiting]))
    return _last_to_end(len(end), end, waiters, sources), _unseen(rows, work, streams, events, window)


def _unseen(rows: ProcessRows, work: _Columns, streams: _Streams, events: _Events, window: Window | None) -> Times:
    """Return `Operations.unseen`: the last unresolved call between an operation and its predecessor.

    A wait without a row may concern any stream. Without events and waits, no dependency between streams is recorded:
    any work launched before a kernel may have delayed it.
    """
    if not len(events.calls) and not report_at(rows.session, rows.task.report).count(tables.cuda_events):
        return work["correlation"]
    unseen = np.full(len(work["start"]), NONE, np.int64)
    ids = events.waits["correlation"]
    last_ids = _launched_before(rows, window) if window is not None and len(events.calls) + len(ids) else {}
    # Other calls hold no operation of the window.
    low = min((last_ids.get(key, NONE) for key in streams.keys), default=NONE)
    high = work["correlation"].max(initial=NONE)
    held, unmatched = (
        np.flatnonzero((calls > low) & (calls < high) & is_open)
        for calls, is_open in ((events.calls, True), (ids, events.of_record == NONE))
    )
    lost, wait = events.calls[held], ids[unmatched]
    lost = lost[_indices_of(ids, lost) == NONE]
    stream = np.append(np.full(len(lost), NONE), streams.numbers(events.waits, unmatched))
    calls, is_lost = np.append(lost, wait), np.arange(len(lost) + len(wait)) < len(lost)
    records = np.append(_before(events.recorded, lost), _before(events.lost, wait)) if len(events.recorded) else calls
    for number, key in enumerate(streams.keys):
        chosen = np.flatnonzero((is_lost | (stream == number)) & (calls > last_ids.get(key, NONE)))
        waiter = streams.first_after(np.full(len(chosen), number), calls[chosen])
        np.maximum.at(unseen, waiter[waiter != NONE], records[chosen[waiter != NONE]])
    return unseen


_EVENT_COLUMNS = ("context", "stream", "event", "event_sync", "correlation_id")


def _of_events(rows: ProcessRows, table: sa.Table) -> _Columns:
    columns = dict.fromkeys(_EVENT_COLUMNS, np.zeros(0, np.int64))
    query = sa.select(*(table.c[key] for key in _EVENT_COLUMNS)).where(table.c.correlation_id.is_not(None))
    if rows.session.count(table) and rows.session.count(tables.api_calls):
        arrays = rows.arrays(f"{table.name} by call", lambda: query, table)
        columns = {key: np.ma.filled(column, NONE).astype(np.int64) for key, column in arrays.items()}
    return {**columns, "correlation": columns["correlation_id"]}


def _matching(waits: _Columns, records: _Columns, lost: Times) -> Times:
    """Return the index in ``records`` of each wait's event, or ``NONE`` if it was not recorded before.

    A handle may belong to one of the calls ``lost`` instead, which recorded an event but have no row.
    """
    matches = np.full(len(waits["correlation"]), NONE, np.int64)
    if not len(records["correlation"]):
        return matches
    # An eventSyncId belongs to one record; a handle matches the last record of its event before the wait.
    for names in (("context", "event"), ("event_sync",)):
        wait_codes, record_codes = (np.stack([rows[name] for name in names]) for rows in (waits, records))
        _, codes = np.unique(np.concatenate([wait_codes, record_codes], axis=1), axis=1, return_inverse=True)
        wait_codes, record_codes = np.split(codes.reshape(-1), [len(matches)])
        keys = (record_codes << _SHIFT) + records["correlation"]
        order = np.argsort(keys, kind="stable")
        position = np.searchsorted(keys[order], (wait_codes << _SHIFT) + waits["correlation"], side="left") - 1
        record = order[np.maximum(position, 0)]
        wait_id, record_id = waits["event_sync"], records["event_sync"][record]
        losses = (np.searchsorted(lost, ids) for ids in (waits["correlation"], records["correlation"][record]))
        is_same = np.where((wait_id == NONE) | (record_id == NONE), np.equal(*losses), wait_id == record_id)
        is_match = (position >= 0) & (record_codes[record] == wait_codes) & (waits[names[-1]] != NONE) & is_same
        matches = np.where(is_match, record, matches)
    return matches


@dataclass(frozen=True, eq=False)
class _Events:
    """A process's synchronisations, by the names of their calls, and its events' records.

    nsys versions number the types of synchronisation differently. ``calls``, ``recorded``: ascending ids of calls that
    made a stream wait, and that recorded an event; calls without a row count only outside of graph captures by their
    thread. ``lost``: the ids in ``recorded`` without a row. ``of_record``: the index in ``records`` of each wait's
    event, or ``NONE``.
    """

    calls: Times
    recorded: Times
    lost: Times
    records: _Columns
    waits: _Columns
    of_record: Times
    by_stream: _Columns
    by_event: _Columns

    @classmethod
    def of(cls, rows: ProcessRows) -> _Events:
        columns = tables.api_calls.c
        kind = sa.case(*((columns.name.contains(name), number) for number, name in enumerate(_EVENT_CALLS)))
        query = sa.select(columns.correlation_id, columns.thread, kind.label("kind"))
        query = query.where(kind.is_not(None), columns.correlation_id.is_not(None))
        records, syncs = (_of_events(rows, table) for table in (tables.cuda_events, tables.syncs))
        ids = thread = kinds = np.zeros(0, np.int64)
        if rows.session.count(tables.api_calls):
            arrays = rows.arrays("calls for events", lambda: query, tables.api_calls)
            ids, thread, kinds = (np.ma.filled(arrays[key], NONE) for key in ("correlation_id", "thread", "kind"))
        is_executed = np.ones(len(ids), bool)
        for capturing in np.unique(thread[kinds == _BEGIN]):
            begun, ended = (np.sort(ids[(thread == capturing) & (kinds == edge)]) for edge in (_BEGIN, _END))
            is_executed &= (thread != capturing) | (np.searchsorted(begun, ids) <= np.searchsorted(ended, ids))
        is_of_kind = (_indices_of(ids[kinds == kind], syncs["correlation"]) != NONE for kind in range(_RECORD))
        waits, *by_stream_and_event = ({key: column[chosen] for key, column in syncs.items()} for chosen in is_of_kind)
        calls, recorded = (
            distinct(np.append(ids[is_executed & (kinds == kind)], rows_of_kind["correlation"]))
            for kind, rows_of_kind in ((0, waits), (_RECORD, records))
        )
        lost = recorded[_indices_of(records["correlation"], recorded) == NONE]
        return cls(calls, recorded, lost, records, waits, _matching(waits, records, lost), *by_stream_and_event)


def _before(ids: Times, calls: Times) -> Times:
    """Return the last of ascending ``ids`` before each call, or 0, which is before the capture."""
    return np.append(ids, 0)[np.searchsorted(ids, calls) - 1]


_EVENT_CALLS = ("StreamWaitEvent", "StreamSynchronize", "EventSynchronize", "EventRecord", "BeginCapture", "EndCapture")
_RECORD, _BEGIN, _END = range(3, len(_EVENT_CALLS))


def unresolved_waits(session: Session, tasks: Collection[Task]) -> list[str]:
    """Return a note on ``cudaStreamWaitEvent`` calls whose event record is missing in the export."""
    total, lost, has_no_events = 0, 0, False
    for rows in ProcessRows.each(session, tasks) if session.count(tables.api_calls) else ():
        events = _Events.of(rows)
        missing = len(events.calls) - int((events.of_record != NONE).sum())
        total, lost = total + len(events.calls), lost + missing
        report = report_at(session, rows.task.report)
        is_damaged = canonical.CUDA_EVENTS.name in report.damaged
        has_no_events |= missing > 0 and not is_damaged and not report.count(tables.cuda_events)
    if not lost:
        return []
    advice = f" ({recording_advice(session, session.reports, canonical.CUDA_EVENTS)})" if has_no_events else ""
    return [
        f"{counted(lost, 'wait', 'are', total)} unresolved ({format_value(Unit.PERCENT, 100 * lost / total)}): streams "
        f"waited for events that the export has no record of, so any work may have blocked them{advice}"
    ]


@dataclass(frozen=True, eq=False)
class CudaCalls:
    """The n CUDA calls of a process by start; own clock, ns; shapes ``(n,)``.

    ``name``: index in ``names``. ``operation``: the index of the last operation that the call waited for, or ``NONE``.
    """

    thread: Times
    start: Times
    end: Times
    name: Array
    names: tuple[str, ...]
    operation: Times


def host_calls_of(rows: ProcessRows, window: Window, work: Operations) -> CudaCalls:
    """Read a process's CUDA calls in ``window`` (own clock), and the operation that each waited for.

    ``cudaStreamSynchronize`` waits for operations launched into the stream before it, ``cudaEventSynchronize`` for
    operations before the event's record, ``cudaDeviceSynchronize`` for all operations. Copy and memset calls waited for
    their operation if they returned after its end.
    """
    columns = tables.api_calls.c
    if not rows.session.count(tables.api_calls):
        nothing = np.zeros(0, np.int64)
        return CudaCalls(nothing, nothing, nothing, nothing, (), nothing)

    def query() -> Query:
        call = sa.select(columns.thread, columns.start, columns.end, columns.correlation_id, columns.name)
        return call.where(columns.thread.is_not(None)).order_by(columns.start, columns.end.desc())

    arrays = rows.arrays("calls", query, tables.api_calls, columns.end > window.start, columns.start < window.end)
    thread, start, end, ids = (np.ma.filled(arrays[key], NONE).astype(np.int64) for key in _CALL_COLUMNS)
    names, name = np.unique(np.ma.filled(arrays["name"], "").astype(str), return_inverse=True)
    streams = _Streams(work.context, work.stream, work.correlation)
    copies = np.append(np.flatnonzero(work.table == 1), NONE)
    copy_of_call = copies[_indices_of(work.correlation[copies[:-1]], ids)]
    syncs = rows.once("events", partial(_Events.of, rows))
    waits, events, records = syncs.by_stream, syncs.by_event, syncs.records
    record = _matching(events, records, syncs.lost)
    matched = np.flatnonzero(record != NONE)
    at_stream = streams.numbers(waits, np.arange(len(waits["correlation"])))
    at_record = streams.numbers(records, record[matched])
    device_names = np.flatnonzero([("DeviceSynchronize" in text) or ("CtxSynchronize" in text) for text in names])
    device_calls = ids[np.isin(name, device_names) & (ids != NONE)]
    callers = [waits["correlation"], events["correlation"][matched], *[device_calls] * len(streams)]
    sources = [
        np.where(np.append(work.end, NONE)[copy_of_call] <= end, copy_of_call, NONE),
        streams.last_before(at_stream, waits["correlation"]),
        streams.last_before(at_record, records["correlation"][record[matched]]),
        *(streams.last_before(np.full(len(device_calls), number), device_calls) for number in range(len(streams))),
    ]
    waiters = [np.arange(len(ids)), _indices_of(ids, np.concatenate(callers))]
    operation = _last_to_end(len(ids), work.end, waiters, sources)
    return CudaCalls(thread, start, end, name.reshape(-1), tuple(names.tolist()), operation)


_CALL_COLUMNS = ("thread", "start", "end", "correlation_id")
