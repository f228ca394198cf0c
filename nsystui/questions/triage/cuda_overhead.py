"""The recorded overhead of CUDA: compilation, loading, full command buffers (docs/exports.md#cuda-overhead)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from nsystui.base.selection import Selection, Task
from nsystui.exports.metadata import process_of
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, merge
from nsystui.questions.host.naming import named_threads
from nsystui.questions.host.segments import Thread, calls_of
from nsystui.questions.triage.case import Case, Place, time_words
from nsystui.questions.triage.finding import Advice
from nsystui.store import tables

COMPILING = ("Driver JIT compiler",)
LOADING = ("Runtime module loading", "Lazy function loading")
ALL = (*COMPILING, *LOADING, "Command buffer full")
"""The values of ``cuda_overhead.name`` that are the program's."""

ADVICE = Advice(
    "Warm up before the measurement, or load all code at the start (CUDA_MODULE_LOADING=EAGER). If command buffers are "
    "full, launch less work ahead.",
    "CUDA itself took this time: it compiled or loaded code, or waited for room in a command buffer.",
)


def is_recorded(case: Case) -> bool:
    """Return whether every report records the overhead, so that its absence is a fact."""
    name = tables.cuda_overhead.name
    return all(report.has(tables.cuda_overhead) and name not in report.damaged for report in case.reports)


def overhead_of(case: Case, names: Collection[str]) -> Mapping[tuple[Thread, str], Intervals]:
    """Return the overhead with these names by thread and name; job time."""

    def load() -> dict[tuple[Thread, str], Intervals]:
        calls = calls_of(case.job.session, tables.cuda_overhead, Selection(case.scope.window, case.scope.tasks))
        return {
            (thread, calls.names[label]): segments.labelled(label)
            for thread, segments in calls.threads.items()
            for label in np.unique(segments.labels).tolist()
        }

    return {key: part for key, part in case.once("CUDA overhead", load).items() if key[1] in names}


def by_task(overhead: Mapping[tuple[Thread, str], Intervals]) -> Mapping[Task, Intervals]:
    """Merge overhead over the threads of each process."""
    merged: dict[Task, Intervals] = {}
    for ((report, thread), _), part in overhead.items():
        task = Task(report, process_of(thread))
        merged[task] = merge(merged.get(task, EMPTY), part)
    return merged


def overhead_in(case: Case, idle: Mapping[Place, Intervals], names: Collection[str] = ALL) -> tuple[int, str]:
    """Return the overhead during idle time per GPU, ns, and ``lazy function loading 3.2 ms (python (main) 4711)``."""
    overhead, spent = overhead_of(case, names), Counter[tuple[Thread, str]]()
    for ((report, thread), name), part in overhead.items():
        for (task, _), times in idle.items():
            if task == Task(report, process_of(thread)):
                spent[(report, thread), name] += intersect(part, times).length
    longest = [key for key, time in spent.most_common(3) if time]
    threads = {item.thread: item.words() for item in named_threads(case.job, {thread for thread, _ in longest})}
    words = [f"{key[1].lower()} {time_words(case.mean([spent[key]]))} ({threads[key[0]]})" for key in longest]
    merged = by_task(overhead)
    total = case.mean(intersect(merged.get(task, EMPTY), times).length for (task, _), times in idle.items())
    return total, ", ".join(words)
