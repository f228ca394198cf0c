"""Lays an answer's rows out as lines of a given width. Knows no Textual; ``columns`` does the arithmetic."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import set_cell_size

from nsystui.base.answer import Row
from nsystui.base.columns import FILES_ONLY, Column
from nsystui.base.text import safe_text, width_of
from nsystui.ui.widgets.columns import GAP, ColumnMeasure, Placed, place_columns, set_text

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
        self.measures = [ColumnMeasure(column) for column in columns]
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
        furthest = max(0, self.measures[self.elastic].text - width + 1)
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
                text = measure.align(shown[index], cells)
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
