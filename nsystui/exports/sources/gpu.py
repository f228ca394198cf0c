"""What ran on the GPU and what was sampled there: kernels, memory operations, graphs, synchronisations, metrics."""

from __future__ import annotations

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import PLACE, PLACE_NAMES, Source, integers, labelled

COPY_KINDS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
MEMORY_KINDS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
    7: "Unknown",
}
SYNC_TYPES = {
    0: "Unknown",
    1: "Event sync",
    2: "Stream wait sync",
    3: "Stream sync",
    4: "Context sync",
}


def kernels(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    shape = {
        "grid_x": "gridX",
        "grid_y": "gridY",
        "grid_z": "gridZ",
        "block_x": "blockX",
        "block_y": "blockY",
        "block_z": "blockZ",
        "registers_per_thread": "registersPerThread",
        "static_shared_memory": "staticSharedMemory",
        "dynamic_shared_memory": "dynamicSharedMemory",
        "local_memory_per_thread": "localMemoryPerThread",
        "graph_node_id": "graphNodeId",
    }
    names = {"name_id": "demangledName", "short_id": "shortName", "mangled_id": "mangledName"}
    return Source(
        table,
        integers(schema, table, {**PLACE, **names, **shape}),
        {
            "kernels": f"SELECT row_id AS row, {PLACE_NAMES}, coalesce(n.value, s.value, m.value) AS name, "
            "coalesce(s.value, n.value, m.value) AS short_name, m.value AS mangled_name, "
            "CAST(lower(coalesce(s.value, n.value, m.value, '')) LIKE 'nccl%' AS BIGINT) AS is_nccl, "
            f"{', '.join(shape)} FROM chunk LEFT JOIN strings n ON n.id = name_id "
            'LEFT JOIN strings s ON s.id = short_id LEFT JOIN strings m ON m.id = mangled_id ORDER BY "start", row_id'
        },
    )


def memcpys(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_MEMCPY"
    rest = {
        "bytes": "bytes",
        "copy_kind": "copyKind",
        "source_kind": "srcKind",
        "target_kind": "dstKind",
        "source_device": "srcDeviceId",
        "target_device": "dstDeviceId",
        "virtual_address": "virtualAddress",
        "graph_node_id": "graphNodeId",
    }
    return Source(
        table,
        integers(schema, table, {**PLACE, **rest}),
        {
            "memory_ops": f"SELECT row_id AS row, {PLACE_NAMES}, "
            f"'[CUDA memcpy ' || {labelled('copy_kind', COPY_KINDS)} || ']' AS operation, 0 AS is_memset, copy_kind, "
            f"bytes, {labelled('source_kind', MEMORY_KINDS)} AS source_memory, "
            f"{labelled('target_kind', MEMORY_KINDS)} AS target_memory, source_device, target_device, virtual_address, "
            "graph_node_id "
            'FROM chunk ORDER BY "start", row_id'
        },
    )


def memsets(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_MEMSET"
    rest = {"bytes": "bytes", "memory_kind": "memKind", "graph_node_id": "graphNodeId"}
    first_row = schema.last_rowid.get("CUPTI_ACTIVITY_KIND_MEMCPY", 0)
    return Source(
        table,
        integers(schema, table, {**PLACE, **rest}),
        {
            "memory_ops": f"SELECT row_id + {first_row} AS row, {PLACE_NAMES}, '[CUDA memset]' AS operation, "
            "1 AS is_memset, NULL AS copy_kind, bytes, NULL AS source_memory, "
            f"{labelled('memory_kind', MEMORY_KINDS)} AS target_memory, NULL AS source_device, NULL AS target_device, "
            'NULL AS virtual_address, graph_node_id FROM chunk ORDER BY "start", row_id'
        },
        first_row,
    )


def graph_launches(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    return Source(
        table,
        integers(schema, table, {**PLACE, "graph_id": "graphId", "graph_exec_id": "graphExecId"}),
        {
            "graph_launches": f"SELECT row_id AS row, {PLACE_NAMES}, graph_id, graph_exec_id "
            'FROM chunk ORDER BY "start", row_id'
        },
    )


def syncs(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    return Source(
        table,
        integers(schema, table, {**PLACE, "sync_kind": "syncType"}),
        {
            "syncs": f"SELECT row_id AS row, {PLACE_NAMES}, {labelled('sync_kind', SYNC_TYPES)} AS sync_type "
            'FROM chunk ORDER BY "start", row_id'
        },
    )


def gpu_metrics(schema: Schema) -> Source:
    table = "GPU_METRICS"
    wanted = {"time": "timestamp", "type_id": "typeId", "metric_id": "metricId", "value": "value"}
    return Source(
        table,
        integers(schema, table, wanted),
        {
            "gpu_metrics": 'SELECT row_id AS row, "time", c.type_id & 255 AS gpu, m.metric, CAST(value AS DOUBLE) '
            "AS value FROM chunk c LEFT JOIN gpu_metric_names m ON m.type_id = c.type_id AND m.metric_id = c.metric_id "
            'WHERE "time" IS NOT NULL ORDER BY "time", row_id'
        },
    )
