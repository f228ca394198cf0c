"""Captures of one process in several exports, read as one report (docs/ranks.md#captures).

``nsys profile --capture-range-end=repeat`` writes an export for each capture: ``report.1``, ``report.2`` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nsystui.base.answer import UNKNOWN
from nsystui.exports import canonical
from nsystui.exports.metadata import Metadata
from nsystui.store.report import Report, spans_of, utc_starts
from nsystui.store.tally import LeftOut

_NUMBERED = re.compile(r"(.+)\.([0-9]+)")
_SAME_BOOT = 10**9
"""The most by which UTC and the machine's clock may differ over a run, ns; a restarted machine begins at 0."""


@dataclass(frozen=True)
class CaptureFacts:
    """The facts of several captures as one report, on the clock of the first; see `store.report.Facts`."""

    captures: tuple[Report, ...]

    @cached_property
    def metadata(self) -> Metadata:
        """The first capture's metadata, with the devices, streams, ranks and clocks of all captures."""
        every = [capture.metadata for capture in self.captures]
        return replace(
            every[0],
            duration=self.last_event,
            cuda_devices=tuple(dict.fromkeys(device for facts in every for device in facts.cuda_devices)),
            blocking_streams=tuple(dict.fromkeys(stream for facts in every for stream in facts.blocking_streams)),
            mpi_ranks={process: rank for facts in every for process, rank in facts.mpi_ranks.items()},
            gpu_clocks=tuple(clock for facts in every for clock in facts.gpu_clocks),
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows of each canonical table."""
        names = [table.name for table in canonical.TABLES]
        return {
            name: sum(capture.packed.counts.get(name, 0) for capture in self.captures)
            for name in names
            if any(name in capture.packed.counts for capture in self.captures)
        }

    def max_rows(self, table: str) -> int:
        """Return an upper bound on the rows of a canonical table."""
        return sum(capture.packed.max_rows(table) for capture in self.captures)

    @property
    def left_out(self) -> Mapping[str, LeftOut]:
        """Rows left out of canonical tables."""
        sums: dict[str, LeftOut] = {}
        for capture in self.captures:
            for name, rows in capture.packed.left_out.items():
                sums[name] = sums.get(name, LeftOut()) + rows
        return sums

    @property
    def first_event(self) -> int | None:
        return min((first for first, _ in spans_of(self.captures)), default=None)

    @property
    def last_event(self) -> int | None:
        return max((last for _, last in spans_of(self.captures)), default=None)


def joined(captures: Sequence[Report]) -> Report:
    """Return captures of one process, in order of time, as one report with the first capture's index."""
    first = captures[0]
    if len(captures) == 1:
        return first
    starts = [start or 0 for start in utc_starts(captures)]
    on_first_clock = tuple(
        replace(capture, clock_offset=start - starts[0], clock_rate=0.0)
        for capture, start in zip(captures, starts, strict=True)
    )
    damaged = {table: cause for capture in captures for table, cause in capture.damaged.items()}
    facts = CaptureFacts(on_first_clock)
    return replace(first, packed=facts, captures=on_first_clock, label=_stem(first), ranks={}, damaged=damaged)


def with_joined_captures(reports: Sequence[Report]) -> tuple[Report, ...]:
    """Return the reports, with the captures of each process as one report."""
    sources = [source for report in reports for source in report.sources]
    groups: dict[Hashable, list[Report]] = {}
    for report in sources:
        facts = report.metadata
        is_known = facts.host and facts.session_start_utc is not None and _gpus(report)
        key = (facts.host, facts.command, *sorted(facts.environment.items())) if is_known else report.index
        groups.setdefault(key, []).append(report)
    return tuple(joined(run) for group in groups.values() for run in _runs(group))


def _runs(reports: Sequence[Report]) -> list[list[Report]]:
    """Split reports of one host and command into the captures of each process, in order of time."""
    runs: list[list[Report]] = []
    for report in sorted(reports, key=lambda report: report.metadata.session_start_utc or 0):
        run = next((run for run in runs if _continues(run[-1], report)), None)
        if run is None:
            runs.append([report])
        else:
            run.append(report)
    return runs


def _continues(before: Report, after: Report) -> bool:
    """Return whether a report is the next capture of the same process: by its session or its number, GPUs and time."""
    is_session = bool(before.metadata.session_id) and before.metadata.session_id == after.metadata.session_id
    is_next = before.folder == after.folder and _stem(before) == _stem(after) and _number(before) < _number(after)
    gpus = _gpus(before), _gpus(after)
    common = gpus[0].keys() & gpus[1].keys()
    if not (is_session or is_next) or not common or any(gpus[0][key] != gpus[1][key] for key in common):
        return False
    starts, clocks = utc_starts([before, after]), (before.metadata.system_clock, after.metadata.system_clock)
    elapsed = (after.metadata.session_start_utc or 0) - (before.metadata.session_start_utc or 0)
    if clocks[0] is not None and clocks[1] is not None and abs(clocks[1] - clocks[0] - elapsed) > _SAME_BOOT:
        return False
    last, first = before.packed.last_event or 0, after.packed.first_event or 0
    return (starts[0] or 0) + last <= (starts[1] or 0) + first


def _gpus(report: Report) -> dict[tuple[int, int], str]:
    """Return the UUID of each GPU by process (pid) and number there; if not recorded, the processes with streams."""
    facts = report.metadata
    uuids = {gpu.gpu: gpu.uuid for gpu in facts.gpus}
    used = {(item.pid, item.device): uuids.get(item.gpu, "") for item in facts.cuda_devices}
    return used or {(pid, UNKNOWN): "" for pid in facts.blocking_streams_by_pid}


def _stem(report: Report) -> str:
    """Return a name without the number that nsys gives to each capture."""
    match = _NUMBERED.fullmatch(report.name)
    return match[1] if match else report.name


def _number(report: Report) -> int:
    match = _NUMBERED.fullmatch(report.name)
    return int(match[2]) if match else 0
