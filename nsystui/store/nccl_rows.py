"""The rows of the canonical table of NCCL calls, out of a chunk of NVTX ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsystui.exports import canonical, nccl_calls, sources
from nsystui.exports.nccl_payload import PayloadSchemas

if TYPE_CHECKING:
    import duckdb

_COLLECTIVE = (
    "CASE "
    + " ".join(f"WHEN name = '{name}' THEN '{collective}'" for name, collective in nccl_calls.COMMUNICATION.items())
    + " END"
)
_HAS_PAYLOAD = "(json_text <> '' OR octet_length(blob) > 0 OR contains(name, '('))"
WITHOUT_PAYLOAD = f"""
    SELECT row, "start", "end", thread, process, name, {_COLLECTIVE} AS collective, NULL AS message_size,
        NULL AS communicator, NULL AS peer, NULL AS root, NULL AS reduction, NULL AS datatype, NULL AS rank,
        NULL AS ranks, NULL AS cuda_device, NULL AS size_source
    FROM nccl_chunk WHERE NOT {_HAS_PAYLOAD}"""
"""DuckDB: the calls of ``nccl_chunk`` that say nothing but their name, as rows of the canonical table."""
_WITH_PAYLOAD = f"""
    SELECT row, "start", "end", thread, process, domain_id, name, json_text, blob
    FROM nccl_chunk WHERE {_HAS_PAYLOAD} ORDER BY "start", row"""


def find_calls(connection: duckdb.DuckDBPyConnection) -> int:
    """Makes ``nccl_chunk``, the NCCL calls in ``chunk``, with the lookups ``strings`` and ``domains``; how many."""
    create = f"CREATE OR REPLACE TEMP TABLE nccl_chunk AS {sources.NCCL_RANGES}"
    ((calls,),) = connection.execute(create).fetchall()
    return int(calls)


def decoded_calls(connection: duckdb.DuckDBPyConnection, payload: PayloadSchemas) -> list[tuple[Any, ...]]:
    """The calls of ``nccl_chunk`` with a payload or an instrumented name, decoded by Python."""
    return [_decode(row, payload) for row in connection.execute(_WITH_PAYLOAD).fetchall()]


def make_table(
    connection: duckdb.DuckDBPyConnection, table: canonical.CanonicalTable, rows: Sequence[tuple[Any, ...]], name: str
) -> None:
    """Makes a temporary table of rows that Python made, column by column as lists (far faster than row by row)."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in table.fields]
    lists = ", ".join(
        f'unnest(CAST(${number} AS {item.kind.value}[])) AS "{item.name}"'
        for number, item in enumerate(table.fields, 1)
    )
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {lists}", columns)


def _decode(row: tuple[Any, ...], payload: PayloadSchemas) -> tuple[Any, ...]:
    """A row of ``nccl_calls`` from an NVTX range with a payload."""
    number, start, end, thread, process, domain_id, name, json_text, blob = row
    call = nccl_calls.decode(payload, domain_id, name, json_text, blob)
    bare = name.partition("(")[0]
    place = (number, start, end, thread, process, bare, nccl_calls.COMMUNICATION.get(bare))
    size = (call.message_size, call.communicator, call.peer, call.root, call.reduction, call.datatype)
    return (*place, *size, call.rank, call.ranks, call.cuda_device, call.source)
