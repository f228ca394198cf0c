"""The expert rules on single calls and copies, over all ranks: each row is one of them, longest first.

See docs/numbers.md#expert-rules.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import Answer
from nsystui.base.columns import (
    BYTES,
    DEVICE,
    DURATION,
    PID,
    PROCESS_ID,
    REPORT_ID,
    ROW_ID,
    START,
    STREAM,
    TID,
    Column,
)
from nsystui.base.selection import Selection
from nsystui.exports.identifiers import pid_column, tid_column
from nsystui.questions.activities import MemoryCalls, are, with_calls
from nsystui.questions.conditions import duration, job_start, where
from nsystui.questions.job import Job
from nsystui.questions.kernels import rank_of
from nsystui.questions.paged import PagedAnswer
from nsystui.questions.recipes.asking import RANK, Ask, Options
from nsystui.store import tables

_CALLS, _MEMORY = tables.api_calls, tables.memory_ops
_SYNCHRONISING = ("cudaDeviceSynchronize", "cudaStreamSynchronize")

_IDENTITY = (
    REPORT_ID,
    PROCESS_ID,
    ROW_ID,
)
_TIMES = (
    DURATION,
    START,
    RANK,
)
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


def _synchronisations(job: Job, selection: Selection, _: Options) -> Answer:
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
    def asked(job: Job, selection: Selection, _: Options) -> Answer:
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

    return asked


def _times(table: sa.Table, job: Job) -> list[sa.ColumnElement[Any]]:
    """The values of ``_TIMES``."""
    rank = rank_of(table, job.ranks)
    return [duration(table).label("duration"), job_start(table).label("start"), rank.label("rank")]


def _identity(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    return [table.c[key] for key in ("report", "process", "row")]


def _listed(job: Job, columns: tuple[Column, ...], query: sa.Select[Any], everything: sa.Select[Any]) -> PagedAnswer:
    count = sa.select(sa.func.count()).select_from(query.subquery())
    order = ("duration", True)
    return PagedAnswer.of(job.session, "rule", columns, query, count, everything, order, ("report", "row"))


ASK: dict[str, Ask] = {
    "cuda_api_sync": _synchronisations,
    "cuda_memcpy_async": _operations(MemoryCalls.PAGEABLE_COPIES),
    "cuda_memcpy_sync": _operations(MemoryCalls.SYNCHRONOUS_COPIES),
    "cuda_memset_sync": _operations(MemoryCalls.SYNCHRONOUS_MEMSETS),
}
