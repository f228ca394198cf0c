"""Histograms and classes of durations leave no value out, and their figures are exact, without all values in memory."""

import statistics
from collections import defaultdict
from statistics import median

import campaign
import duckdb
import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from nsystui.base.answer import iter_rows
from nsystui.base.selection import Selection
from nsystui.questions.kernels.activities import API, work_summary
from nsystui.questions.kernels.summary import GroupBy, kernel_summary
from nsystui.questions.queries.distributions import CLASSES_PER_OCTAVE, curve_places, distribution, medians
from nsystui.questions.triage.kernel_times import Classes, KernelSpread
from nsystui.store.database import engine_of

VALUES = st.lists(st.one_of(st.integers(0, 10**6), st.integers(0, 2**62), st.integers(-(10**9), 0)), min_size=1)


EDGES = [[0], [1], [0, 0, 1], [10**15 - 1], [10**15 - 1, 10**15], [2**62, 1], [1, 10, 100, 1_000, 10_000], [-5, 5]]


def assert_every_value_is_in_one_bar(values):
    found = distribution(values)
    assert found.count == sum(found.counts) == len(values)
    assert len(found.edges) == len(found.counts) + 1
    assert list(found.edges) == sorted(set(found.edges))
    assert found.edges[0] <= float(min(values)) and found.edges[-1] >= float(max(values))
    assert (found.minimum, found.maximum) == (float(min(values)), float(max(values)))


def test_every_value_is_in_one_bar():
    given(VALUES)(assert_every_value_is_in_one_bar)()
    for values in (*EDGES, [7] * 1_000):
        assert_every_value_is_in_one_bar(values)


@pytest.mark.campaign
@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_key_figures_are_the_usual_ones_and_bars_are_few(values):
    found = distribution(np.array(values))
    assert found.median == pytest.approx(np.median(values))
    assert found.p95 == pytest.approx(np.percentile(values, 95))
    assert len(distribution([value + 1 for value in values]).counts) <= 12


@pytest.mark.parametrize("values", [[1_200, 900_000], [1, 10**9], [4_000, 90_000], [3, 5_000_000]])
def test_edges_of_wide_spans_are_round(values):
    leading = {float(edge) / 10 ** (len(str(int(edge))) - 1) for edge in distribution(values).edges}
    assert leading <= {0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0}


def test_each_bar_includes_its_lower_edge():
    found = distribution([1_000, 9_999, 10_000, 99_999, 100_000, 1_000_000])
    for low, high, count in zip(found.edges, found.edges[1:], found.counts, strict=False):
        assert count == sum(low <= value < high for value in (1_000, 9_999, 10_000, 99_999, 100_000, 1_000_000))
    nothing = distribution([])
    assert (nothing.edges, nothing.counts, nothing.count) == ((), (), 0)


def test_points_of_curves_are_shown_where_there_is_room_and_x_is_above_0():
    series = [([1, 10, 0], [0, 4, 4]), ([100], [2])]
    cells, ends = curve_places(series, 3, 4, 4)
    assert (cells, ends) == ([[(3, 0), (0, 1)], [(1, 2)]], (1, 100))
    assert curve_places([([5], [0])], 1, 1, 4) == ([[(0, 0)]], (2.5, 10))
    assert [curve_places(series, columns, rows, 4) for columns, rows in ((0, 4), (3, 0))] == [None, None]
    assert curve_places([], 3, 4, 4) is curve_places([([0], [1])], 3, 4, 4) is None


# Outliers of a kernel by classes of durations, against its single launches

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
    limit = KernelSpread(middle, median(abs(one - middle) for one in durations)).above(TIMES, SCORE)
    above = [one for one in durations if one > limit]
    over = sum(one - middle for one in above)
    assert classes_of(durations).tail(TIMES, SCORE, rare) >= over * (1 - 1e-9) or len(above) > rare * len(durations)


def test_launches_that_are_all_alike_have_no_tail_and_one_huge_launch_is_all_of_it():
    assert classes_of([1_000] * 50).tail(TIMES, SCORE, 0.03) == 0.0
    assert classes_of([1_000] * 99 + [500_000]).tail(TIMES, SCORE, 0.03) == pytest.approx(499_000, rel=0.02)


TABLE = sa.table("given", sa.column("name", sa.BigInteger), sa.column("value", sa.BigInteger))


class _Asked:
    """The part of a session that medians use."""

    workers = None

    def __init__(self, engine):
        self.engine = engine

    def batches(self, query, size):
        with self.engine.connect() as connection:
            yield [tuple(row) for row in connection.execute(query)]


@pytest.fixture(scope="module")
def engine():
    connection = duckdb.connect()
    connection.execute("CREATE TABLE given (name BIGINT, value BIGINT)")
    yield connection, engine_of(connection.cursor)
    connection.close()


MAYBE_MISSING = st.one_of(st.none(), st.integers(-5, 20), st.integers(0, 10**12), st.just(2**40))


@pytest.mark.campaign
@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 2**62]), MAYBE_MISSING), max_size=60))
def test_it_is_the_mean_of_the_two_middle_values(engine, rows):
    connection, alchemy = engine
    connection.execute("DELETE FROM given")
    if rows:
        connection.executemany("INSERT INTO given VALUES (?, ?)", rows)
    found = medians(_Asked(alchemy), TABLE, TABLE.c.value, TABLE.c.name, [])  # type: ignore[arg-type]
    expected = defaultdict(list)
    for name, value in rows:
        if value is not None:
            expected[name].append(value)
    assert found == {name: statistics.median(values) for name, values in expected.items()}
    for quarter in (1, 3):
        found = medians(_Asked(alchemy), TABLE, TABLE.c.value, TABLE.c.name, [], quarter)  # type: ignore[arg-type]
        assert found == {name: _quartile(values, quarter) for name, values in expected.items()}


def _quartile(values, quarter):
    places = range(len(values))
    middles = [
        value
        for place, value in zip(places, sorted(values), strict=True)
        if 4 * (place + 1) >= quarter * len(values) and 4 * (len(values) - place) >= (4 - quarter) * len(values)
    ]
    return (middles[0] + middles[-1]) / 2


def _summaries(session):
    yield list(iter_rows(kernel_summary(session, Selection())))
    yield list(iter_rows(kernel_summary(session, Selection(), group_by=(GroupBy.DEVICE, GroupBy.STREAM))))
    yield list(iter_rows(kernel_summary(session, Selection().with_name("nccl"))))
    yield list(iter_rows(work_summary(session, Selection(), API)))


def _with_hashes_of_each_report(session, query):
    """Yield the rows of each report as a worker with another DuckDB would send them: groups have other numbers."""
    (table,) = query.get_final_froms()
    for report in session.reports:
        for *values, number in session.rows(query.where(table.c.report == report.index)):
            yield *values, number + report.index


@pytest.mark.parametrize("hashes", campaign.first(1, ["alike", "distinct", "of each report"]))
def test_the_summaries_of_many_rows_are_those_of_few(demo_session, monkeypatch, hashes):
    usual = list(_summaries(demo_session))
    module = "nsystui.questions.queries"
    monkeypatch.setattr(f"{module}.statistics.MANY", 1)
    if hashes == "alike":
        monkeypatch.setattr(f"{module}.distributions.group_number", lambda keys: sa.literal(7, sa.BigInteger))
    if hashes == "of each report":
        monkeypatch.setattr(f"{module}.statistics.rows_by_report", _with_hashes_of_each_report)
    for few, many in zip(usual, _summaries(demo_session), strict=True):
        assert len(few) == len(many)
        for row, other in zip(few, many, strict=True):
            # The standard deviation sums in another order.
            close = [pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for value in row]
            assert close == list(other)
