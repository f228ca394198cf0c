"""The logs that the user means, and how they are opened: plain, ``.gz``, or from a pipe, always as a stream.

Whether a file is a log of NCCL or an export of nsys, its first bytes tell: its name proves neither.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from io import BufferedReader
from pathlib import Path
from typing import cast

from nsystui.base.errors import ExportError
from nsystui.base.inputs import opened
from nsystui.base.text import shell_word
from nsystui.exports.discover import expanded, is_packed_report, natural_key

STDIN = "-"
_GZIP = b"\x1f\x8b"
_PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
_SQLITE = b"SQLite format 3"
_RECORD = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING writes one"

_READ_ERRORS = (OSError, EOFError, zlib.error)
"""The errors of reading: the file system, and a ``.gz`` that ends early or is damaged."""


def named(arguments: Iterable[str]) -> list[str]:
    """The logs meant by ``arguments``: each once, since a log read twice counts twice; globs that the shell left alone.

    They come in natural order, so that the output does not depend on the shell; standard input (``-``) comes last.
    Raises UsageError for an empty name, as an unset variable of a script gives.
    """
    found: dict[str, str] = {}
    for name in expanded(arguments):
        found.setdefault(STDIN if name == STDIN else os.path.realpath(name), name)
    return sorted(found.values(), key=lambda name: (name == STDIN, natural_key(name), name))


def size_of(name: str) -> int | None:
    """The bytes of a log as it lies there, 0 where it cannot be looked at; ``None`` for a pipe."""
    if name == STDIN:
        return None
    try:
        status = os.stat(name)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class OpenLog:
    """A log being read. ``position`` is how many bytes of the file are read: packed ones of a ``.gz``."""

    def __init__(self, name: str, file: BufferedReader, stream: BufferedReader | gzip.GzipFile) -> None:
        self.name = name
        self.position = 0
        self._file = file
        self._stream = stream
        self._can_tell = file.seekable()

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes of the log, as many as are at hand; empty at its end.

        Raises ExportError where it cannot be read any further; what came before was given.
        """
        try:
            found = self._stream.read1(size)
        except _READ_ERRORS as error:
            cause = "the .gz ends early" if isinstance(error, EOFError) else f"cannot be read any further: {error}"
            advice = "what comes before is counted; is it still being written, or was it cut short when copied?"
            raise ExportError(self.name, cause, advice) from None
        self.position = self._file.tell() if self._can_tell else self.position + len(found)
        return found


@contextmanager
def open_log(name: str) -> Iterator[OpenLog]:
    """Opens a log, ``-`` for standard input. Raises ExportError for what is no log or cannot be read."""
    if name == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise ExportError("standard input", "nothing to read", "pipe a log into it, or name a file")
        # Typed as any binary stream, it is the buffered one that a process begins with.
        yield _opened("standard input", cast(BufferedReader, sys.stdin.buffer))
        return
    try:
        if os.path.isdir(name):
            raise ExportError(name, "a directory", f"name the logs in it: {shell_word(name.rstrip('/'))}/*.log")
        file = opened(name, is_pipe_allowed=True)
    except FileNotFoundError:
        advice = f"see what is there: ls -l {shell_word(os.path.dirname(name) or '.')}"
        raise ExportError(name, "no such file", advice) from None
    except OSError as error:
        advice = f"check its permissions with ls -l {shell_word(name)}"
        raise ExportError(name, f"cannot be opened: {error.strerror or error}", advice) from None
    with file:
        yield _opened(name, file)


def _opened(name: str, file: BufferedReader) -> OpenLog:
    """The log in ``file``, unpacked if its first bytes say that it is packed, whatever its name."""
    try:
        head = file.peek(len(_SQLITE))
    except OSError as error:
        raise ExportError(name, f"cannot be read: {error.strerror or error}", "is the file system there?") from None
    if not head:
        raise ExportError(name, "it is empty", _RECORD)
    if head.startswith(_SQLITE):
        raise ExportError(name, "an export of nsys, not a log of NCCL", f"nsystui nccl {shell_word(name)}")
    for magic, program in _PACKED.items():
        if head.startswith(magic):
            advice = f"unpack it on the way: {program} -dc {shell_word(name)} | nsystui nccl-log -"
            raise ExportError(name, f"packed with {program}", advice)
    # Closing a GzipFile does not close the file that it reads, so nothing is left open here.
    stream = gzip.GzipFile(fileobj=file, mode="rb") if head.startswith(_GZIP) else file
    return OpenLog(name, file, stream)


LOOKED_AT = 4 * 1024 * 1024
"""Bytes of a file that may come before the first line of NCCL: containers and frameworks say a lot when they begin."""

_HEADS_OF_NSYS = (b"SQLite format 3", b"QUADD")
# NCCL and RCCL (which mostly calls itself NCCL), and the iterations of NeMo and Megatron-LM, which have a table too.
_LINE = re.compile(
    rb"\b[NR]CCL (?:INFO|TRACE|WARN|CALL|version) "
    rb"|Training epoch \d+, iteration \d+/|elapsed time per iteration \(ms\): "
)
_LONGEST_WORDS = 128
_PIECE = 256 * 1024


class FileKind(Enum):
    """The kinds of file that the screens can open."""

    EXPORT = "an export of nsys"
    LOG = "a log of NCCL"


def kind_of(name: str) -> FileKind | None:
    """The kind of a file: a report of nsys, packed or not, counts as an export; ``None`` for anything else.

    Reads a few bytes of an export, and of a log as far as the first line of NCCL, at most `LOOKED_AT` bytes. What
    cannot be read is nothing, nor is a pipe looked into: what is read of it is gone.
    """
    if is_packed_report(Path(name)):
        return FileKind.EXPORT
    try:
        with opened(name) as file:
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
