"""Opening an export read-only and immutable, or reporting in one line why not.

With ``immutable=1`` SQLite takes no locks: exports open on mounts without ``flock`` and in directories without write
permission, and nothing is created next to them. The ADBC SQLite driver returns Arrow: no rows pass through Python.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nsystui.base.errors import DamagedError, ExportError, MissingFileError, reason_of, see_directory
from nsystui.base.files import opened
from nsystui.base.resources import shortage
from nsystui.base.text import shell_word
from nsystui.exports import EXPORT_COMMAND, RECORDING_ENDING, REPORT_ENDINGS

_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
"""The first bytes of files of gzip, bzip2, xz, zstd and zip."""
# Steps of a query between two calls of the progress handler: about 10 ms.
_STEPS = 1_000_000
# Damaged text in the schema reaches Python inside an error message that it cannot decode.
READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)


CHANGED = ("changed while it was read", "run it again once nothing writes to the file")
"""Cause and advice for an input that changed after it was read."""
MADE_FROM = ".made-from"
"""The file next to an export in the cache that contains the path of its source."""
# Two changes within a tick of the kernel's clock have the same time, ns.
_TICK = 10_000_000


@dataclass(frozen=True)
class ExportFile:
    """An export as it was when it was checked; caches identify it by ``state``.

    ``state``: inode, bytes, and times of the last change of the content and of any kind, ns. ``device`` differs between
    the nodes of a cluster.
    """

    path: Path
    device: int
    state: tuple[int, int, int, int]

    @property
    def is_unchanged(self) -> bool:
        """Whether the path still leads to the same file in the same state."""
        try:
            return look(self.path)[1] == self
        except OSError:
            return False

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise ExportError if the export was replaced or changed during the block."""
        try:
            yield
        except Exception:
            self._raise_if_changed()
            raise
        self._raise_if_changed()

    def _raise_if_changed(self) -> None:
        if not self.is_unchanged:
            raise ExportError(named(self.path), *CHANGED) from None


def look(path: Path) -> tuple[bytes, ExportFile]:
    """Return the first bytes of a regular file, and its state. Raises OSError.

    Opens the file, because network file systems may report an outdated state of a closed file.
    """
    with opened(path, buffering=0) as file:
        status = os.fstat(file.fileno())
        if 0 <= time.time_ns() - status.st_ctime_ns < _TICK:
            time.sleep(_TICK / 1e9)
            status = os.fstat(file.fileno())
        head = file.read(100)
    state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return head, ExportFile(path, status.st_dev, state)


def named(path: Path) -> str:
    """Return the user's file: the export, or a cached export's source."""
    try:
        return os.fsdecode((path.parent / MADE_FROM).read_bytes())
    except OSError:
        return str(path)


def damage_line(path: Path, causes: Mapping[str, str]) -> str:
    """Return the line for an answer that needs no damaged rows; empty if nothing is damaged."""
    if not causes:
        return ""
    why = "; ".join(causes.values())
    return f"{named(path)} is damaged, and what needs the damaged rows is refused: {why}; export it again"


def size_in(head: bytes) -> int:
    """Return the size in bytes in an export's header, its first 100 bytes; 0 without a header."""
    page_size = int.from_bytes(head[16:18], "big")
    return (65536 if page_size == 1 else page_size) * int.from_bytes(head[28:32], "big") if is_export(head) else 0


def is_export(head: bytes) -> bool:
    """Return whether ``head`` is the beginning of a SQLite file."""
    return head.startswith(b"SQLite format 3\x00")


def uri(path: Path) -> str:
    """Return the SQLite URI that opens ``path`` read-only and without locks, whatever bytes its name has."""
    # The host of ``file://`` is empty, because the path may begin with two slashes.
    return f"file://{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"


def connect(path: Path, is_stopped: Callable[[], bool] = lambda: False) -> sqlite3.Connection:
    """Return a connection of the standard library to a checked export.

    Queries end as soon as ``is_stopped`` returns true, and at a signal, which would otherwise wait for SQLite. Raises
    ExportError if SQLite refuses the file.
    """
    try:
        connection = sqlite3.connect(uri(path), uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise corrupt(path, error) from None
    try:
        connection.set_progress_handler(is_stopped, _STEPS)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()
    except READ_ERRORS as error:
        connection.close()
        raise corrupt(path, error) from None
    return connection


def corrupt(path: Path, error: Exception, table: str = "") -> ExportError:
    """Return the error for an export that SQLite cannot read, in the native ``table`` if known.

    Raises KeyboardInterrupt if the query was ended on request (see `connect`), which is no damage.
    """
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
        raise KeyboardInterrupt from None
    if lacking := shortage(error):
        return ExportError(named(path), lacking)
    reason = reason_of(error).rpartition(" failed: ")[2]
    text = "malformed database schema" if isinstance(error, UnicodeDecodeError) else reason
    cause, advice = f"SQLite cannot read it: {text}", f"export it again: {EXPORT_COMMAND} FILE.nsys-rep"
    if "disk I/O error" in text:  # the next read may succeed
        return ExportError(named(path), cause, advice)
    return DamagedError(named(path), _with_table(cause, table), advice, table)


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors in the block into ExportError."""
    try:
        yield
    except READ_ERRORS as error:
        raise corrupt(path, error) from None


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Attribute damage in the block to this native table, unless the error names another."""
    try:
        yield
    except DamagedError as error:
        if error.table:
            raise
        raise DamagedError(error.path, _with_table(error.cause, table), error.advice, table) from None


def _with_table(cause: str, table: str) -> str:
    return cause if table in cause else f"{cause} ({table})"


def check(path: Path) -> ExportFile:
    """Check the first bytes and the size of ``path``, and return its state.

    Raises ExportError if it is missing, a directory or device, unreadable, empty, not SQLite, cut short, or still being
    written.
    """
    name = named(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        cause = "a link to a missing file" if path.is_symlink() else "no such file"
        raise MissingFileError(name, cause, see_directory(str(path))) from None
    except OSError as error:
        advice = f"check the directory with ls -ld {shell_word(str(path.parent))}"
        raise ExportError(name, f"cannot be accessed: {error.strerror}", advice) from None
    if stat.S_ISDIR(status.st_mode):
        if not os.access(path, os.R_OK | os.X_OK):
            advice = f"check its permissions with ls -ld {shell_word(name)}"
            raise ExportError(name, "no permission to read this directory", advice)
        raise MissingFileError(
            name, "no export in this directory or directly below", f"an export is a .sqlite file: {EXPORT_COMMAND}"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ExportError(name, "not a regular file", "exports are opened in place; pipes and devices cannot be opened")
    try:
        head, file = look(path)
    except OSError as error:
        advice = f"check its permissions with ls -l {shell_word(name)}"
        raise ExportError(name, f"cannot be read: {error.strerror}", advice) from None
    if not head:
        raise ExportError(name, "the file is empty", "did nsys export finish?")
    if not is_export(head):
        raise _not_sqlite(path, head)
    _check_size(name, head, file.state[1])
    for suffix in ("-journal", "-wal"):
        if size(str(path) + suffix):
            raise ExportError(
                name, f"still being written: {path.name}{suffix} is next to it", "wait for nsys export to finish"
            )
    return file


def size(name: str) -> int:
    """Return the size of a file in bytes, 0 if it does not exist or its name is too long."""
    try:
        return os.stat(name).st_size
    except OSError:
        return 0


def _check_size(name: str, head: bytes, size: int) -> None:
    """Compare size and page count in the header: SQLite would only report "malformed"."""
    if len(head) < 100:
        raise ExportError(name, f"cut short: {size} bytes", "copy or export it again")
    expected = size_in(head)
    if size < expected:
        raise ExportError(
            name,
            f"cut short or still being written: {size:,} of {expected:,} bytes",
            "wait for nsys export to finish, or copy it again",
        )


def _not_sqlite(path: Path, head: bytes) -> ExportError:
    name = str(path)
    if path.suffix == RECORDING_ENDING:
        report, export = path.with_suffix(".nsys-rep"), path.with_suffix(".sqlite")
        importing = f"QdstrmImporter -i {shell_word(name)} (nsys has it: …/host-linux-x64/QdstrmImporter)"
        command = f"{EXPORT_COMMAND} -o {shell_word(export.name)} {shell_word(str(report))}"
        return ExportError(
            name,
            "a recording that is not yet a report, and not an export",
            f"make the report: {importing}, then export it: {command}",
        )
    if path.suffix in REPORT_ENDINGS or head.startswith(b"QUADD"):
        output = path.with_suffix(".sqlite").name
        if output == path.name:  # a report under the name of an export must not be overwritten by its export
            output = f"{path.stem}-export.sqlite"
        command = f"{EXPORT_COMMAND} -o {shell_word(output)} {shell_word(name)}"
        return ExportError(
            name, "a report, not an export", f"export it: {command}, or let nsystui do it with --convert"
        )
    for magic, form in ((b"\x89HDF", "as HDF5 (-t hdf)"), (b"ARROW1", "as one Arrow file (-t arrow)")):
        if head.startswith(magic):
            advice = f"nsystui opens -t sqlite and parquetdir: {EXPORT_COMMAND} FILE.nsys-rep"
            return ExportError(name, f"an export {form}, which nsystui does not read", advice)
    from nsystui.exports.forms.kineto.reading import json_head

    if json_head(path):
        cause = "JSON without traceEvents: no trace of the PyTorch profiler; exports of nsys as JSON are not read"
        forms = "what export_chrome_trace of torch.profiler writes, -t sqlite and parquetdir"
        return ExportError(name, cause, f"nsystui opens {forms}: {EXPORT_COMMAND} FILE.nsys-rep")
    if head.startswith(_PACKED):
        return ExportError(name, "a compressed file, and not an export", "unpack it, and name the export in it")
    return ExportError(name, "not a SQLite file", f"nsystui opens what this writes: {EXPORT_COMMAND} FILE.nsys-rep")


_BATCH_ROWS = 16_384


class ArrowReader:
    """An ADBC connection to one export."""

    def __init__(self, path: Path) -> None:
        import adbc_driver_sqlite
        from adbc_driver_manager import AdbcConnection, AdbcDatabase, Error

        self.path = path
        try:
            self._database = AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=uri(path))
            self._connection = AdbcConnection(self._database)
        except Error as error:
            raise corrupt(path, error) from None
        self._statement: Any = None

    def __enter__(self) -> ArrowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_statement()
        self._connection.close()
        self._database.close()

    def stream(self, query: str) -> Any:
        """Return the result of ``query`` as an object with ``__arrow_c_stream__``, which DuckDB reads directly.

        Read it before the next ``stream``. Every column must have one type, because the driver takes types from the
        first batch. Raises ExportError if SQLite cannot read the file.
        """
        from adbc_driver_manager import AdbcStatement, Error

        self._close_statement()
        statement = self._statement = AdbcStatement(self._connection)
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH_ROWS})
            statement.set_sql_query(query)
            handle, _ = statement.execute_query()
        except Error as error:
            raise corrupt(self.path, error) from None
        return handle

    def _close_statement(self) -> None:
        """Close the last statement; not earlier, because its stream reads from it batch by batch."""
        if self._statement is not None:
            self._statement.close()
            self._statement = None


_AHEAD = 32 << 20
"""Bytes read before they are needed."""


@contextmanager
def read_ahead(path: Path) -> Iterator[Callable[[float], None]]:
    """Yield a function that asks the system to read the next part of an export in large pieces.

    SQLite reads pages of 4 KB one by one, each a round trip on a network file system. Rows are read band by band, so
    the next part is known. The function takes the needed part (0 … 1) of the file, and requests slightly more, nothing
    twice. Without ``posix_fadvise`` it does nothing.
    """
    try:
        file = open(path, "rb", 0)  # noqa: SIM115
    except OSError:
        yield lambda part: None
        return
    lock, requested_end = threading.Lock(), 0

    def reach(part: float) -> None:
        nonlocal requested_end
        with lock, suppress(OSError, AttributeError):
            end = min(int(part * total) + _AHEAD, total)
            if end > requested_end:
                os.posix_fadvise(file.fileno(), requested_end, end - requested_end, os.POSIX_FADV_WILLNEED)
                requested_end = end

    with file:
        total = os.fstat(file.fileno()).st_size
        yield reach
