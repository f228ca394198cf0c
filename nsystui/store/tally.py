"""Rows counted in an export: how many a canonical table has, when and of which processes, and how many are left out.

SQLite is asked, with no row read into a column. Rows are left out because their times cannot be
(`exports.sources.base`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.exports import opening
from nsystui.exports.sources import REASONS, Source, Transform
from nsystui.exports.sources.base import words_of

if TYPE_CHECKING:
    import sqlite3

    import duckdb

Part = tuple[Source, Transform]


@dataclass(frozen=True)
class LeftOut:
    """Rows by reason, in the order of ``REASONS``; ``nameless`` are not left out, but their names are lost."""

    by_reason: tuple[int, ...] = (0,) * len(REASONS)
    nameless: int = 0

    def __bool__(self) -> bool:
        return any(self.by_reason) or self.nameless > 0

    def __add__(self, other: LeftOut) -> LeftOut:
        both = zip(self.by_reason, other.by_reason, strict=True)
        return LeftOut(tuple(a + b for a, b in both), self.nameless + other.nameless)

    def __or__(self, other: LeftOut) -> LeftOut:
        """Of the same rows, which were read for something else."""
        return LeftOut(max(self.by_reason, other.by_reason), max(self.nameless, other.nameless))

    @property
    def rows(self) -> int:
        return sum(self.by_reason)

    def to_json(self) -> list[int]:
        """As plain values for ``json.dump``."""
        return [*self.by_reason, self.nameless]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> LeftOut:
        """The inverse of ``to_json``."""
        kinds = len(REASONS)
        return cls(tuple(map(int, values[:kinds])), sum(values[kinds:]))


def left_out_query(transform: Transform, rows: str) -> str:
    """SQL for reasons and numbers of rows among ``rows`` (SQL of a chunk called ``c``), for SQLite and DuckDB."""
    if transform.times is None:
        return "SELECT 0, 0"
    condition = f"({transform.where}) AND " if transform.where else ""
    condition += f"({transform.times.possible}) IS NOT TRUE"
    return f"SELECT {transform.times.reason}, count(*) FROM {rows} WHERE {condition} GROUP BY 1"


def left_out_of(found: Iterable[tuple[int, int]]) -> LeftOut:
    """The result of ``left_out_query``."""
    by_reason = dict(found)
    return LeftOut(tuple(by_reason.get(reason, 0) for reason in range(len(REASONS))))


def count_left_out(connection: duckdb.DuckDBPyConnection, transform: Transform) -> LeftOut:
    """The rows of ``chunk`` that are left out."""
    return left_out_of(connection.execute(left_out_query(transform, "chunk c")).fetchall())


def count_nameless(connection: duckdb.DuckDBPyConnection, transform: Transform) -> LeftOut:
    """The rows made of ``chunk`` for which a name, or that of the domain or the type, is lost."""
    looked_up = {
        alias: table
        for alias, join in transform.joins.items()
        for table in ("strings", "domains", "efa_types", "efa_fields")
        if {alias, table} <= transform.words and table in words_of(join)
    }
    lost = [
        f"{alias}.is_lost"
        for alias, table in looked_up.items()
        if connection.execute(f"SELECT 1 FROM {table} WHERE is_lost LIMIT 1").fetchall()
    ]
    if not lost:
        return LeftOut()
    select = replace(transform, fields={"is_lost": " OR ".join(lost)}, is_distinct=False).select(tie="")
    return LeftOut(nameless=connection.execute(f"SELECT count(*) FROM ({select}) WHERE is_lost").fetchall()[0][0])


@dataclass(frozen=True)
class Tally:
    """The rows of one canonical table in one report: how many, from when to when (ns), and how many of each process.

    ``first`` and ``last`` are ``None`` without rows, and where rows are at no time. Rows of no process are in no
    process.
    """

    rows: int = 0
    first: int | None = None
    last: int | None = None
    processes: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        processes = dict(self.processes)
        for process, rows in other.processes.items():
            processes[process] = processes.get(process, 0) + rows
        starts = [first for first in (self.first, other.first) if first is not None]
        ends = [last for last in (self.last, other.last) if last is not None]
        return Tally(self.rows + other.rows, min(starts, default=None), max(ends, default=None), processes)

    def to_json(self) -> list[Any]:
        """As plain values for ``json.dump``."""
        return [self.rows, self.first, self.last, list(self.processes.items())]

    @classmethod
    def from_json(cls, values: list[Any]) -> Tally:
        """The inverse of ``to_json``."""
        rows, first, last, processes = values
        return cls(rows, first, last, dict(processes))


def count(connection: sqlite3.Connection, path: Path, parts: Iterable[Part]) -> tuple[int, LeftOut]:
    """Only the rows of a canonical table: the cheapest question. With those that are left out.

    Raises ExportError where the export at ``path`` cannot be read.
    """
    rows, left_out = 0, LeftOut()
    for source, transform in parts:
        with opening.reading(source.table), opening.sqlite_errors(path):
            ((possible,),) = _ask(connection, source, "count(*)", transform.condition)
            rows += possible
            left_out += _left_out(connection, source, transform, possible)
    return rows, left_out


def tally(connection: sqlite3.Connection, path: Path, parts: Iterable[Part]) -> tuple[Tally, LeftOut]:
    """Of a canonical table, by all native tables that make it: one pass over each, two where processes share it.

    With the rows that are left out. Raises ExportError where the export at ``path`` cannot be read.
    """
    found, left_out = Tally(), LeftOut()
    for source, transform in parts:
        with opening.reading(source.table), opening.sqlite_errors(path):
            of_part, without = _of_part(connection, source, transform)
        found, left_out = found + of_part, left_out + without
    return found, left_out


def tally_columns(connection: duckdb.DuckDBPyConnection, table: str, names: Collection[str]) -> Tally:
    """Of columns in DuckDB: ``table`` is its SQL, ``names`` are those of start, end and process that it has."""
    start, end, process = (f'"{name}"' if name in names else "NULL" for name in ("start", "end", "process"))
    query = f"SELECT {process}, count(*), min({start}), greatest(max({start}), max({end})) FROM {table} GROUP BY 1"
    found = connection.execute(query).fetchall()
    parts = (Tally(rows, first, last, {} if of is None else {of: rows}) for of, rows, first, last in found)
    return sum(parts, Tally())


def _of_part(connection: sqlite3.Connection, source: Source, transform: Transform) -> tuple[Tally, LeftOut]:
    """Tallied by SQLite without sorting: where all rows are of the first one's process, they need not be grouped."""
    fields = transform.fields
    start, end, process = (fields.get(name, "NULL") for name in ("start", "end", "process"))
    first_row = _ask(connection, source, process, transform.where, "LIMIT 1")
    if not first_row:
        return Tally(), LeftOut()
    likely: int | None = first_row[0][0]
    is_likely = "NULL" if likely is None else f"sum({process} = {int(likely):d})"
    aggregates = f"count(*), min({start}), max({start}), max({end}), {is_likely}"
    rows, first, last_start, last_end, of_likely = _ask(connection, source, aggregates, transform.condition)[0]
    left_out = _left_out(connection, source, transform, rows)
    # A range that was never closed reaches at least to its start.
    last = max((time for time in (last_start, last_end) if time is not None), default=None)
    if process == "NULL":
        return Tally(rows, first, last), left_out
    if likely is not None and of_likely == rows:
        return Tally(rows, first, last, {likely: rows}), left_out
    grouped = dict(_ask(connection, source, f"{process}, count(*)", transform.condition, f"GROUP BY {process}"))
    grouped.pop(None, None)
    return Tally(rows, first, last, grouped), left_out


def _left_out(connection: sqlite3.Connection, source: Source, transform: Transform, possible: int) -> LeftOut:
    """Of a part that has so many rows that are ``possible``: to count all of its rows costs next to nothing."""
    if transform.times is None or _ask(connection, source, "count(*)", transform.where) == [(possible,)]:
        return LeftOut()
    return left_out_of(connection.execute(left_out_query(transform, _chunk(source))).fetchall())


def _ask(
    connection: sqlite3.Connection, source: Source, selected: str, condition: str, ending: str = ""
) -> list[tuple[Any, ...]]:
    """Asks for the rows of a native table that fulfil a condition, under the names that the fields use."""
    condition = f"WHERE {condition}" if condition else ""
    return connection.execute(f"SELECT {selected} FROM {_chunk(source)} {condition} {ending}").fetchall()


def _chunk(source: Source) -> str:
    """All rows of a native table as SQL of SQLite."""
    columns = ", ".join(f'{sql} AS "{name}"' for name, sql in source.columns.items())
    return f'(SELECT {columns} FROM "{source.table}") c'
