"""What a sink says of the rows that it has just kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nsystui.exports.canonical import CanonicalTable
from nsystui.store.device_rows import WORK_TABLES


@dataclass(frozen=True)
class Written:
    """How many rows, and from when to when their events are, ns; ``None`` where they do not stretch a session.

    ``untimed``: events among them without a time that nsys always writes, which is damage.
    """

    rows: int
    first: int | None = None
    last: int | None = None
    untimed: int = 0


def has_extent(table: CanonicalTable) -> bool:
    """Whether the rows of a table are events: samples, diagnostics and the profiler's own do not stretch a session."""
    return "start" in table.field_names and table.name not in ("nic_metrics", "profiler_overhead")


def always_timed(table: CanonicalTable) -> tuple[str, ...]:
    """The times that every event of a table has: only what a GPU did must have ended when the capture did."""
    if not has_extent(table):
        return ()
    return ("start", "end") if table.name in WORK_TABLES else ("start",)


def lacking_times(table: CanonicalTable) -> str:
    """SQL that counts the events without a time that all have."""
    lacking = " OR ".join(f'"{time}" IS NULL' for time in always_timed(table))
    return f"count(*) FILTER ({lacking})"


def written_of(table: CanonicalTable, rows: int, statistics: Mapping[str, Mapping[str, str]]) -> Written:
    """What DuckDB's ``COPY … (RETURN_STATS)`` says of its columns: least and greatest value of each, as text."""
    if not rows or not has_extent(table):
        return Written(rows)
    starts, ends = statistics['"start"'], statistics.get('"end"', {})
    # A range that was never closed reaches at least to its start.
    last = max((int(values["max"]) for values in (starts, ends) if "max" in values), default=None)
    untimed = max(int(statistics[f'"{time}"'].get("null_count", 0)) for time in always_timed(table))
    return Written(rows, int(starts["min"]) if "min" in starts else None, last, untimed)
