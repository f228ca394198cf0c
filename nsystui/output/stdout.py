"""An answer printed by a command: data on stdout, remarks on stderr, and quiet when the reader has seen enough."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TextIO

from nsystui.base.answer import Answer
from nsystui.base.errors import OutputError, UsageError
from nsystui.base.terminal import original_environ, wants_ascii
from nsystui.base.text import ascii_glyphs, safe_text
from nsystui.output.formats import write

SIGPIPE_STATUS = 141
"""The exit status that a shell reports for a program ended by SIGPIPE (128 + 13)."""


@contextmanager
def quiet_pipe() -> Iterator[TextIO]:
    """``sys.stdout`` to write to; when its reader is gone (``| head``), the program ends with status 141, silently.

    Flushes at the end, because a full disk shows only then. Raises ``OutputError`` if stdout cannot be written to,
    ``SystemExit`` if nobody reads it.
    """
    stream = sys.stdout
    if stream is None:  # the shell's ">&-"
        raise OutputError("standard output is closed")
    try:
        yield stream
        stream.flush()
    except BrokenPipeError:
        _discard_rest(stream)
        raise SystemExit(SIGPIPE_STATUS) from None
    except OSError as error:
        _discard_rest(stream)
        raise OutputError(f"cannot write to standard output: {error.strerror or error}") from error


def _discard_rest(stream: TextIO) -> None:
    """Lets what is still in the buffer go to nowhere: Python flushes at exit, and would complain a second time."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _SafeLines:
    """A terminal that gets raw rows: each is made safe, and a line break inside of one shows as ``␊``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> object:
        return self._stream.write(safe_text(line.removesuffix("\n")) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines made safe, in ASCII where UTF-8 could not be shown. Raises what `quiet_pipe` raises."""
    with quiet_pipe() as stream:
        environ = original_environ() if stream.isatty() else {"LC_ALL": "C.UTF-8"}
        plain = wants_ascii(environ, stream.encoding)
        safe_lines = map(safe_text, lines)
        stream.writelines(f"{ascii_glyphs(line) if plain else line}\n" for line in safe_lines)


def print_answer(answer: Answer, file_format: str) -> int:
    """Prints ``answer`` as ``table``, ``csv``, ``json`` or ``md`` and its notes on stderr; returns the rows printed.

    CSV, JSON and Markdown are UTF-8 whatever the locale says, as in a file; a table is ASCII where UTF-8 could not be
    shown. Text in CSV is raw, except on a terminal, which would obey what it holds. Raises ``UsageError`` for Parquet,
    which is not for terminals and pipes, and what `quiet_pipe` raises.
    """
    if file_format == "parquet":
        raise UsageError("Parquet cannot go to standard output: name a file with -o FILE.parquet")
    with quiet_pipe() as stream:
        encoding = stream.encoding if file_format == "table" else "utf-8"
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace", newline="")
        # A file or a pipe is read who knows where: only what the stream can encode counts there.
        environ = original_environ() if stream.isatty() else {"LC_ALL": "C.UTF-8"}
        target = _SafeLines(stream) if file_format == "csv" and stream.isatty() else stream
        rows = write(answer, file_format, target, ascii_only=wants_ascii(environ, encoding))
    for note in answer.notes:
        print(f"nsystui: note: {safe_text(note)}", file=sys.stderr)
    return rows
