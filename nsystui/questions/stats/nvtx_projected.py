"""NVTX ranges projected onto the GPU, as in ``nsys stats`` (docs/numbers.md#nsys-stats)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import PID, TID, Column, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection
from nsystui.base.text import counted
from nsystui.base.types import Ints
from nsystui.exports.metadata import pid_of, tid_of
from nsystui.questions.algebra.groups import Groups, distinct
from nsystui.questions.algebra.nesting import NO_PARENT, one_timeline, tree_of
from nsystui.questions.algebra.projection import are_outside, calls_inside, project_parts
from nsystui.questions.nvtx.loading import (
    LaunchCallColumns,
    Ranges,
    Texts,
    joined,
    launch_parts_as_nsys,
    ranges_as_nsys,
)
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.time_window import selected_reports
from nsystui.questions.stats.nvtx_kernels import kernels_by_range
from nsystui.questions.stats.nvtx_ranges import NESTED, NestedRanges, RangeTrace, style
from nsystui.questions.stats.report import AskReport, ReportOptions
from nsystui.store import tables
from nsystui.store.remember import Arrays, json_array, json_of
from nsystui.store.report import Report
from nsystui.store.session import Session


@dataclass(frozen=True, eq=False)
class ProjectedRanges(NestedRanges):
    """The ranges that contain a launch of GPU work. Shapes ``(n,)``.

    ``gpu_start``, ``gpu_end``: start of the first operation and end of the last, job time, ns. ``op_count``: number of
    distinct correlation ids.
    """

    gpu_start: Ints
    gpu_end: Ints
    op_count: Ints

    def cells(self, indices: Ints, texts: Sequence[str]) -> dict[str, Sequence[Value]]:
        part = self.only(indices)
        return {
            **super().cells(indices, texts),
            "gpu_start": part.gpu_start.tolist(),
            "gpu_duration": (part.gpu_end - part.gpu_start).tolist(),
            "op_count": part.op_count.tolist(),
        }


def projected(ranges: Ranges, launches: Iterable[LaunchCallColumns], offset: int = 0) -> ProjectedRanges:
    """Project a report's ranges onto the GPU; one part of ``launches`` has all launches of a correlation id.

    ``parent`` counts from ``offset``, the number of ranges of earlier reports.
    """
    repeated = np.zeros(len(ranges), np.int64)

    def counted() -> Iterator[LaunchCallColumns]:
        for part in launches:
            repeated[:] += _repeated_ids(ranges, part)
            yield part

    projection = project_parts(ranges.start, ranges.end - ranges.start, ranges.thread, counted())
    parent_of, level, _ = tree_of(ranges.start, ranges.end, ranges.thread)
    launching = np.flatnonzero(projection.op_count)
    new_index = np.full(len(ranges) + 1, NO_PARENT, np.int64)  # the last value is for ranges without a parent
    new_index[launching] = np.arange(len(launching))
    parent = new_index[parent_of[launching]]
    gpu_start = ranges.start[launching] + projection.delay[launching]
    return ProjectedRanges(
        **{key: values[launching] for key, values in vars(ranges).items()},
        gpu_start=gpu_start,
        gpu_end=gpu_start + projection.length[launching],
        op_count=(projection.op_count - repeated)[launching],
        parent=np.where(parent == NO_PARENT, NO_PARENT, parent + offset),
        level=level[launching].astype(np.int64),
        child_count=np.bincount(parent[parent != NO_PARENT], minlength=len(launching)),
    )


def _repeated_ids(ranges: Ranges, launches: LaunchCallColumns) -> Ints:
    """Return how many calls in each range repeat the correlation id of another call in it; shape ``(n,)``.

    Calls around another call of the same id and thread are dropped: a range around them contains the inner call, too.
    The remaining calls of an id overlap without nesting, so a range contains consecutive calls: their number, minus the
    number of spans in it from a call to the end of the next, is 1.
    """
    order = np.lexsort((-launches.ends, launches.starts, launches.correlation, launches.threads))
    start, end, thread = launches.starts[order], launches.ends[order], launches.threads[order]
    is_same = (np.diff(launches.correlation[order]) == 0) & (np.diff(thread) == 0)
    if not is_same.any():
        return np.zeros(1, np.int64)
    group = np.concatenate(([0], np.cumsum(~is_same)))
    line_end = one_timeline(start, end, group)[1]
    later = np.minimum.accumulate(line_end[::-1])[::-1]
    inner = np.flatnonzero(np.append(line_end[:-1] < later[1:], True))
    all_counts = _count(ranges, start, end, thread)
    start, end, thread, group = start[inner], end[inner], thread[inner], group[inner]
    neighbors = np.flatnonzero(np.diff(group) == 0)
    pair_counts = _count(ranges, start[neighbors], end[neighbors + 1], thread[neighbors])
    return all_counts - (_count(ranges, start, end, thread) - pair_counts)


def _count(ranges: Ranges, start: Ints, end: Ints, thread: Ints) -> Ints:
    counts = np.zeros(len(ranges), np.int64)
    for part in calls_inside(ranges.start, ranges.end, ranges.thread, start, end, thread):
        counts += np.maximum(part.until - part.since, 0)
    return counts


PROJECTED = (
    Column("avg", header="Proj Avg (ns)", label="GPU avg", unit=Unit.DURATION, decimals=1, importance=3),
    Column("median", header="Proj Med (ns)", label="GPU median", unit=Unit.DURATION, decimals=1, importance=2),
    Column("min", header="Proj Min (ns)", label="GPU min", unit=Unit.DURATION, importance=5),
    Column("max", header="Proj Max (ns)", label="GPU max", unit=Unit.DURATION, importance=4),
    Column("stddev", header="Proj StdDev (ns)", label="GPU stddev", unit=Unit.DURATION, decimals=1, importance=6),
    Column("op_count", header="Total GPU Ops", label="GPU ops", unit=Unit.COUNT, importance=2),
)
"""Statistics of times on the GPU, and the number of operations."""
_SUM_COLUMNS = (
    Column("name", header="Range", label="range"),
    Column("style", header="Style", label="style", importance=5),
    Column("total", header="Total Proj Time (ns)", label="GPU total", unit=Unit.DURATION),
    Column(
        "range_total", header="Total Range Time (ns)", label="CPU total", unit=Unit.DURATION, compared="total"
    ).with_importance(2),
    Column("count", header="Range Instances", label="ranges", unit=Unit.COUNT, importance=1),
    *PROJECTED,
    Column("avg_op_count", header="Avg GPU Ops", label="avg ops", unit=Unit.COUNT, decimals=1, importance=4),
    Column("avg_level", header="Avg Range Lvl", label="avg level", unit=Unit.COUNT, decimals=1, importance=6),
    Column("avg_child_count", header="Avg Num Child", label="avg children", unit=Unit.COUNT, decimals=1, importance=6),
)

_TRACE_COLUMNS = (
    Column("name", header="Name", label="range"),
    Column("gpu_start", header="Projected Start (ns)", label="GPU start", unit=Unit.TIME),
    Column(
        "gpu_duration", header="Projected Duration (ns)", label="GPU duration", unit=Unit.DURATION, compared="duration"
    ),
    Column("start", header="Orig Start (ns)", label="CPU start", unit=Unit.TIME, importance=2),
    Column("duration", header="Orig Duration (ns)", label="CPU duration", unit=Unit.DURATION, importance=1),
    Column("style", header="Style", label="style", importance=5),
    PID.with_importance(4),
    TID.with_importance(3),
    Column("op_count", header="NumGPUOps", label="GPU ops", unit=Unit.COUNT, importance=1),
    *NESTED,
)


def projected_summary(session: Session, selection: Selection, _: ReportOptions) -> TableAnswer:
    """Answer ``nvtx_gpu_proj_sum``: a row per range name and style, longest projected time first.

    The frame also has ``q1`` and ``q3``, which nsys computes but does not print.
    """
    parts = [
        _sizes_of(session, report, selection) for report in selected_reports(session, selection) or session.reports
    ]
    names, numbers = _merged([json_of(part["names"]) for part in parts])
    sizes = {key: np.concatenate([part[key] for part in parts]) for key in _SIZES}
    sizes["name"] = np.concatenate([codes[part["name"]] for codes, part in zip(numbers, parts, strict=True)])
    if selection.name is not None:
        is_selected = np.array([selection.name.matches(name) for name in names], np.bool_)[sizes["name"]]
        sizes = {key: values[is_selected] for key, values in sizes.items()}
    groups = Groups.of(sizes["name"] * 2 + sizes["is_push_pop"], sizes["total"])
    arrays = groups.measures()
    for key in ("range_total", *_COUNTS):
        arrays[key] = groups.summed(sizes[key])
    for key in _COUNTS:
        arrays[f"avg_{key}"] = arrays[key] / groups.count
    order = np.lexsort((-(groups.number % 2), groups.number // 2, -arrays["total"]))
    arrays = {key: values[order] for key, values in arrays.items()}
    name, is_push_pop = np.divmod(groups.number[order], 2)
    arrays["name"] = np.array(names, object)[name]
    arrays["style"] = np.array([style(False), style(True)], object)[is_push_pop]
    total = len(order) if selection.is_everything else None
    return TableAnswer.of_arrays("nvtx-gpu-proj-sum", _SUM_COLUMNS, arrays, total, _notes(session))


def _merged(lists: Sequence[list[str]]) -> tuple[list[str], list[Ints]]:
    """Return the sorted union of sorted lists of texts, and the indices in it of each list's texts."""
    if len(lists) == 1:
        return lists[0], [np.arange(len(lists[0]))]
    merged = sorted(set().union(*lists))
    indices = {text: index for index, text in enumerate(merged)}
    return merged, [np.array([indices[text] for text in texts], np.int64) for texts in lists]


_COUNTS = ("op_count", "level", "child_count")
_SIZES = ("is_push_pop", "total", "range_total", *_COUNTS)


def _sizes_of(session: Session, report: Report, selection: Selection) -> Arrays:
    """Return the summands of all projected ranges of ``report``; cached if the whole report is selected.

    ``names`` is sorted JSON; by range: ``name`` (its index there), ``is_push_pop``, ``total`` and ``range_total``
    (length of the projection and of the range, ns), ``op_count``, ``level``, ``child_count``.
    """

    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        return {item.index: _sizes(part, item, selection.with_name(None)) for item in reports}

    if selection.with_name(None).is_everything:
        return of_each_report(session, [report], "nvtx-gpu-sizes", compute)[report.index]
    return compute(session, [report])[report.index]


def _sizes(session: Session, report: Report, selection: Selection) -> Arrays:
    texts = Texts()
    ranges = ranges_as_nsys(session, report, selection, texts)
    on_gpu = projected(ranges, launch_parts_as_nsys(session, report, selection))
    used, name = np.unique(texts.ranks()[on_gpu.name], return_inverse=True)
    names = sorted(texts.numbers)
    return {
        "names": json_array([names[number] for number in used.tolist()]),
        "name": name.astype(np.int32),
        "is_push_pop": on_gpu.is_push_pop,
        "total": on_gpu.gpu_end - on_gpu.gpu_start,
        "range_total": on_gpu.end - on_gpu.start,
        **{key: getattr(on_gpu, key) for key in _COUNTS},
    }


def projected_trace(session: Session, selection: Selection, _: ReportOptions) -> RangeTrace:
    """Answer ``nvtx_gpu_proj_trace``: all ranges with GPU work, by start in job time, after work outside of ranges."""
    texts, parts, offset = Texts(), [], 0
    outside: list[Row] = []
    for report in selected_reports(session, selection) or session.reports:
        ranges = ranges_as_nsys(session, report, selection, texts)
        launches = joined(list(launch_parts_as_nsys(session, report, selection)))
        part = projected(ranges, [launches], offset)
        parts.append(part)
        offset += len(part)
        if report.has(tables.nvtx_ranges) and (selection.name is None or selection.name.matches("")):
            outside += _outside(ranges, launches)
    columns, notes = _TRACE_COLUMNS, _notes(session)
    return RangeTrace.of("nvtx-gpu-proj-trace", columns, joined(parts), texts, selection, notes, outside)


def _outside(ranges: Ranges, launches: LaunchCallColumns) -> list[Row]:
    """Return nsys's row for all calls outside of ranges, if any.

    Its process and thread belong to the call whose work ended last, as in the only known case.
    """
    inside = calls_inside(ranges.start, ranges.end, ranges.thread, launches.starts, launches.ends, launches.threads)
    calls = np.flatnonzero(are_outside(inside, len(launches.starts)))
    if not len(calls):
        return []
    first, ends = int(launches.op_start[calls].min()), launches.op_end[calls]
    thread = int(launches.threads[calls[ends.argmax()]])
    op_count = len(distinct(launches.correlation[calls]))
    cells: Row = (None, None, None, pid_of(thread), tid_of(thread))
    return [(None, first, int(ends.max()) - first, *cells, op_count, None, 0, None, None, None)]


def _notes(session: Session) -> tuple[str, ...]:
    notes = missing_notes(session, tables.nvtx_ranges, tables.api_calls)
    graphs = session.count(tables.graph_launches)
    words = f"{counted(graphs, 'whole CUDA graph launch', 'are')} not projected, as in nsys stats"
    return (*notes, *[words] * bool(graphs))


ASK: dict[str, AskReport] = {
    "nvtx_gpu_proj_sum": projected_summary,
    "nvtx_gpu_proj_trace": projected_trace,
    "nvtx_kern_sum": kernels_by_range,
}
