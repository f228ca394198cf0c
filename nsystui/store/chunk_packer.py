"""One chunk of an export turned into rows of the canonical tables, on a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from nsystui.exports import canonical, opening, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.nccl_payload import PayloadSchemas
from nsystui.exports.reading import Reader
from nsystui.exports.schema import Schema
from nsystui.exports.sources import Source, Transform
from nsystui.exports.whole import check_rows
from nsystui.store import nccl_rows
from nsystui.store.chunks import Chunk
from nsystui.store.device_rows import WORK_TABLES
from nsystui.store.left_out import LeftOut, count_left_out
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
    """What was packed so far: rows per canonical table, those left out, (process, device) that worked, first start and
    last end, ns.

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

    def leave_out(self, name: str, rows: LeftOut) -> None:
        """Adds rows of a table that were left out."""
        self.left_out[name] = self.left_out.get(name, LeftOut()) + rows

    def add(self, other: Packed) -> None:
        """Adds what another thread packed of the same export."""
        for name, rows in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + rows
        for name, rows_left_out in other.left_out.items():
            self.leave_out(name, rows_left_out)
        self.devices |= other.devices
        for which, (first, last) in other.extents.items():
            self._stretch(which, first, last)

    def _stretch(self, which: str, first: int, last: int) -> None:
        before = self.extents.get(which)
        self.extents[which] = (first, last) if before is None else (min(before[0], first), max(before[1], last))


@contextmanager
def shared_lookups(path: Path, connection: duckdb.DuckDBPyConnection, tables: Schema) -> Iterator[str]:
    """The lookup tables of an export, for every connection to one database; gives the schema that they are in.

    Exports that are packed side by side in one database must not see each other's, so its name is made up.
    ``connection`` finds them from now on.
    """
    schema = f"lookup_{uuid4().hex[:12]}"
    connection.execute(f"CREATE SCHEMA {schema}")
    try:
        find_lookups(connection, schema)
        used = _words(sources.sources(tables))
        with Reader(path) as reader:
            for lookup in sources.lookups(tables):
                if lookup.is_whole or lookup.name in used:
                    with reading(path, lookup.table):
                        _fill(f"{schema}.{lookup.name}", lookup, connection, reader, tables)
        yield schema
    finally:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@contextmanager
def reading(path: Path, table: str) -> Iterator[None]:
    """Tells what DuckDB stumbles over in the rows that come from a native table as damage of that table."""
    import duckdb

    try:
        with opening.reading(table):
            yield
    except (duckdb.InterruptException, duckdb.OutOfMemoryException, duckdb.IOException):
        raise
    except duckdb.Error as error:
        raise opening.corrupt(path, error, table) from None


def find_lookups(connection: duckdb.DuckDBPyConnection, schema: str) -> None:
    """Lets a connection find the lookup tables by their names; what it makes still is where it would be."""
    connection.execute(f"SET search_path = 'main,{schema}'")


def _words(every: Sequence[Source]) -> frozenset[str]:
    """Every word in the SQL that makes rows of these tables, the names of lookups among them."""
    return frozenset().union(*(made.words(made.fields) for source in every for made in source.makes.values()))


def _fill(
    name: str, lookup: sources.Lookup, connection: duckdb.DuckDBPyConnection, reader: Reader, tables: Schema
) -> None:
    connection.execute(f"CREATE TABLE {name} ({lookup.definition})")
    rows = 0
    if tables.has(lookup.table):
        arriving = connection.from_arrow(reader.stream(lookup.query))
        incoming = f"SELECT {received_columns(arriving)} FROM arriving"  # found by the name of the variable
        insert = f"INSERT INTO {name} WITH incoming AS ({incoming}) {lookup.resolve}"
        ((rows,),) = connection.execute(insert).fetchall()
    if lookup.is_whole:
        check_rows(reader.path, lookup.table, int(rows), tables.last_rowid.get(lookup.table, 0))


def received_columns(arriving: duckdb.DuckDBPyRelation) -> str:
    """The columns of an Arrow stream as SQL, with bytes as text."""
    columns = zip(arriving.columns, map(str, arriving.types), strict=True)
    return ", ".join(_text_of(column) if kind == "BLOB" else f'"{column}"' for column, kind in columns)


def receive(connection: duckdb.DuckDBPyConnection, name: str, stream: Any) -> int:
    """Reads an Arrow stream into a temporary table and counts its rows (of none the driver knows no types)."""
    # A variable of this function, not a name in the database: exports that are packed side by side have their own.
    arriving = connection.from_arrow(stream)
    create = f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {received_columns(arriving)} FROM arriving"
    ((rows,),) = connection.execute(create).fetchall()
    return int(rows)


class ChunkPacker:
    """Packs chunks, one after the other, and knows what it packed."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, lookups: str, sink: _Sink, payload: PayloadSchemas
    ) -> None:
        self.connection = connection
        self.packed = Packed()
        self._sink = sink
        self._payload = payload
        self._strings = f"{lookups}.strings"
        find_lookups(connection, lookups)
        ((strings,),) = connection.execute(f"SELECT count(*) FROM {self._strings}").fetchall()
        self._has_many_strings = strings > _FEW_STRINGS

    def pack(self, reader: Reader, chunk: Chunk) -> int:
        """Packs the rows of a chunk; how many the native table has there."""
        source, place = chunk.source, chunk.source.first_row + chunk.first
        # Replacing the chunk before would keep both in memory for a while.
        self.connection.execute("DROP TABLE IF EXISTS chunk")
        if not receive(self.connection, "chunk", reader.stream(source.scan % (chunk.first, chunk.last))):
            return 0
        rows = count_chunk(reader.path, self.connection, source.table, chunk.first, chunk.last)
        if self._has_many_strings:
            self._find_strings(source)
        for name, transform in self._with_rows(source).items():
            self._keep(canonical.BY_NAME[name], _typed(canonical.BY_NAME[name], transform), place)
            if name in WORK_TABLES:
                used = transform.select(("process", "device"), tie="")
                pairs = self.connection.execute(f"SELECT DISTINCT process, device FROM ({used})").fetchall()
                self.packed.devices.update((process, device) for process, device in pairs if process is not None)
        if canonical.NCCL_CALLS.name in source.decoded:
            self._keep_nccl_calls(place)
        return rows

    def _with_rows(self, source: Source) -> Mapping[str, Transform]:
        """The canonical tables that a chunk has rows for: to write none costs more than to count.

        Rows to be left out are counted; where there are none, no row is looked at for that again.
        """
        counted = [
            f"count(*) FILTER (WHERE {condition})"
            for made in source.makes.values()
            for condition in (made.where or "true", made.kept or "true")
        ]
        (found,) = self.connection.execute(f"SELECT {', '.join(counted)} FROM chunk c").fetchall()
        chosen = {}
        for (name, made), rows, kept in zip(source.makes.items(), found[::2], found[1::2], strict=True):
            if kept < rows:
                self.packed.leave_out(name, count_left_out(self.connection, made))
            if kept:
                chosen[name] = made if kept < rows else replace(made, times=None)
        return chosen

    def _find_strings(self, source: Source) -> None:
        """The strings that the chunk names: a join with all of an export's builds a table of all of them, each time."""
        used = ", ".join(column for column in _STRING_IDS if column in source.columns)
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
        """Hands rows to the sink, whose columns have the names and the canonical types of ``table``."""
        written = self._sink.write(table, self.connection, select, place)
        if written.rows:
            self.packed.count(table, written)

    def _keep_nccl_calls(self, place: int) -> None:
        """NCCL API calls, decoded by Python only where a payload or an instrumented name is there to decode."""
        calls = nccl_rows.find_calls(self.connection)
        if not calls:
            return
        rows = nccl_rows.decoded_calls(self.connection, self._payload)
        if len(rows) < calls:
            self._keep(canonical.NCCL_CALLS, _cast(canonical.NCCL_CALLS, nccl_rows.WITHOUT_PAYLOAD), place)
        if rows:
            self.keep_rows(canonical.NCCL_CALLS, rows, place)

    def keep_rows(self, table: CanonicalTable, rows: Sequence[tuple[Any, ...]], place: int) -> None:
        """Keeps rows that Python made."""
        nccl_rows.make_table(self.connection, table, rows, "made")
        self._keep(table, "SELECT * FROM made", place)  # has the types already


def _typed(table: CanonicalTable, transform: Transform) -> str:
    """The SELECT of a transform with the types of the table, in one: to plan two, one in the other, takes longer."""
    fields = {item.name: f"CAST({transform.fields[item.name]} AS {item.kind.value})" for item in table.fields}
    return replace(transform, fields=fields).select()


def _cast(table: CanonicalTable, select: str) -> str:
    fields = ", ".join(f'CAST("{item.name}" AS {item.kind.value}) AS "{item.name}"' for item in table.fields)
    return f"SELECT {fields} FROM ({select})"


# So many are joined as they are: looking for those that a chunk names would take longer.
_FEW_STRINGS = 4096
_NO_ROW = 1 << 62
_STRING_IDS = ("name_id", "short_id", "mangled_id", "text_id", "instruction_id", "file_id")


def _text_of(column: str) -> str:
    """DuckDB: a column of bytes as text, unless it is a payload. Bytes that are no UTF-8 show as ``\\xE9``."""
    if column == "blob":
        return column
    return f'coalesce(try(decode("{column}")), CAST("{column}" AS VARCHAR)) AS "{column}"'
