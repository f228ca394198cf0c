"""A plot as lines of text."""

from __future__ import annotations

from nsystui.questions.algebra.distributions import Density
from nsystui.ui.widgets.plots import plot_lines

PLOT = Density([[0, 0, 12], [0, 3, 0], [1, 0, 0]], (1.0, 100.0), (2.0, 50.0))


def words(value: float) -> str:
    return f"{value:g} u"


def test_marks_grow_with_the_points_and_the_ends_have_labels():
    assert plot_lines(PLOT, 16, words, words) == [
        "50 u │  ■       ",
        "     │ ○        ",
        " 2 u │·         ",
        "      1 u  100 u",
    ]
