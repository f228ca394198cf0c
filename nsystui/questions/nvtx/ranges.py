"""NVTX ranges as arrays: which lies in which, and what the GPU did for each.

See docs/exports.md#nvtx and docs/numbers.md#nsys-stats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.resources import give_back
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.text import few
from nsystui.exports import canonical
from nsystui.exports.metadata import pid_of, process_of, tid_of
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.nesting import NO_PARENT
from nsystui.questions.nvtx.chains import OPEN, PUSH_POP, Chains, added_up, chained, narrow, rows_by_level
from nsystui.questions.nvtx.columns import RangeColumns, by_appearance, columns_of_each
from nsystui.questions.nvtx.loading import LABEL, Flags, Ints, SmallInts, has_launches
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.recording import recording_advice
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import report_at, selected_reports
from nsystui.store import tables
from nsystui.store.session import Session


@dataclass(frozen=True)
class RangeThread:
    """A thread that has NVTX ranges. ``rank`` is ``None`` where its process is no task of the job."""

    report: int
    process: int
    thread: int
    rank: int | None = None
    name: str = ""

    @property
    def pid(self) -> int:
        """The number of its process on its host."""
        return pid_of(self.process)

    @property
    def tid(self) -> int:
        """The number of the thread on its host."""
        return tid_of(self.thread)


class NvtxColumns(Protocol):
    """The columns of n ranges in integers as narrow as they can be; see `columns`, and in job time ``start``.

    ``lane`` and ``name`` are indices into those of the job, ``parent`` is one of these ranges.
    """

    @property
    def chains(self) -> Chains:
        """The chains of the ranges, in job time."""

    def __len__(self) -> int: ...

    def __getitem__(self, name: str) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class _Part:
    """The ranges of a report among those of a job: what is to be added to theirs, and what stands for theirs."""

    own: RangeColumns
    chains: Chains
    start: int
    parent: int
    lanes: Ints
    names: Ints

    def __len__(self) -> int:
        return int(self.chains.edges[-1])

    def __getitem__(self, name: str) -> NDArray[Any]:
        values = self.own[name]
        if name == "lane":
            return narrow(self.lanes[values])
        if name == "name":
            return narrow(self.names[values])
        if name == "start":
            return values.astype(np.int64) + self.start if self.start else values
        if name in ("parent", "by_chain") and self.parent:
            return np.where(values >= 0, values.astype(np.int64) + self.parent, NO_PARENT)
        return values

    def moved_chains(self, before: int) -> Chains:
        """The chains in job time; ``before``: the number of those of the parts before this one."""
        chains, totals = self.chains, self.chains.totals
        gpu = np.where(totals.projected > 0, self.start, 0)
        moved = replace(
            totals,
            first=totals.first + self.start,
            last=totals.last + self.start,
            gpu_first=totals.gpu_first + gpu,
            gpu_last=totals.gpu_last + gpu,
        )
        return Chains(
            lane=self.lanes[chains.lane],
            name=self.names[chains.name],
            level=chains.level,
            parent=np.where(chains.parent >= 0, chains.parent + before, NO_PARENT),
            sample=chains.sample + self.parent,
            totals=moved,
        )


@dataclass(frozen=True, eq=False)
class _OfReports:
    """The columns of all ranges of some reports, each read when it is asked for the first time."""

    parts: tuple[_Part, ...]
    _known: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._known:
            columns = [part[name] for part in self.parts]
            self._known[name] = columns[0] if len(columns) == 1 else np.concatenate(columns)
        return self._known[name]

    def forget(self) -> None:
        self._known.clear()
        give_back()

    @cached_property
    def chains(self) -> Chains:
        befores = np.cumsum([0, *(len(part.chains) for part in self.parts)]).tolist()
        return Chains.joined([part.moved_chains(before) for part, before in zip(self.parts, befores, strict=False)])


_CHOSEN = (
    "lane", "name", "row", "start", "length", "flags", "parent", "level", "self_time",
    "op_count", "op_time", "gpu_delay", "gpu_length",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The columns of ranges that were chosen from others."""

    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["row"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in ("by_chain", "gpu_by_chain"):
            _, order, gpu = self._grouped
            return order if name == "by_chain" else gpu
        return self.columns[name]

    @property
    def chains(self) -> Chains:
        return self._grouped[0]

    @cached_property
    def _grouped(self) -> tuple[Chains, SmallInts, NDArray[Any]]:
        chains, order = chained(self["lane"], self["name"], self["parent"], self["level"])
        totals, gpu = added_up(self.columns.__getitem__, order, chains.pop("count"))
        return Chains(**chains, totals=totals), order, gpu


@dataclass(frozen=True, eq=False)
class NvtxRanges:
    """n ranges, by report and start. The arrays have the shape ``(n,)``; times are job time in ns.

    ``lane``: index into ``lanes``. ``name``: index into ``names``, which are without PyTorch's suffix (see
    `loading.FOLDED_LABEL`; `full_names` has all of a name). ``row``: the row in ``nvtx_ranges`` of the lane's report.
    ``is_open``: the range never ended; its ``end`` is its start. ``parent``: index of the range
    around it, -1 for none. ``level``, ``self_time``: see `nesting.Nesting`. Only push/pop ranges nest: start/end ranges
    have neither parent nor children, and no self time (0). ``op_count``: GPU operations launched; ``UNKNOWN`` where the
    report lacks API calls or GPU work, or the range ended on another thread. ``gpu_start``, ``gpu_end``, ``op_time``:
    see `projection.Projection`; all 0 where ``op_count`` is not above 0.

    Each array is made when it is asked for, and is not kept: of some ranges, `values` has the same for less.
    """

    session: Session
    selection: Selection
    lanes: tuple[RangeThread, ...]
    names: tuple[str, ...]
    columns: NvtxColumns
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, session: Session, selection: Selection, ranks: Sequence[RankedTask] = ()) -> NvtxRanges:
        """Load the ranges of the selected tasks that overlap the window, whole, with the ranges around them.

        The name filter keeps the ranges that match, those around them and those inside them. Devices and streams say
        which GPU operations are projected. Nesting, self time and projection do not depend on window and name filter.
        ``ranks`` gives lanes their rank. What the trees of all ranges need is some 100 bytes for each chain of names;
        the columns, 45 bytes a range, are read when single ranges are looked at.
        """
        ranges = _loaded(session, selection, {item.task: item.rank for item in ranks})
        return ranges.of_tasks().narrowed(selection)

    def __len__(self) -> int:
        return len(self.columns)

    def forget(self) -> None:
        """Let go of the columns that were read; they are read again when they are asked for."""
        if isinstance(self.columns, _OfReports):
            self.columns.forget()

    @property
    def lane(self) -> SmallInts:
        """Index into ``lanes``, int32 ``(n,)``."""
        return self.columns["lane"].astype(np.int32)

    @property
    def name(self) -> SmallInts:
        """Index into ``names``, int32 ``(n,)``."""
        return self.columns["name"].astype(np.int32)

    @property
    def row(self) -> Ints:
        """Row in ``nvtx_ranges`` of the lane's report, ``(n,)``."""
        return self.values("row")

    @property
    def start(self) -> Ints:
        """Job time, ns, ascending within a report, ``(n,)``."""
        return self.values("start")

    @property
    def end(self) -> Ints:
        """Job time, ns, ``(n,)``; of a range that never ended its start."""
        return self.values("end")

    @property
    def is_push_pop(self) -> Flags:
        """Whether it is a push/pop range, ``(n,)``; else it is a start/end range."""
        return (self.columns["flags"] & PUSH_POP) > 0

    @property
    def is_open(self) -> Flags:
        """Whether the range was never closed, ``(n,)``."""
        return (self.columns["flags"] & OPEN) > 0

    @property
    def parent(self) -> SmallInts:
        """Index of the range around it, -1 for none, int32 ``(n,)``."""
        return self.columns["parent"].astype(np.int32)

    @property
    def level(self) -> SmallInts:
        """Number of ranges around it, int32 ``(n,)``; 0 for start/end ranges."""
        return self.columns["level"].astype(np.int32)

    @property
    def self_time(self) -> Ints:
        """Time outside of its children, ns, ``(n,)``; 0 for start/end ranges."""
        return self.values("self_time")

    @property
    def op_count(self) -> SmallInts:
        """Number of GPU operations launched, ``UNKNOWN`` where nothing can tell, int32 ``(n,)``."""
        return self.columns["op_count"].astype(np.int32)

    @property
    def gpu_start(self) -> Ints:
        """Start of the first GPU operation, job time, ns, ``(n,)``; 0 without operations."""
        return self.values("gpu_start")

    @property
    def gpu_end(self) -> Ints:
        """End of the last GPU operation, job time, ns, ``(n,)``; 0 without operations."""
        return self.values("gpu_end")

    @property
    def op_time(self) -> Ints:
        """Time of the GPU operations, ns, ``(n,)``; see `projection.Projection`."""
        return self.values("op_time")

    @property
    def duration(self) -> Ints:
        """``end - start``, ns."""
        return self.values("length")

    @property
    def gpu_duration(self) -> Ints:
        """The length of the projected range (first to last GPU operation, idle time included), ns."""
        return self.values("gpu_length")

    def values(self, name: str, rows: Ints | slice = slice(None)) -> Ints:
        """Return the values of a column for some of the ranges; ``length`` and ``gpu_length`` are durations, ns."""
        found: Ints
        if name == "end":
            found = self.values("start", rows) + self.columns["length"][rows]
            return found
        if name == "gpu_start":
            has_work = self.columns["op_count"][rows] > 0
            found = np.where(has_work, self.values("start", rows) + self.columns["gpu_delay"][rows], 0)
            return found
        if name == "gpu_end":
            found = self.values("gpu_start", rows) + self.columns["gpu_length"][rows]
            return found
        found = self.columns[name][rows].astype(np.int64)
        return found

    def value(self, name: str, index: int) -> int:
        """Return the value of a column for a single range."""
        return int(self.values(name, slice(index, index + 1))[0])

    def lane_of(self, index: int) -> RangeThread:
        """Return the thread of a range."""
        return self.lanes[self.value("lane", index)]

    def nested_of(self, lane: int) -> Ints:
        """Return the indices of the push/pop ranges of a lane (by its number), by start."""
        first, last = self._of_report.get(self.lanes[lane].report, (0, 0)) if lane >= 0 else (0, 0)
        is_mine = (self.columns["lane"][first:last] == lane) & (self.columns["flags"][first:last] & PUSH_POP > 0)
        return first + np.flatnonzero(is_mine)

    @cached_property
    def _of_report(self) -> Mapping[int, tuple[int, int]]:
        """The indices between which the ranges of each report are: to look for a lane in all takes hundreds of times as
        long, of hundreds of reports.
        """
        of_lane = np.bincount(self.columns["lane"], minlength=len(self.lanes)).tolist()
        found: dict[int, tuple[int, int]] = {}
        first = 0
        for lane, number in zip(self.lanes, of_lane, strict=True):
            found[lane.report] = (found.get(lane.report, (first, 0))[0], first + number)
            first += number
        return found

    def full_names(self, indices: Iterable[int]) -> list[str]:
        """Return the names of some ranges as they were recorded (``domain:text``), read from the store."""
        wanted = np.fromiter(indices, np.int64)
        table = tables.nvtx_ranges
        reports = np.array([lane.report for lane in self.lanes], np.int64)[self.values("lane", wanted)]
        starts, rows = self.values("start", wanted), self.values("row", wanted)
        found: dict[tuple[int, int], str] = {}
        for number in np.unique(reports).tolist():
            chosen = reports == number
            # The bounds let Parquet skip the row groups that hold none of them.
            moved = report_at(self.session, number).clock_offset
            low, high = int(starts[chosen].min()) - moved, int(starts[chosen].max()) - moved
            query = sa.select(table.c.row, LABEL).where(
                table.c.report == number, table.c.start.between(low, high), table.c.row.in_(rows[chosen].tolist())
            )
            found.update({(number, row): name for row, name in self.session.part([number]).rows(query)})
        keys = zip(reports.tolist(), rows.tolist(), strict=True)
        return [found[key] for key in keys]

    def innermost_at(self, lanes: Ints, times: Ints) -> Ints:
        """Find the innermost push/pop range (its index, or -1) at each job time on each lane; shapes ``(m,)``."""
        found = np.full(len(times), NO_PARENT, np.int64)
        for lane in np.unique(lanes[lanes >= 0]).tolist():
            chosen = np.flatnonzero(lanes == lane)
            mine = self.nested_of(lane)
            starts = self.values("start", mine)
            # Ranges that begin at the same time are in any order; the innermost is to be the last.
            same = starts[1:] == starts[:-1]
            tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
            mine[tied] = mine[tied][np.lexsort((self.values("level", mine[tied]), starts[tied]))]
            place = np.searchsorted(starts, times[chosen], side="right") - 1
            # What began last before a moment is the innermost, or it is over: then one around it is.
            found[chosen] = np.where(place >= 0, mine[place], NO_PARENT) if len(mine) else NO_PARENT
        some = np.flatnonzero(found >= 0)
        while len(some := some[self.values("end", found[some]) <= times[some]]):
            found[some] = self.values("parent", found[some])
            some = some[found[some] >= 0]
        return found

    def of_tasks(self) -> NvtxRanges:
        """Return the ranges of the selected tasks, from those of the reports that these are in."""
        tasks = self.selection.tasks
        if tasks is None or all(Task(lane.report, lane.process) in tasks for lane in self.lanes):
            return self
        is_chosen = np.array([Task(lane.report, lane.process) in tasks for lane in self.lanes], bool)
        chosen = self._only(is_chosen[self.columns["lane"]])
        lanes, names = np.flatnonzero(is_chosen), by_appearance(chosen.columns["name"], len(self.names))
        numbers = {"lane": np.cumsum(is_chosen) - 1, "name": np.zeros(len(self.names), np.int64)}
        numbers["name"][names] = np.arange(len(names))
        columns = {key: chosen.columns[key] for key in _CHOSEN}
        columns |= {key: narrow(of[columns[key]]) for key, of in numbers.items()}
        return replace(
            chosen,
            lanes=tuple(self.lanes[number] for number in lanes.tolist()),
            names=tuple(self.names[number] for number in names.tolist()),
            columns=_Chosen(columns),
        )

    def narrowed(self, selection: Selection) -> NvtxRanges:
        """Return the ranges of ``selection``, from those that were loaded without its window and name filter."""
        ranges = replace(self, selection=selection)
        if selection.window is not None:
            ranges = ranges.within(selection.window)
        if selection.name is not None:
            ranges = ranges.matching(selection.name)
        return ranges

    def within(self, window: Window) -> NvtxRanges:
        """Return the ranges that overlap ``window`` (as `conditions.where` has it) and those around them."""
        start = self.columns["start"]
        overlaps = (start >= window.start) | (self.end > window.start) | self.is_open
        return self._only(with_ancestors((start < window.end) & overlaps, self.columns["parent"]))

    def matching(self, wanted: NameFilter) -> NvtxRanges:
        """Return the ranges whose name passes ``wanted``, all those around them and all those inside them."""
        chosen = np.array([wanted.matches(name) for name in self.names], bool)[self.columns["name"]]
        parent = self.columns["parent"]
        for rows in rows_by_level(self.columns["level"])[1:]:
            chosen[rows] |= chosen[parent[rows]]
        return self._only(with_ancestors(chosen, parent))

    def _only(self, chosen: Flags) -> NvtxRanges:
        """The ranges of ``chosen``, which must hold every ancestor of what it holds."""
        if chosen.all():
            return self
        place = np.cumsum(chosen, dtype=np.int32) - 1
        columns = {key: self.columns[key][chosen] for key in _CHOSEN}
        columns["parent"] = np.where(columns["parent"] >= 0, place[columns["parent"]], NO_PARENT)
        return replace(self, columns=_Chosen(columns))


def with_ancestors(chosen: Flags, parent: NDArray[Any]) -> Flags:
    """Add everything above ``chosen`` to it; ``parent`` is -1 where nothing is above. Shapes ``(n,)``."""
    chosen = chosen.copy()
    rows = np.flatnonzero(chosen)
    while len(rows):
        above = distinct(parent[rows]).astype(np.int64)
        rows = above[above >= 0]
        rows = rows[~chosen[rows]]
        chosen[rows] = True
    return chosen


def _loaded(session: Session, selection: Selection, ranks: dict[Task, int]) -> NvtxRanges:
    """The ranges of the reports of the selected tasks, a report after the other."""
    lanes: list[RangeThread] = []
    names: dict[str, int] = {}
    parts: list[_Part] = []
    projected = Selection(devices=selection.devices, streams=selection.streams)
    reports = [one for one in selected_reports(session, selection) if one.count(tables.nvtx_ranges)]
    thread_names = _thread_names(session) if reports else {}
    for own in columns_of_each(session, reports, projected):
        chains = own.chains()
        if not len(chains):
            continue
        report, threads = own.report, own.threads
        numbers = np.array([names.setdefault(name, len(names)) for name in own.names], np.int64)
        before = len(lanes) + np.arange(len(threads))
        for thread, process in zip(threads.tolist(), process_of(threads).tolist(), strict=True):
            rank = ranks.get(Task(report.index, process))
            lanes.append(RangeThread(report.index, process, thread, rank, thread_names.get((report.index, thread), "")))
        parts.append(_Part(own, chains, report.clock_offset, sum(map(len, parts)), before, numbers))
    columns = _OfReports(tuple(parts)) if parts else _Chosen({key: np.empty(0, np.int64) for key in _CHOSEN})
    return NvtxRanges(session, selection, tuple(lanes), tuple(names), columns, _notes(session, bool(parts)))


def _thread_names(session: Session) -> Mapping[tuple[int, int], str]:
    """By report and globalTid, of all reports at once: a query has its cost for each that is open."""
    known = tables.threads.c
    query = sa.select(known.report, known.thread, known.name).where(known.name.is_not(None))
    return {(report, thread): name for report, thread, name in session.rows(query)}


def _notes(session: Session, has_ranges: bool) -> tuple[str, ...]:
    graphs = session.count(tables.graph_launches) if has_ranges else 0
    in_graphs = f"GPU time includes {graphs:,} whole CUDA graph launches; nsys stats leaves them out" if graphs else ""
    with_ranges = [report for report in session.reports if report.count(tables.nvtx_ranges)]
    lacking = [report for report in with_ranges if not has_launches(report)]
    advice = recording_advice(session, lacking, canonical.KERNELS) if lacking else ""
    unprojected = f"no GPU work to project in {few([report.name for report in lacking])}: {advice}" if lacking else ""
    return tuple(note for note in (missing_note(session, tables.nvtx_ranges), unprojected, in_graphs) if note)
