"""The CPU samples of a selection: when each was taken, on which thread, and the node of its stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Window
from nsystui.questions.conditions import where
from nsystui.questions.data_notes import missing_note
from nsystui.questions.host.segments import Thread, by_thread
from nsystui.questions.host.stacks import PYTHON, SAMPLE, Numbers, Stacks, stacks_of
from nsystui.questions.job import Job
from nsystui.questions.time_window import selected_reports
from nsystui.store import tables
from nsystui.store.session import Session


@dataclass(frozen=True, eq=False)
class ThreadSamples:
    """The samples of one thread: job time, ns, in order, and the node of each in the tree of its report."""

    times: Numbers
    nodes: Numbers


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples by thread, and the stacks of each report that has any; ``of_python``: reports whose are Python's."""

    threads: Mapping[Thread, ThreadSamples]
    stacks: Mapping[int, Stacks]
    of_python: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return sum(len(one.times) for one in self.threads.values())

    def within(self, windows: Mapping[int, Window]) -> Samples:
        """Those of the reports in ``windows``, each in its own."""
        threads = {}
        for thread, one in self.threads.items():
            if (window := windows.get(thread[0])) is not None:
                first, last = np.searchsorted(one.times, [window.start, window.end])
                threads[thread] = ThreadSamples(one.times[first:last], one.nodes[first:last])
        return Samples(threads, self.stacks)

    @cached_property
    def period(self) -> int | None:
        """The usual time from one sample of a thread to the next, ns; ``None`` of too few samples."""
        steps = [np.diff(one.times) for one in self.threads.values() if len(one.times) > 1]
        return int(np.median(np.concatenate(steps))) if steps else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of the stacks."""
        damaged = sum(one.damaged for one in self.stacks.values())
        found = ["where no CPU samples were recorded, the samples are those of Python"] if self.of_python else []
        if damaged:
            found.append(
                f"{damaged:,} call chains are damaged (frames are missing or there twice): shown without what is lost"
            )
        return tuple(found)


def samples_of_job(job: Job, selection: Selection) -> Samples:
    """The samples of a selection, whatever its name filter, kept with the job."""
    wide = selection.with_name(None)
    return job.once(("host samples", wide), lambda: samples_of(job.session, wide))


def samples_of(session: Session, selection: Selection, kind: str = "") -> Samples:
    """The samples of the selected threads in its window; of Python in reports without samples of the CPU.

    With `PYTHON` as ``kind`` those of Python alone, also of threads that did not run.
    """
    table, columns = tables.host_samples, tables.host_samples.c
    if not session.count(table):
        return Samples({}, {})
    time = (columns.time + columns.clock_offset).label("time")
    query = sa.select(columns.report, columns.thread, time, columns.chain, columns.is_python)
    # Stacks that were taken for another reason, where the thread left its CPU, count no cycles.
    is_sample = columns.is_python == 1 if kind == PYTHON else sa.or_(columns.weight.is_(None), columns.weight > 0)
    query = query.where(is_sample, *where(table, selection.with_name(None)))
    found = session.arrays(query.order_by(time, columns.row))
    of_python = found["is_python"] == 1
    if of_python.any() and not kind:
        with_cpu = [
            report for (report,) in session.rows(sa.select(columns.report).where(columns.is_python == 0).distinct())
        ]
        chosen = of_python != np.isin(found["report"], with_cpu)
        found, of_python = {name: values[chosen] for name, values in found.items()}, of_python[chosen]
    reports = [report for report in selected_reports(session, selection) if report.count(table)]
    stacks = stacks_of(session, reports)
    threads = {}
    for thread, rows in by_thread(found).items():
        nodes = stacks[thread[0]].nodes(PYTHON if of_python[rows[0]] else SAMPLE, found["chain"][rows])
        threads[thread] = ThreadSamples(found["time"][rows].astype(np.int64), nodes)
    return Samples(threads, stacks, frozenset(found["report"][of_python].tolist()))


def sampling_notes(session: Session, samples: Samples) -> tuple[str, ...]:
    """What to record where there are no samples, or no stacks of them, and what a sample stands for."""
    lacking = missing_note(session, tables.host_samples)
    if lacking:
        return (lacking,)
    notes = list(samples.notes)
    if not session.count(tables.call_chains):
        notes.append("the samples have no call stacks: record with `nsys profile --backtrace=dwarf`")
    if counted := samples_words(samples):
        notes.append(counted)
    return tuple(notes)


def samples_words(samples: Samples) -> str:
    """How many there are, and how often a thread that runs has one; empty where too few tell."""
    period = samples.period
    if period is None:
        return ""
    return f"{len(samples):,} samples; a thread that runs has one about every {period / 1e6:.2f} ms"
