"""The processes and tracks of a trace: who stands where, in which order, under which name.

A track holds slices of which no two overlap (a stream) or which nest (calls and NVTX ranges of a thread). Work of one
stream that does overlap (branches of a CUDA graph, programmatic dependent launches) goes to further lanes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.exports.identifiers import pid_of, tid_of
from nsystui.questions.conditions import where
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.events import ByTable
from nsystui.questions.handover.kinds import ON_CPU, ON_GPU, Contents
from nsystui.questions.handover.slices import slices
from nsystui.questions.handover.streams import Crossing, Stream, streams_of
from nsystui.questions.job import Job
from nsystui.questions.tasks import process_names
from nsystui.questions.time_window import selected_reports
from nsystui.store import tables
from nsystui.store.session import Session

NCCL_DOMAIN = "NCCL"
_WORDS = {EventKind.API: "CUDA API", EventKind.MPI: "MPI", EventKind.OS: "OS runtime"}


@dataclass(frozen=True)
class TraceProcess:
    """A process of the trace. ``rank`` is ``None`` where it is no task of the job."""

    task: Task
    rank: int | None
    name: str
    host: str


@dataclass(frozen=True)
class ThreadTrack:
    """What one thread did of one kind: its API calls, or its NVTX ranges and marks of one domain."""

    task: Task
    thread: int | None
    kind: EventKind
    domain: str = ""
    thread_name: str = ""

    @property
    def thread_label(self) -> str:
        """``thread 4711 python3``."""
        number = "?" if self.thread is None else tid_of(self.thread)
        return f"thread {number} {self.thread_name}".rstrip()

    @property
    def label(self) -> str:
        """``thread 4711 python3: CUDA API``."""
        if self.kind is not EventKind.NVTX:
            return f"{self.thread_label}: {_WORDS[self.kind]}"
        return f"{self.thread_label}: " + (
            self.domain if self.domain == NCCL_DOMAIN else f"NVTX {self.domain}".rstrip()
        )


@dataclass(frozen=True)
class Layout:
    """Processes by rank, tracks by process; ``sampled`` are the reports with GPU metrics."""

    processes: tuple[TraceProcess, ...]
    streams: tuple[Stream, ...]
    threads: tuple[ThreadTrack, ...]
    sampled: tuple[int, ...] = ()
    crossing: Crossing = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, selection: Selection, contents: Contents, parts: Sequence[ByTable]) -> Layout:
        """The places of everything in the selection, which is read in the bands of ``parts``."""
        session = job.session
        streams, crossing = streams_of(session, selection, contents.among(ON_GPU), parts)
        threads = _threads(session, selection, contents)
        processes = _processes(job, {*(one.task for one in streams), *(one.task for one in threads)})
        order = {process.task: number for number, process in enumerate(processes)}
        return cls(
            processes,
            tuple(sorted(streams, key=lambda one: order[one.task])),
            tuple(sorted(threads, key=lambda one: order[one.task])),
            _sampled(session, selection) if contents.metrics else (),
            crossing,
        )


def _processes(job: Job, wanted: set[Task]) -> tuple[TraceProcess, ...]:
    hosts = {report.index: report.metadata.host for report in job.session.reports}
    found = []
    for ranked in job.ranks:
        if ranked.task in wanted:
            name = f"rank {ranked.rank}: {_process_words(ranked.process_name, ranked.task, ranked.host)}"
            found.append(TraceProcess(ranked.task, ranked.rank, name, ranked.host))
    names = process_names(job.session)
    for task in sorted(wanted - {process.task for process in found}):
        host = hosts.get(task.report, "")
        program = names.get(task, "").rpartition("/")[2]
        found.append(TraceProcess(task, None, _process_words(program, task, host), host))
    return tuple(found)


def _process_words(program: str, task: Task, host: str) -> str:
    words = [program, f"pid {pid_of(task.process)}", host and f"on {host}"]
    return " ".join(word for word in words if word)


def _sampled(session: Session, selection: Selection) -> tuple[int, ...]:
    columns = tables.gpu_metrics.c
    query = sa.select(columns.report).where(*where(tables.gpu_metrics, selection, columns.metric)).distinct()
    reports = [report.index for report in selected_reports(session, selection) if report.count(tables.gpu_metrics)]
    return (
        tuple(sorted(found for (found,) in session.rows(query.where(columns.report.in_(reports))))) if reports else ()
    )


def _threads(session: Session, selection: Selection, contents: Contents) -> list[ThreadTrack]:
    kinds = contents.among((*ON_CPU, EventKind.MARK))
    if not kinds:
        return []
    rows = slices(session, selection, kinds, ("report", "process", "thread", "kind", "domain")).subquery()
    query = sa.select(rows.c.report, rows.c.process, rows.c.thread, rows.c.kind, rows.c.domain).distinct()
    names = thread_names(session)
    found = {
        ThreadTrack(
            _task(report, process), thread, track_kind(EventKind(kind)), domain or "", names.get((report, thread), "")
        )
        for report, process, thread, kind, domain in session.rows(query)
    }
    order = list(EventKind)
    return sorted(
        found, key=lambda one: (one.task, -1 if one.thread is None else one.thread, order.index(one.kind), one.domain)
    )


def track_kind(kind: EventKind) -> EventKind:
    """Marks stand among the NVTX ranges of their thread and domain."""
    return EventKind.NVTX if kind is EventKind.MARK else kind


def thread_names(session: Session) -> dict[tuple[int, int], str]:
    """The name of each (report, thread) that has one."""
    columns = tables.threads.c
    query = sa.select(columns.report, columns.thread, columns.name).where(columns.name.is_not(None), columns.name != "")
    return {(report, thread): name for report, thread, name in session.rows(query)}


def _task(report: int, process: int | None) -> Task:
    return Task(report, -1 if process is None else process)
