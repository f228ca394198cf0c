"""A job's threads: names, ranks, launched operations, NVTX ranges, and kernels by range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Flags, Ints
from nsystui.exports.metadata import pid_of, process_of, tid_of
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.host.segments import NO_THREAD, Segments, Thread
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import given, is_launched_by, of_reports, of_tasks
from nsystui.questions.queries.mpi import DOMAIN
from nsystui.questions.queries.process_rows import rows_by_gpu
from nsystui.questions.queries.tasks import GPU_TABLES, process_names, roles_by_task, thread_names
from nsystui.questions.steps.task_steps import NO_STEP
from nsystui.questions.steps.times import Steps
from nsystui.store import tables
from nsystui.store.session import Session
from nsystui.store.tables import LEAST_OFFSET, MOST_OFFSET

if TYPE_CHECKING:
    from nsystui.questions.nvtx.ranges import NvtxRanges

WORKER = "worker process"


@dataclass(frozen=True)
class HostThread:
    """A thread and its rank; ``rank`` is ``None`` if the process is not a rank."""

    thread: Thread
    rank: int | None
    name: str
    shown: str = ""  # the name, with the thread's number if several threads of the process share it
    role: str | None = None

    @property
    def task(self) -> Task:
        """The thread's process in its report."""
        return Task(self.thread[0], process_of(self.thread[1]))

    @property
    def tid(self) -> int:
        """The operating system's number of the thread."""
        return tid_of(self.thread[1])

    def words(self, is_worker: bool = False) -> str:
        """Return ``python (main) 41000``, or for a worker ``worker process python 41063``."""
        name = self.name.removesuffix(" (main)")
        return f"{WORKER} {name} {pid_of(self.thread[1])}" if is_worker else f"{self.name} {self.tid}"


def worker_processes(job: OpenJob, ranks: Iterable[Task]) -> set[Task]:
    """Return non-rank processes, mostly data loaders, that run a program of ``ranks`` and were on a CPU."""
    events, programs = tables.sched_events, process_names(job.session)
    if not job.session.count(events):
        return set()
    rank_programs = {(task.report, programs.get(task)) for task in ranks}
    is_in_report = of_reports(events.c.report, {report for report, _ in rank_programs})
    query = sa.select(events.c.report, events.c.process).where(is_in_report).distinct()
    scheduled = {Task(report, process) for report, process in job.session.rows(query)}
    others = scheduled - {rank.task for rank in job.ranks}
    return {task for task in others if (task.report, programs.get(task, "")) in rank_programs}


def workers_by_rank(job: OpenJob, tasks: Iterable[Task]) -> dict[Task, Task]:
    """Return the rank of each worker process in reports with one rank: exports do not record a worker's rank."""
    ranks = Counter(rank.task.report for rank in job.ranks)
    single_ranks = {task.report: task for task in tasks if ranks[task.report] == 1}
    return {worker: single_ranks[worker.report] for worker in sorted(worker_processes(job, single_ranks.values()))}


def named_threads(job: OpenJob, threads: Iterable[Thread]) -> list[HostThread]:
    """Return the threads by rank, process and number; unnamed threads are named after their program."""
    names, programs = thread_names(job.session), process_names(job.session)
    ranks, roles = {item.task: item.rank for item in job.ranks}, roles_by_task(job.session, job.ranks)
    named = []
    for thread in sorted(threads):
        task = Task(thread[0], process_of(thread[1]))
        name = names.get(thread) or programs.get(task, "").rpartition("/")[2]
        if tid_of(thread[1]) == pid_of(thread[1]):
            name = f"{name} (main)".lstrip()
        named.append(HostThread(thread, ranks.get(task), name, role=roles.get(task)))
    counts = Counter((item.task, item.name) for item in named)
    shown_names = [f"{item.name} {item.tid}" if counts[item.task, item.name] > 1 else item.name for item in named]
    named = [replace(item, shown=words) for item, words in zip(named, shown_names, strict=True)]
    return sorted(named, key=lambda item: (item.rank is None, item.rank or 0, item.thread))


def usual_threads(session: Session, tasks: Iterable[Task]) -> dict[Task, Thread]:
    """Return the thread of each task with the most CUDA calls."""
    table = tables.api_calls
    if not session.count(table):
        return {}
    query = sa.select(table.c.report, table.c.process, table.c.thread, sa.func.count().label("calls"))
    query = query.where(of_tasks(table, frozenset(tasks)), table.c.thread.is_not(None))
    busiest: dict[Task, tuple[int, int]] = {}
    for report, process, thread, count in session.rows(query.group_by(*query.selected_columns[:3])):
        task = Task(report, process)
        busiest[task] = max(busiest.get(task, (0, 0)), (count, thread))
    return {task: (task.report, thread) for task, (_, thread) in busiest.items()}


Launches = Mapping[tuple[Task, int], tuple[Times, Ints]]
"""For each GPU (task, CUDA ordinal), ascending times of its operations, and the threads that launched them."""


def launching_threads(
    session: Session, tasks: frozenset[Task], starts: Times, ends: Times, are_few: bool
) -> tuple[Launches, Launches]:
    """Read the threads that launched the operations of each GPU next to n idle spans (job time, ns).

    Returns them by start of the operations, to look up the ``ends`` of spans, and by end, to look up ``starts``. If
    ``are_few``, only these operations are read, else all from the first span to the last.
    """
    calls = tables.api_calls
    low, high = int(starts.min()) - MOST_OFFSET, int(ends.max()) - LEAST_OFFSET
    parts: dict[tuple[Task, int], list[tuple[Times, ...]]] = {}
    for table in map(tables.of, GPU_TABLES):
        if not all(map(session.count, (table, calls))):
            continue
        columns = [table.c[key] for key in ("report", "process", "device", "correlation_id")]
        start, end = ((table.c[edge] + table.c.clock_offset).label(edge) for edge in ("start", "end"))
        query = sa.select(*columns, start, end).where(of_tasks(table, tasks), table.c.start <= high)
        query = query.where(sa.or_(table.c.end >= low, table.c.end.is_(None)))
        if are_few:
            is_next = start.in_(given({"end": ends.tolist()})), end.in_(given({"start": starts.tolist()}))
            # Otherwise DuckDB joins all operations first.
            work = query.where(sa.or_(*is_next)).cte("work").prefix_with("MATERIALIZED")
        else:
            work = query.cte("work")
        query = sa.select(work, calls.c.thread).join(calls, is_launched_by(work, calls))
        operations = session.arrays(query.where(calls.c.thread.is_not(None)))
        for gpu, rows in rows_by_gpu({key: np.ma.filled(values, NO_THREAD) for key, values in operations.items()}):
            parts.setdefault(gpu, []).append(tuple(rows[key].astype(np.int64) for key in ("start", "end", "thread")))
    launches: tuple[dict[tuple[Task, int], tuple[Times, Ints]], ...] = ({}, {})
    for gpu, parts_of_gpu in parts.items():
        *edges, threads = (np.concatenate(part) for part in zip(*parts_of_gpu, strict=True))
        for launches_by_edge, times in zip(launches, edges, strict=True):
            order = np.lexsort((threads, times))
            launches_by_edge[gpu] = times[order], threads[order]
    return launches[0], launches[1]


def threads_at(launches: Launches, task: Task, device: int, moments: Times) -> Ints:
    """Return the threads (globalTid) that launched a GPU's operations at ``moments``, or ``NO_THREAD``."""
    times, threads = launches.get((task, device), (_NO_TIMES, _NO_TIMES))
    if not len(times):
        return np.full(len(moments), NO_THREAD)
    index = np.minimum(np.searchsorted(times, moments), len(times) - 1)
    return np.where(times[index] == moments, threads[index], NO_THREAD)


_NO_TIMES = np.empty(0, np.int64)

OUTSIDE = "outside of every NVTX range"
NO_RANGES = "no NVTX in the report"
_MPI_PREFIX = f"{DOMAIN}:"


@dataclass(frozen=True, eq=False)
class ThreadRanges:
    """The innermost NVTX ranges of threads; numbers in names are folded if at least three names share a form.

    The first two ``names`` are `OUTSIDE` and `NO_RANGES`.
    """

    ranges: NvtxRanges
    names: tuple[str, ...]
    labels: Ints
    reports: frozenset[int]

    @classmethod
    def load(cls, job: OpenJob) -> ThreadRanges:
        """Load the ranges of all threads, and number their names; MPI calls get -1."""
        from nsystui.questions.nvtx.paths import numbered, template

        ranges = job.nvtx_ranges(Selection())
        folded = numbered(ranges.names)
        numbers = {OUTSIDE: 0, NO_RANGES: 1}
        labels = [
            # An MPI call is a cause itself: the range around it adds more information.
            -1 if name.startswith(_MPI_PREFIX) else numbers.setdefault(text if text in folded else name, len(numbers))
            for name, text in ((name, template(name)) for name in ranges.names)
        ]
        return cls(ranges, tuple(numbers), np.array(labels, np.int64), frozenset(lane.report for lane in ranges.lanes))

    @cached_property
    def _lanes(self) -> Mapping[Thread, int]:
        return {(lane.report, lane.thread): index for index, lane in enumerate(self.ranges.lanes)}

    def of(self, task: Task, thread: Thread | None, window: Window) -> Segments:
        """Return the thread's innermost range at each time of ``window`` (job time), as indices into ``names``."""
        if task.report not in self.reports:
            return Segments(np.array([window.start]), np.array([window.end]), np.array([1]))
        ranges = self.ranges
        lane = self._lanes.get(thread, -1) if thread is not None else -1
        lane_ranges = ranges.nested_of(lane)
        # Few of the millions of ranges begin in the window or contain its start.
        parts = [lane_ranges[slice(*np.searchsorted(ranges.values("start", lane_ranges), [window.start, window.end]))]]
        around = ranges.innermost_at(np.array([lane]), np.array([window.start]))
        while around[0] >= 0:
            parts.append(around)
            around = ranges.values("parent", around)
        rows = np.concatenate(parts)
        moments = np.concatenate((ranges.values("start", rows), ranges.values("end", rows)))
        inside = moments[(moments > window.start) & (moments < window.end)]
        edges = np.concatenate(([window.start], distinct(inside), [window.end]))
        around = ranges.innermost_at(np.full(len(edges) - 1, lane), edges[:-1])
        return Segments(edges[:-1], edges[1:], self._labels(around))

    def of_operations(
        self, reports: Ints, processes: Ints, launches: Times, threads: Ints, nodes: Ints
    ) -> tuple[Ints, Flags]:
        """Return the ranges of n operations, as indices into ``names``, and whether they were captured there.

        A replayed operation is in the range around its node's capture, if known; others are in the range around their
        launch (job time).
        """
        captured = self._labels(self.ranges.around_captures(reports, processes, nodes))
        launched = self._labels(self.ranges.innermost_at(self.ranges.lanes_of(reports, threads), launches))
        launched = np.where(np.isin(reports, list(self.reports)), launched, 1)
        return np.where(captured > 0, captured, launched), captured > 0

    def _labels(self, around: Ints) -> Ints:
        if not len(self.ranges):
            return np.zeros(len(around), np.int64)
        while len(mpi := np.flatnonzero((around >= 0) & (self.labels[self.ranges.values("name", around)] < 0))):
            around[mpi] = self.ranges.values("parent", around[mpi])
        return np.where(around >= 0, self.labels[self.ranges.values("name", around)], 0)


def kernels_in_ranges(job: OpenJob, selection: Selection, steps: Steps | None = None, **options: Any) -> TableAnswer:
    """Summarise kernels by the NVTX range of their launch, or of their capture in a CUDA graph, and by other keys.

    With ``steps``, also by step; shares are then of the step's kernel time. ``options`` are `kernel_summary`'s.
    """
    from nsystui.questions.kernels.summary import kernel_summary
    from nsystui.questions.steps.kernels_in_steps import rows_by_number

    ranges = ThreadRanges.load(job)
    numbers: dict[tuple[int, ...], int] = {}
    """The number of each (step, range, whether captured)."""

    def number_of(report: Ints, process: Ints, launch: Ints, *others: Ints) -> Ints:
        step = np.full(len(launch), NO_STEP) if steps is None else steps.numbers_at(report, process, launch)
        parts = np.stack((step, *ranges.of_operations(report, process, launch, *others)))
        keys, index = np.unique(parts, axis=1, return_inverse=True)
        return np.array([numbers.setdefault(tuple(key), len(numbers)) for key in keys.T.tolist()], np.int64)[index]

    def parts_of(groups: Ints) -> Ints:
        return np.array(list(numbers), np.int64).reshape(-1, 3)[groups].T

    def cells_of(groups: Ints) -> dict[str, list[Any]]:
        step, label, captured = parts_of(groups).tolist()
        origins = ["captured" if number else "launched" for number in captured]
        names = {"origin": origins, "range": [ranges.names[number] for number in label]}
        return names if steps is None else names | {"step": [None if n == NO_STEP else n for n in step]}

    rows = partial(rows_by_number, number_of, cells_of, lambda groups: parts_of(groups)[0])
    answer = kernel_summary(job.session, selection, **options, summarise=rows)
    notes = *answer.notes, *ranges.ranges.notes, *(steps.notes if steps else ())
    return replace(answer, notes=tuple(dict.fromkeys(notes)))
