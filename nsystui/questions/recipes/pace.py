"""The pace of a kernel or NVTX range: its instances on each rank, by time, are iterations (docs/recipes.md#recipes).

A delta is the time from the end of the rank's previous instance to the start of this instance: negative if they
overlap, missing for the first.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DURATION, RANK, START, Answer, Column, Row, TableAnswer, Unit
from nsystui.base.errors import UsageError, meant
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted, few, shorten
from nsystui.base.types import Flags
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import kernel_notes, kernel_summary, name_of
from nsystui.questions.nvtx.paths import Templates, template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.recipes.kernels import named_kernels
from nsystui.questions.recipes.recipe import AskRecipe, RecipeOptions
from nsystui.store import tables

_MAX_NAME = 100
"""Maximum length of a name in a note: kernels' names may exceed a screen."""


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
    """The n instances on a rank by time; shape ``(n,)``, job time, ns."""

    rank: int
    start: Times
    end: Times

    @cached_property
    def delta(self) -> Times:
        """The deltas from the second instance on; shape ``(n - 1,)``."""
        return self.start[1:] - self.end[:-1]


@dataclass(frozen=True)
class _Subject:
    """A kernel or range and its instances by rank; ``meant_by``: the form of name that matched, if unexpected."""

    name: str
    ranks: Sequence[_Instances]
    notes: tuple[str, ...]
    meant_by: str = ""


def _ask_pace(find: Callable[[OpenJob, Selection, RecipeOptions], _Subject | None], default: str) -> AskRecipe:
    def ask(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
        subject = find(job, selection, options)
        columns = EVERY_COLUMNS if options.by_rank else ACROSS_COLUMNS
        if subject is None:
            return TableAnswer("pace", columns, [])
        reason = subject.meant_by if options.name else f"{default}; --name or the filter chooses another"
        shown = f"shows {shorten(subject.name, _MAX_NAME)}" + (f" ({reason})" if reason else "")
        rows = _rank_rows(subject.ranks) if options.by_rank else _iteration_rows(subject.ranks)
        return TableAnswer("pace", columns, rows, len(rows), (shown, *subject.notes))

    return ask


def _rank_rows(ranks: Sequence[_Instances]) -> list[Row]:
    rows: list[Row] = []
    for rank in ranks:
        duration = rank.end - rank.start
        deltas, sums = rank.delta.tolist(), np.cumsum(rank.delta).tolist()
        columns = (rank.start.tolist(), duration.tolist(), [None, *deltas], np.cumsum(duration).tolist(), [None, *sums])
        rows += [(rank.rank, number, *row) for number, row in enumerate(zip(*columns, strict=True))]
    return rows


def _iteration_rows(ranks: Sequence[_Instances]) -> list[Row]:
    iterations = max((len(rank.start) for rank in ranks), default=0)
    rows: list[Row] = []
    for number in range(iterations):
        present = [rank for rank in ranks if number < len(rank.start)]
        durations = [int(rank.end[number] - rank.start[number]) for rank in present]
        spread = (float(np.median(durations)), min(durations), max(durations), present[int(np.argmax(durations))].rank)
        deltas = [int(rank.delta[number - 1]) for rank in present] if number else []
        start = min(int(rank.start[number]) for rank in present)
        rows.append((number, len(present), start, *spread, *_spread(deltas)))
    return rows


def _spread(deltas: Sequence[int]) -> tuple[float | None, ...]:
    if not deltas:
        return (None,) * 5
    stddev = float(np.std(deltas, ddof=1)) if len(deltas) > 1 else 0.0
    return float(np.mean(deltas)), float(np.median(deltas)), min(deltas), max(deltas), stddev


# -- kernels ----------------------------------------------------------------------------------------------------------


def _kernels(job: OpenJob, selection: Selection, options: RecipeOptions) -> _Subject | None:
    table = tables.kernels
    if not job.session.count(table):
        return None
    meant_by = ""
    if options.name is not None:
        wanted = options.name
        is_wanted, form, count = named_kernels(job.session, wanted, options.names)
        if form is not options.names:
            meant_by = f"the {form.value} name of {counted(count, 'kernel')}"
    else:
        names = kernel_summary(job.session, selection, options.names).cells("name")
        if not names:
            return None
        wanted = str(names[0])
        is_wanted = name_of(table, options.names) == wanted
    times = job_start(table).label("start"), job_end(table).label("end")
    is_chosen = is_wanted, table.c.end.is_not(None), *where(table, selection.with_name(None))
    rows = job.session.arrays(sa.select(table.c.report, table.c.process, *times).where(*is_chosen))
    ranks = []
    for item in selected_ranks(job.ranks, selection):
        is_of_rank = (rows["report"] == item.task.report) & (rows["process"] == item.task.process)
        ranks += _instances(item.rank, rows["start"][is_of_rank], rows["end"][is_of_rank])
    return _Subject(wanted, ranks, kernel_notes(job.session), meant_by)


def _instances(rank: int, starts: Times, ends: Times) -> list[_Instances]:
    order = np.lexsort((ends, starts))
    start, end = (np.ma.getdata(values)[order].astype(np.int64) for values in (starts, ends))
    return [_Instances(rank, start, end)] if len(order) else []


# -- NVTX -------------------------------------------------------------------------------------------------------------


def _ranges(is_on_gpu: bool) -> Callable[[OpenJob, Selection, RecipeOptions], _Subject | None]:
    def find(job: OpenJob, selection: Selection, options: RecipeOptions) -> _Subject | None:
        ranges = job.nvtx_ranges(selection.with_name(None))
        usable = ranges.columns["op_count"] > 0 if is_on_gpu else np.ones(len(ranges), bool)
        choice = _named(ranges, options.name) if options.name else _unnamed(job, ranges, selection, usable)
        if choice is None:
            return None
        start, end = (ranges.values(f"{'gpu_' * is_on_gpu}{edge}") for edge in ("start", "end"))
        rows = np.flatnonzero(usable & choice[1][ranges.columns["name"]])
        tasks = [Task(lane.report, lane.process) for lane in ranges.lanes]
        instances = []
        for item in selected_ranks(job.ranks, selection):
            is_of_rank = np.array([task == item.task for task in tasks], bool)
            rank_rows = rows[is_of_rank[ranges.columns["lane"][rows]]]
            instances += _instances(item.rank, start[rank_rows], end[rank_rows])
        return _Subject(choice[0], instances, ranges.notes)

    return find


def _named(ranges: NvtxRanges, wanted: str) -> tuple[str, Flags] | None:
    """Return the label of the wanted ranges, and whether each name matches; ``*`` matches numbers.

    A full name or else the text without domain matches. Raises UsageError if nothing or several domains match.
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
    """Return whether ``wanted`` is the range ``domain:text``, or ``text`` in the default domain."""
    return name.removeprefix(":") == wanted.removeprefix(":")


def _unnamed(job: OpenJob, ranges: NvtxRanges, selection: Selection, usable: Flags) -> tuple[str, Flags] | None:
    """Return the training steps if the job has some and no name is selected, else the ranges with the most GPU work."""
    if selection.name is None and ranges.names:
        tasks = {item.task for item in selected_ranks(job.ranks, selection)}
        names = Counter(steps.name for task, steps in job.steps().of_task.items() if task in tasks)
        for name, _ in names.most_common(1):
            is_step = np.array([_is_called(template(range_name), name) for range_name in ranges.names], bool)
            if is_step.any():
                return name.removeprefix(":"), is_step
    return _busiest(ranges, Templates.of(ranges.names), selection, usable)


def _busiest(ranges: NvtxRanges, templates: Templates, selection: Selection, usable: Flags) -> tuple[str, Flags] | None:
    """Return the name (numbers folded) whose ranges launched the most GPU work, and whether each name matches it.

    Names that repeat on a thread take precedence. If GPU work is unknown or equal, CPU time decides.
    """
    if not len(ranges):
        return None
    is_selected = np.array([selection.name is None or selection.name.matches(name) for name in ranges.names], bool)
    names = ranges.columns["name"]
    rows = np.flatnonzero(usable & is_selected[names])
    if not len(rows):
        return None
    texts, lanes = [*templates.texts, *ranges.names], len(ranges.lanes)
    single_indices = len(templates.texts) + np.arange(len(ranges.names))
    group_of_name = np.where(templates.of_name >= 0, templates.of_name, single_indices)
    group = group_of_name[names[rows]]
    work, time = (np.bincount(group, ranges.values(key, rows), len(texts)) for key in ("op_time", "length"))
    cells = group * lanes + ranges.columns["lane"][rows]
    counts = np.bincount(cells, minlength=len(texts) * lanes).reshape(len(texts), lanes)
    best = int(np.lexsort((time, work, counts.max(axis=1) > 1))[-1])
    return texts[best].removeprefix(":"), (group_of_name == best) & is_selected


_RANGES = "the training steps, else the range with most GPU work"
ASK: dict[str, AskRecipe] = {
    "cuda_gpu_kern_pace": _ask_pace(_kernels, "the kernel with most time"),
    "nvtx_gpu_proj_pace": _ask_pace(_ranges(is_on_gpu=True), _RANGES),
    "nvtx_pace": _ask_pace(_ranges(is_on_gpu=False), _RANGES),
}
