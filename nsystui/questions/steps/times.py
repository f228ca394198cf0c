"""Training steps: numbered NVTX ranges that divide a task's run into repetitions (docs/ranks.md#steps).

Steps are found by name: ``step 0``, ``step 1`` … are one name with a number. A name on a thread is a candidate if at
least three of its ranges follow one another, and at least half of the task's GPU work was launched during them, by any
thread. Among candidates, the first of these words in the name decides: ``ProfilerStep``, ``step``, ``iter``, ``batch``,
``epoch``, any other word; then the outermost range. Other words count only if no number is repeated, because layers are
numbered, too. A user may name the ranges instead.

The CPU runs ahead of the GPU, so a step has two spans: its range on the CPU, and the time from the first to the last
GPU operation launched in it. If a task's steps have no ranges, `anchors` finds them in the GPU's work.
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
from nsystui.questions.queries.pauses import pauses
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
    KERNELS: "other work that repeats once per step",
}
_MARKS = {
    OPTIMIZER: "each ends with the kernels of the optimizer",
    COLLECTIVES: "each begins with the first collective of a group",
    GRAPH: "each holds one launch of a CUDA graph",
    KERNELS: "each begins with `{}`",
}
_TOLERANCE = 0.1
"""The largest relative difference between median steps of agreeing anchors."""
_REASONS = {
    NVTX: (
        "no numbered NVTX ranges, such as `step 7`, launch half of the GPU's work (--step-range REGEX selects the "
        "ranges that are steps)"
    ),
    **{kind: f"no {_NAMES[kind]} at regular distances in the GPU's work" for kind in (OPTIMIZER, COLLECTIVES, GRAPH)},
    KERNELS: "the GPU's work does not repeat regularly",
}
_MAX_NAMES = 4
_WORDS = tuple(re.compile(word, re.IGNORECASE) for word in ("ProfilerStep", "step", "iter", "batch", "epoch"))
_NUMBER = re.compile("[0-9]+")
_MAX_NUMBER = 10**15 - 1
_TEMPLATE = sa.func.regexp_replace(FOLDED_LABEL, "[0-9]+", "*", "g", type_=sa.Text)
"""The name shared by ranges of one kind: ``step *`` for ``step 7``."""


_ByAnchor = Mapping[str, Mapping[Task, TaskSteps]]
"""The steps of each task, by anchor."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of each task that has any; ``notes`` describe them, ``why_none`` explains missing steps.

    ``agreeing``: other anchors that find the same step time, in words.
    """

    of_task: Mapping[Task, TaskSteps]
    notes: tuple[str, ...] = ()
    why_none: tuple[str, ...] = ()
    agreeing: tuple[str, ...] = ()

    @classmethod
    def load(
        cls, session: Session, ranks: Sequence[RankedTask], name: str | None = None, anchor: str | None = None
    ) -> Steps:
        """Find the steps of the tasks in ``ranks``. Reads every NVTX range and launch.

        ``name`` is a regular expression for the names of the ranges (``domain:text``) that are steps, whatever their
        work; among nested ranges, the outermost count. The match of its group, if any, is the step's number. ``anchor``
        is one of `ANCHORS`, by default the first that most tasks have. Raises UsageError if ``name`` is not a regular
        expression, or is combined with another anchor than NVTX.
        """
        tasks = {rank.task: rank.rank for rank in ranks}
        reports = [report for report in session.reports if any(task.report == report.index for task in tasks)]
        if name is not None:
            if anchor not in (None, NVTX):
                raise UsageError(f"--step-range chooses NVTX ranges, and --steps-by {anchor} other work: give one")
            of_task: dict[Task, TaskSteps] = {}
            compute_named = partial(_steps, tasks, NameFilter(f"re:{name}"))
            for part in in_runs(session, reports, compute_named, tables.api_calls, "steps"):
                of_task |= part
            return cls._of(of_task, {}, tasks, [f"no NVTX range is called `{name}`"])._with_phases(session)

        def load_stored(question: str, compute: Callable[..., dict[int, Arrays]]) -> dict[str, dict[Task, TaskSteps]]:
            arrays = of_each_report(
                session, reports, question, partial(compute, tasks), table=tables.api_calls, activity="steps"
            )
            by_anchor: dict[str, dict[Task, TaskSteps]] = {}
            for report in reports:
                for steps in of_arrays(report.index, arrays[report.index], report.clock_offset):
                    by_anchor.setdefault(steps.anchor, {})[steps.task] = steps
            return by_anchor

        by_anchor = load_stored("steps", _stored_steps) if anchor in (None, NVTX) else {}
        if anchor != NVTX and len(by_anchor.get(NVTX, ())) < len(tasks):
            by_anchor |= load_stored("anchored steps", anchored_steps)
        return cls._select(by_anchor, tasks, anchor)._with_phases(session)

    def _with_phases(self, session: Session) -> Steps:
        of_task, note = with_phases(session, self.of_task)
        by_report = {report.index: pauses(session, report) for report in session.reports}
        of_task = {task: replace(steps, pauses=by_report[task.report]) for task, steps in of_task.items()}
        return replace(self, of_task=of_task, notes=(*self.notes, *([note] if note else [])))

    @classmethod
    def _select(cls, by_anchor: _ByAnchor, tasks: Mapping[Task, int], anchor: str | None) -> Steps:
        if anchor is not None:
            return cls._of(by_anchor.get(anchor, {}), {}, tasks, [_REASONS[anchor]])
        certain = {
            kind: {task: steps for task, steps in by_anchor[kind].items() if not steps.is_doubtful}
            for kind in ANCHORS
            if kind in by_anchor
        }
        # All ranks have the same anchor, because other steps are not comparable.
        anchor_of_all = max(certain, key=lambda kind: len(certain[kind]), default=NVTX)
        reasons = [_REASONS[NVTX], *(() if KERNELS in certain else (_REASONS[KERNELS],)), *_doubt_reasons(by_anchor)]
        others = {kind: steps for kind, steps in certain.items() if kind != anchor_of_all}
        return cls._of(certain.get(anchor_of_all, {}), others, tasks, reasons)

    @classmethod
    def _of(
        cls, steps: Mapping[Task, TaskSteps], others: _ByAnchor, tasks: Mapping[Task, int], reasons: Sequence[str]
    ) -> Steps:
        of_task = _numbered_alike(steps)
        why_none = tuple(_missing_notes(of_task, tasks, reasons))
        agreeing, notes = _compare_anchors(of_task, others)
        return cls(of_task, (*_anchor_notes(of_task), *notes, *why_none, *_outside_notes(of_task)), why_none, agreeing)

    @property
    def found_by(self) -> str:
        """The anchor, and its certainty: ``NVTX ranges `step *`, optimizer kernels (59) agree``."""
        steps = list(self.of_task.values())
        anchor = _NAMES[steps[0].anchor] + (f" `{steps[0].name}`" if steps[0].anchor == NVTX else "")
        agree, votes = min((task_steps.agree, task_steps.agree + task_steps.differ) for task_steps in steps)
        certainty = f", {agree} of {votes} operations agree" if votes else ""
        return f"{anchor}{certainty}" + "".join(f", {other} agree" for other in self.agreeing)

    def numbers_at(self, reports: Times, processes: Times, times: Times) -> Times:
        """Return the number of the step that contains each time, or ``NO_STEP``; all shapes are ``(m,)``."""
        numbers = np.full(len(times), NO_STEP)
        for task, steps in self.of_task.items():
            rows = np.flatnonzero((reports == task.report) & (processes == task.process))
            indices = steps.places_at(times[rows])
            numbers[rows] = np.where(indices >= 0, steps.numbers[indices], NO_STEP)
        return numbers


@dataclass(eq=False)
class _Candidate:
    """Consecutive ranges of one task, thread and name; ``total`` is the task's GPU time, ns.

    Ranges that are not ``is_chosen`` by the user only end the previous step.
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
        """The index of the first of `_WORDS` in the name."""
        return next((index for index, word in enumerate(_WORDS) if word.search(self.name)), len(_WORDS))

    @property
    def share(self) -> float | None:
        """The share of the task's GPU time launched in the ranges; ``None`` without GPU time."""
        return int(self.gpu.op_time[self.is_chosen].sum()) / self.total if self.total else None

    @property
    def time(self) -> int:
        """The total time of the ranges on the CPU, ns."""
        return int((self.ends - self.starts)[self.is_chosen].sum())

    def add(self, launch: Times, start: Times, end: Times) -> None:
        self.total += int((end - start).sum())
        index = np.searchsorted(self.starts, launch, side="right") - 1
        is_inside = (index >= 0) & (launch < self.ends[index])
        index, start, end = index[is_inside], start[is_inside], end[is_inside]
        np.add.at(self.gpu.op_count, index, 1)
        np.add.at(self.gpu.op_time, index, end - start)
        np.minimum.at(self.gpu.start, index, start)
        np.maximum.at(self.gpu.end, index, end)

    def steps(self) -> TaskSteps:
        chosen, gpu = self.is_chosen, without_holes(self.gpu)
        all_ranges = TaskSteps(self.task, self.name, self.numbers, self.starts, self.ends, gpu)
        on_gpu = np.zeros((2, len(all_ranges)), np.int64)
        on_gpu[:, gpu.op_count > 0] = all_ranges.spans()
        chosen_gpu = Projection(*(column[chosen] for column in (gpu.op_count, gpu.start, gpu.end, gpu.op_time)))
        return replace(
            all_ranges,
            numbers=self.numbers[chosen] if self.is_ascending else np.arange(int(chosen.sum())),
            starts=self.starts[chosen],
            ends=self.ends[chosen],
            gpu=chosen_gpu,
            outside=self.total - int(chosen_gpu.op_time.sum()),
            labels=[label for label, is_step in zip(self.labels, chosen.tolist(), strict=True) if is_step],
            on_gpu=None if chosen.all() else (on_gpu[0, chosen], on_gpu[1, chosen]),
        )


def _stored_steps(tasks: Collection[Task], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """Find the steps of each report without a user's name, to be stored with its columns."""
    steps = _steps(tasks, None, session, reports)
    return {
        report.index: to_arrays(
            [task_steps for task, task_steps in steps.items() if task.report == report.index], report.clock_offset
        )
        for report in reports
    }


def _steps(
    tasks: Collection[Task], name_filter: NameFilter | None, session: Session, reports: list[Report]
) -> dict[Task, TaskSteps]:
    """Return the steps of tasks in reports whose launches and GPU work can be joined at once."""
    indices = {report.index for report in reports}
    candidates = _candidates(session, [task for task in tasks if task.report in indices], name_filter)
    by_task: dict[Task, list[_Candidate]] = {}
    for candidate in candidates:
        by_task.setdefault(candidate.task, []).append(candidate)
    for task, batch in launched_work(session, {task.report for task in by_task}):
        for candidate in by_task.get(task, ()):
            candidate.add(**batch)
    return {task: candidate.steps() for task, candidate in _best(candidates, name_filter is None)}


def _candidates(session: Session, tasks: Collection[Task], name_filter: NameFilter | None) -> list[_Candidate]:
    """Return each task's candidates: the longest names on each thread, or the user's."""
    if not tasks or not session.count(tables.nvtx_ranges):
        return []
    kinds: set[tuple[Any, ...]] | None = None
    if name_filter is not None:
        is_closed, is_named = _is_closed(tasks), matches(FOLDED_LABEL, name_filter)
        templates = sa.select(_TEMPLATE).where(*is_closed, is_named).distinct()
        # Ranges whose names differ only in numbers also end a step.
        query = sa.select(*_range_columns(sa.literal(name_filter.pattern)), is_named.label("is_chosen"))
        ranges = session.arrays(query.where(*is_closed, _TEMPLATE.in_(templates)).order_by("start"))
    else:
        kinds = set(session.rows(_kinds_query(tasks)))
        if not kinds:
            return []
        ranges = session.arrays(_ranges_query(tasks, sorted({template for *_, template in kinds})))
    candidates = []
    for kind, rows in places_by(ranges[key] for key in ("report", "process", "thread", "template")).items():
        task = Task(kind[0], kind[1])
        if task in tasks and (kinds is None or kind in kinds):
            starts, ends, names = (ranges[key][rows] for key in ("start", "end", "name"))
            is_chosen = ranges["is_chosen"][rows].astype(bool) if name_filter is not None else np.ones(len(rows), bool)
            candidates.append(_candidate(task, kind[3], starts, ends, names.tolist(), is_chosen, name_filter))
    return [candidate for candidate in candidates if candidate is not None]


def _is_closed(tasks: Iterable[Task]) -> tuple[Condition, ...]:
    """Return conditions for the reports' NVTX ranges that ended on the thread that began them."""
    columns = tables.nvtx_ranges.c
    return (
        of_reports(columns.report, {task.report for task in tasks}),
        columns.end > columns.start,
        sa.func.coalesce(columns.end_thread, columns.thread) == columns.thread,
    )


def _range_columns(template: sa.ColumnElement[Any]) -> tuple[sa.ColumnElement[Any], ...]:
    columns = tables.nvtx_ranges.c
    times = (job_start(tables.nvtx_ranges).label("start"), job_end(tables.nvtx_ranges).label("end"))
    keys = (columns.report, columns.process, columns.thread, template.label("template"))
    return (*keys, *times, FOLDED_LABEL.label("name"))


def _kinds_query(tasks: Iterable[Task]) -> sa.Select[Any]:
    """Select the longest kinds of numbered ranges (report, process, thread and template) of each task.

    Ranges have a separate query, so that not all are in memory.
    """
    has_number = sa.func.regexp_matches(FOLDED_LABEL, "[0-9]", type_=sa.Boolean)
    ranges = sa.select(*_range_columns(_TEMPLATE)).where(*_is_closed(tasks), has_number).subquery("ranges")
    kind = (ranges.c.report, ranges.c.process, ranges.c.thread, ranges.c.template)
    time = sa.func.sum(ranges.c.end - ranges.c.start)
    position = sa.func.row_number().over(partition_by=kind[:2], order_by=time.desc())
    kinds = (
        sa.select(*kind, position.label("place"))
        .group_by(*kind)
        .having(sa.func.count(ranges.c.name.distinct()) >= FEWEST)
        .subquery("kinds")
    )
    return sa.select(*(kinds.c[column.name] for column in kind)).where(kinds.c.place <= _MAX_NAMES)


def _ranges_query(tasks: Iterable[Task], templates: Sequence[str]) -> sa.Select[Any]:
    # Comparing beginnings excludes most ranges, at less cost than templates.
    beginnings = sorted({template.partition("*")[0] for template in templates})
    may_be = sa.or_(*(sa.func.starts_with(LABEL, beginning) for beginning in beginnings))
    conditions = (*_is_closed(tasks), may_be, _TEMPLATE.in_(templates))
    return sa.select(*_range_columns(_TEMPLATE)).where(*conditions).order_by("start")


def _candidate(
    task: Task,
    name: str,
    starts: Times,
    ends: Times,
    names: Sequence[str],
    is_chosen: NDArray[np.bool_],
    name_filter: NameFilter | None,
) -> _Candidate | None:
    """Return the ranges of one name, by start, as a candidate, or ``None`` if they cannot be steps."""
    if name_filter is None:
        candidate = _Candidate(task, name, _numbers(names), starts, ends, names, is_chosen)
        is_plausible = candidate.word < len(_WORDS) or candidate.is_ascending
        return candidate if _follows(starts, ends).all() and is_plausible else None
    pattern = re.compile(name_filter.pattern, re.IGNORECASE if name_filter.ignore_case else 0)
    chosen = np.flatnonzero(is_chosen)
    chosen = chosen[_follows(starts[chosen], ends[chosen])]
    if not len(chosen):
        return None
    # Other ranges end a step only if they lie between steps.
    previous = np.searchsorted(starts[chosen], starts, side="right") - 1
    following = np.append(starts[chosen], np.iinfo(np.int64).max)[previous + 1]
    is_between = ~is_chosen & (previous >= 0) & (starts >= ends[chosen][np.maximum(previous, 0)]) & (ends <= following)
    rows = np.union1d(chosen, np.flatnonzero(is_between))
    rows = rows[_follows(starts[rows], ends[rows])]
    # The number is in the pattern's first group, if any, or in the name.
    matched = ((names[row], pattern.search(names[row])) for row in chosen.tolist())
    numbers = np.zeros(len(starts), np.int64)
    numbers[chosen] = _numbers([(match[1] or "") if match and pattern.groups else name for name, match in matched])
    labels = [names[row] for row in rows.tolist()]
    return _Candidate(task, name, numbers[rows], starts[rows], ends[rows], labels, is_chosen[rows])


def _follows(starts: Times, ends: Times) -> NDArray[np.bool_]:
    """Return which ranges, by start, begin after all previous ranges ended."""
    return np.concatenate(([True], starts[1:] >= np.maximum.accumulate(ends)[:-1]))


def _numbers(names: Sequence[str]) -> Times:
    """Return from each name the number that ascends from name to name (``epoch 1 step 7``: 7), else the first number.

    All are 0 if a name has no number.
    """
    numbers_of_names = ((whole_number(digits, _MAX_NUMBER) for digits in _NUMBER.findall(name)) for name in names)
    parts = [[number for number in numbers if number is not None] for numbers in numbers_of_names]
    width = min(map(len, parts))
    columns = np.array([part[:width] for part in parts], np.int64).reshape(len(parts), width)
    ascending = [index for index in range(columns.shape[1]) if (np.diff(columns[:, index]) > 0).all()]
    if not columns.shape[1]:
        return np.zeros(len(names), np.int64)
    return columns[:, ascending[0] if ascending else 0]


def _best(candidates: Sequence[_Candidate], is_free: bool) -> Iterator[tuple[Task, _Candidate]]:
    """Yield each task's best candidate, if any; ``is_free``: the user named no ranges."""
    by_task: dict[Task, list[_Candidate]] = {}
    for candidate in candidates:
        # If nothing was launched, only the words decide.
        is_sufficient = candidate.word < len(_WORDS) if candidate.share is None else candidate.share >= LEAST_COVERAGE
        if not is_free or (is_sufficient and len(candidate.starts) >= FEWEST):
            by_task.setdefault(candidate.task, []).append(candidate)
    for task, group in sorted(by_task.items()):
        # The outermost range has the largest share, or the longest time.
        yield task, min(group, key=lambda item: (item.word if is_free else 0, -(item.share or 0.0), -item.time))


def _numbered_alike(steps: Mapping[Task, TaskSteps]) -> Mapping[Task, TaskSteps]:
    """Return the steps, equally numbered if simultaneous on all ranks, unless names have numbers."""
    if not steps or any(task_steps.anchor == NVTX for task_steps in steps.values()):
        return steps
    first = next(iter(steps.values())).gpu
    middle = first.start + (first.end - first.start) // 2
    # A step is simultaneous with the first step that ends after its middle.
    shifts = {
        task: round(float(np.median(np.searchsorted(task_steps.gpu.end, middle) - np.arange(len(middle)))))
        for task, task_steps in steps.items()
    }
    largest = max(shifts.values())
    return {task: replace(item, numbers=item.numbers + largest - shifts[task]) for task, item in steps.items()}


def _anchor_notes(steps: Mapping[Task, TaskSteps]) -> Iterator[str]:
    kinds: dict[tuple[str, str], list[TaskSteps]] = {}
    for task_steps in steps.values():
        kinds.setdefault((task_steps.anchor, task_steps.name), []).append(task_steps)
    for (anchor, name), group in kinds.items():
        number = f"{_range(map(len, group))}{' a rank' if len(steps) > 1 else ''}"
        if anchor == NVTX:
            yield f"steps are the NVTX ranges `{name}` ({number}): work belongs to the step that launched it"
            continue
        agree, votes = min((task_steps.agree, task_steps.agree + task_steps.differ) for task_steps in group)
        certainty = f"; {agree} of {votes} operations that repeat once per step agree" if votes else ""
        yield f"steps are found in the GPU's work ({number}): {_MARKS[anchor].format(name)}{certainty}"


def _compare_anchors(steps: Mapping[Task, TaskSteps], others: _ByAnchor) -> tuple[tuple[str, ...], list[str]]:
    """Return the anchors that find the same step time for the same tasks, and notes on other anchors."""
    agreeing, notes = [], []
    for kind, other_steps in others.items():
        pairs = [(steps[task], task_steps) for task, task_steps in other_steps.items() if task in steps]
        if pairs:
            median, other = (float(np.median([item.median for item in side])) for side in zip(*pairs, strict=True))
            number = _range(len(task_steps) for _, task_steps in pairs)
            if abs(other - median) <= _TOLERANCE * median:
                agreeing.append(f"{_NAMES[kind]} ({number})")
                continue
            times = [format_value(Unit.DURATION, time) for time in (other, median)]
            notes.append(
                f"{_NAMES[kind]} say otherwise: {number} steps with a median of {times[0]} instead of {times[1]}; "
                f"--steps-by {kind} takes these"
            )
    if agreeing:
        notes.append(f"the same step time is found by {' and by '.join(agreeing)}")
    return tuple(agreeing), notes


def _range(counts: Iterable[int]) -> str:
    numbers = sorted(set(counts))
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def _doubt_reasons(by_anchor: _ByAnchor) -> Iterator[str]:
    for kind in ANCHORS:
        doubts = [task_steps for task_steps in by_anchor.get(kind, {}).values() if task_steps.is_doubtful]
        if doubts:
            size = _range(int(np.median(task_steps.gpu.op_count)) for task_steps in doubts)
            yield (
                f"{size} operations come back {_range(map(len, doubts))} times, but nothing in them tells a step from "
                f"a layer (no copy to the host, loss or optimizer): --steps-by {kind} takes them as steps"
            )
            return


def _missing_notes(steps: Mapping[Task, TaskSteps], tasks: Mapping[Task, int], reasons: Sequence[str]) -> Iterator[str]:
    without = sorted(rank for task, rank in tasks.items() if task not in steps)
    if without:
        whose = "" if not steps else f" of rank{'s' if len(without) > 1 else ''} {few_numbers(without)}"
        yield f"no steps{whose}: {'; '.join(reasons)}"


def _outside_notes(steps: Mapping[Task, TaskSteps]) -> Iterator[str]:
    outside = sum(task_steps.outside for task_steps in steps.values())
    if outside:
        total = outside + sum(int(task_steps.gpu.op_time.sum()) for task_steps in steps.values())
        time = format_value(Unit.DURATION, outside)
        is_cut = all(task_steps.anchor != NVTX for task_steps in steps.values())
        reason = ", where the capture starts or ends with no whole step" if is_cut else ""
        yield f"{time} of GPU work, {100 * outside / total:.1f} % of all, was launched outside of steps{reason}"
