"""Answers made of rows that Python put together, with types that keep a missing value apart from a zero."""

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
    """A frame of ``rows``, whose values stand in the order of ``columns``; ``None`` is missing in every column."""
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
