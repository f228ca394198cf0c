"""One chunk of an export turned into rows of the canonical tables, on a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from nsystui.exports import canonical, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.nccl_payload import PayloadSchemas
from nsystui.exports.reading import Reader
from nsystui.exports.schema import Schema
from nsystui.exports.whole import check_rows
from nsystui.store import nccl_rows
from nsystui.store.chunks import Chunk
from nsystui.store.device_rows import WORK_TABLES
from nsystui.store.row_check import count_chunk
from nsystui.store.written import Written

if TYPE_CHECKING:
    import duckdb


class _Sink(Protocol):
    def write(
        self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, select: str, place: int
    ) -> Written: ...


@dataclass
class Packed:
    """What was packed so far: rows per canonical table, (process, device) that worked, first start and last end, ns.

    OS runtime calls have an extent of their own: they go on long after the program's work, and would make a busy GPU
    look idle at the end.
    """

    counts: dict[str, int] = field(default_factory=dict)
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
        self.devices |= other.devices
        for which, (first, last) in other.extents.items():
            self._stretch(which, first, last)

    def _stretch(self, which: str, first: int, last: int) -> None:
        before = self.extents.get(which)
        self.extents[which] = (first, last) if before is None else (min(before[0], first), max(before[1], last))


@contextmanager
def shared_lookups(path: Path, connection: duckdb.DuckDBPyConnection, tables: Schema) -> Iterator[dict[str, str]]:
    """The lookup tables of an export, for every connection to one database; gives their names by those in the SQL.

    Exports that are packed side by side in one database must not see each other's, so the names are made up.
    """
    prefix = f"lookup_{uuid4().hex[:12]}"
    names: dict[str, str] = {}
    try:
        with Reader(path) as reader:
            for lookup in sources.lookups(tables):
                name = f"{prefix}_{lookup.name}"
                connection.execute(f"CREATE TABLE {name} ({lookup.definition})")
                names[lookup.name] = name
                connection.execute(f"CREATE OR REPLACE TEMP VIEW {lookup.name} AS SELECT * FROM {name}")
                rows = receive(connection, "incoming", reader.stream(lookup.query)) if tables.has(lookup.table) else 0
                if lookup.is_whole:
                    check_rows(path, lookup.table, rows, tables.last_rowid.get(lookup.table, 0))
                if rows:
                    connection.execute(f"INSERT INTO {name} {lookup.resolve}")
        connection.execute("DROP TABLE IF EXISTS incoming")
        yield names
    finally:
        for lookup_name, name in names.items():
            connection.execute(f"DROP VIEW IF EXISTS {lookup_name}")
            connection.execute(f"DROP TABLE IF EXISTS {name}")


def receive(connection: duckdb.DuckDBPyConnection, name: str, stream: Any) -> int:
    """Reads an Arrow stream into a temporary table and counts its rows (of none the driver knows no types)."""
    # Registered is as good as a temporary view: exports that are packed side by side must not see each other's.
    connection.register("arriving", stream)
    try:
        arriving = connection.view("arriving")
        columns = zip(arriving.columns, map(str, arriving.types), strict=True)
        received = ", ".join(_text_of(column) if kind == "BLOB" else f'"{column}"' for column, kind in columns)
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {received} FROM arriving")
    finally:
        connection.unregister("arriving")
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {name}").fetchall()
    return int(rows)


class ChunkPacker:
    """Packs chunks, one after the other, and knows what it packed."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, lookups: dict[str, str], sink: _Sink, payload: PayloadSchemas
    ) -> None:
        self.connection = connection
        self.packed = Packed()
        self._sink = sink
        self._payload = payload
        for view, name in lookups.items():
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS SELECT * FROM {name}")
        self._strings = lookups["strings"]
        connection.execute("DROP VIEW strings")

    def pack(self, reader: Reader, chunk: Chunk) -> int:
        """Packs the rows of a chunk; how many the native table has there."""
        source, place = chunk.source, chunk.source.first_row + chunk.first
        # Replacing the chunk before would keep both in memory for a while.
        self.connection.execute("DROP TABLE IF EXISTS chunk")
        receive(self.connection, "chunk", reader.stream(source.scan % (chunk.first, chunk.last)))
        rows = count_chunk(reader.path, self.connection, source.table, chunk.first, chunk.last)
        if rows:
            self._find_strings()
            for name, select in source.transforms.items():
                self._keep(canonical.BY_NAME[name], select, place)
            if canonical.NCCL_CALLS.name in source.decoded:
                self._keep_nccl_calls(place)
        return rows

    def _find_strings(self) -> None:
        """The strings that the chunk names: a join with all of an export's builds a table of all of them, each time."""
        columns = self.connection.table("chunk").columns
        used = ", ".join(column for column in _STRING_IDS if column in columns)
        ids = f"SELECT DISTINCT unnest([{used}]) AS id FROM chunk" if used else "SELECT CAST(NULL AS BIGINT) AS id"
        found = f"SELECT id, value FROM {self._strings} SEMI JOIN ({ids}) USING (id)"
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE strings AS {found}")

    def row_after(self, reader: Reader, chunk: Chunk) -> int:
        """The first row behind a chunk; behind the last one where there is none."""
        query = f'SELECT min(rowid) AS row_id FROM "{chunk.source.table}" WHERE rowid > {chunk.last:d}'
        receive(self.connection, "following", reader.stream(query))
        ((found,),) = self.connection.execute("SELECT row_id FROM following").fetchall()
        return _NO_ROW if found is None else int(found)

    def _keep(self, table: CanonicalTable, select: str, place: int) -> None:
        """Hands what ``select`` makes of the chunk to the sink, its columns with the canonical types."""
        fields = ", ".join(f'CAST("{item.name}" AS {item.kind.value}) AS "{item.name}"' for item in table.fields)
        written = self._sink.write(table, self.connection, f"SELECT {fields} FROM ({select})", place)
        if not written.rows:
            return
        self.packed.count(table, written)
        if table.name in WORK_TABLES:
            pairs = self.connection.execute(f"SELECT DISTINCT process, device FROM ({select})").fetchall()
            self.packed.devices.update((process, device) for process, device in pairs if process is not None)

    def _keep_nccl_calls(self, place: int) -> None:
        """NCCL API calls, decoded by Python only where a payload or an instrumented name is there to decode."""
        nccl_rows.find_calls(self.connection)
        self._keep(canonical.NCCL_CALLS, nccl_rows.WITHOUT_PAYLOAD, place)
        rows = nccl_rows.decoded_calls(self.connection, self._payload)
        if rows:
            self.keep_rows(canonical.NCCL_CALLS, rows, place)

    def keep_rows(self, table: CanonicalTable, rows: Sequence[tuple[Any, ...]], place: int) -> None:
        """Keeps rows that Python made."""
        nccl_rows.make_table(self.connection, table, rows, "made")
        self._keep(table, "SELECT * FROM made", place)


_NO_ROW = 1 << 62
_STRING_IDS = ("name_id", "short_id", "mangled_id", "text_id", "instruction_id", "file_id")


def _text_of(column: str) -> str:
    """DuckDB: a column of bytes as text, unless it is a payload. Bytes that are no UTF-8 show as ``\\xE9``."""
    if column == "blob":
        return column
    return f'coalesce(try(decode("{column}")), CAST("{column}" AS VARCHAR)) AS "{column}"'
