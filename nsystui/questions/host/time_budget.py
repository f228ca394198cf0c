"""The time budget of each GPU, in parts that add up, and the CPU's work while the GPU was idle.

See docs/numbers.md#budget for the parts and causes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import add

import numpy as np

from nsystui.base.answer import DEVICE, RANK, Column, Row, TableAnswer, Unit, for_files
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import shorten
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import EMPTY, Intervals, subtract
from nsystui.questions.capture.launch_account import lost_work_notes
from nsystui.questions.gpu.device_time import Device, DeviceIntervals, is_unknown
from nsystui.questions.gpu.graph_gaps import HOST_NODE, causes_in_graphs, host_functions
from nsystui.questions.host.causes import GIL, NOTHING
from nsystui.questions.host.causes import Cause as HostCause
from nsystui.questions.host.host_work import HostWork, host_work
from nsystui.questions.host.idle_spans import IdleSpan, longest_first, spans_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import profiler_overhead
from nsystui.questions.queries.tasks import with_roles
from nsystui.questions.queries.time_window import extents
from nsystui.questions.ranks.steps import StepTimes, step_times

UNEXPLAINED = "unexplained"
PROFILER = "the profiler"

_NUMBER = re.compile(r"\b\d+\b")

_MAX_NAME, _MAX_CAUSE = 30, 50

_MAX_SPANS = 1_000
"""The number of longest spans of each part whose CPU work is examined."""


@dataclass(frozen=True)
class SummedCause:
    """A cause of idle time, and its time summed over the GPUs, ns."""

    name: str
    time: int


@dataclass(frozen=True)
class IdleCauses:
    """The causes of parts of a budget, largest first, `UNEXPLAINED` last; they add up to the part exactly."""

    startup: tuple[SummedCause, ...] = ()
    long_gaps: tuple[SummedCause, ...] = ()
    short_gaps: tuple[SummedCause, ...] = ()  # computed only by triage
    in_graphs: tuple[SummedCause, ...] = ()
    tail: tuple[SummedCause, ...] = ()


def caused_budgets(
    job: OpenJob, selection: Selection, step_name: str | None = None
) -> tuple[list[DeviceBudget], IdleCauses]:
    """Compute the budget of each GPU, and the causes of all idle time; cached in the job."""

    def compute() -> tuple[list[DeviceBudget], IdleCauses]:
        budgets = device_budgets(job, selection, step_name)
        return budgets, idle_causes(job, selection, budgets)

    return job.once(("idle causes", selection.with_name(None), step_name), compute)


_IdleTime = tuple[tuple[Task, int], Intervals]
"""A GPU (task, CUDA ordinal) and its idle time, job time."""


def idle_causes(job: OpenJob, selection: Selection, budgets: Sequence[DeviceBudget]) -> IdleCauses:
    """Find the causes of the GPUs' start-up, long gaps and tail."""
    total = in_sum(budgets)
    names = ("startup", "long_gaps", "after")
    parts = [[(budget.device.key, getattr(budget, name)) for budget in budgets] for name in names]
    startup, long_gaps, tail = causes_of(job, selection, parts, (total.startup, total.long_gaps, total.tail))
    times: dict[str, int] = {}
    ran = host_functions(job.session, sorted({budget.device.task.task for budget in budgets}))
    for budget in budgets:
        for name, part in causes_in_graphs(budget.in_graphs, ran[budget.device.task.task]).items():
            _add(times, "blocked by host functions" if name == HOST_NODE else name, part.length)
    _add(times, UNEXPLAINED, total.in_graphs - sum(times.values()))
    return IdleCauses(startup, long_gaps, in_graphs=tuple(SummedCause(*item) for item in times.items()), tail=tail)


def causes_of(
    job: OpenJob, selection: Selection, parts: Sequence[Sequence[_IdleTime]], times: Sequence[int]
) -> list[tuple[SummedCause, ...]]:
    """Find the causes of parts of idle time from their longest spans; ``times``: the length of each part, ns."""
    overhead = profiler_overhead(job.session, selection.with_name(None))
    times_by_name: list[dict[str, int]] = [{} for _ in parts]
    longest: list[list[IdleSpan]] = []
    for time_of, part in zip(times_by_name, parts, strict=True):
        spans: list[IdleSpan] = []
        for gpu, intervals in part:
            idle = subtract(intervals, overhead.get(gpu[0], EMPTY))
            _add(time_of, PROFILER, intervals.length - idle.length)
            spans += spans_of(gpu, idle.chosen(np.argsort(idle.starts - idle.ends, kind="stable")[:_MAX_SPANS]))
        longest.append(longest_first(spans)[:_MAX_SPANS])
    # Ask once for all parts, because each question reads all records of the threads.
    works = iter(host_work(job, [span for spans in longest for span in spans], with_calls=True))
    causes = []
    for time_of, spans, time in zip(times_by_name, longest, times, strict=True):
        for work in islice(works, len(spans)):
            for cause, share in work.causes.items():
                _add(time_of, _name(work, cause), share)
        named = ((name, share) for name, share in time_of.items() if name != UNEXPLAINED)
        listed = sorted(named, key=lambda cause: (-cause[1], cause[0]))
        if rest := time - sum(share for _, share in listed):
            listed.append((UNEXPLAINED, rest))
        causes.append(tuple(SummedCause(*item) for item in listed))
    return causes


def without_numbers(name: str) -> str:
    """Replace numbers in a range's name by ``*``."""
    return _NUMBER.sub("*", name)


def _add(time_of: dict[str, int], name: str, time: int) -> None:
    if time:
        time_of[name] = time_of.get(name, 0) + time


def _name(work: HostWork, cause: HostCause) -> str:
    word, name = ("in", work.range_name) if work.range_name else ("before", work.next_range)
    quoted = f"`{shorten(without_numbers(name), _MAX_NAME)}`" if name else ""
    if cause.kind == NOTHING:
        location = f"{word} range {quoted}" if quoted else cause.what
        return f"nothing recorded{location and f', {location}'}"
    words = replace(cause, what=shorten(cause.what, _MAX_CAUSE)).words
    is_same_name = work.range_name and cause.what and work.range_name.endswith(cause.what)
    # A library's range around its call of the same name adds nothing; another thread's work is not in the range.
    is_in_range = not is_same_name and (not cause.thread or cause.kind == GIL)
    return f"{words} {word} {quoted}" if quoted and is_in_range else words


def budget_with_causes(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the budget of each GPU, with notes on the causes of all idle time."""
    budgets, idle = caused_budgets(job, selection, step_name)
    total = in_sum(budgets).time
    parts = {"start-up": idle.startup, "long gaps": idle.long_gaps, "in graphs": idle.in_graphs, "tail": idle.tail}
    words_of_parts = [(part, cause_words(causes, total)) for part, causes in parts.items()]
    notes = [f"{part} by cause: {words}" for part, words in words_of_parts if words]
    notes += [*job.busy(selection.with_name(None)).notes, *lost_work_notes(job.session, selection)]
    return replace(budget_table(budgets), notes=tuple(notes))


def cause_words(causes: Sequence[SummedCause], total: int, limit: int = 5) -> str:
    """Return ``cudaMalloc in `data loading` 6.1 %, unexplained 1.6 %``, of ``total`` ns; at most ``limit`` causes.

    Causes that round to 0.0 % are left out.
    """
    named = [cause for cause in causes if cause.name != UNEXPLAINED]
    limit = min(limit, sum(_is_seen(cause, total) for cause in named))
    others = sum(cause.time for cause in named[limit:])
    shown = [*named[:limit], SummedCause("other causes", others), *causes[len(named) :]]
    return ", ".join(f"{cause.name} {100 * cause.time / total:.1f} %" for cause in shown if _is_seen(cause, total))


def idle_words(budget: Budget, causes: IdleCauses | None, limit: int, min_percent: float = 0) -> list[str]:
    """Return ``start-up 18.2 % (cudaMalloc 6.1 %, …)`` for each part of idle time, with at most ``limit`` causes.

    Parts below ``min_percent`` are left out.
    """
    causes = causes or IdleCauses()
    parts = (
        ("start-up", budget.startup, causes.startup),
        ("gaps", budget.long_gaps, causes.long_gaps),
        ("gaps under 1 ms", budget.short_gaps, causes.short_gaps),
        *[("in graphs", budget.in_graphs, causes.in_graphs)] * bool(budget.in_graphs),
        ("tail", budget.tail, causes.tail),
    )
    words = []
    for name, time, part_causes in parts:
        if 100 * time < min_percent * budget.time:
            continue
        cause_list = cause_words(part_causes, budget.time, limit) if time and limit else ""
        share = format_value(Unit.PERCENT, 100 * time / budget.time)
        words.append(f"{name} {share}{f' ({cause_list})' if cause_list else ''}")
    if budget.unrecorded and 100 * budget.unrecorded >= min_percent * budget.time:
        words.append(f"not recorded {format_value(Unit.PERCENT, 100 * budget.unrecorded / budget.time)}")
    return words


def _is_seen(cause: SummedCause, total: int) -> bool:
    return 2000 * cause.time >= total > 0


LONG_GAP = 1_000_000
"""The shortest long gap, ns."""

_MIN_STEPS = 3
_BUSY_BINS = 100


@dataclass(frozen=True)
class Budget:
    """The time of a window by part, ns, of one GPU or several; the parts add up to ``time`` exactly."""

    compute: int = 0
    exposed_nccl: int = 0
    memory: int = 0
    graph: int = 0
    startup: int = 0
    long_gaps: int = 0
    short_gaps: int = 0
    in_graphs: int = 0
    tail: int = 0
    unrecorded: int = 0
    unknown: Counter[str] = field(default_factory=Counter)  # as in `Breakdown`

    def known(self, part: str) -> int | None:
        """Return a part; ``None`` if unknown."""
        return None if is_unknown(part, self.unknown) else getattr(self, part)

    @property
    def idle(self) -> int:
        """The idle time, ns."""
        return self.startup + self.long_gaps + self.short_gaps + self.in_graphs + self.tail

    @property
    def time(self) -> int:
        """The sum of all parts, ns."""
        return self.compute + self.exposed_nccl + self.memory + self.graph + self.idle + self.unrecorded

    def __add__(self, other: Budget) -> Budget:
        return Budget(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True, eq=False)
class DeviceBudget:
    """The budget of a GPU. ``steady``: start of its steady state, job time, ns; ``window``: the recorded time.

    ``working``: from the steady state to the GPU's last operation. ``startup``, ``long_gaps``, ``in_graphs`` and
    ``after`` (the tail): the idle time of these parts.
    """

    device: Device
    window: Window
    steady: int
    working: Window
    budget: Budget
    startup: Intervals
    long_gaps: Intervals
    in_graphs: Intervals
    after: Intervals


def device_budgets(
    job: OpenJob, selection: Selection, step_name: str | None = None, steady: Mapping[Task, Window] | None = None
) -> list[DeviceBudget]:
    """Compute the budget of each selected GPU that worked, over the window (else the job's extent).

    With ``steady``, only the GPUs of its tasks, each over its task's window, which is all steady.
    """
    unfiltered = selection.with_name(None)
    if steady is None:
        return job.once(("device budgets", unfiltered, step_name), lambda: _device_budgets(job, unfiltered, step_name))
    return _device_budgets(job, unfiltered, step_name, steady)


def _device_budgets(
    job: OpenJob, selection: Selection, step_name: str | None, steady: Mapping[Task, Window] | None = None
) -> list[DeviceBudget]:
    windows = extents(job.session, selection)
    full = extents(job.session, selection.with_window(None))
    steps, graph_gaps = step_times(job.steps(step_name)), job.graph_gaps(selection)
    budgets = []
    for gpu in job.gpus(selection):
        task = gpu.device.task.task
        worked = gpu.worked(full[task.report])
        if worked is None or (steady is not None and task not in steady):
            continue
        if steady is not None:
            start, window = steady[task].start, steady[task]
        else:
            start, window = steady_start(gpu, worked, steps.get(task)), windows[task.report]
        budgets.append(_budget(gpu, worked, start, window, graph_gaps.get((task, gpu.device.device), EMPTY)))
    return budgets


def steady_start(device: DeviceIntervals, worked: Window, steps: StepTimes | None) -> int:
    """Return when a GPU's steady state begins, job time, ns; ``worked``: its first to last operation."""
    if steps is not None and steps.on_gpu and len(steps) >= _MIN_STEPS:
        return max(int(steps.start[steps.first_steady]), worked.start)
    shares = np.nan_to_num(device.share("busy", worked, _BUSY_BINS))
    return worked.start + int(np.argmax(shares >= shares.mean() / 3)) * (worked.end - worked.start) // _BUSY_BINS


def _budget(
    device: DeviceIntervals, worked: Window, steady: int, window: Window, graph_gaps: Intervals
) -> DeviceBudget:
    spent = device.breakdown(window)
    start = min(max(window.start, device.recorded.start), window.end)
    window = Window(start, max(min(window.end, device.recorded.end), start))
    begin = min(max(steady, window.start), window.end)
    last = min(max(worked.end, begin), window.end)
    in_graphs, working = graph_gaps.clip(window.start, window.end), Window(begin, last)
    startup, gaps, after = (
        subtract(device.idle(part), in_graphs)
        for part in (Window(window.start, begin), working, Window(last, window.end))
    )
    long_gaps, idle = gaps.chosen(gaps.lengths >= LONG_GAP), spent.idle - (spent.time - spent.recorded)
    budget = Budget(
        compute=spent.kernels, exposed_nccl=spent.exposed_nccl, memory=spent.memory_only, graph=spent.graph_only,
        startup=startup.length, long_gaps=long_gaps.length,
        short_gaps=idle - startup.length - long_gaps.length - in_graphs.length - after.length,
        in_graphs=in_graphs.length, tail=after.length, unrecorded=spent.time - spent.recorded,
        unknown=spent.unknown,
    )  # fmt: skip
    return DeviceBudget(device.device, window, steady, working, budget, startup, long_gaps, in_graphs, after)


def in_sum(budgets: Iterable[DeviceBudget]) -> Budget:
    """Add up the budgets of GPUs."""
    return sum((gpu.budget for gpu in budgets), Budget())


def steady_window(budgets: Sequence[DeviceBudget]) -> Window | None:
    """Return when all GPUs are steady, to the window's end; ``None`` if empty."""
    if not budgets:
        return None
    start, end = max(gpu.steady for gpu in budgets), max(gpu.window.end for gpu in budgets)
    return Window(start, end) if start < end else None


_LABELS = {
    "compute": ("Compute", "compute"), "exposed_nccl": ("Exposed NCCL", "exposed NCCL"),
    "memory": ("Memory", "memory"), "graph": ("Graphs", "graphs"), "startup": ("Start-up", "start-up"),
    "long_gaps": ("Long Gaps", "long gaps"), "short_gaps": ("Short Gaps", "short gaps"),
    "in_graphs": ("In Graphs", "in graphs"), "tail": ("Tail", "tail"), "unrecorded": ("Not Recorded", "not recorded"),
}  # fmt: skip
PARTS = tuple(_LABELS)
COLUMNS = (
    RANK, DEVICE.with_importance(2),
    *(
        Column(f"{part}_percent", header=f"{header} (%)", label=f"{label} %", unit=Unit.PERCENT, decimals=2)
        for part, (header, label) in _LABELS.items()
    ),
    Column("steady", header="Steady From (ns)", label="steady from", unit=Unit.TIME, importance=3),
    *(
        Column(part, header=f"{header} (ns)", label=label, unit=Unit.DURATION, importance=9)
        for part, (header, label) in _LABELS.items()
    ),
)  # fmt: skip


def budget_table(budgets: Sequence[DeviceBudget]) -> TableAnswer:
    """Tabulate the budgets of GPUs; the percentages of a row add up to 100."""
    rows: list[Row] = []
    columns = with_roles(COLUMNS, [gpu.device.task for gpu in budgets])
    for gpu in budgets:
        times = [gpu.budget.known(part) for part in PARTS]
        total = gpu.budget.time
        shares = [100.0 * time / total if total and time is not None else None for time in times]
        role = [gpu.device.task.role] * (len(columns) > len(COLUMNS))
        rows.append((gpu.device.task.rank, *role, gpu.device.device, *shares, gpu.steady, *times))
    return with_graphs(TableAnswer("budget", columns, rows, len(rows)))


def with_graphs(answer: TableAnswer) -> TableAnswer:
    """Show the column of idle time in graphs only in files if all of it is 0."""
    keys = [item.key for item in answer.columns if item.key.startswith("in_graphs")]
    return replace(answer, columns=for_files(answer.columns, [key for key in keys if not any(answer.cells(key))]))
