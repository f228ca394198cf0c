"""Outliers of a kernel by classes of durations, against its single launches."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsystui.questions.algebra.distributions import CLASSES_PER_OCTAVE
from nsystui.questions.triage.kernel_times import Classes, Spread

TIMES, SCORE = 3.0, 3.5


def classes_of(durations: list[int]) -> Classes:
    values = np.array(durations, np.int64)
    numbers = np.floor(np.log2(values + 1.0) * CLASSES_PER_OCTAVE).astype(np.int64)
    found = np.unique(numbers)
    own = [values[numbers == number] for number in found]
    return Classes(found, np.array([len(one) for one in own]), np.array([int(one.sum()) for one in own]))


@given(st.lists(st.integers(0, 10**7), min_size=3, max_size=60), st.sampled_from([0.0, 0.03, 0.2]))
def test_a_tail_is_never_less_than_what_the_outliers_are_over_the_median(durations, rare):
    middle = median(durations)
    limit = Spread(middle, median(abs(one - middle) for one in durations)).above(TIMES, SCORE)
    above = [one for one in durations if one > limit]
    over = sum(one - middle for one in above)
    tail = classes_of(durations).tail(TIMES, SCORE, rare)
    assert tail >= over * (1 - 1e-9) or len(above) > rare * len(durations)


def test_launches_that_are_all_alike_have_no_tail():
    assert classes_of([1_000] * 50).tail(TIMES, SCORE, 0.03) == 0.0


def test_one_huge_launch_is_all_of_the_tail():
    tail = classes_of([1_000] * 99 + [500_000]).tail(TIMES, SCORE, 0.03)
    assert tail == pytest.approx(499_000, rel=0.02)
