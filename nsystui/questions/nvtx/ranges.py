"""NVTX ranges as arrays: which lies in which, and what the GPU did for each.

See docs/exports.md#nvtx and docs/numbers.md#nsys-stats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.exports.identifiers import pid_of, process_of, tid_of
from nsystui.questions.algebra.nesting import NO_PARENT, nest
from nsystui.questions.algebra.projection import project
from nsystui.questions.data_notes import missing_note
from nsystui.questions.derived import in_runs, of_each_report
from nsystui.questions.nvtx.loading import (
    FOLDED_LABEL,
    LABEL,
    Flags,
    Ints,
    SmallInts,
    Texts,
    has_launches,
    read_launches,
    read_ranges,
)
from nsystui.questions.tasks import RankedTask
from nsystui.questions.time_window import report_at
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

UNKNOWN = -1
"""In ``op_count``: nothing can tell what the range launched."""

DEEPEST = 10_000
"""The maximum nesting depth of ranges: no program needs more, and each level takes time."""


@dataclass(frozen=True)
class Lane:
    """A thread that has NVTX ranges. ``rank`` is ``None`` where its process is no task of the job."""

    report: int
    process: int
    thread: int
    rank: int | None = None
    name: str = ""

    @property
    def pid(self) -> int:
        return pid_of(self.process)

    @property
    def tid(self) -> int:
        return tid_of(self.thread)


@dataclass(frozen=True, eq=False)
class NvtxRanges:
    """n ranges, by report and start. The arrays have the shape ``(n,)``; times are job time in ns.

    ``lane``: index into ``lanes``. ``name``: index into ``names``, which are without PyTorch's suffix (see
    `names.fold_suffix`; `full_names` has all of a name). ``row``: the row in ``nvtx_ranges`` of the lane's report.
    ``is_open``: the range was never closed; its ``end`` is the last event of its report. ``parent``: index of the range
    around it, -1 for none. ``level``, ``self_time``: see `nesting.Nesting`. Only push/pop ranges nest: start/end ranges
    have neither parent nor children, and no self time (0). ``op_count``: GPU operations launched; ``UNKNOWN`` where the
    report lacks API calls or GPU work, or the range ended on another thread. ``gpu_start``, ``gpu_end``, ``op_time``:
    see `projection.Projection`; all 0 where ``op_count`` is not above 0.
    """

    session: Session
    selection: Selection
    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    lane: SmallInts
    name: SmallInts
    row: Ints
    start: Ints
    end: Ints
    is_push_pop: Flags
    is_open: Flags
    parent: SmallInts
    level: SmallInts
    self_time: Ints
    op_count: SmallInts
    gpu_start: Ints
    gpu_end: Ints
    op_time: Ints
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, session: Session, selection: Selection, ranks: Sequence[RankedTask] = ()) -> NvtxRanges:
        """The ranges of the selected tasks that overlap the window, whole, with the ranges around them.

        The name filter keeps the ranges that match, those around them and those inside them. Devices and streams say
        which GPU operations are projected. Nesting, self time and projection do not depend on window and name filter.
        ``ranks`` gives lanes their rank. Takes memory of about 80 bytes a range (a few times that while loading).
        """
        loader = _Loader(session, selection, {item.task: item.rank for item in ranks})
        reports = [report for report in session.reports if report.count(tables.nvtx_ranges)]
        # Here a report at a time, for the memory; workers take them side by side.
        for run in [reports] if session.workers is not None else [[report] for report in reports]:
            nested = _ranges_of_each(session, run)
            projected = _projection_of_each(session, run, nested, selection)
            for report in run:
                loader.add(report, nested[report.index], projected[report.index])
        return loader.ranges().no_deeper().narrowed(selection)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Ints:
        """``end - start``, ns."""
        return self.end - self.start

    @property
    def gpu_duration(self) -> Ints:
        """The length of the projected range (first to last GPU operation, idle time included), ns."""
        return self.gpu_end - self.gpu_start

    def lane_of(self, index: int) -> Lane:
        """The thread of a range."""
        return self.lanes[int(self.lane[index])]

    def nested_of(self, lane: int) -> Ints:
        """The indices of the push/pop ranges of a lane (by its number), by start."""
        first, last = self._of_report.get(self.lanes[lane].report, (0, 0)) if lane >= 0 else (0, 0)
        return first + np.flatnonzero((self.lane[first:last] == lane) & self.is_push_pop[first:last])

    @cached_property
    def _of_report(self) -> Mapping[int, tuple[int, int]]:
        """The indices between which the ranges of each report are: to look for a lane in all takes hundreds of times as
        long, of hundreds of reports.
        """
        of_lane = np.bincount(self.lane, minlength=len(self.lanes)).tolist()
        found: dict[int, tuple[int, int]] = {}
        first = 0
        for lane, number in zip(self.lanes, of_lane, strict=True):
            found[lane.report] = (found.get(lane.report, (first, 0))[0], first + number)
            first += number
        return found

    def full_names(self, indices: Iterable[int]) -> list[str]:
        """The names of some ranges as they were recorded (``domain:text``), read from the store."""
        wanted = np.fromiter(indices, np.int64)
        table = tables.nvtx_ranges
        reports = np.array([lane.report for lane in self.lanes], np.int64)[self.lane[wanted]]
        found: dict[tuple[int, int], str] = {}
        for number in np.unique(reports).tolist():
            chosen = wanted[reports == number]
            # The bounds let Parquet skip the row groups that hold none of them.
            moved = report_at(self.session, number).clock_offset
            low, high = int(self.start[chosen].min()) - moved, int(self.start[chosen].max()) - moved
            query = sa.select(table.c.row, LABEL).where(
                table.c.report == number, table.c.start.between(low, high), table.c.row.in_(self.row[chosen].tolist())
            )
            found.update({(number, row): name for row, name in self.session.part([number]).rows(query)})
        keys = zip(reports.tolist(), self.row[wanted].tolist(), strict=True)
        return [found[key] for key in keys]

    def innermost_at(self, lanes: Ints, times: Ints) -> Ints:
        """The index of the innermost push/pop range at each job time on each lane, -1 for none; shapes ``(m,)``."""
        found = np.full(len(times), NO_PARENT, np.int64)
        for lane in np.unique(lanes[lanes >= 0]).tolist():
            chosen = np.flatnonzero(lanes == lane)
            mine = self.nested_of(lane)
            mine = mine[np.lexsort((self.level[mine], self.start[mine]))]
            place = np.searchsorted(self.start[mine], times[chosen], side="right") - 1
            # What began last before a moment is the innermost, or it is over: then one around it is.
            found[chosen] = np.where(place >= 0, mine[place], NO_PARENT) if len(mine) else NO_PARENT
        while len(over := np.flatnonzero((found >= 0) & (self.end[found] <= times))):
            found[over] = self.parent[found[over]]
        return found

    def no_deeper(self, deepest: int = DEEPEST) -> NvtxRanges:
        """The ranges with less than ``deepest`` others around them, and a note about those that are left out."""
        chosen = self.level < deepest
        left = len(chosen) - int(np.count_nonzero(chosen))
        if not left:
            return self
        note = f"{left:,} ranges are left out that lie in more than {deepest - 1:,} others"
        return replace(self._only(chosen), notes=(*self.notes, note))

    def narrowed(self, selection: Selection) -> NvtxRanges:
        """The ranges of ``selection``, from those that were loaded without its window and name filter."""
        ranges = replace(self, selection=selection)
        if selection.window is not None:
            ranges = ranges.within(selection.window)
        if selection.name is not None:
            ranges = ranges.matching(selection.name)
        return ranges

    def within(self, window: Window) -> NvtxRanges:
        """The ranges that overlap ``window`` (as `conditions.where` has it) and those around them."""
        overlaps = (self.start < window.end) & ((self.start >= window.start) | (self.end > window.start))
        return self._only(with_ancestors(overlaps | (self.is_open & (self.start < window.end)), self.parent))

    def matching(self, wanted: NameFilter) -> NvtxRanges:
        """The ranges whose name passes ``wanted``, all those around them and all those inside them."""
        matches = np.array([wanted.matches(name) for name in self.names], bool)[self.name]
        return self._only(with_ancestors(self._with_descendants(matches), self.parent))

    def _with_descendants(self, chosen: Flags) -> Flags:
        chosen = chosen.copy()
        for rows in rows_by_level(self.level)[1:]:
            chosen[rows] |= chosen[self.parent[rows]]
        return chosen

    def _only(self, chosen: Flags) -> NvtxRanges:
        """The ranges of ``chosen``, which must hold every ancestor of what it holds."""
        if chosen.all():
            return self
        place = np.cumsum(chosen, dtype=np.int32) - 1
        parent = np.where(self.parent >= 0, place[self.parent], NO_PARENT)[chosen].astype(np.int32)
        arrays = {item.name: getattr(self, item.name) for item in fields(self)}
        arrays_of_chosen: dict[str, Any] = {
            key: value[chosen] for key, value in arrays.items() if isinstance(value, np.ndarray)
        }
        return replace(self, **{**arrays_of_chosen, "parent": parent})


def with_ancestors(chosen: Flags, parent: SmallInts) -> Flags:
    """``chosen`` and everything above it; ``parent`` is -1 where nothing is above. Shapes ``(n,)``."""
    chosen = chosen.copy()
    rows = np.flatnonzero(chosen)
    while len(rows):
        above = np.unique(parent[rows]).astype(np.int64)
        rows = above[above >= 0]
        rows = rows[~chosen[rows]]
        chosen[rows] = True
    return chosen


def rows_by_level(level: SmallInts) -> list[NDArray[np.int64]]:
    """The indices of the ranges of each level, outermost first."""
    order = np.argsort(level, kind="stable")
    depth = int(level.max(initial=-1)) + 1
    edges = np.searchsorted(level[order], np.arange(1, depth))
    return np.split(order, edges) if depth else []


@dataclass
class _Loader:
    """Reads the ranges a report at a time, so that only one report's texts and calls are in memory at once."""

    session: Session
    selection: Selection
    ranks: dict[Task, int]
    lanes: list[Lane] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    loaded: int = 0

    def ranges(self) -> NvtxRanges:
        lacking = missing_note(self.session, tables.nvtx_ranges)
        parts = self.parts or [_arranged(_NOTHING)]
        arrays: dict[str, Any] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        notes = tuple(note for note in (lacking, self._unprojected_note(), self._graph_note()) if note)
        return NvtxRanges(self.session, self.selection, tuple(self.lanes), tuple(self.names), notes=notes, **arrays)

    def _graph_note(self) -> str:
        graphs = self.session.count(tables.graph_launches) if self.parts else 0
        return f"GPU time has the {graphs:,} whole CUDA graph launches, which nsys stats leaves out" if graphs else ""

    def _unprojected_note(self) -> str:
        names = [
            report.name
            for report in self.session.reports
            if report.count(tables.nvtx_ranges) and not has_launches(report)
        ]
        if not names:
            return ""
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return f"no GPU work to project in {shown}: record with `nsys profile -t cuda,nvtx`"

    def add(self, report: Report, stored: Arrays, gpu: Arrays) -> None:
        """Takes in the ranges of a report and their projection."""
        if not len(stored["row"]):
            return
        start = stored["start"] + report.clock_offset
        launched = gpu["op_count"] > 0
        gpu_start = np.where(launched, start + gpu["gpu_delay"], 0)
        values = {
            **{key: stored[key] for key in _AS_STORED},
            "start": start,
            "end": start + stored["length"],
            "op_count": gpu["op_count"],
            "op_time": gpu["op_time"],
            "gpu_start": gpu_start,
            "gpu_end": gpu_start + gpu["gpu_length"],
        }
        if self.selection.tasks is not None:
            values = self._of_tasks(report, values, stored["threads"])
        values["lane"] = self._lane_numbers(report, values["lane"], stored["threads"])
        values["name"] = self._name_numbers(values["name"], json_of(stored["names"]))
        values["parent"] = np.where(values["parent"] >= 0, values["parent"] + self.loaded, NO_PARENT)
        self.parts.append(_arranged(values))
        self.loaded += len(values["row"])

    def _of_tasks(self, report: Report, values: dict[str, NDArray[Any]], threads: Ints) -> dict[str, NDArray[Any]]:
        """The ranges of the selected tasks: whole threads, so that what lies in each other stays together."""
        processes = [task.process for task in self.selection.tasks or () if task.report == report.index]
        is_chosen = np.isin(_processes(threads), processes)[values["lane"]]
        place = np.cumsum(is_chosen) - 1
        parent = np.where(values["parent"] >= 0, place[values["parent"]], NO_PARENT)
        return {key: value[is_chosen] for key, value in {**values, "parent": parent}.items()}

    def _lane_numbers(self, report: Report, lane: Ints, threads: Ints) -> Ints:
        used = np.flatnonzero(np.bincount(lane, minlength=len(threads)))
        place = np.zeros(len(threads), np.int64)
        place[used] = np.arange(len(used)) + len(self.lanes)
        for thread, process in zip(threads[used].tolist(), _processes(threads[used]).tolist(), strict=True):
            rank = self.ranks.get(Task(report.index, process))
            name = self._thread_names.get((report.index, thread), "")
            self.lanes.append(Lane(report.index, process, thread, rank, name))
        return place[lane]

    @cached_property
    def _thread_names(self) -> Mapping[tuple[int, int], str]:
        """Of all reports at once: a query has its cost for each that is open."""
        known = tables.threads.c
        query = sa.select(known.report, known.thread, known.name).where(known.name.is_not(None))
        return {(report, thread): name for report, thread, name in self.session.rows(query)}

    def _name_numbers(self, name: Ints, texts: Sequence[str]) -> Ints:
        import pandas as pd

        # In order of first appearance, as they are kept: only where some ranges are left out it is another.
        codes, used = (name, np.arange(len(texts))) if self.selection.tasks is None else pd.factorize(name)
        numbers = [self.names.setdefault(texts[number], len(self.names)) for number in used.tolist()]
        return np.array(numbers, np.int64)[codes]


def _processes(threads: Ints) -> Ints:
    """NVIDIA's globalPid of each globalTid."""
    return process_of(threads)


_AS_STORED = ("lane", "name", "row", "is_push_pop", "is_open", "parent", "level", "self_time")
_TYPES: dict[str, type[np.generic]] = {
    "lane": np.int32,
    "name": np.int32,
    "row": np.int64,
    "start": np.int64,
    "end": np.int64,
    "is_push_pop": np.bool_,
    "is_open": np.bool_,
    "parent": np.int32,
    "level": np.int32,
    "self_time": np.int64,
    "op_count": np.int32,
    "gpu_start": np.int64,
    "gpu_end": np.int64,
    "op_time": np.int64,
}
_NOTHING: dict[str, NDArray[Any]] = {key: np.empty(0, kind) for key, kind in _TYPES.items()}


def _arranged(values: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays as ``NvtxRanges`` keeps them: no wider than they must be."""
    return {key: values[key].astype(kind, copy=False) for key, kind in _TYPES.items()}


def ranges_of(session: Session, report: Report) -> Arrays:
    """The ranges of ``report`` and how they nest, kept next to its pack. Shapes ``(n,)`` for n ranges by start.

    Times are on the report's own clock.

    * ``lane``: index into ``threads`` (shape ``(threads,)``, NVIDIA's globalTid, ascending), ``name``: into ``names``
      (JSON, in order of first appearance); int32, as are ``parent`` and ``level``
    * ``row``, ``start``, ``length`` (ns), ``is_push_pop``, ``is_open``, ``is_whole``: see `loading.Ranges`
    * ``parent``, ``level``, ``self_time``: see `nesting.Nesting`; of push/pop ranges, and -1, 0 and 0 for start/end
      ranges
    """
    return _ranges_of_each(session, [report])[report.index]


def _ranges_of_each(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    return of_each_report(session, reports, "nvtx", _nested_of_each, by=tables.nvtx_ranges)


def _nested_of_each(session: Session, reports: list[Report]) -> dict[int, Arrays]:
    return {one.index: _nested(session, one) for one in reports}


def projection_of(session: Session, report: Report, ranges: Arrays, selection: Selection) -> Arrays:
    """The projection of the ranges of ``ranges_of``, on the selected devices and streams; kept where these are all.

    ``op_count`` (int32), ``op_time``, ``gpu_delay`` (from the start of the range to that of the projected one, ns) and
    ``gpu_length`` (ns): see `projection.Projection`.
    """
    return _projection_of_each(session, [report], {report.index: ranges}, selection)[report.index]


def _projection_of_each(
    session: Session, reports: Sequence[Report], nested: Mapping[int, Arrays], selection: Selection
) -> dict[int, Arrays]:
    # A worker has the ranges where they lie: they are more than their projection.
    compute = partial(_projected_of_each, selection, nested if session.workers is None else {})
    if selection.devices is None and selection.streams is None:
        return of_each_report(session, reports, "nvtx-gpu", compute, by=tables.nvtx_ranges)
    every: dict[int, Arrays] = {}
    for found in in_runs(session, reports, compute, tables.nvtx_ranges):
        every.update(found)
    return every


def _projected_of_each(
    selection: Selection, nested: Mapping[int, Arrays], session: Session, reports: list[Report]
) -> dict[int, Arrays]:
    return {
        one.index: _projected(session, one, nested.get(one.index) or ranges_of(session, one), selection)
        for one in reports
    }


def _nested(session: Session, report: Report) -> Arrays:
    import pandas as pd

    texts = Texts()
    read = read_ranges(session, report, texts, FOLDED_LABEL, report.packed.last_event or 0)
    names, firsts = pd.factorize(read.name)
    known = texts.texts
    lane, threads = pd.factorize(read.thread, sort=True)
    return {
        "threads": threads,
        "names": json_array([known[number] for number in firsts.tolist()]),
        "lane": lane.astype(np.int32),
        "name": names.astype(np.int32),
        "row": read.row,
        "start": read.start,
        "length": read.end - read.start,
        "is_push_pop": read.is_push_pop,
        "is_open": read.is_open,
        "is_whole": read.is_whole,
        **_nesting(read.start, read.end, read.thread, read.is_push_pop & read.is_whole),
    }


def _nesting(start: Ints, end: Ints, thread: Ints, is_nested: Flags) -> Arrays:
    """Parent, level and self time of push/pop ranges (``is_nested``); a start/end range stands alone."""
    nesting = nest(start[is_nested], end[is_nested], thread[is_nested])
    parent, level = np.full(len(start), NO_PARENT, np.int32), np.zeros(len(start), np.int32)
    self_time, place = np.zeros(len(start), np.int64), np.flatnonzero(is_nested)
    parent[is_nested] = np.where(nesting.parent >= 0, place[nesting.parent], NO_PARENT)
    level[is_nested], self_time[is_nested] = nesting.level, nesting.self_time
    return {"parent": parent, "level": level, "self_time": self_time}


def _projected(session: Session, report: Report, ranges: Arrays, selection: Selection) -> Arrays:
    start, is_whole = ranges["start"], ranges["is_whole"]
    count = np.full(len(start), UNKNOWN, np.int32)
    delay, length, op_time = (np.zeros(len(start), np.int64) for _ in range(3))
    if has_launches(report):
        begin = start[is_whole]
        thread = ranges["threads"][ranges["lane"][is_whole]]
        calls = read_launches(session, report, selection)
        found = project(begin, begin + ranges["length"][is_whole], thread, calls)
        count[is_whole], op_time[is_whole] = found.op_count, found.op_time
        delay[is_whole] = np.where(found.op_count > 0, found.start - begin, 0)
        length[is_whole] = found.end - found.start
    return {"op_count": count, "op_time": op_time, "gpu_delay": delay, "gpu_length": length}
