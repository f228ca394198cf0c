"""A bar on stderr for a command that reads files for a while: only on a terminal, gone when the answer comes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nsystui.base import terminal
from nsystui.base.errors import ExportError, NsystuiError
from nsystui.base.text import safe_text
from nsystui.base.units import format_value
from nsystui.questions.opening import Listener

if TYPE_CHECKING:
    from nsystui.store.packing import Progress
    from nsystui.store.session import Computation

_SECONDS_BETWEEN = 0.2
_CELLS = 20


class StatusLine:
    """A line on stderr that is drawn over."""

    def __init__(self) -> None:
        self._drawn = 0.0
        self._width = 0
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()

    def say(self, make: Callable[[], str]) -> None:
        """Draws what ``make`` gives; seldom, as it is called for every block."""
        now = time.monotonic()
        if not self._is_shown or now - self._drawn < _SECONDS_BETWEEN:
            return
        self._drawn = now
        line = safe_text(make(), ascii=True)[: max(terminal.text_width() - 1, 0)]
        # Blanks over the rest of the last line instead of an escape sequence: any terminal knows them.
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def tell(self, working: Computation | None) -> None:
        """Draws what a session is busy with, or takes the line away when it no longer is."""
        if working is None:
            self.clear()
        else:
            self.say(lambda: f"computing {working}")

    def clear(self) -> None:
        """Takes the line away."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


class ReadingBar(StatusLine):
    """Draws how far the reading is: with ``total`` bytes known, a bar; else the bytes alone."""

    def __init__(self, total: int | None) -> None:
        super().__init__()
        self._total = total

    def show(self, done: int, name: str) -> None:
        """Draws that ``done`` bytes are read, and which file is."""
        self.say(lambda: self.line(done, name))

    def line(self, done: int, name: str) -> str:
        """The text of the bar, in ASCII."""
        from nsystui.base.columns import Unit

        size = format_value(Unit.BYTES, done)
        file = safe_text(name, ascii=True)
        if not self._total:
            return f"reading {size}  {file}"
        share = min(done / self._total, 1.0)
        filled = int(share * _CELLS)
        bar = "#" * filled + "." * (_CELLS - filled)
        return f"[{bar}] {share:4.0%}  {size} of {format_value(Unit.BYTES, self._total)}  {file}"


Line = TypeVar("Line", bound=StatusLine)


@contextmanager
def shown(line: Line) -> Iterator[Line]:
    """A line that is gone at the end, whatever ends the work."""
    try:
        yield line
    finally:
        line.clear()


def reading_bar(total: int | None) -> AbstractContextManager[ReadingBar]:
    """A bar that is gone at the end, whatever ends the reading."""
    return shown(ReadingBar(total))


class OpeningLine(Listener):
    """Shows on a line how far the opening of exports is; ``complain`` takes what is to stay on the screen."""

    def __init__(self, line: StatusLine, complain: Callable[[str], object]) -> None:
        self._line, self._complain = line, complain
        self._files = 1
        self._done: dict[Path, Progress] = {}
        self._lock = threading.Lock()

    def started(self, files: int) -> None:
        self._files = files

    def advanced(self, path: Path, progress: Progress) -> None:
        with self._lock:
            self._done[progress.path] = progress
            self._line.say(lambda: self._words(progress))

    def failed(self, path: Path, error: NsystuiError) -> None:
        """Only what is wrong with a single file lets the others go on."""
        if not isinstance(error, ExportError):
            raise error

    def warned(self, text: str) -> None:
        self._line.clear()
        self._complain(f"warning: {text}")

    def computing(self, working: Computation | None) -> None:
        self._line.tell(working)

    def _words(self, now: Progress) -> str:
        rows = sum(one.rows for one in self._done.values())
        place = f"file {len(self._done)} of {self._files}" if self._files > 1 else "file"
        share = now.rows / now.total if now.total else 1.0
        return f"reading {place}  {share:4.0%} of {now.path.name}  {rows:,} rows"
