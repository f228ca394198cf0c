"""The expert rules over all ranks: synchronous calls and copies, long gaps and low utilisation of GPUs.

See docs/numbers.md#expert-rules.
"""

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
from nsystui.base.types import Expression, Query
from nsystui.exports.metadata import pid_column, tid_column
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import MemoryCalls, are, with_calls
from nsystui.questions.queries.conditions import duration, job_start, where
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.queries.tasks import rank_of
from nsystui.questions.queries.time_window import extents
from nsystui.questions.recipes.recipe import AskRecipe, RecipeOptions
from nsystui.store import tables

_CALLS, _MEMORY = tables.api_calls, tables.memory_ops
_SYNCHRONISING = ("cudaDeviceSynchronize", "cudaStreamSynchronize")

_LONGEST = ("duration", True)
_IDENTITY = (REPORT_ID, PROCESS_ID, ROW_ID)
_TIMES = (DURATION, START, RANK)
_CALL_COLUMNS = (
    *_TIMES, PID.with_importance(3), TID.with_importance(2), Column("name", header="API Name", label="call"),
    *_IDENTITY,
)  # fmt: skip
_MEMORY_COLUMNS = (
    *_TIMES, DEVICE.with_importance(3), STREAM.with_importance(3),
    Column("source_memory", header="Src Kind", label="from", importance=2),
    Column("target_memory", header="Dst Kind", label="to", importance=2), BYTES.with_importance(1),
    Column("operation", header="Operation", label="operation", importance=1),
    Column("name", header="API Name", label="call"), *_IDENTITY,
)  # fmt: skip


def _synchronisations(job: OpenJob, selection: Selection, _: RecipeOptions) -> Answer:
    is_synchronising = sa.or_(*[_CALLS.c.name.startswith(name) for name in _SYNCHRONISING])
    thread = pid_column(_CALLS.c.process).label("pid"), tid_column(_CALLS.c.thread).label("tid")
    query = _rows(job, _CALLS, *thread, _CALLS.c.name)
    query = query.where(is_synchronising, *where(_CALLS, selection, _CALLS.c.name))
    everything = sa.select(_CALLS.c.row).where(is_synchronising)
    return PagedAnswer.of(job.session, "rule", _CALL_COLUMNS, query, everything, order=_LONGEST)


def _operations(kind: MemoryCalls) -> AskRecipe:
    def ask(job: OpenJob, selection: Selection, _: RecipeOptions) -> Answer:
        keys = ("device", "stream", "source_memory", "target_memory", "bytes", "operation")
        query = _rows(job, _MEMORY, *(_MEMORY.c[key] for key in keys), _CALLS.c.name).select_from(with_calls())
        query = query.where(*are(kind), *where(_MEMORY, selection, _CALLS.c.name))
        everything = sa.select(_MEMORY.c.row).select_from(with_calls()).where(*are(kind))
        return PagedAnswer.of(job.session, "rule", _MEMORY_COLUMNS, query, everything, order=_LONGEST)

    return ask


def _rows(job: OpenJob, table: sa.Table, *columns: Expression) -> Query:
    times = duration(table).label("duration"), job_start(table).label("start"), rank_of(table, job.ranks).label("rank")
    return sa.select(*times, *columns, *(table.c[key] for key in ("report", "process", "row")))


_GPU_AND_START = (RANK, DEVICE.with_importance(1), START)
_GAP_COLUMNS = (Column("duration", header="Duration (ns)", label="idle", unit=Unit.DURATION), *_GPU_AND_START)
_PART_COLUMNS = (
    Column("busy_percent", header="In-Use (%)", label="in use %", unit=Unit.PERCENT, decimals=1),
    DURATION,
    *_GPU_AND_START,
)


def _gaps(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
    """List gaps of more than ``options.gap`` ns between a GPU's operations, longest first."""
    busy, windows = job.busy(selection), extents(job.session, selection)
    rows: list[tuple[int, int, int, int]] = []
    gap_count = 0
    for item in busy.devices:
        device, gaps = item.device, item.gaps(windows[item.device.task.task.report])
        gap_count += len(gaps)
        long_gaps = gaps.chosen(gaps.lengths > options.gap)
        rows += [
            (until - since, device.task.rank, device.device, since)
            for since, until in zip(long_gaps.starts.tolist(), long_gaps.ends.tolist(), strict=True)
        ]
    rows.sort(key=lambda row: (-row[0], *row[1:]))
    return TableAnswer("gpu-gaps", _GAP_COLUMNS, rows, gap_count, busy.notes)


def _low_utilisation(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
    """List the parts of GPUs' time with low utilisation, lowest first, adjacent parts merged.

    The time from a GPU's first to last operation has ``options.chunks`` equal parts.
    """
    busy, windows = job.busy(selection), extents(job.session, selection)
    rows: list[Row] = []
    chunk_count = 0
    for item in busy.devices:
        device = item.device
        span = item.worked(windows[device.task.task.report])
        if span is None:
            continue
        chunk_count += options.chunks
        width = span.end - span.start
        shares = 100.0 * item.share("busy", span, options.chunks)
        is_low = shares < options.threshold
        for first, last in np.flatnonzero(np.diff(is_low, prepend=False, append=False)).reshape(-1, 2).tolist():
            start, end = (span.start + chunk * width // options.chunks for chunk in (first, last))
            mean = float(shares[first:last].mean())
            rows.append((mean, end - start, device.task.rank, device.device, start))
    rows.sort(key=lambda row: tuple(value or 0 for value in row))
    return TableAnswer("gpu-time-util", _PART_COLUMNS, rows, chunk_count, busy.notes)


ASK: dict[str, AskRecipe] = {
    "cuda_api_sync": _synchronisations,
    "cuda_memcpy_async": _operations(MemoryCalls.PAGEABLE_COPIES),
    "cuda_memcpy_sync": _operations(MemoryCalls.SYNCHRONOUS_COPIES),
    "cuda_memset_sync": _operations(MemoryCalls.SYNCHRONOUS_MEMSETS),
    "gpu_gaps": _gaps,
    "gpu_time_util": _low_utilisation,
}
