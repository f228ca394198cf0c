"""Kernels over all ranks: selection by name, histograms of durations, overlap with NCCL."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import NAME, Answer, Column, Row, TableAnswer, Unit
from nsystui.base.errors import UsageError, meant
from nsystui.base.selection import Selection
from nsystui.base.types import Condition, Query
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names, kernel_notes, name_of
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.recipes.recipe import AskRecipe, RecipeOptions, of_each_rank
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.session import Session

_KERNELS = tables.kernels


def named_kernels(session: Session, name: str, names: Names) -> tuple[Condition, Names, int]:
    """Return the condition for kernels called ``name``, its form (``names`` if possible), and the number of full names.

    Raises UsageError if no kernel of the session, selected or not, has this name.
    """
    for form in dict.fromkeys((names, *Names)):
        are_meant = name_of(_KERNELS, form) == name
        if count := session.scalar(sa.select(sa.func.count(_KERNELS.c.name.distinct())).where(are_meant)):
            return are_meant, form, int(count)
    short: Query = sa.select(_KERNELS.c.short_name).where(_KERNELS.c.short_name.is_not(None)).distinct()
    shorts = sorted(text for (text,) in session.rows(short))
    hint = meant(name, shorts, "give a complete kernel name: full, short or mangled, as `nsystui kernels` lists them")
    raise UsageError(f"no kernel is called {name!r}: {hint}")


EDGES: tuple[int, ...] = (0, *(step * 10**decade for decade in range(13) for step in (1, 2, 5)))
"""The lower edges of the classes, ns: common to all kernels and ranks, to compare histograms."""

COLUMNS = (
    Column("low", header="From (ns)", label="from", unit=Unit.DURATION),
    Column("high", header="To (ns)", label="to", unit=Unit.DURATION, compared="low"),
    Column("count", header="Instances", label="count", unit=Unit.COUNT),
    Column("share", header="Instances (%)", label="of its launches", unit=Unit.PERCENT, decimals=1),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION, importance=1),
    NAME,
)


def _histogram_of_ranks(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
    extra: list[Condition] = []
    if options.name is not None and job.session.count(tables.kernels):
        extra = [named_kernels(job.session, options.name, options.names)[0]]
    if options.by_rank:
        return of_each_rank(job, selection, lambda session, part: _histogram(session, part, options.names, extra))
    return _histogram(job.session, selection, options.names, extra)


def _histogram(session: Session, selection: Selection, names: Names, extra: Sequence[Condition]) -> TableAnswer:
    """Count launches by kernel name and class of durations; a class includes its lower edge.

    Kernels are sorted by total time, their classes from short to long.
    """
    table = tables.kernels
    name = name_of(table, names)
    length = duration(table)
    # The index of the last edge that is not above the value.
    cases = [(length < edge, number) for number, edge in enumerate(EDGES[1:])]
    edge_index = sa.case(*cases, else_=len(EDGES) - 1).label("place")
    sums = sa.func.count(), sa.cast(sa.func.sum(length), sa.BigInteger)
    query = sa.select(name.label("name"), edge_index, *sums).group_by(name, edge_index)
    groups = session.rows(query.where(*where(table, selection, name), length.is_not(None), *extra))
    totals, counts = Counter[str](), Counter[str]()
    for kernel, _, count, total in groups:
        totals[kernel] += total
        counts[kernel] += count
    rows: list[Row] = []
    for kernel, number, count, total in sorted(groups, key=lambda row: (-totals[row[0]], str(row[0]), row[1])):
        high = EDGES[number + 1] if number + 1 < len(EDGES) else None
        rows.append((EDGES[number], high, count, 100.0 * count / counts[kernel], total, kernel))
    return TableAnswer("kernel-histogram", COLUMNS, rows, None, kernel_notes(session))


_COLUMNS = (
    Column("kind", header="Kind", label="kind", importance=1),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=1),
    Column("overlap", header="Overlap Sum (ns)", label="overlap", unit=Unit.DURATION),
    Column("overlap_percent", header="Overlap (%)", label="overlap %", unit=Unit.PERCENT, decimals=1),
    Column("alone", header="Alone (ns)", label="alone", unit=Unit.DURATION, importance=2),
    NAME,
)
_KINDS = {True: "communication", False: "compute"}


def _overlap_of_ranks(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
    if options.by_rank:
        return of_each_rank(job, selection, lambda _, subset: _overlaps(job, subset))
    return _overlaps(job, selection)


def _overlaps(job: OpenJob, selection: Selection) -> Answer:
    """Tabulate the overlap of compute and NCCL kernels, one row per name and kind, longest total first.

    ``overlap`` is the time of the launches during which the other kind ran on the same device of the same process;
    concurrent launches all count. ``alone`` is ``total`` minus ``overlap``.
    """
    import pandas as pd

    table = tables.kernels
    name = sa.func.coalesce(table.c.name, "").label("name")
    job_times = [(table.c[key] + table.c.clock_offset).label(f"job_{key}") for key in ("start", "end")]
    is_complete = [table.c.start.is_not(None), table.c.end.is_not(None), table.c.device.is_not(None)]
    keys = [table.c[key] for key in ("report", "process", "device", "is_nccl")]
    query = sa.select(*keys, name, *job_times).where(*where(table, selection, table.c.name), *is_complete)
    devices = job.busy(Selection(tasks=selection.tasks)).devices
    parts = []
    for batch in job.session.array_batches(query) if job.session.count(table) else ():
        starts, ends = batch["job_start"], np.maximum(batch["job_end"], batch["job_start"])
        overlap = _overlap_times(devices, batch, starts, ends)
        columns = {"is_nccl": batch["is_nccl"] == 1, "name": batch["name"], "total": ends - starts, "overlap": overlap}
        parts.append(pd.DataFrame({**columns, "count": 1}).groupby(["is_nccl", "name"]).sum())
    rows: list[Row] = []
    if parts:
        sums = pd.concat(parts).groupby(level=["is_nccl", "name"]).sum().reset_index()
        sums = sums.sort_values(["total", "name"], ascending=[False, True], kind="stable")
        cells = (sums[key].tolist() for key in ("is_nccl", "total", "count", "overlap", "name"))
        for kind, total, count, overlap, kernel in zip(*cells, strict=True):
            share = 100.0 * overlap / total if total else None
            rows.append((_KINDS[kind], total, count, overlap, share, total - overlap, kernel))
    total_rows = len(rows) if selection.is_everything else None
    return TableAnswer("nccl-gpu-overlap", _COLUMNS, rows, total_rows, kernel_notes(job.session))


def _overlap_times(devices: Sequence[DeviceIntervals], kernels: Arrays, starts: Times, ends: Times) -> Times:
    """Return how long the other kind of kernels ran on the same GPU during each kernel."""
    overlap, reports = np.zeros(len(starts), np.int64), set(np.unique(kernels["report"]).tolist())
    for task, device, parts in ((item.device.task.task, item.device.device, item.parts) for item in devices):
        if task.report in reports:
            is_here = (kernels["report"] == task.report) & (kernels["process"] == task.process)
            is_here &= kernels["device"] == device
            for is_kind, other in ((kernels["is_nccl"] == 1, parts.kernels), (kernels["is_nccl"] != 1, parts.nccl)):
                rows = np.flatnonzero(is_here & is_kind)
                overlap[rows] = other.covered(starts[rows], ends[rows])
    return overlap


ASK: dict[str, AskRecipe] = {"cuda_gpu_kern_hist": _histogram_of_ranks, "nccl_gpu_overlap_trace": _overlap_of_ranks}
