"""Lanes of blocks over time: a bin a column, an axis below, and a cursor that can mark a span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.color import Color
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from nsystui.base.drawing import SHADES
from nsystui.base.text import fit, safe_text, width_of
from nsystui.ui.widgets.plots import NO_DATA, blocks, tick_line, time_axis
from nsystui.ui.widgets.stacks import SHADE_LEVELS, Cell, Stack, dominant, half_cells, shade_blocks, shades, stack_cells
from nsystui.ui.widgets.time_chart import CURSOR_ROWS, REVERSE, TimeChart, Words

# -- shares as blocks -------------------------------------------------------------------------------------------------


_LEAST_ROWS, _MOST_ROWS = 5, 16
"""Rows of a still chart of one lane: its label and four notes at least."""

CROSSHAIR_ROWS = 3
"""Up to this many rows of lanes the cursor goes through all of them; with more it is in the current lane only."""


@dataclass(frozen=True)
class Lane:
    """One lane: ``label`` at its left, ``bins`` (0..1, NaN: no data) over time, ``value`` at its right."""

    label: str
    bins: Sequence[float]
    value: str = ""
    category: str | None = None
    """Its colour, see ``categories``."""
    stack: Stack = ()
    """In place of ``bins``: categories that add up, the lowest first."""
    height: int = 1
    """In rows."""
    notes: tuple[tuple[str, str], ...] = ()
    """Below the label, one a row: a category, of which a swatch is drawn, and its words."""


class StripChart(TimeChart):
    """Lanes of blocks, an axis below them, and a cursor with its own keys that can mark a span.

    It draws ``chart_width`` bins a lane.

    Args:
        axis: What stands below the lanes, for the ends that ``set_lanes`` was given and a width.
        is_ramp: Shares are shades of a colour, not heights.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", show=False),
        Binding("right,l", "move(1)", show=False),
        Binding("shift+left,less_than_sign", "move(-10)", show=False),
        Binding("shift+right,greater_than_sign", "move(10)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("up,k", "lane(-1)", show=False),
        Binding("down,j", "lane(1)", show=False),
        Binding("pageup,ctrl+b", "lane_page(-1)", show=False),
        Binding("pagedown,ctrl+f", "lane_page(1)", show=False),
        Binding("m", "mark", "mark", show=False),
        Binding("enter", "select", "open", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {"strip-chart--lane"}

    DEFAULT_CSS = "StripChart > .strip-chart--lane { color: $foreground; }"

    @dataclass
    class CursorMoved(Message):
        """The cursor stands in another lane or column of ``chart``."""

        chart: StripChart

        def can_replace(self, message: Message) -> bool:
            """Leave one message of a held key in the queue, the newest."""
            return isinstance(message, StripChart.CursorMoved) and message.chart is self.chart

    @dataclass
    class Resized(Message):
        """The chart is shown in another size, also where it was hidden before."""

        chart: StripChart

    @dataclass
    class Selected(Message):
        """Enter; the screen may ask for ``span_times`` or ``cursor_times``."""

        chart: StripChart

    def __init__(
        self,
        *,
        label_width: int = 10,
        value_width: int = 7,
        axis: Callable[[int, int, int], str] = time_axis,
        is_ramp: bool = False,
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(label_width=label_width, value_width=value_width, id=id)
        self._axis = axis
        self._is_ramp = is_ramp
        self.lanes: tuple[Lane, ...] = ()
        self._halves = False
        self._ticks: tuple[tuple[int, str], ...] = ()
        self._drawn: dict[tuple[int, int], tuple[int, str, Sequence[Style]]] = {}  # by lane and row, with the width
        self.span: tuple[int, int] | None = None
        """First and last column of the marked span, if one is marked."""
        self._fills: dict[tuple[str, ...], Style] = {}
        self._anchor: int | None = None
        self._width = 0  # in columns, before the last change of size

    @property
    def lane_count(self) -> int:
        """The number of lanes, also where two share a row."""
        return len(self.lanes)

    def set_lanes(
        self, lanes: Sequence[Lane], lo: int, hi: int, halves: bool = False, ticks: Sequence[tuple[int, str]] = ()
    ) -> None:
        """Show ``lanes`` over the time from ``lo`` to ``hi`` ns. The cursor stays, as far as there is such a place.

        A marked span stays while the times do, and leaves with them. With ``halves`` two lanes share a row, which
        only colours can tell apart. ``ticks``, times with their labels, have a line of their own below the axis.
        """
        if (lo, hi) != (self._lo, self._hi):
            self.span = self._anchor = None
        self.lanes, self._lo, self._hi = tuple(lanes), lo, hi
        self._halves, self._ticks = halves, tuple(ticks)
        if halves:
            self._places = tuple((first, 0) for first in range(0, len(lanes), 2))
        else:
            self._places = tuple((number, part) for number, lane in enumerate(lanes) for part in range(lane.height))
        self._drawn.clear()
        self._window.count = len(self._places)
        self.set_reactive(TimeChart.cursor_lane, self.validate_cursor_lane(self.cursor_lane))
        self.fit_window()
        self.repaint_changes()

    def rows_of(self, lane: int) -> tuple[int, int]:
        """The rows of a lane; of half a row that row."""
        if self._halves or not self.lanes:
            return lane // 2, lane // 2
        first = sum(one.height for one in self.lanes[:lane])
        return first, first + self.lanes[lane].height - 1

    def is_current(self, lane: int) -> bool:
        """Whether the cursor is in a lane, or in the one below it that shares its row."""
        return lane == (self.cursor_lane - self.cursor_lane % 2 if self._halves else self.cursor_lane)

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
    def span_times(self) -> tuple[int, int] | None:
        """From and to which ns the marked span reaches."""
        if self.span is None:
            return None
        return self.column_times(self.span[0])[0], self.column_times(self.span[1])[1]

    def mark_span(self, first: int | None, last: int | None = None) -> None:
        """Mark the columns from ``first`` to ``last``, or nothing."""
        self._anchor = None
        self.span = None if first is None else (first, first if last is None else last)
        self.repaint_changes()

    def watch_cursor_column(self, old: int, new: int) -> None:
        """Draw the span that is being marked up to the cursor."""
        if self._anchor is not None:
            self.span = (min(self._anchor, new), max(self._anchor, new))
        self._moved()

    def watch_cursor_lane(self, old: int, new: int) -> None:
        """Scroll to the cursor's lane."""
        self.reveal_lane()
        self._moved()

    def _moved(self) -> None:
        self.repaint_changes()
        if self.is_attached:
            self.post_message(self.CursorMoved(self))

    def action_move(self, columns: int) -> None:
        """Move the cursor by columns."""
        self.cursor_column += columns

    def action_lane(self, lanes: int) -> None:
        """Move the cursor by lanes."""
        self.cursor_lane += lanes

    def action_lane_page(self, direction: int) -> None:
        """Move the cursor by a page of rows."""
        row = self.rows_of(self.cursor_lane)[0] + direction * self._window.height
        at_end = len(self.lanes) - 1 if row > 0 else 0
        self.cursor_lane = self.lane_at(row)[0] if 0 <= row < len(self._places) else at_end

    def action_mark(self) -> None:
        """Begin a span here; the next time, end it here; the third time, forget it."""
        if self._anchor is not None:
            self._anchor = None
        elif self.span is not None:
            self.mark_span(None)
        else:
            self.mark_span(self.cursor_column)
            self._anchor = self.cursor_column

    def action_select(self) -> None:
        """Tell the screen that Enter was pressed."""
        if self.lanes:
            self.post_message(self.Selected(self))

    def point(self, lane: int | None, column: int) -> None:
        """Put the cursor where the mouse was pressed; the marked span leaves."""
        self.mark_span(None)
        if lane is not None:
            self.cursor_lane = lane
        self.cursor_column = column

    def drag(self, first: int, column: int) -> None:
        """Mark the columns over which the mouse is drawn."""
        self._anchor = None
        self.span = (min(first, column), max(first, column))
        self.cursor_column = column

    def on_resize(self) -> None:
        """Keeps the cursor on its time."""
        if not self.size.width:  # the chart is hidden
            return
        self.post_message(self.Resized(self))
        width, before = self.chart_width, self._width
        if width == before:
            return
        self._width = width
        self.span = self._anchor = None
        if before:
            self.cursor_column = (2 * self.cursor_column + 1) * width // (2 * before)  # by its middle

    def notify_style_update(self) -> None:
        """Forget what was drawn in the colours of another theme."""
        self._fills.clear()
        self._drawn.clear()
        super().notify_style_update()

    def label_of(self, lane: int) -> str:
        return self.lanes[lane].label

    def value_of(self, lane: int) -> str:
        return self.lanes[lane].value

    def _pair(self, lane: int, words: Callable[[int], str], width: int) -> str:
        """The words of the two lanes of a row, or where they do not fit those of the cursor's, else of the first."""
        own = self.cursor_lane if self.is_current(lane) else lane
        both = " ".join(words(one) for one in (lane, lane + 1) if one < len(self.lanes))
        return both if width_of(both) <= width else words(own)

    def label_words(self, lane: int, part: int, plain: Style) -> Words:
        """The label of a row: of two lanes that share it both, below a label its notes."""
        shown = self.lanes[lane]
        if self._halves:
            words = self.label_of(self.cursor_lane) if self.is_current(lane) else None
            text = words if words is not None else self._pair(lane, self.label_of, self.label_width)
            return ((fit(safe_text(text), self.label_width), plain),)
        if not part:
            return super().label_words(lane, part, plain)
        if part > len(shown.notes):
            return ((" " * self.label_width, plain),)
        category, words = shown.notes[part - 1]
        swatch = SHADES.get(category, "█") if self._is_plain else "█"
        style = self.words_style(category)
        return ((f" {swatch}", self._fill(category)), (fit(f" {safe_text(words)}", self.label_width - 2), style))

    def row_value(self, lane: int, part: int) -> str:
        """The value of a row: of two lanes that share it both."""
        return self._pair(lane, self.value_of, self.value_width) if self._halves else super().row_value(lane, part)

    def cells_of(self, lane: int, part: int) -> tuple[str, Sequence[Style]]:
        """Draw a row, or take it from the last time, and put the cursor on it."""
        width = self.chart_width
        known = self._drawn.get((lane, part))
        if known is None or known[0] != width:
            known = self._drawn[lane, part] = (width, *self._draw(lane, part, width))
        _, cells, styles = known
        column = self.cursor_column
        height = self.lanes[lane].height
        is_here = self.is_current(lane) and part >= height - CURSOR_ROWS
        is_here |= len(self._places) <= CROSSHAIR_ROWS
        if not self.HAS_CURSOR or not is_here or column >= width:
            return cells, styles
        styles = [*styles]
        if self._halves:  # not exchanged: the other half keeps its colour, that of the cursor has the colour of words
            half = "▄" if self.cursor_lane % 2 else "▀"
            cells = cells[:column] + half + cells[column + 1 :]
            other = self._halves_of(lane + 1 - self.cursor_lane % 2, width)[column]
            behind = self._fill(other).color if other not in ("", NO_DATA) else self.rich_style.bgcolor
            styles[column] = Style(color=self.rich_style.color, bgcolor=behind)
        else:
            styles[column] += REVERSE
        return cells, styles

    def _draw(self, lane: int, part: int, width: int) -> tuple[str, Sequence[Style]]:
        """A row without the cursor."""
        shown = self.lanes[lane]
        if self._halves:
            cells = half_cells(*(self._halves_of(one, width) for one in (lane, lane + 1)))
        elif shown.stack:
            cells = stack_cells(shown.stack, width, shown.height, self._is_plain)[part]
        elif self._is_ramp:
            category = shown.category or "nvtx"
            halves = shades(shown.bins, width, category) if self.has_colours else []
            cells = (
                half_cells(halves, halves) if self.has_colours else _filled(shade_blocks(shown.bins, width), category)
            )
        else:
            cells = _filled(blocks(shown.bins, width), shown.category or "")
        return "".join(cell for cell, *_ in cells), [self._fill(*fills) for _, *fills in cells]

    def _halves_of(self, lane: int, width: int) -> list[str]:
        """The fill of half a row in each column; empty for nothing."""
        if lane >= len(self.lanes):
            return [""] * width
        shown = self.lanes[lane]
        return dominant(shown.stack, width) if shown.stack else shades(shown.bins, width, shown.category or "nvtx")

    def _fill(self, front: str, behind: str = "") -> Style:
        """The style of a cell: a category, with a shade of it behind a colon, and what shows behind its glyph."""
        key = (front, behind)
        if key not in self._fills:
            style = self._fill_color(front) if front else self.get_component_rich_style("strip-chart--lane")
            self._fills[key] = style + Style(bgcolor=self._fill_color(behind).color) if behind else style
        return self._fills[key]

    def _fill_color(self, name: str) -> Style:
        category, _, level = name.partition(":")
        style = self.fill_style(category)
        if not level or style.color is None or style.bgcolor is None or style.color.triplet is None:
            return style
        ground = style.bgcolor.triplet or style.color.triplet
        share = 0.1 + 0.9 * int(level) / SHADE_LEVELS
        mixed = (round(low + share * (high - low)) for low, high in zip(ground, style.color.triplet, strict=True))
        return style + Style(color=Color.from_rgb(*mixed))

    def axis_label(self, number: int) -> str:
        """The word before the line of ticks."""
        return "step" if number else ""

    def axis_lines(self) -> int:
        """One line, and one for ticks where there are any."""
        return 2 if self._ticks else 1

    def axis_cells(self, number: int) -> str:
        """The axis with the marked span, or the ticks."""
        width = self.chart_width
        if number:
            return tick_line([(self.time_column(time), label) for time, label in self._ticks], width)
        axis = self._axis(self._lo, self._hi, width)
        if self.span is not None:
            first, last = self.span
            axis = axis[:first] + "━" * (last - first + 1) + axis[last + 1 :]
        return axis


def _filled(glyphs: str, category: str) -> list[Cell]:
    """Cells in the colour of a category; empty ones have none, so that the cursor on them does not look like data."""
    return [(glyph, category if glyph != " " else "", "") for glyph in glyphs]


class StillChart(StripChart, can_focus=False):
    """Lanes to look at, without a cursor."""

    HAS_CURSOR = False
    DEFAULT_CSS = "StillChart { display: none; }"

    def fit_lines(self, lines: int) -> int:
        """Take up to so many lines of the screen; the rows for a lane, 0 where they are few or not laid out yet."""
        rows = min(lines - self.axis_lines(), _MOST_ROWS)
        self.display = rows >= _LEAST_ROWS
        self.styles.height = rows + self.axis_lines()
        return rows if self.display and self.size.width else 0
