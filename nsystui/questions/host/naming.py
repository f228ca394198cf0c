"""The threads of a job by name, and which rank each belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import sqlalchemy as sa

from nsystui.base.selection import Task
from nsystui.exports.identifiers import pid_of, process_of, tid_of
from nsystui.questions.host.segments import Thread
from nsystui.questions.job import Job
from nsystui.questions.tasks import process_names
from nsystui.store import tables
from nsystui.store.session import Session


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


def thread_names(session: Session) -> dict[Thread, str]:
    """The names of the threads that have one, whatever the process: nsys writes the last name."""
    columns = tables.threads.c
    query = sa.select(columns.report, columns.thread, columns.name).where(columns.name.is_not(None))
    return {(report, thread): name for report, thread, name in session.rows(query)} if session.reports else {}


def named_threads(job: Job, threads: Iterable[Thread]) -> list[HostThread]:
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
