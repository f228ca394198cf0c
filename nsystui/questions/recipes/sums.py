"""The recipes that sum by name: the summaries of this room, with quartiles and the ranks that have the extremes.

All statistics are those of the rows of all ranks together, and so are medians and quartiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import Answer, TableAnswer, Value
from nsystui.base.selection import Selection
from nsystui.questions import statistics
from nsystui.questions.job import Job
from nsystui.questions.kernels import kernel_summary, name_of, rank_of
from nsystui.questions.nvtx.listing import last_times, nvtx_summary
from nsystui.questions.nvtx.ranges import LABEL, PUSH_POP_TYPES, START_END_TYPES
from nsystui.questions.recipes.asking import Ask, Options, chosen_ranks, of_each_rank, of_rank
from nsystui.questions.recipes.extras import Extras, Extreme, Key, extremes_of, ranks_of, with_extras
from nsystui.questions.recipes.nccl_projected import nccl_projected
from nsystui.questions.stats.nvtx_projected import projected_summary
from nsystui.questions.stats.report import Options as ReportOptions
from nsystui.questions.where import duration, where
from nsystui.questions.work import API, MEMORY, MPI, OS, Work, memory_sizes, rows_of, work_summary
from nsystui.store import tables
from nsystui.store.session import Session

_NCCL = Work("nccl", "NCCL calls", tables.nccl_calls, tables.nccl_calls.c.name, "Instances", "Name")


@dataclass(frozen=True)
class _Rows:
    """The rows behind a summary: their ``value`` (ns or bytes) by ``keys``, which name a row of the summary."""

    source: sa.FromClause
    events: sa.FromClause
    value: sa.ColumnElement[Any]
    keys: tuple[sa.Label[Any], ...]
    conditions: list[sa.ColumnElement[bool]]

    def grouped(self, *more: sa.ColumnElement[Any], by: tuple[sa.ColumnElement[Any], ...] = ()) -> sa.Select[Any]:
        """``more`` for each combination of the keys (and of ``by``)."""
        chosen = sa.select(*self.keys, *by, *more).select_from(self.source)
        return chosen.where(*self.conditions, self.value.is_not(None)).group_by(
            *[key.element for key in self.keys], *by
        )


def _of_rows(
    summary: Callable[[Session, Selection, Options], Answer],
    rows_of: Callable[[Session, Selection, Options], _Rows],
) -> Ask:
    """A recipe of a summary, and of the query for its rows."""

    def asked(job: Job, selection: Selection, options: Options) -> Answer:
        if options.by_rank:
            return of_each_rank(job, selection, lambda session, own: summary(session, own, options))
        rows = rows_of(job.session, selection, options)
        keys = [key.name for key in rows.keys]
        found = job.session.rows(rows.grouped(*statistics.quartiles(rows.value)))
        quartiles: dict[Key, tuple[Value, Value]] = {tuple(key): (q1, q3) for *key, q1, q3 in found}
        rank = rank_of(rows.events, chosen_ranks(job, selection))
        extremes = job.session.rows(rows.grouped(sa.func.min(rows.value), sa.func.max(rows.value), by=(rank,)))
        ranks = ranks_of(Extreme(tuple(key), at, least, most) for *key, at, least, most in extremes)
        return with_extras(summary(job.session, selection, options), keys, Extras(quartiles, ranks))

    return asked


def _of_frame(keys: tuple[str, ...], summary: Callable[[Job, Session, Selection], TableAnswer]) -> Ask:
    """A recipe of a summary whose frame has the quartiles already."""

    def asked(job: Job, selection: Selection, options: Options) -> Answer:
        if options.by_rank:
            return of_each_rank(job, selection, lambda session, own: summary(job, session, own))
        answer = summary(job, job.session, selection)
        extremes: list[Extreme] = []
        for item in chosen_ranks(job, selection):
            own = of_rank(job, selection, item, lambda session, own: summary(job, session, own))
            extremes += extremes_of(own, item.rank, keys)
        frame = answer.frame()
        columns = [frame[key].tolist() for key in (*keys, "q1", "q3")]
        quartiles: dict[Key, tuple[Value, Value]] = {
            tuple(key): (q1, q3) for *key, q1, q3 in zip(*columns, strict=True)
        }
        return with_extras(answer, keys, Extras(quartiles, ranks_of(extremes)))

    return asked


def _work(work: Work) -> Ask:
    def found(session: Session, selection: Selection, _: Options) -> _Rows:
        table, label = rows_of(session, work)
        return _Rows(table, table, duration(table), (label.label("name"),), where(table, selection, label))

    return _of_rows(lambda session, selection, _: work_summary(session, selection, work), found)


def _kernels(_session: Session, selection: Selection, options: Options) -> _Rows:
    table = tables.kernels
    name = name_of(table, options.names)
    return _Rows(table, table, duration(table), (name.label("name"),), where(table, selection, name))


def _sizes(_session: Session, selection: Selection, _: Options) -> _Rows:
    table = tables.memory_ops
    name = table.c.operation
    return _Rows(table, table, table.c.bytes, (name.label("name"),), where(table, selection, name))


def _ranges(_session: Session, selection: Selection, _: Options) -> _Rows:
    table, last = tables.nvtx_ranges, last_times()
    style = sa.case((table.c.event_type.in_(PUSH_POP_TYPES), "PushPop"), else_="StartEnd")
    conditions = [table.c.event_type.in_((*PUSH_POP_TYPES, *START_END_TYPES)), table.c.start.is_not(None)]
    return _Rows(
        table.join(last, last.c.report == table.c.report),
        table,
        sa.func.coalesce(table.c.end, last.c.time) - table.c.start,
        (style.label("style"), LABEL.label("name")),
        [*conditions, *where(table, selection, LABEL)],
    )


def _projected_ranges(_: Job, session: Session, selection: Selection) -> TableAnswer:
    return projected_summary(session, selection, ReportOptions())


ASK: dict[str, Ask] = {
    "cuda_api_sum": _work(API),
    "cuda_gpu_kern_sum": _of_rows(
        lambda session, selection, options: kernel_summary(session, selection, options.names), _kernels
    ),
    "cuda_gpu_mem_size_sum": _of_rows(lambda session, selection, _: memory_sizes(session, selection), _sizes),
    "cuda_gpu_mem_time_sum": _work(MEMORY),
    "mpi_sum": _work(MPI),
    "nccl_gpu_proj_sum": _of_frame(("name",), lambda job, _, selection: nccl_projected(job, selection)),
    "nccl_sum": _work(_NCCL),
    "nvtx_gpu_proj_sum": _of_frame(("style", "name"), _projected_ranges),
    "nvtx_sum": _of_rows(lambda session, selection, _: nvtx_summary(session, selection), _ranges),
    "osrt_sum": _work(OS),
}
