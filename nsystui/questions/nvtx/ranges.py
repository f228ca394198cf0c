"""NVTX ranges as arrays: their nesting and their GPU work.

See docs/exports.md#nvtx and docs/numbers.md#nsys-stats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.resources import give_back
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.text import counted, few
from nsystui.base.types import Array, Flags, Ints
from nsystui.exports import canonical
from nsystui.exports.metadata import pid_of, process_of, tid_of
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.nesting import NO_PARENT
from nsystui.questions.nvtx.chains import OPEN, PUSH_POP, Chains, added_up, chained, narrow, rows_by_level
from nsystui.questions.nvtx.columns import RangeColumns, columns_of_each
from nsystui.questions.nvtx.loading import LABEL, SmallInts, by_appearance, has_launches
from nsystui.questions.queries.captures import NO_NODE, Captures, capture_notes
from nsystui.questions.queries.data_notes import conditional_notes, missing_notes
from nsystui.questions.queries.recording import recording_advice
from nsystui.questions.queries.tasks import RankedTask, roles_by_task, thread_names
from nsystui.questions.queries.time_window import report_at, selected_reports
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.steps.times import Steps


@dataclass(frozen=True)
class RangeThread:
    """A thread with NVTX ranges, and its process's role. ``rank``: ``None`` if it is not a task of the job."""

    report: int
    process: int
    thread: int
    rank: int | None = None
    name: str = ""
    role: str | None = None

    @property
    def pid(self) -> int:
        """The number of its process on its host."""
        return pid_of(self.process)

    @property
    def tid(self) -> int:
        """The number of the thread on its host."""
        return tid_of(self.thread)


@dataclass(frozen=True, eq=False)
class _Part:
    """The ranges of a report among a job's ranges.

    ``clock_offset`` (ns) and ``first_range`` are added to the report's times and indices of ranges; ``lane_indices``
    and ``name_indices`` map its lanes and names.
    """

    columns: RangeColumns
    chains: Chains
    clock_offset: int
    first_range: int
    lane_indices: Ints
    name_indices: Ints

    def __len__(self) -> int:
        return int(self.chains.edges[-1])

    def __getitem__(self, name: str) -> Array:
        values = self.columns[name]
        if name == "lane":
            return narrow(self.lane_indices[values])
        if name == "name":
            return narrow(self.name_indices[values])
        if name == "start":
            return values.astype(np.int64) + self.clock_offset if self.clock_offset else values
        if name in ("parent", "by_chain") and self.first_range:
            return np.where(values >= 0, values.astype(np.int64) + self.first_range, NO_PARENT)
        return values

    def moved_chains(self, first_chain: int) -> Chains:
        """Return the chains in job time; ``first_chain`` is the number of chains of previous parts."""
        chains, totals = self.chains, self.chains.totals
        gpu_offset = np.where(totals.projected > 0, self.clock_offset, 0)
        job_totals = replace(
            totals,
            first=totals.first + self.clock_offset,
            last=totals.last + self.clock_offset,
            gpu_first=totals.gpu_first + gpu_offset,
            gpu_last=totals.gpu_last + gpu_offset,
        )
        return Chains(
            lane=self.lane_indices[chains.lane],
            name=self.name_indices[chains.name],
            level=chains.level,
            parent=np.where(chains.parent >= 0, chains.parent + first_chain, NO_PARENT),
            sample=chains.sample + self.first_range,
            totals=job_totals,
        )


@dataclass(frozen=True, eq=False)
class _JobColumns:
    """The columns of all ranges of some reports, each read on first use, as narrow integers; see `columns`.

    But ``start`` is in job time, ``lane`` and ``name`` are indices into the job's lanes and names.
    """

    parts: tuple[_Part, ...]
    _read: dict[str, Array] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, name: str) -> Array:
        if name not in self._read:
            columns = [part[name] for part in self.parts]
            self._read[name] = columns[0] if len(columns) == 1 else np.concatenate(columns)
        return self._read[name]

    def forget(self) -> None:
        self._read.clear()
        give_back()

    @cached_property
    def chains(self) -> Chains:
        offsets = np.cumsum([0, *(len(part.chains) for part in self.parts)]).tolist()
        return Chains.joined([part.moved_chains(offset) for part, offset in zip(self.parts, offsets, strict=False)])


_COLUMNS = (
    "lane", "name", "row", "start", "length", "flags", "parent", "level", "self_time",
    "op_count", "op_time", "gpu_delay", "gpu_length", "replayed",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _SelectedColumns:
    """The columns of a selection of ranges."""

    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.columns["row"])

    def __getitem__(self, name: str) -> Array:
        if name in ("by_chain", "gpu_by_chain"):
            _, order, gpu = self._grouped
            return order if name == "by_chain" else gpu
        return self.columns[name]

    @property
    def chains(self) -> Chains:
        return self._grouped[0]

    @cached_property
    def _grouped(self) -> tuple[Chains, SmallInts, Array]:
        chains, order = chained(self["lane"], self["name"], self["parent"], self["level"])
        totals, gpu = added_up(self.columns.__getitem__, order, chains.pop("count"))
        return Chains(**chains, totals=totals), order, gpu


@dataclass(frozen=True, eq=False)
class NvtxRanges:
    """n ranges, by report and start. `values` returns arrays of the shape ``(n,)``; times are job time in ns.

    ``names`` lack PyTorch's suffix (see `loading.FOLDED_LABEL`); `full_names` returns complete names. A range that
    never ended (flag ``OPEN``) ends at its start. Only push/pop ranges nest (see `nesting.Nesting`): start/end ranges
    have neither parent nor children, and no self time (0). ``op_count`` is ``UNKNOWN`` if the report lacks API calls or
    GPU work, or the range ended on another thread. ``gpu_start``, ``gpu_end``, ``op_time``: see
    `projection.Projection`; 0 without operations.

    Each array is computed on request and not stored; `values` returns a part of an array at less cost.
    """

    session: Session
    selection: Selection
    lanes: tuple[RangeThread, ...]
    names: tuple[str, ...]
    columns: _JobColumns | _SelectedColumns
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, session: Session, selection: Selection, ranks: Sequence[RankedTask] = ()) -> NvtxRanges:
        """Load the selected tasks' ranges that overlap the window, with their full length, and the ranges around them.

        The name filter keeps matching ranges and the ranges around and inside them. Devices and streams select the GPU
        operations to project. Nesting, self time and projection do not depend on window and name filter. ``ranks``
        assigns ranks to lanes. Trees of all ranges need about 100 bytes per chain; the columns, 45 bytes per range, are
        read when single ranges are requested.
        """
        return _loaded(session, selection, ranks).of_tasks().narrowed(selection)

    def __len__(self) -> int:
        return len(self.columns)

    def forget(self) -> None:
        """Free the read columns; the next use reads them again."""
        if isinstance(self.columns, _JobColumns):
            self.columns.forget()

    @property
    def owners(self) -> tuple[Ints, Ints]:
        """The report and the process of each range, ``(n,)``."""
        owners = np.array([(thread.report, thread.process) for thread in self.lanes], np.int64).reshape(-1, 2)
        reports, processes = owners[self.columns["lane"]].T
        return reports, processes

    def values(self, name: str, rows: Ints | slice = slice(None)) -> Ints:
        """Return a column's values for some ranges; ``length`` and ``gpu_length`` are durations, ns."""
        values: Ints
        if name == "end":
            values = self.values("start", rows) + self.columns["length"][rows]
        elif name == "gpu_start":
            has_work = self.columns["op_count"][rows] > 0
            values = np.where(has_work, self.values("start", rows) + self.columns["gpu_delay"][rows], 0)
        elif name == "gpu_end":
            values = self.values("gpu_start", rows) + self.columns["gpu_length"][rows]
        else:
            values = self.columns[name][rows].astype(np.int64)
        return values

    def value(self, name: str, index: int) -> int:
        """Return a column's value for one range."""
        return int(self.values(name, slice(index, index + 1))[0])

    def lane_of(self, index: int) -> RangeThread:
        """Return the thread of a range."""
        return self.lanes[self.value("lane", index)]

    def nested_of(self, lane: int) -> Ints:
        """Return the indices of a lane's push/pop ranges, by start."""
        first, last = self._bounds_by_report.get(self.lanes[lane].report, (0, 0)) if lane >= 0 else (0, 0)
        is_nested = (self.columns["lane"][first:last] == lane) & (self.columns["flags"][first:last] & PUSH_POP > 0)
        return first + np.flatnonzero(is_nested)

    @cached_property
    def _bounds_by_report(self) -> Mapping[int, tuple[int, int]]:
        """Bounds of each report's ranges, so that a lookup does not scan all reports."""
        lane_counts = np.bincount(self.columns["lane"], minlength=len(self.lanes)).tolist()
        bounds: dict[int, tuple[int, int]] = {}
        first = 0
        for lane, count in zip(self.lanes, lane_counts, strict=True):
            bounds[lane.report] = (bounds.get(lane.report, (first, 0))[0], first + count)
            first += count
        return bounds

    def full_names(self, indices: Iterable[int]) -> list[str]:
        """Read the recorded names of some ranges (``domain:text``) from the store."""
        selected = np.fromiter(indices, np.int64)
        table = tables.nvtx_ranges
        reports = np.array([lane.report for lane in self.lanes], np.int64)[self.values("lane", selected)]
        starts, rows = self.values("start", selected), self.values("row", selected)
        names: dict[tuple[int, int], str] = {}
        for number in np.unique(reports).tolist():
            is_of_report = reports == number
            # The bounds let Parquet skip row groups.
            offset = report_at(self.session, number).clock_offset
            low, high = int(starts[is_of_report].min()) - offset, int(starts[is_of_report].max()) - offset
            query = sa.select(table.c.row, LABEL).where(
                table.c.report == number, table.c.start.between(low, high), table.c.row.in_(rows[is_of_report].tolist())
            )
            names.update({(number, row): name for row, name in self.session.part([number]).rows(query)})
        return [names[key] for key in zip(reports.tolist(), rows.tolist(), strict=True)]

    def innermost_at(self, lanes: Ints, times: Ints) -> Ints:
        """Return the innermost push/pop range's index at each job time on each lane, or -1; shapes ``(m,)``."""
        innermost = np.full(len(times), NO_PARENT, np.int64)
        for lane in np.unique(lanes[lanes >= 0]).tolist():
            moments = np.flatnonzero(lanes == lane)
            nested = self.nested_of(lane)
            starts = self.values("start", nested)
            # Ranges with equal starts are in no order: sort the innermost last.
            is_same = starts[1:] == starts[:-1]
            tied = np.flatnonzero(np.append(is_same, False) | np.insert(is_same, 0, False))
            nested[tied] = nested[tied][np.lexsort((self.values("level", nested[tied]), starts[tied]))]
            last = np.searchsorted(starts, times[moments], side="right") - 1
            # The last range that started before a moment is the innermost; if it has ended, a range around it is.
            innermost[moments] = np.where(last >= 0, nested[last], NO_PARENT) if len(nested) else NO_PARENT
        ended = np.flatnonzero(innermost >= 0)
        while len(ended := ended[self.values("end", innermost[ended]) <= times[ended]]):
            innermost[ended] = self.values("parent", innermost[ended])
            ended = ended[innermost[ended] >= 0]
        return innermost

    def lanes_of(self, reports: Ints, threads: Ints) -> Ints:
        """Return the index in ``lanes`` of m threads (globalTid), or -1; shapes ``(m,)``."""
        lanes = {(lane.report, lane.thread): index for index, lane in enumerate(self.lanes)}
        keys = zip(reports.tolist(), threads.tolist(), strict=True)
        return np.array([lanes.get(key, NO_PARENT) for key in keys], np.int64)

    def around_captures(self, reports: Ints, processes: Ints, nodes: Ints) -> Ints:
        """Return the innermost range's index around the capture of m nodes, or -1 if unknown; shapes ``(m,)``."""
        innermost = np.full(len(nodes), NO_PARENT, np.int64)
        for number in np.unique(reports[nodes != NO_NODE]).tolist():
            rows, report = np.flatnonzero(reports == number), report_at(self.session, number)
            thread, time = Captures.of(self.session, report).at(processes[rows], nodes[rows])
            innermost[rows] = self.innermost_at(self.lanes_of(reports[rows], thread), time + report.clock_offset)
        return innermost

    def of_tasks(self) -> NvtxRanges:
        """Return the selected tasks' ranges, from the ranges of their reports."""
        tasks = self.selection.tasks
        if tasks is None or all(Task(lane.report, lane.process) in tasks for lane in self.lanes):
            return self
        is_selected = np.array([Task(lane.report, lane.process) in tasks for lane in self.lanes], bool)
        selected = self._only(is_selected[self.columns["lane"]])
        lanes, names = np.flatnonzero(is_selected), by_appearance(selected.columns["name"], len(self.names))
        new_codes = {"lane": np.cumsum(is_selected) - 1, "name": np.zeros(len(self.names), np.int64)}
        new_codes["name"][names] = np.arange(len(names))
        columns = {key: selected.columns[key] for key in _COLUMNS}
        columns |= {key: narrow(codes[columns[key]]) for key, codes in new_codes.items()}
        return replace(
            selected,
            lanes=tuple(self.lanes[number] for number in lanes.tolist()),
            names=tuple(self.names[number] for number in names.tolist()),
            columns=_SelectedColumns(columns),
        )

    def narrowed(self, selection: Selection, steps: Steps | None = None) -> NvtxRanges:
        """Return the ranges of ``selection`` from ranges loaded without window and name filter."""
        ranges = replace(self, selection=selection)
        ranges = ranges if selection.window is None else ranges.within(selection.window, steps)
        return ranges if selection.name is None else ranges.matching(selection.name)

    def within(self, window: Window, steps: Steps | None = None) -> NvtxRanges:
        """Return the ranges that overlap ``window`` (as in `conditions.where`) and the ranges around them.

        With ``steps``, ranges of a process with steps must begin in the window's step instead.
        """
        start, is_open = self.columns["start"], self.columns["flags"] & OPEN > 0
        is_selected = (start < window.end) & ((start >= window.start) | (self.values("end") > window.start) | is_open)
        if steps is not None:
            has_steps = [Task(thread.report, thread.process) in steps.of_task for thread in self.lanes]
            is_begun = steps.numbers_at(*self.owners, self.values("start")) == window.step
            is_begun &= np.isin(self.owners[0], [report for report, *_ in window.spans])
            is_selected = np.where(np.array(has_steps, bool)[self.columns["lane"]], is_begun, is_selected)
        return self._only(with_ancestors(is_selected, self.columns["parent"]))

    def matching(self, name_filter: NameFilter) -> NvtxRanges:
        """Return the ranges whose name passes, and all ranges around and inside them."""
        selected = np.array([name_filter.matches(name) for name in self.names], bool)[self.columns["name"]]
        parent = self.columns["parent"]
        for rows in rows_by_level(self.columns["level"])[1:]:
            selected[rows] |= selected[parent[rows]]
        return self._only(with_ancestors(selected, parent))

    def _only(self, selected: Flags) -> NvtxRanges:
        if selected.all():
            return self
        new_index = np.cumsum(selected, dtype=np.int32) - 1
        columns = {key: self.columns[key][selected] for key in _COLUMNS}
        columns["parent"] = np.where(columns["parent"] >= 0, new_index[columns["parent"]], NO_PARENT)
        return replace(self, columns=_SelectedColumns(columns))


def with_ancestors(selected: Flags, parent: Array) -> Flags:
    """Return ``selected`` with all ancestors; ``parent`` is -1 for a root. Shapes ``(n,)``."""
    selected = selected.copy()
    rows = np.flatnonzero(selected)
    while len(rows):
        above = distinct(parent[rows]).astype(np.int64)
        rows = above[above >= 0]
        rows = rows[~selected[rows]]
        selected[rows] = True
    return selected


def _loaded(session: Session, selection: Selection, ranks: Sequence[RankedTask]) -> NvtxRanges:
    lanes: list[RangeThread] = []
    names: dict[str, int] = {}
    parts: list[_Part] = []
    projected = Selection(devices=selection.devices, streams=selection.streams)
    reports = [report for report in selected_reports(session, selection) if report.count(tables.nvtx_ranges)]
    names_by_thread, roles = (thread_names(session), roles_by_task(session, ranks)) if reports else ({}, {})
    rank_numbers = {item.task: item.rank for item in ranks}
    for source in columns_of_each(session, reports, projected):
        chains = source.chains()
        if not len(chains):
            continue
        report, threads = source.report, source.threads
        name_indices = np.array([names.setdefault(name, len(names)) for name in source.names], np.int64)
        lane_indices = len(lanes) + np.arange(len(threads))
        for thread, process in zip(threads.tolist(), process_of(threads).tolist(), strict=True):
            task, name = Task(report.index, process), names_by_thread.get((report.index, thread), "")
            rank, role = rank_numbers.get(task), roles.get(task)
            lanes.append(RangeThread(report.index, process, thread, rank, name, role))
        parts.append(_Part(source, chains, report.clock_offset, sum(map(len, parts)), lane_indices, name_indices))
    columns = _JobColumns(tuple(parts)) if parts else _SelectedColumns({key: np.empty(0, np.int64) for key in _COLUMNS})
    return NvtxRanges(session, selection, tuple(lanes), tuple(names), columns, _notes(session, bool(parts)))


def _notes(session: Session, has_ranges: bool) -> tuple[str, ...]:
    graphs = session.count(tables.graph_launches) if has_ranges else 0
    words = counted(graphs, "whole CUDA graph launch")
    graph_note = f"GPU time includes {words}; nsys stats leaves them out" if graphs else ""
    with_ranges = [report for report in session.reports if report.count(tables.nvtx_ranges)]
    lacking = [report for report in with_ranges if not has_launches(report)]
    advice = recording_advice(session, lacking, canonical.KERNELS) if lacking else ""
    launch_note = f"no GPU work to project in {few([report.name for report in lacking])}: {advice}" if lacking else ""
    notes = (*missing_notes(session, tables.nvtx_ranges), launch_note, graph_note, *capture_notes(session))
    return tuple(note for note in (*notes, *conditional_notes(session)) if note)
