"""CUDA memory of a job: use over time, and allocations.

See docs/numbers.md#gpu-memory. A free ends the allocation at its address, even if sizes differ; without a recorded
free, the next allocation there does. Only memory allocated during the recording counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, START, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import counted
from nsystui.base.types import Flags, Ints
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import duration, is_launched_by, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.tasks import used_devices
from nsystui.questions.queries.time_window import edges_of, extents, recorded, report_at
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd


ON_DEVICE = ("Device", "Array", "Device Static")
"""Kinds of memory that occupy the device's own, limited memory."""
NEVER = np.iinfo(np.int64).max

MEMORY = Column("memory", header="Memory", label="memory")
_PEAK = Column("peak", header="Peak (B)", label="peak", unit=Unit.BYTES)
_PEAK_TIME = Column("peak_time", header="Peak Time (ns)", label="peak at", unit=Unit.TIME, importance=2)
_AT_END = Column("at_end", header="In Use at End (B)", label="at end", unit=Unit.BYTES, importance=3)
_ALLOCATIONS = Column("allocations", header="Allocations", label="allocs", unit=Unit.COUNT, importance=1)
_FREES = Column("frees", header="Frees", label="frees", unit=Unit.COUNT, importance=1)
COLUMNS = (
    RANK, DEVICE, MEMORY, _PEAK,
    Column("peak_percent", header="Peak (% of Device)", label="of device", unit=Unit.PERCENT, decimals=2, has_bar=True),
    _PEAK_TIME, _AT_END, _ALLOCATIONS, _FREES,
    Column("allocated", header="Allocated (B)", label="allocated", unit=Unit.BYTES, importance=4),
    Column("largest", header="Largest (B)", label="largest", unit=Unit.BYTES, importance=4),
    Column("never_freed", header="Never Freed", label="never freed", unit=Unit.COUNT, importance=2),
    Column("never_freed_bytes", header="Never Freed (B)", label="unfreed", unit=Unit.BYTES, importance=5),
    Column("call_time", header="Time in Calls (ns)", label="in calls", unit=Unit.DURATION, importance=3),
    Column("device_memory", header="Memory of Device (B)", label="device has", unit=Unit.BYTES, importance=6),
)  # fmt: skip
TIME_COLUMNS = (RANK, DEVICE, MEMORY, START, _PEAK, _AT_END.with_importance(1))


@dataclass(frozen=True, order=True)
class DeviceMemory:
    """A kind of memory on a device of a process, by CUDA ordinal."""

    task: Task
    device: int
    memory: str


@dataclass(frozen=True, eq=False)
class Curve:
    """Memory in use: ``times`` of changes (job time, ns), and bytes ``used`` before the first and after each."""

    times: Ints
    used: Ints

    def moments(self, window: Window) -> tuple[int, int]:
        """Return the indices of the first change in a window and of the first after it."""
        first, last = np.searchsorted(self.times, (window.start, window.end)).tolist()
        return first, last

    def peak(self, window: Window) -> tuple[int, int, int]:
        """Return a window's peak, bytes, its first moment (job time), and the number of changes until then."""
        first, last = self.moments(window)
        number = first + int(np.argmax(self.used[first : last + 1]))
        time = int(self.times[number - 1]) if number > first else window.start
        return int(self.used[number]), time, number

    def peaks(self, edges: Sequence[int]) -> tuple[Ints, Ints]:
        """Return the most bytes in use in each span between ``edges``, and the bytes at its end; shape ``(spans,)``."""
        indices = np.searchsorted(self.times, np.asarray(edges, np.int64))
        bounds = np.column_stack((indices[:-1], indices[1:] + 1)).ravel()
        padded = np.append(self.used, 0)
        return np.maximum.reduceat(padded, bounds)[::2], self.used[indices[1:]]


@dataclass(frozen=True, eq=False)
class Usage(Curve):
    """The n allocations of a device memory by start, and at most 2 n changes of its use; job time.

    ``end`` is ``NEVER`` for memory that is never freed. ``born`` and ``died`` index the changes at which allocations
    begin and end.
    """

    key: DeviceMemory
    start: Ints
    end: Ints
    bytes: Ints
    row: Ints
    correlation: Ints
    born: Ints
    died: Ints

    def in_window(self, window: Window) -> Flags:
        """Return whether each allocation was made in a window; shape ``(n,)``."""
        return (self.start >= window.start) & (self.start < window.end)

    def live(self, number: int) -> Flags:
        """Return whether each allocation is in use after ``number`` changes; shape ``(n,)``."""
        return (self.born < number) & (self.died >= number)


@dataclass(frozen=True)
class GpuMemory:
    """The memory of the selected tasks and devices over the whole recording."""

    usages: tuple[Usage, ...]
    notes: tuple[str, ...]


def gpu_memory(session: Session, selection: Selection) -> GpuMemory:
    """Read the memory by process, device and kind. Window and name filter do not apply."""
    notes = [*missing_notes(session, tables.gpu_memory)]
    if not session.count(tables.gpu_memory):
        return GpuMemory((), tuple(notes))
    events, left_out = _events(session, selection)
    if left_out:
        notes.append(f"{counted(left_out, 'event', 'are')} left out without address, size or known kind")
    is_alloc, follows = (events[key].to_numpy() == 0 for key in ("is_free", "is_free_before"))
    older_frees, lost = events[~is_alloc & ~follows], int(np.count_nonzero(is_alloc & follows))
    if len(older_frees):
        size = int(older_frees["bytes"].sum())
        notes.append(f"left out: {counted(len(older_frees), 'free')} of {size:,} bytes from before the recording")
    if lost:
        notes.append(f"the free of {counted(lost, 'allocation')} was not recorded before the address was reused")
    allocations = events[is_alloc].sort_values(["start", "row"])
    groups = allocations.groupby(["report", "process", "device", "memory"], sort=True)
    usages = (
        _usage(DeviceMemory(Task(report, process), device, memory), group)
        for (report, process, device, memory), group in groups
    )
    return GpuMemory(tuple(usages), tuple(notes))


def _events(session: Session, selection: Selection) -> tuple[pd.DataFrame, int]:
    """Read the events, job time, with the time and row of the next event at their address, else `NEVER`.

    ``is_free_before`` is of the previous event there, -1 for the first. Also returns the number of invalid events.
    """
    table, columns = tables.gpu_memory, tables.gpu_memory.c
    missing = {"process": 0, "device": -1, "memory": "Unknown", "address": 0, "bytes": -1, "is_free": -1}
    known = [sa.func.coalesce(columns[key], value).label(key) for key, value in missing.items()]
    times = (columns.start + columns.clock_offset).label("start"), columns.row
    correlation = sa.func.coalesce(columns.correlation_id, -1).label("correlation")
    query = sa.select(columns.report, *known, *times, correlation)
    query = query.where(*where(table, Selection(tasks=selection.tasks, devices=selection.devices)))
    subquery = query.subquery("events")
    events = subquery.c
    is_valid = events.bytes >= 0, events.address != 0, events.is_free.in_((0, 1))
    address = events.report, events.process, events.address
    at_address = partial(sa.over, partition_by=address, order_by=(events.start, events.row))
    end, end_row = (at_address(sa.func.lead(key, 1, NEVER)) for key in (events.start, events.row))
    before = at_address(sa.func.lag(events.is_free, 1, -1)).label("is_free_before")
    frame = session.frame(sa.select(*events, end.label("end"), end_row.label("end_row"), before).where(*is_valid))
    invalid = sa.select(sa.func.count()).select_from(subquery).where(sa.not_(sa.and_(*is_valid)))
    return frame, int(session.scalar(invalid))


def _usage(key: DeviceMemory, allocations: pd.DataFrame) -> Usage:
    start, end, row, size = (allocations[key].to_numpy() for key in ("start", "end", "row", "bytes"))
    is_freed = end != NEVER
    times = np.concatenate((end[is_freed], start))
    rows = np.concatenate((allocations["end_row"].to_numpy()[is_freed], row))
    # The sort is stable: at an equal time, an end precedes the allocation that caused it.
    order = np.lexsort((rows, times))
    changes = np.concatenate((-size[is_freed], size))[order]
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    died = np.full(len(start), NEVER)
    died[is_freed] = positions[: int(is_freed.sum())]
    used = np.concatenate(([0], np.cumsum(changes)))
    born = positions[int(is_freed.sum()) :]
    return Usage(times[order], used, key, start, end, size, row, allocations["correlation"].to_numpy(), born, died)


@dataclass(frozen=True)
class DevicePeak:
    """The peak use of a GPU's own memory by all its processes; sizes in bytes, job time.

    ``total`` is the memory of the GPU, ``places`` its kinds by process, ``sizes`` the allocations in use at the peak.
    """

    places: tuple[DeviceMemory, ...]
    total: int
    peak: int
    time: int
    sizes: tuple[int, ...]


def device_peaks(job: OpenJob, selection: Selection) -> list[DevicePeak]:
    """Return the peak of each GPU whose memory size is known, fullest first."""
    sizes, windows = _device_sizes(job.session), windows_of(job, selection)
    gpus = {(used.task, used.device): used.uuid for used in used_devices(job.session)}
    usages_by_gpu: dict[Hashable, list[Usage]] = {}
    for usage in gpu_memory(job.session, selection).usages:
        device = (usage.key.task, usage.key.device)
        if usage.key.memory in ON_DEVICE and device in sizes:
            usages_by_gpu.setdefault(gpus.get(device) or device, []).append(usage)
    peaks = []
    for usages in usages_by_gpu.values():
        times = np.concatenate([usage.times for usage in usages])
        order = np.argsort(times, kind="stable")
        used = np.cumsum(np.concatenate([np.diff(usage.used) for usage in usages])[order])
        spans = [windows[usage.key.task.report] for usage in usages]
        window = Window(min(span.start for span in spans), max(span.end for span in spans))
        peak, time, _ = Curve(times[order], np.concatenate(([0], used))).peak(window)
        live = (usage.bytes[usage.live(int(np.searchsorted(usage.times, time, "right")))] for usage in usages)
        places = tuple(usage.key for usage in usages)
        total = max(sizes[memory.task, memory.device] for memory in places)
        peaks.append(DevicePeak(places, total, peak, time, tuple(np.concatenate(list(live)).tolist())))
    return sorted(peaks, key=lambda peak: (-peak.peak / peak.total, peak.places[0].task, peak.places[0].device))


def memory_table(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate the memory of each rank, device and kind."""
    memory = gpu_memory(job.session, selection)
    sizes = _device_sizes(job.session)
    call_times = _call_times(job.session, selection)
    windows = windows_of(job, selection)
    rows: list[Row] = []
    for usage, rank in by_rank(job, memory):
        key, window = usage.key, windows[usage.key.task.report]
        peak, time, _ = usage.peak(window)
        is_made = usage.in_window(window)
        is_leaked = is_made & (usage.end == NEVER)
        is_freed = (usage.end >= window.start) & (usage.end < window.end)
        device_size = sizes.get((key.task, key.device)) if key.memory in ON_DEVICE else None
        _, last = usage.moments(window)
        rows.append(
            (
                rank, key.device, key.memory, peak, 100 * peak / device_size if device_size else None, time,
                int(usage.used[last]), int(is_made.sum()), int(is_freed.sum()), int(usage.bytes[is_made].sum()),
                int(usage.bytes[is_made].max(initial=0)) if is_made.any() else None, int(is_leaked.sum()),
                int(usage.bytes[is_leaked].sum()), call_times.get((key.task, key.device, key.memory)), device_size,
            )
        )  # fmt: skip
    return TableAnswer("gpu-memory", COLUMNS, rows, len(rows), _notes(memory, selection))


def memory_over_time(job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Tabulate the memory of each rank, device and kind in each of ``bins`` equal spans of the window.

    Spans outside the report's session have no values.
    """
    memory = gpu_memory(job.session, selection)
    windows = windows_of(job, selection)
    rows: list[Row] = []
    for usage, rank in by_rank(job, memory):
        key, report = usage.key, report_at(job.session, usage.key.task.report)
        session, edges = recorded(report), edges_of(windows[report.index], bins)
        peaks, ends = usage.peaks(edges)
        for number, (peak, at_end) in enumerate(zip(peaks.tolist(), ends.tolist(), strict=True)):
            is_known = edges[number] < session.end and edges[number + 1] > session.start
            values = (peak, at_end) if is_known else (None, None)
            rows.append((rank, key.device, key.memory, edges[number], *values))
    return TableAnswer("gpu-memory-time", TIME_COLUMNS, rows, len(rows), _notes(memory, selection))


def windows_of(job: OpenJob, selection: Selection) -> Mapping[int, Window]:
    """Return each report's window by index; unless the user selected it, it includes its last moment."""
    windows = extents(job.session, selection)
    if selection.window is not None:
        return windows
    return {report: Window(window.start, window.end + 1) for report, window in windows.items()}


def by_rank(job: OpenJob, memory: GpuMemory) -> list[tuple[Usage, int | None]]:
    """Return usages and ranks, sorted by rank, process, device and kind."""
    ranks = {item.task: item.rank for item in job.ranks}
    ranked_usages = [(usage, ranks.get(usage.key.task)) for usage in memory.usages]
    return sorted(ranked_usages, key=lambda item: (item[1] is None, item[1] or 0, item[0].key))


def _notes(memory: GpuMemory, selection: Selection) -> tuple[str, ...]:
    notes = list(memory.notes)
    if selection.name is not None:
        notes.append("the name filter does not apply here: memory in use depends on all allocations")
    return tuple(notes)


def _device_sizes(session: Session) -> dict[tuple[Task, int], int]:
    devices = tables.devices.c
    query = sa.select(devices.report, devices.process, devices.device, devices.total_memory).where(
        devices.process.is_not(None), devices.total_memory > 0
    )
    return {(Task(report, process), device): size for report, process, device, size in session.rows(query)}


def _call_times(session: Session, selection: Selection) -> dict[tuple[Task, int, str], int]:
    """Return the time of allocating and freeing calls, ns, by (task, device, kind of memory)."""
    memory, calls = tables.gpu_memory, tables.api_calls
    if not session.count(memory) or not session.count(calls):
        return {}
    keys = [memory.c[key] for key in ("report", "process", "device", "memory", "correlation_id")]
    events = sa.select(*keys).where(*where(memory, selection)).distinct().subquery()
    keyed = events.c
    group = (keyed.report, keyed.process, keyed.device, keyed.memory)
    query = (
        sa.select(*group, sa.cast(sa.func.sum(duration(calls)), sa.BigInteger))
        .join_from(calls, events, is_launched_by(events, calls))
        .group_by(*group)
    )
    return {(Task(report, process), device, kind): time for report, process, device, kind, time in session.rows(query)}
