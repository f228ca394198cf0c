"""DuckDB as the store uses it: in memory, within limits; its errors; results as arrays and pandas columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.base import resources
from nsystui.base.errors import ExportError, NsystuiError
from nsystui.base.files import remove
from nsystui.base.resources import LEAST_ADDRESSES, MEMORY_PER_THREAD, Limits, address_limit
from nsystui.base.units import size_words
from nsystui.exports import opening
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.opening import named
from nsystui.store.cache import Cache, ColumnFiles, PackedFiles
from nsystui.store.seals import changed

if TYPE_CHECKING:
    import duckdb
    import sqlalchemy as sa

REPLACED = "it was merged with other ranks or replaced meanwhile", "start again"
"""Cause and advice if the directory of a packed report is gone."""


def check_addresses() -> None:
    """Raise NsystuiError if the process may not use the addresses that DuckDB needs."""
    space = address_limit()
    if space is not None and space < LEAST_ADDRESSES:
        minimum = f"the minimum is {size_words(LEAST_ADDRESSES)}: raise `ulimit -v`"
        raise NsystuiError(f"not enough memory: this process may have {size_words(space)}, {minimum}")


def check_held(limits: Limits, path: Path, rows: int, size: int, what: str) -> None:
    """Raise ExportError if ``rows`` rows of ``size`` bytes, all needed at once, exceed the program's memory.

    ``what`` names the rows.
    """
    if size and rows > limits.most_held(size):
        cause = f"more than {limits.most_held(size):,} {what} do not fit into the limit of memory, "
        advice = f"choose a span with --time, or allow more, such as --memory-limit {size_words(4 * limits.memory)}"
        raise ExportError(named(path), cause + size_words(limits.memory), advice)


def connect(limits: Limits, spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB that uses neither the network nor the working directory.

    It spills to the directory ``spill``, which exists only while needed. Raises NsystuiError if the process may not use
    enough addresses.
    """
    check_addresses()
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": max(min(limits.threads, limits.database // MEMORY_PER_THREAD), 1),
            "memory_limit": memory_setting(limits.database),
            "temp_directory": "" if spill is None else str(spill),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            # With more than 64 CPUs it would pin its threads to the first CPUs, like every other user's DuckDB.
            "pin_threads": "off",
        },
    )
    keep_metadata(connection, True)
    connection.execute("SET async_threads = 1")  # the default of eight is meant for remote files
    return connection


def keep_metadata(connection: duckdb.DuckDBPyConnection, is_kept: bool) -> None:
    """Keep the metadata of Parquet files in memory, or read them for each query.

    To locate a page of rows, DuckDB searches the metadata of all files. For one table they take 20 KB per rank, outside
    the memory limit; small files are read as fast as cached metadata are looked up.
    """
    # GLOBAL also sets it for cursors.
    connection.execute(f"SET GLOBAL parquet_metadata_cache = {str(is_kept).lower()}")


def memory_setting(memory: int) -> str:
    """Return bytes in DuckDB's notation."""
    return f"{memory // 1024}KiB"


@contextmanager
def memory_errors(limits: Limits, has_cache: bool, *paths: Path) -> Iterator[None]:
    """Turn DuckDB's lack of memory into an ExportError about the exports being read, with advice.

    ``has_cache`` is whether a cache keeps columns.
    """
    try:
        yield
    except Exception as error:
        import duckdb

        # SQLAlchemy or this program may have replaced DuckDB's error.
        errors = (error, getattr(error, "orig", None), error.__context__)
        causes = [cause for cause in errors if isinstance(cause, duckdb.OutOfMemoryException)]
        if not causes:
            raise
        name = named(paths[0]) if len(paths) == 1 else f"{named(paths[0])} and {len(paths) - 1} more"
        # At its own limit, DuckDB reports how much is used; otherwise the system refused.
        cause, advice = _too_little(limits, refused=not any(" used)" in str(cause) for cause in causes))
        if not has_cache:
            advice += ", or leave --no-cache out"
        raise ExportError(name, cause, advice) from None


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


def _too_little(limits: Limits, refused: bool) -> tuple[str, str]:
    """Return cause and advice. ``refused``: the system gave no memory, though DuckDB's limit would allow more."""
    larger_limit, space = 2 * limits.memory, address_limit()
    database_cause = f"its columns do not fit into the memory that DuckDB may take, {size_words(limits.database)}"
    # A larger limit is useless if the process may not use that many addresses.
    if space is not None and (refused or larger_limit > space - resources.OWN_ADDRESSES):
        cause = f"its columns do not fit into the memory that this process may take, {size_words(space)}"
        return cause, "let it take more with `ulimit -v`, or ask for less of it"
    if refused:
        return "the system has not enough memory for its columns", "try a smaller --memory-limit, or another machine"
    return database_cause, f"allow more, such as --memory-limit {size_words(larger_limit)}"


def engine_of(cursor: Callable[[], duckdb.DuckDBPyConnection]) -> sa.Engine:
    """Return a SQLAlchemy engine that connects with ``cursor``."""
    import sqlalchemy as sa
    from sqlalchemy.pool import NullPool

    from nsystui.store import dialect

    return sa.create_engine(
        f"{dialect.NAME}://",
        creator=lambda: dialect.Connection(cursor()),
        paramstyle=dialect.DuckDB.default_paramstyle,
        poolclass=NullPool,
        execution_options={"compiled_cache": dialect.compiled()},
    )


def union(parts: Sequence[duckdb.DuckDBPyRelation]) -> duckdb.DuckDBPyRelation:
    """Return a UNION ALL as a balanced tree, because hundreds of reports must not nest hundreds of levels deep."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return union(parts[:middle]).union(union(parts[middle:]))


def empty_view(table: CanonicalTable) -> str:
    fields = ", ".join(f'CAST(NULL AS {item.kind.value}) AS "{item.name}"' for item in table.fields)
    return f"SELECT CAST(0 AS BIGINT) AS report, CAST(0 AS BIGINT) AS clock_offset, {fields} WHERE false"


def series(values: Any) -> Any:
    """Return a pandas column whose integers stay exact if some values are missing."""
    import numpy as np
    import pandas as pd

    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not values.mask.any():
        return values.data
    if np.issubdtype(values.dtype, np.integer):
        return pd.arrays.IntegerArray(values.filled(0).astype("int64"), np.ma.getmaskarray(values))
    if np.issubdtype(values.dtype, np.floating):
        return values.filled(np.nan)
    # ``filled(None)`` would insert numpy's own default, a question mark.
    return np.where(np.ma.getmaskarray(values), np.array(None, dtype=object), values.data)


def make_table(
    connection: duckdb.DuckDBPyConnection, table: CanonicalTable, rows: Sequence[tuple[Any, ...]], name: str
) -> None:
    """Make a temporary table of Python rows, column by column as lists (far faster than row by row)."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in table.fields]
    lists = ", ".join(
        f'unnest(CAST(${number} AS {item.kind.value}[])) AS "{item.name}"'
        for number, item in enumerate(table.fields, 1)
    )
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {lists}", columns)
