"""A line of progress on stderr for a command that works for a while: only on a terminal, gone when the answer comes."""

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
"""Seconds before the first drawing: a quick command shall not import rich."""
_SECONDS_BETWEEN = 0.2
_SILENCE = 1.0
"""Seconds without any drawing after which the line says what is going on."""


class ProgressLine:
    """A line that is drawn over; with ``total`` bytes known, a bar as well. A context: gone at its end.

    ``head`` stands before every text.
    """

    head = ""
    _computed = ""
    _told = ""

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
        """Draws the text that ``describe`` returns, and ``done`` of the total; seldom unless ``is_new`` work begins."""
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
        """Draws what is computed, ``what`` if nobody tells more, and for how long, after each second without a drawing.

        Of a context in another one it is the name; the time is that of the outer one.
        """
        self._waiting.append(what)
        done, begun = threading.Event(), time.monotonic()

        def tick() -> None:
            while not done.wait(_SECONDS_BETWEEN):
                self._show_waiting(begun)

        ticking = threading.Thread(target=tick, name="progress", daemon=True)
        is_outer = self._is_terminal and len(self._waiting) == 1
        if is_outer:
            ticking.start()
        try:
            yield
        finally:
            if is_outer:
                done.set()
                ticking.join()
                self.clear()
            self._waiting.pop()

    def _show_waiting(self, begun: float) -> None:
        with self._lock:
            now = time.monotonic()
            if now - max(self._drawn, begun) >= _SILENCE:
                words = f"computing {self._told or self._waiting[-1]}, {now - begun:.0f} s"
                self.show(lambda: words, is_new=True)

    def show_computing(self, working: Computation | None) -> None:
        """Draws what a session computes, or clears the line when it is done."""
        if working is None:
            self.clear()
        else:
            is_new, self._computed, self._told = working.what != self._computed, working.what, str(working)
            self.show(lambda: f"computing {working}", is_new=is_new)

    def clear(self) -> None:
        """Takes the line away."""
        with self._lock:
            self._told = ""
            if self._drawing is not None:
                self._drawing.stop()
                self._drawing = None


def _drawing(total: int | None) -> Drawing:
    """A display of one task that draws only when told to, in the thread that tells it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
    from rich.table import Column

    class CursorStays(Console):
        """A killed program cannot show the cursor again, so it is never hidden."""

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
    """Shows on a line how far the opening of exports is; ``complain`` takes what is to stay on the terminal."""

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
        """Raises what concerns more than a single file."""
        if not isinstance(error, ExportError):
            raise error

    def warned(self, text: str) -> None:
        self._line.clear()
        self._complain(f"warning: {text}")

    def computing(self, working: Computation | None) -> None:
        self._line.show_computing(working)

    def _text(self, now: Progress) -> str:
        rows = sum(one.rows for one in self._done.values())
        file = f"file {len(self._done)} of {self._files}" if self._files > 1 else "file"
        share = now.rows / now.total if now.total else 1.0
        return f"reading {file}  {share:4.0%} of {now.path.name}  {rows:,} rows"
