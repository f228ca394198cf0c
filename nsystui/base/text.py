"""Text made safe and made to fit: the only door between a string in a file and a terminal.

Names in an export come from the profiled program and may hold anything: an escape sequence in an NVTX range would
retitle or repaint the user's terminal. Every string goes through `safe_text` before it is shown, printed as text or
Markdown, or copied, and what is meant for a shell through `shell_word`. Data for programs keeps the raw string: CSV
and Parquet files as it is, JSON in ASCII escapes. Measuring and cutting count terminal cells, not characters.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Literal

ELLIPSIS = "…"
CRUMB_GAP = " · "
"""Between two parts of a selection in words."""
_SUBSTITUTE = "·"

_INVISIBLE = frozenset(
    chain(
        (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180F, 0x2800, 0x3164, 0xFFA0),
        range(0x180B, 0x180E),
        range(0xFE00, 0xFE10),
        range(0xE0100, 0xE01F0),
    )
)
"""Invisible characters that ``str.isprintable`` takes for printable: joiners, fillers, variation selectors."""

_MARKS = 4
"""Combining marks on one character: Hebrew, Thai and Vietnamese need up to three or four."""


class _SafeTable(dict[int, int | str]):
    """A table for ``str.translate`` that works out each character once, when it first meets it."""

    def __init__(self, ascii_only: bool) -> None:
        super().__init__()
        self._ascii = ascii_only

    def __missing__(self, code: int) -> int | str:
        if chr(code).isprintable() and code not in _INVISIBLE:
            self[code] = code
        elif self._ascii:
            self[code] = "?"
        elif code < 0x20:
            self[code] = chr(0x2400 + code)  # Unicode has a picture of each of these: ␛ for ESC, ␉ for tab
        else:
            self[code] = "␡" if code == 0x7F else _SUBSTITUTE
        return self[code]


_SAFE = _SafeTable(ascii_only=False)
_SAFE_ASCII = _SafeTable(ascii_only=True)


def safe_text(text: str, ascii: bool = False) -> str:  # noqa: A002 - the word that every caller expects
    """Returns ``text`` with nothing in it that a terminal would obey instead of showing, and nothing that hides.

    Replaced, never dropped, one character by one, so that a name which holds such a thing does not look like one
    without: C0 and C1 controls (ESC, tab, line breaks, DEL), line and paragraph separators, format characters (zero
    width, bidirectional, soft hyphen, tags), fillers and variation selectors, blanks other than the space, private use
    (kitty places pictures with one), unassigned characters, lone surrogates, and combining marks after the fourth on
    one character. A C0 control becomes its picture (``␛``), the rest ``·``; with ``ascii`` all become ``?``.
    Everything printable stays, in any script. Idempotent.
    """
    if text.isascii() and text.isprintable():  # nearly every string, and this is called for every cell of every screen
        return text
    replaced = text.translate(_SAFE_ASCII if ascii else _SAFE)
    if max(replaced) < "\u0300":
        return replaced
    found, marks = [], 0
    for char in replaced:  # towers of marks would cover the lines above and below
        marks = marks + 1 if _is_mark(char) else 0
        found.append(char if marks <= _MARKS else "?" if ascii else _SUBSTITUTE)
    return "".join(found)


@cache
def _is_mark(char: str) -> bool:
    """Whether it has no cell of its own: marks, and the vowels and ends of Hangul syllables written in parts."""
    return unicodedata.category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb"


def shell_word(text: str) -> str:
    """``text`` as one word of a command for a POSIX shell: quoted where need be, on one line, printable.

    Where there is anything that `safe_text` would replace, the escapes of ``$'…'`` stand for all that is not ASCII:
    bash, zsh and ksh know them, and so the word still means ``text``.
    """
    return shlex.quote(text) if safe_text(text) == text else f"$'{''.join(map(_escaped, text))}'"


def _escaped(char: str) -> str:
    if char.isascii() and char.isprintable() and char not in "\\'":
        return char
    data = char.encode("utf-8", "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)


def is_utf8(text: str) -> bool:
    """Return whether a word of the command line or a path is UTF-8: Python has lone surrogates for other bytes."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def readable(message: str) -> str:
    """Return a message made safe and short: long words lose their middle, then the message does. Its advice stays."""
    text = re.sub(r"(\S{120})\S{120,}(\S{260})", rf"\1{ELLIPSIS}\2", safe_text(message))
    return text if len(text) <= 2_000 else f"{text[:799]}{ELLIPSIS}{text[-1_200:]}"


def width_of(text: str) -> int:
    """The number of terminal cells of ``text`` (it must be safe already: a control has no width)."""
    # Below U+0300 there are neither combining nor wide characters, so that most text does not need rich's tables.
    if text.isascii() or max(text) < "\u0300":
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _take(text: str, budget: int) -> str:
    """The longest beginning of ``text`` that takes at most ``budget`` cells."""
    used = 0
    for index, char in enumerate(text):
        used += width_of(char)
        if used > budget:
            return text[:index]
    return text


def shorten(text: str, width: int) -> str:
    """Cuts ``text`` to at most ``width`` cells, at its end, with an ellipsis there."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    head = text[: width - 1] if text.isascii() else _take(text, width - 1)
    while head and width_of(head + ELLIPSIS) > width:  # characters that widen one another
        head = head[:-1]
    return head + ELLIPSIS


def fit(text: str, width: int, align: Literal["left", "right"] = "left") -> str:
    """``text`` in exactly ``width`` cells: shortened (see `shorten`) or padded with blanks on the other side."""
    cut = shorten(text, width)
    blanks = " " * (width - width_of(cut))
    return cut + blanks if align == "left" else blanks + cut


def _glyph_table() -> dict[int, str]:
    """The ASCII character for each glyph of the interface."""
    table = {chr(code): "+" for code in range(0x2500, 0x2580)}  # corners and crossings of the box drawing block
    pairs = [
        ("─┄┈╌╴╶╼╾", "--------"),
        ("━┅┉╍═╸╺", "======="),  # heavy lines mark the active one of several
        ("│┃┆┇┊┋╎╏║╵╷╹╻╽╿", "|||||||||||||||"),
        ("╱╲╳", "/\\X"),
        (" ▁▂▃▄▅▆▇█", " .:-=+*%#"),  # a ramp, so that a strip of bars still reads as one
        ("░▒▓", ".:#"),
        ("▏▎▍▌▋▊▉▐▕▀▔", '|||||||#|""'),
        ("▸▶▹▷►›»▾▼▿▽▴▲△◂◀◁◄‹«", ">>>>>>>vvvv^^^<<<<<<"),
        ("●○◉◎◆◇■□•⭘", "*o@@*o#o*o"),
        ("→←↑↓↔↕⏎↵", "><^v-|>>"),
        ("…–—−‐‑·µμ×÷", "~----" + "-.uux/"),
        ("≤≥≈≠±∞Σ∑Δ√", "<>~!~8SSDV"),
        ("✓✔✗✘⚠★☆", "++xx!**"),
        ("‘’“”", "''\"\""),
    ]
    for glyphs, ascii_characters in pairs:
        table.update(zip(glyphs, ascii_characters, strict=True))
    return {ord(glyph): character for glyph, character in table.items()}


class _AsciiTable(dict[int, str]):
    """The glyphs of the interface, and any other character as it is first met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if code < 0x80:
            stand_in = char
        else:
            width = width_of(safe_text(char))
            base = "".join(c for c in unicodedata.normalize("NFKD", char) if not unicodedata.combining(c))
            readable = len(base) == 1 and base.isascii() and base.isprintable()
            stand_in = base.ljust(width) if readable and width else "?" * width
        self[code] = stand_in
        return stand_in


GLYPHS = _glyph_table()
"""The glyphs that the interface draws with, by code point, and the one ASCII character that stands for each."""

_ASCII = _AsciiTable(GLYPHS)


def ascii_glyphs(text: str) -> str:
    """``text`` in ASCII, taking the same number of cells: for terminals without UTF-8.

    The interface's own glyphs (blocks, boxes, arrows, ``µ``) have a stand-in each (`GLYPHS`), an accented letter loses
    its accent, and anything else becomes ``?``, twice where it was two cells wide.
    """
    return text if text.isascii() else text.translate(_ASCII)


LARGEST_NUMBER = 2**63 - 1
"""The maximum that a column, a query and a numpy array can hold."""


def whole_number(text: str, most: int = LARGEST_NUMBER) -> int | None:
    """The number from 0 to ``most`` that these digits are; ``None`` for any other text.

    More digits than Python itself agrees to read are no number of an export.
    """
    # Leading zeros count too.
    if not (text.isascii() and text.isdecimal()) or len(text) > 40:
        return None
    number = int(text)
    return number if number <= most else None


_TOLD = 3


def few(names: Sequence[object]) -> str:
    """Up to three of the names and how many more there are, for a sentence."""
    replaced = ", ".join(str(name) for name in names[:_TOLD])
    return replaced + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")


def counted(number: int, what: str) -> str:
    """Return ``1 rank``, ``1,024 ranks``, ``2 launches``."""
    return f"{number:,} {what}" + ("" if number == 1 else "es" if what.endswith("ch") else "s")


_RUN = 4
"""So many numbers in a row are told by their ends."""


def few_numbers(numbers: Iterable[int]) -> str:
    """Up to three of the numbers, or of the runs that they have, and how many more there are.

    >>> few_numbers([0, 1, 2, 3, 4, 5, 6, 7, 12, 14, 16, 17])
    '0–7, 12, 14 and 2 more'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [part for run in runs for part in ([run] if len(run) >= _RUN else [[one] for one in run])]
    told = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts[:_TOLD])
    more = sum(map(len, parts[_TOLD:]))
    return told + (f" and {more:,} more" if more else "")


def spans(numbers: Iterable[int]) -> str:
    """{0, 1, 2, 5} as ``0-2,5`` and {-1, 0} as ``unknown,0``, as the prompts and the command line take it."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][0] >= 0 and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join("unknown" if low < 0 else str(low) if low == high else f"{low}-{high}" for low, high in found)


def which_of(names: Sequence[str], reports: int) -> str:
    """The words of a note for the exports of these names, which are some or all of its ``reports``."""
    if len(names) < reports:
        return few(names)
    return "this export" if reports == 1 else "these exports"
