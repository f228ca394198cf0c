"""Packing: exports turned into the columns of the canonical tables, once.

The native tables are read in chunks by rowid, each chunk becomes rows of one or more canonical tables, and a sink
keeps them: Parquet files in the cache, or tables in memory. Threads are enough, because no row passes through Python
(the payload of NCCL calls apart). A session packs several exports at once within its limits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from nsystui.base.errors import DamagedError, ExportError
from nsystui.base.resources import shortage, step_back
from nsystui.exports import canonical, metadata, nccl_calls, opening, schema, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.integrity import PageChecks
from nsystui.exports.metadata import Metadata, pid_of
from nsystui.exports.nccl_calls import PayloadSchemas
from nsystui.exports.opening import ArrowReader, ExportFile
from nsystui.exports.sources import Source
from nsystui.store.cache import Cache, PackedFiles, Room
from nsystui.store.database import Limits, connect, memory_errors, memory_setting
from nsystui.store.reader import (
    ALL_FIELDS,
    CHUNK_ROWS,
    Chunk,
    Chunks,
    Fields,
    Lookups,
    Reader,
    make_table,
    read_errors,
)
from nsystui.store.report import PackedReport, PackedTables
from nsystui.store.tally import LeftOut

if TYPE_CHECKING:
    import duckdb


class PackingCancelled(Exception):
    """The user stopped the packing; nothing of it is kept."""


@dataclass(frozen=True)
class Progress:
    """How far the packing of one export is: rows done of ``total`` (an estimate that ends exact), now at ``table``."""

    path: Path
    table: str
    rows: int
    total: int


class Sink(Protocol):
    """The place that rows are written to; may be used by several threads."""

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, select: str, position: int) -> int:
        """Adds the rows that ``select`` gives on ``connection``, which have fields of ``table``; how many they are.

        ``position`` grows with the rows of a table. Raises duckdb.Error and OSError where they cannot be written.
        """


class MemorySink:
    """Keeps rows in tables of the session's own database, whose names begin with ``prefix``."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, prefix: str) -> None:
        self.connection = connection
        self.names: dict[str, str] = {}
        """The table for each canonical one that has rows."""
        self._prefix = prefix
        self._lock = threading.Lock()

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, select: str, position: int) -> int:
        """Adds rows to the table of ``table``, which is made of the first of them."""
        name = f"{self._prefix}_{table.name}"
        with self._lock:
            if table.name not in self.names:
                ((rows,),) = connection.execute(f"CREATE OR REPLACE TABLE {name} AS {select}").fetchall()
                if rows:
                    self.names[table.name] = name
                else:
                    connection.execute(f"DROP TABLE {name}")
                return int(rows)
        ((rows,),) = connection.execute(f"CREATE OR REPLACE TEMP TABLE arrived AS {select}").fetchall()
        if rows:
            with self._lock:
                connection.execute(f"INSERT INTO {name} FROM arrived")
        return int(rows)

    def abandon(self) -> None:
        """Leaves nothing behind."""
        for name in self.names.values():
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")


_NOTHING: Mapping[str, str] = {}


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
        file: ExportFile,
        index: int,
        report_progress: Callable[[Progress], None] = lambda progress: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> PackedFiles | PackedTables:
        """Packs an export, once it is its turn.

        Raises ExportError where it cannot be read whole or the memory is too little, PackingCancelled, and OutputError
        where a cache that is required cannot be written.
        """
        cache = self.room.cache
        with self._packs, memory_errors(self.limits, cache is not None, file.path):
            files = None if cache is None else self._to_cache(cache, file, report_progress, is_cancelled)
            return files or self._to_memory(file, index, report_progress, is_cancelled)

    def pack_partly(
        self,
        file: ExportFile,
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
                with self._packs, memory_errors(self.limits, self.room.cache is not None, file.path):
                    return self._to_memory(file, index, report_progress, is_cancelled, without)
            except DamagedError as error:
                if error.table in without or error.table not in sources.TABLES:
                    raise
                without[error.table] = error.cause

    def _to_cache(
        self,
        cache: Cache,
        file: ExportFile,
        report_progress: Callable[[Progress], None],
        is_cancelled: Callable[[], bool],
    ) -> PackedFiles | None:
        """Packs into the cache; ``None`` where it cannot be written (full, read-only), after a warning."""

        def write() -> PackedFiles:
            with cache.begin(file) as partial, self._own.connection() as connection:
                packed = self._packer(file, connection, partial, report_progress, is_cancelled).run()
                return partial.finish(packed.to_json())

        files = cache.write(write, self.warn)
        if files is not None:
            self.room.make(files.size)
        return files

    def _to_memory(
        self,
        file: ExportFile,
        index: int,
        report_progress: Callable[[Progress], None],
        is_cancelled: Callable[[], bool],
        without: Mapping[str, str] = _NOTHING,
    ) -> PackedTables:
        sink = MemorySink(self.database.cursor(), f"report_{index:d}")
        try:
            packed = self._packer(file, sink.connection, sink, report_progress, is_cancelled, without).run()
        except BaseException:
            sink.abandon()
            raise
        finally:
            sink.connection.close()
        names = {name: table for name, table in sink.names.items() if name not in packed.damaged}
        return PackedTables(packed, names, without)

    def _packer(
        self,
        file: ExportFile,
        connection: duckdb.DuckDBPyConnection,
        sink: Sink,
        report_progress: Callable[[Progress], None],
        is_cancelled: Callable[[], bool],
        without: Mapping[str, str] = _NOTHING,
    ) -> Packer:
        return Packer(file, connection, sink, report_progress, is_cancelled, self._slots, self.limits.workers, without)


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
            if self._database is None and self._let_session_have(self._limits.database - self._limits.packing.database):
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
                self._let_session_have(self._limits.database)

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


@dataclass
class Packer:
    """Packs one export. ``connection`` is a DuckDB connection of its own; ``report_progress`` is called per chunk.

    Threads of a low priority do the work; of two ``workers`` one reads while the other writes. ``slots`` are chunks
    that may be at work at once, over all packers that share them.
    """

    file: ExportFile
    connection: duckdb.DuckDBPyConnection
    sink: Sink
    report_progress: Callable[[Progress], None] = lambda progress: None
    is_cancelled: Callable[[], bool] = lambda: False
    slots: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))
    workers: int = 2
    without: Mapping[str, str] = field(default_factory=dict)
    """Native tables that are left out, with the reason."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.file.path

    def run(self) -> PackedReport:
        """Packs the export.

        Raises ExportError where the file cannot be read whole, PackingCancelled, and what the sink raises where it
        cannot write. Where the memory is too little the ExportError has DuckDB's error as its context.
        """
        import duckdb

        try:
            with self.file.unchanged():
                with closing(opening.connect(self.path)) as plain, opening.sqlite_errors(self.path):
                    tables = schema.probe(self.path, plain, self.without)
                    facts = metadata.read(self.path, plain, tables)
                    payload = nccl_calls.payload_schemas(self.path, plain, tables)
                return self._pack(tables, facts, payload)
        except (DamagedError, KeyboardInterrupt):  # the check of pages ends with the latter
            if self.is_cancelled():
                raise PackingCancelled from None
            raise
        except duckdb.InterruptException:
            raise PackingCancelled from None
        except duckdb.OutOfMemoryException:
            raise ExportError(opening.named(self.path), "its columns do not fit into the memory allowed") from None
        except (duckdb.Error, OSError) as error:
            if self.is_cancelled():
                raise PackingCancelled from None
            # Writing failed: a full or read-only cache is answered by packing into memory. DuckDB only writes files
            # here: exports are read by SQLite.
            if isinstance(error, OSError | duckdb.IOException):
                raise
            if lacking := shortage(error):
                raise ExportError(opening.named(self.path), lacking) from None
            raise opening.corrupt(self.path, error) from None

    def _pack(self, tables: schema.Schema, facts: Metadata, payload: PayloadSchemas) -> PackedReport:
        every = sources.sources(tables)
        checks = PageChecks(self.path, self.is_cancelled)
        lookups = Lookups(self.path, tables, self.connection, checks)
        try:
            with ArrowReader(self.path) as export:
                # The strings are read in any case: then it is known whether the export has them all.
                lookups.fill(export, {"strings"}.union(*(source.words for source in every)))
            with ReadAhead(self.path) as ahead:
                packed = self.read(lookups, every, payload, reach=ahead.reach)
            if rows := device_rows(facts, sorted(packed.devices)):
                make_table(self.connection, canonical.DEVICES, rows, "made")
                written = self.sink.write(canonical.DEVICES, self.connection, "SELECT * FROM made", 0)
                packed.count(canonical.DEVICES, written)
        finally:
            checks.close()
            lookups.drop()
        # A native table without rows says that there was nothing; one that is not there says nothing at all.
        counts = {**{name: 0 for source in every for name in source.feeds}, **packed.counts}
        first, last = packed.spans.get("work") or packed.spans.get("os") or (None, None)
        damaged = {name: self.without[one.table] for one in every if one.table in self.without for name in one.feeds}
        counts = {name: rows for name, rows in counts.items() if name not in damaged}
        return PackedReport(facts, counts, first, last, packed.left_out, damaged)

    def read(
        self,
        lookups: Lookups,
        every: Iterable[Source],
        payload: PayloadSchemas,
        fields: Fields = ALL_FIELDS,
        reach: Callable[[float], object] = lambda part: None,
    ) -> Packed:
        """Reads the ``fields`` of the native tables of ``every`` source into the sink, each row once.

        ``lookups`` are filled. ``reach`` is told which part (0 … 1) of the file is read next. Raises ExportError where
        the file cannot be read whole, PackingCancelled, and duckdb.Error or OSError where the sink cannot write.
        """
        native = lookups.native
        present = [source for source in every if native.has(source.table)]
        longest = lookups.longest()
        at_once = CHUNK_ROWS if longest < _LONG_NAME else max(_CHUNK_TEXT // longest, 1)
        chunks = Chunks(present, native.last_rowid, at_once)
        workers = [
            ChunkPacker(self.connection.cursor(), lookups, self.sink, payload, fields) for _ in range(self.workers)
        ]
        try:
            with ThreadPoolExecutor(self.workers, thread_name_prefix="pack", initializer=step_back) as pool:
                running = [pool.submit(self._pack_chunks, worker, chunks, reach) for worker in workers]
                try:
                    for finished in as_completed(running):
                        finished.result()
                finally:  # after a failure or ctrl+c the others stop at their next chunk
                    chunks.stop()
                # Of a table of which only NCCL's calls are read it is not known how many they are.
                tables = list({source.table: None for source in present if source.makes})
                rows = [(self._found.get(table, 0), native.last_rowid[table]) for table in tables]
                list(pool.map(lookups.checks.end, tables, *zip(*rows, strict=True)))
        finally:
            for worker in workers:
                worker.connection.close()
        packed = workers[0].packed
        for worker in workers[1:]:
            packed.add(worker.packed)
        return packed

    def _pack_chunks(self, worker: ChunkPacker, chunks: Chunks, reach: Callable[[float], object]) -> None:
        """Packs chunks until there are none."""
        with ArrowReader(self.path) as export:
            while (chunk := chunks.take()) is not None:
                if self.is_cancelled():
                    raise PackingCancelled
                reach(chunk.part)
                with self.slots, read_errors(self.path, chunk.source.table):
                    rows = worker.pack(export, chunk)
                    if not rows:
                        chunks.skip_to(chunk.source, worker.row_after(export, chunk))
                with self._lock:
                    if chunk.source.makes:
                        self._found[chunk.source.table] = self._found.get(chunk.source.table, 0) + rows
                    done = min(chunks.done(), chunks.total)
                    self.report_progress(Progress(self.path, chunk.source.table, done, chunks.total))


_LONG_NAME = 8 << 10
"""The bytes of a name from which on chunks have fewer rows, as each row has a copy of its name."""
_CHUNK_TEXT = 12 << 20
"""The bytes that the names of such a chunk take at most."""


@dataclass
class Packed:
    """The rows that were packed so far: their number by canonical table, those left out, (process, device) of GPU work,
    first start and last end, ns.

    OS runtime calls have an extent of their own: they go on long after the program's work, and would make a busy GPU
    look idle at the end.
    """

    counts: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    devices: set[tuple[int, int]] = field(default_factory=set)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, table: CanonicalTable, rows: int, first: int | None = None, last: int | None = None) -> None:
        """Adds rows of a table, with the first start and last end of their events."""
        self.counts[table.name] = self.counts.get(table.name, 0) + rows
        if first is not None and last is not None:
            self._widen("os" if table is canonical.OS_CALLS else "work", first, last)

    def add(self, other: Packed) -> None:
        """Adds what another thread packed of the same export."""
        for name, rows in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + rows
        for name, left_out in other.left_out.items():
            self.left_out[name] = self.left_out.get(name, LeftOut()) + left_out
        self.devices |= other.devices
        for which, (first, last) in other.spans.items():
            self._widen(which, first, last)

    def _widen(self, which: str, first: int, last: int) -> None:
        before = self.spans.get(which)
        self.spans[which] = (first, last) if before is None else (min(before[0], first), max(before[1], last))


class ChunkPacker:
    """Packs chunks, one after the other, and knows what it packed."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        lookups: Lookups,
        sink: Sink,
        payload: PayloadSchemas,
        fields: Fields,
    ) -> None:
        self.connection = connection
        self.packed = Packed()
        self._lookups = lookups
        self._sink = sink
        self._payload = payload
        self._fields = fields
        self._readers: dict[tuple[str, bool], Reader] = {}
        lookups.share(connection)

    def pack(self, export: ArrowReader, chunk: Chunk) -> int:
        """Packs the rows of a chunk; how many the native table has there."""
        reader = self._reader(chunk)
        rows = reader.read(export, chunk)
        for part in reader.parts() if rows else ():
            if written := self._sink.write(part.table, self.connection, part.select, chunk.position):
                self.packed.count(part.table, written, part.first, part.last)
            if part.table.name in WORK_TABLES and self._fields is ALL_FIELDS:
                used = reader.source.makes[part.table.name].of_fields(("process", "device")).select(tie="")
                pairs = self.connection.execute(f"SELECT DISTINCT process, device FROM ({used})").fetchall()
                self.packed.devices.update((process, device) for process, device in pairs if process is not None)
        return rows

    def row_after(self, export: ArrowReader, chunk: Chunk) -> int:
        """The first row behind a chunk; behind the last one where there is none."""
        return self._reader(chunk).row_after(export, chunk)

    def _reader(self, chunk: Chunk) -> Reader:
        which = (chunk.source.table, bool(chunk.source.makes))
        if which not in self._readers:
            left_out, lookups = self.packed.left_out, self._lookups
            self._readers[which] = Reader(self.connection, lookups, chunk.source, self._fields, left_out, self._payload)
        return self._readers[which]


WORK_TABLES = (canonical.KERNELS.name, canonical.MEMORY_OPS.name, canonical.GRAPH_LAUNCHES.name)
"""The canonical tables whose rows a GPU worked on."""


def device_rows(facts: Metadata, used: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """The rows of the canonical table of devices, which no native table has as such.

    A row for each (process, device) of ``used``, and one without a process for each other GPU.
    """
    by_number = {gpu.gpu: gpu for gpu in facts.gpus}
    by_ordinal = {gpu.cuda_device: gpu for gpu in facts.gpus if gpu.cuda_device is not None}
    rows: list[tuple[Any, ...]] = []
    placed = set()
    for process, device in used:
        number = facts.gpu_numbers.get((pid_of(process), device))
        gpu = by_number.get(number) if number is not None else by_ordinal.get(device) or by_number.get(device)
        number = gpu.gpu if gpu else number
        placed.add(number)
        rows.append((process, device, number, *_gpu_facts(gpu)))
    rows += [(None, None, gpu.gpu, *_gpu_facts(gpu)) for gpu in facts.gpus if gpu.gpu not in placed]
    return rows


def _gpu_facts(gpu: metadata.Gpu | None) -> tuple[Any, ...]:
    if gpu is None:
        return (None, None, None, None, None, None, None)
    names = (gpu.name or None, gpu.uuid or None, gpu.bus or None, gpu.chip or None)
    return (*names, gpu.sm_count, gpu.total_memory, gpu.numa)


_AHEAD = 32 << 20


class ReadAhead:
    """Tells the system which part of an export is read next, so that it comes in large pieces; a context manager.

    SQLite asks for pages of 4 KB, one after the other; on a network file system each would be a round trip of its own.
    The rows are read band by band through the file, so what lies ahead is known. Does nothing where the system does not
    know how.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._size = 0
        self._done = 0
        self._lock = threading.Lock()

    def __enter__(self) -> ReadAhead:
        with suppress(OSError):
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._size = os.fstat(self._descriptor).st_size
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def reach(self, part: float) -> None:
        """Reads up to ``part`` (0 … 1) of the file now, and a little more soon; no part twice."""
        with self._lock:
            end = min(int(part * self._size) + _AHEAD, self._size)
            if self._descriptor < 0 or end <= self._done or not hasattr(os, "posix_fadvise"):
                return
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, self._done, end - self._done, os.POSIX_FADV_WILLNEED)
            self._done = end
