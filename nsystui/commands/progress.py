"""Progress of a command: a line on stderr, only on a terminal, removed before the answer."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nsystui.base.errors import ExportError, NsystuiError
from nsystui.base.terminal import size
from nsystui.base.text import safe_text
from nsystui.questions.job.opening import Listener

if TYPE_CHECKING:
    from nsystui.store.packing import Progress
    from nsystui.store.report import Report
    from nsystui.store.session import Computation

_PATIENCE = 0.5
"""Seconds before the first drawing."""
_SECONDS_BETWEEN = 0.2
_BAR = 20  # cells
_SILENCE = 1.0
"""Seconds without drawing after which the line shows the current computation."""


class ProgressLine:
    """A line that is redrawn, with a bar if ``total`` bytes are known; a context manager that clears it at its end.

    ``head`` precedes every text.
    """

    head = ""
    _current = ""
    _shown = ""
    _is_drawn = False

    def __init__(self, total: int | None = None) -> None:
        self._total = total
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._first = self._due = time.monotonic() + _PATIENCE
        self._drawn = time.monotonic()
        self._waiting: list[str] = []
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
            self._due, self._drawn, self._is_drawn = now + _SECONDS_BETWEEN, now, True
            share = min(done / self._total, 1.0) if self._total else 0.0
            bar = f"[{'#' * int(share * _BAR):{_BAR}}] {share:4.0%} " if self._total else ""
            # In ASCII, and shorter than a line, which would wrap. The cursor stays visible: a killed program could not
            # show it again.
            self._write((bar + safe_text(self.head + describe(), ascii=True))[: size(2)[0] - 1])

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
            if self._is_drawn:
                self._is_drawn = False
                self._write("")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()


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
