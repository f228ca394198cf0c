"""What ran on the CPU: API calls, NVTX, MPI, OS runtime calls, and who ran it."""

from __future__ import annotations

from collections.abc import Callable

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import NVTX_TEXT, Source, integers, labelled, process_of

SEVERITIES = {0: "Unknown", 1: "Info", 2: "Warning", 3: "Error", 4: "Verbose"}
# NVTX event types (domain §1.6)
RANGE_TYPES = (59, 60, 70, 71)
MARK_TYPE = 34
BACKTRACE_CLASS = 67
# "profiling started" and "profiling finished": notes of nsys, not calls
_OS_MARKERS = (31, 32)


def api_calls(schema: Schema) -> Source:
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
    common = f'SELECT row_id AS row, "start", "end", thread, {process_of("thread")} AS process, correlation_id'
    tail = 'FROM chunk LEFT JOIN strings s ON s.id = name_id WHERE coalesce(event_class, 0) {} ORDER BY "start", row_id'
    return Source(
        table,
        integers(schema, table, wanted),
        {
            "api_calls": f"{common}, regexp_replace(s.value, '_v....$', '') AS name, s.value AS versioned_name, "
            f"CAST(event_class = 1 AS BIGINT) AS is_driver, return_value {tail.format(f'<> {BACKTRACE_CLASS}')}",
            "api_backtraces": f"{common}, s.value AS name, return_value {tail.format(f'= {BACKTRACE_CLASS}')}",
        },
    )


def nvtx(schema: Schema) -> Source:
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
    common = f'SELECT row_id AS row, c."start", {{}} c.thread, {process_of("c.thread")} AS process'
    domain = "c.domain_id, CASE WHEN coalesce(c.domain_id, 0) = 0 THEN '' ELSE d.domain END AS domain"
    joins = (
        "FROM chunk c LEFT JOIN strings s ON s.id = c.text_id "
        f"LEFT JOIN domains d ON d.process = {process_of('c.thread')} AND d.domain_id = c.domain_id"
    )
    types = ", ".join(str(number) for number in RANGE_TYPES)
    return Source(
        table,
        f"{integers(schema, table, wanted)}, {schema.text(table, 'text')} AS text, "
        f"{schema.text(table, 'jsonText')} AS json_text, {blob} AS blob",
        {
            "nvtx_ranges": f"""{common.format('c."end",')}, c.end_thread, c.event_type, {domain},
                {NVTX_TEXT} AS name, c.category, c.color, c.range_id {joins}
                WHERE c.event_type IN ({types}) ORDER BY c."start", c.row_id""",
            "nvtx_marks": f"""{common.format("")}, {domain}, {NVTX_TEXT} AS name, c.category {joins}
                WHERE c.event_type = {MARK_TYPE} ORDER BY c."start", c.row_id""",
        },
        decoded=("nccl_calls",),
    )


NCCL_RANGES = f"""
    SELECT c.row_id AS row, c."start", c."end", c.thread, {process_of("c.thread")} AS process, c.domain_id,
        {NVTX_TEXT} AS name, c.json_text, c.blob
    FROM chunk c LEFT JOIN strings s ON s.id = c.text_id
    LEFT JOIN domains d ON d.process = {process_of("c.thread")} AND d.domain_id = c.domain_id
    WHERE c.event_type IN (59, 60)
        AND (d.domain = 'NCCL' OR ((d.domain IS NULL OR d.domain = '') AND regexp_matches({NVTX_TEXT}, '^nccl[A-Z]')))
    ORDER BY c."start", c.row_id"""
"""DuckDB: the NCCL API ranges of an NVTX chunk with their payload. Where the row that names the domain is missing
(trimmed files) the name tells (domain §1.8)."""


_MPI_TABLES = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")


def mpi(table: str, call_type: str, position: int) -> Callable[[Schema], Source]:
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
            integers(schema, table, wanted),
            {
                "mpi_calls": f'SELECT row_id + {first_row} AS row, "start", "end", thread, '
                f"{process_of('thread')} AS process, s.value AS name, '{call_type}' AS call_type, communicator, tag, "
                "remote_rank, root_rank, send_bytes, recv_bytes FROM chunk LEFT JOIN strings s ON s.id = text_id "
                'ORDER BY "start", row_id'
            },
            first_row,
        )

    return make


def mpi_ranks(schema: Schema) -> Source:
    table = "MPI_RANKS"
    return Source(
        table,
        integers(schema, table, {"thread": "globalTid", "rank": "rank"}),
        {"mpi_ranks": "SELECT DISTINCT thread, rank FROM chunk WHERE thread IS NOT NULL AND rank IS NOT NULL"},
    )


def os_calls(schema: Schema) -> Source:
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
        integers(schema, table, wanted),
        {
            "os_calls": f'SELECT row_id AS row, "start", "end", thread, {process_of("thread")} AS process, '
            "s.value AS name, return_value FROM chunk LEFT JOIN strings s ON s.id = name_id "
            f"WHERE coalesce(event_class, 0) NOT IN {_OS_MARKERS} "
            'ORDER BY "start", row_id'
        },
    )


def diagnostics(schema: Schema) -> Source:
    table = "DIAGNOSTIC_EVENT"
    wanted = {"time": "timestamp", "severity": "severity", "process": "globalPid"}
    return Source(
        table,
        f"{integers(schema, table, wanted)}, {schema.text(table, 'text')} AS text",
        {
            "diagnostics": f'SELECT row_id AS row, "time", severity, {labelled("severity", SEVERITIES)} '
            'AS severity_name, text, process FROM chunk ORDER BY "time", row_id'
        },
    )


def processes(schema: Schema) -> Source:
    table = "PROCESSES"
    return Source(
        table,
        f"{integers(schema, table, {'process': 'globalPid', 'pid': 'pid'})}, {schema.text(table, 'name')} AS name",
        {"processes": "SELECT process, pid, nullif(name, '') AS name FROM chunk WHERE process IS NOT NULL"},
    )


def threads(schema: Schema) -> Source:
    table = "ThreadNames"
    wanted = {"thread": "globalTid", "name_id": "nameId", "priority": "priority"}
    return Source(
        table,
        integers(schema, table, wanted),
        {
            "threads": f"SELECT thread, {process_of('thread')} AS process, thread & 16777215 AS tid, s.value AS name, "
            "priority FROM chunk LEFT JOIN strings s ON s.id = name_id WHERE thread IS NOT NULL"
        },
    )
