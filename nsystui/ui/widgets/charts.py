"""Lanes over time with an axis and a cursor: `StripChart` draws shares as blocks, `LaneChart` letters and names.

A key repaints the cells that changed and no others: Textual sends a line from its beginning to the last cell that
changed, so that a cursor through sixteen lanes would cost 5 KB for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from nsystui.ui.widgets.plots import blocks, time_axis
from nsystui.ui.widgets.repainting import OwnFocus
from nsystui.ui.widgets.window import Window

MARKER = "▸ "
"""Stands before the label of the cursor's lane."""

_REVERSE = Style(reverse=True)


@dataclass(frozen=True)
class _Line:
    """A line of a chart: the label at the left, a cell for each column of time, the value at the right."""

    label: str
    label_style: Style
    cells: str
    styles: Sequence[Style]
    value: str
    value_style: Style

    def segments(self) -> list[Segment]:
        parts = ((self.label, self.label_style), *zip(self.cells, self.styles, strict=True))
        return list(Segment.simplify(Segment(*part) for part in (*parts, (self.value, self.value_style)) if part[0]))


class TimeChart(OwnFocus, can_focus=True):
    """The drawing that both charts share; a subclass gives the cells of its lanes and of the axis.

    Args:
        label_width: Cells for the labels at the left.
        value_width: Cells for the values at the right; 0 for none.
    """

    ALLOW_SELECT = False
    AXIS_ABOVE: ClassVar[bool] = False

    COMPONENT_CLASSES: ClassVar[set[str]] = {"time-chart--axis", "time-chart--current", *CATEGORY_CLASSES}

    DEFAULT_CSS = """
    TimeChart { height: 1fr; }
    TimeChart > .time-chart--axis { color: $foreground 75%; }
    TimeChart:ansi > .time-chart--axis { color: $foreground; }
    TimeChart > .time-chart--current { text-style: bold; }
    """ + category_css("TimeChart")

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
        self._window = Window()
        self._painted: dict[int, _Line] = {}

    # -- what a chart defines -------------------------------------------------------------------------------------

    def label_of(self, lane: int) -> str:
        """The label of a lane."""
        raise NotImplementedError

    def value_of(self, lane: int) -> str:
        """The value at the right of a lane."""
        raise NotImplementedError

    def cells_of(self, lane: int) -> tuple[str, Sequence[Style]]:
        """A character and a style for each column of a lane, with the cursor where it is drawn."""
        raise NotImplementedError

    def axis_cells(self) -> str:
        """A character for each column of the axis, with the cursor and the marks."""
        raise NotImplementedError

    # -- lanes, columns and times ---------------------------------------------------------------------------------

    @property
    def lane_count(self) -> int:
        return self._window.count

    @property
    def rows(self) -> range:
        """The lanes in sight."""
        return self._window.rows()

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
        return self._window.clamp(lane)

    # -- drawing --------------------------------------------------------------------------------------------------

    def fit_window(self) -> None:
        """Notices how many lanes there is room for."""
        self._window.height = max(1, self.size.height - 1)
        self._window.reveal(self.cursor_lane)

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
                first, end = (0, self.size.width) if old is None else self._changed(old, new)
                self.refresh(Region(first, y, end - first, 1))

    def _changed(self, old: _Line, new: _Line) -> tuple[int, int]:
        """From and to which cell of the screen two lines differ."""
        if len(old.cells) != len(new.cells):
            return 0, self.size.width
        pairs = zip(zip(old.cells, old.styles, strict=True), zip(new.cells, new.styles, strict=True), strict=True)
        places = [place for place, (before, after) in enumerate(pairs) if before != after]
        has_label = (old.label, old.label_style) != (new.label, new.label_style)
        has_value = (old.value, old.value_style) != (new.value, new.value_style)
        first = self._left + (places[0] if places else len(new.cells))
        end = self._left + (places[-1] + 1 if places else 0)
        return 0 if has_label else first, self.size.width if has_value else end

    def _line(self, y: int) -> _Line:
        plain = self.rich_style
        axis = 0 if self.AXIS_ABOVE else len(self.rows)
        lane = self._window.top + (y - 1 if self.AXIS_ABOVE else y)
        if y == axis and self.lane_count:
            style = self.get_component_rich_style("time-chart--axis")
            cells = self.axis_cells()
            rest = " " * max(0, self.size.width - self._left - len(cells))
            return _Line(" " * self._left, style, cells, [style] * len(cells), rest, style)
        if y == axis or lane not in self.rows:
            return _Line(" " * self.size.width, plain, "", (), "", plain)
        is_current = lane == self.cursor_lane
        label = (MARKER if is_current else " " * len(MARKER)) + fit(safe_text(self.label_of(lane)), self.label_width)
        value = " " + fit(safe_text(self.value_of(lane)), self.value_width, "right") if self.value_width else ""
        base = self.get_component_rich_style("time-chart--current") if is_current else plain
        return _Line(label + " ", base, *self.cells_of(lane), value, plain)


# -- shares as blocks -------------------------------------------------------------------------------------------------

CROSSHAIR_LANES = 3
"""Up to this many lanes in sight, the cursor goes through all of them; with more it is in the current one only."""


@dataclass(frozen=True)
class Lane:
    """One lane: ``label`` at its left, ``bins`` (0..1, NaN: no data) over time, ``value`` at its right."""

    label: str
    bins: Sequence[float]
    value: str = ""
    category: str | None = None
    """Its colour, see ``categories``."""


class StripChart(TimeChart):
    """Lanes of blocks, an axis below them, and a cursor with its own keys that can mark a span.

    It draws ``chart_width`` bins a lane.

    Args:
        axis: What stands below the lanes, for the ends that ``set_lanes`` was given and a width.
    """

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
    class Selected(Message):
        """Enter; the screen may ask for ``span_times`` or ``cursor_times``."""

        chart: StripChart

    def __init__(
        self,
        *,
        label_width: int = 10,
        value_width: int = 7,
        axis: Callable[[int, int, int], str] = time_axis,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(label_width=label_width, value_width=value_width, id=id, classes=classes)
        self._axis = axis
        self._lanes: tuple[Lane, ...] = ()
        self._blocks: dict[int, str] = {}  # by lane: a step of the cursor need not make them again
        self._span: tuple[int, int] | None = None
        self._anchor: int | None = None
        self._width = 0  # in columns, before the last change of size

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
        self._blocks.clear()
        self._window.count = len(self._lanes)
        self.set_reactive(TimeChart.cursor_lane, self._window.clamp(self.cursor_lane))
        self._window.reveal(self.cursor_lane)
        self.repaint_changes()

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
        self._window.reveal(new)
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
            self.post_message(self.Selected(self))

    def on_resize(self) -> None:
        """Keeps the cursor on its time."""
        width, before = self.chart_width, self._width
        if width == before:
            return
        self._width = width
        self._span = self._anchor = None
        if before:
            self.cursor_column = (2 * self.cursor_column + 1) * width // (2 * before)  # by its middle

    # -- drawing --------------------------------------------------------------------------------------------------

    def label_of(self, lane: int) -> str:
        return self._lanes[lane].label

    def value_of(self, lane: int) -> str:
        return self._lanes[lane].value

    def cells_of(self, lane: int) -> tuple[str, Sequence[Style]]:
        shown, width = self._lanes[lane], self.chart_width
        if len(self._blocks.get(lane, "")) != width:
            self._blocks[lane] = blocks(shown.bins, width)
        colour = category_class(shown.category) if shown.category else "strip-chart--lane"
        styles = [self.get_component_rich_style(colour)] * width
        if (lane == self.cursor_lane or len(self.rows) <= CROSSHAIR_LANES) and self.cursor_column < width:
            styles[self.cursor_column] += _REVERSE
        return self._blocks[lane], styles

    def axis_cells(self) -> str:
        axis = self._axis(self._lo, self._hi, self.chart_width)
        if self._span is not None:
            first, last = self._span
            axis = axis[:first] + "━" * (last - first + 1) + axis[last + 1 :]
        return axis[: self.cursor_column] + "▲" + axis[self.cursor_column + 1 :]


# -- letters and names ------------------------------------------------------------------------------------------------

_NOT_COMPUTED = "…"
_LINES = frozenset({"nvtx"})
"""Categories that are drawn as lines, never as blocks."""


@dataclass(frozen=True)
class LaneLine:
    """One lane: a character and a style for each column, see ``questions.timeline.drawing``, and a value at its right.

    A style is a category, with ``-`` behind it where it is not to be drawn as a block, or nothing.
    """

    text: str
    styles: tuple[str, ...]
    marked: frozenset[int] = frozenset()
    value: str = ""


class LaneChart(TimeChart):
    """Lanes of letters and names below an axis. Lines of lanes that are not given are asked for by ``Scrolled``."""

    AXIS_ABOVE = True

    @dataclass
    class Scrolled(Message):
        """Other lanes are in sight."""

        chart: LaneChart

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LaneChart.Scrolled)

    def __init__(self, *, label_width: int, value_width: int, id: str | None = None) -> None:  # noqa: A002
        super().__init__(label_width=label_width, value_width=value_width, id=id)
        self.labels: tuple[str, ...] = ()
        self._lines: Mapping[int, LaneLine] = {}
        self._mark: int | None = None
        self._styles: dict[str, Style] = {}

    def line(self, lane: int) -> LaneLine | None:
        """The line that is drawn of a lane; ``None`` while it is not known."""
        return self._lines.get(lane)

    def show(self, labels: Sequence[str], lines: Mapping[int, LaneLine], lo: int, hi: int) -> None:
        """Shows ``lines`` of the lanes with these labels, over the time from ``lo`` to ``hi`` ns."""
        is_same_time, is_same_list = (lo, hi) == (self._lo, self._hi), tuple(labels) == self.labels
        self.labels, self._lo, self._hi = tuple(labels), lo, hi
        # Of lanes out of sight the old lines stay only while they are true.
        self._lines = {**self._lines, **lines} if is_same_time and is_same_list else dict(lines)
        self._window.count = len(self.labels)
        self._put_cursor(self.cursor_lane, self.cursor_column)

    def move(self, lane: int, column: int, mark: int | None = None) -> None:
        """Puts the cursor into a lane and column (clamped), and the mark, which may lie out of sight."""
        top = self._window.top
        self._mark = mark
        self._put_cursor(lane, column)
        if self._window.top != top and self.is_attached:
            self.post_message(self.Scrolled(self))

    def _put_cursor(self, lane: int, column: int) -> None:
        self.set_reactive(TimeChart.cursor_lane, self._window.clamp(lane))
        self.set_reactive(TimeChart.cursor_column, self.validate_cursor_column(column))
        self._window.reveal(self.cursor_lane)
        self.repaint_changes()

    def on_resize(self) -> None:
        self.fit_window()

    # -- drawing --------------------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        self._styles.clear()
        super().notify_style_update()

    def label_of(self, lane: int) -> str:
        return self.labels[lane]

    def value_of(self, lane: int) -> str:
        line = self._lines.get(lane)
        return line.value if line is not None else ""

    def cells_of(self, lane: int) -> tuple[str, Sequence[Style]]:
        line, width = self._lines.get(lane) or LaneLine(_NOT_COMPUTED, ()), self.chart_width
        # After a change of size the line is still as long as it was asked for.
        text = line.text.ljust(width)[:width]
        styles = merged_styles(text, (*line.styles, *[""] * (width - len(line.styles)))[:width])
        for column in line.marked:
            if column < width:
                styles[column] += "*"
        if lane == self.cursor_lane:
            styles[min(self.cursor_column, width - 1)] += "!"
        return text, [self._style(name) for name in styles]

    def axis_cells(self) -> str:
        cells = list(time_axis(self._lo, self._hi, self.chart_width))
        if self._mark is not None and 0 <= self._mark < len(cells):
            cells[self._mark] = "◆"
        cells[min(self.cursor_column, len(cells) - 1)] = "▼"
        return "".join(cells)

    def _style(self, name: str) -> Style:
        """A category, with ``-`` where it is no block, ``*`` where a name was found, ``!`` under the cursor."""
        if name not in self._styles:
            category = name.rstrip("*!").removesuffix("-")
            style = self.get_component_rich_style(category_class(category)) if category else self.rich_style
            is_block = bool(category) and category == name.rstrip("*!") and category not in _LINES
            if "*" in name:
                style += Style(bold=True, underline=True)
            self._styles[name] = style + _REVERSE if is_block != ("!" in name) else style
        return self._styles[name]


def merged_styles(text: str, styles: Iterable[str]) -> list[str]:
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
