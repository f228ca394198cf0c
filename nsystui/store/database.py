"""DuckDB as the store uses it: in memory, within limits, and its results as numpy and pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsystui.exports.canonical import CanonicalTable

if TYPE_CHECKING:
    import duckdb
    import sqlalchemy as sa


@dataclass(frozen=True)
class Limits:
    """What the session may take of a shared machine. ``memory`` in bytes."""

    threads: int = 2
    memory: int = 2 << 30


def connect(limits: Limits) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that touches neither the network nor the working directory."""
    import duckdb

    return duckdb.connect(
        ":memory:",
        config={
            "threads": limits.threads,
            "memory_limit": f"{limits.memory // (1 << 20)}MB",
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


def engine_of(database: duckdb.DuckDBPyConnection) -> sa.Engine:
    import sqlalchemy as sa
    from duckdb_engine import ConnectionWrapper
    from sqlalchemy.pool import NullPool

    return sa.create_engine("duckdb://", creator=lambda: ConnectionWrapper(database.cursor()), poolclass=NullPool)


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
