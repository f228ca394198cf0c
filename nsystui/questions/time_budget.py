"""The budget of time: where the time of each GPU went, in parts that add up to all of it.

See docs/numbers.md#budget. Busy time is compute, exposed NCCL, memory operations that nothing hides, and whole CUDA
graphs, as in `Breakdown`. Idle time is start-up, long gaps, short gaps and the tail:

* start-up: idle before the *steady state*, which begins with the first step that is not slow, or, without steps, where
  the GPU first works at least half as much as on average;
* tail: idle after the last operation of the GPU;
* gaps: idle in between, long ones of `LONG_GAP` or more apart from short ones.

Time before a rank's capture began, or after it ended, is not idle: nothing was recorded then.

`idle_causes` gives the causes of start-up, long gaps and tail: see there.

Start-up and tail belong to the capture, not to the selection: a window in the middle of the job has neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import DEVICE, RANK, Column, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.algebra.interval_blocks import IntervalBlocks
from nsystui.questions.algebra.intervals import EMPTY, Intervals, merge
from nsystui.questions.gpu.device_time import Device, DeviceIntervals
from nsystui.questions.job import Job
from nsystui.questions.ranks.steps import StepTimes, step_times
from nsystui.questions.time_window import extents

LONG_GAP = 1_000_000
"""The shortest gap that is long, ns."""

_FEWEST_STEPS = 3
_SPANS = 100


@dataclass(frozen=True)
class Budget:
    """The time of a window by part, ns: of one GPU, or the sum over several. The parts add up to ``time`` exactly."""

    compute: int = 0
    exposed_nccl: int = 0
    memory: int = 0
    graph: int = 0
    startup: int = 0
    long_gaps: int = 0
    short_gaps: int = 0
    tail: int = 0
    unrecorded: int = 0

    @property
    def idle(self) -> int:
        return self.startup + self.long_gaps + self.short_gaps + self.tail

    @property
    def time(self) -> int:
        return self.compute + self.exposed_nccl + self.memory + self.graph + self.idle + self.unrecorded

    def __add__(self, other: Budget) -> Budget:
        return Budget(**{part: getattr(self, part) + getattr(other, part) for part in PARTS})


PARTS = ("compute", "exposed_nccl", "memory", "graph", "startup", "long_gaps", "short_gaps", "tail", "unrecorded")


@dataclass(frozen=True, eq=False)
class DeviceBudget:
    """The budget of a GPU, and where its steady state begins (job time, ns). ``window``: as far as it was recorded.

    ``startup``, ``long_gaps`` and ``after`` (the tail) are when it was idle then, cut at the edges of these parts.
    """

    device: Device
    window: Window
    steady: int
    budget: Budget
    startup: Intervals
    long_gaps: Intervals
    after: Intervals


def device_budgets(
    job: Job, selection: Selection, step_name: str | None = None, steady: Mapping[Task, Window] | None = None
) -> list[DeviceBudget]:
    """The budget of each selected GPU that worked, over the selection's window (else the job's extent).

    With ``steady``: of the GPUs of its tasks, each over its window, all of which is in the steady state.
    """
    chosen = selection.with_name(None)
    windows = extents(job.session, chosen)
    whole = extents(job.session, chosen.with_window(None))
    steps = step_times(job.steps(step_name))
    found = []
    for one in job.gpus(chosen):
        task = one.device.task.task
        worked = one.worked(whole[task.report])
        if worked is None or (steady is not None and task not in steady):
            continue
        if steady is not None:
            found.append(_budget(one, worked, steady[task].start, steady[task]))
        else:
            found.append(_budget(one, worked, steady_start(one, worked, steps.get(task)), windows[task.report]))
    return found


def steady_start(device: DeviceIntervals, worked: Window, steps: StepTimes | None) -> int:
    """The time at which the steady state of a GPU begins. ``worked``: from its first operation to its last."""
    if steps is not None and steps.on_gpu and len(steps) >= _FEWEST_STEPS:
        return max(int(steps.start[steps.first_steady]), worked.start)
    shares = np.nan_to_num(device.busy(worked, _SPANS))
    first = int(np.argmax(shares >= shares.mean() / 2))
    return worked.start + first * (worked.end - worked.start) // _SPANS


def _budget(device: DeviceIntervals, worked: Window, steady: int, window: Window) -> DeviceBudget:
    spent = device.breakdown(window)
    start = min(max(window.start, device.recorded.start), window.end)
    window = Window(start, max(min(window.end, device.recorded.end), start))
    begin = min(max(steady, window.start), window.end)
    last = min(max(worked.end, begin), window.end)
    startup = begin - window.start - device.busy_in(Window(window.start, begin))
    tail = window.end - last
    long_gaps = _long(device.gaps(worked), begin, last)
    budget = Budget(
        compute=spent.kernels,
        exposed_nccl=spent.exposed_nccl,
        memory=spent.memory_only,
        graph=spent.graph_only,
        startup=startup,
        long_gaps=long_gaps.length,
        short_gaps=spent.idle - (spent.time - spent.recorded) - startup - tail - long_gaps.length,
        tail=tail,
        unrecorded=spent.time - spent.recorded,
    )
    at_startup, after = (device.idle(Window(*edges)) for edges in ((window.start, begin), (last, window.end)))
    return DeviceBudget(device.device, window, steady, budget, at_startup, long_gaps, after)


def _long(gaps: IntervalBlocks, begin: int, end: int) -> Intervals:
    """The long gaps between two times. A gap that is cut there is as long as it was."""
    found = []
    for part in gaps.parts():
        is_long = part.ends - part.starts >= LONG_GAP
        found.append(Intervals(part.starts[is_long], part.ends[is_long]).clip(begin, end))
    return merge(*found) if found else EMPTY


def in_sum(budgets: Iterable[DeviceBudget]) -> Budget:
    """The sum over GPUs."""
    return sum((one.budget for one in budgets), Budget())


def steady_window(budgets: Sequence[DeviceBudget]) -> Window | None:
    """The time in which all GPUs are in their steady state, to the end of the window; ``None`` where it is empty."""
    if not budgets:
        return None
    start, end = max(one.steady for one in budgets), max(one.window.end for one in budgets)
    return Window(start, end) if start < end else None


_LABELS = {
    "compute": ("Compute", "compute"),
    "exposed_nccl": ("Exposed NCCL", "exposed NCCL"),
    "memory": ("Memory", "memory"),
    "graph": ("Graphs", "graphs"),
    "startup": ("Start-up", "start-up"),
    "long_gaps": ("Long Gaps", "long gaps"),
    "short_gaps": ("Short Gaps", "short gaps"),
    "tail": ("Tail", "tail"),
    "unrecorded": ("Not Recorded", "not recorded"),
}
COLUMNS = (
    RANK,
    DEVICE.with_importance(2),
    *(
        Column(f"{part}_percent", header=f"{header} (%)", label=f"{label} %", unit=Unit.PERCENT, decimals=2)
        for part, (header, label) in _LABELS.items()
    ),
    Column("steady", header="Steady From (ns)", label="steady from", unit=Unit.TIME, importance=3),
    *(
        Column(part, header=f"{header} (ns)", label=label, unit=Unit.DURATION, importance=9)
        for part, (header, label) in _LABELS.items()
    ),
)


def budget_table(budgets: Iterable[DeviceBudget]) -> TableAnswer:
    """One row for each GPU; the percentages of a row add up to 100."""
    rows: list[Row] = []
    for one in budgets:
        times = [getattr(one.budget, part) for part in PARTS]
        shares = [100.0 * time / one.budget.time if one.budget.time else None for time in times]
        rows.append((one.device.task.rank, one.device.device, *shares, one.steady, *times))
    return TableAnswer("budget", COLUMNS, rows, len(rows))


def by_task(budgets: Iterable[DeviceBudget]) -> Mapping[Task, Budget]:
    """The sum over the GPUs of each task."""
    found: dict[Task, Budget] = {}
    for one in budgets:
        task = one.device.task.task
        found[task] = found.get(task, Budget()) + one.budget
    return found
