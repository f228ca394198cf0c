"""What the threads of a report ran on CPUs: stretches by the function that samples saw, from its scheduling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Task
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.host.functions import running_stretches, samples_of
from nsystui.questions.host.segments import Segments, scheduling_of
from nsystui.questions.host.stacks import StackTree, program_function
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

ON_CPU = "on CPU"
"""The name of a stretch of which no sample tells the function."""
MOST = 8_000_000
"""Samples and scheduling events of a report that are read for lanes."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """The n stretches of a thread on CPUs by start, job time; ``name``: index into the names; ``node`` of the stack."""

    start: Times
    end: Times
    name: NDArray[np.int32]
    node: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CpuWork:
    """The stretches of each thread (globalTid), their names, the stacks, and when each was in which state."""

    threads: Mapping[int, Stretches] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    tree: StackTree | None = None
    states: Mapping[int, Segments] = field(default_factory=dict)

    @classmethod
    def load(cls, session: Session, report: Report, tasks: frozenset[Task]) -> CpuWork:
        """That of some tasks of a report; nothing where nothing is recorded, or too much."""
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
            found = running_stretches(samples.threads.get(thread), period, states)
            nodes, place = np.unique(found.labels, return_inverse=True)
            functions = [program_function(tree, node) or ON_CPU for node in nodes.tolist()]
            numbers = np.array([names.setdefault(name, len(names)) for name in functions], np.int32)
            if len(found):
                threads[thread[1]] = _joined(found, numbers[place.reshape(-1)])
        return cls(threads, tuple(names), tree, {thread[1]: own for thread, own in scheduling.threads.items()})


def _joined(found: Segments, name: NDArray[np.int32]) -> Stretches:
    """Stretches of one function that follow one another without a pause are one, with the stack of the first."""
    begins = np.ones(len(found), np.bool_)
    begins[1:] = (name[1:] != name[:-1]) | (found.starts[1:] > found.ends[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(found)) - 1
    return Stretches(found.starts[first], found.ends[last], name[first], found.labels[first])


def events_of(report: Report) -> int:
    """How many samples and scheduling events a report has."""
    return report.count(tables.host_samples) + report.count(tables.sched_events)
