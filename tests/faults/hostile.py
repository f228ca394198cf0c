"""Exports whose rows hold what nsys would never write: wrong types, NULL, times that make no sense, doubles."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

LARGEST, SMALLEST = 2**63 - 1, -(2**63)
VALUES: tuple[object, ...] = (
    None, "", "abc", "-1e5", b"\xff\x00\xfe", 1.5, -0.0, 1e300, float("inf"), 0, -1, -5_000_000_000, 2**31, 2**32,
    2**53 + 1, 2**62, LARGEST, SMALLEST, SMALLEST + 1, "\x1b[31mred", "=1+1", "a\x00b",
)  # fmt: skip


def tables(path: Path) -> dict[str, list[str]]:
    """The tables of an export that have rows, with their columns."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            for name in names
            if not name.startswith("ENUM_") and connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall()
        }


def loosened(original: Path, path: Path) -> Path:
    """A copy of an export whose columns take anything: without types, NOT NULL and keys."""
    shutil.copyfile(original, path)
    with closing(sqlite3.connect(path)) as connection:
        for table, columns in tables(path).items():
            names = ", ".join(f'"{column}"' for column in columns)
            connection.execute(f"ALTER TABLE {table} RENAME TO old")
            connection.execute(f"CREATE TABLE {table} ({names})")
            connection.execute(f"INSERT INTO {table} (rowid, {names}) SELECT rowid, {names} FROM old")
            connection.execute("DROP TABLE old")
        connection.commit()
    return path


def damaged(loose: Path, path: Path, seed: int, only: Sequence[str] = ()) -> list[str]:
    """Writes a copy of a loosened export with values of all sorts in any column; gives what it did, one a line.

    Each seed damages in another way: one cell of many columns, all rows of a few, rows doubled or gone.
    """
    chance = random.Random(seed)
    shutil.copyfile(loose, path)
    done = []
    with closing(sqlite3.connect(path)) as connection:
        found = {name: columns for name, columns in tables(path).items() if not only or name in only}
        share = chance.choice([0.02, 0.1, 0.5])
        for table, columns in found.items():
            for column in columns:
                if chance.random() > share:
                    continue
                value, part = chance.choice(VALUES), chance.choice([1, 2, 7, 1000])
                rest = chance.randrange(part)
                where = f"rowid % {part} = {rest}"
                connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', (value,))
                done.append(f"{table}.{column} = {value!r} where {where}")
            what = chance.random()
            if what < 0.1:
                connection.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE rowid % 3 = 0")
                done.append(f"{table}: rows doubled")
            elif what < 0.2:
                connection.execute(f"DELETE FROM {table} WHERE rowid % 2 = 0")
                done.append(f"{table}: rows gone")
            if {"start", "end"} <= set(columns) and chance.random() < 0.15:
                connection.execute(f'UPDATE {table} SET start = "end", "end" = start WHERE rowid % 2 = 0')
                done.append(f"{table}: ends before it starts")
        connection.commit()
    return done
