"""A few lines of words, some of them in the colour of a category: facts above a table, values below a chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from nsystui.base.text import safe_text, shorten, width_of
from nsystui.ui.widgets.categories import CATEGORY_CLASSES, category_class, category_css

Part = tuple[str, str]
"""Words and what they are: a category (``"nccl"``), ``"bold"``, ``"dim"``, or nothing."""

_OWN = {"bold", "dim"}


def wrapped(parts: Sequence[Part], width: int, indent: Part = ("", "")) -> list[list[Part]]:
    """``parts`` two blanks apart, on as many lines of ``width`` cells as they need, each beginning like ``indent``.

    The first line begins with ``indent``, the others with as many blanks.
    """
    margin = width_of(indent[0])
    lines: list[list[Part]] = []
    room = -1
    for text, style in parts:
        if room < 2 + width_of(text):
            lines.append([(" " * margin, "") if lines else indent])
            room = width - margin
        else:
            lines[-1].append(("  ", ""))
            room -= 2
        lines[-1].append((text, style))
        room -= width_of(text)
    return lines


class PartLines(Widget):
    """Lines of parts, each cut at the right edge; as high as there are lines, unless its CSS says otherwise."""

    ALLOW_SELECT = False

    COMPONENT_CLASSES: ClassVar[set[str]] = {"part-lines--bold", "part-lines--dim", *CATEGORY_CLASSES}

    DEFAULT_CSS = """
    PartLines { height: auto; }
    PartLines > .part-lines--bold { text-style: bold; color: $foreground; }
    PartLines > .part-lines--dim { color: $foreground 75%; }
    PartLines:ansi > .part-lines--dim { color: $foreground; }
    """ + category_css("PartLines", is_text=True)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._lines: tuple[tuple[Part, ...], ...] = ()

    @property
    def texts(self) -> list[str]:
        """The lines as plain text."""
        return ["".join(text for text, _ in line) for line in self._lines]

    def show_lines(self, lines: Sequence[Sequence[Part]]) -> None:
        """Shows these lines; strings from files may be among them. Only lines that changed are drawn again."""
        before = self._lines
        self._lines = tuple(tuple((safe_text(text), style) for text, style in line) for line in lines)
        if len(before) != len(self._lines):
            self.refresh(layout=True)
            return
        for y, (old, new) in enumerate(zip(before, self._lines, strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        line = self._lines[y] if y < len(self._lines) else ()
        segments, room = [], width
        for text, style in line:
            text = shorten(text, room)
            segments.append(Segment(text, self._style_of(style)))
            room -= width_of(text)
            if room <= 0:
                break
        segments.append(Segment(" " * room, self.rich_style))
        return Strip(Segment.simplify(segment for segment in segments if segment.text), width)

    def _style_of(self, style: str) -> Style:
        if not style:
            return self.rich_style
        return self.get_component_rich_style(f"part-lines--{style}" if style in _OWN else category_class(style))
