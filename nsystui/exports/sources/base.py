"""What every source is made of: the SQL that reads a native table, and the words of it that are always the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nsystui.exports.canonical import NO_PROCESS
from nsystui.exports.schema import Schema
from nsystui.exports.sources.times import Times


@dataclass(frozen=True)
class Transform:
    """How ``chunk`` (as ``c``) becomes rows of one canonical table: DuckDB's SQL for each field.

    ``joins`` are the lookups by the alias that the fields use. ``where`` is SQL that SQLite understands as well.
    ``times`` tells the rows whose times cannot be, which are left out; ``None`` where rows need none, or all are well.
    ``order`` is the column by which the rows of a chunk are sorted, if any. ``first_choice`` has shorter SQL for
    fields that look further only where it gives NULL.
    """

    fields: Mapping[str, str]
    joins: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    order: str = "start"
    is_distinct: bool = False
    first_choice: Mapping[str, str] = field(default_factory=dict)
    times: Times | None = None

    @property
    def kept(self) -> str:
        """The condition for a row of the chunk to be a row of the table; empty where all are. SQLite's SQL as well."""
        possible = "" if self.times is None else self.times.possible
        return f"({self.where}) AND {possible}" if self.where and possible else self.where or possible

    def select(self, names: Collection[str] | None = None, first_choice: bool = False, tie: str = "row_id") -> str:
        """The SELECT over ``chunk`` of these fields, or of all; without a ``tie`` in the order of the chunk.

        ``tie`` is the column that decides between equal values of ``order``.
        """
        fields = self._chosen(names, first_choice)
        columns = ", ".join(f'{sql} AS "{name}"' for name, sql in fields.items())
        parts = [f"SELECT {'DISTINCT ' if self.is_distinct else ''}{columns} FROM chunk c", *self._joined(fields)]
        parts += [f"WHERE {self.kept}"] if self.kept else []
        parts += [f'ORDER BY c."{self.order}", c.{tie}'] if self.order and tie else []
        return " ".join(parts)

    def words(self, names: Collection[str], first_choice: bool = False) -> frozenset[str]:
        """Every word in the SELECT of these fields, among them the columns of ``chunk`` that it needs."""
        fields = self._chosen(names, first_choice)
        return words_of(" ".join([*fields.values(), *self._joined(fields), self.kept, self.order]))

    def _chosen(self, names: Collection[str] | None, first_choice: bool) -> dict[str, str]:
        chosen = {name: sql for name, sql in self.fields.items() if names is None or name in names}
        if first_choice:
            chosen.update({name: sql for name, sql in self.first_choice.items() if name in chosen})
        return chosen

    def _joined(self, fields: Mapping[str, str]) -> list[str]:
        """The joins that the fields or the condition use."""
        used = words_of(" ".join([*fields.values(), self.where]))
        return [join for alias, join in self.joins.items() if alias in used]


def words_of(sql: str) -> frozenset[str]:
    """The names in SQL (and its words): enough to see what it cannot use."""
    return frozenset(re.findall(r"\w+", sql))


@dataclass(frozen=True)
class Source:
    """One native table: the columns to read (SQLite's SQL by our names), and the canonical tables that they make.

    ``first_row`` is added to rowids, so that two native tables can share one canonical table. ``decoded`` are the
    canonical tables that it feeds besides, by way of Python.
    """

    table: str
    columns: Mapping[str, str]
    makes: Mapping[str, Transform]
    first_row: int = 0
    decoded: tuple[str, ...] = ()

    @property
    def feeds(self) -> tuple[str, ...]:
        """The names of the canonical tables that its rows go to."""
        return (*self.makes, *self.decoded)

    @property
    def scan(self) -> str:
        """The SQLite query for one chunk; the two rowids are to be filled in as integers."""
        return self.scan_of({"row_id", *self.columns})

    def scan_of(self, names: Collection[str]) -> str:
        """``scan`` with only those columns whose name is among ``names``; one of them may be ``row_id``."""
        readable = {"row_id": "rowid", **self.columns}
        columns = [f'{sql} AS "{name}"' for name, sql in readable.items() if name in names]
        return f'SELECT {", ".join(columns) or "rowid"} FROM "{self.table}" WHERE rowid BETWEEN %d AND %d'


def process_of(thread: str) -> str:
    """SQL for the globalPid of a globalTid: the lowest 24 bits are the thread."""
    return f"({thread} & -16777216)"


def labelled(column: str, labels: Mapping[int, str]) -> str:
    """SQL that words an enum value with NVIDIA's label; an unknown value keeps its number."""
    cases = " ".join(f"WHEN {value} THEN '{label}'" for value, label in labels.items())
    return f"CASE {column} {cases} ELSE CAST({column} AS VARCHAR) END"


def integers(schema: Schema, table: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """Columns for a source: ``wanted`` maps our names to NVIDIA's, all integers; ``start`` and ``end`` are times."""
    return {
        name: schema.time(table, native) if name in ("start", "end") else schema.integer(table, native)
        for name, native in wanted.items()
    }


def as_they_are(*names: str) -> dict[str, str]:
    """Fields that are columns of the chunk under the same name."""
    return {name: f'c."{name}"' for name in names}


STRINGS = {"s": "LEFT JOIN strings s ON s.id = name_id"}
NVTX_TEXT = "CASE WHEN text <> '' THEN text ELSE coalesce(s.value, '') END"
PLACE = {
    "start": "start",
    "end": "end",
    "process": "globalPid",
    "device": "deviceId",
    "context": "contextId",
    "green_context": "greenContextId",
    "stream": "streamId",
    "correlation_id": "correlationId",
}
PLACE_FIELDS = {**as_they_are(*PLACE), "process": f'coalesce(c."process", {NO_PROCESS})'}
