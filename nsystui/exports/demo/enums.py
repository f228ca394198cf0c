"""The ``ENUM_*`` tables of an export (schema 3.0.0 and later): number, symbol and label of every coded value."""

from __future__ import annotations

from typing import Final

from .schema import Version

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
    """The ``ENUM_*`` tables of one schema version with their rows (id, symbol, label); none before 3.0.0.

    3.0.0 really does spell one of them ``ENUM_CUDA_KRENEL_LAUNCH_TYPE``. Of the enums that nsys writes, only those
    that belong to tables of the demo writer are here.
    """
    found = {name: rows for name, (since, rows) in _ENUMS.items() if version >= since}
    if (3, 0) <= version < (3, 4):
        found = {name.replace("CUDA_KERNEL", "CUDA_KRENEL"): rows for name, rows in found.items()}
    return found
