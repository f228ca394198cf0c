"""Captures of one process in several exports, read as one report (docs/ranks.md#captures).

``nsys profile --capture-range-end=repeat`` writes an export for each capture: ``report.1``, ``report.2`` and so on.
"""

from collections import ChainMap
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import TypeVar

from nsystui.base.answer import UNKNOWN
from nsystui.exports.metadata import Metadata
from nsystui.store.report import Report, spans_of, utc_starts
from nsystui.store.tally import LeftOut

T = TypeVar("T")
_SAME_BOOT = 10**9
"""The most by which UTC and the machine's clock may differ over a run, ns; a restarted machine begins at 0."""


@dataclass(frozen=True)
class CaptureFacts:
    """The facts of several captures as one report, on the clock of the first; see `store.report.Facts`."""

    captures: tuple[Report, ...]

    @cached_property
    def metadata(self) -> Metadata:
        """The first capture's metadata, with the GPUs, devices, streams, ranks and clocks of all."""
        every = [capture.metadata for capture in self.captures]
        return replace(
            every[0],
            duration=self.last_event,
            gpus=tuple({gpu.gpu: gpu for facts in reversed(every) for gpu in facts.gpus}.values()),
            cuda_devices=tuple(dict.fromkeys(device for facts in every for device in facts.cuda_devices)),
            blocking_streams=tuple(dict.fromkeys(stream for facts in every for stream in facts.blocking_streams)),
            mpi_ranks={process: rank for facts in every for process, rank in facts.mpi_ranks.items()},
            gpu_clocks=tuple(clock for facts in every for clock in facts.gpu_clocks),
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows of each canonical table, counted when looked up."""
        return _Sums(*(capture.packed.counts for capture in self.captures))  # type: ignore[arg-type]  # only read

    def max_rows(self, table: str) -> int:
        """Return an upper bound on the rows of a canonical table."""
        return sum(capture.packed.max_rows(table) for capture in self.captures)

    @property
    def left_out(self) -> Mapping[str, LeftOut]:
        """Rows left out of canonical tables."""
        return _Sums(*(capture.packed.left_out for capture in self.captures))  # type: ignore[arg-type]  # only read

    @property
    def first_event(self) -> int | None:
        return min((first for first, _ in spans_of(self.captures)), default=None)

    @property
    def last_event(self) -> int | None:
        return max((last for _, last in spans_of(self.captures)), default=None)


class _Sums(ChainMap[str, T]):
    """Counts, summed over captures."""

    def __getitem__(self, table: str) -> T:
        counts = [counts[table] for counts in self.maps if table in counts]
        return reduce(add, counts) if counts else self.__missing__(table)


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
    return replace(first, packed=facts, captures=on_first_clock, label=_numbered(first)[0], ranks={}, damaged=damaged)


def with_joined_captures(reports: Iterable[Report]) -> tuple[Report, ...]:
    """Return the reports, with the captures of each process as one report."""
    groups: dict[Hashable, list[list[Report]]] = {}
    sources = (source for report in reports for source in report.sources)
    for report in sorted(sources, key=lambda source: source.metadata.session_start_utc or 0):
        facts = report.metadata
        runs = groups.setdefault((facts.host, facts.command, *sorted(facts.environment.items())), [])
        run: list[Report] = next((run for run in runs if _continues(run[-1], report)), [])
        if not run:
            runs.append(run)
        run.append(report)
    return tuple(joined(run) for runs in groups.values() for run in runs)


def _continues(before: Report, after: Report) -> bool:
    """Return whether a report is a process's next capture: by session or number, GPUs (if both used any) and time."""
    facts, (stem, number), (next_stem, next_number) = before.metadata, _numbered(before), _numbered(after)
    is_session = bool(facts.session_id) and facts.session_id == after.metadata.session_id
    # Only names that several folders have begin with a folder: n0/report.1, report.2.
    short, long = sorted((f"/{stem}", f"/{next_stem}"), key=len)
    is_next = before.folder == after.folder and long.endswith(short) and number < next_number
    gpus, next_gpus = _gpus(facts), _gpus(after.metadata)
    common = gpus.keys() & next_gpus.keys()
    is_same = all(gpus[key] == next_gpus[key] for key in common) and (common or not (gpus and next_gpus))
    return bool(facts.host and (is_session or is_next) and is_same) and _is_later(before, after)


def _is_later(before: Report, after: Report) -> bool:
    """Return whether a report begins after the last event of another, without a restart of the machine between."""
    start, next_start = utc_starts([before, after])
    clock, next_clock = before.metadata.system_clock, after.metadata.system_clock
    if start is None or next_start is None:
        return False
    if clock is not None and next_clock is not None and abs(next_clock - clock - (next_start - start)) > _SAME_BOOT:
        return False
    return start + (before.packed.last_event or 0) <= next_start + (after.packed.first_event or 0)


def _gpus(facts: Metadata) -> dict[tuple[int, int], str]:
    """Return the UUID of each GPU by process (pid) and number there; if not recorded, the processes with streams."""
    uuids = {gpu.gpu: gpu.uuid for gpu in facts.gpus}
    used = {(item.pid, item.device): uuids.get(item.gpu, "") for item in facts.cuda_devices}
    return used or {(pid, UNKNOWN): "" for pid in facts.blocking_streams_by_pid}


def _numbered(report: Report) -> tuple[str, int]:
    """Return a name without the number that nsys gives to each capture, and the number."""
    stem, _, number = report.name.rpartition(".")
    return (stem, int(number)) if stem and number.isascii() and number.isdecimal() else (report.name, 0)
