"""The columns of an Nsight Systems SQLite export, for every schema version the writer can imitate.

One compact description per table covers all versions. A column is written ``name:T!*@3.7<3.25``:

* ``:T`` TEXT, ``:R`` REAL, otherwise INTEGER;
* ``!`` NOT NULL, ``*`` (part of the) primary key;
* ``@3.7`` exists from schema 3.7 on, ``<3.25`` exists before schema 3.25 only.

A table name may carry ``@`` and ``<`` too. A version is the first in which a change was *seen*; columns whose first
version is not measured (``GPU_METRICS.rawTimestamp``, ``NVTX_EVENTS.eventId`` …) follow NVIDIA's documentation
(docs/exports.md#versions).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One export schema: its number and the nsys release that wrote it."""

    label: str
    """The version that the caller asks for: ``"3.25.0"``, or ``"2021"`` for exports older than any metadata table."""
    number: str
    product: str

    @property
    def version(self) -> Version:
        """(major, minor, micro)."""
        return _version(self.number)

    @property
    def has_export_metadata(self) -> bool:
        """False for the oldest exports, which have no metadata."""
        return self.label != "2021"


SCHEMAS: Final = {
    version.label: version
    for version in (
        SchemaVersion("2021", "2.8.0", "2021.5.2.53"),
        SchemaVersion("2.9.1", "2.9.1", "2022.2.1.31"),
        SchemaVersion("3.0.0", "3.0.0", "2022.4.2.1"),
        SchemaVersion("3.4.0", "3.4.0", "2023.3.1.92"),
        SchemaVersion("3.7.2", "3.7.2", "2023.4.4.54"),
        SchemaVersion("3.13.2", "3.13.2", "2024.5.1.113"),
        SchemaVersion("3.16.1", "3.16.1", "2024.6.2.225"),
        SchemaVersion("3.20.3", "3.20.3", "2025.3.2.367"),
        SchemaVersion("3.25.0", "3.25.0", "2026.2.1.210"),
        SchemaVersion("3.28.1", "3.28.1", "2026.4.1.60"),
    )
}
"""Every schema the writer knows, by label."""


def schema_version(label: str) -> SchemaVersion:
    """Return the schema called `label`. Raises `ValueError` with the known schemas if there is no such schema."""
    try:
        return SCHEMAS[label]
    except KeyError:
        raise ValueError(f"unknown export schema {label!r}; known: {', '.join(SCHEMAS)}") from None


@dataclass(frozen=True, slots=True)
class ColumnDeclaration:
    """One column as declared in ``CREATE TABLE``."""

    name: str
    type: str
    not_null: bool
    primary_key: bool

    def declaration(self, is_key: bool = False) -> str:
        """Return the column's line of a ``CREATE TABLE`` statement; ``is_key`` if it alone is the primary key."""
        constraint = (" NOT NULL" if self.not_null else "") + (" PRIMARY KEY" if is_key else "")
        return f"{self.name:<27} {self.type}{constraint}"


def declarations(columns: Sequence[ColumnDeclaration]) -> list[str]:
    """Return the lines of a ``CREATE TABLE`` statement."""
    keys = [column.name for column in columns if column.primary_key]
    lines = [column.declaration(keys == [column.name]) for column in columns]
    return [*lines, f"PRIMARY KEY ({', '.join(keys)})"] if len(keys) > 1 else lines


GPU_OPERATION = "start! end! deviceId! contextId! greenContextId@3.7 streamId! correlationId globalPid"
_FRAME = "symbol! module! kernelMode thumbCode unresolved specialEntry originalIP"

TABLES: Final = {
    "StringIds": "id!* value:T!",
    "NVTX_PAYLOAD_SCHEMAS@3.20": "domainId schemaId name:T type flags numEntries payloadSize alignTo",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES@3.20": (
        "domainId! schemaId! idx! flags type name:T description:T arrayOrUnionDetail offset"
    ),
    "NVTX_PAYLOAD_ENUMS@3.20": "domainId schemaId name:T numEntries size",
    "NVTX_PAYLOAD_ENUM_ENTRIES@3.20": "domainId! schemaId! idx! name:T value isFlag",
    "TARGET_INFO_SYSTEM_ENV": "globalVid!<3.4 globalVid@3.4 devStateName:T! name:T! nameEnum! value:T!",
    "TARGET_INFO_NIC_INFO@3.7": "GUID! stateName:T! nicId! name:T! deviceId! vendorId! linkLayer!",
    "NIC_ID_MAP@3.7": "nicId! globalId!",
    "TARGET_INFO_NETWORK_METRICS@3.7": "metricsListId! metricsIdx! name:T! description:T! unit:T!",
    "TARGET_INFO_SESSION_START_TIME": (
        "utcEpochNs utcTime:T localTime:T systemClockNs@3.24.7 sessionStartCntVctNs@3.28"
    ),
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "PROCESSES": "globalPid pid name:T",
    "ThreadNames": "nameId! priority globalTid",
    "ProcessStreams": "globalPid! filenameId! contentId!",
    "DIAGNOSTIC_EVENT@3.13": "timestamp! timestampType! source! severity! text:T! globalPid",
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{GPU_OPERATION} demangledName! shortName! mangledName launchType cacheConfig registersPerThread! "
        "gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! "
        "localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone@3.23 "
        "qmdPreexitDone@3.23 qmdLastCtaDone@3.23 graphId@3.23 clusterX@3.23 clusterY@3.23 clusterZ@3.23 "
        "clusterSchedulingPolicy@3.23 maxPotentialClusterSize@3.23 maxActiveClusters@3.23 "
        "sharedMemoryRequestedPercentage@3.24.8 tensorSizeMinusOneElements:T!@3.25"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{GPU_OPERATION} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId "
        "dstContextId migrationCause graphNodeId virtualAddress copyCount@3.23"
    ),
    "CUDA_GRAPH_EVENTS": (
        "start! end! eventClass! globalTid nameId! graphNodeId!<3.13 originalGraphNodeId<3.13 "
        "graphId@3.13 originalGraphId@3.13 graphExecId@3.13"
    ),
    "CUDA_GRAPH_NODE_EVENTS@3.13": "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{GPU_OPERATION} value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        f"{GPU_OPERATION} deprecatedSyncType@3.23 syncType! eventId! eventSyncId@3.17"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "timestamp@3.23 deviceId! contextId! greenContextId@3.7 streamId! correlationId globalPid eventId! "
        "eventSyncId@3.17"
    ),
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! returnValue!<3.24 overheadType!@3.24",
    "NVTX_EVENTS": (
        "start! end eventType! rangeId category color text:T globalTid endGlobalTid textId domainId uint64Value "
        "int64Value doubleValue:R uint32Value int32Value floatValue:R jsonTextId jsonText:T binaryData:T@3.16 "
        "eventId!*@3.28"
    ),
    "OSRT_API": "start! end! eventClass! globalTid nameId! returnValue! nestingLevel callchainId! argumentsId!@3.23",
    "OSRT_CALLCHAINS": f"id!* {_FRAME} unwindMethod stackDepth!*",
    "CUDA_CALLCHAINS": "id!* symbol! module! unresolved originalIP stackDepth!*",
    "SCHED_EVENTS": "start! cpu! isSchedIn! globalTid threadState@3.13 threadBlock@3.13",
    "COMPOSITE_EVENTS": "id!* start! cpu threadState globalTid cpuCycles!",
    "SAMPLING_CALLCHAINS": f"id!* {_FRAME} unwindMethod stackDepth!* symbolName:T<3.0",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        "start! globalPid! deviceId! contextId! address! pc! bytes! memKind! memoryOperationType! name:T correlationId "
        "localMemoryPoolAddress@3.0 localMemoryPoolReleaseThreshold@3.0 localMemoryPoolSize@3.0 "
        "localMemoryPoolUtilizedSize@3.0 importedMemoryPoolAddress@3.0 importedMemoryPoolProcessId@3.0"
    ),
    "GPU_METRICS@3.1": "rawTimestamp@3.13 timestamp typeId! metricId! value!",
    "NET_NIC_METRIC@3.7": "start! end! globalId! portId@3.22 metricsListId! metricsIdx! value!",
    "TARGET_INFO_GPU_METRICS@3.1": "typeId! sourceId! typeName:T! metricId! metricName:T!",
    "TARGET_INFO_GPU": (
        "vmId! id! name:T busLocation:T isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount pwGpuId "
        "uuid:T luid chipName:T cuDevice ctxswDevPath:T ctrlDevPath:T revision nodeMask constantMemory maxIPC "
        "maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp "
        "asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ "
        "maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor numaNodeId@3.28"
    ),
    "TARGET_INFO_CUDA_DEVICE@3.17": "gpuId cudaId! pid! uuid:T@3.24.7 numMultiprocessors@3.24.7",
    "TARGET_INFO_CUDA_NULL_STREAM<3.7": "streamId! hwId! vmId! processId! deviceId! contextId!",
    "TARGET_INFO_CUDA_CONTEXT_INFO@3.7": (
        "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId isGreenContext "
        "numMultiprocessors@3.24.7 numTpcs@3.25 tpcMask:T@3.25 workqueueResourceId@3.25 "
        "workqueueConcurrencyLimit@3.25 workqueueSharingScope@3.25"
    ),
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_NVTX_CUDA_STREAM": "name:T! hwId! vmId! processId! deviceId! contextId! streamId!",
    "META_DATA_CAPTURE@3.4": "name:T! value:T",
    "EXPORT_META_DATA<3.4": "name:T! value:T",
    "META_DATA_EXPORT@3.4": "name:T! value:T",
}
"""The descriptions of the tables that the writer has."""

_WORD = re.compile(
    r"(?P<name>\w+)(?::(?P<type>[TR]))?(?P<notnull>!)?(?P<key>\*)?"
    r"(?:@(?P<since>[\d.]+))?(?:<(?P<until>[\d.]+))?"
)
_TYPES: Final = {"T": "TEXT", "R": "REAL", None: "INTEGER"}


def _version(text: str) -> Version:
    return tuple(map(int, text.split(".")))


def _exists(word: re.Match[str], version: Version) -> bool:
    since, until = word["since"], word["until"]
    return (since is None or version >= _version(since)) and (until is None or version < _version(until))


def _parse(text: str) -> re.Match[str]:
    word = _WORD.fullmatch(text)
    if word is None:
        raise ValueError(f"not a column description: {text!r}")
    return word


class Tables:
    """Described tables; the keys of ``descriptions`` are their names, with the versions that have them."""

    def __init__(self, descriptions: Mapping[str, str]) -> None:
        self._headers = {header["name"]: header for header in map(_parse, descriptions)}
        words = (list(map(_parse, text.split())) for text in descriptions.values())
        self._words = dict(zip(self._headers, words, strict=True))
        self.row_columns = {
            table: tuple(dict.fromkeys(word["name"] for word in self._words[table])) for table in self._words
        }
        """Every column of a table in *any* version, in the order of the writer's rows."""

    def columns(self, table: str, version: Version) -> tuple[ColumnDeclaration, ...]:
        """Return the columns of `table` in a schema version, in declaration order; empty without the table.

        Raises `KeyError` if the table is not described.
        """
        if not _exists(self._headers[table], version):
            return ()
        return tuple(
            ColumnDeclaration(word["name"], _TYPES[word["type"]], word["notnull"] is not None, word["key"] is not None)
            for word in self._words[table]
            if _exists(word, version)
        )

    def names(self, version: Version) -> tuple[str, ...]:
        """Return the tables that exist in one schema version (without the ``ENUM_*`` tables), in creation order."""
        return tuple(name for name, header in self._headers.items() if _exists(header, version))


EnumRow = tuple[int, str, str]


def _numbered(prefix: str, *labels: tuple[str, str]) -> tuple[EnumRow, ...]:
    return tuple((number, prefix + symbol, label) for number, (symbol, label) in enumerate(labels))


def _plain(**names: int) -> tuple[EnumRow, ...]:
    return tuple((number, name, name) for name, number in names.items())


# fmt: off
_ENUMS: Final[dict[str, tuple[Version, tuple[EnumRow, ...]]]] = {
    "ENUM_NSYS_EVENT_TYPE": (
        (3, 0),
        _plain(
            Unknown=0, CpuCycles=1, SchedSwitch=25, NvtxCategory=33, NvtxMark=34, NvtxThread=39, NvtxPushPopRange=59,
            NvtxStartEndRange=60, NvtxtPushPopRange=70, NvtxtStartEndRange=71, NvtxDomainCreate=75,
            NvtxDomainDestroy=76,
        ),
    ),
    "ENUM_NSYS_EVENT_CLASS": (
        (3, 0),
        (
            (0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
            (1, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
            (13, "TRACE_PROCESS_EVENT_CUDA_EGL_DRIVER", "CUDA EGL driver"),
            (27, "TRACE_PROCESS_EVENT_OS_RUNTIME", "OSRT runtime"),
            (67, "TRACE_PROCESS_EVENT_CUDABACKTRACE", "CUDA backtrace"),
            (77, "TRACE_PROCESS_EVENT_CUDA_GRAPH_NODE_CREATION", "CUDA graph node creation"),
            (95, "TRACE_PROCESS_EVENT_CUDA_GRAPH_CREATION", "CUDA graph creation"),
        ),
    ),
    "ENUM_CUDA_MEMCPY_OPER": (
        (3, 0),
        _numbered(
            "CUDA_MEMCPY_KIND_",
            ("UNKNOWN", "Unknown"), ("HTOD", "Host-to-Device"), ("DTOH", "Device-to-Host"), ("HTOA", "Host-to-Array"),
            ("ATOH", "Array-to-Host"), ("ATOA", "Array-to-Array"), ("ATOD", "Array-to-Device"),
            ("DTOA", "Device-to-Array"), ("DTOD", "Device-to-Device"), ("HTOH", "Host-to-Host"),
            ("PTOP", "Peer-to-Peer"), ("UVM_HTOD", "Unified Host-to-Device"), ("UVM_DTOH", "Unified Device-to-Host"),
            ("UVM_DTOD", "Unified Device-to-Device"),
        ),
    ),
    "ENUM_CUDA_MEM_KIND": (
        (3, 0),
        _numbered(
            "CUDA_MEMOPR_MEMORY_KIND_",
            ("PAGEABLE", "Pageable"), ("PINNED", "Pinned"), ("DEVICE", "Device"), ("ARRAY", "Array"),
            ("MANAGED", "Managed"), ("DEVICE_STATIC", "Device Static"), ("MANAGED_STATIC", "Managed Static"),
            ("UNKNOWN", "Unknown"),
        ),
    ),
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": (
        (3, 0),
        _numbered(
            "CUDA_KERNEL_LAUNCH_TYPE_",
            ("UNKNOWN", "Unknown"), ("REGULAR", "Regular"), ("COOPERATIVE_SINGLE_DEVICE", "Coop Single Device"),
            ("COOPERATIVE_MULTI_DEVICE", "Coop Multi Device"),
        ),
    ),
    "ENUM_CUDA_SHARED_MEM_LIMIT_CONFIG": (
        (3, 0),
        _numbered("CUDA_SHARED_MEM_LIMIT_", ("DEFAULT", "Default"), ("OPTIN", "Opt in")),
    ),
    "ENUM_CUDA_UNIF_MEM_MIGRATION": (
        (3, 0),
        _numbered(
            "CUDA_UNIFIED_MEMORY_MIGRATION_CAUSE_",
            ("UNKNOWN", "Unknown"), ("USER", "User prefetch"), ("COHERENCE", "Page fault"),
            ("PREFETCH", "Speculative prefecth"), ("EVICTION", "Eviction"), ("ACCESS_COUNTERS", "Access counters"),
        ),
    ),
    "ENUM_CUDA_UNIF_MEM_ACCESS_TYPE": (
        (3, 0),
        _numbered(
            "CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_",
            ("UNKNOWN", "Unknown"), ("READ", "Read"), ("WRITE", "Write"), ("ATOMIC", "Atomic"),
            ("PREFETCH", "Prefetch"),
        ),
    ),
    "ENUM_CUDA_FUNC_CACHE_CONFIG": (
        (3, 0),
        _numbered(
            "CU_FUNC_CACHE_PREFER_", ("NONE", "None"), ("SHARED", "Shared"), ("L1", "L1"), ("EQUAL", "Equal")
        ),
    ),
    "ENUM_CUDA_DEV_MEM_EVENT_OPER": (
        (3, 0),
        (
            (0, "CUDA_DEV_MEM_EVENT_OPR_ALLOCATION", "Allocation"),
            (1, "CUDA_DEV_MEM_EVENT_OPR_DEALLOCATION", "Deallocation"),
        ),
    ),
    "ENUM_SAMPLING_THREAD_STATE": (
        (3, 0),
        (
            *_plain(
                Unknown=0, Running=1, Interruptible=2, Uninterruptible=3, Stopped=4, Terminated=5, Unscheduled=6,
                Waiting=7,
            ),
            (8, "OSRuntime", "OS runtime"),
            *_plain(Initialized=9, Transition=10),
        ),
    ),
    "ENUM_STACK_UNWIND_METHOD": (
        (3, 0),
        (
            (0, "Unknown", "Unknown"), (1, "FramePointer", "Frame pointer"), (2, "UnwindTable", "Unwind table"),
            (3, "LR_FramePointer", "LR frame pointer"), (4, "LR_UnwindTable", "LR unwind table"),
            (5, "KernelContext", "Kernel context"), (6, "DWARF_EH", "DWARF EH"), (7, "DWARF_DF", "DWARF DF"),
            (8, "LBR", "LBR"), (1000, "Undefined", "Undefined"),
        ),
    ),
    "ENUM_SCHEDULING_THREAD_BLOCK": (
        (3, 13),
        _plain(NonBlocked=0, Unknown=1, SigSuspend=2, Stopped=3, Nanosleep=4, Intr=5, Mutex=6, CondVar=7, Sem=8),
    ),
    "ENUM_CUPTI_STREAM_TYPE": (
        (3, 4),
        _numbered(
            "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_",
            ("UNKNOWN", "Unknown stream type"), ("DEFAULT", "Default stream"),
            ("NON_BLOCKING", "Non-blocking stream"), ("NULL", "Null stream"),
        ),
    ),
    "ENUM_CUPTI_SYNC_TYPE": (
        (3, 0),
        _numbered(
            "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_",
            ("UNKNOWN", "Unknown"), ("EVENT_SYNCHRONIZE", "Event sync"), ("STREAM_WAIT_EVENT", "Stream wait sync"),
            ("STREAM_SYNCHRONIZE", "Stream sync"), ("CONTEXT_SYNCHRONIZE", "Context sync"),
        ),
    ),
    "ENUM_CUPTI_OVERHEAD_TYPE": (
        (3, 25),
        _numbered(
            "OVERHEAD_",
            ("UNDEFINED", "Undefined"), ("UNKNOWN", "Unknown"), ("DRIVER_COMPILER", "Driver JIT compiler (CUDA)"),
            ("CUPTI_BUFFER_FLUSH", "Buffer flush (Profiler)"),
            ("CUPTI_INSTRUMENTATION", "Instrumentation (Profiler)"),
            ("CUPTI_RESOURCE", "Resource creation/destruction (Profiler)"),
            ("RUNTIME_TRIGGERED_MODULE_LOADING", "Runtime module loading (CUDA)"),
            ("LAZY_FUNCTION_LOADING", "Lazy function loading (CUDA)"),
            ("COMMAND_BUFFER_FULL", "Command buffer full (CUDA)"),
        ),
    ),
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": (
        (3, 13),
        (
            (0, "UnknownLevel", "Unknown"), (1, "Info", "Info"), (2, "Warning", "Warning"), (3, "Error", "Error"),
            (4, "Verbose", "Verbose"),
        ),
    ),
    "ENUM_DIAGNOSTIC_SOURCE_TYPE": (
        (3, 13),
        (
            (0, "UnknownSource", "Unknown source"), (1, "Injection", "Injection"), (2, "Daemon", "Daemon"),
            (3, "Analysis", "Analysis"),
        ),
    ),
    "ENUM_DIAGNOSTIC_TIMESTAMP_SOURCE": (
        (3, 13),
        (
            (0, "UnknownTimestamp", "Unknown timestamp"), (1, "TargetTimestamp", "Target timestamp"),
            (2, "HostTimestamp", "Host timestamp"),
        ),
    ),
}
# fmt: on


def enum_tables(version: Version) -> dict[str, tuple[EnumRow, ...]]:
    """Return the ``ENUM_*`` tables of one schema version with their rows (id, symbol, label); none before 3.0.0.

    3.0.0 really does spell one of them ``ENUM_CUDA_KRENEL_LAUNCH_TYPE``. Only nsys's enums for tables of the writer
    are here.
    """
    found = {name: rows for name, (since, rows) in _ENUMS.items() if version >= since}
    if (3, 0) <= version < (3, 4):
        found = {name.replace("CUDA_KERNEL", "CUDA_KRENEL"): rows for name, rows in found.items()}
    return found
