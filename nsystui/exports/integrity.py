"""The integrity of an export: SQLite's check of damaged pages, and rows that are lost without an error."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from nsystui.base.resources import step_back
from nsystui.exports import opening

_MOST_CHECKED = 4 << 30
"""Exports of up to this many bytes are checked table by table once read: a larger one may have left the page cache."""


def check_last(path: Path, connection: sqlite3.Connection, table: str, last: int) -> None:
    """Compares the ``last`` row as its page has it with the one before, and with the keys that lead to the pages.

    Raises ExportError where there are rows behind the last one. Costs three pages.
    """
    quoted = table.replace('"', '""')
    order = f'SELECT rowid FROM "{quoted}" ORDER BY rowid DESC LIMIT 2'
    found = [row for (row,) in connection.execute(order)]
    behind = connection.execute(f'SELECT rowid FROM "{quoted}" WHERE rowid > ? LIMIT 1', (last,)).fetchone()
    if behind is not None or found != sorted(found, reverse=True):
        raise opening.corrupt(path, sqlite3.DatabaseError(f"the rows of {table} are out of order"), table)


def check_pages(path: Path, connection: sqlite3.Connection, table: str, found: str = "") -> None:
    """Has SQLite look at the pages of a table, of which only ``found`` could be read; raises ExportError."""
    _refuse(path, table, _damage(path, connection, table), found)


def _damage(path: Path, connection: sqlite3.Connection, table: str) -> str:
    """The first thing that SQLite finds wrong with the pages of a table; empty where there is none."""
    quoted = table.replace('"', '""')
    try:
        said = [
            text for (texts,) in connection.execute(f'PRAGMA quick_check("{quoted}")') for text in texts.split("\n")
        ]
    except opening.READ_ERRORS as error:
        raise opening.corrupt(path, error, table) from None
    return next((text for text in said if text and text != "ok" and not text.startswith("***")), "")


def _refuse(path: Path, table: str, damage: str, found: str) -> None:
    if damage:
        cause = f"{found} of {table} can be found ({damage})" if found else damage
        raise opening.corrupt(path, sqlite3.DatabaseError(cause), table)


class PageChecks:
    """Checks the pages of the tables of an export by SQLite, each table once.

    ``whole`` are the tables that passed; those that it begins with are not checked again. A check ends with
    KeyboardInterrupt as soon as ``is_stopped`` is true.
    """

    def __init__(self, path: Path, is_stopped: Callable[[], bool] = lambda: False, whole: Collection[str] = ()) -> None:
        self.whole = set(whole)
        self._path = path
        self._is_stopped = is_stopped
        self._is_closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[str, Future[str]] = {}

    def begin(self, tables: Iterable[str]) -> None:
        """Starts the checks of ``tables`` in a thread, beside whoever reads their rows; none in a large export."""
        new = [table for table in dict.fromkeys(tables) if table not in self.whole and table not in self._running]
        if new and not self._is_large:
            self._pool = self._pool or ThreadPoolExecutor(1, "check", initializer=step_back)
            self._running.update({table: self._pool.submit(self._look, table) for table in new})

    def end(self, table: str, rows: int, last: int) -> None:
        """Checks the pages of a table that was read, in which ``rows`` up to the ``last`` rowid were found.

        Raises ExportError. Rows that somebody deleted are no damage, and a key of nsys's own may begin at 0.
        """
        if table in self.whole or (rows == last and self._is_large):
            return
        running = self._running.pop(table, None)
        damage = self._look(table) if running is None else running.result()
        found = "" if rows == last else f"only {rows:,} of about" if rows < last else f"{rows:,} instead of"
        _refuse(self._path, table, damage, found and f"{found} {last:,} rows")
        self.whole.add(table)

    def close(self) -> None:
        """Ends the running check, and waits for its end."""
        self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def _is_large(self) -> bool:
        return opening.size(str(self._path)) > _MOST_CHECKED

    def _look(self, table: str) -> str:
        with closing(opening.connect(self._path, lambda: self._is_closed or self._is_stopped())) as connection:
            return _damage(self._path, connection, table)


def doubled(path: Path, table: str) -> Exception:
    """The error for a table that gives rows twice, or rows of somewhere else."""
    return opening.corrupt(path, sqlite3.DatabaseError(f"rows of {table} come twice or out of order"), table)


_LEAF, _INTERIOR = 13, 5
_DEEPEST = 30
_FILE_HEADER = 100


def is_accounted_for(file: BinaryIO, root: int) -> bool:
    """Whether all bytes of the last page of the table at page ``root`` are of its rows or free.

    Rows that the page has forgotten leave no gap between rowids: of a page that says it has fewer rows than lie in it
    SQLite reads those and no more. But every byte of a page belongs to a row, or is counted as free; see "B-tree Pages"
    in SQLite's file format.

    ``False`` also where the page cannot be found. Raises OSError.
    """
    file.seek(0)
    head = file.read(_FILE_HEADER)
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    try:
        page, start = _last_page(file, root, size)
        return page[start] == _LEAF and _adds_up(page, start, size - head[20])
    except (IndexError, ValueError):
        return False


def _last_page(file: BinaryIO, root: int, size: int) -> tuple[bytes, int]:
    """The page that the last pointers lead to, and where its header begins."""
    number = root
    for _ in range(_DEEPEST):
        file.seek((number - 1) * size)
        page = file.read(size)
        start = _FILE_HEADER if number == 1 else 0
        if page[start] != _INTERIOR:
            return page, start
        number = int.from_bytes(page[start + 8 : start + 12], "big")
    raise ValueError("the pages lead in a circle")


def _adds_up(page: bytes, start: int, usable: int) -> bool:
    first_free, rows, content = (_two(page, start + at) for at in (1, 3, 5))
    content = content or 65536
    used = sum(_cell_size(page, _two(page, start + 8 + 2 * number), usable) for number in range(rows))
    free = 0
    while first_free:
        free += _two(page, first_free + 2)
        following = _two(page, first_free)
        if following and following <= first_free:
            return False
        first_free = following
    return usable - content == used + free + page[start + 7]


def _cell_size(page: bytes, at: int, usable: int) -> int:
    """How many bytes of a row lie in its page."""
    payload, key = _varint(page, at)
    _, body = _varint(page, key)
    most, least = usable - 35, (usable - 12) * 32 // 255 - 23
    if payload > most:  # the rest lies in pages of its own, of which the first is named
        local = least + (payload - least) % (usable - 4)
        payload = (local if local <= most else least) + 4
    return max(body - at + payload, 4)


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for position in range(at, at + 8):
        number = number << 7 | page[position] & 127
        if page[position] < 128:
            return number, position + 1
    return number << 8 | page[at + 8], at + 9


def _two(page: bytes, at: int) -> int:
    if at + 2 > len(page):
        raise IndexError(at)
    return int.from_bytes(page[at : at + 2], "big")
