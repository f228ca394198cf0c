"""The memory that a job allocated through CUDA: how much was in use when, by which allocations, and how well pools fit.

See docs/numbers.md#gpu-memory. A free ends the allocation at its address, whatever size it says; an allocation ends
the one before it at the same address, whose free was not recorded. Frees of memory that was allocated before the
recording are left out, so what is in use is what the recording saw.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import DEVICE, RANK, START, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import duration, is_launched_by, where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.tasks import used_devices
from nsystui.questions.queries.time_window import edges_of, extents, recorded, report_at
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

ON_DEVICE = ("Device", "Array", "Device Static")
"""The kinds of memory that are the device's own, of which it has only so much."""
NEVER = np.iinfo(np.int64).max

MEMORY = Column("memory", header="Memory", label="memory")
_PEAK = Column("peak", header="Peak (B)", label="peak", unit=Unit.BYTES)
_PEAK_TIME = Column("peak_time", header="Peak Time (ns)", label="at", unit=Unit.TIME, importance=2)
_AT_END = Column("at_end", header="In Use at End (B)", label="at end", unit=Unit.BYTES, importance=3)
_ALLOCATIONS = Column("allocations", header="Allocations", label="allocs", unit=Unit.COUNT, importance=1)
_FREES = Column("frees", header="Frees", label="frees", unit=Unit.COUNT, importance=1)
COLUMNS = (
    RANK,
    DEVICE,
    MEMORY,
    _PEAK,
    Column("peak_percent", header="Peak (% of Device)", label="of device", unit=Unit.PERCENT, decimals=2, has_bar=True),
    _PEAK_TIME,
    _AT_END,
    _ALLOCATIONS,
    _FREES,
    Column("allocated", header="Allocated (B)", label="allocated", unit=Unit.BYTES, importance=4),
    Column("largest", header="Largest (B)", label="largest", unit=Unit.BYTES, importance=4),
    Column("never_freed", header="Never Freed", label="never freed", unit=Unit.COUNT, importance=2),
    Column("never_freed_bytes", header="Never Freed (B)", label="unfreed", unit=Unit.BYTES, importance=5),
    Column("call_time", header="Time in Calls (ns)", label="in calls", unit=Unit.DURATION, importance=3),
    Column("device_memory", header="Memory of Device (B)", label="device has", unit=Unit.BYTES, importance=6),
)
TIME_COLUMNS = (RANK, DEVICE, MEMORY, START, _PEAK, _AT_END.with_importance(1))
POOL_COLUMNS = (
    RANK,
    DEVICE,
    Column("pool", header="Pool", label="pool"),
    Column("peak", header="Peak Reserved (B)", label="reserved", unit=Unit.BYTES),
    Column("used", header="Used Then (B)", label="used then", unit=Unit.BYTES),
    Column("unused_percent", header="Unused Then (%)", label="unused", unit=Unit.PERCENT, decimals=2, has_bar=True),
    _PEAK_TIME,
    Column("peak_used", header="Peak Used (B)", label="peak used", unit=Unit.BYTES, importance=1),
    _ALLOCATIONS,
    _FREES.with_importance(3),
    Column("trims", header="Trimmed", label="trimmed", unit=Unit.COUNT, importance=2),
)


@dataclass(frozen=True, order=True)
class DeviceMemory:
    """Memory of one kind that a process has, as the export numbers its devices."""

    task: Task
    device: int
    memory: str


@dataclass(frozen=True, eq=False)
class Curve:
    """The moments when the memory in use changes (job time), and the bytes in use before any and after each of them."""

    times: Ints
    used: Ints

    def moments(self, window: Window) -> tuple[int, int]:
        """Return the numbers of the first moment in a window, and of the first behind it."""
        first, last = np.searchsorted(self.times, (window.start, window.end)).tolist()
        return first, last

    def peak(self, window: Window) -> tuple[int, int, int]:
        """Return the most bytes in use in a window, since when, and the number of moments up to then."""
        first, last = self.moments(window)
        number = first + int(np.argmax(self.used[first : last + 1]))
        time = int(self.times[number - 1]) if number > first else window.start
        return int(self.used[number]), time, number

    def peaks(self, edges: Sequence[int]) -> tuple[Ints, Ints]:
        """Return for each span between ``edges`` the most bytes in use, and those at its end; shapes ``(spans,)``."""
        at = np.searchsorted(self.times, np.asarray(edges, np.int64))
        bounds = np.column_stack((at[:-1], at[1:] + 1)).ravel()
        padded = np.append(self.used, 0)
        return np.maximum.reduceat(padded, bounds)[::2], self.used[at[1:]]


@dataclass(frozen=True, eq=False)
class Usage(Curve):
    """The n allocations of one place by start, and the 2 n or fewer moments when its use changes; times are job time.

    ``end`` is ``NEVER`` for what is never freed. ``born`` and ``died``: the moments at which each allocation begins
    and ends, by number.
    """

    place: DeviceMemory
    start: Ints
    end: Ints
    bytes: Ints
    row: Ints
    correlation: Ints
    born: Ints
    died: Ints

    def in_window(self, window: Window) -> Flags:
        """Tell which allocations were made in a window; shape ``(n,)``."""
        return (self.start >= window.start) & (self.start < window.end)

    def live(self, number: int) -> Flags:
        """Tell which allocations are in use after so many moments; shape ``(n,)``."""
        return (self.born < number) & (self.died >= number)


@dataclass(frozen=True)
class GpuMemory:
    """The memory of the selected tasks and devices over the whole recording, and notes on what is not known of it."""

    usages: tuple[Usage, ...]
    notes: tuple[str, ...]


_KEYS = ("report", "process", "device", "memory", "address", "start", "row", "bytes", "is_free", "correlation")


def gpu_memory(session: Session, selection: Selection) -> GpuMemory:
    """Read the memory by process, device and kind. Window and name filter are left out."""
    missing = missing_note(session, tables.gpu_memory)
    notes = [missing] if missing else []
    if not session.count(tables.gpu_memory):
        return GpuMemory((), tuple(notes))
    events = _events(session, selection)
    is_odd = (events["bytes"] < 0) | (events["address"] == 0) | ~events["is_free"].isin((0, 1))
    if odd := int(is_odd.sum()):
        notes.append(f"{odd:,} events are left out because they have no address, no size or no known kind")
        events = events[~is_odd]
    allocations, unknown, lost = _allocations(events)
    if len(unknown):
        size = int(unknown["bytes"].sum())
        notes.append(
            f"{len(unknown):,} frees of {size:,} bytes are left out: the memory was allocated before the recording"
        )
    if lost:
        notes.append(f"the free of {lost:,} allocations was not recorded: they end where their address is used again")
    groups = allocations.groupby(["report", "process", "device", "memory"], sort=True)
    usages = (
        _usage(DeviceMemory(Task(report, process), device, memory), mine)
        for (report, process, device, memory), mine in groups
    )
    return GpuMemory(tuple(usages), tuple(notes))


def _events(session: Session, selection: Selection) -> pd.DataFrame:
    """The events in the order of time, in job time; a size, address or kind that is missing is -1, 0 and -1."""
    table = tables.gpu_memory
    columns = table.c
    query = sa.select(
        columns.report,
        sa.func.coalesce(columns.process, 0).label("process"),
        sa.func.coalesce(columns.device, -1).label("device"),
        sa.func.coalesce(columns.memory, "Unknown").label("memory"),
        sa.func.coalesce(columns.address, 0).label("address"),
        (columns.start + columns.clock_offset).label("start"),
        columns.row,
        sa.func.coalesce(columns.bytes, -1).label("bytes"),
        sa.func.coalesce(columns.is_free, -1).label("is_free"),
        sa.func.coalesce(columns.correlation_id, -1).label("correlation"),
    ).where(*where(table, Selection(tasks=selection.tasks, devices=selection.devices)))
    # No column has missing values, so that all stay integers.
    return session.frame(query).astype({key: "int64" for key in _KEYS if key != "memory"})


def _allocations(events: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """The allocations with their end and the row that ends them; frees without one; allocations whose free is lost."""
    ordered = events.sort_values(["report", "process", "address", "start", "row"])
    places, start, row = (ordered[key].to_numpy() for key in (["report", "process", "address"], "start", "row"))
    is_alloc = ordered["is_free"].to_numpy() == 0
    # Whether the next event is at the same address, and that before it an allocation there.
    ends = is_alloc & np.append((places[1:] == places[:-1]).all(axis=1), False)
    follows = np.concatenate(([False], ends))[: len(ends)]
    made = ordered[is_alloc].assign(
        end=np.where(ends, np.append(start[1:], NEVER), NEVER)[is_alloc],
        end_row=np.where(ends, np.append(row[1:], NEVER), NEVER)[is_alloc],
    )
    lost = int(np.count_nonzero(follows & is_alloc))
    return made.sort_values(["start", "row"]), ordered[~is_alloc & ~follows], lost


def _usage(place: DeviceMemory, mine: pd.DataFrame) -> Usage:
    start, end, row, size = (mine[key].to_numpy() for key in ("start", "end", "row", "bytes"))
    is_freed = end != NEVER
    times = np.concatenate((end[is_freed], start))
    rows = np.concatenate((mine["end_row"].to_numpy()[is_freed], row))
    # The sort is stable: what a new allocation ends is gone before it is there.
    order = np.lexsort((rows, times))
    changes = np.concatenate((-size[is_freed], size))[order]
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    died = np.full(len(start), NEVER)
    died[is_freed] = place_of[: int(is_freed.sum())]
    used = np.concatenate(([0], np.cumsum(changes)))
    born = place_of[int(is_freed.sum()) :]
    return Usage(times[order], used, place, start, end, size, row, mine["correlation"].to_numpy(), born, died)


@dataclass(frozen=True)
class DevicePeak:
    """The most of a GPU's own memory that is in use at once, by all processes on it; sizes in bytes, job time.

    ``places``: who has it. ``total`` is the memory of the GPU, ``sizes`` the allocations in use then.
    """

    places: tuple[DeviceMemory, ...]
    total: int
    peak: int
    time: int
    sizes: tuple[int, ...]


def device_peaks(job: OpenJob, selection: Selection) -> list[DevicePeak]:
    """Find the peak of each GPU whose size is known, the fullest first."""
    sizes, windows = _device_sizes(job.session), windows_of(job, selection)
    gpus = {(one.task, one.device): one.uuid for one in used_devices(job.session)}
    found: dict[Hashable, list[Usage]] = {}
    for one in gpu_memory(job.session, selection).usages:
        place = (one.place.task, one.place.device)
        if one.place.memory in ON_DEVICE and place in sizes:
            found.setdefault(gpus.get(place) or place, []).append(one)
    peaks = []
    for usages in found.values():
        times = np.concatenate([one.times for one in usages])
        order = np.argsort(times, kind="stable")
        used = np.cumsum(np.concatenate([np.diff(one.used) for one in usages])[order])
        spans = [windows[one.place.task.report] for one in usages]
        whole = Window(min(span.start for span in spans), max(span.end for span in spans))
        peak, time, _ = Curve(times[order], np.concatenate(([0], used))).peak(whole)
        live = (one.bytes[one.live(int(np.searchsorted(one.times, time, "right")))] for one in usages)
        places = tuple(one.place for one in usages)
        total = max(sizes[one.task, one.device] for one in places)
        peaks.append(DevicePeak(places, total, peak, time, tuple(np.concatenate(list(live)).tolist())))
    return sorted(peaks, key=lambda one: (-one.peak / one.total, one.places[0].task, one.places[0].device))


def memory_table(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate the memory of each rank, device and kind."""
    memory = gpu_memory(job.session, selection)
    sizes = _device_sizes(job.session)
    spent = _call_times(job.session, selection)
    windows = windows_of(job, selection)
    rows: list[Row] = []
    for usage, rank in by_rank(job, memory):
        place, window = usage.place, windows[usage.place.task.report]
        peak, time, _ = usage.peak(window)
        made = usage.in_window(window)
        leaked = made & (usage.end == NEVER)
        freed = (usage.end >= window.start) & (usage.end < window.end)
        whole = sizes.get((place.task, place.device)) if place.memory in ON_DEVICE else None
        _, last = usage.moments(window)
        rows.append(
            (
                rank, place.device, place.memory, peak, 100 * peak / whole if whole else None, time,
                int(usage.used[last]), int(made.sum()), int(freed.sum()), int(usage.bytes[made].sum()),
                int(usage.bytes[made].max(initial=0)) if made.any() else None, int(leaked.sum()),
                int(usage.bytes[leaked].sum()), spent.get((place.task, place.device, place.memory)), whole,
            )
        )  # fmt: skip
    return TableAnswer("gpu-memory", COLUMNS, rows, len(rows), _notes(memory, selection))


def memory_over_time(job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Tabulate the memory of each rank, device and kind, with a row for each of ``bins`` equal spans of the window.

    Spans outside of the report's session are missing.
    """
    memory = gpu_memory(job.session, selection)
    windows = windows_of(job, selection)
    rows: list[Row] = []
    for usage, rank in by_rank(job, memory):
        place, report = usage.place, report_at(job.session, usage.place.task.report)
        session, edges = recorded(report), edges_of(windows[report.index], bins)
        peaks, ends = usage.peaks(edges)
        for number, (peak, at_end) in enumerate(zip(peaks.tolist(), ends.tolist(), strict=True)):
            is_known = edges[number] < session.end and edges[number + 1] > session.start
            known = (peak, at_end) if is_known else (None, None)
            rows.append((rank, place.device, place.memory, edges[number], *known))
    return TableAnswer("gpu-memory-time", TIME_COLUMNS, rows, len(rows), _notes(memory, selection))


def windows_of(job: OpenJob, selection: Selection) -> Mapping[int, Window]:
    """Return the window of each report by its index; a moment at its very end is in it where nobody chose it."""
    found = extents(job.session, selection)
    if selection.window is not None:
        return found
    return {report: Window(window.start, window.end + 1) for report, window in found.items()}


def by_rank(job: OpenJob, memory: GpuMemory) -> list[tuple[Usage, int | None]]:
    """Return the usages with their ranks, by rank, process, device and kind."""
    ranks = {item.task: item.rank for item in job.ranks}
    found = [(usage, ranks.get(usage.place.task)) for usage in memory.usages]
    return sorted(found, key=lambda one: (one[1] is None, one[1] or 0, one[0].place))


def _notes(memory: GpuMemory, selection: Selection) -> tuple[str, ...]:
    notes = list(memory.notes)
    if selection.name is not None:
        notes.append("the name filter does not apply here: how much memory is in use depends on all allocations")
    return tuple(notes)


def _device_sizes(session: Session) -> dict[tuple[Task, int], int]:
    """The bytes that each device of a process has, where the export tells."""
    devices = tables.devices.c
    query = sa.select(devices.report, devices.process, devices.device, devices.total_memory).where(
        devices.process.is_not(None), devices.total_memory > 0
    )
    return {(Task(report, process), device): size for report, process, device, size in session.rows(query)}


def _call_times(session: Session, selection: Selection) -> dict[tuple[Task, int, str], int]:
    """The time of the API calls that allocated and freed, ns, by (task, device, kind of memory)."""
    memory, calls = tables.gpu_memory, tables.api_calls
    if not session.count(memory) or not session.count(calls):
        return {}
    keys = [memory.c[key] for key in ("report", "process", "device", "memory", "correlation_id")]
    of_events = sa.select(*keys).where(*where(memory, selection)).distinct().subquery()
    own = of_events.c
    place = (own.report, own.process, own.device, own.memory)
    query = (
        sa.select(*place, sa.cast(sa.func.sum(duration(calls)), sa.BigInteger))
        .join_from(calls, of_events, is_launched_by(of_events, calls))
        .group_by(*place)
    )
    return {(Task(report, process), device, kind): time for report, process, device, kind, time in session.rows(query)}


def pool_table(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate the memory pools: what it reserved at the most, and how much of that was used."""
    session = job.session
    ranks = {item.task: item.rank for item in job.ranks}
    states: dict[tuple[Task, int, int], list[tuple[int, int, int, str]]] = {}
    for report, process, device, pool, *state in _pool_states(session, selection):
        time, size, used, event = state
        states.setdefault((Task(report, process), device, pool), []).append((time, size, used, event))
    rows: list[Row] = []
    for (task, device, pool), of_pool in states.items():
        time, size, used, _ = max(of_pool, key=lambda state: (state[1], -state[0]))
        events = [event for *_, event in of_pool]
        rows.append(
            (
                ranks.get(task), device, f"{pool:#x}", size, used, 100 * (size - used) / size if size else None, time,
                max(used for _, _, used, _ in of_pool), *map(events.count, ("allocation", "free", "Trimmed")),
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (row[0] is None, *row[:3]))
    missing = missing_note(session, tables.gpu_memory)
    notes = [missing] if missing else []
    if not rows and session.count(tables.gpu_memory):
        notes.append("no memory pools: all memory was allocated with cudaMalloc, not cudaMallocAsync")
    return TableAnswer("gpu-memory-pools", POOL_COLUMNS, rows, len(rows), tuple(notes))


def _pool_states(session: Session, selection: Selection) -> Sequence[tuple[Any, ...]]:
    """(report, process, device, pool, job time, size, used, event) after each event that tells, by time."""
    memory, pools = tables.gpu_memory, tables.memory_pools
    what = sa.case((memory.c.is_free == 1, "free"), else_="allocation")
    parts = []
    for table, size, used, event in (
        (memory, memory.c.pool_size, memory.c.pool_used, what),
        (pools, pools.c.size, pools.c.used, pools.c.operation),
    ):
        place = [table.c[key] for key in ("report", "process", "device", "pool")]
        time = (table.c.start + table.c.clock_offset).label("time")
        known = [table.c.pool.is_not(None), size.is_not(None), used.is_not(None)]
        if session.count(table):
            parts.append(sa.select(*place, time, size, used, event).where(*known, *where(table, selection)))
    return [row for part in parts for row in session.rows(part)]
