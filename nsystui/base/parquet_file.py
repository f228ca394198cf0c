"""Parquet files written by DuckDB, also on file systems without locks.

DuckDB locks the files that it writes, and fails on file systems without locks, such as some mounts of Lustre and NFS.
There, it writes to a pipe without a lock, and a thread copies the bytes to the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


def copy_to_parquet(
    connection: duckdb.DuckDBPyConnection, select: str, path: Path, options: str, parameters: tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    """Write the rows of ``select`` to ``path``, replacing its content; return DuckDB's result rows.

    ``options`` are options of DuckDB's ``COPY``; ``parameters`` are the values of ``$2`` and on. Raises duckdb.Error,
    or OSError with the system's reason, and may then leave a partial file.
    """
    import duckdb

    # USE_TMP_FILE would leave a file with an unknown name if writing fails; an absolute path is never an address.
    copy = f"COPY ({select}) TO $1 (FORMAT parquet, USE_TMP_FILE false, {options})"
    absolute = str(path.absolute())
    # Locking is tested before the query, because streamed rows cannot be read again.
    try:
        with open(absolute, "wb") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        with _Pipe(absolute) as pipe:
            return connection.execute(copy, [pipe.name, *parameters]).fetchall()
    try:
        return connection.execute(copy, [absolute, *parameters]).fetchall()
    except duckdb.IOException as error:
        # DuckDB's message is JSON about a write of a range; only the system's words in it are the reason.
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT, errno.EFBIG, errno.EIO):
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code)) from error
        raise


def parquet_rows(*files: Path) -> str:
    """Return DuckDB's SQL for the rows of Parquet files with the same columns."""
    names = ", ".join("'{}'".format(str(file.absolute()).replace("'", "''")) for file in files)
    return f"read_parquet([{names}])"


class _Pipe:
    """A context manager: a pipe whose bytes are copied to a file. Raises OSError on exit if writing failed."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115
        self._read_end, self._write_end = os.pipe()
        self.name = f"/dev/fd/{self._write_end}"
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="pipe", daemon=True)

    def __enter__(self) -> _Pipe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write_end)
        self._thread.join()
        if self._failure is not None:  # instead of DuckDB's broken pipe
            raise self._failure from None

    def _run(self) -> None:
        try:
            with open(self._read_end, "rb", buffering=0) as pipe, self._file as file:
                while data := pipe.read(1 << 20):
                    file.write(data)
        except OSError as error:
            self._failure = error
