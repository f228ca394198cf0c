"""Tables of the budget of an iteration, and of each step, with the largest possible gains (docs/path.md).

Without steps, the job's time is one iteration, with a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, DURATION, FILES_ONLY, RANK, START, STEP, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted, ranks_named
from nsystui.base.types import Flags, Floats
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import EMPTY, Times, intersect, union
from nsystui.questions.blocking.dependencies import unresolved_waits
from nsystui.questions.blocking.parts import BLOCKERS, PARTS, Iterations, blocked_in, blocking
from nsystui.questions.capture.launch_account import lost_work_notes
from nsystui.questions.gpu.utilisation import by_gpu, selected_devices
from nsystui.questions.host.time_budget import cause_words, causes_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.communication import communicates, communicating
from nsystui.questions.queries.conditions import job_end, job_start
from nsystui.questions.queries.data_notes import unrecorded_notes
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.ranks.steps import (
    SLOW,
    StepTimes,
    begin_in,
    medians_of_phases,
    phase_column,
    phase_words,
    step_times,
)
from nsystui.questions.steps.task_steps import NO_PHASE
from nsystui.store import tables

if TYPE_CHECKING:
    from nsystui.questions.collectives.matching import Member
    from nsystui.questions.collectives.waiting import Arrivals


class Standing(Enum):
    """How a gain is known."""

    MEASURED = "measured"  # operations and calls show that all of it blocked the GPU
    BOUNDED = "bounded"  # some of it may not have blocked the GPU, or may not be avoidable
    INFERRED = "inferred"  # the export does not show its purpose, or that the work is avoidable


_MAX_FACTOR = 10
"""A larger factor is shown only as times: whatever remains would then take the most time."""


@dataclass(frozen=True)
class Gain:
    """The largest possible gain in an iteration, the mean over the GPUs, ns (docs/path.md#gains).

    ``includes``: ids of findings whose gain may be the same time. ``is_step``: whether the iteration is a step.
    """

    recoverable: int
    iteration: int
    standing: Standing
    includes: tuple[str, ...] = ()
    is_step: bool = True

    @property
    def speedup(self) -> float | None:
        """The largest possible speed-up, T / (T - R); ``None`` if all of the time is recoverable."""
        remaining = self.iteration - self.recoverable
        return self.iteration / remaining if remaining else None

    @property
    def words(self) -> str:
        """``at most 8.53 ms of a step of 116.4 ms, 1.08 times as fast (measured; may include straggler)``."""
        won, total = (format_value(Unit.DURATION, time) for time in (self.recoverable, self.iteration))
        factor = f", {self.speedup:.2f} times as fast" if 1.005 <= (self.speedup or 0) < _MAX_FACTOR else ""
        others = f"; may include {', '.join(self.includes)}" if self.includes else ""
        return f"at most {won} of {'a step of ' if self.is_step else ''}{total}{factor} ({self.standing.value}{others})"


RECOVERABLE = Column(
    "recoverable", header="Recoverable per Iteration (ns)", label="could save", unit=Unit.DURATION, importance=3
)
SPEEDUP = Column("speedup", header="Speed-up at Most", label="max speed-up", unit=Unit.RATIO, decimals=4, importance=4)
STANDING = Column("standing", header="Standing", label="standing", importance=5)


LABELS = {
    "compute": "compute", "starved": "late launches", "nccl": "blocked by NCCL",
    "communication": "blocked by other communication", "to_device": "blocked by copies to the GPU",
    "to_host": "blocked by copies to the host", "on_device": "blocked by copies on the GPU",
    "other_copies": "blocked by other copies", "memsets": "blocked by memsets",
    "migrations": "blocked by unified memory", "host_functions": "blocked by host functions", "stalled": "stalled",
    "in_graph": "in CUDA graphs", "unresolved": "unresolved", "tail": "tail",
}  # fmt: skip
NCCL_LABELS = {name: f"{LABELS['nccl']}: {name}" for name in ("transfer", "waiting", "not split")}
"""The parts of the time blocked by NCCL."""
SEND_AND_RECEIVE = f"{LABELS['nccl']}: send and receive"
"""The part blocked in ``SendRecv`` kernels."""
_BLOCKED = "the next compute kernel was already launched and waited for this"
MEANINGS = {
    "iteration": "a step on the GPU, from the wait for its first operation to the next step",
    "GPU busy": "something ran: kernels, copies or memsets",
    "GPU idle": "nothing ran",
    "without compute": "no compute kernel ran; the parts below add up to this",
    **dict.fromkeys(LABELS.values(), _BLOCKED),
    LABELS["compute"]: "at least one kernel ran that does not communicate",
    LABELS["starved"]: "the GPU waited for the CPU: the next compute kernel had not been launched yet",
    LABELS["stalled"]: "the next compute kernel was already launched, and no operation held it up: it started late",
    LABELS["in_graph"]: "between kernels of a running CUDA graph: traced node by node, it may be the tracing's own",
    LABELS["unresolved"]: "when the next compute kernel was launched, or what it waited for, is not recorded",
    LABELS["tail"]: "after the last compute kernel nothing ran",
    NCCL_LABELS["transfer"]: "of this, the collective ran after its last rank had arrived",
    NCCL_LABELS["waiting"]: "of this, the collective waited for its last rank",
    NCCL_LABELS[
        "not split"
    ]: "of this, no other open rank has the same operation, or its ranks do not all wait for each other",
    SEND_AND_RECEIVE: "of this, NCCL sent or received: the bubbles of a pipeline, or an all-to-all",
}
"""The meaning of each row of `budget_by_step`."""
STANDINGS = {
    **dict.fromkeys((LABELS[part] for part in ("starved", *BLOCKERS.values())), Standing.MEASURED),
    **dict.fromkeys((*NCCL_LABELS.values(), SEND_AND_RECEIVE), Standing.MEASURED),
    LABELS["stalled"]: Standing.INFERRED,
}
"""The standing of the possible gain, by row."""


@dataclass(frozen=True, eq=False)
class RankIterations:
    """The budgets of a GPU's iterations, its rank, and its steps, or ``None`` without steps."""

    rank: int
    of: Iterations
    steps: StepTimes | None

    @property
    def numbers(self) -> Times | None:
        """The numbers of the steps."""
        return None if self.steps is None else self.steps.numbers

    @property
    def phases(self) -> Times:
        """Each iteration's phase code (`steps.phases.PHASES`)."""
        return np.full(len(self.of), NO_PHASE, np.int64) if self.steps is None else self.steps.phases

    def is_slow(self) -> Flags:
        """Return which iterations are slow for their phase."""
        return self.of.time > SLOW * medians_of_phases(self.of.time, self.phases)


def iterations(job: OpenJob, selection: Selection, step_name: str | None = None) -> list[RankIterations]:
    """Compute the selected GPUs' budgets of steps that begin in the window, by rank and device.

    If no GPU has steps, each has one iteration: the window, or the time from its first operation to its last. A GPU
    that processes share has the iterations of the process with the longest steps in sum.
    """
    blocked, window = blocking(job, step_name), selection.window
    steps = {task: times for task, times in step_times(job.steps(step_name)).items() if times.on_gpu}
    ranks, devices = {item.task: item.rank for item in selected_ranks(job.ranks, selection)}, selection.devices
    keys = {key for key in blocked.whole if key[0] in ranks and (devices is None or key[1] in devices)}
    in_steps = sorted(keys & blocked.iterations.keys())
    whole = blocked_in(job, window) if window is not None and not in_steps else {}
    gpus = [RankIterations(ranks[k[0]], whole.get(k, blocked.whole[k]), None) for k in sorted(keys) if not in_steps]
    for task, device in in_steps:
        budget, inside = blocked.iterations[task, device], np.ones(len(steps[task].numbers), bool)
        if window is not None:
            inside = begin_in(window, task.report, budget.starts, steps[task].numbers)
        if inside.any():
            gpus.append(RankIterations(ranks[task], budget.at(inside), steps[task].at(inside)))
    groups = by_gpu(job.session, selected_devices(job.session, selection, job.ranks))
    numbers = {device.key: number for number, group in enumerate(groups) for device in group}
    gpus.sort(key=lambda gpu: -int(gpu.of.time.sum()))
    first = {numbers.get(key := (gpu.of.task, gpu.of.device), key): gpu for gpu in reversed(gpus)}
    return sorted(first.values(), key=lambda gpu: (gpu.rank, gpu.of.device))


AT_MOST = Column("at_most", header="At Most (%)", label="at most %", unit=Unit.PERCENT, decimals=2)
PART_COLUMNS = (
    Column("part", header="Part", label="part"),
    Column("share", header="Share (%)", label="share %", unit=Unit.PERCENT, decimals=2, has_bar=True),
    Column("median", header="Median (ns)", label="median", unit=Unit.DURATION, decimals=0),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=2),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=1),
    Column("most", header="Most at Rank", label="most at rank", unit=Unit.NUMBER, importance=3),
    Column("count", header="Iterations", label="iterations", unit=Unit.COUNT, importance=2),
    Column("total", header="Total (ns)", label="total", unit=Unit.DURATION, importance=4),
    RECOVERABLE.with_importance(1), SPEEDUP.with_importance(0), STANDING,
)  # fmt: skip


def budget_by_step(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the parts of an iteration over the selected GPUs, except parts that no iteration can have.

    ``share`` is of all their time. Compute and the rows below add up to 100 %, without the rows that split the time
    blocked by NCCL. ``at_most`` adds unresolved time that may belong to the part. ``recoverable`` is the mean part of
    an iteration, or its upper bound.
    """
    gpus = iterations(job, selection, step_name)
    if not gpus:
        return TableAnswer("step-budget", PART_COLUMNS, [], 0, notes_of(job, selection, gpus, step_name))
    sums, nccl_notes = _sums(job, gpus)
    upper_bounds = sum((gpu.of.parts + gpu.of.possible).sum(axis=0) for gpu in gpus)
    bound_of = dict(zip(LABELS.values(), upper_bounds.tolist(), strict=True))
    total_time = sum(int(times.sum()) for times in sums["iteration"])
    if any(gpu.of.lacks_work for gpu in gpus):
        busy, idle = (sum(int(times.sum()) for times in sums[name]) for name in ("GPU busy", "GPU idle"))
        bound_of |= {"GPU busy": total_time - idle, "GPU idle": total_time - busy}
    has_unresolved = any(gpu.of.part("unresolved").any() for gpu in gpus)
    rows = [
        _part_row(name, parts, [gpu.rank for gpu in gpus], bound_of.get(name), total_time)
        for name, parts in sums.items()
        if bound_of.get(name) or any(part.any() for part in parts)
    ]
    notes = (*notes_of(job, selection, gpus, step_name), *nccl_notes, *_causes(job, gpus))
    if has_unresolved:
        return TableAnswer("step-budget", (*PART_COLUMNS[:2], AT_MOST, *PART_COLUMNS[2:]), rows, len(rows), notes)
    return TableAnswer("step-budget", PART_COLUMNS, [(*row[:2], *row[3:]) for row in rows], len(rows), notes)


def _sums(job: OpenJob, gpus: Sequence[RankIterations]) -> tuple[dict[str, list[Times]], list[str]]:
    sums = {"iteration": [gpu.of.time for gpu in gpus], "GPU busy": [gpu.of.busy for gpu in gpus]}
    sums["GPU idle"] = [(gpu.of.time - gpu.of.busy) * (not gpu.of.lacks_work) for gpu in gpus]
    sums["without compute"] = [gpu.of.time - gpu.of.part("compute") for gpu in gpus]
    split, notes = _nccl_split(job, gpus)
    for part in PARTS:
        sums[LABELS[part]] = [gpu.of.part(part) for gpu in gpus]
        if part == "nccl":
            sums |= {**split, SEND_AND_RECEIVE: _sending(job, gpus)}
    return sums, notes


def _part_row(name: str, parts: Sequence[Times], ranks: Sequence[int], upper: int | None, all_time: int) -> Row:
    values = np.concatenate(parts)
    rank = ranks[int(np.argmax([float(np.median(part)) for part in parts]))] if len(ranks) > 1 else None
    total, count = int(values.sum()), len(values)
    figures = (float(np.median(values)), int(values.min()), int(values.max()), rank, count, total)
    cells: Row = (None,) * 3
    bound = total if upper is None else upper
    if name in STANDINGS:
        is_bounded = bound > total and STANDINGS[name] is Standing.MEASURED
        standing = Standing.BOUNDED if is_bounded else STANDINGS[name]
        gain = Gain(round(bound / count), round(all_time / count), standing)
        cells = gain.recoverable, gain.speedup, gain.standing.value
    return (name, 100.0 * total / all_time, None if upper is None else 100.0 * upper / all_time, *figures, *cells)


def _nccl_split(job: OpenJob, gpus: Sequence[RankIterations]) -> tuple[dict[str, list[Times]], list[str]]:
    """Split each GPU's time blocked by NCCL, per iteration, by collectives that open ranks share."""
    if not any(gpu.of.part("nccl").any() for gpu in gpus):
        return {}, []
    from nsystui.questions.collectives.waiting import Arrivals, waits_and_transfers

    arrivals = [Arrivals.of(group) for group in job.collectives().groups]
    times_by_member = waits_and_transfers(arrivals)
    from nsystui.questions.collectives.matching import Member

    budget_of = {Member(gpu.of.task, gpu.of.device): gpu.of for gpu in gpus}
    if times_by_member.keys().isdisjoint(budget_of):
        return {}, ["blocked by NCCL is not split into transfer and waiting: no two open ranks share its collectives"]
    split: dict[str, list[Times]] = {name: [] for name in NCCL_LABELS.values()}
    for member, budget in budget_of.items():
        waits, transfers = (
            intersect(budget.when["nccl"], times).covered(budget.starts, budget.ends)
            for times in times_by_member.get(member, (EMPTY, EMPTY))
        )
        for row, times in zip(split.values(), (transfers, waits, budget.part("nccl") - transfers - waits), strict=True):
            row.append(times)
    return split, [_matched(job, arrivals, budget_of)]


def _sending(job: OpenJob, gpus: Sequence[RankIterations]) -> list[Times]:
    """Return each GPU's time blocked by NCCL during ``SendRecv`` kernels, by iteration."""
    table = tables.kernels
    kernels: dict[tuple[Task, int], list[list[int]]] = {}
    if any(gpu.of.part("nccl").any() for gpu in gpus):
        keys = (table.c.report, table.c.process, table.c.device)
        query = sa.select(*keys, job_start(table), job_end(table)).where(
            table.c.is_nccl == 1, table.c.name.contains("SendRecv"), table.c.end.is_not(None)
        )
        for report, process, device, *times in job.session.rows(query):
            kernels.setdefault((Task(report, process), device), []).append(times)
    sending = []
    for budget in (gpu.of for gpu in gpus):
        starts, ends = np.array(kernels.get((budget.task, budget.device), ()), np.int64).reshape(-1, 2).T
        sending.append(intersect(budget.when["nccl"], union(starts, ends)).covered(budget.starts, budget.ends))
    return sending


def _matched(job: OpenJob, arrivals: Sequence[Arrivals], by_gpu: Mapping[Member, Iterations]) -> str:
    from nsystui.questions.collectives.matching import Member
    from nsystui.questions.collectives.waiting import NOBODY

    low, high = min(int(gpu.starts[0]) for gpu in by_gpu.values()), max(int(gpu.ends[-1]) for gpu in by_gpu.values())
    kernels, operations, last = 0, 0, Counter[Member]()
    for calls in arrivals:
        start = calls.group.start[:, calls.operations]
        inside = (start >= low) & (start < high) & np.array([[member in by_gpu] for member in calls.group.members])
        kernels, is_inside = kernels + int(inside.sum()), inside.any(axis=0)
        operations += int(is_inside.sum())
        last.update(calls.group.members[member] for member in calls.last[is_inside & (calls.last != NOBODY)].tolist())
    table, begin = tables.kernels, job_start(tables.kernels)
    keys = table.c.report, table.c.process, table.c.device
    is_matched = communicates(communicating(job.session))  # collectives of other libraries are matched, too
    query = sa.select(*keys, sa.func.count()).where(is_matched, begin >= low, begin < high).group_by(*keys)
    counts = [(Member(Task(*task), device), count) for *task, device, count in job.session.rows(query)]
    rest = sum(count for member, count in counts if member in by_gpu) - kernels
    unmatched = f"{counted(rest, 'kernel', 'belong')} to no matched collective"
    collectives = counted(operations, "collective")
    if not last:
        return f"NCCL: {collectives} matched over the open ranks, {unmatched}"
    (member, times), ranks = last.most_common(1)[0], {rank.task: rank.rank for rank in job.ranks}
    return f"NCCL: rank {ranks[member.task]} arrived last in {times:,} of {collectives} ({unmatched})"


_LEAST_UNRESOLVED = 0.01
"""The share of unresolved time that gets a note."""


def notes_of(
    job: OpenJob, selection: Selection, gpus: Sequence[RankIterations], step_name: str | None
) -> tuple[str, ...]:
    """Return the notes of a budget."""
    if not gpus:
        return job.busy(selection.with_name(None)).notes
    notes = list((steps := job.steps(step_name)).notes)
    notes += unrecorded_notes(job.session, selected_ranks(job.ranks, selection))
    if gpus[0].numbers is None:
        notes.append("a GPU whose work no step launched has one iteration: all of its time")
    elif without := [item.rank for item in selected_ranks(job.ranks, selection) if item.task not in steps.of_task]:
        notes.append(f"the budget of a step is unknown for {ranks_named(without)} (no steps)")
    notes += lost_work_notes(job.session, selection)
    waits = unresolved_waits(job.session, {gpu.of.task for gpu in gpus})
    whole = [gpu.of for gpu in gpus if not gpu.of.lacks_work]
    parts = sum((of.parts.sum(axis=0) for of in whole), np.zeros(len(PARTS), np.int64))
    if not waits and parts[PARTS.index("unresolved")] > _LEAST_UNRESOLVED * parts.sum():
        waits = ["waits between streams are not in the export: any earlier work may have blocked the unresolved time"]
    return (*notes, *waits)


def _causes(job: OpenJob, gpus: Sequence[RankIterations]) -> list[str]:
    budgets = [gpu.of for gpu in gpus]
    starved = [((of.task, of.device), intersect(of.when["starved"], union(of.starts, of.ends))) for of in budgets]
    time = sum(int(of.part("starved").sum()) for of in budgets)
    if not time:
        return []
    (causes,) = causes_of(job, Selection(), [starved], [time])
    words = cause_words(causes, time)
    return [f"late launches by cause: {words}"] if words else []


STEP_PART_COLUMNS = tuple(
    Column(
        part, header=f"{label[0].upper()}{label[1:]} (ns)", label=label.replace("blocked by", "by"),
        unit=Unit.DURATION, compared="duration",
    ) for part, label in LABELS.items()
)  # fmt: skip
STEP_BUDGET_COLUMNS = (
    RANK, DEVICE.with_importance(3), STEP, phase_column(()), START.with_importance(4), DURATION,
    Column("slow", header="Slow", label="slow", importance=1), *STEP_PART_COLUMNS,
)  # fmt: skip


def budget_of_each_step(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the budget of each selected GPU's steps, by rank and time."""
    all_gpus = iterations(job, selection, step_name)
    gpus = [gpu for gpu in all_gpus if gpu.numbers is not None]
    rows: list[Row] = []
    for gpu in gpus:
        assert gpu.numbers is not None
        slow = ["slow" if is_slow else None for is_slow in gpu.is_slow()]
        numbers, phases, parts = gpu.numbers.tolist(), phase_words(gpu.phases), gpu.of.known.tolist()
        columns_of_gpu = (numbers, phases, gpu.of.starts.tolist(), gpu.of.time.tolist(), slow, parts)
        rows += [(gpu.rank, gpu.of.device, *values, *times) for *values, times in zip(*columns_of_gpu, strict=True)]
    importance = {**part_importance(gpus), "phase": phase_column(gpu.phases for gpu in gpus).importance}
    columns = (column.with_importance(importance.get(column.key, column.importance)) for column in STEP_BUDGET_COLUMNS)
    steps = job.steps(step_name)
    notes = notes_of(job, selection, gpus, step_name) if gpus or not all_gpus else steps.notes
    notes = (*notes, *([_ON_CPU] if all_gpus and steps.of_task and not rows else []))
    count = sum(len(task_steps) for task_steps in steps.of_task.values() if task_steps.gpu.op_count.any())
    return TableAnswer("steps-budget", tuple(columns), rows, count, notes)


def part_importance(gpus: Sequence[RankIterations]) -> dict[str, int]:
    """Return the importance of `PARTS` columns by size; impossible parts are only for files."""
    times = sum(((gpu.of.parts + gpu.of.possible).sum(axis=0) for gpu in gpus), np.zeros(len(PARTS), np.int64))
    totals = dict(zip(PARTS, times.tolist(), strict=True))
    totals["stalled"] -= totals["unresolved"]  # all of it may be stalled
    largest = sorted(PARTS, key=lambda part: -totals[part])
    return {part: min(index, FILES_ONLY - 1) if totals[part] else FILES_ONLY for index, part in enumerate(largest)}


_ON_CPU = "no step is known to have launched GPU work: `nsystui steps --every` has their times on the CPU"


def steps_side_by_side(job: OpenJob, selection: Selection, rank: int | None = None) -> tuple[Times, Floats, Flags]:
    """Return the selected steps' numbers ``(n,)``, `PARTS` ``(n, len(PARTS))``, ns, and which are slow.

    The parts belong to ``rank``, or are means over all selected GPUs.
    """
    if rank is not None:
        selection = selection.with_tasks(frozenset(item.task for item in job.ranks if item.rank == rank))
    gpus = [gpu for gpu in iterations(job, selection) if gpu.numbers is not None]
    step_numbers = [gpu.numbers for gpu in gpus if gpu.numbers is not None]
    numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *step_numbers]))
    sums, counts = np.zeros((len(numbers), len(PARTS))), np.zeros((len(numbers), 1))
    phases = np.full(len(numbers), NO_PHASE)
    for gpu, gpu_numbers in zip(gpus, step_numbers, strict=True):
        indices = np.searchsorted(numbers, gpu_numbers)
        np.add.at(sums, indices, gpu.of.parts)
        np.add.at(counts, indices, 1)
        phases[indices] = gpu.phases
    means = sums / counts
    times = means.sum(axis=1)
    return numbers, means, times > SLOW * medians_of_phases(times, phases)


def unprofiled_note(job: OpenJob, selection: Selection, time: int, step_name: str | None = None) -> str:
    """Compare the median step with an unprofiled step of ``time`` ns, and with its GPU's work.

    The rest of an unprofiled step is CPU time that no GPU work hides. The note is empty without steps.
    """
    gpus = [gpu for gpu in iterations(job, selection, step_name) if gpu.numbers is not None]
    if not gpus:
        return ""
    median = float(np.median(np.concatenate([gpu.of.time for gpu in gpus])))
    busy = float(np.median(np.concatenate([gpu.of.busy for gpu in gpus])))
    words = [format_value(Unit.DURATION, value) for value in (time, median, busy, time - busy)]
    alone = (
        f"which leaves {words[3]} of an unprofiled step to the CPU alone" if busy < time else "which fills that step"
    )
    return (
        f"without the profiler a step takes {words[0]}, in this capture {words[1]} "
        f"({100 * (median / time - 1):+.1f} %); the GPU works for {words[2]} of it, {alone}"
    )
