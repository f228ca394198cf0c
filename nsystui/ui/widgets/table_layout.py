"""Lays an answer's rows out as lines of a given width. Knows no Textual; ``columns`` does the arithmetic."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise, takewhile
from typing import NamedTuple

from rich.cells import set_cell_size

from nsystui.base.answer import FILES_ONLY, Column, Row, Unit, Value
from nsystui.base.text import fit, safe_text, shorten, width_of
from nsystui.base.units import MISSING, Wording, wordings
from nsystui.ui.widgets.plots import bar, stacked_bar

GAP = 2
"""Blanks between two columns."""

NAME_MINIMUM = 24
NAME_SHARE = 0.4
"""The elastic column keeps this many cells, or this share of the line if that is more (or its natural width, if that is
less), while other columns can leave instead: names are what people look for."""

NAME_MOST = 0.6
"""It keeps up to this share where names of kernels would look alike when they are cut to less."""

TEXT_WANTED = 24
"""Cells that any other text column asks for at most; it gets more only when there is room to spare."""

TEXT_MINIMUM = 6
"""Cells that a text column keeps when nothing is left that could leave."""

BAR_WIDTH = 5
"""Cells of the bar beside a share."""

_INDENT = re.compile(r"[ │├└─]*(?:[▶▼▸▾] )?")


class PieceKind(Enum):
    """What a piece of a line is: name and bar have the colour of the row's category."""

    NAME = "name"
    BAR = "bar"
    OTHER = "other"


class Piece(NamedTuple):
    """A piece of a line: its text, the key of its column (empty for what stands between columns), and its category.

    Only parts of a stacked bar have a category of their own, or two: ``compute/nccl`` is one before the other.
    """

    text: str
    kind: PieceKind = PieceKind.OTHER
    key: str = ""
    category: str = ""


@dataclass
class ColumnMeasure:
    """How the values of one column are worded, and how wide they have been so far, in cells."""

    column: Column
    wording: Wording
    widest: int = 0
    full: float = 100.0
    """The value of a full bar."""
    is_empty: bool = False
    """Whether no row of the answer has a value."""
    telling: frozenset[int] = frozenset()
    """The cells that tell two names in it apart, for each two that begin alike."""

    @property
    def is_text(self) -> bool:
        return self.column.unit is Unit.TEXT

    @property
    def label(self) -> str:
        """The heading, with the unit of the values."""
        return self.wording.heading(self.column.label)

    @property
    def natural(self) -> int:
        """The width at which nothing seen so far, nor the heading with its sort mark, is cut."""
        return max(width_of(self.label) + 1, self.widest)

    def format(self, value: Value) -> str:
        """``value`` in words of a screen, without anything that a terminal would act on."""
        return "" if self.is_text and value is None else self.wording.cell(value)

    def see(self, shown: str) -> None:
        """Make room for a value, formatted."""
        self.widest = max(self.widest, width_of(shown))

    def heading(self, width: int, sort_mark: str, bar_width: int = 0) -> str:
        """The column's heading in ``width`` cells, of them ``bar_width`` of a bar, with ``sort_mark`` at its end."""
        if bar_width and self.column.unit is not Unit.PERCENT:
            # The full length of such a bar is the column's maximum, not a whole.
            return fit("█=max", bar_width) + self.heading(width - bar_width, sort_mark)
        label = shorten(self.label, width - len(sort_mark)) + sort_mark
        return fit(label, width, "left" if self.is_text else "right")


@dataclass(frozen=True)
class Placed:
    """A column that is shown: its place in the answer's columns, its width in cells, and how many a bar takes of it."""

    index: int
    width: int
    bar: int = 0


def place_columns(
    measures: Sequence[ColumnMeasure], width: int, elastic: int | None, sorted_key: str | None
) -> tuple[Placed, ...]:
    """Choose the columns that fit ``width`` cells and share the cells among them.

    Those without any value leave first, then those of the highest ``importance``, of equals the one furthest right;
    importance 0, the sorted column and the elastic one stay. Room to spare goes to the elastic column and then to other
    text that was cut; with nothing left to leave, text columns shrink, and after that the right edge is cut.
    ``FILES_ONLY`` columns never show.
    Bars leave after the columns that may.
    """
    telling = measures[elastic].telling if elastic is not None else ()
    apart = (cells for cells in telling if cells <= width * NAME_MOST)
    name_room = max(NAME_MINIMUM, int(width * NAME_SHARE), *apart)
    wanted = {
        index: min(measure.natural, name_room if index == elastic else TEXT_WANTED)
        if measure.is_text
        else measure.natural
        for index, measure in enumerate(measures)
        if measure.column.importance < FILES_ONLY
    }

    bars = {index: BAR_WIDTH + 1 for index in wanted if measures[index].column.has_bar}

    def taken() -> int:
        return sum(wanted.values()) + GAP * max(0, len(wanted) - 1) + sum(bars.values())

    def may_leave(index: int) -> bool:
        column = measures[index].column
        return column.importance > 0 and column.key != sorted_key and index != elastic

    def staying(index: int) -> tuple[bool, int, int]:
        return not measures[index].is_empty, -measures[index].column.importance, -index

    leaving = sorted(filter(may_leave, wanted), key=staying)
    for index in leaving:
        if taken() <= width:
            break
        del wanted[index]
        bars.pop(index, None)
    if taken() > width:
        bars.clear()

    texts = sorted((index for index in wanted if measures[index].is_text), key=lambda index: index != elastic)
    for index in texts:  # the elastic one first
        spare = width - taken()
        if spare > 0:
            wanted[index] = min(measures[index].natural, wanted[index] + spare)
        elif spare < 0:
            wanted[index] = max(min(TEXT_MINIMUM, wanted[index]), wanted[index] + spare)
    shown = sorted(wanted)
    if shown and shown[-1] == elastic:  # a name at the right edge may as well own the rest of the line
        wanted[elastic] += max(0, width - taken())
    return tuple(Placed(index, wanted[index] + bars.get(index, 0), bars.get(index, 0)) for index in shown)


def telling_cells(names: Collection[str]) -> frozenset[int]:
    """The cells to which neighbouring names can be cut and still differ: one more than they share, and the ellipsis."""
    pairs = (zip(*pair, strict=False) for pair in pairwise(sorted(names)))
    return frozenset(sum(1 for _ in takewhile(lambda two: two[0] == two[1], pair)) + 2 for pair in pairs)


def set_text(shown: str, width: int, prefix: str = "", pan: int = 0) -> str:
    """Text in exactly ``width`` cells: cut at its end, or seen from its character ``pan`` on.

    ``prefix`` (the indentation and mark of a tree's row) is never shortened while half the width is enough for it;
    blanks and tree marks that the text itself begins with count as one.
    """
    if not prefix:
        indent = _INDENT.match(shown)
        prefix = indent.group() if indent else ""
        shown = shown[len(prefix) :]
    if width_of(prefix) > width // 2:  # very deep: the mark next to the name says more than the depth
        prefix = "…" + prefix[-(width // 2 - 1) :] if width >= 4 else ""
    room = width - width_of(prefix)
    if pan and width_of(shown) > room:
        shown = "…" + shown[min(pan, len(shown) - 1) + 1 :]
    return prefix + fit(shown, room)


_LETTERS = frozenset("abcdefghijklmnopqrtuvwxyz")

PAN_STEP = 16
"""Characters by which a reader moves along names that are cut."""


class TableLayout:
    """The columns of one answer on a screen.

    Args:
        columns: The answer's columns.
        elastic: Key of the text column that takes the room to spare; else the last text.
    """

    def __init__(self, columns: Sequence[Column], elastic: str | None = None) -> None:
        self.names: Mapping[str, str] = {}
        """The text that is shown in place of another: the smart name of a kernel."""
        self.measures = list(map(ColumnMeasure, columns, wordings(columns, ())))
        texts = [
            index
            for index, measure in enumerate(self.measures)
            if measure.is_text and measure.column.importance < FILES_ONLY
        ]
        named = [index for index in texts if columns[index].key == elastic]
        self.elastic: int | None = next(iter(named or texts[-1:]), None)
        self.tree_column: int | None = texts[0] if texts else None
        """The column that carries a tree's indentation and marks: the first text."""
        self.placed: tuple[Placed, ...] = ()
        self.pan = 0
        """From which character on the elastic column is seen; 0: from its beginning."""

    def word(self, rows: Sequence[Row], of_all: bool = True) -> None:
        """Choose the units of the columns by the values of ``rows``: ``of_all``, or the first of many."""
        found = wordings([measure.column for measure in self.measures], rows)
        for measure, wording, values in zip(self.measures, found, zip(*rows, strict=True), strict=False):
            measure.is_empty = of_all and all(value is None for value in values)
            if wording != measure.wording:
                measure.wording, measure.widest = wording, 0
            if measure.column.has_bar and measure.column.unit is not Unit.PERCENT:
                largest = max((value for value in values if isinstance(value, int | float)), default=0)
                measure.full = max(largest, 1)

        if self.elastic is not None:
            shown = {self.names.get(text, text) for row in rows if isinstance(text := row[self.elastic], str)}
            self.measures[self.elastic].telling = telling_cells(shown.intersection(self.names.values()))

    def format(self, row: Row, prefix: str = "") -> list[str]:
        """The values of ``row`` in words, and room for them in their columns' widths."""
        named = [self.names.get(value, value) if isinstance(value, str) else value for value in row]
        shown = [measure.format(value) for measure, value in zip(self.measures, named, strict=True)]
        for index, (measure, text) in enumerate(zip(self.measures, shown, strict=True)):
            measure.see(prefix + text if index == self.tree_column else text)
        return shown

    def hidden_facts(self, row: Row) -> dict[str, str]:
        """Word each value of a column that has no place as ``label value``, in the unit of its column, by key."""
        placed = {one.index for one in self.placed}
        hidden = [
            (measure.column, measure.wording.words(value))
            for index, (measure, value) in enumerate(zip(self.measures, row, strict=True))
            if index not in placed and measure.column.importance < FILES_ONLY
        ]
        return {one.key: f"{one.label.removesuffix(' %')} {words}" for one, words in hidden if words.strip(MISSING)}

    def place(self, width: int, sorted_key: str | None) -> None:
        """Choose the columns for lines of ``width`` cells."""
        self.placed = place_columns(self.measures, width, self.elastic, sorted_key)

    def pan_by(self, steps: int) -> bool:
        """Move along names that are cut; whether there was anywhere to go."""
        if self.elastic is None:
            return False
        width = next((placed.width for placed in self.placed if placed.index == self.elastic), 0)
        furthest = max(0, self.measures[self.elastic].widest - width + 1)
        before, self.pan = self.pan, max(0, min(self.pan + steps * PAN_STEP, furthest))
        return self.pan != before

    def heading_pieces(
        self, width: int, sorted_by: tuple[str, bool] | None, letters: Mapping[str, str] = {}
    ) -> list[tuple[str, bool]]:
        """The headings, the sorted one marked ↓ (descending) or ↑, as pieces: text, and whether it is to be pressed.

        ``letters``: as ``sort_letters`` gives them.
        """
        wanted = {key: letter for letter, key in letters.items()}
        pieces: list[tuple[str, bool]] = []
        room = width
        for index, cells, bar_width in ((placed.index, placed.width, placed.bar) for placed in self.placed):
            measure = self.measures[index]
            key = measure.column.key
            mark = ("↓" if sorted_by[1] else "↑") if sorted_by and sorted_by[0] == key else ""
            heading = (" " * GAP if pieces else "") + measure.heading(cells, mark, bar_width)
            heading = set_cell_size(heading, min(room, width_of(heading)))
            room -= width_of(heading)
            at = heading.lower().find(wanted[key]) if key in wanted else -1
            cut = [heading] if at < 0 else [heading[:at], heading[at], heading[at + 1 :]]
            pieces.extend((text, number == 1) for number, text in enumerate(cut))
        return [*pieces, (" " * room, False)]

    def sort_letters(self) -> dict[str, str]:
        """A letter of each heading that is shown, to the key of its column; none is ``s``, and no two are the same."""
        letters: dict[str, str] = {}
        for placed in self.placed:
            measure = self.measures[placed.index]
            shown = measure.heading(placed.width, "").lower()
            letter = next((sign for sign in shown if sign in _LETTERS and sign not in letters), None)
            if letter is not None:
                letters[letter] = measure.column.key
        return letters

    def key_next_to(self, key: str | None, step: int) -> str | None:
        """The key of the column behind one (``step=-1``: before it), those too narrow to show included."""
        keys = [measure.column.key for measure in self.measures if measure.column.importance < FILES_ONLY]
        here = keys.index(key) if key in keys else (-1 if step > 0 else 0)
        return keys[(here + step) % len(keys)] if keys else None

    def descends(self, key: str) -> bool:
        """Whether the rows are first sorted from the largest on: by amounts, not by names and times."""
        units = {measure.column.key: measure.column.unit for measure in self.measures}
        return units[key] not in (Unit.TEXT, Unit.TIME)

    def row_line(
        self, shown: Sequence[str], row: Row, width: int, prefix: str = "", is_plain: bool = False
    ) -> list[Piece]:
        """A row in ``width`` cells as pieces; ``is_plain``: stacked bars are of one colour."""
        pieces: list[Piece] = []
        for placed in self.placed:
            index, cells = placed.index, placed.width - placed.bar
            measure = self.measures[index]
            key = measure.column.key
            if pieces:
                pieces.append(Piece(" " * GAP))
            value = row[index] if placed.bar else None
            if measure.column.stack and not is_plain and isinstance(value, int | float):
                parts = self._parts_of(measure.column, value, row)
                bars = stacked_bar(parts, measure.full, placed.bar - 1)
                pieces.extend(Piece(text, PieceKind.BAR, key, category) for text, category in bars)
                pieces.append(Piece(" "))
            elif placed.bar:
                pieces.append(Piece(bar(value, measure.full, placed.bar - 1) + " ", PieceKind.BAR, key))
            if measure.is_text:
                own_prefix = prefix if index == self.tree_column else ""
                text = set_text(shown[index], cells, own_prefix, self.pan if index == self.elastic else 0)
            else:
                text = fit(shown[index], cells, "right")
            pieces.append(Piece(text, PieceKind.NAME if index == self.elastic else PieceKind.OTHER, key))
        room, kept = width, []
        for piece in pieces:  # narrower than what may not leave: cut at the edge
            text = piece.text if width_of(piece.text) <= room else set_cell_size(piece.text, room)
            kept.append(piece._replace(text=text))
            room -= width_of(text)
        return [*kept, Piece(" " * room)]

    def _parts_of(self, column: Column, value: float, row: Row) -> list[tuple[str, float]]:
        """The parts of a stacked bar, which add up to ``value``, with their categories."""
        places = {measure.column.key: index for index, measure in enumerate(self.measures)}
        parts, rest = [], value
        for key, category in column.stack:
            own = row[places[key]] if key in places else None
            part = min(own, rest) if isinstance(own, int | float) else 0.0
            parts.append((category, part))
            rest -= part
        return [*parts, (column.stack[-1][1], rest)]

    def column_at(self, x: int) -> str | None:
        """The key of the column that shows at cell ``x``."""
        edge = 0
        for placed in self.placed:
            edge += placed.width + GAP
            if x < edge:
                return self.measures[placed.index].column.key
        return None


def message_lines(words: str, width: int) -> list[str]:
    """Sentences as lines of ``width`` cells, set in by two; for the body of a table that has no rows to show."""
    room = max(8, width - 4)  # an option to copy is not broken at its hyphens
    paragraphs = [textwrap.wrap(safe_text(part), room, break_on_hyphens=False) or [""] for part in words.splitlines()]
    return [set_cell_size("  " + line, width) for lines in paragraphs for line in lines]
