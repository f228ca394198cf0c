"""Lanes of blocks over time, one for each rank, GPU or metric, with a cursor in time.

A step of the cursor repaints the lane it is in and the axis, not the other lanes: Textual sends a line from its
beginning to the last cell that changed, so that a cursor through sixteen lanes would cost 5 KB for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from nsystui.base.text import fit, safe_text
from nsystui.ui.widgets.categories import CATEGORY_CLASSES, category_class, category_css
from nsystui.ui.widgets.plots import blocks, histogram_lines, time_axis
from nsystui.ui.widgets.quiet import QuietFocus
from nsystui.ui.widgets.window import Window

__all__ = ["Lane", "StripChart", "histogram_lines", "time_axis"]

CROSSHAIR_LANES = 3
"""Up to this many lanes in sight, the cursor goes through all of them; with more it is in the current one only."""

MARKER = "▸ "
AXIS_CURSOR = "▲"
AXIS_SPAN = "━"


@dataclass(frozen=True)
class Lane:
    """One lane: ``label`` at its left, ``bins`` (0..1, NaN: no data) over time, ``value`` at its right."""

    label: str
    bins: Sequence[float]
    value: str = ""
    category: str | None = None
    """Its colour, see ``categories``."""


class StripChart(QuietFocus, can_focus=True):
    """Lanes over one span of time, an axis below them, and a cursor: a column of time and a lane.

    Ask for ``chart_width`` bins a lane: ``BinsWanted`` says when that number changed.

    Args:
        label_width: Cells for the labels at the left.
        value_width: Cells for the values at the right; 0 for none.
        axis: What stands below the lanes, for the ends that ``set_lanes`` was given and a width.
    """

    ALLOW_SELECT = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", show=False),
        Binding("right", "move(1)", show=False),
        Binding("shift+left,less_than_sign", "move(-10)", show=False),
        Binding("shift+right,greater_than_sign", "move(10)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("up,k", "lane(-1)", show=False),
        Binding("down,j", "lane(1)", show=False),
        Binding("pageup,ctrl+b", "lane_page(-1)", show=False),
        Binding("pagedown,ctrl+f", "lane_page(1)", show=False),
        Binding("space", "mark", "mark", show=False),
        Binding("enter", "select", "open", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "strip-chart--lane",
        "strip-chart--axis",
        "strip-chart--current",
        *CATEGORY_CLASSES,
    }

    DEFAULT_CSS = """
    StripChart { height: 1fr; }
    StripChart > .strip-chart--lane { color: $foreground; }
    StripChart > .strip-chart--axis { color: $foreground 75%; }
    StripChart:ansi > .strip-chart--axis { color: $foreground; }
    StripChart > .strip-chart--current { text-style: bold; }
    """ + category_css("StripChart")

    cursor_column: reactive[int] = reactive(0, repaint=False, init=False)
    """The column of time under the cursor, from 0."""

    cursor_lane: reactive[int] = reactive(0, repaint=False, init=False)
    """The lane the cursor is in, from 0."""

    @dataclass
    class BinsWanted(Message):
        """The chart is ``width`` columns wide now: compute that many bins and call ``set_lanes``."""

        chart: StripChart
        width: int

        @property
        def control(self) -> StripChart:
            return self.chart

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, StripChart.BinsWanted) and message.chart is self.chart

    @dataclass
    class CursorMoved(Message):
        """The cursor stands in ``lane`` at ``column``."""

        chart: StripChart
        lane: int
        column: int

        @property
        def control(self) -> StripChart:
            return self.chart

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, StripChart.CursorMoved) and message.chart is self.chart

    @dataclass
    class Selected(Message):
        """Enter, at ``column`` of ``lane``; the screen may ask for ``span_times`` or ``cursor_times``."""

        chart: StripChart
        lane: int
        column: int

        @property
        def control(self) -> StripChart:
            return self.chart

    def __init__(
        self,
        *,
        label_width: int = 10,
        value_width: int = 7,
        axis: Callable[[int, int, int], str] = time_axis,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.label_width = label_width
        self.value_width = value_width
        self._axis = axis
        self._lanes: tuple[Lane, ...] = ()
        self._drawn: dict[int, str] = {}  # lane -> its blocks: a step of the cursor need not make them again
        self._lo, self._hi = 0, 0
        self._span: tuple[int, int] | None = None
        self._anchor: int | None = None
        self._window = Window()
        self._wanted_width = 0

    # -- what is shown --------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self._lanes

    def set_lanes(self, lanes: Sequence[Lane], lo: int, hi: int) -> None:
        """Show ``lanes`` over the time from ``lo`` to ``hi`` ns. The cursor stays, as far as there is such a place.

        A marked span stays while the times do, and leaves with them.
        """
        if (lo, hi) != (self._lo, self._hi):
            self._span = self._anchor = None
        self._lanes, self._lo, self._hi = tuple(lanes), lo, hi
        self._drawn.clear()
        self._window.count = len(self._lanes)
        self.set_reactive(StripChart.cursor_lane, self._window.clamp(self.cursor_lane))
        self._window.reveal(self.cursor_lane)
        self.refresh()

    @property
    def chart_width(self) -> int:
        """Columns of time: what is left of the width beside labels and values."""
        values = self.value_width + 1 if self.value_width else 0
        return max(1, self.size.width - len(MARKER) - self.label_width - 1 - values)

    # -- columns and times ----------------------------------------------------------------------------------------

    def column_times(self, column: int) -> tuple[int, int]:
        """From and to which ns ``column`` reaches."""
        length, width = self._hi - self._lo, self.chart_width
        return self._lo + column * length // width, self._lo + (column + 1) * length // width

    def time_column(self, time: int) -> int:
        """The column that holds ``time`` (ns), clamped to the chart."""
        if self._hi <= self._lo:
            return 0
        return self.validate_cursor_column((time - self._lo) * self.chart_width // (self._hi - self._lo))

    @property
    def cursor_times(self) -> tuple[int, int]:
        """From and to which ns the cursor's column reaches."""
        return self.column_times(self.cursor_column)

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last column of the marked span, if one is marked."""
        return self._span

    @property
    def span_times(self) -> tuple[int, int] | None:
        """From and to which ns the marked span reaches."""
        return (
            None if self._span is None else (self.column_times(self._span[0])[0], self.column_times(self._span[1])[1])
        )

    def mark_span(self, first: int | None, last: int | None = None) -> None:
        """Mark the columns from ``first`` to ``last``, or nothing."""
        self._anchor = None
        self._span = None if first is None else (first, first if last is None else last)
        self._refresh_cursor_lines()

    # -- moving ---------------------------------------------------------------------------------------------------

    def validate_cursor_column(self, column: int) -> int:
        return max(0, min(column, self.chart_width - 1))

    def validate_cursor_lane(self, lane: int) -> int:
        return self._window.clamp(lane)

    def watch_cursor_column(self, old: int, new: int) -> None:
        if self._anchor is not None:
            self._span = (min(self._anchor, new), max(self._anchor, new))
            self._refresh_cursor_lines()
        else:
            self._refresh_cursor_lines(min(old, new), max(old, new))
        self._announce()

    def watch_cursor_lane(self, old: int, new: int) -> None:
        if self._window.reveal(new):
            self.refresh()
        else:
            # Marker, label and the cell under the cursor change; what stands to its right need not be sent again.
            width = len(MARKER) + self.label_width + 1 + self.cursor_column + 1
            self._refresh_lines(filter(self._window.shows, (old, new)), 0, width)
        self._announce()

    def _announce(self) -> None:
        if self.is_attached:
            self.post_message(self.CursorMoved(self, self.cursor_lane, self.cursor_column))

    def _crosshair(self) -> bool:
        return len(self._window.rows()) <= CROSSHAIR_LANES

    def _refresh_cursor_lines(self, first: int = 0, last: int | None = None) -> None:
        """Repaint columns ``first`` to ``last`` of the lines that show the cursor."""
        left = len(MARKER) + self.label_width + 1
        width = (self.chart_width if last is None else last + 1) - first
        lanes = self._window.rows() if self._crosshair() else [self.cursor_lane]
        self._refresh_lines(lanes, left + first, width)
        self.refresh(Region(left + first, len(self._window.rows()), width, 1))

    def _refresh_lines(self, lanes: Iterable[int], x: int, width: int) -> None:
        for lane in lanes:
            self.refresh(Region(x, lane - self._window.top, width, 1))

    def action_move(self, columns: int) -> None:
        self.cursor_column += columns

    def action_lane(self, lanes: int) -> None:
        self.cursor_lane += lanes

    def action_lane_page(self, direction: int) -> None:
        self.cursor_lane += direction * self._window.height

    def action_mark(self) -> None:
        """Begin a span here; the next time, end it here; the third time, forget it."""
        if self._anchor is not None:
            self._anchor = None
        elif self._span is not None:
            self.mark_span(None)
        else:
            self.mark_span(self.cursor_column)
            self._anchor = self.cursor_column

    def action_select(self) -> None:
        if self._lanes:
            self.post_message(self.Selected(self, self.cursor_lane, self.cursor_column))

    # -- drawing --------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Keep the cursor on its time, and ask for as many bins as there are columns now."""
        width, before = self.chart_width, self._wanted_width
        if width == before:
            return
        self._wanted_width = width
        self._span = self._anchor = None
        if before:
            self.cursor_column = (2 * self.cursor_column + 1) * width // (2 * before)  # by its middle
        self.post_message(self.BinsWanted(self, width))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Called once a repaint: the moment to notice how many lanes there is room for."""
        self._window.height = max(1, self.size.height - 1)
        self._window.reveal(self.cursor_lane)
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        lane = self._window.top + y
        if y < len(self._window.rows()):
            return Strip(self._lane_segments(lane), width)
        if y == len(self._window.rows()) and self._lanes:
            return Strip(self._axis_segments(), width)
        return Strip.blank(width, self.rich_style)

    def _lane_segments(self, number: int) -> list[Segment]:
        lane, current = self._lanes[number], number == self.cursor_lane
        base = self.get_component_rich_style("strip-chart--current") if current else self.rich_style
        colour = self.get_component_rich_style(category_class(lane.category) if lane.category else "strip-chart--lane")
        if len(self._drawn.get(number, "")) != self.chart_width:
            self._drawn[number] = blocks(lane.bins, self.chart_width)
        label = (MARKER if current else " " * len(MARKER)) + fit(safe_text(lane.label), self.label_width) + " "
        value = " " + fit(safe_text(lane.value), self.value_width, "right") if self.value_width else ""
        marked = {self.cursor_column} if current or self._crosshair() else set()
        return _join((label, base), *_marked(self._drawn[number], colour, marked), (value, self.rich_style))

    def _axis_segments(self) -> list[Segment]:
        """Times below the lanes, with the marked span and the cursor drawn over them."""
        style = self.get_component_rich_style("strip-chart--axis")
        axis = self._axis(self._lo, self._hi, self.chart_width)
        if self._span is not None:
            first, last = self._span
            axis = axis[:first] + AXIS_SPAN * (last - first + 1) + axis[last + 1 :]
        axis = axis[: self.cursor_column] + AXIS_CURSOR + axis[self.cursor_column + 1 :]
        left = " " * (len(MARKER) + self.label_width + 1)
        return [Segment((left + axis).ljust(self.size.width), style)]


def _marked(text: str, style: Style, columns: set[int]) -> list[tuple[str, Style]]:
    """``text`` with the cells at ``columns`` reversed."""
    parts: list[tuple[str, Style]] = []
    start = 0
    for column in sorted(columns):
        reverse = style + Style(reverse=True)
        parts += [(text[start:column], style), (text[column : column + 1], reverse)]
        start = column + 1
    return [*parts, (text[start:], style)]


def _join(*parts: tuple[str, Style]) -> list[Segment]:
    return list(Segment.simplify(Segment(text, style) for text, style in parts if text))
