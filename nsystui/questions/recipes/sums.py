"""The recipes that sum by name: the summaries of this room, with quartiles and the ranks that have the extremes.

All statistics are those of the rows of all ranks together, and so are medians and quartiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Answer, Column, Row, TableAnswer, Unit, Value, iter_rows
from nsystui.base.selection import Selection
from nsystui.questions.algebra.groups import Groups
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import API, MEMORY, MPI, OS, Work, memory_sizes, rows_of, work_summary
from nsystui.questions.kernels.summary import name_of
from nsystui.questions.nccl.grouping import NcclProperty, selected, values_of
from nsystui.questions.nccl.summary import nccl_notes
from nsystui.questions.nccl.units import whole
from nsystui.questions.nvtx.listing import nvtx_summary
from nsystui.questions.nvtx.loading import LABEL, PUSH_POP_TYPES, START_END_TYPES, last_times
from nsystui.questions.queries import statistics
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.queries.distributions import MANY, medians
from nsystui.questions.queries.tasks import rank_of, selected_ranks
from nsystui.questions.recipes.recipe import Ask, RecipeOptions, of_each_rank, of_rank
from nsystui.questions.stats.cuda_sums import kernels_as_nsys
from nsystui.questions.stats.nvtx_projected import PROJECTED, projected_summary, projected_trace
from nsystui.questions.stats.report import ReportOptions as ReportOptions
from nsystui.store import tables
from nsystui.store.report import most_rows
from nsystui.store.session import Session

_RANKS = {"min": 6, "max": 3}
"""The importance of the rank of an extreme: the slowest rank matters more than how slow it is."""

Key = tuple[Value, ...]
"""The identity of a row of a summary: its name, or its style and name."""


class Extreme(NamedTuple):
    """The minimum and the maximum that a rank (``None``: a process that is none) has under a key."""

    key: Key
    rank: int | None
    minimum: float
    maximum: float


@dataclass(frozen=True)
class Extras:
    """By the key of a row: (Q1, Q3), and the ranks of the minimum and the maximum.

    ``is_projected``: the statistics are of times on the GPU, which their columns say.
    """

    quartiles: Mapping[Key, tuple[Value, Value]]
    ranks: Mapping[Key, tuple[Value, Value]]
    is_projected: bool = False


def ranks_of(extremes: Iterable[Extreme]) -> dict[Key, tuple[Value, Value]]:
    """The lowest ranks that have the minimum and the maximum of each key; missing where no rank has it."""
    by_key: dict[Key, list[Extreme]] = {}
    for extreme in extremes:
        by_key.setdefault(extreme.key, []).append(extreme)
    found: dict[Key, tuple[Value, Value]] = {}
    for key, own in by_key.items():
        least, largest = min(one.minimum for one in own), max(one.maximum for one in own)
        found[key] = (
            _lowest(one.rank for one in own if one.minimum == least),
            _lowest(one.rank for one in own if one.maximum == largest),
        )
    return found


def _lowest(ranks: Iterable[int | None]) -> int | None:
    return min((rank for rank in ranks if rank is not None), default=None)


def extremes_of(answer: Answer, rank: int, keys: Sequence[str]) -> list[Extreme]:
    """Those of one rank, from its own summary."""
    places = _places(answer.columns, (*keys, "min", "max"))
    found = []
    for row in iter_rows(answer):
        *key, least, largest = (row[place] for place in places)
        if isinstance(least, int | float) and isinstance(largest, int | float):
            found.append(Extreme(tuple(key), rank, least, largest))
    return found


def with_extras(answer: Answer, keys: Sequence[str], extras: Extras) -> TableAnswer:
    """The summary with Q1 and Q3 around its median, and the ranks of the extremes behind them."""
    old = [column.key for column in answer.columns]
    columns: list[Column] = []
    for column in answer.columns:
        around = _around(column, extras.is_projected)
        columns += around if column.key == "median" else [column, *around]
    own, nothing = _places(answer.columns, keys), (None, None)
    rows: list[Row] = []
    for row in iter_rows(answer):
        key = tuple(row[place] for place in own)
        values = dict(zip(old, row, strict=True))
        values["q1"], values["q3"] = extras.quartiles.get(key, nothing)
        values["min_rank"], values["max_rank"] = extras.ranks.get(key, nothing)
        rows.append(tuple(values[column.key] for column in columns))
    return TableAnswer(answer.name, tuple(columns), rows, answer.total, answer.notes)


def _around(column: Column, is_projected: bool) -> list[Column]:
    """The quartiles around a median, the rank after an extreme; nothing for other columns."""
    if column.key == "median":
        unit = "B" if column.unit is Unit.BYTES else "ns"
        first, third = (
            replace(
                column,
                key=word.lower(),
                header=f"{'Proj ' if is_projected else ''}{word} ({unit})",
                label=f"{'GPU ' if is_projected else ''}{word}",
                importance=7,
            )
            for word in ("Q1", "Q3")
        )
        return [first, column, third]
    if column.key in _RANKS:
        word = column.key.capitalize()
        return [
            Column(
                f"{column.key}_rank",
                header=f"{word} Rank",
                label=f"{column.key} rank",
                unit=Unit.NUMBER,
                importance=_RANKS[column.key],
            )
        ]
    return []


def _places(columns: Sequence[Column], keys: Sequence[str]) -> list[int]:
    names = [column.key for column in columns]
    return [names.index(key) for key in keys]


COLUMNS = (
    Column("name", header="Collective", label="collective"),
    Column("total", header="Total Proj Time (ns)", label="GPU total", unit=Unit.DURATION),
    Column(
        "call_total",
        header="Total Call Time (ns)",
        label="CPU total",
        unit=Unit.DURATION,
        compared="total",
        importance=2,
    ),
    Column("count", header="Operations", label="operations", unit=Unit.COUNT, importance=1),
    *PROJECTED,
)
_ONLY_KERNELS = "only kernels count: copies that NCCL makes without a kernel are missing"


def nccl_projected(job: OpenJob, selection: Selection) -> TableAnswer:
    """One row for each collective: statistics of its operations from first to last kernel, longest total first.

    An operation is what one call launched, or the alike calls of a group; a kernel without calls is one of its own.
    ``call_total`` is the CPU time of the calls of these operations, those that manage their groups among them; missing
    where none has calls. The frame has ``q1`` and ``q3`` besides.
    """
    import pandas as pd

    pairing = job.pairing()
    kernels = selected(pairing.kernels, selection)
    kernels = kernels[kernels["end"].notna()]
    operation = whole(kernels["operation"])
    alone = operation.max(initial=-1) + 1 + np.arange(len(kernels))
    frame = pd.DataFrame(
        {
            "operation": np.where(operation >= 0, operation, alone),
            "name": values_of(kernels, NcclProperty.COLLECTIVE).fillna("unknown").to_numpy(object),
            "start": whole(kernels["start"]),
            "end": whole(kernels["end"]),
        }
    )
    found = frame.groupby("operation").agg(
        name=("name", "first"), start=("start", "min"), end=("end", "max"), op_count=("start", "size")
    )
    calls = pairing.calls
    spent = (calls["end"] - calls["start"]).astype("float64").groupby(whole(calls["operation"])).sum()
    found["call_total"] = spent.reindex(found.index)
    code, names = pd.factorize(found["name"])
    group, span = code.astype(np.int64), (found["end"] - found["start"]).to_numpy(np.int64)
    groups = Groups.of(group, span)
    table = pd.DataFrame(groups.measures(), index=groups.number)
    sums = found.groupby(group)[["op_count", "call_total"]].sum(min_count=1)
    table["op_count"], table["call_total"] = sums["op_count"], sums["call_total"].round().astype("Int64")
    table["name"] = pd.Series(
        np.asarray(names, object)[table.index.to_numpy(np.int64)], index=table.index, dtype=object
    )
    table = table.sort_values(["total", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)
    notes = (*nccl_notes(job.session, selection, job.ranks, pairing), *((_ONLY_KERNELS,) if len(table) else ()))
    return TableAnswer.of_frame(
        "nccl-gpu-proj-sum", COLUMNS, table, len(table) if selection.is_everything else None, notes
    )


_NCCL = Work("nccl", tables.nccl_calls, tables.nccl_calls.c.name, "Instances", "Name")


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
    summary: Callable[[Session, Selection, RecipeOptions], Answer],
    rows_of: Callable[[Session, Selection, RecipeOptions], _Rows],
) -> Ask:
    """A recipe of a summary, and of the query for its rows."""

    def ask(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
        if options.by_rank:
            return of_each_rank(job, selection, lambda session, own: summary(session, own, options))
        answer = summary(job.session, selection, options)  # first: it refuses names that do not fit into memory
        rows = rows_of(job.session, selection, options)
        keys = [key.name for key in rows.keys]
        quartiles = _quartiles(job.session, rows)
        rank = rank_of(rows.events, selected_ranks(job.ranks, selection))
        extremes = job.session.rows(rows.grouped(sa.func.min(rows.value), sa.func.max(rows.value), by=(rank,)))
        ranks = ranks_of(Extreme(tuple(key), at, least, most) for *key, at, least, most in extremes)
        return with_extras(answer, keys, Extras(quartiles, ranks))

    return ask


_MANY = MANY // 4
"""Rows from which on each quartile takes two passes: in one query DuckDB keeps every value four times."""


def _quartiles(session: Session, rows: _Rows) -> dict[Key, tuple[Value, Value]]:
    """Q1 and Q3 by the key of a row."""
    if isinstance(rows.events, sa.Table) and most_rows(session.reports, rows.events) >= _MANY:
        number = statistics.group_number(rows.keys)
        numbers = {tuple(key): one for *key, one in session.rows(rows.grouped(sa.func.min(number)))}
        if len(set(numbers.values())) == len(numbers):  # else a hash gives two groups one number
            known = rows.source, rows.value, number, rows.conditions
            first, third = (medians(session, *known, quarter) for quarter in (1, 3))
            return {key: (first[one], third[one]) for key, one in numbers.items()}
    found = session.rows(rows.grouped(*statistics.quartiles(rows.value)))
    return {tuple(key): (q1, q3) for *key, q1, q3 in found}


def _of_frame(keys: tuple[str, ...], summary: Callable[[OpenJob, Session, Selection], TableAnswer]) -> Ask:
    """A recipe of a summary of projected times, whose frame has the quartiles already."""

    def ask(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
        if options.by_rank:
            return of_each_rank(job, selection, lambda session, own: summary(job, session, own))
        answer = summary(job, job.session, selection)
        extremes: list[Extreme] = []
        for item in selected_ranks(job.ranks, selection):
            own = of_rank(job, selection, item, lambda session, own: summary(job, session, own))
            extremes += extremes_of(own, item.rank, keys)
        frame = answer.frame()
        columns = [frame[key].tolist() for key in (*keys, "q1", "q3")]
        quartiles: dict[Key, tuple[Value, Value]] = {
            tuple(key): (q1, q3) for *key, q1, q3 in zip(*columns, strict=True)
        }
        return with_extras(answer, keys, Extras(quartiles, ranks_of(extremes), is_projected=True))

    return ask


def _work(work: Work) -> Ask:
    def found(session: Session, selection: Selection, _: RecipeOptions) -> _Rows:
        table, label = rows_of(session, work)
        return _Rows(table, table, duration(table), (label.label("name"),), where(table, selection, label))

    return _of_rows(lambda session, selection, _: work_summary(session, selection, work), found)


def _kernels(_session: Session, selection: Selection, options: RecipeOptions) -> _Rows:
    table = tables.kernels
    name = name_of(table, options.names)
    return _Rows(table, table, duration(table), (name.label("name"),), where(table, selection, name))


def _sizes(_session: Session, selection: Selection, _: RecipeOptions) -> _Rows:
    table = tables.memory_ops
    name = table.c.operation
    return _Rows(table, table, table.c.bytes, (name.label("name"),), where(table, selection, name))


def _ranges(_session: Session, selection: Selection, _: RecipeOptions) -> _Rows:
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


ASK: dict[str, Ask] = {
    "cuda_api_sum": _work(API),
    "cuda_gpu_kern_sum": _of_rows(
        lambda session, selection, options: kernels_as_nsys(session, selection, options.names), _kernels
    ),
    "cuda_gpu_mem_size_sum": _of_rows(lambda session, selection, _: memory_sizes(session, selection), _sizes),
    "cuda_gpu_mem_time_sum": _work(MEMORY),
    "mpi_sum": _work(MPI),
    "nccl_gpu_proj_sum": _of_frame(("name",), lambda job, _, selection: nccl_projected(job, selection)),
    "nccl_sum": _work(_NCCL),
    "nvtx_gpu_proj_sum": _of_frame(
        ("style", "name"), lambda _, session, selection: projected_summary(session, selection, ReportOptions())
    ),
    "nvtx_sum": _of_rows(lambda session, selection, _: nvtx_summary(session, selection), _ranges),
    "osrt_sum": _work(OS),
    "nvtx_gpu_proj_trace": lambda job, selection, _: of_each_rank(
        job, selection, lambda session, own: projected_trace(session, own, ReportOptions())
    ),
}
