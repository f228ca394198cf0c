"""A trace's processes and tracks, with order and names.

Slices on a stream's track never overlap; calls and NVTX ranges on a thread's track nest. If work of a stream overlaps
(branches of a CUDA graph, programmatic dependent launches), the stream has several lanes, each with a track.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.base.types import Expression
from nsystui.base.units import numbered
from nsystui.exports.metadata import pid_of, tid_of
from nsystui.questions.events.kinds import RUNTIMES, STREAM_KINDS, EventKind
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.tasks import process_names, thread_names
from nsystui.questions.queries.time_index import ByTable
from nsystui.questions.queries.time_window import selected_reports
from nsystui.questions.trace.slices import ON_CPU, Contents, slices
from nsystui.store import tables
from nsystui.store.session import Session

Crossing = dict[tuple[int, int, int, int, int | None, int], int]
"""Lanes of the few operations that are not on their stream's first lane, by report, process, device, stream,
correlation id and start."""
_Key = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Stream:
    """A stream of a process; ``lanes`` is the most operations that ran on it at once."""

    task: Task
    device: int
    stream: int
    lanes: int = 1

    def label(self, lane: int = 0) -> str:
        """Return ``device 0 stream 7``, and the number of the lane unless it is the first."""
        return f"{numbered('device', self.device)} {numbered('stream', self.stream)}" + (
            f" ({lane + 1})" if lane else ""
        )


class StreamLanes:
    """Assignment of slices to the first free lane of their stream."""

    def __init__(self) -> None:
        self._ends: dict[object, list[int]] = {}

    def lane(self, stream: object, start: int, end: int) -> int:
        """Return the lane of a slice, less than `Stream.lanes`. Slices must be in order of start."""
        ends = self._ends.get(stream)
        if ends is None:
            ends = self._ends[stream] = []
        end = max(end, start + 1)
        for number, last in enumerate(ends):
            if last <= start:
                ends[number] = end
                return number
        ends.append(end)
        return len(ends) - 1


def streams_of(
    session: Session, selection: Selection, kinds: Sequence[EventKind], parts: Sequence[ByTable]
) -> tuple[list[_Stream], Crossing]:
    """Return the streams with work of ``kinds``, and the work outside first lanes."""
    if not kinds:
        return [], {}
    last_ends: dict[_Key, int] = {}
    crowded: set[_Key] = set()
    for part in parts:
        keys, columns = _rows(session, selection, kinds, part)
        end = sa.func.greatest(columns.end, columns.start + 1)  # each slice has at least 1 ns
        earlier = sa.func.max(end).over(partition_by=keys, order_by=columns.start, rows=(None, -1))
        rows = sa.select(*keys, columns.start, end.label("end"), (columns.start < earlier).label("overlaps")).subquery()
        spans = (sa.func.min(rows.c.start), sa.func.max(rows.c.end), sa.func.bool_or(rows.c.overlaps))
        names = [rows.c[key.name] for key in keys]
        for *key, start, last, overlaps in session.rows(sa.select(*names, *spans).group_by(*names)):
            stream: _Key = tuple(key)
            if overlaps or start < last_ends.get(stream, start):
                crowded.add(stream)
            last_ends[stream] = max(last, last_ends.get(stream, last))
    lanes, crossing = _lanes(session, selection, kinds, parts, crowded) if crowded else ({}, {})
    return [_Stream(Task(key[0], key[1]), key[2], key[3], lanes.get(key, 1)) for key in sorted(last_ends)], crossing


def _rows(
    session: Session, selection: Selection, kinds: Sequence[EventKind], part: ByTable
) -> tuple[list[Expression], Any]:
    """Return the key columns (report, process, device, stream) of the work in a band, and all its columns."""
    fields = ("report", "process", "device", "stream", "correlation_id", "start", "end", "kind_order", "row")
    rows = slices(session, selection, kinds, fields, extra=part).subquery()
    return [rows.c[name].label(name) for name in fields[:4]], rows.c


def _lanes(
    session: Session, selection: Selection, kinds: Sequence[EventKind], parts: Sequence[ByTable], crowded: set[_Key]
) -> tuple[dict[_Key, int], Crossing]:
    lanes, numbers, crossing = StreamLanes(), dict.fromkeys(crowded, 1), Crossing()
    for part in parts:
        keys, columns = _rows(session, selection, kinds, part)
        is_crowded = [
            sa.and_(*(column == number for column, number in zip(keys, key, strict=True))) for key in sorted(crowded)
        ]
        query = sa.select(*keys, columns.correlation_id, columns.start, columns.end).where(sa.or_(*is_crowded))
        order = (columns.start, columns.end.desc(), columns.kind_order, columns.report, columns.row)
        for batch in session.batches(query.order_by(*order), 20_000):
            for report, process, device, stream, correlation, start, end in batch:
                key = (report, process, device, stream)
                lane = lanes.lane(key, start, end)
                if lane:
                    numbers[key] = max(numbers[key], lane + 1)
                    crossing[report, process, device, stream, correlation, start] = lane
    return numbers, crossing


NCCL_DOMAIN = "NCCL"
_WORDS = {EventKind.API: "CUDA API", EventKind.SYNC: "CUDA synchronisation", EventKind.OS: "OS runtime", **RUNTIMES}


@dataclass(frozen=True)
class TraceProcess:
    """A process of the trace; ``rank`` is ``None`` if it is not a task of the job, ``short`` the name without host."""

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
    streams: tuple[_Stream, ...]
    threads: tuple[ThreadTrack, ...]
    sampled: tuple[int, ...] = ()
    crossing: Crossing = field(default_factory=dict)

    @classmethod
    def of(cls, job: OpenJob, selection: Selection, contents: Contents, parts: Sequence[ByTable]) -> TraceLayout:
        """Return the layout of the selection, read in the bands ``parts``."""
        session = job.session
        streams, crossing = streams_of(session, selection, contents.among(STREAM_KINDS), parts)
        threads = _threads(session, selection, contents)
        processes = _processes(job, {*(track.task for track in streams), *(track.task for track in threads)})
        order = {process.task: number for number, process in enumerate(processes)}
        return cls(
            processes,
            tuple(sorted(streams, key=lambda track: order[track.task])),
            tuple(sorted(threads, key=lambda track: order[track.task])),
            _sampled(session, selection) if contents.metrics else (),
            crossing,
        )


def _processes(job: OpenJob, wanted: set[Task]) -> tuple[TraceProcess, ...]:
    hosts = {report.index: report.metadata.host for report in job.session.reports}
    processes = []
    for ranked in job.ranks:
        if ranked.task in wanted:
            short = f"rank {ranked.rank}"
            name = f"{short}: {_process_words(ranked.process_name, ranked.task, ranked.host)}"
            processes.append(TraceProcess(ranked.task, ranked.rank, name, short, ranked.host))
    names = process_names(job.session)
    for task in sorted(wanted - {process.task for process in processes}):
        host = hosts.get(task.report, "")
        program = names.get(task, "").rpartition("/")[2]
        name, short = (_process_words(program, task, shown) for shown in (host, ""))
        processes.append(TraceProcess(task, None, name, short, host))
    return tuple(processes)


def _process_words(program: str, task: Task, host: str) -> str:
    words = [program, f"pid {pid_of(task.process)}", host and f"on {host}"]
    return " ".join(word for word in words if word)


def _sampled(session: Session, selection: Selection) -> tuple[int, ...]:
    columns = tables.gpu_metrics.c
    query = sa.select(columns.report).where(*where(tables.gpu_metrics, selection, columns.metric)).distinct()
    reports = [report.index for report in selected_reports(session, selection) if report.count(tables.gpu_metrics)]
    return (
        tuple(sorted(report for (report,) in session.rows(query.where(columns.report.in_(reports))))) if reports else ()
    )


def _threads(session: Session, selection: Selection, contents: Contents) -> list[ThreadTrack]:
    kinds = contents.among((*ON_CPU, EventKind.MARK))
    if not kinds:
        return []
    rows = slices(session, selection, kinds, ("report", "process", "thread", "kind", "domain")).subquery()
    query = sa.select(rows.c.report, rows.c.process, rows.c.thread, rows.c.kind, rows.c.domain).distinct()
    names = thread_names(session)
    tracks = {
        ThreadTrack(
            Task(report, -1 if process is None else process),
            thread,
            # Marks share the track of NVTX ranges of their thread and domain.
            EventKind.NVTX if EventKind(kind) is EventKind.MARK else EventKind(kind),
            domain or "",
            names.get((report, thread), ""),
        )
        for report, process, thread, kind, domain in session.rows(query)
    }
    return sorted(
        tracks,
        key=lambda track: (track.task, -1 if track.thread is None else track.thread, track.kind.order, track.domain),
    )
