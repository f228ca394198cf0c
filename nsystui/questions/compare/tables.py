"""Tables of a comparison: GPU work, NCCL, NVTX ranges and training steps of two sides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import NAME, Column, Row, TableAnswer, Unit, Value
from nsystui.base.kernel_families import family_of
from nsystui.base.selection import Window
from nsystui.base.types import Flags
from nsystui.questions.algebra.groups import measures_of
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.blocking.budget import LABELS, iterations
from nsystui.questions.compare.pairs import Compared, Extra, Figures, Key, Measured, columns_of, compared, minus, ratio
from nsystui.questions.compare.side import Basis, Side, both, gpu_basis
from nsystui.questions.kernels.activities import API, MEMORY, memory_sizes, work_summary
from nsystui.questions.kernels.summary import GroupBy, Names, kernel_summary
from nsystui.questions.nccl.grouping import COLUMNS, USUAL, NcclProperty
from nsystui.questions.nccl.summary import CALL, KERNEL, What, nccl_summary
from nsystui.questions.nvtx.loading import has_launches
from nsystui.questions.nvtx.paths import numbered, template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.ranks.steps import StepTimes, step_times
from nsystui.store import tables

_NAME = (NAME,)
_FAMILY = (Column("name", header="Family", label="family"),)
_OPERATION = (Column("name", header="Operation", label="operation"),)
_CALL = (Column("name", header="Call", label="call"),)
_BYTES = (Extra("size", "Bytes", "bytes", Unit.BYTES, None, 2, is_sum=True),)


def kernels(a: Side, b: Side, names: Names = Names.FULL) -> Compared:
    """Return kernels by name, as counted and timed by `kernel_summary`."""
    row_names = Names.FULL if names is Names.SMART else names  # screens replace full names by smart names
    ask = partial(kernel_summary, names=row_names)
    return _kernels("diff-kernels", _NAME, a, b, ask, _short_name if names is Names.SHORT else None)


def families(a: Side, b: Side) -> Compared:
    """Return kernels by family."""
    return _kernels("diff-families", _FAMILY, a, b, partial(kernel_summary, group_by=(GroupBy.FAMILY,)), _family)


_KindOf = Callable[[Side], Callable[[str], Value]]
"""A side's function from a kernel's full name to its group: family or short name."""


def _kernels(
    name: str, columns: Sequence[Column], a: Side, b: Side, ask: Callable[..., TableAnswer], kind_of: _KindOf | None
) -> Compared:
    answers = [ask(side.job.session, side.selection, families=side.job.families) for side in (a, b)]
    basis = gpu_basis(a, b, "kernels")
    notes = (*basis.note(" with a GPU"), *both(answers[0].notes, answers[1].notes))
    rows = [by_name(answer, columns[0].label) for answer in answers]
    if kind_of is not None:
        rows = [_with_parts(side_rows, side, kind_of(side)) for side_rows, side in zip(rows, (a, b), strict=True)]
    return compared(name, columns, (rows[0], rows[1]), basis, notes)


def _family(side: Side) -> Callable[[str], Value]:
    name_filter = side.selection.name
    return lambda name: family_of(name, side.job.families) if name_filter is None or name_filter.matches(name) else None


def _short_name(side: Side) -> Callable[[str], Value]:
    table = tables.kernels.c
    rows = side.job.session.rows(sa.select(sa.func.coalesce(table.name, ""), table.short_name).distinct())
    return {str(full): short for full, short in rows}.get


def _with_parts(rows: Mapping[Key, Measured], side: Side, kind_of: Callable[[str], Value]) -> dict[Key, Measured]:
    parts: dict[Key, dict[Value, Figures]] = {key: {} for key in rows}
    for (name,), kernel in by_name(kernel_summary(side.job.session, side.selection.with_name(None))).items():
        parts.setdefault((kind_of(str(name or "")),), {})[name] = kernel.figures
    return {key: replace(row, parts=parts[key]) for key, row in rows.items()}


def memory(a: Side, b: Side) -> Compared:
    """Return memory copies and memsets by operation: times of `work_summary`, bytes of `memory_sizes`."""
    answers = [work_summary(side.job.session, side.selection, MEMORY) for side in (a, b)]
    sides = _with_sizes(a, by_name(answers[0])), _with_sizes(b, by_name(answers[1]))
    basis = gpu_basis(a, b, "memory_ops")
    notes = (*basis.note(" with a GPU"), *both(answers[0].notes, answers[1].notes))
    return compared("diff-memory", _OPERATION, sides, basis, notes, _BYTES)


def api(a: Side, b: Side, step_range: str | None = None) -> Compared:
    """Return CUDA API calls by name; per step, from the first step to the last, if all ranks have steps."""
    sides, steps = (a, b), [side.whole_steps(step_range) for side in (a, b)]
    is_by_step = all(side_steps.ranks == len(side.ranks) > 0 for side_steps, side in zip(steps, sides, strict=True))
    selections, basis = [side.selection for side in sides], Basis(len(a.ranks), len(b.ranks))
    if is_by_step:
        basis = Basis(steps[0].count, steps[1].count, by_step=True)
        selections = [
            replace(selection, window=None, windows=tuple(side_steps.spans.items()))
            for selection, side_steps in zip(selections, steps, strict=True)
        ]
    answers = [
        work_summary(side.job.session, selection, API) for side, selection in zip(sides, selections, strict=True)
    ]
    note = f"times and counts are per step: A has {basis.a:,}, B has {basis.b:,}"
    notes = (*([note] if is_by_step else basis.note()), *both(answers[0].notes, answers[1].notes))
    return compared("diff-api", _CALL, (by_name(answers[0]), by_name(answers[1])), basis, notes)


def graph_time(side: Side) -> int:
    """Return the summed durations of a side's whole CUDA graphs, ns."""
    table = tables.graph_launches
    query = sa.select(sa.cast(sa.func.sum(duration(table)), sa.BigInteger)).where(*where(table, side.selection))
    return int(side.job.session.scalar(query) or 0)


def by_name(answer: TableAnswer, key: str = "name") -> dict[Key, Measured]:
    """Return the rows of a summary by name, or by another column."""
    return {(row[key],): Measured(_figures(row)) for row in answer.records()}


def _figures(row: Mapping[str, Value], **extras: str) -> Figures:
    """Return the figures in a row; ``extras`` are the columns of further figures."""
    columns = {"count": "count", "total": "total", "median": "median", **extras}
    return {key: cell if isinstance(cell := row[column], int | float) else None for key, column in columns.items()}


def _with_sizes(side: Side, operations: Mapping[Key, Measured]) -> dict[Key, Measured]:
    answer = memory_sizes(side.job.session, side.selection)
    cells = zip(answer.cells("name"), answer.cells("total"), strict=True)
    sizes = {name: size for name, size in cells if isinstance(size, int | float)}
    return {key: Measured({**row.figures, "size": sizes.get(key[0])}) for key, row in operations.items()}


_WHAT = Column("what", header="What", label="what", importance=4)
_EXTRAS = (
    Extra("exposed", "Exposed", "exposed", Unit.DURATION, None, 3, is_sum=True, difference="exposed B − A"),
    Extra("size", "Bytes", "bytes", Unit.BYTES, None, 5, is_sum=True),
    Extra("busbw", "BusBW", "busbw", Unit.RATE, 1, 2),
)


def nccl(a: Side, b: Side) -> Compared:
    """Return NCCL kernels, or calls if neither side has kernels, as in `nccl_summary`.

    Rows are by collective and message size bucket, or by collective alone if only one side has sizes: an unknown size
    is not a new size.
    """
    group_by: tuple[NcclProperty, ...] = USUAL
    answers = [_summary(side, group_by) for side in (a, b)]
    if len({_knows_sizes(answer.records()) for answer in answers if len(answer)}) > 1:
        group_by = (NcclProperty.COLLECTIVE,)
        answers = [_summary(side, group_by) for side in (a, b)]
    is_of_kernels = any(KERNEL in answer.cells("what") for answer in answers)
    what: What = KERNEL if is_of_kernels or not any(map(len, answers)) else CALL
    of_calls = Basis(a.ranks_with(tables.nccl_calls), b.ranks_with(tables.nccl_calls))
    basis = gpu_basis(a, b, "kernels") if what == KERNEL else of_calls
    notes = [*basis.note(" with a GPU" if what == KERNEL else " with calls")]
    if group_by != USUAL:
        notes.append("rows are by collective alone because only one side has message sizes")
    notes += both(answers[0].notes, answers[1].notes)
    names = (_WHAT, *(COLUMNS[part] for part in group_by))

    def measured(answer: TableAnswer) -> dict[Key, Measured]:
        rows = {tuple(row.get(column.key) for column in names): row for row in answer.records() if row["what"] == what}
        return {
            key: Measured(_figures(row, exposed="exposed", size="bytes", busbw="busbw")) for key, row in rows.items()
        }

    return compared("diff-nccl", names, (measured(answers[0]), measured(answers[1])), basis, notes, _EXTRAS)


def _summary(side: Side, group_by: tuple[NcclProperty, ...]) -> TableAnswer:
    job = side.job
    return nccl_summary(job, side.selection, job.pairing(), group_by)


def _knows_sizes(rows: Sequence[Mapping[str, Value]]) -> bool:
    kernels = [row for row in rows if row["what"] == KERNEL]
    return any(row.get("bucket") is not None for row in kernels or rows)


_RANGE = (Column("name", header="Range", label="range"),)
_GPU = Extra("gpu", "GPU Projected", "GPU", Unit.DURATION, None, 3, is_sum=True, difference="GPU B − A")


def nvtx(a: Side, b: Side, fold_numbers: bool = True, step_range: str | None = None) -> Compared:
    """Return NVTX ranges by name: durations on the CPU, and sums of their projected GPU time.

    Names have no PyTorch suffix. With ``fold_numbers``, three or more names of both sides that differ only in numbers
    share a row: two runs rarely number steps alike. A range includes its children, so rows overlap.

    If all ranks have steps (`Job.steps`), times and counts are per step, of ranges that begin from the first step's
    start to the last's end.
    """
    # No name filter: the tree's filter would also keep parents and children of matching ranges.
    ranges = [side.job.nvtx_ranges(side.selection.with_name(None)) for side in (a, b)]
    folded = numbered({*ranges[0].names, *ranges[1].names}) if fold_numbers else frozenset()
    basis = Basis(a.ranks_with(tables.nvtx_ranges), b.ranks_with(tables.nvtx_ranges))
    projected = Basis(a.ranks_with(tables.nvtx_ranges, has_launches), b.ranks_with(tables.nvtx_ranges, has_launches))
    has_gpu = basis == projected
    steps = [side.whole_steps(step_range) for side in (a, b)]
    recorded = zip("AB", (a, b), steps, (basis.a, basis.b), strict=True)
    incomplete = [name for name, side, whole, ranks in recorded if not whole.ranks == len(side.ranks) == ranks]
    selected = [np.ones(len(side_ranges), np.bool_) for side_ranges in ranges]
    notes = [*both(ranges[0].notes, ranges[1].notes)]
    if not incomplete:
        basis = Basis(steps[0].count, steps[1].count, by_step=True)
        selected = [_begin_in(items, whole.spans) for items, whole in zip(ranges, steps, strict=True)]
        left_out = [f"{len(begins) - int(begins.sum()):,} of {len(begins):,}" for begins in selected]
        notes.append(
            f"times and counts are per step (A has {basis.a:,}, B has {basis.b:,}); ranges that begin before or after "
            f"all steps are left out: {left_out[0]} of A, {left_out[1]} of B"
        )
    elif basis.a and basis.b:
        notes += basis.note(" with NVTX")
        reason = f"not all ranks of {' and '.join(incomplete)} have NVTX ranges and steps (`nsystui steps`)"
        notes.append(f"times are not per step, because {reason}: compare them only if both did the same work")
    rows = [
        _measured_ranges(side_ranges, _labels(side_ranges.names, folded, side), has_gpu, is_selected)
        for side_ranges, side, is_selected in zip(ranges, (a, b), selected, strict=True)
    ]
    if not has_gpu and (projected.a or projected.b):
        notes.append("GPU time is left out: some ranks with NVTX ranges lack the calls that launch kernels")
    return compared("diff-nvtx", _RANGE, (rows[0], rows[1]), basis, notes, (_GPU,), "CPU")


def _labels(names: Sequence[str], templates: Collection[str], side: Side) -> list[str | None]:
    """Return the row name of each range, or ``None`` if the side's filter leaves it out."""
    name_filter = side.selection.name
    folded = [(name, template(name)) for name in names]
    return [
        None if name_filter is not None and not name_filter.matches(name) else text if text in templates else name
        for name, text in folded
    ]


def _begin_in(ranges: NvtxRanges, spans: Mapping[int, Window]) -> Flags:
    lane_spans = [spans.get(lane.report) for lane in ranges.lanes]
    first, last = (np.array([getattr(span, edge, 0) for span in lane_spans], np.int64) for edge in ("start", "end"))
    start, lane = ranges.values("start"), ranges.columns["lane"]
    is_inside: Flags = (start >= first[lane]) & (start < last[lane])
    ranges.forget()
    return is_inside


_RANGE_BYTES = 100
"""Memory per range for statistics by name, bytes."""


def _measured_ranges(
    ranges: NvtxRanges, labels: Sequence[str | None], has_gpu: bool, selected: Flags
) -> dict[Key, Measured]:
    numbers: dict[str, int] = {}
    number_of = [-1 if label is None else numbers.setdefault(label, len(numbers)) for label in labels]
    number = np.array([*number_of, -1], np.int32)[ranges.columns["name"]]
    rows = np.flatnonzero(selected & (number >= 0))
    at_once = ranges.session.limits.rows_at_once(_RANGE_BYTES)
    used, measures = measures_of(number[rows], ranges.values("length", rows), at_once)
    gpu = np.bincount(number[rows], ranges.values("gpu_length", rows))[used]
    ranges.forget()
    names = list(numbers)
    columns = {key: measures[key].tolist() for key in ("count", "total", "median")}
    columns["gpu"] = gpu.astype(np.int64).tolist() if has_gpu else [None] * len(gpu)
    figures = zip(*columns.values(), strict=True)
    return {
        (names[index],): Measured(dict(zip(columns, row, strict=True)))
        for index, row in zip(used.tolist(), figures, strict=True)
    }


_NOT_DIVIDED = Basis(0, 0)
_STEP_COLUMNS = (
    Column("difference", header="Median Difference (ns)", label="B − A", unit=Unit.CHANGE, decimals=1),
    Column("ratio", header="B / A", label="B/A", unit=Unit.RATIO, decimals=4, importance=1),
    *columns_of(Extra("median", "Med", "median", Unit.DURATION, 1, 0), _NOT_DIVIDED),
    *columns_of(Extra("p95", "p95", "p95", Unit.DURATION, 1, 1), _NOT_DIVIDED),
    Column(
        "p95_difference", header="p95 Difference (ns)", label="p95 B − A", unit=Unit.CHANGE, decimals=1, importance=2
    ),
    *columns_of(Extra("count", "Steps", "steps", Unit.COUNT, None, 1), _NOT_DIVIDED),
    *columns_of(Extra("min", "Min", "min", Unit.DURATION, None, 4), _NOT_DIVIDED),
    *columns_of(Extra("max", "Max", "max", Unit.DURATION, None, 4), _NOT_DIVIDED),
    Column("name", header="Of Each Step", label="of each step"),
)
STEP, ON_CPU, GPU_TIME = "step", "on the CPU", "GPU operations, sum of durations"


@dataclass(frozen=True)
class DurationSpread:
    """Count, median, 95th percentile, minimum and maximum of durations, ns; ``None`` without durations."""

    count: int
    median: float | None = None
    p95: float | None = None
    minimum: int | None = None
    maximum: int | None = None

    @classmethod
    def of(cls, values: Times) -> DurationSpread:
        if not len(values):
            return cls(0)
        median, p95 = float(np.median(values)), float(np.percentile(values, 95))
        return cls(len(values), median, p95, int(values.min()), int(values.max()))


def steps(a: Side, b: Side, name: str | None = None) -> Compared:
    """Return the steps of all ranks of both sides that begin in their windows.

    ``name`` is a regular expression for step ranges (see `Job.steps`). The rows are a step's time as on the ranks
    screen (`ranks.step_times`), its NVTX range on the CPU, the sum of its GPU operations' durations, and the parts of
    its budget (`blocking.parts`) that any step has.
    """
    sides = [spreads(side, name) for side in (a, b)]
    rows = [
        _step_row(what, *(spread.get(what, DurationSpread(0)) for spread in sides))
        for what in dict.fromkeys(chain(*sides))
        if any(what in spread and spread[what].maximum for spread in sides)
    ]
    has_any = any(spread[STEP].count for spread in sides)
    notes = [*both(*(side.job.steps(name).notes for side in (a, b)))]
    if len({times.on_gpu for side in (a, b) for times in _step_times(side, name)}) > 1:
        notes.append("some steps have no GPU work: their time is CPU time")
    return Compared("diff-steps", _STEP_COLUMNS, rows if has_any else [], len(rows) if has_any else 0, tuple(notes))


def spreads(side: Side, name: str | None = None) -> dict[str, DurationSpread]:
    """Return the durations of a side's steps, by row name."""
    side_times = _step_times(side, name)
    on_gpu = [times for times in side_times if times.on_gpu]
    steps = iterations(side.job, side.selection.with_name(None), name)
    budgets = [gpu.of for gpu in steps if gpu.numbers is not None and gpu.of.task in {item.task for item in side.ranks}]
    return {
        STEP: DurationSpread.of(_together([times.duration for times in side_times])),
        ON_CPU: DurationSpread.of(_together([times.cpu_duration for times in side_times])),
        GPU_TIME: DurationSpread.of(_together([times.op_time for times in on_gpu])),
        **{
            label: DurationSpread.of(_together([times[times != None].astype(np.int64) for times in columns]))  # noqa: E711
            for label, columns in zip(
                LABELS.values(), zip(*(budget.known.T for budget in budgets), strict=True), strict=False
            )
        },
    }


def _step_times(side: Side, name: str | None) -> list[StepTimes]:
    tasks = {item.task for item in side.ranks}
    times_by_task = step_times(side.job.steps(name), side.selection.window)
    return [times for task, times in times_by_task.items() if task in tasks]


def _together(parts: Sequence[Times]) -> Times:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _step_row(what: str, a: DurationSpread, b: DurationSpread) -> Row:
    changes = minus(b.median, a.median), ratio(a.median, b.median)
    pairs = (a.count or None, b.count or None, a.minimum, b.minimum, a.maximum, b.maximum)
    return (*changes, a.median, b.median, a.p95, b.p95, minus(b.p95, a.p95), *pairs, what)
