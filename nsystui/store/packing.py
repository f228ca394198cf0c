"""Packing: exports turned into columns of canonical tables, once.

Native tables are read in chunks by rowid. The rows of a chunk stream into a file of one canonical table, or reach
several through tables in DuckDB. A sink keeps them: Parquet files in the cache, or tables in memory. Threads suffice,
because Python sees only the payloads of NCCL calls.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from nsystui.base.errors import DamagedError, ExportError
from nsystui.base.resources import Limits, shortage, step_back
from nsystui.exports import canonical, metadata, opening, schema, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.integrity import PageChecks
from nsystui.exports.metadata import Metadata, device_rows
from nsystui.exports.opening import ArrowReader, ExportFile, read_ahead
from nsystui.exports.sources import Source
from nsystui.store.cache import Cache, PackedFiles, Room, SinkRows
from nsystui.store.database import connect, make_table, memory_errors, memory_setting, read_errors
from nsystui.store.gpu_clock import gpu_clocks
from nsystui.store.reader import (
    ALL_FIELDS,
    CHUNK_ROWS,
    LONG_NAME,
    SORTED_ROWS,
    Chunk,
    Chunks,
    Fields,
    Lookups,
    Reader,
    TableStream,
    UnusualRows,
    Watch,
    chunk_rows,
    streamed,
)
from nsystui.store.report import Packed, PackedReport, PackedTables, has_span
from nsystui.store.tally import LeftOut, first_of

if TYPE_CHECKING:
    import duckdb

    from nsystui.exports.nccl_calls import PayloadSchemas


class PackingCancelled(Exception):
    """The user stopped the packing; nothing is kept."""


@dataclass(frozen=True)
class Progress:
    """Progress of packing one export: rows done of ``total`` (an estimate, exact at the end), now at ``table``."""

    path: Path
    table: str
    rows: int
    total: int


Sink = Callable[[CanonicalTable, "duckdb.DuckDBPyConnection", SinkRows], int]
"""Writes rows of a table, from several threads, and returns how many. Raises duckdb.Error and OSError."""


class MemorySink:
    """Tables in the session's database that receive rows; their names begin with ``prefix``."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, prefix: str) -> None:
        self.connection = connection
        self.names: dict[str, str] = {}
        """The table for each canonical table that has rows."""
        self._prefix = prefix
        self._lock = threading.Lock()

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, rows: SinkRows) -> int:
        """Write rows to the table of ``table``, which the first rows create."""
        name = f"{self._prefix}_{table.name}"
        with self._lock:
            if table.name not in self.names:
                ((written,),) = connection.execute(f"CREATE OR REPLACE TABLE {name} AS {rows.select}").fetchall()
                if written:
                    self.names[table.name] = name
                else:
                    connection.execute(f"DROP TABLE {name}")
                return int(written)
        ((written,),) = connection.execute(f"CREATE OR REPLACE TEMP TABLE arrived AS {rows.select}").fetchall()
        if written:
            with self._lock:
                connection.execute(f"INSERT INTO {name} FROM arrived")
        return int(written)

    def abandon(self) -> None:
        for name in self.names.values():
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")


Callbacks = tuple[Callable[[Progress], None], Callable[[], bool]]
"""Report progress, and return whether the packing is cancelled."""


@dataclass
class Packing:
    """A packer of exports. ``database`` is the session's; ``warn`` receives why a cache cannot be written."""

    database: duckdb.DuckDBPyConnection
    limits: Limits
    room: Room
    warn: Callable[[str], object]
    packing_database: PackingDatabase = field(init=False)

    def __post_init__(self) -> None:
        self._slots = threading.Semaphore(self.limits.chunks)
        self._packs = threading.Semaphore(self.limits.packs)
        self.packing_database = PackingDatabase(self.limits, self.database)

    def close(self) -> None:
        """Close the packing database."""
        if self.packing_database.database is not None:
            self.packing_database.database.close()

    def pack(self, file: ExportFile, index: int, callbacks: Callbacks) -> PackedFiles | PackedTables:
        """Pack an export, after waiting for its turn.

        Raises ExportError if it cannot be read completely or memory is too small, PackingCancelled, and OutputError if
        a required cache cannot be written.
        """
        cache = self.room.cache
        with self._packs, memory_errors(self.limits, cache is not None, file.path):
            return (cache and self._to_cache(cache, file, callbacks)) or self._to_memory(file, index, callbacks)

    def pack_partly(self, file: ExportFile, index: int, callbacks: Callbacks) -> PackedTables:
        """Pack the readable tables of a damaged export, into memory only: the cache holds complete packs.

        Raises the errors of ``pack``, and ExportError if all tables need the damaged data.
        """
        damaged: dict[str, str] = {}
        while True:
            try:
                with self._packs, memory_errors(self.limits, self.room.cache is not None, file.path):
                    return self._to_memory(file, index, callbacks, damaged)
            except DamagedError as error:
                if error.table in damaged or error.table not in sources.TABLES:
                    raise
                damaged[error.table] = error.cause

    def _to_cache(self, cache: Cache, file: ExportFile, callbacks: Callbacks) -> PackedFiles | None:
        """Pack into the cache; return ``None`` after a warning if it cannot be written (full, read-only)."""

        def write() -> PackedFiles:
            with cache.begin(file) as sink, self.packing_database.connection() as (connection, streams):
                options = *callbacks, self._slots, self.limits.workers
                return sink.finish(Packer(file, connection, sink.write, *options, streams).run().to_json())

        files = cache.write(write, self.warn)
        if files is not None:
            self.room.make(files.size)
        return files

    def _to_memory(
        self, file: ExportFile, index: int, callbacks: Callbacks, without: Mapping[str, str] = MappingProxyType({})
    ) -> PackedTables:
        sink = MemorySink(self.database.cursor(), f"report_{index:d}")
        try:
            options = *callbacks, self._slots, self.limits.workers
            packed = Packer(file, sink.connection, sink.write, *options, without=without).run()
        except BaseException:
            sink.abandon()
            raise
        finally:
            sink.connection.close()
        names = {name: table for name, table in sink.names.items() if name not in packed.damaged}
        return PackedTables(packed, names, without)


class PackingDatabase:
    """The database for packing into the cache; only during packing it borrows a share of the session's memory.

    It has one thread, so that the work stays in the low-priority packing threads.
    """

    def __init__(self, limits: Limits, session: duckdb.DuckDBPyConnection) -> None:
        self._limits = limits
        self._session = session
        self.database: duckdb.DuckDBPyConnection | None = None
        self._users = 0
        self._lock = threading.Lock()

    @contextmanager
    def connection(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, bool]]:
        """Yield a connection to pack one export with, and whether rows may be written as they arrive.

        If the session cannot spare memory, the connection is to its own database, and they may not.
        """
        with self._lock:
            is_spared = self._users or self._limit_session(self._limits.database - self._limits.packing.database)
            if is_spared and self.database is None:
                self.database = connect(self._limits.packing)
                # Without knowing the length of a stream, DuckDB would look up each string in a table of the rows.
                self.database.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
            database = self.database if is_spared else None
            self._users += database is not None
        cursor = (database or self._session).cursor()
        try:
            yield cursor, database is not None
        finally:
            cursor.close()
            with self._lock:
                self._users -= database is not None
                if not self._users:
                    self._limit_session(self._limits.database)

    def _limit_session(self, memory: int) -> bool:
        import duckdb

        cursor = self._session.cursor()
        try:
            cursor.execute(f"SET memory_limit = '{memory_setting(memory)}'")
        except duckdb.OutOfMemoryException:  # the columns that it keeps in memory need more
            return False
        finally:
            cursor.close()
        return True


@dataclass
class Packer:
    """A packer of one export. ``connection`` is its own DuckDB connection; ``report_progress`` is called per chunk.

    Low-priority threads work; of two ``workers``, one reads while the other writes. ``slots`` limits the chunks in
    progress over all packers that share it.
    """

    file: ExportFile
    connection: duckdb.DuckDBPyConnection
    sink: Sink
    report_progress: Callable[[Progress], None] = lambda progress: None
    is_cancelled: Callable[[], bool] = lambda: False
    slots: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))
    workers: int = 2
    streams: bool = False
    """Whether ``connection`` and ``sink`` accept rows as they arrive."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Native tables to leave out, with the reason."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rows_read: Counter[str] = field(default_factory=Counter)
    _done: int = 0

    @property
    def path(self) -> Path:
        return self.file.path

    def run(self) -> PackedReport:
        """Pack the export.

        Raises ExportError if the file cannot be read completely, PackingCancelled, and the sink's errors if it cannot
        write. If the memory is too small, the ExportError has DuckDB's error as its context.
        """
        import duckdb

        from nsystui.exports.nccl_calls import payload_schemas

        try:
            with self.file.unchanged():
                with closing(opening.connect(self.path)) as plain, opening.sqlite_errors(self.path):
                    tables = schema.probe(self.path, plain, self.without)
                    facts = metadata.read(self.path, plain, tables)
                    payload = payload_schemas(self.path, plain, tables)
                clocks = gpu_clocks(self.path, tables, self.connection)
                tables = replace(tables, gpu_clocks=clocks or (), are_clocks_known=clocks is not None)
                return self._pack(tables, replace(facts, gpu_clocks=tables.gpu_clocks), payload)
        except (DamagedError, KeyboardInterrupt):  # page checks end with KeyboardInterrupt
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
            # Writing failed, and the caller packs into memory instead: DuckDB only writes files here, SQLite reads.
            if isinstance(error, OSError | duckdb.IOException):
                raise
            if lacking := shortage(error):
                raise ExportError(opening.named(self.path), lacking) from None
            raise opening.corrupt(self.path, error) from None

    def _pack(self, tables: schema.Schema, facts: Metadata, payload: PayloadSchemas) -> PackedReport:
        inputs = sources.sources(tables)
        checks = PageChecks(self.path, self.is_cancelled)
        lookups = Lookups(self.path, tables, self.connection, checks)
        try:
            with ArrowReader(self.path) as export:
                # Always read the strings, to find out whether the export has all of them.
                lookups.fill(export, {"strings"}.union(*(source.words for source in inputs)))
            with read_ahead(self.path) as reach:
                packed = self.read(lookups, inputs, payload, reach=reach)
            if rows := device_rows(facts, sorted(packed.devices)):
                make_table(self.connection, canonical.DEVICES, rows, "made")
                written = self.sink(canonical.DEVICES, self.connection, SinkRows("SELECT * FROM made"))
                packed.count(canonical.DEVICES, written)
        finally:
            checks.close()
            lookups.drop()
        # A native table without rows means 0; without a native table, the number is unknown.
        counts = {**{name: 0 for source in inputs for name in source.feeds}, **packed.counts}
        first, last = packed.spans.get("work") or packed.spans.get("os") or (None, None)
        damaged = {name: self.without[src.table] for src in inputs if src.table in self.without for name in src.feeds}
        counts = {name: rows for name, rows in counts.items() if name not in damaged}
        return PackedReport(facts, counts, first, last, dict(packed.left_out), damaged)

    def read(
        self,
        lookups: Lookups,
        wanted: Iterable[Source],
        payload: PayloadSchemas | None,
        fields: Fields = ALL_FIELDS,
        reach: Callable[[float], object] = lambda part: None,
    ) -> Packed:
        """Read the ``fields`` of the native tables of the ``wanted`` sources into the sink, each row once.

        ``lookups`` must be filled. ``reach`` is called with the part (0 … 1) of the file that is read next. Raises
        ExportError if the file cannot be read completely, PackingCancelled, and duckdb.Error or OSError if the sink
        fails.
        """
        chunks, kernel_rows = self._chunks(lookups, wanted, fields)
        workers = [
            ChunkPacker(self.connection.cursor(), lookups, self.sink, payload, fields, kernel_rows, self.streams)
            for _ in range(self.workers)
        ]
        try:
            with ThreadPoolExecutor(self.workers, thread_name_prefix="pack", initializer=step_back) as pool:
                running = [pool.submit(self._pack_chunks, worker, chunks, reach) for worker in workers]
                try:
                    for finished in as_completed(running):
                        finished.result()
                finally:  # after a failure or ctrl+c, other workers stop at their next chunk
                    chunks.stop()
                # Lacks tables of which only NCCL calls are read, because their number of rows is unknown.
                last = {table: row for table, row in chunks.last_rows.items() if not lookups.pages.get(table)}
                lookups.checks.whole.update(chunks.last_rows.keys() - last)
                list(pool.map(lookups.checks.end, last, map(self._rows_read.__getitem__, last), last.values()))
        finally:
            for worker in workers:
                worker.connection.close()
        packed = workers[0].packed
        for worker in workers[1:]:
            packed.add(worker.packed)
        return packed

    def _chunks(self, lookups: Lookups, wanted: Iterable[Source], fields: Fields) -> tuple[Chunks, int]:
        """Return the chunks of all tables with rows, and the number of kernels in a chunk in memory."""
        # NCCL calls are read separately, so that the payload of most other ranges stays unread.
        separate = (part for source in wanted for part in (replace(source, decoded={}), replace(source, makes={})))
        parts = [part for part in (source.of_fields(fields) for source in separate) if part.feeds]
        _, longest = lookups.known_strings()
        kernel_rows = CHUNK_ROWS if longest < LONG_NAME else max((12 << 20) // longest, 1)  # 12 MiB of names

        def size(source: Source) -> int:
            return max(chunk_rows(source, kernel_rows), BAND_ROWS if self.streams and streamed(source) else 0)

        native = lookups.native
        return Chunks([part for part in parts if native.has(part.table)], native.last_rowid, size), kernel_rows

    def _pack_chunks(self, worker: ChunkPacker, chunks: Chunks, reach: Callable[[float], object]) -> None:
        with ArrowReader(self.path) as export:
            while (chunk := chunks.take()) is not None:
                reach(chunk.part)
                watch = self._watch(chunk, chunks)
                while not self.slots.acquire(timeout=_PATIENCE):
                    watch(chunk.first - 1)
                try:
                    with read_errors(self.path, chunk.source.table):
                        watch(chunk.first - 1)
                        rows = worker.pack(export, chunk, watch)
                        skipped = 0
                        if not rows:
                            following = first_row(worker.connection, export, chunk.source.table, chunk.last + 1)
                            skipped = chunks.skip_to(chunk.source, following)
                finally:
                    self.slots.release()
                if chunk.source.makes:
                    with self._lock:
                        self._rows_read[chunk.source.table] += rows
                watch(chunk.last + skipped)

    def _watch(self, chunk: Chunk, chunks: Chunks) -> Callable[[int], None]:
        """Return a function that reports the last packed row of a chunk; it raises PackingCancelled if cancelled."""
        reported = max(chunk.first - 1, 0)

        def watch(last: int) -> None:
            nonlocal reported
            if self.is_cancelled() or chunks.is_stopped:
                raise PackingCancelled
            if last > reported and chunk.source.makes:
                with self._lock:
                    self._done += last - reported
                    reported = last
                    done = min(self._done, chunks.total)
                    self.report_progress(Progress(self.path, chunk.source.table, done, chunks.total))

        return watch


_PATIENCE = 0.1
"""Seconds after which a waiting thread checks whether it was cancelled."""
BAND_ROWS = 1 << 20
"""Rows of a native table per file, few enough for programs that read whole files into memory. Tables are read band by
band, because their pages alternate through an export."""


@dataclass
class ChunkPacker:
    """A packer of chunks in turn; ``packed`` contains the facts of their rows."""

    connection: duckdb.DuckDBPyConnection
    lookups: Lookups
    sink: Sink
    payload: PayloadSchemas | None
    fields: Fields
    kernel_rows: int
    streams: bool
    packed: Packed = field(default_factory=Packed)
    _readers: dict[tuple[str, tuple[str, ...]], Reader] = field(default_factory=dict)
    _tables: dict[str, TableStream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lookups.share(self.connection)

    def pack(self, export: ArrowReader, chunk: Chunk, watch: Watch) -> int:
        """Pack the rows of a chunk and return their number; ``watch`` is called with the last row read."""
        stream = self._stream(chunk.source)
        if stream is None:
            self.lookups.pages[chunk.source.table] = None
            return self._pack_in_pieces(export, chunk, watch)
        rows, first = 0, chunk.first
        while first <= chunk.last:
            if not stream.is_usable:
                self.lookups.pages[chunk.source.table] = None
                return rows + self._pack_in_pieces(export, replace(chunk, first=first), watch)
            last = min(chunk.last, first + SORTED_ROWS - 1) if stream.sorts else chunk.last
            packed_rows = self._pack_stream(export, stream, replace(chunk, first=first, last=last), watch)
            if packed_rows is not None:
                rows, first = rows + packed_rows, last + 1
        return rows

    def _pack_in_pieces(self, export: ArrowReader, chunk: Chunk, watch: Watch) -> int:
        """Pack the rows of a chunk through tables of DuckDB, each with as many rows as fit into memory."""
        size = chunk_rows(chunk.source, self.kernel_rows)
        reader, rows = self._reader(chunk.source), 0
        for first in range(chunk.first, chunk.last + 1, size):
            piece = replace(chunk, first=first, last=min(first + size - 1, chunk.last))
            rows_read = reader.read(export, piece, watch)
            for part in reader.parts() if rows_read else ():
                if written := self.sink(part.table, self.connection, SinkRows(part.select, piece.position)):
                    self._count(part.table, written, f"({part.select})")
            rows += rows_read
        return rows

    def _pack_stream(self, export: ArrowReader, stream: TableStream, chunk: Chunk, watch: Watch) -> int | None:
        """Pack the rows of a chunk as they arrive and return their number; ``None`` if they must be read again."""
        import duckdb

        from nsystui.exports.leaf_pages import UnusualPages

        # The driver cannot type a stream without rows. A chunk up to the last row of the table has rows.
        name, last = chunk.source.table, chunk.last
        if last < self.lookups.native.last_rowid[name] and first_row(self.connection, export, name, chunk.first) > last:
            return 0
        table = canonical.BY_NAME[stream.name]
        arriving = stream.open(export, chunk, watch)
        rows = SinkRows(stream.select, chunk.position, stream.row_group, partial(self._count, table))
        try:
            with arriving.reading():
                written = self.sink(table, self.connection, rows)
        except UnusualRows:
            return None
        except UnusualPages:
            self.lookups.pages[name] = None
            return None
        except duckdb.OutOfMemoryException:  # smaller pieces take less
            stream.is_usable = False
            return None
        rows_read = stream.arrivals.rows
        if written < rows_read:
            left_out = stream.left_out(export, chunk, written)
            if left_out:
                self.packed.left_out[stream.name] += left_out
            # Rows that the stream skips go to the other tables.
            makes = chunk.source.makes.items()
            other_makes = {name: made for name, made in makes if name != stream.name and stream.rows_for(made)}
            remaining = replace(chunk.source, makes=other_makes, without=chunk.source.makes[stream.name].where)
            if other_makes and written + left_out.rows < rows_read:
                self._pack_in_pieces(export, replace(chunk, source=remaining), lambda last: watch(chunk.first - 1))
        return rows_read

    def _count(self, table: CanonicalTable, rows: int, written: str) -> None:
        """Count rows of a table, and the times and devices in ``written``, the SQL of these rows, if any."""
        self.packed.count(table, rows)
        if written and table is canonical.NVTX_RANGES and "end" in self.fields[table.name]:
            ((unended,),) = self.connection.execute(f'SELECT count(*) - count("end") FROM {written}').fetchall()
            self.packed.left_out[table.name] += LeftOut(open=unended)
        if self.fields is not ALL_FIELDS:
            return
        if has_span(table):
            # A range that never ended extends at least to its start.
            times = ", ".join(f'max("{name}")' for name in ("start", "end") if name in table.field_names)
            query = f"SELECT {first_of(table.name, 'start')}, greatest({times}) FROM {written}"
            self.packed.count(table, 0, *self.connection.execute(query).fetchall()[0])
        if table.name in WORK_TABLES:
            pairs = self.connection.execute(f"SELECT DISTINCT process, device FROM {written}").fetchall()
            self.packed.devices.update((process, device) for process, device in pairs if process is not None)

    def _stream(self, source: Source) -> TableStream | None:
        name = streamed(source) if self.streams else ""
        if not name:
            return None
        if source.table not in self._tables:
            self._tables[source.table] = TableStream(self.connection, self.lookups, source, name, self.fields)
        return self._tables[source.table]

    def _reader(self, source: Source) -> Reader:
        key = (source.table, source.feeds)
        if key not in self._readers:
            left_out, lookups = self.packed.left_out, self.lookups
            self._readers[key] = Reader(self.connection, lookups, source, self.fields, left_out, self.payload)
        return self._readers[key]


WORK_TABLES = (canonical.KERNELS.name, canonical.MEMORY_OPS.name, canonical.GRAPH_LAUNCHES.name)
"""The canonical tables of GPU work."""


def first_row(connection: duckdb.DuckDBPyConnection, export: ArrowReader, table: str, first: int) -> int:
    """Return the first row of a native table from ``first`` on, or a number after all rows."""
    query = f'SELECT min(rowid) AS row_id FROM "{table}" WHERE rowid >= {first:d}'
    ((row,),) = connection.from_arrow(export.stream(query)).fetchall()
    return 1 << 62 if row is None else int(row)
