"""The logs that a command line names, how they are opened, and lines of other programs in them.

A file's content, not its name, shows whether it is a log of NCCL, records of NCCL Inspector, or an export of nsys.

nccl-tests prints results between NCCL's lines: size, times and rates, out of place and in place. Training frameworks
report iterations: NeMo, Megatron-LM, PyTorch Lightning, DeepSpeed.
"""

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

from nsystui.base.errors import ExportError, MissingFileError, see_directory
from nsystui.base.files import opened
from nsystui.base.text import shell_word
from nsystui.exports.discover import expanded, is_packed_report, natural_key
from nsystui.exports.nccl_log.inspector import RECORD

STDIN = "-"
_GZIP = b"\x1f\x8b"
_PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
_SQLITE = b"SQLite format 3"
_RECORD = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING writes one"


def named(arguments: Iterable[str]) -> list[str]:
    """Return the logs named by ``arguments``, each once, because a log read twice counts twice; expands globs.

    The order is natural, whatever the shell's order; standard input (``-``) is last. Raises UsageError if a name is
    empty, such as a script's unset variable.
    """
    names: dict[str, str] = {}
    for name in expanded(arguments):
        names.setdefault(STDIN if name == STDIN else os.path.realpath(name), name)
    return sorted(names.values(), key=lambda name: (name == STDIN, natural_key(name), name))


def size_of(name: str) -> int | None:
    """Return the bytes of a log's file, 0 if it is inaccessible, or ``None`` for a pipe."""
    if name == STDIN:
        return None
    try:
        status = os.stat(name)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class OpenLog:
    """A log being read. ``position`` is the number of bytes read from the file, packed if it is a ``.gz``."""

    def __init__(self, name: str, file: BufferedReader, stream: BufferedReader | gzip.GzipFile) -> None:
        self.name = name
        self.position = 0
        self._file = file
        self._stream = stream
        self._can_tell = file.seekable()

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes, as many as are available; empty at the log's end.

        Raises ExportError if it cannot be read any further.
        """
        try:
            piece = self._stream.read1(size)
        except (OSError, EOFError, zlib.error) as error:
            cause = "the .gz ends early" if isinstance(error, EOFError) else f"cannot be read any further: {error}"
            advice = "what comes before is counted; is it still being written, or was it cut short when copied?"
            raise ExportError(self.name, cause, advice) from None
        self.position = self._file.tell() if self._can_tell else self.position + len(piece)
        return piece


@contextmanager
def open_log(name: str) -> Iterator[OpenLog]:
    """Open a log, ``-`` for standard input. Raises ExportError if it is not a log or cannot be read."""
    if name == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise ExportError("standard input", "nothing to read", "pipe a log into it, or name a file")
        # typed as any binary stream, although buffered when a process starts
        yield _opened("standard input", cast(BufferedReader, sys.stdin.buffer))
        return
    try:
        if os.path.isdir(name):
            raise ExportError(name, "a directory", f"name the logs in it: {shell_word(name.rstrip('/'))}/*.log")
        file = opened(name, is_pipe_allowed=True)
    except FileNotFoundError:
        raise MissingFileError(name, "no such file", see_directory(name)) from None
    except OSError as error:
        advice = f"check its permissions with ls -l {shell_word(name)}"
        raise ExportError(name, f"cannot be opened: {error.strerror or error}", advice) from None
    with file:
        yield _opened(name, file)


def _opened(name: str, file: BufferedReader) -> OpenLog:
    """Return the log in ``file``, unpacked if its first bytes are packed, whatever its name."""
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
    # A GzipFile need not be closed: the caller closes its file.
    return OpenLog(name, file, gzip.GzipFile(fileobj=file, mode="rb") if head.startswith(_GZIP) else file)


LOOKED_AT = 4 * 1024 * 1024
"""Bytes searched for the first line of NCCL: containers and frameworks print a lot before it."""

_HEADS_OF_NSYS = (b"SQLite format 3", b"QUADD")
# NCCL and RCCL (which mostly calls itself NCCL), NCCL Inspector, and iterations of NeMo and Megatron-LM.
_LINE = re.compile(
    rb"\b[NR]CCL (?:INFO|TRACE|WARN|CALL|version) "
    rb"|Training epoch \d+, iteration \d+/|elapsed time per iteration \(ms\): |" + RECORD.pattern
)
_PIECE = 256 * 1024


class FileKind(Enum):
    """The kinds of files that the screens open."""

    EXPORT = "an export of nsys"
    LOG = "a log of NCCL"


def kind_of(name: str) -> FileKind | None:
    """Return the kind of a file, or ``None``; a report of nsys, packed or not, counts as an export.

    Reads a few bytes of an export, and a log up to NCCL's first line, at most `LOOKED_AT` bytes. Unreadable files and
    pipes have no kind: bytes read from a pipe are gone.
    """
    if is_packed_report(Path(name)):
        return FileKind.EXPORT
    try:
        with opened(name) as file:
            head = file.read(max(map(len, _HEADS_OF_NSYS)))
    except (OSError, ValueError):  # ValueError: the name contains a NUL
        return None
    if head.startswith(_HEADS_OF_NSYS):
        return FileKind.EXPORT
    return FileKind.LOG if _has_lines(name) else None


def _has_lines(name: str) -> bool:
    """Return whether the first `LOOKED_AT` bytes, unpacked, contain a line of a log."""
    try:
        with open_log(name) as log:
            bytes_read, tail = 0, b""
            while bytes_read < LOOKED_AT and (piece := log.read(_PIECE)):
                if _LINE.search(tail + piece):
                    return True
                bytes_read += len(piece)
                tail = piece[-128:]  # the words may be split between two pieces
    except ExportError:
        return False
    return False


_HEADER = b"#wrong"
_RESULT_LINE = re.compile(rb"^[ \t]+[0-9][^\n]*", re.MULTILINE)
_SIZE = re.compile(rb"[ \t]+([0-9]{1,15})[ \t]+[0-9]+[ \t]+[a-z]\w*[ \t]+[a-z]+[ \t]+-?[0-9]+")
_RATE = rb"[ \t]+([0-9]{1,9}\.[0-9]+)"
_TIME = re.compile(rb"[ \t]+([0-9]{1,12}(?:\.[0-9]+)?)" + _RATE + _RATE + rb"[ \t]+(N/A|[0-9]{1,18})")


class NcclTestsResult(NamedTuple):
    """One measurement: ns for a call, algorithm and bus bandwidth in bytes per second.

    ``wrong`` is the number of wrong results, ``None`` if not checked.
    """

    time: float
    algbw: float
    busbw: float
    wrong: int | None = None


class Reported(NamedTuple):
    """The results of nccl-tests for one size: bytes as it counts them."""

    size: int
    out_of_place: NcclTestsResult
    in_place: NcclTestsResult


class ResultReader:
    """Collects results from a log's lines, some at a time.

    NCCL's lines may be glued between the size and the times of a result.
    """

    def __init__(self) -> None:
        self.results: list[Reported] = []
        self._has_header = False
        self._size: int | None = None
        self._times: list[NcclTestsResult] = []

    def take(self, block: bytes) -> None:
        """Read the results in whole lines."""
        self._has_header = self._has_header or _HEADER in block
        if self._has_header:
            for line in _RESULT_LINE.findall(block):
                size_match, position = _SIZE.match(line), 0
                if size_match is not None:
                    self._size, self._times, position = int(size_match[1]), [], size_match.end()
                while self._size is not None and (match := _TIME.match(line, position)):
                    position = match.end()
                    wrong = None if match[4] == b"N/A" else int(match[4])
                    self._times.append(
                        NcclTestsResult(1e3 * float(match[1]), 1e9 * float(match[2]), 1e9 * float(match[3]), wrong)
                    )
                    if len(self._times) == 2:
                        self.results.append(Reported(self._size, *self._times))
                        self._size = None


STEP_WORDS = (
    b"Training epoch", b"elapsed time per iteration", b"Epoch ", b"iter time (s)", b"global_step=", b", skipped=",
)  # fmt: skip
"""A line that reports an iteration contains one of these."""

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
    """One iteration as its line reports it, with ``None`` for missing values.

    ``step_time`` in seconds, ``tflops`` in 10¹² FLOP/s for one GPU.
    """

    epoch: int | None
    iteration: int
    step_time: float | None = None
    tflops: float | None = None
    loss: float | None = None


def steps_in(line: bytes) -> list[TrainingStep]:
    """Return the iterations that a line reports, several if line ends were lost.

    Rates of progress bars (``2.20it/s``) are means since the start, not step times.
    """
    matches = list(_STEP.finditer(line))
    ends = [*(step.start() for step in matches), len(line)][1:]
    return [_step(line, step, end) for step, end in zip(matches, ends, strict=True)]


def _step(line: bytes, step: re.Match[bytes], end: int) -> TrainingStep:
    epoch, iteration = [group for group in step.groups() if group is not None]

    def value(pattern: re.Pattern[bytes]) -> float | None:
        return _number(pattern.search(line, step.end(), end))

    seconds, milliseconds = value(_SECONDS), value(_MILLISECONDS)
    if seconds is None and milliseconds is not None:
        seconds = milliseconds / 1000.0
    return TrainingStep(int(epoch) if epoch else None, int(iteration), seconds, value(_TFLOPS), value(_LOSS))


def _number(match: re.Match[bytes] | None) -> float | None:
    if match is None:
        return None
    try:
        number = float(match[1])
    except ValueError:  # dots and digits, but not a number
        return None
    return number if isfinite(number) else None
