"""What a file is, by its first bytes: a log of NCCL or an export of nsys. Its name proves neither."""

from __future__ import annotations

import os
import re
import stat
from enum import Enum
from pathlib import Path

from nsystui.base.errors import ExportError
from nsystui.exports.nccl_log.files import open_log
from nsystui.exports.packed_job import is_packed_report

LOOKED_AT = 4 * 1024 * 1024
"""Bytes of a file that may come before the first line of NCCL: containers and frameworks say a lot when they begin."""

_HEADS_OF_NSYS = (b"SQLite format 3", b"QUADD")
# NCCL and RCCL (which mostly calls itself NCCL), and NeMo's iterations, which have a table too.
_LINE = re.compile(rb"\b[NR]CCL (?:INFO|TRACE|WARN|CALL|version) |Training epoch \d+, iteration \d+/")
_LONGEST_WORDS = 128
_PIECE = 256 * 1024


class FileKind(Enum):
    """What the screens can open."""

    EXPORT = "an export of nsys"
    LOG = "a log of NCCL"


def kind_of(name: str) -> FileKind | None:
    """What the file is: a report of nsys, packed or not, counts as an export; ``None`` for anything else.

    Reads a few bytes of an export, and of a log as far as the first line of NCCL, at most `LOOKED_AT` bytes. What
    cannot be read is nothing, nor is a pipe looked into: what is read of it is gone.
    """
    if is_packed_report(Path(name)):
        return FileKind.EXPORT
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):
            return None
        with open(name, "rb") as file:
            head = file.read(max(map(len, _HEADS_OF_NSYS)))
    except (OSError, ValueError):  # a name with a NUL in it is a ValueError
        return None
    if head.startswith(_HEADS_OF_NSYS):
        return FileKind.EXPORT
    return FileKind.LOG if _has_lines(name) else None


def _has_lines(name: str) -> bool:
    """Whether a line of a log stands in the first `LOOKED_AT` bytes, unpacked."""
    try:
        with open_log(name) as log:
            seen, rest = 0, b""
            while seen < LOOKED_AT and (piece := log.read(_PIECE)):
                if _LINE.search(rest + piece):
                    return True
                seen += len(piece)
                rest = piece[-_LONGEST_WORDS:]  # the words may lie across two pieces
    except ExportError:
        return False
    return False
