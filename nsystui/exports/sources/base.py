"""What every source is made of: the SQL that reads a native table, and the words of it that are always the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nsystui.exports.schema import Schema


@dataclass(frozen=True)
class Source:
    """One native table: the SQLite column list to read, and the DuckDB SELECTs over ``chunk`` that it feeds.

    ``first_row`` is added to rowids, so that two native tables can share one canonical table. ``decoded`` are the
    canonical tables that it feeds besides, by way of Python.
    """

    table: str
    select: str
    transforms: Mapping[str, str]
    first_row: int = 0
    decoded: tuple[str, ...] = ()

    @property
    def feeds(self) -> tuple[str, ...]:
        """The names of the canonical tables that its rows go to."""
        return (*self.transforms, *self.decoded)

    @property
    def scan(self) -> str:
        """The SQLite query for one chunk; the two rowids are to be filled in as integers."""
        return f'SELECT rowid AS row_id, {self.select} FROM "{self.table}" WHERE rowid BETWEEN %d AND %d'


def process_of(thread: str) -> str:
    """SQL for the globalPid of a globalTid: the lowest 24 bits are the thread."""
    return f"({thread} & -16777216)"


def labelled(column: str, labels: Mapping[int, str]) -> str:
    """SQL that words an enum value with NVIDIA's label; an unknown value keeps its number."""
    cases = " ".join(f"WHEN {value} THEN '{label}'" for value, label in labels.items())
    return f"CASE {column} {cases} ELSE CAST({column} AS VARCHAR) END"


def integers(schema: Schema, table: str, wanted: Mapping[str, str]) -> str:
    """A SQLite column list: ``wanted`` maps our names to NVIDIA's, all integers."""
    return ", ".join(f'{schema.integer(table, native)} AS "{name}"' for name, native in wanted.items())


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
PLACE_NAMES = ", ".join(f'"{name}"' for name in PLACE)
