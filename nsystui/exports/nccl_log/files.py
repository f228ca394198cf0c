"""The logs that the user means, how they are opened, and the lines of nccl-tests and training frameworks in them.

Whether a file is a log of NCCL or an export of nsys, its first bytes tell: its name proves neither.

The results that nccl-tests prints between NCCL's own lines: size, times and rates, out of place and in place.

The lines in which training frameworks report an iteration: NeMo, Megatron-LM, PyTorch Lightning, DeepSpeed.
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
from dataclasses import dataclass
from enum import Enum
from io import BufferedReader
from math import isfinite
from pathlib import Path
from typing import NamedTuple, cast

from nsystui.base.errors import ExportError, MissingFileError
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
        raise MissingFileError(name, "no such file", advice) from None
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


_HEADER = b"#wrong"
_RESULT_LINE = re.compile(rb"^[ \t]+[0-9][^\n]*", re.MULTILINE)
_SIZE = re.compile(rb"[ \t]+([0-9]{1,15})[ \t]+[0-9]+[ \t]+[a-z]\w*[ \t]+[a-z]+[ \t]+-?[0-9]+")
_RATE = rb"[ \t]+([0-9]{1,9}\.[0-9]+)"
_TIME = re.compile(rb"[ \t]+([0-9]{1,12}(?:\.[0-9]+)?)" + _RATE + _RATE + rb"[ \t]+(N/A|[0-9]{1,18})")


class NcclTestsResult(NamedTuple):
    """One measurement: ns for one call, algorithm and bus bandwidth in bytes per second, as they are printed.

    ``wrong``: how many results were, ``None`` where they were not checked.
    """

    time: float
    algbw: float
    busbw: float
    wrong: int | None = None


class Reported(NamedTuple):
    """What nccl-tests measured of one size: bytes as it counts them."""

    size: int
    out_of_place: NcclTestsResult
    in_place: NcclTestsResult


class ResultReader:
    """Collects the results from a log's lines, some at a time.

    NCCL's own lines may stand between the size and the times of a result, glued to them.
    """

    def __init__(self) -> None:
        self.found: list[Reported] = []
        self._has_header = False
        self._size: int | None = None
        self._times: list[NcclTestsResult] = []

    def take(self, block: bytes) -> None:
        """Reads whole lines."""
        self._has_header = self._has_header or _HEADER in block
        if self._has_header:
            for line in _RESULT_LINE.findall(block):
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        head, place = _SIZE.match(line), 0
        if head is not None:
            self._size, self._times, place = int(head[1]), [], head.end()
        while self._size is not None and (found := _TIME.match(line, place)):
            place = found.end()
            wrong = None if found[4] == b"N/A" else int(found[4])
            self._times.append(
                NcclTestsResult(1e3 * float(found[1]), 1e9 * float(found[2]), 1e9 * float(found[3]), wrong)
            )
            if len(self._times) == 2:
                self.found.append(Reported(self._size, *self._times))
                self._size = None


STEP_WORDS = (
    b"Training epoch",
    b"elapsed time per iteration",
    b"Epoch ",
    b"iter time (s)",
    b"global_step=",
    b", skipped=",
)
"""A line that reports an iteration has one of these."""

# Epoch and iteration, as NeMo, Lightning's progress bar, Megatron-LM and DeepSpeed (three lines) print them.
_STEP = re.compile(
    rb"Training epoch\s+(\d{1,18}),\s*iteration\s+(\d{1,18})/"
    rb"|\bEpoch (\d{1,18}):[^|\r\n]{0,40}\|[^|\r\n]{0,400}\| *(\d{1,18})/[\d?]{1,18} \["
    rb"|()\biteration {1,20}(\d{1,18})/ {0,20}\d{1,18} \|(?=.{0,200}elapsed time per iteration)"
    rb"|()\bsteps: (\d{1,18}) (?=loss: \S{1,30} iter time \(s\): )"
    rb"|()\bepoch=\d{1,18}/micro_step=\d{1,18}/global_step=(\d{1,18}),"
    rb"|()\bstep=(\d{1,18}), skipped=\d"
)
_NUMBER = rb"\s*[:=]?\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)(?![\w.])"
_SECONDS = re.compile(rb"(?:train_step_timing in s|iter time \(s\))" + _NUMBER)
_MILLISECONDS = re.compile(rb"elapsed time per iteration \(ms\)" + _NUMBER)
_TFLOPS = re.compile(rb"(?:TFLOPS_per_GPU|TFLOP/s/GPU\)|TFLOPs)" + _NUMBER)
_LOSS = re.compile(rb"(?<![\w])(?:lm loss|reduced_train_loss|train_loss(?:_step)?|loss)" + _NUMBER)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One iteration as its line reports it.

    ``step_time`` in seconds, ``tflops`` in 10¹² FLOP/s for one GPU. ``None`` is what the line does not print.
    """

    epoch: int | None
    iteration: int
    step_time: float | None = None
    tflops: float | None = None
    loss: float | None = None


def steps_in(line: bytes) -> list[TrainingStep]:
    """The iterations that a line reports: one, or several where their line ends were lost.

    The rates of progress bars (``2.20it/s``) are means since the start, and so no step times.
    """
    found = list(_STEP.finditer(line))
    ends = [*(step.start() for step in found), len(line)][1:]
    return [_step(line, step, end) for step, end in zip(found, ends, strict=True)]


def _step(line: bytes, step: re.Match[bytes], end: int) -> TrainingStep:
    epoch, iteration = [group for group in step.groups() if group is not None]

    def value(pattern: re.Pattern[bytes]) -> float | None:
        return _number(pattern.search(line, step.end(), end))

    seconds, milliseconds = value(_SECONDS), value(_MILLISECONDS)
    if seconds is None and milliseconds is not None:
        seconds = milliseconds / 1000.0
    return TrainingStep(int(epoch) if epoch else None, int(iteration), seconds, value(_TFLOPS), value(_LOSS))


def _number(found: re.Match[bytes] | None) -> float | None:
    if found is None:
        return None
    try:
        number = float(found[1])
    except ValueError:  # dots and digits, but no number
        return None
    return number if isfinite(number) else None
