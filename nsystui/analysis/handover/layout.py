"""The processes and tracks of a trace: who stands where, in which order, under which name.

A track holds slices of which no two overlap (a stream) or which nest (calls and NVTX ranges of a thread). Work of one
stream that does overlap (branches of a CUDA graph, programmatic dependent launches) goes to further lanes of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from nsystui.analysis.event_kinds import EventKind
from nsystui.analysis.extent import selected_reports
from nsystui.analysis.handover.kinds import ON_CPU, ON_GPU, Contents
from nsystui.analysis.handover.slices import slices
from nsystui.analysis.job import Job
from nsystui.analysis.processes import process_names
from nsystui.analysis.selection import Selection, Task
from nsystui.analysis.where import where
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
class Stream:
    """A stream of a process on which something ran; ``lanes`` says how much of it at once, at most."""

    task: Task
    device: int | None
    stream: int | None
    lanes: int = 1

    def label(self, lane: int = 0) -> str:
        """``device 0 stream 7``, further lanes with their number."""
        return f"device {_word(self.device)} stream {_word(self.stream)}" + (f" ({lane + 1})" if lane else "")


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
        number = "?" if self.thread is None else self.thread & 0xFFFFFF
        return f"thread {number} {self.thread_name}".rstrip()

    @property
    def label(self) -> str:
        """``thread 4711 python3: CUDA API``."""
        if self.kind is not EventKind.NVTX:
            return f"{self.thread_label}: {_WORDS[self.kind]}"
        return f"{self.thread_label}: " + (
            self.domain if self.domain == NCCL_DOMAIN else f"NVTX {self.domain}".rstrip()
        )


def _word(number: int | None) -> str:
    return "?" if number is None else str(number)


@dataclass(frozen=True)
class Layout:
    """Processes by rank, tracks by process; ``sampled`` are the reports with GPU metrics."""

    processes: tuple[TraceProcess, ...]
    streams: tuple[Stream, ...]
    threads: tuple[ThreadTrack, ...]
    sampled: tuple[int, ...] = ()

    @classmethod
    def of(cls, job: Job, selection: Selection, contents: Contents) -> Layout:
        """The places of everything in the selection."""
        session = job.session
        streams = _streams(session, selection, contents)
        threads = _threads(session, selection, contents)
        processes = _processes(job, {*(one.task for one in streams), *(one.task for one in threads)})
        order = {process.task: number for number, process in enumerate(processes)}
        return cls(
            processes,
            tuple(sorted(streams, key=lambda one: order[one.task])),
            tuple(sorted(threads, key=lambda one: order[one.task])),
            _sampled(session, selection) if contents.metrics else (),
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
    words = [program, f"pid {(task.process >> 24) & 0xFFFFFF}", host and f"on {host}"]
    return " ".join(word for word in words if word)


def _sampled(session: Session, selection: Selection) -> tuple[int, ...]:
    columns = tables.gpu_metrics.c
    query = sa.select(columns.report).where(*where(tables.gpu_metrics, selection, columns.metric)).distinct()
    reports = [report.index for report in selected_reports(session, selection) if report.count(tables.gpu_metrics)]
    return (
        tuple(sorted(found for (found,) in session.rows(query.where(columns.report.in_(reports))))) if reports else ()
    )


def _streams(session: Session, selection: Selection, contents: Contents) -> list[Stream]:
    kinds = contents.among(ON_GPU)
    if not kinds:
        return []
    fields = ("report", "process", "device", "stream", "start", "end")
    rows = slices(session, selection, kinds, fields).subquery()
    place = (rows.c.report, rows.c.process, rows.c.device, rows.c.stream)
    # How many run at once: +1 where one starts, -1 where it ends (a slice takes a nanosecond at least), ends first.
    end = sa.func.greatest(rows.c.end, rows.c.start + 1)
    moments = sa.union_all(
        sa.select(*place, rows.c.start.label("time"), sa.literal(1).label("change")),
        sa.select(*place, end.label("time"), sa.literal(-1).label("change")),
    ).subquery()
    columns = moments.c
    place = (columns.report, columns.process, columns.device, columns.stream)
    at_once = sa.func.sum(columns.change).over(
        partition_by=place, order_by=(columns.time, columns.change), rows=(None, 0)
    )
    depths = sa.select(*place, at_once.label("at_once")).subquery()
    place = (depths.c.report, depths.c.process, depths.c.device, depths.c.stream)
    query = sa.select(*place, sa.func.max(depths.c.at_once)).group_by(*place).order_by(*place)
    return [
        Stream(_task(report, process), device, stream, int(lanes))
        for report, process, device, stream, lanes in session.rows(query)
    ]


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


class Lanes:
    """Which lane of its stream the next slice goes to: the first in which the one before has ended."""

    def __init__(self) -> None:
        self._ends: dict[object, list[int]] = {}

    def lane(self, place: object, start: int, end: int) -> int:
        """The lane of a slice; slices come by their start. Never more than `Stream.lanes`."""
        ends = self._ends.get(place)
        if ends is None:
            ends = self._ends[place] = []
        end = max(end, start + 1)
        for number, last in enumerate(ends):
            if last <= start:
                ends[number] = end
                return number
        ends.append(end)
        return len(ends) - 1
