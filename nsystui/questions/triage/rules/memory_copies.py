"""Synchronous and pageable copies, and synchronous memsets, as `activities.MemoryCalls` defines them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import BYTES, COUNT, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.questions.algebra.intervals import union
from nsystui.questions.kernels.activities import MemoryCalls, are, with_calls
from nsystui.questions.memory.host_copies import (
    HOST_TO_DEVICE,
    LARGE_COPY,
    MANY_COPIES,
    PAGEABLE,
    PINNED,
    link_words,
    mostly,
)
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.statistics import places_by
from nsystui.questions.triage.case import REMARKED, Case, bytes_words, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import by_framework
from nsystui.store import tables

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

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
        "pin the host memory (cudaHostAlloc)",
        "from pageable memory CUDA stages every copy: it is slower, and the call behaves as a synchronous one",
    ),
)
_SYNC_MEMSET = _Kind(
    "synchronous-memsets",
    MemoryCalls.SYNCHRONOUS_MEMSETS,
    "synchronous memsets of pinned or managed memory",
    Advice("use cudaMemsetAsync", "cudaMemset on such memory blocks the CPU until it is done"),
)


_FROM = {
    PAGEABLE: Advice(
        "pin the host memory (cudaMallocHost, cudaHostRegister) once and reuse it, then use cudaMemcpyAsync on a "
        "stream of its own",
        "from and to pageable memory CUDA stages every copy on the CPU, which is slower than the link; and cudaMemcpy "
        "blocks the CPU until it is done",
    ),
    PINNED: Advice(
        "use cudaMemcpyAsync on a stream of its own, and copy less often",
        "the memory is pinned already, but cudaMemcpy blocks the CPU until it is done",
    ),
}
"""The advice for synchronous copies where the host's memory is nearly always of one kind."""
_SHOWN = 1 << 20
"""Of fewer bytes a rate is latency."""


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
        return [
            NotChecked(
                "memory-copies", "needs memory operations and CUDA API calls: record with `nsys profile -t cuda`"
            )
        ]
    kinds: tuple[_Kind, ...] = (_SYNC_COPY, _PAGEABLE, _SYNC_MEMSET)
    if case.percent(case.mean([case.spent.exposed_memory])) < case.thresholds.copy_percent:
        # No kind of them can cost more than all memory operations together.
        kinds = (_PAGEABLE,) if _all_pageable(case) else ()
    found = [_checked(case, kind) for kind in kinds]
    return [one for one in found if one is not None]


def _all_pageable(case: Case) -> bool:
    """Whether the job copies from pageable memory again and again: worth a remark whatever it costs."""
    uploads = [one for one in case.host_copies if one.kind == HOST_TO_DEVICE]
    count, size = sum(one.count for one in uploads), sum(one.bytes for one in uploads)
    return mostly(uploads, PAGEABLE) and count >= MANY_COPIES and size >= count * LARGE_COPY


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
            (calls.c.end - calls.c.start).label("blocked"),
        )
        .select_from(with_calls())
        .where(*where(memory, case.chosen), *are(kind.calls), memory.c.end.is_not(None))
    )
    found = case.job.session.arrays(query)
    number, start, end = len(found["start"]), found["start"], found["end"]
    if not number:
        return None
    exposed = 0
    places = [found[key] for key in ("report", "process", "device")]
    for device in case.devices:
        place = device.device
        own = (place.task.task.report, place.task.task.process, place.device)
        is_own = np.logical_and.reduce([values == key for values, key in zip(places, own, strict=True)])
        window = case.working(device)
        spans = union(start[is_own], end[is_own])
        spans = spans.clip(window.start, window.end)
        exposed += spans.length - device.parts.kernels.shared_with(spans)
    cost = case.mean([exposed])
    is_costly = case.percent(cost) >= case.thresholds.copy_percent
    is_seen = case.percent(cost) >= REMARKED * case.thresholds.copy_percent
    if not is_costly and not (is_seen and kind is _PAGEABLE and _all_pageable(case)):
        return None
    rows: list[_Row] = []
    for key, group in places_by(found[name] for name in ("report", "process", "operation", "call")).items():
        report, process, operation, call = key
        size, time = int(found["bytes"][group].sum()), int((end - start)[group].sum())
        rows.append(_Row(case.rank_of.get(Task(report, process)), operation, call, len(group), size, time))
    rows.sort(key=lambda row: (-row.time, str(row)))
    size = int(found["bytes"].sum())
    sentence = (
        f"{number_of(number, 'operation')} are {kind.what} ({bytes_words(size)} in all); on each GPU they run "
        f"{time_words(cost)} with no kernel beside them{_rates(case, kind)}{_blocking(case, kind, found)}"
    )
    measured = "time of these operations that no kernel of the GPU hides, from the first step on; mean over the GPUs"
    evidence, share = TableAnswer(kind.name, _COLUMNS, rows, len(rows)), case.percent(cost)
    ranks = tuple(sorted({row.rank for row in rows if row.rank is not None}))
    door = Door("memory")
    severity = Severity.WARNING if is_costly else Severity.INFO
    advice = _advice(case, kind)
    return Finding(kind.name, severity, sentence, advice, door, cost, share, measured, evidence, ranks=ranks)


def _blocking(case: Case, kind: _Kind, found: Arrays) -> str:
    """How long the calls block the CPU that should return at once: those that copy pageable memory."""
    if kind is not _PAGEABLE:
        return ""
    known = np.ma.compressed(found["blocked"])
    blocked, longest = case.mean([float(known.sum())]), known.max(initial=0)
    calls = Counter(name for name in found["call"].tolist() if name is not None)
    call = min(calls, key=lambda name: (-calls[name], name))
    return f"; {call.partition('_')[0]} blocks the CPU for {time_words(blocked)} in them, at most {time_words(longest)}"


def _rates(case: Case, kind: _Kind) -> str:
    """How fast the copies are, by direction and memory of the host."""
    copies = [one for one in case.host_copies if kind is not _PAGEABLE or one.memory == PAGEABLE]
    copies = [one for one in copies if one.bytes >= _SHOWN]
    if kind is _SYNC_MEMSET or not copies:
        return ""
    return f" ({'; '.join(one.words for one in copies[:3])}{link_words(case.job.session, copies[:3])})"


def _advice(case: Case, kind: _Kind) -> Advice:
    if kind is _PAGEABLE:
        usual = kind.advice
        pinned = by_framework(case, usual.text, pytorch="pin the host memory (pin_memory=True of the DataLoader)")
        return Advice(pinned, usual.reason)
    if kind is not _SYNC_COPY:
        return kind.advice
    return _FROM.get(next((one for one in (PAGEABLE, PINNED) if mostly(case.host_copies, one)), ""), kind.advice)
