"""A scatter plot or a curve as lines of text, with both axes logarithmic."""

from __future__ import annotations

from collections.abc import Callable

from nsystui.base.text import fit, width_of
from nsystui.questions.algebra.distributions import Density

# From how many points on a cell has which mark; they differ in size, not in colour.
_MARKS = ((10, "■"), (2, "○"), (1, "·"))
_POINT = "●"
_AXIS = "│"

Words = Callable[[float], str]


def label_width(y_words: Words, ends: tuple[float, float]) -> int:
    """How many cells the labels of the y axis take, with the axis itself."""
    return max(width_of(y_words(end)) for end in ends) + 2


def plot_lines(plot: Density, width: int, x_words: Words, y_words: Words, is_curve: bool = False) -> list[str]:
    """A line for each row of ``plot`` and one for the x axis, each ``width`` cells wide.

    The words make a label of a value; only the ends of the axes have one. A cell of a curve has one mark, however many
    points it holds.
    """
    labels = label_width(y_words, plot.y)
    lines = []
    for number, counts in enumerate(plot.counts):
        at_end = {0: plot.y[1], len(plot.counts) - 1: plot.y[0]}.get(number)
        label = y_words(at_end) if at_end is not None else ""
        marks = "".join(_POINT if is_curve and count else _mark(count) for count in counts)
        lines.append(fit(fit(label, labels - 2, "right") + f" {_AXIS}" + marks, width))
    left, right = x_words(plot.x[0]), x_words(plot.x[1])
    room = max(width - labels - width_of(left), 0)
    return [*lines, fit(" " * labels + left + fit(right, room, "right"), width)]


def _mark(count: int) -> str:
    return next((mark for least, mark in _MARKS if count >= least), " ")
