"""How NVIDIA's tables become the canonical ones: for each native table, what to read and how to turn it.

A source reads plain integers (and the few inline texts) from SQLite in chunks by rowid; DuckDB then resolves names
with the lookup tables of ``LOOKUPS``. The SQL here is made of the words of this file and of nothing that a file or a
user says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nsystui.exports.schema import Schema

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
SEVERITIES = {0: "Unknown", 1: "Info", 2: "Warning", 3: "Error", 4: "Verbose"}

# NVTX event types (domain §1.6)
RANGE_TYPES = (59, 60, 70, 71)
MARK_TYPE = 34
DOMAIN_TYPE = 75
BACKTRACE_CLASS = 67
# "profiling started" and "profiling finished": notes of nsys, not calls
_OS_MARKERS = (31, 32)


@dataclass(frozen=True)
class Source:
    """One native table: the SQLite column list to read, and the DuckDB SELECTs over ``chunk`` that it feeds.

    ``first_row`` is added to rowids, so that two native tables can share one canonical table.
    """

    table: str
    select: str
    transforms: Mapping[str, str]
    first_row: int = 0

    @property
    def scan(self) -> str:
        """The SQLite query for one chunk; the two rowids are to be filled in as integers."""
        return f'SELECT rowid AS row_id, {self.select} FROM "{self.table}" WHERE rowid BETWEEN %d AND %d'


@dataclass(frozen=True)
class Lookup:
    """A small table that transforms join with: the SQLite query that fills it and its DuckDB definition."""

    name: str
    definition: str
    table: str
    query: str
    resolve: str


def lookups(schema: Schema) -> list[Lookup]:
    """The lookup tables of an export; one whose native table is absent is made empty."""
    found = []
    nvtx = "NVTX_EVENTS"
    found.append(
        Lookup(
            "strings",
            "id BIGINT, value VARCHAR",
            "StringIds",
            f"SELECT id, {schema.text('StringIds', 'value')} AS value FROM StringIds",
            "SELECT id, value FROM incoming",
        )
    )
    found.append(
        Lookup(
            "domains",
            "process BIGINT, domain_id BIGINT, domain VARCHAR",
            nvtx,
            f"SELECT {schema.integer(nvtx, 'globalTid')} AS thread, {schema.integer(nvtx, 'domainId')} AS domain_id, "
            f"{schema.text(nvtx, 'text')} AS text, {schema.integer(nvtx, 'textId')} AS text_id "
            f"FROM NVTX_EVENTS WHERE eventType = {DOMAIN_TYPE}",
            f"SELECT {_process('thread')}, domain_id, any_value({_NVTX_TEXT}) FROM incoming "
            "LEFT JOIN strings s ON s.id = text_id GROUP BY 1, 2",
        )
    )
    metrics = "TARGET_INFO_GPU_METRICS"
    found.append(
        Lookup(
            "gpu_metric_names",
            "type_id BIGINT, metric_id BIGINT, metric VARCHAR",
            metrics,
            f"SELECT {schema.integer(metrics, 'typeId')} AS type_id, {schema.integer(metrics, 'metricId')} "
            f"AS metric_id, {schema.text(metrics, 'metricName')} AS metric FROM {metrics}",
            "SELECT type_id, metric_id, any_value(metric) FROM incoming GROUP BY 1, 2",
        )
    )
    network = "TARGET_INFO_NETWORK_METRICS"
    found.append(
        Lookup(
            "nic_metric_names",
            "list_id BIGINT, metric_index BIGINT, metric VARCHAR, unit VARCHAR",
            network,
            f"SELECT {schema.integer(network, 'metricsListId')} AS list_id, {schema.integer(network, 'metricsIdx')} "
            f"AS metric_index, {schema.text(network, 'name')} AS metric, {schema.text(network, 'unit')} AS unit "
            f"FROM {network}",
            "SELECT list_id, metric_index, any_value(metric), any_value(unit) FROM incoming GROUP BY 1, 2",
        )
    )
    return found


def sources(schema: Schema) -> list[Source]:
    """The sources of the event tables that ``schema`` has with rows in them, largest questions first."""
    makers: dict[str, Callable[[Schema], Source]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": _kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": _memcpys,
        "CUPTI_ACTIVITY_KIND_MEMSET": _memsets,
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _graph_launches,
        "CUPTI_ACTIVITY_KIND_RUNTIME": _api_calls,
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _syncs,
        "NVTX_EVENTS": _nvtx,
        "GPU_METRICS": _gpu_metrics,
        "NET_NIC_METRIC": _nic_metrics,
        "MPI_P2P_EVENTS": _mpi("MPI_P2P_EVENTS", "p2p", 0),
        "MPI_COLLECTIVES_EVENTS": _mpi("MPI_COLLECTIVES_EVENTS", "collective", 1),
        "MPI_START_WAIT_EVENTS": _mpi("MPI_START_WAIT_EVENTS", "wait", 2),
        "MPI_OTHER_EVENTS": _mpi("MPI_OTHER_EVENTS", "other", 3),
        "OSRT_API": _os_calls,
        "DIAGNOSTIC_EVENT": _diagnostics,
        "PROCESSES": _processes,
        "ThreadNames": _threads,
    }
    return [make(schema) for table, make in makers.items() if schema.has(table)]


def _process(thread: str) -> str:
    """SQL for the globalPid of a globalTid: the lowest 24 bits are the thread."""
    return f"({thread} & -16777216)"


def _labels(column: str, labels: Mapping[int, str]) -> str:
    """SQL that words an enum value with NVIDIA's label; an unknown value keeps its number."""
    cases = " ".join(f"WHEN {value} THEN '{label}'" for value, label in labels.items())
    return f"CASE {column} {cases} ELSE CAST({column} AS VARCHAR) END"


def _columns(schema: Schema, table: str, wanted: Mapping[str, str]) -> str:
    """A SQLite column list: ``wanted`` maps our names to NVIDIA's, all integers."""
    return ", ".join(f'{schema.integer(table, native)} AS "{name}"' for name, native in wanted.items())


_NVTX_TEXT = "CASE WHEN text <> '' THEN text ELSE coalesce(s.value, '') END"
_PLACE = {
    "start": "start",
    "end": "end",
    "process": "globalPid",
    "device": "deviceId",
    "context": "contextId",
    "stream": "streamId",
    "correlation_id": "correlationId",
}
_PLACE_NAMES = ", ".join(f'"{name}"' for name in _PLACE)


def _kernels(schema: Schema) -> Source:
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
        _columns(schema, table, {**_PLACE, **names, **shape}),
        {
            "kernels": f"SELECT row_id AS row, {_PLACE_NAMES}, coalesce(n.value, s.value, m.value) AS name, "
            "coalesce(s.value, n.value, m.value) AS short_name, m.value AS mangled_name, "
            "CAST(lower(coalesce(s.value, n.value, m.value, '')) LIKE 'nccl%' AS BIGINT) AS is_nccl, "
            f"{', '.join(shape)} FROM chunk LEFT JOIN strings n ON n.id = name_id "
            'LEFT JOIN strings s ON s.id = short_id LEFT JOIN strings m ON m.id = mangled_id ORDER BY "start", row_id'
        },
    )


def _memcpys(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_MEMCPY"
    rest = {
        "bytes": "bytes",
        "copy_kind": "copyKind",
        "source_kind": "srcKind",
        "target_kind": "dstKind",
        "source_device": "srcDeviceId",
        "target_device": "dstDeviceId",
        "graph_node_id": "graphNodeId",
    }
    return Source(
        table,
        _columns(schema, table, {**_PLACE, **rest}),
        {
            "memory_ops": f"SELECT row_id AS row, {_PLACE_NAMES}, "
            f"'[CUDA memcpy ' || {_labels('copy_kind', COPY_KINDS)} || ']' AS operation, 0 AS is_memset, copy_kind, "
            f"bytes, {_labels('source_kind', MEMORY_KINDS)} AS source_memory, "
            f"{_labels('target_kind', MEMORY_KINDS)} AS target_memory, source_device, target_device, graph_node_id "
            'FROM chunk ORDER BY "start", row_id'
        },
    )


def _memsets(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_MEMSET"
    rest = {"bytes": "bytes", "memory_kind": "memKind", "graph_node_id": "graphNodeId"}
    first_row = schema.last_rowid.get("CUPTI_ACTIVITY_KIND_MEMCPY", 0)
    return Source(
        table,
        _columns(schema, table, {**_PLACE, **rest}),
        {
            "memory_ops": f"SELECT row_id + {first_row} AS row, {_PLACE_NAMES}, '[CUDA memset]' AS operation, "
            "1 AS is_memset, NULL AS copy_kind, bytes, NULL AS source_memory, "
            f"{_labels('memory_kind', MEMORY_KINDS)} AS target_memory, NULL AS source_device, NULL AS target_device, "
            'graph_node_id FROM chunk ORDER BY "start", row_id'
        },
        first_row,
    )


def _graph_launches(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    return Source(
        table,
        _columns(schema, table, {**_PLACE, "graph_id": "graphId", "graph_exec_id": "graphExecId"}),
        {
            "graph_launches": f"SELECT row_id AS row, {_PLACE_NAMES}, graph_id, graph_exec_id "
            'FROM chunk ORDER BY "start", row_id'
        },
    )


def _api_calls(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    wanted = {
        "start": "start",
        "end": "end",
        "event_class": "eventClass",
        "thread": "globalTid",
        "correlation_id": "correlationId",
        "name_id": "nameId",
        "return_value": "returnValue",
    }
    common = f'SELECT row_id AS row, "start", "end", thread, {_process("thread")} AS process, correlation_id'
    tail = 'FROM chunk LEFT JOIN strings s ON s.id = name_id WHERE coalesce(event_class, 0) {} ORDER BY "start", row_id'
    return Source(
        table,
        _columns(schema, table, wanted),
        {
            "api_calls": f"{common}, regexp_replace(s.value, '_v....$', '') AS name, s.value AS versioned_name, "
            f"CAST(event_class = 1 AS BIGINT) AS is_driver, return_value {tail.format(f'<> {BACKTRACE_CLASS}')}",
            "api_backtraces": f"{common}, s.value AS name, return_value {tail.format(f'= {BACKTRACE_CLASS}')}",
        },
    )


def _syncs(schema: Schema) -> Source:
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    return Source(
        table,
        _columns(schema, table, {**_PLACE, "sync_kind": "syncType"}),
        {
            "syncs": f"SELECT row_id AS row, {_PLACE_NAMES}, {_labels('sync_kind', SYNC_TYPES)} AS sync_type "
            'FROM chunk ORDER BY "start", row_id'
        },
    )


def _nvtx(schema: Schema) -> Source:
    table = "NVTX_EVENTS"
    wanted = {
        "start": "start",
        "end": "end",
        "event_type": "eventType",
        "thread": "globalTid",
        "end_thread": "endGlobalTid",
        "domain_id": "domainId",
        "text_id": "textId",
        "category": "category",
        "color": "color",
        "range_id": "rangeId",
    }
    blob = "ifnull(CAST(binaryData AS BLOB), x'')" if schema.has_column(table, "binaryData") else "x''"
    common = f'SELECT row_id AS row, c."start", {{}} c.thread, {_process("c.thread")} AS process'
    domain = "c.domain_id, CASE WHEN coalesce(c.domain_id, 0) = 0 THEN '' ELSE d.domain END AS domain"
    joins = (
        "FROM chunk c LEFT JOIN strings s ON s.id = c.text_id "
        f"LEFT JOIN domains d ON d.process = {_process('c.thread')} AND d.domain_id = c.domain_id"
    )
    types = ", ".join(str(number) for number in RANGE_TYPES)
    return Source(
        table,
        f"{_columns(schema, table, wanted)}, {schema.text(table, 'text')} AS text, "
        f"{schema.text(table, 'jsonText')} AS json_text, {blob} AS blob",
        {
            "nvtx_ranges": f"""{common.format('c."end",')}, c.end_thread, c.event_type, {domain},
                {_NVTX_TEXT} AS name, c.category, c.color, c.range_id {joins}
                WHERE c.event_type IN ({types}) ORDER BY c."start", c.row_id""",
            "nvtx_marks": f"""{common.format("")}, {domain}, {_NVTX_TEXT} AS name, c.category {joins}
                WHERE c.event_type = {MARK_TYPE} ORDER BY c."start", c.row_id""",
        },
    )


NCCL_RANGES = f"""
    SELECT c.row_id AS row, c."start", c."end", c.thread, {_process("c.thread")} AS process, c.domain_id,
        {_NVTX_TEXT} AS name, c.json_text, c.blob
    FROM chunk c LEFT JOIN strings s ON s.id = c.text_id
    LEFT JOIN domains d ON d.process = {_process("c.thread")} AND d.domain_id = c.domain_id
    WHERE c.event_type IN (59, 60)
        AND (d.domain = 'NCCL' OR ((d.domain IS NULL OR d.domain = '') AND regexp_matches({_NVTX_TEXT}, '^nccl[A-Z]')))
    ORDER BY c."start", c.row_id"""
"""DuckDB: the NCCL API ranges of an NVTX chunk with their payload. Where the row that names the domain is missing
(trimmed files) the name tells (domain §1.8)."""


def _gpu_metrics(schema: Schema) -> Source:
    table = "GPU_METRICS"
    wanted = {"time": "timestamp", "type_id": "typeId", "metric_id": "metricId", "value": "value"}
    return Source(
        table,
        _columns(schema, table, wanted),
        {
            "gpu_metrics": 'SELECT row_id AS row, "time", c.type_id & 255 AS gpu, m.metric, CAST(value AS DOUBLE) '
            "AS value FROM chunk c LEFT JOIN gpu_metric_names m ON m.type_id = c.type_id AND m.metric_id = c.metric_id "
            'WHERE "time" IS NOT NULL ORDER BY "time", row_id'
        },
    )


def _nic_metrics(schema: Schema) -> Source:
    table = "NET_NIC_METRIC"
    wanted = {
        "start": "start",
        "end": "end",
        "nic": "globalId",
        "list_id": "metricsListId",
        "metric_index": "metricsIdx",
        "value": "value",
    }
    return Source(
        table,
        _columns(schema, table, wanted),
        {
            "nic_metrics": 'SELECT row_id AS row, "start", "end", nic, m.metric, m.unit, CAST(value AS DOUBLE) '
            "AS value FROM chunk c LEFT JOIN nic_metric_names m "
            "ON m.list_id = c.list_id AND m.metric_index = c.metric_index "
            'ORDER BY "start", row_id'
        },
    )


_MPI_TABLES = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")


def _mpi(table: str, call_type: str, position: int) -> Callable[[Schema], Source]:
    """The MPI tables share one canonical table, so each begins to count its rows where the one before ended."""

    def make(schema: Schema) -> Source:
        first_row = schema.rows(_MPI_TABLES[:position])
        wanted = {
            "start": "start",
            "end": "end",
            "thread": "globalTid",
            "text_id": "textId",
            "communicator": "commHandle",
            "tag": "tag",
            "remote_rank": "remoteRank",
            "root_rank": "rootRank",
            "send_bytes": "size",
            "recv_bytes": "recvSize",
        }
        return Source(
            table,
            _columns(schema, table, wanted),
            {
                "mpi_calls": f'SELECT row_id + {first_row} AS row, "start", "end", thread, '
                f"{_process('thread')} AS process, s.value AS name, '{call_type}' AS call_type, communicator, tag, "
                "remote_rank, root_rank, send_bytes, recv_bytes FROM chunk LEFT JOIN strings s ON s.id = text_id "
                'ORDER BY "start", row_id'
            },
            first_row,
        )

    return make


def _os_calls(schema: Schema) -> Source:
    table = "OSRT_API"
    wanted = {
        "start": "start",
        "end": "end",
        "event_class": "eventClass",
        "thread": "globalTid",
        "name_id": "nameId",
        "return_value": "returnValue",
    }
    return Source(
        table,
        _columns(schema, table, wanted),
        {
            "os_calls": f'SELECT row_id AS row, "start", "end", thread, {_process("thread")} AS process, '
            "s.value AS name, return_value FROM chunk LEFT JOIN strings s ON s.id = name_id "
            f"WHERE coalesce(event_class, 0) NOT IN {_OS_MARKERS} "
            'ORDER BY "start", row_id'
        },
    )


def _diagnostics(schema: Schema) -> Source:
    table = "DIAGNOSTIC_EVENT"
    wanted = {"time": "timestamp", "severity": "severity", "process": "globalPid"}
    return Source(
        table,
        f"{_columns(schema, table, wanted)}, {schema.text(table, 'text')} AS text",
        {
            "diagnostics": f'SELECT row_id AS row, "time", severity, {_labels("severity", SEVERITIES)} '
            'AS severity_name, text, process FROM chunk ORDER BY "time", row_id'
        },
    )


def _processes(schema: Schema) -> Source:
    table = "PROCESSES"
    return Source(
        table,
        f"{_columns(schema, table, {'process': 'globalPid', 'pid': 'pid'})}, {schema.text(table, 'name')} AS name",
        {"processes": "SELECT process, pid, nullif(name, '') AS name FROM chunk WHERE process IS NOT NULL"},
    )


def _threads(schema: Schema) -> Source:
    table = "ThreadNames"
    wanted = {"thread": "globalTid", "name_id": "nameId", "priority": "priority"}
    return Source(
        table,
        _columns(schema, table, wanted),
        {
            "threads": f"SELECT thread, {_process('thread')} AS process, thread & 16777215 AS tid, s.value AS name, "
            "priority FROM chunk LEFT JOIN strings s ON s.id = name_id WHERE thread IS NOT NULL"
        },
    )
