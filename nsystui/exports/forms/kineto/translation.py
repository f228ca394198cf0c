"""The events of a trace as the rows that nsys would have written (docs/exports.md#pytorch).

PyTorch's own records of collectives (``record_param_comms``) become NCCL's calls.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from nsystui.base.errors import ExportError
from nsystui.exports.forms.form import Advance
from nsystui.exports.forms.kineto.export import MACHINE, TRACE, TraceExport
from nsystui.exports.forms.kineto.reading import Event, KinetoTrace, nanoseconds, to_integer
from nsystui.exports.metadata import pid_of, process_id
from nsystui.exports.nccl_calls import COMMUNICATOR, DATATYPE, MESSAGE_SIZE, PEER, RANKS, ROOT
from nsystui.exports.schema import EARLIEST
from nsystui.exports.sources.gpu import MEMORY_KINDS

_FIRST_EVENTS: Final = 20_000  # for the process and the first time
_ROWS_AT_ONCE: Final = 50_000
_MOST_IDS: Final = 1 << 24
"""Numbers of processes and threads have 24 bits in an export."""

OPERATORS, PYTHON, _NCCL = "PyTorch operators", "Python", "NCCL"
_DOMAINS: Final = {_NCCL: 1, OPERATORS: 2, PYTHON: 3}

# The categories of PyTorch 1.8 to 1.12, with their present names.
_OLD_CATEGORIES: Final = {
    "operator": "cpu_op", "runtime": "cuda_runtime", "driver": "cuda_driver", "memcpy": "gpu_memcpy",
    "memset": "gpu_memset", "python": "python_function",
}  # fmt: skip
_CPU: Final = frozenset({"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver"})
# A GPU annotation repeats the projection of a range; the other categories are not the program's work.
_IGNORED: Final = frozenset({"gpu_user_annotation", "trace", "overhead", "ac2g", "fwdbwd", ""})

_SYNC_TYPES: Final = {"event": 1, "stream wait": 2, "stream": 3, "context": 4}
_NO_STREAM = _NO_EVENT = 0xFFFFFFFF
"""The stream of a synchronization with several streams, and a synchronization's unknown event."""
_RUNTIME_CALL, _DRIVER_CALL = 0, 1
_MARK, _PUSH_POP, _DOMAIN_CREATE = 34, 59, 75
_WARNING: Final = 2
_PRIORITY: Final = 20
_COPIES = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "UvmHtoD", "UvmDtoH")
_COPY_KINDS: Final = {name: number for number, name in enumerate(_COPIES, start=1)}
_MEMORY_KINDS: Final = {name: number for number, name in MEMORY_KINDS.items()}
_COPY = re.compile(r"Memcpy (\S+)(?: \((.+) -> (.+)\))?")
_MEMSET = re.compile(r"Memset \((.+)\)")
_THREAD_NAME = re.compile(r"thread -?\d+ \((.*)\)")


def translate(path: Path, target: Path, advance: Advance) -> None:
    """Write the export of a trace, reading it again if it has events long before its first events.

    Raises ExportError if the file is damaged or not a trace of the PyTorch profiler, and OSError.
    """
    if (earliest := _translate(path, target, advance, None)) is not None:
        _translate(path, target, advance, earliest)


def _translate(path: Path, target: Path, advance: Advance, origin: int | None) -> int | None:
    """Write the export; return the earliest event's time, ns, if it is too early for this ``origin``."""
    trace = KinetoTrace(path, advance)
    events = trace.events()
    first = list(islice(events, _FIRST_EVENTS))
    if origin is None:
        starts = [nanoseconds(event.get("ts")) for event in first if event.get("ph") == "X"]
        origin = min((start for start in starts if start is not None), default=0)
    pid = _process_of(first)
    named = re.match(r"(?P<host>[A-Za-z0-9.-]+)_(?P<pid>\d+)\.", path.name)
    with TraceExport(target, origin, named["host"] if named and int(named["pid"]) == pid else "") as export:
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


def _process_of(events: Sequence[Event]) -> int | None:
    """Return the traced process's number, from work on the CPU: GPU work has the numbers of GPUs."""
    pids = (to_integer(event.get("pid")) for event in events if event.get("ph") == "X" and _category(event) in _CPU)
    labelled = (
        to_integer(event.get("pid"))
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
    """An event's common parts: its name, times from the origin in ns, and arguments."""

    event: Event
    name: str
    start: int
    end: int
    arguments: Mapping[str, Any]

    def number(self, name: str) -> int | None:
        return to_integer(self.arguments.get(name))

    @property
    def device(self) -> int | None:
        """The GPU; for a copy between two GPUs, the copying GPU. Old traces have only the event's `pid`."""
        names = (self.arguments.get("device"), self.arguments.get("inDevice"), self.event.get("pid"))
        return next((number for name in names if (number := to_integer(name)) is not None), None)

    @property
    def stream(self) -> int | None:
        number = self.number("stream")
        return to_integer(self.event.get("tid")) if number is None else number

    @property
    def context(self) -> int | None:
        number = self.number("context")
        return self.number("inContext") if number is None else number

    def dimensions(self, name: str) -> list[int | None]:
        sizes = self.arguments.get(name)
        numbers = [to_integer(value) for value in sizes] if isinstance(sizes, list) else []
        return numbers if len(numbers) == 3 and None not in numbers else [None, None, None]


class _MissingValue(Exception):
    """An event lacks a value that its row needs."""


def _required(value: int | None, what: str) -> int:
    if value is None:
        raise _MissingValue(f"without a {what}")
    return value


@dataclass
class _Translator:
    export: TraceExport
    origin: int
    pid: int
    rows: int = 0
    earliest: int = 1 << 62
    _processes: dict[int, int] = field(default_factory=dict)
    _threads: dict[tuple[int, int], int] = field(default_factory=dict)
    _names: dict[tuple[int, int], str] = field(default_factory=dict)
    _process_names: dict[int, str] = field(default_factory=dict)
    _left_out: Counter[str] = field(default_factory=Counter)
    _domains: dict[tuple[int, str], int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Add the rows of an event, or count it for a message of the export."""
        phase = event.get("ph")
        if phase == "M":
            self._name(event)
        elif phase in ("X", "i", "I"):
            category = _category(event)
            if (write := _WRITERS.get(category)) is not None:
                self._write(event, category, write)
            elif category not in _IGNORED:
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
        except _MissingValue as error:
            self._left_out[f"of the category {category} {error}"] += 1
        else:
            self.rows += 1

    # -- work of the GPU --------------------------------------------------------------------------------------------

    def _gpu_work(self, span: _Span, stream: int | None) -> tuple[int | None, ...]:
        process, device = self._process(self.pid), _required(span.device, "device")
        stream, correlation = _required(stream, "stream"), span.number("correlation")
        return span.start, span.end, process, device, span.context, 0, stream, correlation

    def kernel(self, span: _Span) -> None:
        self.export.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            *self._gpu_work(span, span.stream),
            self.export.intern(span.name),
            self.export.intern(_short_name(span.name)),
            span.number("registers per thread"),
            *span.dimensions("grid"),
            *span.dimensions("block"),
            0,
            span.number("shared memory"),
            span.number("graph node id") or None,
        )

    def copy(self, span: _Span) -> None:
        match = _COPY.match(span.name)
        kind, source, destination = match.groups() if match else ("", None, None)
        self.export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            *self._gpu_work(span, span.stream),
            span.number("bytes"),
            _COPY_KINDS.get(kind, 0),
            _MEMORY_KINDS.get(source or ""),
            _MEMORY_KINDS.get(destination or ""),
            span.number("graph node id") or None,
        )

    def memset(self, span: _Span) -> None:
        match = _MEMSET.match(span.name)
        memory = _MEMORY_KINDS.get(match[1]) if match else None
        self.export.add("CUPTI_ACTIVITY_KIND_MEMSET", *self._gpu_work(span, span.stream), span.number("bytes"), memory)

    def synchronisation(self, span: _Span) -> None:
        name = span.name.lower()
        stream, event = span.stream, span.number("wait_on_cuda_event_id")
        kind = next((number for start, number in _SYNC_TYPES.items() if name.startswith(start)), 0)
        work = self._gpu_work(span, _NO_STREAM if stream is None or stream < 0 else stream)
        self.export.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", *work, kind, _NO_EVENT if event is None else event)
        record, recorded = (span.number(f"wait_on_{name}") for name in ("cuda_event_record_corr_id", "stream"))
        # A wait names the stream of its event's record; the records have no rows.
        if event is not None and record is not None and record >= 0 and recorded is not None and recorded >= 0:
            stream_ids = (self._process(self.pid), span.device, span.context, 0, recorded)
            self.export.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", *stream_ids, record, event)

    # -- work of the CPU --------------------------------------------------------------------------------------------

    def api_call(self, span: _Span, kind: int) -> None:
        row = (self._thread(span.event), kind, span.number("correlation"), self.export.intern(span.name), 0)
        self.export.add("CUPTI_ACTIVITY_KIND_RUNTIME", span.start, span.end, *row)

    def annotation(self, span: _Span) -> None:
        self._add_range(span, self._thread(span.event), span.name, 0)

    def operator(self, span: _Span) -> None:
        self._add_range_of(OPERATORS, span, span.name)
        if span.name == RECORD and (collective := collective_of(span.arguments)) is not None:
            self._add_range_of(_NCCL, span, collective.function, collective.payload)

    def python_function(self, span: _Span) -> None:
        self._add_range_of(PYTHON, span, span.name)

    def _add_range_of(self, domain: str, span: _Span, name: str, payload: str | None = None) -> None:
        thread = self._thread(span.event)
        self._domains.setdefault((pid_of(thread), domain), thread)
        self._add_range(span, thread, name, _DOMAINS[domain], payload)

    def _add_range(self, span: _Span, thread: int, name: str, domain: int, payload: str | None = None) -> None:
        row = (thread, _PUSH_POP, None, self.export.intern(name), domain, payload)
        self.export.add("NVTX_EVENTS", span.start, span.end, *row)

    def instant(self, span: _Span) -> None:
        """Add an allocation or free of PyTorch's allocator on a GPU; any other instant becomes a mark."""
        if span.name != "[memory]":
            thread = self._thread(span.event)
            self.export.add("NVTX_EVENTS", span.start, None, thread, _MARK, span.name, None, 0, None)
        elif span.number("Device Type") == 1:  # memory on a GPU
            size = _required(span.number("Bytes"), "size")
            process, device = self._process(self.pid), _required(span.number("Device Id"), "device")
            cells = (_required(span.number("Addr"), "address"), abs(size), _MEMORY_KINDS["Device"], int(size < 0))
            self.export.add("CUDA_GPU_MEMORY_USAGE_EVENTS", span.start, process, device, *cells)

    # -- names ------------------------------------------------------------------------------------------------------

    def _name(self, event: Event) -> None:
        pid, tid = to_integer(event.get("pid")), to_integer(event.get("tid"))
        name = _arguments(event).get("name")
        if pid is None or not isinstance(name, str):
            return
        if event.get("name") == "process_name":
            self._process_names[pid] = _plain(name)
        elif event.get("name") == "thread_name" and tid is not None:
            match = _THREAD_NAME.fullmatch(name)
            self._names[pid, tid] = _plain(match[1] if match else name)

    def _process(self, pid: int) -> int:
        return self._processes.setdefault(pid, process_id(pid, MACHINE))

    def _thread(self, event: Event) -> int:
        """Return the id of an event's thread; numbers too large for an export count down from the highest."""
        pid = _required(to_integer(event.get("pid")), "process")
        tid = _required(to_integer(event.get("tid")), "thread")
        thread = self._threads.get((pid, tid))
        if thread is None:
            if not 0 <= pid < _MOST_IDS:
                raise _MissingValue("without a process")
            number = tid if 0 <= tid < _MOST_IDS else _MOST_IDS - 1 - len(self._threads)
            thread = self._threads[pid, tid] = self._process(pid) | number
        return thread

    def finish(self) -> None:
        """Add the names of processes, threads and domains, and messages about omitted events."""
        add = self.export.add
        for pid, process in self._processes.items():
            add("PROCESSES", process, pid, self._process_names.get(pid, ""))
        for key, thread in self._threads.items():
            if name := self._names.get(key):
                add("ThreadNames", self.export.intern(name), _PRIORITY, thread)
        for (_, domain), thread in self._domains.items():
            add("NVTX_EVENTS", 0, None, thread, _DOMAIN_CREATE, domain, None, _DOMAINS[domain], None)
        for why, count in self._left_out.items():
            add("DIAGNOSTIC_EVENT", 0, _WARNING, f"left out of the {TRACE}: events {why} ({count:,})")


RECORD = "record_param_comms"

_IN, _OUT, _PER_PEER, _EITHER, _UNKNOWN = range(5)
"""Which of a record's two element counts NCCL's call has."""
# Longer beginnings first: "reduce" also begins "reduce_scatter". The spelling changed over time: _all_gather_base,
# allgather_into_tensor_coalesced. A barrier is an AllReduce of one element, which is not recorded.
_FUNCTIONS = (
    ("allreduce", "ncclAllReduce", _IN), ("allgather", "ncclAllGather", _IN), ("alltoall", "ncclAlltoAll", _PER_PEER),
    ("reducescatter", "ncclReduceScatter", _OUT), ("reduce", "ncclReduce", _IN), ("broadcast", "ncclBroadcast", _IN),
    ("gather", "ncclGather", _IN), ("scatter", "ncclScatter", _OUT), ("send", "ncclSend", _EITHER),
    ("recv", "ncclRecv", _EITHER), ("barrier", "ncclAllReduce", _UNKNOWN),
)  # fmt: skip
# PyTorch's "rank" is the root of _ROOTED calls, and the peer of _BETWEEN_TWO calls.
_ROOTED = frozenset({"ncclReduce", "ncclBroadcast", "ncclGather", "ncclScatter"})
_BETWEEN_TWO = frozenset({"ncclSend", "ncclRecv"})

_DATATYPES = {
    "Byte": ("uint8", 1), "Char": ("int8", 1), "Bool": ("bool", 1), "Short": ("int16", 2), "UInt16": ("uint16", 2),
    "Int": ("int32", 4), "UInt32": ("uint32", 4), "Long": ("int64", 8), "UInt64": ("uint64", 8), "Half": ("fp16", 2),
    "BFloat16": ("bf16", 2), "Float": ("fp32", 4), "Double": ("fp64", 8), "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16), "Float8_e4m3fn": ("fp8_e4m3", 1), "Float8_e4m3fnuz": ("fp8_e4m3fnuz", 1),
    "Float8_e5m2": ("fp8_e5m2", 1), "Float8_e5m2fnuz": ("fp8_e5m2fnuz", 1),
}  # fmt: skip
"""PyTorch's scalar types: the name, as for NCCL's logs, and the bytes of an element."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A call of NCCL: its function, and JSON with its facts by the labels of NCCL's payload."""

    function: str
    payload: str


def collective_of(arguments: Mapping[str, Any]) -> Collective | None:
    """Return the call in a ``record_param_comms``; ``None`` if it moves no data, such as ``wait``."""
    spelled = str(arguments.get("Collective name", "")).replace("_", "").replace(" ", "").lower()
    if spelled.startswith("broadcastuniquencclid"):
        return None
    match = next(((name, counts) for start, name, counts in _FUNCTIONS if spelled.startswith(start)), None)
    if match is None:
        return None
    function, counts = match
    labels: dict[str, int | str] = {}
    datatype = _DATATYPES.get(str(arguments.get("dtype")))
    ranks, rank = to_integer(arguments.get("Group size")), to_integer(arguments.get("Rank"))
    elements = _elements(arguments, counts, ranks)
    if datatype is not None and counts != _UNKNOWN:
        labels[DATATYPE] = datatype[0]
        if elements is not None:
            labels[MESSAGE_SIZE] = elements * datatype[1]
    if ranks:
        labels[RANKS] = ranks
    if rank is not None and rank >= 0 and function in _ROOTED | _BETWEEN_TWO:
        labels[ROOT if function in _ROOTED else PEER] = rank
    group = arguments.get("Process Group Name"), arguments.get("Process Group Ranks")
    if any(group):
        labels[COMMUNICATOR] = _communicator(str(group[0]), str(group[1]))
    return Collective(function, json.dumps(labels))


def _elements(arguments: Mapping[str, Any], counts: int, ranks: int | None) -> int | None:
    """Return the elements of a call as NCCL counts them; the mean over ranks if an AlltoAll divides unevenly."""
    inputs, outputs = (to_integer(arguments.get(name)) for name in ("In msg nelems", "Out msg nelems"))
    if counts == _PER_PEER:
        return inputs // ranks if inputs is not None and ranks else None
    if counts == _EITHER:
        return max((count for count in (inputs, outputs) if count is not None), default=None)
    return {_IN: inputs, _OUT: outputs}.get(counts)


@lru_cache(maxsize=4096)
def _communicator(name: str, ranks: str) -> int:
    """Return a number equal on all ranks of a process group, because traces lack the communicator's."""
    digest = hashlib.md5(f"{name} of {ranks}".encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little") | 1 << 63


_Write = Callable[[_Translator, _Span], None]
_WRITERS: Mapping[str, _Write] = {
    "kernel": _Translator.kernel,
    "gpu_memcpy": _Translator.copy,
    "gpu_memset": _Translator.memset,
    "cuda_sync": _Translator.synchronisation,
    "cuda_runtime": lambda translator, span: translator.api_call(span, _RUNTIME_CALL),
    "cuda_driver": lambda translator, span: translator.api_call(span, _DRIVER_CALL),
    "user_annotation": _Translator.annotation,
    "cpu_op": _Translator.operator,
    "python_function": _Translator.python_function,
    "cpu_instant_event": _Translator.instant,
}


@lru_cache(maxsize=65536)
def _plain(text: str) -> str:
    """Return text that SQLite can store: without lone surrogates, which JSON can contain."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=4096)
def _short_name(name: str) -> str:
    """Return a kernel's name as nsys shortens it: without return type, namespaces, template, arguments.

    >>> _short_name("void at::native::reduce_kernel<(int)512>(T3)")
    'reduce_kernel'
    """
    bare = name.replace("<unnamed>", "").replace("(anonymous namespace)", "").removeprefix("void ")
    return re.split(r"[<(]", bare, maxsplit=1)[0].rsplit("::", 1)[-1] or name
