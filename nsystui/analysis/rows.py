"""Answers made of rows that Python put together, and the words that their notes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsystui.analysis.answer import Column, FrameAnswer, Row, Unit


def answer_of(
    name: str,
    columns: tuple[Column, ...],
    rows: Sequence[Row],
    total: int | None = None,
    notes: tuple[str, ...] = (),
) -> FrameAnswer:
    """A frame of ``rows``, values in the order of ``columns``; ``None`` stays apart from 0 in every column."""
    import pandas as pd

    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    series = {
        column.key: pd.Series(list(cells), dtype=_dtype(column)) for column, cells in zip(columns, values, strict=True)
    }
    return FrameAnswer(name, columns, pd.DataFrame(series), total, notes)


def _dtype(column: Column) -> Any:
    """Text as objects, what is written with decimals as floats (NaN is missing), other numbers as ``Int64``."""
    if column.unit is Unit.TEXT:
        return "object"
    return "float64" if column.decimals is not None else "Int64"


def few(names: Sequence[object]) -> str:
    """Up to three of the names and how many more there are, for a sentence."""
    shown = ", ".join(str(name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def which_of(names: Sequence[str], reports: int) -> str:
    """How a note calls the exports of these names, some or all of the ``reports`` that it speaks of."""
    if len(names) < reports:
        return few(names)
    return "this export" if reports == 1 else "these exports"
