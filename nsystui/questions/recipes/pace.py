"""How one kernel or NVTX range paces: its instances on each rank in order of time are iterations.

See docs/recipes.md#recipes.

The delta of an instance is the time from the end of the one before it on its rank to its start: negative where they
overlap, and missing for the first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import DURATION, RANK, START, Answer, Column, Row, TableAnswer, Unit
from nsystui.base.errors import UsageError, meant
from nsystui.base.selection import Selection, Task
from nsystui.base.text import few, shorten
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import kernel_notes, kernel_summary, name_of
from nsystui.questions.nvtx.paths import Templates, template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.recipes.kernels import named_kernels
from nsystui.questions.recipes.recipe import Ask, RecipeOptions
from nsystui.store import tables

_NAME = 100
"""A kernel's name may be longer than a screen."""

Flags = NDArray[np.bool_]

_ITERATION = Column("iteration", header="Iteration", label="iteration", unit=Unit.NUMBER)
ACROSS_COLUMNS = (
    _ITERATION,
    Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=3),
    START,
    Column("median", header="Duration Med (ns)", label="median", unit=Unit.DURATION, decimals=1),
    Column("min", header="Duration Min (ns)", label="min", unit=Unit.DURATION, importance=2),
    Column("max", header="Duration Max (ns)", label="max", unit=Unit.DURATION),
    Column("slowest", header="Max Rank", label="slowest", unit=Unit.NUMBER),
    Column("delta_avg", header="Delta Avg (ns)", label="delta avg", unit=Unit.DURATION, decimals=1, importance=1),
    Column("delta_median", header="Delta Med (ns)", label="delta med", unit=Unit.DURATION, decimals=1),
    Column("delta_min", header="Delta Min (ns)", label="delta min", unit=Unit.DURATION, importance=3),
    Column("delta_max", header="Delta Max (ns)", label="delta max", unit=Unit.DURATION, importance=1),
    Column(
        "delta_stddev", header="Delta StdDev (ns)", label="delta stddev", unit=Unit.DURATION, decimals=1, importance=4
    ),
)
EVERY_COLUMNS = (
    RANK,
    _ITERATION,
    START,
    DURATION,
    Column("delta", header="Delta (ns)", label="delta", unit=Unit.DURATION),
    Column(
        "duration_sum", header="Accumulated Duration (ns)", label="duration so far", unit=Unit.DURATION, importance=2
    ),
    Column("delta_sum", header="Accumulated Delta (ns)", label="delta so far", unit=Unit.DURATION, importance=3),
)


@dataclass(frozen=True, eq=False)
class _Instances:
    """The instances on one rank in order of time; shapes ``(n,)``, job time in ns."""

    rank: int
    start: Times
    end: Times

    @cached_property
    def delta(self) -> Times:
        """Shape ``(n - 1,)``: of all but the first one."""
        return self.start[1:] - self.end[:-1]


@dataclass(frozen=True)
class _Found:
    """A kernel or range and its instances on each rank that has any; ``meant_by``: which of its names was given."""

    name: str
    ranks: Sequence[_Instances]
    notes: tuple[str, ...]
    meant_by: str = ""


def _asked(find: Callable[[OpenJob, Selection, RecipeOptions], _Found | None], what: str) -> Ask:
    def ask(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
        found = find(job, selection, options)
        columns = EVERY_COLUMNS if options.by_rank else ACROSS_COLUMNS
        if found is None:
            return TableAnswer("pace", columns, [])
        why = found.meant_by if options.name else f"{what}; --name or the filter chooses another"
        chosen = f"shows {shorten(found.name, _NAME)}" + (f" ({why})" if why else "")
        rows = _every(found.ranks) if options.by_rank else _across(found.ranks)
        return TableAnswer("pace", columns, rows, len(rows), (chosen, *found.notes))

    return ask


def _every(ranks: Sequence[_Instances]) -> list[Row]:
    rows: list[Row] = []
    for one in ranks:
        duration = one.end - one.start
        deltas, sums = one.delta.tolist(), np.cumsum(one.delta).tolist()
        columns = (one.start.tolist(), duration.tolist(), [None, *deltas], np.cumsum(duration).tolist(), [None, *sums])
        rows += [(one.rank, number, *row) for number, row in enumerate(zip(*columns, strict=True))]
    return rows


def _across(ranks: Sequence[_Instances]) -> list[Row]:
    """A row for each iteration, over the ranks that came so far."""
    most = max((len(one.start) for one in ranks), default=0)
    rows: list[Row] = []
    for number in range(most):
        there = [one for one in ranks if number < len(one.start)]
        durations = [int(one.end[number] - one.start[number]) for one in there]
        slowest = there[int(np.argmax(durations))].rank
        spread = (float(np.median(durations)), min(durations), max(durations), slowest)
        deltas = [int(one.delta[number - 1]) for one in there] if number else []
        start = min(int(one.start[number]) for one in there)
        rows.append((number, len(there), start, *spread, *_spread(deltas)))
    return rows


def _spread(deltas: Sequence[int]) -> tuple[float | None, ...]:
    """Mean, median, minimum, maximum and the sample standard deviation (0 of one)."""
    if not deltas:
        return (None,) * 5
    stddev = float(np.std(deltas, ddof=1)) if len(deltas) > 1 else 0.0
    return float(np.mean(deltas)), float(np.median(deltas)), min(deltas), max(deltas), stddev


# -- kernels ----------------------------------------------------------------------------------------------------------


def _kernels(job: OpenJob, selection: Selection, options: RecipeOptions) -> _Found | None:
    table = tables.kernels
    if not job.session.count(table):
        return None
    meant_by = ""
    if options.name is not None:
        named = named_kernels(job.session, options.name, options.names)
        wanted, is_wanted = named.name, named.are_meant
        if named.names is not options.names:
            meant_by = f"the {named.names.value} name of {named.count:,} kernel{'s' if named.count > 1 else ''}"
    else:
        names = kernel_summary(job.session, selection, options.names).cells("name")
        if not names:
            return None
        wanted = str(names[0])
        is_wanted = name_of(table, options.names) == wanted
    query = sa.select(
        table.c.report, table.c.process, job_start(table).label("start"), job_end(table).label("end")
    ).where(is_wanted, table.c.end.is_not(None), *where(table, selection.with_name(None)))
    rows = job.session.arrays(query)
    ranks = []
    for item in selected_ranks(job.ranks, selection):
        is_own = (rows["report"] == item.task.report) & (rows["process"] == item.task.process)
        ranks += _instances(item.rank, rows["start"][is_own], rows["end"][is_own])
    return _Found(wanted, ranks, kernel_notes(job.session), meant_by)


def _instances(rank: int, starts: Times, ends: Times) -> list[_Instances]:
    """In order; nothing where there are none."""
    order = np.lexsort((ends, starts))
    start, end = (np.ma.getdata(values)[order].astype(np.int64) for values in (starts, ends))
    return [_Instances(rank, start, end)] if len(order) else []


# -- NVTX -------------------------------------------------------------------------------------------------------------


def _ranges(is_on_gpu: bool) -> Callable[[OpenJob, Selection, RecipeOptions], _Found | None]:
    def find(job: OpenJob, selection: Selection, options: RecipeOptions) -> _Found | None:
        ranges = job.nvtx_ranges(selection.with_name(None))
        known = ranges.op_count > 0 if is_on_gpu else np.ones(len(ranges), bool)
        chosen = _named(ranges, options.name) if options.name else _unnamed(job, ranges, selection, known)
        if chosen is None:
            return None
        start, end = (ranges.gpu_start, ranges.gpu_end) if is_on_gpu else (ranges.start, ranges.end)
        rows = np.flatnonzero(known & chosen[1][ranges.name])
        tasks = [Task(lane.report, lane.process) for lane in ranges.lanes]
        found = []
        for item in selected_ranks(job.ranks, selection):
            is_own = np.array([task == item.task for task in tasks], bool)
            own = rows[is_own[ranges.lane[rows]]]
            found += _instances(item.rank, start[own], end[own])
        return _Found(chosen[0], found, ranges.notes)

    return find


def _named(ranges: NvtxRanges, wanted: str) -> tuple[str, Flags] | None:
    """The ranges of a name, or of names that differ from it in numbers: for each of the names whether it is meant.

    Where no domain has such a name as it stands, its text alone will do, if it is of one domain.
    """
    if not ranges.names:
        return None
    for form in (str, template):
        is_wanted = np.array([_is_called(form(name), wanted) for name in ranges.names], bool)
        if is_wanted.any():
            return wanted, is_wanted
    for form in (str, template):
        is_wanted = np.array([form(name).partition(":")[2] == wanted for name in ranges.names], bool)
        labels = sorted({form(ranges.names[number]) for number in np.flatnonzero(is_wanted).tolist()})
        if len(labels) > 1:
            raise UsageError(f"several NVTX ranges are called {wanted!r}: write one of {few(labels)}")
        if labels:
            return labels[0], is_wanted
    hint = meant(wanted, ranges.names, "write a whole text, with `domain:` before it, * for numbers, as in 'step *'")
    raise UsageError(f"no NVTX range is called {wanted!r}: {hint}")


def _is_called(name: str, wanted: str) -> bool:
    """Whether a range ``domain:text`` is meant; of the default domain the text alone will do."""
    return name.removeprefix(":") == wanted.removeprefix(":")


def _unnamed(job: OpenJob, ranges: NvtxRanges, selection: Selection, known: Flags) -> tuple[str, Flags] | None:
    """The training steps, where they are found and no name is selected, else the ranges with most GPU work."""
    if selection.name is None and ranges.names:
        tasks = {item.task for item in selected_ranks(job.ranks, selection)}
        names = Counter(steps.name for task, steps in job.steps().of_task.items() if task in tasks)
        for name, _ in names.most_common(1):
            is_step = np.array([_is_called(template(own), name) for own in ranges.names], bool)
            if is_step.any():
                return name.removeprefix(":"), is_step
    return _busiest(ranges, Templates.of(ranges.names), selection, known)


def _busiest(ranges: NvtxRanges, templates: Templates, selection: Selection, known: Flags) -> tuple[str, Flags] | None:
    """The name (numbers folded) whose ranges launched most GPU work, of those that came more than once on a thread.

    Where none did, of all; where nothing is known of the GPU's work, or it is the same, the one that took most time.
    """
    if not len(ranges):
        return None
    passes = np.array([selection.name is None or selection.name.matches(name) for name in ranges.names], bool)
    rows = np.flatnonzero(known & passes[ranges.name])
    if not len(rows):
        return None
    texts, lanes = [*templates.texts, *ranges.names], len(ranges.lanes)
    alone = len(templates.texts) + np.arange(len(ranges.names))
    group_of_name = np.where(templates.of_name >= 0, templates.of_name, alone)
    group = group_of_name[ranges.name[rows]]
    work, time = (
        np.bincount(group, values[rows].astype(np.float64), len(texts)) for values in (ranges.op_time, ranges.duration)
    )
    counts = np.bincount(group * lanes + ranges.lane[rows], minlength=len(texts) * lanes).reshape(len(texts), lanes)
    best = int(np.lexsort((time, work, counts.max(axis=1) > 1))[-1])
    return texts[best].removeprefix(":"), (group_of_name == best) & passes


_RANGES = "the training steps, else the range with most GPU work"
ASK: dict[str, Ask] = {
    "cuda_gpu_kern_pace": _asked(_kernels, "the kernel with most time"),
    "nvtx_gpu_proj_pace": _asked(_ranges(is_on_gpu=True), _RANGES),
    "nvtx_pace": _asked(_ranges(is_on_gpu=False), _RANGES),
}
