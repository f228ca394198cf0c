"""GPU work of two sides by name: kernels, memory operations, and whole CUDA graphs in sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa

from nsystui.base.answer import TableAnswer, Value
from nsystui.base.columns import NAME, Column, Unit
from nsystui.questions.activities import MEMORY, memory_sizes, work_summary
from nsystui.questions.comparison.pairs import Compared, Extra, Key, Measured, compared
from nsystui.questions.comparison.side import Basis, Side, both
from nsystui.questions.conditions import duration, where
from nsystui.questions.kernels import Names, kernel_summary
from nsystui.store import tables

_NAME = (NAME,)
_OPERATION = (Column("name", header="Operation", label="operation"),)
_BYTES = (Extra("bytes", "Bytes", "bytes", Unit.BYTES, None, 2, is_sum=True),)


def kernels(a: Side, b: Side, names: Names = Names.FULL) -> Compared:
    """Kernels by name, with the counts and times of `kernel_summary`."""
    found = [kernel_summary(side.job.session, side.selection, names) for side in (a, b)]
    basis = Basis(a.gpu_ranks, b.gpu_ranks)
    notes = (*basis.note("ranks with a GPU"), *both(found[0].notes, found[1].notes))
    return compared("diff-kernels", _NAME, (by_name(found[0]), by_name(found[1])), basis, notes)


def memory(a: Side, b: Side) -> Compared:
    """Memory copies and memsets by operation: times as in `work_summary`, and bytes as in `memory_sizes`."""
    found = [work_summary(side.job.session, side.selection, MEMORY) for side in (a, b)]
    sides = _with_sizes(a, by_name(found[0])), _with_sizes(b, by_name(found[1]))
    basis = Basis(a.gpu_ranks, b.gpu_ranks)
    notes = (*basis.note("ranks with a GPU"), *both(found[0].notes, found[1].notes))
    return compared("diff-memory", _OPERATION, sides, basis, notes, _BYTES)


def graph_time(side: Side) -> int:
    """The sum of the durations of the whole CUDA graphs that a side launched, ns."""
    table = tables.graph_launches
    query = sa.select(sa.cast(sa.func.sum(duration(table)), sa.BigInteger)).where(*where(table, side.selection))
    return int(side.job.session.scalar(query) or 0)


def by_name(answer: TableAnswer) -> dict[Key, Measured]:
    """The rows of a summary by their name."""
    return {
        (row["name"],): Measured(int(row["count"] or 0), row["total"], row["median"])  # type: ignore[arg-type]
        for row in answer.records()
    }


def _with_sizes(side: Side, found: Mapping[Key, Measured]) -> dict[Key, Measured]:
    answer = memory_sizes(side.job.session, side.selection)
    sizes = dict(zip(answer.cells("name"), answer.cells("total"), strict=True))
    return {key: replace(one, sums={"bytes": _number(sizes.get(key[0]))}) for key, one in found.items()}


def _number(value: Value) -> float | None:
    return value if isinstance(value, int | float) else None
