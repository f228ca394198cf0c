"""Maps of recipes as text: a line of blocks per figure and GPU, process or adapter."""

from dataclasses import replace

import numpy as np

from nsystui.base import terminal
from nsystui.base.answer import Unit
from nsystui.base.selection import Selection
from nsystui.base.text import fit, safe_text
from nsystui.base.units import format_value
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import Question, TextDrawing, draw_map
from nsystui.questions.recipes.recipe import RecipeMap, RecipeOptions
from nsystui.ui.pictures.selection import span_words
from nsystui.ui.widgets.plots import blocks, time_axis

_LABEL, _VALUE, _MIN_COLUMNS = 16, 10, 10


def draw(
    question: Question, job: OpenJob, selection: Selection, options: RecipeOptions, width: int | None, bins: int | None
) -> TextDrawing:
    """Draw a question's map in ``width`` cells (default: the terminal's), in ``bins`` (default: a bin per block)."""
    width = width or terminal.text_width(120)
    drawn = draw_map(question, job, selection, options if bins else replace(options, bins=_columns_of(width)))
    return TextDrawing(lines_of(drawn, width), drawn.notes)


def _columns_of(width: int) -> int:
    """Return how many blocks fit next to labels and values."""
    return max(width - _LABEL - _VALUE - 2, _MIN_COLUMNS)


def lines_of(drawn: RecipeMap, width: int) -> list[str]:
    """Return the lines of a drawing: the scale of the blocks, then each figure with a heading.

    A block shows the largest bin that it covers; the number at the end is the mean of all known values.
    """
    if not drawn.lines:
        return []
    columns = _columns_of(width)
    window = drawn.window
    bin_width = format_value(Unit.DURATION, (window.end - window.start) / drawn.bins)
    lines = [f"{span_words(window)}, {drawn.bins} spans of {bin_width}; · is not recorded"]
    for number, figure in enumerate(drawn.figures):
        rows = drawn.shares(number)
        if not any(np.isfinite(row).any() for row in rows):
            continue
        if not any(np.nan_to_num(row).any() for row in rows):
            lines += ["", f"{figure.title}: 0 everywhere"]
            continue
        is_share = figure.column.unit is Unit.PERCENT
        largest = float(np.nanmax(np.stack([line.values[number] for line in drawn.lines])))
        scale = "" if is_share else f", full height {figure.words(largest)}"
        lines += ["", f"{figure.title}{scale}"]
        for line, row in zip(drawn.lines, rows, strict=True):
            label = fit(safe_text(line.label), _LABEL, "right")
            lines.append(f"{label} {blocks(row.tolist(), columns)} {figure.words(line.mean(number)).rjust(_VALUE)}")
        lines.append(" " * (_LABEL + 1) + time_axis(window.start, window.end, columns).rstrip())
    return lines
