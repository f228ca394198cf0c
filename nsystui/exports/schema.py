"""Which tables and columns an export has: probed, never assumed, since every version differs and none is certain."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsystui.base.errors import ExportError
from nsystui.exports import efa, opening, whole
from nsystui.exports.last_page import is_accounted_for

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


@dataclass(frozen=True)
class Schema:
    """The tables of an export with their columns, and how far the rowids of the event tables go.

    ``efa_types`` are the types of generic events that come from AWS's EFA plugin. ``earliest`` is the least time that
    an event can have, ns: ``EARLIEST``, unless nsys was told to shift the times.
    """

    columns: Mapping[str, frozenset[str]]
    last_rowid: Mapping[str, int]
    efa_types: tuple[int, ...] = ()
    earliest: int = EARLIEST

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

        So it differs from a missing one, and a sum of two still is an integer.
        """
        if not self.has_column(table, column):
            return NO_INTEGER
        # To SQLite text is greater than any number.
        within = f'"{column}" BETWEEN {self.earliest} AND {LATEST}'
        value = f'CAST("{column}" AS INTEGER)'
        return f'CASE WHEN {within} THEN {value} WHEN "{column}" IS NOT NULL THEN {LATEST + 1} END'

    def known_time(self, table: str, column: str) -> str:
        """``integer`` for the time of a row that says something without one: a time that cannot be is missing.

        It may lie long before the session: so do some of nsys's own messages.
        """
        if not self.has_column(table, column):
            return NO_INTEGER
        return f'CASE WHEN "{column}" BETWEEN {-LATEST} AND {LATEST} THEN CAST("{column}" AS INTEGER) END'

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
            whole.check_pages(path, connection, "sqlite_master", f"only {rows} of {last_row} entries")
        for name in roots:
            quoted = name.replace('"', '""')
            columns[name] = frozenset(row[1] for row in connection.execute(f'PRAGMA table_info("{quoted}")'))
            if not columns[name]:  # the name of a table is there twice, and one of them is damaged
                raise opening.corrupt(path, sqlite3.DatabaseError(f"malformed database schema ({name})"))
        if _ALWAYS not in columns or not _TELLING & columns.keys():
            raise ExportError(
                str(path), "a SQLite file, but not an Nsight Systems export", "nsys export -t sqlite FILE.nsys-rep"
            )
        with open(path, "rb") as file:
            for name, root in roots.items():
                if name in without:
                    continue
                last[name] = _read_last(path, connection, name)
                if not is_accounted_for(file, root):
                    whole.check_pages(path, connection, name, f"only {last[name]:,} rows")
        efa_types = efa.types(connection, columns)
        earliest = -LATEST if _is_shifted(connection, columns) else EARLIEST
    except (*opening.READ_ERRORS, OSError) as error:
        raise opening.corrupt(path, error) from None
    return Schema(columns, last, efa_types, earliest)


def _is_shifted(connection: sqlite3.Connection, columns: Mapping[str, frozenset[str]]) -> bool:
    """Whether nsys was told to add something to all times (``--ts-shift``)."""
    if not columns.get("META_DATA_EXPORT", frozenset()) >= {"name", "value"}:
        return False
    query = "SELECT 1 FROM META_DATA_EXPORT WHERE name = 'EXPORT_PARAM_TIME_SHIFT' AND value NOT IN ('', '0', 0)"
    return connection.execute(query).fetchone() is not None


def _read_last(path: Path, connection: sqlite3.Connection, table: str) -> int:
    try:
        return _last_rowid(path, connection, table)
    except opening.READ_ERRORS as error:
        raise opening.corrupt(path, error, table) from None


def _last_rowid(path: Path, connection: sqlite3.Connection, table: str) -> int:
    """The highest rowid: the row count of an event table, found without a scan. 0 for an empty table."""
    quoted = table.replace('"', '""')
    try:
        (last,) = connection.execute(f'SELECT max(rowid) FROM "{quoted}"').fetchone()
    except sqlite3.OperationalError as error:
        if "rowid" in str(error):  # a WITHOUT ROWID table: none of nsys's own
            return 0
        raise
    if last is not None:
        whole.check_last(path, connection, table, last)
    if last == 0:  # StringIds starts at 0
        return 1
    return int(last or 0)
