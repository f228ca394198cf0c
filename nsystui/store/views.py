"""Views of a session: the rows of a canonical table in every report, and the columns that a query reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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


_MAX_TABLES = 64
"""The maximum number of tables in one UNION: DuckDB's planner nests them, and refuses hundreds of levels."""
_TIMES = frozenset({"start", "end", "time"})
_COUNTED = frozenset({"row", "correlation_id", "chain", "stack", "number", "function", "module", "file"})
"""Numbers that each export counts from 0."""


@dataclass(frozen=True)
class Rows:
    """The rows of a table in one report: in Parquet ``files``, or in a ``table`` of the session's database.

    ``columns`` are set if the files may lack some; ``renamed`` is a field, and its name in the files. ``rank`` selects
    its rows in files of several reports. ``capture`` is the number of a joined capture, and ``shift``, ns, the distance
    of its clock from the first capture's.
    """

    report: int
    clock_offset: int
    files: tuple[str, ...] = ()
    table: str = ""
    columns: frozenset[str] = frozenset()
    renamed: tuple[str, str] | None = None
    clock_rate: float = 0.0
    shift: int = 0
    capture: int = 0
    rank: int | None = None


def packed_rows(packed: PackedFiles | PackedTables, table: CanonicalTable, report: Rows) -> Iterator[Rows]:
    """Yield the rows of a table in a pack, if any; ``report`` has the other facts."""
    if isinstance(packed, PackedTables):
        if table.name in packed.names:
            yield replace(report, table=packed.names[table.name])
    elif table.name in packed.files:
        files = tuple(str(path) for path in packed.files[table.name])
        yield replace(report, files=files, renamed=packed.renamed.get(table.name), rank=packed.rank)


def loaded_rows(columns: Columns, report: Rows) -> Iterator[Rows]:
    """Yield the loaded columns of a table, if it has rows."""
    if not columns.rows:
        return
    if isinstance(columns, ColumnFiles):
        yield replace(report, files=tuple(str(path) for path in columns.files), columns=columns.names)
    else:
        yield replace(report, table=columns.table)


def make_view(
    database: duckdb.DuckDBPyConnection, table: CanonicalTable, rows: Iterable[Rows], names: Sequence[str] | None = None
) -> None:
    """Make the view of a table over the reports' rows, with the columns ``names``, or all columns.

    Hundreds of tables become views of views.
    """
    rows = sorted(rows, key=lambda item: () if item.rank is None else item.files)  # reports in one file together
    parts = [_relation(database, table, group, names) for group in _groups(rows)]
    if any(item.capture for item in rows) and _COUNTED.isdisjoint(table.field_names):
        parts = [union(parts).distinct()]  # processes, threads and devices, which each capture lists
    if not parts:
        database.sql(empty_view(table)).create_view(table.name, replace=True)
        return
    if len(parts) <= _MAX_TABLES:
        union(parts).create_view(table.name, replace=True)
        return
    # In one transaction, so that no query of another thread sees new and old views together.
    database.begin()
    try:
        level = 0
        while len(parts) > 1:
            groups = [union(parts[first : first + _MAX_TABLES]) for first in range(0, len(parts), _MAX_TABLES)]
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
    """Yield adjacent rows that can be read together: of one form, in the same files or in files of one report."""

    def form(item: Rows) -> tuple[object, ...]:
        # Parquet skips row groups only by stored times, which a rate and a shift change.
        files = () if item.rank is None else item.files
        return bool(item.table), files, item.columns, item.renamed, bool(item.clock_rate), bool(item.capture)

    for (is_table, *_), similar in itertools.groupby(rows, form):
        group: list[Rows] = []
        files: set[str] = set()
        for item in similar:
            if group and item.rank is None and (is_table or not files.isdisjoint(item.files)):
                yield group
                group, files = [], set()
            group.append(item)
            files.update(item.files)
        yield group


def _relation(
    database: duckdb.DuckDBPyConnection, table: CanonicalTable, group: Sequence[Rows], names: Sequence[str] | None
) -> duckdb.DuckDBPyRelation:
    from duckdb import ColumnExpression, ConstantExpression, FunctionExpression

    first, number = group[0], None
    if first.table:
        rows = database.table(first.table)
    else:
        rows, number = _read(database, group)

    def of_report(name: str, kind: str = "BIGINT") -> duckdb.Expression:
        value = ConstantExpression(getattr(first, name))
        if number is not None:
            values = ConstantExpression([getattr(item, name) for item in group for _ in item.files])
            value = FunctionExpression("list_extract", values, number)
        return value.cast(kind).alias(name)

    def column(name: str) -> duckdb.Expression:
        value = ColumnExpression(fields[name])
        if is_of_captures:  # otherwise these sums of zeros would be computed for each row of each query
            value = _of_capture(value, name, fields, of_report)
        if first.clock_rate and name in _TIMES:
            value += (value * of_report("clock_rate", "DOUBLE")).cast("BIGINT")
        return value.alias(name)

    is_of_captures = any(item.capture or item.shift for item in group)
    stored = {} if first.renamed is None else {first.renamed[0]: first.renamed[1]}
    columns = {*rows.columns}
    fields = {name: stored.get(name, name) for name in table.field_names if stored.get(name, name) in columns}
    return rows.select(of_report("report"), of_report("clock_offset"), *map(column, fields if names is None else names))


def _read(
    database: duckdb.DuckDBPyConnection, group: Sequence[Rows]
) -> tuple[duckdb.DuckDBPyRelation, duckdb.Expression | None]:
    """Return the rows of a group's files, and the number of a row's file or rank in the group if there are several.

    One scan of all files opens them one after another, and skips the files of unselected reports; hundreds of scans
    would each be planned separately, with all files open at once.
    """
    from duckdb import ColumnExpression, ConstantExpression, FunctionExpression

    if group[0].rank is None:
        column, keys = "filename", ConstantExpression(files := [file for item in group for file in item.files])
        rows = database.read_parquet(files, hive_partitioning=False, filename=len(group) > 1)
    else:
        column, keys = "rank", ConstantExpression(ranks := [item.rank for item in group])
        rows = database.read_parquet(list(group[0].files), hive_partitioning=False)
        rows = rows.filter(ColumnExpression(column).isin(*map(ConstantExpression, ranks)))
    return rows, FunctionExpression("list_position", keys, ColumnExpression(column)) if len(group) > 1 else None


def _of_capture(
    value: duckdb.Expression, name: str, names: Container[str], of_report: Callable[[str], duckdb.Expression]
) -> duckdb.Expression:
    """Return a column with times on the first capture's clock, and numbers that no other capture has."""
    if name in _TIMES:
        return value + of_report("shift")
    if name not in _COUNTED or (name == "function" and "depth" not in names):  # a text in OpenACC events
        return value
    return value + of_report("capture") * (1 << 40)


def used_columns(query: sa.Executable) -> Mapping[str, frozenset[str]]:
    """Return the columns that ``query`` reads of each table, anywhere in it; no columns for a mere row count."""
    key = query._generate_cache_key()  # type: ignore[attr-defined]  # as SQLAlchemy's own examples of caches do
    if key is None:
        return _columns_of(query)
    cached = _columns_by_query()
    used = cached.get(key.key)
    if used is None:
        used = cached[key.key] = _columns_of(query)
    return used


@cache
def _columns_by_query() -> LRUCache[Any, Mapping[str, frozenset[str]]]:
    """Return the process's cache of columns: its queries are few, and repeat with other values."""
    from sqlalchemy.util import LRUCache

    return LRUCache(500)


def _columns_of(query: sa.Executable) -> Mapping[str, frozenset[str]]:
    import sqlalchemy as sa
    from sqlalchemy.sql import visitors

    used: dict[str, set[str]] = {}
    for node in visitors.iterate(query):  # type: ignore[arg-type]
        if isinstance(node, sa.Table):
            used.setdefault(node.name, set())
        # A selected table means all its columns, which the walk does not reach.
        for column in list(node.selected_columns) if isinstance(node, sa.Select) else [node]:
            for base in column.base_columns if isinstance(column, sa.ColumnElement) else ():
                table = getattr(base, "table", None)
                if isinstance(table, sa.Table):
                    used.setdefault(table.name, set()).add(base.name)
    return {table: frozenset(names) for table, names in used.items()}
