"""Ways for tests to look at exports: SQLite itself, and fingerprints of files."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsystui.store.cache import Cache
from nsystui.store.session import Session

SHARED = Path(__file__).parents[2] / "shared/data"


def real_exports() -> list[Path]:
    """The real exports on this machine; none on a user's."""
    return sorted((SHARED / "exports").glob("*.sqlite"))


def session_over(*paths: Path) -> Session:
    """A session over exports. The real ones, which no test changes, are read once in the whole run."""
    are_real = bool(paths) and all(SHARED in path.parents for path in paths)
    session = Session(cache=Cache(Path(os.environ["NSYSTUI_CACHE_DIR"])) if are_real else None)
    for path in paths:
        session.add(path)
    return session


def native(path: Path, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The answer of SQLite itself about an export."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(sql, parameters).fetchall()


def native_count(path: Path, table: str, where: str = "1") -> int:
    """The rows of a table of an export, 0 where it has no such table."""
    if not native(path, "SELECT 1 FROM sqlite_master WHERE name = ?", (table,)):
        return 0
    return int(native(path, f'SELECT count(*) FROM "{table}" WHERE {where}')[0][0])


def edit(path: Path, *statements: str) -> None:
    """Changes an export of a test."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def damage_rows(path: Path, table: str) -> None:
    """Makes the first rows of a table unreadable, and leaves the schema whole."""
    (root,) = native(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))[0]
    (size,) = native(path, "PRAGMA page_size")[0]
    with path.open("r+b") as file:
        head = file.seek((root - 1) * size) and file.read(12)
        child = int.from_bytes(file.read(2), "big") if head[0] == 5 else 0
        assert child, "the table fits into one page"
        file.seek((root - 1) * size + child)
        first = int.from_bytes(file.read(4), "big")
        file.seek((first - 1) * size)
        file.write(b"\xff" * size)


def fingerprint(directory: Path) -> Mapping[str, tuple[int, int, str]]:
    """Every file below a directory with its size, time of change and content."""
    found = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        status, digest = path.stat(), hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(directory))] = (status.st_size, status.st_mtime_ns, digest)
    return found


def shared(*names: str) -> list[Path]:
    """The paths of real exports; skips the test where they are not at hand."""
    paths = [SHARED / "exports" / f"{name}.sqlite" for name in names]
    if not all(path.exists() for path in paths):
        pytest.skip(f"the real exports are not in {SHARED / 'exports'}")
    return paths
