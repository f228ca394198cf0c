"""A session: one SQL over all open exports.

Reports become usable one by one: an export is checked, its metadata is read, and its rows, packed if necessary, join
the views of the canonical tables. Queries are SQLAlchemy Core over ``nsystui.store.tables``, each on its own cursor, so
that a screen may query from several threads.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from nsystui.base.errors import ExportError
from nsystui.base.files import why_not_ours
from nsystui.base.resources import Limits, awaited, step_back
from nsystui.base.types import Array, Query
from nsystui.exports import canonical, opening
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.discover import is_packed_report
from nsystui.exports.opening import ExportFile, damage_line
from nsystui.exports.schema import GpuClock
from nsystui.store.cache import Cache, ColumnFiles, PackedFiles, Room, size_of
from nsystui.store.captures import joined, with_joined_captures
from nsystui.store.database import (
    check_addresses,
    connect,
    engine_of,
    keep_metadata,
    memory_errors,
    raise_of_damage,
    series,
)
from nsystui.store.remember import Memory, Results, known_damage, remember_damage, remembered_damage
from nsystui.store.report import Clock, PackedTables, Report, aligned, most_rows
from nsystui.store.tally import Tally
from nsystui.store.views import Rows, loaded_rows, make_view, packed_rows, used_columns

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import sqlalchemy as sa

    from nsystui.base.kernel_families import Rules
    from nsystui.exports.metadata import Opened
    from nsystui.store.on_demand import OnDemand
    from nsystui.store.packed_job import JobReport
    from nsystui.store.packing import Callbacks, Packing, Progress
    from nsystui.store.reader import Fields

T = TypeVar("T")
Compute = Callable[["Session", list[Report]], T]
"""Computes a result from some reports, which may be only part of the session's reports."""


class Workers(Protocol):
    """Workers that compute results of single reports, on machines that see the same packed job."""

    def share(self, reports: int) -> int:
        """Return how many of ``reports`` reports to compute together."""
        ...

    def each(self, work: Sequence[tuple[list[Report], Compute[T]]], tell: Callable[[int], object]) -> Iterator[T]:
        """Yield the results of runs of reports, in their order, and report how many reports are done.

        A run may have several results, each of some of its reports. Raises NsystuiError.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Computation:
    """A computation in progress, named ``what``: ``done`` of ``total`` reports, or other ``parts``, are complete."""

    what: str
    done: int
    total: int
    parts: str = "reports"

    def __str__(self) -> str:
        return f"{self.what}: {self.done:,} of {self.total:,} {self.parts}"


# Planning for this many reports takes no longer than for a single report.
_FEW = 4
# The metadata of more reports would take too much memory.
_MANY = 256
# Bytes of a number and of a text in a result, with derived data.
_NUMBER, _TEXT = 16, 128
_CLOCKS = "gpu-clocks"
_CUDA = (canonical.KERNELS.name, canonical.MEMORY_OPS.name, canonical.API_CALLS.name)


@dataclass
class Session:
    """The open reports and the SQL over them.

    Packed columns stay in memory with ``cache=None``, and, after a warning, if other users can write to the cache.
    """

    cache: Cache | None = None
    limits: Limits = field(default_factory=Limits)
    warn: Callable[[str], object] = lambda message: None
    tell: Callable[[Computation | None], object] = lambda computing: None
    waiting: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Shows the name of a computation as long as the context lasts."""
    families: Rules = ()
    """The user's rules for kernel families (`base.kernel_families`): which kernels communicate."""
    dropped: list[Exception | str] | None = None
    """Receives the errors of reports that cannot be read; without a list, errors become warnings."""
    workers: Workers | None = None
    """Compute results of single reports elsewhere, if given: see `questions.queries.derived.in_runs`."""
    version: int = 0
    clock: Clock = field(default_factory=Clock)
    exports: dict[int, ExportFile] = field(default_factory=dict)
    """Exports by report index, in the state in which they were added; no packed jobs."""
    _aligned: tuple[Report, ...] = ()
    _unaligned: list[Report] = field(default_factory=list)
    """Reports without a clock offset yet: to align each when it joins takes a thousand times as long."""
    _packed: dict[int, PackedFiles | PackedTables] = field(default_factory=dict)
    _indices: set[int] = field(default_factory=set)
    _current_views: set[str] = field(default_factory=set)
    _on_demand: dict[int, OnDemand] = field(default_factory=dict)
    _identities: dict[int, str] = field(default_factory=dict)
    large_questions: Memory = field(default_factory=lambda: Memory(0))
    """The lock of questions about all rows of a large table, without their results."""
    _memory: Memory = field(default_factory=Memory)
    _expected: Fields = field(default_factory=dict)
    _tallied: Collection[str] | None = None
    _packing: Packing | None = None
    _database: duckdb.DuckDBPyConnection | None = None
    _view_columns: dict[str, frozenset[str]] = field(default_factory=dict)
    _parts: dict[tuple[int, ...], Session] = field(default_factory=dict)
    _part_numbers: Iterator[int] = field(default_factory=itertools.count)
    """Shared by this session and its parts, because a part may have parts."""
    _schema: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _align_lock: threading.Lock = field(default_factory=threading.Lock)
    """Separate from ``_lock``, so that looking up reports does not wait for columns being read."""

    def __post_init__(self) -> None:
        if self.cache is not None and (why := why_not_ours(self.cache.directory)):
            self.warn(f"the cache {self.cache.directory} is not used: {why}; keeping columns in memory")
            self.cache = None
        tokens: dict[str, object] = {}
        warn = self.warn

        def warn_once(message: str) -> None:
            token = object()
            if tokens.setdefault(message, token) is token:  # atomic, because several threads may warn
                warn(message)

        self.warn = warn_once
        self.room = Room(self.cache)
        check_addresses()

    @property
    def database(self) -> duckdb.DuckDBPyConnection:
        """The database, created when needed: saved results do not need DuckDB."""
        with self._lock:
            if self._database is None:
                self._database = connect(self.limits, None if self.cache is None else self.cache.spill())
            return self._database

    @cached_property
    def _engine(self) -> sa.Engine:
        return engine_of(self._cursor)

    @property
    def reports(self) -> tuple[Report, ...]:
        """The open reports in order, on one clock."""
        if self._unaligned:
            with self._align_lock:
                self._aligned = aligned([*self._aligned, *self._unaligned], self.clock)
                self._unaligned = []
        return self._aligned

    def close(self) -> None:
        """Close every file and free the memory."""
        for report in self._on_demand.values():
            report.close()
        for part in (self._packing, self._database, self.workers):
            if part is not None:
                part.close()

    def add(
        self,
        path: Path,
        report_progress: Callable[[Progress], None] = lambda progress: None,
        is_cancelled: Callable[[], bool] = lambda: False,
        index: int | None = None,
        whole: bool = True,
        partly: bool = False,
        opened: Opened | JobReport | None = None,
        label: str = "",
    ) -> Report:
        """Add a report to the views: a report of a packed job, or an export, which is packed if necessary.

        ``opened`` is the result of `look_at` for ``path``, so that a packed report is not read twice. ``index`` keeps
        the order of the command line; ``label`` is the name, by default the file's. Unless ``whole``, an unpacked
        export stays unpacked: a query reads the columns that it needs, and may raise ExportError. With ``partly``,
        damaged tables are left out, and listed in ``damaged``. The returned report has no clock offset yet, because it
        depends on all ``reports``. Raises ExportError and PackingCancelled. Several threads may add reports at once.
        """
        if is_packed_report(path):
            from nsystui.store.packed_job import JobReport, read_report

            job_report = opened if isinstance(opened, JobReport) else read_report(path)
            return self._join(path, job_report.files, self._take(index), label, job_report)
        file = opening.check(path)
        if self.cache is not None:
            self.room.use(self.cache.path_of(file))
        index = self._take(index)
        try:
            packed = None if self.cache is None else self.cache.find(file)
            data = packed or self._read(file, index, (report_progress, is_cancelled), whole, partly)
        except BaseException:
            with self._lock:
                self._indices.discard(index)
            raise
        return self._join(path, data, index, label, file)

    def _take(self, index: int | None) -> int:
        with self._lock:
            index = max(self._indices, default=-1) + 1 if index is None else index
            self._indices.add(index)
            return index

    def _join(
        self, path: Path, data: PackedFiles | PackedTables | OnDemand, index: int, label: str,
        source: JobReport | ExportFile,
    ) -> Report:  # fmt: skip
        with self._lock:
            if isinstance(data, PackedFiles | PackedTables):
                self._packed[index] = data
                report = Report(index, path, data.report, label=label)
            else:
                self._on_demand[index] = data
                report = Report(index, path, data, label=label)
            if isinstance(data, PackedTables):
                report = replace(report, damaged=data.report.damaged)
            if isinstance(source, ExportFile):
                self.exports[index] = source
            else:
                report = replace(report, label=label or source.name, ranks=source.ranks)
                self._identities[index] = source.identity
            if self._on_demand:  # align now: their durations, which it may need, may be damaged
                self._aligned = aligned([*self.reports, report], self.clock)
            else:
                with self._align_lock:
                    self._unaligned = [*self._unaligned, report]
            self._forget_views()
            return report

    def _read(
        self, file: ExportFile, index: int, callbacks: Callbacks, whole: bool, partly: bool
    ) -> PackedFiles | PackedTables | OnDemand:
        results = self._results(file)
        with remembered_damage(results):
            if partly:
                packed = self._packer().pack_partly(file, index, callbacks)
                remember_damage(results, packed.damaged)
                return packed
            if whole:
                return self._packer().pack(file, index, callbacks)
            unpacked = self._open_unpacked(file, index)
            _, unpacked.is_cancelled = callbacks
        if line := damage_line(file.path, known_damage(results)):
            self.warn(line)
        return unpacked

    def _packer(self) -> Packing:
        """Return the packer, which enforces the limits over all threads; create it for the first export to pack."""
        from nsystui.store.packing import Packing

        with self._lock:
            if self._packing is None:
                self._packing = Packing(self.database, self.limits, self.room, self.warn)
            return self._packing

    def set_clock(self, clock: Clock) -> None:
        """Put all reports, and reports that join later, on this clock."""
        with self._lock:
            reports = self.reports
            moved = aligned(reports, clock)
            self.clock = clock
            if moved != reports:
                self._aligned = moved
                self._forget_views()

    def _open_unpacked(self, file: ExportFile, index: int) -> OnDemand:
        from nsystui.exports.metadata import open_export
        from nsystui.store.gpu_clock import gpu_clocks
        from nsystui.store.on_demand import OnDemand

        with file.unchanged():
            opened = open_export(file.path)
        cursor, results, packing = self.database.cursor(), self._results(file), self._packer().packing_database
        clocks = results.load(_CLOCKS, read=lambda clocks: tuple(GpuClock(*clock) for clock in clocks))
        if clocks is None:
            with memory_errors(self.limits, self.cache is not None, file.path):
                clocks = gpu_clocks(file.path, opened.native, cursor)
            if clocks:
                results.save(_CLOCKS, [astuple(clock) for clock in clocks])
        native = replace(opened.native, gpu_clocks=clocks or (), are_clocks_known=clocks is not None)
        facts = replace(opened.metadata, gpu_clocks=native.gpu_clocks)
        return OnDemand(file, facts, native, cursor, index, self.cache, packing, self.warn, results)

    def expect(self, columns: Fields, tallied: Collection[str] | None = (), now: bool = False) -> None:
        """Announce the columns, and the tables to tally, that every report must provide.

        The first query of an unpacked report, or this call if ``now``, reads all of this, and the span of its events
        unless ``tallied`` is ``None``: several exports in parallel, no table twice.
        """
        self._expected, self._tallied = columns, tallied
        if now:
            with self.waiting("the columns"):
                self._load({})

    def tally(self, report: Report, table: sa.Table | CanonicalTable) -> Tally | None:
        """Return the number, times and processes of a report's rows, without reading columns.

        ``None`` if the report is packed, or joins captures.
        """
        unpacked = None if report.captures else self._on_demand.get(report.index)
        return None if unpacked is None else unpacked.tally(table.name)

    def part(self, reports: Iterable[int]) -> Session:
        """Return this session with only some of its reports, given by index.

        A query is planned over every open report: with hundreds, that takes longer than the answer. The part keeps the
        current clock and ignores later reports; only this session is closed.
        """
        indices = tuple(sorted(set(reports)))
        if self._on_demand or len(self.reports) <= _FEW or len(indices) * 2 > len(self.reports):
            return self
        with self._lock:
            if indices not in self._parts:
                chosen = frozenset(indices)
                database = self.database  # created before the copy, which shares it
                keep_metadata(database, len(self.reports) <= _MANY)
                part = copy.copy(self)
                part.__dict__.pop("_engine", None)
                part._unaligned, part._aligned = [], tuple(report for report in self.reports if report.index in chosen)
                part._current_views, part._view_columns, part._parts = set(), {}, {}
                part._lock = threading.RLock()
                part.tell = lambda computing: None  # a question about a part is a step of a larger computation
                part._schema = f"part_{next(self._part_numbers)}"
                database.execute(f"CREATE SCHEMA {part._schema}")
                part._database = part._cursor()
                self._parts[indices] = part
            return self._parts[indices]

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor = self.database.cursor()
        if self._schema:
            cursor.execute(f"SET search_path = '{self._schema},main'")
        return cursor

    def _forget_views(self) -> None:
        """Forget views and parts, which are made again for the current reports; a part in use stays."""
        self._current_views.clear()
        self._parts.clear()
        self.version += 1

    def _load(self, used: Fields) -> None:
        """Read ``used`` columns, and the columns of earlier queries, from unpacked reports."""
        if not self._on_demand:
            return
        used = {name: {*used.get(name, ()), *self._expected.get(name, ())} for name in {*used, *self._expected}}
        added = frozenset({"report", "clock_offset"})
        wanted = {name: self._view_columns.get(name, frozenset()).union(names) - added for name, names in used.items()}
        for index, failure in self._failures(wanted).items():
            self._drop(index, failure)
        changed = [name for name, names in wanted.items() if names != self._view_columns.get(name)]
        self._current_views.difference_update(changed)
        self._view_columns.update(wanted)
        loaded = [report.loaded[name] for report in self._on_demand.values() for name in changed]
        self.room.make(sum(size_of(columns.directory) for columns in loaded if isinstance(columns, ColumnFiles)))

    def _failures(self, wanted: Fields) -> dict[int, ExportError]:
        """Read the ``wanted`` columns of unpacked reports, several at once; return the errors by report index."""

        def failure(report: OnDemand) -> ExportError | None:
            try:
                with memory_errors(self.limits, self.cache is not None, report.path), remembered_damage(report.results):
                    report.load(wanted)
                    if self._tallied is not None:
                        report.tallies({*self._tallied, *report.timed})
            except ExportError as error:
                return error
            return None

        reports = list(self._on_demand.values())
        for report in reports:
            report.is_stopped, report.checks_while_reading = False, len(reports) < self.limits.threads
        pool = ThreadPoolExecutor(max(min(self.limits.chunks, len(reports)), 1), initializer=step_back)
        try:
            errors = zip(reports, awaited([pool.submit(failure, report) for report in reports]), strict=True)
            return {report.index: error for report, error in errors if error is not None}
        except BaseException:  # ctrl+c does not wait for the readers
            for report in reports:
                report.is_stopped = True
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _drop(self, index: int, error: ExportError) -> None:
        """Continue without a report that cannot be read completely. Raises ``error`` if it is the last report."""
        if len(self.reports) == 1:
            raise error
        if self.dropped is None:
            self.warn(str(error))
        else:
            self.dropped.append(error)
        remaining = ([item for item in report.sources if item.index != index] for report in self.reports)
        self._aligned = aligned([joined(sources) for sources in remaining if sources], self.clock)
        self._on_demand.pop(index).close()
        self._forget_views()

    def drop_copies(self) -> None:
        """Remove each report with the recording (the CUDA work, if any) of another open report, with a warning."""
        originals: dict[tuple[object, ...], Report] = {}
        for report in self.reports:
            facts, packed = report.metadata, report.packed
            rows = [*map(packed.max_rows, _CUDA)]
            rows = rows if any(rows) else [packed.max_rows(table.name) for table in canonical.TABLES]
            processes = frozenset(facts.gpu_numbers), frozenset(facts.environment.items())
            key = (facts.session_id, facts.session_start_utc, facts.duration, *processes, *rows)
            original = originals.setdefault(key, report) if facts.session_id else report
            if original is not report:
                self.warn(f"{original.name} and {report.name} are exports of one recording: only the first counts")
                with self._lock:
                    self._aligned = tuple(other for other in self.reports if other.index != report.index)
                    self._packed.pop(report.index, None)
                    if (unpacked := self._on_demand.pop(report.index, None)) is not None:
                        unpacked.close()
                    self._forget_views()

    def join_captures(self) -> None:
        """Replace the captures of each process by one report, unless workers compute: each opens single reports."""
        reports = self.reports if self.workers is not None else with_joined_captures(self.reports)
        if len(reports) < len(self.reports):
            with self._lock:
                self._aligned = aligned(reports, self.clock)
                self._forget_views()

    def _rows(self, table: CanonicalTable) -> Iterator[Rows]:
        for report in self.reports:
            for number, source in enumerate(report.sources):
                shift, rate = source.clock_offset if report.captures else 0, report.clock_rate
                rows = Rows(report.index, report.clock_offset, clock_rate=rate, shift=shift, capture=number)
                if source.index in self._on_demand:
                    yield from loaded_rows(self._on_demand[source.index].loaded[table.name], rows)
                elif source.index in self._packed:
                    yield from packed_rows(self._packed[source.index], table, rows)

    def rows(self, query: sa.Executable) -> Sequence[tuple[Any, ...]]:
        """Return the result as tuples of Python values."""
        with self._executed(query) as cursor:
            return cursor.fetchall()

    def scalar(self, query: sa.Executable) -> Any:
        """Return the first value of the first row, or ``None`` without rows."""
        return next((value for value, *_ in self.rows(query)), None)

    def frame(self, query: sa.Executable) -> pd.DataFrame:
        """Return the result as a small pandas frame; integers with missing values stay integers (``Int64``)."""
        import pandas as pd

        return pd.DataFrame({name: series(values) for name, values in self.arrays(query).items()})

    def arrays(self, query: sa.Executable) -> dict[str, Array]:
        """Return the result as numpy arrays, for millions of rows; missing values are masked."""
        with self._executed(query) as cursor:
            return dict(cursor.fetchnumpy())

    def array_batches(self, query: sa.Executable) -> Iterator[dict[str, Array]]:
        """Yield the result as numpy arrays of at most 131,072 rows, for one pass in little memory.

        Columns must not have missing values, because integers would become floats. If the rows of the tables fit into
        memory, the result is one batch: DuckDB returns parts of a result only through pandas, which takes long to
        import.
        """
        from sqlalchemy import Text

        rows = sum(most_rows(self.reports, canonical.BY_NAME[name]) for name in used_columns(query))
        columns = cast("Query", query).selected_columns
        size = sum(_TEXT if isinstance(column.type, Text) else _NUMBER for column in columns)
        with self._executed(query) as cursor:
            if rows <= self.limits.rows_at_once(size):
                arrays = dict(cursor.fetchnumpy())
                if any(len(values) for values in arrays.values()):
                    yield arrays
                return
            while len(frame := cursor.fetch_df_chunk(64)):  # vectors of 2,048 rows
                yield {str(name): frame[name].to_numpy() for name in frame}

    def batches(self, query: sa.Executable, size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Yield the result, ``size`` rows at a time, as tuples of Python values, in one pass."""
        with self._executed(query) as cursor:
            while rows := cursor.fetchmany(size):
                yield rows

    @contextmanager
    def _executed(self, query: sa.Executable) -> Iterator[duckdb.DuckDBPyConnection]:
        """Run a query on views of its tables; of unpacked reports, they have only columns that were read."""
        from nsystui.store.tables import LEAST_OFFSET, MOST_OFFSET

        used = used_columns(query)
        with self._lock:
            self._load(used)
            if not self._current_views and not self._schema:
                keep_metadata(self.database, len(self.reports) <= _MANY)
            for name in used.keys() - self._current_views:
                table, read = canonical.BY_NAME[name], self._view_columns.get(name, ())
                columns = [key for key in table.field_names if key in read] if self._on_demand else None
                with self._query_errors():
                    make_view(self.database, table, self._rows(table), columns)
                self._current_views.add(name)
            offsets = {report.clock_offset for report in self.reports} or {0}  # as in the views
        bounds = {LEAST_OFFSET.key: min(offsets), MOST_OFFSET.key: max(offsets)}
        with self._query_errors(), self._engine.connect() as connection:
            yield cast("duckdb.DuckDBPyConnection", connection.execute(query, bounds).cursor)

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
        for report in (source for item in self.reports for source in item.sources):
            unpacked = self._on_demand.get(report.index)
            sources = [self._packed.get(report.index)] if unpacked is None else unpacked.loaded.values()
            yield from ((report.path, files) for files in sources if isinstance(files, PackedFiles | ColumnFiles))

    def count(self, table: sa.Table | CanonicalTable) -> int:
        """Return the number of rows of a table over all reports, without a query."""
        return sum(report.count(table) for report in self.reports)

    def slices(self, rows: int, step: int, what: str, parts: str) -> Iterator[slice]:
        """Split ``rows`` rows into slices of ``step``.

        Before each of several slices, report how many of ``parts``, such as "gaps", are done.
        """
        try:
            for first in range(0, rows, step):
                if rows > step:
                    self.tell(Computation(what, first, rows, parts))
                yield slice(first, first + step)
        finally:
            if rows > step:
                self.tell(None)

    def results(self, report: Report, in_memory: bool = False) -> Results:
        """Return the results computed from a report, without files if its columns are in memory.

        With ``in_memory``, the session also keeps loaded and saved results in memory.
        """
        if report.captures:
            parts = [self.results(capture) for capture in report.captures]
            names = [name for part in parts for name in part.reports]
            is_saved = self.cache is not None and all(part.directory for part in parts)
            results = self.cache.results_of_several(names) if self.cache and is_saved else Results(tuple(names), None)
        elif report.index in self._identities:
            results = Results((self._identities[report.index],), report.path)
        elif isinstance(self._packed.get(report.index), PackedTables):
            results = self._without_files(report.path)
        else:
            results = self._results(self.exports[report.index])
        variant = f"{report.clock_rate:+}" if report.clock_rate else ""
        return replace(results, memory=self._memory if in_memory else self.large_questions, variant=variant)

    def _results(self, file: ExportFile) -> Results:
        return self._without_files(file.path) if self.cache is None else self.cache.results_of(file)

    def _without_files(self, path: Path) -> Results:
        return Results((os.path.realpath(path),), None)
