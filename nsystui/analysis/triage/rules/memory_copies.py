"""Synchronous and pageable copies, and synchronous memsets.

As nsys's rules ``cuda_memcpy_sync``, ``cuda_memcpy_async`` and ``cuda_memset_sync`` choose them (domain §4.3), but a
call belongs to an operation by (report, process, correlation id).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.analysis.answer import Column, Row, Unit
from nsystui.analysis.intervals import union
from nsystui.analysis.rows import answer_of
from nsystui.analysis.selection import Task
from nsystui.analysis.triage.case import Case, number_of, time_words
from nsystui.analysis.triage.finding import Advice, Finding, NotChecked, Severity, Shown
from nsystui.analysis.where import job_start, where
from nsystui.store import tables

_HOST_TO_DEVICE = 1
_STAGED = 64_000
"""A host-to-device copy of so many bytes or fewer returns before it is done, although its call is synchronous."""
_COLUMNS = (
    Column("rank", "Rank", "rank", Unit.NUMBER, None, 0),
    Column("operation", "Operation", "operation", Unit.TEXT, None, 0),
    Column("call", "Call", "call", Unit.TEXT, None, 0),
    Column("count", "Count", "count", Unit.COUNT, None, 0),
    Column("bytes", "Bytes", "bytes", Unit.BYTES, None, 1),
    Column("total", "Total Time (ns)", "total", Unit.DURATION, None, 0),
)


@dataclass(frozen=True)
class _Kind:
    name: str
    what: str
    advice: Advice


_SYNC_COPY = _Kind(
    "synchronous-copies",
    "memory copies by synchronous calls (cudaMemcpy)",
    Advice(
        "use cudaMemcpyAsync with pinned memory, on a stream of its own", "cudaMemcpy blocks the CPU until it is done"
    ),
)
_PAGEABLE = _Kind(
    "pageable-copies",
    "asynchronous copies from or to pageable memory",
    Advice(
        "pin the host memory (cudaHostAlloc; pin_memory=True in PyTorch's DataLoader)",
        "from pageable memory CUDA stages every copy: it is slower, and the call behaves as a synchronous one",
    ),
)
_SYNC_MEMSET = _Kind(
    "synchronous-memsets",
    "synchronous memsets of pinned or managed memory",
    Advice("use cudaMemsetAsync", "cudaMemset on such memory blocks the CPU until it is done"),
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    session = case.job.session
    if not session.count(tables.memory_ops) or not session.count(tables.api_calls):
        return [NotChecked("memory-copies", "needs memory operations and CUDA API calls: `nsys profile -t cuda`")]
    found = [_checked(case, kind) for kind in (_SYNC_COPY, _PAGEABLE, _SYNC_MEMSET)]
    return [one for one in found if one is not None]


def _conditions(kind: _Kind) -> list[sa.ColumnElement[bool]]:
    """Which operations, and by which calls."""
    memory, name = tables.memory_ops.c, tables.api_calls.c.name
    is_async = sa.func.contains(sa.func.lower(name), "async", type_=sa.Boolean)
    is_set = sa.cast(memory.is_memset, sa.Boolean)
    if kind is _SYNC_MEMSET:
        return [
            is_set,
            name.startswith("cudaMemset"),
            sa.not_(is_async),
            memory.target_memory.in_(["Pinned", "Managed"]),
        ]
    is_copy = [sa.not_(is_set), name.startswith("cudaMemcpy")]
    if kind is _PAGEABLE:
        return [*is_copy, is_async, sa.or_(memory.source_memory == "Pageable", memory.target_memory == "Pageable")]
    is_staged = sa.and_(memory.copy_kind == _HOST_TO_DEVICE, memory.bytes <= _STAGED)
    inside = sa.and_(memory.source_device.is_not(None), memory.source_device == memory.target_device)
    return [
        *is_copy,
        sa.not_(is_async),
        sa.not_(sa.func.coalesce(is_staged, sa.false())),
        sa.not_(sa.func.coalesce(inside, sa.false())),
    ]


def _checked(case: Case, kind: _Kind) -> Finding | None:
    memory, calls = tables.memory_ops, tables.api_calls
    is_call = [calls.c[key] == memory.c[key] for key in ("report", "process", "correlation_id")]
    query = (
        sa.select(
            memory.c.report,
            memory.c.process,
            memory.c.device,
            memory.c.operation,
            calls.c.name.label("call"),
            sa.func.coalesce(memory.c.bytes, 0).label("bytes"),
            job_start(memory).label("start"),
            (memory.c.end + memory.c.clock_offset).label("end"),
        )
        .join_from(memory, calls, sa.and_(*is_call))
        .where(*where(memory, case.chosen), *_conditions(kind), memory.c.end.is_not(None))
    )
    frame = case.job.session.frame(query)
    if not len(frame):
        return None
    exposed = 0
    places = [frame[key].to_numpy(np.int64) for key in ("report", "process", "device")]
    for device in case.devices:
        place = device.device
        own = (place.task.task.report, place.task.task.process, place.device)
        is_own = np.logical_and.reduce([values == key for values, key in zip(places, own, strict=True)])
        window = case.working(device)
        spans = union(frame["start"].to_numpy(np.int64)[is_own], frame["end"].to_numpy(np.int64)[is_own])
        spans = spans.clip(window.start, window.end)
        after, _ = device.parts.kernels.before(spans.ends)
        before, _ = device.parts.kernels.before(spans.starts)
        exposed += spans.length - int((after - before).sum())
    cost = case.mean([exposed])
    if case.percent(cost) < case.thresholds.copy_percent:
        return None
    frame["time"] = frame["end"] - frame["start"]
    rows: list[Row] = []
    for (report, process, operation, call), group in frame.groupby(["report", "process", "operation", "call"]):
        rank = case.rank_of.get(Task(int(report), int(process)))
        rows.append((rank, operation, call, len(group), int(group["bytes"].sum()), int(group["time"].sum())))
    rows.sort(key=lambda row: (-int(row[5] or 0), str(row)))
    size = int(frame["bytes"].sum()) / 1e9
    sentence = (
        f"{number_of(len(frame), 'operation')} are {kind.what} ({size:,.3g} GB in all); on each GPU they run "
        f"{time_words(cost)} with no kernel beside them"
    )
    measured = "time of these operations that no kernel of the GPU hides, from the first step on; mean over the GPUs"
    evidence, share = answer_of(kind.name, _COLUMNS, rows, len(rows)), case.percent(cost)
    ranks = tuple(sorted({int(row[0]) for row in rows if isinstance(row[0], int)}))
    shown = Shown("Events", "memory")
    return Finding(
        kind.name, Severity.WARNING, sentence, kind.advice, shown, cost, share, measured, evidence, ranks=ranks
    )
