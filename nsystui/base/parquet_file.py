"""Parquet files written by DuckDB, on file systems without locks too.

DuckDB locks every file that it writes and fails if there are no locks, as on some mounts of Lustre and NFS. It does not
lock a pipe: then it writes into one, and a thread takes the same bytes to the file.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

_PIPES = "/dev/fd"
_PART = 1 << 20


def copy_to_parquet(
    connection: duckdb.DuckDBPyConnection, select: str, path: Path, options: str, parameters: tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    """Writes what ``select`` gives to ``path``, over what is there; returns what DuckDB says of it.

    ``options`` are those of DuckDB's ``COPY``; ``parameters`` are for ``$2`` and on. Raises OSError with the system's
    reason, and duckdb.Error, and may then leave a part of ``path``.
    """
    import duckdb

    # USE_TMP_FILE would leave a file with an unknown name if writing fails; a name such as ``s3:x`` is no address.
    copy = f"COPY ({select}) TO $1 (FORMAT parquet, USE_TMP_FILE false, {options})"
    absolute = str(path.absolute())
    if os.path.isdir(_PIPES):
        import fcntl

        # Not after a failure of DuckDB: rows that arrive cannot be asked for again.
        try:
            with open(absolute, "wb") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with _Pipe(absolute) as pipe:
                return connection.execute(copy, [pipe.name, *parameters]).fetchall()
    try:
        return connection.execute(copy, [absolute, *parameters]).fetchall()
    except duckdb.IOException as error:
        # DuckDB's own text is a line of JSON about a write of a range; only the system's words in it say why.
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT, errno.EFBIG, errno.EIO):
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code)) from error
        raise


def parquet_rows(*files: Path) -> str:
    """Return DuckDB's SQL of the rows of some Parquet files, which have the same columns."""
    names = ", ".join("'{}'".format(str(file.absolute()).replace("'", "''")) for file in files)
    return f"read_parquet([{names}])"


class _Pipe:
    """A pipe whose bytes go to a file. A context manager; raises OSError at its end where they could not be written."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115
        self._end, self._start = os.pipe()
        self.name = f"{_PIPES}/{self._start}"
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="pipe", daemon=True)

    def __enter__(self) -> _Pipe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._start)
        self._thread.join()
        if self._failure is not None:  # and not that the pipe is broken, which is all that DuckDB knows
            raise self._failure from None

    def _run(self) -> None:
        try:
            with open(self._end, "rb", buffering=0) as pipe, self._file as file:
                while data := pipe.read(_PART):
                    file.write(data)
        except OSError as error:
            self._failure = error
