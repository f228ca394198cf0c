"""Which rows have times that cannot be: one rule for all tables, used wherever rows are read.

An event has a start, and an end that is not before it; only NVTX ranges and MPI and UCX calls may never have ended.
Both lie within the bounds of `schema`. A row that breaks the rule is left out and counted: no number is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsystui.exports.canonical import (
    DIAGNOSTICS,
    EFA_SAMPLES,
    MPI_CALLS,
    NVTX_RANGES,
    UCX_CALLS,
    CanonicalTable,
)
from nsystui.exports.schema import LATEST

_MAY_BE_OPEN = (NVTX_RANGES, MPI_CALLS, UCX_CALLS)
# What they say counts without a time: nsys does not always write one.
_NEED_NO_TIME = (DIAGNOSTICS, EFA_SAMPLES)

REASONS = ("without a time", "at no time of the session", "ending before the start")
"""Why rows are left out, in the order of the numbers in ``Times.reason``, which begin at 0."""


@dataclass(frozen=True)
class Times:
    """SQL about the row of a chunk (as ``c``) that SQLite and DuckDB understand.

    ``possible`` is true of rows whose times can be, ``reason`` is a number for all others.
    """

    possible: str
    reason: str


def times_of(table: CanonicalTable) -> Times | None:
    """The rule for the rows of a table; ``None`` where they need no time."""
    if table in _NEED_NO_TIME:
        return None
    names = [name for name in ("start", "end", "time") if name in table.field_names]
    return _times(names, may_be_open=table in _MAY_BE_OPEN) if names else None


def _times(names: Sequence[str], may_be_open: bool) -> Times:
    first, *rest = (f'c."{name}"' for name in names)
    if not rest:
        return Times(f"{first} <= {LATEST}", f"CASE WHEN {first} IS NULL THEN 0 ELSE 1 END")
    (last,) = rest
    missing = [f"{first} IS NULL", *([] if may_be_open else [f"{last} IS NULL"])]
    cases = f"WHEN {' OR '.join(missing)} THEN 0 WHEN {first} > {LATEST} OR {last} > {LATEST} THEN 1 ELSE 2"
    # What lies between the start and the bound lets no start beyond the bound through.
    end = f"coalesce({last}, {first})" if may_be_open else last
    return Times(f"{end} BETWEEN {first} AND {LATEST}", f"CASE {cases} END")


POSSIBLE_RANGE = _times(["start", "end"], may_be_open=True).possible
"""The condition for the rows of ``NVTX_RANGES``."""
POSSIBLE_WORK = _times(["start", "end"], may_be_open=False).possible
"""The condition for what a GPU did."""
