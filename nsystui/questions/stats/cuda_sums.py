"""Summaries by name of CUDA work and calls, as ``nsys stats`` has them (docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nsystui.base.answer import Answer, Row, TableAnswer
from nsystui.base.columns import NAME, Column, Unit
from nsystui.base.selection import Selection
from nsystui.base.units import MEGABYTE
from nsystui.questions.activities import MEMORY, SIZE_COLUMNS, memory_sizes, work_summary
from nsystui.questions.algebra import statistics
from nsystui.questions.conditions import duration, where
from nsystui.questions.data_notes import missing_note
from nsystui.questions.derived import of_all_reports
from nsystui.questions.kernels import Names, block_of, grid_of, kernel_notes, name_of
from nsystui.questions.stats.kernel_names import notes
from nsystui.questions.stats.report import Ask, Options
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

_KERNELS, _MEMORY_OPS, _CALLS, _DOUBLES = tables.kernels, tables.memory_ops, tables.api_calls, tables.api_backtraces

_NO_WORDS: Mapping[str, sa.ColumnElement[Any]] = MappingProxyType({})

_API_COLUMNS = (*statistics.duration_columns("Num Calls"), NAME)
_KERNEL_COLUMNS = (*statistics.duration_columns("Instances"), NAME)
_SHAPE_COLUMNS = (
    *statistics.duration_columns("Instances"),
    Column("grid", header="GridXYZ", label="grid"),
    Column("block", header="BlockXYZ", label="block"),
    NAME,
)
_UNION_COLUMNS = (
    *statistics.duration_columns("Instances"),
    Column("category", header="Category", label="category", importance=2),
    Column("name", header="Operation", label="operation"),
)
_SIZE_COLUMNS = tuple(
    replace(
        column,
        header=column.header.replace("(B)", "(MB)"),
        label=f"{column.label} MB",
        unit=Unit.MEGABYTES,
        decimals=3,
    )
    if column.unit is Unit.BYTES
    else column
    for column in SIZE_COLUMNS
)


def sizes_as_nsys(session: Session, selection: Selection) -> TableAnswer:
    """``cuda_gpu_mem_size_sum``: the bytes of `memory_sizes` in MB of 10⁶."""
    answer = memory_sizes(session, selection)
    return replace(answer, columns=_SIZE_COLUMNS, rows=[_in_megabytes(row) for row in answer.rows])


def _in_megabytes(row: Row) -> Row:
    pairs = zip(_SIZE_COLUMNS, row, strict=True)
    return tuple(
        value / MEGABYTE if column.unit is Unit.MEGABYTES and isinstance(value, int | float) else value
        for column, value in pairs
    )


def api_summary_as_nsys(session: Session, selection: Selection) -> TableAnswer:
    """``cuda_api_sum``: with the rows that ``--cudabacktrace`` writes a second time, as nsys counts them."""
    calls = _api_calls(selection)
    # Of equal totals the first by name comes first, then by version.
    keys = [calls.c.version.label("version"), calls.c.name.label("name")]
    rows = statistics.summary_rows(session, calls, calls.c.duration, keys, [], _API_COLUMNS)
    note = missing_note(session, _CALLS)
    return TableAnswer("cuda-api-sum", _API_COLUMNS, rows, len(rows), (note,) if note else ())


def _api_groups(session: Session, selection: Selection) -> pd.DataFrame:
    calls = _api_calls(selection)
    keys = [calls.c.name.label("name"), calls.c.version.label("version")]
    return statistics.group_frame(session, calls, calls.c.duration, keys, [])


def _api_calls(selection: Selection) -> sa.Subquery:
    """The calls by their names with the version, which is not shown but keeps the second rows apart: they have none."""
    parts = [
        sa.select(table.c.name, version.label("version"), duration(table).label("duration")).where(
            *where(table, selection, table.c.name)
        )
        for table, version in ((_CALLS, _CALLS.c.versioned_name), (_DOUBLES, _DOUBLES.c.name))
    ]
    return sa.union_all(*parts).subquery()


def kernels_as_nsys(session: Session, selection: Selection, names: Names) -> TableAnswer:
    """``cuda_gpu_kern_sum``: one row for each kernel name, with NVIDIA's columns, whatever the kernel screen shows."""
    name = name_of(_KERNELS, names)

    def ask() -> list[Row]:
        return _kernel_rows(session, selection, name, [name.label("name")], _KERNEL_COLUMNS)

    rows = of_all_reports(session, selection, _KERNELS, f"cuda_gpu_kern_sum {names.value}", ask)
    is_whole = selection.is_everything
    total = len(rows) if is_whole else statistics.number_of_values(session, name)
    return TableAnswer("cuda-gpu-kern-sum", _KERNEL_COLUMNS, rows, total, kernel_notes(session))


def _kernel_rows(
    session: Session,
    selection: Selection,
    name: sa.ColumnElement[Any],
    keys: Sequence[sa.Label[Any]],
    columns: tuple[Column, ...],
) -> list[Row]:
    conditions = where(_KERNELS, selection, name)
    return statistics.summary_rows(session, _KERNELS, duration(_KERNELS), keys, conditions, columns)


def _kernels(session: Session, selection: Selection, options: Options) -> Answer:
    if not options.nvtx_name:
        return kernels_as_nsys(session, selection, options.names)
    # Of equal totals nsys has the one of fewer instances first here (seen once, in h100-2rank-moe-before).
    frame = statistics.with_shares(_range_groups(session, selection, options), ("count", "name"))
    return TableAnswer.of_frame("cuda-gpu-kern-sum", _KERNEL_COLUMNS, frame, None, notes(session, options))


def _shapes(session: Session, selection: Selection, options: Options) -> Answer:
    """``cuda_gpu_kern_gb_sum``."""
    shape = {"grid": grid_of(_KERNELS), "block": block_of(_KERNELS)}
    if not options.nvtx_name:
        name = name_of(_KERNELS, options.names)
        keys = [*(column.label(key) for key, column in shape.items()), name.label("name")]
        rows = _kernel_rows(session, selection, name, keys, _SHAPE_COLUMNS)
        return TableAnswer("cuda-gpu-kern-gb-sum", _SHAPE_COLUMNS, rows, None, kernel_notes(session))
    groups = _range_groups(session, selection, options, shape)
    frame = statistics.with_shares(groups, ("count", "name", "block", "grid"))
    return TableAnswer.of_frame("cuda-gpu-kern-gb-sum", _SHAPE_COLUMNS, frame, None, notes(session, options))


def _range_groups(
    session: Session,
    selection: Selection,
    options: Options,
    words: Mapping[str, sa.ColumnElement[Any]] = _NO_WORDS,
) -> pd.DataFrame:
    """The kernels by their names behind their ranges, and by ``words``."""
    name = name_of(_KERNELS, options.names)
    query = sa.select(duration(_KERNELS).label("duration")).where(*where(_KERNELS, selection, name))
    from nsystui.questions.stats.kernel_names import range_named_frame

    rows = range_named_frame(session, selection, query, name, words)
    return statistics.frame_groups(rows, "duration", ["name", *words])


def _kernel_groups(session: Session, selection: Selection, options: Options) -> pd.DataFrame:
    if options.nvtx_name:
        return _range_groups(session, selection, options)
    return _groups(session, selection, _KERNELS, name_of(_KERNELS, options.names))


def _groups(session: Session, selection: Selection, table: sa.Table, name: sa.ColumnElement[Any]) -> pd.DataFrame:
    conditions = where(table, selection, name)
    return statistics.group_frame(session, table, duration(table), [name.label("name")], conditions)


def _gpu_work(session: Session, selection: Selection, options: Options) -> TableAnswer:
    """``cuda_gpu_sum``."""
    frame = _together(
        CUDA_KERNEL=_kernel_groups(session, selection, options),
        MEMORY_OPER=_groups(session, selection, _MEMORY_OPS, _MEMORY_OPS.c.operation),
    )
    return TableAnswer.of_frame("cuda-gpu-sum", _UNION_COLUMNS, frame, None, notes(session, options, _MEMORY_OPS))


def _calls_and_gpu_work(session: Session, selection: Selection, options: Options) -> TableAnswer:
    """``cuda_api_gpu_sum``."""
    frame = _together(
        CUDA_API=_api_groups(session, selection),
        CUDA_KERNEL=_kernel_groups(session, selection, options),
        MEMORY_OPER=_groups(session, selection, _MEMORY_OPS, _MEMORY_OPS.c.operation),
    )
    return TableAnswer.of_frame(
        "cuda-api-gpu-sum", _UNION_COLUMNS, frame, None, notes(session, options, _CALLS, _MEMORY_OPS)
    )


def _together(**categories: pd.DataFrame) -> pd.DataFrame:
    """The groups of all categories in one table; a share is one of the time of all."""
    import pandas as pd

    parts = [part.astype({"name": object}).assign(category=category) for category, part in categories.items()]
    # Where every part is empty the first one still has the columns.
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return statistics.with_shares(frame, ("name",))


ASK: dict[str, Ask] = {
    "cuda_api_gpu_sum": _calls_and_gpu_work,
    "cuda_api_sum": lambda s, w, _: api_summary_as_nsys(s, w),
    "cuda_gpu_kern_gb_sum": _shapes,
    "cuda_gpu_kern_sum": _kernels,
    "cuda_gpu_mem_size_sum": lambda s, w, _: sizes_as_nsys(s, w),
    "cuda_gpu_mem_time_sum": lambda s, w, _: work_summary(s, w, MEMORY),
    "cuda_gpu_sum": _gpu_work,
}
