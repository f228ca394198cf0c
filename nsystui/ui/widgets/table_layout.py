"""Lays an answer's rows out as lines of a given width. Knows no Textual; ``columns`` does the arithmetic."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import set_cell_size

from nsystui.base.answer import Row, Value
from nsystui.base.columns import FILES_ONLY, Column, Unit
from nsystui.base.text import fit, safe_text, shorten, width_of
from nsystui.base.units import Wording

GAP = 2
"""Blanks between two columns."""

NAME_MINIMUM = 24
NAME_SHARE = 0.4
"""The elastic column keeps this many cells, or this share of the line if that is more (or its natural width, if that is
less), while other columns can leave instead: names are what people look for."""

TEXT_WANTED = 24
"""Cells that any other text column asks for at most; it gets more only when there is room to spare."""

TEXT_MINIMUM = 6
"""Cells that a text column keeps when nothing is left that could leave."""

_INDENT = re.compile(r"[ │├└─]*(?:[▶▼▸▾] )?")


@dataclass
class ColumnMeasure:
    """How the values of one column are worded, and how wide they have been so far, in cells."""

    column: Column
    wording: Wording
    widest: int = 0

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

    def heading(self, width: int, sort_mark: str) -> str:
        """The column's heading in ``width`` cells, with ``sort_mark`` (may be empty) at its end."""
        label = shorten(self.label, width - len(sort_mark)) + sort_mark
        return fit(label, width, "left" if self.is_text else "right")


@dataclass(frozen=True)
class Placed:
    """A column that is shown: its place in the answer's columns, and its width in cells."""

    index: int
    width: int


def place_columns(
    measures: Sequence[ColumnMeasure], width: int, elastic: int | None, sorted_key: str | None
) -> tuple[Placed, ...]:
    """Choose the columns that fit ``width`` cells and share the cells among them.

    Those of the highest ``importance`` leave first, of equals the one furthest right; importance 0, the sorted column
    and the elastic one stay. Room to spare goes to the elastic column and then to other text that was cut; with nothing
    left to leave, text columns shrink, and after that the right edge is cut. ``FILES_ONLY`` columns never show.
    """
    name_room = max(NAME_MINIMUM, int(width * NAME_SHARE))
    wanted = {
        index: min(measure.natural, name_room if index == elastic else TEXT_WANTED)
        if measure.is_text
        else measure.natural
        for index, measure in enumerate(measures)
        if measure.column.importance < FILES_ONLY
    }

    def taken() -> int:
        return sum(wanted.values()) + GAP * max(0, len(wanted) - 1)

    def may_leave(index: int) -> bool:
        column = measures[index].column
        return column.importance > 0 and column.key != sorted_key and index != elastic

    leaving = sorted(filter(may_leave, wanted), key=lambda index: (-measures[index].column.importance, -index))
    for index in leaving:
        if taken() <= width:
            break
        del wanted[index]

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
    return tuple(Placed(index, wanted[index]) for index in shown)


def set_text(shown: str, width: int, prefix: str = "", pan: int = 0, is_prose: bool = False) -> str:
    """Text in exactly ``width`` cells: cut in its middle (prose at its end), or seen from its character ``pan`` on.

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
        # Cut at the right edge, not in the middle: the reader is looking at this part.
        shown = "…" + shown[min(pan, len(shown) - 1) + 1 :]
        return prefix + (fit(shown, room) if width_of(shown) <= room else set_cell_size(shown, room - 1) + "…")
    if is_prose and width_of(shown) > room > 0:
        return prefix + set_cell_size(shown, room - 1) + "…"
    return prefix + fit(shown, room)


PAN_STEP = 16
"""Characters by which a reader moves along names that are cut."""


class TableLayout:
    """The columns of one answer on a screen.

    Args:
        columns: The answer's columns.
        elastic: Key of the text column that takes the room to spare and is cut in its middle; else the last text.
        is_prose: That column holds sentences, which are cut at their end instead.
    """

    def __init__(self, columns: Sequence[Column], elastic: str | None = None, is_prose: bool = False) -> None:
        self.is_prose = is_prose
        self.measures = [ColumnMeasure(column, Wording.of(column.unit, ())) for column in columns]
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
        """From which character on the elastic column is seen; 0: cut in the middle."""

    def word(self, rows: Sequence[Row]) -> None:
        """Choose the units of the columns by the values of ``rows``: all of them, or the first of many."""
        for measure, values in zip(self.measures, zip(*rows, strict=True), strict=False):
            wording = Wording.of(measure.column.unit, values)
            if wording != measure.wording:
                measure.wording, measure.widest = wording, 0

    def format(self, row: Row, prefix: str = "") -> list[str]:
        """The values of ``row`` in words, and room for them in their columns' widths."""
        shown = [measure.format(value) for measure, value in zip(self.measures, row, strict=True)]
        for index, (measure, text) in enumerate(zip(self.measures, shown, strict=True)):
            measure.see(prefix + text if index == self.tree_column else text)
        return shown

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

    def heading_line(self, width: int, sorted_by: tuple[str, bool] | None) -> str:
        """The headings, the sorted one marked ↓ (descending) or ↑."""
        parts = []
        for index, cells in ((placed.index, placed.width) for placed in self.placed):
            measure = self.measures[index]
            mark = ("↓" if sorted_by[1] else "↑") if sorted_by and sorted_by[0] == measure.column.key else ""
            parts.append(measure.heading(cells, mark))
        return set_cell_size((" " * GAP).join(parts), width)

    def row_line(self, shown: Sequence[str], width: int, prefix: str = "") -> tuple[str, str, str]:
        """A formatted row in ``width`` cells: what stands before the elastic column, that column, what follows."""
        before, name, after = "", "", ""
        for place, (index, cells) in enumerate((placed.index, placed.width) for placed in self.placed):
            measure = self.measures[index]
            if measure.is_text:
                own_prefix = prefix if index == self.tree_column else ""
                is_elastic = index == self.elastic
                pan = self.pan if is_elastic else 0
                text = set_text(shown[index], cells, own_prefix, pan, self.is_prose and is_elastic)
            else:
                text = fit(shown[index], cells, "right")
            gap = " " * GAP if place else ""
            if index == self.elastic:
                before, name = before + gap, text
            elif name:
                after += gap + text
            else:
                before += gap + text
        used = width_of(before + name)
        if used >= width:  # narrower than what may not leave: cut at the edge
            line = set_cell_size(before + name, width)
            return line[: len(before)], line[len(before) :], ""
        return before, name, set_cell_size(after, width - used)

    def span_of(self, key: str) -> tuple[int, int] | None:
        """From and to which cell of a line a column reaches; ``None`` where it is not shown."""
        edge = 0
        for placed in self.placed:
            if self.measures[placed.index].column.key == key:
                return edge, edge + placed.width
            edge += placed.width + GAP
        return None

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
    paragraphs = [textwrap.wrap(safe_text(part), max(8, width - 4)) or [""] for part in words.splitlines()]
    return [set_cell_size("  " + line, width) for lines in paragraphs for line in lines]
