"""Single columns of canonical tables, read from an export when a query asks for them.

A report that nobody packed is still answered: of the native tables only the columns are read that the asked-for
columns are made of, chunk by chunk, in the order and with the types that packing gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nsystui.base.errors import ExportError
from nsystui.exports import canonical, nccl_calls, opening, sources
from nsystui.exports.nccl_payload import PayloadSchemas
from nsystui.exports.reading import Reader
from nsystui.exports.schema import Schema
from nsystui.exports.sources import NO_INTEGER, Source, Transform
from nsystui.exports.whole import check_rows
from nsystui.store import nccl_rows
from nsystui.store.left_out import LeftOut, count_left_out
from nsystui.store.pack import CHUNK_ROWS
from nsystui.store.row_check import count_chunk

if TYPE_CHECKING:
    import duckdb

_STRINGS = "strings"
_MUCH_LARGER = 10
# A chunk of so few columns has that many times more rows than one of a whole pack: each has its price.
_FEW, _MANY_ROWS = 8, 4


class Sink(Protocol):
    """Where the columns of one table go."""

    def write(self, connection: duckdb.DuckDBPyConnection, select: str) -> int:
        """Adds the rows that ``select`` gives; how many they are."""


@dataclass
class ColumnReader:
    """Reads columns of one export. ``connection`` is its own; the lookups it needed stay in it for the next time."""

    path: Path
    native: Schema
    connection: duckdb.DuckDBPyConnection
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    _filled: set[str] = field(default_factory=set)

    def read(self, wanted: Mapping[str, Collection[str]], sinks: Mapping[str, Sink]) -> dict[str, int]:
        """Reads the ``wanted`` fields of each canonical table into its sink; how many rows each has.

        ``left_out`` then has those of each that were left out. Raises ExportError where the file cannot be read whole,
        and OSError or duckdb.Error where a sink cannot write.
        """
        rows = dict.fromkeys(wanted, 0)
        left_out = dict.fromkeys(wanted, LeftOut())
        with Reader(self.path) as reader:
            for source in sources.sources(self.native):
                chosen = {table: names for table, names in wanted.items() if table in source.makes}
                if chosen and self.native.has(source.table):
                    pass_ = _Pass(self.path, self.connection, reader, source, chosen)
                    self._fill_lookups(reader, pass_.words(first_choice=False))
                    for table, found, without in pass_.run(self.native.last_rowid[source.table], sinks):
                        rows[table] += found
                        left_out[table] += without
                for table in wanted.keys() & set(source.decoded) if self.native.has(source.table) else ():
                    rows[table] += self._read_calls(reader, source, wanted[table], sinks[table])
        self.left_out.update(left_out)
        return rows

    def _read_calls(self, reader: Reader, source: Source, names: Collection[str], sink: Sink) -> int:
        """Reads NCCL calls, which Python decodes; how many there are."""
        connection = opening.connect(self.path)
        try:
            payload = nccl_calls.payload_schemas(connection, self.native)
        except opening.READ_ERRORS as error:
            raise opening.corrupt(self.path, error) from None
        finally:
            connection.close()
        self._fill_lookups(reader, (_STRINGS, "domains"))
        calls = _Calls(self.path, self.connection, reader, source, names, payload)
        return calls.run(self.native.last_rowid[source.table], sink)

    def _fill_lookups(self, reader: Reader, words: Collection[str]) -> None:
        """Fills the lookups whose names are among ``words``; the strings first, which the others look up in."""
        needed = {lookup.name for lookup in sources.lookups(self.native)} & set(words)
        if needed:
            needed.add(_STRINGS)
        for lookup in sources.lookups(self.native):
            if lookup.name not in needed - self._filled:
                continue
            with _read_errors(self.path, lookup.table):
                self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {lookup.name} ({lookup.definition})")
                if self.native.has(lookup.table):
                    create = "CREATE OR REPLACE TEMP TABLE incoming AS"
                    with _arriving(self.connection, reader.stream(lookup.query)) as columns:
                        query = f"{create} SELECT {columns} FROM arriving"
                        ((found,),) = self.connection.execute(query).fetchall()
                    if lookup.is_whole:
                        check_rows(self.path, lookup.table, found, self.native.last_rowid[lookup.table])
                    if found:  # of no rows the driver knows no types
                        self.connection.execute(f"INSERT INTO {lookup.name} {lookup.resolve}")
                self._filled.add(lookup.name)


@dataclass
class _Pass:
    """One pass over a native table, for the fields ``chosen`` of each canonical table that it feeds."""

    path: Path
    connection: duckdb.DuckDBPyConnection
    reader: Reader
    source: Source
    chosen: Mapping[str, Collection[str]]

    def words(self, first_choice: bool) -> frozenset[str]:
        """The names in the SQL that it runs, with what fields fall back on or without."""
        makes = self.source.makes
        return frozenset().union(*(makes[table].words(names, first_choice) for table, names in self.chosen.items()))

    def run(self, last: int, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, int, LeftOut]]:
        """Reads up to the rowid ``last``; gives how many rows a chunk made for each table, and which were left out."""
        needed = self.words(first_choice=True) & {"row_id", *self.source.columns}
        rows = CHUNK_ROWS * (_MANY_ROWS if len(needed) <= _FEW else 1)
        start, found = 0, 0  # some keys of nsys begin at 0
        while start <= last:
            end = min(start + rows - 1, last)
            with _read_errors(self.path, self.source.table):
                received = self._receive(start, end, first_choice=True)
                found += received
                first_choice = not received or all(map(self._needs_no_other, self.chosen))
                if not first_choice:
                    self._receive(start, end, first_choice)
            for table in self.chosen if received else ():
                with _read_errors(self.path, self.source.table):
                    left_out = count_left_out(self.connection, self.source.makes[table])
                select = self._select(table, first_choice, received, checked=bool(left_out))
                yield table, sinks[table].write(self.connection, select), left_out
            start = end + 1 if received else _row_after(self.path, self.connection, self.reader, self.source, end, last)
        check_rows(self.path, self.source.table, found, last)

    def _receive(self, start: int, end: int, first_choice: bool) -> int:
        """Reads the rows of a chunk with the columns that are needed; how many there are."""
        needed = (self.words(first_choice) & self.source.columns.keys()) | {"row_id"}
        absent = [name for name in sorted(needed) if self.source.columns.get(name) == NO_INTEGER]
        stream = self.reader.stream(self.source.scan_of(needed.difference(absent)) % (start, end))
        with _arriving(self.connection, stream) as columns:
            nothing = "".join(f', CAST(NULL AS BIGINT) AS "{name}"' for name in absent)
            create = "CREATE OR REPLACE TEMP TABLE chunk AS"
            self.connection.execute(f"{create} SELECT {columns}{nothing} FROM arriving")
        return count_chunk(self.path, self.connection, self.source.table, start, end)

    def _needs_no_other(self, table: str) -> bool:
        """Whether the first choices of all fields give a value in every row of the chunk."""
        names, transform = self.chosen[table], self.source.makes[table]
        short = [name for name in transform.first_choice if name in names]
        if not short:
            return True
        missing = " OR ".join(f'"{name}" IS NULL' for name in short)
        select = transform.select(short, first_choice=True, tie="")
        return not self.connection.execute(f"SELECT 1 FROM ({select}) WHERE {missing} LIMIT 1").fetchall()

    def _select(self, table: str, first_choice: bool, received: int, checked: bool) -> str:
        """The rows of a canonical table in the chunk, in their order and with their types.

        Unless ``checked``, none of them is to be left out.
        """
        names, transform = self.chosen[table], self.source.makes[table]
        transform = transform if checked else replace(transform, times=None)
        fields = [item for item in canonical.BY_NAME[table].fields if item.name in names]
        typed = ", ".join(f'CAST("{item.name}" AS {item.kind.value}) AS "{item.name}"' for item in fields)
        # The chunk is a table of DuckDB's, whose own row numbers are in the order of the export's.
        tie = "" if self._is_sorted(transform, received) else "rowid"
        return f"SELECT {typed} FROM ({transform.select(names, first_choice, tie)})"

    def _is_sorted(self, transform: Transform, received: int) -> bool:
        """Whether the rows of the chunk are in order and stay so: most exports are written in the order of time.

        A join keeps the order of the larger side only.
        """
        if not transform.order or (_STRINGS in self.words(False) and self._count(_STRINGS) * _MUCH_LARGER > received):
            return False
        column = f'"{transform.order}"'
        # Of the rows beside their next only the last has none; what is missing is in no order.
        query = f"""SELECT count(*) FROM (SELECT {column} AS this FROM chunk)
            POSITIONAL JOIN (SELECT {column} AS next FROM chunk OFFSET 1) WHERE (next >= this) IS NOT TRUE"""
        ((breaks,),) = self.connection.execute(query).fetchall()
        return bool(breaks == 1)

    def _count(self, lookup: str) -> int:
        ((rows,),) = self.connection.execute(f"SELECT count(*) FROM {lookup}").fetchall()
        return int(rows)


# More are not listed in a condition.
_MOST_TEXTS = 1000


@dataclass
class _Calls:
    """One pass over the NVTX table for its NCCL calls, with these fields."""

    path: Path
    connection: duckdb.DuckDBPyConnection
    reader: Reader
    source: Source
    names: Collection[str]
    payload: PayloadSchemas

    def run(self, last: int, sink: Sink) -> int:
        """Reads up to the rowid ``last``; how many calls there are."""
        scan = f"{self.source.scan} AND {self._condition()}"
        table, calls = canonical.NCCL_CALLS, 0
        typed = ", ".join(
            f'CAST("{item.name}" AS {item.kind.value}) AS "{item.name}"'
            for item in table.fields
            if item.name in self.names
        )
        start = 0
        while start <= last:
            end = min(start + CHUNK_ROWS - 1, last)
            with (
                _read_errors(self.path, self.source.table),
                _arriving(self.connection, self.reader.stream(scan % (start, end))) as columns,
            ):
                create = f"CREATE OR REPLACE TEMP TABLE chunk AS SELECT {columns} FROM arriving"
                ((received,),) = self.connection.execute(create).fetchall()
            if received:
                nccl_rows.find_calls(self.connection)
                decoded = nccl_rows.decoded_calls(self.connection, self.payload)
                nccl_rows.make_table(self.connection, table, decoded, "decoded")
                both = f"{nccl_rows.WITHOUT_PAYLOAD} UNION ALL SELECT * FROM decoded"
                calls += sink.write(self.connection, f"SELECT {typed} FROM ({both})")
            start = end + 1 if received else _row_after(self.path, self.connection, self.reader, self.source, end, last)
        return calls

    def _condition(self) -> str:
        """What leaves most other ranges unread: their texts and payloads are the largest part of many exports."""
        domains = self.connection.execute("SELECT DISTINCT domain_id FROM domains WHERE domain = 'NCCL'").fetchall()
        named = f"SELECT id FROM {_STRINGS} WHERE starts_with(value, 'nccl') LIMIT {_MOST_TEXTS + 1}"
        texts = [text for (text,) in self.connection.execute(named).fetchall()]
        known = [domain for (domain,) in domains if domain is not None]
        return sources.nccl_condition(self.source.columns, known, None if len(texts) > _MOST_TEXTS else texts)


def _row_after(
    path: Path, connection: duckdb.DuckDBPyConnection, reader: Reader, source: Source, end: int, last: int
) -> int:
    """The next row there is: a key that is not counted up from 1 leaves gaps of any width."""
    query = f'SELECT min(rowid) AS row_id FROM "{source.table}" WHERE rowid > {end:d}'
    with _read_errors(path, source.table), _arriving(connection, reader.stream(query)):
        ((found,),) = connection.execute("SELECT row_id FROM arriving").fetchall()
    return last + 1 if found is None else int(found)


@contextmanager
def _arriving(connection: duckdb.DuckDBPyConnection, stream: Any) -> Iterator[str]:
    """The stream as ``arriving`` for one statement, and the list of its columns with bytes as text, payloads apart.

    Bytes that are no UTF-8 show as ``\\xE9``.
    """
    # Registered is as good as a temporary view: exports that are read side by side must not see each other's.
    connection.register("arriving", stream)
    try:
        arriving = connection.view("arriving")
        kinds = zip(arriving.columns, map(str, arriving.types), strict=True)
        yield ", ".join(
            f'coalesce(try(decode("{name}")), CAST("{name}" AS VARCHAR)) AS "{name}"'
            if kind == "BLOB" and name != "blob"
            else f'"{name}"'
            for name, kind in kinds
        )
    finally:
        connection.unregister("arriving")


@contextmanager
def _read_errors(path: Path, table: str) -> Iterator[None]:
    """Tells what DuckDB says while it reads a native table of the export as an ExportError."""
    import duckdb

    try:
        with opening.reading(table):
            yield
    except duckdb.OutOfMemoryException:
        cause, advice = "its columns do not fit into the memory allowed", "open it without --no-cache, or alone"
        raise ExportError(str(path), cause, advice) from None
    except duckdb.Error as error:
        raise opening.corrupt(path, error, table) from None
