"""Training steps: NVTX ranges or other work that divides a task's run into repetitions (docs/ranks.md#steps).

The CPU runs ahead of the GPU, so a step has two spans: its range on the CPU, and the time from the first to the last
GPU operation launched in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nsystui.base.anchors import ANCHORS, COLLECTIVES, GRAPH, KERNELS, NVTX, OPTIMIZER
from nsystui.base.answer import Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import NameFilter, Task
from nsystui.base.text import counted, ranks_named
from nsystui.base.units import format_value
from nsystui.exports.canonical import API_CALLS
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.data_notes import lack
from nsystui.questions.queries.derived import in_runs, of_each_report
from nsystui.questions.queries.pauses import unseen
from nsystui.questions.queries.tasks import GPU_TABLES, RankedTask
from nsystui.questions.steps.anchors import anchored_steps
from nsystui.questions.steps.phases import with_phases
from nsystui.questions.steps.ranges import named_steps, stored_steps
from nsystui.questions.steps.task_steps import FEWEST, NO_STEP, TaskSteps, of_arrays
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.session import Session

_NAMES = {
    NVTX: "NVTX ranges", OPTIMIZER: "optimizer kernels", COLLECTIVES: "collectives",
    GRAPH: "launches of one CUDA graph", KERNELS: "other work that repeats once per step",
}  # fmt: skip
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
        "no NVTX ranges named as steps, such as `step 7` or `train_step`, launch most of the GPU's work (--step-range "
        "REGEX selects the ranges that are steps)"
    ),
    **{kind: f"no {_NAMES[kind]} at regular distances in the GPU's work" for kind in (OPTIMIZER, COLLECTIVES, GRAPH)},
    KERNELS: "the GPU's work does not repeat regularly",
}

_ByAnchor = Mapping[str, Mapping[Task, TaskSteps]]


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
            compute_named = partial(named_steps, tasks, NameFilter(f"re:{name}"))
            for part in in_runs(session, reports, compute_named, tables.api_calls, "steps"):
                of_task |= part
            return cls._of(of_task, {}, tasks, [f"no NVTX range is called `{name}`"])._with_phases(session)

        def load_stored(question: str, compute: Callable[..., dict[int, Arrays]]) -> Iterator[TaskSteps]:
            arrays = of_each_report(
                session, reports, question, partial(compute, tasks), table=tables.api_calls, activity="steps"
            )
            for report in reports:
                yield from of_arrays(report.index, arrays[report.index], report.clock_offset)

        by_anchor: dict[str, dict[Task, TaskSteps]] = {}
        if anchor in (None, NVTX):
            roles = {rank.task: rank.role for rank in ranks}
            by_anchor[NVTX] = _of_one_name(load_stored("steps", stored_steps), roles)
        if anchor != NVTX and len(_certain(by_anchor.get(NVTX, {}))) < len(tasks):
            for steps in load_stored("anchored steps", anchored_steps):
                by_anchor.setdefault(steps.anchor, {})[steps.task] = steps
        return cls._select(session, by_anchor, tasks, anchor)._with_phases(session)

    def _with_phases(self, session: Session) -> Steps:
        of_task, note = with_phases(session, self.of_task)
        reports = {report.index: report for report in session.reports}
        of_task = {
            task: replace(steps, pauses=unseen(session, reports[task.report], task.process))
            for task, steps in of_task.items()
        }
        return replace(self, of_task=of_task, notes=(*self.notes, *([note] if note else [])))

    @classmethod
    def _select(cls, session: Session, by_anchor: _ByAnchor, tasks: Mapping[Task, int], anchor: str | None) -> Steps:
        if anchor is not None:
            return cls._of(by_anchor.get(anchor, {}), {}, tasks, [_REASONS[anchor]])
        certain = {kind: _certain(by_anchor[kind]) for kind in ANCHORS if kind in by_anchor}
        # All ranks have the same anchor, because other steps are not comparable.
        anchor_of_all = max(certain, key=lambda kind: len(certain[kind]), default=NVTX)
        others = {kind: steps for kind, steps in certain.items() if kind != anchor_of_all}
        steps = certain.get(anchor_of_all, {})
        reasons = [_REASONS[NVTX], *_reasons(session, by_anchor, tasks.keys() - steps.keys())]
        return cls._of(steps, others, tasks, reasons)

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
        certainty = f", {counted(agree, 'operation', 'agree', votes)}" if votes else ""
        return f"{anchor}{certainty}" + "".join(f", {other} agree" for other in self.agreeing)

    def numbers_at(self, reports: Times, processes: Times, times: Times) -> Times:
        """Return the number of the step that contains each time, or ``NO_STEP``; all shapes are ``(m,)``."""
        numbers = np.full(len(times), NO_STEP)
        for task, steps in self.of_task.items():
            rows = np.flatnonzero((reports == task.report) & (processes == task.process))
            numbers[rows] = steps.numbers_at(times[rows])
        return numbers


def _certain(steps: Mapping[Task, TaskSteps]) -> dict[Task, TaskSteps]:
    return {task: task_steps for task, task_steps in steps.items() if not task_steps.is_doubtful}


def _of_one_name(steps: Iterable[TaskSteps], roles: Mapping[Task, str | None]) -> dict[Task, TaskSteps]:
    """Return each task's steps of the name that most tasks of its role have, else its numbered or doubtful steps."""
    chosen, by_role = dict[Task, TaskSteps](), dict[str | None, dict[str, dict[Task, TaskSteps]]]()
    for task_steps in steps:
        if not task_steps.is_doubtful:
            by_name = by_role.setdefault(roles.get(task_steps.task), {})
            by_name.setdefault(task_steps.name, {})[task_steps.task] = task_steps
        if task_steps.is_doubtful or len(set(task_steps.labels)) >= FEWEST:
            chosen.setdefault(task_steps.task, task_steps)
    for by_name in by_role.values():
        chosen |= sorted(by_name.values(), key=len, reverse=True)[0]
    return chosen


def _numbered_alike(steps: Mapping[Task, TaskSteps]) -> Mapping[Task, TaskSteps]:
    """Return the steps, equally numbered if simultaneous on all ranks, unless names have numbers."""
    if len(names := {item.name for item in steps.values()}) > 1:
        groups = ({task: item for task, item in steps.items() if item.name == name} for name in sorted(names))
        return {task: item for group in groups for task, item in _numbered_alike(group).items()}
    if not steps or any(re.search("[0-9]", label) for item in steps.values() for label in item.labels[:1]):
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
        words = "operation that repeats once per step agrees"
        words = words if votes == 1 else "operations that repeat once per step agree"
        certainty = f"; {agree} of {votes} {words}" if votes else ""
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


def _reasons(session: Session, by_anchor: _ByAnchor, tasks: Collection[Task]) -> Iterator[str]:
    of_tasks = {kind: [item for task, item in by_anchor.get(kind, {}).items() if task in tasks] for kind in ANCHORS}
    for task_steps in [item for item in of_tasks.pop(NVTX) if item.is_doubtful][:1]:
        yield f"the likeliest are `{task_steps.name}` ({len(task_steps):,}): --steps-by nvtx takes them as steps"
    for kind, group in of_tasks.items():
        doubts = [item for item in group if item.is_doubtful]
        if doubts:
            size = _range(int(np.median(task_steps.gpu.op_count)) for task_steps in doubts)
            yield (
                f"{'1 operation comes' if size == '1' else f'{size} operations come'} back {_range(map(len, doubts))} "
                "times, but nothing distinguishes a step from a layer (no copy to the host, loss or optimizer): "
                f"--steps-by {kind} takes them as steps"
            )
            return
    if not any(of_tasks.values()):
        reports = [report for report in session.reports if any(task.report == report.index for task in tasks)]
        has_work = any(report.count(table) for report in reports for table in GPU_TABLES)
        needed = API_CALLS if has_work else GPU_TABLES[0]
        is_recorded = any(report.count(needed) for report in reports)
        yield _REASONS[KERNELS] if is_recorded else lack(session, needed, reports)


def _missing_notes(steps: Mapping[Task, TaskSteps], tasks: Mapping[Task, int], reasons: Sequence[str]) -> Iterator[str]:
    without = sorted(rank for task, rank in tasks.items() if task not in steps)
    if without:
        whose = "" if not steps else f" of {ranks_named(without)}"
        yield f"no steps{whose}: {'; '.join(reasons)}"


def _outside_notes(steps: Mapping[Task, TaskSteps]) -> Iterator[str]:
    outside = sum(task_steps.outside for task_steps in steps.values())
    if outside:
        total = outside + sum(int(task_steps.gpu.op_time.sum()) for task_steps in steps.values())
        time = format_value(Unit.DURATION, outside)
        is_cut = all(task_steps.anchor != NVTX for task_steps in steps.values())
        reason = ", where the capture starts or ends with no whole step" if is_cut else ""
        yield f"{time} of GPU work, {100 * outside / total:.1f} % of all, was launched outside of steps{reason}"
