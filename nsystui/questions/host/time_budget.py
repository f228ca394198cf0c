"""The budget of time: where the time of each GPU went, in parts that add up, and what the CPU did while it was idle.

See docs/numbers.md#budget. The time of each of the longest spans is split by cause (`host.causes`), all with the NVTX
range of that thread around the middle of the span, or where there is none the next one; the profiler's own work is a
cause of its own. Time of which nothing is recorded is located by that range, or else by the call beside it; without
either, and in the spans that are not among the longest, it is unexplained. A number in the name of a range is ``*``.

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

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from nsystui.base.answer import DEVICE, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import shorten
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import EMPTY, Intervals, subtract
from nsystui.questions.gpu.device_time import Device, DeviceIntervals
from nsystui.questions.gpu.profiler_overhead import profiler_overhead
from nsystui.questions.host.causes import NOTHING
from nsystui.questions.host.causes import Cause as HostCause
from nsystui.questions.host.host_work import CpuSpan, HostWork, host_work
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.time_window import extents
from nsystui.questions.ranks.steps import StepTimes, step_times

UNEXPLAINED = "unexplained"
PROFILER = "the profiler"

_NUMBER = re.compile(r"\b\d+\b")

_LONGEST_NAME, _LONGEST_CAUSE = 30, 50

_LOOKED_AT = 100
"""The number of longest spans of each part in which the CPU's work is examined."""


@dataclass(frozen=True)
class SummedCause:
    """A cause of idle time, and its time summed over the GPUs, ns."""

    name: str
    time: int


@dataclass(frozen=True)
class IdleCauses:
    """The causes of parts of a budget, the largest first, `UNEXPLAINED` last; they add up to their part exactly."""

    startup: tuple[SummedCause, ...] = ()
    long_gaps: tuple[SummedCause, ...] = ()
    short_gaps: tuple[SummedCause, ...] = ()
    """Only triage knows them."""
    tail: tuple[SummedCause, ...] = ()


def caused_budgets(
    job: OpenJob, selection: Selection, step_name: str | None = None
) -> tuple[list[DeviceBudget], IdleCauses]:
    """Compute the budget of each GPU, and the causes of the idle time of all; kept with the job."""

    def make() -> tuple[list[DeviceBudget], IdleCauses]:
        budgets = device_budgets(job, selection, step_name)
        return budgets, idle_causes(job, selection, budgets)

    return job.once(("idle causes", selection.with_name(None), step_name), make)


IdleTime = tuple[Task, int, Intervals]
"""A GPU (task, CUDA ordinal) and when it was idle, job time."""


def idle_causes(job: OpenJob, selection: Selection, budgets: Sequence[DeviceBudget]) -> IdleCauses:
    """Find the causes of the start-up, the long gaps and the tail of some GPUs."""
    whole = in_sum(budgets)
    parts = [
        [(one.device.task.task, one.device.device, getattr(one, name)) for one in budgets]
        for name in ("startup", "long_gaps", "after")
    ]
    startup, long_gaps, tail = causes_of(job, selection, parts, (whole.startup, whole.long_gaps, whole.tail))
    return IdleCauses(startup, long_gaps, tail=tail)


def causes_of(
    job: OpenJob, selection: Selection, parts: Sequence[Sequence[IdleTime]], times: Sequence[int]
) -> list[tuple[SummedCause, ...]]:
    """Find the causes of each of some parts of the time, which take ``times``, ns: in their longest spans."""
    own = profiler_overhead(job.session, selection.with_name(None))
    found: list[dict[str, int]] = [{} for _ in parts]
    longest: list[list[CpuSpan]] = []
    for spent, part in zip(found, parts, strict=True):
        spans: list[CpuSpan] = []
        for task, device, intervals in part:
            free = subtract(intervals, own.get(task, EMPTY))
            _add(spent, PROFILER, intervals.length - free.length)
            chosen = np.argsort(free.starts - free.ends, kind="stable")[:_LOOKED_AT]
            windows = map(Window, free.starts[chosen].tolist(), free.ends[chosen].tolist())
            spans += [CpuSpan(task, device, window) for window in windows]
        spans.sort(key=lambda span: (-span.length, span.window.start, span.task, span.device))
        longest.append(spans[:_LOOKED_AT])
    # All at once: what is recorded of the threads is read for each question.
    works = iter(host_work(job, [span for spans in longest for span in spans], with_calls=True))
    causes = []
    for spent, spans, time in zip(found, longest, times, strict=True):
        for work in islice(works, len(spans)):
            for cause, share in work.causes.items():
                _add(spent, _name(work, cause), share)
        named = ((name, share) for name, share in spent.items() if name != UNEXPLAINED)
        known = sorted(named, key=lambda cause: (-cause[1], cause[0]))
        rest = time - sum(share for _, share in known)
        causes.append(
            tuple(SummedCause(name, share) for name, share in [*known, *([(UNEXPLAINED, rest)] if rest else [])])
        )
    return causes


def _add(found: dict[str, int], name: str, time: int) -> None:
    if time:
        found[name] = found.get(name, 0) + time


def _name(work: HostWork, cause: HostCause) -> str:
    word, name = ("in", work.range_name) if work.range_name else ("before", work.next_range)
    where = f"`{shorten(_NUMBER.sub('*', name), _LONGEST_NAME)}`" if name else ""
    if cause.kind == NOTHING:
        place = f"{word} range {where}" if where else cause.what
        return f"nothing recorded, {place}" if place else UNEXPLAINED
    words = replace(cause, what=shorten(cause.what, _LONGEST_CAUSE)).words
    is_told = work.range_name and cause.what and work.range_name.endswith(cause.what)
    # The range of a library around the call of the same name tells no more.
    return f"{words} {word} {where}" if where and not is_told else words


def budget_with_causes(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the budget of each GPU, with notes on the causes of the idle time of all."""
    budgets, found = caused_budgets(job, selection, step_name)
    whole = in_sum(budgets).time
    parts = (("start-up", found.startup), ("long gaps", found.long_gaps), ("tail", found.tail))
    worded = [(part, cause_words(causes, whole)) for part, causes in parts]
    notes = [f"{part} by cause: {words}" for part, words in worded if words]
    return replace(budget_table(budgets), notes=(*notes, *job.busy(selection.with_name(None)).notes))


def cause_words(causes: Sequence[SummedCause], whole: int, most: int = 5) -> str:
    """Write ``cudaMalloc in `data loading` 6.1 %, unexplained 1.6 %``, of ``whole`` ns; at most ``most`` causes.

    What rounds to 0.0 % is left out; nothing where that is all.
    """
    named = [cause for cause in causes if cause.name != UNEXPLAINED]
    most = min(most, sum(_is_seen(cause, whole) for cause in named))
    others = sum(cause.time for cause in named[most:])
    shown = [*named[:most], SummedCause("other causes", others), *causes[len(named) :]]
    return ", ".join(f"{one.name} {100 * one.time / whole:.1f} %" for one in shown if _is_seen(one, whole))


def idle_words(budget: Budget, causes: IdleCauses | None, most: int, least: float = 0) -> list[str]:
    """Write ``start-up 18.2 % (cudaMalloc 6.1 %, …)`` for each part of the idle time, with ``most`` causes of each.

    Parts of less than ``least`` percent are left out.
    """
    causes = causes or IdleCauses()
    parts = (
        ("start-up", budget.startup, causes.startup),
        ("gaps", budget.long_gaps, causes.long_gaps),
        ("gaps under 1 ms", budget.short_gaps, causes.short_gaps),
        ("tail", budget.tail, causes.tail),
    )
    found = []
    for name, time, why in parts:
        if 100 * time < least * budget.time:
            continue
        reasons = cause_words(why, budget.time, most) if time and most else ""
        share = format_value(Unit.PERCENT, 100 * time / budget.time)
        found.append(f"{name} {share}{f' ({reasons})' if reasons else ''}")
    if budget.unrecorded and 100 * budget.unrecorded >= least * budget.time:
        found.append(f"not recorded {format_value(Unit.PERCENT, 100 * budget.unrecorded / budget.time)}")
    return found


def _is_seen(cause: SummedCause, whole: int) -> bool:
    return 2000 * cause.time >= whole > 0


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
        """The idle time, ns."""
        return self.startup + self.long_gaps + self.short_gaps + self.tail

    @property
    def time(self) -> int:
        """All of the time, ns."""
        return self.compute + self.exposed_nccl + self.memory + self.graph + self.idle + self.unrecorded

    def __add__(self, other: Budget) -> Budget:
        return Budget(**{part: getattr(self, part) + getattr(other, part) for part in PARTS})


PARTS = ("compute", "exposed_nccl", "memory", "graph", "startup", "long_gaps", "short_gaps", "tail", "unrecorded")


@dataclass(frozen=True, eq=False)
class DeviceBudget:
    """The budget of a GPU, and where its steady state begins (job time, ns). ``window``: as far as it was recorded.

    ``working`` is the part of the window from there to the GPU's last operation. ``startup``, ``long_gaps`` and
    ``after`` (the tail) are when it was idle then, cut at the edges of these parts.
    """

    device: Device
    window: Window
    steady: int
    working: Window
    budget: Budget
    startup: Intervals
    long_gaps: Intervals
    after: Intervals


def device_budgets(
    job: OpenJob, selection: Selection, step_name: str | None = None, steady: Mapping[Task, Window] | None = None
) -> list[DeviceBudget]:
    """Compute the budget of each selected GPU that worked, over the selection's window (else the job's extent).

    With ``steady``: of the GPUs of its tasks, each over its window, all of which is in the steady state.
    """
    chosen = selection.with_name(None)
    if steady is None:
        return job.once(("device budgets", chosen, step_name), lambda: _device_budgets(job, chosen, step_name))
    return _device_budgets(job, chosen, step_name, steady)


def _device_budgets(
    job: OpenJob, chosen: Selection, step_name: str | None, steady: Mapping[Task, Window] | None = None
) -> list[DeviceBudget]:
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
    """Find when the steady state of a GPU begins (job time, ns). ``worked``: from its first operation to its last."""
    if steps is not None and steps.on_gpu and len(steps) >= _FEWEST_STEPS:
        return max(int(steps.start[steps.first_steady]), worked.start)
    shares = np.nan_to_num(device.busy(worked, _SPANS))
    first = int(np.argmax(shares >= shares.mean() / 3))
    return worked.start + first * (worked.end - worked.start) // _SPANS


def _budget(device: DeviceIntervals, worked: Window, steady: int, window: Window) -> DeviceBudget:
    spent = device.breakdown(window)
    start = min(max(window.start, device.recorded.start), window.end)
    window = Window(start, max(min(window.end, device.recorded.end), start))
    begin = min(max(steady, window.start), window.end)
    last = min(max(worked.end, begin), window.end)
    startup = begin - window.start - device.busy_in(Window(window.start, begin))
    tail = window.end - last
    gaps = device.idle(working := Window(begin, last))
    long_gaps = gaps.chosen(gaps.lengths >= LONG_GAP)
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
    return DeviceBudget(device.device, window, steady, working, budget, at_startup, long_gaps, after)


def in_sum(budgets: Iterable[DeviceBudget]) -> Budget:
    """Add up the budgets of GPUs."""
    return sum((one.budget for one in budgets), Budget())


def steady_window(budgets: Sequence[DeviceBudget]) -> Window | None:
    """Return the time in which all GPUs are in their steady state, to the window's end; ``None`` where it is empty."""
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
    """Tabulate the budgets of GPUs; the percentages of a row add up to 100."""
    rows: list[Row] = []
    for one in budgets:
        times = [getattr(one.budget, part) for part in PARTS]
        shares = [100.0 * time / one.budget.time if one.budget.time else None for time in times]
        rows.append((one.device.task.rank, one.device.device, *shares, one.steady, *times))
    return TableAnswer("budget", COLUMNS, rows, len(rows))


def by_task(budgets: Iterable[DeviceBudget]) -> Mapping[Task, Budget]:
    """Add up the budgets of the GPUs of each task."""
    sums: dict[Task, Budget] = {}
    for one in budgets:
        task = one.device.task.task
        sums[task] = sums.get(task, Budget()) + one.budget
    return sums
