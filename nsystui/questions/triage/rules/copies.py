"""Copies and memsets: synchronous, pageable, staged over the host, back and forth, and exposed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import BYTES, COUNT, DEVICE, RANK, UNKNOWN, Column, Unit
from nsystui.base.selection import Task
from nsystui.base.text import counted
from nsystui.base.types import Condition
from nsystui.exports import canonical
from nsystui.questions.kernels.activities import MEMORY, MemoryCalls, are, with_calls, work_summary
from nsystui.questions.memory.host_copies import (
    DEVICE_TO_HOST,
    DIRECTIONS,
    HOST_TO_DEVICE,
    LARGE_COPY,
    MANY_COPIES,
    PAGEABLE,
    PINNED,
    has_one_memory,
    link_words,
    mostly,
)
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.triage.case import REMARKED, Case, Place, Spans, by_framework, bytes_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rule import BY_COPIES, BY_CPU, BY_MIGRATIONS, WORK, FindingKind, rule
from nsystui.questions.triage.rules.memory import migration_advice
from nsystui.store import tables

_OPERATION = Column("operation", header="Operation", label="operation")
_TOTAL = Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION)
_MEASURED = "Time of these {} while no kernel runs on the GPU, in the steady state. Mean over the GPUs."
_DOOR = Door("memory")


@dataclass(frozen=True)
class _Kind:
    name: str
    calls: MemoryCalls
    what: str
    advice: Advice


_SYNC_COPY = _Kind(
    "synchronous-copies", MemoryCalls.SYNCHRONOUS_COPIES, "Synchronous calls (cudaMemcpy) copy",
    Advice(
        "Use cudaMemcpyAsync with pinned memory on a separate stream.",
        "In cudaMemcpy the CPU is blocked until the copy is done.",
    ),
)  # fmt: skip
_PAGEABLE = _Kind(
    "pageable-copies", MemoryCalls.PAGEABLE_COPIES, "Pageable copies (cudaMemcpyAsync) move",
    Advice(
        "Pin the host memory (cudaHostAlloc).",
        "CUDA stages copies of pageable memory, which makes them slower and blocks the CPU as a synchronous call does.",
    ),
)  # fmt: skip
_SYNC_MEMSET = _Kind(
    "synchronous-memsets", MemoryCalls.SYNCHRONOUS_MEMSETS, "Synchronous memsets (of pinned or managed memory) set",
    Advice("Use cudaMemsetAsync.", "On pinned or managed memory, cudaMemset blocks the CPU until the memset is done."),
)  # fmt: skip
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
"""The advice for synchronous copies if nearly all host memory is of one kind."""
_ONE_MEMORY = Advice(
    "CPU and GPU share one memory: use it without copies (cudaMallocManaged, or cudaHostAlloc and "
    "cudaHostGetDevicePointer).",
    "A copy within one memory saves nothing, and takes bandwidth from both.",
)
_MIN_BYTES = 1 << 20
"""The minimum bytes of copies whose rate is shown; below, latency dominates."""


def to_host(case: Case, advice: Advice) -> Advice:
    """Return the advice on copies between host and GPU: to make none if both have one memory."""
    return _ONE_MEMORY if has_one_memory(case.job.session) else advice


@rule(
    190,
    WORK | {"api_calls"},
    FindingKind("synchronous-copies", "synchronous copies", BY_COPIES + BY_CPU),
    FindingKind("pageable-copies", "copies of pageable memory", BY_COPIES + BY_CPU),
    FindingKind("synchronous-memsets", "synchronous memsets", BY_COPIES + BY_CPU),
)
def memory_copies(case: Case) -> Sequence[Finding | NotChecked]:
    """Find synchronous and pageable copies, and synchronous memsets, as `activities.MemoryCalls` defines them."""
    session = case.job.session
    if not session.count(tables.memory_ops) or not session.count(tables.api_calls):
        why = f"needs memory operations and CUDA API calls: {case.record(canonical.MEMORY_OPS, canonical.API_CALLS)}"
        return [NotChecked("synchronous-copies", why)]
    uploads = [copies for copies in case.host_copies if copies.kind == HOST_TO_DEVICE]
    count, size = sum(copies.count for copies in uploads), sum(copies.bytes for copies in uploads)
    # Many large copies from pageable memory are worth a remark below the threshold, too.
    all_pageable = mostly(uploads, PAGEABLE) and count >= MANY_COPIES and size >= count * LARGE_COPY
    kinds: tuple[_Kind, ...] = (_SYNC_COPY, _PAGEABLE, _SYNC_MEMSET)
    if case.percent(case.mean([case.spent.exposed_memory])) < case.thresholds.copy_percent:
        kinds = (_PAGEABLE,) if all_pageable else ()  # no kind can cost more than all memory operations together
    findings = [_checked(case, kind, all_pageable) for kind in kinds]
    return [finding for finding in findings if finding is not None]


def _checked(case: Case, kind: _Kind, all_pageable: bool) -> Finding | None:
    calls = tables.api_calls.c
    called = sa.select(tables.memory_ops, calls.name.label("call"), (calls.end - calls.start).label("blocked"))
    copies = called.select_from(with_calls()).where(*are(kind.calls)).subquery("copies")
    copied, threshold = spans(case, copies, by="device"), case.thresholds.copy_percent
    cost = case.exposed(copied)
    share = case.percent(cost)
    if share < (REMARKED * threshold if kind is _PAGEABLE and all_pageable else threshold):
        return None
    keys = (copies.c.report, copies.c.process, copies.c.operation, copies.c.call)
    sums = [sa.cast(sa.func.sum(col), sa.BigInteger) for col in (sa.func.coalesce(copies.c.bytes, 0), duration(copies))]
    blocked = sa.func.max(copies.c.blocked), sa.cast(sa.func.sum(copies.c.blocked), sa.BigInteger)
    query = sa.select(*keys, sa.func.count(), *sums, *blocked).group_by(*keys)
    records = case.job.session.rows(query.where(*where(copies, case.scope), copies.c.end.is_not(None)))
    if not records:
        return None
    rows = [(case.rank_of.get(Task(report, process)), *row[:-2]) for report, process, *row in records]
    rows.sort(key=lambda row: (-row[5], str(row)))
    number, size = (sum(row[column] for row in rows) for column in (3, 4))
    sentence = (
        f"{kind.what} {bytes_words(size)} in {counted(number, 'operation')}. {case.each_gpu} spends "
        f"{time_words(cost)} on these operations while no kernel runs{_rates(case, kind)}."
    )
    if kind is _PAGEABLE:
        sentence += _blocking(case, records)
    call_column = Column("call", header="Call", label="call")
    evidence = (RANK, _OPERATION, call_column, COUNT, BYTES.with_importance(1), _TOTAL), rows
    ranks = tuple(sorted({row[0] for row in rows if row[0] is not None}))
    measured = _MEASURED.format("operations")
    severity = Severity.WARNING if share >= threshold else Severity.INFO
    advice = _advice(case, kind, copied)
    return case.finding(kind.name, sentence, advice, _DOOR, cost, measured, evidence, severity, ranks=ranks)


def _advice(case: Case, kind: _Kind, copied: Spans) -> Advice:
    advice = kind.advice
    if kind is not _SYNC_MEMSET and has_one_memory(case.job.session):
        return _ONE_MEMORY
    if kind is _PAGEABLE:
        how = "pin_memory=True of the DataLoader" if _are_in_steps(case, copied) else "Tensor.pin_memory()"
        return Advice(by_framework(case, advice.text, pytorch=f"Pin the host memory ({how})."), advice.reason)
    if kind is _SYNC_COPY:
        return next((_FROM[memory] for memory in (PAGEABLE, PINNED) if mostly(case.host_copies, memory)), advice)
    return advice


def _are_in_steps(case: Case, copied: Spans) -> bool:
    """Return whether most of the copies' time is in the steps, as with a data loader."""
    times = [copied.of(*device.device.key) for device in case.devices]
    inside = 0
    for device, copies in zip(case.devices, times, strict=True):
        steps = case.steps.get(device.device.task.task)
        if steps is not None and len(steps):
            inside += copies.length_within(int(steps.start[0]), int(steps.start[-1] + steps.duration[-1]))
    return 2 * inside >= sum(copies.length for copies in times)


def _blocking(case: Case, records: Sequence[tuple[Any, ...]]) -> str:
    longest, waited = max(row[-2] or 0 for row in records), case.mean([sum(row[-1] or 0 for row in records)])
    names = Counter[str]()
    for call, count in (row[3:5] for row in records if row[3] is not None):
        names[call] += count
    call = min(names, key=lambda name: (-names[name], name)).partition("_")[0]
    return f" In {call} the CPU is blocked for {time_words(waited)}, at most {time_words(longest)} in one call."


def _rates(case: Case, kind: _Kind) -> str:
    copies = [group for group in case.host_copies if kind is not _PAGEABLE or group.memory == PAGEABLE]
    copies = [group for group in copies if group.bytes >= _MIN_BYTES][:3]
    if kind is _SYNC_MEMSET or not copies:
        return ""
    return f" ({'; '.join(group.words for group in copies)}{link_words(case.job.session, copies)})"


_ON_DEVICE = ("Device", "Device Static")
_MIN_STAGED_COPIES = 10


@rule(200, WORK, FindingKind("staged-peer-copies", "GPU-to-GPU copies through the host", BY_COPIES + BY_CPU))
def staged_copies(case: Case) -> Sequence[Finding | NotChecked]:
    """Find copies between GPUs through the host: copies from or to the host with device memory at both ends.

    See docs/numbers.md#staged-peer-copies.
    """
    table = tables.memory_ops
    if not case.job.session.count(table):
        return [NotChecked("staged-peer-copies", f"needs memory operations: {case.absence}")]
    are_on_device = (memory.in_(_ON_DEVICE) for memory in (table.c.source_memory, table.c.target_memory))
    are_staged = [table.c.copy_kind.in_(list(DIRECTIONS)), *are_on_device]
    keys = (table.c.report, table.c.process, table.c.device, table.c.operation)
    sums = [sa.cast(sa.func.coalesce(sa.func.sum(col), 0), sa.BigInteger) for col in (table.c.bytes, duration(table))]
    query = sa.select(*keys, sa.func.count(), *sums).where(*where(table, case.scope), *are_staged).group_by(*keys)
    rows = [(case.rank_of.get(Task(report, process)), *row) for report, process, *row in case.job.session.rows(query)]
    rows.sort(key=lambda row: (-row[5], str(row)))
    count, size = (sum(row[column] for row in rows) for column in (3, 4))
    if count < _MIN_STAGED_COPIES:
        return []
    cost = case.exposed(spans(case, table, are_staged, by="device"))
    gpus = [str(device) for _, device in sorted({(str(rank), device) for rank, device, *_ in rows})]
    names = ("GPUs " if len(gpus) > 1 else "GPU ") + ", ".join(gpus[:4]) + (" …" if len(gpus) > 4 else "")
    sentence = (
        f"{count:,} copies between GPUs go through the host ({bytes_words(size)}, {names}). Both ends of these copies "
        "are in device memory, although nsys names the copies Device-to-Host or Host-to-Device. "
        f"{case.each_gpu} spends {time_words(cost)} on these copies while no kernel runs."
    )
    advice = Advice(
        "Enable peer access (cudaDeviceEnablePeerAccess), or place the processes on GPUs with peer access "
        "(`nvidia-smi topo -p2p r`, NVLink).",
        "Without peer access CUDA copies to the host and from there to the other GPU, which is slower and crosses the "
        "link twice.",
    )
    severity = Severity.WARNING if case.percent(cost) >= case.thresholds.copy_percent else Severity.INFO
    evidence, measured = ((RANK, DEVICE, _OPERATION, COUNT, BYTES, _TOTAL), rows), _MEASURED.format("copies")
    return [case.finding("staged-peer-copies", sentence, advice, _DOOR, cost, measured, evidence, severity)]


_MIN_ROUND_TRIPS, _LARGE = 5, 1 << 20
_ALIKE = 0.2
"""The maximum relative difference between the numbers of copies up and down."""
_ROUND_TRIPS_COLUMNS = (
    RANK, DEVICE.with_importance(1), BYTES, Column("up", header="To the GPU", label="to the GPU", unit=Unit.COUNT),
    Column("down", header="To the Host", label="to the host", unit=Unit.COUNT),
)  # fmt: skip


@rule(210, WORK, FindingKind("round-trips", "data that go to the GPU and back repeatedly", BY_COPIES + BY_CPU))
def round_trips(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Find sizes that are copied to the GPU and back equally often; the cost is |U(these copies) \ U(K)|."""
    threshold, exposed = case.thresholds.copy_percent, case.percent(case.mean([case.spent.exposed_memory]))
    if not case.job.session.count(tables.memory_ops) or exposed < threshold:
        return []  # `exposed_memory` reports missing copies
    trips = _trips(case)
    sizes = {size for group in trips.values() for size, _, _ in group}
    if not sizes:
        return []
    memory = tables.memory_ops.c
    is_trip = [memory.copy_kind.in_((HOST_TO_DEVICE, DEVICE_TO_HOST)), memory.bytes.in_(sorted(sizes))]
    copies = spans(case, tables.memory_ops, is_trip, by="device")
    cost = case.exposed(Spans({key: times for key, times in copies.merged.items() if key in trips}, copies.count))
    if case.percent(cost) < threshold:
        return []
    gpus = [(gpu.device.task.rank, gpu.device) for gpu in case.devices]
    rows = [(rank, gpu.device, *trip) for rank, gpu in gpus for trip in trips.get(gpu.key, ())]
    rows.sort(key=lambda row: (-row[2] * row[3], str(row)))
    moved = sum(size * min(up, down) for _, _, size, up, down in rows)
    _, _, size, ups, downs = rows[0]
    sentence = (
        f"Copies of equal size go to the GPU and back repeatedly: {bytes_words(moved)} each way. The largest group is "
        f"{ups:,} copies of {bytes_words(size)} up and {downs:,} down. {case.each_gpu} spends {time_words(cost)} on "
        "these copies while no kernel runs."
    )
    advice = Advice(
        "Keep the data of the next iteration on the GPU, and copy back only what the host reads.",
        "If the data are the same, they cross the link twice in each iteration for nothing.",
    )
    measured = (
        "Time of host copies of 1 MiB or more while no kernel runs. Only sizes that go each way equally often count "
        "(within 20 %, 5 times or more). Mean over the GPUs."
    )
    advice, evidence = to_host(case, advice), (_ROUND_TRIPS_COLUMNS, rows)
    return [case.finding("round-trips", sentence, advice, _DOOR, cost, measured, evidence)]


def _trips(case: Case) -> dict[Place, list[tuple[int, int, int]]]:
    """Return the sizes copied both ways, and how often each way, by process and device."""
    memory = tables.memory_ops.c
    up, down = (sa.func.count().filter(memory.copy_kind == kind) for kind in (HOST_TO_DEVICE, DEVICE_TO_HOST))
    keys = (memory.report, memory.process, memory.device, memory.bytes)
    is_between = sa.or_(memory.source_memory.is_(None), memory.source_memory != memory.target_memory)
    query = sa.select(*keys, up, down).where(*where(tables.memory_ops, case.scope), memory.bytes >= _LARGE, is_between)
    trips: dict[Place, list[tuple[int, int, int]]] = {}
    for report, process, device, size, ups, downs in case.job.session.rows(query.group_by(*keys)):
        if min(ups, downs) >= _MIN_ROUND_TRIPS and max(ups, downs) <= (1 + _ALIKE) * min(ups, downs):
            trips.setdefault((Task(report, process), device), []).append((int(size), int(ups), int(downs)))
    return trips


_LESS = {"Host-to-Device": "keep unchanged data on the GPU", "Device-to-Host": "copy results less often"}
_USUAL = Advice(
    "Put the operations on a separate stream, or avoid them (in-place operations, preallocated buffers).",
    "Memory operations cost time only while no kernel runs.",
)


_CAUSES = ("synchronous-copies", "pageable-copies", "step-traffic", "unified-memory")


@rule(220, WORK, FindingKind("exposed-memory", "exposed copies", BY_COPIES + BY_MIGRATIONS, symptom_of=_CAUSES))
def exposed_memory(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Find memory operations that no kernel hides, |U(M) \ U(K)| (docs/numbers.md#exposed-time).

    Below the threshold, copies from pinned memory on the streams of the kernels are a remark.
    """
    if not case.job.session.count(tables.memory_ops):
        return [NotChecked("exposed-memory", f"needs memory operations: {case.absence}")]
    if case.spent.unknown["memory_ops"]:
        return [NotChecked("exposed-memory", f"needs all copies and memsets: {case.record(canonical.KERNELS)}")]
    threshold = case.thresholds.exposed_memory_percent
    cost = case.mean(device.breakdown(case.working(device)).exposed_memory for device in case.devices)
    if case.percent(cost) < threshold:
        return _shared_stream_remark(case)
    evidence = work_summary(case.job.session, case.scope, MEMORY)
    name = str(evidence.cells("name")[0])
    sentence = (
        f"{case.each_gpu} spends {time_words(cost)} on memory copies and memsets while no kernel runs."
        f"{case.blocking_words(BY_COPIES + BY_MIGRATIONS)} The largest part of all copy and memset time is {name}."
    )
    advice = next((_copy_advice(case, word, name) for word in _LESS if word in name), _USUAL)
    advice = to_host(case, advice) if any(word in name for word in _LESS) else advice
    advice = migration_advice(case) if "Unified" in name else advice
    measured = "Time of copies and memsets while no kernel runs, in the steady state. Mean over the GPUs."
    severity = Severity.WARNING if case.blocks(BY_COPIES + BY_MIGRATIONS, threshold) else Severity.INFO
    return [case.finding("exposed-memory", sentence, advice, _DOOR, cost, measured, evidence, severity)]


def _shared_stream_remark(case: Case) -> list[Finding]:
    """Return a remark on many large copies from pinned memory that share streams with kernels."""
    memory = tables.memory_ops
    conditions = [memory.c.copy_kind == HOST_TO_DEVICE, memory.c.source_memory == PINNED, sa.not_(_is_apart(case))]
    query = sa.select(sa.func.count(), sa.func.sum(memory.c.bytes)).where(*where(memory, case.scope), *conditions)
    ((count, size),) = case.job.session.rows(query)
    if count < MANY_COPIES or (size or 0) < count * LARGE_COPY:
        return []
    cost = case.exposed(spans(case, memory, conditions, by="device"))
    if case.percent(cost) < REMARKED * case.thresholds.exposed_memory_percent:
        return []
    sentence = (
        f"{count:,} host-to-device copies (pinned, {bytes_words(int(size))}) share streams with kernels. "
        f"{case.each_gpu} spends {time_words(cost)} on these copies while no kernel runs."
    )
    advice = Advice(
        "Copy on a separate stream, and prefetch: start the copies for the next iteration while kernels run.",
        "The operations of a stream run one after the other, so no copy overlaps the kernels of its own stream.",
    )
    advice, evidence = to_host(case, advice), work_summary(case.job.session, case.scope, MEMORY)
    measured = "Time of these copies while no kernel runs, in the steady state. Mean over the GPUs."
    return [case.finding("exposed-memory", sentence, advice, _DOOR, cost, measured, evidence, Severity.INFO)]


def _is_apart(case: Case) -> Condition:
    memory, kernels = tables.memory_ops, tables.kernels
    kernel_streams, streams = (
        [table.c.report, table.c.process, sa.func.coalesce(table.c.context, UNKNOWN), table.c.stream]
        for table in (kernels, memory)
    )
    return sa.tuple_(*streams).not_in(sa.select(*kernel_streams).where(*where(kernels, case.scope)).distinct())


def _copy_advice(case: Case, direction: str, operation: str) -> Advice:
    """Return the next remedy for copies over the link: pinned memory, a separate stream or an earlier start."""
    memory = tables.memory_ops
    host = memory.c.source_memory if direction == "Host-to-Device" else memory.c.target_memory
    time = sa.func.sum(duration(memory))
    shares = [
        sa.func.coalesce(time.filter(condition), 0) * 2 > time
        for condition in (host == "Pageable", host == "Pinned", _is_apart(case))
    ]
    query = sa.select(*shares).where(*where(memory, case.scope), memory.c.operation == operation)
    ((is_pageable, is_pinned, is_apart),) = case.job.session.rows(query.where(memory.c.end.is_not(None)))
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
