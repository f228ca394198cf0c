"""Which rows of a long list are in sight: arithmetic without a screen.

The colours of meanings as styles of widgets.

A widget that draws categories is a ``CategoryWidget``; ``category_class("nccl")`` is then a component class to ask a
style for.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual.css.styles import RenderStyles
from textual.dom import DOMNode
from textual.widget import Widget

from nsystui.base.drawing import CATEGORIES, COLOURS


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


_BOLD = frozenset({"error", "worse"})
"""Bold, so that the terminal's own red is readable on dark and on light."""

SEVERITIES = frozenset({"error", "warning"})


def category_class(name: str) -> str:
    """The component class that colours the words of category ``name``."""
    return f"category--{name}"


def fill_class(name: str) -> str:
    """The component class that colours the bars and swatches of category ``name``."""
    return f"fill--{name}"


def _of_theme(colour: str | int) -> str:
    return colour if isinstance(colour, str) else f"$foreground {colour}%"


def _css() -> str:
    """CSS that colours every category inside a `CategoryWidget`."""
    rules = []
    for name, colour in COLOURS.items():
        weight = " text-style: bold;" if name in _BOLD else ""
        for kind, ansi in (
            (category_class(name) + " {" + weight, colour.ansi_words),
            (fill_class(name) + " {", colour.ansi),
        ):
            rules.append(f"CategoryWidget > .{kind} color: {_of_theme(colour.dark)}; }}")
            rules.append(f"CategoryWidget:light > .{kind} color: {_of_theme(colour.light)}; }}")
            rules.append(f"CategoryWidget:ansi > .{kind} color: {ansi}; }}")
    return "\n".join(rules)


_CLASSES = frozenset(kind(name) for name in CATEGORIES for kind in (category_class, fill_class))


class CategoryWidget(Widget):
    """A widget that draws categories.

    Textual makes the styles of all ``COMPONENT_CLASSES`` whenever those of the widget change; of categories a widget
    draws few, and theirs are made when they are asked for.
    """

    DEFAULT_CSS = _css()

    def fill_style(self, category: str) -> Style:
        """The style of blocks of a category, or of one before another: ``compute/nccl``."""
        before, *behind = (self.get_component_rich_style(fill_class(name)) for name in category.split("/"))
        return before + Style(bgcolor=behind[0].color) if behind else before

    def get_component_styles(self, *names: str) -> RenderStyles:
        """Make the styles of a category when they are asked for."""
        for name in _CLASSES.intersection(names).difference(self._component_styles):
            part = DOMNode(classes=name)
            part._attach(self)
            self.app.stylesheet.apply(part)
            self._component_styles[name] = part.styles
        return super().get_component_styles(*names)
