"""Where single columns of an export are kept: in directories beside its whole pack, one for each set of columns.

A directory is never changed once it is there, so that another process may read from it. It goes as packs go.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.parquet_file import copy_to_parquet
from nsystui.exports.partial import partial_name, remove
from nsystui.store import trimming
from nsystui.store.cache import Cache
from nsystui.store.seals import Seal, read_facts, write_facts

if TYPE_CHECKING:
    import duckdb

_FACTS = trimming.FACTS
# What reading columns raises that are none, or not whole.
_ANOTHER = (ValueError, KeyError, TypeError, AttributeError)
_DAMAGED = (OSError, *_ANOTHER)


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


def find_columns(cache: Cache, export: Path, table: str, names: Collection[str]) -> ColumnFiles | None:
    """Columns of ``export`` that were kept, if they are all of ``names``. Damaged ones go."""
    try:
        place = cache.place_of(export)
        directories = sorted(cache.directory.glob(f"{place.name}.{table}-*"))
    except OSError:
        return None
    for directory in directories:
        try:
            found = _read(directory)
        except OSError:
            continue
        except _ANOTHER:
            remove(directory)
            continue
        if found.names.issuperset(names):
            with suppress(OSError):  # a cache that is only read serves as well
                os.utime(directory / _FACTS)
            return found
    return None


class PartialColumns:
    """Columns being written: a sink for Parquet files, then ``finish`` or ``abandon``."""

    def __init__(self, cache: Cache, export: Path, table: str, names: Collection[str]) -> None:
        """Raises OSError where the cache cannot be written."""
        self._names = sorted(names)
        digest = hashlib.sha256(" ".join(self._names).encode()).hexdigest()[:12]
        self._place = cache.place_of(export)
        self._place = self._place.with_name(f"{self._place.name}.{table}-{digest}")
        cache.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Under a name that the cache takes away if this process is killed.
        self._temporary = cache.directory / partial_name()
        self._temporary.mkdir(mode=0o700)
        self._files = 0

    def write(self, connection: duckdb.DuckDBPyConnection, select: str) -> int:
        """Adds the rows that ``select`` gives; how many they are.

        Raises duckdb.Error where the memory is too little, or the cache cannot be written.
        """
        file = self._temporary / f"{self._files:06d}.parquet"
        # The delta encodings of the second version leave little to compress, and more effort takes as long again.
        form = "COMPRESSION zstd, COMPRESSION_LEVEL 1, PARQUET_VERSION V2"
        ((rows,),) = copy_to_parquet(connection, select, file, form)
        if rows:
            self._files += 1
        else:
            file.unlink()
        return int(rows)

    def finish(self, rows: int) -> ColumnFiles:
        """Makes the columns visible under their final name and returns them.

        Raises OSError where they cannot be.
        """
        write_facts(self._temporary, self._place, _FACTS, {"names": self._names, "rows": rows})
        try:
            os.rename(self._temporary, self._place)
        except OSError:  # another process read the same columns meanwhile, or damaged ones are in the way
            try:
                found = _read(self._place)
            except _DAMAGED:
                remove(self._place)
                os.rename(self._temporary, self._place)
            else:
                self.abandon()
                return found
        return _read(self._place)

    def abandon(self) -> None:
        """Leaves nothing behind."""
        shutil.rmtree(self._temporary, ignore_errors=True)


def _read(directory: Path) -> ColumnFiles:
    facts, seals = read_facts(directory, _FACTS)
    return ColumnFiles(directory, frozenset(facts["names"]), int(facts["rows"]), seals)
