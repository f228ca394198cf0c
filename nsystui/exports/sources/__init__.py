"""Sources: for each of NVIDIA's tables, the columns to read and the SQL that makes canonical rows of them.

A source reads plain integers (and the few inline texts) from SQLite in chunks by rowid; DuckDB then resolves names
with small lookup tables. The SQL here is made of the words of this folder and of nothing that a file or a user says.
"""

from __future__ import annotations

from dataclasses import replace

from nsystui.exports.canonical import BY_NAME
from nsystui.exports.schema import NO_INTEGER, Schema
from nsystui.exports.sources import gpu, host, network
from nsystui.exports.sources.base import REASONS, Lookup, Source, Transform, lookups, times_of
from nsystui.exports.sources.host import nccl_condition

__all__ = ["NO_INTEGER", "REASONS", "TABLES", "Lookup", "Source", "Transform", "lookups", "nccl_condition", "sources"]

_MAKERS = gpu.SOURCES | host.SOURCES | network.SOURCES

TABLES = frozenset(_MAKERS)
"""Native tables that others can do without."""


def sources(schema: Schema) -> list[Source]:
    """The sources of the native tables that ``schema`` has, with rows or without, largest questions first."""
    found = [make(schema) for table, make in _MAKERS.items() if schema.exists(table)]
    found += network.efa_samples(schema) + host.openmp(schema) + host.openacc(schema)
    return [_timed(source) for source in found]


def _timed(source: Source) -> Source:
    """The source with the rule for the times of every table that it makes."""
    made = {name: replace(made, times=times_of(BY_NAME[name])) for name, made in source.makes.items()}
    return replace(source, makes=made)
