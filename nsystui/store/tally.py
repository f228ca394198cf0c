"""Counts of canonical rows, with times and processes, and of rows left out because of impossible times.

`exports.sources.base` defines these times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nsystui.exports.canonical import API_CALLS, CanonicalTable
from nsystui.exports.schema import EARLIEST
from nsystui.exports.sources import REASONS, Transform
from nsystui.exports.sources.base import words_of

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class LeftOut:
    """Numbers of rows left out, in the order of ``REASONS``.

    Rows that lost their names (``nameless``) and ranges without end (``open``) are counted, too, but not left out.
    """

    by_reason: tuple[int, ...] = (0,) * len(REASONS)
    nameless: int = 0
    open: int = 0

    def __bool__(self) -> bool:
        return any((*self.by_reason, self.nameless, self.open))

    def __add__(self, other: LeftOut) -> LeftOut:
        both = zip(self.by_reason, other.by_reason, strict=True)
        return LeftOut(tuple(a + b for a, b in both), self.nameless + other.nameless, self.open + other.open)

    def __or__(self, other: LeftOut) -> LeftOut:
        """Combine two counts of the same rows, which were read twice."""
        return LeftOut(
            max(self.by_reason, other.by_reason), max(self.nameless, other.nameless), max(self.open, other.open)
        )

    @property
    def rows(self) -> int:
        return sum(self.by_reason)

    def to_json(self) -> list[int]:
        """Return plain values for ``json.dump``."""
        return [*self.by_reason, self.nameless, self.open]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> LeftOut:
        """Return the counts from the values of ``to_json``."""
        kinds = len(REASONS)
        return cls(tuple(map(int, values[:kinds])), *map(int, values[kinds:]))


def left_out_query(transform: Transform, rows: str) -> str:
    """Return SQL (SQLite, DuckDB) that counts, by reason, the rows left out of ``rows``, SQL of a chunk ``c``."""
    if transform.times is None:
        return "SELECT 0, 0"
    condition = f"({transform.where}) AND " if transform.where else ""
    condition += f"({transform.times.possible}) IS NOT TRUE"
    return f"SELECT {transform.times.reason}, count(*) FROM {rows} WHERE {condition} GROUP BY 1"


def left_out_of(rows: Iterable[tuple[int, int]]) -> LeftOut:
    """Return the result of `left_out_query` by reason."""
    by_reason = dict(rows)
    return LeftOut(tuple(by_reason.get(reason, 0) for reason in range(len(REASONS))))


def count_left_out(connection: duckdb.DuckDBPyConnection, transform: Transform) -> LeftOut:
    """Count the rows of ``chunk`` that are left out."""
    return left_out_of(connection.execute(left_out_query(transform, "chunk c")).fetchall())


def count_nameless(connection: duckdb.DuckDBPyConnection, transform: Transform) -> LeftOut:
    """Count the rows made from ``chunk`` that lost their name, or the name of their domain or type."""
    lost = lost_names(connection, transform)
    if not lost:
        return LeftOut()
    select = replace(transform, fields={"is_lost": " OR ".join(lost)}, is_distinct=False).select(tie="")
    return LeftOut(nameless=connection.execute(f"SELECT count(*) FROM ({select}) WHERE is_lost").fetchall()[0][0])


def lost_names(connection: duckdb.DuckDBPyConnection, transform: Transform) -> list[str]:
    """Return SQL columns that show whether the name of a row is lost, for lookups with lost names."""
    looked_up = {
        alias: table
        for alias, join in transform.joins.items()
        for table in ("strings", "domains", "efa_types", "efa_fields")
        if {alias, table} <= transform.words and table in words_of(join)
    }
    return [
        f"{alias}.is_lost"
        for alias, table in looked_up.items()
        if connection.execute(f"SELECT 1 FROM {table} WHERE is_lost LIMIT 1").fetchall()
    ]


_WORK = ("GraphLaunch", "Launch", "Memcpy", "Memset")
_NOTHING = Counter[int]()


def tallied(table: CanonicalTable) -> frozenset[str]:
    """Return the columns to tally."""
    names = "start", "end", "process", *(["name"] if table is API_CALLS else [])
    return frozenset(table.field_names).intersection(names)


@dataclass(frozen=True)
class Tally:
    """The rows of one canonical table in one report: their number, times (ns), and number by process.

    ``first`` and ``last`` are ``None`` without rows or times. ``calls`` are API calls that start GPU work, by a word in
    their names. ``processes`` and ``calls`` omit rows without a process.
    """

    rows: int = 0
    first: int | None = None
    last: int | None = None
    processes: Counter[int] = field(default_factory=Counter)
    calls: Mapping[str, Counter[int]] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        words = self.calls.keys() | other.calls.keys()
        calls = {word: self.calls.get(word, _NOTHING) + other.calls.get(word, _NOTHING) for word in words}
        starts = [first for first in (self.first, other.first) if first is not None]
        ends = [last for last in (self.last, other.last) if last is not None]
        first, last = min(starts, default=None), max(ends, default=None)
        return Tally(self.rows + other.rows, first, last, self.processes + other.processes, calls)

    def to_json(self) -> list[Any]:
        """Return plain values for ``json.dump``."""
        calls = {word: list(of.items()) for word, of in self.calls.items()}
        return [self.rows, self.first, self.last, list(self.processes.items()), calls]

    @classmethod
    def from_json(cls, values: list[Any]) -> Tally:
        """Return the tally from the values of ``to_json``."""
        rows, first, last, processes, calls = values
        return cls(rows, first, last, Counter(dict(processes)), {word: Counter(dict(of)) for word, of in calls.items()})


def first_of(table: str, start: str) -> str:
    """Return SQL for the first start of rows; NVTX that began long before the session does not extend it."""
    return f"min({start})" + (f" FILTER (WHERE {start} >= {EARLIEST})" if table.startswith(("nvtx", "nccl")) else "")


def tally_columns(connection: duckdb.DuckDBPyConnection, table: str, rows: str, names: Collection[str]) -> Tally:
    """Tally ``rows``, DuckDB's SQL with the columns ``names`` (of `tallied`) of a canonical table."""
    start, end, process, name = (
        f'"{column}"' if column in names else "NULL" for column in ("start", "end", "process", "name")
    )
    times = f"{first_of(table, start)}, greatest(max({start}), max({end}))"
    query, tally = f"SELECT {process}, {name}, {times}, count(*) FROM {rows} GROUP BY 1, 2", Tally()
    for owner, call, first, last, number in connection.execute(query).fetchall():
        rows_of = Counter({} if owner is None else {owner: number})
        words = () if call is None or "HostFunc" in call else [word for word in _WORK if word in call]
        tally += Tally(number, first, last, rows_of, dict.fromkeys(words, rows_of))
    return tally
