"""Paraver traces: records (``.prv``), names of rows (``.row``) and views (``.cfg``); types are in `paraver_types`.

The records are in the format of BSC's reader (paraver-kernel): a first line
``#Paraver (date):duration_ns:nodes(cpus,…):1:tasks(threads:node,…)``, then records by time: states
``1:cpu:appl:task:thread:begin:end:state``, events ``2:cpu:appl:task:thread:time:type:value…``, and communications
``3:…`` from a call to the first work that it launched. There is one application. A task is a process. A thread
is one of its CPU threads, a stream (or a lane of a stream with overlapping work), or the metrics of a GPU, each with
its own CPU number. An event sets the value of its row until the next event: the innermost range or call, or 0. Times
are ns from the first event of the trace. States have the numbers of Extrae.

The views (``.cfg``, version 3.4) contain displaying windows, each a function of the records of a row, and analyzers:
histograms of a window.
"""

import heapq
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import chain, count, groupby
from operator import itemgetter
from pathlib import Path
from string import Template
from typing import Any, BinaryIO

from nsystui.base.selection import Task
from nsystui.base.text import safe_text
from nsystui.output.paraver_types import COPIES, DETAILS, LAUNCHES, NCCL_TYPES, STATES, EventTypes
from nsystui.questions.events.kinds import STREAM_KINDS, EventKind
from nsystui.questions.trace.layout import StreamLanes
from nsystui.questions.trace.trace import TIMED_FIELDS, Trace

STATE_OF = {
    EventKind.KERNEL.value: 1,
    EventKind.GRAPH.value: 1,
    EventKind.NCCL.value: 13,
    EventKind.API.value: 15,
    EventKind.MEMORY.value: 17,
}
"""The state of a row during an event of a kind; other kinds have no state."""

_GPU = frozenset(kind.value for kind in STREAM_KINDS)
_MARK, _MEMORY = EventKind.MARK.value, EventKind.MEMORY.value
_SECOND = 1_000_000_000
_Row = tuple[Task, object]
"""The key of a row: its process, and a thread's serialised id, (device, stream, lane), or a `GpuRow`."""
GpuRow = tuple[int, int]
"""The metrics of a GPU: its report, and its number on the machine, -1 if unknown."""


class ParaverRows:
    """The rows, numbered from 1: CPUs by node, threads by task."""

    def __init__(self, trace: Trace) -> None:
        layout = trace.layout
        self.processes = layout.processes
        self.hosts = list(dict.fromkeys(process.host for process in layout.processes))
        self.labels_by_task: dict[Task, dict[_Row, str]] = {process.task: {} for process in layout.processes}
        for thread in layout.threads:
            self.labels_by_task[thread.task].setdefault((thread.task, thread.thread), thread.thread_label)
        for stream in layout.streams:
            for lane in range(stream.lanes):
                self.labels_by_task[stream.task][stream.task, (stream.device, stream.stream, lane)] = stream.label(lane)
        self.row_by_gpu: dict[GpuRow, _Row] = {}
        for gpu_row in sorted({(report, -1 if gpu is None else gpu) for report, gpu, *_ in trace.metrics()}):
            task, label = self._metrics_row(trace, gpu_row)
            self.row_by_gpu[gpu_row] = task, gpu_row
            self.labels_by_task[task][task, gpu_row] = label
        self.prefixes = self._prefixes()

    def _metrics_row(self, trace: Trace, gpu_row: GpuRow) -> tuple[Task, str]:
        """Return the task with a GPU's metrics (a user of the GPU, if possible), and the row's label."""
        report, gpu = gpu_row
        users = trace.users_of(report, gpu)
        tasks = [process.task for process in self.processes]
        label = f"GPU {'?' if gpu < 0 else gpu} metrics"
        report_tasks = [task for task in tasks if task.report == report]
        if not report_tasks:
            name = next(item.name for item in trace.session.reports if item.index == report)
            return tasks[0], f"{label} of {name}"
        return next((task for task in report_tasks if task.process in users), report_tasks[0]), label

    def _prefixes(self) -> dict[_Row, str]:
        """Return ``cpu:appl:task:thread`` of each row."""
        prefixes, cpu = {}, count(1)
        for host in self.hosts:
            for task, process in enumerate(self.processes, 1):
                if process.host == host:
                    for thread, row in enumerate(self.labels_by_task[process.task], 1):
                        prefixes[row] = f"{next(cpu)}:1:{task}:{thread}"
        return prefixes

    def header(self, trace: Trace) -> str:
        """Return the first line of the ``.prv``."""
        starts = [report.metadata.session_start_utc for report in trace.session.reports]
        start_utc = min((start for start in starts if start), default=0)
        date = datetime.fromtimestamp(start_utc // _SECOND, UTC).strftime("%d/%m/%Y at %H:%M")
        sizes = [sum(self._size(item.task) for item in self.processes if item.host == host) for host in self.hosts]
        cpus = ",".join(map(str, sizes))
        tasks = ",".join(f"{self._size(item.task)}:{self.hosts.index(item.host) + 1}" for item in self.processes)
        duration = max(trace.span.end - trace.span.start, 1)
        return f"#Paraver ({date}):{duration}_ns:{len(self.hosts)}({cpus}):1:{len(self.processes)}({tasks})\n"

    def _size(self, task: Task) -> int:
        return len(self.labels_by_task[task])

    def row_file(self) -> str:
        """Return the ``.row``: each level's size and names."""
        names = {
            row: f"{process.short} {label}"
            for process in self.processes
            for row, label in self.labels_by_task[process.task].items()
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


def write_records(trace: Trace, rows: ParaverRows, types: EventTypes, stream: BinaryIO) -> int:
    """Write the ``.prv``; return the number of the export's events in it, including samples of GPU metrics."""
    stream.write(rows.header(trace).encode())
    body, written = _Body(trace, rows, types), 0
    for batch in trace.by_time():
        stream.write("".join(line for row in batch for line in body.event_records(row)).encode())
        written += len(batch)
    for line in body.due_records(None):
        stream.write(line.encode())
    return written + body.sample_count


_Pairs = tuple[tuple[int, int], ...]
"""The types of a record with their values; the first type is the event's."""

_FIELD_INDICES = {field: index for index, field in enumerate(TIMED_FIELDS)}


class _Body:
    """Converts events to records in order of time: an end waits until no earlier start can follow."""

    def __init__(self, trace: Trace, rows: ParaverRows, types: EventTypes) -> None:
        self._origin = trace.span.start
        self._prefixes, self._types = rows.prefixes, types
        self._crossing = trace.layout.crossing
        self._lanes = StreamLanes()
        self._ends: list[tuple[int, int, str, _Pairs]] = []
        self._numbers = count()
        self._open: dict[tuple[str, int], list[_Pairs]] = {}
        self._busy_until: dict[str, int] = {}
        self.sample_count = 0
        self._sample_records = self._read_samples(trace, rows)
        self._next_sample = next(self._sample_records, None)
        self._details = {  # ``event_kind`` counts from 0, which ends an event in Paraver
            number: [(_FIELD_INDICES[field], detail, int(field == "event_kind")) for field, detail in details.items()]
            for number, details in DETAILS.items()
        }

    def _read_samples(self, trace: Trace, rows: ParaverRows) -> Iterator[tuple[int, str]]:
        """Yield times and records of GPU metrics: one record for all samples of a GPU at the same time."""
        for (time, report, gpu), samples in groupby(
            chain.from_iterable(trace.samples(by_time=True)), itemgetter(0, 1, 2)
        ):
            prefix = self._prefixes[rows.row_by_gpu[report, -1 if gpu is None else gpu]]
            # Counters glitch below 0, but Paraver's values may not be negative.
            pairs = [(self._types.metrics[metric or ""], max(round(value), 0)) for *_, metric, value in samples]
            self.sample_count += len(pairs)
            yield time - self._origin, _record(prefix, time - self._origin, pairs)

    def due_records(self, until: int | None) -> Iterator[str]:
        """Yield records of samples and ends up to a time, or all."""
        ends = self._ends
        while ends or self._next_sample is not None:
            if self._next_sample is not None and not (ends and ends[0][0] < self._next_sample[0]):
                time, line = self._next_sample
                if until is not None and time > until:
                    return
                self._next_sample = next(self._sample_records, None)
                yield line
                continue
            if until is not None and ends[0][0] > until:
                return
            time, _, prefix, pairs = heapq.heappop(ends)
            open_events = self._open[prefix, pairs[0][0]]
            # The last event with these values ends; if a later event is open, the row keeps its value.
            index = len(open_events) - 1 - open_events[::-1].index(pairs)
            del open_events[index]
            if index == len(open_events):
                values = dict(open_events[-1]) if open_events else {}
                yield _record(prefix, time, [(number, values.get(number, 0)) for number, _ in pairs])

    def event_records(self, row: tuple[Any, ...]) -> Iterator[str]:
        """Yield the records due at the start of an event (`trace.TIMED_FIELDS`, and the launched work), and its own."""
        report, process, thread, device, stream, start, end, kind, group, domain, is_loose, name = row[:12]
        task = Task(report, -1 if process is None else process)
        start, end = start - self._origin, end - self._origin
        yield from self.due_records(start)
        row_key: _Row = (task, thread)
        if kind in _GPU:
            row_key = (task, (device, stream, self._lanes.lane((task, device, stream), start, end)))
        prefix = self._prefixes[row_key]
        state = STATE_OF.get(kind)
        if state is not None and end > start and start >= self._busy_until.get(prefix, 0):
            self._busy_until[prefix] = end  # states of a row must not overlap: the outer call counts
            yield f"1:{prefix}:{start}:{end}:{state}\n"
        number, value = self._types.of_event(kind, group or "", domain or "", is_loose or 0, name)
        pairs = ((number, value), *self._details_of(number, row))
        yield _record(prefix, start, pairs)
        if kind != _MARK:
            self._open.setdefault((prefix, number), []).append(pairs)
            heapq.heappush(self._ends, (end, next(self._numbers), prefix, pairs))
        to_device, to_stream, to_start, to_size, to_kind = row[len(TIMED_FIELDS) :]
        if to_start is not None:
            correlation = row[_FIELD_INDICES["correlation_id"]]
            lane = self._crossing.get((report, task.process, to_device, to_stream, correlation, to_start), 0)
            other_prefix = self._prefixes[task, (to_device, to_stream, lane)]
            work_start, tag = to_start - self._origin, COPIES if to_kind == _MEMORY else LAUNCHES
            yield f"3:{prefix}:{start}:{start}:{other_prefix}:{work_start}:{work_start}:{to_size}:{tag}\n"

    def _details_of(self, number: int, row: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
        """Yield the further types and values in an event's record, except missing fields."""
        for index, detail, offset in self._details.get(number, ()):
            value = row[index]
            if isinstance(value, str):
                value = self._types.values[detail][value]
            if value is not None and value >= 0:
                yield detail, value + offset


def _record(prefix: str, time: int, pairs: Iterable[tuple[int, int]]) -> str:
    return f"2:{prefix}:{time}" + "".join(f":{number}:{value}" for number, value in pairs) + "\n"


_LEVELS = ("cpu", "appl", "task", "thread", "node", "system", "workload")
_FILTERS = (
    "from_obj, All", "to_obj, All", "tag_msg, All", "size_msg, All", "bw_msg, All", "evt_type, =", "evt_value, All",
)  # fmt: skip
_COMPOSED = (*(f"compose_{level}" for level in _LEVELS), "topcompose1", "topcompose2")
_MAX_FLOAT = f"{sys.float_info.max:.12f}"

_Window = tuple[str, str, Sequence[str]]
"""A window's name, its function of a thread's records, and the lines that select the records."""


def view_texts(types: EventTypes) -> dict[str, str]:
    """Return the text of each nonempty view (`files.VIEWS`)."""
    kinds = {kind for kind, *_ in types.types}
    states = sorted({state for kind, state in STATE_OF.items() if kind in kinds})
    nvtx = {number for (kind, *_), number in types.types.items() if kind == EventKind.NVTX.value and number is not None}
    values = {
        "nvtx": sorted(nvtx.difference(NCCL_TYPES)),
        "nccl": [number for number in NCCL_TYPES if number in types.labels],
        "metrics": sorted(types.metrics.values()),
    }
    texts = {
        name: _view([_value(types.labels[number], number) for number in numbers])
        for name, numbers in values.items()
        if numbers
    }
    if states:
        timeline: _Window = ("Timeline by state", "State As Is", ())
        texts["states"] = _view([timeline])
        texts["useful"] = _view([timeline], [("Useful time: time in each state", "Time", max(STATES) + 1)])
        windows: list[_Window] = []
        for state in states:
            semantic = f"window_semantic_module thread State Record Dur. {{ 1, {{ 1 {state}.000000000000 }} }}"
            windows.append((f"Duration: {STATES[state][0]}", "State Record Dur.", (semantic,)))
        texts["durations"] = _view(windows, [(f"Durations: {STATES[state][0]}", "# Bursts", None) for state in states])
    return texts


def _value(label: str, number: int) -> _Window:
    name = safe_text(label).replace('"', "'") or "(no name)"
    lines = (f"window_filter_module evt_type 1 {number}", f'window_filter_module evt_type_label 1 "{name}"')
    return name, "Last Evt Val", lines


def _view(windows: Sequence[_Window], histograms: Sequence[tuple[str, str, int | None]] = ()) -> str:
    """Return the text of a view. Histograms hide their windows; without histograms, the first window is open.

    A histogram has its window's index, a name, a statistic, and its number of columns of width 1 (``None``: any).
    """
    parts = [f"#ParaverCFG\nConfigFile.Version: 3.4\nConfigFile.NumWindows: {len(windows)}\n\n"]
    for number, window in enumerate(windows, 1):
        parts.append(_window_text(number, *window, is_open=number == 1 and not histograms))
    for number, (name, statistic, columns) in enumerate(histograms, 1):
        shown = {"window": number, "name": name, "statistic": statistic, "is_scaled": columns is None}
        parts.append("\n" + _template("histogram").substitute(shown, columns=columns or 1, largest=_MAX_FLOAT))
    return "".join(parts)


def _window_text(number: int, name: str, function: str, lines: Sequence[str], is_open: bool) -> str:
    functions = dict.fromkeys(_LEVELS, "Adding") | {"cpu": "Active Thd", "thread": function}
    text = _template("window").substitute(
        name=name,
        number=number,
        colours="null_gradient" if function == "State Record Dur." else "code",
        is_open=str(is_open).lower(),
        functions=_braced([*(f"{level}, {words}" for level, words in functions.items()), *_FILTERS]),
        composed=_braced([f"{level}, As Is" for level in _COMPOSED]),
    )
    return "\n" + text + "".join(f"{line}\n" for line in lines)


@cache
def _template(name: str) -> Template:
    return Template(Path(__file__).with_name(f"paraver_{name}.cfg").read_text(encoding="utf-8"))


def _braced(items: Sequence[str]) -> str:
    return f"{{ {len(items)}, {{ {', '.join(f'{{{item}}}' for item in items)} }} }}"
