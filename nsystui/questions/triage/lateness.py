"""Late ranks, the time that other ranks lose by them, and why they are late (docs/triage.md#lateness)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import few_numbers
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect, union
from nsystui.questions.collectives.matching import Matrix, Member
from nsystui.questions.collectives.waiting import NOBODY, Arrivals, Lateness, lateness
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.triage.case import Case, spans, time_words
from nsystui.questions.triage.kernel_mix import by_framework
from nsystui.store import tables

_RANGES = (
    "dataload", "data load", "data_load", "load data", "load_data", "loading data", "data_iter",
    "next_batch", "next batch", "get_batch", "fetch_batch", "fetch batch", "load_batch", "load batch",
)  # fmt: skip
"""Words in the names of ranges in which a program reads input."""
LOADER, STALL, KERNELS = "loader", "stall", "kernels"
_PARTS = ("window", "idle", "loading", "kernels")


@dataclass(frozen=True)
class Cause:
    """Why a rank is late: ``kind``, and what takes longer than on the other ranks in ``words``."""

    kind: str = ""
    words: str = ""


@dataclass(frozen=True, eq=False)
class LateRank:
    """A rank for which others wait. ``loss`` is the exposed wait of each other GPU, ``cost`` its mean over all, ns.

    ``by_step``: its delay after the first rank by number of the step, ns. ``together``: ranks that are as late as it.
    """

    item: RankedTask
    lateness: Lateness
    loss: int
    cost: int
    by_step: Mapping[int, int]
    together: tuple[int, ...]
    is_straggler: bool
    cause: Cause


@dataclass(frozen=True)
class LateRanks:
    """All late ranks, and the lateness and exposed wait (``suffered``, ns) of each rank with collectives."""

    ranks: tuple[LateRank, ...] = ()
    lateness: Mapping[Task, Lateness] = field(default_factory=dict)
    suffered: Mapping[Task, int] = field(default_factory=dict)

    @property
    def stragglers(self) -> tuple[LateRank, ...]:
        return tuple(rank for rank in self.ranks if rank.is_straggler)


def late_ranks(case: Case) -> LateRanks:
    """Return the late ranks of the job, computed once."""
    return case.once("late ranks", partial(_late_ranks, case))


def _late_ranks(case: Case) -> LateRanks:
    # The selection may lack the late rank.
    groups = case.job.collectives().groups if len(case.job.ranks) > 1 else ()
    is_selected = [any(member.task in case.tasks for member in group.members) for group in groups]
    arrivals = [
        Arrivals.of(group, case.scope.window) for group, chosen in zip(groups, is_selected, strict=True) if chosen
    ]
    lateness_by_task = lateness(arrivals)
    if not lateness_by_task:
        return LateRanks()
    members = sorted({member for arrival in arrivals for member in arrival.group.members})
    late, lost = _lost(case, arrivals, members)
    gpu_counts = Counter(task for device in case.devices for task in device.tasks)
    suffered = dict.fromkeys(lateness_by_task, 0)
    for member, time in zip(members, lost.sum(axis=0).tolist(), strict=True):
        suffered[member.task] += time
    times, limits, ranks = dict(zip(late, lost.sum(axis=1).tolist(), strict=True)), case.thresholds, []
    total = sum(case.mean([time]) for time in times.values())
    for item in case.job.ranks:
        if item.task in times:
            time = times[item.task]
            cost, loss = case.mean([time]), time // max(len(case.devices) - gpu_counts[item.task], 1)
            is_large = case.percent(loss) >= limits.straggler_percent and 100 * cost >= limits.straggler_share * total
            by_step, together = _by_step(case, arrivals, item.task)
            cause = _cause(case, arrivals, item.task, by_step) if is_large else Cause()
            late_rank = LateRank(item, lateness_by_task[item.task], loss, cost, by_step, together, is_large, cause)
            ranks.append(late_rank)
    return LateRanks(tuple(ranks), lateness_by_task, suffered)


def _lost(case: Case, arrivals: Sequence[Arrivals], members: Sequence[Member]) -> tuple[list[Task], Matrix]:
    """Return the late tasks, and the time that each cost each member, ns, shape ``(tasks, members)``."""
    late = sorted({item.group.members[index].task for item in arrivals for index in set(item.last.tolist()) - {NOBODY}})
    late_indices = {task: index for index, task in enumerate(late)}
    spans: dict[Member, list[tuple[Times, Times, Times]]] = {member: [] for member in members}
    for arrival in arrivals:
        has_last = arrival.last != NOBODY
        operations, last = arrival.operations[has_last], arrival.last[has_last]
        tasks = np.array([late_indices.get(member.task, NOBODY) for member in arrival.group.members], np.int64)[last]
        for index, member in enumerate(arrival.group.members):
            spans[member].append((arrival.group.start[index, operations], arrival.group.end[index, operations], tasks))
    devices = {Member(gpu.device.task.task, gpu.device.device): gpu for gpu in case.job.busy(Selection()).devices}
    exposed = np.zeros((len(late), len(members)), np.int64)
    took_part = np.zeros(exposed.shape, np.bool_)
    for column, member in enumerate(members):
        starts, ends, tasks = (np.concatenate(parts) for parts in zip(*spans[member], strict=True))
        took_part[tasks, column] = True
        exposed[:, column] = _exposed(starts, ends, tasks, len(late), devices.get(member))
    is_late = np.array([[member.task == task for member in members] for task in late], bool).reshape(exposed.shape)
    floor = np.where(is_late & took_part, exposed, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    is_selected = np.array([member.task in case.tasks for member in members], bool)
    lost = np.where(took_part & ~is_late & is_selected, np.maximum(exposed - floor[:, None], 0), 0)
    return late, lost


def _exposed(starts: Times, ends: Times, tasks: Times, count: int, device: DeviceIntervals | None) -> Times:
    """Return a member's kernel time that no other kernel hides, by late task, ns, shape ``(count,)``."""
    exposed = np.zeros(count, np.int64)
    order = np.argsort(starts, kind="stable")
    if (starts[order][1:] < ends[order][:-1]).any():  # concurrent kernels of several streams count once
        merged = {task: union(starts[tasks == task], ends[tasks == task]) for task in np.unique(tasks).tolist()}
        starts, ends = (np.concatenate([getattr(part, key) for part in merged.values()]) for key in ("starts", "ends"))
        tasks = np.repeat(list(merged), [len(part) for part in merged.values()])
    np.add.at(exposed, tasks, ends - starts)
    if device is not None:
        kernels = device.parts.kernels
        np.subtract.at(exposed, tasks, kernels.before(ends)[0] - kernels.before(starts)[0])
    return exposed


def _by_step(case: Case, arrivals: Sequence[Arrivals], task: Task) -> tuple[Mapping[int, int], tuple[int, ...]]:
    """Return a late rank's delays by step, and the ranks that wait as little."""
    by_step: Counter[int] = Counter()
    waits: Counter[Task] = Counter()
    late = 0
    times = case.steps.get(task)
    for batch in arrivals:
        for index, member in enumerate(batch.group.members):
            rows = np.flatnonzero(batch.last == index)
            if member.task != task or not len(rows):
                continue
            late += int(batch.spread[rows].sum())
            waits.update(
                {other.task: int(wait[rows].sum()) for other, wait in zip(batch.group.members, batch.wait, strict=True)}
            )
            starts = batch.group.start[index, batch.operations[rows]]
            steps = np.searchsorted(times.start, starts, side="right") - 1 if times is not None else []
            for step, delay in zip(steps, batch.spread[rows].tolist(), strict=False):
                if times is not None and step >= 0:
                    by_step[int(times.numbers[step])] += delay
    numbers = {item.task: item.rank for item in case.job.ranks}
    return by_step, tuple(sorted(numbers[other] for other, wait in waits.items() if other != task and 10 * wait < late))


def _cause(case: Case, arrivals: Sequence[Arrivals], task: Task, by_step: Mapping[int, int]) -> Cause:
    """Return what takes longer on a late rank than on the others, from the end of the collective before.

    The part of the GPU's time with half of the delay or more is the cause; idle time is the data loader's if half of
    it is in a loader's range.
    """
    devices = {(gpu.device.task.task, gpu.device.device): gpu for gpu in case.devices}
    loading, excess, count = case.once("loading", lambda: loading_ranges(case)), np.zeros(len(_PARTS)), 0
    for batch in arrivals:
        is_late = np.array([member.task == task for member in batch.group.members])[batch.last] & (batch.last != NOBODY)
        operations = batch.operations[is_late & (batch.operations > 0)]
        known = [member for member in batch.group.members if (member.task, member.device) in devices]
        if not len(operations) or task not in {member.task for member in known} or len(known) < 2:
            continue
        spent = []
        for member in known:
            device, index = devices[member.task, member.device], batch.group.members.index(member)
            start, end = batch.group.end[index, operations - 1], batch.group.start[index, operations]
            idle = device.idle(Window(int(start.min()), max(int(end.max()), int(start.min()))))
            parts = (idle, intersect(idle, loading.get(member.task, EMPTY)), device.parts.kernels)
            spent.append([(end - start).sum(), *(int(part.covered(start, end).sum()) for part in parts)])
        is_own = np.array([member.task == task for member in known])
        excess += np.mean(np.array(spent)[is_own], axis=0) - np.median(np.array(spent)[~is_own], axis=0)
        count += len(operations)
    delay, idle_time, loading_time, kernels = excess.tolist()
    kind, time = KERNELS, kernels
    if 2 * idle_time >= delay:
        kind, time = (LOADER, loading_time) if 2 * loading_time >= idle_time else (STALL, idle_time)
    if not count or delay <= 0 or 2 * time < delay:
        return Cause()
    steps = len(case.steps[task]) if task in case.steps else 0
    late = [number for number in by_step if by_step[number] > 0]
    when = f" longer in {len(late)} of {steps} steps ({few_numbers(late)})"
    if 2 * len(late) >= steps:
        when = " longer a step" if late else " longer before a collective"
    what = {LOADER: "its data loader takes", STALL: "its GPU idles", KERNELS: "its kernels take"}[kind]
    return Cause(kind, f"{what} {time_words(time / (min(count, len(late)) or count))}{when}")


def loading_ranges(case: Case) -> dict[Task, Intervals]:
    """Return when each process was in an NVTX range of a data loader."""
    session, table = case.job.session, tables.nvtx_ranges
    if not session.count(table):
        return {}
    # One expression: a search for each word takes ten times as long.
    is_named = sa.func.regexp_matches(FOLDED_LABEL, "|".join(_RANGES), "i", type_=sa.Boolean)
    first = sa.select(FOLDED_LABEL).where(*where(table, case.scope), is_named).limit(1)
    if not of_all_reports(session, case.scope, table, "ranges of loaders", lambda: session.rows(first)):
        return {}
    ranges = spans(case, table, [is_named])
    return {task: intervals for (task, _), intervals in ranges.merged.items()}


def loader_advice(case: Case) -> str:
    """Return what to try if a GPU waits for its data loader."""
    cheaper = "make samples cheaper to prepare"
    return by_framework(
        case,
        f"Load on more threads or processes, prefetch more, {cheaper}, or prepare them on the GPU.",
        dali=f"Give DALI more threads (num_threads) and longer queues (prefetch_queue_depth), {cheaper}, or prepare "
        'more of them on the GPU (device="mixed").',
        pytorch=f"Give the DataLoader more workers (num_workers) and prefetch more (prefetch_factor), {cheaper}, or "
        "prepare them on the GPU (DALI).",
    )
