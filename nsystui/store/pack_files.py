"""The Parquet files of a pack while it is written: what chunks leave is joined into files of about a million rows.

A file for each chunk would be hundreds, and every query looks into the metadata of all. Larger chunks would need more
memory, and writing the rows once more the time that packing them takes.
"""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

from nsystui.store.parquet_join import JoinedFile, Part, read_part

ROWS_PER_FILE = 1 << 20
"""Rows of the native table that go into one file: as many as a program that reads a file at a time has memory for."""


class PackFiles:
    """Takes the Parquet files of chunks; may be used by several threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parts = itertools.count()
        self._joined: dict[tuple[str, int, bytes], JoinedFile] = {}
        self._first: dict[tuple[str, int], tuple[int, Path] | None] = {}
        self._alone: list[tuple[str, int, Path]] = []
        self._lock = threading.Lock()

    def new_part(self) -> Path:
        """Where the next chunk may be written."""
        return self._directory / f"part-{next(self._parts)}.parquet"

    def add(self, table: str, place: int, part: Path) -> None:
        """Takes the rows that a chunk has for ``table``; ``place`` grows with the rows of a table. Raises OSError."""
        which = (table, place // ROWS_PER_FILE)
        with self._lock:
            # The only part of a file is the file: it is not looked into before there is another.
            if which not in self._first:
                self._first[which] = (place, part)
                return
            first, self._first[which] = self._first[which], None
        for number, path in [*([first] if first else []), (place, part)]:
            self._join(table, number, path)

    def _join(self, table: str, place: int, part: Path) -> None:
        try:
            found = read_part(part)
        except ValueError:  # what another DuckDB writes is no worse for being a file of its own
            with self._lock:
                self._alone.append((table, place, part))
            return
        part.unlink()
        with self._lock:
            self._file(table, place, found).add(found, place)

    def _file(self, table: str, place: int, part: Part) -> JoinedFile:
        """The file for the rows: columns in which nothing is missing in a chunk have another type in Parquet."""
        key = (table, place // ROWS_PER_FILE, part.columns)
        if key not in self._joined:
            self._joined[key] = JoinedFile(self.new_part())
        return self._joined[key]

    def finish(self) -> None:
        """Makes the files whole and gives them their names, in each table in the order of its rows. Raises OSError."""
        files = list(self._alone)
        files += [(table, *first) for (table, _), first in self._first.items() if first is not None]
        for (table, *_), file in self._joined.items():
            file.finish()
            files.append((table, file.first, file.path))
        for table, group in itertools.groupby(sorted(files), lambda file: file[0]):
            for number, (_, _, path) in enumerate(group):
                path.rename(self._directory / f"{table}-{number:06d}.parquet")
