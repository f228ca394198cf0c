"""The kind of terminal: pure functions of the environment, so that each can be tested without a terminal.

``environ`` should be what the user's shell gave, see `original_environ`: Python itself changes ``LC_CTYPE`` at start.
"""

from __future__ import annotations

import codecs
import os
import select
import stat
import sys
import textwrap
from collections.abc import Mapping
from typing import TextIO

from nsystui.base.text import readable, whole_number

_COMMANDS = "the commands work without one: `nsystui {} FILE`, `nsystui --help`"
_MOST_COLUMNS, _MOST_LINES = 1000, 500


def original_environ() -> Mapping[str, str]:
    """The environment as it was when this process began; ``os.environ`` where the system does not keep it.

    In the C locale Python sets ``LC_CTYPE=C.UTF-8`` for itself (PEP 538), which says nothing about the terminal.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return os.environ
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def check(environ: Mapping[str, str], stdin_is_tty: bool, stderr_is_tty: bool, command: str = "kernels") -> str | None:
    """The reason why the screens cannot run here, in one line for the user; ``None`` if they can.

    ``command`` is the one to name to a user who has files like these and no terminal.

    Keys are read from stdin and the screens are drawn on stderr (stdout stays free for data), so both must be
    terminals. Textual would run anyway, and write escape sequences into a log. A small terminal is not refused.
    """
    for is_tty, stream in ((stdin_is_tty, "standard input"), (stderr_is_tty, "standard error")):
        if not is_tty:
            return f"{stream} is not a terminal, and the screens need one; {_COMMANDS.format(command)}"
    term = environ.get("TERM", "")
    if term.lower() in ("dumb", "unknown"):
        return f"this terminal cannot place a cursor (TERM={term}), and the screens must; {_COMMANDS.format(command)}"
    colors = environ.get("TEXTUAL_COLOR_SYSTEM", "auto")
    if colors not in ("auto", "standard", "256", "truecolor"):  # with anything else Textual fails
        return f"TEXTUAL_COLOR_SYSTEM={colors}: it can be auto, standard, 256 or truecolor"
    return None


def _is_utf8(encoding: str) -> bool:
    try:
        return codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        return False


def wants_ascii(environ: Mapping[str, str], encoding: str | None) -> bool:
    """Whether only ASCII may be drawn on the stream with this ``encoding`` (``None``: it has none that is known).

    True without UTF-8 in the locale (the first of ``LC_ALL``, ``LC_CTYPE``, ``LANG`` that is set decides; none is the C
    locale) or in the stream, and on terminals whose fonts lack the glyphs (the Linux console, VT100 and its kin).
    """
    term = environ.get("TERM", "")
    if term == "linux" or (term.startswith("vt") and term[2:3].isdigit()):
        return True
    settings = (environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next(filter(None, settings), "C")
    codeset = locale.partition("@")[0].rpartition(".")[2]  # macOS writes LC_CTYPE=UTF-8, without a language
    return not (_is_utf8(codeset) and encoding is not None and _is_utf8(encoding))


def no_color(environ: Mapping[str, str]) -> bool:
    """Whether the user wants no colour: ``NO_COLOR`` is set and not empty (https://no-color.org)."""
    return bool(environ.get("NO_COLOR"))


def few_colors(environ: Mapping[str, str]) -> bool:
    """Whether the terminal is taken to have only 16 colours, by the same rule as rich, which paints them.

    ``COLORTERM`` must say ``truecolor`` or ``24bit``, or ``TERM`` must end in ``256color`` (or be kitty's), for more.
    """
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return False
    return environ.get("TERM", "").strip().lower().rpartition("-")[2] not in ("256color", "kitty")


def is_page_light(environ: Mapping[str, str]) -> bool | None:
    """Return whether ``COLORFGBG`` (``0;15``, ``0;default;15``) names a light page: as in Vim, not 0 to 6 and 8."""
    parts = environ.get("COLORFGBG", "").split(";")
    page = whole_number(parts[-1], 15) if len(parts) in (2, 3) else None
    return None if page is None else page > 6 and page != 8


def bounded(columns: int, lines: int) -> tuple[int, int]:
    """A size to draw in: a claim of more than any terminal has is met in part, as every cell takes time."""
    return min(max(columns, 1), _MOST_COLUMNS), min(max(lines, 1), _MOST_LINES)


def size(descriptor: int, environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The columns and lines of the terminal behind a file descriptor, `bounded`.

    Where it does not tell (a serial line says 0 x 0), ``COLUMNS`` and ``LINES`` do, else it has 80 x 24.
    """
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except (OSError, ValueError):
        columns, lines = 0, 0
    return bounded(columns or _number_in(environ, "COLUMNS") or 80, lines or _number_in(environ, "LINES") or 24)


def text_width(default: int = 80, environ: Mapping[str, str] = os.environ) -> int:
    """The columns for text on standard output: ``COLUMNS``, else its terminal's, else ``default``; `bounded`."""
    columns = _number_in(environ, "COLUMNS")
    if not columns:
        try:
            columns = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1).columns
        except (OSError, ValueError):
            columns = 0
    return bounded(columns or default, 1)[0]


def reading_width(environ: Mapping[str, str] = os.environ) -> int | None:
    """The columns of the terminal that standard output is read on, also through a pipe such as ``| less``.

    ``None`` where it goes into a file, or nothing here is a terminal: such text is as wide as it is.
    """
    try:
        if os.isatty(1):
            return text_width(120, environ)
        if stat.S_ISFIFO(os.fstat(1).st_mode) and os.isatty(2):
            return bounded(_number_in(environ, "COLUMNS") or os.get_terminal_size(2).columns or 120, 1)[0]
    except OSError:
        pass
    return None


def complain(message: str) -> None:
    """Print a `readable` line on stderr, where it is broken between words.

    A stream that is closed or cannot be written, as on a full disk, gets nothing and changes no exit status.
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


def discard_rest(stream: TextIO) -> None:
    """Send what is left in the buffer of a stream nowhere: Python flushes at exit, and would fail a second time."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _number_in(environ: Mapping[str, str], name: str) -> int:
    """The number that a variable holds; 0 where it holds none. Endless digits are a large number, as any 18 are."""
    return whole_number(environ.get(name, "")[:18]) or 0


def is_full(descriptor: int) -> bool:
    """Whether the terminal behind a file descriptor has not taken yet what was written: a write would wait.

    ``False`` where that is not known (no terminal, a system that waits on sockets only).
    """
    try:
        return not select.select([], [descriptor], [], 0)[1]
    except (OSError, ValueError):
        return False


def over_ssh(environ: Mapping[str, str]) -> bool:
    """Whether the terminal is at the other end of an SSH connection, where every byte counts."""
    return any(environ.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"))
