"""Opening the exports behind the screens: first what they say of themselves, then a sample, then every row.

Runs in threads: nothing of it passes rows through Python, so the screens stay responsive. Heavy imports happen here,
after the first window is painted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from nsystui.base.errors import ExportError, NsystuiError
from nsystui.questions.opening import Export, Listener, Opener, Source
from nsystui.ui import messages

if TYPE_CHECKING:
    from nsystui.questions.job import Job
    from nsystui.store.packing import Progress
    from nsystui.store.report import Report
    from nsystui.store.session import Computation


class _Messages(Listener):
    """Passes on what it hears as messages."""

    def __init__(self, post: Callable[[Message], object]) -> None:
        self._post = post

    def advanced(self, path: Path, progress: Progress) -> None:
        self._post(messages.Advanced(path, progress.table, progress.rows, progress.total))

    def ready(self, path: Path, report: Report) -> None:
        self._post(messages.ReportReady(path, report))

    def failed(self, path: Path, error: NsystuiError) -> None:
        self._post(messages.ExportFailed(path, _reason(error)))

    def warned(self, text: str) -> None:
        self._post(messages.Warned(text))

    def computing(self, working: Computation | None) -> None:
        self._post(messages.Computing(working))


class Loading:
    """One run of the loading; ``post`` must be safe to call from threads."""

    def __init__(self, source: Source, post: Callable[[Message], object]) -> None:
        self.source = source
        self._post = post
        self._opener = Opener(source, _Messages(post))

    def stop(self) -> None:
        """Ends the loading as soon as the current chunk is read; what is ready stays."""
        self._opener.stop()

    def start(self) -> None:
        """Discovers the files and loads them all. Blocks: call it in a thread."""
        job, exports = self._opener.start()
        paths = tuple(export.path for export in exports)
        self._post(messages.JobStarted(job, paths))
        self.go_on(job, list(enumerate(paths)))

    def go_on(self, job: Job, numbered: Sequence[tuple[int, Path]]) -> None:
        """Loads the given exports into ``job``; the numbers keep the order of the command line."""
        opened = [found for number, path in numbered if (found := self._looked_at(job, Export(number, path)))]
        sampling = threading.Thread(target=self._sample, args=(job, opened), daemon=True)
        sampling.start()
        self._opener.add(job, opened)
        sampling.join()
        self._align(job)
        self._post(messages.LoadingEnded(self._opener.is_stopped))
        self._remember(job)

    def _looked_at(self, job: Job, export: Export) -> Export | None:
        found = self._opener.look_at(job, export)
        if found is not None and found.opened is not None:
            self._post(messages.ExportOpened(found.path, found.opened))
        return found

    def _align(self, job: Job) -> None:
        """Makes the clocks one, which takes all reports; without it they go by UTC."""
        try:
            self._opener.align(job)
        except NsystuiError as error:
            self._post(messages.Warned(f"the clocks go by UTC alone: {error}"))

    def _remember(self, job: Job) -> None:
        """Keeps the first answers for the commands; what does not work out only costs them time."""
        from nsystui.questions.remembered import remember_first_questions

        cache = job.session.cache
        if cache is not None and not self._opener.is_stopped:
            with suppress(ExportError, OSError):
                remember_first_questions(job, cache, [report.path for report in job.session.reports])

    def _sample(self, job: Job, opened: Sequence[Export]) -> None:
        """A sampled kernel table of what is not packed yet; nothing where everything is."""
        from nsystui.questions.sample import sampled_kernels
        from nsystui.store.opened import Opened

        cache = job.session.cache
        exports = [export.opened for export in opened if isinstance(export.opened, Opened)]
        fresh = [item for item in exports if cache is None or cache.find(item.path) is None]
        for answer in sampled_kernels(fresh):
            if self._opener.is_stopped or job.session.reports:
                return
            self._post(messages.SampleTaken(answer))


def _reason(error: NsystuiError) -> str:
    if not isinstance(error, ExportError):
        return str(error)
    return error.cause + (f" ({error.advice})" if error.advice else "")
