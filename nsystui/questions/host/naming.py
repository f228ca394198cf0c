"""The threads of a job by name, and which rank each belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import sqlalchemy as sa

from nsystui.base.selection import Task
from nsystui.exports.metadata import pid_of, process_of, tid_of
from nsystui.questions.host.segments import Thread
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.tasks import process_names
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
        return Task(self.thread[0], process_of(self.thread[1]))

    @property
    def tid(self) -> int:
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
    query = sa.select(events.c.report, events.c.process).where(events.c.report.in_({report for report, _ in own}))
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
