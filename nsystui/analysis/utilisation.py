"""GPU utilisation: what kept each GPU busy, in a window or over time (domain §5.1, §5.2).

For each device (a CUDA ordinal of one process in one report; domain §1.4) its operations fall into four categories:

* K, kernels that are not NCCL's · C, NCCL kernels · M, memory copies and memsets · G, launches of whole CUDA graphs,
  of which nothing inside was traced. A = K ∪ C ∪ M ∪ G is all of them.

U(X) is the union of the intervals of X and |U(X)| its length: time in which at least one operation ran. Two kernels at
once count once, so that nothing here exceeds the window (the rule ``gpu_time_util`` of nsys sums them, and may).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.analysis.extent import recorded, selected_reports, shares_clock
from nsystui.analysis.intervals import EMPTY, Intervals, covered_per_bin, merge, subtract, union
from nsystui.analysis.rows import which_of
from nsystui.analysis.selection import Selection, Task, Window
from nsystui.analysis.tasks import RankedTask
from nsystui.analysis.where import job_start, where
from nsystui.exports import canonical
from nsystui.store import tables
from nsystui.store.session import Report, Session

_WORK = (tables.kernels, tables.memory_ops, tables.graph_launches)
Shares = NDArray[np.float64]
"""Shape ``(bins,)``: 0 to 1 of each bin's time; NaN where the report was not recording."""


@dataclass(frozen=True)
class Device:
    """A GPU of a task. ``device`` is its CUDA ordinal in the process, ``gpu`` the machine's number (or ``None``)."""

    task: RankedTask
    device: int
    gpu: int | None
    model: str | None


@dataclass(frozen=True)
class Breakdown:
    """How the time of a window was spent, ns; of one device, or the sum over several.

    ``kernels + exposed_nccl + memory_only + graph_only + idle == time``, exactly.
    """

    time: int
    """|w|, once for each device."""
    recorded: int
    """The part of it that lies in the report's session. The rest was not observed, and counts as idle."""
    kernels: int
    """|U(K)|"""
    nccl: int
    """|U(C)|"""
    memory: int
    """|U(M)|"""
    graph: int
    """|U(G)|"""
    busy: int
    """|A|"""
    exposed_nccl: int
    r"""|U(C) \ U(K)|: communication that no kernel hides. A copy or a graph beside it hides nothing."""
    exposed_memory: int
    r"""|U(M) \ U(K)|"""
    memory_only: int
    r"""|U(M) \ U(K ∪ C)|"""

    @property
    def overlap(self) -> int:
        """|U(K) ∩ U(C)|, ns."""
        return self.nccl - self.exposed_nccl

    @property
    def graph_only(self) -> int:
        r"""|U(G) \ U(K ∪ C ∪ M)|, ns."""
        return self.busy - self.kernels - self.exposed_nccl - self.memory_only

    @property
    def idle(self) -> int:
        """|w| − |A|, ns."""
        return self.time - self.busy

    def percent(self, part: int) -> float | None:
        """``part`` (ns, one of the above) as a percentage of the time; ``None`` of no time."""
        return 100.0 * part / self.time if self.time else None

    @property
    def overlap_percent(self) -> float | None:
        """|U(K) ∩ U(C)| / |U(C)|, HTA's communication–computation overlap; ``None`` without NCCL kernels."""
        return 100.0 * self.overlap / self.nccl if self.nccl else None

    def __add__(self, other: Breakdown) -> Breakdown:
        return Breakdown(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NOTHING = Breakdown(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def total(parts: Iterable[Breakdown]) -> Breakdown:
    """The sum; its percentages are means over the devices, weighted by their windows."""
    return sum(parts, NOTHING)


@dataclass(frozen=True, eq=False)
class DeviceLanes:
    r"""One device over time, and in sum: each lane is the share of a bin in which its category ran, see ``Shares``.

    ``exposed_nccl`` is the share of U(C) \ U(K).
    ``busy`` is the share of A, not the sum of the others: categories run side by side.
    """

    device: Device
    window: Window
    kernels: Shares
    nccl: Shares
    exposed_nccl: Shares
    memory: Shares
    graph: Shares
    busy: Shares
    totals: Breakdown


@dataclass(frozen=True, eq=False)
class DeviceIntervals:
    """When each category kept one device busy, in job time. Made by ``of``."""

    device: Device
    recorded: Window
    kernels: Intervals
    nccl: Intervals
    memory: Intervals
    graph: Intervals
    busy: Intervals
    exposed_nccl: Intervals
    exposed_memory: Intervals
    memory_only: Intervals

    @classmethod
    def of(
        cls,
        device: Device,
        recorded: Window,
        kernels: Intervals = EMPTY,
        nccl: Intervals = EMPTY,
        memory: Intervals = EMPTY,
        graph: Intervals = EMPTY,
    ) -> DeviceIntervals:
        busy = merge(*[part for part in (kernels, nccl, memory, graph) if len(part)])
        exposed_memory = subtract(memory, kernels)
        return cls(
            device,
            recorded,
            kernels,
            nccl,
            memory,
            graph,
            busy,
            subtract(nccl, kernels),
            exposed_memory,
            subtract(exposed_memory, nccl),
        )

    def breakdown(self, window: Window) -> Breakdown:
        """The totals inside ``window``; operations are cut at its edges."""
        lo, hi = window.start, window.end
        parts = (
            self.kernels,
            self.nccl,
            self.memory,
            self.graph,
            self.busy,
            self.exposed_nccl,
            self.exposed_memory,
            self.memory_only,
        )
        return Breakdown(hi - lo, self.recorded_in(window), *(part.clip(lo, hi).length for part in parts))

    def recorded_in(self, window: Window) -> int:
        """The part of ``window`` that lies in the report's session, ns."""
        return max(0, min(window.end, self.recorded.end) - max(window.start, self.recorded.start))

    def lanes(self, window: Window, bins: int) -> DeviceLanes:
        """``window`` in ``bins`` equal spans. Raises ``ValueError`` where ``bins < 1``."""
        parts = (self.kernels, self.nccl, self.exposed_nccl, self.memory, self.graph, self.busy)
        kernels, nccl, exposed_nccl, memory, graph, busy = (self._shares(part, window, bins) for part in parts)
        totals = self.breakdown(window)
        return DeviceLanes(self.device, window, kernels, nccl, exposed_nccl, memory, graph, busy, totals)

    def _shares(self, part: Intervals, window: Window, bins: int) -> Shares:
        lo, hi = window.start, window.end
        session = union([self.recorded.start], [self.recorded.end])
        is_seen = covered_per_bin(session, lo, hi, bins) > 0
        covered = covered_per_bin(part.clip(lo, hi), lo, hi, bins)
        shares = np.minimum(covered * bins / max(hi - lo, 1), 1.0)
        return np.where(is_seen, shares, np.nan)


@dataclass(frozen=True, eq=False)
class BusyIntervals:
    """The merged intervals of every selected device, read once; windows and bins of it cost no query.

    Keep it for as long as ``is_current`` holds and the selection, its window apart, stays the same.
    """

    version: int
    devices: tuple[DeviceIntervals, ...]
    shares_clock: bool = True
    """Whether the selected reports lie on one clock; if not, a window of one means nothing to the other."""
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, session: Session, selection: Selection, ranks: Sequence[RankedTask]) -> BusyIntervals:
        """Reads every device of the selected tasks, by rank and device.

        Tasks, devices and streams of the selection apply. Its window does not (``breakdown`` and ``lanes`` take one),
        nor does its name filter: how busy a GPU is depends on all of its work. A million operations take about 0.2 s,
        and up to 50 MB while they are kept.
        """
        version = session.version
        devices = load_devices(session, selection, selected_devices(session, selection, ranks))
        reports = selected_reports(session, selection)
        return cls(version, tuple(devices), shares_clock(reports), tuple(_notes(reports, selection)))

    def is_current(self, session: Session) -> bool:
        """Whether no report has joined since."""
        return self.version == session.version

    def lanes(self, window: Window, bins: int) -> list[DeviceLanes]:
        """Every device over ``window``. Raises ``ValueError`` where ``bins < 1``."""
        return [device.lanes(window, bins) for device in self.devices]

    def breakdown(self, window: Window) -> dict[Task, Breakdown]:
        """The totals of each task: the sum over its devices."""
        found: dict[Task, Breakdown] = {}
        for item in self.devices:
            task = item.device.task.task
            found[task] = found.get(task, NOTHING) + item.breakdown(window)
        return found


def busy_lanes(
    session: Session, selection: Selection, window: Window, bins: int, ranks: Sequence[RankedTask]
) -> list[DeviceLanes]:
    """``BusyIntervals.load(…).lanes(…)``, for one look only."""
    return BusyIntervals.load(session, selection, ranks).lanes(window, bins)


def breakdown(
    session: Session, selection: Selection, window: Window, ranks: Sequence[RankedTask]
) -> dict[Task, Breakdown]:
    """``BusyIntervals.load(…).breakdown(…)``, for one look only."""
    return BusyIntervals.load(session, selection, ranks).breakdown(window)


def selected_devices(session: Session, selection: Selection, ranks: Sequence[RankedTask]) -> list[Device]:
    """The devices that the selected tasks used, by rank and ordinal."""
    table = tables.devices
    query = sa.select(table.c.report, table.c.process, table.c.device, table.c.gpu, table.c.name)
    rows = session.rows(query.where(table.c.process.is_not(None)))
    facts = {(report, process, device): (gpu, name) for report, process, device, gpu, name in rows}
    found = []
    for item in sorted(ranks, key=lambda item: (item.rank, item.task)):
        if selection.tasks is not None and item.task not in selection.tasks:
            continue
        for device in sorted(item.devices):
            if selection.devices is None or device in selection.devices:
                gpu, name = facts.get((item.task.report, item.task.process, device), (None, None))
                found.append(Device(item, device, gpu, name))
    return found


def load_devices(session: Session, selection: Selection, devices: Sequence[Device]) -> Iterator[DeviceIntervals]:
    """The intervals of each device, in the order given, a batch at a time: a caller may show progress, or stop."""
    by_index = {report.index: report for report in session.reports}
    for batch in _batches(by_index, devices):
        kernels = _merged(session, selection, tables.kernels, batch)
        memory = _merged(session, selection, tables.memory_ops, batch)
        graph = _merged(session, selection, tables.graph_launches, batch)
        for number, device in enumerate(batch):
            report = by_index[device.task.task.report]
            parts = (kernels[number, 0], kernels[number, 1], memory[number, 0], graph[number, 0])
            yield DeviceIntervals.of(device, recorded(report), *parts)


# A query plans for every open report, so one for each device would take seconds for hundreds of ranks; one for all
# of them at once, more memory than a login node gives.
_BATCH_ROWS = 1 << 21
_BATCH_DEVICES = 64


def _batches(reports: Mapping[int, Report], devices: Sequence[Device]) -> Iterator[list[Device]]:
    """The devices in runs whose reports hold no more than ``_BATCH_ROWS`` operations together, or are alone."""
    batch: list[Device] = []
    rows: dict[int, int] = {}
    for device in devices:
        index = device.task.task.report
        more = sum(reports[index].count(table) for table in _WORK)
        if batch and (len(batch) == _BATCH_DEVICES or sum((rows | {index: more}).values()) > _BATCH_ROWS):
            yield batch
            batch, rows = [], {}
        batch.append(device)
        rows[index] = more
    if batch:
        yield batch


def _merged(
    session: Session, selection: Selection, table: sa.Table, devices: Sequence[Device]
) -> dict[tuple[int, int], Intervals]:
    """The union of the selected operations of a table, by (place in ``devices``, 1 for NCCL kernels and else 0)."""
    keys = [(number, is_nccl) for number in range(len(devices)) for is_nccl in (0, 1)]
    if not session.count(table):
        return dict.fromkeys(keys, EMPTY)
    columns = table.c
    narrowed = replace(selection, window=None, tasks=frozenset(device.task.task for device in devices))
    is_nccl = columns.is_nccl if "is_nccl" in columns else sa.literal(0)
    lane = sa.cast(2 * _place_of(table, devices) + is_nccl, sa.SmallInteger).label("lane")
    end = (columns.end + columns.clock_offset).label("end")
    is_whole = (columns.start.is_not(None), columns.end.is_not(None))
    found = session.arrays(
        sa.select(lane, job_start(table).label("start"), end).where(*where(table, narrowed), *is_whole)
    )
    order = np.argsort(found["lane"], kind="stable")  # a radix sort, for lanes are 16 bits wide
    edges = np.searchsorted(found["lane"][order], range(len(keys) + 1))
    starts, ends = found["start"][order], found["end"][order]
    runs = zip(keys, edges[:-1], edges[1:], strict=True)
    return {key: union(starts[first:last], ends[first:last]) for key, first, last in runs}


def _place_of(table: sa.Table, devices: Sequence[Device]) -> sa.ColumnElement[int]:
    """A row's place in ``devices``; −1 for a device that is not among them."""
    columns = table.c
    whens = []
    for place, item in enumerate(devices):
        task = item.task.task
        here = (columns.report == task.report, columns.process == task.process, columns.device == item.device)
        whens.append((sa.and_(*here), sa.literal(place)))
    return sa.case(*whens, else_=sa.literal(-1))


def _notes(reports: Sequence[Report], selection: Selection) -> Iterator[str]:
    """What to know before reading a utilisation of this selection."""
    idle = [report.name for report in reports if not any(report.count(table) for table in _WORK)]
    if idle:
        yield f"no GPU work in {which_of(idle, len(reports))}: {canonical.KERNELS.record}"
    graphs = sum(report.count(tables.graph_launches) for report in reports)
    if graphs:
        yield (
            f"{graphs:,} whole CUDA graph launches count as busy; what ran inside them was not traced "
            "(record with --cuda-graph-trace=node)"
        )
    if selection.streams is not None:
        yield "only the selected streams: idle is the time in which none of them worked"
    if selection.name is not None:
        yield "the name filter is left out here: how busy a GPU is depends on all of its work"
