"""Long idle gaps of the GPUs, start-up and tail, and the launching threads' work meanwhile."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, DURATION, RANK, START, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import counted
from nsystui.base.types import grouped
from nsystui.exports import canonical
from nsystui.exports.metadata import process_of
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, merge, union
from nsystui.questions.gpu.graph_gaps import unseen_host_functions
from nsystui.questions.host import causes
from nsystui.questions.host.attribution import attribute
from nsystui.questions.host.causes import CAUSE_COLUMNS, Cause, shown_times
from nsystui.questions.host.host_work import HostWork, host_work
from nsystui.questions.host.idle_spans import STARTUP, TAIL, IdleSpan, over_ranks
from nsystui.questions.host.segments import BLOCKED, RECORD, RUNNABLE, RUNNING, gil_of
from nsystui.questions.host.time_budget import LONG_GAP, device_budgets, in_sum, without_numbers
from nsystui.questions.queries.recording import option_advice
from nsystui.questions.triage.case import Case, LateCause, Place, by_place, rank_words, spans, time_words, worked_by
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rule import BY_CPU, HOST_ACTIVITY, IDLE, FindingKind, rule
from nsystui.questions.triage.rules.memory import advice as allocator_advice
from nsystui.questions.triage.rules.once import OVERHEAD_ADVICE
from nsystui.store import tables

_PREEMPTED_COLUMNS = (
    RANK,
    Column("thread", header="Thread with the CPU", label="had the CPU"),
    DURATION,
    Column("percent", header="Duration (%)", label="share", unit=Unit.PERCENT, decimals=1, has_bar=True),
)
CROWDED = Advice(
    "Start fewer threads than CPUs (OMP_NUM_THREADS, workers of a data loader), or give each rank more CPUs of its own "
    "(--cpus-per-task, --cpu-bind=cores).",
    "The launching thread could run, but had no CPU.",
)
_OTHERS = Advice(
    "Bind each rank to CPUs of its own (--cpu-bind=cores), and check what else runs on the node.",
    "No recorded thread had the CPU: other ranks, other programs or the system used that CPU.",
)


@rule(60, IDLE | {"api_calls", "sched_events"}, FindingKind("preempted", "waiting for a CPU", BY_CPU))
def preempted(case: Case) -> Sequence[Finding | NotChecked]:
    """Find idle GPUs whose launching thread could run, but has no CPU (docs/numbers.md#preempted)."""
    if not case.devices:
        return [NotChecked("preempted", f"needs GPU work: {case.record(canonical.KERNELS)}")]
    if not case.job.session.count(tables.sched_events):
        return [NotChecked("preempted", f"needs {canonical.SCHED_EVENTS.what}: {case.record(canonical.SCHED_EVENTS)}")]
    states = case.scheduling.threads
    if not any(np.isin(segments.labels, (RUNNABLE, BLOCKED)).any() for segments in states.values()):
        return [NotChecked("preempted", "needs to know why threads left their CPUs, which few captures contain")]
    idle_spans: list[IdleSpan] = []
    ready: dict[int, Intervals] = {}
    runnable: dict[Task, Intervals] = {}
    for (report, thread), segments in states.items():
        task = Task(report, process_of(thread))
        runnable[task] = merge(runnable.get(task, EMPTY), segments.labelled(RUNNABLE))
    for device in case.devices:
        could_run = {task: runnable.get(task, EMPTY) for task in device.tasks}
        gaps = case.idle_spans(device, merge(*could_run.values()))
        idle = union([gap.start for gap in gaps], [gap.end for gap in gaps])
        for task, intervals in could_run.items():
            ready[task.report] = merge(ready.get(task.report, EMPTY), intersect(intervals, idle))
        idle_spans += gaps
    threshold = case.thresholds.preempted_percent
    if case.percent(sum(intervals.length for intervals in ready.values())) < threshold:
        return []  # cheaper than finding the threads that launched
    rows = attribute(case.job, idle_spans)
    spent: Counter[tuple[int, str]] = Counter()
    span_indices: set[int] = set()
    for span, cause, time in zip(rows.span.tolist(), rows.cause.tolist(), rows.time.tolist(), strict=True):
        if rows.causes[cause].kind == causes.PREEMPTED:
            spent[case.rank_of[rows.task(span)], rows.causes[cause].what] += time
            span_indices.add(span)
    cost = case.mean(spent.values())
    if not cost or case.percent(cost) < threshold:
        return []
    return [_waiting_for_cpu(case, spent, len(span_indices), ready)]


def _waiting_for_cpu(case: Case, spent: Counter[tuple[int, str]], gaps: int, ready: Mapping[int, Intervals]) -> Finding:
    cost, total = case.mean(spent.values()), spent.total()
    rows: list[Row] = [(rank, holder or None, time, 100.0 * time / total) for (rank, holder), time in spent.items()]
    rows.sort(key=lambda row: (-int(row[2] or 0), str(row)))
    (_, holder), longest = max(spent.items(), key=lambda item: (item[1], item[0]))
    unknown = sum(time for (_, name), time in spent.items() if not name)
    holder_words = f"Thread {holder} had the CPU for {100 * longest / total:.0f} % of that time."
    if 2 * unknown > total:
        holder_words = f"No recorded thread had the CPU for {100 * unknown / total:.0f} % of that time."
    sentence = (
        f"{case.each_gpu} idles {time_words(cost)} while the launching thread waits for a CPU "
        f"({counted(gaps, 'gap')} on {counted(len(case.devices), 'GPU')}). {holder_words} {_crowd(case, ready)}"
    )
    measured = "Idle time in the steady state while the launching thread was not scheduled. Mean over the GPUs."
    advice, door = _OTHERS if 2 * unknown > total else CROWDED, Door("gaps", filter=causes.PREEMPTED)
    evidence, ranks = (_PREEMPTED_COLUMNS, rows), tuple(sorted({rank for rank, _ in spent}))
    return case.finding("preempted", sentence, advice, door, cost, measured, evidence, ranks=ranks)


def _crowd(case: Case, ready: Mapping[int, Intervals]) -> str:
    index, waits = max(ready.items(), key=lambda item: (item[1].length, -item[0]))
    scheduling = case.scheduling
    thread_keys = [thread for thread in scheduling.threads if thread[0] == index]
    times = [intersect(scheduling.threads[thread].labelled(RUNNING, RUNNABLE), waits).length for thread in thread_keys]
    used_cpus = {cpu for thread in thread_keys for cpu in scheduling.cpus[thread].labels.tolist() if cpu >= 0}
    node_cpus = next(report.metadata.cpus for report in case.reports if report.index == index)
    cpus = f"{len(used_cpus)} of the node's {node_cpus} CPUs" if node_cpus else counted(len(used_cpus), "CPU")
    threads = sum(times) / waits.length
    return f"Meanwhile {threads:.1f} threads of the export could run on average, and used {cpus} in all."


_GIL, _READS = "gil-held", "blocking-reads"
_BLOCKED_HOST_COLUMNS = (RANK, Column("time", header="Idle (ns)", label="idle", unit=Unit.DURATION), *CAUSE_COLUMNS)
_OTHER_PROCESS = Advice(
    "Move the work of that thread to another process, or into code that releases the GIL (NumPy, native code).",
    "In a process only the thread that holds the GIL can run Python code and launch.",
)
_AHEAD = Advice(
    "Read ahead on a thread that launches nothing, in larger pieces, and from a local disk or a cache.",
    "The GPU has nothing to do until the file is read.",
)


@rule(50, IDLE | HOST_ACTIVITY, FindingKind("gil-held", parts=BY_CPU), FindingKind("blocking-reads", parts=BY_CPU))
def blocked_host(case: Case) -> Sequence[Finding | NotChecked]:
    """Find idle GPUs whose launching thread waits for Python's GIL, or for a file that any thread reads.

    The costs are sums over the causes of gaps of any length: see docs/numbers.md#gaps.
    """
    if not case.devices:
        return [NotChecked(name, f"needs GPU work: {case.record(canonical.KERNELS)}") for name in (_GIL, _READS)]
    return [*_gil_held(case), *_blocking_reads(case)]


@dataclass(frozen=True)
class _Blocked:
    """The time of each cause by rank, and of each GPU (ns); gaps with a cause, and the gap with most of that time."""

    times: Mapping[tuple[int, Cause], int]
    losses: Mapping[Place, int]
    gaps: int
    longest: Window | None

    def largest(self, words_of: Callable[[Cause], str]) -> tuple[str, float]:
        """Return the words with the most time, and their share of all time, %."""
        times: dict[str, int] = {}
        for (_, cause), time in self.times.items():
            times[words_of(cause)] = times.get(words_of(cause), 0) + time
        words = max(sorted(times), key=lambda text: times[text])
        return words, 100 * times[words] / sum(times.values())


def _blocked(case: Case, during: Mapping[Task, Intervals], accepts: Callable[[Cause], bool]) -> _Blocked:
    """Return the causes that ``accepts`` selects, in the gaps that overlap ``during`` of their process."""
    candidates: list[IdleSpan] = []
    for device in case.devices:
        candidates += case.idle_spans(device, merge(*(during.get(user, EMPTY) for user in device.tasks)))
    attribution = attribute(case.job, candidates)
    times, losses = Counter[tuple[int, Cause]](), Counter[Place]()
    spent: list[tuple[int, IdleSpan]] = []
    for index, span in enumerate(candidates):
        cause_times = {cause: time for cause, time in attribution.of_span(index).items() if accepts(cause)}
        for cause, time in cause_times.items():
            times[case.rank_of[attribution.task(index)], cause] += time
            losses[span.task, span.device] += time
        spent += [(sum(cause_times.values()), span)] if cause_times else []
    longest = max(spent, key=lambda item: (item[0], -item[1].start), default=None)
    return _Blocked(times, losses, len(spent), longest[1].window if longest else None)


def _blocked_host_finding(
    case: Case, name: str, blocked: _Blocked, sentence: str, advice: Advice, measured: str, gist: str
) -> Finding:
    rows: list[Row] = [(rank, time, *cause.cells) for (rank, cause), time in blocked.times.items()]
    rows.sort(key=lambda row: (-int(str(row[1])), str(row)))
    cost, ranks = case.mean(blocked.times.values()), tuple(sorted({rank for rank, _ in blocked.times}))
    evidence = (_BLOCKED_HOST_COLUMNS, rows)
    finding = case.finding(name, sentence, advice, Door("gaps"), cost, measured, evidence, ranks=ranks, gist=gist)
    return replace(finding, window=blocked.longest, losses=blocked.losses)


def _gil_held(case: Case) -> Sequence[Finding | NotChecked]:
    gil = gil_of(case.job.session, case.scope)
    if not gil:
        columns = tables.processes.c
        tasks = {(rank.task.report, rank.task.process) for rank in case.ranks}
        query = sa.select(columns.report, columns.process).where(sa.func.lower(columns.name).contains("python"))
        is_python = case.job.session.count(tables.processes) and not tasks.isdisjoint(case.job.session.rows(query))
        why = f"needs the times of Python's GIL: {option_advice(case.reports, RECORD)}"
        return [NotChecked(_GIL, why)] if is_python else []
    during: dict[Task, Intervals] = {}
    for (report, thread), waited in gil.waited.items():
        task = Task(report, process_of(thread))
        during[task] = merge(during.get(task, EMPTY), waited)
    blocked = _blocked(case, during, lambda cause: cause.kind == causes.GIL)
    cost = case.mean(blocked.times.values())
    if case.percent(cost) < case.thresholds.gil_percent:
        return []
    holder, share = blocked.largest(lambda cause: cause.thread)
    call, call_share = blocked.largest(lambda cause: cause.what if cause.thread == holder else "")
    call_words = f", mostly in {call}" if call and call_share > share / 2 else ""
    held = f"Thread {holder} holds the GIL for {share:.0f} % of that time{call_words}."
    sentence = (
        f"{case.each_gpu} idles {time_words(cost)} while the launching thread waits for Python's GIL "
        f"({counted(blocked.gaps, 'gap')}). {held if holder else 'The export does not show the holder of the GIL.'}"
    )
    measured = "Idle time while the launching thread waits for the GIL, in gaps of any length. Mean over the GPUs."
    gist = "waiting for Python's GIL" + (f" held by {holder}" if holder else "")
    return [_blocked_host_finding(case, _GIL, blocked, sentence, _OTHER_PROCESS, measured, gist)]


def _blocking_reads(case: Case) -> Sequence[Finding | NotChecked]:
    session = case.job.session
    if not session.count(tables.os_calls):
        return [NotChecked(_READS, f"needs OS runtime calls: {case.record(canonical.OS_CALLS)}")]
    is_read = sa.func.regexp_full_match(tables.os_calls.c.name, causes.READS.pattern, type_=sa.Boolean)
    calls = spans(case, tables.os_calls, [is_read])
    has_files = session.count(tables.file_accesses) > 0
    during = {task: intervals for (task, _), intervals in calls.merged.items()}
    # If files are recorded, a call without a file reads something else.
    blocked = _blocked(case, during, lambda cause: cause.reads and (bool(cause.file) or not has_files))
    cost = case.mean(blocked.times.values())
    if case.percent(cost) < case.thresholds.read_percent:
        return []
    call, share = blocked.largest(lambda cause: cause.what)
    caller, caller_share = blocked.largest(lambda cause: cause.caller)
    other_time = sum(time for (_, cause), time in blocked.times.items() if cause.kind == causes.WAITING)
    words = [f"{share:.0f} % is in {call}"]
    words += [f"{caller_share:.0f} % is called by {caller}"] if caller else []
    words += [f"{100 * other_time / sum(blocked.times.values()):.0f} % is in another thread"] if other_time else []
    sentence = (
        f"{case.each_gpu} idles {time_words(cost)} while files are read (by the launching thread or for it, "
        f"{counted(blocked.gaps, 'gap')}). Of that time, {', '.join(words)}."
    )
    files = blocked.largest(lambda cause: cause.file)[0]
    sentence += f" The largest part reads {files}." if files else ""
    advice = _AHEAD
    if not has_files:
        sentence += " The export does not show which files; `read` may also be of a pipe or a socket."
        text = f"Find the caller (`nsystui gaps`) and the files ({case.record(canonical.FILES)}). {_AHEAD.text}"
        advice = Advice(text, _AHEAD.reason)
    measured = (
        "Idle time while the launching thread reads or opens a file, or waits for a thread of its process that reads "
        "a file. Gaps of any length; mean over the GPUs."
    )
    return [_blocked_host_finding(case, _READS, blocked, sentence, advice, measured, f"waiting for reads by {call}")]


_MAX_GAPS = 40
"""The number of longest gaps in the evidence, with their NVTX ranges."""
_ADVICE = {
    causes.SYNCHRONISING: Advice(
        "Synchronise less often, or use events on the stream instead of blocking the CPU.",
        "After a synchronisation the GPU has nothing to do until the CPU launches again.",
    ),
    causes.COPYING: Advice(
        "Copy asynchronously from pinned memory, on a separate stream.",
        "A copy that blocks the CPU delays the next launch.",
    ),
    causes.LAUNCHING: Advice(
        "Warm up before the measurement, or load kernels at the start (CUDA_MODULE_LOADING=EAGER). "
        "`nsystui api --filter Launch` shows which launches are long.",
        "A launch takes some µs, unless the call loads its kernel or waits for another thread in CUDA.",
    ),
    causes.IN_HOST_FUNCTION: Advice(
        "Move that work to a thread of its own, and let the stream wait for an event.",
        "A stream runs nothing while its host function runs.",
    ),
    causes.IN_OVERHEAD: OVERHEAD_ADVICE,
    causes.OTHER_CALLS: Advice(
        "Look at the call on the Events screen.", "The CPU was in this call while the GPU was idle."
    ),
    causes.IN_MPI: Advice(
        "Overlap MPI with GPU work, or find the rank that arrives late.", "The CPU waited in MPI and launched nothing."
    ),
    causes.GIL: Advice(
        "Move the work of the other thread to another process, or into code that releases the GIL (`nsystui gaps`).",
        _OTHER_PROCESS.reason,
    ),
    causes.IN_OS: Advice(
        "Find the caller (`nsystui gaps`), and let another thread or process do this work ahead of time.",
        "The launching thread waited for the system: for data, a file or a process.",
    ),
    causes.RUNNING_CODE: Advice(
        "Make that code faster, or run that code on a thread that launches nothing (`nsystui calltree`).",
        "The launching thread was busy with that code and could launch nothing.",
    ),
    causes.PREEMPTED: CROWDED,
    causes.WAITING: Advice(
        "Make the work of the other thread faster, or start that work earlier: more workers, prefetching "
        "(`nsystui gaps`).",
        "The launching thread waited while another thread of its process, or one of its worker processes, ran.",
    ),
}
"""`OFF_CPU` and `NOTHING` have no known cause: see `_unknown`."""
_REASON = {
    causes.OFF_CPU: "The launching thread was off its CPU, and the export does not show what that thread waited for.",
    causes.NOTHING: "The launching thread made no CUDA or MPI call, and the export shows nothing else of that thread.",
}
_RECORDED = {
    causes.NOTHING: (canonical.OS_CALLS, canonical.SCHED_EVENTS, canonical.HOST_SAMPLES),
    causes.OFF_CPU: (canonical.OS_CALLS,),
}
"""The tables that would show the cause."""
_UNSEEN = Advice("Record these functions with nsys 2026 or later.", _ADVICE[causes.IN_HOST_FUNCTION].reason)
_OTHER_FINDINGS = (
    "input-pipeline", "gil-held", "blocking-reads", "preempted", "allocator-churn", "jit-compilation",
    "host-allocation", "first-launches",
)  # fmt: skip
_IDLE_GAPS_COLUMNS = (
    RANK, DEVICE.with_importance(2), START,
    Column("duration", header="Duration (ns)", label="idle", unit=Unit.DURATION),
    Column("kind", header="CPU", label="launching thread was"),
    Column("share", header="CPU (%)", label="share", unit=Unit.PERCENT, decimals=1, importance=2),
    Column("call", header="Call", label="longest call", importance=1),
    Column("range", header="NVTX Range", label="NVTX range", importance=1),
)  # fmt: skip


@rule(80, IDLE | {"api_calls"}, FindingKind("idle-gaps", parts=BY_CPU, symptom_of=_OTHER_FINDINGS))
def idle_gaps(case: Case) -> Sequence[Finding | NotChecked]:
    """Find long idle gaps in the steady state, and the CPU's work meanwhile (docs/numbers.md#expert-rules).

    The profiler's own work divides no gap and is no part of the cost: `profiler_overhead` finds it.
    """
    if not case.devices:
        return [NotChecked("idle-gaps", f"needs GPU work: {case.record(canonical.KERNELS)}")]
    cost = case.mean(case.long_idle(device).length for device in case.devices)
    if case.percent(cost) < case.thresholds.gap_percent:
        return []
    idle = case.long_gap_causes
    gaps, attribution = list(idle.spans), over_ranks(idle)
    times: Counter[Cause] = Counter()
    for cause, time in zip(attribution.causes, np.bincount(attribution.cause, attribution.time).tolist(), strict=False):
        if cause.kind != causes.PROFILER:
            times[cause] += round(time)
    works = host_work(case.job, gaps[:_MAX_GAPS], idle=idle.first(_MAX_GAPS))
    return [_idle_gaps_finding(case, gaps, shown_times(times), works, cost)]


def _idle_gaps_finding(
    case: Case, gaps: Sequence[IdleSpan], times: Counter[Cause], works: Sequence[HostWork], cost: int
) -> Finding:
    """``times``: ns by cause over all gaps; ``works``: the CPU's work in the longest gaps."""
    longest, gist, line = gaps[0], "long idle gaps", ""
    record = f"To see what the CPU did in the gaps: {case.record(canonical.API_CALLS)}."
    activity, advice = "", Advice(record, "CUDA calls show what the CPU did in the gaps.")
    if case.job.session.count(tables.api_calls):
        activity, words, share, advice = _activity(case, len(gaps), times, works)
        line = words if share > 50 else f"{share:.0f} % {words}"
        gist += f", mostly {words}" if share > 50 else f", {line}"
        line += _place_of(case, longest, works) if 2 * longest.length >= cost else ""
    ranks = tuple(sorted({case.rank_of[span.task] for span in gaps}))
    sentence = (
        f"{case.each_gpu} idles {time_words(cost)} in gaps of {case.thresholds.gap_ms:g} ms or more "
        f"({counted(len(gaps), 'gap')} on {counted(len(case.devices), 'GPU')}). The longest gap, on "
        f"{rank_words([case.rank_of[longest.task]])}, takes {time_words(longest.length)}.{activity}"
    )
    measured = "Long gaps of each GPU in its steady state, without the profiler's own work. Mean over the GPUs."
    idle = LateCause.STALL, LateCause.LOADER, LateCause.HOST_FUNCTIONS
    late = {task for rank in case.late_ranks for task, cause in rank.causes.items() if cause in idle}
    in_late = sum(span.length for span in gaps if span.task in late)
    rows: list[Row] = []
    for work in works:
        span, kind = work.span, work.kind
        first_cells = (case.rank_of[span.task], span.device, span.start, span.length)
        rows.append((*first_cells, kind, 100 * work.spent[kind] / span.length, work.calls.get(kind), work.range_name))
    evidence = TableAnswer("idle-gaps", _IDLE_GAPS_COLUMNS, rows, len(gaps))
    return case.finding(
        "idle-gaps", sentence, advice, Door("timeline", window=longest.window), cost, measured, evidence,
        window=longest.window, ranks=ranks, times=by_place(gaps), gist=gist, line=line,
        under="straggler" if 2 * in_late >= sum(span.length for span in gaps) else "",
    )  # fmt: skip


def _activity(
    case: Case, gaps: int, times: Counter[Cause], works: Sequence[HostWork]
) -> tuple[str, str, float, Advice]:
    """Return a sentence on the launching thread's main activity, a few words, its share of the gaps, %, and advice."""
    spent = {kind: sum(time for cause, time in times.items() if cause.kind == kind) for kind in causes.KINDS}
    kind = max(spent, key=lambda name: spent[name])
    share = 100 * spent[kind] / sum(spent.values())
    named = [cause for cause in times if cause.kind == kind and cause.what]
    main = min(named, key=lambda cause: (-times[cause], cause.words), default=Cause(kind))
    part = times[main] / spent[kind]
    is_on_stream = kind == causes.IN_HOST_FUNCTION
    activity = "a host function ran on a stream" if is_on_stream else f"the launching thread was {kind}"
    sentence = f" For {share:.0f} % of the gap time {activity}.{_where(main, part, works)}"
    short = replace(main, what="many functions") if main.what == causes.MANY else main
    words = f"running {short.words}" if kind == causes.RUNNING_CODE else short.words
    words, share = (words, share * part) if main.what and part > 0.5 else (kind, share)
    advice = allocator_advice(case) if kind == causes.ALLOCATING else _ADVICE.get(kind) or _unknown(case, kind)
    unseen, note = unseen_host_functions(case.job.session, case.scope.with_name(None))
    if 2 * unseen >= gaps and kind in (causes.SYNCHRONISING, *_REASON):
        return f"{sentence} {note}.", words, share, _UNSEEN
    return sentence, words, share, advice


def _unknown(case: Case, kind: str) -> Advice:
    if record := what_to_record(case, kind):
        return Advice(f"To see what that thread did: {record}.", _REASON[kind])
    return Advice("Look at the threads of all processes in the gaps (`nsystui gaps`, Timeline).", _REASON[kind])


def what_to_record(case: Case, kind: str) -> str:
    """Return how to record missing data on a cause of idle time; empty if nothing is missing."""
    reports = [report for report in case.reports if report.index in {task.report for task in case.tasks}]
    lacking = [table for table in _RECORDED[kind] if not all(report.count(table) for report in reports)]
    return case.record(*lacking, together=True) if lacking else ""


def _place_of(case: Case, gap: IdleSpan, works: Sequence[HostWork]) -> str:
    words = [f" in `{works[0].range_name}`"] if works and works[0].range_name else []
    if (times := case.steps.get(gap.task)) is not None:
        middle = (gap.start + gap.end) // 2
        is_around = (times.start <= middle) & (middle < times.start + times.duration)
        words += [f", step {number}" for number in times.numbers[is_around].tolist()]
    return "".join(words)


def _where(cause: Cause, part: float, works: Sequence[HostWork]) -> str:
    """Name the main call of a kind, with ``part`` of its time, and the largest NVTX range of the longest gaps."""
    ranges: Counter[str | None] = Counter()
    names: dict[str | None, set[str | None]] = {}
    for work in works:
        folded = work.range_name and without_numbers(work.range_name)
        ranges[folded] += work.spent[cause.kind]
        names.setdefault(folded, set()).add(work.range_name)
    words = list[tuple[float, str]]()
    if cause.what:
        words.append((part, f"with {cause.what} on the CPU" if cause.kind == causes.PREEMPTED else f"in {cause.words}"))
    if set(ranges) != {None} and ranges.total():
        longest = max(sorted(ranges, key=str), key=lambda name: ranges[name])
        name = longest if len(names[longest]) > 1 else next(iter(names[longest]))
        range_words = "outside of every NVTX range" if name is None else f"in NVTX range `{name}`"
        words.append((ranges[longest] / ranges.total(), range_words))
    if words and all(share >= 0.995 for share, _ in words):
        return f" All of it was {', '.join(where for _, where in words)}."
    return f" {' and '.join(f'{100 * share:.0f} % of it was {where}' for share, where in words)}." if words else ""


_MAX_CAUSES = 3
_MIN_SHARE = 0.02
"""The minimum share of a named cause."""
_START_AND_END_COLUMNS = (
    Column("cause", header="Cause", label="cause"),
    Column("what", header="What", label="call or function"),
    Column("time", header="Idle (ns)", label="idle", unit=Unit.DURATION),
)
_PARTS = {
    STARTUP: ("start-up", "before the steady state", "start_up_percent"),
    TAIL: ("tail", "after its last operation", "tail_percent"),
}
_ONCE = "The program pays this time once: in a long run it does not matter."


_FIRST_USES = ("context-creation", "host-allocation", "jit-compilation", "first-launches")
_START_UP = FindingKind("start-up", symptom_of=_FIRST_USES, is_paid_once=True)


@rule(170, IDLE | {"api_calls"}, _START_UP, FindingKind("tail", is_paid_once=True))
def start_and_end(case: Case) -> Sequence[Finding | NotChecked]:
    """Find idle time before the steady state and after the last operation, with causes (docs/numbers.md#gaps).

    Both are remarks, because a program pays them once.
    """
    budget = in_sum(device_budgets(case.job, case.scope, case.step_name))
    costs = {STARTUP: case.mean([budget.startup]), TAIL: case.mean([budget.tail])}
    return [
        _start_and_end_finding(case, part, costs[part])
        for part, (*_, threshold) in _PARTS.items()
        if costs[part] and case.percent(costs[part]) >= getattr(case.thresholds, threshold)
    ]


def _start_and_end_finding(case: Case, part: str, cost: int) -> Finding:
    from nsystui.questions.host.gaps import idle_time

    idle = idle_time(case.job, case.scope, case.step_name, parts=(part,), min_length=LONG_GAP)
    times: Counter[tuple[str, str]] = Counter()
    kinds: Counter[str] = Counter()
    attribution = idle.attribution
    sums = np.bincount(attribution.cause, attribution.time).astype(np.int64)
    for cause, time in zip(attribution.causes, sums.tolist(), strict=False):
        is_named = cause.what or (cause.thread and case.mean([time]) >= _MIN_SHARE * cost)
        times[cause.kind, cause.words if is_named else ""] += time
        kinds[cause.kind] += time
    rows = [(kind, what or None, time) for (kind, what), time in times.items() if time]
    rows.sort(key=lambda row: (-row[2], str(row)))
    largest = [_words(case, *row) for row in rows[:_MAX_CAUSES] if case.mean([row[2]]) >= _MIN_SHARE * cost]
    name, when_words, _ = _PARTS[part]
    idle_times = by_place(attribution.spans)
    sentence = f"{case.each_gpu} idles {time_words(cost)} {when_words}.{_overlap_words(case, idle_times)}"
    sentence += f" Largest causes: {'; '.join(largest)}." if largest else ""
    longest = max(kinds, key=lambda kind: (kinds[kind], kind), default=causes.NOTHING)
    record = what_to_record(case, longest) if longest in (causes.NOTHING, causes.OFF_CPU) else ""
    if record:
        advice = Advice(f"To see what the CPU did then: {record}.", _ONCE)
    elif longest == causes.PROFILER:
        reason = "Most of this time is the profiler's own work, which a run without nsys does not have."
        advice = Advice("Leave this time out of timings.", reason)
    else:
        text = "Leave this time out of timings. In a run as short as this one, shorten this time (`nsystui gaps`)."
        advice = Advice(text, _ONCE)
    measured = "Idle time by part of the budget. The causes leave out gaps below 1 ms. Mean over the GPUs."
    evidence, door, severity = (_START_AND_END_COLUMNS, rows), Door("gaps"), Severity.INFO
    return case.finding(name, sentence, advice, door, cost, measured, evidence, severity, times=idle_times)


def _overlap_words(case: Case, idle_times: Mapping[Place, Intervals]) -> str:
    """Return a sentence on idle time in which another GPU of the process works: the CPU may serve it."""
    idle = grouped((task, intervals) for (task, _), intervals in idle_times.items())
    overlap = 0
    for task, parts in idle.items():  # only another GPU can work while the first idles
        hull = Window(min(int(part.starts[0]) for part in parts), max(int(part.ends[-1]) for part in parts))
        work = worked_by((device for device in case.devices if task in device.tasks), hull)
        overlap += sum(intersect(part, work).length for part in parts)
    share = overlap / max(sum(intervals.length for intervals in idle_times.values()), 1)
    return f" For {100 * share:.0f} % of that time another GPU of the process works." if share >= _MIN_SHARE else ""


def _words(case: Case, kind: str, what: str | None, time: int) -> str:
    """Return ``7.718 s in calls that allocate or free memory (cudaMallocHost)``."""
    words = "with nothing recorded" if kind == causes.NOTHING else kind
    return f"{time_words(case.mean([time]))} {words}{f' ({what})' if what else ''}"
