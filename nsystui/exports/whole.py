"""Whether all rows of a table can be found, in a file that may be damaged.

SQLite reads past much damage without a word: where the key of a row or a pointer between pages has changed, a scan
leaves rows out, or gives some twice. But nsys counts the rows of a table from 1, so what is missing shows.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from nsystui.exports import opening

# What SQLite's check says of values, where pages and their order are as they should be.
_OF_VALUES = re.compile(r"(NULL|NUMERIC|TEXT|BLOB|REAL|INT|non-\w+) value in |CHECK constraint|\*\*\* in database|ok$")


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


def check_rows(path: Path, table: str, rows: int, last: int) -> None:
    """Says so where ``rows``, all that was found of a table up to its ``last``, are fewer or more because of damage.

    Raises ExportError. Rows that somebody deleted are no damage, and a key of nsys's own may begin at 0.
    """
    if rows == last:
        return
    connection = opening.connect(path)
    try:
        if rows < last or not _has_key(connection, table):
            found = f"only {rows:,} of about {last:,}" if rows < last else f"{rows:,} instead of {last:,}"
            check_pages(path, connection, table, f"{found} rows")
    except opening.READ_ERRORS as error:
        raise opening.corrupt(path, error, table) from None
    finally:
        connection.close()


def _has_key(connection: sqlite3.Connection, table: str) -> bool:
    """Whether a column numbers the rows; else SQLite does, from 1."""
    quoted = table.replace('"', '""')
    return any(is_key for *_, is_key in connection.execute(f'PRAGMA table_info("{quoted}")'))


def check_pages(path: Path, connection: sqlite3.Connection, table: str, found: str) -> None:
    """Has SQLite look at the pages of a table of which only ``found`` could be read; raises ExportError."""
    quoted = table.replace('"', '""')
    try:
        said = [
            text
            for (texts,) in connection.execute(f'PRAGMA quick_check("{quoted}")')
            for text in str(texts).split("\n")
        ]
    except opening.READ_ERRORS as error:
        raise opening.corrupt(path, error, table) from None
    damage = [text for text in said if text and not _OF_VALUES.match(text)]
    if damage:
        cause = sqlite3.DatabaseError(f"{found} of {table} can be found ({damage[0]})")
        raise opening.corrupt(path, cause, table)


def doubled(path: Path, table: str) -> Exception:
    """The error for a table that gives rows twice, or rows of somewhere else."""
    return opening.corrupt(path, sqlite3.DatabaseError(f"rows of {table} come twice or out of order"), table)
