"""Points on a grid with logarithmic axes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from nsystui.questions.algebra.distributions import log_density

VALUES = st.one_of(st.floats(-1e6, 1e12), st.just(math.nan))


@given(st.lists(st.tuples(VALUES, VALUES), max_size=40), st.integers(1, 20), st.integers(1, 10))
def test_every_point_with_positive_values_is_in_one_cell(points, columns, rows):
    shown = [(x, y) for x, y in points if x > 0 and y > 0]
    plot = log_density([x for x, _ in points], [y for _, y in points], columns, rows)
    if not shown:
        assert plot is None
        return
    assert (len(plot.counts), {len(row) for row in plot.counts}) == (rows, {columns})
    assert sum(map(sum, plot.counts)) == len(shown)


def test_decades_have_the_same_width_and_large_values_are_above():
    plot = log_density([1, 10, 100, 1000], [1, 10, 100, 1000], 4, 4)
    assert plot.counts == [[0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    assert (plot.x, plot.y) == ((1, 1000), (1, 1000))


def test_one_value_alone_is_in_the_middle():
    plot = log_density([8, 8], [5, 5], 4, 2)
    assert plot.x == (4, 16)
    assert [row.index(2) in (1, 2) for row in plot.counts if any(row)] == [True]


def test_nothing_to_show():
    assert log_density([], [], 3, 3) is None
    assert log_density([math.nan, 0], [1, 1], 3, 3) is None
    assert log_density([1], [1], 0, 3) is None
