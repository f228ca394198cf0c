"""Opening the exports behind the screens: first what they say of themselves, then a sample, then every row.

Runs in threads: nothing of it passes rows through Python, so the screens stay responsive. Heavy imports happen here,
after the first window is painted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from nsystui.base.errors import ExportError, NsystuiError
from nsystui.ui import messages

if TYPE_CHECKING:
    from nsystui.questions.job import Job
    from nsystui.store.cache import Room
    from nsystui.store.opened import Opened
    from nsystui.store.packed_job import JobReport


@dataclass(frozen=True)
class Source:
    """What the command line asked to open, and how. ``cache_directory`` is ``None`` for memory only.

    ``memory`` is what DuckDB may take, ``cache_cap`` what the cache may grow to, both in bytes; ``None`` for the usual.
    ``logs`` are debug logs of NCCL, one name each. ``ranks`` says who is which rank, where the user does, and ``clock``
    what makes the clocks one (a ``ClockMode``). ``step_range``: see `Job`.
    """

    files: tuple[str, ...]
    cache_directory: Path | None = None
    threads: int = 2
    convert: bool = False
    conversion_directory: Path | None = None
    memory: int | None = None
    cache_cap: int | None = None
    logs: tuple[str, ...] = ()
    ranks: str = ""
    clock: str = "collectives"
    step_range: str | None = None


@dataclass
class Loading:
    """One run of the loading; ``post`` must be safe to call from threads."""

    source: Source
    post: Callable[[Message], object]
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ends the loading as soon as the current chunk is read; what is ready stays."""
        self._stopped.set()

    def start(self) -> None:
        """Discovers the files and loads them all. Blocks: call it in a thread."""
        from nsystui.exports.discover import discover
        from nsystui.questions.job import Job
        from nsystui.questions.numbering import numbering
        from nsystui.store.cache import Cache
        from nsystui.store.cache_directory import DEFAULT_CAP
        from nsystui.store.database import Limits
        from nsystui.store.session import Session

        source = self.source
        paths = tuple(discover(source.files))
        directory = source.cache_directory
        cap = DEFAULT_CAP if source.cache_cap is None else source.cache_cap
        session = Session(
            cache=None if directory is None else Cache(directory, cap),
            limits=Limits(source.threads, source.memory or Limits().memory),
            warn=lambda text: self.post(messages.Warned(text)),
            tell=lambda working: self.post(messages.Computing(working)),
        )
        job = Job(session, numbering=numbering(source.ranks), step_range=source.step_range)
        self.post(messages.JobStarted(job, paths))
        self.go_on(job, list(enumerate(paths)))

    def go_on(self, job: Job, numbered: Sequence[tuple[int, Path]]) -> None:
        """Loads the given exports into ``job``; the numbers keep the order of the command line."""
        from nsystui.store.machine import step_back

        room = job.session.room
        opened = [(number, path, found) for number, path in numbered if (found := self._open(path, room)) is not None]
        sampling = threading.Thread(target=self._sample, args=(job, [found for _, _, found in opened]), daemon=True)
        sampling.start()
        threads = max(self.source.threads, 1)
        with ThreadPoolExecutor(threads, thread_name_prefix="load", initializer=step_back) as pool:
            list(pool.map(lambda item: self._add(job, *item), opened))
        sampling.join()
        self._align(job)
        self.post(messages.LoadingEnded(self._stopped.is_set()))
        self._remember(job)

    def _align(self, job: Job) -> None:
        """Makes the clocks one, which takes all reports; without it they go by UTC."""
        from nsystui.questions.alignment import ClockMode

        if len(job.session.reports) > 1 and not self._stopped.is_set():
            try:
                job.align(ClockMode(self.source.clock))
            except NsystuiError as error:
                self.post(messages.Warned(f"the clocks go by UTC alone: {error}"))

    def _remember(self, job: Job) -> None:
        """Keeps the first answers for the commands; what does not work out only costs them time."""
        from nsystui.questions.remembered import remember_first_questions

        cache = job.session.cache
        if cache is not None and not self._stopped.is_set():
            with suppress(ExportError, OSError):
                remember_first_questions(job, cache, [report.path for report in job.session.reports])

    def _open(self, path: Path, room: Room) -> Opened | JobReport | None:
        from nsystui.exports.convert import is_report
        from nsystui.store.opened import look_at

        if self._stopped.is_set():
            return None
        export = path
        try:
            if is_report(path) and self.source.convert and self.source.conversion_directory is not None:
                export = _converted(path, self.source.conversion_directory, room)
            opened = look_at(export)
        except ExportError as error:
            self.post(messages.ExportFailed(path, _reason(error)))
            return None
        self.post(messages.ExportOpened(path, opened))
        return opened

    def _sample(self, job: Job, opened: Sequence[Opened | JobReport]) -> None:
        """A sampled kernel table of what is not packed yet; nothing where everything is."""
        from nsystui.questions.sample import sampled_kernels
        from nsystui.store.opened import Opened

        cache = job.session.cache
        exports = [item for item in opened if isinstance(item, Opened)]
        fresh = [item for item in exports if cache is None or cache.find(item.path) is None]
        for answer in sampled_kernels(fresh):
            if self._stopped.is_set() or job.session.reports:
                return
            self.post(messages.SampleTaken(answer))

    def _add(self, job: Job, number: int, path: Path, opened: Opened | JobReport) -> None:
        from nsystui.store.pack import PackingCancelled, Progress

        def report(progress: Progress) -> None:
            self.post(messages.Advanced(path, progress.table, progress.rows, progress.total))

        if self._stopped.is_set():
            return
        try:
            added = job.session.add(opened.path, report, self._stopped.is_set, number)
        except PackingCancelled:
            return
        except ExportError as error:
            self.post(messages.ExportFailed(path, _reason(error)))
        except NsystuiError as error:
            self.post(messages.ExportFailed(path, str(error)))
        else:
            self.post(messages.ReportReady(path, added))


def _converted(report: Path, directory: Path, room: Room) -> Path:
    """The export that ``nsys`` makes of a report, in a thread whose low priority it gets too."""
    from nsystui.exports.convert import convert, export_of
    from nsystui.store.cache_directory import size_of
    from nsystui.store.machine import step_back

    room.use(export_of(report, directory).parent)
    with ThreadPoolExecutor(1, initializer=step_back) as pool:
        export = pool.submit(convert, report, directory).result()
    room.make(size_of(export.parent))
    return export


def _reason(error: ExportError) -> str:
    return error.cause + (f" ({error.advice})" if error.advice else "")
