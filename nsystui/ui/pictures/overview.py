"""The picture on the overview of a job, asked for in one go. Heavy imports: only threads import this module."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import Answer, TableAnswer
from nsystui.base.selection import Selection, Window
from nsystui.exports import canonical
from nsystui.questions.gpu.device_time import NOTHING, Breakdown
from nsystui.questions.gpu.utilisation import BusyIntervals
from nsystui.questions.host.time_budget import Budget, IdleCauses, caused_budgets, device_budgets, in_sum, steady_window
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import kernel_summary
from nsystui.questions.queries.reports import diagnostics_table
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import extents
from nsystui.questions.ranks.overview import JobFacts, job_facts, task_table

PARTS = ("kernels", "exposed_nccl", "memory_only", "graph_only")
"""The parts of busy time that have no moment in common, from the bottom of the stack to its top."""


@dataclass(frozen=True)
class Held:
    """Events of one canonical table that the reports hold."""

    table: str
    what: str
    count: int


@dataclass(frozen=True)
class OverviewPicture:
    """The overview of a job under a selection.

    ``spent`` is the time of all ``devices`` (``None`` without any). ``strips`` has the mean share of each of `PARTS` in
    each bin (NaN where no device was recording; empty where the reports share no clock or have no device). ``held`` is
    what there is, in the order of the canonical tables.
    """

    facts: JobFacts
    spent: Breakdown | None
    devices: int
    strips: tuple[tuple[float, ...], ...]
    tasks: TableAnswer
    kernels: Answer
    diagnostics: TableAnswer
    held: tuple[Held, ...]
    ranks: tuple[RankedTask, ...]


@dataclass(frozen=True)
class IdlePicture:
    """Where the GPUs were idle, and why. ``causes`` is ``None`` where nobody asked for them.

    ``paces`` are asked for with the causes: of each rank the median of its steps (ns), and how often it came last at
    a collective; ``None`` where it has none.
    """

    budget: Budget
    causes: IdleCauses | None
    steady: Window | None
    paces: Mapping[int, tuple[float | None, int | None]]


def idle_picture(job: OpenJob, selection: Selection, with_causes: bool) -> IdlePicture:
    """The idle time of a selection. Blocks: call it in a thread."""
    budgets, causes = caused_budgets(job, selection) if with_causes else (device_budgets(job, selection), None)
    return IdlePicture(in_sum(budgets), causes, steady_window(budgets), _paces(job, selection) if with_causes else {})


def _paces(job: OpenJob, selection: Selection) -> dict[int, tuple[float | None, int | None]]:
    facts = job.once(("paces", selection), lambda: job.rank_facts(selection))
    found = {}
    for item in job.ranks:
        steps, late = facts.steps.get(item.task), facts.lateness.get(item.task)
        median = float(np.median(steps.duration)) if steps is not None else None
        found[item.rank] = median, late.late if late is not None else None
    return found


@dataclass(frozen=True)
class _Tables:
    """The parts that do not depend on the width of the strip."""

    facts: JobFacts
    tasks: TableAnswer
    kernels: Answer
    diagnostics: TableAnswer


def overview_picture(job: OpenJob, selection: Selection, bins: int) -> OverviewPicture:
    """The picture with a strip of ``bins`` bins. Blocks: call it in a thread."""
    # Part of the key below: a report may join between the two lines, and tables with the busy intervals of before it
    # must not be kept as those of after it.
    version = job.version
    busy = job.busy(selection)
    parts = job.once(("overview", selection, version), lambda: _tables(job, selection, busy))
    windows = extents(job.session, selection)  # each device in that in which its report is judged
    parts_of_devices = [item.breakdown(windows[item.device.task.task.report]) for item in busy.gpus]
    events = [table for table in canonical.TABLES if "row" in table.field_names]
    counted = [Held(table.name, table.what, job.session.count(table)) for table in events]
    return OverviewPicture(
        parts.facts,
        sum(parts_of_devices, NOTHING) if parts_of_devices else None,
        len(busy.gpus),
        _strips(set(windows.values()), busy, bins),
        parts.tasks,
        parts.kernels,
        parts.diagnostics,
        tuple(held for held in counted if held.count),
        job.ranks,
    )


def _tables(job: OpenJob, selection: Selection, busy: BusyIntervals) -> _Tables:
    session, ranks = job.session, job.ranks
    if not busy.is_current(session):  # a rank that joined meanwhile would have no percentages: it comes next time
        known = {item.device.task.task for item in busy.devices}
        ranks = tuple(item for item in ranks if item.task in known or not item.devices)
    return _Tables(
        job_facts(session, ranks),
        task_table(session, selection, ranks, busy),
        kernel_summary(session, selection),
        diagnostics_table(session, selection),
    )


def _strips(windows: Collection[Window], busy: BusyIntervals, bins: int) -> tuple[tuple[float, ...], ...]:
    """The means over the devices that were being recorded."""
    if not busy.devices or len(windows) != 1:
        return ()
    window = next(iter(windows))
    if window.end <= window.start:
        return ()
    found = []
    for part in PARTS:
        shares = np.array([item.share(part, window, bins) for item in busy.gpus])
        seen = ~np.isnan(shares)
        counts = seen.sum(axis=0)
        mean = np.full(bins, np.nan)
        np.divide(np.where(seen, shares, 0.0).sum(axis=0), counts, out=mean, where=counts > 0)
        found.append(tuple(mean.tolist()))
    return tuple(found)
