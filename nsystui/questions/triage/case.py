"""The case that rules judge: a job and a selection, with shared figures.

`spans` merges the times of a table's rows by process or GPU; rules subtract and intersect them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
import sqlalchemy as sa

from nsystui.base import anchors
from nsystui.base.answer import FAMILY, NAME, PRECISION, Answer, Column, Row, TableAnswer, Unit
from nsystui.base.kernel_families import family_of, precision_of
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import ranks_named
from nsystui.base.types import Condition, grouped
from nsystui.base.units import format_value as worded
from nsystui.exports.canonical import API_CALLS, KERNELS, CanonicalTable
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect, merge, subtract, union
from nsystui.questions.blocking.budget import RankIterations, iterations
from nsystui.questions.blocking.dependencies import unresolved_waits
from nsystui.questions.blocking.parts import PARTS, Iterations, blocked_in, blocking, bounds
from nsystui.questions.capture.launch_account import LaunchAccount, launch_accounts, untimed_work
from nsystui.questions.gpu.device_time import NOTHING, Breakdown, DeviceIntervals, total
from nsystui.questions.gpu.graph_gaps import host_functions
from nsystui.questions.gpu.utilisation import gpu_users
from nsystui.questions.host.attribution import attribute
from nsystui.questions.host.idle_spans import Attribution, IdleSpan, longest_first, spans_of
from nsystui.questions.host.segments import Scheduling, scheduling_of
from nsystui.questions.host.time_budget import device_budgets
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import profiler_overhead
from nsystui.questions.memory.host_copies import HostCopies, host_copies
from nsystui.questions.nvtx.loading import FOLDED_LABEL, LABEL
from nsystui.questions.queries.communication import communicates, communicating, rows_of_nccl_copies
from nsystui.questions.queries.conditions import duration, job_end, job_start, where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.process_rows import rows_by_gpu
from nsystui.questions.queries.recording import recording_advice
from nsystui.questions.queries.tasks import RankedTask, selected_ranks
from nsystui.questions.queries.time_window import extents, selected_reports
from nsystui.questions.ranks.steps import StepTimes, step_times
from nsystui.questions.triage.finding import Advice, Door, Finding, Severity
from nsystui.questions.triage.thresholds import Thresholds
from nsystui.store import tables
from nsystui.store.remember import Memory, Results, remember
from nsystui.store.report import Report

T = TypeVar("T")
CUDA_TABLES = (KERNELS, API_CALLS)
REMARKED = 0.05
"""A rule makes no remark on a cost below this share of its threshold."""


@dataclass(frozen=True)
class RankCompute:
    """A rank's kernels that do not communicate: number, and |U(K)| in ns."""

    kernels: int
    time: int


class LateCause(Enum):
    """What takes longer on late ranks, in words for a rank and for several; the last two are parts of idle time."""

    KERNELS = "its kernels take", "their kernels take"
    COPIES = "its copies take", "their copies take"
    STALL = "its GPU idles", "their GPUs idle"
    LOADER = "its data loader takes", "their data loaders take"
    HOST_FUNCTIONS = "its host functions take", "their host functions take"


@dataclass(frozen=True)
class LateRank:
    """Tasks that arrive together, and for which other ranks wait.

    ``by_step``: the delay after the first rank by number of the step, ns; ``is_rare``: in less than half of the steps.
    ``causes`` take longer than on other ranks, ``cause`` is their only one, ``words`` say how much.
    """

    tasks: Sequence[Task]
    is_straggler: bool
    by_step: Mapping[int, int]
    is_rare: bool = False
    causes: Mapping[Task, LateCause] = field(default_factory=dict)
    cause: LateCause | None = None
    words: str = ""


@dataclass(frozen=True, eq=False)
class Case:
    """A job and the selection to judge, by default all events. Rules ignore its name filter and judge all work."""

    job: OpenJob
    selection: Selection = field(default_factory=Selection)
    thresholds: Thresholds = field(default_factory=Thresholds)
    step_name: str | None = None
    late_ranks: list[LateRank] = field(default_factory=list)
    """The late ranks, after the rule on stragglers has judged."""
    results: Results = field(default_factory=lambda: Results((), None, memory=Memory()))
    """The results of functions under `once`."""

    @cached_property
    def scope(self) -> Selection:
        """The selection without its name filter."""
        return self.selection.with_name(None)

    @cached_property
    def communicating(self) -> list[str]:
        """The names of kernels that communicate without NCCL."""
        return communicating(self.job.session)

    @property
    def communication(self) -> str:
        """The word for communication: ``NCCL`` if only its kernels communicate."""
        return "communication" if self.communicating else "NCCL"

    @cached_property
    def reports(self) -> list[Report]:
        return selected_reports(self.job.session, self.scope)

    @cached_property
    def ranks(self) -> tuple[RankedTask, ...]:
        return tuple(selected_ranks(self.job.ranks, self.scope))

    @cached_property
    def rank_of(self) -> Mapping[Task, int]:
        return {item.task: item.rank for item in self.ranks}

    @cached_property
    def tasks(self) -> frozenset[Task]:
        return frozenset(self.rank_of)

    @cached_property
    def accounts(self) -> Mapping[Task, LaunchAccount]:
        """The launch accounts of ranks that use the judged GPUs."""
        accounts = launch_accounts(self.job.session, self.job.session.reports)
        return {item.task: accounts[item.task] for item in self._users if item.task in accounts}

    @cached_property
    def untimed(self) -> Mapping[tuple[int, CanonicalTable], tuple[int, int]]:
        """Rows left out and all rows, by report and table of `untimed_work`."""
        indices = {item.task.report for item in self._users}
        reports = [report for report in self.job.session.reports if report.index in indices] or self.reports
        return {(item.index, table): (lost, rows) for item in reports for table, lost, rows in untimed_work(item)}

    @cached_property
    def lacking_work(self) -> frozenset[Task]:
        """The ranks that launched work which is missing, or has impossible times."""
        lost = {task for task, account in self.accounts.items() if account.lost_kernels + account.lost_work}
        indices = {index for index, _ in self.untimed}
        return frozenset(lost.union(item.task for item in self._users if item.task.report in indices))

    @cached_property
    def _users(self) -> list[RankedTask]:
        users = gpu_users(self.job.session, self.tasks)
        return [item for item in self.job.ranks if item.task in users]

    @cached_property
    def windows(self) -> Mapping[int, Window]:
        """The window in which each report is judged."""
        return extents(self.job.session, self.scope)

    @cached_property
    def devices(self) -> tuple[DeviceIntervals, ...]:
        """The GPUs with any work."""
        return tuple(device for device in self.job.gpus(self.scope) if device.busy_in(self.window_of(device)))

    def record(self, *needed: CanonicalTable, together: bool = False) -> str:
        """Return `recording_advice` on the ``needed`` tables."""
        return recording_advice(self.job.session, self.reports, *needed, together=together)

    @property
    def each_gpu(self) -> str:
        """The subject of sentences on means: ``Each GPU``, or ``The GPU`` if a single GPU works."""
        return "The GPU" if len(self.devices) == 1 else "Each GPU"

    def window_of(self, device: DeviceIntervals) -> Window:
        return self.windows[device.device.task.task.report]

    @cached_property
    def time(self) -> int:
        """The job's run time, ns: the mean of its GPUs' windows, or of its reports' windows without GPU work."""
        times = [device.breakdown(self.window_of(device)).time for device in self.devices]
        times = times or [span.end - span.start for span in self.windows.values()]
        return sum(times) // len(times) if times else 0

    def percent(self, cost: float) -> float:
        return 100.0 * cost / self.time if self.time else 0.0

    def mean(self, costs: Iterable[float]) -> int:
        """Return the costs' sum, divided by the number of GPUs, ns."""
        return round(sum(costs) / max(len(self.devices), 1))

    @cached_property
    def has_message_sizes(self) -> bool:
        """Whether any NCCL call has a message size, from the exports or a log."""
        calls, session = tables.nccl_calls, self.job.session
        if self.job.nccl_log is not None or rows_of_nccl_copies(session) is not None:
            return bool(self.job.pairing().calls["message_size"].notna().any())
        if not session.count(calls):
            return False
        return bool(session.rows(sa.select(calls.c.row).where(calls.c.message_size.is_not(None)).limit(1)))

    @cached_property
    def spent(self) -> Breakdown:
        """The time of all GPUs by category."""
        return total(device.breakdown(self.window_of(device)) for device in self.devices) if self.devices else NOTHING

    @property
    def absence(self) -> str:
        """Words for missing operations, which CUDA graphs traced as a whole may contain."""
        graph_words = " outside of its CUDA graphs, which were not traced inside" if self.spent.graph else ""
        return f"this job has none{graph_words}"

    def exposed(self, spans: Spans) -> int:
        """Return the mean time of operations in the steady state while no kernel runs on their GPU, ns."""
        exposed = 0
        for device in self.devices:
            window = self.working(device)
            local = spans.of(*device.device.key).clip(window.start, window.end)
            exposed += local.length - device.parts.kernels.shared_with(local)
        return self.mean([exposed])

    def finding(
        self, name: str, sentence: str, advice: Advice, door: Door, cost: int, measured: str,
        evidence: Answer | tuple[tuple[Column, ...], Sequence[Row]], severity: Severity = Severity.WARNING, **more: Any,
    ) -> Finding:  # fmt: skip
        """Return a finding. ``evidence``: a table, or its columns and rows."""
        if isinstance(evidence, tuple):
            evidence = TableAnswer(name, *evidence, len(evidence[1]))
        return Finding(name, severity, sentence, advice, door, cost, self.percent(cost), measured, evidence, **more)

    def idle(self, device: DeviceIntervals) -> Intervals:
        """Return `idle_in` in a GPU's steady state, until its last operation."""
        return self.idle_in(device, self.working(device))

    def idle_in(self, device: DeviceIntervals, window: Window) -> Intervals:
        """Return a GPU's idle time outside of CUDA graphs: the host cannot shorten gaps inside replays."""
        return subtract(device.idle(window), self.in_graphs(device, window))

    def in_graphs(self, device: DeviceIntervals, window: Window) -> Intervals:
        """Return a GPU's idle time inside replays of CUDA graphs."""
        gaps = self.job.graph_gaps(self.scope).get(device.device.key, EMPTY)
        return gaps.clip(window.start, window.end)

    def gaps(self, device: DeviceIntervals) -> Intervals:
        """Return `idle` without the profiler's own work in the GPU's process (docs/numbers.md#expert-rules)."""
        return subtract(self.idle(device), self.overhead.get(device.device.task.task, EMPTY))

    def long_gaps(self, device: DeviceIntervals) -> Intervals:
        """Return idle gaps of ``gap_ms`` or more without the profiler's work, whose few µs divide no gap."""

        def compute() -> Intervals:
            min_length, overhead = self.thresholds.gap_ms * 1e6, self.overhead.get(device.device.task.task, EMPTY)
            idle = self.idle(device)
            long = idle.chosen(idle.lengths >= min_length)
            return long.chosen(long.lengths - overhead.covered(long.starts, long.ends) >= min_length)

        return remember(self.results, ("long gaps", device.device.key), compute)

    def long_idle(self, device: DeviceIntervals) -> Intervals:
        """Return `long_gaps` without the profiler's own work."""
        return subtract(self.long_gaps(device), self.overhead.get(device.device.task.task, EMPTY))

    def short_gaps(self, device: DeviceIntervals) -> Intervals:
        """Return the `gaps` outside of `long_gaps`."""
        long = self.long_gaps(device)  # first, to save memory
        return subtract(self.gaps(device), long)

    @cached_property
    def long_gap_causes(self) -> Attribution:
        """The `long_gaps` of all GPUs, longest first, by cause."""
        gaps = longest_first(span for gpu in self.devices for span in spans_of(gpu.device.key, self.long_gaps(gpu)))
        return attribute(self.job, gaps)

    @cached_property
    def overhead(self) -> Mapping[Task, Intervals]:
        """The times of the profiler's own work, by process."""
        return profiler_overhead(self.job.session, self.scope)

    @cached_property
    def host_functions(self) -> Mapping[Task, Intervals]:
        """When functions on the CPU ran that each task's streams wait for."""
        return host_functions(self.job.session, [item.task for item in self.job.ranks])

    @cached_property
    def scheduling(self) -> Scheduling:
        """When the threads of the selected reports had a CPU."""
        return scheduling_of(self.job.session, self.scope)

    def idle_spans(self, device: DeviceIntervals, intervals: Intervals) -> list[IdleSpan]:
        """Return a GPU's gaps that overlap ``intervals``."""
        gaps = self.gaps(device)
        indices = np.unique(np.searchsorted(gaps.starts, intersect(gaps, intervals).starts, side="right") - 1)
        return spans_of(device.device.key, gaps.chosen(indices))

    def working(self, device: DeviceIntervals) -> Window:
        """Return a GPU's steady state, until its last operation (docs/numbers.md#budget)."""
        return self._working[device.device.key]

    @cached_property
    def _working(self) -> dict[Place, Window]:
        budgets = device_budgets(self.job, self.scope, self.step_name)
        return {budget.device.key: budget.working for budget in budgets}

    @cached_property
    def computed(self) -> Mapping[Task, RankCompute]:
        """The compute of each task with GPU work."""
        times: dict[Task, int] = {}
        for device in self.job.busy(self.scope).devices:
            task, spent = device.device.task.task, device.breakdown(self.window_of(device))
            if spent.busy:
                times[task] = times.get(task, 0) + spent.kernels
        table = tables.kernels
        query = (
            sa.select(table.c.report, table.c.process, sa.func.count())
            .where(*where(table, self.scope), sa.not_(communicates(self.communicating)))
            .group_by(table.c.report, table.c.process)
        )
        counts = {Task(report, process): count for report, process, count in self.job.session.rows(query)}
        return {task: RankCompute(counts.get(task, 0), time) for task, time in times.items()}

    @cached_property
    def gpu_of(self) -> Mapping[Place, Place]:
        """The process and device that identify a GPU (the busiest), by each process and device on this GPU."""
        gpus = [(gpu.device.key, gpu) for gpu in self.devices]
        return {device.key: key for key, gpu in gpus for device in gpu.devices}

    @cached_property
    def budgets(self) -> list[RankIterations]:
        """The budgets of each selected GPU's iterations; of all of its time unless all GPUs have steps."""
        in_steps = iterations(self.job, self.scope, self.step_name)
        if len(in_steps) >= len(self._whole):
            return in_steps
        return [RankIterations(self.rank_of[gpu.task], gpu, None) for gpu in self._whole]

    @cached_property
    def _whole(self) -> list[Iterations]:
        if self.scope.window is None:
            budgets = blocking(self.job, self.step_name).whole
        else:
            budgets = blocked_in(self.job, self.scope.window)
        return [gpu for key, gpu in budgets.items() if key[0] in self.tasks and self.gpu_of.get(key) == key]

    @cached_property
    def blocked(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """All time by part of the budget, in steps or not, and the `possible` time: means over the GPUs, ns."""
        parts, possible = (
            {part: self.mean(int(times[:, column].sum()) for times in arrays) for column, part in enumerate(PARTS)}
            for arrays in ([gpu.parts for gpu in self._whole], [gpu.possible for gpu in self._whole])
        )
        return parts, possible

    def blocking_words(self, parts: Collection[str]) -> str:
        """Return how long some parts of the budget block compute: ``It blocks compute for 8.53 ms.``, or a range."""
        if not self.spent.kernels and not self.spent.graph:
            return ""
        lower, upper = bounds(*self.blocked, parts)
        if lower == upper:
            if upper:
                return f" It blocks compute for {time_words(upper)}."
            is_bound = self.blocked[0]["unresolved"] or unresolved_waits(self.job.session, self.tasks)
            return " No kernel can have waited for it." if is_bound else " It blocks no compute."
        range_words = f"blocks compute for {time_words(lower)} to" if lower else "may block compute for up to"
        return f" It {range_words} {time_words(upper)}: not all that kernels waited for was recorded."

    def blocks(self, parts: Collection[str], threshold: float) -> bool:
        """Return whether some parts may block compute for at least `REMARKED` · ``threshold`` % of the time."""
        return self.percent(bounds(*self.blocked, parts)[1]) >= REMARKED * threshold

    @cached_property
    def range_labels(self) -> list[str]:
        """The distinct names of NVTX ranges."""
        query = sa.select(FOLDED_LABEL).where(*where(tables.nvtx_ranges, self.scope)).distinct()
        return [label for (label,) in self.job.session.rows(query)]

    @cached_property
    def host_copies(self) -> tuple[HostCopies, ...]:
        """The copies between host and GPUs."""
        return host_copies(self.job.session, self.scope)

    @cached_property
    def steps(self) -> Mapping[Task, StepTimes]:
        """The steps of every selected task with steps, except iterations of kernels that may be layers."""
        steps = self.job.steps(self.step_name)
        layers = {task for task, of in steps.of_task.items() if of.is_doubtful and of.anchor == anchors.KERNELS}
        times_by_task = step_times(steps, self.scope.window)
        return {task: times for task, times in times_by_task.items() if task in self.tasks - layers}


def once(compute: Callable[[Case], T]) -> Callable[[Case], T]:
    """Let a function compute its result only once for each case."""

    @wraps(compute)
    def result_of(case: Case) -> T:
        return remember(case.results, compute, lambda: compute(case))

    return result_of


def worked_by(devices: Iterable[DeviceIntervals], window: Window) -> Intervals:
    """Return when any of ``devices`` works, in ``window``."""
    return merge(*(part.clip(window.start, window.end) for device in devices for part in device.parts.disjoint))


def time_words(ns: float) -> str:
    """Return a duration (ns) as screens show it."""
    return worded(Unit.DURATION, float(np.round(ns)))


def bytes_words(size: float) -> str:
    """Return an amount of bytes as screens show it."""
    return worded(Unit.BYTES, size)


_SEVERAL = 4
"""The minimum number of ranks whose common host is named, if other ranks are on other hosts."""


def rank_words(ranks: Iterable[int], among: Sequence[RankedTask] = ()) -> str:
    """Return ``rank 2``, ``ranks 0–5, 9, 12 and 5 more`` or ``ranks 8–15 of host node1``; ``among``: all ranks."""
    numbers = set(ranks)
    hosts = {item.host for item in among if item.rank in numbers}
    has_others = any(item.host not in hosts for item in among)
    host_words = f" of host {min(hosts)}" if len(numbers) >= _SEVERAL and len(hosts) == 1 and has_others else ""
    return f"{ranks_named(numbers)}{host_words}"


Place = tuple[Task, int]
"""A process and one of its devices."""

_NO_DEVICE = -1


@dataclass(frozen=True, eq=False)
class Spans:
    """The merged times of the rows of each process, thread or GPU (by `Case.gpu_of`); and the number of rows."""

    merged: dict[Place, Intervals]
    count: int

    def of(self, task: Task, device: int = _NO_DEVICE) -> Intervals:
        return self.merged.get((task, device), EMPTY)


def spans(case: Case, table: sa.FromClause, conditions: Sequence[Condition] = (), by: str = "") -> Spans:
    """Merge the times of the selected rows that have an end, by process, or also by ``device`` or ``thread``."""
    columns = table.c
    device = columns[by] if by else sa.literal(_NO_DEVICE)
    times = job_start(table).label("start"), job_end(table).label("end")
    scope = case.scope if by == "device" else Selection(case.scope.window, case.scope.tasks)
    is_whole = (column.is_not(None) for column in (columns.end, columns.process, *([device] if by else [])))
    query = sa.select(columns.report, columns.process, device.label("device"), *times)
    query = query.where(*where(table, scope), *conditions, *is_whole)
    parts: dict[Place, list[tuple[Times, Times]]] = {}
    count = 0
    for batch in case.job.session.array_batches(query):
        count += len(batch["start"])
        for key, rows in rows_by_gpu(batch):
            parts.setdefault(case.gpu_of.get(key, key), []).append((rows["start"], rows["end"]))
    edges = {gpu: map(np.concatenate, zip(*spans, strict=True)) for gpu, spans in parts.items()}
    return Spans({gpu: union(*starts_and_ends) for gpu, starts_and_ends in edges.items()}, count)


def by_place(spans: Iterable[tuple[Task, int, int, int]]) -> dict[Place, Intervals]:
    """Merge spans (task, device, start, end) by process and device."""
    edges_by_device = grouped(((task, device), (start, end)) for task, device, start, end in spans)
    return {key: union(*map(list, zip(*edges, strict=True))) for key, edges in edges_by_device.items()}


MIX_COLUMNS = (
    Column("time", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    Column("launches", header="Instances", label="count", unit=Unit.COUNT), FAMILY, PRECISION, NAME,
)  # fmt: skip
"""The columns of a table of `NameWork`."""
PYTORCH, JAX, DALI = "PyTorch", "JAX", "DALI"
_FRAMEWORKS = {
    PYTORCH: r"\b(?:at|c10|aten|autograd)::|[Tt]orch|at_cuda_detail|multi_tensor_apply_kernel|\w_elementwise_kernel<"
    r"|^triton_(?:poi|red|per|tem|for)_",
    JAX: r"\bxla::|xla_extension|jaxlib|^jax|^XlaModule|^TSL:|^(?:loop|input)_\w*fusion|^wrapped_",
    DALI: r"\bdali::|libdali|^DALI\b",
}
"""Patterns of names that only a framework's kernels, NVTX ranges and libraries have."""


class NameWork(NamedTuple):
    """The launches of a kernel by full name; ``time``: their total duration over all GPUs, ns."""

    time: int
    launches: int
    family: str
    precision: str | None
    name: str


@once
def kernel_mix(case: Case) -> list[NameWork]:
    """Return all selected kernels, most time first."""
    table = tables.kernels
    name = sa.func.coalesce(table.c.name, "").label("name")
    time = sa.cast(sa.func.sum(duration(table)), sa.BigInteger).label("time")
    query = (
        sa.select(name, time, sa.func.count())
        .where(*where(table, case.scope), table.c.end.is_not(None))
        .group_by(name)
        .order_by(time.desc(), name)
    )
    session, rules = case.job.session, case.job.families
    rows = of_all_reports(session, case.scope, table, "kernel-mix", lambda: session.rows(query))
    return [NameWork(int(time), count, family_of(name, rules), precision_of(name), name) for name, time, count in rows]


@once
def frameworks(case: Case) -> frozenset[str]:
    """Return the known frameworks of the job; empty for a CUDA C++ program or without evidence."""
    session, used = case.job.session, set()
    for framework, pattern in _FRAMEWORKS.items():
        is_used = any(re.search(pattern, kernel.name) for kernel in kernel_mix(case))
        for table, text in ((tables.nvtx_ranges, LABEL), (tables.stack_names, tables.stack_names.c.name)):
            if not is_used and session.count(table):
                matches = sa.func.regexp_matches(text, pattern, type_=sa.Boolean)
                is_used = bool(session.rows(sa.select(sa.literal(1)).select_from(table).where(matches).limit(1)))
        if is_used:
            used.add(framework)
    return frozenset(used)


def by_framework(case: Case, usual: str, **words: str) -> str:
    """Return the first of ``words``, by lower-case framework, whose framework the job uses, else ``usual``."""
    return next((text for key, text in words.items() if key in {name.lower() for name in frameworks(case)}), usual)


def shares(works: Iterable[NameWork], key: Callable[[NameWork], str]) -> list[tuple[str, float]]:
    """Return the time of each group in % of all, largest first."""
    times = Counter[str]()
    for work in works:
        times[key(work)] += work.time
    total = times.total()
    return [(word, 100.0 * time / total) for word, time in times.most_common()] if total else []
