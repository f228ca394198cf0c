"""Short idle gaps: late launches, launch-bound stretches, synchronising calls."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, DURATION, RANK, START, Column, Unit
from nsystui.base.selection import Selection, Window
from nsystui.base.text import counted
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import Intervals, Times, covered_per_bin, intersect, merge, slices, union
from nsystui.questions.gpu.device_time import Device, DeviceIntervals
from nsystui.questions.host.host_work import host_work
from nsystui.questions.host.idle_spans import IdleSpan
from nsystui.questions.kernels.activities import API, work_summary
from nsystui.questions.queries.conditions import is_launched_by, job_end, job_start, of_reports, where
from nsystui.questions.queries.process_rows import rows_by_gpu
from nsystui.questions.triage.case import CUDA_TABLES, Case, Place, by_framework, rank_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rule import BY_CPU, BY_LAUNCHES, IDLE, FindingKind, rule
from nsystui.questions.triage.rules.once import OVERHEAD_ADVICE, overhead_in
from nsystui.store import tables

_CHUNKS = 30
_LOW_UTILISATION_COLUMNS = (
    RANK, DEVICE.with_importance(1), START, DURATION,
    Column("idle", header="Idle in Short Gaps (ns)", label="short gaps", unit=Unit.DURATION),
)  # fmt: skip


_PACE = Advice(
    "Launch larger or fewer kernels there, or replay them as a CUDA graph. Look at what the CPU does between launches.",
    "Short gaps all the time come from the pace of the CPU, not from single events.",
)
_CAUSES = ("preempted", "allocator-churn", "launch-overhead", "host-bound", "launch-bound", "synchronising-calls")


@rule(110, IDLE, FindingKind("low-utilisation", "many short idle gaps", BY_LAUNCHES, symptom_of=_CAUSES))
def low_utilisation(case: Case) -> Sequence[Finding | NotChecked]:
    """Find stretches of many short gaps: nsys's ``gpu_time_util``, but with unions (docs/numbers.md#expert-rules)."""
    rows: list[tuple[int, int, int, int, int]] = []
    for device in case.devices:
        window, gpu = case.working(device), device.device
        width = max((window.end - window.start) / _CHUNKS, 1)
        # Long gaps belong to another finding.
        short = covered_per_bin(case.short_gaps(device), window.start, window.end, _CHUNKS)
        idle = covered_per_bin(case.gaps(device), window.start, window.end, _CHUNKS)
        is_low = (100 * (width - idle) < case.thresholds.low_busy_percent * width) & (short * 2 > idle)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], is_low, [False])).astype(np.int8)))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            start, length = round(window.start + first * width), round((last - first) * width)
            rows.append((gpu.task.rank, gpu.device, start, length, round(float(short[first:last].sum()))))
    cost = case.mean(idle for *_, idle in rows)
    if not rows or case.percent(cost) < case.thresholds.low_percent:
        return []
    rows.sort(key=lambda row: -row[-1])
    rank, _, start, length, _ = rows[0]
    window, ranks = Window(start, start + length), tuple(sorted({row[0] for row in rows}))
    sentence = (
        f"GPU utilisation is below {case.thresholds.low_busy_percent:g} % in {counted(len(rows), 'stretch')}. "
        f"Many short gaps in this time add up to {time_words(cost)} per GPU. "
        f"The worst stretch is on {rank_words([rank])} and lasts {time_words(length)}."
    )
    advice = _PACE
    if not case.job.session.count(tables.api_calls):
        text = f"To see whether the CPU launches late: {case.record(canonical.API_CALLS)}."
        advice = Advice(text, "The launches of these kernels were not recorded.")
    measured = (
        f"Gaps below {case.thresholds.gap_ms:g} ms in the 30ths of each GPU's time with low utilisation. "
        "The mean is over the GPUs."
    )
    door, evidence = Door("gpu", window=window), (_LOW_UTILISATION_COLUMNS, rows)
    return [
        case.finding("low-utilisation", sentence, advice, door, cost, measured, evidence, window=window, ranks=ranks)
    ]


_REPLAYED = Advice(
    "Launch each CUDA graph before the work ahead of it ends, or put more work into a graph.",
    "One launch starts many kernels: the GPU waits for the CPU between graphs, not between their kernels.",
)
_AT_ONCE = 1_000_000
_TIMES = ("launch", "called", "start", "end", "correlation")
_LAUNCH_OVERHEAD_COLUMNS = (
    RANK, DEVICE.with_importance(1),
    Column("launches", header="Launches", label="launches", unit=Unit.COUNT, importance=1),
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT, importance=1),
    Column("late", header="Late Launches", label="late launches", unit=Unit.COUNT),
    Column("waited", header="GPU Waited (ns)", label="GPU waited", unit=Unit.DURATION, compared="busy"),
    Column("launching", header="Until Launched (ns)", label="until launched", unit=Unit.DURATION, compared="busy"),
    Column("queue", header="Queue Delay Med (ns)", label="queue med", unit=Unit.DURATION, decimals=0),
    Column("kernel", header="Kernel Med (ns)", label="kernel med", unit=Unit.DURATION, decimals=0),
    Column("tiny", header="Tiny Kernels", label="tiny", unit=Unit.COUNT, importance=1),
)  # fmt: skip


_CAUSES_OF_WAITS = ("preempted", "allocator-churn", "host-bound", "synchronising-calls")


@rule(140, IDLE | {"api_calls"}, FindingKind("launch-overhead", "waiting for launches", BY_LAUNCHES, _CAUSES_OF_WAITS))
def launch_overhead(case: Case) -> Sequence[Finding | NotChecked]:
    """Find short gaps that end when the CPU has launched the next operation (docs/numbers.md#launches)."""
    session = case.job.session
    if not session.count(tables.kernels) or not session.count(tables.api_calls):
        return [NotChecked("launch-overhead", f"needs kernels and CUDA API calls: {case.record(*CUDA_TABLES)}")]
    idle = case.mean(case.short_gaps(device).length for device in case.devices)
    if case.percent(idle) < case.thresholds.launch_percent:
        return []  # cheaper than reading every launch
    waits, in_calls = dict[Place, Intervals](), dict[Place, Intervals]()
    rows = [row for devices in _portions(case) for row in _rows(case, devices, waits, in_calls)]
    if not rows:
        why = "needs the API calls that launched the kernels: this export lacks these calls"
        return [NotChecked("launch-overhead", why)]
    sums = np.array(rows)[:, [2, 3, 4, 5, 6, 9]].sum(axis=0).astype(int).tolist()
    launches, kernels, late, waited, launching, tiny = sums
    cost, starting = case.mean([waited]), case.mean([waited - launching])
    if case.percent(cost) < case.thresholds.launch_percent:
        return []
    sentence = (
        f"Waiting for launches costs {time_words(cost)} per GPU: the next kernel is launched only after the GPU goes "
        f"idle. This happens at {late:,} of {counted(launches, 'launch')}: {time_words(cost - starting)} pass until "
        f"the launching calls return (late launches), {time_words(starting)} until the kernels start (stalls). "
        f"{100 * tiny / kernels:.0f} % of the kernels take less than {case.thresholds.tiny_kernel_us:g} µs."
    )
    overhead, words = overhead_in(case, waits)
    sentence += f" CUDA overhead in this time: {words}." if words else ""
    advice = OVERHEAD_ADVICE if 2 * overhead > cost else _REPLAYED if kernels >= 2 * launches else None
    advice = advice or _advice(case, in_calls, cost - starting, starting)
    door = Door("kernels", report="cuda_kern_exec_sum")
    measured = (
        f"Gaps below {case.thresholds.gap_ms:g} ms that end with a kernel launched after the GPU went idle. "
        "The mean is over the GPUs."
    )
    return [case.finding("launch-overhead", sentence, advice, door, cost, measured, (_LAUNCH_OVERHEAD_COLUMNS, rows))]


def _advice(case: Case, in_calls: Mapping[Place, Intervals], launching: int, starting: int) -> Advice:
    """Return the advice: on calls that launch, on the CPU between them, or on the start of kernels. Times are ns."""
    how = by_framework(case, "", pytorch=" (torch.compile, fused optimizers)", jax=" (one jax.jit for the whole step)")
    text = f"Replay the work as a CUDA graph, or fuse kernels{how}."
    calling = case.mean(part.length for part in in_calls.values())
    if starting > launching:
        return Advice(text, "The GPU takes most of this time to start kernels that are launched already.")
    if 2 * calling < launching:
        reason = f"The calls that launch take only {100 * calling / launching:.0f} % of the time of late launches."
        return Advice(f"Let the CPU do less between launches (`nsystui gaps`). {text}", reason)
    reason = "A launch costs the CPU several µs whatever the kernel does, and these kernels end before the next launch."
    return Advice(text, reason)


def _portions(case: Case) -> Iterator[list[DeviceIntervals]]:
    """Yield the GPUs in portions of about `_AT_ONCE` kernels, to limit the memory of a query."""
    counts = {report.index: report.count(tables.kernels) for report in case.reports}
    portion: list[DeviceIntervals] = []
    kernels = 0
    for device in case.devices:
        portion.append(device)
        kernels += counts[device.device.task.task.report]
        if kernels >= _AT_ONCE:
            yield portion
            portion, kernels = [], 0
    if portion:
        yield portion


def _rows(
    case: Case, devices: Sequence[DeviceIntervals], late: dict[Place, Intervals], in_calls: dict[Place, Intervals]
) -> Iterator[tuple[float, ...]]:
    """Yield the row of each GPU with launches; add its gaps that wait for launches, and the launching calls in them."""
    launches = launches_of(case, devices)
    for device in devices:
        times, key = launches.get(device.device.key), device.device.key
        if times is not None:
            launch, called, start, end, correlation = times
            order = np.argsort(start, kind="stable")
            first = order[np.unique(correlation[order], return_index=True)[1]]  # not once a node of a graph
            waits, length = late_gaps(case, device, times), end - start
            late[key], in_calls[key] = waits, intersect(waits, union(launch, called))
            tiny = int((length < case.thresholds.tiny_kernel_us * 1e3).sum())
            medians = (float(np.median(times)) for times in (np.maximum(start - called, 0)[first], length))
            awaited = order[np.searchsorted(start, waits.ends, sorter=order)]
            launching = int((np.minimum(called[awaited], waits.ends) - waits.starts).sum())
            counts = len(first), len(start), len(waits), waits.length, launching
            yield (device.device.task.rank, device.device.device, *counts, *medians, tiny)


def late_gaps(case: Case, device: DeviceIntervals, launches: Sequence[Times]) -> Intervals:
    """Return a GPU's short gaps that end with a kernel launched after the gap began."""
    launch, _, start, *_ = launches
    order = np.argsort(start, kind="stable")
    gap_parts = []
    for (gaps,) in slices(case.short_gaps(device)):
        first = order[np.minimum(np.searchsorted(start, gaps.ends, sorter=order), len(order) - 1)]
        gap_parts.append(gaps.chosen((start[first] == gaps.ends) & (launch[first] >= gaps.starts)))
    return merge(*gap_parts)


def launches_of(case: Case, devices: Sequence[DeviceIntervals]) -> dict[Place, tuple[Times, ...]]:
    """Return start and end of launch calls and of kernels (job time, ns) and a number of each call, by GPU."""
    kernels, calls = tables.kernels, tables.api_calls
    owners = sorted(task for device in devices for task in device.tasks)
    reports = sorted({task.report for task in owners})
    values = job_start(calls), job_end(calls), job_start(kernels), job_end(kernels), kernels.c.correlation_id
    labelled = [column.label(name) for name, column in zip(_TIMES, values, strict=True)]
    query = sa.select(kernels.c.report, kernels.c.process, kernels.c.device, *labelled)
    query = query.join_from(kernels, calls, is_launched_by(kernels, calls))
    query = query.where(*where(kernels, case.scope.with_tasks(frozenset(owners))))
    # Without these, the rows of all other reports are read, too.
    query = query.where(of_reports(kernels.c.report, reports), of_reports(calls.c.report, reports))
    query = query.where(kernels.c.end.is_not(None), calls.c.end.is_not(None))
    begins = {device.device.key: case.working(device).start for device in devices}
    parts: dict[Place, list[list[Times]]] = {}
    for batch in case.job.session.array_batches(query):
        for (task, device), rows in rows_by_gpu(batch):
            gpu = case.gpu_of.get((task, device), (task, device))
            if gpu in begins:
                is_working = rows["end"] > begins[gpu]
                *times, ids = (rows[key][is_working] for key in _TIMES)
                parts.setdefault(gpu, []).append([*times, ids.astype(np.int64) + (owners.index(task) << 32)])
    return {
        gpu: tuple(np.concatenate(column) for column in zip(*batches, strict=True))
        for gpu, batches in parts.items()
        if sum(len(part[0]) for part in batches)
    }


_FEWEST = 100
"""The minimum number of kernels in a stretch."""
_LAUNCH_BOUND_COLUMNS = (
    RANK, DEVICE.with_importance(1), START, DURATION,
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT),
    Column("median", header="Kernel Med (ns)", label="kernel med", unit=Unit.DURATION, decimals=0),
    Column("busy", header="Busy (ns)", label="busy", unit=Unit.DURATION, importance=1),
    Column("waited", header="GPU Waited (ns)", label="GPU waited", unit=Unit.DURATION, compared="busy"),
    Column("late", header="Waiting for Launches (ns)", label="for launches", unit=Unit.DURATION,
        compared="busy").with_importance(1),
)  # fmt: skip


class _Stretch(NamedTuple):
    rank: int
    device: int
    start: int
    duration: int
    kernels: int
    median: float
    busy: int
    waited: int
    late: int


@rule(150, IDLE | {"api_calls"}, FindingKind("launch-bound", "launch-bound stretches", BY_LAUNCHES))
def launch_bound(case: Case) -> Sequence[Finding | NotChecked]:
    """Find launch-bound stretches, if waiting for launches costs too little for `launch_overhead`.

    A stretch is time of a GPU without a long gap. See docs/numbers.md#launches.
    """
    if not all(map(case.job.session.count, (tables.kernels, tables.api_calls))):
        return []  # `launch_overhead` reports it
    min_share, stretches, devices, worked, busy = case.thresholds.launch_bound_percent / 100, [], [], 0, 0
    for device in case.devices:
        group = [stretch for stretch in _stretches(case, device) if stretch.busy < (1 - min_share) * stretch.duration]
        worked += device.busy_in(case.working(device))
        busy += sum(stretch.busy for stretch in group)
        if group:
            stretches.append(group)
            devices.append(device)
    if not worked or busy < min_share * worked:
        return []  # cheaper than reading every launch
    launches = launches_of(case, devices)
    bound: list[_Stretch] = []
    for device, group in zip(devices, stretches, strict=True):
        times = launches.get(device.device.key)
        bound += _bound(case, device, group, times) if times is not None else ()
    cost = case.mean(stretch.waited for stretch in bound)
    late = case.percent(case.mean(stretch.late for stretch in bound))
    share = sum(stretch.busy for stretch in bound) / worked
    if late >= case.thresholds.launch_percent or share < min_share:
        return []
    return [_finding(case, bound, cost, share)]


def _stretches(case: Case, device: DeviceIntervals) -> Iterator[_Stretch]:
    worked = device.worked(case.working(device))
    if worked is None:
        return
    between = case.long_gaps(device).gaps(worked.start, worked.end)
    busy = between.ends * 0
    for part in device.parts.disjoint:
        busy += part.before(between.ends)[0] - part.before(between.starts)[0]
    for start, end, busy_time in zip(between.starts.tolist(), between.ends.tolist(), busy.tolist(), strict=True):
        yield _Stretch(device.device.task.rank, device.device.device, start, end - start, 0, 0.0, busy_time, 0, 0)


def _bound(
    case: Case, device: DeviceIntervals, stretches: Sequence[_Stretch], launches: Sequence[Times]
) -> Iterator[_Stretch]:
    """Yield stretches of many kernels in which the GPU waits long enough for launches."""
    _, _, start, end, _ = launches
    tiny = case.thresholds.tiny_kernel_us * 1e3
    late = late_gaps(case, device, launches)
    gaps = case.gaps(device)
    waits = merge(late, gaps.chosen(gaps.lengths < tiny))
    for stretch in stretches:
        until = stretch.start + stretch.duration
        inside = (start >= stretch.start) & (start < until)
        kernels = int(inside.sum())
        if kernels < _FEWEST:
            continue
        median, waited_late = float(np.median((end - start)[inside])), late.clip(stretch.start, until).length
        waited = waits.clip(stretch.start, until).length if median < tiny else waited_late
        if 100 * waited >= case.thresholds.launch_bound_percent * stretch.duration:
            yield stretch._replace(kernels=kernels, waited=waited, late=waited_late, median=median)


def _range(case: Case, device: Device, window: Window) -> str | None:
    """Return the launching thread's NVTX range at the launch of a window's first kernel."""
    kernels, calls, task = tables.kernels, tables.api_calls, device.task.task
    selection = Selection(window, frozenset({task}), frozenset({device.device}))
    query = sa.select(job_start(kernels), job_start(calls)).join_from(kernels, calls, is_launched_by(kernels, calls))
    query = query.where(*where(kernels, selection), job_start(kernels) >= window.start)
    rows = case.job.session.rows(query.order_by(job_start(kernels)).limit(1))
    # The launch is the middle of each span.
    around = [IdleSpan(*device.key, min(2 * launch, 2 * start - 1) - start, start) for start, launch in rows]
    works = host_work(case.job, around)
    return next((work.range_name for work in works), None)


def _finding(case: Case, stretches: Sequence[_Stretch], cost: int, share: float) -> Finding:
    worst = max(stretches, key=lambda stretch: (stretch.waited, -stretch.start))
    window = Window(worst.start, worst.start + worst.duration)
    devices = {(gpu.device.task.rank, gpu.device.device): gpu.device for gpu in case.devices}
    range_name = _range(case, devices[worst.rank, worst.device], Window(worst.start + worst.duration // 2, window.end))
    range_words = f", in NVTX range `{range_name}`," if range_name else ""
    total, waited, late, kernels = (
        sum(getattr(stretch, key) for stretch in stretches) for key in ("duration", "waited", "late", "kernels")
    )
    idle, is_late = (round(100 * part / total) for part in (waited, late))
    sentence = (
        f"{100 * share:.0f} % of the GPU work is launch-bound, in {counted(len(stretches), 'stretch')} "
        f"({time_words(total)}). Gaps between the {kernels:,} kernels take {idle} % of this time: {is_late} % "
        f"waiting for launches, {idle - is_late} % for kernel starts on the GPU. "
        f"The worst stretch{range_words} has a median kernel time of {time_words(worst.median)}."
    )
    advice = Advice(
        "Replay the loop as a CUDA graph, fuse kernels, or give each kernel more work.",
        "A launch costs the CPU several µs and the GPU one or two, while these kernels do little work.",
    )
    severity = Severity.WARNING if share >= 0.5 else Severity.INFO
    measured = (
        f"Gaps that end with a kernel launched after the GPU went idle, in stretches of {_FEWEST} kernels or more "
        f"without a gap of {case.thresholds.gap_ms:g} ms. Where the median kernel is below "
        f"{case.thresholds.tiny_kernel_us:g} µs, all gaps below that length count, too. The mean is over the GPUs."
    )
    rows = sorted(stretches, key=lambda stretch: (-stretch.waited, stretch))
    ranks = tuple(sorted({stretch.rank for stretch in stretches}))
    return case.finding(
        "launch-bound", sentence, advice, Door("timeline", window=window), cost, measured,
        (_LAUNCH_BOUND_COLUMNS, rows), severity, window=window, ranks=ranks,
    )  # fmt: skip


@rule(180, IDLE | {"api_calls"}, FindingKind("synchronising-calls", "idle time after synchronising calls", BY_CPU))
def synchronising_calls(case: Case) -> Sequence[Finding | NotChecked]:
    """Find idle time that begins while the CPU waits in a synchronising call (docs/numbers.md#expert-rules)."""
    if not case.job.session.count(tables.api_calls) or not case.devices:
        return [NotChecked("synchronising-calls", f"needs GPU work and CUDA API calls: {case.record(*CUDA_TABLES)}")]
    calls = spans(case, tables.api_calls, [tables.api_calls.c.name.contains("Synchronize")])
    # `idle_gaps` reports long gaps: the CPU did something else after the call.
    waits = [merge(*(idle_after(case.short_gaps(gpu), calls.of(task)) for task in gpu.tasks)) for gpu in case.devices]
    cost = case.mean(gaps.length for gaps in waits)
    if not cost or case.percent(cost) < case.thresholds.sync_percent:
        return []
    device, gaps = max(zip(case.devices, waits, strict=True), key=lambda pair: pair[1].length)
    longest = int(np.argmax(gaps.lengths))
    window = Window(int(gaps.starts[longest]), int(gaps.ends[longest]))
    sentence = (
        f"After synchronising calls, the GPU idles until new work arrives: {time_words(cost)} per GPU in "
        f"{counted(sum(map(len, waits)), 'gap')} ({counted(calls.count, 'synchronising call')}). "
        f"The longest gap is on rank {device.device.task.rank} and takes {time_words(window.end - window.start)}."
    )
    named = by_framework(case, "", pytorch=".item(), ", jax="block_until_ready, ")
    advice = Advice(
        f"Synchronise less often: no {named}print or timing in the loop. Let streams wait for events, not the CPU.",
        "The CPU launches nothing while it waits for the GPU, so the GPU idles until the next launch arrives.",
    )
    measured = (
        f"Idle gaps below {case.thresholds.gap_ms:g} ms that begin while the process is in a call named …Synchronize "
        "and outlast the call. The mean is over the GPUs."
    )
    door = Door("api", filter="Synchronize")
    evidence = work_summary(case.job.session, case.scope.with_name("Synchronize"), API)
    line, name = f"idle after {evidence.cells('name')[0]}, until work arrives", "synchronising-calls"
    return [case.finding(name, sentence, advice, door, cost, measured, evidence, window=window, line=line)]


def idle_after(gaps: Intervals, calls: Intervals) -> Intervals:
    """Return the gaps that begin inside a call and outlast it: the CPU waited for the GPU."""
    _, rest = calls.before(gaps.starts)
    return gaps.chosen((rest > 0) & (gaps.lengths > rest))
