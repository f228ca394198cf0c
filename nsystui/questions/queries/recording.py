"""Why a table of an export is empty: nsys's request and message, and the fix; otherwise what to record.

See docs/exports.md#empty-tables. Only this module decides what to record.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from nsystui.base.selection import Task
from nsystui.base.text import counted
from nsystui.exports import EXPORT_COMMAND, canonical
from nsystui.exports.canonical import BY_NAME, CanonicalTable
from nsystui.questions.queries.derived import rows_of_each_report
from nsystui.questions.queries.tasks import (
    COPYING,
    GPU_TABLES,
    MUCH_LOST,
    launches_without_work,
    process_names,
    rows_of_tasks,
    work_calls,
)
from nsystui.store.report import Report
from nsystui.store.session import Session

_ON_GPU = "trace with ProfilerActivity.CUDA among the activities"
_PYTORCH_ADVICE = {
    canonical.KERNELS: _ON_GPU, canonical.MEMORY_OPS: _ON_GPU, canonical.API_CALLS: _ON_GPU,
    canonical.NVTX_RANGES: "trace with ProfilerActivity.CPU among the activities",
    canonical.NCCL_CALLS: "trace a job with NCCL, with ProfilerActivity.CPU among the activities",
    canonical.GPU_MEMORY: "trace with profile_memory=True", canonical.DIAGNOSTICS: "nothing to record",
}  # fmt: skip


@dataclass(frozen=True)
class _Trace:
    """A kind of trace: ``option`` requests it, as in `Metadata.asked`; it fills ``tables``.

    ``noun``: the word for a row. ``messages``: a pattern for nsys's messages if nothing was recorded. ``fix``: the
    advice if no message names the cause.
    """

    name: str
    option: str
    messages: str = ""
    fix: str = ""
    tables: tuple[CanonicalTable, ...] = ()
    noun: str = "event"


_PERF = (
    "set /proc/sys/kernel/perf_event_paranoid to 2 or lower, and give a container CAP_PERFMON "
    "(`nsys status --environment` shows what is missing)"
)
_LIBC = "lower --osrt-threshold, and check that the program links the C library dynamically"
_ALLOCATES = "check that the program allocates memory through CUDA while nsys records"
_MANAGES = "check that the program uses unified memory (cudaMallocManaged)"
_COUNTERS = "allow all users to read GPU counters (NVreg_RestrictProfilingToAdminUsers=0), and stop DCGM"
_CUDA_MESSAGES = r"CUPTI.*(?:error|fail|not |unable)|CUDA profiling|No CUDA events"
_SCHED_MESSAGES = r"context switch|Scheduling information"
_NVTX_TABLES = (canonical.NVTX_RANGES, canonical.NVTX_MARKS)
_CUDA = _Trace("CUDA", "-t cuda", _CUDA_MESSAGES, "", GPU_TABLES, "GPU activity")
_NVTX = _Trace("NVTX", "-t nvtx", "No NVTX events", "check that the program opens NVTX ranges", _NVTX_TABLES)
_TRACES = {
    canonical.KERNELS.options: _CUDA, canonical.NVTX_RANGES.options: _NVTX, canonical.NCCL_CALLS.options: _NVTX,
    canonical.OS_CALLS.options: _Trace("the OS runtime", "-t osrt", "No OS runtime libraries events", _LIBC),
    canonical.SCHED_EVENTS.options: _Trace("CPU scheduling", "--cpuctxsw", _SCHED_MESSAGES, _PERF),
    canonical.HOST_SAMPLES.options: _Trace("CPU sampling", "--sample", r"paranoid|IP.*samples", _PERF),
    canonical.GPU_METRICS.options: _Trace("GPU metrics", "--gpu-metrics-devices", "GPU metrics", _COUNTERS),
    canonical.GPU_MEMORY.options: _Trace("memory usage", "--cuda-memory-usage", "memory usage", _ALLOCATES),
    canonical.CPU_PAGE_FAULTS.options: _Trace("unified memory", "--cuda-um-cpu-page-faults", "page fault", _MANAGES),
    canonical.GPU_PAGE_FAULTS.options: _Trace("unified memory", "--cuda-um-gpu-page-faults", "page fault", _MANAGES),
}  # fmt: skip
"""Traces by the options that request them."""

_RAW = "put CuptiUseRawGpuTimestamps=false into the file whose path `nsys -z` prints"
_PERMISSION = "allow all users to trace the GPU (NVreg_RestrictProfilingToAdminUsers=0)"
_NEWER = "use an nsys that is at least as new as the driver"
_FLUSH = "let the program end by itself or call cudaProfilerStop: GPU work arrives late, and never after a crash"
_RANGE = "check that the capture range opens in the process that uses the GPU (cudaProfilerStart, the NVTX range)"
_CUDA_FIXES = (
    (r"(?:CUPTI|CUDA|GPU(?! metrics)).*(?:privileg|permission)|ERR_NVGPUCTRPERM", _PERMISSION),
    (r"\bMPS\b", "run without MPS (`echo quit | nvidia-cuda-mps-control`)"),
    (r"time ?conversion|ConvertGpuTicks|raw gpu timestamp", _RAW),
    (r"CUDA driver.*not supported|driver.*(?:too new|newer)|CUPTI.*NOT_COMPATIBLE", _NEWER),
    (r"MULTIPLE_SUBSCRIBERS|another (?:profiler|tool|CUPTI)", "run no other profiler (CUPTI) together with nsys"),
    (r"capture range|range.*(?:never|not) (?:open|start|trigger)", _RANGE),
    (r"(?:process|application).*(?:crash|killed|terminated|exited)", _FLUSH),
)
"""Messages of nsys that explain why GPU work is missing, most specific first, with their fixes."""


def recording_advice(
    session: Session, reports: Collection[Report], *needed: CanonicalTable, together: bool = False
) -> str:
    """Return how to get tables that reports lack: nsys's request and message with the fix, or what to record.

    With ``together``, all tables are needed, so one run must record them.
    """
    pairs = [(table, report) for table in needed for report in reports]
    lacking = [(table, report) for table, report in pairs if not report.count(table)]
    # If no report lacks a table, the selection leaves out all rows.
    advice = [(table, _advice(session, report, table)) for table, report in lacking or pairs]
    options = dict.fromkeys(table.options for table, text in advice if not text and table.options)
    if together and len(options) > 1:
        texts = [option_advice((), " ".join(options)), *(text for _, text in advice if text)]
    else:
        texts = [text or table.record for table, text in advice] or [table.record for table in needed]
    return " or ".join(dict.fromkeys(texts))


def option_advice(reports: Iterable[Report], options: str) -> str:
    """Return the advice to record with ``options`` of nsys, even if another profiler recorded."""
    facts = [report.metadata for report in reports]
    if facts and all(option.partition("=")[0] in fact.asked for fact in facts for option in options.split()):
        return f"`{options}` was used, but recorded none"
    origins = {fact.made_of for fact in facts}
    record = f"record with `nsys profile {options}`"
    return f"a {origins.pop()} does not contain it; {record}" if len(origins) == 1 and all(origins) else record


def sizes_advice(reports: Iterable[Report], has_log: bool) -> str:
    """Return how to get NCCL's missing message sizes; ``has_log``: a log was given, but lacks them."""
    or_log = "" if has_log else ", or add NCCL's log (--nccl-log)"
    facts = [report.metadata for report in reports if report.count(canonical.NCCL_CALLS)]
    if all(fact.made_of or fact.json_included or fact.blobs_included for fact in facts):
        return f"use NCCL 2.16.2 or later{or_log}"
    return f"export again with `{EXPORT_COMMAND} REPORT.nsys-rep` if NCCL is 2.16.2 or later{or_log}"


def _advice(session: Session, report: Report, table: CanonicalTable) -> str:
    """Return why a table is empty, with the fix; empty if nobody asked nsys for it."""
    facts, left_out = report.metadata, report.packed.left_out.get(table.name)
    if left_out and left_out.rows and not report.count(table):
        words = counted(left_out.rows, "recorded row", "have")
        return f"{'all ' * (left_out.rows > 1)}{words} impossible times; record again"
    if facts.made_of:
        return _PYTORCH_ADVICE.get(table) or option_advice([report], table.options) if table.options else ""
    trace = _asked_trace(report, table)
    if trace is None:
        return ""
    if any(report.count(filled) for filled in trace.tables):
        noun = "event" if table is canonical.API_CALLS else trace.noun
        hint = "; the job may not use NCCL, or sets NCCL_NVTX_DISABLE" if table is canonical.NCCL_CALLS else ""
        return f"{trace.name} was traced, but no {noun} of this kind was recorded{hint}"
    return _cause(session, report, trace)


def may_lack_work(session: Session, report: Report) -> bool:
    """Return whether a process has `MUCH_LOST` fewer operations than launches; true without tallies.

    Replayed graphs that are traced by node count as whole.
    """
    if (calls := session.tally(report, BY_NAME["api_calls"])) is None:
        return True
    counts = {word: calls.calls.get(word, Counter[int]()) for word in WORK_CALLS}
    replays = counts.pop("GraphLaunch")
    by_node = replays.total() > 0 and not report.count(BY_NAME["graph_launches"])
    rows = replays.copy() if by_node else Counter[int]()
    for table in GPU_TABLES:
        rows.update({task.process: count for task, count in rows_of_tasks(session, table, [report], by_node).items()})
    launches = sum(counts.values(), Counter[int]())
    return any(rows[process] < (1 - MUCH_LOST / 100) * count for process, count in launches.items())


def lost_work_advice(session: Session, reports: Iterable[Report]) -> str:
    """Return why the reports lack GPU work that processes launched, with nsys's message, and the fixes."""
    calls, kernels = canonical.API_CALLS, canonical.KERNELS
    return " or ".join(
        dict.fromkeys(
            _cause(session, report, _CUDA)
            if not report.metadata.made_of and (report.count(calls) or _asked_trace(report, kernels))
            else _advice(session, report, kernels) or kernels.record
            for report in reports
        )
    )


def _cause(session: Session, report: Report, trace: _Trace) -> str:
    message, fix = _message(session, report, trace)
    fixes = [fix] if fix else [*([trace.fix] if trace.fix else []), *_suggested_fixes(session, report, trace)]
    quoted = f' (nsys: "{message}")' if message else ""
    recorded = any(report.count(table) for table in trace.tables)
    lost = "the GPU work of some processes was not" if recorded else f"no {trace.noun} was"
    return f"{trace.name} was traced, but {lost} recorded{quoted}: {'; or '.join(fixes)}"


def _asked_trace(report: Report, table: CanonicalTable) -> _Trace | None:
    asked = report.metadata.asked
    if trace := _TRACES.get(table.options):
        # Exports before schema 3.4 lack the request; CUDA calls prove it.
        implied = trace is _CUDA and not asked and report.count(canonical.API_CALLS)
        return trace if implied or trace.option in asked else None
    flag, _, names = table.options.partition(" ")
    for name in names.split(",") if flag == "-t" else ():
        if f"-t {name}" in asked:
            return _Trace(name, f"-t {name}", fix=f"check that the program uses {name}")
    return None


def _message(session: Session, report: Report, trace: _Trace) -> tuple[str, str]:
    """Return nsys's first warning or error on a trace, and its fix; empty without a message."""
    from nsystui.store import tables

    if not report.count(canonical.DIAGNOSTICS):
        return "", ""
    import sqlalchemy as sa

    table = tables.diagnostics
    query = sa.select(table.c.text).where(table.c.report == report.index, table.c.severity > 1).distinct()
    texts = sorted(str(text or "").strip() for (text,) in session.rows(query))
    for pattern, fix in (*(_CUDA_FIXES if trace is _CUDA else ()), (trace.messages, "")):
        for text in texts if pattern else ():
            if re.search(pattern, text, re.IGNORECASE):
                return text, fix
    return "", ""


def _suggested_fixes(session: Session, report: Report, trace: _Trace) -> Sequence[str]:
    """Return fixes that a report's facts suggest: forked workers, the platform, permission, a late flush."""
    if trace not in (_CUDA, _NVTX):
        return ()
    facts, fixes = report.metadata, []
    launched = launches_without_work(session, [report])
    calls = rows_of_tasks(session, canonical.API_CALLS, [report])
    names = {task: name for task, name in process_names(session).items() if task.report == report.index}
    if trace is _CUDA:
        if facts.sandbox or (facts.sandbox is None and launched):
            fixes.append(f"under {facts.sandbox or 'WSL or gVisor'} {_RAW}")
        fixes += [_FLUSH, _PERMISSION, _NEWER] if launched else []
        if "--capture-range" in facts.asked:
            fixes.append(_RANGE)
    # Where CUDA calls were recorded, ranges would have been, too.
    if not calls or (trace is _CUDA and (not launched or set(names) - set(calls))):
        if "--trace-fork-before-exec" not in facts.asked:
            fixes.append("record forked workers too (--trace-fork-before-exec=true)")
        if facts.environment.get("VLLM_WORKER_MULTIPROC_METHOD") != "spawn":
            setting = " (VLLM_WORKER_MULTIPROC_METHOD=spawn)" * _shows_vllm(session, report, names.values())
            fixes.append(f"start workers by spawn instead of fork{setting}")
        if trace is _CUDA and not launched:
            fixes.append("record a part of the run in which the program uses its GPU")
    return fixes


def _shows_vllm(session: Session, report: Report, processes: Iterable[str]) -> bool:
    from nsystui.store import tables

    named = (tables.threads, tables.nvtx_ranges, tables.nvtx_marks, tables.kernels, tables.stack_names)
    is_named = report.metadata.names_vllm or any("vllm" in name.lower() for name in processes)
    for table in named if not is_named else ():
        query = table.select().where(table.c.report == report.index, table.c.name.icontains("vllm")).limit(1)
        is_named = is_named or bool(session.count(table) and session.rows(query))
    return is_named


WORK_CALLS = {"GraphLaunch": "graph_launches", "Launch": "kernels", **dict.fromkeys(COPYING, "memory_ops")}
"""Tables by words in the names of calls that fill them."""


def unrecorded_work(
    session: Session, reports: Iterable[Report], only: Collection[str] = tuple(WORK_CALLS.values())
) -> dict[Task, Counter[str]]:
    """Count the calls without recorded work by process and table (of ``only``)."""
    words = [word for word, table in WORK_CALLS.items() if table in only]

    counts: defaultdict[Task, Counter[str]] = defaultdict(Counter)
    read, question = partial(_unrecorded, words), f"unrecorded-work-{'-'.join(words)}"
    for index, process, table, calls in rows_of_each_report(
        session, reports if words else (), question, read, in_memory=True
    ):
        counts[Task(index, process)][table] += calls
    return counts


def _unrecorded(
    words: Sequence[str], session: Session, reports: Sequence[Report]
) -> Iterator[tuple[int, int | None, str, int]]:
    whole = [report for report in reports if report.damaged.keys().isdisjoint(table.name for table in GPU_TABLES)]
    done = _working(session, whole)
    working = set().union(*done.values())
    indices = {
        report.index for report in whole for word in words if _may_call(session, report, word, working - done[word])
    }
    indices -= {task.report for task in working if task.process == canonical.NO_PROCESS}
    by_node = {report.index for report in whole if report.metadata.graph_trace_mode == "Node"}
    calls_by_name = [*work_calls(session, sorted(indices), list(WORK_CALLS))]
    replaying = {task for task, name, _ in calls_by_name if "GraphLaunch" in name} - done["GraphLaunch"]
    done["GraphLaunch"] |= _replayed(session, {task.report for task in replaying})
    for task, name, calls in calls_by_name:
        word = next(word for word in WORK_CALLS if word in name)
        if task in working - done[word] and word in words:
            table = "kernels" if word == "GraphLaunch" and task.report in by_node else WORK_CALLS[word]
            yield task.report, task.process, table, calls


def _may_call(session: Session, report: Report, word: str, tasks: Collection[Task]) -> bool:
    """Return whether a task of the report may make calls whose names have a word."""
    tally = session.tally(report, BY_NAME["api_calls"])
    processes = {task.process for task in tasks if task.report == report.index}
    return bool(processes) and (tally is None or not processes.isdisjoint(tally.calls.get(word, ())))


def _working(session: Session, reports: Collection[Report]) -> dict[str, set[Task]]:
    import sqlalchemy as sa

    from nsystui.store.tables import memory_ops

    tasks = {word: set(rows_of_tasks(session, BY_NAME[table], reports)) for word, table in WORK_CALLS.items()}
    indices, memory = {report.index for report in reports}, memory_ops.c
    query = sa.select(memory.report, memory.process, memory.is_memset).distinct()
    rows = [row for row in session.rows(query) if row[0] in indices] if tasks[COPYING[0]] else []
    return tasks | {
        word: {Task(*task) for *task, kind in rows if bool(kind) == number} for number, word in enumerate(COPYING)
    }


def _replayed(session: Session, reports: Collection[int]) -> set[Task]:
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import is_launched_by, of_reports
    from nsystui.store.tables import api_calls, kernels, memory_ops

    is_replay = api_calls.c.name.contains("GraphLaunch") & of_reports(api_calls.c.report, reports)
    tasks = set()
    for work in (table for table in (kernels, memory_ops) if reports and session.count(table)):
        launched = sa.select(work.c.report, work.c.process).join_from(work, api_calls, is_launched_by(work, api_calls))
        tasks |= {Task(*task) for task in session.rows(launched.where(is_replay).distinct())}
    return tasks
