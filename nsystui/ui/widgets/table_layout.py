"""Lays an answer's rows out as lines of a given width. Knows no Textual."""

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise, takewhile
from string import ascii_lowercase
from typing import NamedTuple

from rich.cells import set_cell_size

from nsystui.base.answer import FILES_ONLY, Column, Row, Unit, Value
from nsystui.base.text import cut_apart, fit, safe_text, shorten, width_of
from nsystui.base.units import MISSING, Wording, wordings
from nsystui.ui.widgets.plots import bar, stacked_bar

GAP = 2
"""Blanks between columns."""

NAME_MINIMUM = 24
NAME_SHARE = 0.4
"""While other columns can leave, the elastic column keeps the larger of these cells and this share of the line, at most
its natural width."""

NAME_MOST = 0.6
"""The elastic column's share if it is prose, or names of kernels would look alike in less."""

TEXT_WANTED = 24  # the most cells of another text column, unless there is spare room
TEXT_KEPT = 14
"""Cells that a text column keeps while numbers can leave."""

TEXT_MINIMUM = 6
"""Cells that a text column keeps when no column can leave."""

PAN_STEP = 16  # characters by which cut names move
BAR_WIDTH = 5
"""Cells of the bar next to a share."""

WIDE, WIDE_BARS = 140, (12, 20)
"""From this width, bars get spare room: up to 12 cells before text, up to 20 cells after it."""

_TREE = " │├└─▶▼▸▾"
_INDENT = re.compile(r"[ │├└─]*(?:[▶▼▸▾] )?")


class PieceKind(Enum):
    """The kind of a piece; name and bar have the colour of the row's category."""

    NAME = "name"
    BAR = "bar"
    OTHER = "other"


class Piece(NamedTuple):
    """A piece of a line, its column's key (empty between columns), and its category.

    Only parts of a stacked bar have a category, or two, one before the other: ``compute/nccl``.
    """

    text: str
    kind: PieceKind = PieceKind.OTHER
    key: str = ""
    category: str = ""


@dataclass
class ColumnMeasure:
    """The wording of a column's values, and their largest width, in cells."""

    column: Column
    wording: Wording
    widest: int = 0
    full: float = 100.0
    """The value of a full bar."""
    is_empty: bool = False
    """Whether no row of the answer has a value."""
    telling: frozenset[int] = frozenset()
    """Widths to which neighbouring names can be cut and still differ."""

    @property
    def is_text(self) -> bool:
        return self.column.unit is Unit.TEXT

    @property
    def label(self) -> str:
        """The heading, with the unit of the values."""
        return self.wording.heading(self.column.label)

    @property
    def natural(self) -> int:
        """The width that cuts neither the heading with its sort mark nor a formatted value."""
        return max(width_of(self.label) + 1, self.widest)

    def format(self, value: Value) -> str:
        """Return ``value`` in words, without characters that a terminal would obey."""
        return "" if self.is_text and value is None else self.wording.cell(value)

    def heading(self, width: int, sort_mark: str, bar_width: int = 0) -> str:
        """Return the heading in ``width`` cells (``bar_width`` of them for a bar), with ``sort_mark`` at its end."""
        if bar_width and self.column.unit is not Unit.PERCENT:
            # A full bar is the column's maximum, not 100 %.
            return fit("█=max", bar_width) + self.heading(width - bar_width, sort_mark)
        label = shorten(self.label, width - len(sort_mark)) + sort_mark
        return fit(label, width, "left" if self.is_text else "right")


@dataclass(frozen=True)
class Placed:
    """A shown column: its index in the answer, its width and its bar's, cells."""

    index: int
    width: int
    bar: int = 0


def place_columns(
    measures: Sequence[ColumnMeasure], width: int, elastic: int | None, sorted_key: str | None
) -> tuple[Placed, ...]:
    """Choose the columns that fit ``width`` cells and share the cells among them.

    Columns without values leave first, then columns of the highest ``importance``, the rightmost first, then bars. If
    text would still be cut below `TEXT_KEPT`, all other numbers leave, except the first and the sorted column. Text
    stays, and ``FILES_ONLY`` columns never show.
    """
    widths = _wanted(measures, width, elastic)
    bars = {index: BAR_WIDTH + 1 for index in widths if measures[index].column.has_bar}
    columns = [measure.column for measure in measures]
    others = [n for n in widths if columns[n].importance > 0 and columns[n].key != sorted_key and n != elastic]
    for index in sorted(others, key=lambda n: (not measures[n].is_empty, -columns[n].importance, -n)):
        if _used(widths, bars) <= width:
            break
        del widths[index]
        bars.pop(index, None)
    if _used(widths, bars) > width:
        bars.clear()
    numbers = [index for index in widths if not measures[index].is_text and measures[index].column.key != sorted_key]
    shrinks = sum(max(0, cells - TEXT_KEPT) for index, cells in widths.items() if measures[index].is_text)
    for index in reversed(numbers[1:] if elastic is not None else ()):
        if _used(widths, bars) - shrinks > width:
            del widths[index]
    return _shared(measures, width, elastic, widths, bars)


def _wanted(measures: Sequence[ColumnMeasure], width: int, elastic: int | None) -> dict[int, int]:
    """Return the natural widths of columns by index; texts have less if they can be cut."""
    distinctive = measures[elastic].telling if elastic is not None else ()
    share = NAME_MOST if elastic is not None and measures[elastic].column.is_prose else NAME_SHARE
    name_room = max(NAME_MINIMUM, int(width * share), *(cells for cells in distinctive if cells <= width * NAME_MOST))
    widths = {index: item.natural for index, item in enumerate(measures) if item.column.importance < FILES_ONLY}
    for index in widths:
        if measures[index].is_text:
            widths[index] = min(widths[index], name_room if index == elastic else TEXT_WANTED)
    return widths


def _used(widths: Mapping[int, int], bars: Mapping[int, int]) -> int:
    return sum(widths.values()) + GAP * max(0, len(widths) - 1) + sum(bars.values())


def _shared(
    measures: Sequence[ColumnMeasure], width: int, elastic: int | None, widths: dict[int, int], bars: dict[int, int]
) -> tuple[Placed, ...]:
    """Give spare room to the elastic column, then to other cut text, with bars before and after.

    If room is short, text columns shrink, and then the right edge is cut.
    """

    def lengthen(most: int) -> None:
        room = (width - _used(widths, bars)) // len(bars) if bars and width >= WIDE else 0
        for index, cells in bars.items():
            bars[index] = max(cells, min(most + 1, cells + room))

    lengthen(WIDE_BARS[0])
    texts = sorted((index for index in widths if measures[index].is_text), key=lambda index: index != elastic)
    for index, least in ((index, cells) for cells in (TEXT_KEPT, TEXT_MINIMUM) for index in texts):
        spare = width - _used(widths, bars)
        if spare > 0:
            widths[index] = min(measures[index].natural, widths[index] + spare)
        elif spare < 0:
            widths[index] = max(min(least, widths[index]), widths[index] + spare)
    lengthen(WIDE_BARS[1])
    shown = sorted(widths)
    if shown and shown[-1] == elastic:  # a name at the right edge gets all spare room
        widths[elastic] += max(0, width - _used(widths, bars))
    return tuple(Placed(index, widths[index] + bars.get(index, 0), bars.get(index, 0)) for index in shown)


def telling_cells(names: Collection[str]) -> frozenset[int]:
    """Return the widths to which neighbouring names can be cut, with an ellipsis, and still differ."""
    pairs = (zip(*pair, strict=False) for pair in pairwise(sorted(names)))
    return frozenset(sum(1 for _ in takewhile(lambda chars: chars[0] == chars[1], pair)) + 2 for pair in pairs)


def set_text(shown: str, width: int, prefix: str = "", pan: int = 0) -> str:
    """Return text in exactly ``width`` cells: cut at its end, or seen from its character ``pan`` on.

    ``prefix`` (the indentation and mark of a tree's row) is shortened only if it takes more than half the width.
    Without it, blanks and tree marks at the beginning of the text count as a prefix.
    """
    if not prefix:
        prefix = indent.group() if (indent := _INDENT.match(shown)) else ""
        shown = shown[len(prefix) :]
    if width_of(prefix) > width // 2:  # a deep row: the mark next to the name matters more
        prefix = "…" + prefix[-(width // 2 - 1) :] if width >= 4 else ""
    room = width - width_of(prefix)
    if pan and width_of(shown) > room:
        shown = "…" + shown[min(pan, len(shown) - 1) + 1 :]
    return prefix + fit(shown, room)


def letters_of(words: Mapping[str, str], reserved: str) -> dict[str, str]:
    """Return the key for a letter of each of the ``words``; letters are unique, and never ``reserved``."""
    letters: dict[str, str] = {}
    for key, word in words.items():
        free = (char for char in word.lower() if char in ascii_lowercase and char not in {*letters, reserved})
        if letter := next(free, ""):
            letters[letter] = key
    return letters


class TableLayout:
    """The columns of one answer; the text column ``elastic``, by default the last, gets spare room."""

    def __init__(self, columns: Sequence[Column], elastic: str | None = None) -> None:
        self.names: Mapping[str, str] = {}
        """Texts to show for others: the smart names of kernels."""
        self.measures = list(map(ColumnMeasure, columns, wordings(columns, ())))
        texts = [index for index, item in enumerate(columns) if item.unit is Unit.TEXT and item.importance < FILES_ONLY]
        named = [index for index in texts if columns[index].key == elastic]
        self.elastic: int | None = next(iter(named or texts[-1:]), None)
        self.tree_column: int | None = texts[0] if texts else None
        """The first text column, which has a tree's indentation and marks."""
        self.placed: tuple[Placed, ...] = ()
        self.pan = 0
        """The first character of the elastic column that is shown."""
        self._visible: frozenset[str] = frozenset()
        self._cuts: dict[int, Mapping[str, str]] = {}  # the visible names, cut, by width

    def word(self, rows: Sequence[Row], of_all: bool = True) -> None:
        """Choose the units of the columns by ``rows``: all rows (``of_all``), or the first rows."""
        new_wordings = wordings([measure.column for measure in self.measures], rows)
        for measure, wording, values in zip(self.measures, new_wordings, zip(*rows, strict=True), strict=False):
            measure.is_empty = of_all and all(value is None for value in values)
            if wording != measure.wording:
                measure.wording, measure.widest = wording, 0
            if measure.column.has_bar and measure.column.unit is not Unit.PERCENT:
                measure.full = max((*(value for value in values if isinstance(value, int | float)), 1))

        if self.elastic is not None:
            shown = {self.names.get(text, text) for row in rows if isinstance(text := row[self.elastic], str)}
            self.measures[self.elastic].telling = telling_cells(shown.intersection(self.names.values()))

    def format(self, row: Row, prefix: str = "") -> list[str]:
        """Return the values of ``row`` in words, and widen their columns."""
        named = [self.names.get(value, value) if isinstance(value, str) else value for value in row]
        shown = [measure.format(value) for measure, value in zip(self.measures, named, strict=True)]
        for index, (measure, text) in enumerate(zip(self.measures, shown, strict=True)):
            measure.widest = max(measure.widest, width_of(prefix + text if index == self.tree_column else text))
        return shown

    def hidden_facts(self, row: Row) -> dict[str, str]:
        """Return the values without a shown column as ``label value``, in the column's unit, by key."""
        shown = {column.index for column in self.placed}
        hidden = [
            (measure.column, measure.wording.words(value))
            for index, (measure, value) in enumerate(zip(self.measures, row, strict=True))
            if index not in shown and measure.column.importance < FILES_ONLY
        ]
        return {item.key: f"{item.label.removesuffix(' %')} {words}" for item, words in hidden if words.strip(MISSING)}

    def place(self, width: int, sorted_key: str | None, visible: Iterable[Sequence[str]] = ()) -> None:
        """Choose the columns for lines of ``width`` cells; ``visible``: the formatted rows, whose names must differ."""
        names = frozenset(shown[self.elastic] for shown in visible if self.elastic is not None)
        if names != self._visible:
            self._visible, self._cuts = names, {}
        self.placed = place_columns(self.measures, width, self.elastic, sorted_key)

    def pan_by(self, steps: int) -> bool:
        """Move along cut names; return whether they moved."""
        if self.elastic is None:
            return False
        width = next((placed.width for placed in self.placed if placed.index == self.elastic), 0)
        max_pan = max(0, self.measures[self.elastic].widest - width + 1)
        before, self.pan = self.pan, max(0, min(self.pan + steps * PAN_STEP, max_pan))
        return self.pan != before

    def heading_pieces(
        self, width: int, sorted_by: tuple[str, bool] | None, letters: Mapping[str, str] = {}
    ) -> list[tuple[str, bool]]:
        """Return the headings as pieces: text, and whether it is a letter to press.

        The sorted column's heading has ↓ (descending) or ↑. ``letters``: the result of ``sort_letters``.
        """
        letter_by_key = {key: letter for letter, key in letters.items()}
        pieces: list[tuple[str, bool]] = []
        room = width
        for index, cells, bar_width in ((placed.index, placed.width, placed.bar) for placed in self.placed):
            measure = self.measures[index]
            key = measure.column.key
            mark = ("↓" if sorted_by[1] else "↑") if sorted_by and sorted_by[0] == key else ""
            heading = (" " * GAP if pieces else "") + measure.heading(cells, mark, bar_width)
            heading = set_cell_size(heading, min(room, width_of(heading)))
            room -= width_of(heading)
            position = heading.lower().find(letter_by_key[key]) if key in letter_by_key else -1
            parts = [heading] if position < 0 else [heading[:position], heading[position], heading[position + 1 :]]
            pieces.extend((text, part_index == 1) for part_index, text in enumerate(parts))
        return [*pieces, (" " * room, False)]

    def sort_letters(self) -> dict[str, str]:
        """Return the column key for a letter of each shown heading; letters are unique, and never ``s``."""
        measures = [(self.measures[placed.index], placed.width) for placed in self.placed]
        return letters_of({measure.column.key: measure.heading(width, "") for measure, width in measures}, "s")

    def key_after(self, key: str | None) -> str | None:
        """Return the key of the next column, even if it is not shown."""
        keys = [measure.column.key for measure in self.measures if measure.column.importance < FILES_ONLY]
        return keys[(keys.index(key) + 1) % len(keys) if key in keys else 0] if keys else None

    def descends(self, key: str) -> bool:
        """Return whether rows are first sorted descending: by amounts, not names and times."""
        units = {measure.column.key: measure.column.unit for measure in self.measures}
        return units[key] not in (Unit.TEXT, Unit.TIME)

    def row_line(
        self, shown: Sequence[str], row: Row, width: int, prefix: str = "", is_plain: bool = False
    ) -> list[Piece]:
        """Return a row in ``width`` cells as pieces; ``is_plain``: stacked bars have one colour."""
        pieces: list[Piece] = []
        for placed in self.placed:
            index, cells = placed.index, placed.width - placed.bar
            measure = self.measures[index]
            key = measure.column.key
            if pieces:
                pieces.append(Piece(" " * GAP))
            value = row[index] if placed.bar else None
            if measure.column.stack and not is_plain and isinstance(value, int | float):
                bars = stacked_bar(self._parts_of(measure.column, value, row), measure.full, placed.bar - 1)
                pieces.extend(Piece(text, PieceKind.BAR, key, category) for text, category in bars)
                pieces.append(Piece(" "))
            elif placed.bar:
                pieces.append(Piece(bar(value, measure.full, placed.bar - 1) + " ", PieceKind.BAR, key))
            if measure.is_text:
                tree_prefix = prefix if index == self.tree_column else ""
                text = shown[index]
                if index == self.elastic:
                    text = self._cut_apart(text, cells - width_of(tree_prefix))
                text = set_text(text, cells, tree_prefix, self.pan if index == self.elastic else 0)
            else:
                text = fit(shown[index], cells, "right")
            pieces.append(Piece(text, PieceKind.NAME if index == self.elastic else PieceKind.OTHER, key))
        room, cut_pieces = width, []
        for piece in pieces:  # too narrow for the columns that stay: cut at the edge
            text = set_cell_size(piece.text, min(room, width_of(piece.text)))
            cut_pieces.append(piece._replace(text=text))
            room -= width_of(text)
        return [*cut_pieces, Piece(" " * room)]

    def _cut_apart(self, text: str, room: int) -> str:
        """Return a name, cut if it is too long so that it still differs from the other visible names."""
        if self.pan or room >= width_of(text) or text[0] in _TREE:
            return text
        if room not in self._cuts:
            self._cuts[room] = cut_apart(self._visible, room)
        return self._cuts[room].get(text, text)

    def _parts_of(self, column: Column, value: float, row: Row) -> list[tuple[str, float]]:
        """Return a stacked bar's parts, which add up to ``value``."""
        indices = {measure.column.key: index for index, measure in enumerate(self.measures)}
        parts, rest = [], value
        for key, category in column.stack:
            part_value = row[indices[key]] if key in indices else None
            part = min(part_value, rest) if isinstance(part_value, int | float) else 0.0
            parts.append((category, part))
            rest -= part
        return [*parts, (column.stack[-1][1], rest)]

    def column_at(self, x: int) -> str | None:
        """Return the key of the column at cell ``x``."""
        edge = 0
        for placed in self.placed:
            edge += placed.width + GAP
            if x < edge:
                return self.measures[placed.index].column.key
        return None


def message_lines(words: str, width: int) -> list[str]:
    """Return sentences as lines of ``width`` cells, indented by two: an empty table's body."""
    room = max(8, width - 4)  # options to copy are not broken at hyphens
    paragraphs = [textwrap.wrap(safe_text(part), room, break_on_hyphens=False) or [""] for part in words.splitlines()]
    return [set_cell_size("  " + line, width) for lines in paragraphs for line in lines]
