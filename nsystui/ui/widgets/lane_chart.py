"""Lanes of events over time, with names if there is room."""

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
"""Shade of ranges that fill part of a row, invisible in the colour of broad ranges."""
_GROWTH = (*("gpu", "gpu", "stream", "gpu", "stream", "host", "gpu"), *("stream", "gpu", "gpu", "stream", "host"))
"""Kinds of lanes in the order in which they get another row, repeated while there is room."""

_HIGHEST = {"gpu": 12, "stream": 12, "host": 4}

_SHADE, _DIM, _RANGE, _SECOND_RANGE, _THIN_RANGE = 0.62, 0.35, 0.22, 0.34, 0.5
"""Share of colour: second shade (over ink), cells outside a search, and three kinds of ranges (over the page)."""


@dataclass(frozen=True)
class LaneLine:
    """One lane, see ``questions.timeline.picture.LaneText``, and a value at its right.

    ``letters`` replace the other fields on terminals without colours. ``names`` are written over filled cells: first
    column, text. ``marked`` holds the columns that match a search, ``None`` without a search.
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
    """How a cell is drawn: filled with its category's colour (except a gap above), or written in it."""

    category: str = ""
    is_filled: bool = False
    has_gap: bool = False
    shade: int = 0
    is_marked: bool = False
    is_dim: bool = False
    is_cursor: bool = False


_PLAIN = _Cell()


class LaneChart(TimeChart):
    """Lanes of events below an axis, taller if there is room.

    Cells are filled with colour, as high as they are busy, and named; without colours, they have letters. `Scrolled`
    asks the screen for missing lines.
    """

    AXIS_ABOVE = True
    CARET = "▼"

    @dataclass
    class Scrolled(Message):
        """Posted when other lanes are in sight."""

        def can_replace(self, message: Message) -> bool:
            """Keep only the newest message in the queue."""
            return isinstance(message, LaneChart.Scrolled)

    @dataclass
    class Pointed(Message):
        """Posted for a press on a lane (``None``: the axis), or a drag from column ``first``."""

        lane: int | None
        column: int
        first: int | None = None

    def __init__(self, *, label_width: int, value_width: int, id: str | None = None) -> None:  # noqa: A002
        super().__init__(label_width=label_width, value_width=value_width, id=id)
        self.labels: tuple[str, ...] = ()
        self._kinds: tuple[str, ...] = ()
        self.lines: Mapping[int, LaneLine] = {}  # as far as they are computed
        self._heights: tuple[int, ...] = ()
        self._room = 0  # rows for which the heights were computed
        self._mark: int | None = None
        self._styles: dict[_Cell, Style] = {}

    @property
    def lane_count(self) -> int:
        return len(self.labels)

    @property
    def in_sight(self) -> range:
        lanes = [self._row_parts[row][0] for row in self._window.rows()]
        return range(lanes[0], lanes[-1] + 1) if lanes else range(0)

    def show(
        self, labels: Sequence[str], kinds: Sequence[str], lines: Mapping[int, LaneLine], lo: int, hi: int
    ) -> None:
        """Show ``lines`` of the lanes with these labels, from ``lo`` to ``hi`` ns.

        ``kinds``: ``gpu``, ``stream`` or ``host``, which decides when a lane grows; a lane of an empty kind keeps one
        row.
        """
        is_same_time, is_same_list = (lo, hi) == (self._lo, self._hi), tuple(labels) == self.labels
        self.labels, self._kinds, self._lo, self._hi = tuple(labels), tuple(kinds), lo, hi
        # Keep the lines of off-screen lanes while they are valid.
        self.lines = {**self.lines, **lines} if is_same_time and is_same_list else dict(lines)
        self._room = 0
        self._put_cursor(self.cursor_lane, self.cursor_column)

    def move(self, lane: int, column: int, mark: int | None = None) -> None:
        """Put the cursor into a lane and column (clamped), and set the mark, which may be out of sight."""
        top = self._window.top
        self._mark = mark
        self._put_cursor(lane, column)
        if self._window.top != top and self.is_attached:
            self.post_message(self.Scrolled())

    def _put_cursor(self, lane: int, column: int) -> None:
        self.set_reactive(TimeChart.cursor_lane, self.validate_cursor_lane(lane))
        self.set_reactive(TimeChart.cursor_column, self.validate_cursor_column(column))
        if self.is_attached:
            self.fit_window()
            self.repaint_changes()

    def on_resize(self) -> None:
        """Let the screen compute columns for the new width (0 before the first layout)."""
        self.fit_window()
        self.post_message(self.Scrolled())

    def point(self, lane: int | None, column: int) -> None:
        self.post_message(self.Pointed(lane, column))

    def drag(self, first: int, column: int) -> None:
        self.post_message(self.Pointed(None, column, first))

    def fit_window(self) -> None:
        """Distribute the rows if the height changed."""
        room = max(1, self.size.height - self.axis_lines())
        if room != self._room:
            self._room, self._heights = room, self._distribute(room)
            self._row_parts = tuple((lane, part) for lane, height in enumerate(self._heights) for part in range(height))
            self._window.count = len(self._row_parts)
        super().fit_window()

    def _distribute(self, room: int) -> tuple[int, ...]:
        """Return each lane's rows: one each, then more, one kind of lanes at a time.

        All GPUs have the same height, to be compared. Further rows of letters would add nothing.
        """
        heights = [1] * self.lane_count
        left = room - self.lane_count if self.has_colours else 0
        for kind in _GROWTH * max(_HIGHEST.values()):
            lanes = [lane for lane, name in enumerate(self._kinds) if name == kind and heights[lane] < _HIGHEST[kind]]
            if kind == "gpu" and len(lanes) > left:
                continue
            for lane in lanes[: max(left, 0)]:
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
        """Return how busy a lane is, in words; empty until it is computed."""
        line = self.lines.get(lane)
        return line.value if line is not None else ""

    def cells_of(self, lane: int, part: int) -> tuple[str, Sequence[Style]]:
        """Draw a row of a lane: filled, in letters, or dots until it is computed."""
        line, width = self.lines.get(lane), self.chart_width
        if line is None:
            text, cells = "…".ljust(width)[:width], [_PLAIN] * width
        elif self.has_colours:
            text, cells = self._filled(line, part, self._heights[lane], width)
            if part == self._heights[lane] // 2:
                text = _named(text, cells, line.names)
        else:
            text, cells = _lettered(line, width)
        if lane == self.cursor_lane and part >= self._heights[lane] - CURSOR_ROWS:
            column = min(self.cursor_column, width - 1)
            cells[column] = replace(cells[column], is_cursor=True)
            if self.has_colours and text[column] in _GAP_ABOVE + BLOCKS:
                text = text[:column] + " " + text[column + 1 :]
        return text, [self._style(cell) for cell in cells]

    def _filled(self, line: LaneLine, row: int, rows: int, width: int) -> tuple[str, list[_Cell]]:
        """Fill a row as high as it is busy; high lanes have a gap above."""
        text, cells = [], []
        max_eighths = _EIGHTHS * rows - (1 if rows > 1 else 0)
        for column in range(width):  # after a resize, the line still has its old length
            category = line.categories[column] if column < len(line.categories) else ""
            if not category:
                text.append(line.letters[column] if column < len(line.letters) else " ")
                cells.append(_PLAIN)
                continue
            full = max(1, round(line.busy[column] * max_eighths))
            eighths = min(max(full - _EIGHTHS * (rows - 1 - row), 0), _EIGHTHS)
            is_marked = line.marked is not None and column in line.marked
            has_gap = eighths == _EIGHTHS - 1
            is_filled = has_gap or eighths == _EIGHTHS
            # Draw the gap: a block below it would leave a seam to the next row in many fonts.
            text.append(_GAP_ABOVE if has_gap else " " if is_filled or not eighths else BLOCKS[eighths - 1])
            is_dim = line.marked is not None and not is_marked
            shade = _THIN if category == "nvtx" and full < _EIGHTHS - 1 else line.shades[column]
            cells.append(_Cell(category, is_filled, has_gap, shade, is_marked, is_dim) if eighths else _PLAIN)
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
            outside = self.rich_style + (REVERSE if cell.is_cursor else Style())
            self._styles[cell] = self._make_style(cell) if cell.category else outside
        return self._styles[cell]

    def _make_style(self, cell: _Cell) -> Style:
        plain = self.rich_style
        style = self.fill_style(cell.category)
        mark_style = Style(bold=True, underline=True) if cell.is_marked else Style()
        if not self.has_colours:
            return style + mark_style + (REVERSE if cell.is_filled != cell.is_cursor else Style())
        is_unknown = plain.color == plain.bgcolor  # whether the page is dark or light
        if cell.is_cursor:
            return (plain + REVERSE if is_unknown else Style(color=plain.bgcolor, bgcolor=plain.color)) + mark_style
        colour = _mixed(cell, style.color, plain)
        if not cell.is_filled:
            return Style(color=colour, bgcolor=plain.bgcolor) + mark_style
        if cell.has_gap and is_unknown:
            return Style(color=colour, bgcolor=plain.bgcolor) + REVERSE + mark_style
        is_light = (cell.category == "nvtx" or cell.is_dim) and not cell.has_gap
        return Style(color=plain.color if is_light else plain.bgcolor, bgcolor=colour) + mark_style


def _mixed(cell: _Cell, category: Color | None, plain: Style) -> Color:
    """Return the colour of a cell, mixed from its category's, the page's and the text's."""
    assert category is not None and plain.bgcolor is not None and plain.color is not None
    colour, page, ink = (item.get_truecolor() for item in (category, plain.bgcolor, plain.color))
    if cell.category == "nvtx":  # ranges in their own colour would be a white wall
        ink = ColorTriplet(32, 32, 32) if plain.color == plain.bgcolor else ink
        colour = blend_rgb(page, ink, (_RANGE, _SECOND_RANGE, _THIN_RANGE)[cell.shade])
    elif cell.shade:
        colour = blend_rgb(ink, colour, _SHADE)  # towards the ink: names stay readable on it
    return Color.from_triplet(blend_rgb(page, colour, _DIM) if cell.is_dim else colour)


def _named(text: str, cells: Sequence[_Cell], names: Sequence[tuple[int, str]]) -> str:
    """Write names over filled cells."""
    characters = list(text)
    for column, character in ((first + index, char) for first, name in names for index, char in enumerate(name)):
        if column < len(cells) and cells[column].is_filled and not cells[column].has_gap:
            characters[column] = character
    return "".join(characters)


def _lettered(line: LaneLine, width: int) -> tuple[str, list[_Cell]]:
    """Draw capitals on their colour, small letters in it."""
    cells = []
    for column, category in enumerate(line.categories[:width]):
        is_block = category != "nvtx" and line.busy[column] >= _BLOCK
        cells.append(_Cell(category, is_block, False, 0, line.marked is not None and column in line.marked))
    cells += [_PLAIN] * (width - len(cells))
    # Blanks after written text take its colour, which saves two changes of colour.
    for column in range(1, min(width, len(line.letters))):
        previous = cells[column - 1]
        is_blank = cells[column] == _PLAIN and line.letters[column] == " "
        if is_blank and previous.category and not previous.is_filled and not previous.is_marked:
            cells[column] = previous
    return line.letters.ljust(width)[:width], cells


_BLOCK = 0.5
