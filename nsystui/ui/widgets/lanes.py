"""Lanes of letters and names over time, an axis above them, and a cursor: a lane and a column.

What a key changes is all that is painted: of a lane the cells from the first to the last that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from nsystui.base.text import fit, safe_text
from nsystui.ui.widgets.categories import CATEGORY_CLASSES, category_class, category_css
from nsystui.ui.widgets.plots import time_axis
from nsystui.ui.widgets.quiet import QuietFocus
from nsystui.ui.widgets.window import Window

MARKER = "▸ "
AXIS_CURSOR = "▼"
AXIS_MARK = "◆"
_ASKED = "…"
"""What stands in a lane that is not computed yet."""

Cells = list[tuple[str, Style]]
"""The characters of a line with their styles."""


@dataclass(frozen=True)
class LaneLine:
    """One lane: a character and a style for each column, see ``questions.timeline.drawing``, and a value at its right.

    A style is a category, with ``-`` behind it where it is not to be drawn as a block, or nothing.
    """

    text: str
    styles: tuple[str, ...]
    marked: frozenset[int] = frozenset()
    value: str = ""


class LaneChart(QuietFocus, can_focus=True):
    """Lanes over one span of time. Lines of lanes that are not given are asked for by ``Scrolled``.

    Args:
        label_width: Cells for the labels at the left.
        value_width: Cells for the values at the right.
    """

    ALLOW_SELECT = False

    COMPONENT_CLASSES: ClassVar[set[str]] = {"lane-chart--axis", "lane-chart--current", *CATEGORY_CLASSES}

    DEFAULT_CSS = """
    LaneChart { height: 1fr; }
    LaneChart > .lane-chart--axis { color: $foreground 75%; }
    LaneChart:ansi > .lane-chart--axis { color: $foreground; }
    LaneChart > .lane-chart--current { text-style: bold; }
    """ + category_css("LaneChart")

    @dataclass
    class Scrolled(Message):
        """Other lanes are in sight."""

        chart: LaneChart

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LaneChart.Scrolled)

    def __init__(self, *, label_width: int, value_width: int, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.label_width = label_width
        self.value_width = value_width
        self.lane = 0
        self.column = 0
        self._labels: tuple[str, ...] = ()
        self._lines: Mapping[int, LaneLine] = {}
        self._lo, self._hi = 0, 0
        self._mark: int | None = None
        self._window = Window()
        self._styles: dict[str, Style] = {}
        self._painted: dict[int, Cells] = {}

    # -- what is shown --------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Columns of time: what is left of the width beside labels and values."""
        return max(1, self.size.width - len(MARKER) - self.label_width - 1 - self.value_width - 1)

    @property
    def rows(self) -> range:
        """The lanes in sight."""
        return self._window.rows()

    @property
    def count(self) -> int:
        return len(self._labels)

    def line(self, lane: int) -> LaneLine | None:
        """What is drawn of a lane; ``None`` while it is not known."""
        return self._lines.get(lane)

    def show(self, labels: Sequence[str], lines: Mapping[int, LaneLine], lo: int, hi: int) -> None:
        """Shows ``lines`` of the lanes with these labels, over the time from ``lo`` to ``hi`` ns."""
        is_same_time, is_same_list = (lo, hi) == (self._lo, self._hi), tuple(labels) == self._labels
        self._labels, self._lo, self._hi = tuple(labels), lo, hi
        # Of lanes out of sight the old lines stay only while they are true.
        self._lines = {**self._lines, **lines} if is_same_time and is_same_list else dict(lines)
        self._window.count = len(self._labels)
        self.lane = self._window.clamp(self.lane)
        self._window.reveal(self.lane)
        self._repaint()

    def move(self, lane: int, column: int, mark: int | None = None) -> None:
        """Puts the cursor into a lane and column (clamped), and the mark, which may lie out of sight."""
        top = self._window.top
        self.lane, self.column = self._window.clamp(lane), max(0, min(column, self.width - 1))
        self._mark = mark
        self._window.reveal(self.lane)
        self._repaint()
        if self._window.top != top and self.is_attached:
            self.post_message(self.Scrolled(self))

    def on_resize(self) -> None:
        self._painted.clear()
        self._window.height = max(1, self.size.height - 1)
        self._window.reveal(self.lane)

    # -- drawing --------------------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        """Colours changed: what is painted is painted anew."""
        self._styles.clear()
        self._painted.clear()
        super().notify_style_update()

    def _repaint(self) -> None:
        """Paints the cells that differ from what is painted."""
        if not self.is_attached:
            return
        for y in range(self.size.height):
            old, new = self._painted.get(y), self._row(y)
            if old == new:
                continue
            self._painted[y] = new
            changed = [x for x, (one, other) in enumerate(zip(old or (), new, strict=False)) if one != other]
            if old is None or len(old) != len(new) or not changed:
                self.refresh(Region(0, y, self.size.width, 1))
            else:
                self.refresh(Region(changed[0], y, changed[-1] - changed[0] + 1, 1))

    def render_line(self, y: int) -> Strip:
        if y not in self._painted:
            self._painted[y] = self._row(y)
        segments = [Segment(text, style) for text, style in self._painted[y]]
        return Strip(list(Segment.simplify(segments)), self.size.width)

    def _row(self, y: int) -> Cells:
        lane = self._window.top + y - 1
        if y == 0:
            cells = self._axis()
        elif lane in self._window.rows():
            cells = self._lane(lane)
        else:
            cells = [(" ", self.rich_style)] * self.size.width
        return cells[: self.size.width]  # less than the labels and one column take, on a tiny terminal

    def _axis(self) -> Cells:
        style = self._style("axis")
        cells = list(time_axis(self._lo, self._hi, self.width)) if self._labels else []
        if cells:
            if self._mark is not None and 0 <= self._mark < len(cells):
                cells[self._mark] = AXIS_MARK
            cells[min(self.column, len(cells) - 1)] = AXIS_CURSOR
        left = " " * (len(MARKER) + self.label_width + 1)
        return [(cell, style) for cell in (left + "".join(cells)).ljust(self.size.width)]

    def _lane(self, number: int) -> Cells:
        is_current = number == self.lane
        label = (MARKER if is_current else " " * len(MARKER)) + fit(safe_text(self._labels[number]), self.label_width)
        line = self._lines.get(number) or LaneLine(_ASKED, ())
        # After a change of size the line is still as long as it was asked for.
        text = line.text.ljust(self.width)[: self.width]
        styles = _joined(text, (*line.styles, *[""] * (self.width - len(line.styles)))[: self.width])
        for column in line.marked:
            if column < self.width:
                styles[column] += "*"
        if is_current:
            styles[min(self.column, self.width - 1)] += "!"
        base, plain = self._style("current" if is_current else ""), self._style("")
        value = " " + fit(line.value, self.value_width, "right")
        return [
            *((character, base) for character in label + " "),
            *zip(text, map(self._style, styles), strict=True),
            *((character, plain) for character in value),
        ]

    def _style(self, name: str) -> Style:
        """A category, with ``-`` where it is no block, ``*`` where a name was found, ``!`` under the cursor."""
        if name not in self._styles:
            self._styles[name] = self._made_style(name)
        return self._styles[name]

    def _made_style(self, name: str) -> Style:
        if name in ("axis", "current"):
            return self.get_component_rich_style(f"lane-chart--{name}")
        plain = name.rstrip("*!")
        category = plain.removesuffix("-")
        style = self.get_component_rich_style(category_class(category)) if category else self.rich_style
        is_block = bool(category) and category == plain and category not in _LINES
        if "*" in name:
            style += Style(bold=True, underline=True)
        return style + Style(reverse=is_block != ("!" in name))


_LINES = frozenset({"nvtx"})
"""Categories that are drawn as lines, never as blocks."""


def _joined(text: str, styles: Sequence[str]) -> list[str]:
    """``styles`` with blanks in the colour of what stands before them, where that is no block.

    It looks the same, and saves a terminal two changes of colour.
    """
    found: list[str] = []
    before = ""
    for character, style in zip(text, styles, strict=True):
        if character == " " and not style and (before.endswith("-") or before in _LINES):
            found.append(before)
        else:
            found.append(style)
            before = style
    return found
