"""Where packed exports are kept: a directory for each, never beside the export.

A directory is written under a temporary name and renamed when it is whole, so that a packed report is there entirely
or not at all. The cache is capped, with all that lies in it; what was used longest ago goes first.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.parquet_file import copy_to_parquet
from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.own_directory import why_not_ours
from nsystui.exports.partial import partial_name, remove
from nsystui.store import trimming
from nsystui.store.pack import PackedReport
from nsystui.store.pack_files import PackFiles
from nsystui.store.place import CachePlace
from nsystui.store.results import Caps, Results
from nsystui.store.seals import Seal, read_facts, write_facts
from nsystui.store.written import Written, written_of

if TYPE_CHECKING:
    import duckdb

# Raised whenever packed reports change their form, or rows are read otherwise: older ones are then packed again. The
# fields of the canonical tables need no new version.
STORE_VERSION = 14
# The delta encodings of the second version are smaller by a third, and faster to write and to read.
PARQUET_FORM = "COMPRESSION zstd, PARQUET_VERSION V2"
"""How packs are written, as options of DuckDB's ``COPY``."""
_FACTS = trimming.FACTS
# What reading a pack raises that is not one, or not whole.
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
        return trimming.size_of(self.directory)


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
        directory = place.with_name(place.name + trimming.RESULTS)
        return Results((directory.name,), directory, partials=self.directory)

    def results_of_several(self, reports: Collection[str]) -> Results:
        """The results that were computed of several reports together, by their identities."""
        return Results(tuple(reports), self.directory / trimming.ANSWERS, partials=self.directory, caps=Caps())

    def find(self, export: Path) -> PackedFiles | None:
        """The packed form of ``export``, or ``None``. A damaged one goes."""
        try:
            place = self.place_of(export)
        except OSError:
            return None
        try:
            packed = read_packed(place)
        except OSError:
            return None
        except _ANOTHER:
            remove(place)
            return None
        with suppress(OSError):  # a cache that is only read, or another user's, serves as well
            os.utime(place / _FACTS)
        return packed

    def begin(self, export: Path) -> PartialPack:
        """A new place to pack ``export`` into.

        Raises OSError where the cache cannot be written.
        """
        try:
            str(self.directory).encode()
        except UnicodeEncodeError:  # DuckDB takes paths as text
            raise OSError(errno.EILSEQ, "its name is not UTF-8") from None
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.directory / partial_name()
        temporary.mkdir(mode=0o700)
        return PartialPack(temporary, self.place_of(export))

    def trim(self, keep: Collection[Path] = ()) -> int:
        """Removes what was used longest ago until the cache is under its cap; how many bytes more it may then hold.

        The places in ``keep`` are being read from and stay, even over the cap. Never raises: another process may be at
        it.
        """
        return trimming.trim(self.directory, self.cap, keep)


class Room:
    """Keeps the cache of a session under its cap; may be used by several threads. Without a cache it does nothing."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self._in_use: set[Path] = set()
        self._left = 0
        self._lock = threading.Lock()

    def use(self, place: Path) -> None:
        """What lies at this place in the cache is read from, and stays."""
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
        write_facts(self._temporary, self.place, _FACTS, report.to_json())
        try:
            os.rename(self._temporary, self.place)
        except OSError:  # another process packed the same export meanwhile, or a damaged pack is in the way
            try:
                packed = read_packed(self.place)
            except _DAMAGED:
                remove(self.place)
                os.rename(self._temporary, self.place)
            else:
                self.abandon()
                return packed
        return read_packed(self.place)

    def abandon(self) -> None:
        """Leaves nothing behind."""
        shutil.rmtree(self._temporary, ignore_errors=True)


def read_packed(directory: Path) -> PackedFiles:
    """Opens a packed report.

    Raises OSError, ValueError, KeyError, TypeError or AttributeError where it is not one or not whole.
    """
    facts, seals = read_facts(directory, _FACTS)
    report = PackedReport.from_json(facts)
    files: dict[str, list[Path]] = {}
    for file in seals:
        files.setdefault(file.name.partition("-")[0], []).append(file)
    return PackedFiles(directory, report, {name: tuple(paths) for name, paths in files.items()}, seals=seals)
