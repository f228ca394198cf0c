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

from nsystui.errors import ExportError, NsystuiError
from nsystui.ui import messages

if TYPE_CHECKING:
    from nsystui.analysis.job import Job
    from nsystui.store.opened import Opened


@dataclass(frozen=True)
class Source:
    """What the command line asked to open, and how. ``cache_directory`` is ``None`` for memory only."""

    files: tuple[str, ...]
    cache_directory: Path | None = None
    threads: int = 2
    convert: bool = False
    conversion_directory: Path | None = None


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
        from nsystui.analysis.job import Job
        from nsystui.exports.discover import discover
        from nsystui.store.cache import Cache
        from nsystui.store.database import Limits
        from nsystui.store.session import Session

        paths = tuple(discover(self.source.files))
        directory = self.source.cache_directory
        session = Session(
            cache=None if directory is None else Cache(directory),
            limits=Limits(threads=self.source.threads),
            warn=lambda text: self.post(messages.Warned(text)),
        )
        job = Job(session)
        self.post(messages.JobStarted(job, paths))
        self.go_on(job, list(enumerate(paths)))

    def go_on(self, job: Job, numbered: Sequence[tuple[int, Path]]) -> None:
        """Loads the given exports into ``job``; the numbers keep the order of the command line."""
        opened = [(number, path, found) for number, path in numbered if (found := self._open(path)) is not None]
        sampling = threading.Thread(target=self._sample, args=(job, [found for _, _, found in opened]), daemon=True)
        sampling.start()
        with ThreadPoolExecutor(max_workers=max(self.source.threads, 1), thread_name_prefix="load") as pool:
            list(pool.map(lambda item: self._add(job, *item), opened))
        sampling.join()
        self.post(messages.LoadingEnded(self._stopped.is_set()))
        self._remember(job)

    def _remember(self, job: Job) -> None:
        """Keeps the first answers for the commands; what does not work out only costs them time."""
        from nsystui.analysis.remembered import remember_first_questions

        cache = job.session.cache
        if cache is not None and not self._stopped.is_set():
            with suppress(ExportError, OSError):
                remember_first_questions(job, cache, [report.path for report in job.session.reports])

    def _open(self, path: Path) -> Opened | None:
        from nsystui.exports.convert import convert, is_report
        from nsystui.store.opened import open_export

        if self._stopped.is_set():
            return None
        export = path
        try:
            if is_report(path) and self.source.convert and self.source.conversion_directory is not None:
                export = convert(path, self.source.conversion_directory)
            opened = open_export(export)
        except ExportError as error:
            self.post(messages.ExportFailed(path, _reason(error)))
            return None
        self.post(messages.ExportOpened(path, opened))
        return opened

    def _sample(self, job: Job, opened: Sequence[Opened]) -> None:
        """A sampled kernel table of what is not packed yet; nothing where everything is."""
        from nsystui.analysis.sample import sampled_kernels

        cache = job.session.cache
        fresh = [item for item in opened if cache is None or cache.find(item.path) is None]
        for answer in sampled_kernels(fresh):
            if self._stopped.is_set() or job.session.reports:
                return
            self.post(messages.SampleTaken(answer))

    def _add(self, job: Job, number: int, path: Path, opened: Opened) -> None:
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


def _reason(error: ExportError) -> str:
    return error.cause + (f" ({error.advice})" if error.advice else "")
