"""The writer of test exports: the demo's writer, with all other native tables that nsystui reads."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final

from synthetic.writing.host import Stack
from synthetic.writing.schema import GPU_OPERATION, TABLES, Tables
from synthetic.writing.target import Process, Thread
from synthetic.writing.writer import CATEGORY, MARK, METRICS_LIST, NvtxPayload
from synthetic.writing.writer import ExportWriter as DemoWriter

_OPENMP_EVENT = "start! end! eventClass! globalTid correlationId nameId! eventKind"
_OPENACC_EVENT = (
    "start! end! nameId! globalTid eventKind! DeviceType! lineNo! cuDeviceId! cuContextId! cuStreamId! srcFile funcName"
)
_TABLES: Final = {
    "ANALYSIS_FILE@3.13": "id!* filename:T!<3.16 filename:T@3.16 content:T!<3.16 contentId@3.16 globalPid!",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE@3.0": f"{GPU_OPERATION} graphId! graphExecId!",
    "CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH@3.24": f"{GPU_OPERATION} graphNodeId graphId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD@3.24": "start! end! eventClass! globalTid correlationId nameId overheadType!",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": (
        "start! globalPid! address! originalFaultPc CpuInstruction! module! unresolvedFaultPc sourceFile@3.28 "
        "sourceLine@3.28"
    ),
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": ("start! end! globalPid! deviceId! address! numberOfPageFaults! faultAccessType!"),
    "CUBLAS_EVENTS": "start! end! eventClass! globalTid nameId!",
    "CUDNN_EVENTS": "start! end! eventClass! globalTid nameId!",
    "OSRT_FILE_ACCESS_EVENTS@3.20": (
        "fileAccessId! threadId! startedAt! endedAt! eventType! apiCallId! bytesProcessed! context:T!@3.24.7"
    ),
    "OSRT_FILE_ACCESS_DESCRIPTORS@3.20": "fileAccessId! processId! openedAt! closedAt! filePath:T!",
    "MPI_RANKS@3.1": "globalTid! rank!",
    "MPI_P2P_EVENTS@3.1": "start! end globalTid textId commHandle tag remoteRank size requestHandle",
    "MPI_COLLECTIVES_EVENTS@3.1": "start! end globalTid textId commHandle rootRank size recvSize requestHandle",
    "MPI_START_WAIT_EVENTS@3.1": "start! end globalTid textId requestHandle",
    "MPI_OTHER_EVENTS@3.1": "start! end globalTid textId",
    "UCP_SUBMIT_EVENTS@3.7": "start! end globalTid textId bufferAddr packedSize peerWorkerUid tag",
    "UCP_PROGRESS_EVENTS@3.7": "start! end globalTid textId bufferAddr packedSize peerWorkerUid tag",
    "UCP_EVENTS@3.7": "start! end globalTid textId",
    "OPENMP_EVENT_KIND_PARALLEL": f"{_OPENMP_EVENT} parallelId parentTaskId",
    "OPENMP_EVENT_KIND_SYNC_REGION_WAIT": f"{_OPENMP_EVENT} parallelId taskId kind",
    "OPENMP_EVENT_KIND_TASK": f"{_OPENMP_EVENT} parallelId taskId kind",
    "CUPTI_ACTIVITY_KIND_OPENACC_DATA": f"{_OPENACC_EVENT} bytes varName",
    "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH": f"{_OPENACC_EVENT} numGangs numWorkers vectorLength kernelName",
    "CUPTI_ACTIVITY_KIND_OPENACC_OTHER": _OPENACC_EVENT,
    "GENERIC_EVENT_SOURCES@3.7": (
        "sourceId!* nameId!@3.13 timeSourceId!@3.13 sourceGroupId!@3.13 data:T!<3.13 data:T@3.13"
    ),
    "GENERIC_EVENT_TYPES@3.7": "typeId!* sourceId! nameId!@3.13 data:T!<3.13 data:T@3.13",
    "GENERIC_EVENT_TYPE_FIELDS@3.13": "typeId! fieldIdx! fieldNameId! offset! size! type!",
    "GENERIC_EVENTS@3.7": (
        "genericEventId!*@3.13 rawTimestamp! timestamp typeId! globalTid@3.13 data:T!<3.13 data:T@3.13"
    ),
    "GENERIC_EVENT_DATA@3.13": "genericEventId! fieldIdx! intVal uintVal floatVal:R doubleVal:R",
    "NET_IB_SWITCH_METRIC@3.7": "start! end! globalId! metricsListId! metricsIdx! value!",
}

_OPENMP_CLASS: Final = 78
_READ: Final = 2
_GIL_DOMAIN: Final = 77
_PYTHON_DOMAIN: Final = 78
_NVIDIA_DEVICE: Final = 4


class ExportWriter(DemoWriter):
    """A writer of events of every kind. Times are ns since the session start."""

    tables: ClassVar[Tables] = Tables({**TABLES, **_TABLES})
    _generic_events = 0
    _sampled: Collection[Process] = ()
    _files: Mapping[str, int] = MappingProxyType({})

    def graph_launch(
        self, process: Process, device: int, stream: int, start: int, end: int, *,
        graph_id: int, graph_exec_id: int, correlation_id: int | None, context: int = 1,
    ) -> None:  # fmt: skip
        """Write the execution of a whole CUDA graph, as in graph-level tracing, without its kernels."""
        self.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE").append(
            (start, end, device, context, 0, stream, correlation_id, process.global_id, graph_id, graph_exec_id)
        )

    def cpu_page_fault(
        self, process: Process, start: int, address: int, *,
        instruction: str = "0x7f0000000000", file: str = "", line: int | None = None,
    ) -> None:  # fmt: skip
        """Write a CPU page fault of unified memory, at a line of a source file if the schema records it (3.28)."""
        names = self.intern(instruction), self.intern("libc.so.6")
        place = self.intern(file) if file else None, line
        row = (start, process.global_id, address, None, *names, None, *place)
        self.rows("CUDA_UM_CPU_PAGE_FAULT_EVENTS").append(row)

    def gpu_page_fault(
        self, process: Process, device: int, start: int, end: int, *, address: int, count: int, access: int = 1
    ) -> None:
        """Write a group of GPU page faults of unified memory; `access` 1 read, 2 write, 3 atomic, 4 prefetch."""
        row = (start, end, process.global_id, device, address, count, access)
        self.rows("CUDA_UM_GPU_PAGE_FAULT_EVENTS").append(row)

    def library_call(self, thread: Thread, start: int, end: int, name: str, *, library: str = "CUBLAS") -> None:
        """Write a call of cuBLAS, or with `library` ``CUDNN`` of cuDNN."""
        self.rows(f"{library}_EVENTS").append((start, end, 0, thread.global_id, self.intern(name)))

    def cuda_overhead(self, thread: Thread, start: int, end: int, kind: int, correlation_id: int | None = None) -> None:
        """CUDA's overhead; `kind` is an id of ``ENUM_CUPTI_OVERHEAD_TYPE`` (7: lazy function loading)."""
        row = (start, end, 103, thread.global_id, correlation_id, None, kind)
        self.rows("CUPTI_ACTIVITY_KIND_OVERHEAD").append(row)

    def gil(self, thread: Thread, held: Iterable[tuple[int, int]] = (), waited: Iterable[tuple[int, int]] = ()) -> None:
        """Write spans in which a thread holds Python's GIL and waits for it (``--trace=python-gil``)."""
        self.nvtx_domain(thread, 0, _GIL_DOMAIN, "GIL Trace")
        for name, spans in (("Holding GIL", held), ("Waiting for GIL", waited)):
            for start, end in spans:
                self.nvtx_range(thread, start, end, name, domain_id=_GIL_DOMAIN, registered=True)

    def python_sample(self, thread: Thread, time: int, stack: Sequence[tuple[str, str, int]], state: int = 1) -> None:
        """Write a sample of Python (``--python-sampling=true``): functions, files and lines, the innermost first."""
        if thread.process not in self._sampled:
            self._sampled = {*self._sampled, thread.process}
            self.nvtx_domain(thread, 0, _PYTHON_DOMAIN, "Python Periodic Sampling")
        frames = b"".join(struct.pack("<QQQ", self.intern(name), self.intern(file), line) for name, file, line in stack)
        body = struct.pack("<QII", 1, state, len(stack)) + frames
        header = struct.pack("<QQQQ", _PYTHON_DOMAIN, 1, len(body), 32)
        payload = NvtxPayload("", header + body)
        self.nvtx_range(thread, time, None, "", domain_id=_PYTHON_DOMAIN, style=MARK, payload=payload)

    def file_access(
        self, thread: Thread, start: int, end: int, name: str, path: str, size: int, *, stack: Stack = ()
    ) -> None:
        """Write a call that reads `size` bytes of a file, with its row of ``--osrt-file-access=true``."""
        self.osrt(thread, start, end, name, return_value=size, stack=stack)
        if path not in self._files:
            self._files = {**self._files, path: len(self._files) + 1}
            self.rows("OSRT_FILE_ACCESS_DESCRIPTORS").append((self._files[path], thread.process.pid, 0, 0, path))
        row = (self._files[path], thread.tid, start, end, _READ, self.intern(name), size, "")
        self.rows("OSRT_FILE_ACCESS_EVENTS").append(row)

    def nvtx_category(self, thread: Thread, time: int, category: int, name: str, *, domain_id: int = 0) -> None:
        """Write the name of a category of a domain."""
        self.nvtx_range(thread, time, None, name, domain_id=domain_id, style=CATEGORY, category=category)

    def mpi_rank(self, thread: Thread, rank: int) -> None:
        """Write the rank of the process of `thread` in MPI_COMM_WORLD."""
        self.rows("MPI_RANKS").append((thread.global_id, rank))

    def mpi_p2p(
        self, thread: Thread, start: int, end: int | None, name: str, *, peer: int, size: int, tag: int = 0
    ) -> None:
        """Write a point-to-point call (``MPI_Send``) of `size` bytes with rank `peer`."""
        text = self.intern(name)
        self.rows("MPI_P2P_EVENTS").append((start, end, thread.global_id, text, 0, tag, peer, size, None))

    def mpi_collective(
        self, thread: Thread, start: int, end: int | None, name: str, *,
        size: int = 0, receive_size: int = 0, root: int | None = None,
    ) -> None:  # fmt: skip
        """Write a collective call (``MPI_Allreduce``); sizes in bytes."""
        row = (start, end, thread.global_id, self.intern(name), 0, root, size, receive_size, None)
        self.rows("MPI_COLLECTIVES_EVENTS").append(row)

    def mpi_wait(self, thread: Thread, start: int, end: int | None, name: str) -> None:
        """Write a call that starts, tests or awaits requests (``MPI_Waitall``)."""
        self.rows("MPI_START_WAIT_EVENTS").append((start, end, thread.global_id, self.intern(name), None))

    def mpi_other(self, thread: Thread, start: int, end: int | None, name: str) -> None:
        """Write any other MPI call (``MPI_Init``)."""
        self.rows("MPI_OTHER_EVENTS").append((start, end, thread.global_id, self.intern(name)))

    def ucx(self, thread: Thread, start: int, end: int | None, name: str) -> None:
        """Write a UCX call that neither submits nor progresses anything (``ucp_worker_create``)."""
        self.rows("UCP_EVENTS").append((start, end, thread.global_id, self.intern(name)))

    def ucx_submit(self, thread: Thread, start: int, end: int | None, name: str, *, size: int = 0) -> None:
        """Write a UCX call that submits `size` bytes (``ucp_tag_send_nbx``)."""
        text = self.intern(name)
        self.rows("UCP_SUBMIT_EVENTS").append((start, end, thread.global_id, text, 0, size, 0, 0))

    def openmp(self, thread: Thread, start: int, end: int, name: str, *, kind: str = "PARALLEL") -> None:
        """Write an OpenMP event; `kind` is the end of its table's name (``TASK``, ``SYNC_REGION_WAIT``)."""
        self.add(
            f"OPENMP_EVENT_KIND_{kind}",
            start=start, end=end, eventClass=_OPENMP_CLASS, globalTid=thread.global_id, nameId=self.intern(name),
        )  # fmt: skip

    def openacc(
        self, thread: Thread, start: int, end: int, name: str, *, kind: str = "LAUNCH", file: str = "", line: int = 0,
        event_kind: int = 0, function: str = "", size: int | None = None,
    ) -> None:  # fmt: skip
        """Write an OpenACC event at a line of a source file, if one is given; `kind` is the end of its table's name.

        `event_kind` is CUPTI's number, and `size` the bytes of an event of the kind ``DATA``.
        """
        self.add(
            f"CUPTI_ACTIVITY_KIND_OPENACC_{kind}",
            start=start, end=end, nameId=self.intern(name), globalTid=thread.global_id, eventKind=event_kind,
            DeviceType=_NVIDIA_DEVICE, lineNo=line, cuDeviceId=0, cuContextId=1, cuStreamId=7,
            srcFile=self.intern(file) if file else None, funcName=self.intern(function) if function else None,
            **({} if size is None else {"bytes": size}),
        )  # fmt: skip

    def switch_metric(self, guid: int, start: int, end: int, values: Sequence[int]) -> None:
        """Write a sample interval of an InfiniBand switch: a value for every metric declared with `nic`."""
        self.rows("NET_IB_SWITCH_METRIC").extend(
            (start, end, guid, METRICS_LIST, index, value) for index, value in enumerate(values)
        )

    def generic_source(self, source_id: int, name: str) -> None:
        """Declare a source of generic events: a plugin, or a part of the profiler."""
        self.add("GENERIC_EVENT_SOURCES", sourceId=source_id, nameId=self.intern(name), timeSourceId=0, sourceGroupId=0)

    def generic_type(self, type_id: int, source_id: int, name: str, fields: Sequence[str]) -> None:
        """Declare a type of generic events with its fields."""
        self.rows("GENERIC_EVENT_TYPE_FIELDS").extend(
            (type_id, index, self.intern(field), 8 * index, 8, 0) for index, field in enumerate(fields)
        )
        self.add("GENERIC_EVENT_TYPES", typeId=type_id, sourceId=source_id, nameId=self.intern(name))

    def generic_event(self, time: int, type_id: int, values: Mapping[str, int | float]) -> None:
        """Write a generic event (schema 3.13 and later): its ``values`` by field, in the order of the type."""
        self._generic_events += 1
        event = self._generic_events
        self.rows("GENERIC_EVENTS").append((event, time, time, type_id, None, None))
        self.rows("GENERIC_EVENT_DATA").extend(
            (event, index, None, *((value, None, None) if isinstance(value, int) else (None, None, value)))
            for index, value in enumerate(values.values())
        )
