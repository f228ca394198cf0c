"""Arrow batches that are checked while DuckDB reads them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from nsystui.exports import opening
from nsystui.exports.arrow_stream import Batch, WatchedStream
from nsystui.exports.opening import ArrowReader

ROWS = [None if number % 7 == 3 else number * (1 << 50) for number in range(40)]


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(opening, "_BATCH_ROWS", 16)
    path = tmp_path / "rows.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (number INTEGER)")
        connection.executemany("INSERT INTO events VALUES (?)", [(row,) for row in ROWS])
        connection.commit()
    return path


def summed(export: Path, watch: object) -> int:
    """Return DuckDB's sum of all numbers."""
    with ArrowReader(export) as reader, closing(duckdb.connect()) as connection:
        handle = reader.stream("SELECT rowid AS row_id, CAST(number AS INTEGER) AS number FROM events")
        stream = WatchedStream(handle, ["row_id", "number"], watch)
        connection.register("events", stream)
        with stream.reading():
            return connection.execute("SELECT sum(number) FROM events").fetchall()[0][0]


def test_each_batch_has_the_integers_and_says_which_are_missing(export):
    seen: list[int | None] = []
    rows: list[int] = []

    def watch(batch: Batch) -> None:
        numbers, present = batch.integers("number")
        there = [True] * batch.rows if present is None else present.tolist()
        seen.extend(number if is_there else None for number, is_there in zip(numbers.tolist(), there, strict=True))
        found, missing = batch.integers("row_id")
        assert missing is None
        rows.extend(found.tolist())

    assert summed(export, watch) == sum(row or 0 for row in ROWS)
    assert seen == ROWS
    assert rows == list(range(1, 41))


def test_what_the_watcher_raises_ends_the_stream_and_is_kept(export):
    batches: list[int] = []

    def watch(batch: Batch) -> None:
        batches.append(batch.rows)
        if len(batches) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        summed(export, watch)
    assert batches == [16, 16]
