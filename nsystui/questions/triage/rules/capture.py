"""Problems of the capture itself: they explain more bad numbers than anything else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import sqlalchemy as sa

from nsystui.base.selection import Task
from nsystui.base.text import few
from nsystui.exports import canonical
from nsystui.questions.host.causes import COPYING, LAUNCHING, kind_of
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.reports import diagnostics_table, lost_events
from nsystui.questions.queries.tasks import world_size
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.triage.case import Case, number_of, rank_words, time_words
from nsystui.questions.triage.finding import DIAGNOSTICS, Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_SURE = re.compile(r"\blost\b|\bdropp|overflow|discarded|truncated", re.IGNORECASE)
_CUPTI = re.compile(r"CUPTI_ERROR|CUDA profiling|CUPTI.*(?:fail|error|privileg|permission)", re.IGNORECASE)
"""What nsys says where CUPTI gives it nothing."""
_DOOR = Door(DIAGNOSTICS)


def check(case: Case) -> Sequence[Finding | NotChecked]:
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
