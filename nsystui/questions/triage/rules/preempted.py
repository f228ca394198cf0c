"""GPUs that wait for a CPU: the thread that launches could run, and something else has its CPU.

See docs/numbers.md#preempted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nsystui.base.answer import DURATION, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.exports import canonical
from nsystui.exports.metadata import process_of
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, merge, union
from nsystui.questions.host.causes import PREEMPTED, IdleSpan, attribute
from nsystui.questions.host.segments import BLOCKED, RUNNABLE, RUNNING
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "preempted"
_COLUMNS = (
    RANK,
    Column("thread", header="Thread with the CPU", label="had the CPU"),
    DURATION,
    Column("percent", header="Duration (%)", label="of it", unit=Unit.PERCENT, decimals=1, has_bar=True),
)
CROWDED = Advice(
    "start fewer threads than there are CPUs (OMP_NUM_THREADS, workers of a data loader), or give each rank more CPUs "
    "of its own (--cpus-per-task, --cpu-bind=cores)",
    "the thread that launches could have run, but had no CPU",
)
_OTHERS = Advice(
    "bind each rank to CPUs of its own (--cpu-bind=cores), and see what else runs on the node",
    "no thread that was recorded had its CPU: other ranks, other programs or the system had it",
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.devices:
        return [NotChecked(_NAME, f"needs GPU work: {canonical.KERNELS.record}")]
    if not case.job.session.count(tables.sched_events):
        return [NotChecked(_NAME, f"needs {canonical.SCHED_EVENTS.what}: {canonical.SCHED_EVENTS.record}")]
    states = case.scheduling.threads
    if not any(np.isin(one.labels, (RUNNABLE, BLOCKED)).any() for one in states.values()):
        return [NotChecked(_NAME, "needs to know why threads left their CPUs: nsys 2024.5 and later record it")]
    spans: list[IdleSpan] = []
    ready: dict[int, Intervals] = {}
    able = _runnable(case)
    for device in case.devices:
        task = device.device.task.task
        own = able.get(task, EMPTY)
        gaps = case.idle_spans(device, own)
        inside = intersect(own, union([one.start for one in gaps], [one.end for one in gaps]))
        ready[task.report] = merge(ready.get(task.report, EMPTY), inside)
        spans += gaps
    least = case.thresholds.preempted_percent
    most = sum(one.length for one in ready.values()) * len(case.devices)
    if not most or case.percent(case.mean([most])) < least:
        return []  # cheaper than to see which of the threads launched
    found = attribute(case.job, spans)
    spent: dict[tuple[int, str], int] = {}
    met: set[int] = set()
    for span, cause, time in zip(found.span.tolist(), found.cause.tolist(), found.time.tolist(), strict=True):
        if found.causes[cause].kind == PREEMPTED:
            key = (case.rank_of[spans[span].task], found.causes[cause].what)
            spent[key] = spent.get(key, 0) + time
            met.add(span)
    cost = case.mean(spent.values())
    if not cost or case.percent(cost) < least:
        return []
    return [_finding(case, spent, [spans[number] for number in sorted(met)], ready, cost)]


def _runnable(case: Case) -> Mapping[Task, Intervals]:
    """When a thread of each process could run and had no CPU."""
    found: dict[Task, list[Intervals]] = {}
    for (report, thread), one in case.scheduling.threads.items():
        found.setdefault(Task(report, process_of(thread)), []).append(one.labelled(RUNNABLE))
    return {task: merge(*own) for task, own in found.items()}


def _finding(
    case: Case,
    spent: Mapping[tuple[int, str], int],
    gaps: Sequence[IdleSpan],
    ready: Mapping[int, Intervals],
    cost: int,
) -> Finding:
    whole = sum(spent.values())
    rows: list[Row] = [(rank, who or None, time, 100.0 * time / whole) for (rank, who), time in spent.items()]
    rows.sort(key=lambda row: (-int(row[2] or 0), str(row)))
    (_, who), longest = max(spent.items(), key=lambda item: (item[1], item[0]))
    unknown = sum(time for (_, name), time in spent.items() if not name)
    if 2 * unknown > whole:
        had = f"for {100 * unknown / whole:.0f} % of it no thread that was recorded ran there"
    else:
        had = f"for {100 * longest / whole:.0f} % of it {who} ran there"
    sentence = (
        f"GPUs are idle for {time_words(cost)} each while the thread that launches could run and has no CPU "
        f"({number_of(len(gaps), 'gap')} on {number_of(len(case.devices), 'GPU')}); {had}; {_crowd(case, ready)}"
    )
    measured = (
        "idle time between the first operation (of the first step) and the last one whose host cause is that the "
        "launching thread was not scheduled; mean over the GPUs"
    )
    return Finding(
        _NAME, Severity.WARNING, sentence, _OTHERS if 2 * unknown > whole else CROWDED,
        Door("gaps", filter=PREEMPTED), cost, case.percent(cost), measured,
        TableAnswer(_NAME, _COLUMNS, rows, len(rows)), ranks=tuple(sorted({rank for rank, _ in spent})),
    )  # fmt: skip


def _crowd(case: Case, ready: Mapping[int, Intervals]) -> str:
    """The threads of a report that could run while one waited for a CPU and a GPU was idle, and the CPUs they used."""
    index, when = max(ready.items(), key=lambda item: (item[1].length, -item[0]))
    scheduling = case.scheduling
    own = [thread for thread in scheduling.threads if thread[0] == index]
    able = [intersect(scheduling.threads[one].labelled(RUNNING, RUNNABLE), when).length for one in own]
    used = {cpu for one in own for cpu in scheduling.cpus[one].labels.tolist() if cpu >= 0}
    of_node = next(report.metadata.cpus for report in case.reports if report.index == index)
    cpus = f"{len(used)} of the node's {of_node} CPUs" if of_node else number_of(len(used), "CPU")
    return f"on average {sum(able) / when.length:.1f} threads of its report could run then, and they used {cpus} in all"
