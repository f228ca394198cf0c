"""Damage in kept files that only DuckDB finds: one line about whose they are, and in the cache they go."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nsystui.errors import ExportError
from nsystui.exports.partial import remove
from nsystui.store.cache import Cache, PackedFiles
from nsystui.store.column_cache import ColumnFiles
from nsystui.store.seals import changed


def raise_of_damage(
    error: BaseException, kept: Iterable[tuple[Path, PackedFiles | ColumnFiles]], cache: Cache | None
) -> None:
    """Raises ExportError where ``error`` is DuckDB's and files of a report, with its path, are not what was written.

    What lies in the cache is removed, so that it is made again the next time. Reads all of the files.
    """
    import duckdb

    cause = getattr(error, "orig", None) or error
    # Its binding has other errors where the text of one is no UTF-8.
    if not isinstance(cause, duckdb.Error | RuntimeError | UnicodeError):
        return
    if isinstance(cause, duckdb.InterruptException | duckdb.OutOfMemoryException):
        return
    for path, files in kept:
        damaged = changed(files.seals)
        if not damaged:
            continue
        if cache is not None and files.directory.parent == cache.directory:
            remove(files.directory)
            raise ExportError(str(path), "what the cache has of it was damaged", "it is removed: start again") from None
        name = "/".join(damaged[0].parts[-3:])
        raise ExportError(str(path), f"damaged: {name} is not what was written", "pack its export again") from None
