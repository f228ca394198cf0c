"""The integrity of an export: SQLite's check for damaged pages, and rows lost without an error."""

import sqlite3
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from nsystui.base.resources import step_back
from nsystui.exports import opening

_MAX_CHECKED = 4 << 30
"""Larger exports (bytes) are checked only if rows are lost, because they may have left the page cache."""


def check_last(path: Path, connection: sqlite3.Connection, table: str, last: int) -> None:
    """Check that the last two rows are in order, and that a search by key finds no row after ``last``.

    Raises ExportError if the rows are out of order. Reads three pages.
    """
    quoted = table.replace('"', '""')
    last_rowids = [row for (row,) in connection.execute(f'SELECT rowid FROM "{quoted}" ORDER BY rowid DESC LIMIT 2')]
    behind = connection.execute(f'SELECT rowid FROM "{quoted}" WHERE rowid > ? LIMIT 1', (last,)).fetchone()
    if behind is not None or last_rowids != sorted(last_rowids, reverse=True):
        raise opening.corrupt(path, sqlite3.DatabaseError(f"the rows of {table} are out of order"), table)


def check_pages(path: Path, connection: sqlite3.Connection, table: str, readable: str = "") -> None:
    """Let SQLite check a table's pages; ``readable`` names the rows found. Raises ExportError if damaged."""
    _raise_if_damaged(path, table, _damage(path, connection, table), readable)


def _damage(path: Path, connection: sqlite3.Connection, table: str) -> str:
    """Return the first error that SQLite finds in a table's pages, or an empty string."""
    quoted = table.replace('"', '""')
    try:
        messages = [
            text for (texts,) in connection.execute(f'PRAGMA quick_check("{quoted}")') for text in texts.split("\n")
        ]
    except opening.READ_ERRORS as error:
        raise opening.corrupt(path, error, table) from None
    return next((text for text in messages if text and text != "ok" and not text.startswith("***")), "")


def _raise_if_damaged(path: Path, table: str, damage: str, readable: str) -> None:
    if damage:
        cause = f"{readable} of {table} can be found ({damage})" if readable else damage
        raise opening.corrupt(path, sqlite3.DatabaseError(cause), table)


class PageChecks:
    """SQLite's page checks of an export's tables, each table once.

    ``whole`` contains the tables that passed, and tables that need no check. A check ends with KeyboardInterrupt as
    soon as ``is_stopped`` returns true.
    """

    def __init__(self, path: Path, is_stopped: Callable[[], bool] = lambda: False, whole: Collection[str] = ()) -> None:
        self.whole = set(whole)
        self._path = path
        self._is_stopped = is_stopped
        self._is_closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[str, Future[str]] = {}

    def begin(self, tables: Iterable[str]) -> None:
        """Start to check ``tables`` in a thread while their rows are read, unless the export is large."""
        unchecked = [table for table in dict.fromkeys(tables) if table not in self.whole and table not in self._running]
        if unchecked and not self._is_large:
            self._pool = self._pool or ThreadPoolExecutor(1, "check", initializer=step_back)
            self._running.update({table: self._pool.submit(self._check_table, table) for table in unchecked})

    def end(self, table: str, rows: int, last: int) -> None:
        """Check a table's pages after ``rows`` rows were read, up to the ``last`` rowid.

        Raises ExportError if they are damaged; deleted rows are no damage, and nsys's own keys may begin at 0.
        """
        if table in self.whole or (rows == last and self._is_large):
            return
        running = self._running.pop(table, None)
        damage = self._check_table(table) if running is None else running.result()
        readable = "" if rows == last else f"only {rows:,} of about" if rows < last else f"{rows:,} instead of"
        _raise_if_damaged(self._path, table, damage, readable and f"{readable} {last:,} rows")
        self.whole.add(table)

    def close(self) -> None:
        """Stop the running check, and wait for it."""
        self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def _is_large(self) -> bool:
        return opening.size(str(self._path)) > _MAX_CHECKED

    def _check_table(self, table: str) -> str:
        with closing(opening.connect(self._path, lambda: self._is_closed or self._is_stopped())) as connection:
            return _damage(self._path, connection, table)


def doubled(path: Path, table: str) -> Exception:
    """Return the error for a table that returns rows twice, or rows from elsewhere."""
    return opening.corrupt(path, sqlite3.DatabaseError(f"rows of {table} are repeated or out of order"), table)


_LEAF, _INTERIOR = 13, 5
_MAX_DEPTH = 30
_FILE_HEADER = 100


def is_accounted_for(file: BinaryIO, root: int) -> bool:
    """Return whether each byte of a table's last page belongs to a row or is free; ``root`` is the table's root page.

    If a page counts fewer rows than it contains, SQLite ignores the surplus, without a gap between rowids; see "B-tree
    Pages" in SQLite's file format.

    ``False`` also if the page cannot be found. Raises OSError.
    """
    file.seek(0)
    header = file.read(_FILE_HEADER)
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    try:
        page, start = _last_page(file, root, page_size)
        return page[start] == _LEAF and _adds_up(page, start, page_size - header[20])
    except (IndexError, ValueError):
        return False


def _last_page(file: BinaryIO, root: int, page_size: int) -> tuple[bytes, int]:
    """Return the page that the last pointers lead to, and its header's offset."""
    page_number = root
    for _ in range(_MAX_DEPTH):
        file.seek((page_number - 1) * page_size)
        page = file.read(page_size)
        start = _FILE_HEADER if page_number == 1 else 0
        if page[start] != _INTERIOR:
            return page, start
        page_number = int.from_bytes(page[start + 8 : start + 12], "big")
    raise ValueError("the pages lead in a circle")


def _adds_up(page: bytes, start: int, usable: int) -> bool:
    first_free, rows, content_start = (_uint16(page, start + offset) for offset in (1, 3, 5))
    content_start = content_start or 65536
    row_bytes = sum(_cell_size(page, _uint16(page, start + 8 + 2 * number), usable) for number in range(rows))
    free_bytes = 0
    while first_free:
        free_bytes += _uint16(page, first_free + 2)
        next_free = _uint16(page, first_free)
        if next_free and next_free <= first_free:
            return False
        first_free = next_free
    return usable - content_start == row_bytes + free_bytes + page[start + 7]


def _cell_size(page: bytes, offset: int, usable: int) -> int:
    payload, key = _varint(page, offset)
    _, body = _varint(page, key)
    max_local, min_local = usable - 35, (usable - 12) * 32 // 255 - 23
    if payload > max_local:  # 4 bytes hold the number of the first overflow page
        local = min_local + (payload - min_local) % (usable - 4)
        payload = (local if local <= max_local else min_local) + 4
    return max(body - offset + payload, 4)


def _varint(page: bytes, offset: int) -> tuple[int, int]:
    number = 0
    for position in range(offset, offset + 8):
        number = number << 7 | page[position] & 127
        if page[position] < 128:
            return number, position + 1
    return number << 8 | page[offset + 8], offset + 9


def _uint16(page: bytes, offset: int) -> int:
    if offset + 2 > len(page):
        raise IndexError(offset)
    return int.from_bytes(page[offset : offset + 2], "big")
