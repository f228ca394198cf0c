"""The steps of each phase of inference, with their parts, and whether the host bounds them.

The host bounds a phase if at least two measures exceed their limits (docs/path.md#phases), as in NVIDIA's guide to host
overhead of TensorRT-LLM (perf-host-analysis). There, a GPU is idle while no kernel runs; here, while nothing runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Column, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Condition, Flags
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, subtract
from nsystui.questions.blocking.budget import STEP_PART_COLUMNS, RankIterations, iterations, notes_of, part_importance
from nsystui.questions.blocking.parts import PARTS
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.process_rows import times_by_task
from nsystui.questions.steps.phases import DECODE, PHASES
from nsystui.questions.steps.task_steps import NO_PHASE
from nsystui.store import tables

_PREPARES = "prepare\\w*inputs?"
"""Ranges in which a host prepares a step, such as TensorRT-LLM's `_prepare_tp_inputs`."""
_MIN_MEASURES = 2
_IDLE, _DECODE_IDLE = (30.0, 40.0), (15.0, 20.0)
"""Limits of the measures of idle time, percent: an idle GPU, and an underutilised GPU."""
_MEASURES = {"launch": 10.0, "exposed": 50.0, "of_time": 5.0, "of_idle": 50.0}
"""Limits of other measures, percent."""


class _Host(NamedTuple):
    """The host's time for some iterations, ns, ``None`` if not recorded; and the GPUs' idle time inside CUDA graphs."""

    in_graphs: int
    launch: int | None
    prepare: int | None
    exposed: int | None


_FIGURES = (
    Column("phase", header="Phase", label="phase"),
    Column("count", header="Steps", label="steps", unit=Unit.COUNT),
    Column("share", header="Share (%)", label="share %", unit=Unit.PERCENT, decimals=2, importance=1),
    Column("median", header="Median (ns)", label="median", unit=Unit.DURATION, decimals=0),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=3),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=2),
    Column("slow", header="Slow Steps", label="slow", unit=Unit.COUNT, importance=2),
    Column("host_bound", header="Host-bound", label="host-bound"),
    Column("idle", header="GPU Idle (%)", label="idle", unit=Unit.PERCENT, decimals=2),
    Column("launch", header="Launch Calls (%)", label="launch", unit=Unit.PERCENT, decimals=2, importance=1),
    Column(
        "exposed", header="Host Preparation Exposed (%)", label="exposed", unit=Unit.PERCENT, decimals=2, importance=4
    ),
    Column("of_time", header="Exposed of Time (%)", label="of time", unit=Unit.PERCENT, decimals=2, importance=1),
    Column("of_idle", header="Exposed of Idle (%)", label="of idle", unit=Unit.PERCENT, decimals=2, importance=4),
)
PHASE_COLUMNS = (*_FIGURES, *(replace(column, compared="median", decimals=0) for column in STEP_PART_COLUMNS))
_NOT_PREPARED = "no NVTX range `prepare…inputs` says when the host prepares a step: its measures are missing"


def budget_of_phases(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the steps of each phase of the selected GPUs, first all steps; parts are medians of a step.

    ``share`` is of all steps' time; the percentages after ``host_bound`` are its measures (`is_host_bound`).
    """
    gpus = iterations(job, selection, step_name)
    phases = sorted({code for gpu in gpus for code in gpu.phases.tolist()}, key=lambda code: (code == NO_PHASE, code))
    host = _HostWork(job, selection, gpus)
    total_time = sum(int(gpu.of.time.sum()) for gpu in gpus)
    rows: list[Row] = []
    for code in [None, *(phases if phases != [NO_PHASE] else ())]:
        masks = [np.ones(len(gpu.of), bool) if code is None else gpu.phases == code for gpu in gpus]
        name = "all" if code is None else "none" if code == NO_PHASE else PHASES[code]
        if gpus:
            rows.append((name, *_figures(gpus, masks, total_time, host.of(masks), name)))
    importance = part_importance(gpus)
    columns = tuple(column.with_importance(importance.get(column.key, column.importance)) for column in PHASE_COLUMNS)
    notes = notes_of(job, selection, gpus, step_name)
    return TableAnswer("phases", columns, rows, len(rows), (*notes, *([] if host.prepares else [_NOT_PREPARED])))


def _figures(gpus: Sequence[RankIterations], masks: Sequence[Flags], total_time: int, host: _Host, phase: str) -> Row:
    times = np.concatenate([gpu.of.time[mask] for gpu, mask in zip(gpus, masks, strict=True)])
    parts, possible = (
        np.median(np.concatenate([getattr(gpu.of, name)[mask] for gpu, mask in zip(gpus, masks, strict=True)]), axis=0)
        for name in ("parts", "possible")
    )
    slow = sum(int(gpu.is_slow()[mask].sum()) for gpu, mask in zip(gpus, masks, strict=True))
    total = int(times.sum())
    busy = sum(int(gpu.of.busy[mask].sum()) for gpu, mask in zip(gpus, masks, strict=True))
    idle = None if any(gpu.of.lacks_work for gpu in gpus) else total - busy
    of_host = None if idle is None else idle - host.in_graphs  # the host cannot shorten gaps inside graphs
    measures = {
        "idle": _percent(idle, total),
        "launch": _percent(host.launch, total),
        "exposed": _percent(host.exposed, host.prepare),
        "of_time": _percent(host.exposed, total),
        "of_idle": _percent(host.exposed, of_host),
    }
    figures = (float(np.median(times)), int(times.min()), int(times.max()), slow)
    is_unknown = (parts == 0) & ((possible > 0) | np.isin(PARTS, gpus[0].of.unknown))
    is_bound = is_host_bound({**measures, "idle": _percent(of_host, total)}, phase)
    verdict = None if idle is None else "yes" if is_bound else "no"
    known_parts = np.where(is_unknown, np.array(None), parts).tolist()
    return (len(times), _percent(total, total_time), *figures, verdict, *measures.values(), *known_parts)


def is_host_bound(measures: Mapping[str, Value], phase: str) -> bool:
    """Return whether enough measures (percentages by column key) exceed their limits; missing measures do not."""
    limits = [("idle", limit) for limit in (_DECODE_IDLE if phase == DECODE else _IDLE)]
    measured = [(measures[name], limit) for name, limit in (*limits, *_MEASURES.items())]
    return sum(isinstance(value, float) and value > limit for value, limit in measured) >= _MIN_MEASURES


def _percent(part: int | None, total: int | None) -> float | None:
    return None if part is None or not total else 100.0 * part / total


class _HostWork:
    """Launches and preparations of some GPUs' processes, and the GPUs' idle time."""

    def __init__(self, job: OpenJob, selection: Selection, gpus: Sequence[RankIterations]) -> None:
        self.gpus = gpus
        tasks = {gpu.of.task for gpu in gpus}
        calls, ranges = tables.api_calls.c, tables.nvtx_ranges.c
        is_launch = sa.func.coalesce(calls.name, "").contains("Launch")
        prepares = sa.func.regexp_matches(sa.func.coalesce(ranges.name, ""), _PREPARES, "i", type_=sa.Boolean)
        self.launches = _times(job, tables.api_calls, is_launch, tasks)
        self.prepares = _times(job, tables.nvtx_ranges, prepares, tasks)
        devices = {item.device.key: item for item in job.busy(selection).devices}
        self.idle, graph_gaps = [], job.graph_gaps(selection)
        self.in_graphs = [graph_gaps.get((gpu.of.task, gpu.of.device), EMPTY) for gpu in gpus]
        for gpu, in_graphs in zip(gpus, self.in_graphs, strict=True) if self.prepares else ():
            device = devices.get((gpu.of.task, gpu.of.device))
            window = Window(int(gpu.of.starts.min()), int(gpu.of.ends.max()))
            self.idle.append(EMPTY if device is None else subtract(device.idle(window), in_graphs))

    def of(self, masks: Sequence[Flags]) -> _Host:
        """Return launch calls in the chosen steps' CPU ranges, and preparation during the iterations."""
        launch = prepare = exposed = in_graphs = 0
        for index, (gpu, mask) in enumerate(zip(self.gpus, masks, strict=True)):
            starts, ends = gpu.of.starts[mask], gpu.of.ends[mask]
            in_graphs += int(self.in_graphs[index].covered(starts, ends).sum())
            if self.prepares:
                preparing = self.prepares.get(gpu.of.task, EMPTY)
                prepare += int(preparing.covered(starts, ends).sum())
                exposed += int(intersect(preparing, self.idle[index]).covered(starts, ends).sum())
            if gpu.steps is not None:
                starts = gpu.steps.cpu_start[mask]
                ends = starts + gpu.steps.cpu_duration[mask]
            launch += int(self.launches.get(gpu.of.task, EMPTY).covered(starts, ends).sum())
        prepared = (prepare, exposed) if self.prepares else (None, None)
        return _Host(in_graphs, launch if self.launches else None, *prepared)


def _times(job: OpenJob, table: sa.Table, matches: Condition, tasks: set[Task]) -> dict[Task, Intervals]:
    """Return when any thread of each task is in a call or range that ``matches``; job time."""
    if not tasks or not job.session.count(table):
        return {}
    columns, is_in_tasks = table.c, where(table, Selection(tasks=frozenset(tasks)))
    query = sa.select(columns.report, columns.process, job_start(table).label("start"), job_end(table).label("end"))
    return times_by_task(job.session, query.where(*is_in_tasks, columns.end > columns.start, matches))
