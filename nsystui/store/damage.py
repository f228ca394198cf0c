"""Damage of exports, remembered in the cache, and removal of damaged files from the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nsystui.base.errors import DamagedError, ExportError
from nsystui.base.partial_files import remove
from nsystui.exports import opening
from nsystui.exports.opening import named
from nsystui.store.cache import Cache, ColumnFiles, PackedFiles
from nsystui.store.remember import Results
from nsystui.store.seals import changed

_KNOWN = "damage"
REPLACED = "it was merged with other ranks or replaced meanwhile", "start again"
"""Cause and advice if the directory of a packed report is gone."""


@contextmanager
def remembered_damage(results: Results) -> Iterator[None]:
    """Save damage that the block finds in an export; an error about saved damage only names the table."""
    try:
        yield
    except DamagedError as error:
        if error.table in known_damage(results):
            cause = f"the answer needs {error.table}, which is damaged"
            raise DamagedError(error.path, cause, error.advice, error.table) from None
        remember_damage(results, {error.table: error.cause})
        raise


def remember_damage(results: Results, causes: Mapping[str, str]) -> None:
    """Save the causes of damage in an export by native table; an empty name means an unknown table."""
    saved = known_damage(results)
    merged = {**saved, **causes}
    if len(merged) > 1:
        merged.pop("", None)  # most likely the same damage
    if merged != saved:
        results.save(_KNOWN, merged)


def known_damage(results: Results) -> dict[str, str]:
    """Return the causes of damage that earlier questions found in an export, by native table."""
    return results.load(_KNOWN, read=lambda causes: {str(table): str(cause) for table, cause in causes.items()}) or {}


def damage_line(path: Path, causes: Mapping[str, str]) -> str:
    """Return the line for an answer that needs no damaged rows; empty if nothing is damaged."""
    if not causes:
        return ""
    why = "; ".join(causes.values())
    return f"{named(path)} is damaged, and what needs the damaged rows is refused: {why}; export it again"


def raise_of_damage(
    error: BaseException, stored: Iterable[tuple[Path, PackedFiles | ColumnFiles]], cache: Cache | None
) -> None:
    """Raise ExportError if ``error`` is DuckDB's, and stored files of a report do not match their seals.

    ``stored``: the files with their reports' paths; all are read. Damaged files are removed from the cache, to be
    written again.
    """
    import duckdb

    cause = getattr(error, "orig", None) or error
    # DuckDB's binding raises the other types if the text of an error is not UTF-8.
    if not isinstance(cause, duckdb.Error | RuntimeError | UnicodeError):
        return
    if isinstance(cause, duckdb.InterruptException | duckdb.OutOfMemoryException):
        return
    for path, files in stored:
        damaged = changed(files.seals)
        if not damaged:
            continue
        if cache is not None and files.directory.parent == cache.directory:
            remove(files.directory)
            raise ExportError(
                named(path), "what the cache has of it was damaged", "it is removed: start again"
            ) from None
        if not path.parent.exists():
            raise ExportError(str(path), *REPLACED) from None
        name = "/".join(damaged[0].parts[-2:])
        raise ExportError(str(path), f"damaged: {name} is not what was written", "pack its export again") from None


@contextmanager
def read_errors(path: Path, table: str) -> Iterator[None]:
    """Turn DuckDB's errors about the rows of a native table into damage of that table."""
    import duckdb

    try:
        with opening.reading(table):
            yield
    except (duckdb.InterruptException, duckdb.OutOfMemoryException, duckdb.IOException):
        raise
    except duckdb.Error as error:
        raise opening.corrupt(path, error, table) from None
