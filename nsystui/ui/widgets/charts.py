"""Lanes over time with an axis and a cursor: `StripChart` draws shares as blocks, `LaneChart` events with names.

A key repaints the cells that changed and no others: Textual sends a line from its beginning to the last cell that
changed, so that a cursor through sixteen lanes would cost 5 KB for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.color import Color, blend_rgb
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from nsystui.base.drawing import SHADES
from nsystui.base.text import fit, safe_text, width_of
from nsystui.ui.ascii import draws_in_ascii
from nsystui.ui.widgets.plots import BLOCKS, NO_DATA, blocks, tick_line, time_axis
from nsystui.ui.widgets.repainting import OwnFocus
from nsystui.ui.widgets.stacks import (
    SHADE_LEVELS,
    Cell,
    Stack,
    dominant,
    half_cells,
    shade_blocks,
    shades,
    stack_cells,
)
from nsystui.ui.widgets.window import CategoryWidget, RowWindow, category_class, fill_class

MARKER = "▸ "
"""Stands before the label of the cursor's lane."""

_REVERSE = Style(reverse=True)

_NEAR = 8
"""Cells that changed are painted with those between them where they are nearer than so many."""


Words = tuple[tuple[str, Style], ...]


@dataclass(frozen=True)
class _Line:
    """A line of a chart: the label at the left, a cell for each column of time, the value at the right."""

    label: Words
    cells: str
    styles: Sequence[Style]
    value: str
    value_style: Style

    def segments(self) -> list[Segment]:
        parts = (*self.label, *zip(self.cells, self.styles, strict=True), (self.value, self.value_style))
        return list(Segment.simplify(Segment(*part) for part in parts if part[0]))


class TimeChart(CategoryWidget, OwnFocus, can_focus=True):
    """The drawing that both charts share; a subclass gives the cells of its lanes and of the axis.

    Args:
        label_width: Cells for the labels at the left.
        value_width: Cells for the values at the right; 0 for none.
    """

    ALLOW_SELECT = False
    AXIS_ABOVE: ClassVar[bool] = False
    HAS_CURSOR: ClassVar[bool] = True
    CARET: ClassVar[str] = "▲"
    """Shows the column of the cursor on the axis, where that is blank and no part of a label."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"time-chart--axis", "time-chart--current"}

    DEFAULT_CSS = """
    TimeChart { height: 1fr; }
    TimeChart > .time-chart--axis { color: $foreground 75%; }
    TimeChart:ansi > .time-chart--axis { color: $foreground; }
    TimeChart > .time-chart--current { text-style: bold; }
    """

    cursor_column: reactive[int] = reactive(0, repaint=False, init=False)
    """The column of time under the cursor, from 0."""

    cursor_lane: reactive[int] = reactive(0, repaint=False, init=False)
    """The lane the cursor is in, from 0."""

    def __init__(
        self,
        *,
        label_width: int,
        value_width: int,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.label_width = label_width
        self.value_width = value_width
        self._lo, self._hi = 0, 0
        self._window = RowWindow()  # on the rows of the lanes
        self._places: tuple[tuple[int, int], ...] = ()  # by row: lane and row of the lane
        self._painted: dict[int, _Line] = {}
        self._pressed: int | None = None  # the column in which the mouse was pressed

    # -- what a chart defines -------------------------------------------------------------------------------------

    def label_of(self, lane: int) -> str:
        """The label of a lane."""
        raise NotImplementedError

    def value_of(self, lane: int) -> str:
        """The value at the right of a lane."""
        raise NotImplementedError

    def cells_of(self, lane: int, part: int) -> tuple[str, Sequence[Style]]:
        """A character and a style for each column of a row of a lane, with the cursor where it is drawn."""
        raise NotImplementedError

    def axis_cells(self, number: int) -> str:
        """A character for each column of a line of the axis, with the marks."""
        raise NotImplementedError

    def axis_label(self, number: int) -> str:
        """What stands at the left of a line of the axis."""
        return ""

    def axis_lines(self) -> int:
        """How many lines the axis has."""
        return 1

    @property
    def lane_count(self) -> int:
        raise NotImplementedError

    def lane_at(self, row: int) -> tuple[int, int]:
        """The (first) lane of a row, and which row of the lane it is."""
        return self._places[row]

    def rows_of(self, lane: int) -> tuple[int, int]:
        """The first and the last row of a lane."""
        raise NotImplementedError

    def label_words(self, lane: int, part: int, plain: Style) -> Words:
        """The label of a row of a lane, ``label_width`` cells."""
        return ((fit("" if part else safe_text(self.label_of(lane)), self.label_width), plain),)

    def row_value(self, lane: int, part: int) -> str:
        """The value at the right of a row of a lane."""
        return "" if part else self.value_of(lane)

    def is_current(self, lane: int) -> bool:
        """Whether the cursor is in the row of this (first) lane."""
        return lane == self.cursor_lane

    # -- the mouse ------------------------------------------------------------------------------------------------

    @dataclass
    class Wheel(Message):
        """The wheel turned at a column of ``chart``: to zoom in (1) or out (-1)."""

        chart: TimeChart
        direction: int
        column: int

    def point(self, lane: int | None, column: int) -> None:
        """The mouse was pressed on a lane (``None``: on the axis) and a column."""

    def drag(self, first: int, column: int) -> None:
        """The mouse is drawn from one column to another with its button held down."""

    def column_at(self, x: int) -> int:
        """The column at a cell of the widget, clamped."""
        return max(0, min(x - self._left, self.chart_width - 1))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button != 1 or not self.lane_count:
            return
        event.stop()
        row = self._row_at(event.y)
        self._pressed = self.column_at(event.x)
        self.capture_mouse()
        self.point(None if row is None else self.lane_at(row)[0], self._pressed)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._pressed is not None and self.column_at(event.x) != self.cursor_column:
            event.stop()
            self.drag(self._pressed, self.column_at(event.x))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._pressed is not None:
            event.stop()
            self._pressed = None
            self.release_mouse()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.post_message(self.Wheel(self, 1, self.column_at(event.x)))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.post_message(self.Wheel(self, -1, self.column_at(event.x)))

    # -- lanes, columns and times ---------------------------------------------------------------------------------

    @property
    def chart_width(self) -> int:
        """Columns of time: the width without labels and values."""
        values = self.value_width + 1 if self.value_width else 0
        return max(1, self.size.width - self._left - values)

    @property
    def _left(self) -> int:
        return len(MARKER) + self.label_width + 1

    def validate_cursor_column(self, column: int) -> int:
        return max(0, min(column, self.chart_width - 1))

    def validate_cursor_lane(self, lane: int) -> int:
        return max(0, min(lane, self.lane_count - 1))

    # -- drawing --------------------------------------------------------------------------------------------------

    @property
    def has_colours(self) -> bool:
        """Whether a cell may be of any colour, not only of the 16 of a terminal, or of none."""
        return not self._is_plain and not self.app.current_theme.ansi

    @property
    def _is_plain(self) -> bool:
        return self.app.no_color or draws_in_ascii(self.app)

    def fit_window(self) -> None:
        """Notices how many lanes there is room for."""
        self._window.height = max(1, self.size.height - self.axis_lines())
        self.reveal_lane()

    def reveal_lane(self) -> None:
        """Has the lane of the cursor in sight, its last row and then its first."""
        first, last = self.rows_of(self.cursor_lane)
        if last != first:
            self._window.reveal(last)
        self._window.reveal(first)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Textual calls this once a repaint, also before it announces a new size."""
        self.fit_window()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        line = self._painted[y] = self._line(y)  # anew: its colours may have changed
        strip = Strip(line.segments())
        width = self.size.width  # less than the labels and one column take, on a tiny terminal
        return strip if strip.cell_length == width else strip.adjust_cell_length(width, self.rich_style)

    def repaint_changes(self) -> None:
        """Paints the cells that differ from those on the screen."""
        if not self.is_attached:
            return
        for y in range(self.size.height):
            old, new = self._painted.get(y), self._line(y)
            if old != new:
                self._painted[y] = new
                for first, end in [(0, self.size.width)] if old is None else self._changed(old, new):
                    self.refresh(Region(first, y, end - first, 1))

    def _changed(self, old: _Line, new: _Line) -> list[tuple[int, int]]:
        """From and to which cells of the screen two lines differ: the label, the columns of time and the value apart.

        Together they would have all of the cells between them.
        """
        if len(old.cells) != len(new.cells):
            return [(0, self.size.width)]
        pairs = zip(zip(old.cells, old.styles, strict=True), zip(new.cells, new.styles, strict=True), strict=True)
        places = [place for place, (before, after) in enumerate(pairs) if before != after]
        found = [(0, self._left)] if old.label != new.label else []
        runs: list[list[int]] = []
        for place in places:
            if runs and place - runs[-1][1] < _NEAR:
                runs[-1][1] = place
            else:
                runs.append([place, place])
        found += [(self._left + first, self._left + last + 1) for first, last in runs]
        if (old.value, old.value_style) != (new.value, new.value_style):
            found.append((self._left + len(new.cells), self.size.width))
        return found

    def _line(self, y: int) -> _Line:
        plain = self.rich_style
        rows = self._window.rows()
        axis = y if self.AXIS_ABOVE else y - len(rows)
        if 0 <= axis < self.axis_lines() and self.lane_count:
            return self._axis_line(axis)
        row = self._row_at(y)
        if row is None:
            return _Line(((" " * self.size.width, plain),), "", (), "", plain)
        lane, part = self.lane_at(row)
        is_current = self.HAS_CURSOR and self.is_current(lane)
        marker = MARKER if is_current and not part else " " * len(MARKER)
        value = fit(safe_text(self.row_value(lane, part)), self.value_width, "right") if self.value_width else ""
        base = self.get_component_rich_style("time-chart--current") if is_current and not part else plain
        label = ((marker, base), *self.label_words(lane, part, base), (" ", base))
        return _Line(label, *self.cells_of(lane, part), f" {value}" if value else "", plain)

    def _row_at(self, y: int) -> int | None:
        """The row of lanes on a line of the widget."""
        row = self._window.top + (y - self.axis_lines() if self.AXIS_ABOVE else y)
        return row if row in self._window.rows() else None

    def _axis_line(self, number: int) -> _Line:
        """A line of the axis; the first has the cursor, which never takes the place of a label."""
        style = self.get_component_rich_style("time-chart--axis")
        cells = self.axis_cells(number)
        styles = [style] * len(cells)
        column = min(self.cursor_column, len(cells) - 1)
        if number == 0 and column >= 0 and self.HAS_CURSOR:
            is_within_label = " " not in (cells[max(column - 1, 0)], cells[min(column + 1, len(cells) - 1)])
            if cells[column] == "━" or (cells[column] == " " and not is_within_label):
                cells = cells[:column] + self.CARET + cells[column + 1 :]
            else:
                styles[column] += _REVERSE
        rest = " " * max(0, self.size.width - self._left - len(cells))
        label = " " * len(MARKER) + fit(self.axis_label(number), self.label_width) + " "
        return _Line(((label, style),), cells, styles, rest, style)


# -- shares as blocks -------------------------------------------------------------------------------------------------

_CURSOR_ROWS = 3
"""The lowest rows of a high lane show the cursor, each for some bytes a step."""

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
        Binding("space", "mark", "mark", show=False),
        Binding("enter", "select", "open", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {"strip-chart--lane"}

    DEFAULT_CSS = """
    StripChart > .strip-chart--lane { color: $foreground; }
    """

    @dataclass
    class CursorMoved(Message):
        """The cursor stands in another lane or column of ``chart``."""

        chart: StripChart

        def can_replace(self, message: Message) -> bool:
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
        classes: str | None = None,
    ) -> None:
        super().__init__(label_width=label_width, value_width=value_width, id=id, classes=classes)
        self._axis = axis
        self._is_ramp = is_ramp
        self._lanes: tuple[Lane, ...] = ()
        self._halves = False
        self._ticks: tuple[tuple[int, str], ...] = ()
        self._drawn: dict[tuple[int, int], tuple[int, str, Sequence[Style]]] = {}  # by lane and row, with the width
        self._span: tuple[int, int] | None = None
        self._fills: dict[tuple[str, ...], Style] = {}
        self._anchor: int | None = None
        self._width = 0  # in columns, before the last change of size

    # -- what is shown --------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self._lanes

    @property
    def lane_count(self) -> int:
        return len(self._lanes)

    def set_lanes(
        self, lanes: Sequence[Lane], lo: int, hi: int, halves: bool = False, ticks: Sequence[tuple[int, str]] = ()
    ) -> None:
        """Show ``lanes`` over the time from ``lo`` to ``hi`` ns. The cursor stays, as far as there is such a place.

        A marked span stays while the times do, and leaves with them. With ``halves`` two lanes share a row, which
        only colours can tell apart. ``ticks``, times with their labels, have a line of their own below the axis.
        """
        if (lo, hi) != (self._lo, self._hi):
            self._span = self._anchor = None
        self._lanes, self._lo, self._hi = tuple(lanes), lo, hi
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
        if self._halves or not self._lanes:
            return lane // 2, lane // 2
        first = sum(one.height for one in self._lanes[:lane])
        return first, first + self._lanes[lane].height - 1

    def is_current(self, lane: int) -> bool:
        return lane == (self.cursor_lane - self.cursor_lane % 2 if self._halves else self.cursor_lane)

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
        if self._span is None:
            return None
        return self.column_times(self._span[0])[0], self.column_times(self._span[1])[1]

    def mark_span(self, first: int | None, last: int | None = None) -> None:
        """Mark the columns from ``first`` to ``last``, or nothing."""
        self._anchor = None
        self._span = None if first is None else (first, first if last is None else last)
        self.repaint_changes()

    # -- moving ---------------------------------------------------------------------------------------------------

    def watch_cursor_column(self, old: int, new: int) -> None:
        if self._anchor is not None:
            self._span = (min(self._anchor, new), max(self._anchor, new))
        self._moved()

    def watch_cursor_lane(self, old: int, new: int) -> None:
        self.reveal_lane()
        self._moved()

    def _moved(self) -> None:
        self.repaint_changes()
        if self.is_attached:
            self.post_message(self.CursorMoved(self))

    def action_move(self, columns: int) -> None:
        self.cursor_column += columns

    def action_lane(self, lanes: int) -> None:
        self.cursor_lane += lanes

    def action_lane_page(self, direction: int) -> None:
        row = self.rows_of(self.cursor_lane)[0] + direction * self._window.height
        at_end = len(self._lanes) - 1 if row > 0 else 0
        self.cursor_lane = self.lane_at(row)[0] if 0 <= row < len(self._places) else at_end

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
            self.post_message(self.Selected(self))

    def point(self, lane: int | None, column: int) -> None:
        self.mark_span(None)
        if lane is not None:
            self.cursor_lane = lane
        self.cursor_column = column

    def drag(self, first: int, column: int) -> None:
        self._anchor = None
        self._span = (min(first, column), max(first, column))
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
        self._span = self._anchor = None
        if before:
            self.cursor_column = (2 * self.cursor_column + 1) * width // (2 * before)  # by its middle

    # -- drawing --------------------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        self._fills.clear()
        self._drawn.clear()
        super().notify_style_update()

    def label_of(self, lane: int) -> str:
        return self._lanes[lane].label

    def value_of(self, lane: int) -> str:
        return self._lanes[lane].value

    def _pair(self, lane: int, words: Callable[[int], str], width: int) -> str:
        """The words of the two lanes of a row, or where they do not fit those of the cursor's, else of the first."""
        own = self.cursor_lane if self.is_current(lane) else lane
        both = " ".join(words(one) for one in (lane, lane + 1) if one < len(self._lanes))
        return both if width_of(both) <= width else words(own)

    def label_words(self, lane: int, part: int, plain: Style) -> Words:
        shown = self._lanes[lane]
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
        style = self.get_component_rich_style(category_class(category))
        return ((f" {swatch}", self._fill(category)), (fit(f" {safe_text(words)}", self.label_width - 2), style))

    def row_value(self, lane: int, part: int) -> str:
        return self._pair(lane, self.value_of, self.value_width) if self._halves else super().row_value(lane, part)

    def cells_of(self, lane: int, part: int) -> tuple[str, Sequence[Style]]:
        width = self.chart_width
        known = self._drawn.get((lane, part))
        if known is None or known[0] != width:
            known = self._drawn[lane, part] = (width, *self._draw(lane, part, width))
        _, cells, styles = known
        column = self.cursor_column
        height = self._lanes[lane].height
        is_here = self.is_current(lane) and part >= height - _CURSOR_ROWS
        is_here |= len(self._places) <= CROSSHAIR_ROWS
        if not self.HAS_CURSOR or not is_here or column >= width:
            return cells, styles
        styles = [*styles]
        if self._halves:  # the colours of the two halves are not to be exchanged
            half = "▄" if self.cursor_lane % 2 else "▀"
            cells = cells[:column] + half + cells[column + 1 :]
            styles[column] = self._cursor_half(lane, column)
        else:
            styles[column] += _REVERSE
        return cells, styles

    def _draw(self, lane: int, part: int, width: int) -> tuple[str, Sequence[Style]]:
        """A row without the cursor."""
        shown = self._lanes[lane]
        if self._halves:
            cells = half_cells(*(self._halves_of(one, width) for one in (lane, lane + 1)))
        elif shown.stack:
            cells = stack_cells(shown.stack, width, shown.height, self._is_plain)[part]
        elif self._is_ramp:
            cells = self._ramp_cells(shown, width)
        else:
            fill = shown.category or ""
            return blocks(shown.bins, width), [self._fill(fill)] * width
        return "".join(cell for cell, *_ in cells), [self._fill(*fills) for _, *fills in cells]

    def _halves_of(self, lane: int, width: int) -> list[str]:
        """The fill of half a row in each column; empty for nothing."""
        if lane >= len(self._lanes):
            return [""] * width
        shown = self._lanes[lane]
        return dominant(shown.stack, width) if shown.stack else shades(shown.bins, width, shown.category or "nvtx")

    def _ramp_cells(self, shown: Lane, width: int) -> list[Cell]:
        category = shown.category or "nvtx"
        if self.has_colours:
            fills = shades(shown.bins, width, category)
            return half_cells(fills, fills)
        return [(shade, category, "") for shade in shade_blocks(shown.bins, width)]

    def _cursor_half(self, lane: int, column: int) -> Style:
        """The other half in its own colour, that of the cursor in the colour of words."""
        other = self._halves_of(lane + 1 - self.cursor_lane % 2, self.chart_width)[column]
        behind = self._fill(other).color if other not in ("", NO_DATA) else self.rich_style.bgcolor
        return Style(color=self.rich_style.color, bgcolor=behind)

    def _fill(self, front: str, behind: str = "") -> Style:
        """The style of a cell: a category, with a shade of it behind a colon, and what shows behind its glyph."""
        key = (front, behind)
        if key not in self._fills:
            style = self._fill_color(front) if front else self.get_component_rich_style("strip-chart--lane")
            self._fills[key] = style + Style(bgcolor=self._fill_color(behind).color) if behind else style
        return self._fills[key]

    def _fill_color(self, name: str) -> Style:
        category, _, level = name.partition(":")
        style = self.get_component_rich_style(fill_class(category))
        if not level or style.color is None or style.bgcolor is None or style.color.triplet is None:
            return style
        ground = style.bgcolor.triplet or style.color.triplet
        share = 0.1 + 0.9 * int(level) / SHADE_LEVELS
        mixed = (round(low + share * (high - low)) for low, high in zip(ground, style.color.triplet, strict=True))
        return style + Style(color=Color.from_rgb(*mixed))

    def axis_label(self, number: int) -> str:
        return "step" if number else ""

    def axis_lines(self) -> int:
        return 2 if self._ticks else 1

    def axis_cells(self, number: int) -> str:
        width = self.chart_width
        if number:
            return tick_line([(self.time_column(time), label) for time, label in self._ticks], width)
        axis = self._axis(self._lo, self._hi, width)
        if self._span is not None:
            first, last = self._span
            axis = axis[:first] + "━" * (last - first + 1) + axis[last + 1 :]
        return axis


class StillChart(StripChart, can_focus=False):
    """Lanes to look at, without a cursor."""

    HAS_CURSOR = False


# -- events with names ------------------------------------------------------------------------------------------------

_NOT_COMPUTED = "…"
_EIGHTHS = 8
_GAP_ABOVE = "▔"
_THIN = 2
"""The shade of ranges that take a part of one row, which would not be seen in the colour of broad ones."""
_GROWTH = (*("gpu", "gpu", "stream", "gpu", "stream", "host", "gpu"), *("stream", "gpu", "gpu", "stream", "host"))
"""Which kind of lanes gets a row more, again and again while there is room."""

_HIGHEST = {"gpu": 12, "stream": 12, "host": 4}

_SHADE, _DIM, _RANGE, _SECOND_RANGE, _THIN_RANGE = 0.62, 0.35, 0.22, 0.34, 0.5
"""How much of its colour the second shade keeps; what is not found, and ranges, have over the background."""


@dataclass(frozen=True)
class LaneLine:
    """One lane, see ``questions.timeline.picture.LaneText``, and a value at its right.

    ``letters`` say without colours what the other fields say. ``names`` are written over filled cells: the first
    column, and the text. ``marked`` are the columns of what is looked for, ``None`` where nothing is.
    """

    letters: str
    categories: tuple[str, ...]
    busy: tuple[float, ...]
    shades: tuple[int, ...]
    names: tuple[tuple[int, str], ...] = ()
    marked: frozenset[int] | None = None
    value: str = ""


@dataclass(frozen=True)
class _Cell:
    """How a cell is drawn: ``is_filled`` in the colour of its category (but for a gap above), else written in it."""

    category: str = ""
    is_filled: bool = False
    has_gap: bool = False
    shade: int = 0
    is_marked: bool = False
    is_dim: bool = False
    is_cursor: bool = False


_PLAIN = _Cell()


class LaneChart(TimeChart):
    """Lanes of events below an axis, taller where there is room for that.

    Cells are filled with colour, as high as they are busy, and bear names; without colours of its own the terminal
    gets letters. Lines of lanes that are not given are asked for by ``Scrolled``.
    """

    AXIS_ABOVE = True
    CARET = "▼"

    @dataclass
    class Scrolled(Message):
        """Other lanes are in sight."""

        chart: LaneChart

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LaneChart.Scrolled)

    @dataclass
    class Pointed(Message):
        """The mouse was pressed on a lane (``None``: the axis) and a column, or drawn there from column ``first``."""

        chart: LaneChart
        lane: int | None
        column: int
        first: int | None = None

    def __init__(self, *, label_width: int, value_width: int, id: str | None = None) -> None:  # noqa: A002
        super().__init__(label_width=label_width, value_width=value_width, id=id)
        self.labels: tuple[str, ...] = ()
        self._kinds: tuple[str, ...] = ()
        self._lines: Mapping[int, LaneLine] = {}
        self._heights: tuple[int, ...] = ()
        self._room = 0  # rows that the heights are for
        self._mark: int | None = None
        self._styles: dict[_Cell, Style] = {}

    @property
    def lane_count(self) -> int:
        return len(self.labels)

    @property
    def in_sight(self) -> range:
        """The lanes in sight."""
        lanes = [self.lane_at(row)[0] for row in self._window.rows()]
        return range(lanes[0], lanes[-1] + 1) if lanes else range(0)

    def line(self, lane: int) -> LaneLine | None:
        """The line that is drawn of a lane; ``None`` while it is not known."""
        return self._lines.get(lane)

    def show(
        self, labels: Sequence[str], kinds: Sequence[str], lines: Mapping[int, LaneLine], lo: int, hi: int
    ) -> None:
        """Shows ``lines`` of the lanes with these labels, over the time from ``lo`` to ``hi`` ns.

        ``kinds``: ``gpu``, ``stream`` or ``host``, by which lanes grow; one that is empty does not.
        """
        is_same_time, is_same_list = (lo, hi) == (self._lo, self._hi), tuple(labels) == self.labels
        self.labels, self._kinds, self._lo, self._hi = tuple(labels), tuple(kinds), lo, hi
        # Of lanes out of sight the old lines stay only while they are true.
        self._lines = {**self._lines, **lines} if is_same_time and is_same_list else dict(lines)
        self._room = 0
        self._put_cursor(self.cursor_lane, self.cursor_column)

    def move(self, lane: int, column: int, mark: int | None = None) -> None:
        """Puts the cursor into a lane and column (clamped), and the mark, which may lie out of sight."""
        top = self._window.top
        self._mark = mark
        self._put_cursor(lane, column)
        if self._window.top != top and self.is_attached:
            self.post_message(self.Scrolled(self))

    def _put_cursor(self, lane: int, column: int) -> None:
        self.set_reactive(TimeChart.cursor_lane, self.validate_cursor_lane(lane))
        self.set_reactive(TimeChart.cursor_column, self.validate_cursor_column(column))
        if self.is_attached:
            self.fit_window()
            self.repaint_changes()

    def on_resize(self) -> None:
        self.fit_window()

    # -- the mouse ------------------------------------------------------------------------------------------------

    def point(self, lane: int | None, column: int) -> None:
        self.post_message(self.Pointed(self, lane, column))

    def drag(self, first: int, column: int) -> None:
        self.post_message(self.Pointed(self, None, column, first))

    # -- rows of lanes --------------------------------------------------------------------------------------------

    def rows_of(self, lane: int) -> tuple[int, int]:
        if not self._heights:
            return 0, 0
        first = sum(self._heights[:lane])
        return first, first + self._heights[lane] - 1

    def fit_window(self) -> None:
        room = max(1, self.size.height - self.axis_lines())
        if room != self._room:
            self._room, self._heights = room, self._shared_out(room)
            self._places = tuple((lane, part) for lane, height in enumerate(self._heights) for part in range(height))
            self._window.count = len(self._places)
        super().fit_window()

    def _shared_out(self, room: int) -> tuple[int, ...]:
        """The rows of each lane: what is left when all have one goes to one kind after the other.

        GPUs are compared with each other: they are all of one height. Letters would say no more on further rows.
        """
        heights = [1] * self.lane_count
        left = room - self.lane_count if self.has_colours else 0
        for kind in _GROWTH * max(_HIGHEST.values()):
            growing = [lane for lane, own in enumerate(self._kinds) if own == kind and heights[lane] < _HIGHEST[kind]]
            if kind == "gpu" and len(growing) > left:
                continue
            for lane in growing[: max(left, 0)]:
                heights[lane] += 1
                left -= 1
        return tuple(heights)

    # -- drawing --------------------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        self._styles.clear()
        self._room = 0
        super().notify_style_update()

    def label_of(self, lane: int) -> str:
        return self.labels[lane]

    def value_of(self, lane: int) -> str:
        line = self._lines.get(lane)
        return line.value if line is not None else ""

    def cells_of(self, lane: int, part: int) -> tuple[str, Sequence[Style]]:
        known, width = self._lines.get(lane), self.chart_width
        if known is None:
            text, cells = _NOT_COMPUTED.ljust(width)[:width], [_PLAIN] * width
        elif self.has_colours:
            text, cells = self._filled(known, part, self._heights[lane], width)
        else:
            text, cells = _lettered(known, width)
        if lane == self.cursor_lane and part >= self._heights[lane] - _CURSOR_ROWS:
            column = min(self.cursor_column, width - 1)
            cells[column] = replace(cells[column], is_cursor=True)
            if self.has_colours and text[column] in _GAP_ABOVE + BLOCKS:
                text = text[:column] + " " + text[column + 1 :]
        return text, [self._style(cell) for cell in cells]

    def _filled(self, known: LaneLine, line: int, lines: int, width: int) -> tuple[str, list[_Cell]]:
        """A line of a lane in colours, as high as it is busy; high lanes keep a gap above them."""
        text, cells = [], []
        whole = _EIGHTHS * lines - (1 if lines > 1 else 0)
        for column in range(width):  # after a change of size it is still as long as it was asked for
            category = known.categories[column] if column < len(known.categories) else ""
            if not category:
                text.append(known.letters[column] if column < len(known.letters) else " ")
                cells.append(_PLAIN)
                continue
            full = max(1, round(known.busy[column] * whole))
            eighths = min(max(full - _EIGHTHS * (lines - 1 - line), 0), _EIGHTHS)
            is_marked = known.marked is not None and column in known.marked
            has_gap = eighths == _EIGHTHS - 1
            is_filled = has_gap or eighths == _EIGHTHS
            # The gap is what is drawn: a block below it would leave a seam to the row below in many fonts.
            text.append(_GAP_ABOVE if has_gap else " " if is_filled or not eighths else BLOCKS[eighths - 1])
            is_dim = known.marked is not None and not is_marked
            shade = _THIN if category == "nvtx" and full < _EIGHTHS - 1 else known.shades[column]
            cell = _Cell(category, is_filled, has_gap, shade, is_marked, is_dim)
            cells.append(cell if eighths else _PLAIN)
        if line == lines // 2:
            for first, name in known.names:
                for column, character in enumerate(name, first):
                    if column < width and cells[column].is_filled and not cells[column].has_gap:
                        text[column] = character
        return "".join(text), cells

    def axis_cells(self, number: int) -> str:
        cells = list(time_axis(self._lo, self._hi, self.chart_width))
        if self._mark is not None and 0 <= self._mark < len(cells):
            first, last = sorted((self._mark, min(self.cursor_column, len(cells) - 1)))
            cells[first : last + 1] = "━" * (last - first + 1)
            cells[self._mark] = "◆"
        return "".join(cells)

    def _style(self, cell: _Cell) -> Style:
        if cell not in self._styles:
            self._styles[cell] = self._made(cell)
        return self._styles[cell]

    def _made(self, cell: _Cell) -> Style:
        plain = self.rich_style
        if not cell.category:
            return plain + _REVERSE if cell.is_cursor else plain
        style = self.get_component_rich_style(fill_class(cell.category))
        found = Style(bold=True, underline=True) if cell.is_marked else Style()
        if not self.has_colours:
            return style + found + (_REVERSE if cell.is_filled != cell.is_cursor else Style())
        if cell.is_cursor:
            return Style(color=plain.bgcolor, bgcolor=plain.color) + found
        assert style.color is not None and plain.bgcolor is not None and plain.color is not None
        page, ink = plain.bgcolor.get_truecolor(), plain.color.get_truecolor()
        colour = style.color.get_truecolor()
        if cell.category == "nvtx":  # a page of ranges would be a white wall
            colour = blend_rgb(page, ink, (_RANGE, _SECOND_RANGE, _THIN_RANGE)[cell.shade])
        elif cell.shade:
            colour = blend_rgb(ink, colour, _SHADE)  # towards the ink: names stay readable on it
        if cell.is_dim:
            colour = blend_rgb(page, colour, _DIM)
        if not cell.is_filled:
            return Style(color=Color.from_triplet(colour), bgcolor=plain.bgcolor) + found
        is_light = (cell.category == "nvtx" or cell.is_dim) and not cell.has_gap
        return Style(color=plain.color if is_light else plain.bgcolor, bgcolor=Color.from_triplet(colour)) + found


def _lettered(known: LaneLine, width: int) -> tuple[str, list[_Cell]]:
    """A lane in letters: capitals stand on their colour, small ones are written in it."""
    cells = []
    for column, category in enumerate(known.categories[:width]):
        is_block = category != "nvtx" and known.busy[column] >= _BLOCK
        cells.append(_Cell(category, is_block, False, 0, known.marked is not None and column in known.marked))
    cells += [_PLAIN] * (width - len(cells))
    # Blanks take the colour of what stands before them, where that is no block: it saves two changes of colour.
    for column in range(1, min(width, len(known.letters))):
        before = cells[column - 1]
        is_blank = cells[column] == _PLAIN and known.letters[column] == " "
        if is_blank and before.category and not before.is_filled and not before.is_marked:
            cells[column] = before
    return known.letters.ljust(width)[:width], cells


_BLOCK = 0.5
