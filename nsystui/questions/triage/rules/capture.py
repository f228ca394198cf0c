"""What the capture says of itself: lost events, what is missing, API errors, the profiler's own work."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import COUNT, NAME, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import few
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import EMPTY
from nsystui.questions.gpu.profiler_overhead import overhead_conditions
from nsystui.questions.host.causes import COPYING, LAUNCHING, kind_of
from nsystui.questions.queries.conditions import duration, job_start, where
from nsystui.questions.queries.reports import diagnostics_table, lost_events
from nsystui.questions.queries.tasks import rank_of, world_size
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.triage.case import Case, number_of, rank_words, time_words
from nsystui.questions.triage.finding import DIAGNOSTICS, Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rule import IDLE, WORK, FindingKind, rule
from nsystui.store import tables

_SURE = re.compile(r"\blost\b|\bdropp|overflow|discarded|truncated", re.IGNORECASE)
_CUPTI = re.compile(r"CUPTI_ERROR|CUDA profiling|CUPTI.*(?:fail|error|privileg|permission)", re.IGNORECASE)
"""What nsys says where CUPTI gives it nothing."""
_DOOR = Door(DIAGNOSTICS)


@rule(
    10,
    reads=WORK | {"diagnostics", "nvtx_ranges", "nccl_calls"},
    finds={
        "lost-events": FindingKind(),
        "capture-errors": FindingKind(),
        "different-runs": FindingKind(),
        "no-gpu-work": FindingKind(),
        "short-window": FindingKind(),
        "no-nvtx": FindingKind(),
        "no-message-sizes": FindingKind(),
        "ranks-missing": FindingKind(),
    },
)
def capture(case: Case) -> Sequence[Finding | NotChecked]:
    """Problems of the capture itself: they explain more bad numbers than anything else."""
    found: list[Finding | NotChecked] = [*_runs(case), *_lost(case), *_empty(case), *_short(case), *_missing(case)]
    of_nsys = [report for report in case.reports if not report.metadata.made_of]
    if of_nsys and not any(report.count(tables.diagnostics) for report in of_nsys):
        found.append(
            NotChecked("lost-events", "needs what nsys said of its own capture: nsys 2024.4 and later write it")
        )
    return found


def _lost(case: Case) -> Iterator[Finding]:
    """Events that nsys says it lost, and its errors."""
    said = diagnostics_table(case.job.session, replace(case.chosen, name=None))
    texts = list(zip(said.cells("severity"), said.cells("text"), strict=True))
    lost = lost_events(texts)
    advice = Advice(
        "record less at once (fewer traces, a shorter window with -c cudaProfilerApi or --duration)",
        "other numbers here may be undercounted",
    )
    if lost:
        # "Not all … events might have been collected" is what nsys says of many a capture that lacks nothing.
        sure = [text for text in said.cells("text") if _SURE.search(str(text))]
        severity = Severity.ERROR if sure else Severity.INFO
        messages = few([text.removesuffix(".") for text in lost])  # each message of nsys is a sentence
        text = f"events may be missing; counts and times may be undercounted: {messages}"
        if not sure:
            text = f"nsys is not sure that it has everything: {messages}"
            advice = Advice(
                "trust the numbers, unless kernels or ranges that you know of are missing",
                "nsys says so of many captures that lack nothing",
            )
        yield Finding("lost-events", severity, text, advice, _DOOR, evidence=said)
    errors = [str(text or "").strip() for severity, text in texts if severity == "Error"]
    if errors and not lost:
        text = f"nsys reported {number_of(len(errors), 'error')} while recording: {errors[0]}"
        yield Finding(
            "capture-errors",
            Severity.WARNING,
            text,
            Advice("read nsys's messages and record again", "what it could not record is missing here"),
            _DOOR,
            evidence=said,
        )


def _runs(case: Case) -> Iterator[Finding]:
    """Reports of different runs, which are no job."""
    if not shares_clock(case.reports):
        yield Finding(
            "different-runs",
            Severity.WARNING,
            f"these {number_of(len(case.reports), 'report')} are of different runs, or one does not say when it began: "
            "what is said here is about all of them together",
            Advice("judge each run by itself, or compare two with `nsystui diff`", "costs are means over all of them"),
            _DOOR,
        )


def _empty(case: Case) -> Iterator[Finding]:
    """Ranks without any GPU work."""
    there = {task for one in case.devices for task in one.tasks}
    without = {item.task: item.rank for item in case.ranks if item.task not in there}
    if not without and case.ranks:
        return
    whose = rank_words(without.values(), case.ranks) if case.ranks else "these exports"
    sentence = f"no GPU work was recorded for {whose}"
    advice = Advice(
        canonical.KERNELS.record, "nothing can be said of GPUs without it; the program may also not use any"
    )
    calls = _cuda_calls(case, without)
    launches = {name: count for name, count in calls.items() if kind_of(name) in (LAUNCHING, COPYING)}
    evidence = None
    if launches:
        most = max(launches, key=lambda name: (launches[name], name))
        evidence = diagnostics_table(case.job.session, case.chosen)
        said = [str(text).strip().rstrip(".") for text in evidence.cells("text") if _CUPTI.search(str(text))]
        count = number_of(sum(launches.values()), "CUDA call")
        sentence += f", in spite of {count} to launch, copy or set memory ({launches[most]:,} {most})"
        sentence += f"; nsys says: {said[0]}" if said else ""
        advice = Advice(
            "read nsys's messages (`nsystui info`) for errors of CUPTI, and record again until the program ends, or "
            "until it calls cudaProfilerStop",
            "CUPTI delivers GPU work late, and none where the capture crashed, under WSL with an old driver, or "
            "without the permission to trace the GPU",
        )
    elif calls:
        count = number_of(sum(calls.values()), "CUDA call")
        sentence += f": of {count} none launches, copies or sets memory"
        advice = Advice(
            "record a part of the run in which the program uses its GPU",
            "CUDA was traced, so its launches would be here",
        )
    ranks = tuple(sorted(without.values()))
    yield Finding("no-gpu-work", Severity.WARNING, sentence, advice, _DOOR, evidence=evidence, ranks=ranks)


def _cuda_calls(case: Case, tasks: Collection[Task]) -> dict[str, int]:
    """The CUDA calls of some tasks by name; of all where there are no ranks."""
    table = tables.api_calls
    if not case.job.session.count(table):
        return {}
    own = case.chosen.with_tasks(frozenset(tasks)) if tasks else case.chosen
    query = sa.select(table.c.name, sa.func.count()).where(*where(table, own), table.c.name.is_not(None))
    return dict(case.job.session.rows(query.group_by(table.c.name)))


def _short(case: Case) -> Iterator[Finding]:
    """A capture that is too short to stand for the job."""
    advice = Advice("record a longer part", "what happens once weighs too much in a short capture")
    steps = [len(one) for one in case.steps.values()]
    if steps and max(steps) < case.thresholds.fewest_steps:
        text = f"only {number_of(max(steps), 'step')} of a rank {'is' if max(steps) == 1 else 'are'} in the window"
        yield Finding("short-window", Severity.INFO, text, advice, Door("every step"))
        return
    if case.devices and case.spent.busy / len(case.devices) < case.thresholds.shortest_ms * 1e6:
        busy = time_words(case.spent.busy / len(case.devices))
        text = f"GPUs were busy for {busy} each in {time_words(case.time)}: too short to judge shares by"
        yield Finding("short-window", Severity.INFO, text, advice, Door("gpu"))


def _missing(case: Case) -> Iterator[Finding]:
    """Data that was not recorded, or not exported, and would have been useful."""
    session = case.job.session
    if case.devices and not session.count(tables.nvtx_ranges):
        yield Finding(
            "no-nvtx",
            Severity.INFO,
            "there are no NVTX ranges: time cannot be told by phase or step",
            Advice(canonical.NVTX_RANGES.record, "steps, layers and NCCL calls are known by their ranges"),
            Door("nvtx"),
        )
    if session.count(tables.nccl_calls) and not case.has_message_sizes:
        yield Finding(
            "no-message-sizes",
            Severity.INFO,
            "NCCL's message sizes are not in the exports: no bandwidth can be told",
            Advice(
                "nsys export -t sqlite --include-json=true --include-blobs=true REPORT.nsys-rep",
                "they are in the report, and nsys leaves them out by default",
            ),
            Door("nccl"),
        )
    size = world_size(session)
    if size and case.chosen.tasks is None and size > len(case.ranks):
        yield Finding(
            "ranks-missing",
            Severity.INFO,
            f"1 of {size} ranks is open: alone it does not tell who is late"
            if len(case.ranks) == 1
            else f"{len(case.ranks)} of {size} ranks are open: who is late, and by how much, is known among these only",
            Advice(
                "open the exports of all ranks, if they were recorded", "the slowest rank may be one that is not here"
            ),
            Door("ranks"),
        )


_HARMLESS = (0, 600, 704)
"""Success, "not ready" (how a query says that work goes on) and "peer access is already enabled"."""
_NAMES = {
    1: "invalid value",
    2: "out of memory",
    214: "uncorrectable ECC error",
    217: "no peer access between two devices",
    700: "illegal address",
    702: "launch timeout",
    710: "assert on the device",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failure",
    801: "not supported",
}
_STICKY = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719})
"""After these a process cannot use its GPU any more (cudaError_t in driver_types.h; the same numbers in CUresult)."""
_OUT_OF_MEMORY, _NO_PEER_ACCESS = 2, 217
_API_ERRORS_COLUMNS = (
    RANK,
    NAME,
    Column("code", header="Code", label="code", unit=Unit.NUMBER),
    Column("meaning", header="Meaning", label="meaning"),
    COUNT,
    Column("first", header="First (ns)", label="first", unit=Unit.TIME),
)


class _ApiErrorsRow(NamedTuple):
    rank: int | None
    name: str
    code: int
    meaning: str | None
    calls: int
    first: int


@rule(
    20,
    reads=frozenset({"api_calls"}),
    finds={
        "api-errors": FindingKind(),
    },
)
def api_errors(case: Case) -> Sequence[Finding | NotChecked]:
    """CUDA API calls that returned an error."""
    table = tables.api_calls
    session = case.job.session
    if not session.count(table):
        return [NotChecked("api-errors", "needs CUDA API calls: record with `nsys profile -t cuda`")]
    query = (
        sa.select(
            rank_of(table, case.ranks).label("rank"),
            table.c.name,
            table.c.return_value,
            sa.func.count().label("count"),
            sa.func.min(job_start(table)).label("first"),
        )
        .where(*where(table, case.chosen), table.c.return_value.not_in(_HARMLESS))
        .group_by("rank", table.c.name, table.c.return_value)
    )
    found = session.rows(query)
    rows = [_ApiErrorsRow(rank, name, code, _NAMES.get(code), count, first) for rank, name, code, count, first in found]
    if not rows:
        return []
    rows.sort(key=lambda row: (row.code not in _STICKY, row.first, str(row)))
    severity, advice = _judged({row.code for row in rows})
    worst = rows[0]
    total = sum(row.calls for row in rows)
    meaning = f" ({worst.meaning})" if worst.meaning else ""
    sentence = f"{number_of(total, 'CUDA call')} returned an error; {worst.name} returned {worst.code}{meaning}"
    ranks = tuple(sorted({row.rank for row in rows if row.rank is not None}))
    window = Window(worst.first, worst.first + 1)
    evidence = TableAnswer("api-errors", _API_ERRORS_COLUMNS, rows, len(rows))
    door = Door("api")
    return [Finding("api-errors", severity, sentence, advice, door, evidence=evidence, window=window, ranks=ranks)]


def _judged(codes: set[int]) -> tuple[Severity, Advice]:
    if codes & _STICKY:
        return Severity.ERROR, Advice(
            "run the program under compute-sanitizer",
            "after such an error nothing that the GPU computed can be trusted",
        )
    if _OUT_OF_MEMORY in codes:
        return Severity.WARNING, Advice(
            "use less memory (batch size, fragmentation), or look whether the program frees and tries again",
            "an allocator that runs full and retries frees its cache, which synchronises the whole GPU",
        )
    if _NO_PEER_ACCESS in codes:
        return Severity.WARNING, Advice(
            "see which GPUs reach each other (`nvidia-smi topo -p2p r`), and let those exchange data",
            "without peer access copies between these GPUs are staged through the host",
        )
    return Severity.INFO, Advice(
        "see whether the program expects it", "libraries probe for features with calls that may fail"
    )


_PROFILER_OVERHEAD_COLUMNS = (
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    COUNT,
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=1),
    NAME,
)


class _ProfilerOverheadRow(NamedTuple):
    total: int
    entries: int
    max: int
    name: str | None


@rule(
    310,
    reads=IDLE,
    finds={
        "profiler-overhead": FindingKind("the profiler's own work"),
    },
)
def profiler_overhead(case: Case) -> Sequence[Finding | NotChecked]:
    """Time in which a GPU was idle while the profiler worked: it is no time of the program."""
    table = tables.profiler_overhead
    if not case.job.session.count(table) or not case.devices:
        return [
            NotChecked(
                "profiler-overhead", "needs GPU work and the times of the profiler's own work: these exports have none"
            )
        ]
    own = [case.overhead.get(one.device.task.task, EMPTY) for one in case.devices]
    idle = [case.idle(one).shared_with(part) for one, part in zip(case.devices, own, strict=True)]
    cost = case.mean(idle)
    if case.percent(cost) < case.thresholds.overhead_percent:
        return []
    rows = _by_name(case)
    count = sum(row.entries for row in rows)
    sentence = (
        f"GPUs are idle for {time_words(cost)} each while the profiler itself works ({number_of(count, 'time')}; "
        f"most of it: {rows[0].name or '(no name)'}): this is not time of the program"
    )
    advice = Advice(
        "record less (no backtraces, no sampling, fewer traces), and flush seldom (--cuda-flush-interval)",
        "the program waits while nsys allocates or writes its buffers, which no run without it does",
    )
    measured = (
        "idle time of a GPU inside its work in which its process has an entry in PROFILER_OVERHEAD; mean over the GPUs"
    )
    evidence = TableAnswer("profiler-overhead", _PROFILER_OVERHEAD_COLUMNS, rows, len(rows))
    share, door = case.percent(cost), Door(DIAGNOSTICS)
    return [Finding("profiler-overhead", Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


def _by_name(case: Case) -> list[_ProfilerOverheadRow]:
    table = tables.profiler_overhead
    total = sa.cast(sa.func.sum(duration(table)), sa.BigInteger).label("total")
    query = (
        sa.select(total, sa.func.count(), sa.func.max(duration(table)), table.c.name)
        .where(*overhead_conditions(case.chosen))
        .group_by(table.c.name)
        .order_by(total.desc(), table.c.name)
    )
    return [_ProfilerOverheadRow(*row) for row in case.job.session.rows(query)]
