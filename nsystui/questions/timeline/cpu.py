"""Functions on CPUs by thread, as stretches of time from samples and scheduling events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Task
from nsystui.base.types import Ints
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.host.functions import running_stretches, samples_of
from nsystui.questions.host.segments import Segments, scheduling_of
from nsystui.questions.host.stacks import StackTree, program_function
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

ON_CPU = "on CPU"
"""The name of a stretch if no sample identifies its function."""
MOST = 8_000_000
"""The most samples and scheduling events of a report that lanes read."""


Stretches = tuple[Times, Times, NDArray[np.int32], Ints]
"""Starts and ends of a thread's stretches on CPUs in order, job time; indices of names; nodes of the stack tree."""


@dataclass(frozen=True, eq=False)
class CpuWork:
    """Stretches by thread (globalTid), their names and stacks, and the states of each thread over time."""

    threads: Mapping[int, Stretches] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    tree: StackTree | None = None
    states: Mapping[int, Segments] = field(default_factory=dict)

    @classmethod
    def load(cls, session: Session, report: Report, tasks: frozenset[Task]) -> CpuWork:
        """Load the work of some tasks of a report; empty if there are no events, or too many."""
        if not 0 < events_of(report) <= MOST:
            return cls()
        part, selection = session.part([report.index]), Selection(tasks=tasks)
        samples, scheduling = samples_of(part, selection), scheduling_of(part, selection)
        stacks = samples.stacks.get(report.index)
        tree, period = None if stacks is None else stacks.tree, samples.period
        names: dict[str, int] = {ON_CPU: 0}
        threads = {}
        for thread in {*samples.threads, *scheduling.threads}:
            states = scheduling.threads.get(thread)
            segments = running_stretches(samples.threads.get(thread), period, states)
            nodes, node_indices = np.unique(segments.labels, return_inverse=True)
            functions = [program_function(tree, node) or ON_CPU for node in nodes.tolist()]
            numbers = np.array([names.setdefault(name, len(names)) for name in functions], np.int32)
            if len(segments):
                threads[thread[1]] = _join(segments, numbers[node_indices.reshape(-1)])
        return cls(threads, tuple(names), tree, {thread[1]: states for thread, states in scheduling.threads.items()})


def _join(segments: Segments, name: NDArray[np.int32]) -> Stretches:
    """Join contiguous stretches of one function, with the stack of the first."""
    is_first = np.ones(len(segments), np.bool_)
    is_first[1:] = (name[1:] != name[:-1]) | (segments.starts[1:] > segments.ends[:-1])
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(segments)) - 1
    return segments.starts[first], segments.ends[last], name[first], segments.labels[first]


def events_of(report: Report) -> int:
    """Count the samples and scheduling events of a report."""
    return report.count(tables.host_samples) + report.count(tables.sched_events)
