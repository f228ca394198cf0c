"""NVTX ranges as arrays: which lies in which, and what the GPU did for each (domain §1.8, §4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.analysis.event_kinds import KIND_TABLES, EventKind
from nsystui.analysis.missing import missing_note
from nsystui.analysis.nesting import NO_PARENT, nest
from nsystui.analysis.nvtx.launches import has_launches, launch_calls
from nsystui.analysis.projection import project
from nsystui.analysis.selection import NameFilter, Selection, Task, Window
from nsystui.analysis.tasks import RankedTask
from nsystui.analysis.where import job_start, where
from nsystui.store import tables
from nsystui.store.session import Report, Session

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]
Flags = NDArray[np.bool_]

UNKNOWN = -1
"""In ``op_count``: nothing can say what the range launched."""

LABEL = KIND_TABLES[EventKind.NVTX].name
"""The name of a range in SQL as nsys writes it: ``domain:text``, and the bare text in the default domain."""

FOLDED_LABEL = sa.func.regexp_replace(LABEL, ", (seq|op_id|sizes) =.*", "", "s", type_=sa.Text)
"""The same without PyTorch's suffix: what `names.fold_suffix` does, for a million names at once."""

PUSH_POP_TYPES = (59, 70)
START_END_TYPES = (60, 71)


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
        return (self.process >> 24) & 0xFFFFFF

    @property
    def tid(self) -> int:
        return self.thread & 0xFFFFFF


@dataclass(frozen=True, eq=False)
class NvtxRanges:
    """n ranges, by report and start. The arrays have the shape ``(n,)``; times are job time in ns.

    ``lane``: index into ``lanes``. ``name``: index into ``names``, which are without PyTorch's suffix (see
    `names.fold_suffix`; `full_names` has all of a name). ``row``: the row in ``nvtx_ranges`` of the lane's report.
    ``is_open``: the range was never closed; its ``end`` is the last event of its report. ``parent``: index of the range
    around it, -1 for none; a range that ended on another thread than it began on has neither parent nor children.
    ``level``, ``self_time``: see `nesting.Nesting`. ``op_count``: GPU operations launched; ``UNKNOWN`` where the report
    lacks API calls or GPU work, or the range ended on another thread. ``gpu_start``, ``gpu_end``, ``op_time``: see
    `projection.Projection`; all 0 where ``op_count`` is not above 0.
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
        for report in session.reports:
            if report.count(tables.nvtx_ranges):
                loader.add(report)
        ranges = loader.ranges()
        if selection.window is not None:
            ranges = ranges.within(selection.window)
        if selection.name is not None:
            ranges = ranges.matching(selection.name)
        return ranges

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

    def full_names(self, indices: Iterable[int]) -> list[str]:
        """The names of some ranges as they were recorded (``domain:text``), asked of the store."""
        wanted = np.fromiter(indices, np.int64)
        table = tables.nvtx_ranges
        reports = np.array([lane.report for lane in self.lanes], np.int64)[self.lane[wanted]]
        found: dict[tuple[int, int], str] = {}
        for number in np.unique(reports).tolist():
            chosen = wanted[reports == number]
            # The bounds let Parquet skip the row groups that hold none of them.
            moved = _report(self.session, number).clock_offset
            low, high = int(self.start[chosen].min()) - moved, int(self.start[chosen].max()) - moved
            query = sa.select(table.c.row, LABEL).where(
                table.c.report == number, table.c.start.between(low, high), table.c.row.in_(self.row[chosen].tolist())
            )
            found.update({(number, row): name for row, name in self.session.rows(query)})
        keys = zip(reports.tolist(), self.row[wanted].tolist(), strict=True)
        return [found[key] for key in keys]

    def within(self, window: Window) -> NvtxRanges:
        """The ranges that overlap ``window`` (as `where.where` has it) and those around them."""
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

    def _only(self, kept: Flags) -> NvtxRanges:
        """The ranges of ``kept``, which must hold every ancestor of what it holds."""
        if kept.all():
            return self
        place = np.cumsum(kept, dtype=np.int32) - 1
        parent = np.where(self.parent >= 0, place[self.parent], NO_PARENT)[kept].astype(np.int32)
        arrays = {item.name: getattr(self, item.name) for item in fields(self)}
        chosen: dict[str, Any] = {key: value[kept] for key, value in arrays.items() if isinstance(value, np.ndarray)}
        return replace(self, **{**chosen, "parent": parent})


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


def _report(session: Session, index: int) -> Report:
    return next(report for report in session.reports if report.index == index)


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

    def add(self, report: Report) -> None:
        read = self._read(report)
        if not len(read["row"]):
            return
        start, is_open = np.ma.getdata(read["start"]), np.ma.getmaskarray(read["end"])
        last = (report.packed.last_event or 0) + report.clock_offset
        end = np.maximum(start, np.where(is_open, last, np.ma.getdata(read["end"])))
        thread = np.ma.getdata(read["thread"])
        end_thread = read["end_thread"]
        is_whole = np.ma.getmaskarray(end_thread) | (np.ma.getdata(end_thread) == thread)
        values = {
            "lane": self._lane_numbers(report, thread),
            "name": self._name_numbers(np.ma.getdata(read["name"])),
            "row": np.ma.getdata(read["row"]),
            "start": start,
            "end": end,
            "is_push_pop": np.isin(np.ma.getdata(read["event_type"]), PUSH_POP_TYPES),
            "is_open": is_open,
            **_nested(start, end, thread, is_whole),
            **self._projected(report, start, end, thread, is_whole),
        }
        values["parent"] = np.where(values["parent"] >= 0, values["parent"] + self.loaded, NO_PARENT)
        self.parts.append(_arranged(values))
        self.loaded += len(start)

    def _read(self, report: Report) -> dict[str, NDArray[Any]]:
        table = tables.nvtx_ranges
        columns = table.c
        query = (
            sa.select(
                job_start(table).label("start"),
                (columns.end + columns.clock_offset).label("end"),
                sa.func.coalesce(columns.thread, 0).label("thread"),
                columns.end_thread,
                columns.event_type,
                columns.row,
                FOLDED_LABEL.label("name"),
            )
            .where(columns.report == report.index, columns.start.is_not(None))
            .where(*where(table, Selection(tasks=self.selection.tasks)))
            .order_by(columns.start, columns.row)
        )
        return self.session.arrays(query)

    def _lane_numbers(self, report: Report, thread: Ints) -> Ints:
        import pandas as pd

        codes, distinct = pd.factorize(thread, sort=True)
        known = tables.threads
        query = sa.select(known.c.thread, known.c.name).where(known.c.report == report.index, known.c.name.is_not(None))
        names = dict(self.session.rows(query))
        numbers: Ints = codes + len(self.lanes)
        for number in distinct.tolist():
            process = number & ~0xFFFFFF
            rank = self.ranks.get(Task(report.index, process))
            self.lanes.append(Lane(report.index, process, number, rank, names.get(number, "")))
        return numbers

    def _name_numbers(self, texts: NDArray[Any]) -> Ints:
        import pandas as pd

        codes, distinct = pd.factorize(texts)
        numbers: Ints = np.array([self.names.setdefault(text, len(self.names)) for text in distinct], np.int64)[codes]
        return numbers

    def _projected(self, report: Report, start: Ints, end: Ints, thread: Ints, is_whole: Flags) -> dict[str, Ints]:
        count = np.full(len(start), UNKNOWN, np.int64)
        gpu_start, gpu_end, op_time = (np.zeros(len(start), np.int64) for _ in range(3))
        if has_launches(report):
            calls = launch_calls(self.session, report, self.selection)
            found = project(start[is_whole], end[is_whole], thread[is_whole], calls)
            count[is_whole], op_time[is_whole] = found.op_count, found.op_time
            gpu_start[is_whole], gpu_end[is_whole] = found.start, found.end
        return {"op_count": count, "gpu_start": gpu_start, "gpu_end": gpu_end, "op_time": op_time}


def _nested(start: Ints, end: Ints, thread: Ints, is_whole: Flags) -> dict[str, Ints]:
    """Parent, level and self time; a range that ended on another thread stands alone."""
    nesting = nest(start[is_whole], end[is_whole], thread[is_whole])
    if is_whole.all():
        return {"parent": nesting.parent, "level": nesting.level, "self_time": nesting.self_time}
    parent, level, self_time = np.full(len(start), NO_PARENT, np.int64), np.zeros(len(start), np.int64), end - start
    place = np.flatnonzero(is_whole)
    parent[is_whole] = np.where(nesting.parent >= 0, place[nesting.parent], NO_PARENT)
    level[is_whole], self_time[is_whole] = nesting.level, nesting.self_time
    return {"parent": parent, "level": level, "self_time": self_time}


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
