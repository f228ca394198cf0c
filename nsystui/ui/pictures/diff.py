"""The tables of a comparison as they are drawn: with a coloured diverging bar at each difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsystui.base.answer import Column, Record, Row, TableAnswer, Value, record

BAR = Column("bar", header="Bar", label="▼ less │ more ▲", importance=2)
_HALF = 6  # cells of a bar on each side of its middle


@dataclass(frozen=True)
class _WithBars(TableAnswer):
    """A comparison with bars; sorting by the bars sorts by the difference."""

    plain: TableAnswer | None = None

    def sorted_by(self, key: str, descending: bool) -> _WithBars:
        assert self.plain is not None
        return with_bars(self.plain.sorted_by("difference" if key == BAR.key else key, descending))


def with_bars(answer: TableAnswer) -> _WithBars:
    """Return the answer with a bar behind each difference, scaled to the largest difference."""
    index = [column.key for column in answer.columns].index("difference")
    changes = [float(value) if isinstance(value := row[index], int | float) else None for row in answer.rows]
    largest = max((abs(change) for change in changes if change is not None), default=0.0)
    rows: list[Row] = [
        (*row[: index + 1], _bar(change, largest), *row[index + 1 :])
        for row, change in zip(answer.rows, changes, strict=True)
    ]
    columns = (*answer.columns[: index + 1], BAR, *answer.columns[index + 1 :])
    return _WithBars(answer.name, columns, rows, answer.total, answer.notes, plain=answer)


def without_bars(answer: TableAnswer) -> TableAnswer:
    """Return the same table for a file, without bars."""
    keys = [column.key for column in answer.columns]
    if BAR.key not in keys:
        return answer
    index = keys.index(BAR.key)
    columns = (*answer.columns[:index], *answer.columns[index + 1 :])
    rows: Sequence[Row] = [(*row[:index], *row[index + 1 :]) for row in answer.rows]
    return TableAnswer(answer.name, columns, rows, answer.total, answer.notes)


def _bar(change: float | None, largest: float) -> str | None:
    if change is None:
        return None
    halves = round(2 * _HALF * abs(change) / largest) if largest else 0
    full, half = divmod(halves, 2)
    if change < 0:
        return ("▼" + "▐" * half + "█" * full).rjust(_HALF + 1) + "│" + " " * (_HALF + 1)
    return " " * (_HALF + 1) + "│" + ("█" * full + "▌" * half + ("▲" if change > 0 else "")).ljust(_HALF + 1)


def change_styles(values: Record) -> dict[str, str]:
    """Return the categories of cells that show a change: less time is better, more is worse."""
    change = values.get("difference")
    if not change or not isinstance(change, int | float):
        return {}
    category = "worse" if change > 0 else "better"
    return {"difference": category, BAR.key: category}


def summary_styles(summary: TableAnswer) -> dict[Value, dict[str, str]]:
    """Return the `change_styles` of a summary's rows by measure, if a change is better or worse."""
    styles = {}
    for row in summary.rows:
        values = record(summary.columns, row)
        measure, change, is_percent = values["what"], values["difference"], values["unit"] == "%"
        if is_percent and isinstance(change, int | float):
            change = round(change, 1)  # as shown
        if values["unit"] == "ns" or str(measure).strip() in ("GPU idle", "exposed NCCL"):
            styles[measure] = change_styles({"difference": change})
    return styles
