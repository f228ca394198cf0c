"""Damage: that of exports is remembered in the cache; files of the cache that are damaged are removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nsystui.base.errors import DamagedError, ExportError
from nsystui.base.partial_files import remove
from nsystui.exports.opening import named
from nsystui.store.cache import Cache, ColumnFiles, PackedFiles
from nsystui.store.results import Results
from nsystui.store.seals import changed

_KNOWN = "damage"


@contextmanager
def remembered_damage(results: Results) -> Iterator[None]:
    """Remembers the damage of an export that is met in the block; of known damage the error names the table."""
    try:
        yield
    except DamagedError as error:
        if error.table in known_damage(results):
            cause = f"the answer needs {error.table}, which is damaged"
            raise DamagedError(error.path, cause, error.advice, error.table) from None
        remember_damage(results, {error.table: error.cause})
        raise


def remember_damage(results: Results, causes: Mapping[str, str]) -> None:
    """Saves the causes of damage in an export by native table; the empty name stands for an unknown table."""
    before = known_damage(results)
    known = {**before, **causes}
    if len(known) > 1:
        known.pop("", None)  # one of the others, most likely
    if known != before:
        results.save(_KNOWN, known)


def known_damage(results: Results) -> dict[str, str]:
    """The causes for which other questions about an export were refused, by native table."""
    return results.load(_KNOWN, read=lambda found: {str(table): str(cause) for table, cause in found.items()}) or {}


def damage_line(path: Path, causes: Mapping[str, str]) -> str:
    """The line for an answer that needs no damaged rows; empty where nothing is damaged."""
    if not causes:
        return ""
    why = "; ".join(causes.values())
    return f"{named(path)} is damaged, and what needs the damaged rows is refused: {why}; export it again"


def raise_of_damage(
    error: BaseException, stored: Iterable[tuple[Path, PackedFiles | ColumnFiles]], cache: Cache | None
) -> None:
    """Raises ExportError where ``error`` is DuckDB's and stored files of a report do not match their seals.

    ``stored``: the files with the paths of their reports; all are read. Damaged ones are removed from the cache, so
    that they are written again the next time.
    """
    import duckdb

    cause = getattr(error, "orig", None) or error
    # Its binding has other errors where the text of one is no UTF-8.
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
        name = "/".join(damaged[0].parts[-3:])
        raise ExportError(str(path), f"damaged: {name} is not what was written", "pack its export again") from None
