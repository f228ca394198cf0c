"""The time of each iteration in parts that add up: compute, and the GPU's blockers (docs/path.md#budget).

Each stretch without compute ends at a compute kernel, and is split in this order:

* *launch-starved*: until the call that launched the kernel returned;
* *blocked*, by the kind of the kernel's producer (`dependencies`): until the producer ended, then by a migration;
* *stalled*: until the kernel began, also while it waited for another GPU's compute;
* *unresolved*, instead of all three, if the kernel's launch is unknown;
* *in a graph*, instead of launch-starved and stalled, if the kernel is a node of a CUDA graph that already runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Array, Flags, Ints
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect, merge, subtract, union
from nsystui.questions.blocking.dependencies import (
    COMMUNICATION,
    COMPUTE,
    HOST_FUNCTION,
    MEMSET,
    MIGRATION,
    NCCL,
    NONE,
    ON_DEVICE,
    OTHER_COPY,
    TO_DEVICE,
    TO_HOST,
    Operations,
    operations_of,
)
from nsystui.questions.capture.launch_account import lost_work
from nsystui.questions.gpu.utilisation import by_gpu, selected_devices
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.communication import communicating
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.derived import in_runs, of_each_report
from nsystui.questions.queries.pauses import unseen
from nsystui.questions.queries.process_rows import ProcessRows
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.questions.queries.time_window import report_at
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Computation, Session

BLOCKERS = {
    NCCL: "nccl", COMMUNICATION: "communication", TO_DEVICE: "to_device", TO_HOST: "to_host", ON_DEVICE: "on_device",
    OTHER_COPY: "other_copies", MEMSET: "memsets", MIGRATION: "migrations", HOST_FUNCTION: "host_functions",
}  # fmt: skip
PARTS_OF = {
    "kernels": ("compute", "nccl", "communication"),
    "memory_ops": ("to_device", "to_host", "on_device", "other_copies", "memsets"),
    "graph_launches": ("compute",),
}
PARTS = ("compute", "starved", *BLOCKERS.values(), "stalled", "in_graph", "unresolved", "tail")
"""The parts of an iteration, which add up to it exactly."""

LONG = 1_000_000
"""From this length, ns, stretches without compute keep their launch-starved time."""
_MAX_SHORT = 100
"""The number of shorter stretches, the most starved, that also keep it."""
_OPERATION_BYTES = 900
"""Memory per operation, including launch, dependencies and budget."""


@dataclass(frozen=True, eq=False)
class Gaps:
    """The n stretches without compute of a GPU, ns, shapes ``(n,)``; each ends at the operation ``ended_by``.

    A stretch is launch-starved until ``launched``, blocked by an operation of ``kind`` until ``passed`` (stalled for
    ``COMPUTE``), by a migration until ``freed``, unresolved until ``held``, stalled or in a graph (``is_inside``) until
    ``end``. Unresolved time may belong to each of `PARTS` until ``possible``. A tail has no ``ended_by`` (``NONE``).
    """

    start: Times
    launched: Times
    passed: Times
    freed: Times
    held: Times
    end: Times
    kind: Ints
    ended_by: Times
    is_inside: Flags
    possible: Mapping[str, Times]

    def part(self, name: str) -> Intervals:
        """Return the times of a budget part, except ``compute``."""
        if name == "starved":
            return _real(self.start, self.launched)
        if name == "unresolved":
            return _real(self.freed, self.held)
        if name == "migrations":
            return _real(self.passed, self.freed)
        is_kind = self.kind == next((kind for kind, part in BLOCKERS.items() if part == name), COMPUTE)
        blocked = _real(self.launched[is_kind], self.passed[is_kind])
        if name not in ("stalled", "in_graph", "tail"):
            return blocked
        is_rest = np.where(self.is_inside, "in_graph", np.where(self.ended_by == NONE, "tail", "stalled")) == name
        rest = _real(self.held[is_rest], self.end[is_rest])
        return merge(rest, blocked) if name == "stalled" else rest


def _real(starts: Times, ends: Times) -> Intervals:
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
    # NONE, the index of a missing operation or producer, selects the appended value.
    returned, inside_graph, producer, unseen = (
        np.append(column, NONE)[ended_by] for column in (work.returned, work.inside_graph, work.producer, work.unseen)
    )
    is_known = (returned != NONE) & (inside_graph == 0)
    is_lost, is_inside = (returned == NONE) & (ended_by != NONE), (returned != NONE) & (inside_graph > 0)
    launched = np.where(is_known, np.clip(returned, start, end), start)
    producer = np.where(is_known, producer, NONE)
    migration = np.where(is_known, np.append(work.migration, NONE)[ended_by], NONE)
    kind, ends = np.append(work.kind, COMPUTE)[producer], np.append(work.end, NONE)
    # Compute that ends within the gap is another GPU's.
    passed = np.clip(ends[producer], launched, end)
    freed = until = np.maximum(passed, np.clip(ends[migration], launched, end))
    unseen = np.where(is_lost | is_inside, np.iinfo(np.int64).max, unseen)
    before = dict.fromkeys((COMPUTE, *(code for code in BLOCKERS if (work.kind == code).any())), unseen)
    before |= {MIGRATION: np.where(is_known, NONE, unseen)} if MIGRATION in before else {}
    last = {code: work.last_ended(work.kind == code, ended_by, calls, launched) for code, calls in before.items()}
    held = np.where(is_lost, end, np.minimum(np.maximum.reduce([*last.values()]), end))
    is_open = is_lost | (held > until)
    blocked = {code: np.where(kind == code, passed, launched) for code in last}
    blocked |= {MIGRATION: np.where(freed > passed, freed, launched)}
    last = {code: np.maximum(blocked[code], ended) for code, ended in last.items()}
    possible = {part: last[code] for code, part in BLOCKERS.items() if code in last}
    possible |= {"starved": np.where(returned == NONE, end, launched)}
    possible |= {"stalled": np.where(is_inside, start, held), "in_graph": np.where(is_inside, held, start)}
    passed, freed = (np.where(is_open, launched, moment) for moment in (passed, freed))
    times = [start, launched, passed, freed, np.where(is_open, held, freed), end]
    start, launched, passed, freed, held, end = (np.minimum(moment, window.end) for moment in times)
    possible = {part: np.clip(possible.get(part, freed), freed, held) for part in PARTS}
    return Gaps(start, launched, passed, freed, held, end, kind, ended_by, is_inside, possible)


KEPT = ("starved", "nccl")
"""The parts whose stretches are kept: long launch-starved stretches, and all time blocked by NCCL."""


@dataclass(frozen=True, eq=False)
class Iterations:
    """The budgets of n iterations of a GPU: ``parts`` of shape ``(n, len(PARTS))``, ``busy`` ``(n,)``, ns.

    ``possible``, of the shape of ``parts``: unresolved time that may belong to each part. ``starts``, ``ends``: job
    time. ``when``: the stretches of `KEPT`, which may extend beyond the iterations.
    """

    task: Task
    device: int
    starts: Times
    ends: Times
    parts: Times
    busy: Times
    possible: Times
    when: Mapping[str, Intervals]
    unknown: tuple[str, ...] = ()  # the parts whose operations were not recorded
    lacks_work: bool = False  # whether ``busy`` is a lower bound

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def time(self) -> Times:
        """Each iteration's length without pauses between captures, ns."""
        return np.asarray(self.parts.sum(axis=1), np.int64)

    def at(self, is_chosen: Flags) -> Iterations:
        """Return the iterations with ``is_chosen``."""
        names = ("starts", "ends", "parts", "busy", "possible")
        return replace(self, **{name: getattr(self, name)[is_chosen] for name in names})

    def part(self, name: str) -> Times:
        """Return the time of one of `PARTS` in each iteration, ns."""
        return self.parts[:, PARTS.index(name)]

    def without_work(self, lost: Collection[str]) -> Iterations:
        """Return iterations whose idle time, or all but compute if compute is ``lost``, is unresolved."""
        names, lost_parts = np.array(PARTS), {part for table in lost for part in PARTS_OF[table]}
        lacks_compute, is_lost = "compute" in lost_parts, np.isin(PARTS, [*lost_parts])
        is_seen = (names == "compute") | (np.isin(PARTS, [*BLOCKERS.values()]) & (not lacks_compute))
        parts, possible = np.where(is_seen, self.parts, 0), self.possible + np.where(is_seen, 0, self.parts)
        rest = self.time - parts.sum(axis=1)
        possible[:, is_lost & ((names == "compute") | possible.any(axis=0))] = rest[:, None]
        parts[:, PARTS.index("unresolved")], possible[:, PARTS.index("unresolved")] = rest, 0
        unknown, when = (*self.unknown, *names[is_lost].tolist()), {**self.when, "starved": EMPTY}
        when |= {"nccl": EMPTY} if lacks_compute else {}
        return replace(self, parts=parts, possible=possible, when=when, unknown=unknown, lacks_work=True)

    @property
    def known(self) -> Array:
        """``parts`` as objects, with ``None`` instead of 0 if the part may have time."""
        parts = self.parts.astype(object)
        parts[(self.parts == 0) & ((self.possible > 0) | np.isin(PARTS, self.unknown))] = None
        return parts


def budgets_of(
    work: Operations, device: int, window: Window, starts: Times, ends: Times,
    pauses: Intervals, computed: Intervals, busy: Intervals,
) -> tuple[Times, Times, Times, dict[str, Intervals]]:  # fmt: skip
    """Return parts, busy and possible times of a GPU's iterations in ``window``, and the stretches of `KEPT`.

    See `Iterations`; all on the clock of ``work``. ``computed``, ``busy``: see `_shared_work`.
    """
    counted = merge(computed, pauses)
    starts, ends = (np.clip(times, window.start, window.end) for times in (starts, ends))
    gaps = gaps_of(work, device, Window(int(starts.min()), int(ends.max())))
    is_on_gpu = work.device == device
    is_compute = is_on_gpu & (work.kind == COMPUTE)
    without_compute = {part: subtract(gaps.part(part), counted) for part in PARTS[1:]}
    times = {part: intervals.covered(starts, ends) for part, intervals in without_compute.items()}
    times["compute"] = merge(union(work.start[is_compute], work.end[is_compute]), computed).covered(starts, ends)
    tail, nccl = without_compute["tail"], without_compute["nccl"]
    for kind, part in BLOCKERS.items() if len(tail) else ():
        is_kind = is_on_gpu & (work.kind == kind)
        running = intersect(tail, union(work.start[is_kind], work.end[is_kind]))
        times[part] += running.covered(starts, ends)
        times["tail"] -= running.covered(starts, ends)
        nccl = merge(nccl, running) if kind == NCCL else nccl
        tail = subtract(tail, running)
    parts = np.stack([times[part] for part in PARTS], axis=1)
    # Stretches that the window cuts may be long.
    is_kept = (gaps.end - gaps.start >= LONG) | (gaps.start <= window.start) | (gaps.end >= window.end)
    is_kept[np.argsort(gaps.start - gaps.launched, kind="stable")[:_MAX_SHORT]] = True
    when = {"starved": subtract(_real(gaps.start[is_kept], gaps.launched[is_kept]), counted), "nccl": nccl}
    unresolved = (subtract(_real(gaps.freed, until), counted) for until in gaps.possible.values())
    possible = np.stack([intervals.covered(starts, ends) for intervals in unresolved], axis=1)
    is_on_gpu &= work.kind != HOST_FUNCTION
    busy = merge(union(work.start[is_on_gpu], work.end[is_on_gpu]), busy)
    return parts, busy.covered(starts, ends), possible, when


def bounds(parts: Mapping[str, float], possible: Mapping[str, float], names: Collection[str]) -> tuple[float, float]:
    """Return the least and most time of some parts together; the most includes possible unresolved time."""
    lower, unresolved = sum(parts[name] for name in names), 0.0 if "unresolved" in names else parts["unresolved"]
    return lower, lower + min(unresolved, sum(possible.get(name, 0) for name in names))


_Budgets = Mapping[tuple[Task, int], Iterations]


@dataclass(frozen=True, eq=False)
class Blocking:
    """The budgets of each working GPU (task, CUDA ordinal): of its iterations, and of its whole time as one row.

    The whole time is from its first operation to the end of its last. A shared GPU has a budget in each process.
    """

    iterations: _Budgets
    whole: _Budgets


def _with_unknown(job: OpenJob, budgets: _Budgets) -> _Budgets:
    lost = lost_work(job.session)
    silent = {report.index for report in job.session.reports if not report.has(tables.host_functions)}
    known = {key: replace(of, unknown=("host_functions",) * (key[0].report in silent)) for key, of in budgets.items()}
    return {key: of.without_work(lost[key]) if key in lost else of for key, of in known.items()}


def blocking(job: OpenJob, step_name: str | None = None) -> Blocking:
    """Find each GPU's blockers, per iteration and in total; cached in the job, and with its exports."""
    return job.once(("blocking", step_name), lambda: _load(job, step_name))


_SharedWork = Mapping[tuple[Task, int], tuple[Intervals, Intervals]]


def _shared_work(job: OpenJob) -> _SharedWork:
    """Return compute and busy time of GPUs that processes share, by process and device; own clock."""
    shared: dict[tuple[Task, int], tuple[Intervals, Intervals]] = defaultdict(lambda: (EMPTY, EMPTY))
    if all(len(group) == 1 for group in by_gpu(job.session, selected_devices(job.session, Selection(), job.ranks))):
        return shared  # reads no work
    for gpu in job.gpus(Selection()):
        for device in gpu.devices if gpu.others else ():
            offset, parts = report_at(job.session, device.task.task.report).clock_offset, gpu.parts
            compute, busy = merge(parts.kernels, parts.graph), merge(*parts.disjoint)
            shared[device.key] = compute.shifted(-offset), busy.shifted(-offset)
    return shared


def blocked_in(job: OpenJob, window: Window) -> _Budgets:
    """Find each GPU's blockers in a window of job time, which is one iteration."""
    session, iterations = job.session, {}
    communication, offsets = communicating(session), {report.index: report.clock_offset for report in session.reports}
    spans, shared = _spans(session, offsets), _shared_work(job)
    reports = {report.index: report for report in session.reports}
    for rows in ProcessRows.each(session, spans):
        task, offset = rows.task, offsets[rows.task.report]
        edges = np.array([window.start, window.end]) - offset
        local_window = Window(*edges.tolist())
        work = operations_of(rows, None if rows.is_shared else local_window, communication)
        paused = unseen(session, reports[task.report], task.process).shifted(-offset)
        for device in spans[task]:
            window_edges = (local_window, edges[:1], edges[1:], paused)
            parts, busy, possible, stretches = budgets_of(work, device, *window_edges, *shared[task, device])
            when = {part: times.shifted(offset) for part, times in stretches.items()}
            low, high = np.array([window.start]), np.array([window.end])
            iterations[task, device] = Iterations(task, device, low, high, parts, busy, possible, when)
    return _with_unknown(job, iterations)


def _load(job: OpenJob, step_name: str | None) -> Blocking:
    edges: dict[Task, tuple[Times, Times]] = {}
    for task, times in step_times(job.steps(step_name)).items():
        if times.on_gpu:
            start = times.start - report_at(job.session, task.report).clock_offset
            edges[task] = start, start + times.duration
    shared = _shared_work(job)
    compute = partial(_arrays, edges, shared)
    reports, is_custom = job.session.reports, {step_name, job.step_range, job.steps_by} != {None}
    if is_custom or shared:  # other reports may use a shared GPU
        runs = in_runs(job.session, reports, compute, tables.kernels, "what blocked")
        arrays_of = {index: arrays for run in runs for index, arrays in run.items()}
    else:
        is_valid = partial(_are_of, edges)  # the steps of a report depend on the other reports
        arrays_of = of_each_report(job.session, reports, "blocking", compute, is_valid, tables.kernels, "what blocked")
    iterations: dict[tuple[Task, int], Iterations] = {}
    all_time: dict[tuple[Task, int], Iterations] = {}
    for report in reports:
        arrays, first, first_kept = arrays_of[report.index], 0, 0
        intervals = Intervals(arrays["kept_starts"], arrays["kept_ends"]).shifted(report.clock_offset)
        keys = (arrays[key].tolist() for key in ("process", "device", "count", *KEPT))
        for process, device, count, *counts in zip(*keys, strict=True):
            task, when = Task(report.index, process), {}
            for part, size in zip(KEPT, counts, strict=True):
                rows, first_kept = slice(first_kept, first_kept + size), first_kept + size
                when[part] = intervals.chosen(rows)
            for budgets, last in ((all_time, first + 1), (iterations, first + count)):
                rows, first = slice(first, last), last
                starts, ends = (arrays[edge][rows] + report.clock_offset for edge in _EDGES)
                if len(starts):
                    parts, possible = (arrays[key].reshape(-1, len(PARTS))[rows] for key in ("parts", "possible"))
                    busy = arrays["busy"][rows]
                    budgets[task, device] = Iterations(task, device, starts, ends, parts, busy, possible, when)
    return Blocking(_with_unknown(job, iterations), _with_unknown(job, all_time))


_EDGES = ("starts", "ends")


def _are_of(edges: Mapping[Task, tuple[Times, Times]], report: Report, arrays: Arrays) -> bool:
    first = 0
    for process, count in zip(arrays["process"].tolist(), arrays["count"].tolist(), strict=True):
        task_edges = edges.get(Task(report.index, process), (np.zeros(0, np.int64),) * 2)
        rows = slice(first + 1, first + count)
        if not all(np.array_equal(arrays[key][rows], edge) for key, edge in zip(_EDGES, task_edges, strict=True)):
            return False
        first += count
    return True


def _arrays(
    edges: Mapping[Task, tuple[Times, Times]], shared: _SharedWork, session: Session, reports: list[Report]
) -> dict[int, Arrays]:
    """Return each report's budgets: ``count`` rows per GPU, the first of which is `Blocking.whole`."""
    communication = communicating(session)
    names = ("process", "device", "count", *KEPT, *_EDGES, "parts", "busy", "possible", "kept_starts", "kept_ends")
    none = np.zeros(0, np.int64)
    lists: dict[int, dict[str, list[Times]]] = {report.index: {name: [none] for name in names} for report in reports}
    spans = _spans(session, lists)
    reports_by_index = {report.index: report for report in reports}
    for process in ProcessRows.each(session, spans):
        task, report = process.task, reports_by_index[process.task.report]
        paused = unseen(session, report, task.process).shifted(-report.clock_offset)
        edges_of_gpu = {
            device: tuple(np.append(edge, more) for edge, more in zip(span, edges.get(task, (none, none)), strict=True))
            for device, span in spans[task].items()
        }
        zeros = {device: np.zeros((len(starts), len(PARTS)), np.int64) for device, (starts, _) in edges_of_gpu.items()}
        sums = {device: (zero.copy(), 0 * edges_of_gpu[device][0], zero) for device, zero in zeros.items()}
        when = {device: dict.fromkeys(KEPT, EMPTY) for device in edges_of_gpu}
        windows = _slices(process, [(int(starts.min()), int(ends.max())) for starts, ends in edges_of_gpu.values()])
        for done, window in enumerate(windows):
            if len(windows) > 1:
                session.tell(Computation("what blocked", done, len(windows), "slices"))
            work = operations_of(process, window if len(windows) > 1 else None, communication)
            for device, (starts, ends) in edges_of_gpu.items():
                *figures, stretches = budgets_of(work, device, window, starts, ends, paused, *shared[task, device])
                for total, part in zip(sums[device], figures, strict=True):
                    total += part
                when[device] = {part: merge(times, stretches[part]) for part, times in when[device].items()}
        for device, (starts, ends) in edges_of_gpu.items():
            intervals = when[device].values()
            counts = (np.array([value]) for value in (task.process, device, len(starts), *map(len, intervals)))
            interval_edges = (np.concatenate([getattr(times, edge) for times in intervals]) for edge in _EDGES)
            values = (*counts, starts, ends, *(total.reshape(-1) for total in sums[device]), *interval_edges)
            for array, value in zip(lists[task.report].values(), values, strict=True):
                array.append(value)
    return {index: {key: np.concatenate(parts) for key, parts in arrays.items()} for index, arrays in lists.items()}


def _spans(session: Session, reports: Collection[int]) -> dict[Task, dict[int, tuple[int, int]]]:
    """Return the span from first to last operation, for each GPU of each process, own clock."""
    spans: dict[Task, dict[int, tuple[int, int]]] = {}
    for table in map(tables.of, GPU_TABLES):
        if not session.count(table):
            continue
        columns = table.c
        gpu_columns = (columns.report, columns.process, columns.device)
        query = sa.select(*gpu_columns, sa.func.min(columns.start), sa.func.max(columns.end)).group_by(*gpu_columns)
        is_whole = (columns.device.is_not(None), columns.start.is_not(None), columns.end.is_not(None))
        query = query.where(of_reports(columns.report, reports), *is_whole)
        for report, process, device, start, end in session.rows(query):
            task_spans = spans.setdefault(Task(report, process), {})
            low, high = task_spans.get(device, (start, end))
            task_spans[device] = min(low, start), max(high, end)
    return spans


def _slices(rows: ProcessRows, spans: Collection[tuple[int, int]]) -> list[Window]:
    """Split a process's time into slices with equally many kernels, to fit into memory; shared rows are not split."""
    columns, session = tables.kernels.c, rows.session
    edges = [min(start for start, _ in spans), max(end for _, end in spans)]
    cut_count = session.count(tables.kernels) // session.limits.rows_at_once(_OPERATION_BYTES)
    if cut_count and not rows.is_shared:
        shares = [index / (cut_count + 1) for index in range(1, cut_count + 1)]
        is_in_process = (columns.report == rows.task.report, columns.process == rows.task.process)
        # All quantiles share one digest, the most expensive part.
        cuts = sa.func.approx_quantile(columns.start, sa.literal_column(str(shares)))
        edges += session.scalar(sa.select(cuts).where(*is_in_process)) or []
    edges = sorted({int(edge) for edge in edges if edge is not None})
    return [Window(start, end) for start, end in pairwise(edges)]
