"""A report that is not packed: its columns are read when a query asks for them, its facts when somebody wants them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.exports import canonical, opening, sources
from nsystui.exports.metadata import Metadata
from nsystui.exports.schema import Schema
from nsystui.exports.sources import Source, Transform
from nsystui.store.cache import Cache
from nsystui.store.column_cache import ColumnFiles, PartialColumns, find_columns
from nsystui.store.columns import ColumnReader, Sink
from nsystui.store.pack import PackedReport

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class ColumnTable:
    """Columns of one canonical table in a table of the session's database."""

    names: frozenset[str]
    rows: int
    table: str


Columns = ColumnFiles | ColumnTable


@dataclass
class OnDemand:
    """One report that is not packed; has the facts of a packed one. Not to be used by two threads at once.

    Once it is ``packed`` after all, it only knows the facts of that.

    ``connection`` is its own, to the database of the session. ``pack`` packs the whole report, for what cannot be
    read alone.
    """

    path: Path
    metadata: Metadata
    native: Schema
    connection: duckdb.DuckDBPyConnection
    index: int
    cache: Cache | None
    warn: Callable[[str], object]
    pack: Callable[[], PackedReport]
    loaded: dict[str, Columns] = field(default_factory=dict)
    packed: PackedReport | None = None
    _loads: int = 0

    def __post_init__(self) -> None:
        self._reader = ColumnReader(self.path, self.native, self.connection)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows of each canonical table, counted when they are asked for."""
        return _Counts(self)

    @property
    def first_event(self) -> int | None:
        """The start of the first event, ns."""
        return self._extent[0]

    @property
    def last_event(self) -> int | None:
        """The end of the last event, ns."""
        return self._extent[1]

    def can_read(self, table: str) -> bool:
        """Whether the columns of a canonical table can be read alone; what Python makes needs the whole report."""
        return table not in self._packed_only

    @cached_property
    def _sources(self) -> list[Source]:
        return sources.sources(self.native)

    @cached_property
    def _packed_only(self) -> frozenset[str]:
        decoded = {table for source in self._sources for table in source.decoded}
        return frozenset({canonical.DEVICES.name, *decoded})

    @cached_property
    def fed(self) -> frozenset[str]:
        """The canonical tables that the export has native tables for, if only without rows."""
        return frozenset(table for source in self._sources for table in source.feeds)

    def load(self, wanted: Mapping[str, Collection[str]]) -> None:
        """Reads the ``wanted`` columns of each canonical table that are not there yet.

        Raises ExportError where the file cannot be read whole.
        """
        missing = {}
        for table, names in wanted.items():
            before = self.loaded.get(table)
            # A table that is read again is read with all that was asked for so far.
            names = frozenset(names) | (before.names if before else frozenset())
            if before is None or names > before.names:
                missing[table] = names or frozenset(canonical.BY_NAME[table].field_names[:1])
        if self.cache is not None:
            for table, names in list(missing.items()):
                found = find_columns(self.cache, self.path, table, names)
                if found is not None:
                    self.loaded[table] = found
                    del missing[table]
        if missing and not (self.cache is not None and self._load_to_cache(self.cache, missing)):
            self._load_to_memory(missing)

    def _load_to_cache(self, cache: Cache, missing: Mapping[str, frozenset[str]]) -> bool:
        """Reads into the cache; ``False`` where it cannot be written (full, read-only), after a warning."""
        import duckdb

        partial: dict[str, PartialColumns] = {}
        try:
            for table, names in missing.items():
                partial[table] = PartialColumns(cache, self.path, table, names)
            rows = self._reader.read(missing, partial)
            for table, sink in partial.items():
                self.loaded[table] = sink.finish(rows[table])
            return True
        except (OSError, duckdb.Error) as error:
            first_line = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
            self.warn(f"the cache {cache.directory} cannot be written ({first_line}): keeping columns in memory")
            return False
        finally:
            for sink in partial.values():
                sink.abandon()

    def _load_to_memory(self, missing: Mapping[str, frozenset[str]]) -> None:
        self._loads += 1
        sinks = {table: _MemoryColumns(f"columns_{self.index:d}_{table}_{self._loads:d}") for table in missing}
        try:
            rows = self._reader.read(missing, sinks)
        except BaseException:
            for sink in sinks.values():
                sink.abandon(self.connection)
            raise
        for table, names in missing.items():
            self.loaded[table] = ColumnTable(names, rows[table], sinks[table].name)

    def count(self, table: str) -> int:
        """Rows of a canonical table."""
        if self.packed is not None:
            return self.packed.counts.get(table, 0)
        if table in self.loaded:
            return self.loaded[table].rows
        if not self.can_read(table):
            return self.pack().counts.get(table, 0)
        parts = list(self._parts([table]))
        if any(transform.is_distinct for _, transform in parts):
            self.load({table: canonical.BY_NAME[table].field_names})
            return self.loaded[table].rows
        return sum(self._ask(source, transform, "count(*)")[0] or 0 for source, transform in parts)

    @cached_property
    def _extent(self) -> tuple[int | None, int | None]:
        """First start and last end; of OS runtime calls only in a report that has no other events."""
        if self.packed is not None:
            return self.packed.first_event, self.packed.last_event
        work = [table.name for table in canonical.TABLES if "start" in table.field_names]
        others = {canonical.OS_CALLS.name, canonical.NIC_METRICS.name}
        found = self._extent_of([table for table in work if table not in others])
        return found if found[0] is not None else self._extent_of([canonical.OS_CALLS.name])

    def _extent_of(self, tables: Collection[str]) -> tuple[int | None, int | None]:
        ends = []
        for source, transform in self._parts(tables):
            # A range that was never closed reaches at least to its start.
            end = 'ifnull(max("start", "end"), ifnull("start", "end"))' if "end" in transform.fields else '"start"'
            ends.append(self._ask(source, transform, f'min("start"), max({end})'))
        starts = [first for first, _ in ends if first is not None]
        lasts = [last for _, last in ends if last is not None]
        return (min(starts), max(lasts)) if starts and lasts else (None, None)

    def _parts(self, tables: Collection[str]) -> Iterator[tuple[Source, Transform]]:
        for source in self._sources:
            if self.native.has(source.table):
                yield from ((source, transform) for table, transform in source.makes.items() if table in tables)

    def _ask(self, source: Source, transform: Transform, aggregates: str) -> tuple[int | None, ...]:
        """Aggregates over the rows of a native table that a transform keeps, by SQLite."""
        columns = ", ".join(f'{sql} AS "{name}"' for name, sql in source.columns.items())
        where = f"WHERE {transform.where}" if transform.where else ""
        query = f'SELECT {aggregates} FROM (SELECT {columns} FROM "{source.table}") c {where}'
        connection = opening.connect(self.path)
        try:
            (row,) = connection.execute(query).fetchall()
        except opening.READ_ERRORS as error:
            raise opening.corrupt(self.path, error) from None
        finally:
            connection.close()
        return tuple(row)


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


class _MemoryColumns(Sink):
    """Keeps columns in a table of the session's own database."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_made = False

    def write(self, connection: duckdb.DuckDBPyConnection, select: str) -> int:
        verb = f"INSERT INTO {self.name}" if self._is_made else f"CREATE TABLE {self.name} AS"
        ((rows,),) = connection.execute(f"{verb} {select}").fetchall()
        self._is_made = True
        return int(rows)

    def abandon(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Leaves nothing behind."""
        connection.execute(f"DROP TABLE IF EXISTS {self.name}")
