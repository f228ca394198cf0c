"""The terminal, mostly as the environment describes it (`original_environ`), so that tests need none; its streams."""

import codecs
import os
import select
import stat
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from nsystui.base.errors import OutputError
from nsystui.base.text import readable, whole_number

_COMMANDS = "the commands need no terminal: `nsystui {} FILE`, `nsystui --help`"
_MAX_COLUMNS, _MAX_LINES = 1000, 500


def original_environ() -> Mapping[str, str]:
    """Return the environment at the start of this process, or ``os.environ`` if the system does not keep it.

    In the C locale, Python itself sets ``LC_CTYPE=C.UTF-8`` (PEP 538), which does not describe the terminal.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return os.environ
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def check(environ: Mapping[str, str], stdin_is_tty: bool, stderr_is_tty: bool, command: str = "kernels") -> str | None:
    """Return why the screens cannot run, in one line for the user; ``None`` if they can.

    ``command`` is suggested instead for the user's files. Keys are read from stdin, and the screens are drawn on stderr
    (stdout is for data), so both must be terminals: Textual would run anyway, and write escape sequences into a log.
    Small terminals are accepted.
    """
    for is_tty, stream in ((stdin_is_tty, "standard input"), (stderr_is_tty, "standard error")):
        if not is_tty:
            return f"{stream} is not a terminal, and the screens need one; {_COMMANDS.format(command)}"
    term = environ.get("TERM", "")
    if term.lower() in ("dumb", "unknown"):
        return f"this terminal cannot place a cursor (TERM={term}), and the screens must; {_COMMANDS.format(command)}"
    colors = environ.get("TEXTUAL_COLOR_SYSTEM", "auto")
    if colors not in ("auto", "standard", "256", "truecolor"):  # other values make Textual fail
        return f"TEXTUAL_COLOR_SYSTEM={colors}: it can be auto, standard, 256 or truecolor"
    return None


def _is_utf8(encoding: str) -> bool:
    try:
        return codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        return False


def wants_ascii(environ: Mapping[str, str], encoding: str | None) -> bool:
    """Return whether only ASCII may be drawn on a stream with this ``encoding`` (``None`` if unknown).

    True if the locale or the stream is not UTF-8, and on terminals that lack the glyphs (the Linux console, VT100 and
    successors). The locale is the first of ``LC_ALL``, ``LC_CTYPE`` and ``LANG`` that is set, else C.
    """
    term = environ.get("TERM", "")
    if term == "linux" or (term.startswith("vt") and term[2:3].isdigit()):
        return True
    locale = next(filter(None, (environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
    codeset = locale.partition("@")[0].rpartition(".")[2]  # macOS writes LC_CTYPE=UTF-8, without a language
    return not (_is_utf8(codeset) and encoding is not None and _is_utf8(encoding))


def no_color(environ: Mapping[str, str]) -> bool:
    """Return whether the user wants no colour: ``NO_COLOR`` is set and not empty (https://no-color.org)."""
    return bool(environ.get("NO_COLOR"))


def few_colors(environ: Mapping[str, str]) -> bool:
    """Return whether rich, which paints the colours, assumes a terminal of 16 colours.

    It assumes more if ``COLORTERM`` is ``truecolor`` or ``24bit``, or ``TERM`` ends in ``256color`` or ``kitty``.
    """
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return False
    return environ.get("TERM", "").strip().lower().rpartition("-")[2] not in ("256color", "kitty")


def is_page_light(environ: Mapping[str, str]) -> bool | None:
    """Return whether ``COLORFGBG`` (``0;15``, ``0;default;15``) names a light page: not 0 to 6 or 8, as in Vim."""
    parts = environ.get("COLORFGBG", "").split(";")
    page = whole_number(parts[-1], 15) if len(parts) in (2, 3) else None
    return None if page is None else page > 6 and page != 8


def bounded(columns: int, lines: int) -> tuple[int, int]:
    """Limit a size to 1000 x 500, because drawing each cell takes time."""
    return min(max(columns, 1), _MAX_COLUMNS), min(max(lines, 1), _MAX_LINES)


def size(descriptor: int, environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the columns and lines of the terminal behind a file descriptor, `bounded`.

    If the system does not know them (a serial line has 0 x 0), use ``COLUMNS`` and ``LINES``, else 80 x 24.
    """
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except (OSError, ValueError):
        columns, lines = 0, 0
    return bounded(columns or _number_in(environ, "COLUMNS") or 80, lines or _number_in(environ, "LINES") or 24)


def text_width(default: int = 80, environ: Mapping[str, str] = os.environ) -> int:
    """Return the width of text on stdout, `bounded`: ``COLUMNS``, else the terminal's width, else ``default``."""
    columns = _number_in(environ, "COLUMNS")
    if not columns:
        try:
            columns = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1).columns
        except (OSError, ValueError):
            columns = 0
    return bounded(columns or default, 1)[0]


def reading_width() -> int | None:
    """Return the columns of the terminal that shows standard output, also through a pipe such as ``| less``.

    Return ``None`` if the output is a file or there is no terminal: text is then not wrapped.
    """
    try:
        if os.isatty(1):
            return text_width(120, os.environ)
        if stat.S_ISFIFO(os.fstat(1).st_mode) and os.isatty(2):
            return bounded(_number_in(os.environ, "COLUMNS") or os.get_terminal_size(2).columns or 120, 1)[0]
    except OSError:
        pass
    return None


def complain(message: str) -> None:
    """Print a `readable` line on stderr, wrapped between words on a terminal.

    Does nothing if stderr is closed or cannot be written, as on a full disk.
    """
    if sys.stderr is None:  # print() would take standard output
        return
    line = f"nsystui: {readable(message)}"
    if sys.stderr.isatty():
        columns = size(sys.stderr.fileno())[0]
        line = textwrap.fill(line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard_rest(sys.stderr)


@contextmanager
def quiet_pipe() -> Iterator[TextIO]:
    """Yield ``sys.stdout``; if its reader closes it (``| head``), end the program silently with status 141.

    Flushes at the end, because a full disk shows only then. Raises ``OutputError`` if stdout cannot be written, and
    ``SystemExit`` if its reader is gone.
    """
    stream = sys.stdout
    if stream is None:  # the shell's ">&-"
        raise OutputError("standard output is closed")
    try:
        yield stream
        stream.flush()
    except OSError as error:
        discard_rest(stream)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(141) from None  # as a shell reports a program that SIGPIPE ended: 128 + 13
        raise OutputError(f"cannot write to standard output: {error.strerror or error}") from error


def discard_rest(stream: TextIO) -> None:
    """Redirect a stream to the null device, because Python flushes it at exit, and would fail a second time."""
    with open(os.devnull, "wb") as null_device:
        os.dup2(null_device.fileno(), stream.fileno())


def _number_in(environ: Mapping[str, str], name: str) -> int:
    """Return a variable's number, else 0. Only 18 digits are read: such a number is as good as infinite."""
    return whole_number(environ.get(name, "")[:18]) or 0


def is_full(descriptor: int) -> bool:
    """Return whether the terminal behind a file descriptor has unread output, so that a write would wait.

    ``False`` if unknown (not a terminal, or a system that waits only on sockets).
    """
    try:
        return not select.select([], [descriptor], [], 0)[1]
    except (OSError, ValueError):
        return False


def over_ssh(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal is behind an SSH connection, where every byte counts."""
    return any(environ.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"))
