"""The recorded overhead of CUDA: compilation, loading, full command buffers (docs/exports.md#cuda-overhead)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection
from nsystui.questions.algebra.intervals import Intervals, intersect, merge
from nsystui.questions.host.naming import HostThread, named_threads
from nsystui.questions.host.segments import calls_of
from nsystui.questions.triage.case import Case, Place, time_words
from nsystui.questions.triage.finding import Advice
from nsystui.store import tables

COMPILING = ("Driver JIT compiler",)
LOADING = ("Runtime module loading", "Lazy function loading")
ALL = (*COMPILING, *LOADING, "Command buffer full")
"""The known values of ``cuda_overhead.name``."""

ADVICE = Advice(
    "Warm up before the measurement, or load all code at the start (CUDA_MODULE_LOADING=EAGER). If command buffers are "
    "full, launch less work ahead.",
    "CUDA itself took this time: it compiled or loaded code, or waited for room in a command buffer.",
)


def overhead_of(case: Case, names: Collection[str], launching: bool = True) -> list[tuple[HostThread, str, Intervals]]:
    """Return the overhead with these names, by thread and name, job time; ``launching``: of threads that launch."""
    selection, api = Selection(case.scope.window, case.scope.tasks), tables.api_calls.c
    calls = case.once("CUDA overhead", lambda: calls_of(case.job.session, tables.cuda_overhead, selection))
    query = sa.select(api.report, api.thread).where(api.name.contains("Launch")).distinct()
    launchers = case.once("launching threads", lambda: set(case.job.session.rows(query)) if calls.threads else set())
    return [
        (thread, calls.names[label], calls.threads[thread.thread].labelled(label))
        for thread in named_threads(case.job, calls.threads)
        for label in np.unique(calls.threads[thread.thread].labels).tolist()
        if calls.names[label] in names and (not launching or thread.thread in launchers)
    ]


def overhead_in(case: Case, idle: Mapping[Place, Intervals], names: Collection[str] = ALL) -> tuple[int, str]:
    """Return the overhead during idle time per GPU, ns, and ``lazy function loading 3.2 ms (python (main) 4711)``."""
    parts, spent = [], dict[Place, list[Intervals]]()
    for thread, name, times in overhead_of(case, names):
        users = {gpu for (task, _), gpu in case.gpu_of.items() if task == thread.task}
        shared = {gpu: intersect(times, part) for gpu, part in idle.items() if gpu in users}
        for gpu, part in shared.items():
            spent.setdefault(gpu, []).append(part)
        time = case.mean(part.length for part in shared.values())
        parts.append((time, f"{name.lower()} {time_words(time)} ({thread.words()})"))
    parts.sort(key=lambda part: (-part[0], part))
    words = ", ".join(words for time, words in parts[:3] if time)
    return case.mean(merge(*group).length for group in spent.values()), words
