"""DuckDB as the store uses it: in memory, within limits, and its results as numpy and pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.base import resources
from nsystui.base.errors import ExportError, NsystuiError
from nsystui.base.resources import LEAST_ADDRESSES, address_limit
from nsystui.base.units import size_words
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.opening import named

if TYPE_CHECKING:
    import duckdb
    import sqlalchemy as sa


SMALLEST_MEMORY = 320 << 20
"""The least memory to work with, bytes: DuckDB's part of it holds a chunk that is packed, and a query."""
_PROGRAM = 150 << 20
"""What Python and the libraries take."""
_LEAST_OUTSIDE, _LEAST_ROWS = 10 << 20, 1 << 14
_THREAD = 100 << 20
"""Memory of DuckDB for each of its threads: two need 200 MB to sort a million rows of a trace."""

# What one chunk takes while it is packed, with the strings of a usual export: 55 to 65 MB were measured.
_CHUNK_MEMORY = 80 << 20
# Threads that pack one export: more do not help, since reading an export is one stream.
_WORKERS = 2


@dataclass(frozen=True)
class Limits:
    """The limits of a session on a shared machine: threads at work, and ``memory`` of the whole program, in bytes."""

    threads: int = field(default_factory=lambda: resources.usual_threads())
    memory: int = 1 << 30

    @property
    def database(self) -> int:
        """Memory of DuckDB, bytes. The rest is for the program itself and for the rows of `rows_at_once`."""
        return min(self.memory * 5 // 8, max(self.memory - _PROGRAM, _PROGRAM) - _LEAST_OUTSIDE)

    def rows_at_once(self, size: int) -> int:
        """How many rows fit into memory outside DuckDB, where each takes ``size`` bytes with all that is made of it."""
        return max((self.memory - self.database - _PROGRAM) // size, _LEAST_ROWS)

    def most_held(self, size: int) -> int:
        """How many rows the whole program may hold at once, where each takes ``size`` bytes."""
        return (self.memory - _PROGRAM) // size

    def check_held(self, path: Path, rows: int, size: int, what: str) -> None:
        """Raise ExportError where ``rows`` of ``size`` bytes, all needed at once, take more than the whole program may.

        ``what`` names them.
        """
        if rows * size > self.memory - _PROGRAM:
            most = self.most_held(size)
            cause = f"more than {most:,} {what} do not fit into the limit of memory, {size_words(self.memory)}"
            advice = f"choose a span with --time, or allow more, such as --memory-limit {size_words(4 * self.memory)}"
            raise ExportError(named(path), cause, advice)

    @property
    def packing(self) -> Limits:
        """The share of what is packed into the cache, as long as there is any: half of DuckDB's memory.

        One thread, as the packers bring their own.
        """
        return Limits(1, self.database * 4 // 5)

    @property
    def chunks(self) -> int:
        """How many chunks may be packed at once, over all exports."""
        return max(min(self.threads, self.packing.database // _CHUNK_MEMORY), 1)

    @property
    def workers(self) -> int:
        """How many threads pack one export."""
        return min(_WORKERS, self.chunks)

    @property
    def packs(self) -> int:
        """How many exports may be packed at once: what each has read stays in memory while it waits for its turn."""
        return max(min(self.threads, self.packing.database // (self.workers * _CHUNK_MEMORY)), 1)


def check_addresses() -> None:
    """Raises NsystuiError where the process may not have the addresses that DuckDB needs."""
    space = address_limit()
    if space is not None and space < LEAST_ADDRESSES:
        least = f"the minimum is {size_words(LEAST_ADDRESSES)}: raise `ulimit -v`"
        raise NsystuiError(f"not enough memory: this process may have {size_words(space)}, {least}")


def connect(limits: Limits, spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that touches neither the network nor the working directory.

    What does not fit into its memory goes to the directory ``spill``, which is there as long as it is needed.

    Raises NsystuiError where the process may not have the addresses for it.
    """
    check_addresses()
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": max(min(limits.threads, limits.database // _THREAD), 1),
            "memory_limit": memory_setting(limits.database),
            "temp_directory": "" if spill is None else str(spill),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            # Where there are more than 64 CPUs it would tie its threads to the first ones, as would every other user's.
            "pin_threads": "off",
        },
    )
    keep_metadata(connection, True)
    connection.execute("SET async_threads = 1")  # the usual eight are meant for files that are far away
    return connection


def keep_metadata(connection: duckdb.DuckDBPyConnection, is_kept: bool) -> None:
    """Keeps the metadata of Parquet files in memory, or reads them for each query.

    Where a page lies is found by looking into the metadata of all files. Those of a table take 20 KB for each rank,
    beside the memory limit; of small files they are read as fast as they are looked up.
    """
    # Global, or cursors would not have it.
    connection.execute(f"SET GLOBAL parquet_metadata_cache = {str(is_kept).lower()}")


def memory_setting(memory: int) -> str:
    """Bytes as DuckDB takes them."""
    return f"{memory // 1024}KiB"


@contextmanager
def memory_errors(limits: Limits, is_kept: bool, *paths: Path) -> Iterator[None]:
    """Turns DuckDB's lack of memory into an ExportError of the exports that are being read, with advice.

    ``is_kept`` says whether there is a cache that columns could be kept in.
    """
    try:
        yield
    except Exception as error:
        causes = _causes(error)
        if not causes:
            raise
        name = named(paths[0]) if len(paths) == 1 else f"{named(paths[0])} and {len(paths) - 1} more"
        # DuckDB says how much of its own limit is used if that was reached; else the system refused.
        cause, advice = _too_little(limits, refused=not any(" used)" in str(cause) for cause in causes))
        if not is_kept:
            advice += ", or leave --no-cache out"
        raise ExportError(name, cause, advice) from None


def _too_little(limits: Limits, refused: bool) -> tuple[str, str]:
    """The cause and the advice. ``refused``: the system gave no memory, though DuckDB might have taken more."""
    more, space = 2 * limits.memory, address_limit()
    fits = f"its columns do not fit into the memory that DuckDB may take, {size_words(limits.database)}"
    # More memory for DuckDB is no use where the process may not have so many addresses.
    if space is not None and (refused or more > space - resources.OWN_ADDRESSES):
        cause = f"its columns do not fit into the memory that this process may take, {size_words(space)}"
        return cause, "let it take more with `ulimit -v`, or ask for less of it"
    if refused:
        return "the system has not enough memory for its columns", "try a smaller --memory-limit, or another machine"
    return fits, f"allow more, such as --memory-limit {size_words(more)}"


def _causes(error: BaseException) -> list[BaseException]:
    """DuckDB's errors about memory that are behind an error: SQLAlchemy or one of ours may have taken their place."""
    import duckdb

    every = (error, getattr(error, "orig", None), error.__context__)
    return [cause for cause in every if isinstance(cause, duckdb.OutOfMemoryException)]


def engine_of(cursor: Callable[[], duckdb.DuckDBPyConnection]) -> sa.Engine:
    """SQLAlchemy's engine, for which ``cursor`` makes connections."""
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
    """UNION ALL as a balanced tree, so that hundreds of reports do not nest hundreds of levels deep."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return union(parts[:middle]).union(union(parts[middle:]))


def empty_view(table: CanonicalTable) -> str:
    fields = ", ".join(f'CAST(NULL AS {item.kind.value}) AS "{item.name}"' for item in table.fields)
    return f"SELECT CAST(0 AS BIGINT) AS report, CAST(0 AS BIGINT) AS clock_offset, {fields} WHERE false"


def series(values: Any) -> Any:
    """A pandas column that keeps integers exact where some are missing."""
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
    # Not ``filled(None)``: numpy takes that as "its own default", which is a question mark.
    return np.where(np.ma.getmaskarray(values), np.array(None, dtype=object), values.data)
