"""The tables of a comparison: GPU work, NCCL, NVTX ranges and training steps of two sides, row by row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import NAME, Column, Row, TableAnswer, Unit, Value
from nsystui.base.kernel_families import family_of
from nsystui.base.selection import Window
from nsystui.questions.algebra.groups import measures_of
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.blocking.budget import LABELS, iterations
from nsystui.questions.compare.pairs import Compared, Extra, Key, Measured, compared
from nsystui.questions.compare.side import Basis, Side, both
from nsystui.questions.kernels.activities import API, MEMORY, memory_sizes, work_summary
from nsystui.questions.kernels.summary import GroupBy, Names, kernel_summary
from nsystui.questions.nccl.grouping import COLUMNS, USUAL, NcclProperty
from nsystui.questions.nccl.summary import CALL, KERNEL, What, nccl_summary
from nsystui.questions.nvtx.loading import Flags
from nsystui.questions.nvtx.paths import numbered, template
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.ranks.steps import StepTimes, step_times
from nsystui.store import tables

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.questions.nvtx.ranges import NvtxRanges


_NAME = (NAME,)
_FAMILY = (Column("name", header="Family", label="family"),)
_OPERATION = (Column("name", header="Operation", label="operation"),)
_CALL = (Column("name", header="Call", label="call"),)
_BYTES = (Extra("size", "Bytes", "bytes", Unit.BYTES, None, 2, is_sum=True),)


def kernels(a: Side, b: Side, names: Names = Names.FULL) -> Compared:
    """Kernels by name, with the counts and times of `kernel_summary`."""
    kept = Names.FULL if names is Names.SMART else names  # a screen shows smart names in place of the full ones
    ask = partial(kernel_summary, names=kept)
    return _kernels("diff-kernels", _NAME, a, b, ask, _short_name if names is Names.SHORT else None)


def families(a: Side, b: Side) -> Compared:
    """Kernels by family, likewise."""
    return _kernels("diff-families", _FAMILY, a, b, partial(kernel_summary, group_by=(GroupBy.FAMILY,)), _family)


_KindOf = Callable[[Side], Callable[[str], Value]]
"""What the kernels of a side are summed up by, from their full names."""


def _kernels(
    name: str, columns: Sequence[Column], a: Side, b: Side, ask: Callable[..., TableAnswer], kind_of: _KindOf | None
) -> Compared:
    found = [ask(side.job.session, side.selection, families=side.job.families) for side in (a, b)]
    basis = Basis(a.gpu_ranks, b.gpu_ranks)
    notes = (*basis.note("ranks with a GPU"), *both(found[0].notes, found[1].notes))
    rows = [by_name(answer, columns[0].label) for answer in found]
    if kind_of is not None:
        rows = [_with_parts(own, side, kind_of(side)) for own, side in zip(rows, (a, b), strict=True)]
    return compared(name, columns, (rows[0], rows[1]), basis, notes)


def _family(side: Side) -> Callable[[str], Value]:
    wanted = side.selection.name
    return lambda name: family_of(name, side.job.families) if wanted is None or wanted.matches(name) else None


def _short_name(side: Side) -> Callable[[str], Value]:
    table = tables.kernels.c
    rows = side.job.session.rows(sa.select(sa.func.coalesce(table.name, ""), table.short_name).distinct())
    return {str(full): short for full, short in rows}.get


def _with_parts(rows: Mapping[Key, Measured], side: Side, kind_of: Callable[[str], Value]) -> dict[Key, Measured]:
    """The rows, each with the kernels that it sums up."""
    parts: dict[Key, dict[Value, Measured]] = {key: {} for key in rows}
    for (name,), one in by_name(kernel_summary(side.job.session, side.selection.with_name(None))).items():
        parts.setdefault((kind_of(str(name or "")),), {})[name] = one
    return {key: replace(one, parts=parts[key]) for key, one in rows.items()}


def memory(a: Side, b: Side) -> Compared:
    """Memory copies and memsets by operation: times as in `work_summary`, and bytes as in `memory_sizes`."""
    found = [work_summary(side.job.session, side.selection, MEMORY) for side in (a, b)]
    sides = _with_sizes(a, by_name(found[0])), _with_sizes(b, by_name(found[1]))
    basis = Basis(a.gpu_ranks, b.gpu_ranks)
    notes = (*basis.note("ranks with a GPU"), *both(found[0].notes, found[1].notes))
    return compared("diff-memory", _OPERATION, sides, basis, notes, _BYTES)


def api(a: Side, b: Side, step_range: str | None = None) -> Compared:
    """CUDA API calls by name; per step, of those between the first step and the last, where all ranks have steps."""
    sides, steps = (a, b), [side.whole_steps(step_range) for side in (a, b)]
    is_by_step = all(own.ranks == len(side.ranks) > 0 for own, side in zip(steps, sides, strict=True))
    chosen, basis = [side.selection for side in sides], Basis(len(a.ranks), len(b.ranks))
    if is_by_step:
        basis = Basis(steps[0].count, steps[1].count, by_step=True)
        chosen = [
            replace(one, window=None, windows=tuple(own.spans.items())) for one, own in zip(chosen, steps, strict=True)
        ]
    found = [work_summary(side.job.session, one, API) for side, one in zip(sides, chosen, strict=True)]
    note = f"times and counts are per step: A has {basis.a:,}, B has {basis.b:,}"
    notes = (*([note] if is_by_step else basis.note()), *both(found[0].notes, found[1].notes))
    return compared("diff-api", _CALL, (by_name(found[0]), by_name(found[1])), basis, notes)


def graph_time(side: Side) -> int:
    """The sum of the durations of the whole CUDA graphs that a side launched, ns."""
    table = tables.graph_launches
    query = sa.select(sa.cast(sa.func.sum(duration(table)), sa.BigInteger)).where(*where(table, side.selection))
    return int(side.job.session.scalar(query) or 0)


def by_name(answer: TableAnswer, key: str = "name") -> dict[Key, Measured]:
    """The rows of a summary by their name, or by another column."""
    return {
        (row[key],): Measured(int(row["count"] or 0), row["total"], row["median"])  # type: ignore[arg-type]
        for row in answer.records()
    }


def _with_sizes(side: Side, operations: Mapping[Key, Measured]) -> dict[Key, Measured]:
    answer = memory_sizes(side.job.session, side.selection)
    known = zip(answer.cells("name"), answer.cells("total"), strict=True)
    sizes = {name: size for name, size in known if isinstance(size, int | float)}
    return {key: replace(measured, sums={"size": sizes.get(key[0])}) for key, measured in operations.items()}


_WHAT = Column("what", header="What", label="what", importance=4)
_EXTRAS = (
    Extra("exposed", "Exposed", "exposed", Unit.DURATION, None, 3, is_sum=True, difference="exposed B − A"),
    Extra("size", "Bytes", "bytes", Unit.BYTES, None, 5, is_sum=True),
    Extra("busbw", "BusBW", "busbw", Unit.RATE, 1, 2),
)


def nccl(a: Side, b: Side) -> Compared:
    """NCCL kernels (or the calls, where neither side has kernels) with the numbers of `nccl_summary`.

    Rows are collectives and buckets of the message size; where only one side knows sizes, collectives alone: a size
    that is not known is none that is new.
    """
    by: tuple[NcclProperty, ...] = USUAL
    found = [_summary(side, by) for side in (a, b)]
    if len({_knows_sizes(one.frame()) for one in found if len(one)}) > 1:
        by = (NcclProperty.COLLECTIVE,)
        found = [_summary(side, by) for side in (a, b)]
    is_of_kernels = any((one.frame()["what"] == KERNEL).any() for one in found)
    what: What = KERNEL if is_of_kernels or not any(map(len, found)) else CALL
    basis = Basis(a.gpu_ranks, b.gpu_ranks) if what == KERNEL else Basis(a.call_ranks, b.call_ranks)
    notes = [*basis.note("ranks with a GPU" if what == KERNEL else "ranks with calls")]
    if by != USUAL:
        notes.append("rows are by collective alone because only one side has message sizes")
    notes += both(found[0].notes, found[1].notes)
    names = (_WHAT, *(COLUMNS[one] for one in by))
    sides = _measured_calls(found[0].frame(), what, by), _measured_calls(found[1].frame(), what, by)
    return compared("diff-nccl", names, sides, basis, notes, _EXTRAS)


def _summary(side: Side, by: tuple[NcclProperty, ...]) -> TableAnswer:
    job = side.job
    return nccl_summary(job.session, side.selection, job.ranks, job.pairing(), by)


def _knows_sizes(frame: pd.DataFrame) -> bool:
    kernels = frame[frame["what"] == KERNEL]
    return bool((kernels if len(kernels) else frame)["bucket"].notna().any())


def _measured_calls(frame: pd.DataFrame, what: What, by: tuple[NcclProperty, ...]) -> dict[Key, Measured]:
    chosen = frame[frame["what"] == what]
    keys = [COLUMNS[one].key for one in by]
    wanted = ["count", "total", "median", "exposed", "bytes", "busbw", *keys]
    found: dict[Key, Measured] = {}
    for count, total, median, exposed, size, busbw, *place in zip(*(chosen[key] for key in wanted), strict=True):
        sums = {"exposed": _as_int(exposed), "size": _as_int(size)}
        key = (what, *(value if isinstance(value, str) else None for value in place))
        found[key] = Measured(int(count), _as_int(total), _known(median), sums, {"busbw": _known(busbw)})
    return found


def _known(value: object) -> float | None:
    import pandas as pd

    return None if pd.isna(value) else float(value)  # type: ignore[arg-type]


def _as_int(value: object) -> int | None:
    known = _known(value)
    return None if known is None else int(value)  # type: ignore[call-overload]


_RANGE = (Column("name", header="Range", label="range"),)
_GPU = Extra("gpu", "GPU Projected", "GPU", Unit.DURATION, None, 3, is_sum=True, difference="GPU B − A")


def nvtx(a: Side, b: Side, fold_numbers: bool = True, step_range: str | None = None) -> Compared:
    """NVTX ranges by name: durations on the CPU, and in sum the spans of GPU time projected from them.

    Names are without PyTorch's suffix. With ``fold_numbers`` those of both sides that differ in their numbers only are
    one, if they are three or more, as in the tree of the NVTX screen: two runs hardly count their steps alike. Ranges
    and times are those of that screen: each counts with all that it holds, so that rows overlap.

    Where all ranks have steps (see `Job.steps`), times and counts are per step; those of the ranges count that begin
    between the start of the first step and the end of the last.
    """
    # The ranges of every name: the tree's filter would keep what is around and inside of those that pass it.
    ranges = [side.job.nvtx_ranges(side.selection.with_name(None)) for side in (a, b)]
    folded = numbered({*ranges[0].names, *ranges[1].names}) if fold_numbers else frozenset()
    basis = Basis(a.nvtx_ranks, b.nvtx_ranks)
    has_gpu = basis == Basis(a.projected_ranks, b.projected_ranks)
    steps = [side.whole_steps(step_range) for side in (a, b)]
    recorded = zip("AB", (a, b), steps, (basis.a, basis.b), strict=True)
    lacking = [name for name, side, own, ranks in recorded if not own.ranks == len(side.ranks) == ranks]
    chosen = [np.ones(len(own), np.bool_) for own in ranges]
    notes = [*both(ranges[0].notes, ranges[1].notes)]
    if not lacking:
        basis = Basis(steps[0].count, steps[1].count, by_step=True)
        chosen = []
        for own, of in zip(ranges, steps, strict=True):
            chosen.append(_begin_in(own, of.spans))
            own.forget()
        left_out = [f"{len(own) - int(own.sum()):,} of {len(own):,}" for own in chosen]
        notes.append(
            f"times and counts are per step (A has {basis.a:,}, B has {basis.b:,}); ranges that begin before or after "
            f"all steps are left out: {left_out[0]} of A, {left_out[1]} of B"
        )
    elif basis.a and basis.b:
        notes += basis.note("ranks with NVTX")
        without = f"not all ranks of {' and '.join(lacking)} have NVTX ranges and steps (`nsystui steps`)"
        notes.append(f"times are not per step, because {without}: compare them only if both did the same work")
    found = []
    for own, side, is_chosen in zip(ranges, (a, b), chosen, strict=True):
        found.append(_measured_ranges(own, _labels(own.names, folded, side), has_gpu, is_chosen))
        own.forget()
    if not has_gpu and (a.projected_ranks or b.projected_ranks):
        notes.append("GPU time is left out: some ranks with NVTX ranges lack the calls that launch kernels")
    return compared("diff-nvtx", _RANGE, (found[0], found[1]), basis, notes, (_GPU,), "CPU")


def _labels(names: Sequence[str], templates: Collection[str], side: Side) -> list[str | None]:
    """The name of each range in the table; ``None`` where the side's filter leaves it out."""
    wanted = side.selection.name
    folded = [(name, template(name)) for name in names]
    return [
        None if wanted is not None and not wanted.matches(name) else text if text in templates else name
        for name, text in folded
    ]


def _begin_in(ranges: NvtxRanges, spans: Mapping[int, Window]) -> Flags:
    """Which ranges begin in the span of their report."""
    own = [spans.get(lane.report) for lane in ranges.lanes]
    first, last = (np.array([getattr(one, edge, 0) for one in own], np.int64) for edge in ("start", "end"))
    start, lane = ranges.start, ranges.lane
    found: Flags = (start >= first[lane]) & (start < last[lane])
    return found


_ROW = 100
"""Bytes that a range takes while the statistics of its name are made."""


def _measured_ranges(
    ranges: NvtxRanges, labels: Sequence[str | None], has_gpu: bool, chosen: Flags
) -> dict[Key, Measured]:
    numbers: dict[str, int] = {}
    number_of = [-1 if label is None else numbers.setdefault(label, len(numbers)) for label in labels]
    number = np.array([*number_of, -1], np.int32)[ranges.name]
    rows = np.flatnonzero(chosen & (number >= 0))
    at_once = ranges.session.limits.rows_at_once(_ROW)
    used, found = measures_of(number[rows], ranges.values("length", rows), at_once)
    gpu = np.bincount(number[rows], np.where(ranges.op_count[rows] > 0, ranges.values("gpu_length", rows), 0))[used]
    names = list(numbers)
    values = zip(
        used.tolist(), *(found[key].tolist() for key in ("count", "total", "median")), gpu.tolist(), strict=True
    )
    return {
        (names[place],): Measured(count, total, median, {"gpu": int(projected) if has_gpu else None})
        for place, count, total, median, projected in values
    }


_STEP_COLUMNS = (
    Column("difference", header="Median Difference (ns)", label="B − A", unit=Unit.CHANGE, decimals=1),
    Column("ratio", header="B / A", label="B/A", unit=Unit.RATIO, decimals=4, importance=1),
    Column("median_a", header="Med A (ns)", label="A median", unit=Unit.DURATION, decimals=1),
    Column("median_b", header="Med B (ns)", label="B median", unit=Unit.DURATION, decimals=1),
    Column("p95_a", header="p95 A (ns)", label="A p95", unit=Unit.DURATION, decimals=1, importance=1),
    Column("p95_b", header="p95 B (ns)", label="B p95", unit=Unit.DURATION, decimals=1, importance=1),
    Column(
        "p95_difference", header="p95 Difference (ns)", label="p95 B − A", unit=Unit.CHANGE, decimals=1, importance=2
    ),
    Column("count_a", header="Steps A", label="A steps", unit=Unit.COUNT, importance=1),
    Column("count_b", header="Steps B", label="B steps", unit=Unit.COUNT, importance=1),
    Column("min_a", header="Min A (ns)", label="A min", unit=Unit.DURATION, importance=4),
    Column("min_b", header="Min B (ns)", label="B min", unit=Unit.DURATION, importance=4),
    Column("max_a", header="Max A (ns)", label="A max", unit=Unit.DURATION, importance=4),
    Column("max_b", header="Max B (ns)", label="B max", unit=Unit.DURATION, importance=4),
    Column("name", header="Of Each Step", label="of each step"),
)
STEP, ON_CPU, GPU_TIME = "step", "on the CPU", "GPU operations, sum of durations"


@dataclass(frozen=True)
class DurationSpread:
    """Some durations, ns: count, median, 95th percentile, minimum and maximum; ``None`` without any."""

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
    """The steps of both sides that begin in their windows; every rank's step counts.

    ``name`` is a regular expression for the ranges that are steps (see `Job.steps`). A row for the time of a step as
    the screen of the ranks has it (`ranks.step_times`), its NVTX range on the CPU, the sum of the durations of its
    GPU operations, and the parts of its budget (`blocking.parts`) that any step has.
    """
    found = [spreads(side, name) for side in (a, b)]
    rows = [
        _step_row(what, found[0][what], found[1][what]) for what in found[0] if any(one[what].maximum for one in found)
    ]
    has_any = any(one[STEP].count for one in found)
    notes = [*both(*(side.job.steps(name).notes for side in (a, b)))]
    if len({one.on_gpu for side in (a, b) for one in _step_times(side, name)}) > 1:
        notes.append("some steps have no GPU work: their time is that on the CPU")
    return Compared("diff-steps", _STEP_COLUMNS, rows if has_any else [], len(rows) if has_any else 0, tuple(notes))


def spreads(side: Side, name: str | None = None) -> dict[str, DurationSpread]:
    """The durations of the steps of a side, by the names of the rows."""
    found = _step_times(side, name)
    on_gpu = [one for one in found if one.on_gpu]
    every = iterations(side.job, side.selection.with_name(None), name)
    own = [one.of for one in every if one.numbers is not None and one.of.task in {item.task for item in side.ranks}]
    return {
        STEP: DurationSpread.of(_together([one.duration for one in found])),
        ON_CPU: DurationSpread.of(_together([one.cpu_duration for one in found])),
        GPU_TIME: DurationSpread.of(_together([one.op_time for one in on_gpu])),
        **{
            label: DurationSpread.of(_together([times[times != None].astype(np.int64) for times in known]))  # noqa: E711
            for label, known in zip(LABELS.values(), zip(*(one.known.T for one in own), strict=True), strict=False)
        },
    }


def _step_times(side: Side, name: str | None) -> list[StepTimes]:
    tasks = {item.task for item in side.ranks}
    found = step_times(side.job.steps(name), side.selection.window)
    return [one for task, one in found.items() if task in tasks]


def _together(parts: Sequence[Times]) -> Times:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _step_row(what: str, a: DurationSpread, b: DurationSpread) -> Row:
    difference = None if a.median is None or b.median is None else b.median - a.median
    far = None if a.p95 is None or b.p95 is None else b.p95 - a.p95
    ratio = b.median / a.median if a.median and b.median is not None else None
    pairs = (a.minimum, b.minimum, a.maximum, b.maximum)
    counts = (a.count or None, b.count or None)
    return (difference, ratio, a.median, b.median, a.p95, b.p95, far, *counts, *pairs, what)
