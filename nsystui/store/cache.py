"""The cache: packed exports and single columns of others, a directory for each, never beside the export.

A directory is written under a temporary name and renamed when it is whole, so that it is there entirely or not at all.
It is never changed after that: another process may read from it. The cache is capped, with all that the program saves
in it: packs, single columns, results of single reports and of several, and exports that were converted from reports.
What was used longest ago goes first; what is not the program's is neither counted nor removed.
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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from nsystui.base.errors import OutputError, reason_of
from nsystui.base.parquet_file import copy_to_parquet, parquet_rows
from nsystui.base.partial_files import PARTIAL, drop_abandoned, is_abandoned, partial_name, remove, why_not_ours
from nsystui.base.text import is_utf8
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.opening import ExportFile
from nsystui.store.results import Caps, Results, version_of_reading
from nsystui.store.seals import ANOTHER, Seal, read_facts, write_facts

if TYPE_CHECKING:
    import duckdb

    from nsystui.store.report import PackedReport

# The delta encodings of the second version are smaller by a third, and faster to write and to read.
PARQUET_FORM = "COMPRESSION zstd, PARQUET_VERSION V2"
"""The form of packs: options of DuckDB's ``COPY``."""
# The delta encodings leave little to compress, and more effort takes as long again.
_COLUMN_FORM = "COMPRESSION zstd, COMPRESSION_LEVEL 1, PARQUET_VERSION V2"
DEFAULT_CAP = 20 << 30
ANSWERS = "answers"
"""The folder of the results of several reports together: a file for each."""
CONVERTED = "exports"
"""The folder of the converted exports: a directory for each."""
FACTS = "report.json"
"""The file in which a pack, or a set of single columns, says what it is; its time is that of the last use."""
RESULTS = ".results"
"""The end of the name of a directory of a report's results; its own time is that of the last use."""
_PACK_NAME = re.compile(r"[A-Za-z0-9-]*-[0-9a-f]{24}(\.[a-z_]+-[0-9a-f]{12}|\.results|\.kept)?")
_CONVERTED_NAME = re.compile(r"[0-9a-f]{16}")


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
T = TypeVar("T")


@dataclass(frozen=True)
class Cache:
    """A directory for packed reports and what else is saved of exports, of at most about ``cap`` bytes.

    Unless it ``is_required``, a session goes on in its memory where the cache cannot be written.
    """

    directory: Path
    cap: int = DEFAULT_CAP
    is_required: bool = False

    @property
    def conversions(self) -> Path:
        """Where exports lie that were converted from reports."""
        return self.directory / CONVERTED

    @property
    def is_ours(self) -> bool:
        """Whether no other user can have written what lies in it."""
        return not why_not_ours(self.directory)

    def path_of(self, export: ExportFile) -> Path:
        """The directory of ``export``; another state of it, or version of the code that reads it, is another place."""
        real = os.path.realpath(export.path)
        identity = f"{version_of_reading()}|{real}|{export.state}"
        digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:24]
        name = os.path.splitext(os.path.basename(real))[0]
        stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:40]
        return self.directory / f"{stem}-{digest}"

    def results_of(self, export: ExportFile) -> Results:
        """The results that were computed of ``export``, whether it is packed or not."""
        path = self.path_of(export)
        directory = path.with_name(path.name + RESULTS)
        return Results((directory.name,), directory, partials=self.directory)

    def results_of_several(self, reports: Collection[str]) -> Results:
        """The results that were computed of several reports together, by their identities."""
        return Results(tuple(reports), self.directory / ANSWERS, partials=self.directory, caps=Caps())

    def find(self, export: ExportFile) -> PackedFiles | None:
        """The packed form of ``export``, or ``None``. A damaged one goes."""
        return _used(_found(self.path_of(export), read_packed))

    def find_columns(self, export: ExportFile, table: str, names: Collection[str]) -> ColumnFiles | None:
        """Single columns of a table of ``export``, if they are all of ``names``, or ``None``. Damaged ones go."""
        directories = sorted(self.directory.glob(f"{self.path_of(export).name}.{table}-*"))
        every = (_found(directory, _read_columns) for directory in directories)
        return _used(next((one for one in every if one is not None and one.names.issuperset(names)), None))

    def begin(self, export: ExportFile) -> Partial[PackedFiles]:
        """A new place to pack ``export`` into.

        Raises OSError where the cache cannot be written.
        """
        return Partial(self._temporary(), self.path_of(export), PARQUET_FORM, read_packed)

    def begin_columns(self, export: ExportFile, table: str, names: Collection[str]) -> Partial[ColumnFiles]:
        """A new place for columns of a table of ``export``.

        Raises OSError where the cache cannot be written.
        """
        digest = hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:12]
        path = self.path_of(export)
        path = path.with_name(f"{path.name}.{table}-{digest}")
        return Partial(self._temporary(), path, _COLUMN_FORM, _read_columns)

    def write(self, write: Callable[[], T], warn: Callable[[str], object]) -> T | None:
        """The result of ``write``; ``None`` where the cache cannot be written (full, read-only), after a warning.

        Raises OutputError for that where the cache is required.
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
        """A new directory, under a name that the cache takes away if this process is killed."""
        if not is_utf8(str(self.directory)):
            raise OSError(errno.EILSEQ, "its name is not UTF-8")
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.directory / partial_name()
        temporary.mkdir(mode=0o700)
        return temporary

    def spill(self) -> Path | None:
        """A new name for a directory of what a query has no memory for; ``None`` where the cache cannot be written."""
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        is_usable = is_utf8(str(self.directory)) and os.access(self.directory, os.W_OK | os.X_OK)
        return self.directory / partial_name("-spill") if is_usable else None

    def trim(self, keep: Collection[Path] = ()) -> int:
        """Removes what was used longest ago until the cache is under its cap; how many bytes more it may then hold.

        The places in ``keep`` are being read from and stay, even over the cap. Never raises: another process may be at
        it.
        """
        return _trim(self.directory, self.cap, keep)


class Room:
    """Keeps the cache of a session under its cap; may be used by several threads. Without a cache it does nothing."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self._in_use: set[Path] = set()
        self._left = 0
        self._lock = threading.Lock()

    def use(self, path: Path) -> None:
        """Says that the files at this place in the cache are read from: they stay."""
        with self._lock:
            self._in_use.add(path)

    def make(self, size: int) -> None:
        """Makes room for what has just been written, in bytes.

        The cache is only looked through where there may be too much in it: with hundreds of packs that takes its time.
        """
        with self._lock:
            self._left -= size
            if self.cache is not None and size and self._left <= 0:
                self._left = self.cache.trim(frozenset(self._in_use))


@dataclass(frozen=True)
class SinkRows:
    """Rows for a sink: the query ``select`` returns them, and ``position`` grows with the rows of a table.

    Rows that are written as they arrive have a ``row_group``, the number that DuckDB holds in memory, and ``count``,
    which is called with the number of written rows and DuckDB's SQL of them.
    """

    select: str
    position: int = 0
    row_group: int | None = None
    count: Callable[[int, str], object] = lambda rows, written: None


class Partial(Generic[Files]):
    """Files of the cache being written: a sink. A context manager, which leaves nothing behind without ``finish``."""

    def __init__(self, temporary: Path, path: Path, form: str, read: Callable[[Path], Files]) -> None:
        self._temporary = temporary
        self._path = path
        self._form = form
        self._read: Callable[[Path], Files] = read
        self._parts = itertools.count()
        self._files: list[tuple[str, int, Path]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def write(self, table: CanonicalTable, connection: duckdb.DuckDBPyConnection, rows: SinkRows) -> int:
        """Adds a file to ``table``; its files, by their names, are in the order of ``position``."""
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

    def finish(self, facts: Mapping[str, Any]) -> Files:
        """Makes the files visible under their final name, with these facts, and returns them. Raises OSError."""
        for table, group in itertools.groupby(sorted(self._files), lambda file: file[0]):
            for number, (_, _, file) in enumerate(group):
                file.rename(self._temporary / f"{table}-{number:06d}.parquet")
        write_facts(self._temporary, self._path, FACTS, facts)
        try:
            os.rename(self._temporary, self._path)
        except OSError:  # another process wrote the same meanwhile, or something damaged is in the way
            with suppress(OSError, *ANOTHER):
                return self._read(self._path)
            remove(self._path)
            os.rename(self._temporary, self._path)
        return self._read(self._path)


def read_packed(directory: Path) -> PackedFiles:
    """Opens a packed report.

    Raises OSError, or one of `ANOTHER`, where it is not one or not whole.
    """
    from nsystui.store.report import PackedReport

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
    except ANOTHER:
        remove(directory)
        return None


def _used(found: Files | None) -> Files | None:
    if found is not None:
        with suppress(OSError):  # a cache that is only read, or another user's, serves as well
            os.utime(found.directory / FACTS)
    return found


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``$NSYSTUI_CACHE_DIR``, else the user's cache directory of this system."""
    import platformdirs

    chosen = environ.get("NSYSTUI_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("nsystui"))


@dataclass(frozen=True, order=True)
class Item:
    """One thing in the cache: when it was used last (s since the epoch), its bytes, whether it may go at all."""

    used: float
    size: int
    path: Path
    may_go: bool = True


def _trim(directory: Path, cap: int, keep: Collection[Path] = ()) -> int:
    """Removes what was used longest ago until the cache is under ``cap`` bytes; how many bytes more it may then hold.

    What is in ``keep``, or belongs to a pack that is (its single columns and results), stays, even over the cap. Never
    raises: another process may be at it.
    """
    items = sorted(_items(directory))
    total = sum(item.size for item in items)
    for item in items:
        if total <= cap:
            break
        # Single columns and results are named after the pack that they belong to.
        pack = item.path.with_name(item.path.name.partition(".")[0] or item.path.name)
        if item.may_go and not {item.path, pack}.intersection(keep):
            remove(item.path)
            total -= item.size
    return cap - total


def size_of(path: Path) -> int:
    """The bytes of the files in a directory."""
    size = 0
    for file in _in(path):
        with suppress(OSError):
            size += file.stat().st_size
    return size


def drop_left(directory: Path) -> None:
    """Removes what processes that were killed left half-written in the cache. Never raises.

    Only ``nsys export`` writes elsewhere than into the cache directory itself.
    """
    for path in (directory, *_in(directory / CONVERTED)):
        drop_abandoned(path)


def _items(directory: Path) -> Iterator[Item]:
    for path in _in(directory):
        with suppress(OSError):
            if path.name.startswith(PARTIAL):
                yield Item(path.stat().st_mtime, size_of(path), path, may_go=False)
            elif (path / FACTS).exists():
                yield Item((path / FACTS).stat().st_mtime, size_of(path), path)
            # Results, or what was left by a removal that was interrupted.
            elif _PACK_NAME.fullmatch(path.name) and path.is_dir():
                yield Item(path.stat().st_mtime, size_of(path), path)
    for file in _in(directory / ANSWERS):
        with suppress(OSError):
            status = file.stat()
            yield Item(status.st_mtime, status.st_size, file)
    for path in _in(directory / CONVERTED):
        with suppress(OSError):
            if _CONVERTED_NAME.fullmatch(path.name):
                is_made = all(map(is_abandoned, path.glob(f"{PARTIAL}*")))
                yield Item(path.stat().st_mtime, size_of(path), path, may_go=is_made)


def _in(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []
