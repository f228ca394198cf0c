"""The budget of an iteration as tables: what a step spent its time on, and each step with its parts (docs/path.md).

Where a job has no steps, all of its time is one iteration, and a note says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import DEVICE, DURATION, FILES_ONLY, RANK, START, STEP, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import EMPTY, Times, intersect, union
from nsystui.questions.blocking.dependencies import unresolved_waits
from nsystui.questions.blocking.gain import RECOVERABLE, SPEEDUP, STANDING, Gain, Standing
from nsystui.questions.blocking.parts import BLOCKERS, PARTS, Iterations, blocked_in, blocking
from nsystui.questions.collectives.matching import Member
from nsystui.questions.collectives.waiting import NOBODY, Arrivals, waits_and_transfers
from nsystui.questions.host.time_budget import cause_words, causes_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import job_end, job_start
from nsystui.questions.queries.kernel_names import communicates, communicating
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.ranks.steps import SLOW, StepTimes, medians_of_phases, phase_column, phase_words, step_times
from nsystui.questions.steps.task_steps import NO_PHASE
from nsystui.store import tables

LABELS = {
    "compute": "compute",
    "starved": "launch-starved",
    "nccl": "blocked by NCCL",
    "communication": "blocked by other communication",
    "to_device": "blocked by copies to the GPU",
    "to_host": "blocked by copies to the host",
    "on_device": "blocked by copies on the GPU",
    "other_copies": "blocked by other copies",
    "memsets": "blocked by memsets",
    "stalled": "stalled",
    "unresolved": "unresolved",
    "tail": "tail",
}
NCCL_LABELS = {name: f"{LABELS['nccl']}: {name}" for name in ("transfer", "waiting", "not split")}
"""The parts of the time that NCCL blocked."""
SEND_AND_RECEIVE = f"{LABELS['nccl']}: send and receive"
"""What of that time was in NCCL's ``SendRecv`` kernels."""
_BLOCKED = "the next compute kernel had been launched and waited for this"
MEANINGS = {
    "iteration": "a step on the GPU, from the wait for its first operation to the next step",
    "GPU busy": "something ran: kernels, copies or memsets",
    "GPU idle": "nothing ran",
    "without compute": "no compute kernel ran; the parts below add up to this",
    **dict.fromkeys(LABELS.values(), _BLOCKED),
    LABELS["compute"]: "at least one kernel ran that does not communicate",
    LABELS["starved"]: "the GPU waited for the CPU: the next compute kernel had not been launched yet",
    LABELS["stalled"]: "the next compute kernel had been launched and waited for no operation: its start took so long",
    LABELS["unresolved"]: "when the next compute kernel was launched, or what it waited for, is not recorded",
    LABELS["tail"]: "after the last compute kernel nothing ran",
    NCCL_LABELS["transfer"]: "of this, the collective ran after its last rank had come",
    NCCL_LABELS["waiting"]: "of this, the collective waited for its last rank to come",
    NCCL_LABELS[
        "not split"
    ]: "of this, no other open rank has the same operation, or not all of its ranks wait for all",
    SEND_AND_RECEIVE: "of this, NCCL sent or received: the bubbles of a pipeline, or an all-to-all",
}
"""What each row of `budget_by_step` is the time of."""
STANDINGS = {
    **dict.fromkeys((LABELS[part] for part in ("starved", *BLOCKERS.values())), Standing.MEASURED),
    **dict.fromkeys((*NCCL_LABELS.values(), SEND_AND_RECEIVE), Standing.MEASURED),
    LABELS["stalled"]: Standing.INFERRED,
}
"""How it is known what could be won back, of the rows that block."""


@dataclass(frozen=True, eq=False)
class RankIterations:
    """The budgets of the iterations of a GPU with its rank, and its steps, none where it has no steps."""

    rank: int
    of: Iterations
    steps: StepTimes | None

    @property
    def numbers(self) -> Times | None:
        """The numbers of the steps."""
        return None if self.steps is None else self.steps.numbers

    @property
    def phases(self) -> Times:
        """The phase of each iteration: a code of `steps.phases.PHASES`."""
        return np.full(len(self.of), NO_PHASE, np.int64) if self.steps is None else self.steps.phases

    def is_slow(self) -> NDArray[np.bool_]:
        """Tell which take longer than usual in their phase."""
        return self.of.time > SLOW * medians_of_phases(self.of.time, self.phases)


def iterations(job: OpenJob, selection: Selection, step_name: str | None = None) -> list[RankIterations]:
    """Compute the budgets of the selected GPUs: of the steps that begin in the selection's window, by rank and device.

    A GPU without steps has one iteration: the window, or the time from its first operation to the end of its last.
    """
    found, window = blocking(job, step_name), selection.window
    steps = {task: one for task, one in step_times(job.steps(step_name)).items() if one.on_gpu}
    without = blocked_in(job, window) if window is not None and found.whole.keys() - found.iterations.keys() else {}
    kept, of_task = [], {task: list(keys) for task, keys in groupby(sorted(found.whole), key=itemgetter(0))}
    for item in selected_ranks(job.ranks, selection):
        for key in of_task.get(item.task, ()):
            own = found.iterations.get(key)
            if selection.devices is not None and key[1] not in selection.devices:
                continue
            if own is None:
                kept.append(RankIterations(item.rank, without.get(key, found.whole[key]), None))
                continue
            inside = np.ones(len(own), bool)
            if window is not None:
                inside = (own.starts >= window.start) & (own.starts < window.end)
            if inside.any():
                kept.append(RankIterations(item.rank, own.at(inside), steps[item.task].at(inside)))
    return kept


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
    RECOVERABLE.with_importance(1),
    SPEEDUP.with_importance(0),
    STANDING,
)


def budget_by_step(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the parts of an iteration over the selected GPUs; parts that no iteration can have are left out.

    ``share`` is the part of all their time. Compute and the rows below it add up to 100 %, except the rows that split
    the time blocked by NCCL. ``at_most`` is the share with the unresolved time that may belong to the part.
    ``recoverable`` is the mean part of an iteration, or its upper bound.
    """
    every = iterations(job, selection, step_name)
    if not every:
        return TableAnswer("step-budget", PART_COLUMNS, [], 0, notes_of(job, selection, every, step_name))
    sums, told = _sums(job, every)
    bounds = sum((one.of.parts + one.of.possible).sum(axis=0) for one in every)
    most = dict(zip(LABELS.values(), bounds.tolist(), strict=True))
    whole = sum(int(times.sum()) for times in sums["iteration"])
    is_open = any(one.of.part("unresolved").any() for one in every)
    rows = [
        _part_row(name, parts, [one.rank for one in every], most.get(name), whole)
        for name, parts in sums.items()
        if most.get(name) or any(part.any() for part in parts)
    ]
    notes = (*notes_of(job, selection, every, step_name), *told, *_causes(job, every))
    if is_open:
        return TableAnswer("step-budget", (*PART_COLUMNS[:2], AT_MOST, *PART_COLUMNS[2:]), rows, len(rows), notes)
    return TableAnswer("step-budget", PART_COLUMNS, [(*row[:2], *row[3:]) for row in rows], len(rows), notes)


def _sums(job: OpenJob, every: Sequence[RankIterations]) -> tuple[dict[str, list[Times]], list[str]]:
    """The times of each row in the iterations of each GPU, and a note on collectives."""
    sums = {"iteration": [one.of.time for one in every], "GPU busy": [one.of.busy for one in every]}
    sums["GPU idle"] = [one.of.time - one.of.busy for one in every]
    sums["without compute"] = [one.of.time - one.of.part("compute") for one in every]
    split, told = _nccl_split(job, every)
    for part in PARTS:
        sums[LABELS[part]] = [one.of.part(part) for one in every]
        if part == "nccl":
            sums |= {**split, SEND_AND_RECEIVE: _sending(job, every)}
    return sums, told


def _part_row(name: str, parts: Sequence[Times], ranks: Sequence[int], most: int | None, whole: int) -> Row:
    """Make the row of a part, which took ``parts`` of the iterations of each GPU, at most ``most`` in all, ns."""
    values = np.concatenate(parts)
    rank = ranks[int(np.argmax([float(np.median(part)) for part in parts]))] if len(ranks) > 1 else None
    total, count = int(values.sum()), len(values)
    figures = (float(np.median(values)), int(values.min()), int(values.max()), rank, count, total)
    won: Row = (None,) * 3
    bound = total if most is None else most
    if name in STANDINGS:
        is_bounded = bound > total and STANDINGS[name] is Standing.MEASURED
        standing = Standing.BOUNDED if is_bounded else STANDINGS[name]
        gain = Gain(round(bound / count), round(whole / count), standing)
        won = gain.recoverable, gain.speedup, gain.standing.value
    return (name, 100.0 * total / whole, None if most is None else 100.0 * most / whole, *figures, *won)


def _nccl_split(job: OpenJob, every: Sequence[RankIterations]) -> tuple[dict[str, list[Times]], list[str]]:
    """Split the time that NCCL blocked in each iteration of each GPU, by the collectives that open ranks share."""
    if not any(one.of.part("nccl").any() for one in every):
        return {}, []
    arrivals = [Arrivals.of(group) for group in job.collectives().groups]
    known = waits_and_transfers(arrivals)
    of_gpu = {Member(one.of.task, one.of.device): one.of for one in every}
    if known.keys().isdisjoint(of_gpu):
        return {}, ["blocked by NCCL is not split into transfer and waiting: no two open ranks share its collectives"]
    split: dict[str, list[Times]] = {name: [] for name in NCCL_LABELS.values()}
    for member, one in of_gpu.items():
        waits, transfers = (
            intersect(one.when["nccl"], times).covered(one.starts, one.ends)
            for times in known.get(member, (EMPTY, EMPTY))
        )
        for own, times in zip(split.values(), (transfers, waits, one.part("nccl") - transfers - waits), strict=True):
            own.append(times)
    return split, [_matched(job, arrivals, of_gpu)]


def _sending(job: OpenJob, every: Sequence[RankIterations]) -> list[Times]:
    """The time in each iteration of each GPU that NCCL blocked while one of its ``SendRecv`` kernels ran."""
    table = tables.kernels
    kernels: dict[tuple[Task, int], list[list[int]]] = {}
    if any(one.of.part("nccl").any() for one in every):
        keys = (table.c.report, table.c.process, table.c.device)
        query = sa.select(*keys, job_start(table), job_end(table)).where(
            table.c.is_nccl == 1, table.c.name.contains("SendRecv"), table.c.end.is_not(None)
        )
        for report, process, device, *times in job.session.rows(query):
            kernels.setdefault((Task(report, process), device), []).append(times)
    found = []
    for one in (item.of for item in every):
        starts, ends = np.array(kernels.get((one.task, one.device), ()), np.int64).reshape(-1, 2).T
        found.append(intersect(one.when["nccl"], union(starts, ends)).covered(one.starts, one.ends))
    return found


def _matched(job: OpenJob, arrivals: Sequence[Arrivals], of_gpu: Mapping[Member, Iterations]) -> str:
    """Say how many collectives of the iterations are matched, and who came last most often."""
    low, high = min(int(one.starts[0]) for one in of_gpu.values()), max(int(one.ends[-1]) for one in of_gpu.values())
    kernels, operations, last = 0, 0, Counter[Member]()
    for one in arrivals:
        start = one.group.start[:, one.operations]
        inside = (start >= low) & (start < high) & np.array([[member in of_gpu] for member in one.group.members])
        kernels, is_own = kernels + int(inside.sum()), inside.any(axis=0)
        operations += int(is_own.sum())
        last.update(one.group.members[place] for place in one.last[is_own & (one.last != NOBODY)].tolist())
    table, begin = tables.kernels, job_start(tables.kernels)
    place = table.c.report, table.c.process, table.c.device
    is_matched = communicates(communicating(job.session))  # collectives of other libraries are matched, too
    query = sa.select(*place, sa.func.count()).where(is_matched, begin >= low, begin < high).group_by(*place)
    every = [(Member(Task(*task), device), count) for *task, device, count in job.session.rows(query)]
    others = sum(count for member, count in every if member in of_gpu) - kernels
    words = f"NCCL: {operations:,} collectives are matched over the open ranks, {others:,} kernels are of no such one"
    if not last:
        return words
    (member, times), ranks = last.most_common(1)[0], {one.task: one.rank for one in job.ranks}
    return f"{words}; rank {ranks[member.task]} came last most often ({times:,} times)"


def notes_of(
    job: OpenJob, selection: Selection, every: Sequence[RankIterations], step_name: str | None
) -> tuple[str, ...]:
    """Return the notes of a budget of these iterations."""
    if not every:
        return job.busy(selection.with_name(None)).notes
    notes = list(job.steps(step_name).notes)
    if any(one.numbers is None for one in every):
        notes.append("where no step is known to have launched the work of a GPU, all of its time is one iteration")
    return (*notes, *unresolved_waits(job.session, {one.of.task for one in every}))


def _causes(job: OpenJob, every: Sequence[RankIterations]) -> list[str]:
    """What the CPU did while the GPUs waited for launches."""
    starved = [
        (one.of.task, one.of.device, intersect(one.of.when["starved"], union(one.of.starts, one.of.ends)))
        for one in every
    ]
    time = sum(int(one.of.part("starved").sum()) for one in every)
    if not time:
        return []
    (causes,) = causes_of(job, Selection(), [starved], [time])
    words = cause_words(causes, time)
    return [f"launch-starved time by cause: {words}"] if words else []


STEP_PART_COLUMNS = tuple(
    Column(
        part,
        header=f"{label[0].upper()}{label[1:]} (ns)",
        label=label.replace("blocked by", "by").replace("launch-", ""),
        unit=Unit.DURATION,
        compared="duration",
    )
    for part, label in LABELS.items()
)
STEP_BUDGET_COLUMNS = (
    RANK,
    DEVICE.with_importance(3),
    STEP,
    phase_column(()),
    START.with_importance(4),
    DURATION,
    Column("slow", header="Slow", label="slow", importance=1),
    *STEP_PART_COLUMNS,
)


def budget_of_each_step(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the budget of each step of each selected GPU, by rank and time; the largest parts matter most."""
    found = iterations(job, selection, step_name)
    every = [one for one in found if one.numbers is not None]
    rows: list[Row] = []
    for one in every:
        assert one.numbers is not None
        slow = ["slow" if is_slow else None for is_slow in one.is_slow()]
        numbers, phases, parts = one.numbers.tolist(), phase_words(one.phases), one.of.known.tolist()
        columns = (numbers, phases, one.of.starts.tolist(), one.of.time.tolist(), slow, parts)
        rows += [(one.rank, one.of.device, *values, *own) for *values, own in zip(*columns, strict=True)]
    importance = {**part_importance(every), "phase": phase_column(one.phases for one in every).importance}
    kept = (one.with_importance(importance.get(one.key, one.importance)) for one in STEP_BUDGET_COLUMNS)
    steps = job.steps(step_name)
    notes = notes_of(job, selection, every, step_name) if every or not found else steps.notes
    notes = (*notes, *([_ON_CPU] if found and steps.of_task and not rows else []))
    count = sum(len(one) for one in steps.of_task.values() if one.gpu.op_count.any())
    return TableAnswer("steps-budget", tuple(kept), rows, count, notes)


def part_importance(every: Sequence[RankIterations]) -> dict[str, int]:
    """Return the importance of the columns of `PARTS`: the largest first; impossible parts are for files."""
    times = sum(((one.of.parts + one.of.possible).sum(axis=0) for one in every), np.zeros(len(PARTS), np.int64))
    totals = dict(zip(PARTS, times.tolist(), strict=True))
    totals["stalled"] -= totals["unresolved"]  # all of which may be stalled
    largest = sorted(PARTS, key=lambda part: -totals[part])
    return {part: min(place, FILES_ONLY - 1) if totals[part] else FILES_ONLY for place, part in enumerate(largest)}


_ON_CPU = "no step is known to have launched GPU work: `nsystui steps --every` has their times on the CPU"


def steps_side_by_side(
    job: OpenJob, selection: Selection, rank: int | None = None
) -> tuple[Times, NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers of the selected steps ``(n,)``, their `PARTS` ``(n, len(PARTS))``, ns, and which are slow.

    They are those of a rank, or means over all selected GPUs.
    """
    every = [one for one in iterations(job, selection) if one.numbers is not None and rank in (None, one.rank)]
    own = [one.numbers for one in every if one.numbers is not None]
    numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *own]))
    sums, counts = np.zeros((len(numbers), len(PARTS))), np.zeros((len(numbers), 1))
    phases = np.full(len(numbers), NO_PHASE)
    for one, of_gpu in zip(every, own, strict=True):
        places = np.searchsorted(numbers, of_gpu)
        np.add.at(sums, places, one.of.parts)
        np.add.at(counts, places, 1)
        phases[places] = one.phases
    means = sums / counts
    times = means.sum(axis=1)
    return numbers, means, times > SLOW * medians_of_phases(times, phases)


def unprofiled_note(job: OpenJob, selection: Selection, time: int, step_name: str | None = None) -> str:
    """Compare the median step with one that took ``time`` ns without the profiler, and with the work of its GPU.

    What an unprofiled step leaves beside the GPU's work is CPU time that no GPU work hides. Empty without steps.
    """
    every = [one for one in iterations(job, selection, step_name) if one.numbers is not None]
    if not every:
        return ""
    median = float(np.median(np.concatenate([one.of.time for one in every])))
    busy = float(np.median(np.concatenate([one.of.busy for one in every])))
    words = [format_value(Unit.DURATION, value) for value in (time, median, busy, time - busy)]
    alone = (
        f"which leaves {words[3]} of an unprofiled step to the CPU alone" if busy < time else "which fills that step"
    )
    return (
        f"without the profiler a step takes {words[0]}, in this capture {words[1]} "
        f"({100 * (median / time - 1):+.1f} %); the GPU works for {words[2]} of it, {alone}"
    )
