"""The columns of an Nsight Systems SQLite export, for every schema version the demo writer can imitate.

One compact description per table covers all versions. A column is written ``name:T!*@3.7<3.25``:

* ``:T`` TEXT, ``:R`` REAL, otherwise INTEGER;
* ``!`` NOT NULL, ``*`` primary key;
* ``@3.7`` exists from schema 3.7 on, ``<3.25`` exists before schema 3.25 only.

A table name may carry ``@`` and ``<`` too. Versions are those in which a change was first *seen*; columns whose first
version nobody has measured (``GPU_METRICS.rawTimestamp``, ``NVTX_EVENTS.eventId`` …) follow NVIDIA's documentation
(docs/exports.md#versions).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One export schema: its number and the nsys release that wrote it."""

    label: str
    """What the caller asks for: ``"3.25.0"``, or ``"2021"`` for exports older than any metadata table."""
    number: str
    product: str

    @property
    def version(self) -> Version:
        """(major, minor): the micro part never changes a column."""
        major, minor, _micro = self.number.split(".")
        return int(major), int(minor)

    @property
    def has_export_metadata(self) -> bool:
        """False for the oldest exports, which say nothing about themselves."""
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
    """The schema called `label`. Raises `ValueError` naming the known ones if there is no such schema."""
    try:
        return SCHEMAS[label]
    except KeyError:
        raise ValueError(f"unknown export schema {label!r}; known: {', '.join(SCHEMAS)}") from None


@dataclass(frozen=True, slots=True)
class Column:
    """One column as declared in ``CREATE TABLE``."""

    name: str
    type: str
    not_null: bool
    primary_key: bool

    def declaration(self) -> str:
        """The column's line of a ``CREATE TABLE`` statement."""
        constraint = (" NOT NULL" if self.not_null else "") + (" PRIMARY KEY" if self.primary_key else "")
        return f"{self.name:<27} {self.type}{constraint}"


_GPU_OPERATION = "start! end! deviceId! contextId! greenContextId@3.7 streamId! correlationId globalPid"
_OPENMP_EVENT = "start! end! eventClass! globalTid correlationId nameId! eventKind"
_OPENACC_EVENT = (
    "start! end! nameId! globalTid eventKind! DeviceType! lineNo! cuDeviceId! cuContextId! cuStreamId! srcFile funcName"
)

_TABLES: Final = {
    "StringIds": "id!* value:T!",
    "ANALYSIS_FILE@3.13": "id!* filename:T!<3.16 filename:T@3.16 content:T!<3.16 contentId@3.16 globalPid!",
    "ProcessStreams": "globalPid! filenameId! contentId!",
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
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs utcTime:T localTime:T systemClockNs@3.25 sessionStartCntVctNs@3.28"),
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "PROCESSES": "globalPid pid name:T",
    "ThreadNames": "nameId! priority globalTid",
    "DIAGNOSTIC_EVENT@3.13": "timestamp! timestampType! source! severity! text:T! globalPid",
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_GPU_OPERATION} demangledName! shortName! mangledName launchType cacheConfig registersPerThread! "
        "gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! "
        "localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone@3.25 "
        "qmdPreexitDone@3.25 qmdLastCtaDone@3.25 graphId@3.25 clusterX@3.25 clusterY@3.25 clusterZ@3.25 "
        "clusterSchedulingPolicy@3.25 maxPotentialClusterSize@3.25 maxActiveClusters@3.25 "
        "sharedMemoryRequestedPercentage@3.25 tensorSizeMinusOneElements:T!@3.25"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{_GPU_OPERATION} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId "
        "dstContextId migrationCause graphNodeId virtualAddress copyCount@3.25"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_GPU_OPERATION} value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE@3.0": f"{_GPU_OPERATION} graphId! graphExecId!",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        f"{_GPU_OPERATION} deprecatedSyncType@3.25 syncType! eventId! eventSyncId@3.25"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "timestamp@3.25 deviceId! contextId! greenContextId@3.7 streamId! correlationId globalPid eventId! "
        "eventSyncId@3.25"
    ),
    "CUPTI_ACTIVITY_KIND_OVERHEAD@3.25": "start! end! eventClass! globalTid correlationId nameId overheadType!",
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! returnValue!<3.25 overheadType!@3.25",
    "CUDA_GRAPH_EVENTS": (
        "start! end! eventClass! globalTid nameId! graphNodeId!<3.13 originalGraphNodeId<3.13 "
        "graphId@3.13 originalGraphId@3.13 graphExecId@3.13"
    ),
    "CUDA_GRAPH_NODE_EVENTS@3.13": "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": (
        "start! globalPid! address! originalFaultPc CpuInstruction! module! unresolvedFaultPc sourceFile@3.28 "
        "sourceLine@3.28"
    ),
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": ("start! end! globalPid! deviceId! address! numberOfPageFaults! faultAccessType!"),
    "NVTX_EVENTS": (
        "start! end eventType! rangeId category color text:T globalTid endGlobalTid textId domainId uint64Value "
        "int64Value doubleValue:R uint32Value int32Value floatValue:R jsonTextId jsonText:T binaryData:T@3.16 "
        "eventId!*@3.28"
    ),
    "OSRT_API": "start! end! eventClass! globalTid nameId! returnValue! nestingLevel callchainId!",
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
    "GPU_METRICS@3.1": "rawTimestamp@3.13 timestamp typeId! metricId! value!",
    "GENERIC_EVENT_SOURCES@3.7": (
        "sourceId!* nameId!@3.13 timeSourceId!@3.13 sourceGroupId!@3.13 data:T!<3.13 data:T@3.13"
    ),
    "GENERIC_EVENT_TYPES@3.7": "typeId!* sourceId! nameId!@3.13 data:T!<3.13 data:T@3.13",
    "GENERIC_EVENT_TYPE_FIELDS@3.13": "typeId! fieldIdx! fieldNameId! offset! size! type!",
    "GENERIC_EVENTS@3.7": (
        "genericEventId!*@3.13 rawTimestamp! timestamp typeId! globalTid@3.13 data:T!<3.13 data:T@3.13"
    ),
    "GENERIC_EVENT_DATA@3.13": "genericEventId! fieldIdx! intVal uintVal floatVal:R doubleVal:R",
    "NET_NIC_METRIC@3.7": "start! end! globalId! portId@3.22 metricsListId! metricsIdx! value!",
    "NET_IB_SWITCH_METRIC@3.7": "start! end! globalId! metricsListId! metricsIdx! value!",
    "TARGET_INFO_GPU_METRICS@3.1": "typeId! sourceId! typeName:T! metricId! metricName:T!",
    "TARGET_INFO_GPU": (
        "vmId! id! name:T busLocation:T isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount pwGpuId "
        "uuid:T luid chipName:T cuDevice ctxswDevPath:T ctrlDevPath:T revision nodeMask constantMemory maxIPC "
        "maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp "
        "asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ "
        "maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor numaNodeId@3.28"
    ),
    "TARGET_INFO_CUDA_DEVICE@3.20": "gpuId cudaId! pid! uuid:T@3.25 numMultiprocessors@3.25",
    "TARGET_INFO_CUDA_NULL_STREAM<3.7": "streamId! hwId! vmId! processId! deviceId! contextId!",
    "TARGET_INFO_CUDA_CONTEXT_INFO@3.7": (
        "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId isGreenContext "
        "numMultiprocessors@3.25 numTpcs@3.25 tpcMask:T@3.25 workqueueResourceId@3.25 "
        "workqueueConcurrencyLimit@3.25 workqueueSharingScope@3.25"
    ),
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_NVTX_CUDA_STREAM": "name:T! hwId! vmId! processId! deviceId! contextId! streamId!",
    "META_DATA_CAPTURE@3.4": "name:T! value:T",
    "EXPORT_META_DATA<3.4": "name:T! value:T",
    "META_DATA_EXPORT@3.4": "name:T! value:T",
}

_WORD = re.compile(
    r"(?P<name>\w+)(?::(?P<type>[TR]))?(?P<notnull>!)?(?P<key>\*)?"
    r"(?:@(?P<since>\d+\.\d+))?(?:<(?P<until>\d+\.\d+))?"
)
_TYPES: Final = {"T": "TEXT", "R": "REAL", None: "INTEGER"}


def _version(text: str) -> Version:
    major, minor = text.split(".")
    return int(major), int(minor)


def _exists(word: re.Match[str], version: Version) -> bool:
    since, until = word["since"], word["until"]
    return (since is None or version >= _version(since)) and (until is None or version < _version(until))


def _parse(text: str) -> re.Match[str]:
    word = _WORD.fullmatch(text)
    if word is None:
        raise ValueError(f"not a column description: {text!r}")
    return word


_BY_NAME: Final = {_parse(header)["name"]: (_parse(header), columns) for header, columns in _TABLES.items()}


@cache
def row_columns(table: str) -> tuple[str, ...]:
    """Every column `table` has in *any* version, in order: the order in which the writer's rows are built.

    Raises `KeyError` if the writer does not know the table.
    """
    return tuple(dict.fromkeys(_parse(text)["name"] for text in _BY_NAME[table][1].split()))


@cache
def columns(table: str, version: Version) -> tuple[Column, ...]:
    """The columns of `table` in one schema version, in declaration order; empty if that version has no such table."""
    header, description = _BY_NAME[table]
    if not _exists(header, version):
        return ()
    words = [word for word in map(_parse, description.split()) if _exists(word, version)]
    return tuple(
        Column(word["name"], _TYPES[word["type"]], word["notnull"] is not None, word["key"] is not None)
        for word in words
    )


def tables(version: Version) -> tuple[str, ...]:
    """The tables that exist in one schema version (without the ``ENUM_*`` tables), in creation order."""
    return tuple(name for name, (header, _columns) in _BY_NAME.items() if _exists(header, version))
