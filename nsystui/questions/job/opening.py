"""Opening of files as one job: finds them, converts reports, reads several at a time, and puts them on one clock.

A `Listener` receives the progress: the command line and the screens have one each.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base import resources
from nsystui.base.errors import NsystuiError
from nsystui.base.resources import step_back

if TYPE_CHECKING:
    from nsystui.base.kernel_families import Rules
    from nsystui.exports.metadata import Opened
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.nccl_log.summary import IterationSpan
    from nsystui.store.packed_job import JobReport
    from nsystui.store.packing import Progress
    from nsystui.store.report import Report
    from nsystui.store.session import Computation, Session

# Steps of the progress of a conversion.
_STEPS = 1000


@dataclass(frozen=True)
class JobSource:
    """The files to open, with options. Without ``cache_directory``, results stay in memory.

    ``memory`` and ``cache_cap`` limit DuckDB and the cache, bytes; ``None`` is the default. ``logs``: debug logs of
    NCCL, one name each. ``ranks``: the user's ranks, if given. ``clock``: the source of a common clock (a
    ``ClockMode``). ``step_range``, ``steps_by``, ``families``: see `OpenJob`. ``log_steps``: the training steps of the
    logs to show on screens. ``dask``: a Dask scheduler, by address or file, whose workers compute the results of single
    reports.
    """

    files: tuple[str, ...]
    cache_directory: Path | None = None
    threads: int = field(default_factory=lambda: resources.usual_threads())
    convert: bool = False
    conversion_directory: Path | None = None
    memory: int | None = None
    cache_cap: int | None = None
    logs: tuple[str, ...] = ()
    log_steps: IterationSpan | None = None
    ranks: str = ""
    clock: str = "collectives"
    step_range: str | None = None
    steps_by: str | None = None
    families: Rules = ()
    dask: str | None = None

    @property
    def cap(self) -> int:
        """The limit of the cache, bytes."""
        from nsystui.store.cache import DEFAULT_CAP

        return DEFAULT_CAP if self.cache_cap is None else self.cache_cap


class Listener:
    """Receives the events of opening; all methods may be called from threads.

    ``path`` is always the user's path; a converted report is opened under another path.
    """

    def started(self, files: int) -> None:
        """The number of files is known."""

    def advanced(self, path: Path, progress: Progress) -> None:
        """Rows of an export were read."""

    def ready(self, path: Path, report: Report) -> None:
        """A report joined the session: all questions include it."""

    def failed(self, path: Path, error: NsystuiError) -> None:
        """An export is unusable; other exports continue to open."""

    def warned(self, text: str) -> None:
        """A warning for the user, in one line."""

    def computing(self, working: Computation | None) -> None:
        """A question takes time; ``None`` when it is done."""


@dataclass(frozen=True)
class Export:
    """A file to add: its number in the order of the command line, and the user's ``path``.

    ``opened``: the result of `look_at`, if already called.
    """

    number: int
    path: Path
    opened: Opened | JobReport | None = None


def open_at(path: Path) -> Opened | JobReport:
    """Open an export, or read a report of a packed job: check it and read its metadata. Raises ExportError."""
    from nsystui.exports.discover import is_packed_report
    from nsystui.exports.metadata import open_export

    if not is_packed_report(path):
        return open_export(path)
    from nsystui.store.packed_job import read_report

    return read_report(path)


class Opener:
    """Opens the files of a source, at once or in steps. ``names``: the reports' names, if `start` is not called."""

    def __init__(self, source: JobSource, listener: Listener, names: Mapping[Path, str] | None = None) -> None:
        self.source = source
        self._names = names or {}
        self._listener = listener
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop reading after the current chunk; ready reports stay."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def start(self) -> tuple[OpenJob, list[Export]]:
        """Return a job without reports, and the exports to add to it. Raises UsageError for invalid names.

        Raises NsystuiError if the cluster cannot be used.
        """
        from nsystui.base.resources import Limits
        from nsystui.exports.discover import discover, names_of
        from nsystui.questions.job.job import OpenJob
        from nsystui.store.cache import Cache
        from nsystui.store.session import Session

        source, listener = self.source, self._listener
        ranks = None
        if source.ranks:
            from nsystui.questions.queries.numbering import numbering

            ranks = numbering(source.ranks)
        exports = [Export(number, path) for number, path in enumerate(discover(source.files))]
        self._names = names_of([export.path for export in exports])
        session = Session(
            cache=None if source.cache_directory is None else Cache(source.cache_directory, source.cap),
            limits=Limits(source.threads, source.memory or Limits().memory),
            warn=listener.warned,
            tell=listener.computing,
            families=source.families,
        )
        if source.dask is not None:
            from nsystui.questions.job.on_dask import DaskWorkers, check_packed
            from nsystui.store.session import Computation

            paths = [export.path for export in exports]
            try:
                check_packed(paths)
                self._listener.computing(Computation(f"waiting for workers of {source.dask}", 0, len(paths)))
                session.workers = DaskWorkers.connect(source.dask, session.limits, session.families)
                self._listener.computing(None)
            except BaseException:
                session.close()
                raise
        return OpenJob(session, numbering=ranks, step_range=source.step_range, steps_by=source.steps_by), exports

    def look_at(self, job: OpenJob, export: Export) -> Export | None:
        """Return an export with ``opened``, converted first if requested; ``None`` if it fails or is stopped."""
        from nsystui.store.packing import PackingCancelled

        if self.is_stopped:
            return None
        try:
            return replace(export, opened=open_at(self._converted(job.session, export.path)))
        except PackingCancelled:
            return None
        except NsystuiError as error:
            self._listener.failed(export.path, error)
            return None

    def add(
        self, job: OpenJob, exports: Sequence[Export], whole: bool = True, partly: bool = False
    ) -> list[NsystuiError]:
        """Add all exports, several at a time; return the errors, in order of the exports.

        Unless ``whole``, data is read only when a question needs it. With ``partly``, damaged exports are opened
        without their unreadable tables.
        """
        from concurrent.futures import ThreadPoolExecutor

        self._listener.started(len(exports))

        def add(export: Export) -> NsystuiError | None:
            return self.add_one(job, export, whole, partly)

        pool = ThreadPoolExecutor(max(self.source.threads, 1), "load", initializer=step_back)
        try:
            added = [pool.submit(add, export) for export in exports]
            return [error for error in resources.awaited(added) if error is not None]
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def add_one(self, job: OpenJob, export: Export, whole: bool = True, partly: bool = False) -> NsystuiError | None:
        """Add an export in this thread; return the error, if any. See `add`."""
        from nsystui.exports.discover import stale_note
        from nsystui.store.packing import PackingCancelled

        def advanced(progress: Progress) -> None:
            self._listener.advanced(export.path, progress)

        if self.is_stopped:
            return None
        try:
            if note := stale_note(export.path):
                self._listener.warned(note)
            opened, stopped = export.opened, self._stopped.is_set
            path = opened.path if opened is not None else self._converted(job.session, export.path)
            name = self._names.get(export.path, "")
            report = job.session.add(path, advanced, stopped, export.number, whole, partly, opened, name)
        except PackingCancelled:
            return None
        except NsystuiError as error:
            self._listener.failed(export.path, error)
            return error
        self._listener.ready(export.path, report)
        return None

    def _converted(self, session: Session, path: Path) -> Path:
        """Return the path of an export; convert a report of another form at low priority.

        NVIDIA's programs run only if requested.
        """
        from nsystui.exports.discover import export_of, form_of, is_packed_report

        directory, form = self.source.conversion_directory, None if is_packed_report(path) else form_of(path)
        if directory is None or form is None or (form.asks and not self.source.convert):
            return path
        from concurrent.futures import ThreadPoolExecutor

        from nsystui.exports.convert import convert
        from nsystui.store.cache import size_of
        from nsystui.store.packing import PackingCancelled, Progress

        def advance(part: float) -> None:
            if self.is_stopped:
                raise PackingCancelled
            self._listener.advanced(path, Progress(path, form.what, int(part * _STEPS), _STEPS))

        session.room.use(export_of(path, form, directory).parent)
        with ThreadPoolExecutor(1, initializer=step_back) as pool:
            cap = None if form.asks else self.source.cap  # a requested conversion has no size limit
            try:
                export = next(resources.awaited([pool.submit(convert, path, form, directory, advance, cap)]))
            except KeyboardInterrupt:  # before the pool waits for the conversion
                self.stop()
                raise
        session.room.make(size_of(export.parent))
        return export

    def join(self, job: OpenJob) -> None:
        """Drop second exports of a recording, and join the captures of each process."""
        job.session.drop_copies()
        job.session.join_captures()

    def align(self, job: OpenJob) -> None:
        """Put all reports on one clock, after `join`. Raises NsystuiError if that fails."""
        from nsystui.questions.collectives.alignment import ClockMode

        self.join(job)
        if len(job.session.reports) > 1 and not self.is_stopped:
            job.align(ClockMode(self.source.clock))
