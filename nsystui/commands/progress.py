"""Progress of a command: a line on stderr, only on a terminal, removed before the answer."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nsystui.base.errors import ExportError, NsystuiError
from nsystui.base.text import safe_text
from nsystui.questions.job.opening import Listener

if TYPE_CHECKING:
    from rich.progress import Progress as Drawing

    from nsystui.store.packing import Progress
    from nsystui.store.report import Report
    from nsystui.store.session import Computation

_PATIENCE = 0.5
"""Seconds before the first drawing: a quick command must not import rich."""
_SECONDS_BETWEEN = 0.2
_SILENCE = 1.0
"""Seconds without drawing after which the line shows the current computation."""


class ProgressLine:
    """A line that is redrawn, with a bar if ``total`` bytes are known; a context manager that clears it at its end.

    ``head`` precedes every text.
    """

    head = ""
    _current = ""
    _shown = ""

    def __init__(self, total: int | None = None) -> None:
        self._total = total
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._first = self._due = time.monotonic() + _PATIENCE
        self._drawn = time.monotonic()
        self._waiting: list[str] = []
        self._drawing: Drawing | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, describe: Callable[[], str], done: int = 0, is_new: bool = False) -> None:
        """Draw the text of ``describe`` and a bar of ``done``, at most 5 times a second unless the work ``is_new``."""
        with self._lock:
            now = time.monotonic()
            if not self._is_terminal or now < (self._first if is_new else self._due):
                return
            self._due, self._drawn = now + _SECONDS_BETWEEN, now
            if self._drawing is None:
                self._drawing = _drawing(self._total)
                self._drawing.start()
            (task,) = self._drawing.task_ids
            self._drawing.update(task, description=safe_text(self.head + describe(), ascii=True), completed=done)
            self._drawing.refresh()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Draw the current computation (by default ``what``) and its time, after each second without drawing.

        In nested contexts, the innermost names the computation, and the outermost measures the time.
        """
        self._waiting.append(what)
        done, start = threading.Event(), time.monotonic()

        def tick() -> None:
            while not done.wait(_SECONDS_BETWEEN):
                self._show_waiting(start)

        ticker = threading.Thread(target=tick, name="progress", daemon=True)
        is_outer = self._is_terminal and len(self._waiting) == 1
        if is_outer:
            ticker.start()
        try:
            yield
        finally:
            if is_outer:
                done.set()
                ticker.join()
                self.clear()
            self._waiting.pop()

    def _show_waiting(self, start: float) -> None:
        with self._lock:
            now = time.monotonic()
            if now - max(self._drawn, start) >= _SILENCE:
                words = f"computing {self._shown or self._waiting[-1]}, {now - start:.0f} s"
                self.show(lambda: words, is_new=True)

    def show_computing(self, computation: Computation | None) -> None:
        """Draw a computation, or clear the line after it."""
        if computation is None:
            self.clear()
        else:
            is_new, self._current, self._shown = computation.what != self._current, computation.what, str(computation)
            self.show(lambda: f"computing {computation}", is_new=is_new)

    def clear(self) -> None:
        with self._lock:
            self._shown = ""
            if self._drawing is not None:
                self._drawing.stop()
                self._drawing = None


def _drawing(total: int | None) -> Drawing:
    """Return a display of one task that draws only on request, in the requesting thread."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
    from rich.table import Column

    class CursorStays(Console):
        """A console that never hides the cursor, because a killed program cannot show it again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    columns: list[ProgressColumn] = []
    if total:
        columns = [BarColumn(20), TaskProgressColumn()]
    one_line = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns.append(TextColumn("{task.description}", markup=False, table_column=one_line))
    drawing = Progress(
        *columns,
        console=CursorStays(file=sys.stderr),
        auto_refresh=False,
        transient=True,
        expand=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    drawing.add_task("", total=total)
    return drawing


class OpeningProgress(Listener):
    """The progress of opening exports, on a line; ``complain`` receives lines that stay on the terminal."""

    def __init__(self, line: ProgressLine, complain: Callable[[str], object]) -> None:
        self._line, self._complain = line, complain
        self._files, self._ready = 1, 0
        self._done: dict[Path, Progress] = {}
        self._lock = threading.Lock()

    def started(self, files: int) -> None:
        self._files = files

    def ready(self, path: Path, report: Report) -> None:
        with self._lock:
            self._ready += 1
            self._line.show(lambda: f"opening file {self._ready:,} of {self._files:,}")

    def advanced(self, path: Path, progress: Progress) -> None:
        with self._lock:
            self._done[progress.path] = progress
            self._line.show(lambda: self._text(progress))

    def failed(self, path: Path, error: NsystuiError) -> None:
        """Raise errors that concern more than a single file."""
        if not isinstance(error, ExportError):
            raise error

    def warned(self, text: str) -> None:
        self._line.clear()
        self._complain(f"warning: {text}")

    def computing(self, working: Computation | None) -> None:
        self._line.show_computing(working)

    def _text(self, current: Progress) -> str:
        rows = sum(progress.rows for progress in self._done.values())
        file = f"file {len(self._done)} of {self._files}" if self._files > 1 else "file"
        share = current.rows / current.total if current.total else 1.0
        return f"reading {file}  {share:4.0%} of {current.path.name}  {rows:,} rows"
