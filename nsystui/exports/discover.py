"""Which files the user means: names, directories and globs turned into a list of paths in natural order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

EXPORT_ENDINGS = (".sqlite", ".sqlite3", ".db")
REPORT_ENDINGS = (".nsys-rep", ".qdrep", ".qdstrm")


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """A sort key under which ``rank2`` comes before ``rank10``."""
    return [(0, int(part)) if part.isdigit() else (1, part.lower()) for part in re.split(r"(\d+)", name) if part]


def discover(arguments: Iterable[str]) -> list[Path]:
    """The files meant by ``arguments``, in natural order and without doubles.

    A directory stands for every export in it (not below it); a name that does not exist but has glob characters is
    taken as a glob (the shell leaves it alone when quoted). A name that does not exist stays in the list, so that
    opening it says so.
    """
    found: dict[str, Path] = {}
    for argument in arguments:
        for path in _expand(argument):
            found.setdefault(os.path.realpath(path), path)
    return sorted(found.values(), key=lambda path: natural_key(str(path)))


def _expand(argument: str) -> list[Path]:
    path = Path(argument)
    if path.is_dir():
        return _exports_in(path)
    if not os.path.lexists(path) and glob.has_magic(argument):
        return [Path(match) for match in glob.glob(argument)] or [path]
    return [path]


def _exports_in(directory: Path) -> list[Path]:
    """The exports of a directory; where it has none, its reports (so that the user is told how to export them)."""
    try:
        names = sorted(os.listdir(directory), key=natural_key)
    except OSError:
        return [directory]
    exports = [directory / name for name in names if name.endswith(EXPORT_ENDINGS)]
    reports = [directory / name for name in names if name.endswith(REPORT_ENDINGS)]
    return exports or reports or [directory]
