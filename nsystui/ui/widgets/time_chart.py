"""The common base of charts over time: labels, an axis, a cursor with its column and lane.

A key repaints changed cells: Textual would send each line up to its last changed cell, 5 KB per key for sixteen lanes.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events, on
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from nsystui.base.text import fit, safe_text
from nsystui.ui.page import CategoryWidget, draws_in_ascii
from nsystui.ui.widgets.pages import RowWindow
from nsystui.ui.widgets.repainting import OwnFocus

MARKER = "▸ "
"""The mark before the label of the cursor's lane."""

CURSOR_ROWS = 3
"""The number of lowest rows of a high lane that show the cursor; each costs some bytes per step."""
REVERSE = Style(reverse=True)
_NEAR = 8  # changed cells that are nearer are painted with the cells between them

Words = tuple[tuple[str, Style], ...]


@dataclass(frozen=True)
class _Line:
    """A line of a chart: a label, a cell for each column of time, and a value at the right."""

    label: Words
    cells: str
    styles: Sequence[Style]
    value: str
    value_style: Style

    def segments(self) -> list[Segment]:
        parts = (*self.label, *zip(self.cells, self.styles, strict=True), (self.value, self.value_style))
        return list(Segment.simplify(Segment(*part) for part in parts if part[0]))


class TimeChart(CategoryWidget, OwnFocus, can_focus=True):
    """The base of both charts; a subclass draws the cells of its lanes and of the axis.

    Args:
        label_width: Cells for the labels at the left.
        value_width: Cells for the values at the right, 0 without values.
    """

    ALLOW_SELECT = False
    AXIS_ABOVE: ClassVar[bool] = False
    HAS_CURSOR: ClassVar[bool] = True
    CARET: ClassVar[str] = "▲"
    """Shows the cursor's column on the axis, in blank cells outside labels."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"time-chart--axis", "time-chart--current"}

    label_of: Callable[[int], str]
    value_of: Callable[[int], str]
    """Return the label of a lane, and the value at its right."""
    cells_of: Callable[[int, int], tuple[str, Sequence[Style]]]
    """Return character and style for each column of a lane's row, including the cursor."""
    axis_cells: Callable[[int], str]
    """Return a character for each column of an axis line, including marks."""
    point: Callable[[int | None, int], None]
    """Handle a press on a lane (``None``: on the axis) and a column."""
    drag: Callable[[int, int], None]
    """Handle a drag from a column to another."""

    cursor_column: reactive[int] = reactive(0, repaint=False, init=False)
    """The column of time under the cursor, from 0."""

    cursor_lane: reactive[int] = reactive(0, repaint=False, init=False)
    """The lane of the cursor, from 0."""

    def __init__(self, *, label_width: int, value_width: int, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.label_width = label_width
        self.value_width = value_width
        self._lo, self._hi = 0, 0
        self._window = RowWindow()  # over the rows of all lanes
        self._row_parts: tuple[tuple[int, int], ...] = ()  # for each row: its (first) lane, and its index in it
        self._painted: dict[int, _Line] = {}
        self._pressed: int | None = None  # the column where the mouse was pressed

    def axis_label(self, number: int) -> str:
        """Return the text at the left of a line of the axis."""
        return ""

    def axis_lines(self) -> int:
        return 1

    @property
    def lane_count(self) -> int:
        raise NotImplementedError

    def rows_of(self, lane: int) -> tuple[int, int]:
        """Return the first and last row of a lane, or the row that it shares with the lane before it."""
        last = max(bisect_left(self._row_parts, (lane + 1, 0)) - 1, 0)
        return last - (self._row_parts[last][1] if self._row_parts else 0), last

    def label_words(self, lane: int, part: int, plain: Style) -> Words:
        """Return the label of a row of a lane, ``label_width`` cells."""
        return ((fit("" if part else safe_text(self.label_of(lane)), self.label_width), plain),)

    def row_value(self, lane: int, part: int) -> str:
        """Return the value at the right of a row of a lane."""
        return "" if part else self.value_of(lane)

    def is_current(self, lane: int) -> bool:
        """Return whether the cursor is in the row of this (first) lane."""
        return lane == self.cursor_lane

    @dataclass
    class Wheel(Message):
        """Posted when the wheel turns at a column: zoom in (1) or out (-1)."""

        direction: int
        column: int

    def column_at(self, x: int) -> int:
        """Return the column at a cell of the widget, clamped."""
        return max(0, min(x - self._left, self.chart_width - 1))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button != 1 or not self.lane_count:
            return
        event.stop()
        row = self._row_at(event.y)
        self._pressed = self.column_at(event.x)
        self.capture_mouse()
        self.point(None if row is None else self._row_parts[row][0], self._pressed)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._pressed is not None and self.column_at(event.x) != self.cursor_column:
            event.stop()
            self.drag(self._pressed, self.column_at(event.x))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._pressed is not None:
            event.stop()
            self._pressed = None
            self.release_mouse()

    @on(events.MouseScrollUp)
    @on(events.MouseScrollDown)
    def _wheel(self, event: events.MouseEvent) -> None:
        event.stop()
        direction = 1 if isinstance(event, events.MouseScrollUp) else -1
        self.post_message(self.Wheel(direction, self.column_at(event.x)))

    @property
    def chart_width(self) -> int:
        """Columns of time: the width without labels and values."""
        return self.columns_in(self.size.width)

    def columns_in(self, width: int) -> int:
        """Return the columns of time in a chart of ``width`` cells."""
        return max(1, width - self._left - (self.value_width + 1 if self.value_width else 0))

    @property
    def _left(self) -> int:
        return len(MARKER) + self.label_width + 1

    def validate_cursor_column(self, column: int) -> int:
        return max(0, min(column, self.chart_width - 1))

    def validate_cursor_lane(self, lane: int) -> int:
        return max(0, min(lane, self.lane_count - 1))

    @property
    def has_colours(self) -> bool:
        """Whether cells may have any colour, not only a terminal's 16, or none."""
        return not self._is_plain and not self.app.current_theme.ansi

    @property
    def _is_plain(self) -> bool:
        return self.app.no_color or draws_in_ascii(self.app)

    def fit_window(self) -> None:
        """Fit the window to the height of the widget."""
        self._window.height = max(1, self.size.height - self.axis_lines())
        self.reveal_lane()

    def reveal_lane(self) -> None:
        """Scroll to the last row, then to the first row of the cursor's lane."""
        first, last = self.rows_of(self.cursor_lane)
        if last != first:
            self._window.reveal(last)
        self._window.reveal(first)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Fit the window, because Textual repaints before it announces a new size."""
        self.fit_window()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw a line of the chart, and remember it as painted."""
        line = self._painted[y] = self._line(y)  # not reused: its colours may have changed
        strip = Strip(line.segments())
        width = self.size.width  # on a tiny terminal, less than labels and one column need
        return strip if strip.cell_length == width else strip.adjust_cell_length(width, self.rich_style)

    def repaint_changes(self) -> None:
        """Repaint the cells that differ from the screen."""
        if not self.is_attached:
            return
        for y in range(self.size.height):
            old, new = self._painted.get(y), self._line(y)
            if old != new:
                self._painted[y] = new
                for first, end in [(0, self.size.width)] if old is None else self._changed(old, new):
                    self.refresh(Region(first, y, end - first, 1))

    def _changed(self, old: _Line, new: _Line) -> list[tuple[int, int]]:
        """Return the spans of changed cells; label, columns and value are separate."""
        if len(old.cells) != len(new.cells):
            return [(0, self.size.width)]
        pairs = zip(zip(old.cells, old.styles, strict=True), zip(new.cells, new.styles, strict=True), strict=True)
        columns = [column for column, (before, after) in enumerate(pairs) if before != after]
        spans = [(0, self._left)] if old.label != new.label else []
        runs: list[list[int]] = []
        for column in columns:
            if runs and column - runs[-1][1] < _NEAR:
                runs[-1][1] = column
            else:
                runs.append([column, column])
        spans += [(self._left + first, self._left + last + 1) for first, last in runs]
        if (old.value, old.value_style) != (new.value, new.value_style):
            spans.append((self._left + len(new.cells), self.size.width))
        return spans

    def _line(self, y: int) -> _Line:
        plain = self.rich_style
        axis_number = y if self.AXIS_ABOVE else y - len(self._window.rows())
        if 0 <= axis_number < self.axis_lines() and self.lane_count:
            return self._axis_line(axis_number)
        row = self._row_at(y)
        if row is None:
            return _Line(((" " * self.size.width, plain),), "", (), "", plain)
        lane, part = self._row_parts[row]
        is_current = self.HAS_CURSOR and self.is_current(lane)
        marker = MARKER if is_current and not part else " " * len(MARKER)
        value = fit(safe_text(self.row_value(lane, part)), self.value_width, "right") if self.value_width else ""
        style = self.get_component_rich_style("time-chart--current") if is_current and not part else plain
        label = ((marker, style), *self.label_words(lane, part, style), (" ", style))
        return _Line(label, *self.cells_of(lane, part), f" {value}" if value else "", plain)

    def _row_at(self, y: int) -> int | None:
        row = self._window.top + (y - self.axis_lines() if self.AXIS_ABOVE else y)
        return row if row in self._window.rows() else None

    def _axis_line(self, number: int) -> _Line:
        """Draw a line; the cursor is on the first, but never replaces a label."""
        style = self.get_component_rich_style("time-chart--axis")
        cells = self.axis_cells(number)
        styles = [style] * len(cells)
        column = min(self.cursor_column, len(cells) - 1)
        if number == 0 and column >= 0 and self.HAS_CURSOR:
            is_within_label = " " not in (cells[max(column - 1, 0)], cells[min(column + 1, len(cells) - 1)])
            if cells[column] == "━" or (cells[column] == " " and not is_within_label):
                cells = cells[:column] + self.CARET + cells[column + 1 :]
            else:
                styles[column] += REVERSE
        filler = " " * max(0, self.size.width - self._left - len(cells))
        label = " " * len(MARKER) + fit(self.axis_label(number), self.label_width) + " "
        return _Line(((label, style),), cells, styles, filler, style)
