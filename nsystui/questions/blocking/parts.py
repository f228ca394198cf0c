"""What blocked the GPU: the time of each iteration in parts that add up to it (docs/path.md#budget).

*Compute* is the union of the kernels that do not communicate, over all streams of a GPU. Every stretch without compute
ends at a compute kernel and is split, in this order:

* *launch-starved*: until the call that launched the kernel returned;
* *blocked*, by the kind of the kernel's producer (`dependencies`): from there until the producer ended;
* *stalled*: from there until the kernel began, also while it waited for compute of another GPU;
* *unresolved*, instead of all three, if the launch of the kernel is not known.

Where a wait or its record is not in the export, another operation may have ended after the known producer and before
the kernel began. Then what follows the launch is unresolved, too, until the last of these ended. Unresolved time has
bounds: `Iterations.possible`.

After the last compute kernel the copies, memsets and communication that still run block the end; the rest is *tail*.
Exposed communication is communication that no compute kernel hides; it blocks only if the next kernel had been launched
and waited for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Task, Window
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect, merge, subtract, union
from nsystui.questions.blocking.dependencies import (
    COMMUNICATION,
    COMPUTE,
    MEMSET,
    NCCL,
    NONE,
    ON_DEVICE,
    OTHER_COPY,
    TO_DEVICE,
    TO_HOST,
    Operations,
    operations_of,
)
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.derived import in_runs, of_each_report
from nsystui.questions.queries.kernel_names import communicating
from nsystui.questions.queries.process_rows import ProcessRows
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.questions.queries.time_window import report_at
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Computation, Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

BLOCKERS = {
    NCCL: "nccl",
    COMMUNICATION: "communication",
    TO_DEVICE: "to_device",
    TO_HOST: "to_host",
    ON_DEVICE: "on_device",
    OTHER_COPY: "other_copies",
    MEMSET: "memsets",
}
PARTS = ("compute", "starved", *BLOCKERS.values(), "stalled", "unresolved", "tail")
"""The parts of an iteration, which add up to it exactly."""

LONG = 1_000_000
"""When a stretch without compute of at least these ns was launch-starved is kept."""
_LONGEST = 100
"""The number of shorter stretches, the most starved, that are kept too."""
_OPERATION = 450
"""Bytes that an operation takes with its launch, its dependencies and its part of the budget."""


@dataclass(frozen=True, eq=False)
class Gaps:
    """The n stretches without compute of a GPU, ns, shapes ``(n,)``: each ends at the operation ``ended_by``.

    Launch-starved until ``launched``, blocked by an operation of ``kind`` until ``freed``, unresolved until ``held``,
    stalled until ``end``. ``possible``: until when the unresolved time may belong to each of `PARTS`. A tail has no
    ``ended_by`` (``NONE``).
    """

    start: Times
    launched: Times
    freed: Times
    held: Times
    end: Times
    kind: NDArray[np.int64]
    ended_by: Times
    possible: Mapping[str, Times]

    def part(self, name: str) -> Intervals:
        """Return the times of a part of the budget; ``compute`` is not one of them."""
        if name == "starved":
            return _real(self.start, self.launched)
        if name == "unresolved":
            return _real(self.freed, self.held)
        if name in ("stalled", "tail"):
            is_own = (self.ended_by == NONE) == (name == "tail")
            return _real(self.held[is_own], self.end[is_own])
        is_own = self.kind == next(kind for kind, part in BLOCKERS.items() if part == name)
        return _real(self.launched[is_own], self.freed[is_own])


def _real(starts: Times, ends: Times) -> Intervals:
    """The intervals that have a length; they are in order, and may touch."""
    is_real = ends > starts
    return Intervals(starts[is_real], ends[is_real])


def gaps_of(work: Operations, device: int, window: Window) -> Gaps:
    """Split the stretches of ``window`` (the clock of ``work``) in which a GPU runs no compute kernel."""
    computes = np.flatnonzero((work.device == device) & (work.kind == COMPUTE))
    begins = work.start[computes]
    reach = np.maximum.accumulate(np.append(window.start, work.end[computes]))
    start, end = reach, np.append(begins, window.end)
    is_gap = (end > start) & (start < window.end)
    ended_by = np.append(computes, NONE)[is_gap]
    start, end = start[is_gap], end[is_gap]
    # What no operation ended, or none held up, finds the last value.
    returned, inside, producer, unseen = (
        np.append(values, NONE)[ended_by] for values in (work.returned, work.inside_graph, work.producer, work.unseen)
    )
    is_known = (returned != NONE) & (inside == 0)
    is_lost = ~is_known & (ended_by != NONE)
    launched = np.where(is_known, np.clip(returned, start, end), start)
    producer = np.where(is_known, producer, NONE)
    kind = np.append(work.kind, COMPUTE)[producer]
    until = np.clip(np.append(work.end, NONE)[producer], launched, end)
    # Compute that ends within the gap is another GPU's, and has no part of its own.
    freed = np.where(kind == COMPUTE, launched, until)
    unseen = np.where(is_known, unseen, np.where(is_lost, np.iinfo(np.int64).max, NONE))
    last = {number: work.last_ended(work.kind == number, ended_by, unseen, launched) for number in (COMPUTE, *BLOCKERS)}
    held = np.where(is_lost, end, np.minimum(np.maximum.reduce([*last.values()]), end))
    is_open = is_lost | (held > until)
    last |= {number: np.where(kind == number, np.maximum(freed, ended), ended) for number, ended in last.items()}
    possible = {part: last[number] for number, part in BLOCKERS.items()}
    possible |= {"starved": np.where(returned == NONE, end, launched), "stalled": held}
    kind, freed = np.where(is_open, COMPUTE, kind), np.where(is_open, launched, freed)
    times = [start, launched, freed, np.where(is_open, held, freed), end]
    start, launched, freed, held, end = (np.minimum(moment, window.end) for moment in times)
    possible = {part: np.clip(possible.get(part, freed), freed, held) for part in PARTS}
    return Gaps(start, launched, freed, held, end, kind, ended_by, possible)


KEPT = ("starved", "nccl")
"""The parts of which it is kept when they were: launch-starved in long stretches, and all that NCCL blocked."""


@dataclass(frozen=True, eq=False)
class Iterations:
    """The budgets of n iterations of a GPU: ``parts`` of shape ``(n, len(PARTS))``, ``busy`` ``(n,)``, ns.

    ``possible``, of the same shape: how much of the unresolved time may belong to each part.
    ``starts``, ``ends``: job time. ``when``: the stretches of time of `KEPT`, which may reach beyond them.
    """

    task: Task
    device: int
    starts: Times
    ends: Times
    parts: Times
    busy: Times
    possible: Times
    when: Mapping[str, Intervals]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def time(self) -> Times:
        """How long each took, ns."""
        return self.ends - self.starts

    def at(self, chosen: NDArray[np.bool_]) -> Iterations:
        """Some of them."""
        names = ("starts", "ends", "parts", "busy", "possible")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    def part(self, name: str) -> Times:
        """The time of one of `PARTS` in each, ns."""
        return self.parts[:, PARTS.index(name)]

    @property
    def known(self) -> NDArray[Any]:
        """``parts`` with ``None`` instead of 0 where a part may have time, as objects."""
        found = self.parts.astype(object)
        found[(self.parts == 0) & (self.possible > 0)] = None
        return found


def budgets_of(
    work: Operations, device: int, window: Window, starts: Times, ends: Times
) -> tuple[Times, Times, Times, dict[str, Intervals]]:
    """Find the parts, the busy and the possible times in ``window`` of the iterations of a GPU, and when `KEPT` were.

    See `Iterations`; all on the clock of ``work``.
    """
    starts, ends = (np.clip(times, window.start, window.end) for times in (starts, ends))
    gaps = gaps_of(work, device, Window(int(starts.min()), int(ends.max())))
    own = work.device == device
    is_compute = own & (work.kind == COMPUTE)
    times = {part: gaps.part(part).covered(starts, ends) for part in PARTS[1:]}
    times["compute"] = union(work.start[is_compute], work.end[is_compute]).covered(starts, ends)
    tail, nccl = gaps.part("tail"), gaps.part("nccl")
    for kind, part in BLOCKERS.items() if len(tail) else ():
        is_kind = own & (work.kind == kind)
        running = intersect(tail, union(work.start[is_kind], work.end[is_kind]))
        times[part] += running.covered(starts, ends)
        times["tail"] -= running.covered(starts, ends)
        nccl = merge(nccl, running) if kind == NCCL else nccl
        tail = subtract(tail, running)
    parts = np.stack([times[part] for part in PARTS], axis=1)
    # What the window cuts may be long.
    is_kept = (gaps.end - gaps.start >= LONG) | (gaps.start <= window.start) | (gaps.end >= window.end)
    is_kept[np.argsort(gaps.start - gaps.launched, kind="stable")[:_LONGEST]] = True
    when = {"starved": _real(gaps.start[is_kept], gaps.launched[is_kept]), "nccl": nccl}
    possible = np.stack([_real(gaps.freed, until).covered(starts, ends) for until in gaps.possible.values()], axis=1)
    return parts, union(work.start[own], work.end[own]).covered(starts, ends), possible, when


def bounds(parts: Mapping[str, float], possible: Mapping[str, float], names: Collection[str]) -> tuple[float, float]:
    """Return the least and the most time of some parts together, with what of unresolved time may be theirs."""
    least, unresolved = sum(parts[name] for name in names), 0.0 if "unresolved" in names else parts["unresolved"]
    return least, least + min(unresolved, sum(possible.get(name, 0) for name in names))


@dataclass(frozen=True, eq=False)
class Blocking:
    """The budgets of each GPU (task, CUDA ordinal) that worked: of its iterations, and of all of its time as one row.

    ``whole`` is from the first operation of the GPU to the end of its last.
    """

    iterations: Mapping[tuple[Task, int], Iterations]
    whole: Mapping[tuple[Task, int], Iterations]


def blocking(job: OpenJob, step_name: str | None = None) -> Blocking:
    """Find what blocked each GPU, in each of its iterations and over all; kept with the job, and with its exports."""
    return job.once(("blocking", step_name), lambda: _load(job, step_name))


def blocked_in(job: OpenJob, window: Window) -> Mapping[tuple[Task, int], Iterations]:
    """Find what blocked each GPU in a window of job time, which is one iteration."""
    session, found = job.session, {}
    communication, offsets = communicating(session), {one.index: one.clock_offset for one in session.reports}
    spans = _spans(session, offsets)
    for rows in ProcessRows.each(session, spans):
        task, offset = rows.task, offsets[rows.task.report]
        edges = np.array([window.start, window.end]) - offset
        own_window = Window(*edges.tolist())
        work = operations_of(rows, None if rows.is_shared else own_window, communication)
        for device in spans[task]:
            parts, busy, possible, kept = budgets_of(work, device, own_window, edges[:1], edges[1:])
            when = {part: times.shifted(offset) for part, times in kept.items()}
            low, high = np.array([window.start]), np.array([window.end])
            found[task, device] = Iterations(task, device, low, high, parts, busy, possible, when)
    return found


def _load(job: OpenJob, step_name: str | None) -> Blocking:
    edges: dict[Task, tuple[Times, Times]] = {}
    for task, own in step_times(job.steps(step_name)).items():
        if own.on_gpu:
            start = own.start - report_at(job.session, task.report).clock_offset
            edges[task] = start, start + own.duration
    compute = partial(_arrays, edges)
    reports, is_chosen = job.session.reports, {step_name, job.step_range, job.steps_by} != {None}
    if is_chosen:
        runs = in_runs(job.session, reports, compute, tables.kernels, "what blocked")
        found = {index: arrays for run in runs for index, arrays in run.items()}
    else:
        fits = partial(_are_of, edges)  # the steps of a report depend on the other reports
        found = of_each_report(job.session, reports, "blocking", compute, fits, tables.kernels, "what blocked")
    iterations: dict[tuple[Task, int], Iterations] = {}
    whole: dict[tuple[Task, int], Iterations] = {}
    for report in reports:
        arrays, first, first_kept = found[report.index], 0, 0
        every = Intervals(arrays["kept_starts"], arrays["kept_ends"]).shifted(report.clock_offset)
        keys = (arrays[key].tolist() for key in ("process", "device", "count", *KEPT))
        for process, device, count, *numbers in zip(*keys, strict=True):
            task, when = Task(report.index, process), {}
            for part, number in zip(KEPT, numbers, strict=True):
                rows, first_kept = slice(first_kept, first_kept + number), first_kept + number
                when[part] = Intervals(every.starts[rows], every.ends[rows])
            for kept, last in ((whole, first + 1), (iterations, first + count)):
                rows, first = slice(first, last), last
                starts, ends = (arrays[edge][rows] + report.clock_offset for edge in _EDGES)
                if len(starts):
                    parts, possible = (arrays[key].reshape(-1, len(PARTS))[rows] for key in ("parts", "possible"))
                    busy = arrays["busy"][rows]
                    kept[task, device] = Iterations(task, device, starts, ends, parts, busy, possible, when)
    return Blocking(iterations, whole)


_EDGES = ("starts", "ends")


def _are_of(edges: Mapping[Task, tuple[Times, Times]], report: Report, arrays: Arrays) -> bool:
    """Return whether the budgets of `_arrays` were computed for these iterations."""
    first = 0
    for process, count in zip(arrays["process"].tolist(), arrays["count"].tolist(), strict=True):
        own = edges.get(Task(report.index, process), (np.zeros(0, np.int64),) * 2)
        rows = slice(first + 1, first + count)
        if not all(np.array_equal(arrays[key][rows], edge) for key, edge in zip(_EDGES, own, strict=True)):
            return False
        first += count
    return True


def _arrays(edges: Mapping[Task, tuple[Times, Times]], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """The budgets of the GPUs of each report in a row: ``count`` rows each, of which the first is `Blocking.whole`."""
    communication = communicating(session)
    names = ("process", "device", "count", *KEPT, *_EDGES, "parts", "busy", "possible", "kept_starts", "kept_ends")
    none = np.zeros(0, np.int64)
    found: dict[int, dict[str, list[Times]]] = {report.index: {name: [none] for name in names} for report in reports}
    spans = _spans(session, found)
    for process in ProcessRows.each(session, spans):
        task = process.task
        own = {
            device: tuple(np.append(edge, more) for edge, more in zip(span, edges.get(task, (none, none)), strict=True))
            for device, span in spans[task].items()
        }
        nothing = {device: np.zeros((len(starts), len(PARTS)), np.int64) for device, (starts, _) in own.items()}
        sums = {device: (none.copy(), 0 * own[device][0], none) for device, none in nothing.items()}
        when = {device: dict.fromkeys(KEPT, EMPTY) for device in own}
        windows = _slices(process, [(int(starts.min()), int(ends.max())) for starts, ends in own.values()])
        for done, window in enumerate(windows):
            if len(windows) > 1:
                session.tell(Computation("what blocked", done, len(windows), "slices"))
            work = operations_of(process, window if len(windows) > 1 else None, communication)
            for device, (starts, ends) in own.items():
                *more, kept = budgets_of(work, device, window, starts, ends)
                for total, part in zip(sums[device], more, strict=True):
                    total += part
                when[device] = {part: merge(times, kept[part]) for part, times in when[device].items()}
        for device, (starts, ends) in own.items():
            every = when[device].values()
            numbers = (np.array([one]) for one in (task.process, device, len(starts), *map(len, every)))
            edges_of = (np.concatenate([getattr(times, edge) for times in every]) for edge in _EDGES)
            values = (*numbers, starts, ends, *(total.reshape(-1) for total in sums[device]), *edges_of)
            for array, value in zip(found[task.report].values(), values, strict=True):
                array.append(value)
    return {index: {key: np.concatenate(parts) for key, parts in arrays.items()} for index, arrays in found.items()}


def _spans(session: Session, reports: Collection[int]) -> dict[Task, dict[int, tuple[int, int]]]:
    """From the first operation of each GPU of each process to the end of the last, own clock."""
    found: dict[Task, dict[int, tuple[int, int]]] = {}
    for table in map(tables.of, GPU_TABLES):
        if not session.count(table):
            continue
        columns = table.c
        place = (columns.report, columns.process, columns.device)
        query = sa.select(*place, sa.func.min(columns.start), sa.func.max(columns.end)).group_by(*place)
        is_whole = (columns.device.is_not(None), columns.start.is_not(None), columns.end.is_not(None))
        query = query.where(of_reports(columns.report, reports), *is_whole)
        for report, process, device, start, end in session.rows(query):
            of_task = found.setdefault(Task(report, process), {})
            low, high = of_task.get(device, (start, end))
            of_task[device] = min(low, start), max(high, end)
    return found


def _slices(rows: ProcessRows, spans: Collection[tuple[int, int]]) -> list[Window]:
    """The time of a process in slices with about as many kernels each as fit into memory; of shared rows one."""
    columns, session = tables.kernels.c, rows.session
    edges = [min(start for start, _ in spans), max(end for _, end in spans)]
    number = session.count(tables.kernels) // session.limits.rows_at_once(_OPERATION)
    if number and not rows.is_shared:
        shares = [place / (number + 1) for place in range(1, number + 1)]
        is_own = (columns.report == rows.task.report, columns.process == rows.task.process)
        # All from one digest of the times, which costs more than all else in the query.
        cuts = sa.func.approx_quantile(columns.start, sa.literal_column(str(shares)))
        edges += session.scalar(sa.select(cuts).where(*is_own)) or []
    edges = sorted({int(edge) for edge in edges if edge is not None})
    return [Window(start, end) for start, end in pairwise(edges)]
