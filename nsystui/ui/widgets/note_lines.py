"""Sentences under a table that belong to its numbers: what is missing, what differs, how good a pairing is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from nsystui.base.text import fit, safe_text

_MOST_LINES = 4


class NoteLines(Widget):
    """As many lines as the notes need, at most four unless a screen allows more; none where there is nothing to say."""

    ALLOW_SELECT = False

    DEFAULT_CSS = """
    NoteLines { height: auto; color: $foreground 75%; }
    NoteLines:ansi { color: $foreground; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._notes: tuple[str, ...] = ()
        self._most = _MOST_LINES

    def allow(self, lines: int) -> None:
        """How many lines there may be at most."""
        if lines != self._most:
            self._most = lines
            self.refresh(layout=True)

    def show_notes(self, notes: Sequence[str]) -> None:
        """Shows these sentences, each beginning on its own line."""
        safe = tuple(safe_text(note) for note in notes)
        if safe != self._notes:
            self._notes = safe
            self.refresh(layout=True)

    def _lines(self, width: int) -> list[str]:
        lines = [line for note in self._notes for line in textwrap.wrap(note, max(width, 20))]
        if len(lines) > self._most:
            lines = [*lines[: self._most - 1], fit(f"{lines[self._most - 1]} …", width)]
        return lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def render_line(self, y: int) -> Strip:
        lines = self._lines(self.size.width)
        text = fit(lines[y] if y < len(lines) else "", self.size.width)
        return Strip([Segment(text, self.rich_style)], self.size.width)
