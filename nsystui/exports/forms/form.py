"""A form of a report: how it is recognised, and how its export is written."""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nsystui.base.errors import ExportError, see_directory
from nsystui.base.files import opened
from nsystui.exports import EXPORT_ENDINGS

Advance = Callable[[float], None]
"""Receives the finished part (0 … 1) from time to time; raises if the user stops the work."""

ELSEWHERE = "NSYSTUI_CACHE_DIR sets another directory for exports"
# A disk with less free space counts as full, bytes.
_LITTLE = 1 << 20


@dataclass(frozen=True)
class Form:
    """A form of a report.

    ``is_of`` recognises a path. ``write`` gets the path and the export's path, and raises ExportError or OSError.
    ``endings`` are removed from the name, which may contain the rank. ``asks``: converted only
    with ``--convert``, because NVIDIA's programs run. ``version`` increases when ``write`` makes other exports.
    """

    what: str
    endings: tuple[str, ...]
    is_of: Callable[[Path], bool]
    write: Callable[[Path, Path, Advance], None]
    asks: bool = False
    version: int = 1

    def name_of(self, path: Path) -> str:
        """Return the report's name: the file's name without the endings of the form and of an export."""
        ending = next((ending for ending in self.endings if path.name.endswith(ending)), "")
        name = path.name.removesuffix(ending)
        return os.path.splitext(name)[0] if name.endswith(EXPORT_ENDINGS) else name or path.stem


def identity_of(path: Path, version: int) -> str:
    """Return a hash that changes with a report, any file of a directory, and ``version``.

    Raises ExportError if the report does not exist.
    """
    try:
        is_directory = os.path.isdir(path)
        files = sorted(os.scandir(path), key=lambda entry: entry.name) if is_directory else [path]
        if not is_directory:
            opened(path).close()
        states = []
        for file in files:
            status = file.stat()
            states.append(f"{file.name}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}")
    except OSError as error:
        raise ExportError(str(path), error.strerror or str(error), see_directory(str(path))) from None
    text = "|".join([str(version), os.path.realpath(path), *states])
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def is_full(path: Path) -> bool:
    """Return whether the disk of a file has no space left."""
    try:
        return shutil.disk_usage(path.parent).free < _LITTLE
    except OSError:
        return False
