"""Histograms leave no value out, and their key figures are the usual ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsystui.questions.algebra.distributions import distribution

VALUES = st.lists(st.one_of(st.integers(0, 10**6), st.integers(0, 2**62), st.integers(-(10**9), 0)), min_size=1)


@given(VALUES)
@example([0])
@example([1])
@example([0, 0, 1])
@example([10**15 - 1])
@example([999_999_999_999_999, 10**15])
@example([2**62, 1])
@example([1, 10, 100, 1_000, 10_000])
@example([-5, 5])
@example([7] * 1_000)
def test_every_value_is_in_one_bar(values):
    found = distribution(values)
    assert found.count == sum(found.counts) == len(values)
    assert len(found.edges) == len(found.counts) + 1
    assert list(found.edges) == sorted(set(found.edges))
    assert found.edges[0] <= float(min(values))
    assert found.edges[-1] >= float(max(values))
    assert (found.minimum, found.maximum) == (float(min(values)), float(max(values)))


@given(st.lists(st.integers(0, 10**7), min_size=1))
def test_key_figures(values):
    found = distribution(np.array(values))
    assert found.median == pytest.approx(np.median(values))
    assert found.p95 == pytest.approx(np.percentile(values, 95))


@given(st.lists(st.integers(1, 10**9), min_size=1))
def test_bars_are_few(values):
    assert len(distribution(values).counts) <= 12


@pytest.mark.parametrize("values", [[1_200, 900_000], [1, 10**9], [4_000, 90_000], [3, 5_000_000]])
def test_edges_of_wide_spans_are_round(values):
    leading = {float(edge) / 10 ** (len(str(int(edge))) - 1) for edge in distribution(values).edges}
    assert leading <= {0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0}


def test_each_bar_includes_its_lower_edge():
    found = distribution([1_000, 9_999, 10_000, 99_999, 100_000, 1_000_000])
    for low, high, count in zip(found.edges, found.edges[1:], found.counts, strict=False):
        assert count == sum(low <= value < high for value in (1_000, 9_999, 10_000, 99_999, 100_000, 1_000_000))


def test_nothing_has_no_bars():
    found = distribution([])
    assert (found.edges, found.counts, found.count) == ((), (), 0)
