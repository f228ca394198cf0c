"""The database that exports are packed in on their way into the cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nsystui.store.database import Limits, connect, memory_setting

if TYPE_CHECKING:
    import duckdb


class PackingDatabase:
    """Where exports are packed into the cache: a database of its own, which is there while something is packed.

    It has one thread, so that the work stays in the threads that pack, whose priority is lower. Its memory is a share
    of the session's, which gets it back at the end.
    """

    def __init__(self, limits: Limits, session: duckdb.DuckDBPyConnection) -> None:
        self._limits = limits
        self._session = session
        self._database: duckdb.DuckDBPyConnection | None = None
        self._users = 0
        self._lock = threading.Lock()

    @contextmanager
    def connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to pack one export with; of the session's database where that cannot spare the memory."""
        with self._lock:
            if self._database is None and self._let_session_have(self._limits.memory - self._limits.packing.memory):
                self._database = connect(self._limits.packing)
            database = self._database
            self._users += database is not None
        cursor = (database or self._session).cursor()
        try:
            yield cursor
        finally:
            cursor.close()
            if database is not None:
                self._leave(database)

    def _leave(self, database: duckdb.DuckDBPyConnection) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                database.close()
                self._database = None
                self._let_session_have(self._limits.memory)

    def _let_session_have(self, memory: int) -> bool:
        import duckdb

        cursor = self._session.cursor()
        try:
            cursor.execute(f"SET memory_limit = '{memory_setting(memory)}'")
        except duckdb.OutOfMemoryException:  # it keeps columns in memory, more of them than that
            return False
        finally:
            cursor.close()
        return True
