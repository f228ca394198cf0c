"""OpenMP and OpenACC events: a native table for each kind of event, however many of them nsys has."""

from __future__ import annotations

import re

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import Source, integers, process_of

# Whole words only: the names come from the file, and stand in SQL.
_OPENMP = re.compile(r"OPENMP_EVENT_KIND_([A-Z0-9_]+)")
_OPENACC = re.compile(r"CUPTI_ACTIVITY_KIND_OPENACC_([A-Z0-9_]+)")
_COMMON = {"start": "start", "end": "end", "thread": "globalTid", "name_id": "nameId"}


def openmp(schema: Schema) -> list[Source]:
    return [
        Source(
            table,
            integers(schema, table, _COMMON),
            {"openmp_events": _select("s.value", kind, first_row, "")},
            first_row,
        )
        for table, kind, first_row in _tables(schema, _OPENMP)
    ]


def openacc(schema: Schema) -> list[Source]:
    """An event is called ``name@file:line`` where its place in the source is known, as nsys calls it."""
    name = (
        "CASE WHEN coalesce(f.value, '') = '' THEN s.value "
        "ELSE s.value || '@' || f.value || coalesce(':' || CAST(line AS VARCHAR), '') END"
    )
    return [
        Source(
            table,
            integers(schema, table, {**_COMMON, "file_id": "srcFile", "line": "lineNo"}),
            {"openacc_events": _select(name, kind, first_row, "LEFT JOIN strings f ON f.id = file_id")},
            first_row,
        )
        for table, kind, first_row in _tables(schema, _OPENACC)
    ]


def _tables(schema: Schema, pattern: re.Pattern[str]) -> list[tuple[str, str, int]]:
    """The native tables in the order of their names, with their kind and where their rows begin to count."""
    found = [(name, match[1]) for name in sorted(schema.columns) if (match := pattern.fullmatch(name))]
    names = [name for name, _ in found]
    return [(name, kind, schema.rows(names[:position])) for position, (name, kind) in enumerate(found)]


def _select(name: str, kind: str, first_row: int, join: str) -> str:
    return (
        f'SELECT row_id + {first_row} AS row, "start", "end", thread, {process_of("thread")} AS process, '
        f"{name} AS name, '{kind}' AS kind FROM chunk LEFT JOIN strings s ON s.id = name_id {join} "
        'ORDER BY "start", row_id'
    )
