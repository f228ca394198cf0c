"""How many rows a canonical table has, when and of which processes: asked of SQLite, with no row read into a column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsystui.exports.sources import Source, Transform

if TYPE_CHECKING:
    import sqlite3

    import duckdb


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


def count(connection: sqlite3.Connection, parts: Iterable[tuple[Source, Transform]]) -> int:
    """Only the rows of a canonical table: the cheapest question.

    Raises sqlite3.Error where a file cannot be read.
    """
    return sum(_ask(connection, source, transform, "count(*)")[0][0] for source, transform in parts)


def tally(connection: sqlite3.Connection, parts: Iterable[tuple[Source, Transform]]) -> Tally:
    """Of a canonical table, by all native tables that make it: one pass over each, two where processes share it.

    Raises sqlite3.Error where a file cannot be read.
    """
    return sum((_of_part(connection, source, transform) for source, transform in parts), Tally())


def tally_columns(connection: duckdb.DuckDBPyConnection, table: str, names: Collection[str]) -> Tally:
    """Of columns in DuckDB: ``table`` is its SQL, ``names`` are those of start, end and process that it has."""
    start, end, process = (f'"{name}"' if name in names else "NULL" for name in ("start", "end", "process"))
    query = f"SELECT {process}, count(*), min({start}), greatest(max({start}), max({end})) FROM {table} GROUP BY 1"
    found = connection.execute(query).fetchall()
    parts = (Tally(rows, first, last, {} if of is None else {of: rows}) for of, rows, first, last in found)
    return sum(parts, Tally())


def _of_part(connection: sqlite3.Connection, source: Source, transform: Transform) -> Tally:
    """What SQLite finds without sorting: where all rows are of the first one's process, they need not be grouped."""
    fields = transform.fields
    start, end, process = (fields.get(name, "NULL") for name in ("start", "end", "process"))
    first_row = _ask(connection, source, transform, process, "LIMIT 1")
    if not first_row:
        return Tally()
    likely: int | None = first_row[0][0]
    is_likely = "NULL" if likely is None else f"sum({process} = {int(likely):d})"
    aggregates = f"count(*), min({start}), max({start}), max({end}), {is_likely}"
    rows, first, last_start, last_end, of_likely = _ask(connection, source, transform, aggregates)[0]
    # A range that was never closed reaches at least to its start.
    last = max((time for time in (last_start, last_end) if time is not None), default=None)
    if process == "NULL":
        return Tally(rows, first, last)
    if likely is not None and of_likely == rows:
        return Tally(rows, first, last, {likely: rows})
    grouped = dict(_ask(connection, source, transform, f"{process}, count(*)", f"GROUP BY {process}"))
    grouped.pop(None, None)
    return Tally(rows, first, last, grouped)


def _ask(
    connection: sqlite3.Connection, source: Source, transform: Transform, selected: str, ending: str = ""
) -> list[tuple[Any, ...]]:
    """Asks for the rows of a native table that a transform keeps, under the names that its fields use."""
    columns = ", ".join(f'{sql} AS "{name}"' for name, sql in source.columns.items())
    where = f"WHERE {transform.where}" if transform.where else ""
    query = f'SELECT {selected} FROM (SELECT {columns} FROM "{source.table}") c {where} {ending}'
    return connection.execute(query).fetchall()
