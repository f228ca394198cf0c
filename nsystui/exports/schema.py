"""Which tables and columns an export has: probed, never assumed, since every version differs and none is certain."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsystui.base.errors import ExportError
from nsystui.base.inputs import json_in, opened
from nsystui.exports import integrity, opening
from nsystui.exports.integrity import is_accounted_for

# An nsys export of any version has the first; the others tell it from any other SQLite file with such a name.
_ALWAYS = "StringIds"
_TELLING = frozenset(
    {
        "META_DATA_EXPORT",
        "EXPORT_META_DATA",
        "META_DATA_CAPTURE",
        "TARGET_INFO_SESSION_START_TIME",
        "TARGET_INFO_SYSTEM_ENV",
        "ANALYSIS_DETAILS",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "NVTX_EVENTS",
        "OSRT_API",
    }
)

NO_INTEGER = "CAST(NULL AS INTEGER)"
"""SQL for an integer column that an export does not have."""

LATEST = 1 << 54
"""No event is later than this after the start of its session, ns (208 days): beyond, a time is no time, but damage."""
EARLIEST = -(10**9)
"""No event is earlier than this, ns. Real exports begin up to 0.4 ms before their session (docs/exports.md#time)."""
_CUPTI = "CUPTI_ACTIVITY_KIND_"
_WORK = tuple(f"{_CUPTI}{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION", "RUNTIME"))


@dataclass(frozen=True)
class Schema:
    """The tables of an export with their columns, and how far the rowids of the event tables go.

    ``efa_types`` are the types of generic events that come from AWS's EFA plugin. ``earliest`` is the least time that
    an event can have, ns: ``EARLIEST``, unless nsys was told to shift the times. ``latest`` is the latest start of GPU
    work and calls: two seconds after the end of the capture, since clocks differ. ``origin`` is subtracted
    from all times: the start of the session, ns since the epoch, in an export whose times are UTC (``--ts-normalize``).
    ``has_python_samples``: whether there may be samples of Python among the NVTX marks.
    """

    columns: Mapping[str, frozenset[str]]
    last_rowid: Mapping[str, int]
    efa_types: tuple[int, ...] = ()
    earliest: int = EARLIEST
    origin: int = 0
    has_python_samples: bool = False
    latest: int = LATEST

    def exists(self, table: str) -> bool:
        """Whether the table is there, if only an empty one."""
        return table in self.columns

    def has(self, table: str) -> bool:
        """Whether the table is there and has rows."""
        return self.last_rowid.get(table, 0) > 0

    def has_column(self, table: str, column: str) -> bool:
        return column in self.columns.get(table, frozenset())

    def one_of(self, table: str, columns: Sequence[str]) -> str:
        """The first of ``columns`` that the table has; the very first where it has none of them."""
        return next((column for column in columns if self.has_column(table, column)), columns[0])

    def integer(self, table: str, column: str) -> str:
        """SQL for an integer column, or a NULL where this version has no such column.

        The cast gives the column one type for the reader, which settles types on the first rows it sees.
        """
        return f'CAST("{column}" AS INTEGER)' if self.has_column(table, column) else NO_INTEGER

    def time(self, table: str, column: str) -> str:
        """``integer`` for a time. One that cannot be, text or out of bounds, is later than ``LATEST``.

        So it differs from a missing one, and a sum of two still is an integer. CUPTI writes a start and an end of 0 if
        it could not collect the times: the start is missing.
        """
        if not self.has_column(table, column):
            return NO_INTEGER
        is_start = column == "start" and table in _WORK and self.has_column(table, "end")
        # NVTX names and begins things long before a capture. To SQLite text is greater than any number.
        earliest = -LATEST if table == "NVTX_EVENTS" else self.earliest
        within, value = self._moment(column, earliest, self.latest if is_start else LATEST)
        lost = f'WHEN "start" = {self.origin} AND "end" = {self.origin} THEN NULL ' if is_start else ""
        return f'CASE {lost}WHEN {within} THEN {value} WHEN "{column}" IS NOT NULL THEN {LATEST + 1} END'

    def known_time(self, table: str, column: str) -> str:
        """``integer`` for the time of a row that says something without one: a time that cannot be is missing.

        It may lie long before the session: so do some of nsys's own messages.
        """
        if not self.has_column(table, column):
            return NO_INTEGER
        within, value = self._moment(column, -LATEST, LATEST)
        return f"CASE WHEN {within} THEN {value} END"

    def _moment(self, column: str, earliest: int, latest: int) -> tuple[str, str]:
        """SQL: whether a time can be, within bounds, and its value since the start of the session."""
        within = f'"{column}" BETWEEN {self.origin + earliest} AND {self.origin + latest}'
        return within, f'CAST("{column}" AS INTEGER)' + (f" - {self.origin}" if self.origin else "")

    def text(self, table: str, column: str) -> str:
        """SQL for the bytes of a text column; a missing column or a NULL is the empty string.

        Bytes, because a program may name things in any encoding: the packer makes valid text of them.
        """
        return f"ifnull(CAST(\"{column}\" AS BLOB), x'')" if self.has_column(table, column) else "x''"

    def rows(self, tables: Iterable[str]) -> int:
        """About how many rows ``tables`` have together (exact where no row was ever deleted, as in nsys exports)."""
        return sum(max(self.last_rowid.get(table, 0), 0) for table in tables)


def probe(path: Path, connection: sqlite3.Connection, without: Collection[str] = ()) -> Schema:
    """Reads the schema of an open export. The rows of the tables in ``without`` are left alone: they have none.

    Raises ExportError where the file is SQLite but not an nsys export, or is damaged.
    """
    columns: dict[str, frozenset[str]] = {}
    last: dict[str, int] = {}
    try:
        # A virtual table is none of nsys's own, and may need a module that is not here.
        query = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
        query += " AND coalesce(sql, '') NOT LIKE 'CREATE VIRTUAL%'"
        roots = dict(connection.execute(query).fetchall())
        ((rows, last_row),) = connection.execute("SELECT count(*), max(rowid) FROM sqlite_master").fetchall()
        if rows < (last_row or 0):
            integrity.check_pages(path, connection, "sqlite_master", f"only {rows} of {last_row} entries")
        for name in roots:
            quoted = name.replace('"', '""')
            described = connection.execute(f'PRAGMA table_info("{quoted}")')
            columns[name] = frozenset(column for _, column, *_ in described)
            if not columns[name]:  # the name of a table is there twice, and one of them is damaged
                raise opening.corrupt(path, sqlite3.DatabaseError(f"malformed database schema ({name})"))
        if _ALWAYS not in columns or not _TELLING & columns.keys():
            raise ExportError(
                opening.named(path),
                "a SQLite file, but not an Nsight Systems export",
                "nsys export -t sqlite FILE.nsys-rep",
            )
        with opened(path) as file:
            for name, root in roots.items():
                if name in without:
                    continue
                last[name] = _last_rowid(path, connection, name)
                if not is_accounted_for(file, root):
                    integrity.check_pages(path, connection, name, f"only {last[name]:,} rows")
        efa_types = efa_types_of(connection, columns)
        earliest = -LATEST if _set(connection, columns, "EXPORT_PARAM_TIME_SHIFT") else EARLIEST
        latest = _latest(connection, columns, earliest)
        is_normalized = _set(connection, columns, "EXPORT_PARAM_TIME_NORMALIZE")
        origin = _session_start(connection, columns) if is_normalized else 0
        has_python_samples = "NVTX_EVENTS" not in without and _has_python_samples(connection, columns)
    except (*opening.READ_ERRORS, OSError) as error:
        raise opening.corrupt(path, error) from None
    return Schema(columns, last, efa_types, earliest, origin, has_python_samples, latest)


def _set(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]], name: str) -> bool:
    """Whether ``nsys export`` was given this parameter: ``--ts-shift``, ``--ts-normalize``."""
    if not columns.get("META_DATA_EXPORT", frozenset()) >= {"name", "value"}:
        return False
    query = "SELECT 1 FROM META_DATA_EXPORT WHERE name = ? AND lower(value) NOT IN ('', '0', 'false')"
    return connection.execute(query, (name,)).fetchone() is not None


def _latest(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]], earliest: int) -> int:
    """When the capture was over, and two seconds more, ns; ``LATEST`` if unknown, or if times were shifted."""
    if earliest != EARLIEST or "duration" not in columns.get("ANALYSIS_DETAILS", frozenset()):
        return LATEST
    row = connection.execute("SELECT max(duration) FROM ANALYSIS_DETAILS WHERE typeof(duration) = 'integer'").fetchone()
    return min(row[0] - 2 * EARLIEST, LATEST) if row[0] and row[0] > 0 else LATEST


def _session_start(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> int:
    """The start of the session, ns since the epoch; 0 where the export does not say it."""
    if "utcEpochNs" not in columns.get("TARGET_INFO_SESSION_START_TIME", frozenset()):
        return 0
    row = connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) and 0 < row[0] < 1 << 62 else 0


def _has_python_samples(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> bool:
    """Whether any mark has a payload, in an export that names a file of Python: few read their marks for that."""
    if not columns.get("NVTX_EVENTS", frozenset()) >= {"eventType", "binaryData"}:
        return False
    named = "SELECT 1 FROM StringIds WHERE substr(CAST(value AS BLOB), -3) = x'2e7079' LIMIT 1"
    marks = "SELECT 1 FROM NVTX_EVENTS WHERE eventType = 34 AND binaryData IS NOT NULL LIMIT 1"
    try:
        return all(connection.execute(query).fetchone() is not None for query in (named, marks))
    except opening.READ_ERRORS:  # whoever reads these tables says which one is damaged
        return False


def _last_rowid(path: Path, connection: sqlite3.Connection, table: str) -> int:
    """The highest rowid: the row count of an event table, found without a scan. 0 for an empty table."""
    quoted = table.replace('"', '""')
    try:
        (last,) = connection.execute(f'SELECT max(rowid) FROM "{quoted}"').fetchone()
        if last is not None:
            integrity.check_last(path, connection, table, last)
    except opening.READ_ERRORS as error:
        if isinstance(error, sqlite3.OperationalError) and "rowid" in str(error):
            return 0  # a WITHOUT ROWID table: none of nsys's own
        raise opening.corrupt(path, error, table) from None
    if last == 0:  # StringIds starts at 0
        return 1
    return int(last or 0)


_SOURCES, _TYPES, _FIELDS = "GENERIC_EVENT_SOURCES", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_TYPE_FIELDS"
NAME_KEYS = ("Name", "name")
"""Where the JSON of a source or type, in schemas before 3.13, has its name."""
# Neither "default" nor "EFAULT" nor "interface" is meant.
_NAME = re.compile("efa(?!ult|ce)", re.IGNORECASE)
# What NVIDIA's recipe network_map_aws (nsys 2024) looks for, in whatever generic events there are.
_KNOWN_FIELDS = frozenset(f"rdma_{what}_bytes per second" for what in ("read", "read_resp", "write", "write_recv"))


def efa_types_of(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> tuple[int, ...]:
    """The types of the generic events of AWS's EFA plugin (``nsys profile --enable efa_metrics``).

    The ``typeId`` of each type that, or the source of which, is called EFA's, or that has fields only EFA has.

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
        described = json_in(data)
    except ValueError:
        return ""
    names = [described.get(key) for key in NAME_KEYS] if isinstance(described, dict) else []
    return next((name for name in names if isinstance(name, str)), "")
