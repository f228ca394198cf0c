"""The writer of synthetic exports, with methods for every kind of event."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from synthetic.writing.host import HostEvents, Stack
from synthetic.writing.target import GLOBAL_VM, VIRTUAL_MACHINE, CaptureSession, Process, TargetInfo, Thread

Dim3 = tuple[int, int, int]
_NO_SIZE: Final = (None, None, None)

RUNTIME_CALL: Final = 0
DRIVER_CALL: Final = 1
BACKTRACE_CALL: Final = 67
"""``eventClass`` of the second row per call that ``--cudabacktrace`` wrote in 2022."""

COPY_KINDS: Final = {
    "HtoD": 1, "DtoH": 2, "HtoA": 3, "AtoH": 4, "AtoA": 5, "AtoD": 6, "DtoA": 7, "DtoD": 8, "HtoH": 9, "PtoP": 10,
    "UvmHtoD": 11, "UvmDtoH": 12, "UvmDtoD": 13,
}  # fmt: skip
PAGEABLE: Final = 0
PINNED: Final = 1
DEVICE: Final = 2
MANAGED: Final = 4

EVENT_SYNC: Final = 1
STREAM_WAIT_EVENT: Final = 2
STREAM_SYNC: Final = 3
CONTEXT_SYNC: Final = 4
NO_STREAM: Final = 4294967295
"""``streamId`` of a synchronization without a single stream."""
NO_EVENT: Final = 4294967295
"""``eventId`` of a synchronization without an event, or with an unknown event."""


@lru_cache(maxsize=4096)
def short_kernel_name(name: str) -> str:
    """Return the function's own name without return type, namespaces, template and arguments: nsys's ``shortName``.

    >>> short_kernel_name("void at::native::reduce_kernel<(int)512>(T3)")
    'reduce_kernel'
    """
    bare = name.replace("<unnamed>", "").replace("(anonymous namespace)", "").removeprefix("void ")
    return re.split(r"[<(]", bare, maxsplit=1)[0].rsplit("::", 1)[-1] or name


class CudaEvents(HostEvents):
    """The part of the writer for CUDA. Times are ns since the session start."""

    def api(
        self,
        thread: Thread,
        start: int,
        end: int,
        name: str,
        correlation_id: int | None,
        *,
        event_class: int = RUNTIME_CALL,
        return_value: int = 0,
        stack: Stack = (),
    ) -> None:
        """Write a CUDA API call; `name` as nsys writes it, with the version suffix (``cudaLaunchKernel_v7000``)."""
        chain = self.cuda_stack(stack) if stack else None
        self.rows("CUPTI_ACTIVITY_KIND_RUNTIME").append(
            (start, end, event_class, thread.global_id, correlation_id, self.intern(name), return_value, chain)
        )

    def graph_node(
        self, thread: Thread, start: int, end: int, name: str, node_id: int, original: int | None = None
    ) -> None:
        """Write the creation of a graph node during capture, or of a clone of node `original`."""
        node = (start, end, 77, thread.global_id, self.intern(name), node_id, original)
        if self.has("CUDA_GRAPH_NODE_EVENTS"):
            self.rows("CUDA_GRAPH_NODE_EVENTS").append(node)
        else:
            self.rows("CUDA_GRAPH_EVENTS").append((*node, None, None, None))

    def kernel(
        self,
        process: Process,
        device: int,
        stream: int,
        start: int,
        end: int,
        *,
        name: str,
        correlation_id: int | None,
        short: str | None = None,
        mangled: str | None = None,
        grid: Dim3 | None = (1, 1, 1),
        block: Dim3 | None = (128, 1, 1),
        registers: int | None = 32,
        static_smem: int = 0,
        dynamic_smem: int | None = 0,
        local_memory: tuple[int, int] | None = (0, 250_871_808),
        context: int | None = 1,
        graph_node_id: int | None = None,
        graph_id: int | None = None,
    ) -> None:
        """Write a kernel execution; `name` is demangled, shared memory is in bytes a block.

        `local_memory`: bytes a thread, and in all.
        """
        intern = self.intern
        self.rows("CUPTI_ACTIVITY_KIND_KERNEL").append(
            (
                start, end, device, context, 0, stream, correlation_id, process.global_id, intern(name),
                intern(short_kernel_name(name) if short is None else short),
                None if mangled is None else intern(mangled),
                1, 1, registers, *(grid or _NO_SIZE), *(block or _NO_SIZE), static_smem, dynamic_smem,
                *(local_memory or _NO_SIZE[:2]),
                correlation_id or 0, 32768, graph_node_id, 0,
                None, None, None, graph_id, 0, 0, 0, 1, 0, 0, None, "[]",
            )
        )  # fmt: skip

    def memcpy(
        self,
        process: Process,
        device: int,
        stream: int,
        start: int,
        end: int,
        *,
        size: int | None,
        kind: str,
        correlation_id: int | None,
        source: int | None = DEVICE,
        destination: int | None = DEVICE,
        context: int | None = 1,
        graph_node_id: int | None = None,
        migration_cause: int | None = None,
        address: int | None = None,
        devices: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Write a copy of `size` bytes; `kind` is a key of `COPY_KINDS`, or unknown.

        `source` and `destination` are memory kinds, `devices` the GPUs of both.
        """
        self.rows("CUPTI_ACTIVITY_KIND_MEMCPY").append(
            (
                start, end, device, context, 0, stream, correlation_id, process.global_id, size,
                COPY_KINDS.get(kind, 0), None, source, destination, devices[0], None, devices[1], None, migration_cause,
                graph_node_id, address, 1,
            )
        )  # fmt: skip

    def memset(
        self,
        process: Process,
        device: int,
        stream: int,
        start: int,
        end: int,
        *,
        size: int | None,
        correlation_id: int | None,
        value: int | None = 0,
        memory: int | None = DEVICE,
        context: int | None = 1,
    ) -> None:
        """Write a memset of `size` bytes in memory of kind `memory`."""
        self.rows("CUPTI_ACTIVITY_KIND_MEMSET").append(
            (start, end, device, context, 0, stream, correlation_id, process.global_id, value, size, None, memory)
        )

    def sync(
        self,
        process: Process,
        device: int,
        stream: int,
        start: int,
        end: int,
        *,
        sync_type: int = STREAM_SYNC,
        correlation_id: int | None,
        event_id: int = NO_EVENT,
        context: int | None = 1,
    ) -> None:
        """Write a row of ``SYNCHRONIZATION``: the host waits for a stream, context or event, or has a stream wait."""
        self.rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION").append(
            (start, end, device, context, 0, stream, correlation_id, process.global_id, None, sync_type, event_id, 0)
        )

    def cuda_event(
        self, process: Process, device: int, stream: int, *, correlation_id: int, event_id: int, context: int | None = 1
    ) -> None:
        """Write a recorded CUDA event (``cudaEventRecord``)."""
        self.rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT").append(
            (0, device, context, 0, stream, correlation_id, process.global_id, event_id, 0)
        )


CATEGORY: Final = 33
MARK: Final = 34
THREAD_NAME: Final = 39
PUSH_POP: Final = 59
START_END: Final = 60
DOMAIN_CREATE: Final = 75

_NO_UNION_VALUE: Final = (None,) * 7
"""uint64Value … floatValue and jsonTextId, which no known program uses."""


@dataclass(frozen=True, slots=True)
class NvtxPayload:
    """The extended payload of one event in both forms an export can have."""

    json_text: str
    binary_data: bytes
    """32-byte header (u64 domain id, schema id, payload size, offset of the payload), then the payload."""


@dataclass(frozen=True, slots=True)
class PayloadEntry:
    """One entry of a payload schema; `type` is NVTX's number for it, `offset` in bytes."""

    label: str
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class PayloadSchema:
    """A registered payload schema of a domain; `size` in bytes."""

    schema_id: int
    entries: tuple[PayloadEntry, ...]
    size: int


class NvtxEvents(TargetInfo):
    """The part of the writer for NVTX. Times are ns since the session start."""

    def nvtx_range(
        self,
        thread: Thread,
        start: int,
        end: int | None,
        text: str,
        *,
        domain_id: int = 0,
        style: int = PUSH_POP,
        registered: bool = False,
        payload: NvtxPayload | None = None,
        end_thread: Thread | None = None,
        range_id: int | None = None,
        category: int | None = None,
        color: int | None = None,
    ) -> None:
        """Write a range; `end` None leaves it open. A `registered` string is in ``textId``, other texts are inline.

        The export contains the forms of `payload` that the session's options select, as with nsys.
        """
        self.rows("NVTX_EVENTS").append(
            (
                start, end, style, range_id, category, color, None if registered else text, thread.global_id,
                None if end_thread is None else end_thread.global_id, self.intern(text) if registered else None,
                domain_id, *_NO_UNION_VALUE,
                payload.json_text if payload and self.session.include_json else None,
                payload.binary_data if payload and self.session.include_blobs else None,
                None,
            )
        )  # fmt: skip

    def nvtx_mark(self, thread: Thread, time: int, text: str, *, domain_id: int = 0) -> None:
        """Write a mark: an instant with a text."""
        self.nvtx_range(thread, time, None, text, domain_id=domain_id, style=MARK)

    def nvtx_domain(self, thread: Thread, time: int, domain_id: int, name: str) -> None:
        """Write the creation of a domain, often long before t = 0. Domain ids belong to the process of `thread`."""
        self.nvtx_range(thread, time, None, name, domain_id=domain_id, style=DOMAIN_CREATE)

    def nvtx_thread_name(self, thread: Thread, time: int, name: str) -> None:
        """Write the name that the program gives a thread through NVTX."""
        self.nvtx_range(thread, time, None, name, style=THREAD_NAME)

    def payload_schemas(self, domain_id: int, schemas: Iterable[PayloadSchema]) -> None:
        """Register payload schemas, once a process. Schemas before 3.20 have no table for them: nothing is written."""
        if not self.has("NVTX_PAYLOAD_SCHEMAS"):
            return
        for schema in schemas:
            self.rows("NVTX_PAYLOAD_SCHEMAS").append(
                (domain_id, schema.schema_id, None, 1, None, len(schema.entries), schema.size, None)
            )
            for index, entry in enumerate(schema.entries):
                # nsys leaves the offset of the first entry NULL.
                row = (domain_id, schema.schema_id, index, None, entry.type, entry.label, None, None)
                self.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES").append((*row, entry.offset or None))

    def payload_enum(self, domain_id: int, enum_id: int, name: str, values: dict[str, int]) -> None:
        """Register an enumeration that payload entries refer to by `enum_id`; nothing before schema 3.20."""
        if not self.has("NVTX_PAYLOAD_ENUMS"):
            return
        self.rows("NVTX_PAYLOAD_ENUMS").append((domain_id, enum_id, name, len(values), 4))
        for index, (label, value) in enumerate(values.items()):
            self.rows("NVTX_PAYLOAD_ENUM_ENTRIES").append((domain_id, enum_id, index, label, value, 0))


INFO: Final = 1
WARNING: Final = 2
ERROR: Final = 3

_GPU_METRIC_SOURCE: Final = 1
METRICS_LIST: Final = 0
"""The one list of metrics that network cards and switches share."""


def gpu_metric_type(gpu_id: int) -> int:
    """``typeId`` of the metrics of a GPU: <hardware:8><vm:8><source:16><gpu:32>."""
    return VIRTUAL_MACHINE << 48 | _GPU_METRIC_SOURCE << 32 | gpu_id


class SystemEvents(HostEvents):
    """The part of the writer for the operating system and sampled metrics. Times are ns since the start."""

    def osrt(
        self, thread: Thread, start: int, end: int, name: str, *, return_value: int = 0, stack: Stack = ()
    ) -> None:
        """Write a call of the OS runtime (``poll``, ``pthread_cond_wait`` …); nsys records the stacks of long calls."""
        chain = self.os_stack(stack) if stack else 0
        row = (start, end, 27, thread.global_id, self.intern(name), return_value, 0, chain, 0)
        self.rows("OSRT_API").append(row)

    def gpu_metric_names(self, gpu_id: int, names: Sequence[str]) -> None:
        """Declare the metrics sampled on a GPU (the system's number); a metric's id is its index."""
        kind = gpu_metric_type(gpu_id)
        rows = self.rows("TARGET_INFO_GPU_METRICS")
        rows.extend((kind, kind, "", metric, name) for metric, name in enumerate(names))

    def gpu_metric(self, gpu_id: int, time: int, values: Sequence[int]) -> None:
        """Write a sample: a value for every declared metric (percent; clocks in MHz, before schema 3.13 in Hz)."""
        kind = gpu_metric_type(gpu_id)
        rows = self.rows("GPU_METRICS")
        rows.extend((time, time, kind, metric, value) for metric, value in enumerate(values))

    def nic(self, nic_id: int, name: str, metrics: Sequence[tuple[str, str]]) -> None:
        """Declare a network card and its metrics as (name, unit); a metric's index is its place in `metrics`."""
        guid = 0x9C63C003000000 + nic_id
        self.rows("TARGET_INFO_NIC_INFO").append((guid, "Local (CLI)", nic_id, name, 4129, 5555, 1))
        self.rows("NIC_ID_MAP").append((nic_id, GLOBAL_VM | nic_id))
        if nic_id == 0:
            self.rows("TARGET_INFO_NETWORK_METRICS").extend(
                (METRICS_LIST, index, metric, metric, unit) for index, (metric, unit) in enumerate(metrics)
            )

    def nic_metric(self, nic_id: int, start: int, end: int, values: Sequence[int]) -> None:
        """Write a sample interval of a network card: a value for every declared metric, in the metric's unit."""
        self.rows("NET_NIC_METRIC").extend(
            (start, end, GLOBAL_VM | nic_id, 1, METRICS_LIST, index, value) for index, value in enumerate(values)
        )

    def diagnostic(self, time: int, text: str, *, severity: int = INFO, process: Process | None = None) -> None:
        """Write a message of the profiler itself. Schemas before 3.13 have no table for them: nothing is written."""
        if self.has("DIAGNOSTIC_EVENT"):
            global_id = None if process is None else process.global_id
            self.rows("DIAGNOSTIC_EVENT").append((time, 1, 1, severity, text, global_id))

    def profiler_overhead(self, thread: Thread, start: int, end: int, name: str, *, kind: int = 3) -> None:
        """Write time taken by the profiler; `kind` is an id of ``ENUM_CUPTI_OVERHEAD_TYPE`` (3: buffer flush)."""
        self.rows("PROFILER_OVERHEAD").append((start, end, thread.global_id, self.intern(name), 0, kind))


class ExportWriter(CudaEvents, NvtxEvents, SystemEvents):
    """Writes one SQLite file as `nsys export` of a given schema version would.

    Use it as a context manager; leaving it completes the file, an exception removes it. Events may be added in any
    order: they wait in memory and are sorted by start when written. A long run calls `flush(until=…)` between its
    steps.

        with ExportWriter(path, session=Session(hostname="gpu-01")) as export:
            python = export.process(4711)
            main = export.thread(python, 4711, "python")
            export.api(main, 1_000, 6_000, "cudaLaunchKernel_v7000", correlation_id=1)
            export.kernel(python, 0, 7, 9_000, 31_000, name="saxpy(float *)", correlation_id=1)
    """

    def __init__(
        self, path: str | Path, schema: str = "3.25.0", *, lazy: bool = True, session: CaptureSession | None = None
    ) -> None:
        """Create the file, replacing an old file.

        `schema` is a key of `SCHEMAS`; `lazy` False creates every table of that version, as ``--lazy=false`` does.
        Raises `ValueError` for an unknown schema, or if binary payloads are asked of a schema older than 3.16.
        """
        self.session = CaptureSession() if session is None else session
        super().__init__(Path(path), schema, lazy=lazy)
        if self.session.include_blobs and self.version < (3, 16):
            self.discard()
            raise ValueError(f"schema {schema} has no binary payloads (first seen in 3.16.1)")
        self.create("TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS")
