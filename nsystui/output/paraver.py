"""Paraver traces: the records (``.prv``) and the names of the rows (``.row``); the types are in `paraver_types`.

The records are as BSC's reader (paraver-kernel) takes them: a first line
``#Paraver (date):duration_ns:nodes(cpus,…):1:tasks(threads:node,…)``, then records by time: states
``1:cpu:appl:task:thread:begin:end:state``, events ``2:cpu:appl:task:thread:time:type:value…``, and communications
``3:…`` from a call to the first work that it launched. There is one application; a task is a process, by rank; a
thread is one of its CPU threads, a stream (or a lane of one, where its work overlaps), or the metrics of a GPU, each
with a CPU of its own. An event sets the value of its row until the next one: the innermost range or call, 0 for
nothing. Times are ns from the first event of the trace. States have the numbers of Extrae.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, count, groupby
from operator import itemgetter
from typing import Any

from nsystui.base.selection import Task
from nsystui.base.text import safe_text
from nsystui.output.chrome_trace import Progress, Sink
from nsystui.output.paraver_types import COPIES, DETAILS, LAUNCHES, EventTypes
from nsystui.questions.events.kinds import GPU_KINDS, EventKind
from nsystui.questions.trace.layout import Lanes
from nsystui.questions.trace.trace import TIMED_FIELDS, Trace

STATE_OF = {
    EventKind.KERNEL.value: 1,
    EventKind.GRAPH.value: 1,
    EventKind.NCCL.value: 13,
    EventKind.API.value: 15,
    EventKind.MEMORY.value: 17,
}
"""The state that a row is in during an event of a kind; other kinds make none."""

_GPU = frozenset(kind.value for kind in GPU_KINDS)
_MARK, _MEMORY = EventKind.MARK.value, EventKind.MEMORY.value
_SECOND = 1_000_000_000
Row = tuple[Task, object]
"""A row of the trace: of a process, the serialised id of a thread, (device, stream, lane), or a `GpuRow`."""
GpuRow = tuple[int, int]
"""The metrics of a GPU: its report, and the machine's number of it, -1 where that is not known."""


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
        self.of_gpu: dict[GpuRow, Row] = {}
        for place in sorted({(report, -1 if gpu is None else gpu) for report, gpu, *_ in trace.metrics()}):
            task, label = self._metrics_row(trace, place)
            self.of_gpu[place] = task, place
            self.of_task[task][task, place] = label
        self.prefixes = self._prefixes()

    def _metrics_row(self, trace: Trace, place: GpuRow) -> tuple[Task, str]:
        """The task that shows the metrics of a GPU: one that uses it, else another of its report, else the first."""
        report, gpu = place
        users = trace.users_of(report, gpu)
        tasks = [process.task for process in self.processes]
        label = f"GPU {'?' if gpu < 0 else gpu} metrics"
        own = [task for task in tasks if task.report == report]
        if not own:
            name = next(one.name for one in trace.session.reports if one.index == report)
            return tasks[0], f"{label} of {name}"
        return next((task for task in own if task.process in users), own[0]), label

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

    Samples of GPU metrics count, too. ``progress`` gets the number written so far, and may stop the writing by raising.
    """
    stream.write(rows.header(trace).encode())
    body, written = _Body(trace, rows, types), 0
    for batch in trace.by_time():
        stream.write("".join(body.records(batch)).encode())
        written += len(batch)
        progress(written + body.samples)
    for line in body.rest():
        stream.write(line.encode())
    return written + body.samples


Pairs = tuple[tuple[int, int], ...]
"""The types of a record with their values, that of the event first."""

_PLACES = {field: place for place, field in enumerate(TIMED_FIELDS)}
_FROM_ONE = frozenset({"event_kind"})
"""Fields that count from 0: in Paraver 0 is nothing."""


class _Body:
    """The records in the order of time: an end waits until nothing can begin before it."""

    def __init__(self, trace: Trace, rows: Rows, types: EventTypes) -> None:
        self._origin = trace.span.start
        self._prefixes, self._types = rows.prefixes, types
        self._crossing = trace.layout.crossing
        self._lanes = Lanes()
        self._ends: list[tuple[int, int, str, Pairs]] = []
        self._numbers = count()
        self._open: dict[tuple[str, int], list[Pairs]] = {}
        self._busy_until: dict[str, int] = {}
        self.samples = 0
        self._samples = self._sampled(trace, rows)
        self._sample = next(self._samples, None)
        self._details = {
            number: [(_PLACES[field], detail, int(field in _FROM_ONE)) for field, detail in details.items()]
            for number, details in DETAILS.items()
        }

    def records(self, rows: Any) -> Iterator[str]:
        """The records up to the start of the last of ``rows`` (`trace.TIMED_FIELDS` and what a call launched)."""
        for row in rows:
            yield from self._of_event(row)

    def rest(self) -> Iterator[str]:
        """The records after that."""
        yield from self._ended(None)

    def _sampled(self, trace: Trace, rows: Rows) -> Iterator[tuple[int, str]]:
        """The samples of GPU metrics with their times: one record for all that a GPU has at a time."""
        batches = chain.from_iterable(trace.samples_by_time())
        for (time, report, gpu), samples in groupby(batches, itemgetter(0, 1, 2)):
            prefix = self._prefixes[rows.of_gpu[report, -1 if gpu is None else gpu]]
            # The counters glitch below 0, which a value of Paraver may not be.
            pairs = [(self._types.metrics[metric or ""], max(round(value), 0)) for *_, metric, value in samples]
            self.samples += len(pairs)
            yield time - self._origin, _record(prefix, time - self._origin, pairs)

    def _ended(self, until: int | None) -> Iterator[str]:
        """The samples and the ends up to a time."""
        ends = self._ends
        while ends or self._sample is not None:
            if self._sample is not None and not (ends and ends[0][0] < self._sample[0]):
                time, line = self._sample
                if until is not None and time > until:
                    return
                self._sample = next(self._samples, None)
                yield line
                continue
            if until is not None and ends[0][0] > until:
                return
            time, _, prefix, pairs = heapq.heappop(ends)
            open_events = self._open[prefix, pairs[0][0]]
            # The last one of these values is gone; what began after it stays what the row is in.
            position = len(open_events) - 1 - open_events[::-1].index(pairs)
            del open_events[position]
            if position == len(open_events):
                now = dict(open_events[-1]) if open_events else {}
                yield _record(prefix, time, [(number, now.get(number, 0)) for number, _ in pairs])

    def _of_event(self, row: tuple[Any, ...]) -> Iterator[str]:
        """The ends before the start of an event, and the records of its start."""
        report, process, thread, device, stream, start, end, kind, group, domain, loose, name = row[:12]
        task = Task(report, -1 if process is None else process)
        start, end = start - self._origin, end - self._origin
        yield from self._ended(start)
        place: Row = (task, thread)
        if kind in _GPU:
            place = (task, (device, stream, self._lanes.lane((task, device, stream), start, end)))
        prefix = self._prefixes[place]
        state = STATE_OF.get(kind)
        if state is not None and end > start and start >= self._busy_until.get(prefix, 0):
            self._busy_until[prefix] = end  # states of a row may not overlap: the outer call counts
            yield f"1:{prefix}:{start}:{end}:{state}\n"
        number, value = self._types.events[kind, group or "", domain or "", loose or 0, name]
        pairs = ((number, value), *self._details_of(number, row))
        yield _record(prefix, start, pairs)
        if kind != _MARK:
            self._open.setdefault((prefix, number), []).append(pairs)
            heapq.heappush(self._ends, (end, next(self._numbers), prefix, pairs))
        to_device, to_stream, to, to_size, to_kind = row[len(TIMED_FIELDS) :]
        if to is not None:
            correlation = row[_PLACES["correlation_id"]]
            lane = self._crossing.get((report, task.process, to_device, to_stream, correlation, to), 0)
            other_prefix = self._prefixes[task, (to_device, to_stream, lane)]
            at, tag = to - self._origin, COPIES if to_kind == _MEMORY else LAUNCHES
            yield f"3:{prefix}:{start}:{start}:{other_prefix}:{at}:{at}:{to_size}:{tag}\n"

    def _details_of(self, number: int, row: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
        """The further types of the record of an event, of those fields that it has."""
        for place, detail, first in self._details.get(number, ()):
            value = row[place]
            if isinstance(value, str):
                value = self._types.values[detail][value]
            if value is not None and value >= 0:
                yield detail, value + first


def _record(prefix: str, time: int, pairs: Iterable[tuple[int, int]]) -> str:
    return f"2:{prefix}:{time}" + "".join(f":{number}:{value}" for number, value in pairs) + "\n"
