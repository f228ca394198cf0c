"""The cache: packed exports, and single columns of exports that are not packed.

Each has its own directory, never next to the export: written under a temporary name, renamed when complete, and never
changed after that, because another process may read it.

The limit covers packs, single columns, results, and exports converted from reports; the least recently used are removed
first. Other files are neither counted nor removed.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from nsystui.base.errors import OutputError, reason_of
from nsystui.base.files import PARTIAL, drop_abandoned, is_abandoned, partial_name, remove
from nsystui.base.text import is_utf8
from nsystui.base.types import grouped
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.opening import ExportFile
from nsystui.store.remember import Caps, Results, version_of_reading
from nsystui.store.seals import ANOTHER, Seal, read_facts, write_facts

if TYPE_CHECKING:
    import duckdb

    from nsystui.store.report import PackedReport

# The delta encodings of version 2 are a third smaller, and faster to write and to read.
PARQUET_FORM = "COMPRESSION zstd, PARQUET_VERSION V2"
"""Options of DuckDB's ``COPY`` for packs."""
DEFAULT_CAP = 20 << 30
ANSWERS = "answers"
"""The directory for results of several reports together, each in a file."""
CONVERTED = "exports"
"""The directory for converted exports, each in a subdirectory."""
FACTS = "report.json"
"""The file that describes a pack or a set of single columns; its modification time is the last use."""
RESULTS = ".results"
"""The suffix of a directory with the results of a report; its modification time is the last use."""


@dataclass(frozen=True)
class PackedFiles:
    """A packed report on disk: its facts, and the Parquet files of each canonical table that has rows.

    ``renamed`` contains a field and its name in the files, by table, if they differ. ``rank`` selects its rows, if the
    files have the rows of several reports.
    """

    directory: Path
    report: PackedReport
    files: Mapping[str, tuple[Path, ...]]
    renamed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seals: Mapping[Path, Seal] = field(default_factory=dict)
    rank: int | None = None

    @property
    def size(self) -> int:
        """The size of its directory, bytes."""
        return size_of(self.directory)


@dataclass(frozen=True)
class ColumnFiles:
    """Columns of one canonical table as Parquet files; a table without rows has no file."""

    directory: Path
    names: frozenset[str]
    rows: int
    seals: Mapping[Path, Seal]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self.seals)


_Files = TypeVar("_Files", PackedFiles, ColumnFiles)
T = TypeVar("T")


@dataclass(frozen=True)
class Cache:
    """A directory for packed reports and other data from exports, limited to about ``cap`` bytes.

    If it cannot be written, a session keeps columns in memory, unless the cache ``is_required``.
    """

    directory: Path
    cap: int = DEFAULT_CAP
    is_required: bool = False

    @property
    def conversions(self) -> Path:
        """The directory for exports that were converted from reports."""
        return self.directory / CONVERTED

    def path_of(self, export: ExportFile) -> Path:
        """Return the directory of ``export``, which depends on its state and the version of the code that reads it."""
        real = os.path.realpath(export.path)
        digest = hashlib.sha256(os.fsencode(f"{version_of_reading()}|{real}|{export.state}")).hexdigest()[:24]
        name = os.path.splitext(os.path.basename(real))[0]
        stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:40]
        return self.directory / f"{stem}-{digest}"

    def results_of(self, export: ExportFile) -> Results:
        """Return the results computed from ``export``, whether it is packed or not."""
        path = self.path_of(export)
        directory = path.with_name(path.name + RESULTS)
        return Results((directory.name,), directory, partials=self.directory)

    def results_of_several(self, reports: Collection[str]) -> Results:
        """Return the results computed from several reports together, given their identities."""
        return Results(tuple(reports), self.directory / ANSWERS, partials=self.directory, caps=Caps())

    def find(self, export: ExportFile) -> PackedFiles | None:
        """Return the pack of ``export``, or ``None``. Remove a damaged pack."""
        return _mark_used(_load(self.path_of(export), read_packed))

    def find_columns(self, export: ExportFile, table: str, names: Collection[str]) -> ColumnFiles | None:
        """Return columns that include all ``names``, or ``None``. Remove damaged columns."""
        directories = sorted(self.directory.glob(f"{self.path_of(export).name}.{table}-*"))
        saved = (_load(directory, _read_columns) for directory in directories)
        return _mark_used(next((files for files in saved if files is not None and files.names.issuperset(names)), None))

    def begin(self, export: ExportFile) -> Partial[PackedFiles]:
        """Begin to write a pack of ``export``. Raises OSError if the cache cannot be written."""
        return Partial(self._temporary(), self.path_of(export), PARQUET_FORM, read_packed)

    def begin_columns(self, export: ExportFile, table: str, names: Collection[str]) -> Partial[ColumnFiles]:
        """Begin to write columns of a table. Raises OSError if the cache cannot be written."""
        digest = hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:12]
        path = self.path_of(export)
        path = path.with_name(f"{path.name}.{table}-{digest}")
        # The delta encodings leave little to compress, and a higher level takes twice as long.
        form = "COMPRESSION zstd, COMPRESSION_LEVEL 1, PARQUET_VERSION V2"
        return Partial(self._temporary(), path, form, _read_columns)

    def write(self, write: Callable[[], T], warn: Callable[[str], object]) -> T | None:
        """Return the result of ``write``, or ``None`` after a warning if the cache cannot be written (full, read-only).

        Raises OutputError instead if the cache is required.
        """
        import duckdb

        try:
            return write()
        except (OSError, duckdb.Error) as error:
            if self.is_required:
                raise OutputError(f"{self.directory.parent} cannot be written ({reason_of(error)})") from None
            warn(f"the cache {self.directory} cannot be written ({reason_of(error)}): keeping columns in memory")
            return None

    def _temporary(self) -> Path:
        """Create a directory whose name marks it for removal if this process is killed."""
        if not is_utf8(str(self.directory)):
            raise OSError(errno.EILSEQ, "its name is not UTF-8")
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.directory / partial_name()
        temporary.mkdir(mode=0o700)
        return temporary

    def spill(self) -> Path | None:
        """Return a path for data that a query cannot hold in memory, or ``None`` if the cache cannot be written."""
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        is_usable = is_utf8(str(self.directory)) and os.access(self.directory, os.W_OK | os.X_OK)
        return self.directory / partial_name("-spill") if is_usable else None

    def trim(self, keep: Collection[Path] = ()) -> int:
        """Evict the least recently used items until the cache is within its limit; return the free bytes.

        Paths in ``keep`` are in use and stay. Never raises, because another process may be trimming.
        """
        items = sorted(_items(self.directory))
        total = sum(item.size for item in items)
        for item in items:
            if total <= self.cap:
                break
            # Single columns and results have the name of their pack, and a suffix.
            pack = item.path.with_name(item.path.name.partition(".")[0] or item.path.name)
            if item.is_removable and not {item.path, pack}.intersection(keep):
                remove(item.path)
                total -= item.size
        return self.cap - total


class Room:
    """Space in a session's cache, kept within its limit; for several threads. Does nothing without a cache."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self._in_use: set[Path] = set()
        self._free = 0
        self._lock = threading.Lock()

    def use(self, path: Path) -> None:
        """Mark a path in the cache as in use, so that it stays."""
        with self._lock:
            self._in_use.add(path)

    def make(self, size: int) -> None:
        """Make room after ``size`` bytes were written.

        Scans the cache only if it may be full: scanning hundreds of packs takes time.
        """
        with self._lock:
            self._free -= size
            if self.cache is not None and size and self._free <= 0:
                self._free = self.cache.trim(frozenset(self._in_use))


@dataclass(frozen=True)
class SinkRows:
    """Rows for a sink: the query ``select`` returns them, and ``position`` orders the files of a table.

    ``row_group``, set only for rows written as they arrive, is the number that DuckDB holds in memory. ``count`` is
    called with the number of written rows, and DuckDB's SQL for them.
    """

    select: str
    position: int = 0
    row_group: int | None = None
    count: Callable[[int, str], object] = lambda rows, written: None


class Partial(Generic[_Files]):
    """Cache files being written: a sink and a context manager, which removes unfinished files."""

    def __init__(self, temporary: Path, path: Path, form: str, read: Callable[[Path], _Files]) -> None:
        self._temporary = temporary
        self._path = path
        self._form = form
        self._read: Callable[[Path], _Files] = read
        self._parts = itertools.count()
        self._files: list[tuple[str, int, Path]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, rows: SinkRows) -> int:
        """Write rows to a new file of ``table``, and return their number; file names are ordered by ``position``."""
        from nsystui.base.parquet_file import copy_to_parquet, parquet_rows

        file = self._temporary / f"part-{next(self._parts)}.parquet"
        form = f"{self._form}, ROW_GROUP_SIZE {rows.row_group:d}" if rows.row_group else self._form
        try:
            ((written,),) = copy_to_parquet(connection, rows.select, file, form)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        if written:
            rows.count(written, parquet_rows(file))
            self._files.append((table.name, rows.position, file))
        else:
            file.unlink()
        return int(written)

    def finish(self, facts: Mapping[str, Any]) -> _Files:
        """Publish the files under their final name, with these facts, and return them. Raises OSError."""
        for table, group in itertools.groupby(sorted(self._files), lambda file: file[0]):
            for number, (_, _, file) in enumerate(group):
                file.rename(self._temporary / f"{table}-{number:06d}.parquet")
        write_facts(self._temporary, self._path, FACTS, facts)
        try:
            os.rename(self._temporary, self._path)
        except OSError:  # another process was faster, or a damaged directory is in the way
            with suppress(OSError, *ANOTHER):
                return self._read(self._path)
            remove(self._path)
            os.rename(self._temporary, self._path)
        return self._read(self._path)


def read_packed(directory: Path) -> PackedFiles:
    """Return a packed report. Raises OSError if it cannot be read, and one of `ANOTHER` if it is damaged."""
    from nsystui.store.report import PackedReport

    facts, seals = read_facts(directory, FACTS)
    report = PackedReport.from_json(facts)
    files = grouped((file.name.partition("-")[0], file) for file in seals)
    return PackedFiles(directory, report, {name: tuple(paths) for name, paths in files.items()}, seals=seals)


def _read_columns(directory: Path) -> ColumnFiles:
    facts, seals = read_facts(directory, FACTS)
    return ColumnFiles(directory, frozenset(facts["names"]), int(facts["rows"]), seals)


def _load(directory: Path, read: Callable[[Path], _Files]) -> _Files | None:
    try:
        return read(directory)
    except OSError:
        return None
    except ANOTHER:
        remove(directory)
        return None


def _mark_used(files: _Files | None) -> _Files | None:
    if files is not None:
        with suppress(OSError):  # the cache may be read-only, or another user's
            os.utime(files.directory / FACTS)
    return files


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``$NSYSTUI_CACHE_DIR``, or else the user's cache directory."""
    import platformdirs

    directory = environ.get("NSYSTUI_CACHE_DIR")
    return Path(directory) if directory else Path(platformdirs.user_cache_dir("nsystui"))


@dataclass(frozen=True, order=True)
class Item:
    """An item in the cache: its last use (s since the epoch), size (bytes), and whether it may be removed."""

    used: float
    size: int
    path: Path
    is_removable: bool = True


def size_of(path: Path) -> int:
    """Return the sum of the file sizes in a directory, bytes."""
    size = 0
    for file in _entries(path):
        with suppress(OSError):
            size += file.stat().st_size
    return size


def drop_left(directory: Path) -> None:
    """Remove incomplete files that killed processes left in the cache. Never raises.

    Only ``nsys export`` leaves files in subdirectories.
    """
    for path in (directory, *_entries(directory / CONVERTED)):
        drop_abandoned(path)


def _items(directory: Path) -> Iterator[Item]:
    for path in _entries(directory):
        with suppress(OSError):
            if path.name.startswith(PARTIAL):
                yield Item(path.stat().st_mtime, size_of(path), path, is_removable=False)
            elif (path / FACTS).exists():
                yield Item((path / FACTS).stat().st_mtime, size_of(path), path)
            # Results, or the remains of an interrupted removal.
            elif path.is_dir() and re.fullmatch(
                r"[A-Za-z0-9-]*-[0-9a-f]{24}(\.[a-z_]+-[0-9a-f]{12}|\.results|\.kept)?", path.name
            ):
                yield Item(path.stat().st_mtime, size_of(path), path)
    for file in _entries(directory / ANSWERS):
        with suppress(OSError):
            status = file.stat()
            yield Item(status.st_mtime, status.st_size, file)
    for path in _entries(directory / CONVERTED):
        with suppress(OSError):
            if re.fullmatch(r"[0-9a-f]{16}", path.name):
                is_complete = all(map(is_abandoned, path.glob(f"{PARTIAL}*")))
                yield Item(path.stat().st_mtime, size_of(path), path, is_removable=is_complete)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []
