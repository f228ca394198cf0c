"""Sources: for each native table, its columns and the SQL that makes canonical rows of them.

A source reads plain integers (and the few inline texts) from SQLite in chunks by rowid; DuckDB then resolves names with
small lookup tables. SQL never contains a user's words, and from files only integers and names that match a pattern.
"""

from __future__ import annotations

from dataclasses import replace

from nsystui.exports.canonical import BY_NAME
from nsystui.exports.schema import NO_INTEGER, Schema
from nsystui.exports.sources import gpu, host, network
from nsystui.exports.sources.base import MAKERS, REASONS, Lookup, Source, Transform, lookups, times_of
from nsystui.exports.sources.host import nccl_condition

__all__ = ["NO_INTEGER", "REASONS", "TABLES", "Lookup", "Source", "Transform", "lookups", "nccl_condition", "sources"]

TABLES = frozenset({*MAKERS, *gpu.GRAPH_NODE_TABLES})
"""Native tables whose damage leaves other tables readable."""


def sources(schema: Schema) -> list[Source]:
    """Return the sources of the native tables in ``schema``, with rows or without, GPU work first."""
    existing = [make(schema, table) for table, make in MAKERS.items() if schema.exists(table)]
    existing += gpu.graph_nodes(schema) + network.efa_samples(schema) + host.openmp(schema) + host.openacc(schema)
    return [_timed(source) for source in existing]


def _timed(source: Source) -> Source:
    """Return the source with the rule for the times of each table that it makes."""
    transform = {name: replace(transform, times=times_of(BY_NAME[name])) for name, transform in source.makes.items()}
    return replace(source, makes=transform)
