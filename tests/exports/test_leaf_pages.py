"""Rows decoded from pages equal SQLite's, or SQLite reads them: also in files of another form, and in damaged files."""

import errno
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import campaign
import numpy as np
import pytest
from support import shared

from nsystui.exports.leaf_pages import UnusualPages, leaf_pages
from nsystui.exports.schema import NativeColumn, NativeText

LEAF, INTERIOR = 13, 5
TEXTS = (None, "", "a", b"\xff\x00b", "twelve bytes", "thirteen byte", "ü" * 28, "x" * 57, "y" * 58, b"z" * 200)
VALUES = (None, 0, 1, -1, 127, -128, 1 << 15, -(1 << 23), 1 << 31, 1 << 47, (1 << 63) - 1, -(1 << 63))


Row = tuple[int | bytes | None, ...]


def decoded(path: Path, table: str, first: int = -(1 << 62), last: int = 1 << 62) -> list[Row] | None:
    """Return rowid, integers and bytes of each row, ``None`` if SQLite must read the table."""
    if (pages := leaf_pages(path, table)) is None:
        return None
    columns = {}
    for name in pages.names:
        if name in pages.integers | pages.texts:
            columns[name] = NativeColumn(name) if name in pages.integers else NativeText(name)
            columns[name].native = name
    rows = []
    try:
        for batch in pages.rows(first, last, columns):
            each = (
                [_bytes_of(view, more) for view in values]
                if values.ndim == 2
                else values.tolist()
                if more is None
                else np.ma.array(values, mask=~more).tolist()
                for values, more in batch.values()
            )
            rows += list(zip(*each, strict=True))
    except UnusualPages:
        return None
    return rows


def _bytes_of(view: np.ndarray, buffer: np.ndarray) -> bytes:
    """Return the bytes of one of Arrow's binary views: the length, and 12 bytes or their position."""
    length, first, number, start = view.tolist()
    if length <= 12:
        assert not any(view.tobytes()[4 + length :])
        return view.tobytes()[4 : 4 + length]
    value = buffer[start : start + length].tobytes()
    assert number == 0 and len(value) == length and value[:4] == first.to_bytes(4, "little", signed=True)
    return value


def read_by_sqlite(path: Path, table: str) -> tuple[str, list[Row]]:
    """Return what SQLite says of the pages of a table, and the rows as ``decoded`` gives them."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        kinds = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
        names = [
            f'CAST("{name}" AS INTEGER)' if kind != "TEXT" else f"ifnull(CAST(\"{name}\" AS BLOB), x'')"
            for _, name, kind, *_, key in kinds
            if kind == "TEXT" or ("INT" in kind.upper() and not key)
        ]
        try:
            ((said, *_), *_) = connection.execute(f'PRAGMA quick_check("{table}")').fetchall()
            return said, connection.execute(f'SELECT {", ".join(["rowid", *names])} FROM "{table}"').fetchall()
        except sqlite3.DatabaseError as error:
            return str(error), []


COLUMNS = "a INT, t TEXT, b INTEGER NOT NULL, u TEXT, c INT"


def made(path: Path, *statements: str, rows: int = 3000) -> Path:
    chance = random.Random(rows)
    with closing(sqlite3.connect(path)) as connection:
        for statement in (*statements[:1], f"CREATE TABLE t ({COLUMNS})"):
            connection.execute(statement)
        values = (
            (2 * number, number, *map(chance.choice, (VALUES, VALUES, TEXTS, TEXTS))) for number in range(1, rows + 1)
        )
        connection.executemany("INSERT INTO t (rowid, b, a, c, t, u) VALUES (?, ?, ?, ?, ?, ?)", values)
        for statement in statements[1:]:
            connection.execute(statement)
        connection.commit()
    return path


@pytest.mark.parametrize("page_size", [512, 4096, 32768])
def test_every_size_of_integer_and_text_is_decoded_in_any_range_of_rows(tmp_path, page_size):
    path = made(tmp_path / "made", f"PRAGMA page_size = {page_size}")
    said, rows = read_by_sqlite(path, "t")
    assert said == "ok" and len(rows) == 3000 and decoded(path, "t") == rows
    for first, last in ((1, 2), (3, 3), (100, 5000), (5999, 9000)):
        assert decoded(path, "t", first, last) == [row for row in rows if first <= row[0] <= last]


@pytest.mark.parametrize("statements", [
    ("PRAGMA encoding = 'UTF-16'",),
    ("PRAGMA auto_vacuum = 1",),
    ("SELECT 1", "DELETE FROM t WHERE b = 17"),
    ("SELECT 1", "ALTER TABLE t ADD COLUMN d INT DEFAULT 7"),
    ("SELECT 1", "UPDATE t SET a = 0.5 WHERE b = 9"),
    ("SELECT 1", "UPDATE t SET a = 'nine' WHERE b = 9"),
    ("SELECT 1", "UPDATE t SET a = zeroblob(9000) WHERE b = 3000"),
    ("SELECT 1", "UPDATE t SET u = zeroblob(9000) WHERE b = 3000"),
    ("PRAGMA page_size = 32768", "UPDATE t SET t = zeroblob(9000) WHERE b = 3000"),
])  # fmt: skip
def test_sqlite_reads_a_file_of_another_form(tmp_path, statements):
    path = made(tmp_path / "made", *statements)
    assert decoded(path, "t") is None and read_by_sqlite(path, "t")[0] == "ok"


def test_numbers_in_a_column_of_texts_are_left_to_sqlite(tmp_path):
    change = "UPDATE sqlite_master SET sql = replace(sql, 'c INT', 'c TEXT')"
    path = made(tmp_path / "made", "SELECT 1", "PRAGMA writable_schema = 1", change)
    assert decoded(path, "t") is None and read_by_sqlite(path, "t")[0] == "NUMERIC value in t.c"


@pytest.mark.parametrize("columns", ["a INT, b INT, c INT CHECK (c < 9e99)", "a INT, b INT, c INT AS (b) VIRTUAL"])
def test_sqlite_reads_a_table_with_rules_of_its_own(tmp_path, columns):
    with closing(sqlite3.connect(tmp_path / "made")) as connection:
        connection.execute(f"CREATE TABLE t ({columns})")
    assert leaf_pages(tmp_path / "made", "t") is None


@pytest.mark.parametrize("failing", ["opened", "LeafPages._read"])
def test_what_a_disk_does_not_return_is_left_to_sqlite(tmp_path, monkeypatch, failing):
    pages = leaf_pages(made(tmp_path / "made"), "t")

    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(f"nsystui.exports.leaf_pages.{failing}", fails)
    with pytest.raises(UnusualPages):
        list(pages.rows(1, 9, {}))


def _same_or_left_to_sqlite(path: Path, tables: list[str]) -> list[str]:
    """Return the tables that were decoded; fail if SQLite finds other rows, or damage."""
    found = {table: rows for table in tables if (rows := decoded(path, table)) is not None}
    for table, rows in found.items():
        assert ("ok", rows) == read_by_sqlite(path, table), table
    return list(found)


def _tables(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [name for name in names if connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchall()]


def _changed(content: bytes, pages: list[int], size: int, chance: random.Random) -> bytes:
    """Return a file with one to three changed bytes in a page: its head, a pointer, a cell, anywhere."""
    changed, start = bytearray(content), (chance.choice(pages) - 1) * size
    cells, head = int.from_bytes(content[start + 3 : start + 5], "big"), 8 if content[start] == LEAF else 12
    pointer = start + head + 2 * chance.randrange(cells or 1)
    cell = start + int.from_bytes(content[pointer : pointer + 2], "big")
    where = chance.choice(
        [range(12), range(head, head + 2 * cells + 1), range(cell - start, cell - start + 24), range(size)]
    )
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at = start + min(chance.choice(where), size - 1)
        changed[at] = chance.choice([chance.randrange(256), changed[at] ^ 1 << chance.randrange(8), 0, 255])
    return bytes(changed)


def _damage_is_never_another_value(path: Path, copy: Path, times: int) -> int:
    """Return how often a file with changed bytes was decoded; fail if SQLite finds other rows, or damage."""
    content, equal = path.read_bytes(), 0
    tables = _same_or_left_to_sqlite(path, _tables(path))
    chance = random.Random(f"{campaign.SEED} {path.name}")
    for _ in range(times):
        table = chance.choice(tables)
        pages = leaf_pages(path, table)
        assert pages is not None
        copy.write_bytes(_changed(content, [pages.root, *pages.leaves[0].tolist()], pages.page_size, chance))
        equal += len(_same_or_left_to_sqlite(copy, [table]))
    return equal


def test_changed_bytes_are_read_as_sqlite_reads_them_or_left_to_sqlite(tmp_path):
    path = made(tmp_path / "made", "PRAGMA page_size = 512", rows=500)
    assert 10 < _damage_is_never_another_value(path, tmp_path / "copy", 100) < 90


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["gemm-pinned", "alcf-allgather-rank0", "cuda-graphs", "vadd-launch-bound"])
def test_changed_bytes_of_real_exports_are_read_as_sqlite_reads_them(tmp_path, name):
    (path,) = shared(name)
    assert _damage_is_never_another_value(path, tmp_path / "copy", campaign.cases(500)) > 0


@pytest.mark.campaign
def test_real_exports_are_decoded_as_sqlite_reads_them():
    for path in sorted(shared("data", "exports").glob("*.sqlite")):
        assert _same_or_left_to_sqlite(path, _tables(path)), path.name
