"""Files: readers of users' files, and partial files.

Only regular files are read, because a pipe can block and a device has no end. The temporary name of a partial file
identifies the process that writes it, so that files of killed processes can be removed.
"""

import errno
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

PARTIAL = ".partial-"
"""The prefix of temporary names."""

_NAME = re.compile(re.escape(PARTIAL) + r"([0-9a-f]{8})-([0-9]+)-")


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


def partial_name(ending: str = "") -> str:
    """Return a new name for a file that this process writes."""
    return f"{PARTIAL}{_machine_id()}-{os.getpid()}-{uuid4().hex[:8]}{ending}"


def is_abandoned(path: Path) -> bool:
    """Return whether the writing process is dead, or the file unchanged for a day. Raises OSError if it is missing."""
    match = _NAME.match(path.name)
    if match is not None and match[1] == _machine_id() and not _is_alive(int(match[2])):
        return True
    # It is unknown whether a process on another machine is alive.
    return time.time() - path.stat().st_mtime > 24 * 3600


def drop_abandoned(directory: Path, folders: bool = True) -> None:
    """Remove the partial files, and ``folders``, of killed processes. Never raises: other processes may do the same."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if _NAME.match(entry.name)]
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            if is_abandoned(directory / name) and (folders or not (directory / name).is_dir()):
                remove(directory / name)


def remove(path: Path) -> None:
    """Remove a file or a directory tree, as far as possible."""
    with suppress(OSError):
        if path.is_dir() and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


@functools.cache
def _machine_id() -> str:
    """Return an id of this machine since its boot, and of this container."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256(" ".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def why_not_ours(directory: Path) -> str:
    """Return why another user may have written into a directory; empty if not, or if it does not exist.

    A directory that others can write to is neither read nor written. Root's directories count as the user's, because
    root can write anywhere; a group's permissions are the user's choice.
    """
    try:
        status = os.stat(directory)
    except OSError:
        return "it is a broken link" if os.path.islink(directory) else ""
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory: name one with NSYSTUI_CACHE_DIR"
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user, number {status.st_uid}"
    if status.st_mode & stat.S_IWOTH:
        return "every user can write to it; chmod o-w makes it yours"
    return ""
