"""Training steps: the numbered NVTX ranges that cut a task's run into repetitions of the same work.

See docs/ranks.md#steps.

A step is found by name: ``step 0``, ``step 1`` … are one name with a number in it. A name on a thread is a candidate
if at least three of its ranges follow one another and at least half of the task's GPU work was launched, by any
thread, during them. Of several candidates the first of these words in the name decides: ``ProfilerStep``, ``step``,
``iter``, ``batch``, ``epoch``, any other; then the outermost. Other words count only if no number occurs twice, because
layers are numbered too. A user may name the ranges instead.

The CPU runs ahead of the GPU, so a step has two spans: its range on the CPU, and the time from the first to the last
GPU operation launched in it. Where ranges do not tell the steps of every task, `anchors` finds them in the GPU's work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.anchors import ANCHORS, COLLECTIVES, GRAPH, KERNELS, NVTX, OPTIMIZER
from nsystui.base.answer import Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import NameFilter, Task
from nsystui.base.text import few_numbers, whole_number
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.algebra.projection import Projection
from nsystui.questions.nvtx.loading import FOLDED_LABEL, LABEL
from nsystui.questions.queries.conditions import Condition, job_end, job_start, matches, of_reports
from nsystui.questions.queries.derived import in_runs, of_each_report
from nsystui.questions.queries.statistics import places_by
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.steps.anchors import anchored_steps
from nsystui.questions.steps.phases import with_phases
from nsystui.questions.steps.task_steps import (
    FEWEST,
    LEAST_COVERAGE,
    NO_STEP,
    TaskSteps,
    launched_work,
    of_arrays,
    to_arrays,
    without_holes,
)
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


_NAMES = {
    NVTX: "NVTX ranges",
    OPTIMIZER: "optimizer kernels",
    COLLECTIVES: "collectives",
    GRAPH: "launches of one CUDA graph",
    KERNELS: "what else comes back once a step",
}
_MARKS = {
    OPTIMIZER: "each ends with the kernels of the optimizer",
    COLLECTIVES: "each begins with the first collective of a group",
    GRAPH: "each holds one launch of a CUDA graph",
    KERNELS: "each begins with `{}`",
}
_ALIKE = 0.1
"""Median steps of two anchors that differ by less are the same."""
_NONE = {
    NVTX: (
        "no numbered NVTX ranges, such as `step 7`, launch half of the GPU's work (--step-range REGEX selects the "
        "ranges that are steps)"
    ),
    **{kind: f"no {_NAMES[kind]} at regular distances in the GPU's work" for kind in (OPTIMIZER, COLLECTIVES, GRAPH)},
    KERNELS: "the GPU's work does not repeat regularly",
}
_MOST_NAMES = 4
_WORDS = tuple(re.compile(word, re.IGNORECASE) for word in ("ProfilerStep", "step", "iter", "batch", "epoch"))
_NUMBER = re.compile("[0-9]+")
_LARGEST = 10**15 - 1
_TEMPLATE = sa.func.regexp_replace(FOLDED_LABEL, "[0-9]+", "*", "g", type_=sa.Text)
"""The name that ranges of one kind share: ``step *`` of ``step 7``."""


_Found = Mapping[str, Mapping[Task, TaskSteps]]
"""The steps of each task by their anchor."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of each task that has any; ``notes`` say what they are, ``why_none`` why tasks have none.

    ``agreeing``: the anchors by which the same step time is found, in words.
    """

    of_task: Mapping[Task, TaskSteps]
    notes: tuple[str, ...] = ()
    why_none: tuple[str, ...] = ()
    agreeing: tuple[str, ...] = ()

    @classmethod
    def load(
        cls, session: Session, ranks: Sequence[RankedTask], name: str | None = None, anchor: str | None = None
    ) -> Steps:
        """Find the steps of the tasks in ``ranks``.

        ``name`` is a regular expression for the names of the ranges (``domain:text``) that are steps, whatever they
        hold; of ranges in one another the outermost count. If it has a group, the step's number is what that matched.
        ``anchor`` is one of `ANCHORS`, else the first of them that most of the tasks have. Raises UsageError where
        ``name`` is no regular expression, or goes with another anchor than NVTX. Reads every NVTX range and launch.
        """
        tasks = {item.task: item.rank for item in ranks}
        reports = [report for report in session.reports if any(task.report == report.index for task in tasks)]
        if name is not None:
            if anchor not in (None, NVTX):
                raise UsageError(f"--step-range chooses NVTX ranges, and --steps-by {anchor} other work: give one")
            of_task: dict[Task, TaskSteps] = {}
            named = partial(_steps, tasks, NameFilter(f"re:{name}"))
            for found in in_runs(session, reports, named, tables.api_calls, "steps"):
                of_task |= found
            return cls._of(of_task, {}, tasks, [f"no NVTX range is called `{name}`"])._with_phases(session)

        def stored(question: str, compute: Callable[..., dict[int, Arrays]]) -> dict[str, dict[Task, TaskSteps]]:
            kept = of_each_report(
                session, reports, question, partial(compute, tasks), by=tables.api_calls, doing="steps"
            )
            every: dict[str, dict[Task, TaskSteps]] = {}
            for report in reports:
                for one in of_arrays(report.index, kept[report.index], report.clock_offset):
                    every.setdefault(one.anchor, {})[one.task] = one
            return every

        by = stored("steps", _kept) if anchor in (None, NVTX) else {}
        if anchor != NVTX and len(by.get(NVTX, ())) < len(tasks):
            by |= stored("anchored steps", anchored_steps)
        return cls._chosen(by, tasks, anchor)._with_phases(session)

    def _with_phases(self, session: Session) -> Steps:
        of_task, note = with_phases(session, self.of_task)
        return replace(self, of_task=of_task, notes=(*self.notes, *([note] if note else [])))

    @classmethod
    def _chosen(cls, by: _Found, tasks: Mapping[Task, int], anchor: str | None) -> Steps:
        if anchor is not None:
            return cls._of(by.get(anchor, {}), {}, tasks, [_NONE[anchor]])
        certain = {
            kind: {task: one for task, one in by[kind].items() if not one.is_doubtful} for kind in ANCHORS if kind in by
        }
        # The same anchor for all ranks: steps that begin elsewhere in the work could not be compared.
        chosen = max(certain, key=lambda kind: len(certain[kind]), default=NVTX)
        reasons = [_NONE[NVTX], *(() if KERNELS in certain else (_NONE[KERNELS],)), *_doubts(by)]
        rest = {kind: found for kind, found in certain.items() if kind != chosen}
        return cls._of(certain.get(chosen, {}), rest, tasks, reasons)

    @classmethod
    def _of(
        cls, found: Mapping[Task, TaskSteps], rest: _Found, tasks: Mapping[Task, int], reasons: Sequence[str]
    ) -> Steps:
        of_task = _numbered_alike(found)
        why_none = tuple(_why_none(of_task, tasks, reasons))
        agreeing, others = _others(of_task, rest)
        return cls(of_task, (*_anchors(of_task), *others, *why_none, *_outside(of_task)), why_none, agreeing)

    @property
    def found_by(self) -> str:
        """The anchor, and how sure it is: ``NVTX ranges `step *`, optimizer kernels (59) agree``."""
        every = list(self.of_task.values())
        anchor = _NAMES[every[0].anchor] + (f" `{every[0].name}`" if every[0].anchor == NVTX else "")
        agree, both = min((one.agree, one.agree + one.differ) for one in every)
        sure = f", {agree} of {both} operations agree" if both else ""
        return f"{anchor}{sure}" + "".join(f", {other} agree" for other in self.agreeing)

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
    """Ranges of one task, thread and name that follow one another; ``total`` is the task's GPU time, ns.

    Those that the user did not choose, ``is_chosen``, are no steps, but end the one before them.
    """

    task: Task
    name: str
    numbers: Times
    starts: Times
    ends: Times
    labels: Sequence[str]
    is_chosen: NDArray[np.bool_]
    gpu: Projection = field(init=False)
    total: int = 0

    def __post_init__(self) -> None:
        count = len(self.starts)
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        self.gpu = Projection(np.zeros(count, np.int64), first, last, np.zeros(count, np.int64))

    @property
    def is_ascending(self) -> bool:
        return bool((np.diff(self.numbers[self.is_chosen]) > 0).all())

    @cached_property
    def word(self) -> int:
        """The place of the first of the words that is in the name."""
        return next((place for place, word in enumerate(_WORDS) if word.search(self.name)), len(_WORDS))

    @property
    def share(self) -> float | None:
        """The part of the task's GPU time that was launched in them; ``None`` where there is no such time."""
        return int(self.gpu.op_time[self.is_chosen].sum()) / self.total if self.total else None

    @property
    def time(self) -> int:
        """The durations of the ranges on the CPU, ns."""
        return int((self.ends - self.starts)[self.is_chosen].sum())

    def add(self, launch: Times, start: Times, end: Times) -> None:
        """Takes in GPU operations by the times of their launches."""
        self.total += int((end - start).sum())
        place = np.searchsorted(self.starts, launch, side="right") - 1
        is_inside = (place >= 0) & (launch < self.ends[place])
        place, start, end = place[is_inside], start[is_inside], end[is_inside]
        np.add.at(self.gpu.op_count, place, 1)
        np.add.at(self.gpu.op_time, place, end - start)
        np.minimum.at(self.gpu.start, place, start)
        np.maximum.at(self.gpu.end, place, end)

    def steps(self) -> TaskSteps:
        """The chosen ranges as the steps of their task."""
        chosen, gpu = self.is_chosen, without_holes(self.gpu)
        every = TaskSteps(self.task, self.name, self.numbers, self.starts, self.ends, gpu)
        on_gpu = np.zeros((2, len(every)), np.int64)
        on_gpu[:, gpu.op_count > 0] = every.spans()
        own = Projection(*(values[chosen] for values in (gpu.op_count, gpu.start, gpu.end, gpu.op_time)))
        return replace(
            every,
            numbers=self.numbers[chosen] if self.is_ascending else np.arange(int(chosen.sum())),
            starts=self.starts[chosen],
            ends=self.ends[chosen],
            gpu=own,
            outside=self.total - int(own.op_time.sum()),
            labels=[label for label, is_own in zip(self.labels, chosen.tolist(), strict=True) if is_own],
            on_gpu=None if chosen.all() else (on_gpu[0, chosen], on_gpu[1, chosen]),
        )


def _kept(tasks: Collection[Task], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """The steps of each report that were found without a name from the user, to be stored next to its columns."""
    steps = _steps(tasks, None, session, reports)
    return {
        report.index: to_arrays(
            [one for task, one in steps.items() if task.report == report.index], report.clock_offset
        )
        for report in reports
    }


def _steps(
    tasks: Collection[Task], wanted: NameFilter | None, session: Session, reports: list[Report]
) -> dict[Task, TaskSteps]:
    """The steps of the tasks of reports whose launches are few enough to be joined with their GPU work."""
    indices = {report.index for report in reports}
    candidates = _candidates(session, [task for task in tasks if task.report in indices], wanted)
    by_task: dict[Task, list[_Candidate]] = {}
    for one in candidates:
        by_task.setdefault(one.task, []).append(one)
    for task, batch in launched_work(session, {task.report for task in by_task}):
        for one in by_task.get(task, ()):
            one.add(**batch)
    return {task: one.steps() for task, one in _best(candidates, wanted is None)}


def _candidates(session: Session, tasks: Collection[Task], wanted: NameFilter | None) -> list[_Candidate]:
    """The candidates for the steps of each task: the longest names on each thread, or those that the user named."""
    if not tasks or not session.count(tables.nvtx_ranges):
        return []
    kinds: set[tuple[Any, ...]] | None = None
    if wanted is not None:
        is_whole, is_named = _is_whole(tasks), matches(FOLDED_LABEL, wanted)
        alike = sa.select(_TEMPLATE).where(*is_whole, is_named).distinct()
        # Those whose names differ in numbers alone end a step, too.
        query = sa.select(*_place_and(sa.literal(wanted.pattern)), is_named.label("is_chosen"))
        ranges = session.arrays(query.where(*is_whole, _TEMPLATE.in_(alike)).order_by("start"))
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
            is_chosen = ranges["is_chosen"][rows].astype(bool) if wanted is not None else np.ones(len(rows), bool)
            found.append(_candidate(task, kind[3], starts, ends, names.tolist(), is_chosen, wanted))
    return [one for one in found if one is not None]


def _is_whole(tasks: Iterable[Task]) -> tuple[Condition, ...]:
    """The conditions for NVTX ranges of the tasks' reports that were closed on the thread that opened them."""
    columns = tables.nvtx_ranges.c
    return (
        of_reports(columns.report, {task.report for task in tasks}),
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
    task: Task,
    name: str,
    starts: Times,
    ends: Times,
    names: Sequence[str],
    is_chosen: NDArray[np.bool_],
    wanted: NameFilter | None,
) -> _Candidate | None:
    """The ranges of one name by start as a candidate, ``None`` where they cannot be steps."""
    if wanted is None:
        candidate = _Candidate(task, name, _numbers(names), starts, ends, names, is_chosen)
        is_plausible = candidate.word < len(_WORDS) or candidate.is_ascending
        return candidate if _follows(starts, ends).all() and is_plausible else None
    pattern = re.compile(wanted.pattern, re.IGNORECASE if wanted.ignore_case else 0)
    own = np.flatnonzero(is_chosen)
    own = own[_follows(starts[own], ends[own])]
    if not len(own):
        return None
    # Of the rest only what lies between the steps ends one.
    before = np.searchsorted(starts[own], starts, side="right") - 1
    following = np.append(starts[own], np.iinfo(np.int64).max)[before + 1]
    is_between = ~is_chosen & (before >= 0) & (starts >= ends[own][np.maximum(before, 0)]) & (ends <= following)
    kept = np.union1d(own, np.flatnonzero(is_between))
    kept = kept[_follows(starts[kept], ends[kept])]
    # The number is in the first group of the pattern, or in the whole name.
    found = ((names[place], pattern.search(names[place])) for place in own.tolist())
    numbers = np.zeros(len(starts), np.int64)
    numbers[own] = _numbers([(match[1] or "") if match and pattern.groups else name for name, match in found])
    labels = [names[place] for place in kept.tolist()]
    return _Candidate(task, name, numbers[kept], starts[kept], ends[kept], labels, is_chosen[kept])


def _follows(starts: Times, ends: Times) -> NDArray[np.bool_]:
    """Which ranges, by start, begin after all before them have ended."""
    return np.concatenate(([True], starts[1:] >= np.maximum.accumulate(ends)[:-1]))


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


def _numbered_alike(found: Mapping[Task, TaskSteps]) -> Mapping[Task, TaskSteps]:
    """The steps, with the same number for those of all ranks that ran at the same time, where no name has a number."""
    if not found or any(one.anchor == NVTX for one in found.values()):
        return found
    first = next(iter(found.values())).gpu
    middle = first.start + (first.end - first.start) // 2
    # The first one that ends after the middle of another runs with it.
    shifts = {
        task: round(float(np.median(np.searchsorted(one.gpu.end, middle) - np.arange(len(middle)))))
        for task, one in found.items()
    }
    most = max(shifts.values())
    return {task: replace(one, numbers=one.numbers + most - shifts[task]) for task, one in found.items()}


def _anchors(chosen: Mapping[Task, TaskSteps]) -> Iterator[str]:
    kinds: dict[tuple[str, str], list[TaskSteps]] = {}
    for one in chosen.values():
        kinds.setdefault((one.anchor, one.name), []).append(one)
    for (anchor, name), every in kinds.items():
        number = f"{_range(map(len, every))}{' a rank' if len(chosen) > 1 else ''}"
        if anchor == NVTX:
            yield f"steps are the NVTX ranges `{name}` ({number}): work belongs to the step that launched it"
            continue
        agree, both = min((one.agree, one.agree + one.differ) for one in every)
        sure = f"; {agree} of {both} operations that come back once a step give the same number" if both else ""
        yield f"steps are found in the GPU's work ({number}): {_MARKS[anchor].format(name)}{sure}"


def _others(chosen: Mapping[Task, TaskSteps], rest: _Found) -> tuple[tuple[str, ...], list[str]]:
    """The other anchors that find the same step time of the same tasks, and what others say, as notes."""
    alike, notes = [], []
    for kind, found in rest.items():
        both = [(chosen[task], one) for task, one in found.items() if task in chosen]
        if both:
            own, other = (float(np.median([one.median for one in every])) for every in zip(*both, strict=True))
            number = _range(len(one) for _, one in both)
            if abs(other - own) <= _ALIKE * own:
                alike.append(f"{_NAMES[kind]} ({number})")
                continue
            times = [format_value(Unit.DURATION, one) for one in (other, own)]
            notes.append(
                f"{_NAMES[kind]} say otherwise: {number} steps with a median of {times[0]} instead of {times[1]}; "
                f"--steps-by {kind} takes these"
            )
    if alike:
        notes.append(f"the same step time is found by {' and by '.join(alike)}")
    return tuple(alike), notes


def _range(counts: Iterable[int]) -> str:
    every = sorted(set(counts))
    return f"{every[0]:,}" if len(every) == 1 else f"{every[0]:,} to {every[-1]:,}"


def _doubts(by: _Found) -> Iterator[str]:
    """Repetitions that may be layers."""
    for kind in ANCHORS:
        every = [one for one in by.get(kind, {}).values() if one.is_doubtful]
        if every:
            size = _range(int(np.median(one.gpu.op_count)) for one in every)
            yield (
                f"{size} operations come back {_range(map(len, every))} times, but nothing in them tells a step from "
                f"a layer (no copy to the host, loss or optimizer): --steps-by {kind} takes them as steps"
            )
            return


def _why_none(chosen: Mapping[Task, TaskSteps], tasks: Mapping[Task, int], reasons: Sequence[str]) -> Iterator[str]:
    without = sorted(rank for task, rank in tasks.items() if task not in chosen)
    if without:
        whose = "" if not chosen else f" of rank{'s' if len(without) > 1 else ''} {few_numbers(without)}"
        yield f"no steps{whose}: {'; '.join(reasons)}"


def _outside(chosen: Mapping[Task, TaskSteps]) -> Iterator[str]:
    outside = sum(one.outside for one in chosen.values())
    if outside:
        total = outside + sum(int(one.gpu.op_time.sum()) for one in chosen.values())
        time = format_value(Unit.DURATION, outside)
        is_cut = all(one.anchor != NVTX for one in chosen.values())
        where = ", where the capture starts or ends with no whole step" if is_cut else ""
        yield f"{time} of GPU work, {100 * outside / total:.1f} % of all, was launched outside of steps{where}"
