"""A session: all open exports behind one SQL.

Reports become usable one by one: an export is opened (checked, its metadata read), then packed or found packed, then
its rows join the views of the canonical tables. Queries are SQLAlchemy Core over ``nsystui.store.tables``; each runs
on its own cursor, so that a screen may ask from several threads.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from nsystui.base.errors import ExportError
from nsystui.base.partial_files import why_not_ours
from nsystui.base.resources import awaited, step_back
from nsystui.exports import canonical, opening
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.discover import is_packed_report
from nsystui.exports.opening import ExportFile
from nsystui.store.cache import Cache, ColumnFiles, PackedFiles, Room, size_of
from nsystui.store.damage import damage_line, known_damage, raise_of_damage, remember_damage, remembered_damage
from nsystui.store.database import Limits, check_addresses, connect, engine_of, keep_metadata, memory_errors, series
from nsystui.store.report import Clock, PackedTables, Report, aligned, most_rows
from nsystui.store.results import Memory, Results
from nsystui.store.tally import Tally
from nsystui.store.views import Rows, loaded_rows, make_view, packed_rows, used_columns

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pandas as pd
    import sqlalchemy as sa

    from nsystui.base.kernel_families import Rules
    from nsystui.store.on_demand import OnDemand
    from nsystui.store.opened import Opened
    from nsystui.store.packed_job import JobReport
    from nsystui.store.packing import Packing, Progress

T = TypeVar("T")
Compute = Callable[["Session", list[Report]], T]
"""Computes something of some reports, which are the whole of the session that it is given, or among others."""


class Workers(Protocol):
    """Computes elsewhere what is made of single reports, on machines that see the same packed job."""

    def share(self, reports: int) -> int:
        """How many of so many reports are best computed together."""
        ...

    def each(self, work: Sequence[tuple[list[Report], Compute[T]]], tell: Callable[[int], object]) -> Iterator[T]:
        """What is computed of runs of reports, in their order; ``tell`` is told how many reports are done.

        Of a run there may be several results, each of some of its reports. Raises NsystuiError.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Computation:
    """A computation in progress: ``what`` is computed of ``done`` of ``total`` reports, or other ``parts``, so far."""

    what: str
    done: int
    total: int
    parts: str = "reports"

    def __str__(self) -> str:
        return f"{self.what}: {self.done:,} of {self.total:,} {self.parts}"


@dataclass(frozen=True)
class Expected:
    """The columns, by canonical table, and the tallies of tables that every report will be asked for."""

    columns: Mapping[str, frozenset[str]]
    tallied: tuple[str, ...]


# So many reports are planned for as fast as one.
_FEW = 4
# Of more, the metadata of all files are too much memory.
_MANY = 256
# Of DuckDB's vectors, of 2,048 rows each.
_VECTORS = 16
# Bytes of a number and of a text of a result, with what is made of them.
_NUMBER, _TEXT = 16, 128
_PLACE = frozenset({"report", "clock_offset"})


@dataclass
class Session:
    """The open reports and the SQL over them.

    Packed columns stay in memory with ``cache=None``, and, after a warning, where others can write to the cache.
    """

    cache: Cache | None = None
    limits: Limits = field(default_factory=Limits)
    warn: Callable[[str], object] = lambda message: None
    tell: Callable[[Computation | None], object] = lambda computing: None
    waiting: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Says that something is being computed, by its name, as long as the context lasts."""
    families: Rules = ()
    """The user's own rules for families of kernels (`base.kernel_families`): which kernels communicate."""
    dropped: list[Exception | str] | None = None
    """Where to put the error of a report that cannot be read whole; without a list it is a warning."""
    workers: Workers | None = None
    """Others that compute what is made of single reports, where there are any: see `questions.derived.in_runs`."""
    version: int = 0
    clock: Clock = field(default_factory=Clock)
    exports: dict[int, ExportFile] = field(default_factory=dict)
    """The exports by the index of their report, as they were when they were added; none of a packed job."""
    _placed: tuple[Report, ...] = ()
    _joined: list[Report] = field(default_factory=list)
    """Those that have no place on the clock yet: to find it for each that joins takes a thousand times as long."""
    _packed: dict[int, PackedFiles | PackedTables] = field(default_factory=dict)
    _given: set[int] = field(default_factory=set)
    _fresh: set[str] = field(default_factory=set)
    _on_demand: dict[int, OnDemand] = field(default_factory=dict)
    _identities: dict[int, str] = field(default_factory=dict)
    _memory: Memory = field(default_factory=Memory)
    _expected: Expected | None = None
    _packing: Packing | None = None
    _database: duckdb.DuckDBPyConnection | None = None
    _viewed: dict[str, frozenset[str]] = field(default_factory=dict)
    _parts_made: dict[tuple[int, ...], Session] = field(default_factory=dict)
    _part_numbers: Iterator[int] = field(default_factory=itertools.count)
    """Of this session and its parts together: a part may have parts."""
    _schema: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _placing: threading.Lock = field(default_factory=threading.Lock)
    """Whoever looks at the reports does not wait for columns that are being read."""

    def __post_init__(self) -> None:
        if self.cache is not None and (why := why_not_ours(self.cache.directory)):
            self.warn(f"the cache {self.cache.directory} is not used: {why}; keeping columns in memory")
            self.cache = None
        told: dict[str, object] = {}
        warn = self.warn

        def warn_once(message: str) -> None:
            this = object()
            if told.setdefault(message, this) is this:  # in one step, for threads may meet here
                warn(message)

        self.warn = warn_once
        self.room = Room(self.cache)
        self.large_questions = threading.Lock()
        """Held by whoever asks about all rows of a large table: two at once would need twice the memory."""
        check_addresses()

    @property
    def database(self) -> duckdb.DuckDBPyConnection:
        """Made when something is packed or asked: results that were computed before need none of DuckDB."""
        with self._lock:
            if self._database is None:
                self._database = connect(self.limits, None if self.cache is None else self.cache.spill())
            return self._database

    @cached_property
    def _engine(self) -> sa.Engine:
        """Made at the first query: packing needs none of SQLAlchemy."""
        return engine_of(self._cursor)

    @property
    def reports(self) -> tuple[Report, ...]:
        """The open reports in order, on one clock."""
        if self._joined:
            with self._placing:
                self._placed = aligned([*self._placed, *self._joined], self.clock)
                self._joined = []
        return self._placed

    def close(self) -> None:
        """Lets go of every file and of the memory."""
        for report in self._on_demand.values():
            report.close()
        if self._database is not None:
            self._database.close()
        if self.workers is not None:
            self.workers.close()

    def add(
        self,
        path: Path,
        report_progress: Callable[[Progress], None] = lambda progress: None,
        is_cancelled: Callable[[], bool] = lambda: False,
        index: int | None = None,
        whole: bool = True,
        partly: bool = False,
        opened: Opened | JobReport | None = None,
    ) -> Report:
        """Packs an export (or finds it packed) and adds it to the views; a report of a packed job is added as it is.

        ``opened`` is what `look_at` found at ``path``: a report of a packed job is not read twice. ``index`` keeps the
        order of the command line when exports become ready in another. Unless ``whole``, what is not packed stays so,
        and columns are read when a query asks for them: then that may raise ExportError as well.
        With ``partly`` the report is without the tables that are damaged, and says so.
        What is returned has no place on the clock yet, which depends on all of ``reports``.
        Raises ExportError and PackingCancelled. May run in several threads at once.
        """
        file = of_job = None
        if is_packed_report(path):
            from nsystui.store.packed_job import JobReport, read_report

            of_job = opened if isinstance(opened, JobReport) else read_report(path)
        else:
            file = opening.check(path)
            if self.cache is not None:
                self.room.use(self.cache.path_of(file))
        with self._lock:
            index = max(self._given, default=-1) + 1 if index is None else index
            self._given.add(index)
        try:
            found: PackedFiles | PackedTables | OnDemand | None = of_job.files if of_job is not None else None
            if file is not None:
                found = None if self.cache is None else self.cache.find(file)
                found = found or self._read(file, index, report_progress, is_cancelled, whole, partly)
            assert found is not None
        except BaseException:
            with self._lock:
                self._given.discard(index)
            raise
        with self._lock:
            if isinstance(found, PackedFiles | PackedTables):
                self._packed[index] = found
                report = Report(index, path, found.report)
            else:
                self._on_demand[index] = found
                report = Report(index, path, found)
            if isinstance(found, PackedTables):
                report = replace(report, damaged=found.report.damaged)
            if of_job is not None:
                report = replace(report, label=of_job.name, ranks=of_job.ranks)
                self._identities[index] = of_job.identity
            if file is not None:
                self.exports[index] = file
            if self._on_demand:  # how long they last, on which their place may depend, may be damaged
                self._placed = aligned([*self.reports, report], self.clock)
            else:
                with self._placing:
                    self._joined = [*self._joined, report]
            self._forget_views()
            return report

    def _read(
        self,
        file: ExportFile,
        index: int,
        report_progress: Callable[[Progress], None],
        is_cancelled: Callable[[], bool],
        whole: bool,
        partly: bool,
    ) -> PackedFiles | PackedTables | OnDemand:
        """Reads an export that nothing whole is kept of."""
        results = self._results(file)
        with remembered_damage(results):
            if partly:
                read = self._packer().pack_partly(file, index, report_progress, is_cancelled)
                remember_damage(results, read.damaged)
                return read
            if whole:
                return self._packer().pack(file, index, report_progress, is_cancelled)
            found = self._unpacked(file, index)
            found.is_cancelled = is_cancelled
        if line := damage_line(file.path, known_damage(results)):
            self.warn(line)
        return found

    def _packer(self) -> Packing:
        """One for all threads, since it keeps to the limits; made at the first export that is not packed yet."""
        from nsystui.store.packing import Packing

        with self._lock:
            if self._packing is None:
                self._packing = Packing(self.database, self.limits, self.room, self.warn)
            return self._packing

    def set_clock(self, clock: Clock) -> None:
        """Puts all reports, and those that join later, on this clock."""
        with self._lock:
            before = self.reports
            moved = aligned(before, clock)
            self.clock = clock
            if moved != before:
                self._placed = moved
                self._forget_views()

    def _unpacked(self, file: ExportFile, index: int) -> OnDemand:
        from nsystui.store.on_demand import OnDemand
        from nsystui.store.opened import open_export

        with file.unchanged():
            opened = open_export(file.path)
        cursor, results, packing = self.database.cursor(), self._results(file), self._packer().own_database
        return OnDemand(file, opened.metadata, opened.native, cursor, index, self.cache, packing, self.warn, results)

    def expect(self, columns: Mapping[str, Collection[str]], tallied: Iterable[str] = ()) -> None:
        """Announces the columns of tables, and the tables to be tallied, that will be asked of every report.

        As soon as a query needs anything of a report that is not packed, all of this is read in one go, with the span
        of its events: several exports at once, and no table twice. Until then nothing is read.
        """
        self._expected = Expected({name: frozenset(read) for name, read in columns.items()}, tuple(tallied))

    def tally(self, report: Report, table: sa.Table | CanonicalTable) -> Tally | None:
        """The number, times and processes of a report's rows, without reading columns; ``None`` where it is packed."""
        unpacked = self._on_demand.get(report.index)
        return None if unpacked is None else unpacked.tally(table.name)

    def part(self, reports: Iterable[int]) -> Session:
        """This session with some of its reports alone, by their indices, for questions about them.

        A query is planned over every open report, whatever it asks for: of hundreds that takes longer than the answer.
        The part has the clock of now and does not see what joins later; only this session is closed.
        """
        indices = tuple(sorted(set(reports)))
        if self._on_demand or len(self.reports) <= _FEW or len(indices) * 2 > len(self.reports):
            return self
        with self._lock:
            if indices not in self._parts_made:
                self._parts_made[indices] = self._made_part(frozenset(indices))
            return self._parts_made[indices]

    def _made_part(self, indices: frozenset[int]) -> Session:
        """Its views have the names of this session's, in a schema of their own."""
        database = self.database  # made before the copy, which is to have the same
        keep_metadata(database, len(self.reports) <= _MANY)
        part = copy.copy(self)
        part.__dict__.pop("_engine", None)
        part._joined, part._placed = [], tuple(report for report in self.reports if report.index in indices)
        part._fresh, part._viewed, part._parts_made = set(), {}, {}
        part._lock = threading.RLock()
        part.tell = lambda computing: None  # what is asked of a part is itself a part of something
        part._schema = f"part_{next(self._part_numbers)}"
        database.execute(f"CREATE SCHEMA {part._schema}")
        part._database = part._cursor()
        return part

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection to the same database, which finds the views of this session."""
        cursor = self.database.cursor()
        if self._schema:
            cursor.execute(f"SET search_path = '{self._schema},main'")
        return cursor

    def _forget_views(self) -> None:
        """Makes views and parts anew for the reports that are open now; a part that is in use stays."""
        self._fresh.clear()
        self._parts_made.clear()
        self.version += 1

    def _ensure_views(self, query: sa.Executable) -> None:
        """Makes the views that ``query`` reads, if a report has joined since, or it reads more columns than before."""
        used = used_columns(query)
        with self._lock:
            self._load(used)
            if not self._fresh and not self._schema:
                keep_metadata(self.database, len(self.reports) <= _MANY)
            for name in used.keys() - self._fresh:
                table = canonical.BY_NAME[name]
                with self._query_errors():
                    make_view(self.database, table, self._rows(table), self._names(table))
                self._fresh.add(name)

    def _load(self, used: Mapping[str, Collection[str]]) -> None:
        """Reads what is ``used`` of each table, and was so far, of the reports that are not packed."""
        if not self._on_demand:
            return
        expected = self._expected.columns if self._expected is not None else {}
        used = {name: {*used.get(name, ()), *expected.get(name, ())} for name in {*used, *expected}}
        wanted = {name: self._viewed.get(name, frozenset()).union(names) - _PLACE for name, names in used.items()}
        for index, failure in self._failures(wanted).items():
            self._drop(index, failure)
        changed = [name for name, names in wanted.items() if names != self._viewed.get(name)]
        self._fresh.difference_update(changed)
        self._viewed.update(wanted)
        loaded = [report.loaded[name] for report in self._on_demand.values() for name in changed]
        self.room.make(sum(size_of(columns.directory) for columns in loaded if isinstance(columns, ColumnFiles)))

    def _failures(self, wanted: Mapping[str, Collection[str]]) -> dict[int, ExportError]:
        """Reads the ``wanted`` columns of every report that is not packed, several at once; why some could not be."""
        from concurrent.futures import ThreadPoolExecutor

        def failure(report: OnDemand) -> ExportError | None:
            try:
                with memory_errors(self.limits, self.cache is not None, report.path), remembered_damage(report.results):
                    report.load(wanted)
                    if self._expected is not None:
                        report.tallies({*self._expected.tallied, *report.timed})
            except ExportError as error:
                return error
            return None

        reports = list(self._on_demand.values())
        for report in reports:
            report.is_stopped, report.beside = False, len(reports) < self.limits.threads
        pool = ThreadPoolExecutor(max(min(self.limits.chunks, len(reports)), 1), initializer=step_back)
        try:
            errors = zip(reports, awaited([pool.submit(failure, report) for report in reports]), strict=True)
            return {report.index: error for report, error in errors if error is not None}
        except BaseException:  # ctrl+c does not wait for what is being read
            for report in reports:
                report.is_stopped = True
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _drop(self, index: int, error: ExportError) -> None:
        """Continue without a report that cannot be read whole; raises ``error`` if it is the last."""
        if len(self.reports) == 1:
            raise error
        if self.dropped is None:
            self.warn(str(error))
        else:
            self.dropped.append(error)
        self._placed = tuple(report for report in self.reports if report.index != index)
        self._on_demand.pop(index).close()
        self._forget_views()

    def drop_copies(self) -> None:
        """Remove each report that is another export of a session that is open already, with a warning."""
        originals: dict[tuple[object, ...], Report] = {}
        for report in self.reports:
            facts, rows = report.metadata, (report.packed.most(table.name) for table in canonical.TABLES)
            key = (facts.session_id, facts.session_start_utc, facts.duration, *rows)
            original = originals.setdefault(key, report) if facts.session_id else report
            if original is not report:
                self.warn(f"{original.name} and {report.name} are exports of one recording: only the first counts")
                with self._lock:
                    self._placed = tuple(one for one in self.reports if one.index != report.index)
                    self._packed.pop(report.index, None)
                    if (reading := self._on_demand.pop(report.index, None)) is not None:
                        reading.close()
                    self._forget_views()

    def _rows(self, table: CanonicalTable) -> Iterator[Rows]:
        """Where the rows of every report are."""
        for report in self.reports:
            if report.index in self._on_demand:
                loaded = self._on_demand[report.index].loaded[table.name]
                yield from loaded_rows(loaded, report.index, report.clock_offset)
            elif report.index in self._packed:
                yield from packed_rows(self._packed[report.index], table, report.index, report.clock_offset)

    def _names(self, table: CanonicalTable) -> list[str] | None:
        """The columns of a view, unless it has all: of what is not packed it has those that are shown of any report."""
        if not self._on_demand:
            return None
        return [name for name in table.field_names if name in self._viewed[table.name]]

    def rows(self, query: sa.Executable) -> Sequence[tuple[Any, ...]]:
        """The result as tuples of Python values."""
        with self._executed(query) as cursor:
            return cursor.fetchall()

    def scalar(self, query: sa.Executable) -> Any:
        """The first value of the first row; ``None`` where there is none."""
        return next((value for value, *_ in self.rows(query)), None)

    def frame(self, query: sa.Executable) -> pd.DataFrame:
        """The result as a small pandas frame; integers stay integers where values are missing (``Int64``)."""
        import pandas as pd

        return pd.DataFrame({name: series(values) for name, values in self.arrays(query).items()})

    def arrays(self, query: sa.Executable) -> dict[str, np.ndarray[Any, Any]]:
        """The result as numpy arrays, for sweeps over millions of rows. Where values are missing they are masked."""
        with self._executed(query) as cursor:
            return dict(cursor.fetchnumpy())

    def array_batches(self, query: sa.Executable) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """The result as numpy arrays of at most 32,768 rows: one pass over millions of rows in little memory.

        Only for queries whose columns have no missing values: integers with missing values become floats. If the rows
        of the tables fit into memory, the result is one batch: DuckDB returns parts of a result only through pandas,
        which takes long to import.
        """
        from sqlalchemy import Text

        rows = sum(most_rows(self.reports, canonical.BY_NAME[name]) for name in used_columns(query))
        columns = cast("sa.Select[Any]", query).selected_columns
        size = sum(_TEXT if isinstance(column.type, Text) else _NUMBER for column in columns)
        with self._executed(query) as cursor:
            if rows <= self.limits.rows_at_once(size):
                found = dict(cursor.fetchnumpy())
                if any(len(values) for values in found.values()):
                    yield found
                return
            while len(frame := cursor.fetch_df_chunk(_VECTORS)):
                yield {str(name): frame[name].to_numpy() for name in frame}

    def batches(self, query: sa.Executable, size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """The result ``size`` rows at a time, as tuples of Python values: one pass, however many rows there are."""
        with self._executed(query) as cursor:
            while rows := cursor.fetchmany(size):
                yield rows

    @contextmanager
    def _executed(self, query: sa.Executable) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of its own on which ``query`` runs."""
        self._ensure_views(query)
        with self._query_errors(), self._engine.connect() as connection:
            yield cast("duckdb.DuckDBPyConnection", connection.execute(query).cursor)

    @contextmanager
    def _query_errors(self) -> Iterator[None]:
        with memory_errors(self.limits, self.cache is not None, *(report.path for report in self.reports)):
            try:
                yield
            except Exception as error:
                # DuckDB clears the KeyboardInterrupt of a signal handler, and leaves no other sign of it.
                if type(error) is RuntimeError and str(error) == "Query interrupted":
                    raise KeyboardInterrupt from error
                raise_of_damage(error, self._files(), self.cache)
                raise

    def _files(self) -> Iterator[tuple[Path, PackedFiles | ColumnFiles]]:
        """The files of this program's own that the reports are read from, with the paths of the reports."""
        for report in self.reports:
            unpacked = self._on_demand.get(report.index)
            found = [self._packed.get(report.index)] if unpacked is None else unpacked.loaded.values()
            yield from ((report.path, files) for files in found if isinstance(files, PackedFiles | ColumnFiles))

    def count(self, table: sa.Table | CanonicalTable) -> int:
        """Rows of a table over all reports, without a query."""
        return sum(report.count(table) for report in self.reports)

    def slices(self, rows: int, size: int, what: str, parts: str) -> Iterator[slice]:
        """Split ``rows`` rows of about ``size`` bytes each into slices that fit into the limit of the memory together.

        Before each of several, the session tells how many of ``parts`` are done, such as "gaps".
        """
        at_once = self.limits.rows_at_once(size)
        try:
            for first in range(0, rows, at_once):
                if rows > at_once:
                    self.tell(Computation(what, first, rows, parts))
                yield slice(first, first + at_once)
        finally:
            if rows > at_once:
                self.tell(None)

    def results(self, report: Report, in_memory: bool = False) -> Results:
        """The results that were computed of a report; no files where its columns are in memory.

        ``in_memory``: the session has those that are loaded or saved there, too.
        """
        if report.index in self._identities:
            found = Results((self._identities[report.index],), report.path)
        elif isinstance(self._packed.get(report.index), PackedTables):
            found = self._without_files(report.path)
        else:
            found = self._results(self.exports[report.index])
        return replace(found, memory=self._memory) if in_memory else found

    def _results(self, file: ExportFile) -> Results:
        return self._without_files(file.path) if self.cache is None else self.cache.results_of(file)

    def _without_files(self, path: Path) -> Results:
        return Results((os.path.realpath(path),), None)
