"""The events of a trace as the rows that nsys would have written (docs/exports.md#pytorch)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, cast

from nsystui.base.errors import ExportError
from nsystui.exports.forms.form import Advance
from nsystui.exports.forms.kineto.collectives import RECORD, collective_of
from nsystui.exports.forms.kineto.export import TRACE, TraceExport
from nsystui.exports.forms.kineto.reading import Event, KinetoTrace, nanoseconds, whole
from nsystui.exports.schema import EARLIEST
from nsystui.exports.writing.target import Process, Thread
from nsystui.exports.writing.writer import (
    CONTEXT_SYNC,
    DRIVER_CALL,
    EVENT_SYNC,
    NO_EVENT,
    NO_STREAM,
    RUNTIME_CALL,
    STREAM_SYNC,
    STREAM_WAIT_EVENT,
    WARNING,
    Dim3,
    NvtxPayload,
)

_FIRST_EVENTS: Final = 20_000
"""So many events are looked at for the process and the first time, before any is written."""
_ROWS_AT_ONCE: Final = 50_000
_MOST_IDS: Final = 1 << 24
"""A number of a process or thread has 24 bits in an export."""

OPERATORS, PYTHON, _NCCL = "PyTorch operators", "Python", "NCCL"
_DOMAINS: Final = {_NCCL: 1, OPERATORS: 2, PYTHON: 3}

# The categories of PyTorch 1.8 to 1.12 by what they are called today.
_OLD_CATEGORIES: Final = {
    "operator": "cpu_op",
    "runtime": "cuda_runtime",
    "driver": "cuda_driver",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "python": "python_function",
}
_CPU: Final = frozenset({"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver"})
# A projection has what the annotation of the GPU says; the others are no work of the program.
_LEFT_ALONE: Final = frozenset({"gpu_user_annotation", "trace", "overhead", "ac2g", "fwdbwd", ""})

_SYNC_TYPES: Final = {
    "event": EVENT_SYNC,
    "stream wait": STREAM_WAIT_EVENT,
    "stream": STREAM_SYNC,
    "context": CONTEXT_SYNC,
}
_MEMORY_KINDS: Final = {
    name: number
    for number, name in enumerate(
        ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
    )
}
_COPY = re.compile(r"Memcpy (\S+)(?: \((.+) -> (.+)\))?")
_MEMSET = re.compile(r"Memset \((.+)\)")
_THREAD_NAME = re.compile(r"thread -?\d+ \((.*)\)")
_ON_CUDA: Final = 1
"""The ``Device Type`` of memory on a GPU, as PyTorch numbers it."""
_NAMED_AFTER_HOST = re.compile(r"(?P<host>[A-Za-z0-9.-]+)_(?P<pid>\d+)\.")


def translate(path: Path, target: Path, advance: Advance) -> None:
    """Writes the export of a trace; it is read again should events in it lie long before its first ones.

    Raises ExportError where the file is damaged, or no trace of the PyTorch profiler, and OSError.
    """
    earliest = _translate(path, target, advance, None)
    if earliest is not None:
        _translate(path, target, advance, earliest)


def _translate(path: Path, target: Path, advance: Advance, origin: int | None) -> int | None:
    """Writes the export; the time of the earliest event, ns, where that is too early for this ``origin``."""
    trace = KinetoTrace(path, advance)
    events = trace.events()
    first = list(islice(events, _FIRST_EVENTS))
    if origin is None:
        origin = min((time for event in first if (time := _start(event)) is not None), default=0)
    pid = _process_of(first)
    named = _NAMED_AFTER_HOST.match(path.name)
    host = named["host"] if named and int(named["pid"]) == pid else ""
    with TraceExport(target, origin, host) as export:
        translator = _Translator(export, origin, pid or 1)
        for number, event in enumerate(chain(first, events), start=1):
            translator.take(event)
            if number % _ROWS_AT_ONCE == 0:
                export.flush()
        if not translator.rows:
            cause = "a trace without events of the PyTorch profiler"
            if not first:
                cause = "a trace of the PyTorch profiler, but its traceEvents are missing or hold no event"
            raise ExportError(str(path), cause, "nsystui opens what torch.profiler's export_chrome_trace writes")
        translator.finish()
        export.facts = trace.facts()
    return translator.earliest if translator.earliest < origin + EARLIEST else None


def _start(event: Event) -> int | None:
    return nanoseconds(event.get("ts")) if event.get("ph") == "X" else None


def _process_of(events: Sequence[Event]) -> int | None:
    """The number of the traced process: that of its work on the CPU. GPU work is under the numbers of GPUs."""
    pids = (whole(event.get("pid")) for event in events if event.get("ph") == "X" and _category(event) in _CPU)
    labelled = (
        whole(event.get("pid"))
        for event in events
        if event.get("name") == "process_labels" and _arguments(event).get("labels") == "CPU"
    )
    return next((pid for pid in chain(pids, labelled) if pid is not None and 0 <= pid < _MOST_IDS), None)


def _category(event: Event) -> str:
    category = str(event.get("cat", "")).lower()
    return _OLD_CATEGORIES.get(category, category)


def _arguments(event: Event) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


@dataclass(frozen=True, slots=True)
class _Span:
    """An event with what all events have: its name, times from the origin in ns, and arguments."""

    event: Event
    name: str
    start: int
    end: int
    arguments: Mapping[str, Any]

    def number(self, name: str) -> int | None:
        return whole(self.arguments.get(name))

    @property
    def device(self) -> int | None:
        """The GPU: copies between two name the one that copies, and old traces none."""
        names = (self.arguments.get("device"), self.arguments.get("inDevice"), self.event.get("pid"))
        return next((number for name in names if (number := whole(name)) is not None), None)

    @property
    def stream(self) -> int | None:
        number = self.number("stream")
        return whole(self.event.get("tid")) if number is None else number

    @property
    def context(self) -> int | None:
        number = self.number("context")
        return self.number("inContext") if number is None else number

    def dimensions(self, name: str) -> Dim3 | None:
        values = self.arguments.get(name)
        numbers = tuple(whole(value) for value in values) if isinstance(values, list) else ()
        return cast(Dim3, numbers) if len(numbers) == 3 and None not in numbers else None


class _NotSaid(Exception):
    """An event lacks what its row cannot be without."""


def _said(value: int | None, what: str) -> int:
    if value is None:
        raise _NotSaid(f"without a {what}")
    return value


@dataclass
class _Translator:
    """Makes rows of the events of a trace."""

    export: TraceExport
    origin: int
    pid: int
    rows: int = 0
    earliest: int = 1 << 62
    _processes: dict[int, Process] = field(default_factory=dict)
    _threads: dict[tuple[int, int], Thread] = field(default_factory=dict)
    _names: dict[tuple[int, int], str] = field(default_factory=dict)
    _process_names: dict[int, str] = field(default_factory=dict)
    _left_out: Counter[str] = field(default_factory=Counter)
    _domains: dict[tuple[int, str], Thread] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Writes the rows of an event. One that cannot be understood is counted, and told of in the end."""
        phase = event.get("ph")
        if phase == "M":
            self._name(event)
        elif phase in ("X", "i", "I"):
            category = _category(event)
            write = _WRITERS.get(category)
            if write is not None:
                self._write(event, category, write)
            elif category not in _LEFT_ALONE:
                self._left_out[f"of the category {_plain(category)}"] += 1

    def _write(self, event: Event, category: str, write: _Write) -> None:
        start = nanoseconds(event.get("ts"))
        duration = nanoseconds(event.get("dur")) if event.get("ph") == "X" else 0
        if start is None or duration is None or duration < 0:
            self._left_out["without times"] += 1
            return
        self.earliest = min(self.earliest, start)
        start -= self.origin
        try:
            write(self, _Span(event, _plain(str(event.get("name", ""))), start, start + duration, _arguments(event)))
        except _NotSaid as error:
            self._left_out[f"of the category {category} {error}"] += 1
        else:
            self.rows += 1

    # -- work of the GPU --------------------------------------------------------------------------------------------

    def kernel(self, span: _Span) -> None:
        graph_node, graph = span.number("graph node id"), span.number("graph id")
        self.export.kernel(
            self._main, _said(span.device, "device"), _said(span.stream, "stream"), span.start, span.end,
            name=span.name, correlation_id=span.number("correlation"), grid=span.dimensions("grid"),
            block=span.dimensions("block"), registers=span.number("registers per thread"),
            dynamic_smem=span.number("shared memory"), local_memory=None, context=span.context,
            graph_node_id=graph_node or None, graph_id=graph or None,
        )  # fmt: skip

    def copy(self, span: _Span) -> None:
        found = _COPY.match(span.name)
        kind, source, destination = found.groups() if found else ("", None, None)
        self.export.memcpy(
            self._main, _said(span.device, "device"), _said(span.stream, "stream"), span.start, span.end,
            size=span.number("bytes"), kind=kind, correlation_id=span.number("correlation"),
            source=_MEMORY_KINDS.get(source or ""), destination=_MEMORY_KINDS.get(destination or ""),
            context=span.context,
            graph_node_id=span.number("graph node id") or None,
        )  # fmt: skip

    def memset(self, span: _Span) -> None:
        found = _MEMSET.match(span.name)
        self.export.memset(
            self._main, _said(span.device, "device"), _said(span.stream, "stream"), span.start, span.end,
            size=span.number("bytes"), correlation_id=span.number("correlation"), value=None,
            memory=_MEMORY_KINDS.get(found[1]) if found else None, context=span.context,
        )  # fmt: skip

    def synchronisation(self, span: _Span) -> None:
        words = span.name.lower()
        stream, event = span.stream, span.number("wait_on_cuda_event_id")
        self.export.sync(
            self._main, _said(span.device, "device"), NO_STREAM if stream is None or stream < 0 else stream,
            span.start, span.end, correlation_id=span.number("correlation"), context=span.context,
            sync_type=next((number for start, number in _BY_LENGTH if words.startswith(start)), 0),
            event_id=NO_EVENT if event is None else event,
        )  # fmt: skip
        record, recorded = (span.number(f"wait_on_{name}") for name in ("cuda_event_record_corr_id", "stream"))
        # A wait says where its event was recorded; there are no rows of the records themselves.
        if event is not None and record is not None and record >= 0 and recorded is not None and recorded >= 0:
            self.export.cuda_event(
                self._main, _said(span.device, "device"), recorded, correlation_id=record, event_id=event,
                context=span.context,
            )  # fmt: skip

    # -- work of the CPU --------------------------------------------------------------------------------------------

    def runtime_call(self, span: _Span) -> None:
        self._call(span, RUNTIME_CALL)

    def driver_call(self, span: _Span) -> None:
        self._call(span, DRIVER_CALL)

    def _call(self, span: _Span, event_class: int) -> None:
        thread, correlation = self._thread(span.event), span.number("correlation")
        self.export.api(thread, span.start, span.end, span.name, correlation, event_class=event_class)

    def annotation(self, span: _Span) -> None:
        self.export.nvtx_range(self._thread(span.event), span.start, span.end, span.name, registered=True)

    def operator(self, span: _Span) -> None:
        self._range(span, OPERATORS)
        collective = collective_of(span.arguments) if span.name == RECORD else None
        if collective is not None:
            self._range(span, _NCCL, collective.function, NvtxPayload(collective.payload, b""))

    def python_function(self, span: _Span) -> None:
        self._range(span, PYTHON)

    def _range(self, span: _Span, domain: str, name: str = "", payload: NvtxPayload | None = None) -> None:
        thread = self._thread(span.event)
        self._domains.setdefault((thread.process.pid, domain), thread)
        self.export.nvtx_range(
            thread, span.start, span.end, name or span.name, domain_id=_DOMAINS[domain], registered=True,
            payload=payload,
        )  # fmt: skip

    def instant(self, span: _Span) -> None:
        """An allocation of PyTorch's allocator on a GPU, or its end; any other instant is a mark."""
        if span.name != "[memory]":
            self.export.nvtx_mark(self._thread(span.event), span.start, span.name)
        elif span.number("Device Type") == _ON_CUDA:
            size = _said(span.number("Bytes"), "size")
            self.export.gpu_memory(
                self._main, _said(span.number("Device Id"), "device"), span.start, abs(size),
                address=_said(span.number("Addr"), "address"), is_free=size < 0, context=None,
            )  # fmt: skip

    # -- names ------------------------------------------------------------------------------------------------------

    def _name(self, event: Event) -> None:
        pid, tid = whole(event.get("pid")), whole(event.get("tid"))
        name = _arguments(event).get("name")
        if pid is None or not isinstance(name, str):
            return
        if event.get("name") == "process_name":
            self._process_names[pid] = _plain(name)
        elif event.get("name") == "thread_name" and tid is not None:
            found = _THREAD_NAME.fullmatch(name)
            self._names[pid, tid] = _plain(found[1] if found else name)

    @property
    def _main(self) -> Process:
        return self._process(self.pid)

    def _process(self, pid: int) -> Process:
        process = self._processes.get(pid)
        if process is None:
            process = self._processes[pid] = Process(pid, "")
        return process

    def _thread(self, event: Event) -> Thread:
        """The thread of an event. A number that is too large for an export stands for a small one, from the top."""
        pid = _said(whole(event.get("pid")), "process")
        tid = _said(whole(event.get("tid")), "thread")
        thread = self._threads.get((pid, tid))
        if thread is None:
            if not 0 <= pid < _MOST_IDS:
                raise _NotSaid("without a process")
            process = self._process(pid)
            number = tid if 0 <= tid < _MOST_IDS else _MOST_IDS - 1 - len(self._threads)
            thread = self._threads[pid, tid] = Thread(process, number, "", process.global_id | number)
        return thread

    def finish(self) -> None:
        """Writes the names of what occurred, and what was left out."""
        export = self.export
        for pid in self._processes:
            export.process(pid, self._process_names.get(pid, ""))
        for key, thread in self._threads.items():
            if name := self._names.get(key):
                export.thread(thread.process, thread.tid, name)
        for (_, domain), thread in self._domains.items():
            export.nvtx_domain(thread, 0, _DOMAINS[domain], domain)
        for why, count in self._left_out.items():
            export.diagnostic(0, f"left out of the {TRACE}: events {why} ({count:,})", severity=WARNING)


_BY_LENGTH = sorted(_SYNC_TYPES.items(), key=lambda item: -len(item[0]))
_Write = Callable[[_Translator, _Span], None]
_WRITERS: Mapping[str, _Write] = {
    "kernel": _Translator.kernel,
    "gpu_memcpy": _Translator.copy,
    "gpu_memset": _Translator.memset,
    "cuda_sync": _Translator.synchronisation,
    "cuda_runtime": _Translator.runtime_call,
    "cuda_driver": _Translator.driver_call,
    "user_annotation": _Translator.annotation,
    "cpu_op": _Translator.operator,
    "python_function": _Translator.python_function,
    "cpu_instant_event": _Translator.instant,
}


@lru_cache(maxsize=65536)
def _plain(text: str) -> str:
    """Text that SQLite holds: without halves of characters, which JSON can have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
