"""Packing: an export turned into the columns of the canonical tables, once.

The native tables are read in chunks by rowid, each chunk becomes rows of one or more canonical tables, and a sink
keeps them: Parquet files in the cache, or tables in memory. Threads are enough, because no row passes through Python
(the payload of NCCL calls apart).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from nsystui.base.errors import DamagedError, ExportError
from nsystui.base.resources import shortage
from nsystui.exports import canonical, metadata, nccl_calls, opening, schema, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.identifiers import pid_of
from nsystui.exports.metadata import Metadata
from nsystui.exports.nccl_calls import PayloadSchemas
from nsystui.exports.opening import ArrowReader
from nsystui.exports.sources import Transform
from nsystui.exports.whole import check_rows
from nsystui.store.machine import step_back
from nsystui.store.reader import ALL_FIELDS, CHUNK_ROWS, Chunk, Chunks, Lookups, Reader, make_table, read_errors
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


@dataclass(frozen=True)
class PackedReport:
    """The facts of a packed export: its metadata, rows per canonical table, and the extent of its events in ns.

    ``counts`` is 0 for a canonical table whose native tables are there without rows, and lacks one without any.
    OS runtime calls count for the extent only in a report that has no other events. ``left_out`` are the rows whose
    times cannot be. ``damaged``: canonical tables without rows here because of damage in the export, and which.
    """

    metadata: Metadata
    counts: dict[str, int] = field(default_factory=dict)
    first_event: int | None = None
    last_event: int | None = None
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def most(self, table: str) -> int:
        """How many rows a canonical table has."""
        return self.counts.get(table, 0)

    def to_json(self) -> dict[str, Any]:
        """As plain values for ``json.dump``."""
        return {
            "metadata": self.metadata.to_json(),
            "counts": self.counts,
            "first_event": self.first_event,
            "last_event": self.last_event,
            "left_out": {name: found.by_reason for name, found in self.left_out.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PackedReport:
        """The inverse of ``to_json``."""
        return cls(
            Metadata.from_json(values["metadata"]),
            dict(values["counts"]),
            values["first_event"],
            values["last_event"],
            {name: LeftOut.from_json(found) for name, found in values["left_out"].items()},
        )


@dataclass(frozen=True)
class Written:
    """The number of rows written, with the first start and last end of their events, ns.

    The times are ``None`` where the rows do not stretch a session.
    """

    rows: int
    first: int | None = None
    last: int | None = None


def has_extent(table: CanonicalTable) -> bool:
    """Whether the rows of a table are events: samples, diagnostics and the profiler's own do not stretch a session."""
    return "start" in table.field_names and table.name not in ("nic_metrics", "profiler_overhead")


def written_of(table: CanonicalTable, rows: int, statistics: Mapping[str, Mapping[str, str]]) -> Written:
    """The extent that DuckDB's ``COPY … (RETURN_STATS)`` tells: minimum and maximum of each column, as text."""
    if not rows or not has_extent(table):
        return Written(rows)
    starts, ends = statistics['"start"'], statistics.get('"end"', {})
    # A range that was never closed reaches at least to its start.
    last = max(int(values["max"]) for values in (starts, ends) if "max" in values)
    return Written(rows, int(starts["min"]), last)


class Sink(Protocol):
    """Where packed rows go; may be written to by several threads."""

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, select: str, place: int) -> Written:
        """Keeps the rows that ``select`` gives on ``connection``, which have exactly the fields of ``table``.

        ``place`` grows with the rows of a table.
        """


@dataclass
class Packer:
    """Packs one export. ``connection`` is a DuckDB connection of its own; ``report_progress`` is called per chunk.

    Threads of a low priority do the work; of two ``workers`` one reads while the other writes. ``slots`` are chunks
    that may be at work at once, over all packers that share them.
    """

    path: Path
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

    def run(self) -> PackedReport:
        """Packs the export.

        Raises ExportError where the file cannot be read whole, PackingCancelled, and what the sink raises where it
        cannot write. Where the memory is too little the ExportError has DuckDB's error as its context.
        """
        import duckdb

        opening.check(self.path)
        plain = opening.connect(self.path)
        try:
            tables = schema.probe(self.path, plain, self.without)
            facts = metadata.read(self.path, plain, tables)
            payload = nccl_calls.payload_schemas(plain, tables)
        except opening.READ_ERRORS as error:
            raise opening.corrupt(self.path, error) from None
        finally:
            plain.close()
        try:
            return self._pack(tables, facts, payload)
        except DamagedError:
            if self.is_cancelled():
                raise PackingCancelled from None
            raise
        except duckdb.InterruptException:
            raise PackingCancelled from None
        except duckdb.OutOfMemoryException:
            raise ExportError(str(self.path), "its columns do not fit into the memory allowed") from None
        except (duckdb.Error, OSError) as error:
            if self.is_cancelled():
                raise PackingCancelled from None
            if _is_disk_trouble(error):
                raise
            if lacking := shortage(error):
                raise ExportError(str(self.path), lacking) from None
            raise opening.corrupt(self.path, error) from None

    def _pack(self, tables: schema.Schema, facts: Metadata, payload: PayloadSchemas) -> PackedReport:
        every = sources.sources(tables)
        lookups = Lookups(self.path, tables, self.connection)
        try:
            with ArrowReader(self.path) as export:
                # The strings are read in any case: then it is known whether the export has them all.
                lookups.fill(export, {"strings"}.union(*(source.words for source in every)))
            chunks = Chunks([source for source in every if tables.has(source.table)], tables.last_rowid, CHUNK_ROWS)
            every_worker = range(self.workers)
            workers = [ChunkPacker(self.connection.cursor(), lookups, self.sink, payload) for _ in every_worker]
            try:
                pool = ThreadPoolExecutor(self.workers, thread_name_prefix="pack", initializer=step_back)
                with ReadAhead(self.path) as ahead, pool:
                    running = [pool.submit(self._work, worker, chunks, ahead) for worker in workers]
                    _first_failure(running, chunks)
                for source in every:
                    if tables.has(source.table):
                        check_rows(
                            self.path, source.table, self._found.get(source.table, 0), tables.last_rowid[source.table]
                        )
                packed = workers[0].packed
                for worker in workers[1:]:
                    packed.add(worker.packed)
                rows = device_rows(facts, sorted(packed.devices))
                if rows:
                    workers[0].write_rows(canonical.DEVICES, rows)
            finally:
                for worker in workers:
                    worker.connection.close()
        finally:
            lookups.drop()
        # A native table without rows says that there was nothing; one that is not there says nothing at all.
        counts = {**{name: 0 for source in every for name in source.feeds}, **packed.counts}
        first, last = packed.extents.get("work") or packed.extents.get("os") or (None, None)
        damaged = {name: self.without[one.table] for one in every if one.table in self.without for name in one.feeds}
        counts = {name: rows for name, rows in counts.items() if name not in damaged}
        return PackedReport(facts, counts, first, last, packed.left_out, damaged)

    def _work(self, worker: ChunkPacker, chunks: Chunks, ahead: ReadAhead) -> None:
        """Packs chunks until there are none."""
        with ArrowReader(self.path) as export:
            while (chunk := chunks.take()) is not None:
                if self.is_cancelled():
                    raise PackingCancelled
                ahead.reach(chunk.part)
                with self.slots, read_errors(self.path, chunk.source.table):
                    rows = worker.pack(export, chunk)
                    if not rows:
                        chunks.skip_to(chunk.source, worker.row_after(export, chunk))
                with self._lock:
                    self._found[chunk.source.table] = self._found.get(chunk.source.table, 0) + rows
                    done = min(chunks.done(), chunks.total)
                    self.report_progress(Progress(self.path, chunk.source.table, done, chunks.total))


def _first_failure(running: Sequence[Future[None]], chunks: Chunks) -> None:
    """Waits for all; where one fails, the others stop at their next chunk, and the failure is raised."""
    for finished in as_completed(running):
        if finished.exception() is not None:
            chunks.stop()
    for future in running:
        future.result()


def _is_disk_trouble(error: Exception) -> bool:
    """Whether writing failed, not reading: a full or read-only cache is answered by packing into memory.

    DuckDB only writes files here: exports are read by SQLite.
    """
    import duckdb

    return isinstance(error, OSError | duckdb.IOException)


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
    extents: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, table: CanonicalTable, written: Written) -> None:
        """Adds rows of a table with their extent."""
        self.counts[table.name] = self.counts.get(table.name, 0) + written.rows
        if written.first is not None and written.last is not None:
            self._stretch("os" if table is canonical.OS_CALLS else "work", written.first, written.last)

    def add(self, other: Packed) -> None:
        """Adds what another thread packed of the same export."""
        for name, rows in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + rows
        for name, left_out in other.left_out.items():
            self.left_out[name] = self.left_out.get(name, LeftOut()) + left_out
        self.devices |= other.devices
        for which, (first, last) in other.extents.items():
            self._stretch(which, first, last)

    def _stretch(self, which: str, first: int, last: int) -> None:
        before = self.extents.get(which)
        self.extents[which] = (first, last) if before is None else (min(before[0], first), max(before[1], last))


class ChunkPacker:
    """Packs chunks, one after the other, and knows what it packed."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, lookups: Lookups, sink: Sink, payload: PayloadSchemas
    ) -> None:
        self.connection = connection
        self.packed = Packed()
        self._lookups = lookups
        self._sink = sink
        self._payload = payload
        self._readers: dict[str, Reader] = {}
        lookups.share(connection)

    def pack(self, export: ArrowReader, chunk: Chunk) -> int:
        """Packs the rows of a chunk; how many the native table has there."""
        reader = self._reader(chunk)
        rows = reader.read(export, chunk)
        place = chunk.source.first_row + chunk.first
        for table, select in reader.parts() if rows else ():
            self._write(table, select, place)
            if table.name in WORK_TABLES:
                self._note_devices(reader.source.makes[table.name])
        return rows

    def row_after(self, export: ArrowReader, chunk: Chunk) -> int:
        """The first row behind a chunk; behind the last one where there is none."""
        return self._reader(chunk).row_after(export, chunk)

    def write_rows(self, table: CanonicalTable, rows: Sequence[tuple[Any, ...]]) -> None:
        """Writes rows that Python made."""
        make_table(self.connection, table, rows, "made")
        self._write(table, "SELECT * FROM made", 0)

    def _reader(self, chunk: Chunk) -> Reader:
        table = chunk.source.table
        if table not in self._readers:
            left_out, lookups = self.packed.left_out, self._lookups
            self._readers[table] = Reader(self.connection, lookups, chunk.source, ALL_FIELDS, left_out, self._payload)
        return self._readers[table]

    def _write(self, table: CanonicalTable, select: str, place: int) -> None:
        """Hands rows to the sink, whose columns have the names and the canonical types of ``table``."""
        written = self._sink.write(table, self.connection, select, place)
        if written.rows:
            self.packed.count(table, written)

    def _note_devices(self, work: Transform) -> None:
        used = work.of_fields(("process", "device")).select(tie="")
        pairs = self.connection.execute(f"SELECT DISTINCT process, device FROM ({used})").fetchall()
        self.packed.devices.update((process, device) for process, device in pairs if process is not None)


WORK_TABLES = (canonical.KERNELS.name, canonical.MEMORY_OPS.name, canonical.GRAPH_LAUNCHES.name)
"""The canonical tables whose rows a GPU worked on."""


def device_rows(facts: Metadata, used: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """The rows of the canonical table of devices, which no native table has as such.

    A row for each (process, device) of ``used``, and one without a process for each other GPU.
    """
    by_number = {gpu.gpu: gpu for gpu in facts.gpus}
    by_ordinal = {gpu.cuda_device: gpu for gpu in facts.gpus if gpu.cuda_device is not None}
    told = {(device.pid, device.device): device.gpu for device in facts.cuda_devices}
    rows: list[tuple[Any, ...]] = []
    placed = set()
    for process, device in used:
        pid = pid_of(process)
        number = told.get((pid, device))
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
