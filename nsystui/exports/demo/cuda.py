"""CUDA events: API calls, kernels, memory operations, graph launches, synchronization, page faults."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from .target import Process, TargetInfo, Thread

Dim3 = tuple[int, int, int]

RUNTIME_CALL: Final = 0
DRIVER_CALL: Final = 1
BACKTRACE_CALL: Final = 67
"""``eventClass`` of the second row per call that ``--cudabacktrace`` wrote in 2022."""

COPY_KINDS: Final = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10, "UvmHtoD": 11, "UvmDtoH": 12}
PAGEABLE: Final = 0
PINNED: Final = 1
DEVICE: Final = 2
MANAGED: Final = 4

EVENT_SYNC: Final = 1
STREAM_WAIT_EVENT: Final = 2
STREAM_SYNC: Final = 3
CONTEXT_SYNC: Final = 4
NO_STREAM: Final = 4294967295
"""``streamId`` of a synchronization that is not about one stream."""
_NO_EVENT: Final = 4294967295


@lru_cache(maxsize=4096)
def short_kernel_name(name: str) -> str:
    """The function's own name without return type, namespaces, template and arguments: nsys's ``shortName``.

    >>> short_kernel_name("void at::native::reduce_kernel<(int)512>(T3)")
    'reduce_kernel'
    """
    bare = name.replace("<unnamed>", "").removeprefix("void ")
    return re.split(r"[<(]", bare, maxsplit=1)[0].rsplit("::", 1)[-1] or name


class CudaEvents(TargetInfo):
    """The part of the writer for CUDA. Times are ns since the session start."""

    def api(
        self,
        thread: Thread,
        start: int,
        end: int,
        name: str,
        correlation_id: int,
        *,
        event_class: int = RUNTIME_CALL,
        return_value: int = 0,
    ) -> None:
        """A CUDA API call; `name` as nsys writes it, with the version suffix (``cudaLaunchKernel_v7000``)."""
        self.rows("CUPTI_ACTIVITY_KIND_RUNTIME").append(
            (start, end, event_class, thread.global_id, correlation_id, self.intern(name), return_value, None)
        )

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
        grid: Dim3 = (1, 1, 1),
        block: Dim3 = (128, 1, 1),
        registers: int = 32,
        static_smem: int = 0,
        dynamic_smem: int = 0,
        context: int = 1,
        graph_node_id: int | None = None,
        graph_id: int | None = None,
    ) -> None:
        """A kernel execution; `name` is the demangled one, shared memory is in bytes a block."""
        intern = self.intern
        self.rows("CUPTI_ACTIVITY_KIND_KERNEL").append(
            (
                start, end, device, context, 0, stream, correlation_id, process.global_id, intern(name),
                intern(short_kernel_name(name) if short is None else short),
                None if mangled is None else intern(mangled),
                1, 1, registers, *grid, *block, static_smem, dynamic_smem, 0, 250871808,
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
        size: int,
        kind: str,
        correlation_id: int | None,
        source: int = DEVICE,
        destination: int = DEVICE,
        context: int = 1,
        graph_node_id: int | None = None,
        migration_cause: int | None = None,
        address: int | None = None,
    ) -> None:
        """A copy of `size` bytes; `kind` is a key of `COPY_KINDS`, `source` and `destination` are memory kinds."""
        self.rows("CUPTI_ACTIVITY_KIND_MEMCPY").append(
            (
                start, end, device, context, 0, stream, correlation_id, process.global_id, size, COPY_KINDS[kind],
                None, source, destination, None, None, None, None, migration_cause, graph_node_id, address, 1,
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
        size: int,
        correlation_id: int | None,
        value: int = 0,
        memory: int = DEVICE,
        context: int = 1,
    ) -> None:
        """A memset of `size` bytes in memory of kind `memory`."""
        self.rows("CUPTI_ACTIVITY_KIND_MEMSET").append(
            (start, end, device, context, 0, stream, correlation_id, process.global_id, value, size, None, memory)
        )

    def graph_launch(
        self,
        process: Process,
        device: int,
        stream: int,
        start: int,
        end: int,
        *,
        graph_id: int,
        graph_exec_id: int,
        correlation_id: int | None,
        context: int = 1,
    ) -> None:
        """The execution of a whole CUDA graph: all that is known of its kernels in graph-level tracing."""
        self.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE").append(
            (start, end, device, context, 0, stream, correlation_id, process.global_id, graph_id, graph_exec_id)
        )

    def graph_node(
        self, thread: Thread, start: int, end: int, name: str, node_id: int, original: int | None = None
    ) -> None:
        """The creation of a graph node during capture, or of a clone of node `original`."""
        node = (start, end, 77, thread.global_id, self.intern(name), node_id, original)
        if self.has("CUDA_GRAPH_NODE_EVENTS"):
            self.rows("CUDA_GRAPH_NODE_EVENTS").append(node)
        else:
            self.rows("CUDA_GRAPH_EVENTS").append((*node, None, None, None))

    def sync(
        self,
        process: Process,
        device: int,
        stream: int,
        start: int,
        end: int,
        *,
        sync_type: int = STREAM_SYNC,
        correlation_id: int,
        event_id: int = _NO_EVENT,
        context: int = 1,
    ) -> None:
        """A host-side wait (``SYNCHRONIZATION`` row): stream, context, event, or the order for a stream to wait."""
        self.rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION").append(
            (start, end, device, context, 0, stream, correlation_id, process.global_id, None, sync_type, event_id, 0)
        )

    def cuda_event(
        self, process: Process, device: int, stream: int, *, correlation_id: int, event_id: int, context: int = 1
    ) -> None:
        """A recorded CUDA event (``cudaEventRecord``)."""
        self.rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT").append(
            (0, device, context, 0, stream, correlation_id, process.global_id, event_id, 0)
        )

    def cpu_page_fault(
        self,
        process: Process,
        start: int,
        address: int,
        *,
        instruction: str = "0x7f0000000000",
        file: str = "",
        line: int | None = None,
    ) -> None:
        """A CPU page fault of unified memory, at a line of a source file where the schema can tell it (3.28)."""
        names = self.intern(instruction), self.intern("libc.so.6")
        place = self.intern(file) if file else None, line
        row = (start, process.global_id, address, None, *names, None, *place)
        self.rows("CUDA_UM_CPU_PAGE_FAULT_EVENTS").append(row)

    def gpu_page_fault(
        self, process: Process, device: int, start: int, end: int, *, address: int, count: int, access: int = 1
    ) -> None:
        """A group of GPU page faults of unified memory; `access` 1 read, 2 write, 3 atomic, 4 prefetch."""
        self.rows("CUDA_UM_GPU_PAGE_FAULT_EVENTS").append(
            (start, end, process.global_id, device, address, count, access)
        )
