"""Exports with values that nsys would never write: wrong types, NULL, impossible times, duplicates."""

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
    """Return the tables of an export with rows, and their columns."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            for name in names
            if not name.startswith("ENUM_") and connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall()
        }


def loosened(original: Path, path: Path) -> Path:
    """Write a copy of an export whose columns accept any value: without types, NOT NULL and keys."""
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
    """Write a copy of a loosened export with values of all sorts in any column; return its changes, one a line.

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


TEXTS = (
    "\x1b]0;owned\x07", "\x1b[201~\nrm -rf ~\r\n", "\x1b_Ga=T,f=32;AAAA\x1b\\", "\x1bP+q544e\x1b\\",
    "\x9b31;45;5m\x9d0;c1\x9c\x90q\x9c", "\x1b[31;45;5m\x0e\x08\x7f\x0c\x0b\x05", "ze\u200bro\u2060\ufeff\u00ad",
    "a\u2028b\u2029c\x85d", "\u202egnp.exe\u2066\u200f\u061c", "\U0010eeee\ue0b0\u0378\U000e0041",
    "x\u00a0y\u3000z\u3164\u2800\u115f\u034f", "e" + "\u0301\u0489" * 20 + "\ufe0f\U000e0100",
    "`|<b>*[x](http://e.x)~_$&", 'it\'s \\ "quoted" $(id) `id` !!\x1b', "[bold]x[/foo][@click=app.quit]y[/]",
    "tab\there",
)  # fmt: skip
"""Texts that a terminal obeys or does not show, and markup; each a few cells wide, so that no table cuts it."""

INVISIBLE = frozenset(map(chr, (0x34F, 0x115F, 0x1160, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10), 0xE0100)))
"""Characters that Python calls printable, but that show nothing."""


def unprintable(text: str) -> set[str]:
    """Return the characters that a terminal would obey or not show; ``\\n`` ends a line."""
    found = {char for char in text if not char.isprintable() or char in INVISIBLE} - {"\n"}
    return found | ({"a storm of marks"} if "\u0301\u0489" * 10 in text else set())


_AS_IT_IS = ("uuid", "utcTime", "localTime", "jsonText", "typeName", "busLocation")
_RECOGNISED = ("NCCL", "cudaProfilerStart", "", "[]")


def renamed(path: Path) -> Path:
    """Append one of `TEXTS` to every text of an export, except texts that identify an export."""
    with closing(sqlite3.connect(path)) as connection:
        count = 0
        for table, columns in tables(path).items():
            if table.startswith("NVTX_PAYL"):
                continue
            facts = "META_DATA" in table
            for column in (one for one in columns if one not in (*_AS_IT_IS, "name" if facts else "")):
                query = f'SELECT rowid, "{column}" FROM {table} WHERE typeof("{column}") = \'text\''
                query += " AND name NOT LIKE '%SCHEMA%'" if facts else ""
                for row, text in connection.execute(query).fetchall():
                    if text not in _RECOGNISED:
                        changed = text + TEXTS[count % len(TEXTS)]
                        connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (changed, row))
                        count += 1
        connection.commit()
    return path
