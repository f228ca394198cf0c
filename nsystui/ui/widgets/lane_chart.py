"""Lanes of single events over time, with their names where there is room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.style import Style
from textual.message import Message

from nsystui.ui.widgets.plots import BLOCKS, time_axis
from nsystui.ui.widgets.time_chart import CURSOR_ROWS, REVERSE, TimeChart

# -- events with names ------------------------------------------------------------------------------------------------

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
            """Leave the newest message in the queue."""
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
        """Tell the screen: columns of time are placed by the width, which is 0 before the first layout."""
        self.fit_window()
        self.post_message(self.Scrolled(self))

    def point(self, lane: int | None, column: int) -> None:
        """Tell the screen where the mouse was pressed."""
        self.post_message(self.Pointed(self, lane, column))

    def drag(self, first: int, column: int) -> None:
        """Tell the screen from where to where the mouse is drawn."""
        self.post_message(self.Pointed(self, None, column, first))

    def rows_of(self, lane: int) -> tuple[int, int]:
        """The first and last row of a lane, by the heights of those above."""
        if not self._heights:
            return 0, 0
        first = sum(self._heights[:lane])
        return first, first + self._heights[lane] - 1

    def fit_window(self) -> None:
        """Share the rows out among the lanes where the room changed."""
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

    def notify_style_update(self) -> None:
        """Forget the colours of another theme."""
        self._styles.clear()
        self._room = 0
        super().notify_style_update()

    def label_of(self, lane: int) -> str:
        return self.labels[lane]

    def value_of(self, lane: int) -> str:
        """How busy a lane is, in words; empty while it is not known."""
        line = self._lines.get(lane)
        return line.value if line is not None else ""

    def cells_of(self, lane: int, part: int) -> tuple[str, Sequence[Style]]:
        """Draw a row of a lane: filled, in letters, or dots until it is computed."""
        known, width = self._lines.get(lane), self.chart_width
        if known is None:
            text, cells = "…".ljust(width)[:width], [_PLAIN] * width  # it is being computed
        elif self.has_colours:
            text, cells = self._filled(known, part, self._heights[lane], width)
        else:
            text, cells = _lettered(known, width)
        if lane == self.cursor_lane and part >= self._heights[lane] - CURSOR_ROWS:
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
        """The time axis, with the mark and the span from it to the cursor."""
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
            return plain + REVERSE if cell.is_cursor else plain
        style = self.fill_style(cell.category)
        found = Style(bold=True, underline=True) if cell.is_marked else Style()
        if not self.has_colours:
            return style + found + (REVERSE if cell.is_filled != cell.is_cursor else Style())
        is_unknown = plain.color == plain.bgcolor  # whether the page is dark or light
        if cell.is_cursor:
            return (plain + REVERSE if is_unknown else Style(color=plain.bgcolor, bgcolor=plain.color)) + found
        assert style.color is not None and plain.bgcolor is not None and plain.color is not None
        page, ink = plain.bgcolor.get_truecolor(), plain.color.get_truecolor()
        colour = style.color.get_truecolor()
        if cell.category == "nvtx":  # a page of ranges would be a white wall
            ink = ColorTriplet(32, 32, 32) if is_unknown else ink
            colour = blend_rgb(page, ink, (_RANGE, _SECOND_RANGE, _THIN_RANGE)[cell.shade])
        elif cell.shade:
            colour = blend_rgb(ink, colour, _SHADE)  # towards the ink: names stay readable on it
        if cell.is_dim:
            colour = blend_rgb(page, colour, _DIM)
        if not cell.is_filled:
            return Style(color=Color.from_triplet(colour), bgcolor=plain.bgcolor) + found
        if cell.has_gap and is_unknown:
            return Style(color=Color.from_triplet(colour), bgcolor=plain.bgcolor) + REVERSE + found
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
