"""The tables of a comparison as they are drawn: a diverging bar beside each difference, and its colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsystui.base.answer import Column, Record, Row, TableAnswer, Value, record

BAR = Column("bar", header="Bar", label="▼ less │ more ▲", importance=2)
_HALF = 6  # cells of a bar on each side of its middle


@dataclass(frozen=True)
class _WithBars(TableAnswer):
    """A comparison with bars; to sort by them is to sort by the difference."""

    plain: TableAnswer | None = None

    def sorted_by(self, key: str, descending: bool) -> _WithBars:
        assert self.plain is not None
        return with_bars(self.plain.sorted_by("difference" if key == BAR.key else key, descending))


def with_bars(answer: TableAnswer) -> _WithBars:
    """The answer with a bar behind each difference, as long as that is beside the largest one."""
    keys = [column.key for column in answer.columns]
    place = keys.index("difference")
    changes = [float(value) if isinstance(value := row[place], int | float) else None for row in answer.rows]
    largest = max((abs(change) for change in changes if change is not None), default=0.0)
    rows: list[Row] = [
        (*row[: place + 1], _bar(change, largest), *row[place + 1 :])
        for row, change in zip(answer.rows, changes, strict=True)
    ]
    columns = (*answer.columns[: place + 1], BAR, *answer.columns[place + 1 :])
    return _WithBars(answer.name, columns, rows, answer.total, answer.notes, plain=answer)


def without_bars(answer: TableAnswer) -> TableAnswer:
    """The same table for a file."""
    keys = [column.key for column in answer.columns]
    if BAR.key not in keys:
        return answer
    place = keys.index(BAR.key)
    columns = (*answer.columns[:place], *answer.columns[place + 1 :])
    rows: Sequence[Row] = [(*row[:place], *row[place + 1 :]) for row in answer.rows]
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
    """The categories of the cells of a row that tell how it changed: less time is better, more is worse."""
    change = values.get("difference")
    if not change or not isinstance(change, int | float):
        return {}
    category = "worse" if change > 0 else "better"
    return {"difference": category, BAR.key: category}


def summary_styles(summary: TableAnswer) -> dict[Value, dict[str, str]]:
    """`change_styles` of the rows of a summary by what they measure; nothing of what is neither better nor worse."""
    styles = {}
    for row in summary.rows:
        values = record(summary.columns, row)
        what, change, is_percent = values["what"], values["difference"], values["unit"] == "%"
        if is_percent and isinstance(change, int | float):
            change = round(change, 1)  # as it is shown
        if values["unit"] == "ns" or str(what).strip() in ("GPU idle", "exposed NCCL"):
            styles[what] = change_styles({"difference": change})
    return styles
