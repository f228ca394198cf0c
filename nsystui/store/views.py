"""The views that a session asks: the rows of a canonical table of every report, and the columns that a query reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from nsystui.exports.canonical import CanonicalTable
from nsystui.store.cache import ColumnFiles, PackedFiles
from nsystui.store.database import empty_view, union
from nsystui.store.report import PackedTables

if TYPE_CHECKING:
    import duckdb
    import sqlalchemy as sa
    from sqlalchemy.util import LRUCache

    from nsystui.store.on_demand import Columns


_MOST_TABLES = 64
"""The most tables in one UNION: DuckDB's planner nests more of them hundreds of levels deep, and refuses that."""


@dataclass(frozen=True)
class Rows:
    """The rows of a table that one report has: in Parquet ``files``, or in a ``table`` of the session's database.

    ``columns`` are in the files, where these need not have all; ``renamed`` is a field, and its name there.
    """

    report: int
    clock_offset: int
    files: tuple[str, ...] = ()
    table: str = ""
    columns: frozenset[str] = frozenset()
    renamed: tuple[str, str] | None = None


def packed_rows(packed: PackedFiles | PackedTables, table: CanonicalTable, report: int, offset: int) -> Iterator[Rows]:
    """Yield the rows of a table in a pack, if it has any."""
    if isinstance(packed, PackedTables):
        if table.name in packed.names:
            yield Rows(report, offset, table=packed.names[table.name])
    elif table.name in packed.files:
        files = tuple(str(path) for path in packed.files[table.name])
        yield Rows(report, offset, files, renamed=packed.renamed.get(table.name))


def loaded_rows(columns: Columns, report: int, offset: int) -> Iterator[Rows]:
    """Yield the columns of a table that were read, if it has rows."""
    if not columns.rows:
        return
    if isinstance(columns, ColumnFiles):
        yield Rows(report, offset, tuple(str(path) for path in columns.files), columns=columns.names)
    else:
        yield Rows(report, offset, table=columns.table)


def make_view(
    database: duckdb.DuckDBPyConnection,
    table: CanonicalTable,
    rows: Iterable[Rows],
    names: Sequence[str] | None = None,
) -> None:
    """Makes the view of a table over the rows of the reports, with the columns ``names``, else with all.

    Hundreds of tables are views of views.
    """
    parts = [_relation(database, group, names) for group in _groups(rows)]
    if not parts:
        database.sql(empty_view(table)).create_view(table.name, replace=True)
        return
    if len(parts) <= _MOST_TABLES:
        union(parts).create_view(table.name, replace=True)
        return
    # In one transaction, or a query of another thread would find some of the views new and others as they were.
    database.begin()
    try:
        level = 0
        while len(parts) > 1:
            groups = [union(parts[first : first + _MOST_TABLES]) for first in range(0, len(parts), _MOST_TABLES)]
            for number, group in enumerate(groups):
                group.create_view(f"{table.name}_{level}_{number}", replace=True)
            parts = [database.view(f"{table.name}_{level}_{number}") for number in range(len(groups))]
            level += 1
        parts[0].create_view(table.name, replace=True)
        database.commit()
    except BaseException:
        database.rollback()
        raise


def _groups(rows: Iterable[Rows]) -> Iterator[list[Rows]]:
    """Neighbours that can be read as one: files of one form, of which none belongs to two reports."""
    for (is_table, *_), alike in itertools.groupby(rows, lambda one: (bool(one.table), one.columns, one.renamed)):
        group: list[Rows] = []
        files: set[str] = set()
        for one in alike:
            if group and (is_table or not files.isdisjoint(one.files)):
                yield group
                group, files = [], set()
            group.append(one)
            files.update(one.files)
        yield group


def _relation(
    database: duckdb.DuckDBPyConnection, group: Sequence[Rows], names: Sequence[str] | None
) -> duckdb.DuckDBPyRelation:
    """The rows of a group with the two columns that place them in the session."""
    from duckdb import ColumnExpression, ConstantExpression, FunctionExpression

    first, file_number = group[0], None
    if first.table:
        rows = database.table(first.table)
    else:
        # One reading of all files opens them one after the other, and skips the files of reports that are not asked
        # for; hundreds of readings would each be planned by itself, with all files open at once.
        files = [file for one in group for file in one.files]
        # Directories are called ``rank=0`` in a packed job, which makes no column here.
        rows = database.read_parquet(files, hive_partitioning=False, filename=len(group) > 1)
        if len(group) > 1:
            file_number = FunctionExpression("list_position", ConstantExpression(files), ColumnExpression("filename"))
    stored = [name for name in rows.columns if name != "filename"]

    def of_report(name: str) -> duckdb.Expression:
        found = ConstantExpression(getattr(first, name))
        if file_number is not None:
            values = ConstantExpression([getattr(one, name) for one in group for _ in one.files])
            found = FunctionExpression("list_extract", values, file_number)
        return found.cast("BIGINT").alias(name)

    fields = {name: name for name in stored}
    if first.renamed is not None:
        field, its_name = first.renamed
        fields = {field if name == its_name else name: name for name in stored}
    selected = [ColumnExpression(fields[name]).alias(name) for name in (fields if names is None else names)]
    return rows.select(of_report("report"), of_report("clock_offset"), *selected)


def used_columns(query: sa.Executable) -> Mapping[str, frozenset[str]]:
    """The names of the columns that ``query`` reads of each table, anywhere in it; none for a mere count of rows."""
    key = query._generate_cache_key()  # type: ignore[attr-defined]  # as SQLAlchemy's own examples of caches do
    if key is None:
        return _columns_of(query)
    known = _known()
    used = known.get(key.key)
    if used is None:
        used = known[key.key] = _columns_of(query)
    return used


@cache
def _known() -> LRUCache[Any, Mapping[str, frozenset[str]]]:
    """The columns that the queries of this process read: they are few, asked again and again with other values."""
    from sqlalchemy.util import LRUCache

    return LRUCache(500)


def _columns_of(query: sa.Executable) -> Mapping[str, frozenset[str]]:
    import sqlalchemy as sa
    from sqlalchemy.sql import visitors

    used: dict[str, set[str]] = {}
    for item in visitors.iterate(query):  # type: ignore[arg-type]
        if isinstance(item, sa.Table):
            used.setdefault(item.name, set())
        # A selected table means all of its columns, and the walk does not reach them.
        columns = list(item.selected_columns) if isinstance(item, sa.Select) else [item]
        for column in columns:
            for base in column.base_columns if isinstance(column, sa.ColumnElement) else ():
                table = getattr(base, "table", None)
                if isinstance(table, sa.Table):
                    used.setdefault(table.name, set()).add(base.name)
    return {table: frozenset(names) for table, names in used.items()}
