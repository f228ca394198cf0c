"""GPUs that wait for input: long gaps in a data loader's range, or between steps."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.anchors import NVTX
from nsystui.base.answer import RANK, TID, Column, Row, Unit
from nsystui.base.selection import Task
from nsystui.base.text import counted
from nsystui.base.types import grouped
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect, merge, union
from nsystui.questions.host import causes
from nsystui.questions.host.attribution import PROFILERS
from nsystui.questions.host.causes import Cause
from nsystui.questions.host.functions import SampleGroup, function_counts, function_words, samples_of, top_function
from nsystui.questions.host.idle_spans import IdleSpan, spans_of
from nsystui.questions.host.naming import HostThread, named_threads
from nsystui.questions.host.segments import RUNNING
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.queries.conditions import job_start, where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.steps.task_steps import TaskSteps
from nsystui.questions.triage.case import Case, LateCause, Place, by_framework, by_place, once, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked
from nsystui.questions.triage.rule import BY_CPU, HOST_ACTIVITY, IDLE, FindingKind, rule
from nsystui.store import tables

_RANGES = (
    "dataload", "data load", "data_load", "load data", "load_data", "loading data", "data_iter",
    "next_batch", "next batch", "get_batch", "fetch_batch", "fetch batch", "load_batch", "load batch",
)  # fmt: skip
"""Words in names of ranges that read input."""
_WAITS = re.compile(r"poll|select|sem_|cond_|futex|mutex|recv|msgrcv|mq_")
_LOADS = re.compile(r"pin_memory|jpe?g|decode|imaging|collate|tokeniz|inflate|uncompress|resize", re.IGNORECASE)
"""Functions that prepare input."""
_PINS = re.compile(r"pin_?memory", re.IGNORECASE)
_PIN_THREAD = "pt_data_pin"
_HALF, _WORKS, _SEEN = 0.5, 0.1, 0.01
_FEWEST_STEPS = 20
_HOST_TO_DEVICE = 1
_CALLING = (
    causes.ALLOCATING, causes.SYNCHRONISING, causes.COPYING, causes.LAUNCHING, causes.OTHER_CALLS, causes.IN_OVERHEAD,
    causes.IN_MPI,
)  # fmt: skip
"""Causes of gaps that do not wait for input: CUDA and MPI calls."""

_COLUMNS = (
    RANK,
    Column("thread", header="Thread", label="thread"),
    TID.with_importance(1),
    Column("ran", header="Ran in the Gaps (%)", label="ran in the gaps", unit=Unit.PERCENT, decimals=1),
    Column("samples", header="Samples", label="samples", unit=Unit.COUNT),
    Column("pinning", header="In pin_memory", label="in pin_memory", unit=Unit.COUNT, importance=1),
    Column("function", header="Top Function", label="top function", importance=1),
)
_WAITS_FOR_DATA = "The launching thread waits, as the next batch is not ready when the GPU finishes the last one."
_IN_RANGE = "The range is open on the launching thread while the GPU idles; nothing else of that thread was recorded."
_PINNING = Advice(
    "Make batches cheaper to pin: smaller types, fewer and larger tensors, or workers that write to pinned memory.",
    "One thread pins all batches, and that thread is busy for most of the time while the GPU waits.",
)
_STORAGE = Advice(
    "Read ahead in workers, from files on a local disk, in a format that is read in large pieces.",
    "Files are read for most of the time while the GPU waits.",
)
_LOADS_ITSELF = "The launching thread prepares the input itself, and launches nothing meanwhile."


@dataclass(frozen=True)
class _Worker:
    """A thread in the gaps: its CPU samples, and its running share of the gap time (``None``: not recorded)."""

    thread: HostThread
    ran: float | None
    samples: int
    pinning: int
    function: str

    @property
    def pins(self) -> bool:
        return self.thread.name.startswith(_PIN_THREAD) or self.pinning > _HALF * self.samples > 0

    @property
    def name(self) -> str:
        return f"{self.thread.name} {self.thread.tid}"


@rule(40, IDLE | HOST_ACTIVITY, FindingKind("input-pipeline", "waiting for the data loader", BY_CPU))
def input_pipeline(case: Case) -> Sequence[Finding | NotChecked]:
    """Find long gaps that wait for input, in a data loader's range or between steps, and their causes.

    At least half of the gap is in a data loader's range of the launching thread. Or that thread waits, reads or
    prepares input for half of it, and the range is another thread's, or a copy from the host ends the gap, which is
    outside of steps. A gap mostly in CUDA or MPI calls does not count. See docs/numbers.md#input-pipeline.
    """
    if not case.devices:
        return [NotChecked("input-pipeline", f"needs GPU work: {case.record(canonical.KERNELS)}")]
    long_gaps = [case.long_gaps(device) for device in case.devices]
    if case.percent(case.mean(gaps.length for gaps in long_gaps)) < case.thresholds.input_percent:
        return []
    steps = case.job.steps(case.step_name).of_task
    if not steps and not _loading(case):
        need = "needs steps (`nsystui steps` says why there are none), or NVTX ranges of the data loader"
        return [NotChecked("input-pipeline", need)]
    in_range, between = _candidates(case, long_gaps, steps)
    candidates = [*in_range, *between]
    if case.percent(case.mean(span.length for span in candidates)) < case.thresholds.input_percent:
        return []
    idle_spans, spent, unknown = _waits(case, candidates, len(in_range))
    waited = dict.fromkeys((device.device.task.task for device in case.devices), 0)
    for span, length in idle_spans:
        waited[span.task] += length
    # A late rank counts as much as the others: `straggler` has the rest.
    late = {task for rank in case.late_ranks for task, cause in rank.causes.items() if cause is LateCause.LOADER}
    usual = np.median([time for task, time in waited.items() if task not in late] or [0])
    cost = case.mean(min(time, usual) if task in late else time for task, time in waited.items())
    if case.percent(cost) < case.thresholds.input_percent:
        if case.percent(case.mean([unknown])) < case.thresholds.input_percent:
            return []
        need = case.record(canonical.OS_CALLS, canonical.SCHED_EVENTS)
        return [NotChecked("input-pipeline", f"needs what the CPU did in the gaps between steps: {need}")]
    return [_finding(case, [span for span, _ in idle_spans], len(in_range), spent, cost)]


def _candidates(
    case: Case, long_gaps: Sequence[Intervals], steps: Mapping[Task, TaskSteps]
) -> tuple[list[IdleSpan], list[IdleSpan]]:
    """Return the long gaps mostly in a data loader's range, and between steps until a copy from the host begins."""
    in_range, between, starts_of_copies = [], [], _arrivals(case)
    for device, gaps in zip(case.devices, long_gaps, strict=True):
        users = [user.task.task for user in device.devices]
        task_steps = next((steps[user] for user in users if user in steps), None)
        inside = _inside(task_steps) if task_steps is not None else None
        arrivals = starts_of_copies.get(device.device.key, set())
        loads = loading_of(case, users)
        for span in spans_of(device.device.key, gaps):
            half, edges = _HALF * span.length, (span.start, span.end)
            if loads.clip(*edges).length >= half:
                in_range.append(span)
            elif inside is not None and inside.clip(*edges).length < half and span.end in arrivals:
                between.append(span)
    return in_range, between


def _waits(
    case: Case, candidates: Sequence[IdleSpan], in_range: int
) -> tuple[list[tuple[IdleSpan, int]], dict[str, int], int]:
    """Return the gaps that wait for input, each with its length, ns; their time by `_times`; and the unknown time.

    The first ``in_range`` candidates are in any thread's range of a data loader.
    """
    attribution, loading = case.long_gap_causes, _loading(case)
    indices = {span: index for index, span in enumerate(attribution.spans)}
    idle_spans, spent, unknown = [], Counter[str](), 0
    for position, span in enumerate(candidates):
        number = indices[span]
        time_by_cause = attribution.of_span(number)
        length = span.length - time_by_cause.pop(Cause(causes.PROFILER), 0)
        thread = attribution.launchers[attribution.launcher[number]]
        loads = loading.get((attribution.task(number), thread[1]), EMPTY) if thread else EMPTY
        is_own = position < in_range and loads.clip(span.start, span.end).length >= _HALF * length
        times = _times(time_by_cause, is_own)
        if sum(time for cause, time in time_by_cause.items() if cause.kind in _CALLING) > _HALF * length:
            continue
        if not is_own and sum(times.values()) < _HALF * length:
            unknown += length if all(cause.kind == causes.NOTHING for cause in time_by_cause) else 0
            continue
        idle_spans.append((span, length))
        spent.update(times)
    return idle_spans, spent, unknown


def _inside(steps: TaskSteps) -> Intervals:
    """Return the time in steps: on the CPU in their NVTX ranges, or on the GPU if operations mark steps."""
    return union(steps.starts, steps.ends) if steps.anchor == NVTX else union(steps.gpu.start, steps.gpu.end)


def _times(time_by_cause: Mapping[Cause, int], is_loading: bool) -> dict[str, int]:
    """Return the time by activity, ns; all code of a thread that ``is_loading`` prepares input."""
    times = dict.fromkeys(("waits", "reads", "prepares"), 0)
    for cause, time in time_by_cause.items():
        if cause.kind in (causes.OFF_CPU, causes.WAITING) or (
            cause.kind == causes.IN_OS and not cause.thread and _WAITS.search(cause.what)
        ):
            times["waits"] += time
        elif cause.kind == causes.IN_OS and cause.reads:
            times["reads"] += time
        elif cause.kind == causes.RUNNING_CODE and (is_loading or _LOADS.search(cause.what)):
            times["prepares"] += time
    return times


def loading_of(case: Case, tasks: Collection[Task]) -> Intervals:
    """Return when any thread of ``tasks`` was in a data loader's NVTX range."""
    return merge(*(intervals for (task, _), intervals in _loading(case).items() if task in tasks))


@once
def _loading(case: Case) -> Mapping[Place, Intervals]:
    """Return when each process and thread was in a data loader's NVTX range."""
    session, table = case.job.session, tables.nvtx_ranges
    if not session.count(table):
        return {}
    # One expression: a search for each word takes ten times as long.
    words = "|".join(_RANGES)
    pattern, is_named = re.compile(words, re.IGNORECASE), sa.func.regexp_matches(FOLDED_LABEL, words, "i")
    named = ((label,) for label in case.range_labels if pattern.search(label))
    if not of_all_reports(session, case.scope, table, "ranges of loaders", lambda: [*named][:1]):
        return {}
    return spans(case, table, [is_named], by="thread").merged


def _arrivals(case: Case) -> dict[Place, set[int]]:
    table = tables.memory_ops
    query = sa.select(table.c.report, table.c.process, table.c.device, job_start(table).label("start"))
    query = query.where(*where(table, case.scope), table.c.copy_kind == _HOST_TO_DEVICE)
    starts: dict[Place, set[int]] = {}
    for report, process, device, start in case.job.session.rows(query):
        user = Task(report, process), device
        starts.setdefault(case.gpu_of.get(user, user), set()).add(start)
    return starts


def _finding(case: Case, gaps: Sequence[IdleSpan], in_ranges: int, spent: Mapping[str, int], cost: int) -> Finding:
    workers = _workers(case, gaps)
    total = sum(span.length for span in gaps)
    pinning = next((worker for worker in workers if worker.pins), None)
    loaders = {item.thread.task: item for item in workers if item.thread.rank is None and (item.ran or 0) >= _WORKS}
    advice = _advice(case, gaps, spent, pinning)
    words = _words(case, workers, loaders, pinning, {key: 100 * time / total for key, time in spent.items()})
    window = max(gaps, key=lambda span: (span.length, -span.start)).window
    where_words = "in NVTX ranges of the data loader" if in_ranges else "between steps"
    gist, has_waited = "idle GPUs in ranges of the data loader", any(spent.values())
    verb, gist = ("waits", "waiting for the data loader") if has_waited else ("idles", gist)
    sentence = (
        f"{case.each_gpu} {verb} {time_words(cost)}{' for the data loader' * has_waited} "
        f"({counted(len(gaps), 'gap')} of {case.thresholds.gap_ms:g} ms or more, {where_words}). {words}"
    ).rstrip()
    rows: list[Row] = [
        (
            worker.thread.rank, worker.thread.name, worker.thread.tid, None if worker.ran is None else 100 * worker.ran,
            worker.samples, worker.pinning, worker.function or None,
        )
        for worker in workers
    ]  # fmt: skip
    measured = (
        "Gaps in a data loader's range, and gaps outside of every step while the launching thread waits or reads until "
        "a copy from the host begins. Mean over the GPUs."
    )
    gist += "" if pinning is None else f"'s pin_memory thread {pinning.name}"
    ranks = tuple(sorted({case.rank_of[span.task] for span in gaps}))
    return case.finding(
        "input-pipeline", sentence, advice, Door("timeline", window=window), cost, measured, (_COLUMNS, rows),
        window=window, ranks=ranks, gist=gist, times=by_place(gaps),
    )  # fmt: skip


def _words(
    case: Case, workers: Sequence[_Worker], loaders: Mapping[Task, _Worker], pinning: _Worker | None,
    shares: Mapping[str, float],
) -> str:  # fmt: skip
    """Return sentences on the launching thread, the threads in the gaps and the loaders; ``shares`` of the time, %."""
    words = []
    activity = max(shares, key=lambda key: shares[key])
    if shares[activity]:
        verb = {"waits": "waits", "reads": "reads files", "prepares": "prepares the input itself"}[activity]
        words.append(f"The launching thread {verb} for {shares[activity]:.0f} % of the gap time.")
    busiest = max(workers, key=lambda worker: worker.samples, default=None)
    sampled = sum(worker.samples for worker in workers)
    if pinning is not None:
        ran = "" if pinning.ran is None else f" and runs for {100 * pinning.ran:.0f} % of the gap time"
        sample_words = f"has {counted(pinning.samples, 'CPU sample', among=sampled)} in the gaps"
        words.append(f"The pin_memory thread ({pinning.name}) {sample_words}{ran}.")
    elif busiest is not None and busiest.samples > _HALF * sampled and not loaders:
        words.append(f"Thread {busiest.name} has {counted(busiest.samples, 'CPU sample', among=sampled)} in the gaps.")
    if loaders:
        share = 100 * float(np.mean([worker.ran or 0 for worker in loaders.values()]))
        process_words = "1 worker process runs" if len(loaders) == 1 else f"{len(loaders)} worker processes each run"
        words.append(f"{process_words} for {share:.0f} % of the gap time.")
    lags = [period_of(times.duration[int(case.thresholds.warm_up_steps) :]) for _, times in sorted(case.steps.items())]
    if period := next(filter(None, lags), None):
        words.append(f"Step times repeat every {period} steps, as with {period} workers.")
    return " ".join(words)


def _advice(case: Case, idle_spans: Sequence[IdleSpan], spent: Mapping[str, int], pinning: _Worker | None) -> Advice:
    half = _HALF * sum(span.length for span in idle_spans)
    if spent["prepares"] > half:
        workers = by_framework(case, "threads or processes of its own", pytorch="workers (num_workers above 0)")
        return Advice(f"Load batches in {workers}, ahead of the step that needs them.", _LOADS_ITSELF)
    if spent["reads"] > half or _reading(case, idle_spans) > _HALF:
        return _STORAGE
    if pinning is not None and (pinning.ran or 0) > _HALF:
        return _PINNING
    return Advice(loader_advice(case), _WAITS_FOR_DATA if any(spent.values()) else _IN_RANGE)


def loader_advice(case: Case) -> str:
    """Return what to try if a GPU waits for its data loader."""
    cheaper = "make samples cheaper to prepare"
    return by_framework(
        case,
        f"Load on more threads or processes, prefetch more, {cheaper}, or prepare them on the GPU.",
        dali=f"Give DALI more threads (num_threads) and longer queues (prefetch_queue_depth), {cheaper}, or prepare "
        'more of them on the GPU (device="mixed").',
        pytorch=f"Give the DataLoader more workers (num_workers) and prefetch more (prefetch_factor), {cheaper}, or "
        "prepare them on the GPU (DALI).",
    )


def _gaps_of(idle_spans: Sequence[IdleSpan]) -> dict[int, Intervals]:
    """Merge the gaps by report, because data loaders may be other processes."""
    gaps = grouped((span.task.report, union([span.start], [span.end])) for span in idle_spans)
    return {report: merge(*parts) for report, parts in gaps.items()}


def _reading(case: Case, idle_spans: Sequence[IdleSpan]) -> float:
    if not case.job.session.count(tables.os_calls):
        return 0.0
    calls = spans(case, tables.os_calls, [tables.os_calls.c.name.in_(causes.FILE_READS)])
    share = 0.0
    for report, gaps in _gaps_of(idle_spans).items():
        reads = merge(*(intervals for (task, _), intervals in calls.merged.items() if task.report == report))
        share = max(share, intersect(gaps, reads).length / gaps.length)
    return share


def _workers(case: Case, idle_spans: Sequence[IdleSpan]) -> list[_Worker]:
    """Return the threads in the gaps, except the profiler's, most samples and time first."""
    session, gaps = case.job.session, _gaps_of(idle_spans)
    scheduling, samples = case.scheduling, samples_of(session, case.scope)
    workers = []
    for thread in named_threads(case.job, {*scheduling.threads, *samples.threads}):
        inside = gaps.get(thread.thread[0])
        if inside is None or thread.name.startswith(PROFILERS):
            continue
        states = scheduling.threads.get(thread.thread)
        ran = None if states is None else intersect(states.labelled(RUNNING), inside).length / inside.length
        pinning, function, nodes = 0, "", np.zeros(0, np.int64)
        if (thread_samples := samples.threads.get(thread.thread)) is not None:
            nodes = thread_samples.nodes[inside.before(thread_samples.times)[1] > 0]
        if count := len(nodes):
            report = thread.thread[0]
            group = SampleGroup((thread,), {report: np.bincount(nodes, minlength=len(samples.stacks[report].tree))})
            top = top_function(samples, group)
            function = function_words(top) if top is not None else ""
            totals = function_counts(samples, group)
            pinning = max((total for entry, (_, total) in totals.items() if _PINS.search(entry.name)), default=0)
        if count or (ran or 0) >= _SEEN:
            workers.append(_Worker(thread, ran, count, pinning, function))
    return sorted(workers, key=lambda worker: (-worker.samples, -(worker.ran or 0), worker.thread.thread))


def period_of(values: Times) -> int | None:
    """Return the smallest lag of at least 2 at which values repeat (autocorrelation), or ``None``.

    There must be four periods, and smaller lags must correlate much less: else values drift, or are all alike.
    """
    count = len(values)
    if count < _FEWEST_STEPS or np.ptp(values) < 0.1 * np.median(values):
        return None
    offsets = np.clip(values.astype(float), *np.percentile(values, [2, 98]))  # a single long step is no period
    offsets -= offsets.mean()
    power = float((offsets * offsets).mean())
    if not power:
        return None
    correlations = [float((offsets[lag:] * offsets[: count - lag]).mean()) / power for lag in range(1, count // 4 + 1)]
    min_correlation = max(0.5, 3 / count**0.5)
    for lag in range(2, len(correlations) + 1):
        if correlations[lag - 1] > min_correlation and correlations[lag - 1] - max(correlations[: lag - 1]) > 0.3:
            return lag
    return None
