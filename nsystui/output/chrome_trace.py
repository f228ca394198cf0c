"""Chrome's Trace Event format, for Perfetto (ui.perfetto.dev) and chrome://tracing.

A JSON object with ``traceEvents``: ``X`` slices; ``b``/``e`` pairs for ranges that need not nest; ``i`` marks;
``s``/``f`` arrows from an API call to its GPU work; ``C`` GPU metrics; ``M`` names and order. Each lane of a stream has
a track. A thread has a track for each kind of call and each NVTX domain. ``ts`` and ``dur`` are µs with three decimals.
Viewers bind an arrow to the previous slice in the file, so calls precede work. They drop slices that partly overlap
another slice of their track, so such slices are never written.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, BinaryIO

from nsystui.base.selection import Task
from nsystui.base.version import __version__
from nsystui.output.formats import to_json
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.trace.layout import NCCL_DOMAIN, StreamLanes
from nsystui.questions.trace.trace import Trace


def write_chrome_trace(trace: Trace, stream: BinaryIO) -> int:
    """Write the trace; return the number of the export's events, marks and samples in it. Memory holds one batch."""
    writer = _Writer(trace)
    facts = {"producer": f"nsystui {__version__}", "clock": trace.clock or "clock: the report's own"}
    if writer.shift:
        facts["shift"] = f"{writer.shift} ns are added to job time: times in a trace must not be negative"
    stream.write(f'{{"displayTimeUnit":"ns","otherData":{to_json(facts)},"traceEvents":[\n'.encode())
    stream.write(",\n".join(writer.metadata()).encode())
    rows = 0
    for count, lines in writer.batches():
        if lines:
            stream.write((",\n" + ",\n".join(lines)).encode())
        rows += count
    stream.write(b"\n]}\n")
    return rows


def microseconds(time: int) -> str:
    """Return nanoseconds as µs with three decimals; ``time`` is not negative."""
    return f"{time // 1000}.{time % 1000:03d}"


_Lines = tuple[int, list[str]]
"""The number of rows of the export, and their lines of JSON."""


class _Writer:
    """Converts events to lines of JSON. Processes and tracks are numbered from 1 in the order of the layout."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.shift = max(0, -trace.span.start)
        layout = trace.layout
        self._pids = {process.task: number for number, process in enumerate(layout.processes, 1)}
        self._metric_pids = {report: len(self._pids) + number for number, report in enumerate(layout.sampled, 1)}
        keys: list[tuple[Task, object]] = [(row.task, (row.thread, row.kind, row.domain)) for row in layout.threads]
        keys += [(row.task, (row.device, row.stream, lane)) for row in layout.streams for lane in range(row.lanes)]
        self._tids = {key: number for number, key in enumerate(keys, 1)}
        self._host_track, self._gpu_track = cache(self._find_host_track), cache(self._find_gpu_track)
        self._text = lru_cache(100_000)(to_json)  # ranges with numbers in their names have millions of names
        self._last_id = 0

    def metadata(self) -> Iterator[str]:
        """Yield names and order of the processes and tracks; never empty."""
        layout, reports = self._trace.layout, {report.index: report for report in self._trace.session.reports}
        processes = [(self._pids[process.task], process.name) for process in layout.processes]
        processes += [(pid, f"GPU metrics of {reports[report].name}") for report, pid in self._metric_pids.items()]
        for pid, name in processes or [(1, "empty")]:
            yield self._meta("process_name", pid, 0, f'"name":{self._text(name)}')
            yield self._meta("process_sort_index", pid, 0, f'"sort_index":{pid}')
        labels = [thread.label for thread in layout.threads]
        labels += [stream.label(lane) for stream in layout.streams for lane in range(stream.lanes)]
        for ((task, _), tid), label in zip(self._tids.items(), labels, strict=True):
            yield self._meta("thread_name", self._pids[task], tid, f'"name":{self._text(label)}')
            yield self._meta("thread_sort_index", self._pids[task], tid, f'"sort_index":{tid}')

    @staticmethod
    def _meta(name: str, pid: int, tid: int, value: str) -> str:
        return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{{{value}}}}}'

    def batches(self) -> Iterator[_Lines]:
        """Yield everything except the metadata; calls precede the work that they launched."""
        trace = self._trace
        open_ends_by_track: dict[int, list[int]] = {}
        for rows in trace.host_slices():
            yield self._host_lines(rows, open_ends_by_track)
        for rows in trace.marks():
            yield len(rows), [self._mark(row) for row in rows]
        lanes = StreamLanes()
        for rows in trace.gpu_slices():
            yield self._gpu_lines(rows, lanes)
        for rows in trace.samples():
            yield len(rows), [self._sample(row) for row in rows]

    def _host_lines(self, rows: Sequence[tuple[Any, ...]], open_ends_by_track: dict[int, list[int]]) -> _Lines:
        lines: list[str] = []
        for row in rows:
            report, process, thread, kind, domain, start, end, name, is_loose, correlation, size, communicator = row
            tid, track = self._host_track(report, process, thread, kind, domain)
            args = f'"correlation":{correlation}' if correlation is not None else ""
            if size is not None:
                args += ("," if args else "") + f'"bytes":{size}'
            if communicator:
                args += ("," if args else "") + f'"communicator":{self._text(communicator)}'
            event = f'"name":{self._text(name)},{track}'
            open_ends = open_ends_by_track.setdefault(tid, [])
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if is_loose or (open_ends and end > open_ends[-1]):
                self._last_id += 1  # viewers give each id its own track
                event = f'{event},"id":"{self._last_id:#x}"'
                lines += (
                    f'{{"ph":"b",{event},"ts":{microseconds(start + self.shift)},"args":{{{args}}}}}',
                    f'{{"ph":"e",{event},"ts":{microseconds(end + self.shift)}}}',
                )
            else:
                open_ends.append(end)
                lines.append(self._slice(event, start, end, args))
        return len(rows), lines

    def _find_host_track(
        self, report: int, process: int | None, thread: int | None, kind: str, domain: str | None
    ) -> tuple[int, str]:
        """Return the track of a thread's calls or ranges, and their shared fields."""
        task = Task(report, -1 if process is None else process)
        tid = self._tids[task, (thread, EventKind(kind), domain or "")]
        category = "nccl" if domain == NCCL_DOMAIN else kind
        return tid, f'"cat":"{category}","pid":{self._pids[task]},"tid":{tid}'

    def _gpu_lines(self, rows: Sequence[tuple[Any, ...]], lanes: StreamLanes) -> _Lines:
        lines: list[str] = []
        for row in rows:
            report, process, device, stream, kind, start, end, name, correlation, *facts = row
            size, node, grid, block, registers, call_start, call_thread = facts
            lane = lanes.lane((report, process, device, stream), start, end)
            pid, tid, track = self._gpu_track(report, process, device, stream, lane)
            args = f'"correlation":{-1 if correlation is None else correlation}'
            if size is not None:
                args += f',"bytes":{size}'
            if grid is not None:
                args += f',"grid":"{grid}","block":"{block}"'
            if registers is not None:
                args += f',"registers":{registers}'
            if node is not None:
                args += f',"graph_node":{node}'
            lines.append(self._slice(f'"name":{self._text(name)},"cat":"{kind}",{track}', start, end, args))
            if call_start is not None:
                call_tid, _ = self._host_track(report, process, call_thread, EventKind.API.value, None)
                self._last_id += 1
                arrow = f'"name":"launch","cat":"launch","id":{self._last_id},"pid":{pid}'
                lines += (
                    f'{{"ph":"s",{arrow},"tid":{call_tid},"ts":{microseconds(call_start + self.shift)}}}',
                    f'{{"ph":"f","bp":"e",{arrow},"tid":{tid},"ts":{microseconds(start + self.shift)}}}',
                )
        return len(rows), lines

    def _find_gpu_track(
        self, report: int, process: int | None, device: int, stream: int, lane: int
    ) -> tuple[int, int, str]:
        """Return a stream lane's process and track, and its lines' shared fields."""
        task = Task(report, -1 if process is None else process)
        pid, tid = self._pids[task], self._tids[task, (device, stream, lane)]
        return pid, tid, f'"pid":{pid},"tid":{tid}'

    def _slice(self, event: str, start: int, end: int, args: str) -> str:
        return (
            f'{{"ph":"X",{event},"ts":{microseconds(start + self.shift)},'
            f'"dur":{microseconds(end - start)},"args":{{{args}}}}}'
        )

    def _mark(self, row: tuple[Any, ...]) -> str:
        report, process, thread, _, domain, start, _, name = row
        task = Task(report, -1 if process is None else process)
        tid = self._tids[task, (thread, EventKind.NVTX, domain or "")]
        return (
            f'{{"ph":"i","s":"t","name":{self._text(name)},"cat":"mark","pid":{self._pids[task]},"tid":{tid},'
            f'"ts":{microseconds(start + self.shift)}}}'
        )

    def _sample(self, row: tuple[Any, ...]) -> str:
        time, report, gpu, metric, value = row
        name = self._text(metric if gpu is None else f"GPU {gpu} {metric}")
        return (
            f'{{"ph":"C","name":{name},"pid":{self._metric_pids[report]},"ts":{microseconds(time + self.shift)},'
            f'"args":{{"value":{json.dumps(value)}}}}}'
        )
