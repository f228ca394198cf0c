"""In which order the chunks of an export are read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsystui.exports.sources import Source
from nsystui.store.reader import Chunks


def source(name: str, columns: int = 22) -> Source:
    return Source(name, {f"column{number}": "" for number in range(columns)}, {})


def taken(chunks: Chunks) -> list[tuple[str, int, int]]:
    found = []
    while (chunk := chunks.take()) is not None:
        found.append((chunk.source.table, chunk.first, chunk.last))
    return found


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5), st.integers(1, 80))
def test_every_row_is_in_one_chunk_of_no_more_than_so_many(counts, rows):
    names = [f"table{number}" for number in range(len(counts))]
    found = taken(Chunks([source(name) for name in names], dict(zip(names, counts, strict=True)), rows))
    for name, count in zip(names, counts, strict=True):
        spans = [(first, last) for table, first, last in found if table == name]
        assert [row for first, last in spans for row in range(first, last + 1)] == list(range(count + 1))
        assert all(last - first < rows for first, last in spans)


def test_a_narrow_table_has_more_rows_in_a_chunk_but_not_endlessly_many():
    for columns, rows in ((30, 10), (22, 10), (11, 20), (7, 30), (2, 40)):
        chunks = Chunks([source("table", columns)], {"table": 1000}, 10)
        assert taken(chunks)[0] == ("table", 0, rows - 1)


def test_the_tables_are_read_side_by_side_as_they_lie_in_the_file():
    chunks = Chunks([source("kernels"), source("calls")], {"kernels": 40, "calls": 80}, 10)
    places = [(first / (40 if table == "kernels" else 80)) for table, first, _ in taken(chunks)]
    assert places == sorted(places)


def test_a_gap_between_keys_is_left_out():
    chunks = Chunks([source("kernels")], {"kernels": 10**15}, 10)
    first = chunks.take()
    chunks.skip_to(first.source, 10**15)
    assert taken(chunks) == [("kernels", 10**15, 10**15)]


def test_after_a_stop_there_is_no_more():
    chunks = Chunks([source("kernels")], {"kernels": 100}, 10)
    chunks.take()
    chunks.stop()
    assert chunks.take() is None
    assert chunks.total == 100
