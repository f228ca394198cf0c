"""The packing of a session: several exports at once within its limits, into its cache, or else into its memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import DamagedError, OutputError
from nsystui.exports import canonical, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.store.cache import Cache, PackedFiles, Room
from nsystui.store.database import Limits, connect, memory_errors, memory_setting
from nsystui.store.pack import PackedReport, Packer, Progress, Sink, Written, has_extent

if TYPE_CHECKING:
    import duckdb


_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class PackedTables:
    """A packed report in memory: its facts, and the table of the session's database for each canonical one.

    ``damaged``: native tables that are left out, and why.
    """

    report: PackedReport
    names: Mapping[str, str]
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Packing:
    """Packs exports. ``database`` is the session's; a cache that cannot be written is told to ``warn``."""

    database: duckdb.DuckDBPyConnection
    limits: Limits
    room: Room
    warn: Callable[[str], object]
    _own: PackingDatabase = field(init=False)

    def __post_init__(self) -> None:
        self._slots = threading.Semaphore(self.limits.chunks)
        self._packs = threading.Semaphore(self.limits.packs)
        self._own = PackingDatabase(self.limits, self.database)

    def pack(
        self,
        path: Path,
        index: int,
        report_progress: Callable[[Progress], None] = lambda progress: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> PackedFiles | PackedTables:
        """Packs an export, once it is its turn.

        Raises ExportError where it cannot be read whole or the memory is too little, PackingCancelled, and OutputError
        where a cache that is required cannot be written.
        """
        cache = self.room.cache
        with self._packs, memory_errors(self.limits, cache is not None, path):
            files = None if cache is None else self._to_cache(cache, path, report_progress, is_cancelled)
            return files or self._to_memory(path, index, report_progress, is_cancelled)

    def pack_partly(
        self,
        path: Path,
        index: int,
        report_progress: Callable[[Progress], None] = lambda progress: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> PackedTables:
        """Packs what can be read of a damaged export, into memory: nobody is to take it for the whole.

        Raises what ``pack`` raises; ExportError where the damage is in what all tables need.
        """
        without: dict[str, str] = {}
        while True:
            try:
                with self._packs, memory_errors(self.limits, self.room.cache is not None, path):
                    return self._to_memory(path, index, report_progress, is_cancelled, without)
            except DamagedError as error:
                if error.table in without or error.table not in sources.TABLES:
                    raise
                without[error.table] = error.cause

    def _to_cache(
        self, cache: Cache, path: Path, report_progress: Callable[[Progress], None], is_cancelled: Callable[[], bool]
    ) -> PackedFiles | None:
        """Packs into the cache; ``None`` where the cache cannot be written (full, read-only), after a warning."""
        import duckdb

        partial = None
        try:
            partial = cache.begin(path)
            with self._own.connection() as connection:
                packed = self._packer(path, connection, partial, report_progress, is_cancelled).run()
            files = partial.finish(packed)
        except (OSError, duckdb.Error) as error:
            if partial is not None:
                partial.abandon()
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
            if cache.is_required:
                raise OutputError(f"{cache.directory.parent} cannot be written ({reason})") from None
            self.warn(f"the cache {cache.directory} cannot be written ({reason}): keeping columns in memory")
            return None
        except BaseException:
            if partial is not None:
                partial.abandon()
            raise
        self.room.make(files.size)
        return files

    def _to_memory(
        self,
        path: Path,
        index: int,
        report_progress: Callable[[Progress], None],
        is_cancelled: Callable[[], bool],
        without: Mapping[str, str] = _NOTHING,
    ) -> PackedTables:
        sink = MemorySink(self.database.cursor(), index)
        try:
            packed = self._packer(path, sink.connection, sink, report_progress, is_cancelled, without).run()
        except BaseException:
            sink.abandon()
            raise
        finally:
            sink.connection.close()
        names = {name: table for name, table in sink.names.items() if name not in packed.damaged}
        return PackedTables(packed, names, without)

    def _packer(
        self,
        path: Path,
        connection: duckdb.DuckDBPyConnection,
        sink: Sink,
        report_progress: Callable[[Progress], None],
        is_cancelled: Callable[[], bool],
        without: Mapping[str, str] = _NOTHING,
    ) -> Packer:
        return Packer(path, connection, sink, report_progress, is_cancelled, self._slots, self.limits.workers, without)


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
