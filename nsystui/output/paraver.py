"""The records of a Paraver trace (``.prv``) and the names of its rows (``.row``); `paraver_labels` has the ``.pcf``.

As BSC's reader (paraver-kernel) takes them: ``#Paraver (date):duration_ns:nodes(cpus,…):1:tasks(threads:node,…)``, then
records by time: states ``1:cpu:appl:task:thread:begin:end:state``, events ``2:cpu:appl:task:thread:time:type:value…``,
and communications ``3:…`` from a call to the first work that it launched. One application; a task is a process, by
rank; a thread is one of its CPU threads or a stream (or a lane of one, where its work overlaps), each with a CPU of its
own.
From an event on, a row is in what the value says: the innermost range or call, 0 for nothing. Times are ns from the
first event of the trace.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

from nsystui.base.selection import Task
from nsystui.base.text import safe_text
from nsystui.output.chrome_trace import Progress, Sink
from nsystui.output.paraver_labels import STATE_OF, EventTypes
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.trace.layout import Lanes
from nsystui.questions.trace.slices import ON_GPU
from nsystui.questions.trace.trace import Trace

_GPU = frozenset(kind.value for kind in ON_GPU)
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
        self.places = self._places()

    def _places(self) -> dict[Row, str]:
        """``cpu:appl:task:thread`` of every row."""
        places, cpu = {}, count(1)
        for host in self.hosts:
            for task, process in enumerate(self.processes, 1):
                if process.host == host:
                    for thread, row in enumerate(self.of_task[process.task], 1):
                        places[row] = f"{next(cpu)}:1:{task}:{thread}"
        return places

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
            "CPU": [names[row] for row in self.places],
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

    ``progress`` is told how many are written so far, and may stop the writing by raising.
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
        self._places, self._types = rows.places, types
        self._crossing = trace.layout.crossing
        self._lanes = Lanes()
        self._ends: list[tuple[int, int, str, int, int, int]] = []
        self._numbers = count()
        self._open: dict[tuple[str, int], list[int]] = {}
        self._busy_until: dict[str, int] = {}

    def records(self, rows: Any) -> Iterator[str]:
        """The records up to the start of the last of ``rows`` (`trace.TIMED_FIELDS` and what a call launched)."""
        for row in rows:
            yield from self._ended(row[8] - self._origin)
            yield from self._begun(*row)

    def rest(self) -> Iterator[str]:
        """The records after that."""
        yield from self._ended(None)

    def _ended(self, until: int | None) -> Iterator[str]:
        ends = self._ends
        while ends and (until is None or ends[0][0] <= until):
            time, _, place, number, value, size_type = heapq.heappop(ends)
            inside = self._open[place, number]
            # The last one of this value is gone; what began after it stays what the row is in.
            position = len(inside) - 1 - inside[::-1].index(value)
            del inside[position]
            size = f":{size_type}:0" if size_type else ""
            if position == len(inside) or size:
                yield f"2:{place}:{time}:{number}:{inside[-1] if inside else 0}{size}\n"

    def _begun(
        self, report: int, process: int | None, thread: int | None, device: int | None, stream: int | None,
        kind: str, domain: str | None, loose: int | None, start: int, end: int, name: str, size: int | None,
        correlation: int | None, to_device: int | None, to_stream: int | None, to: int | None, to_size: int | None,
    ) -> Iterator[str]:  # fmt: skip
        task = Task(report, -1 if process is None else process)
        start, end = start - self._origin, end - self._origin
        row: Row = (task, thread)
        if kind in _GPU:
            row = (task, (device, stream, self._lanes.lane((task, device, stream), start, end)))
        place = self._places[row]
        state = STATE_OF.get(kind)
        if state is not None and end > start and start >= self._busy_until.get(place, 0):
            self._busy_until[place] = end  # states of a row may not overlap: the outer call counts
            yield f"1:{place}:{start}:{end}:{state}\n"
        number = self._types.type_of(kind, domain or "", loose or 0)
        value = self._types.values[number][name]
        size_type = self._types.size_type(kind, domain or "") if size is not None else 0
        yield f"2:{place}:{start}:{number}:{value}" + (f":{size_type}:{size}\n" if size_type else "\n")
        if kind != _MARK:
            self._open.setdefault((place, number), []).append(value)
            heapq.heappush(self._ends, (end, next(self._numbers), place, number, value, size_type))
        if to is not None:
            lane = self._crossing.get((report, task.process, to_device, to_stream, correlation, to), 0)
            there = self._places[task, (to_device, to_stream, lane)]
            at = to - self._origin
            yield f"3:{place}:{start}:{start}:{there}:{at}:{at}:{to_size}:{correlation}\n"
