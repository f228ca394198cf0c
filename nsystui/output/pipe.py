"""Standard output whose reader may close it early. Imports almost nothing, because `--version` uses it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from nsystui.base.errors import OutputError


@contextmanager
def quiet_pipe() -> Iterator[TextIO]:
    """Yield ``sys.stdout``; if its reader closes it (``| head``), end the program silently with status 141.

    Flushes at the end, because a full disk shows only then. Raises ``OutputError`` if stdout cannot be written, and
    ``SystemExit`` if its reader is gone.
    """
    stream = sys.stdout
    if stream is None:  # the shell's ">&-"
        raise OutputError("standard output is closed")
    try:
        yield stream
        stream.flush()
    except OSError as error:
        from nsystui.base.terminal import discard_rest

        discard_rest(stream)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(141) from None  # as a shell reports a program that SIGPIPE ended: 128 + 13
        raise OutputError(f"cannot write to standard output: {error.strerror or error}") from error
