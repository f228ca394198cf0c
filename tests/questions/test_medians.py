"""Exact medians without all values in memory."""

import statistics
from collections import defaultdict

import campaign
import duckdb
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from nsystui.base.answer import iter_rows
from nsystui.base.selection import Selection
from nsystui.questions.kernels.activities import API, work_summary
from nsystui.questions.kernels.summary import GroupBy, kernel_summary
from nsystui.questions.queries.distributions import medians
from nsystui.store.database import engine_of

TABLE = sa.table("given", sa.column("name", sa.BigInteger), sa.column("value", sa.BigInteger))


class _Asked:
    """The part of a session that medians use."""

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


VALUES = st.one_of(st.none(), st.integers(-5, 20), st.integers(0, 10**12), st.just(2**40))


@pytest.mark.campaign
@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 2**62]), VALUES), max_size=60))
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
    """Return the lower or upper quartile by definition."""
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


@pytest.mark.parametrize("has_distinct_hashes", campaign.first(1, [False, True]))
def test_the_summaries_of_many_rows_are_those_of_few(demo_session, monkeypatch, has_distinct_hashes):
    usual = list(_summaries(demo_session))
    module = "nsystui.questions.queries.statistics"
    monkeypatch.setattr(f"{module}.MANY", 1)
    if not has_distinct_hashes:
        monkeypatch.setattr(f"{module}.group_number", lambda keys: sa.literal(7, sa.BigInteger))
    for few, many in zip(usual, _summaries(demo_session), strict=True):
        assert len(few) == len(many)
        for row, other in zip(few, many, strict=True):
            # The standard deviation sums in another order.
            close = [pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for value in row]
            assert close == list(other)
