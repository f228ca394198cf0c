"""The facts of a report, an open export as the session has it, and one clock for all (docs/ranks.md#clock)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.discover import job_of
from nsystui.exports.metadata import Metadata
from nsystui.store.tally import LeftOut

if TYPE_CHECKING:
    import sqlalchemy as sa

# The ranks of one job start their sessions within minutes of each other, ns.
_START_SPREAD = 600 * 10**9
# Closer together than this they are of one job, ns.
_TOGETHER = 5 * 10**9
# UTC and the machine's own clock are read from one kernel: where they disagree by more, it was not one boot, ns.
_SAME_BOOT = 10**7


class Facts(Protocol):
    """The facts of a report: ``PackedReport``, or one that counts when it is asked."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    def most(self, table: str) -> int:
        """How many rows a canonical table has at the most, told without reading any."""
        ...

    @property
    def left_out(self) -> Mapping[str, LeftOut]:
        """The rows of canonical tables that were left out because their times cannot be, as far as they were read."""
        ...

    @property
    def first_event(self) -> int | None: ...
    @property
    def last_event(self) -> int | None: ...


@dataclass
class Packed:
    """The facts of the rows that were packed so far, by canonical table: their number, and the number left out.

    ``devices`` are the (process, device) of GPU work, ``spans`` the first start and the last end, ns. OS runtime calls
    have a span of their own: they go on long after the program's work, and would make a busy GPU look idle at the end.
    """

    counts: Counter[str] = field(default_factory=Counter)
    left_out: defaultdict[str, LeftOut] = field(default_factory=lambda: defaultdict(LeftOut))
    devices: set[tuple[int, int]] = field(default_factory=set)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, table: CanonicalTable, rows: int, first: int | None = None, last: int | None = None) -> None:
        """Adds rows of a table, with the first start and last end of their events."""
        self.counts[table.name] += rows
        if first is not None and last is not None:
            self._widen("os" if table is canonical.OS_CALLS else "work", first, last)

    def add(self, other: Packed) -> None:
        """Adds what another thread packed of the same export."""
        self.counts.update(other.counts)
        for name, left_out in other.left_out.items():
            self.left_out[name] += left_out
        self.devices |= other.devices
        for which, (first, last) in other.spans.items():
            self._widen(which, first, last)

    def _widen(self, which: str, first: int, last: int) -> None:
        before = self.spans.get(which)
        self.spans[which] = (first, last) if before is None else (min(before[0], first), max(before[1], last))


@dataclass(frozen=True)
class PackedReport:
    """The facts of a packed export: its metadata, rows per canonical table, and the extent of its events in ns.

    ``counts`` is 0 for a canonical table whose native tables are there without rows, and lacks one without any.
    OS runtime calls count for the extent only in a report that has no other events. ``left_out`` are the rows whose
    times cannot be. ``damaged``: canonical tables without rows here because of damage in the export, and which.
    """

    metadata: Metadata
    counts: dict[str, int] = field(default_factory=dict)
    first_event: int | None = None
    last_event: int | None = None
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def most(self, table: str) -> int:
        """How many rows a canonical table has."""
        return self.counts.get(table, 0)

    def to_json(self) -> dict[str, Any]:
        """As plain values for ``json.dump``."""
        return {
            "metadata": self.metadata.to_json(),
            "counts": self.counts,
            "first_event": self.first_event,
            "last_event": self.last_event,
            "left_out": {name: found.to_json() for name, found in self.left_out.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PackedReport:
        """The inverse of ``to_json``."""
        return cls(
            Metadata.from_json(values["metadata"]),
            {name: int(rows) for name, rows in values["counts"].items()},
            values["first_event"],
            values["last_event"],
            {name: LeftOut.from_json(found) for name, found in values["left_out"].items()},
        )


@dataclass(frozen=True)
class PackedTables:
    """A packed report in memory: its facts, and the table of the session's database for each canonical one.

    ``damaged``: native tables that are left out, and why.
    """

    report: PackedReport
    names: Mapping[str, str]
    damaged: Mapping[str, str] = field(default_factory=dict)


_WITHOUT_SPAN = ("nic_metrics", "profiler_overhead", "gpu_memory", "memory_pools", "file_accesses")


def has_span(table: CanonicalTable) -> bool:
    """Whether the rows of a table are events: samples, diagnostics and the profiler's own do not stretch a session.

    Nor do memory and files, which are allocated and read inside of calls.
    """
    return "start" in table.field_names and table.name not in _WITHOUT_SPAN


@dataclass(frozen=True)
class Report:
    """One open export. ``clock_offset`` is the ns to add to its times to get job time.

    ``on_job_clock``: whether job time means the same here as in the other reports. Of a packed job, ``path`` is the
    directory of the report in there, ``label`` the name of the export, and ``ranks`` says which rank each process is.
    ``damaged``: the canonical tables that are without rows because the export is damaged, and how it is.
    """

    index: int
    path: Path
    packed: Facts
    clock_offset: int = 0
    on_job_clock: bool = True
    label: str = ""
    ranks: Mapping[int, int] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def metadata(self) -> Metadata:
        return self.packed.metadata

    @property
    def name(self) -> str:
        """The file name without its ending: how a report is called on screens and in file names."""
        return self.label or self.path.stem

    @property
    def folder(self) -> Path:
        """The directory of the export, or the packed job."""
        return job_of(self.path) if self.label else self.path.absolute().parent

    def count(self, table: sa.Table | CanonicalTable) -> int:
        return self.packed.counts.get(table.name, 0)

    def has(self, table: sa.Table | CanonicalTable) -> bool:
        """Whether the export has what ``table`` comes from, if only without rows: then none is a fact, and 0."""
        return table.name in self.packed.counts


def most_rows(reports: Iterable[Report], table: sa.Table | CanonicalTable) -> int:
    """Rows of a table over all reports at the most: to count those of an export takes reading all of them."""
    return sum(report.packed.most(table.name) for report in reports)


@dataclass(frozen=True)
class Clock:
    """How the clocks of the reports become one.

    ``is_common``: by their UTC starts; if not, each report counts from the start of its own session. ``shifts`` are
    added to that, ns by the index of a report, as far as somebody knows better.
    """

    is_common: bool = True
    shifts: Mapping[int, int] = field(default_factory=dict)


def aligned(reports: Sequence[Report], clock: Clock = Clock()) -> tuple[Report, ...]:
    """Reports in order, on one clock: each is shifted by its UTC start against the earliest.

    Reports of one machine that tell its own clock (``systemClockNs``) are shifted against each other by that. Reports
    of different runs (their sessions lie further apart than they last, or on one machine one begins after the last
    event of another) keep their own clocks.
    """
    if not clock.is_common:
        moved = [
            replace(report, clock_offset=clock.shifts.get(report.index, 0), on_job_clock=True) for report in reports
        ]
        return tuple(sorted(moved, key=lambda report: report.index))
    starts = _starts(reports)
    known = [start for start in starts if start is not None]
    first = min(known, default=0)
    spread = max(known, default=0) - first
    # Where they start together it need not be known how long they last, which may be costly to find out.
    is_far = spread > _START_SPREAD and spread - _START_SPREAD > max(one.packed.last_event or 0 for one in reports)
    one_job = bool(known) and not is_far and (spread <= _TOGETHER or not _apart(reports, starts))
    moved = []
    for report, start in zip(reports, starts, strict=True):
        is_placed = one_job and start is not None
        offset = start - first + clock.shifts.get(report.index, 0) if one_job and start is not None else 0
        if (offset, is_placed) != (report.clock_offset, report.on_job_clock):
            report = replace(report, clock_offset=offset, on_job_clock=is_placed)
        moved.append(report)
    return tuple(sorted(moved, key=lambda report: report.index))


def _apart(reports: Sequence[Report], starts: Sequence[int | None]) -> bool:
    """Whether on one machine, whose clock is one, a session begins after the last event of another."""
    ends: dict[str, int] = {}
    for report, start in zip(reports, starts, strict=True):
        last = report.packed.last_event
        if start is not None and last is not None:
            ends[report.metadata.host] = min(start + last, ends.get(report.metadata.host, start + last))
    known = [(report.metadata.host, start) for report, start in zip(reports, starts, strict=True) if start is not None]
    return any(host and start > ends.get(host, start) for host, start in known)


def _starts(reports: Sequence[Report]) -> list[int | None]:
    """The UTC start of each session, ns; on one machine as far apart as that machine's clock says."""
    firsts: dict[str, tuple[int, int]] = {}
    for report in reports:
        facts = report.metadata
        if facts.host and facts.session_start_utc is not None and facts.system_clock is not None:
            moment = (facts.system_clock, facts.session_start_utc)
            firsts[facts.host] = min(firsts.get(facts.host, moment), moment)
    return [_start(report.metadata, firsts.get(report.metadata.host)) for report in reports]


def _start(facts: Metadata, first: tuple[int, int] | None) -> int | None:
    if first is None or facts.session_start_utc is None or facts.system_clock is None:
        return facts.session_start_utc
    by_clock = first[1] + facts.system_clock - first[0]
    return by_clock if abs(by_clock - facts.session_start_utc) < _SAME_BOOT else facts.session_start_utc
