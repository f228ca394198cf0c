"""NVTX ranges projected onto the GPU, as ``nsys stats`` has them (docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import PID, TID, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.extent import selected_reports
from nsystui.questions.missing import missing_note
from nsystui.questions.projection import calls_inside
from nsystui.questions.stats.nvtx_groups import measured, quartiles
from nsystui.questions.stats.nvtx_kernels import kernels_by_range
from nsystui.questions.stats.nvtx_load import (
    Launches,
    Ranges,
    Texts,
    joined,
    matching,
    pids,
    read_launches,
    read_ranges,
    style,
    tids,
)
from nsystui.questions.stats.nvtx_projection import ProjectedRanges, are_outside, projected
from nsystui.questions.stats.nvtx_trace import Trace, by_start, parent_rows, stacks
from nsystui.questions.stats.report import Ask, Options
from nsystui.store import tables
from nsystui.store.session import Session

_SUM_COLUMNS = (
    Column("name", header="Range", label="range"),
    Column("style", header="Style", label="style", importance=5),
    Column("total", header="Total Proj Time (ns)", label="GPU total", unit=Unit.DURATION),
    Column("range_total", header="Total Range Time (ns)", label="CPU total", unit=Unit.DURATION, importance=2),
    Column("count", header="Range Instances", label="ranges", unit=Unit.COUNT, importance=1),
    Column("avg", header="Proj Avg (ns)", label="GPU avg", unit=Unit.DURATION, decimals=1, importance=3),
    Column("median", header="Proj Med (ns)", label="GPU median", unit=Unit.DURATION, decimals=1, importance=2),
    Column("min", header="Proj Min (ns)", label="GPU min", unit=Unit.DURATION, importance=5),
    Column("max", header="Proj Max (ns)", label="GPU max", unit=Unit.DURATION, importance=4),
    Column("stddev", header="Proj StdDev (ns)", label="GPU stddev", unit=Unit.DURATION, decimals=1, importance=6),
    Column("op_count", header="Total GPU Ops", label="GPU ops", unit=Unit.COUNT, importance=2),
    Column("avg_op_count", header="Avg GPU Ops", label="avg ops", unit=Unit.COUNT, decimals=1, importance=4),
    Column("avg_level", header="Avg Range Lvl", label="avg level", unit=Unit.COUNT, decimals=1, importance=6),
    Column("avg_child_count", header="Avg Num Child", label="avg children", unit=Unit.COUNT, decimals=1, importance=6),
)

_TRACE_COLUMNS = (
    Column("name", header="Name", label="range"),
    Column("gpu_start", header="Projected Start (ns)", label="GPU start", unit=Unit.TIME),
    Column("gpu_duration", header="Projected Duration (ns)", label="GPU duration", unit=Unit.DURATION),
    Column("start", header="Orig Start (ns)", label="CPU start", unit=Unit.TIME, importance=2),
    Column("duration", header="Orig Duration (ns)", label="CPU duration", unit=Unit.DURATION, importance=1),
    Column("style", header="Style", label="style", importance=5),
    PID.with_importance(4),
    TID.with_importance(3),
    Column("op_count", header="NumGPUOps", label="GPU ops", unit=Unit.COUNT, importance=1),
    Column("level", header="Lvl", label="level", unit=Unit.NUMBER, importance=4),
    Column("child_count", header="NumChild", label="children", unit=Unit.COUNT, importance=4),
    Column("row", header="RangeId", label="id", unit=Unit.NUMBER, importance=5),
    Column("parent_row", header="ParentId", label="parent", unit=Unit.NUMBER, importance=5),
    Column("stack", header="RangeStack", label="stack", importance=6),
)


def projected_summary(session: Session, selection: Selection, _: Options) -> TableAnswer:
    """``nvtx_gpu_proj_sum``: one row for each range name and style, longest projected time first.

    The frame has ``q1`` and ``q3`` besides, which nsys computes and does not print.
    """
    import pandas as pd

    texts, parts = Texts(), []
    for report in selected_reports(session, selection) or session.reports:
        ranges = read_ranges(session, report, selection, texts)
        parts.append(projected(ranges, read_launches(session, report, selection)))
    every = joined(parts)
    chosen = np.flatnonzero(matching(texts, selection)[every.name])
    group = every.name[chosen].astype(np.int64) * 2 + every.is_push_pop[chosen]
    spans = (every.gpu_end - every.gpu_start)[chosen]
    frame = measured(group, spans).join(quartiles(group, spans))
    for key, values in (
        ("range_total", every.end - every.start),
        ("op_count", every.op_count),
        ("level", every.level),
        ("child_count", every.child_count),
    ):
        frame[key] = pd.Series(values[chosen]).groupby(group).sum()
    for key in ("op_count", "level", "child_count"):
        frame[f"avg_{key}"] = frame[key] / frame["count"]
    number = frame.index.to_numpy()
    order = np.lexsort((-(number % 2), texts.ranks()[number // 2], -frame["total"].to_numpy()))
    frame, number = frame.iloc[order].reset_index(drop=True), number[order]
    names = texts.texts
    frame["name"] = pd.Series([names[text] for text in (number // 2).tolist()], dtype="object")
    frame["style"] = pd.Series([style(flag == 1) for flag in (number % 2).tolist()], dtype="object")
    total = len(frame) if selection.is_everything else None
    return TableAnswer.of_frame("nvtx-gpu-proj-sum", _SUM_COLUMNS, frame, total, _notes(session))


@dataclass(frozen=True, eq=False)
class _Rows:
    """Makes rows of the trace: i ≥ 0 is a range of ``ranges``, -1, -2, … are the rows of ``outside``."""

    texts: list[str]
    ranges: ProjectedRanges
    outside: list[Row]

    def __call__(self, indices: Sequence[int]) -> list[Row]:
        of_ranges = iter(self._of_ranges([index for index in indices if index >= 0]))
        return [next(of_ranges) if index >= 0 else self.outside[-1 - index] for index in indices]

    def _of_ranges(self, indices: Sequence[int]) -> list[Row]:
        chosen, ranges = np.array(indices, np.int64), self.ranges
        columns = (
            [self.texts[number] for number in ranges.name[chosen].tolist()],
            ranges.gpu_start[chosen].tolist(),
            (ranges.gpu_end[chosen] - ranges.gpu_start[chosen]).tolist(),
            ranges.start[chosen].tolist(),
            (ranges.end[chosen] - ranges.start[chosen]).tolist(),
            [style(flag) for flag in ranges.is_push_pop[chosen].tolist()],
            pids(ranges.thread[chosen]),
            tids(ranges.thread[chosen]),
            ranges.op_count[chosen].tolist(),
            ranges.level[chosen].tolist(),
            ranges.child_count[chosen].tolist(),
            ranges.row[chosen].tolist(),
            parent_rows(indices, ranges.parent, ranges.row),
            stacks(indices, ranges.parent, ranges.row),
        )
        return list(zip(*columns, strict=True))


def projected_trace(session: Session, selection: Selection, _: Options) -> Trace:
    """``nvtx_gpu_proj_trace``: every range with GPU work, by start in job time, after what no range launched."""
    texts, parts, before = Texts(), [], 0
    outside: list[Row] = []
    for report in selected_reports(session, selection) or session.reports:
        ranges, launches = read_ranges(session, report, selection, texts), read_launches(session, report, selection)
        part = projected(ranges, launches, before)
        parts.append(part)
        before += len(part)
        if report.has(tables.nvtx_ranges) and (selection.name is None or selection.name.matches("")):
            outside += _outside(ranges, launches)
    every = joined(parts)
    order = by_start(every.start, every.end, every.row)
    order = order[matching(texts, selection)[every.name[order]]]
    order = np.concatenate((-1 - np.arange(len(outside)), order))
    total = len(order) if selection.is_everything else None
    return Trace(
        "nvtx-gpu-proj-trace", _TRACE_COLUMNS, order, _Rows(texts.texts, every, outside), _notes(session), total
    )


def _outside(ranges: Ranges, launches: Launches) -> list[Row]:
    """The row that nsys has for all calls of a report in no range, if there are any.

    The process and thread in it are those of the call whose work ended last, as in the only case known.
    """
    found = calls_inside(ranges.start, ranges.end, ranges.thread, launches.start, launches.end, launches.thread)
    calls = np.flatnonzero(are_outside(found, len(launches.start)))
    if not len(calls):
        return []
    first, ends = int(launches.op_start[calls].min()), launches.op_end[calls]
    last = calls[[ends.argmax()]]
    (pid,), (tid,) = pids(launches.thread[last]), tids(launches.thread[last])
    op_count = len(np.unique(launches.correlation[calls]))
    place: Row = (None, None, None, pid, tid)
    return [(None, first, int(ends.max()) - first, *place, op_count, None, 0, None, None, None)]


def _notes(session: Session) -> tuple[str, ...]:
    notes = [missing_note(session, table) for table in (tables.nvtx_ranges, tables.api_calls)]
    graphs = session.count(tables.graph_launches)
    if graphs:
        notes.append(f"{graphs:,} whole CUDA graph launches are not projected, as in nsys stats")
    return tuple(note for note in notes if note)


ASK: dict[str, Ask] = {
    "nvtx_gpu_proj_sum": projected_summary,
    "nvtx_gpu_proj_trace": projected_trace,
    "nvtx_kern_sum": kernels_by_range,
}
