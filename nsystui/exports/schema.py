"""The tables and columns of an export, probed because every version differs."""

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nsystui.base.errors import ExportError
from nsystui.base.files import opened
from nsystui.exports import integrity, opening
from nsystui.exports.integrity import is_accounted_for

# Every nsys export has StringIds; one of these distinguishes it from other files with that table.
_TYPICAL = frozenset((
    "META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_SYSTEM_ENV", "ANALYSIS_DETAILS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS", "OSRT_API",
))  # fmt: skip

NO_INTEGER = "CAST(NULL AS INTEGER)"
"""SQL for an integer column that an export does not have."""

LATEST = 1 << 54
"""The latest possible time after the start of a session, ns (208 days): a later time is damage."""
EARLIEST = -(10**9)
"""The earliest possible time, ns. Real exports begin up to 0.4 ms before their session (docs/exports.md#time)."""
_CUPTI = "CUPTI_ACTIVITY_KIND_"
GPU_WORK = tuple(f"{_CUPTI}{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
SYNCS = f"{_CUPTI}SYNCHRONIZATION"
_WITHIN = (*GPU_WORK, SYNCS, f"{_CUPTI}RUNTIME")
_BEFORE, _AFTER = -1_000_000, 100_000_000
"""The earliest end of rows of ``_WITHIN``, and their latest start after the session, ns, if clocks are known."""


@dataclass(frozen=True)
class GpuClock:
    """A GPU's clock in a process that is ahead of the CPU's by ``lead``, ns, known to ``width``; negative if behind.

    The times of work are on this clock, or if ``is_of_waits`` the times of `SYNCS`.
    """

    process: int
    device: int
    lead: int
    width: int
    is_of_waits: bool


class NativeColumn(str):
    """SQL of an integer column, which gives these values of the integers of the column ``native``.

    Outside of ``possible`` it gives ``LATEST`` + 1, inside it subtracts ``origin``; where the column ``end`` is
    ``origin``, too, the value is missing.
    """

    native: str
    possible: tuple[int, int] | None = None
    origin: int = 0
    end: str = ""


class NativeText(str):
    """SQL of the bytes of the text column ``native``; NULL gives none."""

    native: str


@dataclass(frozen=True)
class Schema:
    """The tables of an export with their columns, and the last rowids of the event tables.

    ``efa_types`` are the types of AWS's EFA plugin's generic events. ``earliest`` is the earliest possible time, ns:
    ``EARLIEST``, unless nsys shifted the times. ``latest`` is the latest possible time: two seconds after the end of
    the capture, because clocks differ. ``origin`` is subtracted from all times: the session's start, ns since the
    epoch, if times are UTC (``--ts-normalize``). ``has_python_samples``: whether NVTX marks may be samples of
    Python.
    """

    columns: Mapping[str, frozenset[str]]
    last_rowid: Mapping[str, int]
    efa_types: tuple[int, ...] = ()
    earliest: int = EARLIEST
    origin: int = 0
    has_python_samples: bool = False
    latest: int = LATEST
    gpu_clocks: tuple[GpuClock, ...] = ()
    """The clocks of GPUs that differ from the CPU's: `time` corrects them."""
    are_clocks_known: bool = True

    def exists(self, table: str) -> bool:
        """Return whether the table exists, even if it is empty."""
        return table in self.columns

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        return self.last_rowid.get(table, 0) > 0

    def has_column(self, table: str, column: str) -> bool:
        return column in self.columns.get(table, frozenset())

    def integer(self, table: str, column: str) -> str:
        """Return SQL for an integer column, or NULL if this version lacks it.

        The cast gives the column one type, because the reader takes types from the first rows.
        """
        if not self.has_column(table, column):
            return NO_INTEGER
        sql = NativeColumn(f'CAST("{column}" AS INTEGER)')
        sql.native = column
        return sql

    def time(self, table: str, column: str) -> str:
        """Return `integer` for a time. An impossible time, text or out of bounds, becomes later than ``LATEST``.

        It differs from a missing time, and the sum of two such times is an integer. CUPTI writes 0 for start and end if
        it could not collect the times: the start is missing, as in all tables.
        """
        if not self.has_column(table, column):
            return NO_INTEGER
        may_lack_times = column == "start" and self.has_column(table, "end")
        # NVTX names and begins things long before a capture. In SQLite, text is greater than any number.
        earliest = -LATEST if table == "NVTX_EVENTS" else self.earliest
        latest = self.latest
        if table in _WITHIN and earliest == EARLIEST and (self.are_clocks_known or table not in (*GPU_WORK, SYNCS)):
            earliest = _BEFORE if column == "end" else earliest
            latest += 2 * EARLIEST + _AFTER if column == "start" and latest != LATEST else 0
        raw = self._raw_time(table, column)
        is_possible, value = self._moment(raw, earliest, latest)
        no_times = f'WHEN "start" = {self.origin} AND "end" = {self.origin} THEN NULL ' if may_lack_times else ""
        case = f'CASE {no_times}WHEN {is_possible} THEN {value} WHEN "{column}" IS NOT NULL THEN {LATEST + 1} END'
        if raw != f'"{column}"':
            return case
        sql = NativeColumn(case)
        sql.native, sql.origin, sql.end = column, self.origin, "end" if may_lack_times else ""
        sql.possible = self.origin + earliest, self.origin + latest
        return sql

    def optional_time(self, table: str, column: str) -> str:
        """Return `integer` for a time that a row can lack: an impossible time becomes NULL.

        It may be long before the session, as in some of nsys's own messages.
        """
        if not self.has_column(table, column):
            return NO_INTEGER
        is_possible, value = self._moment(f'"{column}"', -LATEST, LATEST)
        return f"CASE WHEN {is_possible} THEN {value} END"

    def _raw_time(self, table: str, column: str) -> str:
        """Return SQL for a time as it is in the export; on the CPU's clock if a GPU's clock differs."""
        clocks = [item for item in self.gpu_clocks if table in ((SYNCS,) if item.is_of_waits else GPU_WORK)]
        if not clocks:
            return f'"{column}"'
        key = '"globalPid" = {} AND "deviceId" = {}'
        cases = " ".join(f"WHEN {key.format(item.process, item.device)} THEN {item.lead}" for item in clocks)
        return (
            f'CASE WHEN typeof("{column}") = \'integer\' THEN "{column}" - CASE {cases} ELSE 0 END ELSE "{column}" END'
        )

    def _moment(self, time: str, earliest: int, latest: int) -> tuple[str, str]:
        """Return SQL for whether a time is within bounds, and for its value since the session's start."""
        is_possible = f"{time} BETWEEN {self.origin + earliest} AND {self.origin + latest}"
        return is_possible, f"CAST({time} AS INTEGER)" + (f" - {self.origin}" if self.origin else "")

    def text(self, table: str, column: str) -> str:
        """Return SQL for the bytes of a text column; empty if the column is missing or NULL.

        Bytes, because programs use any encoding: the packer makes valid text of them.
        """
        exists = self.has_column(table, column)
        sql = NativeText(f"ifnull(CAST(\"{column}\" AS BLOB), x'')" if exists else "x''")
        sql.native = column
        return sql

    def rows(self, tables: Iterable[str]) -> int:
        """Count the rows of ``tables``: exact if no row was deleted, as in nsys exports."""
        return sum(max(self.last_rowid.get(table, 0), 0) for table in tables)


def probe(path: Path, connection: sqlite3.Connection, without: Collection[str] = ()) -> Schema:
    """Read the schema of an open export, as if the tables in ``without`` had no rows.

    Raises ExportError if the file is damaged, or not an nsys export.
    """
    columns: dict[str, frozenset[str]] = {}
    last_rowids: dict[str, int] = {}
    try:
        # nsys writes no virtual tables, and they may need a module that is not installed.
        query = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
        query += " AND coalesce(sql, '') NOT LIKE 'CREATE VIRTUAL%'"
        roots = dict(connection.execute(query).fetchall())
        ((entries, max_rowid),) = connection.execute("SELECT count(*), max(rowid) FROM sqlite_master").fetchall()
        if entries < (max_rowid or 0):
            integrity.check_pages(path, connection, "sqlite_master", f"only {entries} of {max_rowid} entries")
        for name in roots:
            quoted = name.replace('"', '""')
            table_info = connection.execute(f'PRAGMA table_info("{quoted}")')
            columns[name] = frozenset(column for _, column, *_ in table_info)
            if not columns[name]:  # two tables have this name, and one is damaged
                raise opening.corrupt(path, sqlite3.DatabaseError(f"malformed database schema ({name})"))
        if "StringIds" not in columns or not _TYPICAL & columns.keys():
            cause = "a SQLite file, but not an Nsight Systems export"
            raise ExportError(opening.named(path), cause, "nsys export -t sqlite FILE.nsys-rep")
        with opened(path) as file:
            for name, root in roots.items():
                if name in without:
                    continue
                last_rowids[name] = _last_rowid(path, connection, name)
                if not is_accounted_for(file, root):
                    integrity.check_pages(path, connection, name, f"only {last_rowids[name]:,} rows")
        efa_types = efa_types_of(connection, columns)
        earliest = -LATEST if _has_parameter(connection, columns, "EXPORT_PARAM_TIME_SHIFT") else EARLIEST
        latest = _latest(connection, columns, earliest)
        is_normalized = _has_parameter(connection, columns, "EXPORT_PARAM_TIME_NORMALIZE")
        origin = _session_start(connection, columns) if is_normalized else 0
        has_python_samples = "NVTX_EVENTS" not in without and _has_python_samples(connection, columns)
    except (*opening.READ_ERRORS, OSError) as error:
        raise opening.corrupt(path, error) from None
    return Schema(columns, last_rowids, efa_types, earliest, origin, has_python_samples, latest)


def _has_parameter(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]], name: str) -> bool:
    """Return whether ``nsys export`` had this parameter: ``--ts-shift``, ``--ts-normalize``."""
    if not columns.get("META_DATA_EXPORT", frozenset()) >= {"name", "value"}:
        return False
    query = "SELECT 1 FROM META_DATA_EXPORT WHERE name = ? AND lower(value) NOT IN ('', '0', 'false')"
    return connection.execute(query, (name,)).fetchone() is not None


def _latest(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]], earliest: int) -> int:
    """Return the end of the capture plus two seconds, ns; ``LATEST`` if unknown, or if times were shifted."""
    if earliest != EARLIEST or "duration" not in columns.get("ANALYSIS_DETAILS", frozenset()):
        return LATEST
    row = connection.execute("SELECT max(duration) FROM ANALYSIS_DETAILS WHERE typeof(duration) = 'integer'").fetchone()
    return min(row[0] - 2 * EARLIEST, LATEST) if row[0] and row[0] > 0 else LATEST


def _session_start(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> int:
    """Return the session's start, ns since the epoch, or 0 if unknown."""
    if "utcEpochNs" not in columns.get("TARGET_INFO_SESSION_START_TIME", frozenset()):
        return 0
    row = connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) and 0 < row[0] < 1 << 62 else 0


def _has_python_samples(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a mark has a payload. Reads marks only in exports that name a Python file, which are few."""
    if not columns.get("NVTX_EVENTS", frozenset()) >= {"eventType", "binaryData"}:
        return False
    python_files = "SELECT 1 FROM StringIds WHERE substr(CAST(value AS BLOB), -3) = x'2e7079' LIMIT 1"
    marks = "SELECT 1 FROM NVTX_EVENTS WHERE eventType = 34 AND binaryData IS NOT NULL LIMIT 1"
    try:
        return all(connection.execute(query).fetchone() is not None for query in (python_files, marks))
    except opening.READ_ERRORS:  # reading these tables reports which is damaged
        return False


def _last_rowid(path: Path, connection: sqlite3.Connection, table: str) -> int:
    """Return the highest rowid, 0 for an empty table: the row count of an event table, without a scan."""
    quoted = table.replace('"', '""')
    try:
        (last,) = connection.execute(f'SELECT max(rowid) FROM "{quoted}"').fetchone()
        if last is not None:
            integrity.check_last(path, connection, table, last)
    except opening.READ_ERRORS as error:
        if isinstance(error, sqlite3.OperationalError) and "rowid" in str(error):
            return 0  # a WITHOUT ROWID table, which nsys does not write
        raise opening.corrupt(path, error, table) from None
    return 1 if last == 0 else int(last or 0)  # StringIds starts at 0


_SOURCES, _TYPES, _FIELDS = "GENERIC_EVENT_SOURCES", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_TYPE_FIELDS"
# Excludes "default", "EFAULT" and "interface".
_NAME = re.compile("efa(?!ult|ce)", re.IGNORECASE)
# NVIDIA's recipe network_map_aws (nsys 2024) looks for these fields in all generic events.
_KNOWN_FIELDS = frozenset(f"rdma_{what}_bytes per second" for what in ("read", "read_resp", "write", "write_recv"))


def efa_types_of(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> tuple[int, ...]:
    """Return the ``typeId`` of generic events of AWS's EFA plugin (``nsys profile --enable efa_metrics``).

    The type or its source is named after EFA, or the type has fields that only EFA has. ``columns`` are the tables'
    columns. Raises sqlite3.Error if the export cannot be read.
    """
    if not {"typeId", "sourceId"} <= columns.get(_TYPES, frozenset()):
        return ()
    source_names = dict(_names_by_id(connection, columns, _SOURCES, "sourceId", "nameId"))
    type_names = dict(_names_by_id(connection, columns, _TYPES, "typeId", "nameId"))
    fields = _names_by_id(connection, columns, _FIELDS, "typeId", "fieldNameId")
    type_ids = {type_id for type_id, field in fields if field in _KNOWN_FIELDS}
    for type_id, source_id in connection.execute(f"SELECT typeId, sourceId FROM {_TYPES}"):
        if _NAME.search(type_names.get(type_id, "")) or _NAME.search(source_names.get(source_id, "")):
            type_ids.add(type_id)
    return tuple(sorted(type_id for type_id in type_ids if isinstance(type_id, int)))


def _names_by_id(
    connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]], table: str, key: str, name: str
) -> Iterator[tuple[int, str]]:
    """Yield each id in ``key`` with the strings whose ids are in the column ``name``, if the table has both."""
    if {key, name} <= columns.get(table, frozenset()):
        query = f"SELECT {key}, CAST(value AS BLOB) FROM {table} JOIN StringIds ON id = {name}"
        yield from ((item, (value or b"").decode("utf-8", "replace")) for item, value in connection.execute(query))
