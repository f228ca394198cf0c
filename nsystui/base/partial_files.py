"""Files being written: their temporary names tell whether the process that writes them is still alive, so that those
of killed processes can be removed. And a check that nobody else can have written to a directory.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

PARTIAL = ".partial-"
"""How the names of what is being written begin."""

# Of a process elsewhere nobody can say whether it lives.
_STALE_SECONDS = 24 * 3600
_NAME = re.compile(re.escape(PARTIAL) + r"([0-9a-f]{8})-([0-9]+)-")


def partial_name(ending: str = "") -> str:
    """A new name for what this process writes."""
    return f"{PARTIAL}{_here()}-{os.getpid()}-{uuid4().hex[:8]}{ending}"


def is_abandoned(path: Path) -> bool:
    """Whether the process that wrote it is gone, or has left it alone for a day. Raises OSError where it is gone."""
    name = _NAME.match(path.name)
    if name is not None and name[1] == _here() and not _is_alive(int(name[2])):
        return True
    return time.time() - path.stat().st_mtime > _STALE_SECONDS


def drop_abandoned(directory: Path) -> None:
    """Removes what killed processes left half-written in a directory. Never raises: others may be at it as well."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if _NAME.match(entry.name)]
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            if is_abandoned(directory / name):
                remove(directory / name)


def remove(path: Path) -> None:
    """Removes a file or a directory with all in it, as far as that goes."""
    with suppress(OSError):
        if path.is_dir() and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


@functools.cache
def _here() -> str:
    """A text that tells the processes of this machine since it started, in this container, from all others."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256(" ".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere this would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


def why_not_ours(directory: Path) -> str:
    """Why what lies in a directory may be somebody else's work; empty where it may not, or where there is none.

    A directory that others can write to is neither believed nor added to.

    Root's counts as the user's, since root may do anything anywhere; a group's is what the user made it.
    """
    try:
        status = os.stat(directory)
    except OSError:
        return "it is a link that leads nowhere" if os.path.islink(directory) else ""
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory: name one with NSYSTUI_CACHE_DIR"
    if not hasattr(os, "getuid"):  # Windows has neither owners nor modes of this kind
        return ""
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user, number {status.st_uid}"
    if status.st_mode & stat.S_IWOTH:
        return "every user can write to it; chmod o-w makes it yours"
    return ""
