"""Which rows of a long list are in sight, and the base of widgets that draw categories."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual.widget import Widget

from nsystui.ui.page import category_style


@dataclass
class RowWindow:
    """``height`` lines that show ``count`` rows from ``top`` on."""

    count: int = 0
    height: int = 1
    top: int = 0

    def shows(self, row: int) -> bool:
        """Return whether a row is in sight."""
        return self.top <= row < self.top + self.height

    def rows(self) -> range:
        """Return the rows in sight."""
        return range(self.top, min(self.top + self.height, self.count))

    def thumb(self) -> range:
        """Return the lines of a scrollbar's thumb, if the rows do not all fit."""
        size = max(1, self.height * self.height // self.count)
        first = self.top * (self.height - size) // (self.count - self.height)
        return range(first, first + size)

    def clamp(self, row: int) -> int:
        """Return the nearest existing row (0 if there are no rows)."""
        return max(0, min(row, self.count - 1))

    def reveal(self, row: int) -> bool:
        """Scroll so that ``row`` is in sight; return whether the window moved.

        A step over the edge scrolls by a third of the window, because each scroll sends every line: a held key would
        send a screenful per row.
        """
        slack = self.height // 3
        if not self.top - self.height <= row < self.top + 2 * self.height:  # after a jump, to the middle
            return self._scroll_to(row - self.height // 2)
        if row < self.top:
            return self._scroll_to(row - slack)
        if row >= self.top + self.height:
            return self._scroll_to(row - self.height + 1 + slack)
        return self._scroll_to(self.top)  # clamp the top: rows or height may have changed

    def scroll(self, rows: int) -> int:
        """Move the window by ``rows``, less at an end; return the actual movement."""
        before = self.top
        self._scroll_to(self.top + rows)
        return self.top - before

    def _scroll_to(self, top: int) -> bool:
        before, self.top = self.top, max(0, min(top, self.count - self.height))
        return self.top != before


SEVERITIES = frozenset({"error", "warning"})


class CategoryWidget(Widget):
    """A widget that draws categories."""

    def words_style(self, category: str) -> Style:
        """Return the style of words about a category."""
        return self.rich_style + category_style(self.app.theme, category, is_fill=False)

    def fill_style(self, category: str) -> Style:
        """Return the style of blocks of a category, or of two, one before the other: ``compute/nccl``."""
        front, *behind = (category_style(self.app.theme, name, is_fill=True) for name in category.split("/"))
        return self.rich_style + front + (Style(bgcolor=behind[0].color) if behind else Style())
