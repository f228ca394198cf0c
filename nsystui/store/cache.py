"""Where packed exports are kept: a directory for each, never beside the export.

A directory is written under a temporary name and renamed when it is whole, so that a packed report is there entirely
or not at all. The cache is capped; what was used longest ago goes first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from nsystui.exports.canonical import CanonicalTable
from nsystui.store.pack import PackedReport

if TYPE_CHECKING:
    import duckdb

# Raised whenever packed reports change their form: older ones are then packed again.
STORE_VERSION = 2
DEFAULT_CAP = 20 << 30
_FACTS = "report.json"
_TEMPORARY = ".partial-"
# A partial directory older than this was left by a process that was killed.
_STALE_SECONDS = 24 * 3600


@dataclass(frozen=True)
class PackedFiles:
    """A packed report on disk: its facts, and the Parquet files of each canonical table that has rows."""

    directory: Path
    report: PackedReport
    files: Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True)
class Cache:
    """A directory of packed reports of at most about ``cap`` bytes."""

    directory: Path
    cap: int = DEFAULT_CAP

    def place_of(self, export: Path) -> Path:
        """The directory of ``export``; another size, time or store version is another place."""
        real = os.path.realpath(export)
        status = os.stat(real)
        identity = f"{STORE_VERSION}|{real}|{status.st_size}|{status.st_mtime_ns}"
        digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:24]
        stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in export.stem)[:40]
        return self.directory / f"{stem}-{digest}"

    def find(self, export: Path) -> PackedFiles | None:
        """The packed form of ``export``, or ``None``. A damaged one counts as absent."""
        place = self.place_of(export)
        try:
            packed = read_packed(place)
            os.utime(place / _FACTS)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return packed

    def begin(self, export: Path) -> PartialPack:
        """A new place to pack ``export`` into.

        Raises OSError where the cache cannot be written.
        """
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._drop_stale()
        temporary = self.directory / f"{_TEMPORARY}{os.getpid()}-{uuid4().hex[:8]}"
        temporary.mkdir(mode=0o700)
        return PartialPack(temporary, self.place_of(export))

    def trim(self) -> None:
        """Removes the packed reports used longest ago until the cache is under its cap."""
        sizes = []
        for place in self.directory.iterdir():
            facts = place / _FACTS
            if facts.exists():
                size = sum(file.stat().st_size for file in place.iterdir())
                sizes.append((facts.stat().st_mtime, size, place))
        total = sum(size for _, size, _ in sizes)
        for _, size, place in sorted(sizes):
            if total <= self.cap:
                return
            shutil.rmtree(place, ignore_errors=True)
            total -= size

    def _drop_stale(self) -> None:
        for place in self.directory.glob(f"{_TEMPORARY}*"):
            try:
                if time.time() - place.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(place, ignore_errors=True)
            except OSError:
                continue


class PartialPack:
    """A report being packed: a sink that writes Parquet files, then ``finish`` or ``abandon``."""

    def __init__(self, temporary: Path, place: Path) -> None:
        self._temporary = temporary
        self._place = place
        self._parts: dict[str, int] = {}

    def write(self, table: CanonicalTable, rows: duckdb.DuckDBPyRelation) -> None:
        """Adds a Parquet file to ``table``."""
        part = self._parts.get(table.name, 0)
        self._parts[table.name] = part + 1
        rows.write_parquet(str(self._temporary / f"{table.name}-{part:05d}.parquet"), compression="zstd")

    def finish(self, report: PackedReport) -> PackedFiles:
        """Makes the pack visible under its final name and returns it."""
        facts = self._temporary / _FACTS
        facts.write_text(json.dumps(report.to_json()), encoding="utf-8")
        try:
            os.rename(self._temporary, self._place)
        except OSError:  # another process packed the same export meanwhile, or a damaged pack is in the way
            try:
                packed = read_packed(self._place)
            except (OSError, ValueError, KeyError, TypeError):
                shutil.rmtree(self._place, ignore_errors=True)
                os.rename(self._temporary, self._place)
            else:
                self.abandon()
                return packed
        return read_packed(self._place)

    def abandon(self) -> None:
        """Leaves nothing behind."""
        shutil.rmtree(self._temporary, ignore_errors=True)


def read_packed(directory: Path) -> PackedFiles:
    """Opens a packed report.

    Raises OSError, ValueError, KeyError or TypeError where it is not one or not whole.
    """
    report = PackedReport.from_json(json.loads((directory / _FACTS).read_text(encoding="utf-8")))
    files: dict[str, list[Path]] = {}
    for file in sorted(directory.glob("*.parquet")):
        files.setdefault(file.name.rpartition("-")[0], []).append(file)
    missing = set(report.counts) - files.keys()
    if missing:
        raise ValueError(f"{directory}: no {', '.join(sorted(missing))}")
    return PackedFiles(directory, report, {name: tuple(paths) for name, paths in files.items()})
