"""Which generic events of an export are those of AWS's EFA plugin (``nsys profile --enable efa_metrics``)."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping

_SOURCES, _TYPES, _FIELDS = "GENERIC_EVENT_SOURCES", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_TYPE_FIELDS"
NAME_KEYS = ("Name", "name")
"""Where the JSON of a source or type, in schemas before 3.13, has its name."""
# Neither "default" nor "EFAULT" nor "interface" is meant.
_NAME = re.compile("efa(?!ult|ce)", re.IGNORECASE)
# What NVIDIA's recipe network_map_aws (nsys 2024) looks for, in whatever generic events there are.
_KNOWN_FIELDS = frozenset(f"rdma_{what}_bytes per second" for what in ("read", "read_resp", "write", "write_recv"))


def types(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> tuple[int, ...]:
    """The ``typeId`` of each type that, or the source of which, is called EFA's, or that has fields only EFA has.

    ``columns`` are those of the tables of the export. Raises sqlite3.Error where it cannot be read.
    """
    if not {"typeId", "sourceId"} <= columns.get(_TYPES, frozenset()):
        return ()
    origins = dict(_named(connection, columns, _SOURCES, "sourceId")) if "sourceId" in columns.get(_SOURCES, ()) else {}
    names = dict(_named(connection, columns, _TYPES, "typeId"))
    found = set(_with_known_fields(connection, columns))
    for type_id, origin in connection.execute(f"SELECT typeId, sourceId FROM {_TYPES}"):
        if _NAME.search(names.get(type_id, "")) or _NAME.search(origins.get(origin, "")):
            found.add(type_id)
    return tuple(sorted(one for one in found if isinstance(one, int)))


def _named(
    connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]], table: str, key: str
) -> Iterator[tuple[int, str]]:
    """The names by the ids in ``key``: strings of the export, or in the JSON of older ones."""
    if "nameId" in columns[table]:
        query = f"SELECT {key}, CAST(value AS BLOB) FROM {table} JOIN StringIds ON id = nameId"
        yield from ((one, _text(value)) for one, value in connection.execute(query))
    elif "data" in columns[table]:
        query = f"SELECT {key}, CAST(data AS BLOB) FROM {table}"
        yield from ((one, _name_in(_text(data))) for one, data in connection.execute(query))


def _with_known_fields(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> Iterator[int]:
    if {"typeId", "fieldNameId"} <= columns.get(_FIELDS, frozenset()):
        query = f"SELECT typeId, CAST(value AS BLOB) FROM {_FIELDS} JOIN StringIds ON id = fieldNameId"
        yield from (one for one, value in connection.execute(query) if _text(value) in _KNOWN_FIELDS)
    elif "data" in columns[_TYPES]:
        query = f"SELECT typeId, CAST(data AS BLOB) FROM {_TYPES}"
        for one, data in connection.execute(query):
            if any(f'"{field}"' in _text(data) for field in _KNOWN_FIELDS):
                yield one


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _name_in(data: str) -> str:
    try:
        described = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    names = [described.get(key) for key in NAME_KEYS] if isinstance(described, dict) else []
    return next((name for name in names if isinstance(name, str)), "")
