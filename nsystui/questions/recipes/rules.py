"""The expert rules over all ranks: synchronous calls and copies one by one, long gaps and low utilisation of GPUs.

See docs/numbers.md#expert-rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import (
    BYTES,
    DEVICE,
    DURATION,
    PID,
    PROCESS_ID,
    RANK,
    REPORT_ID,
    ROW_ID,
    START,
    STREAM,
    TID,
    Answer,
    Column,
    Row,
    TableAnswer,
    Unit,
)
from nsystui.base.selection import Selection
from nsystui.exports.metadata import pid_column, tid_column
from nsystui.questions.algebra.intervals import EMPTY, Intervals, merge
from nsystui.questions.gpu.profiler_overhead import overhead_by_name, unnoticed
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import MemoryCalls, are, with_calls
from nsystui.questions.queries.conditions import duration, job_start, where
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.queries.tasks import rank_of
from nsystui.questions.queries.time_window import extents
from nsystui.questions.recipes.recipe import Ask, RecipeOptions
from nsystui.store import tables

_CALLS, _MEMORY = tables.api_calls, tables.memory_ops
_SYNCHRONISING = ("cudaDeviceSynchronize", "cudaStreamSynchronize")

_IDENTITY = (REPORT_ID, PROCESS_ID, ROW_ID)
_TIMES = (DURATION, START, RANK)
_CALL_COLUMNS = (
    *_TIMES,
    PID.with_importance(3),
    TID.with_importance(2),
    Column("name", header="API Name", label="call"),
    *_IDENTITY,
)
_MEMORY_COLUMNS = (
    *_TIMES,
    DEVICE.with_importance(3),
    STREAM.with_importance(3),
    Column("source_memory", header="Src Kind", label="from", importance=2),
    Column("target_memory", header="Dst Kind", label="to", importance=2),
    BYTES.with_importance(1),
    Column("operation", header="Operation", label="operation", importance=1),
    Column("name", header="API Name", label="call"),
    *_IDENTITY,
)


def _synchronisations(job: OpenJob, selection: Selection, _: RecipeOptions) -> Answer:
    is_one = sa.or_(*[_CALLS.c.name.startswith(name) for name in _SYNCHRONISING])
    query = sa.select(
        *_times(_CALLS, job),
        pid_column(_CALLS.c.process).label("pid"),
        tid_column(_CALLS.c.thread).label("tid"),
        _CALLS.c.name,
        *_identity(_CALLS),
    ).where(is_one, *where(_CALLS, selection, _CALLS.c.name))
    everything = sa.select(sa.func.count()).select_from(_CALLS).where(is_one)
    return _listed(job, _CALL_COLUMNS, query, everything)


def _operations(kind: MemoryCalls) -> Ask:
    def ask(job: OpenJob, selection: Selection, _: RecipeOptions) -> Answer:
        columns = _MEMORY.c
        query = (
            sa.select(
                *_times(_MEMORY, job),
                *(columns[key] for key in ("device", "stream", "source_memory", "target_memory", "bytes", "operation")),
                _CALLS.c.name,
                *_identity(_MEMORY),
            )
            .select_from(with_calls())
            .where(*are(kind), *where(_MEMORY, selection, _CALLS.c.name))
        )
        everything = sa.select(sa.func.count()).select_from(with_calls()).where(*are(kind))
        return _listed(job, _MEMORY_COLUMNS, query, everything)

    return ask


def _times(table: sa.Table, job: OpenJob) -> list[sa.ColumnElement[Any]]:
    """The values of ``_TIMES``."""
    rank = rank_of(table, job.ranks)
    return [duration(table).label("duration"), job_start(table).label("start"), rank.label("rank")]


def _identity(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    return [table.c[key] for key in ("report", "process", "row")]


def _listed(
    job: OpenJob, columns: tuple[Column, ...], query: sa.Select[Any], everything: sa.Select[Any]
) -> PagedAnswer:
    count = sa.select(sa.func.count()).select_from(query.subquery())
    order = ("duration", True)
    return PagedAnswer.of(job.session, "rule", columns, query, count, everything, order, ("report", "row"))


_GPU_PLACE = (RANK, DEVICE.with_importance(1), START)
_GAP_COLUMNS = (
    Column("duration", header="Duration (ns)", label="idle", unit=Unit.DURATION),
    *_GPU_PLACE,
    Column("profiler", header="Profiler (ns)", label="profiler", unit=Unit.DURATION, importance=1),
    Column("work", header="Profiler Work", label="profiler's work", importance=2),
)
_PART_COLUMNS = (
    Column("busy_percent", header="In-Use (%)", label="in use %", unit=Unit.PERCENT, decimals=1),
    DURATION,
    *_GPU_PLACE,
)


class _Gap(NamedTuple):
    duration: int
    rank: int
    device: int
    start: int
    profiler: int | None = None
    work: str | None = None


def _gaps(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
    """A row for each gap of more than ``options.gap`` ns between the operations of a GPU, longest first.

    ``profiler`` is how much of it the profiler worked, ``work`` what took it longest.
    """
    busy, windows = job.busy(selection), extents(job.session, selection)
    overhead = overhead_by_name(job.session, selection)
    noticed = {report.index for report in job.session.reports if report.has(tables.profiler_overhead)}
    rows: list[_Gap] = []
    every = 0
    for item in busy.devices:
        place = item.device
        task = place.task.task
        gaps = item.gaps(windows[task.report])
        every += len(gaps)
        long = gaps.chosen(gaps.lengths > options.gap)
        parts: Sequence[tuple[int | None, str | None]] = [(None, None)] * len(long)
        if task.report in noticed:
            parts = _profilers_part(overhead.get(task, {}), long)
        rows += [
            _Gap(until - since, place.task.rank, place.device, since, *part)
            for since, until, part in zip(long.starts.tolist(), long.ends.tolist(), parts, strict=True)
        ]
    rows.sort(key=lambda gap: (-gap.duration, gap.rank, gap.device, gap.start))
    note = unnoticed(job.session) if rows else ""
    return TableAnswer("gpu-gaps", _GAP_COLUMNS, rows, every, (*busy.notes, *([note] if note else ())))


def _profilers_part(named: Mapping[str, Intervals], gaps: Intervals) -> list[tuple[int, str | None]]:
    """Return how long the profiler worked in each gap, ns, and what took it longest, if anything did."""
    names = [None, *named]
    of_name = np.stack([own.covered(gaps.starts, gaps.ends) for own in (EMPTY, *named.values())])
    longest = [names[number] for number in of_name.argmax(axis=0).tolist()]
    return list(zip(merge(*named.values()).covered(gaps.starts, gaps.ends).tolist(), longest, strict=True))


def _low_utilisation(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
    """A row for each part below the threshold, lowest first; neighbours are one part, and their mean its utilisation.

    A GPU's time is that from its first operation to its last one, in ``options.chunks`` equal parts.
    """
    busy, windows = job.busy(selection), extents(job.session, selection)
    rows: list[Row] = []
    every = 0
    for item in busy.devices:
        place = item.device
        whole = item.worked(windows[place.task.task.report])
        if whole is None:
            continue
        every += options.chunks
        width = whole.end - whole.start
        shares = 100.0 * item.busy(whole, options.chunks)
        is_low = shares < options.threshold
        edges = np.flatnonzero(np.diff(is_low, prepend=False, append=False)).reshape(-1, 2)
        for first, last in edges.tolist():
            start, end = (whole.start + place_ * width // options.chunks for place_ in (first, last))
            mean = float(shares[first:last].mean())
            rows.append((mean, end - start, place.task.rank, place.device, start))
    rows.sort(key=lambda row: tuple(value or 0 for value in row))
    return TableAnswer("gpu-time-util", _PART_COLUMNS, rows, every, busy.notes)


ASK: dict[str, Ask] = {
    "cuda_api_sync": _synchronisations,
    "cuda_memcpy_async": _operations(MemoryCalls.PAGEABLE_COPIES),
    "cuda_memcpy_sync": _operations(MemoryCalls.SYNCHRONOUS_COPIES),
    "cuda_memset_sync": _operations(MemoryCalls.SYNCHRONOUS_MEMSETS),
    "gpu_gaps": _gaps,
    "gpu_time_util": _low_utilisation,
}
