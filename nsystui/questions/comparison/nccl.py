"""NCCL of two sides by collective and message size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.base.columns import Column, Unit
from nsystui.questions.comparison.pairs import Compared, Extra, Key, Measured, compared
from nsystui.questions.comparison.side import Basis, Side, both
from nsystui.questions.nccl.grouping import COLUMNS, USUAL, By
from nsystui.questions.nccl.summary import CALL, KERNEL, What, nccl_summary

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.base.answer import TableAnswer

_WHAT = Column("what", header="What", label="what", importance=4)
_EXTRAS = (
    Extra("exposed", "Exposed", "exposed", Unit.DURATION, None, 3, is_sum=True, difference="exposed B − A"),
    Extra("bytes", "Bytes", "bytes", Unit.BYTES, None, 5, is_sum=True),
    Extra("busbw", "BusBW", "busbw", Unit.RATE, 1, 2),
)


def nccl(a: Side, b: Side) -> Compared:
    """NCCL kernels (or the calls, where neither side has kernels) with the numbers of `nccl_summary`.

    Rows are collectives and buckets of the message size; where only one side knows sizes, collectives alone: a size
    that is not known is none that is new.
    """
    by: tuple[By, ...] = USUAL
    found = [_summary(side, by) for side in (a, b)]
    if len({_knows_sizes(one.frame()) for one in found if len(one)}) > 1:
        by = (By.COLLECTIVE,)
        found = [_summary(side, by) for side in (a, b)]
    is_of_kernels = any((one.frame()["what"] == KERNEL).any() for one in found)
    what: What = KERNEL if is_of_kernels or not any(map(len, found)) else CALL
    basis = Basis(a.gpu_ranks, b.gpu_ranks) if what == KERNEL else Basis(a.call_ranks, b.call_ranks)
    notes = [*basis.note("ranks with a GPU" if what == KERNEL else "ranks with calls")]
    if by != USUAL:
        notes.append("by collective alone: only one side tells message sizes")
    notes += both(found[0].notes, found[1].notes)
    names = (_WHAT, *(COLUMNS[one] for one in by))
    sides = _measured(found[0].frame(), what, by), _measured(found[1].frame(), what, by)
    return compared("diff-nccl", names, sides, basis, notes, _EXTRAS)


def _summary(side: Side, by: tuple[By, ...]) -> TableAnswer:
    job = side.job
    return nccl_summary(job.session, side.selection, job.ranks, job.pairing(), by)


def _knows_sizes(frame: pd.DataFrame) -> bool:
    kernels = frame[frame["what"] == KERNEL]
    return bool((kernels if len(kernels) else frame)["bucket"].notna().any())


def _measured(frame: pd.DataFrame, what: What, by: tuple[By, ...]) -> dict[Key, Measured]:
    chosen = frame[frame["what"] == what]
    keys = [COLUMNS[one].key for one in by]
    wanted = ["count", "total", "median", "exposed", "bytes", "busbw", *keys]
    found: dict[Key, Measured] = {}
    for count, total, median, exposed, size, busbw, *place in zip(*(chosen[key] for key in wanted), strict=True):
        sums = {"exposed": _number(exposed), "bytes": _number(size)}
        key = (what, *(value if isinstance(value, str) else None for value in place))
        found[key] = Measured(int(count), _number(total), _known(median), sums, {"busbw": _known(busbw)})
    return found


def _known(value: object) -> float | None:
    import pandas as pd

    return None if pd.isna(value) else float(value)  # type: ignore[arg-type]


def _number(value: object) -> int | None:
    known = _known(value)
    return None if known is None else int(value)  # type: ignore[call-overload]
