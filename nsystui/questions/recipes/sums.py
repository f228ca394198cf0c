"""Recipes that sum by name: summaries with quartiles, and with the ranks of the extremes.

All statistics are computed over the rows of all ranks together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Answer, Column, Row, TableAnswer, Unit, Value, iter_rows
from nsystui.base.selection import Selection
from nsystui.base.types import Expression, Query, grouped
from nsystui.questions.algebra.groups import Groups
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import (
    API,
    MEMORY,
    MPI,
    OS,
    Work,
    memory_sizes,
    size_rows,
    work_rows,
    work_summary,
)
from nsystui.questions.nccl.grouping import NcclProperty, selected, values_of
from nsystui.questions.nccl.summary import nccl_notes
from nsystui.questions.nccl.units import whole
from nsystui.questions.nvtx.listing import nvtx_summary, range_rows
from nsystui.questions.queries import statistics
from nsystui.questions.queries.distributions import group_number, medians
from nsystui.questions.queries.statistics import MANY, ValueRows
from nsystui.questions.queries.tasks import rank_of, selected_ranks
from nsystui.questions.recipes.recipe import AskRecipe, RecipeOptions, of_each_rank, of_rank
from nsystui.questions.stats.cuda_sums import kernel_rows, kernels_as_nsys
from nsystui.questions.stats.nvtx_projected import PROJECTED, projected_summary, projected_trace
from nsystui.questions.stats.report import ReportOptions
from nsystui.store import tables
from nsystui.store.report import most_rows
from nsystui.store.session import Session

_RANKS = {"min": 6, "max": 3}
"""The importance of an extreme's rank column: the slowest rank matters more than its value."""

_Key = tuple[Value, ...]
"""The identity of a row of a summary: its name, or its style and name."""


_Pair = tuple[Value, Value]


def ranks_of(extremes: Iterable[tuple[_Key, int | None, float, float]]) -> dict[_Key, _Pair]:
    """Return the lowest ranks with the minimum and the maximum of each key; ``None`` if no rank has it.

    ``extremes``: a key, a rank (``None``: a process that is not a rank), and the key's minimum and maximum there.
    """
    ranks: dict[_Key, _Pair] = {}
    for key, group in grouped((key, (rank, low, high)) for key, rank, low, high in extremes).items():
        smallest, largest = min(low for _, low, _ in group), max(high for *_, high in group)
        ranks[key] = (
            _lowest(rank for rank, low, _ in group if low == smallest),
            _lowest(rank for rank, _, high in group if high == largest),
        )
    return ranks


def _lowest(ranks: Iterable[int | None]) -> int | None:
    return min((rank for rank in ranks if rank is not None), default=None)


def with_extras(
    answer: Answer, keys: Sequence[str], quartiles: Mapping[_Key, _Pair], ranks: Mapping[_Key, _Pair],
    is_projected: bool,
) -> TableAnswer:  # fmt: skip
    """Add Q1 and Q3 around the median, and the ranks after the extremes, each by the key of a row.

    ``is_projected``: the statistics are of projected GPU times; headings show it.
    """
    keys_before = [column.key for column in answer.columns]
    columns: list[Column] = []
    for column in answer.columns:
        added = _extra_columns(column, is_projected)
        columns += added if column.key == "median" else [column, *added]
    key_indices, missing = _indices(answer.columns, keys), (None, None)
    rows: list[Row] = []
    for row in iter_rows(answer):
        key = tuple(row[index] for index in key_indices)
        values = dict(zip(keys_before, row, strict=True))
        values["q1"], values["q3"] = quartiles.get(key, missing)
        values["min_rank"], values["max_rank"] = ranks.get(key, missing)
        rows.append(tuple(values[column.key] for column in columns))
    return TableAnswer(answer.name, tuple(columns), rows, answer.total, answer.notes)


def _extra_columns(column: Column, is_projected: bool) -> list[Column]:
    if column.key == "median":
        unit = "B" if column.unit is Unit.BYTES else "ns"
        title, label = ("Proj ", "GPU ") if is_projected else ("", "")
        first, third = (
            replace(column, key=word.lower(), header=f"{title}{word} ({unit})", label=f"{label}{word}", importance=7)
            for word in ("Q1", "Q3")
        )
        return [first, column, third]
    if column.key in _RANKS:
        key, importance = f"{column.key}_rank", _RANKS[column.key]
        header, label = f"{column.key.capitalize()} Rank", f"{column.key} rank"
        return [Column(key, header=header, label=label, unit=Unit.NUMBER, importance=importance)]
    return []


def _indices(columns: Sequence[Column], keys: Sequence[str]) -> list[int]:
    names = [column.key for column in columns]
    return [names.index(key) for key in keys]


COLUMNS = (
    Column("name", header="Collective", label="collective"),
    Column("total", header="Total Proj Time (ns)", label="GPU total", unit=Unit.DURATION),
    Column(
        "call_total", header="Total Call Time (ns)", label="CPU total", unit=Unit.DURATION, compared="total"
    ).with_importance(2),
    Column("count", header="Operations", label="operations", unit=Unit.COUNT, importance=1),
    *PROJECTED,
)
_ONLY_KERNELS = "only kernels count: copies that NCCL makes without a kernel are missing"


def nccl_projected(job: OpenJob, selection: Selection) -> TableAnswer:
    """Summarise NCCL operations by collective, from first to last kernel, longest total first.

    An operation is the work of a call, of the equal calls of a group, or a kernel without a call. ``call_total`` is the
    CPU time of the calls, including group calls, if any. The frame also has ``q1`` and ``q3``.
    """
    import pandas as pd

    pairing = job.pairing()
    kernels = selected(pairing.kernels, selection)
    kernels = kernels[kernels["end"].notna()]
    operation = whole(kernels["operation"])
    alone = operation.max(initial=-1) + 1 + np.arange(len(kernels))
    name = values_of(kernels, NcclProperty.COLLECTIVE).fillna("unknown").to_numpy(object)
    times = {key: whole(kernels[key]) for key in ("start", "end")}
    frame = pd.DataFrame({"operation": np.where(operation >= 0, operation, alone), "name": name, **times})
    operations = frame.groupby("operation").agg(
        name=("name", "first"), start=("start", "min"), end=("end", "max"), op_count=("start", "size")
    )
    calls = pairing.calls
    call_times = (calls["end"] - calls["start"]).astype("float64").groupby(whole(calls["operation"])).sum()
    operations["call_total"] = call_times.reindex(operations.index)
    code, names = pd.factorize(operations["name"])
    group, span = code.astype(np.int64), (operations["end"] - operations["start"]).to_numpy(np.int64)
    groups = Groups.of(group, span)
    table = pd.DataFrame(groups.measures(), index=groups.number)
    sums = operations.groupby(group)[["op_count", "call_total"]].sum(min_count=1)
    table["op_count"], table["call_total"] = sums["op_count"], sums["call_total"].round().astype("Int64")
    table["name"] = np.asarray(names, object)[groups.number]
    table = table.sort_values(["total", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)
    notes = (*nccl_notes(job, selection, pairing), *((_ONLY_KERNELS,) if len(table) else ()))
    total = len(table) if selection.is_everything else None
    return TableAnswer.of_arrays("nccl-gpu-proj-sum", COLUMNS, table, total, notes)


_NCCL = Work("nccl", tables.nccl_calls, tables.nccl_calls.c.name, "Instances", "Name")


def _grouped(rows: ValueRows, *values: Expression, group_by: tuple[Expression, ...] = ()) -> Query:
    """Select ``values`` of rows with a value for each combination of the keys and ``group_by``."""
    query = sa.select(*rows.keys, *group_by, *values).select_from(rows.table)
    keys = [key.element for key in rows.keys]
    return query.where(*rows.conditions, rows.value.is_not(None)).group_by(*keys, *group_by)


def _from_rows(
    summary: Callable[[Session, Selection, RecipeOptions], Answer],
    rows_of: Callable[[Session, Selection, RecipeOptions], ValueRows],
) -> AskRecipe:
    """Return a recipe of a summary of rows in the store."""

    def ask(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
        if options.by_rank:
            return of_each_rank(job, selection, lambda session, subset: summary(session, subset, options))
        answer = summary(job.session, selection, options)  # first: raises if names need too much memory
        rows = rows_of(job.session, selection, options)
        quartiles = _quartiles(job.session, rows)
        rank = rank_of(rows.table if rows.counted is None else rows.counted, selected_ranks(job.ranks, selection))
        extremes = job.session.rows(_grouped(rows, sa.func.min(rows.value), sa.func.max(rows.value), group_by=(rank,)))
        ranks = ranks_of((tuple(key), number, low, high) for *key, number, low, high in extremes)
        return with_extras(answer, [key.name for key in rows.keys], quartiles, ranks, is_projected=False)

    return ask


_MANY = MANY // 4
"""The number of rows from which quartiles need two passes: a single query holds every value four times."""


def _quartiles(session: Session, rows: ValueRows) -> dict[_Key, _Pair]:
    if rows.counted is not None and most_rows(session.reports, rows.counted) >= _MANY:
        number = group_number(rows.keys)
        numbers = {tuple(key): group for *key, group in session.rows(_grouped(rows, sa.func.min(number)))}
        if len(set(numbers.values())) == len(numbers):  # otherwise two groups have the same hash
            source = rows.table, rows.value, number, rows.conditions
            first, third = (medians(session, *source, quarter) for quarter in (1, 3))
            return {key: (first[group], third[group]) for key, group in numbers.items()}
    quartiles = session.rows(_grouped(rows, *statistics.quartiles(rows.value)))
    return {tuple(key): (q1, q3) for *key, q1, q3 in quartiles}


def _from_frame(keys: tuple[str, ...], summary: Callable[[OpenJob, Session, Selection], TableAnswer]) -> AskRecipe:
    """Return a recipe of a summary of projected times, whose frame has the quartiles."""

    def ask(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
        if options.by_rank:
            return of_each_rank(job, selection, lambda session, subset: summary(job, session, subset))
        answer = summary(job, job.session, selection)
        extremes: list[tuple[_Key, int | None, float, float]] = []
        for item in selected_ranks(job.ranks, selection):
            rank_answer = of_rank(job, selection, item, lambda session, subset: summary(job, session, subset))
            indices = _indices(rank_answer.columns, (*keys, "min", "max"))
            for *key, low, high in ([row[index] for index in indices] for row in iter_rows(rank_answer)):
                if isinstance(low, int | float) and isinstance(high, int | float):
                    extremes.append((tuple(key), item.rank, low, high))
        frame = answer.frame()
        columns = [frame[key].tolist() for key in (*keys, "q1", "q3")]
        quartiles = {tuple(key): (q1, q3) for *key, q1, q3 in zip(*columns, strict=True)}
        return with_extras(answer, keys, quartiles, ranks_of(extremes), is_projected=True)

    return ask


def _work(work: Work) -> AskRecipe:
    return _from_rows(
        lambda session, selection, _: work_summary(session, selection, work),
        lambda session, selection, _: work_rows(session, selection, work),
    )


ASK: dict[str, AskRecipe] = {
    "cuda_api_sum": _work(API),
    "cuda_gpu_kern_sum": _from_rows(
        lambda session, selection, options: kernels_as_nsys(session, selection, options.names),
        lambda _, selection, options: kernel_rows(selection, options.names),
    ),
    "cuda_gpu_mem_size_sum": _from_rows(
        lambda session, selection, _: memory_sizes(session, selection), lambda _, selection, __: size_rows(selection)
    ),
    "cuda_gpu_mem_time_sum": _work(MEMORY),
    "mpi_sum": _work(MPI),
    "nccl_gpu_proj_sum": _from_frame(("name",), lambda job, _, selection: nccl_projected(job, selection)),
    "nccl_sum": _work(_NCCL),
    "nvtx_gpu_proj_sum": _from_frame(
        ("style", "name"), lambda _, session, selection: projected_summary(session, selection, ReportOptions())
    ),
    "nvtx_sum": _from_rows(
        lambda session, selection, _: nvtx_summary(session, selection), lambda _, selection, __: range_rows(selection)
    ),
    "osrt_sum": _work(OS),
    "nvtx_gpu_proj_trace": lambda job, selection, _: of_each_rank(
        job, selection, lambda session, subset: projected_trace(session, subset, ReportOptions())
    ),
}
