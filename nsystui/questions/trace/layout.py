"""The processes and tracks of a trace: who stands where, in which order, under which name.

A track holds slices of which no two overlap (a stream) or which nest (calls and NVTX ranges of a thread). Work of one
stream that does overlap (branches of a CUDA graph, programmatic dependent launches) goes to further lanes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.base.units import numbered
from nsystui.exports.metadata import pid_of, tid_of
from nsystui.questions.events.kinds import GPU_KINDS, RUNTIMES, EventKind
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.tasks import process_names
from nsystui.questions.queries.time_index import ByTable
from nsystui.questions.queries.time_window import selected_reports
from nsystui.questions.trace.slices import ON_CPU, Contents, slices
from nsystui.store import tables
from nsystui.store.session import Session

Crossing = dict[tuple[int, int, int, int, int | None, int], int]
"""The lane of every operation that is not on the first one, by report, process, device, stream, correlation id and
start: few, for seldom does work of one stream overlap."""
_Place = tuple[int, int, int, int]


@dataclass(frozen=True)
class Stream:
    """A stream of a process on which something ran; ``lanes`` says how much of it at once, at most."""

    task: Task
    device: int
    stream: int
    lanes: int = 1

    def label(self, lane: int = 0) -> str:
        """``device 0 stream 7``, further lanes with their number."""
        return f"{numbered('device', self.device)} {numbered('stream', self.stream)}" + (
            f" ({lane + 1})" if lane else ""
        )


class StreamLanes:
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


def streams_of(
    session: Session, selection: Selection, kinds: Sequence[EventKind], parts: Sequence[ByTable]
) -> tuple[list[Stream], Crossing]:
    """Every stream on which work of ``kinds`` ran, with as many lanes as it needs, and what is on further lanes."""
    if not kinds:
        return [], {}
    last: dict[_Place, int] = {}
    crowded: set[_Place] = set()
    for part in parts:
        for place, start, end in _by_place(session, selection, kinds, part):
            before = np.maximum.accumulate(np.concatenate(([last.get(place, start[0])], end)))
            if (start < before[:-1]).any():
                crowded.add(place)
            last[place] = int(before[-1])
    lanes, crossing = _lanes(session, selection, kinds, parts, crowded) if crowded else ({}, {})
    return [
        Stream(Task(place[0], place[1]), place[2], place[3], lanes.get(place, 1)) for place in sorted(last)
    ], crossing


def _rows(
    session: Session, selection: Selection, kinds: Sequence[EventKind], part: ByTable
) -> tuple[list[sa.ColumnElement[Any]], Any]:
    """Report, process, device and stream of the work of a band, and its rows."""
    fields = ("report", "process", "device", "stream", "correlation_id", "start", "end", "kind_order", "row")
    rows = slices(session, selection, kinds, fields, extra=part).subquery()
    return [rows.c[name].label(name) for name in fields[:4]], rows.c


def _by_place(
    session: Session, selection: Selection, kinds: Sequence[EventKind], part: ByTable
) -> Iterator[tuple[_Place, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Starts and ends by start, of each place; a slice takes a nanosecond at least."""
    place, columns = _rows(session, selection, kinds, part)
    end = sa.func.greatest(columns.end, columns.start + 1).label("end")
    query = sa.select(*place, columns.start.label("start"), end).order_by(*place, columns.start)
    found = session.arrays(query)
    names = ("report", "process", "device", "stream")
    if not len(found["start"]):
        return
    changes = np.zeros(len(found["start"]) - 1, np.bool_)
    for name in names:
        changes |= np.diff(found[name]) != 0
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(found["start"])]
    for first, after in pairwise(edges):
        report, process, device, stream = (int(found[name][first]) for name in names)
        yield (report, process, device, stream), found["start"][first:after], found["end"][first:after]


def _lanes(
    session: Session, selection: Selection, kinds: Sequence[EventKind], parts: Sequence[ByTable], crowded: set[_Place]
) -> tuple[dict[_Place, int], Crossing]:
    """The number of lanes of each stream whose work overlaps, and the work that is not on its first lane."""
    lanes, numbers, crossing = StreamLanes(), dict.fromkeys(crowded, 1), Crossing()
    for part in parts:
        place, columns = _rows(session, selection, kinds, part)
        is_crowded = [
            sa.and_(*(column == number for column, number in zip(place, one, strict=True))) for one in sorted(crowded)
        ]
        query = sa.select(*place, columns.correlation_id, columns.start, columns.end).where(sa.or_(*is_crowded))
        order = (columns.start, columns.end.desc(), columns.kind_order, columns.report, columns.row)
        for batch in session.batches(query.order_by(*order), 20_000):
            for report, process, device, stream, correlation, start, end in batch:
                where = (report, process, device, stream)
                lane = lanes.lane(where, start, end)
                if lane:
                    numbers[where] = max(numbers[where], lane + 1)
                    crossing[report, process, device, stream, correlation, start] = lane
    return numbers, crossing


NCCL_DOMAIN = "NCCL"
_WORDS = {EventKind.API: "CUDA API", EventKind.SYNC: "CUDA synchronisation", EventKind.OS: "OS runtime", **RUNTIMES}


@dataclass(frozen=True)
class TraceProcess:
    """A process of the trace. ``rank`` is ``None`` where it is no task of the job; ``short`` leaves the host out."""

    task: Task
    rank: int | None
    name: str
    short: str
    host: str


@dataclass(frozen=True)
class ThreadTrack:
    """The events of one kind on a thread: its API calls, or its NVTX ranges and marks of one domain."""

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
class TraceLayout:
    """Processes by rank, tracks by process; ``sampled`` are the reports with GPU metrics."""

    processes: tuple[TraceProcess, ...]
    streams: tuple[Stream, ...]
    threads: tuple[ThreadTrack, ...]
    sampled: tuple[int, ...] = ()
    crossing: Crossing = field(default_factory=dict)

    @classmethod
    def of(cls, job: OpenJob, selection: Selection, contents: Contents, parts: Sequence[ByTable]) -> TraceLayout:
        """The places of everything in the selection, which is read in the bands of ``parts``."""
        session = job.session
        streams, crossing = streams_of(session, selection, contents.among(GPU_KINDS), parts)
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


def _processes(job: OpenJob, wanted: set[Task]) -> tuple[TraceProcess, ...]:
    hosts = {report.index: report.metadata.host for report in job.session.reports}
    found = []
    for ranked in job.ranks:
        if ranked.task in wanted:
            short = f"rank {ranked.rank}"
            name = f"{short}: {_process_words(ranked.process_name, ranked.task, ranked.host)}"
            found.append(TraceProcess(ranked.task, ranked.rank, name, short, ranked.host))
    names = process_names(job.session)
    for task in sorted(wanted - {process.task for process in found}):
        host = hosts.get(task.report, "")
        program = names.get(task, "").rpartition("/")[2]
        name, short = (_process_words(program, task, shown) for shown in (host, ""))
        found.append(TraceProcess(task, None, name, short, host))
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
            Task(report, -1 if process is None else process),
            thread,
            # Marks stand among the NVTX ranges of their thread and domain.
            EventKind.NVTX if EventKind(kind) is EventKind.MARK else EventKind(kind),
            domain or "",
            names.get((report, thread), ""),
        )
        for report, process, thread, kind, domain in session.rows(query)
    }
    return sorted(
        found, key=lambda one: (one.task, -1 if one.thread is None else one.thread, one.kind.order, one.domain)
    )


def thread_names(session: Session) -> dict[tuple[int, int], str]:
    """The name of each (report, thread) that has one."""
    columns = tables.threads.c
    query = sa.select(columns.report, columns.thread, columns.name).where(columns.name.is_not(None), columns.name != "")
    return {(report, thread): name for report, thread, name in session.rows(query)}
