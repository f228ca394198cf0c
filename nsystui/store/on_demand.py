"""A report that is not packed: a query reads (packs) only its columns; facts are read when looked up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nsystui.base.errors import ExportError
from nsystui.base.parquet_file import parquet_rows
from nsystui.exports import canonical, opening, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.integrity import PageChecks
from nsystui.exports.metadata import Metadata, device_rows
from nsystui.exports.opening import ArrowReader, ExportFile
from nsystui.exports.schema import Schema
from nsystui.exports.sources import Source
from nsystui.store.cache import Cache, ColumnFiles, SinkRows
from nsystui.store.database import make_table, raise_of_damage
from nsystui.store.packing import WORK_TABLES, MemorySink, Packer, PackingDatabase, Sink
from nsystui.store.reader import Lookups
from nsystui.store.remember import Results, remembered_damage
from nsystui.store.report import has_span
from nsystui.store.tally import LeftOut, Tally, tallied, tally_columns

if TYPE_CHECKING:
    import duckdb

    from nsystui.exports.nccl_calls import PayloadSchemas

T = TypeVar("T")


@dataclass(frozen=True)
class ColumnTable:
    """Columns of a canonical table, in the session's database."""

    names: frozenset[str]
    rows: int
    table: str


Columns = ColumnFiles | ColumnTable
_LEFT_OUT, _TALLIES, _WHOLE = "left-out", "tallies", "whole"


@dataclass
class OnDemand:
    """A report that is not packed, with the facts of a packed report. Not for two threads at once.

    ``connection`` is the report's own. ``results`` keeps its tallies. ``is_stopped`` ends reading by KeyboardInterrupt,
    ``is_cancelled`` by PackingCancelled. ``checks_while_reading``: whether a thread is free to check pages.
    """

    file: ExportFile
    metadata: Metadata
    native: Schema
    connection: duckdb.DuckDBPyConnection
    index: int
    cache: Cache | None
    packing: PackingDatabase
    warn: Callable[[str], object]
    results: Results
    loaded: dict[str, Columns] = field(default_factory=dict)
    is_stopped: bool = False
    checks_while_reading: bool = False
    is_cancelled: Callable[[], bool] = lambda: False
    _loads: int = 0

    def _is_over(self) -> bool:
        return self.is_stopped or self.is_cancelled()

    @cached_property
    def _checks(self) -> PageChecks:
        """The page checks, which skip tables of this export that passed before."""
        checked_tables = self.results.load(_WHOLE, read=lambda tables: [str(table) for table in tables])
        return PageChecks(self.path, self._is_over, checked_tables or ())

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows of each canonical table, counted when looked up."""
        return _Counts(self)

    def max_rows(self, table: str) -> int:
        """Return an upper bound on the rows of a canonical table, without reading any."""
        if table in self.loaded:
            return self.loaded[table].rows
        return sum(self.native.last_rowid.get(source.table, 0) for source in self._sources if table in source.makes)

    @cached_property
    def left_out(self) -> dict[str, LeftOut]:
        """Rows left out of canonical tables, as far as they were read, now or before."""
        return self.results.load(_LEFT_OUT, read=partial(_by_table, LeftOut.from_json)) or {}

    def _save_left_out(self, left_out: Mapping[str, LeftOut]) -> None:
        """Save the rows left out, because saved columns do not show them."""
        merged = {name: rows | self.left_out.get(name, LeftOut()) for name, rows in left_out.items() if rows}
        if not merged.items() <= self.left_out.items():
            self.left_out.update(merged)
            self.results.save(_LEFT_OUT, {name: rows.to_json() for name, rows in self.left_out.items()})

    @property
    def first_event(self) -> int | None:
        """The start of the first event, ns."""
        return self._span[0]

    @property
    def last_event(self) -> int | None:
        """The end of the last event, ns."""
        return self._span[1]

    @cached_property
    def _sources(self) -> list[Source]:
        return sources.sources(self.native)

    @cached_property
    def fed(self) -> frozenset[str]:
        """The canonical tables for which the export has native tables, even without rows."""
        return frozenset(table for source in self._sources for table in source.feeds)

    def load(self, wanted: Mapping[str, Collection[str]]) -> None:
        """Read ``wanted`` columns that are not loaded. Raises ExportError if the file cannot be read completely."""
        wanted = dict(wanted)
        needs_devices = (
            wanted.pop(canonical.DEVICES.name, None) is not None and canonical.DEVICES.name not in self.loaded
        )
        if needs_devices:
            wanted.update({table: {*wanted.get(table, ()), "process", "device"} for table in WORK_TABLES})
        self._load(wanted)
        if needs_devices:
            self._load_devices()

    def _load(self, wanted: Mapping[str, Collection[str]]) -> None:
        missing = {}
        for table, names in wanted.items():
            if not self._has_rows(table):
                self.loaded[table] = ColumnTable(frozenset(canonical.BY_NAME[table].field_names), 0, "")
                continue
            loaded = self.loaded.get(table)
            # If a table is read again, read all columns that were ever requested.
            names = frozenset(names) | (loaded.names if loaded else frozenset())
            if loaded is None or names > loaded.names:
                missing[table] = names or frozenset(canonical.BY_NAME[table].field_names[:1])
        if self.cache is not None:
            for table, names in list(missing.items()):
                if (columns := self.cache.find_columns(self.file, table, names)) is not None:
                    self.loaded[table] = columns
                    del missing[table]
        if missing and not (self.cache is not None and self._load_to_cache(self.cache, missing)):
            self._load_to_memory(missing)

    def _load_to_cache(self, cache: Cache, missing: Mapping[str, frozenset[str]]) -> bool:
        """Read into the cache; warn and return ``False`` if it cannot be written (full, read-only)."""

        def write() -> dict[str, ColumnFiles]:
            with ExitStack() as stack:
                partial = {
                    table: stack.enter_context(cache.begin_columns(self.file, table, names))
                    for table, names in missing.items()
                }
                connection, streams = stack.enter_context(self.packing.connection())
                rows = self._read(
                    missing, connection, lambda table, *to: partial[table.name].write(table, *to), streams
                )
                facts = {table: {"names": sorted(names), "rows": rows[table]} for table, names in missing.items()}
                return {table: sink.finish(facts[table]) for table, sink in partial.items()}

        loaded = cache.write(write, self.warn)
        self.loaded.update(loaded or {})
        return loaded is not None

    def _load_to_memory(self, missing: Mapping[str, frozenset[str]]) -> None:
        self._loads += 1
        sink = MemorySink(self.connection, f"columns_{self.index:d}_{self._loads:d}")
        try:
            rows = self._read(missing, self.connection, sink.write)
        except BaseException:
            sink.abandon()
            raise
        for table, names in missing.items():
            self.loaded[table] = ColumnTable(names, rows[table], sink.names.get(table, ""))

    def _read(
        self,
        missing: Mapping[str, Collection[str]],
        connection: duckdb.DuckDBPyConnection,
        sink: Sink,
        streams: bool = False,
        in_order: bool = True,
    ) -> dict[str, int]:
        """Pack the ``missing`` fields of each canonical table into its sink; return the number of rows by table.

        Raises ExportError if the file cannot be read completely, and OSError or duckdb.Error if a sink cannot write.
        """
        import duckdb

        fed = (source for source in self._sources if missing.keys() & source.feeds)
        needed = [source.of_fields(missing, in_order=in_order) for source in fed]
        lookups = Lookups(self.path, self.native, connection, self._checks)
        try:
            with self.file.unchanged():
                with ArrowReader(self.path) as export:
                    present = (source for source in needed if self.native.has(source.table))
                    lookups.fill(export, frozenset[str]().union(*(source.words for source in present)))
                payload = self._payload() if any(source.decoded for source in needed) else None
                if self.checks_while_reading:
                    tables = (part for part in needed if part.makes and self.native.has(part.table))
                    self._checks.begin(part.table for part in tables if not (streams and lookups.pages_of(part)))
                packer = Packer(self.file, connection, sink, is_cancelled=self._is_over, workers=1, streams=streams)
                packed = packer.read(lookups, needed, payload, missing)
        except duckdb.OutOfMemoryException:
            raise ExportError(opening.named(self.path), "its columns do not fit into the memory allowed") from None
        finally:
            lookups.drop()
        self._save_left_out(packed.left_out)
        return {table: packed.counts[table] for table in missing}

    def _payload(self) -> PayloadSchemas:
        from nsystui.exports.nccl_calls import payload_schemas

        with closing(opening.connect(self.path)) as connection, opening.sqlite_errors(self.path):
            return payload_schemas(self.path, connection, self.native)

    def close(self) -> None:
        """Release everything needed for reading."""
        if "_checks" in vars(self):
            self._checks.close()
        self.connection.close()

    def _load_devices(self) -> None:
        """Load which process used which GPU, derived from the columns of GPU work."""
        used = set()
        for table in WORK_TABLES:
            if self.loaded[table].rows:
                query = f"SELECT DISTINCT process, device FROM {self._from(table)} WHERE process IS NOT NULL"
                with self._damage(table):
                    used.update(self.connection.execute(query).fetchall())
        devices = canonical.DEVICES
        rows = device_rows(self.metadata, sorted(used))
        make_table(self.connection, devices, rows, "made")
        sink = MemorySink(self.connection, f"columns_{self.index:d}")
        sink.write(devices, self.connection, SinkRows("SELECT * FROM made"))
        self.loaded[devices.name] = ColumnTable(
            frozenset(devices.field_names), len(rows), sink.names.get(devices.name, "")
        )

    @contextmanager
    def _damage(self, table: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            columns = self.loaded[table]
            raise_of_damage(error, [(self.path, columns)] if isinstance(columns, ColumnFiles) else [], self.cache)
            raise

    def _from(self, table: str) -> str:
        columns = self.loaded[table]
        return columns.table if isinstance(columns, ColumnTable) else parquet_rows(*columns.files)

    def count(self, table: str) -> int:
        """Return the number of rows of a canonical table."""
        return self.loaded[table].rows if table in self.loaded else self.tally(table).rows

    def _has_rows(self, table: str) -> bool:
        return any(table in source.feeds and self.native.has(source.table) for source in self._sources)

    def tally(self, table: str) -> Tally:
        """Return the number, times and processes of the rows of a canonical table."""
        return self.tallies([table])[table]

    def tallies(self, names: Iterable[str]) -> dict[str, Tally]:
        """Return the tally of each table, and save it. Raises ExportError if the file cannot be read completely."""
        names = list(names)
        if missing := [name for name in names if name not in self._tallies]:
            with remembered_damage(self.results):
                self._tallies.update(self._tally(missing))
            self.results.save(_TALLIES, {name: tally.to_json() for name, tally in self._tallies.items()})
            self.results.save(_WHOLE, sorted(self._checks.whole))
        return {name: self._tallies[name] for name in names}

    @cached_property
    def _tallies(self) -> dict[str, Tally]:
        return self.results.load(_TALLIES, read=partial(_by_table, Tally.from_json)) or {}

    def _tally(self, tables: Iterable[str]) -> dict[str, Tally]:
        tallies, missing = dict[str, Tally](), {}
        for table in tables:
            needed = tallied(canonical.BY_NAME[table])
            if table == canonical.DEVICES.name:
                self.load({table: needed})
            if table not in self.loaded or not needed <= self.loaded[table].names:
                missing[table] = needed or canonical.BY_NAME[table].field_names[:1]
            elif self.loaded[table].rows:
                with self._damage(table):
                    tallies[table] = tally_columns(self.connection, table, self._from(table), needed)
        if missing:

            def count(table: CanonicalTable, connection: duckdb.DuckDBPyConnection, rows: SinkRows) -> int:
                tally = tally_columns(connection, table.name, f"({rows.select})", tallied(table))
                rows.count(tally.rows, "")  # the rows of a stream cannot be read again
                tallies[table.name] = tallies.get(table.name, Tally()) + tally
                return tally.rows

            with self.packing.connection() as (connection, streams):
                self._read(missing, connection, count, streams, in_order=False)
        return {table: tallies.get(table, Tally()) for table in tables}

    @cached_property
    def _span(self) -> tuple[int | None, int | None]:
        """The first start and last end, ns; OS runtime calls count only in a report without other events."""
        span = self._span_of(self.timed)
        return span if span[0] is not None else self._span_of({canonical.OS_CALLS.name} & self.fed)

    @cached_property
    def timed(self) -> frozenset[str]:
        """The canonical tables with rows whose events extend the session."""
        excluded = {canonical.OS_CALLS.name, *{name for source in self._sources for name in source.decoded}}
        return frozenset(
            table.name
            for table in canonical.TABLES
            if has_span(table) and table.name not in excluded and self._has_rows(table.name)
        )

    def _span_of(self, tables: Collection[str]) -> tuple[int | None, int | None]:
        total = sum(self.tallies(sorted(tables)).values(), Tally())
        return total.first, total.last


class _Counts(Mapping[str, int]):
    def __init__(self, report: OnDemand) -> None:
        self._report = report

    def __getitem__(self, table: str) -> int:
        if table not in self:
            raise KeyError(table)
        return self._report.count(table)

    def __contains__(self, table: object) -> bool:
        if table == canonical.DEVICES.name:  # this table exists only if it has rows
            return self._report.count(canonical.DEVICES.name) > 0
        return table in self._report.fed

    def __iter__(self) -> Iterator[str]:
        return (table.name for table in canonical.TABLES if table.name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _by_table(read: Callable[[Any], T], result: Any) -> dict[str, T]:
    return {table: read(values) for table, values in result.items()}
