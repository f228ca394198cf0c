"""GPU memory that is allocated and freed again and again: idle time in these calls, and behind those that free.

See docs/numbers.md#allocator-churn. Page-locked host memory is the finding of `first_use`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.selection import Task
from nsystui.questions.algebra.intervals import Intervals, union
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.host.causes import ALLOCATING, ALLOCATIONS, IdleSpan, attribute
from nsystui.questions.host.time_budget import steady_start
from nsystui.questions.queries.conditions import Condition, job_end, job_start, where
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import by_framework
from nsystui.questions.triage.rules.first_use import CALL_COLUMNS, HOST_CALLS, longest_calls
from nsystui.questions.triage.rules.synchronising_calls import idle_after
from nsystui.store import tables

_NAME = "allocator-churn"


def advice(case: Case) -> Advice:
    """What to do about calls that allocate and free."""
    how = by_framework(
        case,
        "allocate before the loop, or from a pool: cudaMallocAsync, a caching allocator",
        pytorch="where the caching allocator frees and tries again: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, a smaller batch; elsewhere allocate before the loop",
    )
    return Advice(how, "cudaMalloc and cudaFree block the CPU, and cudaFree waits for the whole device")


@dataclass(frozen=True, eq=False)
class _Calls:
    """Calls that allocate or free GPU memory, by start: job time, names, and whether each waits for the device."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    names: NDArray[np.object_]

    def of(self, rows: NDArray[np.bool_]) -> _Calls:
        return _Calls(self.starts[rows], self.ends[rows], self.names[rows])

    @property
    def covered(self) -> Intervals:
        return union(self.starts, self.ends)

    @property
    def waiting(self) -> Intervals:
        """When one waits for the device."""
        waits = np.array(["Free" in name and "Async" not in name for name in self.names.tolist()], bool)
        return self.of(waits).covered


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.job.session.count(tables.api_calls) or not case.devices:
        return [NotChecked(_NAME, "needs GPU work and CUDA API calls: record with `nsys profile -t cuda`")]
    calls: dict[Task, _Calls] = {}
    known = _calls(case)
    spans: list[IdleSpan] = []
    whole: set[tuple[Task, int, int]] = set()
    for device in case.devices:
        task, begin, end = device.device.task.task, *_steady(case, device)
        if task not in known:
            continue
        own = known[task].of((known[task].starts >= begin) & (known[task].starts < end))
        if len(own.starts) < case.thresholds.churn_calls:
            continue
        calls[task] = own
        gaps = [replace(one, start=max(one.start, begin)) for one in case.idle_spans(device, own.covered)]
        short = [(one.start, one.end) for one in gaps if one.end - one.start < case.thresholds.gap_ms * 1e6]
        behind = idle_after(Intervals(*np.array(short, np.int64).reshape(-1, 2).T), own.waiting)
        whole |= {(task, device.device.device, start) for start in behind.starts.tolist()}
        spans += gaps
    found = attribute(case.job, spans)
    are_own = [cause.kind == ALLOCATING and not cause.what.startswith(HOST_CALLS) for cause in found.causes]
    is_own = np.array(are_own, bool)[found.cause]
    spent = np.bincount(found.span[is_own], found.time[is_own], len(spans)).tolist()
    is_whole = [(one.task, one.device, one.start) in whole for one in spans]
    cost = case.mean(
        one.end - one.start if whole_gap else time for one, whole_gap, time in zip(spans, is_whole, spent, strict=True)
    )
    if not cost or case.percent(cost) < case.thresholds.churn_percent:
        return []
    return [_finding(case, calls, cost)]


def of_device_memory(name: sa.ColumnElement[str]) -> list[Condition]:
    """Whether a call allocates or frees GPU memory, by its name."""
    is_any = sa.or_(*(name.contains(word) for word in ALLOCATIONS))
    return [is_any, *(sa.not_(name.startswith(host)) for host in HOST_CALLS)]


def _calls(case: Case) -> Mapping[Task, _Calls]:
    """The calls of each process in the selection."""
    calls = tables.api_calls
    name = calls.c.name
    query = sa.select(
        calls.c.report, calls.c.process, job_start(calls).label("start"), job_end(calls).label("end"), name
    ).where(
        *where(calls, case.chosen),
        calls.c.end.is_not(None),
        *of_device_memory(name),
    )
    found = case.job.session.arrays(query)
    every = _Calls(found["start"].astype(np.int64), found["end"].astype(np.int64), found["name"])
    return {
        task: every.of((found["report"] == task.report) & (found["process"] == task.process))
        for task in sorted(case.tasks)
    }


def _steady(case: Case, device: DeviceIntervals) -> tuple[int, int]:
    """The time of a GPU from its warm-up (its first steps) to its last operation."""
    window = case.window_of(device)
    worked, steps = device.worked(window) or window, case.steps.get(device.device.task.task)
    skipped = int(case.thresholds.warm_up_steps)
    if steps is not None and len(steps) > skipped:
        return int(steps.start[skipped]), worked.end
    return steady_start(device, worked, None), worked.end


def _finding(case: Case, calls: Mapping[Task, _Calls], cost: int) -> Finding:
    rows: list[Row] = []
    for task, own in calls.items():
        names, inverse = np.unique(own.names.astype(str), return_inverse=True)
        counts, times = np.bincount(inverse), np.bincount(inverse, own.ends - own.starts)
        totals = zip(names.tolist(), counts.tolist(), times.tolist(), strict=True)
        rows += [(case.rank_of[task], name, count, round(time)) for name, count, time in totals]
    rows.sort(key=lambda row: (-int(row[3] or 0), str(row)))
    total = sum(len(own.starts) for own in calls.values())
    steps = [len(case.steps[task]) - int(case.thresholds.warm_up_steps) for task in calls if task in case.steps]
    each = f", {total / sum(steps):.1f} calls in each step" if len(steps) == len(calls) and min(steps) > 0 else ""
    sentence = (
        f"GPUs are idle for {time_words(cost)} each in or behind calls that allocate and free GPU memory after the "
        f"warm-up ({number_of(total, 'call')}{each}; {longest_calls(rows)})"
    )
    measured = (
        "gaps after the first steps, without page-locked host memory: the time in such calls, and of gaps below "
        f"{case.thresholds.gap_ms:g} ms that begin in a cudaFree and outlast it all; mean over the GPUs"
    )
    ranks = tuple(sorted({case.rank_of[task] for task in calls}))
    return Finding(
        _NAME, Severity.WARNING, sentence, advice(case), Door("gaps", filter=ALLOCATING), cost, case.percent(cost),
        measured, TableAnswer(_NAME, CALL_COLUMNS, rows, len(rows)), ranks=ranks,
    )  # fmt: skip
