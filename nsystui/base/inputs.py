"""Readers of users' files: only regular files, because a pipe can block and a device has no end."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any


def opened(path: str | os.PathLike[str], buffering: int = -1, is_pipe_allowed: bool = False) -> Any:
    """Open a regular file like ``open(path, "rb", buffering)``. Raises OSError for any other kind of file.

    With ``is_pipe_allowed``, also opens a pipe, which is empty if no process has it open for writing.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if is_pipe_allowed and stat.S_ISFIFO(mode):
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(mode):
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "not a regular file", os.fspath(path))
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb", buffering)


def text_of(path: str | os.PathLike[str], limit: int = 64 << 20) -> str:
    """Return the text of a file. Raises UnicodeDecodeError, or OSError, also if it exceeds ``limit`` bytes."""
    with opened(path) as file:
        data: bytes = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit:,} bytes", os.fspath(path))
    return data.decode()


def json_in(text: str | bytes) -> Any:
    """Parse JSON text. Raises ValueError, also if values are nested too deep or a number is too long."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deep") from None
