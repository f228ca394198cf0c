"""NCCL's API calls as NVTX shows them: which are communication, and what their payload says."""

from __future__ import annotations

import sqlite3
from typing import Any

from nsystui.exports import nccl_payload
from nsystui.exports.nccl_payload import NcclCall, PayloadSchemas
from nsystui.exports.schema import Schema

COMMUNICATION = {
    "ncclAllReduce": "AllReduce",
    "ncclAllGather": "AllGather",
    "ncclReduceScatter": "ReduceScatter",
    "ncclBroadcast": "Broadcast",
    "ncclBcast": "Broadcast",
    "ncclReduce": "Reduce",
    "ncclSend": "Send",
    "ncclRecv": "Recv",
    "ncclAlltoAll": "AlltoAll",
    "ncclGather": "Gather",
    "ncclScatter": "Scatter",
    "ncclAllGatherV": "AllGatherV",
    "ncclPutSignal": "PutSignal",
    "ncclSignal": "Signal",
    "ncclWaitSignal": "WaitSignal",
}
"""The calls that move or await data; every other NCCL call manages communicators, groups or memory.

See docs/nccl.md#calls.
"""

_NOTHING = NcclCall(None, None, None, None, None, None, None, None, None)


def payload_schemas(connection: sqlite3.Connection, schema: Schema) -> PayloadSchemas:
    """The layouts of extended NVTX payloads that an export describes; empty where it has none."""
    kinds, entries = "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if kinds not in schema.columns or entries not in schema.columns:
        return PayloadSchemas.from_rows([], [])
    # The rows are repeated for each process: NVIDIA's tables have no process column.
    schema_rows = _rows(connection, kinds, ("domainId", "schemaId", "name", "payloadSize"))
    entry_rows = _rows(connection, entries, ("domainId", "schemaId", "idx", "type", "name", "offset"))
    return PayloadSchemas.from_rows(schema_rows, entry_rows)


def _rows(connection: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    names = ", ".join(f'"{column}"' for column in columns)
    cursor = connection.execute(f'SELECT DISTINCT {names} FROM "{table}"')
    return [dict(zip(columns, row, strict=True)) for row in cursor]


def decode(schemas: PayloadSchemas, domain_id: int | None, name: str, json_text: str, blob: bytes) -> NcclCall:
    """What is known of one call, from the first form that can be read: binary payload, JSON, instrumented name."""
    if blob:
        labels = nccl_payload.decode_blob(schemas, domain_id or 0, blob)
        if labels:
            return nccl_payload.interpret(labels)
    if json_text:
        labels = nccl_payload.decode_json(json_text)
        if labels:
            return nccl_payload.interpret(labels)
    return nccl_payload.parse_instrumented(name) or _NOTHING
