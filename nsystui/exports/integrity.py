"""The integrity of an export: SQLite's check for damaged pages, and rows lost without an error."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from nsystui.base.resources import step_back
from nsystui.exports import opening

_MAX_CHECKED = 4 << 30
"""Larger exports (bytes) are checked only if rows are lost, because they may have left the page cache."""


def check_last(path: Path, connection: sqlite3.Connection, table: str, last: int) -> None:
    """Check that the last two rows are in order, and that a search by key finds no row after ``last``.

    Raises ExportError if the rows are out of order. Reads three pages.
    """
    quoted = table.replace('"', '""')
    last_two = f'SELECT rowid FROM "{quoted}" ORDER BY rowid DESC LIMIT 2'
    last_rowids = [row for (row,) in connection.execute(last_two)]
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
