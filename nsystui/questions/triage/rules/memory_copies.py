"""Synchronous and pageable copies, and synchronous memsets, as `activities.MemoryCalls` defines them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import BYTES, COUNT, RANK, Column, Unit
from nsystui.base.selection import Task
from nsystui.questions.activities import MemoryCalls, are, with_calls
from nsystui.questions.algebra.intervals import union
from nsystui.questions.conditions import job_end, job_start, where
from nsystui.questions.triage.case import Case, bytes_words, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_COLUMNS = (
    RANK,
    Column("operation", header="Operation", label="operation"),
    Column("call", header="Call", label="call"),
    COUNT,
    BYTES.with_importance(1),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
)


@dataclass(frozen=True)
class _Kind:
    name: str
    calls: MemoryCalls
    what: str
    advice: Advice


_SYNC_COPY = _Kind(
    "synchronous-copies",
    MemoryCalls.SYNCHRONOUS_COPIES,
    "memory copies by synchronous calls (cudaMemcpy)",
    Advice(
        "use cudaMemcpyAsync with pinned memory, on a stream of its own", "cudaMemcpy blocks the CPU until it is done"
    ),
)
_PAGEABLE = _Kind(
    "pageable-copies",
    MemoryCalls.PAGEABLE_COPIES,
    "asynchronous copies from or to pageable memory",
    Advice(
        "pin the host memory (cudaHostAlloc; pin_memory=True in PyTorch's DataLoader)",
        "from pageable memory CUDA stages every copy: it is slower, and the call behaves as a synchronous one",
    ),
)
_SYNC_MEMSET = _Kind(
    "synchronous-memsets",
    MemoryCalls.SYNCHRONOUS_MEMSETS,
    "synchronous memsets of pinned or managed memory",
    Advice("use cudaMemsetAsync", "cudaMemset on such memory blocks the CPU until it is done"),
)


class _Row(NamedTuple):
    rank: int | None
    operation: str
    call: str
    operations: int
    bytes: int
    time: int


def check(case: Case) -> Sequence[Finding | NotChecked]:
    session = case.job.session
    if not session.count(tables.memory_ops) or not session.count(tables.api_calls):
        return [NotChecked("memory-copies", "needs memory operations and CUDA API calls: `nsys profile -t cuda`")]
    if case.percent(case.mean([case.spent.exposed_memory])) < case.thresholds.copy_percent:
        return []  # no kind of them can cost more than all memory operations together
    found = [_checked(case, kind) for kind in (_SYNC_COPY, _PAGEABLE, _SYNC_MEMSET)]
    return [one for one in found if one is not None]


def _checked(case: Case, kind: _Kind) -> Finding | None:
    memory, calls = tables.memory_ops, tables.api_calls
    query = (
        sa.select(
            memory.c.report,
            memory.c.process,
            memory.c.device,
            memory.c.operation,
            calls.c.name.label("call"),
            sa.func.coalesce(memory.c.bytes, 0).label("bytes"),
            job_start(memory).label("start"),
            job_end(memory).label("end"),
        )
        .select_from(with_calls())
        .where(*where(memory, case.chosen), *are(kind.calls), memory.c.end.is_not(None))
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
        exposed += spans.length - device.parts.kernels.shared_with(spans)
    cost = case.mean([exposed])
    if case.percent(cost) < case.thresholds.copy_percent:
        return None
    frame["time"] = frame["end"] - frame["start"]
    rows: list[_Row] = []
    for (report, process, operation, call), group in frame.groupby(["report", "process", "operation", "call"]):
        rank = case.rank_of.get(Task(int(report), int(process)))
        size, time = int(group["bytes"].sum()), int(group["time"].sum())
        rows.append(_Row(rank, operation, call, len(group), size, time))
    rows.sort(key=lambda row: (-row.time, str(row)))
    size = int(frame["bytes"].sum())
    sentence = (
        f"{number_of(len(frame), 'operation')} are {kind.what} ({bytes_words(size)} in all); on each GPU they run "
        f"{time_words(cost)} with no kernel beside them"
    )
    measured = "time of these operations that no kernel of the GPU hides, from the first step on; mean over the GPUs"
    evidence, share = TableAnswer(kind.name, _COLUMNS, rows, len(rows)), case.percent(cost)
    ranks = tuple(sorted({row.rank for row in rows if row.rank is not None}))
    door = Door("memory")
    return Finding(
        kind.name, Severity.WARNING, sentence, kind.advice, door, cost, share, measured, evidence, ranks=ranks
    )
