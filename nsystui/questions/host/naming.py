"""The threads of a job: names and ranks, which of them launched what, and the NVTX ranges that they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task, Window
from nsystui.exports.metadata import pid_of, process_of, tid_of
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.host.segments import NO_THREAD, Segments, Thread
from nsystui.questions.host.stacks import Numbers
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.paths import numbered, template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.conditions import is_launched_by, of_reports, of_tasks
from nsystui.questions.queries.mpi import DOMAIN
from nsystui.questions.queries.tasks import GPU_TABLES, process_names
from nsystui.store import tables
from nsystui.store.session import Session

WORKER = "worker process"


@dataclass(frozen=True)
class HostThread:
    """A thread with its place in the job; ``rank`` is ``None`` in a process that is no rank."""

    thread: Thread
    rank: int | None
    name: str
    shown: str = ""
    """The name, with the number of the thread where others of its process have the same."""

    @property
    def task(self) -> Task:
        """The process of the thread in its report."""
        return Task(self.thread[0], process_of(self.thread[1]))

    @property
    def tid(self) -> int:
        """The operating system's number of the thread."""
        return tid_of(self.thread[1])

    def words(self, is_worker: bool = False) -> str:
        """``python (main) 41000``; of a thread of a worker process the process: ``worker process python 41063``."""
        name = self.name.removesuffix(" (main)")
        return f"{WORKER} {name} {pid_of(self.thread[1])}" if is_worker else f"{self.name} {self.tid}"


def thread_names(session: Session) -> dict[Thread, str]:
    """The names of the threads that have one, whatever the process: nsys writes the last name."""
    columns = tables.threads.c
    query = sa.select(columns.report, columns.thread, columns.name).where(columns.name.is_not(None))
    return {(report, thread): name for report, thread, name in session.rows(query)} if session.reports else {}


def worker_processes(job: OpenJob, ranks: Iterable[Task]) -> set[Task]:
    """The processes of the programs of ``ranks``, in their reports, that are no rank and were on a CPU.

    Mostly workers of data loaders.
    """
    events, programs = tables.sched_events, process_names(job.session)
    if not job.session.count(events):
        return set()
    own = {(task.report, programs.get(task)) for task in ranks}
    query = sa.select(events.c.report, events.c.process).where(
        of_reports(events.c.report, {report for report, _ in own})
    )
    found = {Task(report, process) for report, process in job.session.rows(query.distinct())}
    others = found - {one.task for one in job.ranks}
    return {task for task in others if (task.report, programs.get(task, "")) in own}


def workers_by_rank(job: OpenJob, tasks: Iterable[Task]) -> dict[Task, Task]:
    """The rank of each worker process, where its report has one rank alone: whose worker it is, is not recorded."""
    ranks = Counter(one.task.report for one in job.ranks)
    alone = {task.report: task for task in tasks if ranks[task.report] == 1}
    return {worker: alone[worker.report] for worker in sorted(worker_processes(job, alone.values()))}


def named_threads(job: OpenJob, threads: Iterable[Thread]) -> list[HostThread]:
    """The threads with names, by rank, process and number; one without a name is called as its program is."""
    names, programs = thread_names(job.session), process_names(job.session)
    ranks = {one.task: one.rank for one in job.ranks}
    found = []
    for thread in sorted(threads):
        task = Task(thread[0], process_of(thread[1]))
        name = names.get(thread) or programs.get(task, "").rpartition("/")[2]
        if tid_of(thread[1]) == pid_of(thread[1]):
            name = f"{name} (main)".lstrip()
        found.append(HostThread(thread, ranks.get(task), name))
    alike = Counter((one.task, one.name) for one in found)
    shown = [f"{one.name} {one.tid}" if alike[one.task, one.name] > 1 else one.name for one in found]
    found = [replace(one, shown=words) for one, words in zip(found, shown, strict=True)]
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.thread))


def usual_threads(session: Session, tasks: Iterable[Task]) -> dict[Task, Thread]:
    """Return the thread of each task with the most CUDA calls."""
    table = tables.api_calls
    if not session.count(table):
        return {}
    calls = sa.func.count().label("calls")
    query = sa.select(table.c.report, table.c.process, table.c.thread, calls)
    query = query.where(of_tasks(table, frozenset(tasks)), table.c.thread.is_not(None))
    most: dict[Task, tuple[int, int]] = {}
    for report, process, thread, number in session.rows(query.group_by(*query.selected_columns[:3])):
        task = Task(report, process)
        most[task] = max(most.get(task, (0, 0)), (number, thread))
    return {task: (task.report, thread) for task, (_, thread) in most.items()}


Launches = Mapping[tuple[Task, int], tuple[Times, Numbers]]
"""Of each GPU (task, CUDA ordinal) the times of its operations, ascending, and the threads that launched them."""


def launching_threads(
    session: Session, tasks: frozenset[Task], starts: Times, ends: Times, are_few: bool
) -> tuple[Launches, Launches]:
    """Read which threads launched the operations of each GPU (task, CUDA ordinal) beside n idle spans (job time, ns).

    Once by the times at which the operations began, to be found by the ``ends`` of spans, and once by those at which
    they ended. Of ``are_few`` spans only these operations are read, else all of the time from the first to the last.
    """
    calls, offsets = tables.api_calls, [report.clock_offset for report in session.reports]
    parts: dict[tuple[Task, int], list[tuple[Times, ...]]] = {}
    for table in map(tables.of, GPU_TABLES):
        if not session.count(table) or not session.count(calls):
            continue
        start, end = ((table.c[edge] + table.c.clock_offset).label(edge) for edge in ("start", "end"))
        query = sa.select(table.c.report, table.c.process, table.c.device, start, end, calls.c.thread)
        query = query.join_from(table, calls, is_launched_by(table, calls))
        query = query.where(of_tasks(table, tasks), calls.c.thread.is_not(None))
        if are_few:
            query = query.where(sa.or_(start.in_(ends.tolist()), end.in_(starts.tolist())))
        else:
            low, high = int(starts.min()) - max(offsets), int(ends.max()) - min(offsets)
            query = query.where(table.c.start <= high, sa.or_(table.c.end >= low, table.c.end.is_(None)))
        found = {key: np.ma.filled(values, NO_THREAD) for key, values in session.arrays(query).items()}
        place = np.zeros(len(found["thread"]), np.int64)
        for key in ("report", "process", "device"):
            known, number = np.unique(found[key], return_inverse=True)
            place = place * len(known) + number.reshape(-1)
        for number, first in zip(*(part.tolist() for part in np.unique(place, return_index=True)), strict=True):
            report, process, device = (int(found[key][first]) for key in ("report", "process", "device"))
            part = tuple(found[key][place == number].astype(np.int64) for key in ("start", "end", "thread"))
            parts.setdefault((Task(report, process), device), []).append(part)
    launches: tuple[dict[tuple[Task, int], tuple[Times, Numbers]], ...] = ({}, {})
    for gpu, own_parts in parts.items():
        *edges, threads = (np.concatenate(part) for part in zip(*own_parts, strict=True))
        for found_of, times in zip(launches, edges, strict=True):
            order = np.lexsort((threads, times))
            found_of[gpu] = times[order], threads[order]
    return launches[0], launches[1]


def threads_at(launches: Launches, task: Task, device: int, moments: Times) -> Numbers:
    """Find the threads (globalTid) that launched the operations of a GPU at ``moments``; ``NO_THREAD`` for none."""
    times, threads = launches.get((task, device), (_NO_TIMES, _NO_TIMES))
    if not len(times):
        return np.full(len(moments), NO_THREAD)
    place = np.minimum(np.searchsorted(times, moments), len(times) - 1)
    return np.where(times[place] == moments, threads[place], NO_THREAD)


_NO_TIMES = np.empty(0, np.int64)

OUTSIDE = "outside of every NVTX range"
NO_RANGES = "no NVTX in the report"
_MPI_PREFIX = f"{DOMAIN}:"


@dataclass(frozen=True, eq=False)
class ThreadRanges:
    """The innermost NVTX ranges of threads over time, whose numbers are folded where three or more names share a form.

    ``names``: first `OUTSIDE`, then `NO_RANGES`.
    """

    ranges: NvtxRanges
    names: tuple[str, ...]
    labels: Numbers
    reports: frozenset[int]

    @classmethod
    def load(cls, job: OpenJob) -> ThreadRanges:
        """Load the ranges of all threads of a job, and number their names; MPI calls get -1."""
        ranges = job.nvtx_ranges(Selection())
        folded = numbered(ranges.names)
        found = {OUTSIDE: 0, NO_RANGES: 1}
        labels = [
            # An MPI call that is a range is a cause: what is around it tells more.
            -1 if name.startswith(_MPI_PREFIX) else found.setdefault(text if text in folded else name, len(found))
            for name, text in ((name, template(name)) for name in ranges.names)
        ]
        reports = frozenset(lane.report for lane in ranges.lanes)
        return cls(ranges, tuple(found), np.array(labels, np.int64), reports)

    @cached_property
    def _lanes(self) -> Mapping[Thread, int]:
        return {(one.report, one.thread): number for number, one in enumerate(self.ranges.lanes)}

    def of(self, task: Task, thread: Thread | None, when: Window) -> Segments:
        """The places in ``names`` over all of ``when``, job time."""
        if task.report not in self.reports:
            return Segments(np.array([when.start]), np.array([when.end]), np.array([1]))
        ranges = self.ranges
        lane = self._lanes.get(thread, -1) if thread is not None else -1
        mine = ranges.nested_of(lane)
        # Those that begin in that time, and those around its beginning: of millions of ranges few matter.
        met = [mine[slice(*np.searchsorted(ranges.values("start", mine), [when.start, when.end]))]]
        around = ranges.innermost_at(np.array([lane]), np.array([when.start]))
        while around[0] >= 0:
            met.append(around)
            around = ranges.values("parent", around)
        rows = np.concatenate(met)
        moments = np.concatenate((ranges.values("start", rows), ranges.values("end", rows)))
        inside = moments[(moments > when.start) & (moments < when.end)]
        edges = np.concatenate(([when.start], distinct(inside), [when.end]))
        around = ranges.innermost_at(np.full(len(edges) - 1, lane), edges[:-1])
        while len(other := np.flatnonzero((around >= 0) & (self.labels[ranges.values("name", around)] < 0))):
            around[other] = ranges.values("parent", around[other])
        labels = np.where(around >= 0, self.labels[ranges.values("name", around)], 0)
        return Segments(edges[:-1], edges[1:], labels)
