"""The picture on a job's overview. Only threads import this module, because its imports are heavy."""

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
"""The disjoint parts of busy time, from the bottom of the stack to its top."""


@dataclass(frozen=True)
class OverviewPicture:
    """The overview of a job under a selection.

    ``spent`` is the time of all ``devices`` (``None`` without any). ``strips`` has the mean share of each of `PARTS` in
    each bin (NaN if no device was recording; empty if the reports share no clock or have no device). ``held``
    has the canonical tables with events, and their counts.
    """

    facts: JobFacts
    spent: Breakdown | None
    devices: int
    strips: tuple[tuple[float, ...], ...]
    tasks: TableAnswer
    kernels: Answer
    diagnostics: TableAnswer
    held: tuple[tuple[canonical.CanonicalTable, int], ...]
    ranks: tuple[RankedTask, ...]


@dataclass(frozen=True)
class IdlePicture:
    """The idle time of the GPUs and its causes, ``None`` if not computed.

    ``paces``, computed with the causes: each rank's median step (ns), and how often it was last at a collective;
    ``None`` if unknown.
    """

    budget: Budget
    causes: IdleCauses | None
    steady: Window | None
    paces: Mapping[int, tuple[float | None, int | None]]


def idle_picture(job: OpenJob, selection: Selection, with_causes: bool) -> IdlePicture:
    """Return the idle time of a selection. Blocks."""
    budgets, causes = caused_budgets(job, selection) if with_causes else (device_budgets(job, selection), None)
    return IdlePicture(in_sum(budgets), causes, steady_window(budgets), _paces(job, selection) if with_causes else {})


def _paces(job: OpenJob, selection: Selection) -> dict[int, tuple[float | None, int | None]]:
    facts = job.once(("paces", selection), lambda: job.rank_facts(selection))
    paces = {}
    for ranked in job.ranks:
        steps, late = facts.steps.get(ranked.task), facts.lateness.get(ranked.task)
        median = float(np.median(steps.duration)) if steps is not None else None
        paces[ranked.rank] = median, late.late if late is not None else None
    return paces


def overview_picture(job: OpenJob, selection: Selection, bins: int) -> OverviewPicture:
    """Return the picture with a strip of ``bins`` bins. Blocks."""
    # Read the version first: if a report joins meanwhile, tables without it must not be cached under the new version.
    version = job.version
    busy = job.busy(selection)
    parts = job.once(("overview", selection, version), lambda: _tables(job, selection, busy))
    facts, tasks, kernels, diagnostics = parts
    windows = extents(job.session, selection)  # the window in which a report is judged, also for its devices
    parts_of_devices = [device.breakdown(windows[device.device.task.task.report]) for device in busy.gpus]
    events = [table for table in canonical.TABLES if "row" in table.field_names]
    spent = sum(parts_of_devices, NOTHING) if parts_of_devices else None
    held = tuple((table, count) for table in events if (count := job.session.count(table)))
    strips = _strips(set(windows.values()), busy, bins)
    return OverviewPicture(facts, spent, len(busy.gpus), strips, tasks, kernels, diagnostics, held, job.ranks)


def _tables(
    job: OpenJob, selection: Selection, busy: BusyIntervals
) -> tuple[JobFacts, TableAnswer, Answer, TableAnswer]:
    """Return the parts that do not depend on the width of the strip."""
    session, ranks = job.session, job.ranks
    if not busy.is_current(session):  # leave out ranks that joined since, which would have no percentages
        tasks = {device.device.task.task for device in busy.devices}
        ranks = tuple(rank for rank in ranks if rank.task in tasks or not rank.devices)
    return (
        job_facts(session, ranks),
        task_table(session, selection, ranks, busy),
        kernel_summary(session, selection),
        diagnostics_table(session, selection),
    )


def _strips(windows: Collection[Window], busy: BusyIntervals, bins: int) -> tuple[tuple[float, ...], ...]:
    """Return the means over the devices that were being recorded."""
    if not busy.devices or len(windows) != 1:
        return ()
    window = next(iter(windows))
    if window.end <= window.start:
        return ()
    strips = []
    for part in PARTS:
        shares = np.array([device.share(part, window, bins) for device in busy.gpus])
        recorded = ~np.isnan(shares)
        counts = recorded.sum(axis=0)
        mean = np.full(bins, np.nan)
        np.divide(np.where(recorded, shares, 0.0).sum(axis=0), counts, out=mean, where=counts > 0)
        strips.append(tuple(mean.tolist()))
    return tuple(strips)
