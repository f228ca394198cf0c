"""Which rows of a long list are in sight: arithmetic without a screen.

A widget that draws categories is a ``CategoryWidget``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual.widget import Widget

from nsystui.ui.page import category_style


@dataclass
class RowWindow:
    """``height`` lines that show the rows from ``top`` on, of ``count`` in all."""

    count: int = 0
    height: int = 1
    top: int = 0

    def shows(self, row: int) -> bool:
        """Whether a row is in sight."""
        return self.top <= row < self.top + self.height

    def rows(self) -> range:
        """The rows in sight."""
        return range(self.top, min(self.top + self.height, self.count))

    def thumb(self) -> range:
        """The lines that the thumb of a scrollbar takes where rows are cut."""
        size = max(1, self.height * self.height // self.count)
        first = self.top * (self.height - size) // (self.count - self.height)
        return range(first, first + size)

    def clamp(self, row: int) -> int:
        """The nearest row that exists (0 when none does)."""
        return max(0, min(row, self.count - 1))

    def reveal(self, row: int) -> bool:
        """Scroll so that ``row`` is in sight; whether that moved the window.

        A step over the edge scrolls by a third of the window rather than by a line, because a terminal gets every line
        anew for each scroll: holding the key down would otherwise send a screenful for each row.
        """
        slack = self.height // 3
        if not self.top - self.height <= row < self.top + 2 * self.height:  # a jump: land in the middle
            return self._scroll_to(row - self.height // 2)
        if row < self.top:
            return self._scroll_to(row - slack)
        if row >= self.top + self.height:
            return self._scroll_to(row - self.height + 1 + slack)
        return self._scroll_to(self.top)  # clamps, after rows or height changed

    def scroll(self, rows: int) -> int:
        """Move the window by ``rows``; by how many it moved, which is less at an end."""
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
        """The style of words about a category."""
        return self.rich_style + category_style(self.app.theme, category, is_fill=False)

    def fill_style(self, category: str) -> Style:
        """The style of blocks of a category, or of one before another: ``compute/nccl``."""
        before, *behind = (category_style(self.app.theme, name, is_fill=True) for name in category.split("/"))
        return self.rich_style + before + (Style(bgcolor=behind[0].color) if behind else Style())
