"""One-time costs: compilers, first uses of CUDA."""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import COUNT, DURATION, RANK, START, Column, Row, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted
from nsystui.base.types import Ints
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import Intervals, intersect, merge, union
from nsystui.questions.host.functions import running_stretches, samples_of
from nsystui.questions.host.naming import HostThread, named_threads
from nsystui.questions.host.segments import Calls, Thread, calls_of, scheduling_of
from nsystui.questions.host.stacks import StackTree, stacks_of
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.queries.conditions import duration, given, is_launched_by, job_end, job_start, where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.triage.case import CUDA_TABLES, Case, Place, once, rank_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rule import BY_CPU, IDLE, FindingKind, rule
from nsystui.store import tables

_COMPILING = ("Driver JIT compiler",)
_LOADING_CODE = ("Runtime module loading", "Lazy function loading")
_OVERHEAD = (*_COMPILING, *_LOADING_CODE, "Command buffer full")
"""The known values of ``cuda_overhead.name``."""

OVERHEAD_ADVICE = Advice(
    "Warm up before the measurement, or load all code at the start (CUDA_MODULE_LOADING=EAGER). If command buffers are "
    "full, launch less work ahead.",
    "CUDA itself took this time: it compiled or loaded code, or waited for room in a command buffer.",
)


@once
def _overhead(case: Case) -> tuple[Calls, set[Thread]]:
    """Return the overhead of all threads, and the threads that launch."""
    selection, api = Selection(case.scope.window, case.scope.tasks), tables.api_calls.c
    calls = calls_of(case.job.session, tables.cuda_overhead, selection)
    query = sa.select(api.report, api.thread).where(api.name.contains("Launch")).distinct()
    return calls, set(case.job.session.rows(query)) if calls.threads else set()


def _overhead_of(case: Case, names: Collection[str], launching: bool = True) -> list[tuple[HostThread, str, Intervals]]:
    """Return the overhead with these names, by thread and name, job time; ``launching``: of threads that launch."""
    calls, launchers = _overhead(case)
    return [
        (thread, calls.names[label], calls.threads[thread.thread].labelled(label))
        for thread in named_threads(case.job, calls.threads)
        for label in np.unique(calls.threads[thread.thread].labels).tolist()
        if calls.names[label] in names and (not launching or thread.thread in launchers)
    ]


def overhead_in(case: Case, idle: Mapping[Place, Intervals], names: Collection[str] = _OVERHEAD) -> tuple[int, str]:
    """Return the overhead during idle time per GPU, ns, and ``lazy function loading 3.2 ms (python (main) 4711)``."""
    parts, spent = [], dict[Place, list[Intervals]]()
    for thread, name, times in _overhead_of(case, names):
        users = {gpu for (task, _), gpu in case.gpu_of.items() if task == thread.task}
        shared = {gpu: intersect(times, part) for gpu, part in idle.items() if gpu in users}
        for gpu, part in shared.items():
            spent.setdefault(gpu, []).append(part)
        time = case.mean(part.length for part in shared.values())
        parts.append((time, f"{name.lower()} {time_words(time)} ({thread.words()})"))
    parts.sort(key=lambda part: (-part[0], part))
    words = ", ".join(words for time, words in parts[:3] if time)
    return case.mean(merge(*group).length for group in spent.values()), words


_COMPILERS = {
    "PTX": re.compile(r"ptxas|ptxjit|nvptxcompiler|nvJitLink", re.IGNORECASE),
    "NVRTC": re.compile(r"nvrtc|libnvvm|\bcicc\b", re.IGNORECASE),
    "Triton": re.compile(r"libtriton\b|triton[./]compiler"),
    "XLA": re.compile(r"xla::.*(?:Compil|HloPass)"),
    "LLVM": re.compile(r"libLLVM|llvm::|mlir::", re.IGNORECASE),
    "a C++ compiler": re.compile(r"\b(?:nvcc|cc1plus|cudafe\+\+|fatbinary)\b"),
}
"""Words in names of modules, functions and programs; of several in a stack, the first entry counts."""
_IN_RANGES = {
    "PTX": "ptx", "NVRTC": "nvrtc", "Triton": "triton", "LLVM": "llvm", "XLA": "xla|hlo",
    "Inductor": "inductor|compile_fx|async_?compile",
}  # fmt: skip
"""Words in the names of NVTX ranges."""
_COMPILES = re.compile(r"compil(?!ed)", re.IGNORECASE)
"""Longer range names need this, because ranges of compiled kernels name compilers, too."""
_ADVICE = {
    "PTX": "Build for this GPU's architecture (-gencode, TORCH_CUDA_ARCH_LIST), so that no PTX is left to "
    "compile. Keep the driver's cache (CUDA_CACHE_PATH, CUDA_CACHE_MAXSIZE).",
    "Triton": "Keep Triton's cache between runs (TRITON_CACHE_DIR), and warm up before the measurement.",
    "XLA": "Keep XLA's compilation cache (jax_compilation_cache_dir), and avoid new shapes, which are compiled again.",
}
_USUAL = "Keep the compiler's cache between runs, avoid changing shapes, and warm up before the measurement."
_COLUMNS = (
    RANK, Column("compiler", header="Compiler", label="compiler"),
    Column("thread", header="Thread or NVTX Range", label="thread or range"), COUNT,
)  # fmt: skip


_Compiling = tuple[Mapping[tuple[object, str], list[Intervals]], Sequence[Row]]
"""When compilers ran, by process (by report, if the process has no rank) and compiler; and the evidence."""
_NONE: _Compiling = ({}, ())


@rule(130, IDLE | {"host_samples"}, FindingKind("jit-compilation", parts=BY_CPU))
def jit_compilation(case: Case) -> Sequence[Finding | NotChecked]:
    """Find compilers that run while a GPU is idle, by CPU samples, processes, NVTX ranges and the driver's records.

    The cost is |U(compiling) ∩ idle| of the process of a GPU, and of unranked processes of its report.
    """
    is_sampled = case.job.session.count(tables.host_samples) > 0
    sources = _in_samples(case), _in_ranges(case), _in_driver(case)
    groups = [rows for _, rows in sources]
    if not case.devices or not (is_sampled or any(groups)):
        return [NotChecked("jit-compilation", f"needs GPU work and CPU samples: {case.record(canonical.HOST_SAMPLES)}")]
    spent, idle_times, later = _compiling_while_idle(case, sources)
    cost = case.mean(intervals.length for intervals in idle_times.values())
    if case.percent(cost) < case.thresholds.jit_percent:
        return []
    longest = sorted(filter(spent.get, spent), key=lambda name: -spent[name])
    words = ", ".join(f"{name} {time_words(case.mean([spent[name]]))}" for name in longest[:3])
    rows = sorted(chain(*groups), key=lambda row: (-int(row[3] or 0), str(row)))
    counts = zip(groups, ("CPU sample", "NVTX range", "driver compilation"), strict=True)
    seen = " and ".join(counted(sum(int(row[3] or 0) for row in group), noun) for group, noun in counts if group)
    sentence = f"The GPU idles during just-in-time compilation: {time_words(cost)} per GPU ({words}). Seen in {seen}."
    reason = "Code that is compiled at its first use makes the GPU wait; later uses do not."
    advice = Advice(_ADVICE.get(longest[0], _USUAL), reason)
    measured = (
        "Idle time around CPU samples in compilers, in NVTX ranges of compilers and in compilations that the driver "
        "recorded, in the processes of the GPUs and in compiler processes. The mean is over the GPUs."
    )
    # Before the first operation it is part of the start-up, which every program has.
    severity = Severity.WARNING if case.percent(case.mean([later])) >= case.thresholds.jit_percent else Severity.INFO
    gist = f"just-in-time compilation by {longest[0]}"
    return [
        case.finding(
            "jit-compilation", sentence, advice, Door("call tree" if groups[0] else "nvtx"), cost, measured,
            (_COLUMNS, rows), severity, gist=gist, times=idle_times,
        )
    ]  # fmt: skip


def _compiling_while_idle(
    case: Case, sources: Sequence[_Compiling]
) -> tuple[Mapping[str, int], Mapping[Place, Intervals], int]:
    """Return idle time by compiler, ns; when each GPU idles during compilation; and the sum in the steady state, ns."""
    times: dict[tuple[object, str], list[Intervals]] = {}
    for key, intervals in (item for source, _ in sources for item in source.items()):
        times.setdefault(key, []).extend(intervals)
    spent, idle_times, later = {name: 0 for _, name in times}, dict[Place, Intervals](), 0
    for device in case.devices:
        idle = case.idle_in(device, case.window_of(device))
        owners = {*device.tasks, *(user.report for user in device.tasks)}
        parts = {name: merge(*(part for owner in owners for part in times.get((owner, name), ()))) for name in spent}
        for name, part in parts.items():
            spent[name] += intersect(part, idle).length
        compiling_now = idle_times[device.device.key] = intersect(merge(*parts.values()), idle)
        later += case.idle(device).shared_with(compiling_now)
    return spent, idle_times, later


def _in_samples(case: Case) -> _Compiling:
    session = case.job.session
    stacks = stacks_of(session, [report for report in case.reports if report.count(tables.host_samples)])
    kinds = {report: _kinds(report_stacks.tree) for report, report_stacks in stacks.items()}
    if not any(report_kinds.any() for report_kinds in kinds.values()):
        return _NONE  # cheaper than reading every sample
    samples, scheduling = samples_of(session, case.scope.with_tasks(None)), scheduling_of(session, case.scope)
    times: dict[tuple[object, str], list[Intervals]] = {}
    rows: list[Row] = []
    names = list(_COMPILERS)
    for thread in named_threads(case.job, samples.threads):
        thread_samples, report = samples.threads[thread.thread], thread.thread[0]
        compiling = kinds[report][thread_samples.nodes]
        if not compiling.any():
            continue
        stretches = running_stretches(thread_samples, samples.period, scheduling.threads.get(thread.thread))
        labels = kinds[report][stretches.labels]
        # A separate compiler process works for every rank of its report.
        owner: object = thread.task if thread.rank is not None else report
        for number in np.unique(compiling[compiling > 0]).tolist():
            is_compiler = labels == number
            part = union(stretches.starts[is_compiler], stretches.ends[is_compiler])
            name, count = names[number - 1], int((compiling == number).sum())
            times.setdefault((owner, name), []).append(part)
            rows.append((thread.rank, name, f"{thread.name} {thread.tid}", count))
    return times, rows


def _in_ranges(case: Case) -> _Compiling:
    session, table = case.job.session, tables.nvtx_ranges
    if not session.count(table):
        return _NONE
    columns, conditions = table.c, where(table, case.scope)
    pattern = re.compile("|".join(_IN_RANGES.values()), re.IGNORECASE)
    named = ((label,) for label in case.range_labels if pattern.search(label))
    stored = of_all_reports(session, case.scope, table, "ranges of compilers", lambda: [*named])
    names = [str(name) for (name,) in stored]
    times: dict[tuple[object, str], list[Intervals]] = {}
    rows: list[Row] = []
    for compiler, words in _IN_RANGES.items():
        word = re.compile(words, re.IGNORECASE)
        range_names = [name for name in names if word.fullmatch(name) or (word.search(name) and _COMPILES.search(name))]
        if not range_names:
            continue
        is_compiler = FOLDED_LABEL.in_(range_names)
        for (task, _), part in spans(case, table, [is_compiler]).merged.items():
            times.setdefault((task if task in case.rank_of else task.report, compiler), []).append(part)
        query = sa.select(columns.report, columns.process, FOLDED_LABEL, sa.func.count())
        query = query.where(*conditions, is_compiler).group_by(columns.report, columns.process, FOLDED_LABEL)
        rows += [
            (case.rank_of.get(Task(report, process)), compiler, name, count)
            for report, process, name, count in session.rows(query)
        ]
    return times, rows


def _in_driver(case: Case) -> _Compiling:
    times: dict[tuple[object, str], list[Intervals]] = {}
    rows: list[Row] = []
    for thread, _, part in _overhead_of(case, _COMPILING, launching=False):
        times.setdefault((thread.task, "PTX"), []).append(part)
        rows.append((thread.rank, "PTX", thread.words(), len(part)))
    return times, rows


def _kinds(tree: StackTree) -> Ints:
    """Return the compiler in each node's stack: 1 for the first of `_COMPILERS`, 0 without a compiler."""
    words = [f"{function.library} {function.name}" for function in tree.functions]
    kinds = [next((n for n, pattern in enumerate(_COMPILERS.values(), 1) if pattern.search(text)), 0) for text in words]
    node_kinds = np.where(tree.function >= 0, np.array(kinds or [0], np.int64)[tree.function], 0)
    for first, last in pairwise([*tree.levels.tolist()[1:], len(tree)]):
        parent = node_kinds[tree.parent[first:last]]
        level = node_kinds[first:last]
        node_kinds[first:last] = np.where((level == 0) | ((parent > 0) & (parent < level)), parent, level)
    return node_kinds


_CONTEXT, _HOST_MEMORY, _LAUNCHES = "context-creation", "host-allocation", "first-launches"
_FIRST_CALLS = 20
_MIN_RATIO = 10
"""The minimum length of the call that creates the context, in medians of later calls."""
_NO_CONTEXT = "Synchronize|Memcpy|Memset|Launch|EventQuery|StreamQuery"
_BEFORE_CONTEXT = "^cu(?:Init|Library|ModuleGetLoadingMode|DeviceGet)|^cuda(?:GetDevice|DeviceGet)"
"""Calls that need no context, and create none."""
HOST_CALLS = (
    "cudaHostAlloc", "cudaMallocHost", "cudaFreeHost", "cudaHostRegister", "cudaHostUnregister", "cuMemHostAlloc",
    "cuMemAllocHost", "cuMemFreeHost", "cuMemHostRegister", "cuMemHostUnregister",
)  # fmt: skip
_LONG_LAUNCH = 100_000
"""The minimum length of a launch that loads a kernel, ns."""
CALL_COLUMNS = (
    RANK, Column("call", header="Call", label="call"), COUNT,
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
)  # fmt: skip
_KERNELS = (
    RANK,
    Column("kernel", header="Kernel", label="kernel"),
    Column("first", header="First Launch (ns)", label="first launch", unit=Unit.DURATION),
    Column("median", header="Launch Med (ns)", label="launch med", unit=Unit.DURATION, compared="first", decimals=0),
    COUNT,
)
_LOADING = Column("loading", header="Loading (ns)", label="loading", unit=Unit.DURATION, compared="first")


class _First(NamedTuple):
    """The call that creates the context: job time, ns above the usual time, and share of all CUDA calls, %."""

    rank: int
    name: str
    start: int
    end: int
    extra: int
    share: float


@rule(
    160,
    IDLE | {"api_calls"},
    FindingKind("context-creation", "CUDA context creation", is_paid_once=True),
    FindingKind("host-allocation", "allocation of page-locked host memory", BY_CPU),
    FindingKind("first-launches", "first launches of kernels", BY_CPU, symptom_of=("jit-compilation",)),
)
def first_use(case: Case) -> Sequence[Finding | NotChecked]:
    """Find the cost of the CUDA context, pinned memory, and first launches of kernels (docs/numbers.md#first-use)."""
    if not case.job.session.count(tables.api_calls) or not case.devices:
        return [NotChecked(_CONTEXT, f"needs GPU work and CUDA API calls: {case.record(*CUDA_TABLES)}")]
    contexts = _contexts(case)
    findings = [_context_finding(case, contexts), _host_memory(case, contexts), _first_launches(case)]
    return [finding for finding in findings if finding is not None]


def _contexts(case: Case) -> list[_First]:
    """Return the call of each process that creates its context: its first long call, if before all GPU work."""
    begins: dict[Task, int] = {}
    for device in case.job.busy(case.scope).gpus:
        task, worked = device.device.task.task, device.worked(case.window_of(device))
        if worked is not None:
            begins[task] = min(begins.get(task, worked.start), worked.start)
    if not begins:
        return []
    calls, columns = tables.api_calls, tables.api_calls.c
    tasks = {"report": [task.report for task in begins], "process": [task.process for task in begins]}
    began = given({**tasks, "begin": list(begins.values())}).cte("asked").c
    start, length = job_start(calls), duration(calls)
    is_long = [length >= case.thresholds.context_ms * 1e6, start < began.begin, columns.report == began.report]
    creates = sa.not_(sa.func.regexp_matches(columns.name, _BEFORE_CONTEXT, type_=sa.Boolean))
    number = sa.func.row_number().over(partition_by=(columns.report, columns.process), order_by=(start, columns.row))
    keys = columns.report, columns.process, columns.row, columns.name, start.label("start"), length.label("length")
    long = sa.select(*keys, number.label("number")).where(*is_long, columns.process == began.process, creates)
    long_calls = long.where(*where(calls, case.scope)).subquery("long").c
    may_create = sa.not_(sa.func.regexp_matches(long_calls.name, _NO_CONTEXT, type_=sa.Boolean))
    first = sa.select(*(long_calls[key.name] for key in keys)).where(long_calls.number == 1, may_create).cte("first").c
    is_before = sa.or_(start < first.start, sa.and_(start == first.start, columns.row < first.row))
    before = sa.func.count().filter(is_before, columns.end.is_not(None))
    usual = sa.func.median(length).filter(columns.name == first.name, start > first.start)
    query = sa.select(*first, before, usual, sa.func.sum(length)).group_by(*first)
    is_of_process = columns.report == first.report, columns.process == first.process
    contexts = []
    for report, process, _, name, begin, time, count, median, total in sorted(
        case.job.session.rows(query.where(*is_of_process, *where(calls, case.scope)))
    ):
        if count < _FIRST_CALLS and (median is None or time >= _MIN_RATIO * median):
            rank, share = case.rank_of[Task(report, process)], 100 * time / float(total or 1)
            contexts.append(_First(rank, name, begin, begin + time, time - round(median or 0), share))
    return contexts


def _context_finding(case: Case, contexts: Sequence[_First]) -> Finding | None:
    if not contexts:
        return None
    cost = sum(first.extra for first in contexts) // len(case.tasks)
    longest = max(contexts, key=lambda first: (first.extra, -first.rank))
    name = _function(longest.name)
    sentence = (
        f"The first {name} takes {time_words(longest.end - longest.start)}, "
        f"{longest.share:.0f} % of the time in CUDA calls. This call creates the CUDA context and loads the program's "
        f"modules ({rank_words(first.rank for first in contexts)})."
    )
    advice = Advice(
        "Create the CUDA context before the measurement (cudaFree(0), a warm-up), and leave it out of timings.",
        "Every process creates its context once, in its first CUDA call. In a long run, this does not matter.",
    )
    rows: list[Row] = [(first.rank, _function(first.name), first.start, first.end - first.start) for first in contexts]
    evidence = (RANK, Column("call", header="Call", label="call"), START, DURATION), rows
    measured = "The first long CUDA call of each process, minus its usual time later. The mean is over the ranks."
    ranks, door, severity = sorted(first.rank for first in contexts), Door("api", filter=name), Severity.INFO
    return case.finding(_CONTEXT, sentence, advice, door, cost, measured, evidence, severity, ranks=tuple(ranks))


def _function(name: str) -> str:
    """Return ``cudaMalloc`` for ``cudaMalloc_v3020``."""
    return re.sub(r"_v\d+$", "", name)


def _host_memory(case: Case, contexts: Sequence[_First]) -> Finding | None:
    calls = tables.api_calls
    are_host = sa.or_(*(calls.c.name.startswith(name) for name in HOST_CALLS))
    host_calls = spans(case, calls, [are_host])
    if not host_calls.count:
        return None
    created = {first.rank: first.extra for first in contexts if first.name.startswith(HOST_CALLS)}
    idle, times = [], {}
    for device in case.devices:
        idle_part = intersect(merge(*map(host_calls.of, device.tasks)), case.idle_in(device, case.window_of(device)))
        times[device.device.key] = idle_part
        idle.append(max(idle_part.length - sum(created.get(rank, 0) for rank in device.ranks), 0))
    cost = case.mean(idle)
    if case.percent(cost) < case.thresholds.host_memory_percent:
        return None
    query = (
        sa.select(calls.c.report, calls.c.process, calls.c.name, sa.func.count(), sa.func.sum(duration(calls)))
        .where(*where(calls, case.scope), are_host)
        .group_by(calls.c.report, calls.c.process, calls.c.name)
    )
    rows: list[Row] = [
        (case.rank_of.get(Task(report, process)), _function(name), int(count), int(time or 0))
        for report, process, name, count, time in case.job.session.rows(query)
    ]
    rows.sort(key=lambda row: (-int(row[3] or 0), str(row)))
    sentence = (
        f"The GPU idles while host memory is page-locked or freed: {time_words(cost)} per GPU "
        f"({counted(sum(int(row[2] or 0) for row in rows), 'call')}: {longest_calls(rows)})."
    )
    advice = Advice(
        "Allocate page-locked memory once and reuse it. Pin less: copy large data in pieces through small buffers.",
        "Pinning makes copies faster but takes time for each page. It pays only if the memory is copied many times.",
    )
    measured = (
        "Idle time in cudaHostAlloc, cudaMallocHost, cudaFreeHost, cudaHostRegister, cudaHostUnregister and their "
        "driver calls, without the creation of the context. The mean is over the GPUs."
    )
    door, evidence = Door("api", filter="Host"), (CALL_COLUMNS, rows)
    return case.finding(_HOST_MEMORY, sentence, advice, door, cost, measured, evidence, times=times)


def longest_calls(rows: Sequence[Row]) -> str:
    """Return ``cudaFree 3.1 ms, cudaMalloc 1.2 ms``: the two calls with the most time in rows of `CALL_COLUMNS`."""
    spent: dict[str, int] = {}
    for _, name, _, time in rows:
        spent[str(name)] = spent.get(str(name), 0) + int(time or 0)
    ordered = sorted(spent, key=lambda name: (-spent[name], name))
    return ", ".join(f"{name} {time_words(spent[name])}" for name in ordered[:2])


_Launches = tuple[str, int, int, float, int]
"""A kernel, start and end of its first launch (job time), the lower median of all (ns), and their number."""


def _first_launches(case: Case) -> Finding | None:
    calls = tables.api_calls
    if not case.job.session.count(tables.kernels):
        return None
    is_long = [calls.c.name.contains("Launch"), duration(calls) >= _LONG_LAUNCH]
    query = sa.select(sa.func.coalesce(sa.func.sum(duration(calls)), 0)).where(*where(calls, case.scope), *is_long)
    loading, table = _overhead_of(case, _LOADING_CODE), tables.cuda_overhead
    is_known = all(report.has(table) and table.name not in report.damaged for report in case.reports)
    upper_bound = float(case.job.session.scalar(query)) + sum(part.length for _, _, part in loading)
    if case.percent(case.mean([upper_bound])) < case.thresholds.first_launch_percent:
        return None  # cheaper than reading every launch
    times, rows, slow = _delays(case, loading, is_known)
    cost = case.mean(intervals.length for intervals in times.values())
    if case.percent(cost) < case.thresholds.first_launch_percent:
        return None
    loaded, load_words = overhead_in(case, times, (*_COMPILING, *_LOADING_CODE))
    sentence = f"The GPU idles during the first launches of kernels: {time_words(cost)} per GPU."
    if slow:
        launch_words = f"{slow:,} of {counted(len(rows), 'first launch')}"
        launch_words = f"{launch_words} take longer than later ones" if is_known else f"Loading delays {launch_words}"
        longest_words = f"{rows[0][1]}: {time_words(rows[0][2])} instead of {time_words(rows[0][3])}"
        sentence += f" {launch_words} ({longest_words})."
    load_words = load_words or "no loading of code and no compilation" * is_known
    sentence += f" CUDA recorded {load_words} in this time." if load_words else ""
    advice = Advice(
        "Warm up before the measurement, or load all kernels at the start (CUDA_MODULE_LOADING=EAGER).",
        "CUDA loads a kernel at its first launch (lazy loading), and the GPU waits. Later launches load nothing.",
    )
    if is_known and not loaded:
        reason = "First launches take longer than later launches, but CUDA recorded no loading nor compilation."
        advice = Advice("Warm up before the measurement.", reason)
    measured = (
        "First launches of 0.1 ms or more and of three times the median of the kernel, minus that median, and loading "
        "that CUDA recorded, while the GPU is idle. Kernels launched once count only if loading is recorded. The mean "
        "is over the GPUs."
    )
    columns = (*_KERNELS, _LOADING) if is_known else _KERNELS
    return case.finding(_LAUNCHES, sentence, advice, Door("kernels"), cost, measured, (columns, rows), times=times)


def _delays(
    case: Case, loading: Sequence[tuple[HostThread, str, Intervals]], has_loading: bool
) -> tuple[Mapping[Place, Intervals], list[Any], int]:
    """Return the idle time of slow first launches and loading by GPU, all first launches, and how many are slow."""
    launches_by_gpu = _launches(case)
    times, rows, slow = dict[Place, Intervals](), list[Any](), 0
    for device in case.devices:
        waits = list[Intervals]()
        for user in device.devices:
            task, extra = user.task.task, []
            loads = merge(*(part for thread, _, part in loading if thread.task == task))
            for name, start, end, usual, count in launches_by_gpu.get((task, user.device), []):
                cells = (case.rank_of[task], name, end - start, usual, count)
                rows.append((*cells, loads.clip(start, end).length) if has_loading else cells)
                if end - start >= max(_LONG_LAUNCH, 3 * usual):
                    extra.append((start + round(usual), end))
            slow += len(extra)
            waits += [union([start for start, _ in extra], [end for _, end in extra]), loads]
        idle = case.idle_in(device, case.window_of(device))
        times[device.device.key] = intersect(merge(*waits), idle)
    rows.sort(key=lambda row: (row[3] - row[2], str(row)))
    return times, rows, slow


def _launches(case: Case) -> Mapping[Place, list[_Launches]]:
    """Return the launches of each kernel launched more than once, by process and device."""
    kernels, calls = tables.kernels, tables.api_calls
    gpu_columns = (kernels.c.report, kernels.c.process, kernels.c.device)
    start, end = job_start(calls), job_end(calls)
    first = sa.func.min(start), sa.func.arg_min(end, start)
    # The lower median: of two launches, the shorter, which is the second if the first loads the kernel.
    usual = sa.func.quantile_disc(end - start, 0.5)
    query = (
        sa.select(*gpu_columns, kernels.c.short_name, *first, usual, sa.func.count())
        .join_from(kernels, calls, is_launched_by(kernels, calls))
        .where(*where(kernels, case.scope), calls.c.end.is_not(None))
        .group_by(*gpu_columns, kernels.c.short_name, kernels.c.name)
        .having(sa.func.count() > 1)
    )
    launches_by_gpu: dict[Place, list[_Launches]] = {}
    for report, process, device, name, begin, until, median, count in case.job.session.rows(query):
        launches = str(name), int(begin), int(until), float(median), int(count)
        launches_by_gpu.setdefault((Task(report, process), device), []).append(launches)
    return launches_by_gpu
