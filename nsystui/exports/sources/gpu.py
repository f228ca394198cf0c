"""GPU work and samples: kernels, memory operations, graphs, synchronisations, metrics."""

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import (
    GPU_EVENT,
    GPU_PROCESS,
    OF_GPU,
    Source,
    Transform,
    columns_of,
    declare,
    labelled,
    makes_source_of,
)

COPY_KINDS = dict(enumerate((
    "Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array",
    "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer",
    "Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device",
)))  # fmt: skip
MEMORY_KINDS = dict(
    enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"))
)
SYNC_TYPES = {0: "Unknown", 1: "Event sync", 2: "Stream wait sync", 3: "Stream sync", 4: "Context sync"}


_KERNEL = GPU_PROCESS | {
    "name": "coalesce(n.label, s.label, m.label, '[no name]')",
    "short_name": "coalesce(s.label, n.label, m.label, '[no name]')",
    "mangled_name": "m.value",
    "is_nccl": "coalesce(s.is_nccl, n.is_nccl, m.is_nccl, 0)",
}
_KERNEL_NAMES = {
    "n": "LEFT JOIN strings n ON n.id = name_id",
    "s": "LEFT JOIN strings s ON s.id = short_id",
    "m": "LEFT JOIN strings m ON m.id = mangled_id",
}
_FIRST_CHOICE = {"name": "n.label", "short_name": "s.label", "is_nccl": "s.is_nccl"}
declare("CUPTI_ACTIVITY_KIND_KERNEL",
    f"{GPU_EVENT} name_id:demangledName short_id:shortName mangled_id:mangledName "
    "grid_x:gridX grid_y:gridY grid_z:gridZ block_x:blockX block_y:blockY block_z:blockZ "
    "registers_per_thread:registersPerThread static_shared_memory:staticSharedMemory "
    "dynamic_shared_memory:dynamicSharedMemory local_memory_per_thread:localMemoryPerThread "
    "local_memory_total:localMemoryTotal graph_node_id:graphNodeId graph_id:graphId",
    kernels=Transform(_KERNEL, _KERNEL_NAMES, first_choice=_FIRST_CHOICE))  # fmt: skip

_COPY = GPU_PROCESS | {
    "operation": f"'[CUDA memcpy ' || {labelled('copy_kind', COPY_KINDS)} || ']'",
    "is_memset": "0",
    "source_memory": labelled("source_kind", MEMORY_KINDS),
    "target_memory": labelled("target_kind", MEMORY_KINDS),
}
declare("CUPTI_ACTIVITY_KIND_MEMCPY",
    f"{GPU_EVENT} bytes copy_kind:copyKind source_kind:srcKind target_kind:dstKind source_device:srcDeviceId "
    "target_device:dstDeviceId virtual_address:virtualAddress graph_node_id:graphNodeId",
    memory_ops=Transform(_COPY))  # fmt: skip

_OF_COPIES = ("copy_kind", "source_memory", "source_device", "target_device", "virtual_address")
_MEMSET = {"operation": "'[CUDA memset]'", "is_memset": "1", "target_memory": labelled("memory_kind", MEMORY_KINDS)}
declare("CUPTI_ACTIVITY_KIND_MEMSET", f"{GPU_EVENT} bytes memory_kind:memKind graph_node_id:graphNodeId",
    memory_ops=Transform(GPU_PROCESS | dict.fromkeys(_OF_COPIES, "NULL") | _MEMSET))  # fmt: skip

declare("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", f"{GPU_EVENT} graph_id:graphId graph_exec_id:graphExecId",
    graph_launches=Transform(GPU_PROCESS))  # fmt: skip

# Of ``cudaLaunchHostFunc`` and graphs' host nodes
declare("CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH",
    f"{GPU_EVENT} graph_node_id:graphNodeId graph_id:graphId",
    host_functions=Transform(GPU_PROCESS))  # fmt: skip


GRAPH_NODE_TABLES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")


def graph_nodes(schema: Schema) -> list[Source]:
    """Return the source of the nodes of graphs: until schema 3.12, ``CUDA_GRAPH_EVENTS`` contains them."""
    wanted = "thread:globalTid node:graphNodeId original:originalGraphNodeId"
    # A program may have made its graphs long before the capture.
    return [
        Source(
            table,
            {"time": schema.optional_time(table, "start"), **columns_of(schema, table, wanted)},
            {"graph_nodes": Transform(order="time")},
        )
        for table in GRAPH_NODE_TABLES
        if schema.has_column(table, "graphNodeId")
    ]


_NO_EVENT = 0xFFFFFFFF
_EVENT = "event:eventId event_sync:eventSyncId"
_EVENT_FIELDS = GPU_PROCESS | {
    name: f"CASE WHEN c.{name} NOT IN (0, {_NO_EVENT}) THEN c.{name} END" for name in ("event", "event_sync")
}

# Only the names of their calls show which rows wait for events: some versions of nsys shift the types by one.
declare("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", f"{GPU_EVENT} {_EVENT} sync_kind:syncType",
    syncs=Transform(_EVENT_FIELDS | {"sync_type": labelled("sync_kind", SYNC_TYPES)}))  # fmt: skip

# The API calls of recorded events have the times.
declare("CUPTI_ACTIVITY_KIND_CUDA_EVENT", f"{OF_GPU} {_EVENT}",
    cuda_events=Transform(_EVENT_FIELDS, order=""))  # fmt: skip

_METRIC_NAME = {"m": "LEFT JOIN gpu_metric_names m ON m.type_id = c.type_id AND m.metric_id = c.metric_id"}
declare("GPU_METRICS", "time:timestamp type_id:typeId metric_id:metricId value",
    gpu_metrics=Transform({"gpu": "c.type_id & 255", "metric": "m.metric"}, _METRIC_NAME, order="time"))  # fmt: skip


@makes_source_of("CUDA_UM_CPU_PAGE_FAULT_EVENTS")
def cpu_page_faults(schema: Schema, table: str) -> Source:
    """Return page faults of CUDA's unified memory (docs/exports.md#unified-memory); migrations are memory copies."""
    known = schema.columns.get(table, ())
    # Newest spellings first; nsys 2023 and older have neither.
    spellings = (("sourceFile", "SourceFile"), ("sourceLine", "SourceLine"))
    file, line = (next((name for name in names if name in known), names[0]) for names in spellings)
    wanted = f"start process:globalPid address instruction_id:CpuInstruction file_id:{file} source_line:{line}"
    # Empty, not missing, if the export has the column.
    source_file = "coalesce(f.value, '')" if schema.has_column(table, file) else "NULL"
    joins = {"i": "LEFT JOIN strings i ON i.id = instruction_id", "f": "LEFT JOIN strings f ON f.id = file_id"}
    transform = Transform({"instruction": "i.value", "source_file": source_file}, joins)
    return Source(table, columns_of(schema, table, wanted), {"cpu_page_faults": transform})


declare("CUDA_UM_GPU_PAGE_FAULT_EVENTS", "start end process:globalPid device:deviceId address count:numberOfPageFaults",
    gpu_page_faults=Transform())  # fmt: skip

# docs/exports.md#gpu-memory
declare("CUDA_GPU_MEMORY_USAGE_EVENTS",
    "start process:globalPid device:deviceId context:contextId address bytes memory_kind:memKind "
    "is_free:memoryOperationType correlation_id:correlationId name",
    gpu_memory=Transform({"memory": labelled("memory_kind", MEMORY_KINDS), "name": "nullif(name, '')"}))  # fmt: skip
