"""Packed rows in memory, where there is no cache to keep them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nsystui.exports.canonical import CanonicalTable
from nsystui.store.written import Written, has_extent

if TYPE_CHECKING:
    import duckdb


class MemorySink:
    """Keeps packed rows in tables of the session's own database."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, index: int) -> None:
        self.connection = connection
        self.names: dict[str, str] = {}
        self._index = index
        self._lock = threading.Lock()

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, select: str, place: int) -> Written:
        """Adds rows to the table of ``table``."""
        name = f"report_{self._index:d}_{table.name}"
        connection.execute(f"CREATE OR REPLACE TEMP TABLE kept AS {select}")
        written = _extent(table, connection)
        if not written.rows:
            return written
        rows = connection.table("kept")
        with self._lock:  # two threads pack, and a table is made once
            if table.name in self.names:
                rows.insert_into(name)
            else:
                rows.create(name)
                self.names[table.name] = name
        return written

    def abandon(self) -> None:
        """Leaves nothing behind."""
        for name in self.names.values():
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")


def _extent(table: CanonicalTable, connection: duckdb.DuckDBPyConnection) -> Written:
    """Rows of ``kept`` with their first start and last end."""
    first, last = "NULL", "NULL"
    if has_extent(table):
        # A range that was never closed reaches at least to its start.
        end = 'greatest("start", "end")' if "end" in table.field_names else '"start"'
        first, last = 'min("start")', f"max({end})"
    ((rows, start, end),) = connection.execute(f"SELECT count(*), {first}, {last} FROM kept").fetchall()
    return Written(rows, start, end)
