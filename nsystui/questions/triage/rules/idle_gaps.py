"""Long idle gaps of the GPUs, between their first and last operation, and what the CPU did in them.

See docs/numbers.md#expert-rules.

The work of the profiler itself divides no gap, and is no part of the cost: that is the finding of `profiler_overhead`.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsystui.base.answer import DEVICE, RANK, START, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Window
from nsystui.exports import canonical
from nsystui.questions.host.causes import (
    ALLOCATING,
    COPYING,
    GIL,
    IN_MPI,
    IN_OS,
    KINDS,
    LAUNCHING,
    NOTHING,
    OFF_CPU,
    OTHER_CALLS,
    PREEMPTED,
    PROFILER,
    RUNNING_CODE,
    SYNCHRONISING,
    WAITING,
)
from nsystui.questions.host.host_work import CpuSpan, HostWork, host_work
from nsystui.questions.triage.case import Case, by_place, number_of, rank_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rules.allocator_churn import advice as allocator_advice
from nsystui.questions.triage.rules.preempted import CROWDED
from nsystui.store import tables

_LOOKED_AT = 40
"""The number of longest gaps in which the CPU's work is examined."""
_ADVICE = {
    SYNCHRONISING: Advice(
        "synchronise less often, or with events on the stream instead of the CPU",
        "after a synchronisation the GPU has nothing to do until the CPU has launched again",
    ),
    COPYING: Advice(
        "copy asynchronously from pinned memory, on a stream of its own",
        "a copy that blocks the CPU keeps it from launching the next work",
    ),
    LAUNCHING: Advice(
        "warm up before what is measured, or load kernels at the start (CUDA_MODULE_LOADING=EAGER); "
        "`nsystui api --filter Launch` says which launches are long",
        "a launch takes some µs, unless it loads its kernel, or waits for another thread that is in CUDA",
    ),
    OTHER_CALLS: Advice("look at the call on the Events screen", "the CPU was in it while the GPU had nothing to do"),
    IN_MPI: Advice(
        "overlap MPI with GPU work, or look for the rank that comes late", "the CPU waited in MPI and launched nothing"
    ),
    GIL: Advice(
        "move what the other thread does to another process, or into code that releases the GIL (`nsystui gaps`)",
        "of the threads of a process only the one that holds the GIL runs Python code, and launches",
    ),
    IN_OS: Advice(
        "see who calls it (`nsystui gaps`), and have another thread or process do it ahead of time",
        "the thread that launches waited for the system: for data, a file, a process",
    ),
    RUNNING_CODE: Advice(
        "make that code faster, or run it on a thread that launches nothing (`nsystui calltree`)",
        "the thread that launches was busy with it, and could launch nothing",
    ),
    PREEMPTED: CROWDED,
    WAITING: Advice(
        "make what the other thread does faster, or have it done earlier: more workers, prefetching (`nsystui gaps`)",
        "the thread that launches waited while another thread of its process, or a worker process of it, ran",
    ),
}
"""Of `OFF_CPU` and `NOTHING` the cause is not known: see `_unknown`."""
_REASON = {
    OFF_CPU: "the thread that launches was off its CPU, and no other thread of its process is known to have run: "
    "what it waited for is not recorded",
    NOTHING: "the thread that launches made no CUDA or MPI call, so nothing could be launched; nothing else is "
    "recorded of it",
}
_RECORDED = {
    NOTHING: (canonical.OS_CALLS, canonical.SCHED_EVENTS, canonical.HOST_SAMPLES),
    OFF_CPU: (canonical.OS_CALLS,),
}
"""The tables that would say more."""
_COLUMNS = (
    RANK,
    DEVICE.with_importance(2),
    START,
    Column("duration", header="Duration (ns)", label="idle", unit=Unit.DURATION),
    Column("kind", header="CPU", label="launching thread was"),
    Column("share", header="CPU (%)", label="for", unit=Unit.PERCENT, decimals=1, importance=2),
    Column("call", header="Call", label="longest call", importance=1),
    Column("range", header="NVTX Range", label="NVTX range", importance=1),
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.devices:
        return [NotChecked("idle-gaps", f"needs GPU work: {canonical.KERNELS.record}")]
    spans: list[CpuSpan] = []
    for device in case.devices:
        gaps, place = case.long_gaps(device), device.device
        for start, end in zip(gaps.starts.tolist(), gaps.ends.tolist(), strict=True):
            spans.append(CpuSpan(place.task.task, place.device, Window(start, end)))
    cost = case.mean(case.long_idle(device).length for device in case.devices)
    if case.percent(cost) < case.thresholds.gap_percent:
        return []
    spans.sort(key=lambda span: (-span.length, span.window.start, span.task, span.device))
    works = host_work(case.job, spans[:_LOOKED_AT])
    return [_finding(case, spans, works, cost)]


def _finding(case: Case, spans: Sequence[CpuSpan], works: Sequence[HostWork], cost: int) -> Finding:
    spent = {kind: sum(work.spent[kind] for work in works) for kind in KINDS if kind != PROFILER}
    kind = max(spent, key=lambda one: spent[one])
    looked = sum(spent.values())
    longest = spans[0]
    gist = f"{case.waiting(cost)} in long gaps"
    if not case.job.session.count(tables.api_calls):
        doing, advice = "", Advice("record CUDA API calls (-t cuda)", "they would say what the CPU did in the gaps")
    else:
        which = "their time" if len(works) == len(spans) else f"the time of the {len(works)} longest"
        doing = (
            f"; for {100 * spent[kind] / looked:.0f} % of {which} the launching thread was {kind}{_where(works, kind)}"
        )
        gist += f" ({_gist(works, kind, looked)})"
        if kind == ALLOCATING:
            advice = allocator_advice(case)
        else:
            advice = _ADVICE[kind] if kind in _ADVICE else _unknown(case, kind)
    ranks = tuple(sorted({case.rank_of[span.task] for span in spans}))
    sentence = (
        f"GPUs are idle for {time_words(cost)} each in gaps of {case.thresholds.gap_ms:g} ms or more "
        f"({number_of(len(spans), 'gap')} on {number_of(len(case.devices), 'GPU')}; the longest, on "
        f"{rank_words([case.rank_of[longest.task]])}, takes {time_words(longest.length)}){doing}"
    )
    return Finding(
        "idle-gaps",
        Severity.WARNING,
        sentence,
        advice,
        Door("timeline", window=longest.window),
        cost,
        case.percent(cost),
        "time without any operation between the first one (of the first step) and the last one "
        "of each GPU, and without the profiler's own work, long gaps only; mean over the GPUs",
        _table(case, works, len(spans)),
        longest.window,
        ranks,
        times=by_place((span.task, span.device, span.window.start, span.window.end) for span in spans),
        gist=gist,
    )


def _unknown(case: Case, kind: str) -> Advice:
    """The advice where no cause is known: what to record, as far as it is not there, and else where to look."""
    flags = what_to_record(case, kind)
    if flags:
        return Advice(f"record with `nsys profile {flags}`: it would say what that thread did", _REASON[kind])
    return Advice("look at the threads of all processes in the gaps (`nsystui gaps`, Timeline)", _REASON[kind])


def what_to_record(case: Case, kind: str) -> str:
    """The flags of nsys for what would tell the cause of idle time of a kind, and is not there."""
    lacking = [table for table in _RECORDED[kind] if not case.job.session.count(getattr(tables, table.name))]
    return " ".join(table.record.partition("`nsys profile ")[2].rstrip("`") for table in lacking)


def _gist(works: Sequence[HostWork], kind: str, looked: int) -> str:
    """The call or function with more than half of the time of a kind, else the kind, and its share of all."""
    calls: dict[str, int] = {}
    for work in works:
        for cause, time in work.causes.items():
            if cause.kind == kind:
                words = cause.words if cause.what else ""
                calls[words] = calls.get(words, 0) + time
    longest = max(sorted(calls), key=lambda one: calls[one])
    time = sum(calls.values())
    if longest and 2 * calls[longest] > time:
        time = calls[longest]
        kind = f"running {longest}" if kind == RUNNING_CODE else longest
    return f"{kind} {100 * time / looked:.0f} %"


def _where(works: Sequence[HostWork], kind: str) -> str:
    """The call, and the range or that there is none, that hold most of the time of a kind, each with its share."""
    calls: dict[str, int] = {}
    ranges: dict[str | None, int] = {}
    for work in works:
        ranges[work.range_name] = ranges.get(work.range_name, 0) + work.spent[kind]
        for cause, time in work.causes.items():
            if cause.kind == kind and cause.what:
                what = f"while {cause.what} had its CPU" if kind == PREEMPTED else f"in {cause.words}"
                calls[what] = calls.get(what, 0) + time
    whole, words = sum(ranges.values()), ""
    if calls:
        call = max(sorted(calls), key=lambda one: calls[one])
        words = f", {100 * calls[call] / whole:.0f} % of it {call}"
    if set(ranges) == {None}:
        return words
    longest = max(sorted(ranges, key=str), key=lambda one: ranges[one])
    where = "outside of every NVTX range" if longest is None else f"in NVTX range `{longest}`"
    return f"{words}, {100 * ranges[longest] / whole:.0f} % of it {where}"


def _table(case: Case, works: Sequence[HostWork], gaps: int) -> TableAnswer:
    rows: list[Row] = []
    for work in works:
        span, kind = work.span, work.kind
        share = 100 * work.spent[kind] / span.length
        place = (case.rank_of[span.task], span.device, span.window.start, span.length)
        rows.append((*place, kind, share, work.calls.get(kind), work.range_name))
    return TableAnswer("idle-gaps", _COLUMNS, rows, gaps)
