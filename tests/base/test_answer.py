"""Answers: the same rows by pages, in any order, cut or whole."""

import numpy as np
import pandas as pd
import pytest

from nsystui.base.answer import NAME, Column, TableAnswer, Unit, head, iter_rows

COLUMNS = (
    Column("number", header="Number", label="number", unit=Unit.NUMBER),
    Column("share", header="Share", label="share", unit=Unit.PERCENT, decimals=1),
    NAME,
)
BIG = 2**62 + 1


@pytest.fixture
def answer() -> TableAnswer:
    numbers = pd.array([3, BIG, None, 1], dtype="Int64")
    texts, shares = ["b", None, "a", "c"], [1.5, float("nan"), -2.0, 1.5]
    frame = pd.DataFrame({"name": texts, "share": shares, "number": numbers, "hidden": [1, 2, 3, 4]})
    return TableAnswer.of_arrays("things", COLUMNS, frame, 9, ("a note",))


def test_rows_are_plain_values_in_the_order_of_the_columns(answer):
    rows = list(answer.rows)
    assert rows == [(3, 1.5, "b"), (BIG, None, None), (None, -2.0, "a"), (1, 1.5, "c")]
    assert {type(value) for row in rows for value in row} == {int, float, str, type(None)}
    frame = pd.DataFrame({"number": np.array([1], np.int64), "share": np.array([0.5], np.float32), "name": ["x"]})
    (row,) = TableAnswer.of_arrays("x", COLUMNS, frame).rows
    assert [type(value) for value in row] == [int, float, str]


def test_pages_of_any_size_are_the_whole(answer):
    for size in (1, 2, 3, 4, 5, 100):
        assert list(iter_rows(answer, size)) == list(answer.rows), size
    assert list(answer.page(4, 10)) == []


@pytest.mark.parametrize(("key", "ascending", "descending"), [
    ("number", [1, 3, BIG, None], [BIG, 3, 1, None]),
    ("share", [-2.0, 1.5, 1.5, None], [1.5, 1.5, -2.0, None]),
    ("name", ["a", "b", "c", None], ["c", "b", "a", None]),
])  # fmt: skip
def test_sorting_puts_what_is_missing_last_either_way_and_keeps_the_order_of_equals(answer, key, ascending, descending):
    place = [column.key for column in COLUMNS].index(key)
    for is_descending, expected in ((False, ascending), (True, descending)):
        found = answer.sorted_by(key, is_descending)
        assert [row[place] for row in found.rows] == expected
        assert (found.total, found.notes, len(found)) == (9, ("a note",), 4)
        assert answer.rows[0] == (3, 1.5, "b"), "the answer itself has changed"
        assert key != "share" or [row[2] for row in found.rows if row[1] == 1.5] == ["b", "c"]


def test_a_head_is_the_first_rows_of_the_sorted_whole(answer):
    for limit, expected in ((0, 0), (1, 1), (3, 3), (4, 4), (99, 4), (-3, 0)):
        first = head(answer, limit)
        assert len(first) == expected, limit
        assert list(iter_rows(first, 2)) == list(answer.rows)[:expected], limit
        assert list(first.page(0, 100)) == list(answer.rows)[:expected], limit
        assert list(first.page(1, 100)) == list(answer.rows)[1:expected], limit
        assert list(first.page(50, 10)) == [], limit
    first = head(answer, 2)
    assert [row[0] for row in first.sorted_by("number", False).page(0, 9)] == [1, 3]
    assert (first.name, first.columns, first.total, first.notes) == ("things", COLUMNS, 9, ("a note",))
