"""What a sink says of the rows that it has just kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nsystui.exports.canonical import CanonicalTable


@dataclass(frozen=True)
class Written:
    """How many rows, and from when to when their events are, ns; ``None`` where they do not stretch a session."""

    rows: int
    first: int | None = None
    last: int | None = None


def has_extent(table: CanonicalTable) -> bool:
    """Whether the rows of a table are events: samples, diagnostics and the profiler's own do not stretch a session."""
    return "start" in table.field_names and table.name not in ("nic_metrics", "profiler_overhead")


def written_of(table: CanonicalTable, rows: int, statistics: Mapping[str, Mapping[str, str]]) -> Written:
    """What DuckDB's ``COPY … (RETURN_STATS)`` says of its columns: least and greatest value of each, as text."""
    if not rows or not has_extent(table):
        return Written(rows)
    starts, ends = statistics['"start"'], statistics.get('"end"', {})
    # A range that was never closed reaches at least to its start.
    last = max(int(values["max"]) for values in (starts, ends) if "max" in values)
    return Written(rows, int(starts["min"]), last)
