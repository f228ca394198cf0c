"""Sources: for each native table, its columns and the SQL that makes canonical rows of them.

A source reads plain integers (and the few inline texts) from SQLite in chunks by rowid; DuckDB then resolves names with
small lookup tables. SQL never contains a user's words, and from files only integers and names that match a pattern.
"""

from collections import Counter
from dataclasses import replace

from nsystui.exports.schema import NO_INTEGER, Schema
from nsystui.exports.sources import gpu, host
from nsystui.exports.sources.base import MAKERS, REASONS, Lookup, Source, Transform, completed, lookups
from nsystui.exports.sources.host import nccl_condition

__all__ = ["NO_INTEGER", "REASONS", "TABLES", "Lookup", "Source", "Transform", "lookups", "nccl_condition", "sources"]

TABLES = frozenset({*MAKERS, *gpu.GRAPH_NODE_TABLES})
"""Native tables whose damage leaves other tables readable."""


def sources(schema: Schema) -> list[Source]:
    """Return the sources of the native tables in ``schema``, with rows or without, GPU work first.

    Sources of one canonical table number its rows one after another.
    """
    existing = [make(schema, table) for table, make in MAKERS.items() if schema.exists(table)]
    existing += gpu.graph_nodes(schema) + host.efa_samples(schema) + host.openmp(schema) + host.openacc(schema)
    rows: Counter[str] = Counter()
    numbered = []
    for source in existing:
        shared = next(iter(source.makes))
        numbered.append(completed(replace(source, first_row=rows[shared])))
        rows[shared] += schema.rows([source.table])
    return numbered
