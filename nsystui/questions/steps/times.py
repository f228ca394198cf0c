"""Training steps: the numbered NVTX ranges that cut a task's run into repetitions of the same work.

See docs/ranks.md#steps.

A step is found by name: ``step 0``, ``step 1`` … are one name with a number in it. A name on a thread is a candidate
if at least three of its ranges follow one another and at least half of the task's GPU work was launched, by any
thread, during them. Of several candidates the first of these words in the name decides: ``ProfilerStep``, ``step``,
``iter``, ``batch``, ``epoch``, any other; then the outermost. Other words count only if no number occurs twice, because
layers are numbered too. A user may name the ranges instead.

The CPU runs ahead of the GPU, so a step has two spans: its range on the CPU, and the time from the first to the last
GPU operation launched in it. ``to_arrays`` and ``of_arrays`` store the steps of a report next to its columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Unit
from nsystui.base.selection import NameFilter, Task
from nsystui.base.text import few_numbers, whole_number
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.algebra.projection import Projection
from nsystui.questions.nvtx.loading import FOLDED_LABEL, LABEL
from nsystui.questions.queries.conditions import Condition, is_launched_by, job_end, job_start, matches
from nsystui.questions.queries.derived import in_runs, of_each_report
from nsystui.questions.queries.statistics import places_by
from nsystui.questions.queries.tasks import GPU_TABLES, RankedTask
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


NO_STEP = -1

_TIMES = ("starts", "ends")
_GPU = ("op_count", "op_time", "start", "end")


@dataclass(frozen=True, eq=False)
class TaskSteps:
    """The n steps of a task by start. Times are job time, ns; shapes are ``(n,)``.

    ``name``: what the ranges are called, with ``*`` for numbers. ``numbers``: ascending, those in the names; where they
    repeat (steps counted anew in each epoch) or there are none, the places 0, 1, … ``starts``, ``ends``: on the CPU;
    steps do not overlap. ``gpu``: the GPU operations launched in each. ``outside``: the durations of those launched in
    none, added up.
    """

    task: Task
    name: str
    numbers: Times
    starts: Times
    ends: Times
    gpu: Projection
    outside: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    def places_at(self, times: Times) -> Times:
        """Find the step whose CPU range contains each time (its end excluded), by its place; ``NO_STEP`` for none."""
        place = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((place >= 0) & (times < self.ends[place]), place, NO_STEP)


def to_arrays(found: Mapping[Task, TaskSteps], clock_offset: int) -> Arrays:
    """Join the steps of the tasks of a report one after the other, on the report's own clock."""
    every = list(found.values())

    def joined(of: Iterable[Any], name: str, offset: int = 0) -> Times:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(one, name) for one in of)]) - offset

    gpu = [steps.gpu for steps in every]
    return {
        "process": np.array([task.process for task in found], np.int64),
        "count": np.array([len(steps) for steps in every], np.int64),
        "outside": np.array([steps.outside for steps in every], np.int64),
        "names": json_array([steps.name for steps in every]),
        "numbers": joined(every, "numbers"),
        **{name: joined(every, name, clock_offset) for name in _TIMES},
        **{f"gpu_{name}": joined(gpu, name) for name in _GPU[:2]},
        **{f"gpu_{name}": joined(gpu, name, clock_offset) for name in _GPU[2:]},
    }


def of_arrays(report: int, arrays: Arrays, clock_offset: int) -> Iterator[TaskSteps]:
    """Undo ``to_arrays``, for a report with this index."""
    first = 0
    names = json_of(arrays["names"])
    single = (arrays[key].tolist() for key in ("process", "count", "outside"))
    for process, count, outside, name in zip(*single, names, strict=True):
        keys = ("numbers", *_TIMES, *(f"gpu_{key}" for key in _GPU))
        own = {key: arrays[key][first : first + count] for key in keys}
        first += count
        starts, ends = (own[key] + clock_offset for key in _TIMES)
        gpu_start, gpu_end = own["gpu_start"] + clock_offset, own["gpu_end"] + clock_offset
        gpu = Projection(own["gpu_op_count"], gpu_start, gpu_end, own["gpu_op_time"])
        yield TaskSteps(Task(report, process), name, own["numbers"], starts, ends, _without_holes(gpu), outside)


def _without_holes(gpu: Projection) -> Projection:
    """The projection with times of 0 where a step launched nothing and so has no place on any clock."""
    is_empty = gpu.op_count == 0
    return replace(gpu, start=np.where(is_empty, 0, gpu.start), end=np.where(is_empty, 0, gpu.end))


FEWEST = 3
"""So many ranges must follow one another to be steps, unless the user named them."""
LEAST_COVERAGE = 0.5
"""The share of a task's GPU work that must have been launched in them."""

_MOST_NAMES = 4
_WORDS = tuple(re.compile(word, re.IGNORECASE) for word in ("ProfilerStep", "step", "iter", "batch", "epoch"))
_NUMBER = re.compile("[0-9]+")
_LARGEST = 10**15 - 1
_TEMPLATE = sa.func.regexp_replace(FOLDED_LABEL, "[0-9]+", "*", "g", type_=sa.Text)
"""The name that ranges of one kind share: ``step *`` of ``step 7``."""
_JOINED = 1 << 17
"""About so many API calls are joined with their operations at once."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of each task that has any; ``notes`` say what they are, ``why_none`` why tasks have none."""

    of_task: Mapping[Task, TaskSteps]
    notes: tuple[str, ...] = ()
    why_none: tuple[str, ...] = ()

    @classmethod
    def load(cls, session: Session, ranks: Sequence[RankedTask], name: str | None = None) -> Steps:
        """Find the steps of the tasks in ``ranks``.

        ``name`` is a regular expression for the names of the ranges (``domain:text``) that are steps, whatever they
        hold; of ranges in one another the outermost count. If it has a group, the step's number is what that matched.
        Raises UsageError where it is no regular expression. Reads every NVTX range and every launch.
        """
        tasks = {item.task: item.rank for item in ranks}
        reports = [report for report in session.reports if any(task.report == report.index for task in tasks)]
        of_task: dict[Task, TaskSteps] = {}
        if name is None:
            compute = partial(_kept, tasks)
            stored = of_each_report(session, reports, "steps", compute, by=tables.api_calls, doing="steps")
            for report in reports:
                steps = of_arrays(report.index, stored[report.index], report.clock_offset)
                of_task |= {one.task: one for one in steps}
        else:
            named = partial(_steps, tasks, NameFilter(f"re:{name}"))
            for found in in_runs(session, reports, named, tables.api_calls, "steps"):
                of_task |= found
        why_none = tuple(_why_none(of_task, tasks, name))
        return cls(of_task, (*_ranges(of_task), *why_none, *_outside(of_task)), why_none)

    def numbers_at(self, reports: Times, processes: Times, times: Times) -> Times:
        """Return the number of the step in which each time lies, ``NO_STEP`` for none; all shapes are ``(m,)``."""
        numbers = np.full(len(times), NO_STEP)
        for task, steps in self.of_task.items():
            rows = np.flatnonzero((reports == task.report) & (processes == task.process))
            places = steps.places_at(times[rows])
            numbers[rows] = np.where(places >= 0, steps.numbers[places], NO_STEP)
        return numbers


@dataclass(eq=False)
class _Candidate:
    """Ranges of one task, thread and name that follow one another; ``total`` is the task's GPU time, ns."""

    task: Task
    name: str
    numbers: Times
    starts: Times
    ends: Times
    gpu: Projection = field(init=False)
    total: int = 0

    def __post_init__(self) -> None:
        count = len(self.starts)
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        self.gpu = Projection(np.zeros(count, np.int64), first, last, np.zeros(count, np.int64))

    @property
    def is_ascending(self) -> bool:
        return bool((np.diff(self.numbers) > 0).all())

    @cached_property
    def word(self) -> int:
        """The place of the first of the words that is in the name."""
        return next((place for place, word in enumerate(_WORDS) if word.search(self.name)), len(_WORDS))

    @property
    def share(self) -> float | None:
        """The part of the task's GPU time that was launched in them; ``None`` where there is no such time."""
        return int(self.gpu.op_time.sum()) / self.total if self.total else None

    @property
    def time(self) -> int:
        """The durations of the ranges on the CPU, ns."""
        return int((self.ends - self.starts).sum())

    def add(self, launches: Times, starts: Times, ends: Times) -> None:
        """Takes in GPU operations by the times of their launches."""
        place = np.searchsorted(self.starts, launches, side="right") - 1
        is_inside = (place >= 0) & (launches < self.ends[place])
        place, starts, ends = place[is_inside], starts[is_inside], ends[is_inside]
        np.add.at(self.gpu.op_count, place, 1)
        np.add.at(self.gpu.op_time, place, ends - starts)
        np.minimum.at(self.gpu.start, place, starts)
        np.maximum.at(self.gpu.end, place, ends)

    def steps(self) -> TaskSteps:
        """The ranges as the steps of their task."""
        numbers = self.numbers if self.is_ascending else np.arange(len(self.starts))
        outside = self.total - int(self.gpu.op_time.sum())
        return TaskSteps(self.task, self.name, numbers, self.starts, self.ends, _without_holes(self.gpu), outside)


def _kept(tasks: Collection[Task], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """The steps of each report that were found without a name from the user, to be stored next to its columns."""
    steps = _steps(tasks, None, session, reports)
    return {
        report.index: to_arrays(
            {task: one for task, one in steps.items() if task.report == report.index}, report.clock_offset
        )
        for report in reports
    }


def _steps(
    tasks: Collection[Task], wanted: NameFilter | None, session: Session, reports: list[Report]
) -> dict[Task, TaskSteps]:
    """The steps of the tasks of reports whose launches are few enough to be joined with their GPU work."""
    indices = {report.index for report in reports}
    candidates = _candidates(session, [task for task in tasks if task.report in indices], wanted)
    _add_gpu_work(session, candidates)
    return {task: one.steps() for task, one in _best(candidates, wanted is None)}


def _candidates(session: Session, tasks: Collection[Task], wanted: NameFilter | None) -> list[_Candidate]:
    """The candidates for the steps of each task: the longest names on each thread, or those that the user named."""
    if not tasks or not session.count(tables.nvtx_ranges):
        return []
    kinds: set[tuple[Any, ...]] | None = None
    if wanted is not None:
        is_named = (*_is_whole(tasks), matches(FOLDED_LABEL, wanted))
        ranges = session.arrays(sa.select(*_place_and(sa.literal(wanted.pattern))).where(*is_named).order_by("start"))
    else:
        kinds = set(session.rows(_kinds_query(tasks)))
        if not kinds:
            return []
        ranges = session.arrays(_ranges_query(tasks, sorted({template for *_, template in kinds})))
    found = []
    for kind, rows in places_by(ranges[key] for key in ("report", "process", "thread", "template")).items():
        task = Task(kind[0], kind[1])
        if task in tasks and (kinds is None or kind in kinds):
            starts, ends, names = (ranges[key][rows] for key in ("start", "end", "name"))
            found.append(_candidate(task, kind[3], starts, ends, names.tolist(), wanted))
    return [one for one in found if one is not None]


def _is_whole(tasks: Iterable[Task]) -> tuple[Condition, ...]:
    """The conditions for NVTX ranges of the tasks' reports that were closed on the thread that opened them."""
    columns = tables.nvtx_ranges.c
    return (
        columns.report.in_(sorted({task.report for task in tasks})),
        columns.end > columns.start,
        sa.func.coalesce(columns.end_thread, columns.thread) == columns.thread,
    )


def _place_and(template: sa.ColumnElement[Any]) -> tuple[sa.ColumnElement[Any], ...]:
    columns = tables.nvtx_ranges.c
    times = (job_start(tables.nvtx_ranges).label("start"), job_end(tables.nvtx_ranges).label("end"))
    place = (columns.report, columns.process, columns.thread, template.label("template"))
    return (*place, *times, FOLDED_LABEL.label("name"))


def _kinds_query(tasks: Iterable[Task]) -> sa.Select[Any]:
    """The common part of numbered ranges (report, process, thread and template): the longest of each task.

    Asked apart from the ranges, which would all be in memory in the meantime.
    """
    has_number = sa.func.regexp_matches(FOLDED_LABEL, "[0-9]", type_=sa.Boolean)
    ranges = sa.select(*_place_and(_TEMPLATE)).where(*_is_whole(tasks), has_number).subquery("ranges")
    kind = (ranges.c.report, ranges.c.process, ranges.c.thread, ranges.c.template)
    time = sa.func.sum(ranges.c.end - ranges.c.start)
    place = sa.func.row_number().over(partition_by=kind[:2], order_by=time.desc())
    kinds = (
        sa.select(*kind, place.label("place"))
        .group_by(*kind)
        .having(sa.func.count(ranges.c.name.distinct()) >= FEWEST)
        .subquery("kinds")
    )
    return sa.select(*(kinds.c[column.name] for column in kind)).where(kinds.c.place <= _MOST_NAMES)


def _ranges_query(tasks: Iterable[Task], templates: Sequence[str]) -> sa.Select[Any]:
    """The closed ranges of these templates, by start."""
    # Most ranges are none of them: their beginnings say so at less cost than their templates.
    beginnings = sorted({template.partition("*")[0] for template in templates})
    may_be = sa.or_(*(sa.func.starts_with(LABEL, beginning) for beginning in beginnings))
    conditions = (*_is_whole(tasks), may_be, _TEMPLATE.in_(templates))
    return sa.select(*_place_and(_TEMPLATE)).where(*conditions).order_by("start")


def _candidate(
    task: Task, name: str, starts: Times, ends: Times, names: Sequence[str], wanted: NameFilter | None
) -> _Candidate | None:
    """The ranges of one name by start as a candidate, ``None`` where they cannot be steps."""
    follows = np.concatenate(([True], starts[1:] >= np.maximum.accumulate(ends)[:-1]))
    if wanted is not None:
        pattern = re.compile(wanted.pattern, re.IGNORECASE if wanted.ignore_case else 0)
        chosen = np.flatnonzero(follows)
        # The number is in the first group of the pattern, or in the whole name.
        found = ((names[place], pattern.search(names[place])) for place in chosen.tolist())
        numbers = _numbers([(match[1] or "") if match and pattern.groups else name for name, match in found])
        return _Candidate(task, name, numbers, starts[chosen], ends[chosen])
    candidate = _Candidate(task, name, _numbers(names), starts, ends)
    is_plausible = candidate.word < len(_WORDS) or candidate.is_ascending
    return candidate if follows.all() and is_plausible else None


def _numbers(names: Sequence[str]) -> Times:
    """Of the numbers in each name those that ascend from name to name (``epoch 1 step 7``: the 7); else the first.

    All 0 where a name has none.
    """
    found = ((whole_number(digits, _LARGEST) for digits in _NUMBER.findall(name)) for name in names)
    parts = [[number for number in numbers if number is not None] for numbers in found]
    width = min(map(len, parts))
    columns = np.array([part[:width] for part in parts], np.int64).reshape(len(parts), width)
    ascending = [place for place in range(columns.shape[1]) if (np.diff(columns[:, place]) > 0).all()]
    if not columns.shape[1]:
        return np.zeros(len(names), np.int64)
    return columns[:, ascending[0] if ascending else 0]


def _add_gpu_work(session: Session, candidates: Sequence[_Candidate]) -> None:
    """Gives each candidate the GPU operations launched in it, and the GPU time of its task."""
    by_task: dict[Task, list[_Candidate]] = {}
    for one in candidates:
        by_task.setdefault(one.task, []).append(one)
    total: dict[Task, int] = {}
    work = [tables.of(table) for table in GPU_TABLES if session.count(table)]
    for ids in _id_spans(session, by_task):
        for table in work:
            for batch in session.array_batches(_launches_query(table, by_task, ids)):
                for task, rows in _rows_by_task(batch["report"], batch["process"]):
                    launches, starts, ends = (batch[key][rows] for key in ("launch", "start", "end"))
                    total[task] = total.get(task, 0) + int((ends - starts).sum())
                    for one in by_task.get(task, ()):
                        one.add(launches, starts, ends)
    for one in candidates:
        one.total = total.get(one.task, 0)


def _id_spans(session: Session, tasks: Iterable[Task]) -> Iterator[tuple[int, int]]:
    """The correlation ids of the calls in portions, first and last: a join of all at once would hold all calls.

    Ids count up, so that each portion is in a few row groups.
    """
    reports = sorted({task.report for task in tasks})
    calls = tables.api_calls
    if not session.count(calls):
        return
    ids = calls.c.correlation_id
    query = sa.select(sa.func.count(ids), sa.func.min(ids), sa.func.max(ids)).where(calls.c.report.in_(reports))
    ((count, first, last),) = session.rows(query)
    if count:
        width = (last - first + 1) * _JOINED // count + 1
        for start in range(first, last + 1, width):
            yield start, min(start + width - 1, last)


def _rows_by_task(reports: Times, processes: Times) -> Iterator[tuple[Task, Times]]:
    """The rows of each task, as indices."""
    for report in np.unique(reports).tolist():
        rows = np.flatnonzero(reports == report)
        for process in np.unique(processes[rows]).tolist():
            yield Task(report, process), rows[processes[rows] == process]


def _launches_query(table: sa.Table, tasks: Iterable[Task], ids: tuple[int, int]) -> sa.Select[Any]:
    """Each operation of a table whose correlation id is one of ``ids``, with the time of its launch; job time."""
    calls, columns = tables.api_calls, table.c
    return (
        sa.select(
            columns.report,
            columns.process,
            job_start(calls).label("launch"),
            job_start(table).label("start"),
            job_end(table).label("end"),
        )
        .join_from(table, calls, is_launched_by(table, calls))
        .where(
            columns.report.in_(sorted({task.report for task in tasks})),
            columns.end.is_not(None),
            *(one.c.correlation_id.between(*ids) for one in (calls, table)),
        )
    )


def _best(candidates: Sequence[_Candidate], is_free: bool) -> Iterator[tuple[Task, _Candidate]]:
    """The candidate of each task that makes its steps, if any does; ``is_free`` where the user named none."""
    by_task: dict[Task, list[_Candidate]] = {}
    for one in candidates:
        # Where nothing was launched at all only the words decide.
        is_enough = one.word < len(_WORDS) if one.share is None else one.share >= LEAST_COVERAGE
        if not is_free or (is_enough and len(one.starts) >= FEWEST):
            by_task.setdefault(one.task, []).append(one)
    for task, own in sorted(by_task.items()):
        # The outermost holds most, or lasts longest.
        yield task, min(own, key=lambda one: (one.word if is_free else 0, -(one.share or 0.0), -one.time))


def _ranges(chosen: Mapping[Task, TaskSteps]) -> Iterator[str]:
    kinds: dict[str, set[int]] = {}
    for one in chosen.values():
        kinds.setdefault(one.name, set()).add(len(one))
    for kind, counts in kinds.items():
        number = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
        each = " a rank" if len(chosen) > 1 else ""
        yield f"steps are the NVTX ranges `{kind}` ({number}{each}): work belongs to the step that launched it"


def _why_none(chosen: Mapping[Task, TaskSteps], tasks: Mapping[Task, int], name: str | None) -> Iterator[str]:
    without = sorted(rank for task, rank in tasks.items() if task not in chosen)
    if without:
        whose = "" if not chosen else f" of rank{'s' if len(without) > 1 else ''} {few_numbers(without)}"
        if name is not None:
            yield f"no steps{whose}: no NVTX range is called `{name}`"
        else:
            yield (
                f"no steps{whose}: no numbered NVTX ranges, such as `step 7`, launch half of the GPU's work; "
                f"--step-range REGEX selects the ranges that are steps"
            )


def _outside(chosen: Mapping[Task, TaskSteps]) -> Iterator[str]:
    outside = sum(one.outside for one in chosen.values())
    if outside:
        total = outside + sum(int(one.gpu.op_time.sum()) for one in chosen.values())
        time = format_value(Unit.DURATION, outside)
        yield f"{time} of GPU work, {100 * outside / total:.1f} % of all, was launched outside of steps"
