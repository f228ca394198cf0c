"""Reads the files that users name: regular files only, because a pipe can block and a device does not end."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any

_CONTROL_BYTES = 64 << 20


def opened(path: str | os.PathLike[str], buffering: int = -1, is_pipe_allowed: bool = False) -> Any:
    """Opens a regular file as ``open(path, "rb", buffering)`` does. Raises OSError for anything else.

    With ``is_pipe_allowed`` also opens a pipe, which is at its end if nobody has it open for writing.
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


def text_of(path: str | os.PathLike[str], most: int = _CONTROL_BYTES) -> str:
    """The text of a file. Raises OSError, also where it has more than ``most`` bytes, and UnicodeDecodeError."""
    with opened(path) as file:
        data: bytes = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", os.fspath(path))
    return data.decode()


def json_in(text: str | bytes) -> Any:
    """The value that JSON text states. Raises ValueError also where it is nested too deep or a number is too long."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deep") from None
