"""The rows of one report that a session asks of, wherever they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.exports.canonical import CanonicalTable
from nsystui.store.cache import PackedFiles
from nsystui.store.column_cache import ColumnFiles
from nsystui.store.on_demand import OnDemand

if TYPE_CHECKING:
    import duckdb


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
