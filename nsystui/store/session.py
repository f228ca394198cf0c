"""A session: all open exports behind one SQL.

Reports become usable one by one: an export is opened (checked, its metadata read), then packed or found packed, then
its rows join the views of the canonical tables. Queries are SQLAlchemy Core over ``nsystui.store.tables``; each runs
on its own cursor, so that a screen may ask from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.exports import canonical, metadata, opening, schema, sources
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.metadata import Metadata
from nsystui.store.cache import Cache, PackedFiles
from nsystui.store.pack import PackedReport, Packer, Progress

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pandas as pd
    import sqlalchemy as sa


# The ranks of one job start their sessions within minutes of each other, ns.
_START_SPREAD = 600 * 10**9


@dataclass(frozen=True)
class Limits:
    """What the session may take of a shared machine. ``memory`` in bytes."""

    threads: int = 2
    memory: int = 2 << 30


@dataclass(frozen=True)
class Report:
    """One open export. ``clock_offset`` is the ns to add to its times to get job time."""

    index: int
    path: Path
    packed: PackedReport
    clock_offset: int = 0

    @property
    def metadata(self) -> Metadata:
        return self.packed.metadata

    @property
    def name(self) -> str:
        """The file name without its ending: how a report is called on screens and in file names."""
        return self.path.stem

    def count(self, table: sa.Table | CanonicalTable) -> int:
        return self.packed.counts.get(table.name, 0)

    def has(self, table: sa.Table | CanonicalTable) -> bool:
        """Whether the export has what ``table`` comes from, if only without rows: then none is a fact, and 0."""
        return table.name in self.packed.counts


@dataclass(frozen=True)
class Opened:
    """An export that was checked and can be packed: its metadata and how many rows each native table has."""

    path: Path
    metadata: Metadata
    native: schema.Schema

    @property
    def rows(self) -> int:
        """How many rows there are to pack."""
        return self.native.rows(source.table for source in sources.sources(self.native))


def open_export(path: Path) -> Opened:
    """Checks an export and reads what it says of itself, in milliseconds whatever its size.

    Raises ExportError.
    """
    opening.check(path)
    connection = opening.connect(path)
    try:
        native = schema.probe(path, connection)
        return Opened(path, metadata.read(path, connection, native), native)
    finally:
        connection.close()


@dataclass
class Session:
    """The open reports and the SQL over them. ``cache=None`` keeps what is packed in memory."""

    cache: Cache | None = None
    limits: Limits = Limits()
    warn: Callable[[str], object] = lambda message: None
    reports: tuple[Report, ...] = ()
    version: int = 0
    _files: dict[int, PackedFiles] = field(default_factory=dict)
    _given: set[int] = field(default_factory=set)
    _in_use: set[Path] = field(default_factory=set)
    _in_memory: dict[int, dict[str, str]] = field(default_factory=dict)
    _fresh: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._database = _connect(self.limits)
        self._engine = _engine(self._database)

    def close(self) -> None:
        """Lets go of every file and of the memory."""
        self._engine.dispose()
        self._database.close()

    def add(
        self,
        path: Path,
        report_progress: Callable[[Progress], None] = lambda progress: None,
        is_cancelled: Callable[[], bool] = lambda: False,
        index: int | None = None,
    ) -> Report:
        """Packs an export (or finds it packed) and adds it to the views.

        ``index`` keeps the order of the command line when exports become ready in another. Raises ExportError and
        PackingCancelled. May run in several threads at once.
        """
        opening.check(path)
        with self._lock:
            index = max(self._given, default=-1) + 1 if index is None else index
            self._given.add(index)
        try:
            files = self.cache.find(path) if self.cache else None
            if files is None and self.cache is not None:
                files = self._pack_to_cache(self.cache, path, report_progress, is_cancelled)
            packed = files.report if files else self._pack_to_memory(path, index, report_progress, is_cancelled)
        except BaseException:
            with self._lock:
                self._given.discard(index)
            raise
        with self._lock:
            if files is not None:
                self._files[index] = files
                self._in_use.add(files.directory)
            report = Report(index, path, packed)
            self.reports = _aligned([*self.reports, report])
            self._fresh.clear()
            self.version += 1
            return next(item for item in self.reports if item.index == index)

    def _pack_to_cache(
        self, cache: Cache, path: Path, report_progress: Callable[[Progress], None], is_cancelled: Callable[[], bool]
    ) -> PackedFiles | None:
        """Packs into the cache; ``None`` where the cache cannot be written (full, read-only), after a warning."""
        import duckdb

        try:
            partial = cache.begin(path)
        except OSError as error:
            self.warn(f"the cache {cache.directory} cannot be written ({error.strerror}): keeping columns in memory")
            return None
        connection = _connect(self.limits)
        try:
            packed = Packer(path, connection, partial, report_progress, is_cancelled).run()
            with self._lock:
                self._in_use.add(partial.place)
                keep = frozenset(self._in_use)
            files = partial.finish(packed)
            cache.trim(keep)
            return files
        except (OSError, duckdb.Error) as error:
            partial.abandon()
            first_line = str(error).splitlines()[0]
            self.warn(f"the cache {cache.directory} cannot be written ({first_line}): keeping columns in memory")
            return None
        except BaseException:
            partial.abandon()
            raise
        finally:
            connection.close()

    def _pack_to_memory(
        self, path: Path, index: int, report_progress: Callable[[Progress], None], is_cancelled: Callable[[], bool]
    ) -> PackedReport:
        sink = _MemorySink(self._database.cursor(), index)
        try:
            packed = Packer(path, sink.connection, sink, report_progress, is_cancelled).run()
        except BaseException:
            sink.abandon()
            raise
        finally:
            sink.connection.close()
        self._in_memory[index] = sink.names
        return packed

    def _ensure_views(self, query: sa.Executable) -> None:
        """Makes the views that ``query`` reads, if a report has joined since they were made."""
        import sqlalchemy as sa
        from sqlalchemy.sql import visitors

        names = {item.name for item in visitors.iterate(query) if isinstance(item, sa.Table)}  # type: ignore[arg-type]
        with self._lock:
            for name in names - self._fresh:
                table = canonical.BY_NAME[name]
                parts = [part for report in self.reports for part in self._parts(report, table)]
                relation = _union(parts) if parts else self._database.sql(_empty(table))
                relation.create_view(name, replace=True)
                self._fresh.add(name)

    def _parts(self, report: Report, table: CanonicalTable) -> Iterable[duckdb.DuckDBPyRelation]:
        """The rows of one report with the two columns that place them in the session."""
        files = self._files.get(report.index)
        relation = None
        if files is not None and table.name in files.files:
            relation = self._database.read_parquet([str(path) for path in files.files[table.name]])
        elif table.name in self._in_memory.get(report.index, {}):
            relation = self._database.table(self._in_memory[report.index][table.name])
        if relation is not None:
            place = f"CAST({report.index:d} AS BIGINT) AS report, CAST({report.clock_offset:d} AS BIGINT)"
            yield relation.project(f"{place} AS clock_offset, *")

    def rows(self, query: sa.Executable) -> Sequence[tuple[Any, ...]]:
        """The result as tuples of Python values."""
        self._ensure_views(query)
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query)]

    def scalar(self, query: sa.Executable) -> Any:
        """The first value of the first row; ``None`` where there is none."""
        rows = self.rows(query)
        return rows[0][0] if rows else None

    def frame(self, query: sa.Executable) -> pd.DataFrame:
        """The result as a small pandas frame; integers stay integers where values are missing (``Int64``)."""
        import pandas as pd

        arrays = self._numpy(query)
        return pd.DataFrame({name: _series(values) for name, values in arrays.items()})

    def arrays(self, query: sa.Executable) -> dict[str, np.ndarray[Any, Any]]:
        """The result as numpy arrays, for sweeps over millions of rows. Where values are missing they are masked."""
        return self._numpy(query)

    def batches(self, query: sa.Executable, size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """The result ``size`` rows at a time, as tuples of Python values: one pass, however many rows there are."""
        with self._executed(query) as cursor:
            while rows := cursor.fetchmany(size):
                yield rows

    def _numpy(self, query: sa.Executable) -> dict[str, np.ndarray[Any, Any]]:
        with self._executed(query) as cursor:
            return dict(cursor.fetchnumpy())

    @contextmanager
    def _executed(self, query: sa.Executable) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of its own on which ``query`` runs."""
        self._ensure_views(query)
        statement = query.compile(self._engine, compile_kwargs={"render_postcompile": True})  # type: ignore[attr-defined]
        cursor = self._database.cursor()
        try:
            cursor.execute(str(statement), [statement.params[name] for name in statement.positiontup or ()])
            yield cursor
        finally:
            cursor.close()

    def count(self, table: sa.Table | CanonicalTable) -> int:
        """Rows of a table over all reports, without a query."""
        return sum(report.count(table) for report in self.reports)


class _MemorySink:
    """Keeps packed rows in tables of the session's own database."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, index: int) -> None:
        self.connection = connection
        self.names: dict[str, str] = {}
        self._index = index

    def write(self, table: CanonicalTable, rows: duckdb.DuckDBPyRelation) -> None:
        name = f"report_{self._index:d}_{table.name}"
        if table.name in self.names:
            rows.insert_into(name)
        else:
            rows.create(name)
            self.names[table.name] = name

    def abandon(self) -> None:
        """Leaves nothing behind."""
        for name in self.names.values():
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")


def _connect(limits: Limits) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that touches neither the network nor the working directory."""
    import duckdb

    return duckdb.connect(
        ":memory:",
        config={
            "threads": limits.threads,
            "memory_limit": f"{limits.memory // (1 << 20)}MB",
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


def _engine(database: duckdb.DuckDBPyConnection) -> sa.Engine:
    import sqlalchemy as sa
    from duckdb_engine import ConnectionWrapper
    from sqlalchemy.pool import NullPool

    return sa.create_engine("duckdb://", creator=lambda: ConnectionWrapper(database.cursor()), poolclass=NullPool)


def _union(parts: Sequence[duckdb.DuckDBPyRelation]) -> duckdb.DuckDBPyRelation:
    """UNION ALL as a balanced tree, so that hundreds of reports do not nest hundreds of levels deep."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return _union(parts[:middle]).union(_union(parts[middle:]))


def _empty(table: CanonicalTable) -> str:
    fields = ", ".join(f'CAST(NULL AS {item.kind.value}) AS "{item.name}"' for item in table.fields)
    return f"SELECT CAST(0 AS BIGINT) AS report, CAST(0 AS BIGINT) AS clock_offset, {fields} WHERE false"


def _aligned(reports: Sequence[Report]) -> tuple[Report, ...]:
    """Reports in order, on one clock: each is shifted by its UTC start against the earliest (domain §6.3).

    Reports of different runs (their sessions lie further apart than they last) keep their own clocks.
    """
    starts = [report.metadata.session_start_utc for report in reports]
    known = [start for start in starts if start is not None]
    longest = max((report.packed.last_event or 0 for report in reports), default=0)
    one_job = bool(known) and max(known) - min(known) <= longest + _START_SPREAD
    first = min(known, default=0)
    moved = [
        replace(report, clock_offset=start - first if one_job and start is not None else 0)
        for report, start in zip(reports, starts, strict=True)
    ]
    return tuple(sorted(moved, key=lambda report: report.index))


def _series(values: Any) -> Any:
    """A pandas column that keeps integers exact where some are missing."""
    import numpy as np
    import pandas as pd

    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not values.mask.any():
        return values.data
    if np.issubdtype(values.dtype, np.integer):
        return pd.arrays.IntegerArray(values.filled(0).astype("int64"), np.ma.getmaskarray(values))
    if np.issubdtype(values.dtype, np.floating):
        return values.filled(np.nan)
    # Not ``filled(None)``: numpy takes that as "its own default", which is a question mark.
    return np.where(np.ma.getmaskarray(values), np.array(None, dtype=object), values.data)
