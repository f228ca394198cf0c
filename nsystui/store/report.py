"""Facts of reports, open exports as a session knows them, and their common clock (docs/ranks.md#clock)."""

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

# Ranks of one job start their sessions within minutes of each other, ns.
_START_SPREAD = 600 * 10**9
# One kernel provides UTC and the machine's clock: if they differ by more than this, they are not from one boot, ns.
_SAME_BOOT = 10**7


class Facts(Protocol):
    """The facts of a report: `PackedReport`, or `OnDemand`, which counts when it is asked."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    def max_rows(self, table: str) -> int:
        """Return an upper bound on the rows of a canonical table, without reading any."""
        ...

    @property
    def left_out(self) -> Mapping[str, LeftOut]:
        """Rows left out of canonical tables because of impossible times, as far as they were read."""
        ...

    @property
    def first_event(self) -> int | None: ...
    @property
    def last_event(self) -> int | None: ...


@dataclass
class Packed:
    """Facts of packed rows, by canonical table: the numbers packed and left out.

    ``devices`` contains the (process, device) of GPU work, ``spans`` the first start and the last end, ns. OS runtime
    calls, which continue long after the program's work, have their own span: a busy GPU would look idle at the end.
    """

    counts: Counter[str] = field(default_factory=Counter)
    left_out: defaultdict[str, LeftOut] = field(default_factory=lambda: defaultdict(LeftOut))
    devices: set[tuple[int, int]] = field(default_factory=set)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, table: CanonicalTable, rows: int, first: int | None = None, last: int | None = None) -> None:
        """Count rows of a table, with the first start and last end of their events."""
        self.counts[table.name] += rows
        if first is not None and last is not None:
            self._widen("os" if table is canonical.OS_CALLS else "work", first, last)

    def add(self, other: Packed) -> None:
        """Add the facts that another thread packed from the same export."""
        self.counts.update(other.counts)
        for name, left_out in other.left_out.items():
            self.left_out[name] += left_out
        self.devices |= other.devices
        for span, (first, last) in other.spans.items():
            self._widen(span, first, last)

    def _widen(self, span: str, first: int, last: int) -> None:
        before = self.spans.get(span)
        self.spans[span] = (first, last) if before is None else (min(before[0], first), max(before[1], last))


@dataclass(frozen=True)
class PackedReport:
    """The facts of a packed export: its metadata, rows per canonical table, and the extent of its events, ns.

    ``counts`` is 0 for a canonical table whose native tables are empty, and omits tables without native tables. OS
    runtime calls count for the extent only without other events. ``left_out`` counts rows with impossible times.
    ``damaged`` contains the cause for each canonical table without rows because of damage.
    """

    metadata: Metadata
    counts: dict[str, int] = field(default_factory=dict)
    first_event: int | None = None
    last_event: int | None = None
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def max_rows(self, table: str) -> int:
        """Return the number of rows of a canonical table."""
        return self.counts.get(table, 0)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dump``."""
        return {
            "metadata": self.metadata.to_json(),
            "counts": self.counts,
            "first_event": self.first_event,
            "last_event": self.last_event,
            "left_out": {name: rows.to_json() for name, rows in self.left_out.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PackedReport:
        """Return the facts from the values of ``to_json``."""
        return cls(
            Metadata.from_json(values["metadata"]),
            {name: int(rows) for name, rows in values["counts"].items()},
            values["first_event"],
            values["last_event"],
            {name: LeftOut.from_json(left_out) for name, left_out in values["left_out"].items()},
        )


@dataclass(frozen=True)
class PackedTables:
    """A packed report in memory: its facts, and the session's table for each canonical table.

    ``damaged`` contains the cause for each native table that is left out.
    """

    report: PackedReport
    names: Mapping[str, str]
    damaged: Mapping[str, str] = field(default_factory=dict)


def has_span(table: CanonicalTable) -> bool:
    """Return whether the rows of a table are events that extend a session.

    Samples, diagnostics and the profiler's overhead do not, nor do memory and files, which calls allocate and read.
    """
    without_span = ("nic_metrics", "profiler_overhead", "gpu_memory", "file_accesses")
    return "start" in table.field_names and table.name not in without_span


@dataclass(frozen=True)
class Report:
    """An open export. Job time is ``time × (1 + clock_rate) + clock_offset``, ns (docs/ranks.md#clock).

    Tables of a session contain ``time × (1 + clock_rate)``: the report's own clock, without its drift.
    ``on_job_clock`` is whether its job time is comparable with other reports. In a packed job, ``path`` is the report's
    directory, and ``ranks`` contains the rank of each process. ``label`` is the name, if it is not the file's.
    ``damaged`` contains the cause for each canonical table without rows because of damage.
    """

    index: int
    path: Path
    packed: Facts
    clock_offset: int = 0
    clock_rate: float = 0.0
    on_job_clock: bool = True
    label: str = ""
    ranks: Mapping[int, int] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    captures: tuple[Report, ...] = ()
    """The captures of the process that this report joins, in order of time, on the clock of the first."""

    @property
    def sources(self) -> tuple[Report, ...]:
        """Its captures, or the report itself: each has an export."""
        return self.captures or (self,)

    @property
    def metadata(self) -> Metadata:
        return self.packed.metadata

    @property
    def name(self) -> str:
        """The file name without its suffix, after directories if other reports have the same name."""
        return self.label or self.path.stem

    @property
    def folder(self) -> Path:
        """The directory of the export, or the packed job."""
        return job_of(self.path) if self.ranks else self.path.absolute().parent

    def job_time(self, time: int) -> int:
        """Return the job time of a recorded time, ns."""
        return time + round(time * self.clock_rate) + self.clock_offset

    def count(self, table: sa.Table | CanonicalTable) -> int:
        return self.packed.counts.get(table.name, 0)

    def has(self, table: sa.Table | CanonicalTable) -> bool:
        """Return whether the export has native tables for ``table``, even without rows: then 0 is a fact."""
        return table.name in self.packed.counts


def spans_of(reports: Iterable[Report]) -> list[tuple[int, int]]:
    """Return the first start and last end of the events of each report that has any, ns of job time."""
    spans = ((report, report.packed.first_event, report.packed.last_event) for report in reports)
    return [
        (report.job_time(first), report.job_time(last))
        for report, first, last in spans
        if first is not None and last is not None
    ]


def most_rows(reports: Iterable[Report], table: sa.Table | CanonicalTable) -> int:
    """Return an upper bound on the rows of a table over all reports: exact counts may require reading them."""
    return sum(report.packed.max_rows(table.name) for report in reports)


@dataclass(frozen=True)
class Clock:
    """The common clock of the reports.

    If ``is_common``, they are aligned by their UTC starts; else each counts from its session's start. ``shifts``, ns by
    report index, are added to that, as far as better offsets are known. ``rates`` are the clock rates of reports whose
    clocks drift, by report index.
    """

    is_common: bool = True
    shifts: Mapping[int, int] = field(default_factory=dict)
    rates: Mapping[int, float] = field(default_factory=dict)


def aligned(reports: Sequence[Report], clock: Clock = Clock()) -> tuple[Report, ...]:
    """Return reports in order, on one clock: each is shifted by its UTC start relative to the earliest.

    Reports of one machine that recorded its own clock (``systemClockNs``) are shifted by it. Reports of different runs
    keep their own clocks: their sessions are further apart than they last, or on one machine a session begins after the
    last event of another.
    """
    starts = utc_starts(reports) if clock.is_common else [0] * len(reports)
    known_starts = [start for start in starts if start is not None]
    earliest = min(known_starts, default=0)
    spread = max(known_starts, default=0) - earliest
    # If they start together, their durations, which may be costly to find out, are not needed.
    is_far = spread > _START_SPREAD and spread - _START_SPREAD > max(item.packed.last_event or 0 for item in reports)
    starts_at_once = spread <= 5 * 10**9
    one_job = bool(known_starts) and not is_far and (starts_at_once or not _are_apart(reports, starts))
    moved = []
    for report, start in zip(reports, starts, strict=True):
        on_job_clock = one_job and start is not None
        offset = start - earliest + clock.shifts.get(report.index, 0) if one_job and start is not None else 0
        rate = clock.rates.get(report.index, 0.0) if on_job_clock else 0.0
        if (offset, rate, on_job_clock) != (report.clock_offset, report.clock_rate, report.on_job_clock):
            report = replace(report, clock_offset=offset, clock_rate=rate, on_job_clock=on_job_clock)
        moved.append(report)
    return tuple(sorted(moved, key=lambda report: report.index))


def _are_apart(reports: Sequence[Report], starts: Sequence[int | None]) -> bool:
    """Return whether, on one machine (one clock), a session begins after the last event of another."""
    first_ends: dict[str, int] = {}
    for report, start in zip(reports, starts, strict=True):
        last = report.packed.last_event
        if start is not None and last is not None:
            first_ends[report.metadata.host] = min(start + last, first_ends.get(report.metadata.host, start + last))
    hosts = [(report.metadata.host, start) for report, start in zip(reports, starts, strict=True) if start is not None]
    return any(host and start > first_ends.get(host, start) for host, start in hosts)


def utc_starts(reports: Sequence[Report]) -> list[int | None]:
    """Return the UTC start of each session, ns; differences within one machine follow its own clock."""
    firsts: dict[str, tuple[int, int]] = {}
    for report in reports:
        facts = report.metadata
        if facts.host and facts.session_start_utc is not None and facts.system_clock is not None:
            moment = (facts.system_clock, facts.session_start_utc)
            firsts[facts.host] = min(firsts.get(facts.host, moment), moment)
    return [_utc_start(report.metadata, firsts.get(report.metadata.host)) for report in reports]


def _utc_start(facts: Metadata, first: tuple[int, int] | None) -> int | None:
    if first is None or facts.session_start_utc is None or facts.system_clock is None:
        return facts.session_start_utc
    by_clock = first[1] + facts.system_clock - first[0]
    return by_clock if abs(by_clock - facts.session_start_utc) < _SAME_BOOT else facts.session_start_utc
