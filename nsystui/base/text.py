"""Text that is safe to print on a terminal and fits its cells.

The profiled program chooses the names in an export: an escape sequence in an NVTX range would retitle or repaint the
user's terminal. Every string must pass through `safe_text` before it is shown, printed as text or Markdown, or copied,
and through `shell_word` before it becomes part of a shell command. Data for programs keeps the raw string, in JSON in
ASCII escapes. Widths are in terminal cells, not characters.
"""

import re
import shlex
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from os.path import commonprefix
from typing import Literal

ELLIPSIS = "…"
CRUMB_GAP = " · "
"""Separates the parts of a selection in words."""
_SUBSTITUTE = "·"

_INVISIBLE = frozenset(
    chain(
        (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180F, 0x2800, 0x3164, 0xFFA0),
        range(0x180B, 0x180E),
        range(0xFE00, 0xFE10),
        range(0xE0100, 0xE01F0),
    )
)
"""Invisible characters that ``str.isprintable`` accepts: joiners, fillers, variation selectors."""

_MAX_MARKS = 4  # combining marks on a character: Hebrew, Thai and Vietnamese need up to three or four


class _SafeTable(dict[int, int | str]):
    """A table for ``str.translate`` that caches the replacement of each character on first use."""

    def __init__(self, ascii_only: bool) -> None:
        super().__init__()
        self._ascii = ascii_only

    def __missing__(self, code: int) -> int | str:
        if chr(code).isprintable() and code not in _INVISIBLE:
            self[code] = code
        elif self._ascii:
            self[code] = "?"
        elif code < 0x20:
            self[code] = chr(0x2400 + code)  # control pictures: ␛ for ESC, ␉ for tab
        else:
            self[code] = "␡" if code == 0x7F else _SUBSTITUTE
        return self[code]


_SAFE = _SafeTable(ascii_only=False)
_SAFE_ASCII = _SafeTable(ascii_only=True)


def safe_text(text: str, ascii: bool = False) -> str:  # noqa: A002 - the word that every caller expects
    """Replace each character that a terminal would obey or not show by one visible character.

    Nothing is dropped, so that a name with such a character does not look like a name without it. Replaced are C0 and
    C1 controls (ESC, tab, line breaks, DEL), line and paragraph separators, format characters (zero width,
    bidirectional, soft hyphen, tags), fillers and variation selectors, blanks except the space, private use (kitty
    draws pictures with it), unassigned characters, lone surrogates, and combining marks after the fourth on one
    character. C0 controls and DEL become their pictures (``␛``), the rest ``·``; with ``ascii`` all become ``?``.
    Printable characters of any script stay. Idempotent.
    """
    if text.isascii() and text.isprintable():  # fast path for nearly every string: called for each cell of a screen
        return text
    replaced = text.translate(_SAFE_ASCII if ascii else _SAFE)
    if max(replaced) < "\u0300":
        return replaced
    chars, marks = [], 0
    for char in replaced:  # a tower of marks would cover the lines above and below
        marks = marks + 1 if _is_mark(char) else 0
        chars.append(char if marks <= _MAX_MARKS else "?" if ascii else _SUBSTITUTE)
    return "".join(chars)


@cache
def _is_mark(char: str) -> bool:
    """Return whether a character has no cell: a mark, or a decomposed Hangul syllable's vowel or end."""
    return unicodedata.category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb"


def shell_word(text: str) -> str:
    """Return ``text`` as one printable word for a POSIX shell, quoted if necessary.

    If `safe_text` would replace anything, ``$'…'`` escapes control and non-ASCII characters. Bash, zsh and ksh decode
    it to ``text``.
    """
    return shlex.quote(text) if safe_text(text) == text else f"$'{''.join(map(_escaped, text))}'"


def _escaped(char: str) -> str:
    if char.isascii() and char.isprintable() and char not in "\\'":
        return char
    data = char.encode("utf-8", "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)


def is_utf8(text: str) -> bool:
    """Return whether a word or path is UTF-8: Python replaces other bytes with lone surrogates."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def readable(message: str) -> str:
    """Return a safe, short message: long words and messages lose their middle, so that advice remains."""
    text = re.sub(r"(\S{120})\S{120,}(\S{260})", rf"\1{ELLIPSIS}\2", safe_text(message))
    return text if len(text) <= 2_000 else f"{text[:799]}{ELLIPSIS}{text[-1_200:]}"


def width_of(text: str) -> int:
    """Return the terminal cells of ``text``, which must be safe: controls have no width."""
    # No character below U+0300 is combining or wide, so that most text does not need rich's tables.
    if text.isascii() or max(text) < "\u0300":
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _take(text: str, budget: int) -> str:
    """Return the longest prefix of at most ``budget`` cells."""
    width = 0
    for index, char in enumerate(text):
        width += width_of(char)
        if width > budget:
            return text[:index]
    return text


def shorten(text: str, width: int) -> str:
    """Cut ``text`` to at most ``width`` cells, with an ellipsis if it is longer."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    head = text[: width - 1] if text.isascii() else _take(text, width - 1)
    while head and width_of(head + ELLIPSIS) > width:  # some characters widen their neighbours
        head = head[:-1]
    return head + ELLIPSIS


def cut_apart(texts: Iterable[str], width: int) -> dict[str, str]:
    """Cut texts to ``width`` cells: at their ends, or inside their common beginning if they would look alike."""
    shown: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    ordered, before, least = sorted(set(texts)), "", width // 4
    for text in ordered:
        groups.setdefault(shorten(text, width), []).append(text)
    for cut, group in groups.items():
        first, last = group[0], group[-1]
        shared = len(commonprefix([first, last]))  # noqa: RUF071 - texts, not paths
        if len(group) == 1 or shared <= least or least < 4:  # a shorter beginning names nothing
            shown |= dict.fromkeys(group, cut)
        else:
            word = first.rfind(" ", 0, shared) + 1
            tail = word if shared - word <= least else shared - least // 2
            head = min(max(least, width - 1 - (max(map(len, group)) - tail)), tail)
            kept = _take(first, head) + ELLIPSIS
            neighbours = (before, *ordered[bisect_right(ordered, last) :][:1])
            parted = max(len(commonprefix([first, other])) for other in neighbours)  # noqa: RUF071
            if head <= parted < tail:  # show the difference from the neighbours
                kept = _take(first, least) + ELLIPSIS + first[max(parted - 2, 0) : parted + 1] + ELLIPSIS
            cuts = cut_apart((text[tail:] for text in group), width - width_of(kept))
            shown |= {text: kept + cuts[text[tail:]] for text in group}
        before = last
    return shown


def fit(text: str, width: int, align: Literal["left", "right"] = "left") -> str:
    """Return ``text`` in exactly ``width`` cells: shortened, or padded on the side opposite to ``align``."""
    cut = shorten(text, width)
    blanks = " " * (width - width_of(cut))
    return cut + blanks if align == "left" else blanks + cut


def _glyph_table() -> dict[int, str]:
    table = {chr(code): "+" for code in range(0x2500, 0x2580)}  # corners and crossings of the box drawing block
    pairs = [
        ("─┄┈╌╴╶╼╾", "--------"),
        ("━┅┉╍═╸╺", "======="),  # heavy lines mark the active part
        ("│┃┆┇┊┋╎╏║╵╷╹╻╽╿", "|||||||||||||||"),
        ("╱╲╳", "/\\X"),
        (" ▁▂▃▄▅▆▇█", " .:-=+*%#"),  # a ramp keeps strips of bars readable
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
    """A table for ``str.translate``: the interface's glyphs, and any other character on first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if code < 0x80:
            replacement = char
        else:
            width = width_of(safe_text(char))
            base = "".join(c for c in unicodedata.normalize("NFKD", char) if not unicodedata.combining(c))
            is_readable = len(base) == 1 and base.isascii() and base.isprintable()
            replacement = base.ljust(width) if is_readable and width else "?" * width
        self[code] = replacement
        return replacement


GLYPHS = _glyph_table()
"""The ASCII replacement of each glyph that the interface draws with, by code point."""

_ASCII = _AsciiTable(GLYPHS)


def ascii_glyphs(text: str) -> str:
    """Return ``text`` in ASCII with the same number of cells, for terminals without UTF-8.

    Glyphs of the interface (blocks, boxes, arrows, ``µ``) are replaced as in `GLYPHS`, accented letters lose their
    accents, and any other character becomes a ``?`` per cell.
    """
    return text if text.isascii() else text.translate(_ASCII)


LARGEST_NUMBER = 2**63 - 1
"""The maximum that a column, a query and a numpy array can hold."""


def whole_number(text: str, limit: int = LARGEST_NUMBER) -> int | None:
    """Parse ASCII digits as a number from 0 to ``limit``; return ``None`` for any other text."""
    # At most 40 digits, leading zeros included: int() refuses thousands.
    if not (text.isascii() and text.isdecimal()) or len(text) > 40:
        return None
    number = int(text)
    return number if number <= limit else None


_MAX_SHOWN = 3


def few(names: Sequence[object]) -> str:
    """List up to three names, and count the rest: ``a, b, c and 2 more``."""
    words = ", ".join(str(name) for name in names[:_MAX_SHOWN])
    return words + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "")


_OF_ONE = {"are": "is", "have": "has", "go": "goes"}


def counted(number: int, noun: str, verb: str = "", among: int | None = None) -> str:
    """Return a count in words: ``1 rank``, ``1,024 ranks``, ``2 launches``, ``1 call is``, ``1 of 2 calls has``."""
    is_one = (number if among is None else among) == 1
    words = f"{number:,} {noun}" if among is None else f"{number:,} of {among:,} {noun}"
    words += "" if is_one else "es" if noun.endswith("ch") else "s"
    return f"{words} {_OF_ONE.get(verb, f'{verb}s') if number == 1 else verb}" if verb else words


def few_numbers(numbers: Iterable[int]) -> str:
    """List up to three numbers or ranges of at least four numbers, and count the remaining numbers.

    >>> few_numbers([0, 1, 2, 3, 4, 5, 6, 7, 12, 14, 16, 17])
    '0–7, 12, 14 and 2 more'
    """
    parts = [
        part
        for low, high in _runs(numbers)
        for part in ([(low, high)] if high - low + 1 >= 4 else [(n, n) for n in range(low, high + 1)])
    ]
    words = ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in parts[:_MAX_SHOWN])
    more = sum(high - low + 1 for low, high in parts[_MAX_SHOWN:])
    return words + (f" and {more:,} more" if more else "")


def ranks_named(numbers: Iterable[int]) -> str:
    """Return ``rank 2`` or ``ranks 0–5, 9, 12 and 5 more``."""
    ranks = set(numbers)
    return f"rank{'s' * (len(ranks) > 1)} {few_numbers(ranks)}"


def spans(numbers: Iterable[int]) -> str:
    """Write {0, 1, 2, 5} as ``0-2,5`` and {-1, 0} as ``unknown,0``, as on the command line."""
    runs = _runs(numbers)
    return ",".join("unknown" if low < 0 else str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Return the first and last of each run of consecutive numbers; a negative number, unknown, is a run alone."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][0] >= 0 and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def which_of(names: Sequence[str], reports: int) -> str:
    """Name a few exports that a note is about, or "these exports" if about all ``reports``."""
    if len(names) < reports:
        return few(names)
    return "this export" if reports == 1 else "these exports"
