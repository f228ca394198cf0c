"""The rows of one report that a session asks of, wherever they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsystui.exports.canonical import CanonicalTable
from nsystui.store.cache import PackedFiles
from nsystui.store.column_cache import ColumnFiles
from nsystui.store.database import empty_view, union
from nsystui.store.on_demand import OnDemand

if TYPE_CHECKING:
    import duckdb


_MOST = 64
"""So many reports are one UNION: of more DuckDB's planner makes one that is hundreds of levels deep, and refuses it."""


def make_view(
    database: duckdb.DuckDBPyConnection, table: CanonicalTable, parts: Sequence[duckdb.DuckDBPyRelation]
) -> None:
    """Makes the view of a table over the rows of the reports; hundreds of them are views of views."""
    if not parts:
        database.sql(empty_view(table)).create_view(table.name, replace=True)
        return
    if len(parts) <= _MOST:
        union(parts).create_view(table.name, replace=True)
        return
    # In one transaction, or a query of another thread would find some of the views new and others as they were.
    database.begin()
    try:
        level = 0
        while len(parts) > 1:
            groups = [union(parts[first : first + _MOST]) for first in range(0, len(parts), _MOST)]
            for number, group in enumerate(groups):
                group.create_view(f"{table.name}_{level}_{number}", replace=True)
            parts = [database.view(f"{table.name}_{level}_{number}") for number in range(len(groups))]
            level += 1
        parts[0].create_view(table.name, replace=True)
        database.commit()
    except BaseException:
        database.rollback()
        raise


def packed_rows(
    database: duckdb.DuckDBPyConnection, packed: PackedFiles, table: CanonicalTable
) -> duckdb.DuckDBPyRelation:
    """All columns of a table that the pack has files of, by their canonical names."""
    files = [str(path) for path in packed.files[table.name]]
    # Directories are called ``rank=0`` in a packed job, which makes no column here.
    relation = database.read_parquet(files, hive_partitioning=False)
    if table.name not in packed.renamed:
        return relation
    name, stored = packed.renamed[table.name]
    return relation.project(f'* RENAME ("{stored}" AS "{name}")')


def loaded_columns(
    database: duckdb.DuckDBPyConnection, report: OnDemand, table: CanonicalTable
) -> duckdb.DuckDBPyRelation | None:
    """The columns of a table that were read; ``None`` where it has no rows."""
    columns = report.loaded[table.name]
    if not columns.rows:
        return None
    if isinstance(columns, ColumnFiles):
        return database.read_parquet([str(path) for path in columns.files])
    return database.table(columns.table)
