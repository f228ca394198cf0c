"""Packing: an export turned into the columns of the canonical tables, once.

The native tables are read in chunks by rowid, each chunk becomes rows of one or more canonical tables, and a sink
keeps them: Parquet files in the cache, or tables in memory. Threads are enough to pack several exports side by side,
because no row passes through Python (the payload of NCCL calls apart).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nsystui.errors import ExportError
from nsystui.exports import canonical, metadata, nccl_calls, opening, schema, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.metadata import Metadata
from nsystui.exports.nccl_payload import PayloadSchemas
from nsystui.exports.reading import Reader

if TYPE_CHECKING:
    import duckdb

# Wide enough that Parquet's row groups are full, narrow enough that a chunk of kernels stays under 60 MB.
CHUNK_ROWS = 1 << 18


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
    """What a packed export holds: its metadata, rows per canonical table, and the extent of its events in ns.

    ``counts`` is 0 for a canonical table whose native tables are there without rows, and lacks one without any.
    OS runtime calls count for the extent only in a report that has no other events.
    """

    metadata: Metadata
    counts: dict[str, int] = field(default_factory=dict)
    first_event: int | None = None
    last_event: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values for ``json.dump``."""
        return {
            "metadata": self.metadata.to_json(),
            "counts": self.counts,
            "first_event": self.first_event,
            "last_event": self.last_event,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PackedReport:
        """The inverse of ``to_json``."""
        return cls(
            Metadata.from_json(values["metadata"]),
            dict(values["counts"]),
            values["first_event"],
            values["last_event"],
        )


class Sink(Protocol):
    """Where packed rows go."""

    def write(self, table: CanonicalTable, rows: duckdb.DuckDBPyRelation) -> None:
        """Keeps ``rows``, which have exactly the fields of ``table``."""


@dataclass
class Packer:
    """Packs one export. ``connection`` is a DuckDB connection of its own; ``report_progress`` is called per chunk."""

    path: Path
    connection: duckdb.DuckDBPyConnection
    sink: Sink
    report_progress: Callable[[Progress], None] = lambda progress: None
    is_cancelled: Callable[[], bool] = lambda: False
    _counts: dict[str, int] = field(default_factory=dict)
    _devices_seen: set[tuple[int, int]] = field(default_factory=set)
    _extents: dict[str, tuple[int, int]] = field(default_factory=dict)

    def run(self) -> PackedReport:
        """Packs the export.

        Raises ExportError where the file cannot be read whole, and PackingCancelled.
        """
        import duckdb

        opening.check(self.path)
        plain = opening.connect(self.path)
        try:
            tables = schema.probe(self.path, plain)
            facts = metadata.read(self.path, plain, tables)
            payload = nccl_calls.payload_schemas(plain, tables)
        finally:
            plain.close()
        try:
            with Reader(self.path) as reader:
                self._fill_lookups(reader, tables)
                self._pack_sources(reader, tables, payload)
            self._pack_devices(facts)
        except duckdb.InterruptException:
            raise PackingCancelled from None
        except duckdb.OutOfMemoryException:
            cause, advice = "its columns do not fit into the memory allowed", "open it without --no-cache, or alone"
            raise ExportError(str(self.path), cause, advice) from None
        except (duckdb.Error, OSError) as error:
            if self.is_cancelled():
                raise PackingCancelled from None
            if _is_disk_trouble(error):
                raise
            raise opening.corrupt(self.path, error) from None
        first, last = self._extents.get("work") or self._extents.get("os") or (None, None)
        return PackedReport(facts, self._counts, first, last)

    def _fill_lookups(self, reader: Reader, tables: schema.Schema) -> None:
        for lookup in sources.lookups(tables):
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {lookup.name} ({lookup.definition})")
            if tables.has(lookup.table) and self._receive("incoming", reader.stream(lookup.query)):
                self.connection.execute(f"INSERT INTO {lookup.name} {lookup.resolve}")

    def _receive(self, name: str, stream: Any) -> int:
        """Reads an Arrow stream into a temporary table and counts its rows (of none the driver knows no types)."""
        # Registered is as good as a temporary view: exports that are packed side by side must not see each other's.
        self.connection.register("arriving", stream)
        try:
            arriving = self.connection.view("arriving")
            columns = zip(arriving.columns, map(str, arriving.types), strict=True)
            received = ", ".join(_text_of(column) if kind == "BLOB" else f'"{column}"' for column, kind in columns)
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {received} FROM arriving")
        finally:
            self.connection.unregister("arriving")
        ((rows,),) = self.connection.execute(f"SELECT count(*) FROM {name}").fetchall()
        return int(rows)

    def _pack_sources(self, reader: Reader, tables: schema.Schema, payload: PayloadSchemas) -> None:
        every = sources.sources(tables)
        # A native table without rows says that there was nothing; one that is not there says nothing at all.
        self._counts.update((name, 0) for source in every for name in source.feeds)
        found = [source for source in every if tables.has(source.table)]
        total = tables.rows(source.table for source in found)
        done = 0
        for source in found:
            last = tables.last_rowid[source.table]
            start = 0
            while start <= last:
                if self.is_cancelled():
                    raise PackingCancelled
                end = min(start + CHUNK_ROWS - 1, last)
                if self._receive("chunk", reader.stream(source.scan % (start, end))):
                    self._transform(source, payload)
                    start = end + 1
                else:
                    start = self._row_after(reader, source.table, end) or last + 1
                self.report_progress(Progress(self.path, source.table, min(done + end, total), total))
            done += last

    def _row_after(self, reader: Reader, table: str, row: int) -> int | None:
        """The next row there is: a key that is not counted up from 1 leaves gaps of any width."""
        self._receive("following", reader.stream(f'SELECT min(rowid) AS row_id FROM "{table}" WHERE rowid > {row:d}'))
        ((found,),) = self.connection.execute("SELECT row_id FROM following").fetchall()
        return None if found is None else int(found)

    def _transform(self, source: sources.Source, payload: PayloadSchemas) -> None:
        """Turns the chunk into rows of every canonical table that its native table feeds."""
        for table, select in source.transforms.items():
            self._keep(canonical.BY_NAME[table], select)
        if canonical.NCCL_CALLS.name in source.decoded:
            self._keep_nccl_calls(payload)

    def _keep(self, table: CanonicalTable, select: str) -> None:
        """Runs ``select`` over the chunk, gives its columns the canonical types, and hands the rows to the sink."""
        fields = ", ".join(f'CAST("{item.name}" AS {item.kind.value}) AS "{item.name}"' for item in table.fields)
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE kept AS SELECT {fields} FROM ({select})")
        rows, first, last = self._extent(table)
        if not rows:
            return
        self._counts[table.name] = self._counts.get(table.name, 0) + rows
        self._stretch(table, first, last)
        if table.name in _WORK_TABLES:
            pairs = self.connection.execute("SELECT DISTINCT process, device FROM kept").fetchall()
            self._devices_seen.update((process, device) for process, device in pairs if process is not None)
        self.sink.write(table, self.connection.table("kept"))

    def _stretch(self, table: CanonicalTable, first: int | None, last: int | None) -> None:
        """Widens the extent of the report's events: of OS runtime calls a second one, for reports with nothing else.

        They go on long after the program's work, and would make a busy GPU look idle at the end.
        """
        which = "os" if table is canonical.OS_CALLS else "work"
        before = self._extents.get(which)
        if first is None or last is None:
            return
        self._extents[which] = (first, last) if before is None else (min(before[0], first), max(before[1], last))

    def _extent(self, table: CanonicalTable) -> tuple[int, int | None, int | None]:
        """Rows of ``kept`` with the first start and last end; samples and diagnostics do not stretch a session."""
        names = table.field_names
        if "start" not in names or table.name == "nic_metrics":
            first, last = "NULL", "NULL"
        else:
            # A range that was never closed reaches at least to its start.
            end = 'greatest("start", "end")' if "end" in names else '"start"'
            first, last = 'min("start")', f"max({end})"
        ((rows, start, end),) = self.connection.execute(f"SELECT count(*), {first}, {last} FROM kept").fetchall()
        return rows, start, end

    def _keep_nccl_calls(self, payload: PayloadSchemas) -> None:
        """NCCL API calls, decoded by Python only where a payload or an instrumented name is there to decode."""
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE nccl_chunk AS {sources.NCCL_RANGES}")
        self._keep(canonical.NCCL_CALLS, _NCCL_WITHOUT_PAYLOAD)
        rows = self.connection.execute(_NCCL_WITH_PAYLOAD).fetchall()
        if rows:
            decoded = [_decode(row, payload) for row in rows]
            self._keep_rows(canonical.NCCL_CALLS, decoded)

    def _keep_rows(self, table: CanonicalTable, rows: Sequence[tuple[Any, ...]]) -> None:
        """Keeps rows that Python made, column by column as lists (far faster than row by row)."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        lists = ", ".join(
            f'unnest(CAST(${number} AS {item.kind.value}[])) AS "{item.name}"'
            for number, item in enumerate(table.fields, 1)
        )
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE made AS SELECT {lists}", columns)
        self._keep(table, "SELECT * FROM made")

    def _pack_devices(self, facts: Metadata) -> None:
        """A row for each (process, device) that worked, and one without a process for each other GPU."""
        rows = _device_rows(facts, sorted(self._devices_seen))
        if rows:
            self._keep_rows(canonical.DEVICES, rows)


_WORK_TABLES = frozenset({"kernels", "memory_ops", "graph_launches"})
_COLLECTIVE = (
    "CASE "
    + " ".join(f"WHEN name = '{name}' THEN '{collective}'" for name, collective in nccl_calls.COMMUNICATION.items())
    + " END"
)
_HAS_PAYLOAD = "(json_text <> '' OR octet_length(blob) > 0 OR contains(name, '('))"
_NCCL_WITHOUT_PAYLOAD = f"""
    SELECT row, "start", "end", thread, process, name, {_COLLECTIVE} AS collective, NULL AS message_size,
        NULL AS communicator, NULL AS peer, NULL AS root, NULL AS reduction, NULL AS rank, NULL AS ranks,
        NULL AS cuda_device, NULL AS size_source
    FROM nccl_chunk WHERE NOT {_HAS_PAYLOAD}"""
_NCCL_WITH_PAYLOAD = f"""
    SELECT row, "start", "end", thread, process, domain_id, name, json_text, blob
    FROM nccl_chunk WHERE {_HAS_PAYLOAD} ORDER BY "start", row"""


def _text_of(column: str) -> str:
    """DuckDB: a column of bytes as text, unless it is a payload. Bytes that are no UTF-8 show as ``\\xE9``."""
    if column == "blob":
        return column
    return f'coalesce(try(decode("{column}")), CAST("{column}" AS VARCHAR)) AS "{column}"'


def _is_disk_trouble(error: Exception) -> bool:
    """Whether writing failed, not reading: a full or read-only cache is answered by packing into memory."""
    return isinstance(error, OSError) or "Could not write" in str(error) or "No space left" in str(error)


def _device_rows(facts: Metadata, used: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    by_number = {gpu.gpu: gpu for gpu in facts.gpus}
    by_ordinal = {gpu.cuda_device: gpu for gpu in facts.gpus if gpu.cuda_device is not None}
    told = {(device.pid, device.device): device.gpu for device in facts.cuda_devices}
    rows: list[tuple[Any, ...]] = []
    placed = set()
    for process, device in used:
        pid = (process >> 24) & 0xFFFFFF
        number = told.get((pid, device))
        gpu = by_number.get(number) if number is not None else by_ordinal.get(device) or by_number.get(device)
        number = gpu.gpu if gpu else number
        placed.add(number)
        rows.append((process, device, number, *_gpu_facts(gpu)))
    rows += [(None, None, gpu.gpu, *_gpu_facts(gpu)) for gpu in facts.gpus if gpu.gpu not in placed]
    return rows


def _gpu_facts(gpu: metadata.Gpu | None) -> tuple[Any, ...]:
    if gpu is None:
        return (None, None, None, None, None, None)
    return (gpu.name or None, gpu.uuid or None, gpu.bus or None, gpu.chip or None, gpu.sm_count, gpu.total_memory)


def _decode(row: tuple[Any, ...], payload: PayloadSchemas) -> tuple[Any, ...]:
    """A row of ``nccl_calls`` from an NVTX range with a payload."""
    number, start, end, thread, process, domain_id, name, json_text, blob = row
    call = nccl_calls.decode(payload, domain_id, name, json_text, blob)
    bare = name.partition("(")[0]
    place = (number, start, end, thread, process, bare, nccl_calls.COMMUNICATION.get(bare))
    size = (call.message_size, call.communicator, call.peer, call.root, call.reduction)
    return (*place, *size, call.rank, call.ranks, call.cuda_device, call.source)
