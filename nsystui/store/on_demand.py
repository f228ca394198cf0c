"""A report that is not packed: its columns are read when a query asks for them, its facts when somebody wants them.

To read columns is to pack these columns alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nsystui.base.errors import ExportError
from nsystui.base.parquet_file import parquet_rows
from nsystui.exports import canonical, nccl_calls, opening, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.integrity import PageChecks
from nsystui.exports.metadata import Metadata, device_rows
from nsystui.exports.nccl_calls import PayloadSchemas
from nsystui.exports.opening import ArrowReader, ExportFile
from nsystui.exports.schema import Schema
from nsystui.exports.sources import Source
from nsystui.store.cache import Cache, ColumnFiles, SinkRows
from nsystui.store.damage import raise_of_damage, remembered_damage
from nsystui.store.packing import WORK_TABLES, MemorySink, Packer, PackingDatabase, Sink
from nsystui.store.reader import Lookups, make_table
from nsystui.store.report import has_span
from nsystui.store.results import Results
from nsystui.store.tally import LeftOut, Tally, tally_columns

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")


@dataclass(frozen=True)
class ColumnTable:
    """Columns of one canonical table in a table of the session's database."""

    names: frozenset[str]
    rows: int
    table: str


Columns = ColumnFiles | ColumnTable
_TALLIED = frozenset({"start", "end", "process"})
_TALLIES, _LEFT_OUT, _WHOLE = "tallies", "left-out", "whole"


@dataclass(frozen=True)
class _Sinks:
    """A sink for each canonical table, as one."""

    sinks: Mapping[str, Sink]

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, rows: SinkRows) -> int:
        """Adds rows to the sink of ``table``."""
        return self.sinks[table.name].write(table, connection, rows)


class _TallySink:
    """A sink that only counts rows."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, rows: SinkRows) -> int:
        """Counts rows by process."""
        found = tally_columns(connection, table.name, f"({rows.select})", _TALLIED.intersection(table.field_names))
        rows.count(found.rows, "")  # of a stream rows can be read once
        self.tallies[table.name] = self.tallies.get(table.name, Tally()) + found
        return found.rows


@dataclass
class OnDemand:
    """One report that is not packed; has the facts of a packed one. Not to be used by two threads at once.

    ``connection`` is its own, to the database of the session. ``results`` has its tallies for the next time.
    Reading ends with KeyboardInterrupt or PackingCancelled as soon as ``is_stopped`` is true, or ``is_cancelled``
    returns it. ``beside`` says that a thread is free to check pages beside the reading.
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
    beside: bool = False
    is_cancelled: Callable[[], bool] = lambda: False
    _loads: int = 0

    def _is_over(self) -> bool:
        return self.is_stopped or self.is_cancelled()

    @cached_property
    def _checks(self) -> PageChecks:
        """The checks of pages: a table of this export that passed before is not checked again."""
        whole = self.results.load(_WHOLE, read=lambda tables: [str(table) for table in tables])
        return PageChecks(self.path, self._is_over, whole or ())

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows of each canonical table, counted when they are asked for."""
        return _Counts(self)

    def most(self, table: str) -> int:
        """Return the most rows that a canonical table can have, without reading any."""
        if table in self.loaded:
            return self.loaded[table].rows
        return sum(self.native.last_rowid.get(source.table, 0) for source in self._sources if table in source.makes)

    @cached_property
    def left_out(self) -> dict[str, LeftOut]:
        """The rows of canonical tables that were left out, as far as they were read, now or before."""
        return self.results.load(_LEFT_OUT, read=partial(_by_table, LeftOut.from_json)) or {}

    def _leave_out(self, found: Mapping[str, LeftOut]) -> None:
        """Keeps what was left out, for what is kept of a table does not tell it."""
        every = {name: rows | self.left_out.get(name, LeftOut()) for name, rows in found.items() if rows}
        if not every.items() <= self.left_out.items():
            self.left_out.update(every)
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
        """The canonical tables that the export has native tables for, if only without rows."""
        return frozenset(table for source in self._sources for table in source.feeds)

    def load(self, wanted: Mapping[str, Collection[str]]) -> None:
        """Reads the ``wanted`` columns of each canonical table that are not there yet.

        Raises ExportError where the file cannot be read whole.
        """
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
            before = self.loaded.get(table)
            # A table that is read again is read with all that was asked for so far.
            names = frozenset(names) | (before.names if before else frozenset())
            if before is None or names > before.names:
                missing[table] = names or frozenset(canonical.BY_NAME[table].field_names[:1])
        if self.cache is not None:
            for table, names in list(missing.items()):
                found = self.cache.find_columns(self.file, table, names)
                if found is not None:
                    self.loaded[table] = found
                    del missing[table]
        if missing and not (self.cache is not None and self._load_to_cache(self.cache, missing)):
            self._load_to_memory(missing)

    def _load_to_cache(self, cache: Cache, missing: Mapping[str, frozenset[str]]) -> bool:
        """Reads into the cache; ``False`` where it cannot be written (full, read-only), after a warning."""

        def write() -> dict[str, ColumnFiles]:
            with ExitStack() as stack:
                partial = {
                    table: stack.enter_context(cache.begin_columns(self.file, table, names))
                    for table, names in missing.items()
                }
                connection, streams = stack.enter_context(self.packing.connection())
                rows = self._read(missing, connection, _Sinks(partial), streams)
                facts = {table: {"names": sorted(names), "rows": rows[table]} for table, names in missing.items()}
                return {table: sink.finish(facts[table]) for table, sink in partial.items()}

        loaded = cache.write(write, self.warn)
        self.loaded.update(loaded or {})
        return loaded is not None

    def _load_to_memory(self, missing: Mapping[str, frozenset[str]]) -> None:
        self._loads += 1
        sink = MemorySink(self.connection, f"columns_{self.index:d}_{self._loads:d}")
        try:
            rows = self._read(missing, self.connection, sink)
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
        """Packs the ``missing`` fields of each canonical table into its sink; how many rows each has.

        Raises ExportError where the file cannot be read whole, and OSError or duckdb.Error where a sink cannot write.
        """
        import duckdb

        parts = (source.of_fields(missing, in_order=in_order) for source in self._sources)
        every = [part for part in parts if part.feeds]
        lookups = Lookups(self.path, self.native, connection, self._checks)
        try:
            with self.file.unchanged():
                with ArrowReader(self.path) as export:
                    present = (source for source in every if self.native.has(source.table))
                    lookups.fill(export, frozenset[str]().union(*(source.words for source in present)))
                payload = self._payload() if any(source.decoded for source in every) else PayloadSchemas({})
                if self.beside:
                    self._checks.begin(part.table for part in every if part.makes and self.native.has(part.table))
                packer = Packer(self.file, connection, sink, is_cancelled=self._is_over, workers=1, streams=streams)
                packed = packer.read(lookups, every, payload, missing)
        except duckdb.OutOfMemoryException:
            raise ExportError(opening.named(self.path), "its columns do not fit into the memory allowed") from None
        finally:
            lookups.drop()
        self._leave_out(packed.left_out)
        return {table: packed.counts[table] for table in missing}

    def _payload(self) -> PayloadSchemas:
        with closing(opening.connect(self.path)) as connection, opening.sqlite_errors(self.path):
            return nccl_calls.payload_schemas(self.path, connection, self.native)

    def close(self) -> None:
        """Lets go of what was needed to read the export."""
        if "_checks" in vars(self):
            self._checks.close()
        self.connection.close()

    def _load_devices(self) -> None:
        """Who used which GPU, out of the columns of what GPUs worked on."""
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
        """The columns of a table that is loaded and has rows, as SQL."""
        columns = self.loaded[table]
        if isinstance(columns, ColumnTable):
            return columns.table
        return parquet_rows(*columns.files)

    def count(self, table: str) -> int:
        """Rows of a canonical table."""
        return self.loaded[table].rows if table in self.loaded else self.tally(table).rows

    def _has_rows(self, table: str) -> bool:
        """Whether any native table that it is made of has rows."""
        return any(table in source.feeds and self.native.has(source.table) for source in self._sources)

    def tally(self, table: str) -> Tally:
        """How many rows a canonical table has, when, and of which processes."""
        return self.tallies([table])[table]

    def tallies(self, names: Iterable[str]) -> dict[str, Tally]:
        """The tally of each canonical table; those that are new are kept.

        Raises ExportError where the file cannot be read whole.
        """
        names = list(names)
        missing = [name for name in names if name not in self._tallies]
        if missing:
            with remembered_damage(self.results):
                self._tallies.update(self._tally(missing))
            known = {name: found.to_json() for name, found in self._tallies.items()}
            self.results.save(_TALLIES, known)
            self.results.save(_WHOLE, sorted(self._checks.whole))
        return {name: self._tallies[name] for name in names}

    @cached_property
    def _tallies(self) -> dict[str, Tally]:
        """The known tallies, by canonical table."""
        return self.results.load(_TALLIES, read=partial(_by_table, Tally.from_json)) or {}

    def _tally(self, tables: Iterable[str]) -> dict[str, Tally]:
        """Count rows in the columns that are loaded, and otherwise in the export, without keeping them."""
        found, missing = {}, {}
        for table in tables:
            needed = _TALLIED.intersection(canonical.BY_NAME[table].field_names)
            if table == canonical.DEVICES.name:
                self.load({table: needed})
            if table not in self.loaded or not needed <= self.loaded[table].names:
                missing[table] = needed or canonical.BY_NAME[table].field_names[:1]
            elif self.loaded[table].rows:
                with self._damage(table):
                    found[table] = tally_columns(self.connection, table, self._from(table), needed)
        if missing:
            sink = _TallySink()
            with self.packing.connection() as (connection, streams):
                self._read(missing, connection, sink, streams, in_order=False)
            found.update(sink.tallies)
        return {table: found.get(table, Tally()) for table in tables}

    @cached_property
    def _span(self) -> tuple[int | None, int | None]:
        """First start and last end; of OS runtime calls only in a report that has no other events."""
        os_calls = {canonical.OS_CALLS.name} & self.fed
        found = self._span_of(self.timed)
        return found if found[0] is not None else self._span_of(os_calls)

    @cached_property
    def timed(self) -> frozenset[str]:
        """The canonical tables whose events stretch the session, as far as the export has rows of them."""
        decoded = {name for source in self._sources for name in source.decoded}
        others = {canonical.OS_CALLS.name, *decoded}
        return frozenset(
            table.name
            for table in canonical.TABLES
            if has_span(table) and table.name not in others and self._has_rows(table.name)
        )

    def _span_of(self, tables: Collection[str]) -> tuple[int | None, int | None]:
        together = sum(self.tallies(sorted(tables)).values(), Tally())
        return together.first, together.last


class _Counts(Mapping[str, int]):
    """Rows of the canonical tables of a report, each counted when it is looked at."""

    def __init__(self, report: OnDemand) -> None:
        self._report = report

    def __getitem__(self, table: str) -> int:
        if table not in self:
            raise KeyError(table)
        return self._report.count(table)

    def __contains__(self, table: object) -> bool:
        if table == canonical.DEVICES.name:  # of which there are rows or no table
            return self._report.count(canonical.DEVICES.name) > 0
        return table in self._report.fed

    def __iter__(self) -> Iterator[str]:
        return (table.name for table in canonical.TABLES if table.name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _by_table(read: Callable[[Any], T], found: Any) -> dict[str, T]:
    """What ``read`` makes of each value of a result that has one for each table."""
    return {table: read(values) for table, values in found.items()}
