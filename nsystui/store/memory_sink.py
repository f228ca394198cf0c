"""Packed rows in memory, where there is no cache to keep them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nsystui.exports.canonical import CanonicalTable

if TYPE_CHECKING:
    import duckdb


class MemorySink:
    """Keeps packed rows in tables of the session's own database."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, index: int) -> None:
        self.connection = connection
        self.names: dict[str, str] = {}
        self._index = index
        self._lock = threading.Lock()

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, place: int) -> None:
        name = f"report_{self._index:d}_{table.name}"
        rows = connection.table("kept")
        with self._lock:  # two threads pack, and a table is made once
            if table.name in self.names:
                rows.insert_into(name)
            else:
                rows.create(name)
                self.names[table.name] = name

    def abandon(self) -> None:
        """Leaves nothing behind."""
        for name in self.names.values():
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")
