"""The steps of each rank: times, and tables by rank, across ranks and one by one (docs/ranks.md#steps).

On the GPU a step lasts from its first operation to the start of the next step, without holes; the last step to the end
of its last operation. On the CPU it is the NVTX range, which runs ahead of the GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from nsystui.base.answer import DURATION, FILES_ONLY, RANK, START, STEP, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.types import Flags, Floats, Ints
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.steps.phases import PHASES
from nsystui.questions.steps.task_steps import NO_PHASE, TaskSteps
from nsystui.questions.steps.times import Steps

SLOW = 1.5
"""A step is slow above this multiple of the median of its rank, or of its rank's steps of the same phase."""

NO_GAP = -1


@dataclass(frozen=True, eq=False)
class StepTimes:
    """The n steps of a task; arrays of shape ``(n,)``, job time and durations in ns.

    ``start``, ``duration``: on the GPU if the steps launched something, else on the CPU (``on_gpu``). ``phases``: codes
    of `steps.phases.PHASES`. ``gap``: from the end of a step's last operation to the first of the next step, 0 if they
    overlap; `NO_GAP` for the last step.
    """

    task: Task
    numbers: Times
    start: Times
    duration: Times
    cpu_start: Times
    cpu_duration: Times
    op_time: Times
    phases: Times
    gap: Times
    on_gpu: bool

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def of(cls, steps: TaskSteps) -> StepTimes:
        """Return the times of a task's steps; if some launched GPU work, leave out the other steps."""
        cpu = steps.ends - steps.starts
        has_work = steps.gpu.op_count > 0
        if not has_work.any():
            zero, gap = np.zeros(len(steps), np.int64), np.append(steps.starts[1:] - steps.ends[:-1], NO_GAP)
            times = (steps.starts, cpu, steps.starts, cpu, zero, steps.phases, gap)
            return cls(steps.task, steps.numbers, *times, on_gpu=False)
        start, end = steps.spans()
        arrays = (steps.numbers, steps.starts, cpu, steps.gpu.op_time, steps.phases)
        numbers, cpu_start, cpu, op_time, phases = (values[has_work] for values in arrays)
        first, last = steps.gpu.start[has_work], steps.gpu.end[has_work]
        work = np.where(start[1:] == end[:-1], first[1:], end[:-1])  # ranges that are not steps may lie between
        gap = np.append(np.maximum(work - last[:-1], 0), NO_GAP)
        return cls(steps.task, numbers, start, end - start, cpu_start, cpu, op_time, phases, gap, on_gpu=True)

    def within(self, window: Window | None) -> StepTimes:
        """Return the steps that begin in a window, or the window's step."""
        return self if window is None else self.at(begin_in(window, self.task.report, self.start, self.numbers))

    def at(self, is_selected: Flags) -> StepTimes:
        """Return the steps at a mask, shape ``(n,)``."""
        names = ("numbers", "start", "duration", "cpu_start", "cpu_duration", "op_time", "phases", "gap")
        return StepTimes(self.task, **{name: getattr(self, name)[is_selected] for name in names}, on_gpu=self.on_gpu)

    @property
    def median(self) -> float:
        """The median of all steps, ns; NaN without steps."""
        return float(np.median(self.duration))

    @property
    def has_phases(self) -> bool:
        return bool((self.phases != NO_PHASE).any())

    @property
    def typical(self) -> Floats:
        """The median duration of each step's phase, ns."""
        return medians_of_phases(self.duration, self.phases)

    @property
    def is_slow(self) -> Flags:
        return self.duration > SLOW * self.typical

    @property
    def first_steady(self) -> int:
        """The index of the first step that is not slow."""
        return int(np.argmin(self.is_slow))

    def window(self, index: int) -> Window:
        """Return the span of a step, ns."""
        start = int(self.start[index])
        return Window(start, start + max(int(self.duration[index]), 1))


def begin_in(window: Window, report: int, starts: Times, numbers: Times) -> Flags:
    """Return which steps begin in ``window``, or are the step that it has in their report."""
    if window.step is None:
        return (starts >= window.start) & (starts < window.end)
    has_step = not window.spans or report in {number for number, *_ in window.spans}
    return numbers == window.step if has_step else np.zeros(len(numbers), bool)


def medians_of_phases(times: Ints, phases: Ints) -> Floats:
    """Return the median time of each step's phase, shape ``(n,)``."""
    medians = np.zeros(len(times))
    for phase in np.unique(phases).tolist():
        medians[phases == phase] = np.median(times[phases == phase])
    return medians


@dataclass(frozen=True)
class StepFigures:
    """Key figures of steps, ns; ``cv`` (standard deviation / mean) in percent, missing for one step."""

    count: int
    median: float
    p5: float
    p95: float
    least: int
    most: int
    cv: float | None
    slow: int
    gap_p50: float | None
    gap_p90: float | None


def figures(times: StepTimes) -> StepFigures | None:
    """Return the key figures of a task's steps, if any."""
    return figures_of_all([times]) if len(times) else None


def figures_of_all(all_times: Sequence[StepTimes]) -> StepFigures:
    """Return the key figures of tasks' steps; slow steps are slow compared with their rank."""
    values = np.concatenate([times.duration for times in all_times])
    low, high = np.percentile(values, [5, 95])
    gaps = np.concatenate([times.gap[times.gap != NO_GAP] for times in all_times])
    gap_p50, gap_p90 = np.percentile(gaps, [50, 90]).tolist() if len(gaps) else (None, None)
    return StepFigures(
        count=len(values), median=float(np.median(values)), p5=float(low), p95=float(high), least=int(values.min()),
        most=int(values.max()), slow=sum(int(times.is_slow.sum()) for times in all_times),
        cv=100.0 * float(values.std(ddof=1) / values.mean()) if len(values) > 1 and values.mean() else None,
        gap_p50=gap_p50, gap_p90=gap_p90,
    )  # fmt: skip


def step_times(steps: Steps, window: Window | None = None) -> Mapping[Task, StepTimes]:
    """Return the step times of every task with steps in ``window``."""
    times_by_task = {task: StepTimes.of(task_steps).within(window) for task, task_steps in steps.of_task.items()}
    return {task: times for task, times in times_by_task.items() if len(times)}


def window_of_step(steps: Steps, number: int, task: Task | None = None) -> Window:
    """Return the time of a step on all ranks whose steps have the name of the steps of ``task``, if given."""
    names: dict[Task | None, str] = {item: task_steps.name for item, task_steps in steps.of_task.items()}
    edges = defaultdict[int, list[int]](list)
    for times in (times.at(times.numbers == number) for times in step_times(steps).values()):
        if len(times) and names.get(task) in (None, names[times.task]):
            window = times.window(0)
            edges[times.task.report] += window.start, window.end
    spans = tuple((report, min(times), max(times)) for report, times in sorted(edges.items()))
    return Window(min(map(min, edges.values())), max(map(max, edges.values())), number, spans)


_FIGURES = (
    Column("count", header="Steps", label="steps", unit=Unit.COUNT),
    Column("median", header="Median (ns)", label="median", unit=Unit.DURATION, decimals=0),
    Column("p5", header="P5 (ns)", label="p5", unit=Unit.DURATION, decimals=0, importance=2),
    Column("p95", header="P95 (ns)", label="p95", unit=Unit.DURATION, decimals=0, importance=1),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=3),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=1),
    Column("cv", header="CV (%)", label="CV %", unit=Unit.PERCENT, decimals=2, importance=1),
    Column("slow", header="Slow Steps", label="slow", unit=Unit.COUNT),
    Column("gap_p50", header="Gap P50 (ns)", label="gap p50", unit=Unit.DURATION, decimals=0, importance=4),
    Column("gap_p90", header="Gap P90 (ns)", label="gap p90", unit=Unit.DURATION, decimals=0, importance=3),
)
BY_RANK_COLUMNS = (
    Column("rank", header="Rank", label="rank"),
    *_FIGURES,
    Column("first", header="First Step (ns)", label="first", unit=Unit.DURATION, compared="median", importance=4),
    Column("measured", header="Measured", label="measured on", importance=5),
    Column("anchor", header="Anchor", label="anchor", importance=3),
)
ACROSS_COLUMNS = (
    STEP, START.with_importance(2), Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=3),
    Column("duration", header="Median over Ranks (ns)", label="median", unit=Unit.DURATION, compared="min", decimals=0),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=2),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION),
    Column("spread", header="Spread (ns)", label="spread", unit=Unit.DURATION, compared="min", importance=1),
    Column("slowest", header="Slowest Rank", label="slowest rank", unit=Unit.NUMBER, importance=1),
    Column("ratio", header="Of Median Step (%)", label="of median", unit=Unit.PERCENT, decimals=1, importance=1),
    Column("slow", header="Slow", label="slow", importance=1),
)  # fmt: skip
_PHASE = Column("phase", header="Phase", label="phase", importance=FILES_ONLY)


def phase_column(phases: Iterable[Times]) -> Column:
    """Return the column of phases, for files alone if no step has a phase."""
    return _PHASE.with_importance(1 if any((codes != NO_PHASE).any() for codes in phases) else FILES_ONLY)


def phase_words(phases: Times) -> list[str | None]:
    """Return the cells of the phase column."""
    return [None if code == NO_PHASE else PHASES[code] for code in phases.tolist()]


STEP_COLUMNS = (
    RANK, STEP, _PHASE, START, DURATION,
    Column("ratio", header="Of Median (%)", label="of median", unit=Unit.PERCENT, decimals=1, importance=1),
    Column("slow", header="Slow", label="slow", importance=1),
    Column("cpu_start", header="CPU Start (ns)", label="CPU start", unit=Unit.TIME, importance=3),
    Column("cpu_duration", header="CPU Duration (ns)", label="on CPU", unit=Unit.DURATION,
        compared="duration").with_importance(2),
    Column("op_time", header="GPU Work (ns)", label="GPU work", unit=Unit.DURATION, compared="duration", importance=3),
)  # fmt: skip

_SLOW = "slow"


def steps_by_rank(ranks: Sequence[RankedTask], steps: Steps, window: Window | None = None) -> TableAnswer:
    """Tabulate the ranks with steps in ``window``, after a row for several ranks together (``rank`` is ``all``)."""
    times_by_task = _times(ranks, steps, window)
    rows: list[Row] = []
    for item in ranks:
        times = times_by_task.get(item.task)
        if times is not None:
            last_cells = (int(times.duration[0]), "GPU" if times.on_gpu else "CPU", steps.of_task[item.task].name)
            rows.append((str(item.rank), *astuple(figures_of_all([times])), *last_cells))
    if len(rows) > 1:
        rows.insert(0, ("all", *astuple(figures_of_all(list(times_by_task.values()))), None, None, None))
    return TableAnswer("steps", BY_RANK_COLUMNS, rows, max(len(rows), len(steps.of_task)), _notes(steps, times_by_task))


def _times(ranks: Sequence[RankedTask], steps: Steps, window: Window | None) -> dict[Task, StepTimes]:
    times_by_task = step_times(steps, window)
    return {item.task: times_by_task[item.task] for item in ranks if item.task in times_by_task}


def _notes(steps: Steps, times: Mapping[Task, StepTimes]) -> tuple[str, ...]:
    notes = [*steps.notes]
    if any(item.on_gpu for item in times.values()):
        notes.append(
            "a step begins once its range has begun and the GPU work before has ended; it lasts to the next one"
        )
    if any(not item.on_gpu for item in times.values()):
        notes.append("if the launches of a step are unknown, its CPU time is shown")
    if times:
        of_phase = " of the steps of the same phase" if any(item.has_phases for item in times.values()) else ""
        notes.append(f"slow: more than {SLOW} times the median{of_phase}")
    return tuple(notes)


def steps_across_ranks(ranks: Sequence[RankedTask], steps: Steps, window: Window | None = None) -> TableAnswer:
    """Tabulate the step numbers: durations on these ranks, and the slowest rank.

    ``start`` is the earliest. A step is slow if its median over the ranks is more than 1.5 times the median of all
    steps of its phase.
    """
    times_by_task = _times(ranks, steps, window)
    groups: dict[int, list[tuple[int, int, int]]] = {}  # duration, rank, start
    phases: dict[int, int] = {}
    for item in ranks:
        times = times_by_task.get(item.task)
        if times is not None:
            columns = (times.numbers.tolist(), times.start.tolist(), times.duration.tolist(), times.phases.tolist())
            for number, start, duration, phase in zip(*columns, strict=True):
                groups.setdefault(number, []).append((duration, item.rank, start))
                phases.setdefault(number, phase)
    medians = {number: float(np.median([duration for duration, *_ in group])) for number, group in groups.items()}
    typical = medians_of_phases(np.array(list(medians.values())), np.array([phases[number] for number in medians]))
    typical_by_number = dict(zip(medians, typical.tolist(), strict=True))
    rows: list[Row] = []
    for number, group in sorted(groups.items()):
        (least, *_), (most, slowest, _), usual, median = (
            min(group),
            max(group),
            typical_by_number[number],
            medians[number],
        )
        figures = median, least, most, most - least, slowest if len(group) > 1 else None
        share, slow = 100.0 * median / usual if usual else None, _SLOW if median > SLOW * usual else None
        rows.append((number, min(start for *_, start in group), len(group), *figures, share, slow))
    total = len({number for task_steps in steps.of_task.values() for number in task_steps.numbers.tolist()})
    return TableAnswer("steps-across", ACROSS_COLUMNS, rows, total, _notes(steps, times_by_task))


def every_step(ranks: Sequence[RankedTask], steps: Steps, window: Window | None = None) -> TableAnswer:
    """Tabulate each step of these ranks, by rank and time."""
    times_by_task = _times(ranks, steps, window)
    rows: list[Row] = []
    for item in ranks:
        times = times_by_task.get(item.task)
        if times is None:
            continue
        typical = times.typical
        ratio = np.divide(100.0 * times.duration, typical, out=np.full(len(times), np.nan), where=typical > 0)
        cells = (times.start, times.duration, ratio, times.is_slow, times.cpu_start, times.cpu_duration, times.op_time)
        for number, phase, *values, is_slow, cpu_start, cpu, op_time in zip(
            times.numbers.tolist(), phase_words(times.phases), *(column.tolist() for column in cells), strict=True
        ):
            rows.append((item.rank, number, phase, *values, _SLOW if is_slow else None, cpu_start, cpu, op_time))
    phase_header = phase_column(item.phases for item in times_by_task.values())
    columns = tuple(phase_header if column is _PHASE else column for column in STEP_COLUMNS)
    return TableAnswer("every-step", columns, rows, sum(map(len, steps.of_task.values())), _notes(steps, times_by_task))
