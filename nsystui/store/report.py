"""An open export as the session has it, and one clock for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.metadata import Metadata

if TYPE_CHECKING:
    import sqlalchemy as sa

# The ranks of one job start their sessions within minutes of each other, ns.
_START_SPREAD = 600 * 10**9


class Facts(Protocol):
    """What is known of a report: ``PackedReport``, or one that counts when it is asked."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def first_event(self) -> int | None: ...
    @property
    def last_event(self) -> int | None: ...


@dataclass(frozen=True)
class Report:
    """One open export. ``clock_offset`` is the ns to add to its times to get job time."""

    index: int
    path: Path
    packed: Facts
    clock_offset: int = 0

    @property
    def metadata(self) -> Metadata:
        return self.packed.metadata

    @property
    def name(self) -> str:
        """The file name without its ending: how a report is called on screens and in file names."""
        return self.path.stem

    def count(self, table: sa.Table | CanonicalTable) -> int:
        return self.packed.counts.get(table.name, 0)

    def has(self, table: sa.Table | CanonicalTable) -> bool:
        """Whether the export has what ``table`` comes from, if only without rows: then none is a fact, and 0."""
        return table.name in self.packed.counts


def aligned(reports: Sequence[Report]) -> tuple[Report, ...]:
    """Reports in order, on one clock: each is shifted by its UTC start against the earliest (domain §6.3).

    Reports of different runs (their sessions lie further apart than they last) keep their own clocks.
    """
    starts = [report.metadata.session_start_utc for report in reports]
    known = [start for start in starts if start is not None]
    first = min(known, default=0)
    spread = max(known, default=0) - first
    # Where they start together it need not be known how long they last, which may be costly to find out.
    one_job = bool(known) and (spread <= _START_SPREAD or spread <= _longest(reports) + _START_SPREAD)
    moved = [
        replace(report, clock_offset=start - first if one_job and start is not None else 0)
        for report, start in zip(reports, starts, strict=True)
    ]
    return tuple(sorted(moved, key=lambda report: report.index))


def _longest(reports: Sequence[Report]) -> int:
    return max((report.packed.last_event or 0 for report in reports), default=0)
