"""The packing of a session: several exports at once within its limits, into its cache, or else into its memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import DamagedError, OutputError
from nsystui.exports import sources
from nsystui.store.cache import Cache, PackedFiles, Room
from nsystui.store.database import Limits, memory_errors
from nsystui.store.memory_sink import MemorySink
from nsystui.store.pack import PackedReport, Packer, Progress, Sink
from nsystui.store.packing_database import PackingDatabase

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
