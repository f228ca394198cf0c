"""The cache: packed exports and single columns of others, a directory for each, never beside the export.

A directory is written under a temporary name and renamed when it is whole, so that it is there entirely or not at all.
It is never changed after that: another process may read from it. The cache is capped, with all that lies in it; what
was used longest ago goes first.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nsystui.base.parquet_file import copy_to_parquet
from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.own_files import partial_name, remove, why_not_ours
from nsystui.store.cache_directory import ANSWERS, FACTS, RESULTS, CachePlace, size_of, trim
from nsystui.store.pack import PackedReport, Written, written_of
from nsystui.store.parquet_files import PackFiles
from nsystui.store.results import Caps, Results
from nsystui.store.seals import Seal, read_facts, write_facts

if TYPE_CHECKING:
    import duckdb

# Raised whenever packed reports change their form, or rows are read otherwise: older ones are then packed again. The
# fields of the canonical tables need no new version.
STORE_VERSION = 14
# The delta encodings of the second version are smaller by a third, and faster to write and to read.
PARQUET_FORM = "COMPRESSION zstd, PARQUET_VERSION V2"
"""How packs are written, as options of DuckDB's ``COPY``."""
# The delta encodings leave little to compress, and more effort takes as long again.
_COLUMN_FORM = "COMPRESSION zstd, COMPRESSION_LEVEL 1, PARQUET_VERSION V2"
# What reading a pack or columns raises that are none, or not whole.
_ANOTHER = (ValueError, KeyError, TypeError, AttributeError)
_DAMAGED = (OSError, *_ANOTHER)


@dataclass(frozen=True)
class PackedFiles:
    """A packed report on disk: its facts, and the Parquet files of each canonical table that has rows.

    ``renamed`` has tables of which a field is called otherwise in the files: (field, its name there).
    """

    directory: Path
    report: PackedReport
    files: Mapping[str, tuple[Path, ...]]
    renamed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seals: Mapping[Path, Seal] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes of all that lies with it."""
        return size_of(self.directory)


@dataclass(frozen=True)
class ColumnFiles:
    """Columns of one canonical table as Parquet files; no file where the table has no rows."""

    directory: Path
    names: frozenset[str]
    rows: int
    seals: Mapping[Path, Seal]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self.seals)


Files = TypeVar("Files", PackedFiles, ColumnFiles)


@dataclass(frozen=True)
class Cache(CachePlace):
    """The packed reports, and what else is kept of exports, at a place.

    Unless it ``is_required``, a session goes on in its memory where the cache cannot be written.
    """

    is_required: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether no other user can have written what lies in it."""
        return not why_not_ours(self.directory)

    def place_of(self, export: Path) -> Path:
        """The directory of ``export``; another size, time or store version is another place."""
        real = os.path.realpath(export)
        status = os.stat(real)
        identity = f"{STORE_VERSION}|{canonical.fingerprint()}|{real}|{status.st_size}|{status.st_mtime_ns}"
        digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:24]
        name = os.path.splitext(os.path.basename(real))[0]
        stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:40]
        return self.directory / f"{stem}-{digest}"

    def results_of(self, export: Path) -> Results:
        """The results that were computed of ``export``, whether it is packed or not."""
        place = self.place_of(export)
        directory = place.with_name(place.name + RESULTS)
        return Results((directory.name,), directory, partials=self.directory)

    def results_of_several(self, reports: Collection[str]) -> Results:
        """The results that were computed of several reports together, by their identities."""
        return Results(tuple(reports), self.directory / ANSWERS, partials=self.directory, caps=Caps())

    def find(self, export: Path) -> PackedFiles | None:
        """The packed form of ``export``, or ``None``. A damaged one goes."""
        try:
            place = self.place_of(export)
        except OSError:
            return None
        return _used(_found(place, read_packed))

    def find_columns(self, export: Path, table: str, names: Collection[str]) -> ColumnFiles | None:
        """Single columns of a table of ``export``, if they are all of ``names``, or ``None``. Damaged ones go."""
        try:
            directories = sorted(self.directory.glob(f"{self.place_of(export).name}.{table}-*"))
        except OSError:
            return None
        every = (_found(directory, _read_columns) for directory in directories)
        return _used(next((one for one in every if one is not None and one.names.issuperset(names)), None))

    def begin(self, export: Path) -> PartialPack:
        """A new place to pack ``export`` into.

        Raises OSError where the cache cannot be written.
        """
        return PartialPack(self._temporary(), self.place_of(export))

    def begin_columns(self, export: Path, table: str, names: Collection[str]) -> PartialColumns:
        """A new place for columns of a table of ``export``.

        Raises OSError where the cache cannot be written.
        """
        digest = hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:12]
        place = self.place_of(export)
        return PartialColumns(self._temporary(), place.with_name(f"{place.name}.{table}-{digest}"), names)

    def _temporary(self) -> Path:
        """A new directory, under a name that the cache takes away if this process is killed."""
        try:
            str(self.directory).encode()
        except UnicodeEncodeError:  # DuckDB takes paths as text
            raise OSError(errno.EILSEQ, "its name is not UTF-8") from None
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.directory / partial_name()
        temporary.mkdir(mode=0o700)
        return temporary

    def trim(self, keep: Collection[Path] = ()) -> int:
        """Removes what was used longest ago until the cache is under its cap; how many bytes more it may then hold.

        The places in ``keep`` are being read from and stay, even over the cap. Never raises: another process may be at
        it.
        """
        return trim(self.directory, self.cap, keep)


class Room:
    """Keeps the cache of a session under its cap; may be used by several threads. Without a cache it does nothing."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self._in_use: set[Path] = set()
        self._left = 0
        self._lock = threading.Lock()

    def use(self, place: Path) -> None:
        """Says that the files at this place in the cache are read from: they stay."""
        with self._lock:
            self._in_use.add(place)

    def make(self, written: int) -> None:
        """Makes room for what has just been written, in bytes.

        The cache is only looked through where there may be too much in it: with hundreds of packs that takes its time.
        """
        with self._lock:
            self._left -= written
            if self.cache is not None and written and self._left <= 0:
                self._left = self.cache.trim(frozenset(self._in_use))


class PartialPack:
    """A report being packed: a sink that writes Parquet files, then ``finish`` or ``abandon``."""

    def __init__(self, temporary: Path, place: Path) -> None:
        self._temporary = temporary
        self.place = place
        self._files = PackFiles(temporary)

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, select: str, place: int) -> Written:
        """Adds rows to ``table``; in its files, in the order of their names, rows are in the order of ``place``."""
        part = self._files.new_part()
        told = copy_to_parquet(connection, select, part, f"{PARQUET_FORM}, RETURN_STATS")
        ((_, rows, _, _, statistics, *_),) = told
        if rows:
            self._files.add(table.name, place, part)
        else:
            part.unlink()
        return written_of(table, rows, statistics)

    def finish(self, report: PackedReport) -> PackedFiles:
        """Makes the pack visible under its final name and returns it."""
        self._files.finish()
        return _published(self._temporary, self.place, report.to_json(), read_packed)

    def abandon(self) -> None:
        """Leaves nothing behind."""
        shutil.rmtree(self._temporary, ignore_errors=True)


class PartialColumns:
    """Columns being written: a sink for Parquet files, then ``finish`` or ``abandon``."""

    def __init__(self, temporary: Path, place: Path, names: Collection[str]) -> None:
        self._temporary = temporary
        self._place = place
        self._names = sorted(names)
        self._files = 0

    def write(self, connection: duckdb.DuckDBPyConnection, select: str) -> int:
        """Adds the rows that ``select`` gives; how many they are.

        Raises duckdb.Error where the memory is too little, or the cache cannot be written.
        """
        file = self._temporary / f"{self._files:06d}.parquet"
        ((rows,),) = copy_to_parquet(connection, select, file, _COLUMN_FORM)
        if rows:
            self._files += 1
        else:
            file.unlink()
        return int(rows)

    def finish(self, rows: int) -> ColumnFiles:
        """Makes the columns visible under their final name and returns them. Raises OSError where they cannot be."""
        return _published(self._temporary, self._place, {"names": self._names, "rows": rows}, _read_columns)

    def abandon(self) -> None:
        """Leaves nothing behind."""
        shutil.rmtree(self._temporary, ignore_errors=True)


def read_packed(directory: Path) -> PackedFiles:
    """Opens a packed report.

    Raises OSError, ValueError, KeyError, TypeError or AttributeError where it is not one or not whole.
    """
    facts, seals = read_facts(directory, FACTS)
    report = PackedReport.from_json(facts)
    files: dict[str, list[Path]] = {}
    for file in seals:
        files.setdefault(file.name.partition("-")[0], []).append(file)
    return PackedFiles(directory, report, {name: tuple(paths) for name, paths in files.items()}, seals=seals)


def _read_columns(directory: Path) -> ColumnFiles:
    facts, seals = read_facts(directory, FACTS)
    return ColumnFiles(directory, frozenset(facts["names"]), int(facts["rows"]), seals)


def _found(directory: Path, read: Callable[[Path], Files]) -> Files | None:
    """The files in a directory of the cache, or ``None``. Damaged ones go."""
    try:
        return read(directory)
    except OSError:
        return None
    except _ANOTHER:
        remove(directory)
        return None


def _used(found: Files | None) -> Files | None:
    if found is not None:
        with suppress(OSError):  # a cache that is only read, or another user's, serves as well
            os.utime(found.directory / FACTS)
    return found


def _published(temporary: Path, place: Path, facts: Mapping[str, Any], read: Callable[[Path], Files]) -> Files:
    """Makes a directory visible under its final name, with what it says of itself. Raises OSError."""
    write_facts(temporary, place, FACTS, facts)
    try:
        os.rename(temporary, place)
    except OSError:  # another process wrote the same meanwhile, or something damaged is in the way
        try:
            found = read(place)
        except _DAMAGED:
            remove(place)
            os.rename(temporary, place)
        else:
            shutil.rmtree(temporary, ignore_errors=True)
            return found
    return read(place)
