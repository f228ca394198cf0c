"""The time of one GPU by category: kernels, communication, memory operations, their overlaps, and idle time.

See docs/numbers.md#gpu-time and docs/numbers.md#exposed-time.

Operations of a device (a CUDA ordinal of one process; docs/exports.md#identifiers) have four categories:

* K, compute kernels: all that are not in C
* C, communication: NCCL's kernels and copies (`nccl_copies`), and kernels of the family ``communication``
* M, other memory copies, and memsets
* G, launches of whole CUDA graphs whose contents were not traced

A = K ∪ C ∪ M ∪ G. U(X) is the union of the intervals of X, and |U(X)| its length: the time in which at least one
operation ran. No time exceeds the window w.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import add

import numpy as np

from nsystui.base.answer import UNKNOWN
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Array, Floats
from nsystui.exports.canonical import BY_NAME, CanonicalTable
from nsystui.questions.algebra.intervals import (
    EMPTY,
    Intervals,
    covered_per_bin,
    intersect,
    intervals_at,
    merge,
    put_intervals,
    subtract,
    union,
)
from nsystui.questions.queries.tasks import RankedTask
from nsystui.store.remember import Arrays
from nsystui.store.session import Session

Shares = Floats
"""Shape ``(bins,)``: 0 to 1 of each bin's time; NaN where the report was not recording."""


@dataclass(frozen=True)
class Device:
    """A GPU of a task: ``device`` is its CUDA ordinal in the process, ``gpu`` the machine's number, if recorded."""

    task: RankedTask
    device: int
    gpu: int | None
    model: str | None

    @property
    def key(self) -> tuple[Task, int]:
        """The process and the CUDA ordinal."""
        return self.task.task, self.device

    @property
    def is_gpu(self) -> bool:
        """Whether it counts as a GPU: an unknown device counts only if its task has no other device."""
        return self.device != UNKNOWN or len(self.task.devices) == 1


_OF_ALL = ("useful", "parallel", "load_balance")
_OF_MOVED = ("moved", "communication", "orchestration")
_OF_MEMORY = ("kernels_memory", "nccl_memory", "all_three")
_UNKNOWN_WITHOUT = {
    "kernels": (
        *("kernels", "nccl", "exposed_nccl", "overlap", "compute", "kernels_only", "nccl_only", "kernels_nccl"),
        *(*_OF_MEMORY, *_OF_ALL, *_OF_MOVED),
    ),
    "memory_ops": ("memory", "memory_only", "exposed_memory", *_OF_MEMORY, *_OF_MOVED),
    "graph_launches": ("graph", "graph_only", *_OF_ALL, *_OF_MOVED),
}
"""Parts of the time and factors of efficiency by table."""


def is_unknown(part: str, lost: Mapping[str, int]) -> bool:
    return any(calls and part in _UNKNOWN_WITHOUT[table] for table, calls in lost.items())


@dataclass(frozen=True)
class Breakdown:
    """The time of a window by category, ns: of one device, or the sum over several.

    ``kernels + exposed_nccl + memory_only + graph_only + idle == time``, exactly. Also ``kernels_only``, ``nccl_only``,
    ``memory_only``, the three overlaps of two, ``all_three``, ``graph_only`` and ``idle`` add up to ``time``.
    """

    time: int  # |w| without pauses, counted once per device
    recorded: int  # the part of ``time`` in the report's session; time outside counts as idle
    kernels: int  # |U(K)|
    nccl: int  # |U(C)|
    memory: int  # |U(M)|
    graph: int  # |U(G)|
    busy: int  # |A|
    exposed_nccl: int  # |U(C) \ U(K)|: communication that no kernel hides; concurrent copies and graphs hide nothing
    exposed_memory: int  # |U(M) \ U(K)|
    memory_only: int  # |U(M) \ U(K ∪ C)|
    all_three: int  # |U(K) ∩ U(C) ∩ U(M)|
    exposed_graph: int  # |U(G) \ U(K)|
    graph_without_kernels: int  # |U(G) \ U(K ∪ C)|
    unknown: Counter[str] = field(default_factory=Counter)  # calls without recorded work, by table

    def known(self, name: str) -> int | None:
        """Return an attribute; ``None`` if unknown."""
        return None if is_unknown(name, self.unknown) else getattr(self, name)

    @property
    def overlap(self) -> int:
        """|U(K) ∩ U(C)|, ns."""
        return self.nccl - self.exposed_nccl

    @property
    def graph_only(self) -> int:
        r"""|U(G) \ U(K ∪ C ∪ M)|, ns."""
        return self.busy - self.kernels - self.exposed_nccl - self.memory_only

    @property
    def kernels_only(self) -> int:
        r"""|U(K) \ U(C ∪ M)|, ns."""
        return self.kernels - self.kernels_nccl - self.kernels_memory - self.all_three

    @property
    def nccl_only(self) -> int:
        r"""|U(C) \ U(K ∪ M)|, ns."""
        return self.exposed_nccl - self.nccl_memory

    @property
    def kernels_nccl(self) -> int:
        r"""|(U(K) ∩ U(C)) \ U(M)|, ns."""
        return self.overlap - self.all_three

    @property
    def kernels_memory(self) -> int:
        r"""|(U(K) ∩ U(M)) \ U(C)|, ns."""
        return self.memory - self.exposed_memory - self.all_three

    @property
    def nccl_memory(self) -> int:
        r"""|(U(C) ∩ U(M)) \ U(K)|, ns."""
        return self.exposed_memory - self.memory_only

    @property
    def idle(self) -> int:
        """|w| − |A|, ns."""
        return self.time - self.busy

    def percent(self, part: int | None) -> float | None:
        """Return ``part`` (ns, an attribute) as a percentage of ``time``, or ``None`` if unknown or of no time."""
        return 100.0 * part / self.time if self.time and part is not None else None

    def __add__(self, other: Breakdown) -> Breakdown:
        return Breakdown(*map(add, vars(self).values(), vars(other).values()))


NOTHING = Breakdown(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def total(parts: Iterable[Breakdown]) -> Breakdown:
    """Return the sum; its percentages are means over the devices, weighted by their windows."""
    return sum(parts, NOTHING)


@dataclass(frozen=True, eq=False)
class BusyParts:
    r"""The busy times of one device by category, and the parts derived from them by ``of``; named as in ``Breakdown``.

    A is the union of the disjoint ``kernels``, ``exposed_nccl``, ``memory_only`` and ``graph_only``, which is
    U(G) \ U(K ∪ C ∪ M).
    """

    kernels: Intervals
    nccl: Intervals
    memory: Intervals
    graph: Intervals
    exposed_nccl: Intervals
    exposed_memory: Intervals
    memory_only: Intervals
    graph_only: Intervals
    all_three: Intervals
    exposed_graph: Intervals
    graph_without_kernels: Intervals

    @classmethod
    def of(
        cls, kernels: Intervals = EMPTY, nccl: Intervals = EMPTY, memory: Intervals = EMPTY, graph: Intervals = EMPTY
    ) -> BusyParts:
        """Compute the derived parts."""
        exposed_memory, exposed_graph = subtract(memory, kernels), subtract(graph, kernels)
        graph_without_kernels = subtract(exposed_graph, nccl)
        memory_only, graph_only = subtract(exposed_memory, nccl), subtract(graph_without_kernels, memory)
        return cls(
            kernels, nccl, memory, graph, subtract(nccl, kernels), exposed_memory, memory_only, graph_only,
            intersect(intersect(memory, nccl), kernels), exposed_graph, graph_without_kernels,
        )  # fmt: skip

    @property
    def disjoint(self) -> tuple[Intervals, ...]:
        """The disjoint parts whose union is A."""
        return tuple(getattr(self, name) for name in _DISJOINT)


def shifted(parts: BusyParts, offset: int) -> BusyParts:
    """Return the same parts ``offset`` ns later."""
    return BusyParts(**{item.name: getattr(parts, item.name).shifted(offset) for item in fields(BusyParts)})


_WINDOWS = 4
"""Number of windows whose totals a device caches."""


@dataclass(frozen=True, eq=False)
class DeviceIntervals:
    """The busy times of one device by category, job time; for a shared GPU, over all its processes.

    ``device`` belongs to the process with the most busy time, ``others`` to other processes.
    """

    device: Device
    recorded: Window
    parts: BusyParts
    clock_offset: int = 0  # the offset added to the report's own times, ns
    others: tuple[Device, ...] = ()
    pauses: Intervals = field(default_factory=lambda: EMPTY)  # times without a capture, neither busy nor idle
    unknown: Counter[str] = field(default_factory=Counter)
    _breakdowns: dict[Window, Breakdown] = field(default_factory=dict, init=False, repr=False)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device in each of its processes."""
        return (self.device, *self.others)

    @property
    def tasks(self) -> frozenset[Task]:
        """Its processes."""
        return frozenset(device.task.task for device in self.devices)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its ranks, sorted."""
        return tuple(sorted({device.task.rank for device in self.devices}))

    def breakdown(self, window: Window) -> Breakdown:
        """Return the totals in ``window``, cached for a few windows."""
        if window in self._breakdowns:
            return self._breakdowns[window]
        lo, hi = window.start, window.end
        lengths = {item.name: getattr(self.parts, item.name).length_within(lo, hi) for item in fields(BusyParts)}
        busy = sum(lengths[name] for name in _DISJOINT)
        del lengths["graph_only"]
        time = hi - lo - self.pauses.length_within(lo, hi)
        breakdown = Breakdown(time, self.recorded_in(window), **lengths, busy=busy, unknown=self.unknown)
        if len(self._breakdowns) >= _WINDOWS:
            self._breakdowns.clear()
        self._breakdowns[window] = breakdown
        return breakdown

    def busy_in(self, window: Window) -> int:
        """Return the busy time in ``window``, ns."""
        return sum(part.length_within(window.start, window.end) for part in self.parts.disjoint)

    def active(self, window: Window) -> Intervals:
        """Return the busy intervals in ``window``, A."""
        return merge(*(part.clip(window.start, window.end) for part in self.parts.disjoint))

    def worked(self, window: Window) -> Window | None:
        """Return the span from the first operation in ``window`` to the end of the last, if any."""
        parts = [
            clipped for clipped in (part.clip(window.start, window.end) for part in self.parts.disjoint) if len(clipped)
        ]
        if not parts:
            return None
        return Window(min(int(part.starts[0]) for part in parts), max(int(part.ends[-1]) for part in parts))

    def gaps(self, window: Window) -> Intervals:
        """Return the idle intervals between the first and the last operation in ``window``."""
        active = self.active(window)
        return subtract(Intervals(active.ends[:-1], active.starts[1:]), self.pauses)

    def idle(self, window: Window) -> Intervals:
        """Return all idle intervals in ``window``."""
        return subtract(self.active(window).gaps(window.start, window.end), self.pauses)

    def recorded_in(self, window: Window) -> int:
        """Return how much of ``window`` was recorded, ns."""
        start, end = max(window.start, self.recorded.start), min(window.end, self.recorded.end)
        return end - start - self.pauses.length_within(start, end) if end > start else 0

    def share(self, name: str, window: Window, bins: int) -> Shares:
        """Return the share of a part of the time in each of ``bins`` equal spans of ``window``, NaN if unknown.

        ``name``: ``busy``, or an attribute of `BusyParts`. Raises ValueError if ``bins < 1``.
        """
        if is_unknown(name, self.unknown):
            return np.full(bins, np.nan)
        lo, hi = window.start, window.end
        session = subtract(union([self.recorded.start], [self.recorded.end]), self.pauses)
        is_seen = covered_per_bin(session, lo, hi, bins) > 0
        names = _DISJOINT if name == "busy" else (name,)
        covered = sum(covered_per_bin(getattr(self.parts, name), lo, hi, bins) for name in names)
        return np.where(is_seen, np.minimum(covered * bins / max(hi - lo, 1), 1.0), np.nan)


_DISJOINT = ("kernels", "exposed_nccl", "memory_only", "graph_only")


StreamKey = tuple[int, ...]
"""The values of `DEVICE_KEYS` of a device, or of `STREAM_KEYS` of a stream."""

DEVICE_KEYS = ("process", "device")
STREAM_KEYS = (*DEVICE_KEYS, "stream")


def busy_parts(
    session: Session, keys: Sequence[str], places: Sequence[tuple[int, ...]], streams: frozenset[int] | None = None
) -> list[BusyParts]:
    """Read the busy times of each of ``places`` by category, on the clocks of the reports.

    Each place is a report's index and a `Place`, the values of ``keys`` (``DEVICE_KEYS`` or ``STREAM_KEYS``).
    ``streams`` restricts the operations.
    """
    keys = ("report", *keys)
    kernels = merged(session, BY_NAME["kernels"], keys, places, streams)
    memory = merged(session, BY_NAME["memory_ops"], keys, places, streams)
    graph = merged(session, BY_NAME["graph_launches"], keys, places, streams)
    give_back()
    return [
        BusyParts.of(kernels[number, 0], nccl, memory[number, 0], graph[number, 0])
        for number in range(len(places))
        for nccl in [merge(kernels[number, 1], memory[number, 1])]
    ]


def merged(
    session: Session,
    table: CanonicalTable,
    keys: Sequence[str],
    places: Sequence[tuple[int, ...]],
    streams: frozenset[int] | None = None,
) -> dict[tuple[int, int], Intervals]:
    """Return the union of a table's operations by (index of the place, 1 for communication, else 0): `busy_parts`."""
    parts: list[list[Intervals]] = [[] for _ in range(2 * len(places))]
    if places and session.count(table):
        import sqlalchemy as sa

        from nsystui.questions.queries.communication import is_communication_in
        from nsystui.questions.queries.conditions import given, of_reports, where
        from nsystui.store import tables

        rows = tables.of(table)
        columns = rows.c
        key_columns = dict(zip(keys, zip(*places, strict=True), strict=True))
        requested = given({**key_columns, "place": range(len(places))}).subquery("places")
        is_communication = sa.cast(is_communication_in(session, rows), sa.Integer)
        lane = sa.cast(2 * requested.c.place + is_communication, sa.Integer).label("lane")
        is_of_reports = of_reports(columns.report, {ids[0] for ids in places})
        is_whole = (columns.start.is_not(None), columns.end.is_not(None))
        query = (
            sa.select(lane, columns.start, columns.end)
            .join_from(rows, requested, sa.and_(*(columns[key] == requested.c[key] for key in keys)))
            .where(*where(rows, Selection(streams=streams)), is_of_reports, *is_whole)
        )
        for batch in session.array_batches(query):
            order = np.argsort(batch["lane"], kind="stable")
            used, firsts = np.unique(batch["lane"][order], return_index=True)
            for number, indices in zip(used.tolist(), np.split(order, firsts[1:]), strict=True):
                parts[number].append(union(batch["start"][indices], batch["end"][indices]))
    return {divmod(number, 2): merge(*pieces) for number, pieces in enumerate(parts)}


_PARTS = tuple(item.name for item in fields(BusyParts))


def to_arrays(parts_by_place: Mapping[StreamKey, BusyParts], keys: Sequence[str] = DEVICE_KEYS) -> Arrays:
    """Return arrays of the places and their intervals by part; inverse of `of_arrays`."""
    arrays: dict[str, Array] = {
        key: np.array([values[number] for values in parts_by_place], np.int64) for number, key in enumerate(keys)
    }
    for part in _PARTS:
        put_intervals(arrays, part, *(getattr(parts, part) for parts in parts_by_place.values()))
    return arrays


def of_arrays(arrays: Arrays, clock_offset: int, keys: Sequence[str] = DEVICE_KEYS) -> dict[StreamKey, BusyParts]:
    """Return the intervals by place, shifted by ``clock_offset`` to job time, ns."""
    places = zip(*(arrays[key].tolist() for key in keys), strict=True)
    parts = zip(*(intervals_at(arrays, part) for part in _PARTS), strict=True)
    return {key: shifted(BusyParts(*intervals), clock_offset) for key, intervals in zip(places, parts, strict=True)}
