"""Text for the clipboard of the user's own terminal, across SSH: the escape sequence OSC 52.

The terminal that shows this program obeys it, wherever it runs; it gives no answer, so a caller can say "sent", not
"copied", and should offer a file as well. Nothing here writes to a terminal.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

from nsystui.base.answer import Answer, Value
from nsystui.base.columns import Column
from nsystui.base.text import safe_text
from nsystui.output.formats import file_values, pages

LIMIT = 74_000
"""Bytes of text that go into one sequence: hterm's script stops at 100,000 bytes, and base64 adds a third.

Terminals differ, and some silently keep less.
"""

_SCREEN_CHUNK = 240  # bytes: GNU screen cuts a string at 768, since 2014; at 256 in the versions of old clusters


def osc52(text: str, tmux: bool = False, screen: bool = False, limit: int = LIMIT) -> str | None:
    """The sequence that puts ``text`` on the clipboard, or ``None`` if it has more than ``limit`` bytes of UTF-8.

    Inside tmux the plain sequence works where ``set-clipboard`` is ``on`` (the default, ``external``, ignores it), and
    tmux then keeps the text in its own buffer too. ``tmux`` wraps the sequence to pass through tmux to the terminal
    outside, which needs ``allow-passthrough on`` (tmux 3.3 and later). ``screen`` wraps it, in pieces, for GNU screen.
    """
    data = text.encode("utf-8", "replace")
    if len(data) > limit:
        return None
    # BEL ends it, not ESC \, which would end the sequence around it as well.
    sequence = f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"
    if tmux:
        doubled = sequence.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{doubled}\x1b\\"
    if screen:
        chunks = (sequence[start : start + _SCREEN_CHUNK] for start in range(0, len(sequence), _SCREEN_CHUNK))
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return sequence


def _tsv_line(cells: Iterable[Value]) -> str:
    # Tabs and line breaks would be cells and rows, and a control could act in the shell where the text is pasted.
    return "\t".join("" if cell is None else safe_text(str(cell)) for cell in cells)


def row_for_clipboard(columns: Sequence[Column], row: Sequence[Value]) -> str:
    """One row as tab-separated plain values (those of a CSV file), without a heading and without a line end."""
    return _tsv_line(file_values(column, [value])[0] for column, value in zip(columns, row, strict=True))


def text_for_clipboard(answer: Answer, limit: int = LIMIT) -> str | None:
    """The whole table, headings first, as tab-separated lines that a spreadsheet takes apart when pasted.

    ``None`` if it has more than ``limit`` bytes: found on the way, so that a table of millions of rows is not built.
    """
    lines = [_tsv_line(column.header for column in answer.columns)]
    size = len(lines[0].encode("utf-8", "replace")) + 1
    for page in pages(answer, 500):
        for row in page:
            lines.append(row_for_clipboard(answer.columns, row))
            size += len(lines[-1].encode("utf-8", "replace")) + 1
        if size > limit:
            return None
    return "\n".join(lines) + "\n" if size <= limit else None
