"""Paraver traces: the records (``.prv``), the names of the rows (``.row``), and the types of events (``.pcf``).

The records are as BSC's reader (paraver-kernel) takes them: a first line
``#Paraver (date):duration_ns:nodes(cpus,…):1:tasks(threads:node,…)``, then records by time: states
``1:cpu:appl:task:thread:begin:end:state``, events ``2:cpu:appl:task:thread:time:type:value…``, and communications
``3:…`` from a call to the first work that it launched. There is one application; a task is a process, by rank; a
thread is one of its CPU threads or a stream (or a lane of one, where its work overlaps), each with a CPU of its own.
An event sets the value of its row until the next one: the innermost range or call, 0 for nothing. Times are ns from
the first event of the trace.

Types of CUDA work and calls have the numbers of BSC's nsys2prv, and states those of Extrae, so that configurations made
for these fit. NVTX push/pop ranges and MPI calls have other numbers than there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

from nsystui.base.selection import Task
from nsystui.base.text import safe_text
from nsystui.output.chrome_trace import Progress, Sink
from nsystui.questions.events.kinds import GPU_KINDS, EventKind
from nsystui.questions.trace.layout import NCCL_DOMAIN, Lanes
from nsystui.questions.trace.trace import Trace

MEMORY_SIZE, NCCL_SIZE = 63000002, 9501
_PUSH_POP, _START_END, _NCCL_CALL, _FIRST_DOMAIN = 9003, 9004, 9500, 9600
_TYPES = {
    EventKind.KERNEL.value: (63000006, "CUDA kernel"),
    EventKind.NCCL.value: (63000007, "NCCL kernel"),
    EventKind.MEMORY.value: (63000001, "CUDA memory operation"),
    EventKind.GRAPH.value: (63000008, "CUDA graph, traced whole"),
    EventKind.API.value: (63000000, "CUDA API call"),
    EventKind.MPI.value: (9300, "MPI call"),
    EventKind.OS.value: (9310, "OS runtime call"),
    EventKind.MARK.value: (9005, "NVTX mark"),
}
_STATES = {
    0: ("Idle", (117, 195, 255)),
    1: ("Running a kernel", (0, 0, 255)),
    13: ("Running an NCCL kernel", (255, 144, 26)),
    15: ("In a CUDA API call", (172, 174, 41)),
    17: ("Memory operation", (255, 0, 96)),
}
STATE_OF = {
    EventKind.KERNEL.value: 1,
    EventKind.GRAPH.value: 1,
    EventKind.NCCL.value: 13,
    EventKind.API.value: 15,
    EventKind.MEMORY.value: 17,
}
"""The state that a row is in during an event of a kind; other kinds make none."""

_HEAD = """DEFAULT_OPTIONS

LEVEL               THREAD
UNITS               NANOSEC
LOOK_BACK           100
SPEED               1
FLAG_ICONS          ENABLED
NUM_OF_STATE_COLORS 1000
YMAX_SCALE          37


DEFAULT_SEMANTIC

THREAD_FUNC         State As Is

"""


@dataclass(frozen=True)
class EventTypes:
    """The types and values of a trace. Values of a type count from 1, in the order of their names; 0 is nothing."""

    labels: dict[int, str]
    values: dict[int, dict[str, int]]
    domains: dict[str, int]

    @classmethod
    def of(cls, trace: Trace) -> EventTypes:
        """For every name that occurs in a trace: the same names have the same numbers, whatever their order."""
        names = trace.name_values()
        domains = sorted({domain for _, domain, loose, _ in names if domain not in ("", NCCL_DOMAIN) and not loose})
        found = cls({}, {}, {domain: _FIRST_DOMAIN + number for number, domain in enumerate(domains)})
        by_type: dict[int, set[str]] = {}
        for kind, domain, loose, name in names:
            number = found.type_of(kind, domain, loose)
            by_type.setdefault(number, set()).add(name)
            found.labels[number] = _TYPES[kind][1] if kind in _TYPES else _nvtx_label(domain, loose)
        for number, values in by_type.items():
            found.values[number] = {name: value for value, name in enumerate(sorted(values), 1)}
        kinds = {kind for kind, *_ in names}
        if EventKind.MEMORY.value in kinds:
            found.labels[MEMORY_SIZE] = "Bytes of the CUDA memory operation"
        if _NCCL_CALL in by_type:
            found.labels[NCCL_SIZE] = "Bytes of the NCCL call's message"
        return found

    def type_of(self, kind: str, domain: str, loose: int) -> int:
        """The type of an event: that of its kind; of an NVTX range that of its domain, start/end ranges apart."""
        if kind in _TYPES:
            return _TYPES[kind][0]
        if loose:
            return _START_END
        if domain == NCCL_DOMAIN:
            return _NCCL_CALL
        return self.domains[domain] if domain else _PUSH_POP

    def size_type(self, kind: str, domain: str) -> int:
        """The type whose value is the bytes of such an event."""
        return MEMORY_SIZE if kind == EventKind.MEMORY.value else NCCL_SIZE if domain == NCCL_DOMAIN else 0

    def pcf(self) -> str:
        """The ``.pcf``."""
        parts = [_HEAD, "STATES\n", *(f"{number}    {label}\n" for number, (label, _) in _STATES.items())]
        parts += [
            "\n\nSTATES_COLOR\n",
            *(f"{number}    {{{r},{g},{b}}}\n" for number, (_, (r, g, b)) in _STATES.items()),
        ]
        for number in sorted(self.labels):
            parts.append(f"\n\nEVENT_TYPE\n0    {number}    {safe_text(self.labels[number])}\n")
            if number in self.values:
                parts.append("VALUES\n0      End\n")
                parts += [
                    f"{value}      {safe_text(name) or '(no name)'}\n" for name, value in self.values[number].items()
                ]
        return "".join(parts)


def _nvtx_label(domain: str, loose: int) -> str:
    if loose:
        return "NVTX start/end range"
    return "NCCL call" if domain == NCCL_DOMAIN else f"NVTX range {domain}".rstrip()


_GPU = frozenset(kind.value for kind in GPU_KINDS)
_API, _MARK = EventKind.API.value, EventKind.MARK.value
_SECOND = 1_000_000_000
Row = tuple[Task, object]
"""A row of the trace: of a process, the serialised id of a thread, or (device, stream, lane)."""


class Rows:
    """The rows with their numbers, all from 1: CPUs node by node, threads task by task."""

    def __init__(self, trace: Trace) -> None:
        layout = trace.layout
        self.processes = layout.processes
        self.hosts = list(dict.fromkeys(process.host for process in layout.processes))
        self.of_task: dict[Task, dict[Row, str]] = {process.task: {} for process in layout.processes}
        for one in layout.threads:
            self.of_task[one.task].setdefault((one.task, one.thread), one.thread_label)
        for stream in layout.streams:
            for lane in range(stream.lanes):
                self.of_task[stream.task][stream.task, (stream.device, stream.stream, lane)] = stream.label(lane)
        self.prefixes = self._prefixes()

    def _prefixes(self) -> dict[Row, str]:
        """``cpu:appl:task:thread`` of every row."""
        prefixes, cpu = {}, count(1)
        for host in self.hosts:
            for task, process in enumerate(self.processes, 1):
                if process.host == host:
                    for thread, row in enumerate(self.of_task[process.task], 1):
                        prefixes[row] = f"{next(cpu)}:1:{task}:{thread}"
        return prefixes

    def header(self, trace: Trace) -> str:
        """The first line."""
        starts = [report.metadata.session_start_utc for report in trace.session.reports]
        began = min((start for start in starts if start), default=0)
        date = datetime.fromtimestamp(began // _SECOND, UTC).strftime("%d/%m/%Y at %H:%M")
        cpus = ",".join(str(sum(self._size(one.task) for one in self._on(host))) for host in self.hosts)
        tasks = ",".join(f"{self._size(one.task)}:{self.hosts.index(one.host) + 1}" for one in self.processes)
        duration = max(trace.span.end - trace.span.start, 1)
        return f"#Paraver ({date}):{duration}_ns:{len(self.hosts)}({cpus}):1:{len(self.processes)}({tasks})\n"

    def _size(self, task: Task) -> int:
        return len(self.of_task[task])

    def _on(self, host: str) -> list[Any]:
        return [process for process in self.processes if process.host == host]

    def row_file(self) -> str:
        """The ``.row``: every level with its size and a name for each."""
        names = {
            row: f"{_short(process)} {label}"
            for process in self.processes
            for row, label in self.of_task[process.task].items()
        }
        levels = {
            "CPU": [names[row] for row in self.prefixes],
            "NODE": [host or "host" for host in self.hosts],
            "TASK": [process.name for process in self.processes],
            "THREAD": list(names.values()),
        }
        return "\n".join(
            f"LEVEL {level} SIZE {len(labels)}\n" + "".join(f"{safe_text(label)}\n" for label in labels)
            for level, labels in levels.items()
        )


def _short(process: Any) -> str:
    return f"rank {process.rank}" if process.rank is not None else str(process.name).partition(" on ")[0]


def write_records(
    trace: Trace, rows: Rows, types: EventTypes, stream: Sink, progress: Progress = lambda rows: None
) -> int:
    """Writes the ``.prv`` and returns how many events of the export are in it; memory does not grow with them.

    ``progress`` gets the number written so far, and may stop the writing by raising.
    """
    stream.write(rows.header(trace).encode())
    body, written = _Body(trace, rows, types), 0
    for batch in trace.by_time():
        stream.write("".join(body.records(batch)).encode())
        written += len(batch)
        progress(written)
    stream.write("".join(body.rest()).encode())
    return written


class _Body:
    """The records in the order of time: an end waits until nothing can begin before it."""

    def __init__(self, trace: Trace, rows: Rows, types: EventTypes) -> None:
        self._origin = trace.span.start
        self._prefixes, self._types = rows.prefixes, types
        self._crossing = trace.layout.crossing
        self._lanes = Lanes()
        self._ends: list[tuple[int, int, str, int, int, int]] = []
        self._numbers = count()
        self._open: dict[tuple[str, int], list[int]] = {}
        self._busy_until: dict[str, int] = {}

    def records(self, rows: Any) -> Iterator[str]:
        """The records up to the start of the last of ``rows`` (`trace.TIMED_FIELDS` and what a call launched)."""
        for row in rows:
            yield from self._of_event(*row)

    def rest(self) -> Iterator[str]:
        """The records after that."""
        yield from self._ended(None)

    def _ended(self, until: int | None) -> Iterator[str]:
        ends = self._ends
        while ends and (until is None or ends[0][0] <= until):
            time, _, prefix, number, value, size_type = heapq.heappop(ends)
            open_values = self._open[prefix, number]
            # The last one of this value is gone; what began after it stays what the row is in.
            position = len(open_values) - 1 - open_values[::-1].index(value)
            del open_values[position]
            size = f":{size_type}:0" if size_type else ""
            if position == len(open_values) or size:
                yield f"2:{prefix}:{time}:{number}:{open_values[-1] if open_values else 0}{size}\n"

    def _of_event(
        self, report: int, process: int | None, thread: int | None, device: int | None, stream: int | None,
        kind: str, domain: str | None, loose: int | None, start: int, end: int, name: str, size: int | None,
        correlation: int | None, to_device: int | None, to_stream: int | None, to: int | None, to_size: int | None,
    ) -> Iterator[str]:  # fmt: skip
        """The ends before the start of an event, and the records of its start (the arguments: `trace.TIMED_FIELDS`)."""
        task = Task(report, -1 if process is None else process)
        start, end = start - self._origin, end - self._origin
        yield from self._ended(start)
        row: Row = (task, thread)
        if kind in _GPU:
            row = (task, (device, stream, self._lanes.lane((task, device, stream), start, end)))
        prefix = self._prefixes[row]
        state = STATE_OF.get(kind)
        if state is not None and end > start and start >= self._busy_until.get(prefix, 0):
            self._busy_until[prefix] = end  # states of a row may not overlap: the outer call counts
            yield f"1:{prefix}:{start}:{end}:{state}\n"
        number = self._types.type_of(kind, domain or "", loose or 0)
        value = self._types.values[number][name]
        size_type = self._types.size_type(kind, domain or "") if size is not None else 0
        yield f"2:{prefix}:{start}:{number}:{value}" + (f":{size_type}:{size}\n" if size_type else "\n")
        if kind != _MARK:
            self._open.setdefault((prefix, number), []).append(value)
            heapq.heappush(self._ends, (end, next(self._numbers), prefix, number, value, size_type))
        if to is not None:
            lane = self._crossing.get((report, task.process, to_device, to_stream, correlation, to), 0)
            other_prefix = self._prefixes[task, (to_device, to_stream, lane)]
            at = to - self._origin
            yield f"3:{prefix}:{start}:{start}:{other_prefix}:{at}:{at}:{to_size}:{correlation}\n"
