"""A panel of plain lines beside a table: words, little bars, facts about the row under the cursor."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from nsystui.base.text import fit, safe_text


class SidePanel(Widget):
    """Lines of text, cut at the right edge; only those that change are drawn again."""

    ALLOW_SELECT = False

    DEFAULT_CSS = "SidePanel { height: 1fr; }"

    def __init__(self, *, border: str = "│ ", id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._border = border
        self._lines: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        return self._lines

    def show_lines(self, lines: Sequence[str]) -> None:
        """Shows these lines; strings from files may be among them."""
        before, self._lines = self._lines, tuple(safe_text(line) for line in lines)
        for y in range(max(len(before), len(self._lines))):
            if before[y : y + 1] != self._lines[y : y + 1]:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        text = self._lines[y] if y < len(self._lines) else ""
        line = fit(self._border + text, self.size.width)
        return Strip([Segment(line, self.rich_style)], self.size.width)
