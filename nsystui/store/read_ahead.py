"""Tells the system which part of an export is read next, so that it comes in large pieces.

SQLite asks for pages of 4 KB, one after the other; on a network file system each would be a round trip of its own. The
rows are read band by band through the file, so what lies ahead is known.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_AHEAD = 32 << 20


class ReadAhead:
    """Reads ahead in one file; a context manager. Does nothing where the system does not know how."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._size = 0
        self._done = 0
        self._lock = threading.Lock()

    def __enter__(self) -> ReadAhead:
        with suppress(OSError):
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._size = os.fstat(self._descriptor).st_size
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def reach(self, part: float) -> None:
        """What lies up to ``part`` (0 … 1) of the file is read now, and a little more soon; no part twice."""
        with self._lock:
            end = min(int(part * self._size) + _AHEAD, self._size)
            if self._descriptor < 0 or end <= self._done or not hasattr(os, "posix_fadvise"):
                return
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, self._done, end - self._done, os.POSIX_FADV_WILLNEED)
            self._done = end
