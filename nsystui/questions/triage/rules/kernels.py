"""Times of kernels: a dominant kernel, tensor activity, pace during the run, outliers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import counted, shorten
from nsystui.exports import canonical
from nsystui.questions.blocking.dependencies import MIGRATIONS
from nsystui.questions.gpu.metrics import MetricSource, metric_lanes, metric_sources
from nsystui.questions.queries.communication import communicates
from nsystui.questions.queries.conditions import duration, job_start, of_reports, where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.triage import kernel_times
from nsystui.questions.triage.case import Case, rank_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_times import Kernel, KernelLaunches
from nsystui.questions.triage.rule import BY_COMPUTE, WORK, FindingKind, rule
from nsystui.questions.triage.rules.memory import migration_advice
from nsystui.store import tables

_DOOR = Door("kernels")


@rule(240, frozenset({"kernels"}), FindingKind("dominant-kernel"))
def dominant_kernel(case: Case) -> Sequence[Finding | NotChecked]:
    """Find a kernel (full name with template arguments) with most of the compute time."""
    from nsystui.base.kernel_names import smart_names

    table = tables.kernels
    session = case.job.session
    if not session.count(table):
        return [NotChecked("dominant-kernel", f"needs kernels: {case.record(canonical.KERNELS)}")]
    time = sa.func.sum(duration(table)).label("time")
    full_name = sa.func.coalesce(table.c.name, table.c.short_name, "").label("full_name")
    query = (
        sa.select(full_name, time, sa.func.count())
        .where(*where(table, case.scope), sa.not_(communicates(case.communicating)), table.c.end.is_not(None))
        .group_by(full_name)
        .order_by(time.desc(), full_name)
    )
    rows = of_all_reports(session, case.scope, table, "kernels by full name", lambda: session.rows(query))
    total = sum(int(time) for _, time, _ in rows)
    if not total:
        return []
    name, spent, count = rows[0]
    if 100 * int(spent) < case.thresholds.dominant_percent * total:
        return []
    running = spans(case, table, [full_name == name], by="device").merged
    cost = case.mean(part.length for part in running.values())
    if case.percent(cost) < case.thresholds.dominant_cost_percent:
        return []
    short_name, share = smart_names(name for name, *_ in rows)[name] or "(no name)", 100 * int(spent) / total
    sentence = (
        f"Kernel {shorten(short_name, 48)} takes {share:.0f} % of the kernel time "
        f"without {case.communication}. {case.each_gpu} spends {time_words(cost)} in this kernel "
        f"({counted(count, 'launch')})."
    )
    advice = Advice("Profile this kernel with Nsight Compute (ncu).", "No other kernel can save as much time.")
    from nsystui.questions.kernels.summary import Names, kernel_summary

    evidence = kernel_summary(session, case.scope, Names.SMART)
    measured = "Time in which launches of this kernel run. Mean over the GPUs."
    line, severity = f"{shorten(short_name, 30)}: {share:.0f} % of kernel time", Severity.INFO
    return [case.finding("dominant-kernel", sentence, advice, _DOOR, cost, measured, evidence, severity, line=line)]


_BUSY = 50.0
_TENSOR_ACTIVITY_COLUMNS = (
    Column("report", header="Report", label="report"),
    Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER),
    Column("sm", header="SMs Active (%)", label="SM active", unit=Unit.PERCENT, decimals=1),
    Column("tensor", header="Tensor Active (%)", label="tensor active", unit=Unit.PERCENT, decimals=1),
)


_FAMILIES = ("SM active", "tensor active")


@rule(290, WORK | {"gpu_metrics"}, FindingKind("tensor-activity"))
def tensor_activity(case: Case) -> Sequence[Finding | NotChecked]:
    """Find tensor cores that hardly work on a busy GPU, if GPU metrics were sampled."""
    session = case.job.session
    means_by_gpu: dict[tuple[int, int], dict[str, float]] = {}
    sources_by_window: dict[Window, list[MetricSource]] = {}
    for source in metric_sources(session, case.scope):
        if source.family in _FAMILIES:
            sources_by_window.setdefault(case.windows[source.report], []).append(source)
    for window, window_sources in sources_by_window.items():
        for lane in metric_lanes(session, case.scope, window, 1, window_sources):
            if lane.mean is not None:
                means_by_gpu.setdefault((lane.source.report, lane.source.gpu), {})[lane.source.family] = lane.mean
    complete = {gpu: means for gpu, means in means_by_gpu.items() if len(means) == 2}
    if not complete:
        why = f"needs GPU metrics with tensor activity: {case.record(canonical.GPU_METRICS)}"
        return [NotChecked("tensor-activity", why)]
    busy = np.array([[means[family] for family in _FAMILIES] for means in complete.values()])
    busy = busy[busy[:, 0] >= _BUSY]
    if not len(busy) or busy[:, 1].mean() >= case.thresholds.tensor_percent:
        return []
    active, tensor = busy.mean(axis=0).tolist()
    sentence = f"Tensor cores are active {tensor:.1f} % of the time; SMs are active {active:.0f} %."
    advice = Advice(
        "For matrix products, use BF16, FP16 or TF32, and sizes that are multiples of 8.",
        "Tensor cores deliver most FLOPs of a GPU; other work does not need tensor cores.",
    )
    names, means_of = {report.index: report.name for report in case.reports}, sorted(complete.items())
    rows = [(names.get(report), gpu, *(means[family] for family in _FAMILIES)) for (report, gpu), means in means_of]
    evidence = TableAnswer("tensor-activity", _TENSOR_ACTIVITY_COLUMNS, rows, len(rows))
    return [Finding("tensor-activity", Severity.INFO, sentence, advice, Door("gpu"), evidence=evidence)]


_THIRD = kernel_times.PARTS // 3
_CLOCK_FELL = 0.03
_PACE = (
    RANK, DEVICE.with_importance(2), Column("lost", header="Lost (ns)", label="lost", unit=Unit.DURATION),
    Column("count", header="Launches", label="launches", unit=Unit.COUNT, importance=1),
    Column("first", header="First Third (ns)", label="first third", unit=Unit.DURATION, decimals=0),
    Column("last", header="Last Third (ns)", label="last third", unit=Unit.DURATION, compared="first", decimals=0),
    Column("kernel", header="Kernel", label="kernel"),
)  # fmt: skip


@rule(340, frozenset({"kernels", "gpu_metrics"}), FindingKind("slow-pace", "kernels that slow down", BY_COMPUTE))
def kernel_pace(case: Case) -> Sequence[Finding | NotChecked]:
    """Find kernels that slow down during the run."""
    launches = [kernel for kernel in kernel_times.kernel_launches(case) if kernel.count >= kernel_times.FEWEST]
    if not launches:
        return [NotChecked("slow-pace", f"needs a kernel that a GPU runs {kernel_times.FEWEST} times or more")]
    return _slower(case, launches)


@dataclass(frozen=True)
class _Pace:
    """Medians of the part means in the first and last third, and the time above the first median; ns."""

    launches: KernelLaunches
    first: float
    last: float
    lost: int


def _slower(case: Case, launches: Sequence[KernelLaunches]) -> list[Finding]:
    paces = list(_paces(launches, case.thresholds.pace_growth))
    cost = case.mean(pace.lost for pace in paces)
    if not paces or case.percent(cost) < case.thresholds.pace_percent:
        return []
    weights = np.array([pace.launches.total for pace in paces], float)
    growth = float(np.average([100 * (pace.last / pace.first - 1) for pace in paces], weights=weights))
    ranks = sorted({case.rank_of[pace.launches.task] for pace in paces if pace.launches.task in case.rank_of})
    clock = _clock(case)
    whose = f" on {rank_words(ranks, case.ranks)}" if len(ranks) < len(case.ranks) else ""
    sentence = (
        f"Kernels slow down during the run{whose}: the same launches take {growth:.0f} % longer in the last third than "
        f"in the first. {case.each_gpu} loses {time_words(cost)}."
    )
    advice = Advice(
        "Look at clocks, power and temperature over the run (--gpu-metrics-devices=all records clocks), or at inputs "
        "that grow.",
        "The same grid on the same GPU takes longer only if the clock falls or the data change.",
    )
    if clock is not None and clock[1] < (1 - _CLOCK_FELL) * clock[0]:
        sentence += f" The GPU clock falls from {clock[0]:,.0f} to {clock[1]:,.0f} MHz."
        advice = Advice(
            "Look at power cap, temperature and cooling (nvidia-smi -q -d PERFORMANCE), or lock the clocks.",
            "Kernels slow down as the clock falls: the GPU throttles.",
        )
    paces.sort(key=lambda pace: (-pace.lost, pace.launches.kernel.words))
    rows: list[Row] = []
    for pace in paces:
        rank, gpu = case.rank_of.get(pace.launches.task), pace.launches
        rows.append((rank, gpu.device, pace.lost, gpu.count, pace.first, pace.last, gpu.kernel.words))
    measured = (
        "Time of the launches above the usual time of the first third (same name, grid and block; medians of parts). "
        "Only kernels that slow down from third to third. Mean over the GPUs."
    )
    evidence = _PACE, rows
    return [case.finding("slow-pace", sentence, advice, _DOOR, cost, measured, evidence, ranks=tuple(ranks))]


def _paces(launches: Sequence[KernelLaunches], growth: float) -> Iterator[_Pace]:
    """Yield kernels that slow down from third to third, in all by at least ``growth`` percent."""
    complete = [kernel for kernel in launches if (np.isfinite(kernel.means).reshape(3, _THIRD).sum(axis=1) >= 2).all()]
    thirds = np.array([kernel.means for kernel in complete]).reshape(len(complete), 3, _THIRD)
    for kernel, (first, middle, last) in zip(complete, np.nanmedian(thirds, axis=2).tolist(), strict=True):
        if last >= (1 + growth / 100) * first and first <= middle <= last:
            lost = np.maximum(kernel.totals - kernel.counts * first, 0).sum()
            yield _Pace(kernel, first, last, int(lost))


def _clock(case: Case) -> tuple[float, float] | None:
    """Return the mean GPU clock in the first and last third of the run, MHz, if sampled."""
    table = tables.gpu_metrics
    bounds = list(kernel_times.part_bounds(case).values())
    if not case.job.session.count(table) or not bounds:
        return None
    lo, hi = min(start for start, _ in bounds), max(end for _, end in bounds)
    third, time = (hi - lo) // 3, table.c.time + table.c.clock_offset
    is_first, is_last = time.between(lo, lo + third), time.between(hi - third, hi)
    is_clock = table.c.metric.startswith("GPC Clock Frequency")
    reports = of_reports(table.c.report, {report.index for report in case.reports})
    query = sa.select(*(sa.func.avg(table.c.value).filter(third) for third in (is_first, is_last)))
    ((first, last),) = case.job.session.rows(query.where(reports, is_clock))
    if first is None or last is None:
        return None
    scale = 1e-6 if first > 1e6 else 1.0  # before schema 3.13 in Hz
    return scale * float(first), scale * float(last)


_RARE = 0.03
"""If a larger share of launches is long, on a GPU or on all, the kernel has two kinds of work, not outliers."""
_KERNEL_OUTLIERS_COLUMNS = (
    RANK, DEVICE.with_importance(2),
    Column("lost", header="Over the Usual (ns)", label="over usual", unit=Unit.DURATION),
    Column("count", header="Outliers", label="outliers", unit=Unit.COUNT),
    Column("launches", header="Launches", label="launches", unit=Unit.COUNT, importance=1),
    Column("usual", header="Usual (ns)", label="usual", unit=Unit.DURATION, compared="max", decimals=0),
    Column("mad", header="MAD (ns)", label="MAD", unit=Unit.DURATION, compared="max", decimals=0, importance=2),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION),
    Column("kernel", header="Kernel", label="kernel"),
)  # fmt: skip


class _Row(NamedTuple):
    rank: int | None
    device: int
    lost: int
    outliers: int
    launches: int
    usual: float
    mad: float
    max: int
    kernel: str


@rule(350, frozenset({"kernels"}), FindingKind("kernel-outliers", "rare slow launches", BY_COMPUTE))
def kernel_outliers(case: Case) -> Sequence[Finding | NotChecked]:
    """Find launches far longer than the median of their kernel (`kernel_times`)."""
    launches = [kernel for kernel in kernel_times.kernel_launches(case) if kernel.count >= kernel_times.FEWEST]
    if not launches:
        return [NotChecked("kernel-outliers", f"needs a kernel that a GPU runs {kernel_times.FEWEST} times or more")]
    suspects = _suspects(case, launches)
    if not suspects:
        return []
    limits = case.thresholds
    usual = kernel_times.spreads(case, suspects)
    above = {kernel: spread.above(limits.outlier, limits.outlier_score) for kernel, spread in usual.items()}
    launch_counts = {(gpu.task, gpu.device, gpu.kernel): gpu.count for gpu in launches}
    rows: list[_Row] = []
    worst = (0, 0)
    outliers = list(_outliers(case, above))
    outlier_counts, counts = Counter[Kernel](), Counter[Kernel]()
    for _, _, kernel, count, *_ in outliers:
        outlier_counts[kernel] += count
    for gpu in launches:
        counts[gpu.kernel] += gpu.count
    for task, device, kernel, count, time, longest, start in outliers:
        total, spread = launch_counts.get((task, device, kernel), 0), usual[kernel]
        if count <= _RARE * total and outlier_counts[kernel] <= _RARE * counts[kernel]:
            rank, lost = case.rank_of.get(task), round(time - count * spread.median)
            rows.append(_Row(rank, device, lost, count, total, spread.median, spread.mad, longest, kernel.words))
            if longest > worst[0]:
                worst = longest, start
    cost = case.mean(row.lost for row in rows)
    if not rows or case.percent(cost) < limits.outlier_percent:
        return []
    rows.sort(key=lambda row: (-row.lost, str(row)))
    return [_finding(case, rows, cost, Window(worst[1], sum(worst)))]


def _suspects(case: Case, launches: Sequence[KernelLaunches]) -> list[Kernel]:
    """Return the kernels whose outliers may cost more than the threshold, without reading single launches.

    An outlier is longer than the factor times the shortest. Rare launches cost at most as if each were the longest.
    """
    limits = case.thresholds
    shortest: dict[Kernel, int] = {}
    for gpu in launches:
        shortest[gpu.kernel] = min(gpu.shortest, shortest.get(gpu.kernel, gpu.shortest))
    slow = [gpu for gpu in launches if gpu.longest > limits.outlier * shortest[gpu.kernel]]
    upper_bound = case.mean(
        min(gpu.total - gpu.count * shortest[gpu.kernel], _RARE * gpu.count * (gpu.longest - shortest[gpu.kernel]))
        for gpu in slow
    )
    if not slow or case.percent(upper_bound) < limits.outlier_percent:
        return []
    kernels = list(dict.fromkeys(gpu.kernel for gpu in slow))
    times = kernel_times.tails(case, kernels, limits.outlier, limits.outlier_score, _RARE)
    is_worth_it = case.percent(case.mean(times.values())) >= limits.outlier_percent
    return [kernel for kernel, time in times.items() if time > 0] if is_worth_it else []


def _finding(case: Case, rows: Sequence[_Row], cost: int, span: Window) -> Finding:
    worst = rows[0]
    count = sum(row.outliers for row in rows)
    sentence = (
        f"{counted(count, 'launch')} took more than {case.thresholds.outlier:g} times the median of the same kernel. "
        f"{case.each_gpu} loses {time_words(cost)}. Rank {worst.rank} loses most, in {shorten(worst.kernel, 48)} "
        f"(up to {time_words(worst.max)} instead of {time_words(worst.usual)})."
    )
    advice = Advice(
        "Look at what ran at the same time (Timeline): other streams, copies, page faults, another process on the GPU.",
        "A launch takes longer if something else uses the GPU, if it waits for pages, or if its data is different.",
    )
    memory = tables.memory_ops
    moved = spans(case, memory, [memory.c.copy_kind.in_(MIGRATIONS)]) if case.job.session.count(memory) else None
    if moved and any(len(part.clip(span.start, span.end)) for part in moved.merged.values()):
        sentence += " Pages of unified memory move during the longest launch."
        advice = migration_advice(case)
    measured = (
        "Time of these launches above the median of their kernel (same name, grid and block). Only rare launches (3 % "
        f"or less) far outside of the spread (modified z-score {case.thresholds.outlier_score:g}). Mean over the GPUs."
    )
    ranks = tuple(sorted({row.rank for row in rows if row.rank is not None}))
    evidence = _KERNEL_OUTLIERS_COLUMNS, rows
    line = f"{shorten(worst.kernel, 20)}: {time_words(worst.max)} instead of {time_words(worst.usual)}"
    return case.finding(
        "kernel-outliers", sentence, advice, _DOOR, cost, measured, evidence, window=span, ranks=ranks, line=line
    )


def _outliers(case: Case, limits: Mapping[Kernel, float]) -> Iterator[tuple[Task, int, Kernel, int, int, int, int]]:
    """Yield task, device, kernel, and its launches above the limit: count, total time, longest time and its start."""
    table = tables.kernels
    keys, (is_given, given) = kernel_times.shape_columns(), kernel_times.given_kernels(limits)
    time, start = duration(table), job_start(table)
    gpu_columns = (table.c.report, table.c.process, table.c.device)
    spent = sa.cast(sa.func.sum(time), sa.BigInteger)
    is_steady = start >= kernel_times.begins(kernel_times.part_bounds(case))
    # The lowest limit excludes most rows before the join.
    are_long = [is_steady, time > min(limits.values()), time > given.c[kernel_times.LIMIT]]
    query = (
        sa.select(*gpu_columns, *keys, sa.func.count(), spent, sa.func.max(time), sa.func.arg_max(start, time))
        .join_from(table, given, is_given)
        .where(*kernel_times.conditions(case), *are_long)
        .group_by(*gpu_columns, *keys)
    )
    for report, process, device, name, *rest in case.job.session.rows(query):
        kernel = Kernel(str(name), tuple(int(size) for size in rest[:6]))
        count, total, longest, longest_start = (int(value) for value in rest[6:])
        yield Task(report, process), int(device), kernel, count, total, longest, longest_start
