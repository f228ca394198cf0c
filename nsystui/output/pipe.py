"""Standard output, whose reader may leave before the end. Imports next to nothing: `--version` is printed with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from nsystui.base.errors import OutputError

SIGPIPE_STATUS = 141
"""The exit status that a shell reports for a program ended by SIGPIPE (128 + 13)."""


@contextmanager
def quiet_pipe() -> Iterator[TextIO]:
    """``sys.stdout`` to write to; when its reader is gone (``| head``), the program ends with status 141, silently.

    Flushes at the end, because a full disk shows only then. Raises ``OutputError`` if stdout cannot be written to,
    ``SystemExit`` if nobody reads it.
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
            raise SystemExit(SIGPIPE_STATUS) from None
        raise OutputError(f"cannot write to standard output: {error.strerror or error}") from error
