"""Rows in an SQLite file as nsys writes them: lazily created tables, start order, interleaved pages."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Final

from synthetic.writing.schema import TABLES, Tables, declarations, enum_tables, schema_version

SqlValue = int | float | str | bytes | None
Row = tuple[SqlValue, ...]

_ROWS_PER_TURN: Final = 8192
"""Rows of all tables together before the first table is written again: nsys alternates in runs of ~50 pages."""


class TableSink:
    """Collects rows and writes them to one new SQLite file.

    Rows wait in memory until `flush`; a flush sorts each table by start time and lets the tables take turns, so that
    their pages alternate through the file as they do in real exports. Tables without a time keep insertion order.
    """

    tables: ClassVar[Tables] = Tables(TABLES)

    def __init__(self, path: Path, schema: str, *, lazy: bool = True) -> None:
        """Create `path`, replacing an old file. Raises `ValueError` for an unknown schema label."""
        self.schema = schema_version(schema)
        self.version = self.schema.version
        self.path = path
        self.lazy = lazy
        self.last_timestamp = 0
        """Largest start or end of all written rows, ns since the session start."""
        self._string_ids: dict[str, int] = {}
        self._new_strings: list[tuple[int, str]] = []
        self._pending: dict[str, list[Row]] = {}
        self._columns: dict[str, frozenset[str]] = {}
        self.filled: set[str] = set()
        """The tables with rows."""
        path.unlink(missing_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        # The file shows none of these settings: it keeps nsys's rollback journal and page size.
        for pragma in ("page_size=4096", "journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("BEGIN")
        self.create("StringIds")
        if not lazy:
            self.create(*self.tables.names(self.version))

    def has(self, table: str) -> bool:
        """Return whether this schema version has such a table at all."""
        return bool(self.tables.columns(table, self.version)) and (
            self.schema.has_export_metadata or table != "EXPORT_META_DATA"
        )

    def create(self, *names: str) -> None:
        """Create tables although they have no rows yet.

        Existing indices, and indices that the version lacks, are skipped.
        """
        for table in names:
            if self.has(table) and table not in self._columns:
                self._create(table)

    def intern(self, text: str) -> int:
        """Return the ``StringIds`` id of `text`, which is stored once."""
        number = self._string_ids.get(text)
        if number is None:
            number = len(self._string_ids) + 1
            self._string_ids[text] = number
            self._new_strings.append((number, text))
        return number

    def rows(self, table: str) -> list[Row]:
        """Return the waiting rows of `table`, to append to. A row has a value for each of `tables.row_columns[table]`.

        Raises `ValueError` if the schema version has no such table.
        """
        waiting = self._pending.get(table)
        if waiting is None:
            if not self.has(table):
                raise ValueError(f"schema {self.schema.label} has no table {table}")
            waiting = self._pending[table] = []
        return waiting

    def add(self, table: str, **values: SqlValue) -> None:
        """Append one row by column names; columns not named are NULL. For rare rows: `rows` is faster."""
        self.rows(table).append(tuple(map(values.get, self.tables.row_columns[table])))

    def flush(self, until: int | None = None) -> None:
        """Write the waiting rows that start before `until` (ns; all if None) and forget them.

        Call it between steps of a long run to keep memory constant. Everything added later should start at `until` or
        after it, or the file is not sorted by start time.
        """
        ready = {table: self._take(table, until) for table in self._pending}
        self._insert("StringIds", self._new_strings)
        self._new_strings.clear()
        turns = -(-sum(map(len, ready.values())) // _ROWS_PER_TURN)
        for turn in range(turns):
            for table, rows in ready.items():
                self._insert(table, rows[len(rows) * turn // turns : len(rows) * (turn + 1) // turns])

    def write_enums(self) -> None:
        """Write the ``ENUM_*`` tables, which nsys exports even when nothing refers to them."""
        for table, rows in enum_tables(self.version).items():
            self._db.execute(f"CREATE TABLE {table} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
            self._db.executemany(f"INSERT INTO {table} VALUES (?,?,?)", rows)

    def commit(self) -> None:
        """Finish the file."""
        self._db.execute("COMMIT")
        self._db.close()

    def discard(self) -> None:
        """Give up: close and remove the unfinished file."""
        self._db.close()
        self.path.unlink(missing_ok=True)

    def _take(self, table: str, until: int | None) -> list[Row]:
        rows = self._pending[table]
        names = self.tables.row_columns[table]
        time = next((names.index(name) for name in ("start", "timestamp") if name in names), None)
        if time is None:
            taken, rows[:] = rows[:], []
            return taken
        start: Callable[[Row], Any] = itemgetter(time)
        rows.sort(key=start)
        count = len(rows) if until is None else bisect_left(rows, until, key=start)
        taken, rows[:count] = rows[:count], []
        if taken:
            end = names.index("end") if "end" in names else time
            ends = (value for row in taken if isinstance(value := row[end], int))
            self.last_timestamp = max(self.last_timestamp, start(taken[-1]), max(ends, default=0))
        return taken

    def _create(self, table: str) -> None:
        columns = self.tables.columns(table, self.version)
        lines = ",\n    ".join(declarations(columns))
        self._db.execute(f"CREATE TABLE {table} (\n    {lines}\n)")
        self._columns[table] = frozenset(column.name for column in columns)

    def _insert(self, table: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self.create(table)
        self.filled.add(table)
        # Rows are built for all schema versions at once, so columns have to be picked anyway. Leaving out columns that
        # are NULL in every row doubles the speed, because Python's sqlite3 binds None much slower than a number.
        present = self._columns[table]
        filled = [
            index
            for index, (name, values) in enumerate(
                zip(self.tables.row_columns[table], zip(*rows, strict=True), strict=True)
            )
            if name in present and not (values[0] is None and values.count(None) == len(values))
        ]
        names = ",".join(self.tables.row_columns[table][index] for index in filled)
        statement = f"INSERT INTO {table} ({names}) VALUES ({','.join('?' * len(filled))})"
        # With one index, itemgetter would return the value, not a row of it.
        taken = map(itemgetter(*filled), rows) if len(filled) > 1 else ([row[filled[0]]] for row in rows)
        self._db.executemany(statement, taken)
