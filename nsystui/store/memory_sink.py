"""Packed rows in memory, where there is no cache to keep them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nsystui.exports import canonical
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
        self._begun: set[str] = set()
        self._lock = threading.Lock()
        self._locks = {name: threading.Lock() for name in canonical.BY_NAME}

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, select: str, place: int) -> Written:
        """Adds rows to the table of ``table``."""
        name = f"report_{self._index:d}_{table.name}"
        with self._locks[table.name]:  # two threads pack, and a table is made once
            if table.name not in self.names:
                return self._make(table, connection, select, name)
        ((rows,),) = connection.execute(f"CREATE OR REPLACE TEMP TABLE kept AS {select}").fetchall()
        written = _extent(table, connection, "kept", int(rows))
        if written.rows:
            with self._lock:
                connection.table("kept").insert_into(name)
        return written

    def _make(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, select: str, name: str) -> Written:
        """Makes a table of its first rows; there is none as long as there are none."""
        self._begun.add(name)
        ((rows,),) = connection.execute(f"CREATE TABLE {name} AS {select}").fetchall()
        written = _extent(table, connection, name, int(rows))
        if written.rows:
            self.names[table.name] = name
        else:
            connection.execute(f"DROP TABLE {name}")
        return written

    def abandon(self) -> None:
        """Leaves nothing behind."""
        for name in self._begun:
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")


def _extent(table: CanonicalTable, connection: duckdb.DuckDBPyConnection, name: str, rows: int) -> Written:
    """The ``rows`` of the table called ``name`` with their first start and last end."""
    if not rows or not has_extent(table):
        return Written(rows)
    # A range that was never closed reaches at least to its start.
    last = 'greatest("start", "end")' if "end" in table.field_names else '"start"'
    ((start, end),) = connection.execute(f'SELECT min("start"), max({last}) FROM {name}').fetchall()
    return Written(rows, start, end)
