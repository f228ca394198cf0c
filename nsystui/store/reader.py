"""A reader of selected fields of canonical tables, one chunk of a native table at a time.

SQLite streams the needed columns as Arrow; DuckDB resolves names in small lookup tables and casts fields to their
canonical types. To pack is to read all fields.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from nsystui.exports import canonical, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.integrity import PageChecks, doubled
from nsystui.exports.opening import ArrowReader
from nsystui.exports.schema import NativeText, Schema
from nsystui.exports.sources import NO_INTEGER, Source, Transform
from nsystui.exports.sources.base import words_of
from nsystui.store.database import make_table, read_errors
from nsystui.store.tally import LeftOut, count_left_out, count_nameless, left_out_of, left_out_query, lost_names

if TYPE_CHECKING:
    import duckdb
    import numpy as np

    from nsystui.exports.arrow_stream import Batch, Checked, MadeBatch
    from nsystui.exports.leaf_pages import LeafPages
    from nsystui.exports.nccl_calls import PayloadSchemas


# Kernels have about this many columns.
_KERNEL_COLUMNS = 22
# Narrow tables get more rows per chunk (at most 4×), so that they make fewer files.
_MAX_FACTOR = 4


def chunk_rows(source: Source, kernel_rows: int) -> int:
    """Return the rows per chunk of a source, if a chunk of kernels has ``kernel_rows``."""
    return kernel_rows * min(max(_KERNEL_COLUMNS // max(len(source.columns), 1), 1), _MAX_FACTOR)


@dataclass(frozen=True)
class Chunk:
    """The rows ``first`` to ``last`` of a native table, by rowid; they end at about ``part`` (0 … 1) of the file."""

    source: Source
    first: int
    last: int
    part: float = 0.0

    @property
    def position(self) -> int:
        """The number of the first row, counted over all native tables of the canonical table."""
        return self.source.first_row + self.first


class Chunks:
    """The chunks of ``sources``, each handed out once, band by band through the file; for several threads.

    The pages of all tables alternate through an export: reading table after table would read the file once per table,
    slowly over a network.

    ``last_rowid`` is by native table; ``rows`` returns the maximum rows per chunk of a source.
    """

    def __init__(self, sources: Sequence[Source], last_rowid: Mapping[str, int], rows: Callable[[Source], int]) -> None:
        self._sources = sources
        self._last = [last_rowid[source.table] for source in sources]
        self._next = [0] * len(sources)  # some keys of nsys begin at 0
        self._rows = [rows(source) for source in sources]
        self.is_stopped = False
        self._lock = threading.Lock()

    def take(self) -> Chunk | None:
        """Return the next chunk, or ``None`` when all are taken."""
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

    def skip_to(self, source: Source, row: int) -> int:
        """Skip the rows of a source before ``row``, because some keys have gaps; return how many."""
        with self._lock:
            number = self._sources.index(source)
            first = self._next[number]
            self._next[number] = max(first, min(row, self._last[number] + 1))
            return self._next[number] - first

    @property
    def total(self) -> int:
        """The approximate number of rows, from their rowids."""
        return sum(self.last_rows.values())

    @property
    def last_rows(self) -> dict[str, int]:
        """The last row of each native table; without tables of which only NCCL calls, an unknown number, are read."""
        return {source.table: row for source, row in zip(self._sources, self._last, strict=True) if source.makes}

    def stop(self) -> None:
        """Hand out no more chunks."""
        with self._lock:
            self.is_stopped = True
            self._next = [last + 1 for last in self._last]


Fields = Mapping[str, Collection[str]]
"""Names of fields by canonical table."""
ALL_FIELDS: Fields = {table.name: table.field_names for table in canonical.TABLES}

# Large enough for few files, small enough for two chunks of kernels in less than 100 MB.
CHUNK_ROWS = 32_768
_STRINGS = "strings"
STRING_IDS = ("name_id", "short_id", "mangled_id", "text_id", "instruction_id", "file_id", "function_id", "module_id")
# A join keeps only the order of the larger side.
_MUCH_LARGER = 10
LONG_NAME = 8 << 10
"""Bytes of a name from which on chunks have fewer rows, because each row has a copy of its name."""
_MAX_STRINGS = 16 << 20


class TableChunk(NamedTuple):
    """The rows of a canonical table in a chunk: ``select`` is DuckDB's SQL, valid until the next part."""

    table: CanonicalTable
    select: str


@dataclass
class Lookups:
    """The lookup tables of an export, filled when they are needed.

    Their schema has a unique name, because several exports may be read in one database at once.
    """

    path: Path
    native: Schema
    connection: duckdb.DuckDBPyConnection
    checks: PageChecks
    rows: dict[str, int] = field(default_factory=dict)
    """The number of rows of each filled table."""
    pages: dict[str, LeafPages | None] = field(default_factory=dict)
    """The pages of native tables of which rows were read; ``None`` if SQLite read some."""
    _known: tuple[np.ndarray, int] | None = None

    def __post_init__(self) -> None:
        self.schema = f"lookup_{uuid4().hex[:12]}"
        self.connection.execute(f"CREATE SCHEMA {self.schema}")
        self.share(self.connection)

    def drop(self) -> None:
        """Drop the tables. Never raises: if that fails, they stay until the database is closed."""
        import duckdb

        with suppress(duckdb.Error, MemoryError):
            self.connection.execute(f"DROP SCHEMA {self.schema} CASCADE")

    def share(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let a connection find the tables by name; it creates its own tables in ``main``."""
        connection.execute(f"SET search_path = 'main,{self.schema}'")

    def pages_of(self, source: Source) -> LeafPages | None:
        """Return the pages from which the columns of ``source`` can be read; ``None`` if SQLite must."""
        from nsystui.exports.leaf_pages import leaf_pages

        if source.table not in self.pages:
            self.pages[source.table] = leaf_pages(self.path, source.table)
        pages = None if source.without else self.pages[source.table]
        if pages is not None and not all(sql == NO_INTEGER or pages.contain(sql) for sql in source.columns.values()):
            pages = None
        self.pages[source.table] = pages
        return pages

    def known_strings(self) -> tuple[np.ndarray, int]:
        """Return whether each number is the id of a string, and the bytes of the longest string.

        The array is empty if too many strings would be joined with arriving rows, because DuckDB copies them.
        """
        import numpy as np

        if not self.rows.get(_STRINGS):
            return np.zeros(1, bool), 0
        if self._known is None:
            strings = f"FROM {self.schema}.{_STRINGS}"
            query = f"SELECT sum(strlen(value)), max(strlen(value)), min(id), max(id) {strings}"
            ((size, longest, lowest, highest),) = self.connection.execute(query).fetchall()
            is_small = size <= _MAX_STRINGS and longest < LONG_NAME and lowest >= 0 and highest <= _MAX_STRINGS
            is_string_id = np.zeros(highest + 1 if is_small else 0, bool)
            if is_small:
                is_string_id[self.connection.execute(f"SELECT id {strings}").fetchnumpy()["id"]] = True
            self._known = is_string_id, longest
        return self._known

    def fill(self, export: ArrowReader, words: Collection[str]) -> None:
        """Fill the tables named in ``words``; the strings first, because the other tables look them up.

        Raises ExportError if the export cannot be read completely.
        """
        lookups = sources.lookups(self.native)
        needed = {lookup.name for lookup in lookups}.intersection(words)
        if needed:
            needed.add(_STRINGS)
        for lookup in lookups:
            if lookup.name in needed - self.rows.keys():
                with read_errors(self.path, lookup.table):
                    self.rows[lookup.name] = self._fill(export, lookup)

    def _fill(self, export: ArrowReader, lookup: sources.Lookup) -> int:
        name, rows = f"{self.schema}.{lookup.name}", 0
        self.connection.execute(f"CREATE OR REPLACE TABLE {name} ({lookup.definition})")
        if self.native.has(lookup.table):
            arriving = self.connection.from_arrow(export.stream(lookup.query))
            incoming = f"SELECT {_as_text(arriving)} FROM arriving"  # the name of the variable
            insert = f"INSERT INTO {name} WITH incoming AS ({incoming}) {lookup.resolve}"
            ((rows,),) = self.connection.execute(insert).fetchall()
            if lookup.table not in sources.TABLES:  # the pages of these are checked when their rows are read
                self.checks.end(lookup.table, rows, self.native.last_rowid[lookup.table] if lookup.is_whole else rows)
        return int(rows)


Watch = Callable[[int], object]
"""Called with the last row read of a chunk; an exception ends the reading."""


class ArrivingRows:
    """Checks of the rows of a chunk while they arrive, batch by batch.

    ``unsorted`` contains the columns of ``orders`` whose values are out of order or missing; ``has_gaps`` is whether a
    string id is missing.
    """

    def __init__(self, path: Path, source: Source, chunk: Chunk, orders: Collection[str], watch: Watch) -> None:
        kept = words_of(source.without)
        self._absent = [name for name, sql in source.columns.items() if sql == NO_INTEGER and name not in kept]
        self._columns = {name: sql for name, sql in source.columns.items() if name not in self._absent}
        self.ids = [name for name in STRING_IDS if name in self._columns]
        self.rows = 0
        self.has_gaps = False
        self.unsorted: set[str] = set()
        self._latest = {name: -(1 << 63) for name in orders if name in self._columns}
        self._last = chunk.first - 1
        self._path, self._source, self._chunk, self._watch = path, source, chunk, watch

    def open(
        self,
        connection: duckdb.DuckDBPyConnection,
        export: ArrowReader,
        condition: str = "",
        inspect: Callable[[Batch | MadeBatch], object] = lambda batch: None,
        pages: LeafPages | None = None,
    ) -> tuple[Checked, str]:
        """Return the stream of the rows, decoded from ``pages`` or by SQLite, and DuckDB's SQL of its columns."""
        from nsystui.exports.arrow_stream import MadeBatch, MadeStream, WatchedStream

        def check(batch: Batch | MadeBatch) -> None:
            self._check(batch)
            inspect(batch)
            self._watch(self._last)

        stream: MadeStream | WatchedStream
        if pages is not None:
            have_bytes = {"row_id": False} | {name: isinstance(sql, NativeText) for name, sql in self._columns.items()}
            batches = map(MadeBatch, pages.rows(self._chunk.first, self._chunk.last, self._columns))
            stream = MadeStream(have_bytes, batches, check)
        else:
            scan = replace(self._source, columns=self._columns).scan % (self._chunk.first, self._chunk.last)
            stream = WatchedStream(export.stream(scan + condition), ["row_id", *self._columns], check)
        return stream, _as_text(connection.from_arrow(stream), self._absent)

    def _check(self, batch: Batch | MadeBatch) -> None:
        """Raise ExportError if rows do not ascend or are outside the chunk: the export is damaged."""
        rows, _ = batch.integers("row_id")
        if rows[0] <= self._last or rows[-1] > self._chunk.last or (rows[1:] <= rows[:-1]).any():
            raise doubled(self._path, self._source.table)
        self.rows += batch.rows
        self._last = int(rows[-1])
        for name, latest in self._latest.items():
            times, present = batch.integers(name)
            if present is not None or times[0] < latest or (times[1:] < times[:-1]).any():
                self.unsorted.add(name)
            self._latest[name] = int(times[-1])
        self.has_gaps = self.has_gaps or any(batch.integers(name)[1] is not None for name in self.ids)


class Reader:
    """A reader of ``fields`` of the canonical tables that receive the rows of one native table.

    ``connection`` has temporary tables of the reader, and must find the ``lookups``. Rows with impossible times are
    added to ``left_out``. NCCL calls need ``payload``. If a source makes nothing else, other rows stay unread, which
    requires filled lookups.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        lookups: Lookups,
        source: Source,
        fields: Fields,
        left_out: defaultdict[str, LeftOut],
        payload: PayloadSchemas | None,
    ) -> None:
        self.connection = connection
        self.source, self._next_choice = _choices(source, fields)
        self._lookups = lookups
        self._fields = fields
        self._left_out = left_out
        self._payload = payload
        self._condition = f" AND {_calls_condition(connection, lookups, source)}" if not source.makes else ""
        self._strings = 0

    def read(self, export: ArrowReader, chunk: Chunk, watch: Watch) -> int:
        """Read the rows of a chunk, for ``parts``; return their number. Raises ExportError for an unreadable export."""
        with read_errors(self._lookups.path, self.source.table):
            rows = self._receive(export, chunk, watch)
            if self._arrivals.has_gaps and self.source is not self._next_choice:
                self.source = self._next_choice
                return self._receive(export, chunk, watch)
            return rows

    def parts(self) -> Iterator[TableChunk]:
        """Yield the rows of the chunk that was read, for each canonical table that has any."""
        with read_errors(self._lookups.path, self.source.table):
            transforms = self._with_rows()
        for name, (transform, rows) in transforms.items():
            tie = "" if self._is_sorted(transform, rows) else "row_id"
            yield TableChunk(canonical.BY_NAME[name], transform.select(tie))
        if self.source.decoded:
            yield from self._calls()

    def _receive(self, export: ArrowReader, chunk: Chunk, watch: Watch) -> int:
        # To replace the previous chunk would keep both in memory for a while.
        self.connection.execute("DROP TABLE IF EXISTS chunk")
        orders = {made.order for made in self.source.makes.values()}
        self._arrivals = ArrivingRows(self._lookups.path, self.source, chunk, orders, watch)
        arriving, read = self._arrivals.open(self.connection, export, self._condition)
        # A local variable, not a name in the database, because several exports are read at once.
        create = f"CREATE OR REPLACE TEMP TABLE chunk AS SELECT {read} FROM arriving"
        with arriving.reading():
            ((rows,),) = self.connection.execute(create).fetchall()
        if rows and _STRINGS in self.source.words:
            self._strings = self._find_strings()
        return int(rows)

    def _with_rows(self) -> dict[str, tuple[Transform, int]]:
        """Return the canonical tables with rows in the chunk, and their number of rows; count the rows left out.

        Counting costs less than writing no rows. If no row is left out, the query of the rows does not check again.
        """
        if not self.source.makes:
            return {}
        counts = ", ".join(
            f"count(*) FILTER (WHERE {condition or 'true'})"
            for made in self.source.makes.values()
            for condition in (made.where, made.condition)
        )
        (counted,) = self.connection.execute(f"SELECT {counts} FROM chunk c").fetchall()
        transforms = {}
        for (name, made), rows, possible in zip(self.source.makes.items(), counted[::2], counted[1::2], strict=True):
            left_out = count_left_out(self.connection, made) if possible < rows else LeftOut()
            left_out += count_nameless(self.connection, made)
            if left_out:
                self._left_out[name] += left_out
            if possible:
                transforms[name] = (made if possible < rows else replace(made, times=None), possible)
        return transforms

    def _find_strings(self) -> int:
        """Make a table of the strings in the chunk, and return their number.

        Each join with all strings of an export would build a table of them.
        """
        used = ", ".join(column for column in STRING_IDS if column in self.source.columns)
        ids = f"SELECT DISTINCT unnest([{used}]) AS id FROM chunk" if used else "SELECT CAST(NULL AS BIGINT) AS id"
        if self.source.strings and "blob" in self.source.columns:
            ids += f" UNION {self.source.strings}"
        # DuckDB builds a table of the right side, which is smaller, even without its optimizer.
        all_ids = f"{self._lookups.schema}.{_STRINGS} RIGHT JOIN ({ids}) USING (id) WHERE id IS NOT NULL"
        names = ", ".join(
            f"coalesce({name}, '[name ' || id || ' lost]') AS {name}" for name in ("value", "label", "bare")
        )
        query = f"SELECT id, {names}, coalesce(is_nccl, 0) AS is_nccl, value IS NULL AS is_lost FROM {all_ids}"
        ((strings,),) = self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {_STRINGS} AS {query}").fetchall()
        return int(strings)

    def _is_sorted(self, transform: Transform, rows: int) -> bool:
        """Return whether the rows of the chunk are in order and stay so, as in most exports."""
        if not transform.order:
            return True
        is_kept = _STRINGS not in transform.words or self._strings * _MUCH_LARGER <= rows
        return is_kept and transform.order not in self._arrivals.unsorted

    def _calls(self) -> Iterator[TableChunk]:
        """Yield NCCL API calls; Python decodes only calls with a payload or an instrumented name."""
        from nsystui.exports.nccl_calls import CALLS_WITH_PAYLOAD, OTHER_CALLS, row_of

        assert self._payload is not None
        table = canonical.NCCL_CALLS
        with read_errors(self._lookups.path, self.source.table):
            create = f"CREATE OR REPLACE TEMP TABLE nccl_chunk AS {self.source.decoded[table.name]}"
            ((calls,),) = self.connection.execute(create).fetchall()
            rows = self.connection.execute(CALLS_WITH_PAYLOAD).fetchall() if calls else []
        decoded = [row_of(self._payload, row) for row in rows]
        fields = [item for item in table.fields if item.name in self._fields[table.name]]
        if len(decoded) < calls:
            casts = ", ".join(f'CAST("{item.name}" AS {item.kind.value}) AS "{item.name}"' for item in fields)
            yield TableChunk(table, f"SELECT {casts} FROM ({OTHER_CALLS})")
        if decoded:
            make_table(self.connection, table, decoded, "decoded")
            names = ", ".join(f'"{item.name}"' for item in fields)
            yield TableChunk(table, f"SELECT {names} FROM decoded")


def _choices(source: Source, fields: Fields) -> tuple[Source, Source]:
    """Return a source with the first choices of fields, and a source with all choices for rows that need more.

    They are the same if the first reads as many columns, or a column that the export lacks.
    """
    first, complete = (_with_types(source.of_fields(fields, first_choice=is_first)) for is_first in (True, False))
    is_less = first.columns.keys() < complete.columns.keys() and NO_INTEGER not in map(first.columns.get, STRING_IDS)
    return first if is_less else complete, complete


def _with_types(source: Source) -> Source:
    """Return the source with casts in the same SELECT: planning nested SELECTs takes longer."""
    makes = {}
    for name, made in source.makes.items():
        kinds = {item.name: item.kind.value for item in canonical.BY_NAME[name].fields}
        fields = {name: f"CAST({made.fields[name]} AS {kind})" for name, kind in kinds.items() if name in made.fields}
        makes[name] = replace(made, fields=fields)
    return replace(source, makes=makes)


def _as_text(arriving: duckdb.DuckDBPyRelation, absent: Sequence[str] = ()) -> str:
    r"""Return SQL for the columns of an Arrow stream: bytes except payloads as text, invalid UTF-8 as ``\xE9``.

    ``absent`` columns are NULL. The driver types a text without rows as integers.
    """
    columns = [
        f'coalesce(try(decode("{column}")), CAST("{column}" AS VARCHAR)) AS "{column}"'
        if kind == "BLOB" and column != "blob"
        else f'"{column}"'
        for column, kind in zip(arriving.columns, map(str, arriving.types), strict=True)
    ]
    return ", ".join(columns + [f'CAST(NULL AS BIGINT) AS "{column}"' for column in absent])


# The maximum number in a condition.
_MAX_TEXTS = 1000


def _calls_condition(connection: duckdb.DuckDBPyConnection, lookups: Lookups, source: Source) -> str:
    """Return SQLite's condition that skips most ranges that are not NCCL calls.

    Their texts and payloads are most of many exports.
    """
    domains = connection.execute("SELECT DISTINCT domain_id FROM domains WHERE domain = 'NCCL'").fetchall()
    # With the schema, because strings of another reader's chunk may hide the export's strings.
    query = f"SELECT id FROM {lookups.schema}.{_STRINGS} WHERE starts_with(value, 'nccl') LIMIT {_MAX_TEXTS + 1}"
    texts = [text for (text,) in connection.execute(query).fetchall()]
    domain_ids = [domain for (domain,) in domains if domain is not None]
    return sources.nccl_condition(source.columns, domain_ids, None if len(texts) > _MAX_TEXTS else texts)


_GROUP_ROWS, _MIN_GROUP_ROWS = 60 << 10, 16 << 10
"""Rows of a row group, which DuckDB holds in memory: less than 50 MB of kernels; fewer if names are long."""
_GROUP_TEXT = 24 << 20
SORTED_ROWS = 1 << 17
"""Rows that are sorted at once, without their names: about 30 MB of kernels."""
_ARRIVING = "arriving_rows"


def streamed(source: Source) -> str:
    """Return the table to which rows of a source can stream, or an empty text; other tables take its other rows."""
    name = next(iter(source.makes), "")
    return name if name and not source.makes[name].is_made else ""


class UnusualRows(Exception):
    """Rows that must be read again in another way."""


class TableStream:
    """A stream of a native table, whose rows one COPY turns into rows of the canonical table ``name``.

    Unusual rows end the stream and are read again, sorted if ``sorts``; by a `Reader` unless ``is_usable``.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, lookups: Lookups, source: Source, name: str, fields: Fields
    ) -> None:
        self.name = name
        self.sorts = False
        self.select = ""
        self._connection = connection
        self._lookups = lookups
        self._complete_source = source
        self._source, self._next_choice = _choices(source, {name: fields[name]})
        self._known, longest = lookups.known_strings()
        self.row_group = max(min(_GROUP_TEXT // max(longest, 1), _GROUP_ROWS), _MIN_GROUP_ROWS)
        self.is_usable = len(self._known) > 0 and not lost_names(connection, self._transform)
        self.arrivals = ArrivingRows(lookups.path, self._source, Chunk(source, 0, -1), (), lambda last: None)
        self._kind = source.kind
        self._kinds = Counter[int]()  # -1 if it is missing

    @property
    def _transform(self) -> Transform:
        return self._source.makes[self.name]

    def open(self, export: ArrowReader, chunk: Chunk, watch: Watch) -> Checked:
        """Begin to read the rows of a chunk; ``select`` returns them, once."""
        # Strings left by a `Reader` would hide the export's strings.
        self._connection.execute("DROP TABLE IF EXISTS temp.main.strings")
        self._kinds.clear()
        orders = () if self.sorts else (self._transform.order,)
        self.arrivals = ArrivingRows(self._lookups.path, self._source, chunk, orders, watch)
        pages = self._lookups.pages_of(self._source)
        stream, read = self.arrivals.open(self._connection, export, inspect=self._inspect, pages=pages)
        self._connection.register(_ARRIVING, stream)
        ordered = f' ORDER BY "{self._transform.order}", row_id' if self.sorts else ""
        self.select = replace(self._transform, rows=f"SELECT {read} FROM {_ARRIVING}{ordered}").select(tie="")
        return stream

    def _inspect(self, batch: Batch | MadeBatch) -> None:
        """Raise UnusualRows if the rows must be read again, after changing the stream for that."""
        import numpy as np

        for name in self.arrivals.ids:
            ids, present = batch.integers(name)
            ids = ids if present is None else ids[present]
            if len(ids) and not (ids.min() >= 0 and ids.max() < len(self._known) and self._known[ids].all()):
                self.is_usable = False
        if self._kind:
            kinds, present = batch.integers(self._kind)
            kinds, counts = np.unique(kinds if present is None else np.where(present, kinds, -1), return_counts=True)
            self._kinds.update(dict(zip(kinds.tolist(), counts.tolist(), strict=True)))
        lacks_values = self.arrivals.has_gaps and self._source is not self._next_choice
        self.sorts = self.sorts or bool(self.arrivals.unsorted)
        if lacks_values:
            self._source = self._next_choice
        if lacks_values or self.arrivals.unsorted or not self.is_usable:
            raise UnusualRows

    def rows_for(self, made: Transform) -> int:
        """Return the most rows of the chunk that ``made`` may take, whatever their times."""
        if not self._kind:
            return self.arrivals.rows
        kinds = f"SELECT unnest($1) AS {self._kind}, unnest($2) AS n"
        query = f"SELECT sum(n) FROM ({kinds}) c WHERE {made.where or 'true'}"
        ((rows,),) = self._connection.execute(query, [[*self._kinds], [*self._kinds.values()]]).fetchall()
        return int(rows or 0)

    def left_out(self, export: ArrowReader, chunk: Chunk, written: int) -> LeftOut:
        """Return how many rows of the chunk are left out of the table, which got ``written``, counted by SQLite."""
        if self._transform.times is None or written == self.rows_for(self._transform):
            return LeftOut()
        rows = f"({replace(self._complete_source, without='').scan % (chunk.first, chunk.last)}) c"
        return left_out_of(self._connection.from_arrow(export.stream(left_out_query(self._transform, rows))).fetchall())
