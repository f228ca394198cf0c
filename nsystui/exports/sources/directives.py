"""OpenMP and OpenACC events: a native table for each kind of event, however many of them nsys has."""

from __future__ import annotations

import re

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import STRINGS, Source, Transform, as_they_are, integers, process_of

# Whole words only: the names come from the file, and stand in SQL.
_OPENMP = re.compile(r"OPENMP_EVENT_KIND_([A-Z0-9_]+)")
_OPENACC = re.compile(r"CUPTI_ACTIVITY_KIND_OPENACC_([A-Z0-9_]+)")
_COMMON = {"start": "start", "end": "end", "thread": "globalTid", "name_id": "nameId"}


def openmp(schema: Schema) -> list[Source]:
    return [
        Source(
            table,
            integers(schema, table, _COMMON),
            {"openmp_events": _transform("s.value", kind, first_row)},
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
            {"openacc_events": _transform(name, kind, first_row)},
            first_row,
        )
        for table, kind, first_row in _tables(schema, _OPENACC)
    ]


def _tables(schema: Schema, pattern: re.Pattern[str]) -> list[tuple[str, str, int]]:
    """The native tables in the order of their names, with their kind and where their rows begin to count."""
    found = [(name, match[1]) for name in sorted(schema.columns) if (match := pattern.fullmatch(name))]
    names = [name for name, _ in found]
    return [(name, kind, schema.rows(names[:position])) for position, (name, kind) in enumerate(found)]


def _transform(name: str, kind: str, first_row: int) -> Transform:
    fields = {
        "row": f"row_id + {first_row}",
        **as_they_are("start", "end", "thread"),
        "process": process_of("thread"),
        "name": name,
        "kind": f"'{kind}'",
    }
    return Transform(fields, {**STRINGS, "f": "LEFT JOIN strings f ON f.id = file_id"})
