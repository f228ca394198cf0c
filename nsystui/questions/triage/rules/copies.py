"""Copies and memsets: synchronous, pageable, staged over the host, back and forth, and exposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import BYTES, COUNT, DEVICE, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.questions.algebra.intervals import union
from nsystui.questions.kernels.activities import MEMORY, MemoryCalls, are, with_calls, work_summary
from nsystui.questions.memory.host_copies import (
    DEVICE_TO_HOST,
    DIRECTIONS,
    HOST_TO_DEVICE,
    LARGE_COPY,
    MANY_COPIES,
    PAGEABLE,
    PINNED,
    link_words,
    mostly,
)
from nsystui.questions.queries.conditions import Condition, duration, job_end, job_start, where
from nsystui.questions.queries.statistics import places_by
from nsystui.questions.triage.case import REMARKED, Case, Place, bytes_words, number_of, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import by_framework
from nsystui.questions.triage.rule import BY_COPIES, BY_CPU, WORK, FindingKind, rule
from nsystui.store import tables

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


_MEMORY_COPIES_COLUMNS = (
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
    "Synchronous calls (cudaMemcpy) copy",
    Advice(
        "Use cudaMemcpyAsync with pinned memory on a separate stream.",
        "In cudaMemcpy the CPU is blocked until the copy is done.",
    ),
)
_PAGEABLE = _Kind(
    "pageable-copies",
    MemoryCalls.PAGEABLE_COPIES,
    "Asynchronous copies from or to pageable memory move",
    Advice(
        "Pin the host memory (cudaHostAlloc).",
        "CUDA stages copies of pageable memory, which makes them slower and blocks the CPU as a synchronous call does.",
    ),
)
_SYNC_MEMSET = _Kind(
    "synchronous-memsets",
    MemoryCalls.SYNCHRONOUS_MEMSETS,
    "Synchronous memsets of pinned or managed memory set",
    Advice("Use cudaMemsetAsync.", "On pinned or managed memory, cudaMemset blocks the CPU until the memset is done."),
)


_FROM = {
    PAGEABLE: Advice(
        "Pin the host memory once (cudaMallocHost, cudaHostRegister) and reuse it. Then use cudaMemcpyAsync on a "
        "separate stream.",
        "CUDA stages copies of pageable memory on the CPU, which is slower than the link, and cudaMemcpy blocks the "
        "CPU until the copy is done.",
    ),
    PINNED: Advice(
        "Use cudaMemcpyAsync on a separate stream, and copy less often.",
        "The memory is already pinned, but cudaMemcpy blocks the CPU until the copy is done.",
    ),
}
"""The advice for synchronous copies where the host's memory is nearly always of one kind."""
_SHOWN = 1 << 20
"""Below so many bytes, latency dominates the rate."""


class _Row(NamedTuple):
    rank: int | None
    operation: str
    call: str
    operations: int
    bytes: int
    time: int


@rule(
    190,
    reads=WORK | {"api_calls"},
    finds={
        "synchronous-copies": FindingKind("synchronous copies", parts=BY_COPIES + BY_CPU),
        "pageable-copies": FindingKind("copies of pageable memory", parts=BY_COPIES + BY_CPU),
        "synchronous-memsets": FindingKind("synchronous memsets", parts=BY_COPIES + BY_CPU),
    },
)
def memory_copies(case: Case) -> Sequence[Finding | NotChecked]:
    """Synchronous and pageable copies, and synchronous memsets, as `activities.MemoryCalls` defines them."""
    session = case.job.session
    if not session.count(tables.memory_ops) or not session.count(tables.api_calls):
        return [
            NotChecked(
                "synchronous-copies", "needs memory operations and CUDA API calls: record with `nsys profile -t cuda`"
            )
        ]
    kinds: tuple[_Kind, ...] = (_SYNC_COPY, _PAGEABLE, _SYNC_MEMSET)
    if case.percent(case.mean([case.spent.exposed_memory])) < case.thresholds.copy_percent:
        # No kind can cost more than all memory operations together.
        kinds = (_PAGEABLE,) if _all_pageable(case) else ()
    found = [_checked(case, kind) for kind in kinds]
    return [one for one in found if one is not None]


def _all_pageable(case: Case) -> bool:
    """Whether the job repeatedly copies from pageable memory: worth a remark at any cost."""
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
        f"{kind.what} {bytes_words(size)} in {number_of(number, 'operation')}. {case.each_gpu} spends "
        f"{time_words(cost)} on these operations while no kernel runs{_rates(case, kind)}."
        f"{_blocking(case, kind, found)}"
    )
    measured = "Time of these operations while no kernel runs on the GPU, from the first step on. Mean over the GPUs."
    evidence, share = TableAnswer(kind.name, _MEMORY_COPIES_COLUMNS, rows, len(rows)), case.percent(cost)
    ranks = tuple(sorted({row.rank for row in rows if row.rank is not None}))
    door = Door("memory")
    severity = Severity.WARNING if is_costly else Severity.INFO
    advice = _advice(case, kind)
    return Finding(kind.name, severity, sentence, advice, door, cost, share, measured, evidence, ranks=ranks)


def _blocking(case: Case, kind: _Kind, found: Arrays) -> str:
    """How long the calls that copy pageable memory block the CPU instead of returning at once."""
    if kind is not _PAGEABLE:
        return ""
    known = np.ma.compressed(found["blocked"])
    blocked, longest = case.mean([float(known.sum())]), known.max(initial=0)
    calls = Counter(name for name in found["call"].tolist() if name is not None)
    call = min(calls, key=lambda name: (-calls[name], name))
    call = call.partition("_")[0]
    return f" In {call} the CPU is blocked for {time_words(blocked)}, at most {time_words(longest)} in one call."


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
        pinned = by_framework(case, usual.text, pytorch="Pin the host memory (pin_memory=True of the DataLoader).")
        return Advice(pinned, usual.reason)
    if kind is not _SYNC_COPY:
        return kind.advice
    return _FROM.get(next((one for one in (PAGEABLE, PINNED) if mostly(case.host_copies, one)), ""), kind.advice)


_ON_DEVICE = ("Device", "Device Static")
_STAGED_COPIES_FEWEST = 10
_STAGED_COPIES_COLUMNS = (
    RANK,
    DEVICE,
    Column("operation", header="Operation", label="operation"),
    COUNT,
    BYTES,
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
)


@rule(
    200,
    reads=WORK,
    finds={"staged-peer-copies": FindingKind("GPU-to-GPU copies through the host", parts=BY_COPIES + BY_CPU)},
)
def staged_copies(case: Case) -> Sequence[Finding | NotChecked]:
    """Copies between GPUs through the host: host-to-device or device-to-host copies with device memory at both ends.

    See docs/numbers.md#staged-peer-copies.
    """
    table = tables.memory_ops
    if not case.job.session.count(table):
        return [NotChecked("staged-peer-copies", f"needs memory operations: {case.has_none}")]
    are_staged = [
        table.c.copy_kind.in_(list(DIRECTIONS)),
        table.c.source_memory.in_(_ON_DEVICE),
        table.c.target_memory.in_(_ON_DEVICE),
    ]
    places = (table.c.report, table.c.process, table.c.device)
    query = (
        sa.select(
            *places,
            table.c.operation,
            sa.func.count(),
            sa.cast(sa.func.coalesce(sa.func.sum(table.c.bytes), 0), sa.BigInteger),
            sa.cast(sa.func.coalesce(sa.func.sum(duration(table)), 0), sa.BigInteger),
        )
        .where(*where(table, case.chosen), *are_staged)
        .group_by(*places, table.c.operation)
    )
    rows: list[Row] = []
    for report, process, device, *rest in case.job.session.rows(query):
        rows.append((case.rank_of.get(Task(report, process)), device, *rest))
    count = sum(int(row[3] or 0) for row in rows)
    if count < _STAGED_COPIES_FEWEST:
        return []
    staged = spans(case, table, are_staged, by_device=True)
    exposed = 0
    for one in case.devices:
        window = case.working(one)
        own = staged.of(one.device.task.task, one.device.device).clip(window.start, window.end)
        exposed += own.length - one.parts.kernels.shared_with(own)
    cost = case.mean([exposed])
    gpus = sorted({(str(rank), int(str(device))) for rank, device, *_ in rows})
    names = "GPUs " if len(gpus) > 1 else "GPU "
    names += ", ".join(str(device) for _, device in gpus[:4]) + (" …" if len(gpus) > 4 else "")
    size = bytes_words(sum(int(row[4] or 0) for row in rows))
    sentence = (
        f"{count:,} copies between GPUs go through the host ({size}, {names}). Both ends of these copies are in device "
        "memory, although nsys names the copies Device-to-Host or Host-to-Device. "
        f"{case.each_gpu} spends {time_words(cost)} on these copies while no kernel runs."
    )
    advice = Advice(
        "Enable peer access (cudaDeviceEnablePeerAccess), or place the processes on GPUs with peer access "
        "(`nvidia-smi topo -p2p r`, NVLink).",
        "Without peer access CUDA copies to the host and from there to the other GPU, which is slower and crosses the "
        "link twice.",
    )
    rows.sort(key=lambda row: (-int(row[5] or 0), str(row)))
    measured = "Time of these copies while no kernel runs on the GPU, from the first step on. Mean over the GPUs."
    share = case.percent(cost)
    severity = Severity.WARNING if share >= case.thresholds.copy_percent else Severity.INFO
    evidence, door = TableAnswer("staged-peer-copies", _STAGED_COPIES_COLUMNS, rows, len(rows)), Door("memory")
    return [Finding("staged-peer-copies", severity, sentence, advice, door, cost, share, measured, evidence)]


_ROUND_TRIPS_FEWEST, _LARGE = 5, 1 << 20
_ALIKE = 0.2
"""The numbers of copies of a size up and down may differ by this share."""
_ROUND_TRIPS_COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    BYTES,
    Column("up", header="To the GPU", label="to the GPU", unit=Unit.COUNT),
    Column("down", header="To the Host", label="to the host", unit=Unit.COUNT),
)


@rule(
    210,
    reads=WORK,
    finds={"round-trips": FindingKind("data that go to the GPU and back repeatedly", parts=BY_COPIES + BY_CPU)},
)
def round_trips(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Data that go to the GPU and back: copies of a size up and down equally often, |U(M of these) \ U(K)|."""
    if not case.job.session.count(tables.memory_ops):
        return []  # as exposed_memory says
    if case.percent(case.mean([case.spent.exposed_memory])) < case.thresholds.copy_percent:
        return []
    trips = _trips(case)
    sizes = {size for own in trips.values() for size, _, _ in own}
    if not sizes:
        return []
    memory = tables.memory_ops.c
    is_trip = [memory.copy_kind.in_((HOST_TO_DEVICE, DEVICE_TO_HOST)), memory.bytes.in_(sorted(sizes))]
    copies = spans(case, tables.memory_ops, is_trip, by_device=True)
    costs, rows, moved = [], list[Row](), 0
    for device in case.devices:
        place, window = device.device, case.working(device)
        key = (place.task.task, place.device)
        for size, up, down in trips.get(key, []):
            rows.append((place.task.rank, place.device, size, up, down))
            moved += size * min(up, down)
        if key in trips:
            own = copies.of(*key).clip(window.start, window.end)
            costs.append(own.length - device.parts.kernels.shared_with(own))
    cost = case.mean(costs)
    if case.percent(cost) < case.thresholds.copy_percent:
        return []
    rows.sort(key=lambda row: (-int(row[2] or 0) * int(row[3] or 0), str(row)))
    size, ups, downs = max((one for own in trips.values() for one in own), key=lambda one: one[0] * one[1])
    sentence = (
        f"Copies of equal size go to the GPU and back repeatedly: {bytes_words(moved)} each way. The largest group is "
        f"{ups:,} copies of {bytes_words(size)} up and {downs:,} down. "
        f"{case.each_gpu} spends {time_words(cost)} on these copies while no kernel runs."
    )
    advice = Advice(
        "Keep the data of the next iteration on the GPU, and copy back only what the host reads.",
        "If the data are the same, they cross the link twice in each iteration for nothing.",
    )
    measured = (
        "Time of host copies of 1 MiB or more while no kernel runs. Only sizes that go each way equally often count "
        "(within 20 %, 5 times or more). Mean over the GPUs."
    )
    evidence, share = TableAnswer("round-trips", _ROUND_TRIPS_COLUMNS, rows, len(rows)), case.percent(cost)
    return [Finding("round-trips", Severity.WARNING, sentence, advice, Door("memory"), cost, share, measured, evidence)]


def _trips(case: Case) -> dict[Place, list[tuple[int, int, int]]]:
    """The sizes that go both ways and how often each way, by process and device."""
    memory = tables.memory_ops.c
    up, down = (
        sa.func.count().filter(memory.copy_kind == kind).label(name)
        for kind, name in ((HOST_TO_DEVICE, "up"), (DEVICE_TO_HOST, "down"))
    )
    places = (memory.report, memory.process, memory.device)
    query = (
        sa.select(*places, memory.bytes, up, down)
        .where(*where(tables.memory_ops, case.chosen), memory.bytes >= _LARGE)
        .where(sa.or_(memory.source_memory.is_(None), memory.source_memory != memory.target_memory))
        .group_by(*places, memory.bytes)
    )
    found: dict[Place, list[tuple[int, int, int]]] = {}
    for report, process, device, size, ups, downs in case.job.session.rows(query):
        if min(ups, downs) >= _ROUND_TRIPS_FEWEST and max(ups, downs) <= (1 + _ALIKE) * min(ups, downs):
            found.setdefault((Task(report, process), device), []).append((int(size), int(ups), int(downs)))
    return found


_LESS = {"Host-to-Device": "keep unchanged data on the GPU", "Device-to-Host": "copy results less often"}
_USUAL = Advice(
    "Put the operations on a separate stream, or avoid them (in-place operations, preallocated buffers).",
    "Memory operations cost time only while no kernel runs.",
)


@rule(
    220,
    reads=WORK,
    finds={
        "exposed-memory": FindingKind(
            "exposed copies", symptom_of=("synchronous-copies", "pageable-copies", "step-traffic"), parts=BY_COPIES
        ),
    },
)
def exposed_memory(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Memory operations that no kernel hides, |U(M) \ U(K)|.

    Below the threshold, copies from pinned memory on the streams of the kernels are a remark.

    See docs/numbers.md#exposed-time.
    """
    if not case.job.session.count(tables.memory_ops):
        return [NotChecked("exposed-memory", f"needs memory operations: {case.has_none}")]
    cost = case.mean(device.breakdown(case.working(device)).exposed_memory for device in case.devices)
    if case.percent(cost) < case.thresholds.exposed_memory_percent:
        return list(_beside_kernels(case))
    evidence = work_summary(case.job.session, case.chosen, MEMORY)
    places = [column.key for column in evidence.columns]
    first = dict(zip(places, evidence.page(0, 1)[0], strict=True))
    name = str(first["name"])
    sentence = (
        f"{case.each_gpu} spends {time_words(cost)} on memory copies and memsets while no kernel runs."
        f"{case.blocking_words(BY_COPIES)} The largest part of all copy and memset time is {name}."
    )
    advice = next((_of_copies(case, word, name) for word in _LESS if word in name), _USUAL)
    measured = "Time of copies and memsets while no kernel runs, from the first step on. Mean over the GPUs."
    door, share = Door("memory"), case.percent(cost)
    severity = Severity.WARNING if case.blocks(BY_COPIES, case.thresholds.exposed_memory_percent) else Severity.INFO
    return [Finding("exposed-memory", severity, sentence, advice, door, cost, share, measured, evidence)]


def _beside_kernels(case: Case) -> Iterator[Finding]:
    """The remark on many large copies from pinned memory that share streams with kernels and cannot overlap them."""
    memory = tables.memory_ops
    is_meant = [memory.c.copy_kind == HOST_TO_DEVICE, memory.c.source_memory == PINNED, sa.not_(_is_apart(case))]
    query = sa.select(sa.func.count(), sa.func.sum(memory.c.bytes)).where(*where(memory, case.chosen), *is_meant)
    ((count, size),) = case.job.session.rows(query)
    if count < MANY_COPIES or (size or 0) < count * LARGE_COPY:
        return
    copies = spans(case, memory, is_meant, by_device=True)
    exposed = 0
    for one in case.devices:
        window = case.working(one)
        own = copies.of(one.device.task.task, one.device.device).clip(window.start, window.end)
        exposed += own.length - one.parts.kernels.shared_with(own)
    cost = case.mean([exposed])
    if case.percent(cost) < REMARKED * case.thresholds.exposed_memory_percent:
        return
    sentence = (
        f"{count:,} host-to-device copies of pinned memory ({bytes_words(int(size))}) share streams with kernels. "
        f"{case.each_gpu} spends {time_words(cost)} on these copies while no kernel runs."
    )
    advice = Advice(
        "Copy on a separate stream, and prefetch: start the copies for the next iteration while kernels run.",
        "The operations of a stream run one after the other, so no copy overlaps the kernels of its own stream.",
    )
    measured = "Time of these copies while no kernel runs, from the first step on. Mean over the GPUs."
    evidence, share = work_summary(case.job.session, case.chosen, MEMORY), case.percent(cost)
    yield Finding("exposed-memory", Severity.INFO, sentence, advice, Door("memory"), cost, share, measured, evidence)


def _is_apart(case: Case) -> Condition:
    """Whether the stream of a memory operation has no kernels."""
    memory, kernels = tables.memory_ops, tables.kernels
    busy = sa.select(kernels.c.report, kernels.c.process, kernels.c.stream).where(*where(kernels, case.chosen))
    return sa.tuple_(memory.c.report, memory.c.process, memory.c.stream).not_in(busy.distinct())


def _of_copies(case: Case, direction: str, operation: str) -> Advice:
    """The advice for copies over the link to the host: the next step after pinned memory and separate streams."""
    memory = tables.memory_ops
    host = memory.c.source_memory if direction == "Host-to-Device" else memory.c.target_memory
    query = (
        sa.select(host, _is_apart(case).label("own"), sa.func.sum(duration(memory)))
        .where(*where(memory, case.chosen), memory.c.operation == operation, memory.c.end.is_not(None))
        .group_by(host, "own")
    )
    rows = [(kind, bool(apart), int(time or 0)) for kind, apart, time in case.job.session.rows(query)]
    whole = sum(time for *_, time in rows)
    is_pageable = 2 * sum(time for kind, _, time in rows if kind == "Pageable") > whole
    is_pinned = 2 * sum(time for kind, _, time in rows if kind == "Pinned") > whole
    is_apart = 2 * sum(time for _, apart, time in rows if apart) > whole
    less, reason = _LESS[direction], f"{direction.capitalize()} copies take the most time"
    if is_pageable:
        return Advice(
            f"Pin the host memory, copy asynchronously on a separate stream, or {less}.",
            f"{reason}, and CUDA stages copies of pageable memory.",
        )
    if not is_pinned:
        return Advice(f"Use pinned memory and a separate stream, to overlap kernels, or {less}.", f"{reason}.")
    if not is_apart:
        return Advice(
            f"Copy on a separate stream while kernels run, or {less}.",
            f"{reason}; the memory is already pinned, but the copies share a stream with kernels.",
        )
    return Advice(
        f"Start the copies earlier, so that kernels overlap them. Copy less (smaller types), or {less}.",
        f"{reason}; the memory is pinned and the stream is separate, but no kernel runs meanwhile.",
    )
