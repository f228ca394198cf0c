"""A session: all open exports behind one SQL.

Reports become usable one by one: an export is opened (checked, its metadata read), then packed or found packed, then
its rows join the views of the canonical tables. Queries are SQLAlchemy Core over ``nsystui.store.tables``; each runs
on its own cursor, so that a screen may ask from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.errors import ExportError
from nsystui.exports import canonical, opening
from nsystui.exports.canonical import CanonicalTable
from nsystui.store.cache import Cache, PackedFiles
from nsystui.store.column_cache import ColumnFiles
from nsystui.store.database import Limits, connect, empty_view, engine_of, series, union
from nsystui.store.kept import Kept
from nsystui.store.memory_sink import MemorySink
from nsystui.store.on_demand import OnDemand
from nsystui.store.opened import open_export
from nsystui.store.pack import PackedReport, Packer, Progress
from nsystui.store.report import Facts, Report, aligned
from nsystui.store.used_columns import used_columns

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pandas as pd
    import sqlalchemy as sa


# Of DuckDB's vectors of 2,048 rows.
_VECTORS = 64
_PLACE = frozenset({"report", "clock_offset"})


@dataclass
class Session:
    """The open reports and the SQL over them. ``cache=None`` keeps what is packed in memory."""

    cache: Cache | None = None
    limits: Limits = field(default_factory=Limits)
    warn: Callable[[str], object] = lambda message: None
    reports: tuple[Report, ...] = ()
    version: int = 0
    _files: dict[int, PackedFiles] = field(default_factory=dict)
    _given: set[int] = field(default_factory=set)
    _in_use: set[Path] = field(default_factory=set)
    _in_memory: dict[int, dict[str, str]] = field(default_factory=dict)
    _fresh: set[str] = field(default_factory=set)
    _on_demand: dict[int, OnDemand] = field(default_factory=dict)
    _shown: dict[str, frozenset[str]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._slots = threading.Semaphore(self.limits.threads)
        self._database = connect(self.limits)

    @cached_property
    def _engine(self) -> sa.Engine:
        """Made at the first query: packing needs none of SQLAlchemy."""
        return engine_of(self._database)

    def close(self) -> None:
        """Lets go of every file and of the memory."""
        for report in self._on_demand.values():
            report.connection.close()
        self._database.close()

    def add(
        self,
        path: Path,
        report_progress: Callable[[Progress], None] = lambda progress: None,
        is_cancelled: Callable[[], bool] = lambda: False,
        index: int | None = None,
        whole: bool = True,
    ) -> Report:
        """Packs an export (or finds it packed) and adds it to the views.

        ``index`` keeps the order of the command line when exports become ready in another. Unless ``whole``, what is
        not packed stays so, and columns are read when a query asks for them: then that may raise ExportError as well.
        Raises ExportError and PackingCancelled. May run in several threads at once.
        """
        opening.check(path)
        with self._lock:
            index = max(self._given, default=-1) + 1 if index is None else index
            self._given.add(index)
        try:
            files = self.cache.find(path) if self.cache else None
            on_demand = None if whole or files is not None else self._unpacked(path, index)
            packed: Facts
            if on_demand is not None:
                packed = on_demand
            else:
                files, packed = self._packed(files, path, index, report_progress, is_cancelled)
        except BaseException:
            with self._lock:
                self._given.discard(index)
            raise
        with self._lock:
            if files is not None:
                self._files[index] = files
                self._in_use.add(files.directory)
            if on_demand is not None:
                self._on_demand[index] = on_demand
            report = Report(index, path, packed)
            self.reports = aligned([*self.reports, report])
            self._fresh.clear()
            self.version += 1
            return next(item for item in self.reports if item.index == index)

    def _packed(
        self,
        files: PackedFiles | None,
        path: Path,
        index: int,
        report_progress: Callable[[Progress], None] = lambda progress: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[PackedFiles | None, PackedReport]:
        """The whole report, packed now unless ``files`` has it already; no files where it is kept in memory."""
        if files is None and self.cache is not None:
            files = self._pack_to_cache(self.cache, path, report_progress, is_cancelled)
        return files, files.report if files else self._pack_to_memory(path, index, report_progress, is_cancelled)

    def _unpacked(self, path: Path, index: int) -> OnDemand:
        opened = open_export(path)
        cursor = self._database.cursor()
        return OnDemand(
            path, opened.metadata, opened.native, cursor, index, self.cache, self.warn, lambda: self._pack_now(index)
        )

    def _pack_now(self, index: int) -> PackedReport:
        """Packs a report that was read on demand so far, for what only a whole pack has."""
        with self._lock:
            unpacked = self._on_demand.get(index)
            if unpacked is not None:
                files, packed = self._packed(None, unpacked.path, index)
                del self._on_demand[index]
                if files is not None:
                    self._files[index] = files
                    self._in_use.add(files.directory)
                unpacked.packed = packed
                unpacked.connection.close()
                self.reports = tuple(
                    replace(item, packed=packed) if item.index == index else item for item in self.reports
                )
                self._fresh.clear()
            found = next(item.packed for item in self.reports if item.index == index)
            assert isinstance(found, PackedReport)
            return found

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
        connection = connect(replace(self.limits, threads=1))
        try:
            packed = Packer(path, connection, partial, report_progress, is_cancelled, self._slots).run()
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
        sink = MemorySink(self._database.cursor(), index)
        try:
            packed = Packer(path, sink.connection, sink, report_progress, is_cancelled, self._slots).run()
        except BaseException:
            sink.abandon()
            raise
        finally:
            sink.connection.close()
        self._in_memory[index] = sink.names
        return packed

    def _ensure_views(self, query: sa.Executable) -> None:
        """Makes the views that ``query`` reads, if a report has joined since, or it reads more columns than before."""
        used = used_columns(query)
        with self._lock:
            self._load(used)
            for name in used.keys() - self._fresh:
                table = canonical.BY_NAME[name]
                parts = [part for report in self.reports for part in self._parts(report, table)]
                relation = union(parts) if parts else self._database.sql(empty_view(table))
                relation.create_view(name, replace=True)
                self._fresh.add(name)

    def _load(self, used: Mapping[str, Collection[str]]) -> None:
        """Reads what is ``used`` of each table, and was so far, of the reports that are not packed."""
        unreadable = [index for index, item in self._on_demand.items() if not all(map(item.can_read, used))]
        for index in unreadable:
            try:
                self._pack_now(index)
            except ExportError as error:
                self._drop(index, error)
        if not self._on_demand:
            return
        wanted = {name: self._shown.get(name, frozenset()).union(names) - _PLACE for name, names in used.items()}
        for index, failure in self._failures(wanted).items():
            self._drop(index, failure)
        for report in self._on_demand.values():
            in_use = (report.loaded[name] for name in wanted)
            self._in_use.update(columns.directory for columns in in_use if isinstance(columns, ColumnFiles))
        self._fresh.difference_update(name for name, names in wanted.items() if names != self._shown.get(name))
        self._shown.update(wanted)

    def _failures(self, wanted: Mapping[str, Collection[str]]) -> dict[int, ExportError]:
        """Reads the ``wanted`` columns of every report that is not packed, several at once; why some could not be."""
        from concurrent.futures import ThreadPoolExecutor

        def failure(report: OnDemand) -> ExportError | None:
            try:
                report.load(wanted)
            except ExportError as error:
                return error
            return None

        reports = list(self._on_demand.values())
        pool = ThreadPoolExecutor(max(min(self.limits.threads, len(reports)), 1))
        try:
            errors = zip(reports, pool.map(failure, reports), strict=True)
            return {report.index: error for report, error in errors if error is not None}
        finally:
            pool.shutdown(cancel_futures=True)

    def _drop(self, index: int, error: ExportError) -> None:
        """Goes on without a report that cannot be read whole, after a warning; raises it where no other is left."""
        if len(self.reports) == 1:
            raise error
        self.warn(str(error))
        self.reports = tuple(report for report in self.reports if report.index != index)
        self._on_demand.pop(index).connection.close()
        self._fresh.clear()
        self.version += 1

    def _parts(self, report: Report, table: CanonicalTable) -> Iterable[duckdb.DuckDBPyRelation]:
        """The rows of one report with the two columns that place them in the session.

        Where a report is not packed, only the columns that are shown of all of them.
        """
        files = self._files.get(report.index)
        relation = None
        if report.index in self._on_demand:
            relation = self._loaded(self._on_demand[report.index], table)
        elif files is not None and table.name in files.files:
            relation = self._database.read_parquet([str(path) for path in files.files[table.name]])
        elif table.name in self._in_memory.get(report.index, {}):
            relation = self._database.table(self._in_memory[report.index][table.name])
        if relation is not None:
            place = f"CAST({report.index:d} AS BIGINT) AS report, CAST({report.clock_offset:d} AS BIGINT)"
            yield relation.project(", ".join([f"{place} AS clock_offset", *self._names(table)]))

    def _loaded(self, report: OnDemand, table: CanonicalTable) -> duckdb.DuckDBPyRelation | None:
        columns = report.loaded[table.name]
        if not columns.rows:
            return None
        if isinstance(columns, ColumnFiles):
            return self._database.read_parquet([str(path) for path in columns.files])
        return self._database.table(columns.table)

    def _names(self, table: CanonicalTable) -> list[str]:
        """The columns of a view, as SQL."""
        if not self._on_demand:
            return ["*"]
        return [f'"{name}"' for name in table.field_names if name in self._shown[table.name]]

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
        return pd.DataFrame({name: series(values) for name, values in arrays.items()})

    def arrays(self, query: sa.Executable) -> dict[str, np.ndarray[Any, Any]]:
        """The result as numpy arrays, for sweeps over millions of rows. Where values are missing they are masked."""
        return self._numpy(query)

    def array_batches(self, query: sa.Executable) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """The result as numpy arrays of at most 131,072 rows: one pass over millions of rows in little memory.

        For queries whose columns are never missing: an integer that is would come as a float.
        """
        with self._executed(query) as cursor:
            while len(frame := cursor.fetch_df_chunk(_VECTORS)):
                yield {str(name): frame[name].to_numpy() for name in frame}

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

    def kept(self, report: Report) -> Kept:
        """What was computed of a report before, beside its pack; nothing where its columns are in memory."""
        files = self._files.get(report.index)
        return Kept(None if files is None else files.directory)
