"""Lanes of blocks over time: a bin per column, an axis below, and a cursor that can mark a span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.color import Color
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from nsystui.base.drawing import SHADES, DrawnLane, DrawnLanes, Part
from nsystui.base.selection import Window
from nsystui.base.text import fit, safe_text, width_of
from nsystui.ui.widgets.plots import NO_DATA, blocks, tick_line, time_axis
from nsystui.ui.widgets.stacks import SHADE_LEVELS, Cell, Stack, dominant, half_cells, shade_blocks, shades, stack_cells
from nsystui.ui.widgets.time_chart import CURSOR_ROWS, REVERSE, TimeChart, Words

# -- shares as blocks -------------------------------------------------------------------------------------------------


_MIN_ROWS, _MAX_ROWS = 5, 16
"""Rows of a still chart with one lane: at least its label and four notes."""

CROSSHAIR_ROWS = 3  # up to these rows, the cursor crosses all lanes


@dataclass(frozen=True)
class Lane:
    """One lane: ``label`` at its left, ``bins`` (0..1, NaN: no data) over time, ``value`` at its right."""

    label: str
    bins: Sequence[float]
    value: str = ""
    category: str | None = None
    """Its colour, see `base.drawing.CATEGORIES`."""
    stack: Stack = ()
    """Categories that add up, lowest first, instead of ``bins``."""
    height: int = 1
    """Number of rows."""
    notes: tuple[tuple[str, str], ...] = ()
    """Lines below the label, each a category, shown as a swatch, and words."""


class StripChart(TimeChart):
    """Lanes of ``chart_width`` blocks, an axis below, and a cursor with its own keys that can mark a span.

    Args:
        axis: Returns the line below the lanes, given the ends that `set_lanes` got and a width.
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

    @dataclass
    class CursorMoved(Message):
        """Posted when the cursor is in another lane or column."""

        chart: StripChart

        def can_replace(self, message: Message) -> bool:
            """Keep only the newest message of a held key in the queue."""
            return isinstance(message, StripChart.CursorMoved) and message.chart is self.chart

    @dataclass
    class Resized(Message):
        """Posted when the chart has another size, or is shown again."""

    @dataclass
    class Selected(Message):
        """Posted on Enter; the screen may read ``span_times`` or ``cursor_times``."""

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
        self._drawn: dict[tuple[int, int], tuple[int, str, Sequence[Style]]] = {}  # by lane and part; first the width
        self.span: tuple[int, int] | None = None
        """First and last column of the marked span."""
        self._fills: dict[tuple[str, ...], Style] = {}
        self._anchor: int | None = None
        self._width = 0  # in columns, at the last resize

    @property
    def lane_count(self) -> int:
        """The number of lanes, even if two share a row."""
        return len(self.lanes)

    def set_lanes(
        self, lanes: Sequence[Lane], lo: int, hi: int, halves: bool = False, ticks: Sequence[tuple[int, str]] = ()
    ) -> None:
        """Show ``lanes`` from ``lo`` to ``hi`` ns, and keep the cursor (clamped).

        A marked span stays if the times do. With ``halves``, two lanes share a row, in colours. ``ticks``, times with
        their labels, are on a line below the axis.
        """
        if (lo, hi) != (self._lo, self._hi):
            self.span = self._anchor = None
        self.lanes, self._lo, self._hi = tuple(lanes), lo, hi
        self._halves, self._ticks = halves, tuple(ticks)
        if halves:
            self._row_parts = tuple((first, 0) for first in range(0, len(lanes), 2))
        else:
            self._row_parts = tuple((index, part) for index, lane in enumerate(lanes) for part in range(lane.height))
        self._drawn.clear()
        self._window.count = len(self._row_parts)
        self.set_reactive(TimeChart.cursor_lane, self.validate_cursor_lane(self.cursor_lane))
        self.fit_window()
        self.repaint_changes()

    def is_current(self, lane: int) -> bool:
        """Return whether the cursor is in a lane, or in the next lane if the lanes share a row."""
        return lane == (self.cursor_lane - self.cursor_lane % 2 if self._halves else self.cursor_lane)

    def column_times(self, column: int) -> tuple[int, int]:
        """Return the start and end of a column, ns."""
        length, width = self._hi - self._lo, self.chart_width
        return self._lo + column * length // width, self._lo + (column + 1) * length // width

    def time_column(self, time: int) -> int:
        """Return the column that contains ``time`` (ns), clamped to the chart."""
        if self._hi <= self._lo:
            return 0
        return self.validate_cursor_column((time - self._lo) * self.chart_width // (self._hi - self._lo))

    @property
    def cursor_times(self) -> tuple[int, int]:
        """Start and end of the cursor's column, ns."""
        return self.column_times(self.cursor_column)

    @property
    def span_times(self) -> tuple[int, int] | None:
        """Start and end of the marked span, ns."""
        if self.span is None:
            return None
        return self.column_times(self.span[0])[0], self.column_times(self.span[1])[1]

    def mark_span(self, first: int | None, last: int | None = None) -> None:
        """Mark the columns from ``first`` to ``last``, or nothing."""
        self._anchor = None
        self.span = None if first is None else (first, first if last is None else last)
        self.repaint_changes()

    def watch_cursor_column(self, old: int, new: int) -> None:
        """Extend the span that is being marked to the cursor."""
        if self._anchor is not None:
            self.span = (min(self._anchor, new), max(self._anchor, new))
        self._post_move()

    def watch_cursor_lane(self, old: int, new: int) -> None:
        self.reveal_lane()
        self._post_move()

    def _post_move(self) -> None:
        self.repaint_changes()
        if self.is_attached:
            self.post_message(self.CursorMoved(self))

    def action_move(self, columns: int) -> None:
        self.cursor_column += columns

    def action_lane(self, lanes: int) -> None:
        self.cursor_lane += lanes

    def action_lane_page(self, direction: int) -> None:
        """Move the cursor by a page of rows."""
        row = self.rows_of(self.cursor_lane)[0] + direction * self._window.height
        last_or_first = len(self.lanes) - 1 if row > 0 else 0
        self.cursor_lane = self._row_parts[row][0] if 0 <= row < len(self._row_parts) else last_or_first

    def action_mark(self) -> None:
        """Begin a span at the cursor, then end it, then remove it."""
        if self._anchor is not None:
            self._anchor = None
        elif self.span is not None:
            self.mark_span(None)
        else:
            self.mark_span(self.cursor_column)
            self._anchor = self.cursor_column

    def action_select(self) -> None:
        if self.lanes:
            self.post_message(self.Selected())

    def point(self, lane: int | None, column: int) -> None:
        """Put the cursor at the pressed position, and remove the marked span."""
        self.mark_span(None)
        if lane is not None:
            self.cursor_lane = lane
        self.cursor_column = column

    def drag(self, first: int, column: int) -> None:
        """Mark the columns over which the mouse is dragged."""
        self._anchor = None
        self.span = (min(first, column), max(first, column))
        self.cursor_column = column

    def on_resize(self) -> None:
        if not self.size.width:  # the chart is hidden
            return
        self.post_message(self.Resized())
        width, before = self.chart_width, self._width
        if width == before:
            return
        self._width = width
        self.span = self._anchor = None
        if before:
            self.cursor_column = (2 * self.cursor_column + 1) * width // (2 * before)  # of the column's middle

    def notify_style_update(self) -> None:
        """Discard rows drawn in the colours of another theme."""
        self._fills.clear()
        self._drawn.clear()
        super().notify_style_update()

    def label_of(self, lane: int) -> str:
        return self.lanes[lane].label

    def value_of(self, lane: int) -> str:
        return self.lanes[lane].value

    def _join(self, lane: int, words_of: Callable[[int], str], width: int) -> str:
        preferred = self.cursor_lane if self.is_current(lane) else lane
        both = " ".join(words_of(index) for index in (lane, lane + 1) if index < len(self.lanes))
        return both if width_of(both) <= width else words_of(preferred)

    def label_words(self, lane: int, part: int, plain: Style) -> Words:
        """Return the label of a row (both if two lanes share it); below a label, its notes."""
        shown = self.lanes[lane]
        if self._halves:
            words = self.label_of(self.cursor_lane) if self.is_current(lane) else None
            text = words if words is not None else self._join(lane, self.label_of, self.label_width)
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
        return self._join(lane, self.value_of, self.value_width) if self._halves else super().row_value(lane, part)

    def cells_of(self, lane: int, part: int) -> tuple[str, Sequence[Style]]:
        """Draw a row, or take it from the cache, and draw the cursor over it."""
        width = self.chart_width
        cached = self._drawn.get((lane, part))
        if cached is None or cached[0] != width:
            cached = self._drawn[lane, part] = (width, *self._draw(lane, part, width))
        _, cells, styles = cached
        column = self.cursor_column
        has_cursor = self.is_current(lane) and part >= self.lanes[lane].height - CURSOR_ROWS
        has_cursor |= len(self._row_parts) <= CROSSHAIR_ROWS
        if not self.HAS_CURSOR or not has_cursor or column >= width:
            return cells, styles
        styles = [*styles]
        if self._halves:  # not reversed: the cursor's half has the colour of words, and the other half keeps its colour
            half = "▄" if self.cursor_lane % 2 else "▀"
            cells = cells[:column] + half + cells[column + 1 :]
            other_fill = self._halves_of(lane + 1 - self.cursor_lane % 2, width)[column]
            behind = self._fill(other_fill).color if other_fill not in ("", NO_DATA) else self.rich_style.bgcolor
            styles[column] = Style(color=self.rich_style.color, bgcolor=behind)
        else:
            styles[column] += REVERSE
        return cells, styles

    def _draw(self, lane: int, part: int, width: int) -> tuple[str, Sequence[Style]]:
        shown = self.lanes[lane]
        if self._halves:
            cells = half_cells(*(self._halves_of(index, width) for index in (lane, lane + 1)))
        elif shown.stack:
            cells = stack_cells(shown.stack, width, shown.height, self._is_plain)[part]
        elif self._is_ramp and self.has_colours:
            cells = half_cells(*[self._halves_of(lane, width)] * 2)
        elif self._is_ramp:
            cells = _colour(shade_blocks(shown.bins, width), shown.category or "nvtx")
        else:
            cells = _colour(blocks(shown.bins, width), shown.category or "")
        return "".join(cell for cell, *_ in cells), [self._fill(*fills) for _, *fills in cells]

    def _halves_of(self, lane: int, width: int) -> list[str]:
        if lane >= len(self.lanes):
            return [""] * width
        shown = self.lanes[lane]
        return dominant(shown.stack, width) if shown.stack else shades(shown.bins, width, shown.category or "nvtx")

    def _fill(self, front: str, behind: str = "") -> Style:
        """Return a style: a category in front (``nccl:3`` for a shade), and behind its glyph."""
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
        return "step" if number else ""

    def axis_lines(self) -> int:
        return 2 if self._ticks else 1

    def axis_cells(self, number: int) -> str:
        width = self.chart_width
        if number:
            return tick_line([(self.time_column(time), label) for time, label in self._ticks], width)
        axis = self._axis(self._lo, self._hi, width)
        if self.span is not None:
            first, last = self.span
            axis = axis[:first] + "━" * (last - first + 1) + axis[last + 1 :]
        return axis


def _colour(glyphs: str, category: str) -> list[Cell]:
    """Colour no blanks: the cursor on a blank must not look like data."""
    return [(glyph, category if glyph != " " else "", "") for glyph in glyphs]


class StillChart(StripChart, can_focus=False):
    """Lanes without a cursor."""

    HAS_CURSOR = False

    def fit_lines(self, lines: int) -> int:
        """Use at most ``lines`` lines; return a lane's rows, 0 if too few or before the layout."""
        rows = min(lines - self.axis_lines(), _MAX_ROWS)
        self.display = rows >= _MIN_ROWS
        self.styles.height = rows + self.axis_lines()
        return rows if self.display and self.size.width else 0


_CATEGORY_WORDS = {"nccl": "NCCL", "api": "API", "os": "OS, MPI", "cpu": "CPU"}


def strips(title: str, lanes: Sequence[Lane], window: Window, numbers: Sequence[int] = ()) -> DrawnLanes:
    """Return the lanes of a chart over ``window`` for a file; with ``numbers``, each column is a step."""
    stacks = [lane.stack or ((lane.category or "metric", lane.bins),) for lane in lanes]
    categories = list(dict.fromkeys(name for stack in stacks for name, _ in stack if name != "idle"))
    drawn = []
    for lane, stack in zip(lanes, stacks, strict=True):
        values_by_category = {name: tuple(map(float, values)) for name, values in stack}
        example = next(iter(values_by_category.values()), ())
        zeros = tuple(0.0 if value == value else value for value in example)
        values = tuple(values_by_category.get(name, zeros) for name in categories)
        drawn.append(DrawnLane(lane.label.strip(), values, lane.value.strip()))
    parts = tuple(Part(_CATEGORY_WORDS.get(name, name), name) for name in categories)
    return DrawnLanes(title, window.start, window.end, parts, tuple(drawn), numbers=tuple(numbers))
