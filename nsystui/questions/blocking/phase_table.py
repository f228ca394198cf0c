"""The steps of each phase of inference with what their time went to, and whether the host bounds them.

The verdict is that of NVIDIA's guide to host overhead of TensorRT-LLM (perf-host-analysis): the host bounds them if two
measures or more say so (docs/path.md#phases). There a GPU is idle while no kernel runs, here while nothing does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Column, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, union
from nsystui.questions.blocking.budget import STEP_PART_COLUMNS, RankIterations, iterations, notes_of, part_importance
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import job_end, job_start
from nsystui.questions.steps.phases import DECODE, PHASES
from nsystui.questions.steps.task_steps import NO_PHASE
from nsystui.store import tables

_PREPARES = "prepare\\w*inputs?"
"""The ranges in which a host prepares a step, such as TensorRT-LLM's `_prepare_tp_inputs`."""
_ENOUGH = 2
_IDLE, _DECODE_IDLE = (30.0, 40.0), (15.0, 20.0)
"""Idle time above each of these is a measure: of a GPU that is idle, and of one that is underutilised."""
_MEASURES = {"launch": 10.0, "exposed": 50.0, "of_time": 5.0, "of_idle": 50.0}
"""The percentages above which the other measures say that the host bounds the GPU."""


class _Host(NamedTuple):
    """What the host did for some iterations, ns; ``None`` where it is not recorded."""

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
PHASE_COLUMNS = (*_FIGURES, *(replace(one, compared="median", decimals=0) for one in STEP_PART_COLUMNS))
_NOT_PREPARED = "no NVTX range `prepare…inputs` says when the host prepares a step: its measures are missing"


def budget_of_phases(job: OpenJob, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """Tabulate the steps of each phase of the selected GPUs, the first row of all; parts are medians of a step.

    ``share`` is of the time of all; the percentages after ``host_bound`` are its measures, see there.
    """
    every = iterations(job, selection, step_name)
    kinds = sorted({code for one in every for code in one.phases.tolist()}, key=lambda code: (code == NO_PHASE, code))
    host = _HostWork(job, selection, every)
    whole = sum(int(one.of.time.sum()) for one in every)
    rows: list[Row] = []
    for code in [None, *(kinds if kinds != [NO_PHASE] else ())]:
        chosen = [np.ones(len(one.of), bool) if code is None else one.phases == code for one in every]
        name = "all" if code is None else "none" if code == NO_PHASE else PHASES[code]
        if every:
            rows.append((name, *_figures(every, chosen, whole, host.of(chosen), name)))
    importance = part_importance(every)
    columns = tuple(one.with_importance(importance.get(one.key, one.importance)) for one in PHASE_COLUMNS)
    notes = notes_of(job, selection, every, step_name)
    return TableAnswer("phases", columns, rows, len(rows), (*notes, *([] if host.prepares else [_NOT_PREPARED])))


def _figures(
    every: Sequence[RankIterations], chosen: Sequence[NDArray[np.bool_]], whole: int, host: _Host, phase: str
) -> Row:
    times = np.concatenate([one.of.time[own] for one, own in zip(every, chosen, strict=True)])
    parts, possible = (
        np.median(np.concatenate([getattr(one.of, name)[own] for one, own in zip(every, chosen, strict=True)]), axis=0)
        for name in ("parts", "possible")
    )
    slow = sum(int(one.is_slow()[own].sum()) for one, own in zip(every, chosen, strict=True))
    total = int(times.sum())
    idle = total - sum(int(one.of.busy[own].sum()) for one, own in zip(every, chosen, strict=True))
    measures = {
        "idle": _percent(idle, total),
        "launch": _percent(host.launch, total),
        "exposed": _percent(host.exposed, host.prepare),
        "of_time": _percent(host.exposed, total),
        "of_idle": _percent(host.exposed, idle),
    }
    figures = (float(np.median(times)), int(times.min()), int(times.max()), slow)
    verdict = "yes" if is_host_bound(measures, phase) else "no"
    return (
        len(times),
        _percent(total, whole),
        *figures,
        verdict,
        *measures.values(),
        *(None if not part and bound else part for part, bound in zip(parts.tolist(), possible.tolist(), strict=True)),
    )


def is_host_bound(measures: Mapping[str, Value], phase: str) -> bool:
    """Judge the measures, percentages by the keys of their columns, as in a row; missing ones say nothing."""
    limits = [("idle", least) for least in (_DECODE_IDLE if phase == DECODE else _IDLE)]
    values = [(measures[name], least) for name, least in (*limits, *_MEASURES.items())]
    return sum(isinstance(value, float) and value > least for value, least in values) >= _ENOUGH


def _percent(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else 100.0 * part / whole


class _HostWork:
    """When the processes of some GPUs launched and prepared, and when these were idle."""

    def __init__(self, job: OpenJob, selection: Selection, every: Sequence[RankIterations]) -> None:
        self.every = every
        tasks = {one.of.task for one in every}
        calls, ranges = tables.api_calls.c, tables.nvtx_ranges.c
        is_launch = sa.func.coalesce(calls.name, "").contains("Launch")
        prepares = sa.func.regexp_matches(sa.func.coalesce(ranges.name, ""), _PREPARES, "i", type_=sa.Boolean)
        self.launches = _when(job, tables.api_calls, is_launch, tasks)
        self.prepares = _when(job, tables.nvtx_ranges, prepares, tasks)
        devices = {(one.device.task.task, one.device.device): one for one in job.busy(selection).devices}
        self.idle = []
        for one in every if self.prepares else ():
            device, window = (
                devices.get((one.of.task, one.of.device)),
                Window(int(one.of.starts.min()), int(one.of.ends.max())),
            )
            self.idle.append(EMPTY if device is None else device.idle(window))

    def of(self, chosen: Sequence[NDArray[np.bool_]]) -> _Host:
        """Of the chosen iterations: launch calls in the steps' ranges on the CPU, preparation while they ran."""
        launch = prepare = exposed = 0
        for place, (one, own) in enumerate(zip(self.every, chosen, strict=True)):
            starts, ends = one.of.starts[own], one.of.ends[own]
            if self.prepares:
                when = self.prepares.get(one.of.task, EMPTY)
                prepare += int(when.covered(starts, ends).sum())
                exposed += int(intersect(when, self.idle[place]).covered(starts, ends).sum())
            if one.steps is not None:
                starts = one.steps.cpu_start[own]
                ends = starts + one.steps.cpu_duration[own]
            launch += int(self.launches.get(one.of.task, EMPTY).covered(starts, ends).sum())
        prepared = (prepare, exposed) if self.prepares else (None, None)
        return _Host(launch if self.launches else None, *prepared)


def _when(job: OpenJob, table: sa.Table, wanted: sa.ColumnElement[bool], tasks: set[Task]) -> dict[Task, Intervals]:
    """When any thread of each task was in one of the ``wanted`` calls or ranges; job time."""
    columns: Any = table.c
    found = {}
    for task in sorted(tasks) if job.session.count(table) else ():
        is_own = (columns.report == task.report, columns.process == task.process, columns.end > columns.start)
        query = sa.select(job_start(table).label("start"), job_end(table).label("end")).where(*is_own, wanted)
        times = job.session.arrays(query)
        if len(times["start"]):
            found[task] = union(times["start"], times["end"])
    return found
