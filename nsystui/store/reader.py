"""One reader of an export: chosen fields of its canonical tables, a chunk of a native table at a time.

SQLite streams the columns that the fields need as Arrow, DuckDB resolves names in small lookup tables and gives every
field its canonical type. To pack an export is to read all fields.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from nsystui.exports import canonical, nccl_calls, opening, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.integrity import PageChecks, doubled
from nsystui.exports.nccl_calls import PayloadSchemas
from nsystui.exports.opening import ArrowReader
from nsystui.exports.schema import Schema
from nsystui.exports.sources import NO_INTEGER, Source, Transform
from nsystui.store.report import has_span
from nsystui.store.tally import LeftOut, count_left_out, count_nameless

if TYPE_CHECKING:
    import duckdb


# Of a table with so many columns a chunk has the rows it is said to have; kernels have about as many.
_COLUMNS = 22
# Of a narrower table it has more, which makes fewer files to look into, but not endlessly many.
_MOST = 4


@dataclass(frozen=True)
class Chunk:
    """The rows ``first`` to ``last`` of a native table, by rowid; they end at about ``part`` (0 … 1) of the file."""

    source: Source
    first: int
    last: int
    part: float = 0.0

    @property
    def position(self) -> int:
        """The number of the first row among those of all native tables that share a canonical one."""
        return self.source.first_row + self.first


class Chunks:
    """Hands out the chunks of ``sources``, each once, band by band through the file; may be asked by several threads.

    The pages of all tables alternate through an export in the order in which its rows were written. Reading one table
    after the other would read the file once for each, which a slow network feels.

    ``last_rowid`` says how far the rowids of each native table go, ``rows`` how many a chunk of kernels has at most;
    chunks of other tables have about as many values.
    """

    def __init__(self, sources: Sequence[Source], last_rowid: Mapping[str, int], rows: int) -> None:
        self._sources = sources
        self._last = [last_rowid[source.table] for source in sources]
        self._next = [0] * len(sources)  # some keys of nsys begin at 0
        self._rows = [rows * min(max(_COLUMNS // max(len(source.columns), 1), 1), _MOST) for source in sources]
        self._lock = threading.Lock()

    def take(self) -> Chunk | None:
        """The next chunk; ``None`` when all are taken."""
        with self._lock:
            following = [
                (first / max(last, 1), number)
                for number, (first, last) in enumerate(zip(self._next, self._last, strict=True))
                if first <= last
            ]
            if not following:
                return None
            _, number = min(following)
            first = self._next[number]
            last = min(first + self._rows[number] - 1, self._last[number])
            self._next[number] = last + 1
            return Chunk(self._sources[number], first, last, last / max(self._last[number], 1))

    def skip_to(self, source: Source, row: int) -> None:
        """Leaves out the rows of a source before ``row``: a key that is not counted up leaves gaps of any width."""
        with self._lock:
            number = self._sources.index(source)
            self._next[number] = max(self._next[number], row)

    @property
    def total(self) -> int:
        """About how many rows there are, counted by rowid."""
        return sum(max(last, 0) for last in self._last)

    def stop(self) -> None:
        """Hands out no more."""
        with self._lock:
            self._next = [last + 1 for last in self._last]

    def done(self) -> int:
        """How many rows have been handed out, counted by rowid."""
        with self._lock:
            return sum(max(next_row - 1, 0) for next_row in self._next)


Fields = Mapping[str, Collection[str]]
"""Names of fields by canonical table."""
ALL_FIELDS: Fields = {table.name: table.field_names for table in canonical.TABLES}

# Wide enough that few files are written, narrow enough that two chunks of kernels at work stay under 100 MB.
CHUNK_ROWS = 32_768
_STRINGS = "strings"
_STRING_IDS = ("name_id", "short_id", "mangled_id", "text_id", "instruction_id", "file_id", "function_id", "module_id")
# A join keeps the order of the larger side only.
_MUCH_LARGER = 10
_NO_ROW = 1 << 62
_NO_PAYLOAD = PayloadSchemas({})


class TableChunk(NamedTuple):
    """The rows of a canonical table in a chunk: ``select`` is DuckDB's SQL, and only good until the next part.

    ``first`` and ``last`` are the first start and the last end of events that stretch a session, ns, as far as they
    are read; NCCL's calls lie within their NVTX ranges.
    """

    table: CanonicalTable
    select: str
    first: int | None = None
    last: int | None = None


@dataclass
class Lookups:
    """The lookup tables of an export in a schema of their own, filled when they are needed.

    Exports that are read side by side in one database must not see each other's, so the name of the schema is made up.
    """

    path: Path
    native: Schema
    connection: duckdb.DuckDBPyConnection
    checks: PageChecks
    rows: dict[str, int] = field(default_factory=dict)
    """The number of rows of each table that is filled."""

    def __post_init__(self) -> None:
        self.schema = f"lookup_{uuid4().hex[:12]}"
        self.connection.execute(f"CREATE SCHEMA {self.schema}")
        self.share(self.connection)

    def drop(self) -> None:
        """Makes room for others. Never raises: where that fails, the tables stay until the database is closed."""
        import duckdb

        with suppress(duckdb.Error, MemoryError):
            self.connection.execute(f"DROP SCHEMA {self.schema} CASCADE")

    def share(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Lets a connection find the tables by their names; it makes its own where it did before."""
        connection.execute(f"SET search_path = 'main,{self.schema}'")

    def longest(self) -> int:
        """Return the bytes of the longest string, 0 where the strings are not filled."""
        if _STRINGS not in self.rows:
            return 0
        query = f"SELECT coalesce(max(strlen(value)), 0) FROM {self.schema}.{_STRINGS}"
        return int(self.connection.execute(query).fetchall()[0][0])

    def fill(self, export: ArrowReader, words: Collection[str]) -> None:
        """Fills the tables whose names are among ``words``; the strings first, which the others look up in.

        Raises ExportError where the export cannot be read whole.
        """
        every = sources.lookups(self.native)
        needed = {lookup.name for lookup in every}.intersection(words)
        if needed:
            needed.add(_STRINGS)
        for lookup in every:
            if lookup.name in needed - self.rows.keys():
                with read_errors(self.path, lookup.table):
                    self.rows[lookup.name] = self._fill(export, lookup)

    def _fill(self, export: ArrowReader, lookup: sources.Lookup) -> int:
        name, rows = f"{self.schema}.{lookup.name}", 0
        self.connection.execute(f"CREATE OR REPLACE TABLE {name} ({lookup.definition})")
        if self.native.has(lookup.table):
            arriving = self.connection.from_arrow(export.stream(lookup.query))
            incoming = f"SELECT {_as_text(arriving)} FROM arriving"  # found by the name of the variable
            insert = f"INSERT INTO {name} WITH incoming AS ({incoming}) {lookup.resolve}"
            ((rows,),) = self.connection.execute(insert).fetchall()
            self.checks.end(lookup.table, rows, self.native.last_rowid[lookup.table] if lookup.is_whole else rows)
        return int(rows)


class Reader:
    """Reads the ``fields`` of the canonical tables that the rows of one native table go to.

    ``connection`` has temporary tables of the reader, and must find the ``lookups``. The rows that are left out because
    their times cannot be are added to ``left_out``. ``payload`` is needed for NCCL calls. Of a source that makes
    nothing else, rows that are no NCCL calls stay unread; the lookups for that are filled then.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        lookups: Lookups,
        source: Source,
        fields: Fields,
        left_out: MutableMapping[str, LeftOut],
        payload: PayloadSchemas = _NO_PAYLOAD,
    ) -> None:
        self.connection = connection
        self.source = _with_types(source.of_fields(fields))
        self._first_choice = _with_types(source.of_fields(fields, first_choice=True))
        self._has_first_choice = self._first_choice.columns.keys() < self.source.columns.keys()
        self._lookups = lookups
        self._fields = fields
        self._left_out = left_out
        self._payload = payload
        self._condition = f" AND {_calls_condition(connection, lookups, source)}" if not source.makes else ""
        self._read = self.source

    @property
    def words(self) -> frozenset[str]:
        """Every word in the SQL of the reader, the names of lookups among them."""
        return self.source.words

    def read(self, export: ArrowReader, chunk: Chunk) -> int:
        """Reads the rows of a chunk, which ``parts`` then gives; how many the native table has there.

        Raises ExportError where the export cannot be read whole.
        """
        with read_errors(self._lookups.path, self.source.table):
            self._read = self._first_choice if self._has_first_choice else self.source
            rows = self._receive(export, chunk)
            if rows and self._has_first_choice and any(map(self._lacks_values, self._read.makes)):
                self._read = self.source
                self._receive(export, chunk)
            return rows

    def row_after(self, export: ArrowReader, chunk: Chunk) -> int:
        """The first row behind a chunk, since a key that is not counted up leaves gaps of any width."""
        query = f'SELECT min(rowid) AS row_id FROM "{self.source.table}" WHERE rowid > {chunk.last:d}'
        with read_errors(self._lookups.path, self.source.table):
            _receive(self.connection, "following", export.stream(query))
            ((found,),) = self.connection.execute("SELECT row_id FROM following").fetchall()
        return _NO_ROW if found is None else int(found)

    def parts(self) -> Iterator[TableChunk]:
        """The rows of the chunk that was read, by canonical table; of a table without rows there is none."""
        with read_errors(self._lookups.path, self.source.table):
            chosen = self._with_rows()
        for name, (transform, rows, first, last) in chosen.items():
            # The chunk is a table of DuckDB's, whose own row numbers are in the order of the export's.
            tie = "" if self._is_sorted(transform, rows) else "rowid"
            yield TableChunk(canonical.BY_NAME[name], transform.select(tie), first, last)
        if self.source.decoded:
            yield from self._calls()

    def _receive(self, export: ArrowReader, chunk: Chunk) -> int:
        # Replacing the chunk before would keep both in memory for a while.
        self.connection.execute("DROP TABLE IF EXISTS chunk")
        columns = self._read.columns
        absent = [name for name, sql in columns.items() if sql == NO_INTEGER]
        scan = replace(self._read, columns={name: sql for name, sql in columns.items() if name not in absent}).scan
        stream = export.stream(scan % (chunk.first, chunk.last) + self._condition)
        if not _receive(self.connection, "chunk", stream, absent):
            return 0
        if _STRINGS in self._read.words:
            self._find_strings()
        return _count_chunk(self._lookups.path, self.connection, self.source.table, chunk)

    def _lacks_values(self, table: str) -> bool:
        """Whether a row of the chunk needs more than the first choice of a field."""
        transform = self._first_choice.makes[table]
        names = [name for name in transform.first_choice if name in transform.fields]
        if not names:
            return False
        missing = " OR ".join(f'"{name}" IS NULL' for name in names)
        select = transform.of_fields(names).select(tie="")
        return bool(self.connection.execute(f"SELECT 1 FROM ({select}) WHERE {missing} LIMIT 1").fetchall())

    def _with_rows(self) -> dict[str, tuple[Transform, int, int | None, int | None]]:
        """The canonical tables that the chunk has rows for, with their number, first start and last end.

        To write no rows costs more than to count them. Rows to be left out are counted; where there are none, no row
        is looked at for that again.
        """
        if not self._read.makes:
            return {}
        counted = (_counted(canonical.BY_NAME[name], made) for name, made in self._read.makes.items())
        (found,) = self.connection.execute(f"SELECT {', '.join(counted)} FROM chunk c").fetchall()
        values = zip(found[::4], found[1::4], found[2::4], found[3::4], strict=True)
        chosen = {}
        for (name, made), (rows, possible, first, last) in zip(self._read.makes.items(), values, strict=True):
            without = count_left_out(self.connection, made) if possible < rows else LeftOut()
            without += count_nameless(self.connection, made)
            if without:
                self._left_out[name] = self._left_out.get(name, LeftOut()) + without
            if possible:
                chosen[name] = (made if possible < rows else replace(made, times=None), possible, first, last)
        return chosen

    def _find_strings(self) -> None:
        """The strings that the chunk names: a join with all of an export's builds a table of all of them, each time.

        A string that is lost is told from others by its number.
        """
        used = ", ".join(column for column in _STRING_IDS if column in self._read.columns)
        ids = f"SELECT DISTINCT unnest([{used}]) AS id FROM chunk" if used else "SELECT CAST(NULL AS BIGINT) AS id"
        if self._read.strings and "blob" in self._read.columns:
            ids += f" UNION {self._read.strings}"
        every = f"({ids}) LEFT JOIN {self._lookups.schema}.{_STRINGS} USING (id) WHERE id IS NOT NULL"
        found = (
            f"SELECT id, coalesce(value, '[name ' || id || ' lost]') AS value, value IS NULL AS is_lost FROM {every}"
        )
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {_STRINGS} AS {found}")

    def _is_sorted(self, transform: Transform, rows: int) -> bool:
        """Whether the rows of the chunk are in order and stay so: most exports are written in the order of time."""
        if not transform.order:
            return True
        if _STRINGS in transform.words:
            ((strings,),) = self.connection.execute(f"SELECT count(*) FROM {_STRINGS}").fetchall()
            if strings * _MUCH_LARGER > rows:
                return False
        column = f'"{transform.order}"'
        # Of the rows beside their next only the last has none; what is missing is in no order.
        query = f"""SELECT count(*) FROM (SELECT {column} AS this FROM chunk)
            POSITIONAL JOIN (SELECT {column} AS next FROM chunk OFFSET 1) WHERE (next >= this) IS NOT TRUE"""
        ((breaks,),) = self.connection.execute(query).fetchall()
        return bool(breaks == 1)

    def _calls(self) -> Iterator[TableChunk]:
        """NCCL API calls, decoded by Python only where a payload or an instrumented name is there to decode."""
        table = canonical.NCCL_CALLS
        with read_errors(self._lookups.path, self.source.table):
            create = f"CREATE OR REPLACE TEMP TABLE nccl_chunk AS {self.source.decoded[table.name]}"
            ((calls,),) = self.connection.execute(create).fetchall()
            rows = self.connection.execute(_WITH_PAYLOAD).fetchall() if calls else []
        decoded = [_decoded(row, self._payload) for row in rows]
        chosen = [item for item in table.fields if item.name in self._fields[table.name]]
        if len(decoded) < calls:
            casts = ", ".join(f'CAST("{item.name}" AS {item.kind.value}) AS "{item.name}"' for item in chosen)
            yield TableChunk(table, f"SELECT {casts} FROM ({_WITHOUT_PAYLOAD})")
        if decoded:
            make_table(self.connection, table, decoded, "decoded")
            names = ", ".join(f'"{item.name}"' for item in chosen)
            yield TableChunk(table, f"SELECT {names} FROM decoded")


def _counted(table: CanonicalTable, made: Transform) -> str:
    """Four values of a chunk: its rows that go to ``table``, those that are not left out, first start and last end."""
    counts = f"count(*) FILTER (WHERE {made.where or 'true'}), count(*) FILTER (WHERE {made.condition or 'true'})"
    if not has_span(table) or "start" not in made.fields:
        return f"{counts}, NULL, NULL"
    start = made.fields["start"]
    # A range that was never closed reaches at least to its start.
    latest = f"greatest({start}, {made.fields['end']})" if "end" in made.fields else start
    first, last = (
        f"{extreme} FILTER (WHERE {made.condition or 'true'})" for extreme in (f"min({start})", f"max({latest})")
    )
    return f"{counts}, {first}, {last}"


@contextmanager
def read_errors(path: Path, table: str) -> Iterator[None]:
    """Turns DuckDB's errors about the rows of a native table into damage of that table."""
    import duckdb

    try:
        with opening.reading(table):
            yield
    except (duckdb.InterruptException, duckdb.OutOfMemoryException, duckdb.IOException):
        raise
    except duckdb.Error as error:
        raise opening.corrupt(path, error, table) from None


def make_table(
    connection: duckdb.DuckDBPyConnection, table: CanonicalTable, rows: Sequence[tuple[Any, ...]], name: str
) -> None:
    """Makes a temporary table of rows that Python made, column by column as lists (far faster than row by row)."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in table.fields]
    lists = ", ".join(
        f'unnest(CAST(${number} AS {item.kind.value}[])) AS "{item.name}"'
        for number, item in enumerate(table.fields, 1)
    )
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {lists}", columns)


def _with_types(source: Source) -> Source:
    """The source with the canonical types, in the same SELECT: to plan two, one in the other, takes longer."""
    makes = {}
    for name, made in source.makes.items():
        kinds = {item.name: item.kind.value for item in canonical.BY_NAME[name].fields}
        fields = {name: f"CAST({made.fields[name]} AS {kind})" for name, kind in kinds.items() if name in made.fields}
        makes[name] = replace(made, fields=fields)
    return replace(source, makes=makes)


def _receive(connection: duckdb.DuckDBPyConnection, name: str, stream: Any, absent: Sequence[str] = ()) -> int:
    """Reads an Arrow stream into a temporary table, with ``absent`` columns of NULL; how many rows there are.

    Where there are none, the driver knows no types.
    """
    # A variable of this function, not a name in the database: exports that are read side by side have their own.
    arriving = connection.from_arrow(stream)
    nothing = "".join(f', CAST(NULL AS BIGINT) AS "{column}"' for column in absent)
    create = f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {_as_text(arriving)}{nothing} FROM arriving"
    ((rows,),) = connection.execute(create).fetchall()
    return int(rows)


def _as_text(arriving: duckdb.DuckDBPyRelation) -> str:
    r"""The columns of an Arrow stream as SQL, bytes as text unless they are a payload; invalid UTF-8 as ``\xE9``."""
    columns = zip(arriving.columns, map(str, arriving.types), strict=True)
    return ", ".join(
        f'coalesce(try(decode("{column}")), CAST("{column}" AS VARCHAR)) AS "{column}"'
        if kind == "BLOB" and column != "blob"
        else f'"{column}"'
        for column, kind in columns
    )


def _count_chunk(path: Path, connection: duckdb.DuckDBPyConnection, table: str, chunk: Chunk) -> int:
    """How many rows are in ``chunk``: a damaged export may give others than were asked for, or some twice.

    Raises ExportError where one is not between the first and the last rowid, or is there twice.
    """
    query = "SELECT count(*), min(row_id), max(row_id), sum(row_id) FROM chunk"
    ((rows, lowest, highest, total),) = connection.execute(query).fetchall()
    if lowest < chunk.first or highest > chunk.last:
        raise doubled(path, table)
    # Counted up without a gap is what nsys writes, and quicker to tell than how many different numbers there are.
    if rows != highest - lowest + 1 or 2 * total != rows * (lowest + highest):
        ((different,),) = connection.execute("SELECT count(DISTINCT row_id) FROM chunk").fetchall()
        if different != rows:
            raise doubled(path, table)
    return int(rows)


# More are not listed in a condition.
_MOST_TEXTS = 1000


def _calls_condition(connection: duckdb.DuckDBPyConnection, lookups: Lookups, source: Source) -> str:
    """SQLite: leaves most ranges unread that are no NCCL calls; their texts and payloads are most of many exports."""
    domains = connection.execute("SELECT DISTINCT domain_id FROM domains WHERE domain = 'NCCL'").fetchall()
    # The reader of another table may have put the strings of its chunk before those of the export.
    named = f"SELECT id FROM {lookups.schema}.{_STRINGS} WHERE starts_with(value, 'nccl') LIMIT {_MOST_TEXTS + 1}"
    texts = [text for (text,) in connection.execute(named).fetchall()]
    known = [domain for (domain,) in domains if domain is not None]
    return sources.nccl_condition(source.columns, known, None if len(texts) > _MOST_TEXTS else texts)


_COLLECTIVE = (
    "CASE "
    + " ".join(f"WHEN name = '{name}' THEN '{collective}'" for name, collective in nccl_calls.COMMUNICATION.items())
    + " END"
)
_HAS_PAYLOAD = "(json_text <> '' OR octet_length(blob) > 0 OR contains(name, '('))"
# DuckDB: the calls of ``nccl_chunk`` that say nothing but their name, as rows of the canonical table.
_WITHOUT_PAYLOAD = f"""
    SELECT row, "start", "end", thread, process, name, {_COLLECTIVE} AS collective, NULL AS message_size,
        NULL AS communicator, NULL AS peer, NULL AS root, NULL AS reduction, NULL AS datatype, NULL AS rank,
        NULL AS ranks, NULL AS cuda_device, NULL AS size_source
    FROM nccl_chunk WHERE NOT {_HAS_PAYLOAD}"""
_WITH_PAYLOAD = f"""
    SELECT row, "start", "end", thread, process, domain_id, name, json_text, blob
    FROM nccl_chunk WHERE {_HAS_PAYLOAD} ORDER BY "start", row"""


def _decoded(row: tuple[Any, ...], payload: PayloadSchemas) -> tuple[Any, ...]:
    """A row of the canonical table from an NVTX range with a payload."""
    number, start, end, thread, process, domain_id, name, json_text, blob = row
    call = nccl_calls.decode(payload, domain_id, name, json_text, blob)
    bare = name.partition("(")[0]
    event = (number, start, end, thread, process, bare, nccl_calls.COMMUNICATION.get(bare))
    size = (call.message_size, call.communicator, call.peer, call.root, call.reduction, call.datatype)
    return (*event, *size, call.rank, call.ranks, call.cuda_device, call.source)
