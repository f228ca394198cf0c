"""GPU memory: allocation after the warm-up, how full it is, unified memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import DEVICE, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import counted
from nsystui.base.types import Condition, Flags, Ints
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import Intervals, merge, union
from nsystui.questions.blocking.dependencies import MIGRATIONS
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.host.attribution import attribute
from nsystui.questions.host.causes import ALLOCATING, ALLOCATIONS
from nsystui.questions.host.idle_spans import IdleSpan
from nsystui.questions.host.time_budget import steady_start
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.time_window import report_at
from nsystui.questions.triage.case import CUDA_TABLES, Case, by_framework, bytes_words, rank_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rule import BY_CPU, BY_MIGRATIONS, IDLE, WORK, FindingKind, rule
from nsystui.questions.triage.rules.launches import idle_after
from nsystui.questions.triage.rules.once import CALL_COLUMNS, HOST_CALLS, longest_calls
from nsystui.store import tables

if TYPE_CHECKING:
    from nsystui.questions.memory.gpu_memory import DevicePeak


def advice(case: Case) -> Advice:
    """Return advice on calls that allocate and free."""
    how = by_framework(
        case,
        "Allocate before the loop, or from a pool: cudaMallocAsync, a caching allocator.",
        pytorch="Allocate before the loop. Where the caching allocator frees memory and retries, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or use a smaller batch.",
    )
    return Advice(how, "cudaMalloc and cudaFree block the CPU, and cudaFree waits for the whole device.")


@dataclass(frozen=True, eq=False)
class _Calls:
    """Calls that allocate or free GPU memory, by start: job time, and names."""

    starts: Ints
    ends: Ints
    names: NDArray[np.object_]

    def of(self, rows: Flags) -> _Calls:
        return _Calls(self.starts[rows], self.ends[rows], self.names[rows])

    @property
    def covered(self) -> Intervals:
        return union(self.starts, self.ends)

    @property
    def waiting(self) -> Intervals:
        """The times of calls that wait for the device."""
        return self.of(np.array(["Free" in name and "Async" not in name for name in self.names], bool)).covered


@rule(70, IDLE | {"api_calls", "nvtx_ranges"}, FindingKind("allocator-churn", "GPU memory allocation", BY_CPU))
def allocator_churn(case: Case) -> Sequence[Finding | NotChecked]:
    """Find idle time in calls that allocate and free GPU memory, and after calls that free.

    See docs/numbers.md#allocator-churn. `first_use` finds page-locked host memory.
    """
    if not case.job.session.count(tables.api_calls) or not case.devices:
        return [NotChecked("allocator-churn", f"needs GPU work and CUDA API calls: {case.record(*CUDA_TABLES)}")]
    calls: dict[Task, _Calls] = {}
    calls_by_task = _calls(case)
    idle_spans: list[IdleSpan] = []
    whole_gaps: set[tuple[Task, int, int]] = set()
    for device in case.devices:
        begin, end = _steady(case, device)
        users = [(task, calls_by_task[task]) for task in device.tasks & calls_by_task.keys()]
        inside = [(task, item.of((item.starts >= begin) & (item.starts < end))) for task, item in users]
        steady = {task: steady for task, steady in inside if len(steady.starts) >= case.thresholds.churn_calls}
        calls |= steady
        covered = merge(*(task_calls.covered for task_calls in steady.values()))
        gaps = [span._replace(start=max(span.start, begin)) for span in case.idle_spans(device, covered)]
        short = [(span.start, span.end) for span in gaps if span.length < case.thresholds.gap_ms * 1e6]
        short_gaps = Intervals(*np.array(short, np.int64).reshape(-1, 2).T)
        after_free = merge(*(idle_after(short_gaps, task_calls.waiting) for task_calls in steady.values()))
        whole_gaps |= {(*device.device.key, start) for start in after_free.starts.tolist()}
        idle_spans += gaps
    attribution = attribute(case.job, idle_spans)
    allocates = [cause.kind == ALLOCATING and not cause.what.startswith(HOST_CALLS) for cause in attribution.causes]
    is_allocation = np.array(allocates, bool)[attribution.cause]
    spent = np.bincount(attribution.span[is_allocation], attribution.time[is_allocation], len(idle_spans))
    is_whole = [(span.task, span.device, span.start) in whole_gaps for span in idle_spans]
    cost = case.mean(np.where(is_whole, [span.length for span in idle_spans], spent).tolist())
    if not cost or case.percent(cost) < case.thresholds.churn_percent:
        return []
    return [_allocator_churn_finding(case, calls, cost)]


def of_device_memory(name: sa.ColumnElement[str]) -> list[Condition]:
    """Return conditions on the ``name`` of calls that allocate or free GPU memory."""
    is_any = sa.or_(*(name.contains(word) for word in ALLOCATIONS))
    return [is_any, *(sa.not_(name.startswith(host)) for host in HOST_CALLS)]


def _calls(case: Case) -> Mapping[Task, _Calls]:
    calls = tables.api_calls
    name = calls.c.name
    times = job_start(calls).label("start"), job_end(calls).label("end")
    query = sa.select(calls.c.report, calls.c.process, *times, name).where(*where(calls, case.scope))
    columns = case.job.session.arrays(query.where(calls.c.end.is_not(None), *of_device_memory(name)))
    all_calls = _Calls(columns["start"].astype(np.int64), columns["end"].astype(np.int64), columns["name"])
    return {
        task: all_calls.of((columns["report"] == task.report) & (columns["process"] == task.process))
        for task in sorted(case.tasks)
    }


def _steady(case: Case, device: DeviceIntervals) -> tuple[int, int]:
    """Return a GPU's time from the end of its warm-up to its last operation."""
    window = case.window_of(device)
    worked, skipped = device.worked(window) or window, int(case.thresholds.warm_up_steps)
    steps = [case.steps[task] for task in device.tasks if task in case.steps]
    begins = [int(times.start[skipped]) for times in steps if len(times) > skipped]
    return max(begins) if begins else steady_start(device, worked, None), worked.end


def _allocator_churn_finding(case: Case, calls: Mapping[Task, _Calls], cost: int) -> Finding:
    rows: list[Row] = []
    for task, task_calls in calls.items():
        names, inverse = np.unique(task_calls.names.astype(str), return_inverse=True)
        counts, times = np.bincount(inverse), np.bincount(inverse, task_calls.ends - task_calls.starts)
        totals = zip(names.tolist(), counts.tolist(), times.tolist(), strict=True)
        rows += [(case.rank_of[task], name, count, round(time)) for name, count, time in totals]
    rows.sort(key=lambda row: (-int(row[3] or 0), str(row)))
    total = sum(len(task_calls.starts) for task_calls in calls.values())
    steps = [len(case.steps[task]) - int(case.thresholds.warm_up_steps) for task in calls if task in case.steps]
    per_step = f", {total / sum(steps):.1f} per step" if len(steps) == len(calls) and min(steps) > 0 else ""
    sentence = (
        "The GPU idles in calls that allocate and free GPU memory (after the warm-up; during and after the calls): "
        f"{time_words(cost)} per GPU ({counted(total, 'call')}{per_step}; {longest_calls(rows)})."
    )
    measured = (
        "Idle time in these calls after the first steps, without page-locked host memory. Gaps below "
        f"{case.thresholds.gap_ms:g} ms that begin in a cudaFree and outlast it count whole. The mean is over the GPUs."
    )
    ranks = tuple(sorted({case.rank_of[task] for task in calls}))
    door, evidence = Door("gaps", filter=ALLOCATING), (CALL_COLUMNS, rows)
    return case.finding("allocator-churn", sentence, advice(case), door, cost, measured, evidence, ranks=ranks)


_NO_MEMORY = 2
"""cudaErrorMemoryAllocation, and CUDA_ERROR_OUT_OF_MEMORY of the driver."""
_SHOWN = 40
"""The number of largest allocations in the evidence."""


@rule(230, frozenset({"gpu_memory", "devices", "api_calls"}), FindingKind("memory-full"))
def device_memory(case: Case) -> Sequence[Finding | NotChecked]:
    """Find GPU memory use close to the size of the device, and failed allocations (docs/numbers.md#gpu-memory)."""
    if not case.job.session.count(tables.gpu_memory):
        return [NotChecked("memory-full", f"needs {canonical.GPU_MEMORY.what}: {case.record(canonical.GPU_MEMORY)}")]
    from nsystui.questions.memory.gpu_memory import device_peaks

    peaks = device_peaks(case.job, case.scope)
    if not peaks:
        return [NotChecked("memory-full", "needs the memory size of the GPUs: the exports do not have it")]
    full = [peak for peak in peaks if 100 * peak.peak >= case.thresholds.memory_high * peak.total]
    return [_device_memory_finding(case, full, len(peaks), _failures(case))] if full else []


def _failures(case: Case) -> str:
    """Return a sentence on failed GPU allocations and successful retries; empty if none failed."""
    calls = tables.api_calls
    if not case.job.session.count(calls):
        return ""
    conditions = [*where(calls, case.scope), *of_device_memory(calls.c.name)]
    thread_columns = (calls.c.report, calls.c.thread)
    failing = sa.select(*thread_columns).where(*conditions, calls.c.return_value == _NO_MEMORY).distinct().subquery()
    query = sa.select(*thread_columns, calls.c.name, calls.c.return_value).where(*conditions)
    query = query.join(failing, sa.and_(failing.c.report == calls.c.report, failing.c.thread == calls.c.thread))
    failed = retried = freed = 0
    pending: dict[tuple[int, int], int] = {}
    for report, thread, name, value in case.job.session.rows(query.order_by(job_start(calls), calls.c.row)):
        key = (report, thread)
        if value == _NO_MEMORY:
            failed += 1
            pending.setdefault(key, 0)
        elif key in pending and "Free" in name:
            pending[key] += 1
        elif key in pending:
            retried += 1
            freed += pending.pop(key)
    if not failed:
        return ""
    retry = f" A retry succeeded {counted(retried, 'time')}, after {counted(freed, 'call')} that freed memory."
    return f" {counted(failed, 'allocation')} failed." + (retry if retried else "")


def _device_memory_finding(case: Case, full: Sequence[DevicePeak], gpus: int, failures: str) -> Finding:
    from nsystui.questions.memory.gpu_allocations import AT_PEAK, allocation_table
    from nsystui.questions.memory.gpu_memory import ON_DEVICE

    worst = full[0]
    percent = 100 * worst.peak / worst.total
    is_warning = percent >= case.thresholds.memory_full or failures
    whose = rank_words({case.rank_of[gpu.task] for gpu in worst.places if gpu.task in case.rank_of}, case.ranks)
    sentence = (
        f"GPU memory use peaks at {bytes_words(worst.peak)} of {bytes_words(worst.total)} ({percent:.0f} %) at "
        f"{time_words(worst.time)} ({whose}). The peak has {counted(len(worst.sizes), 'allocation')}, the largest "
        f"{bytes_words(max(worst.sizes, default=0))}."
    )
    if len(full) > 1:
        sentence += f" {len(full)} of {gpus} GPUs use {case.thresholds.memory_high:g} % or more."
    sentence += failures
    setting = by_framework(case, "", pytorch=" (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)")
    advice = Advice(
        "Look at the allocations at the peak (`nsystui gpu-memory --allocations at-peak`). Use smaller batches, "
        f"recomputed activations or sharded states, or reduce fragmentation{setting}.",
        "An allocator that gets no memory frees its cache and retries, which makes the GPU wait, or the job fails. "
        "A caching allocator may also hold more than it needs.",
    )
    measured = (
        "The most memory that allocations of all processes on the GPU used at once. Contexts, code, libraries and "
        "allocations before the recording add to it."
    )
    table = allocation_table(case.job, case.scope.with_tasks(frozenset(gpu.task for gpu in worst.places)), AT_PEAK)
    devices = {gpu.device for gpu in worst.places}
    rows = [row for row in table.rows if row[1] in devices and row[2] in ON_DEVICE]
    ranks = {case.rank_of[gpu.task] for peak in full for gpu in peak.places if gpu.task in case.rank_of}
    return Finding(
        "memory-full", Severity.WARNING if is_warning else Severity.INFO, sentence, advice, Door("GPU memory"),
        measured=measured, evidence=TableAnswer("memory-full", table.columns, rows[:_SHOWN], len(rows)),
        window=Window(worst.time, worst.time + 1), ranks=tuple(sorted(ranks)),
    )  # fmt: skip


_PREFETCH = Advice(
    "Prefetch the pages that a kernel will read (cudaMemPrefetchAsync), advise where data belong (cudaMemAdvise), "
    "or use cudaMalloc and copies.",
    "A fault moves single pages and stops the threads that need them. A prefetch moves all pages at link speed.",
)
_PREFETCHED = Advice(
    "Call cudaMemPrefetchAsync earlier, or on another stream, so that kernels hide the transfers. Record GPU page "
    "faults (--cuda-um-gpu-page-faults=true) to see pages that are not prefetched.",
    "The program prefetches pages: a kernel waits for the prefetch before it in its stream.",
)
_COLUMNS = (
    RANK, DEVICE.with_importance(1),
    Column("time", header="Faults and Migrations (ns)", label="time", unit=Unit.DURATION),
    Column("gpu_faults", header="GPU Page Faults", label="GPU faults", unit=Unit.COUNT),
    Column("migrated", header="Migrated", label="migrated", unit=Unit.BYTES),
    Column("cpu_faults", header="CPU Page Faults of the Process", label="CPU faults", unit=Unit.COUNT, importance=1),
)  # fmt: skip


_UNIFIED = FindingKind("unified-memory", "unified memory faults and migrations", BY_MIGRATIONS)


@rule(330, WORK | {"gpu_page_faults", "cpu_page_faults"}, _UNIFIED)
def unified_memory(case: Case) -> Sequence[Finding | NotChecked]:
    """Find unified memory that moves while it is used: page faults of the GPU, and the migrations they cause.

    A kernel that touches a page outside of its GPU stops until the page arrives: the cost is the whole union of fault
    groups and migrations, also inside kernels. CPU page faults have no length.
    """
    session, memory, faults = case.job.session, tables.memory_ops, tables.gpu_page_faults
    moved = spans(case, memory, [memory.c.copy_kind.in_(MIGRATIONS)], by="device") if session.count(memory) else None
    fault_groups = spans(case, faults, by="device") if session.count(faults) else None
    if not (moved and moved.count) and not (fault_groups and fault_groups.count):
        how = case.record(canonical.GPU_PAGE_FAULTS, canonical.CPU_PAGE_FAULTS, together=True)
        return [NotChecked("unified-memory", f"needs a job that uses unified memory, and its page faults: {how}")]
    rows: list[tuple[int, int, int, int | None, int, int | None]] = []
    inside = 0
    for device in case.devices:
        gpu, window = device.device, case.window_of(device)
        parts = [kind.of(*gpu.key) for kind in (moved, fault_groups) if kind is not None]
        moving = merge(*parts).clip(window.start, window.end)
        inside += device.parts.kernels.shared_with(moving) + device.parts.exposed_graph.shared_with(moving)
        rows.append((gpu.task.rank, gpu.device, moving.length, *_sums(case, device)))
    cost = case.mean(row[2] for row in rows)
    if not rows or case.percent(cost) < case.thresholds.unified_percent:
        return []
    rows.sort(key=lambda row: (-row[2], str(row[:2])))
    _, _, times, of_gpu, sizes, of_cpu = zip(*rows, strict=True)
    sentence = (
        f"Unified memory migrates {bytes_words(sum(sizes))}: faults and migrations take {time_words(cost)} per GPU, "
        f"{_faults('GPU', of_gpu)} and {_faults('CPU', of_cpu)}. "
        f"Kernels run for {100 * inside / sum(times):.0f} % of this time"
        f"{' and may wait for pages' * bool(inside)}."
    )
    measured = "Union of GPU fault groups and migrations, also inside kernels. The mean is over the GPUs."
    door, evidence = Door("memory", filter="Unified"), (_COLUMNS, rows)
    return [case.finding("unified-memory", sentence, migration_advice(case), door, cost, measured, evidence)]


def migration_advice(case: Case) -> Advice:
    """Return advice on migrations of unified memory, which depends on whether the program prefetches pages."""
    calls, session = tables.api_calls, case.job.session
    query = sa.select(calls.c.row).where(*where(calls, case.scope), calls.c.name.contains("MemPrefetch")).limit(1)
    return _PREFETCHED if session.rows(query) and not session.count(tables.gpu_page_faults) else _PREFETCH


def _faults(side: str, counts: Sequence[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return counted(sum(known), f"{side} page fault") if known else f"{side} page faults not recorded"


def _sums(case: Case, gpu: DeviceIntervals) -> tuple[int | None, int, int | None]:
    """Sum `_counts` over the processes of a GPU."""
    counts = zip(*(_counts(case, item.task.task, item.device) for item in gpu.devices), strict=True)
    known = [[count for count in of_all if count is not None] for of_all in counts]
    of_gpu, migrated, of_cpu = (sum(values) if values else None for values in known)
    return of_gpu, migrated or 0, of_cpu


def _counts(case: Case, task: Task, device: int) -> tuple[int | None, int, int | None]:
    """Return GPU page faults, migrated bytes, CPU page faults (of the process); ``None``: not recorded."""
    session, memory = case.job.session, tables.memory_ops
    gpu, cpu = tables.gpu_page_faults, tables.cpu_page_faults

    def read(table: sa.Table, value: sa.ColumnElement[int], *conditions: Condition) -> int | None:
        if not report_at(session, task.report).has(table):
            return None
        selection = case.scope.with_tasks(frozenset({task}))
        query = sa.select(sa.func.coalesce(value, 0)).select_from(table).where(*where(table, selection), *conditions)
        return int(session.scalar(query) or 0)

    is_migration = memory.c.copy_kind.in_(MIGRATIONS), memory.c.device == device
    migrated = read(memory, sa.func.sum(memory.c.bytes), *is_migration)
    gpu_faults = read(gpu, sa.func.sum(gpu.c["count"]), gpu.c.device == device)
    return gpu_faults, migrated or 0, read(cpu, sa.func.count())
