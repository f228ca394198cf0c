"""Which rows of a long list are in sight: arithmetic without a screen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Window:
    """``height`` lines that show the rows from ``top`` on, of ``count`` in all."""

    count: int = 0
    height: int = 1
    top: int = 0

    def shows(self, row: int) -> bool:
        return self.top <= row < self.top + self.height

    def rows(self) -> range:
        """The rows in sight."""
        return range(self.top, min(self.top + self.height, self.count))

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
