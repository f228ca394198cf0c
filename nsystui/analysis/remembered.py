"""Answers as plain values for JSON, and back: a remembered answer is the answer that was given."""

from __future__ import annotations

from typing import Any

from nsystui.analysis.answer import Answer, Column, Unit, iter_rows
from nsystui.analysis.rows_answer import RowsAnswer

MOST_ROWS = 20_000
"""Answers of more rows are not worth remembering: reading them is no faster than asking again."""
VERSION = 1
"""Raised whenever the same question gets another answer from the same files."""


def to_json(answer: Answer) -> dict[str, Any]:
    """``answer`` with all of its rows."""
    return {
        "name": answer.name,
        "columns": [
            [column.key, column.header, column.label, column.unit.value, column.decimals, column.importance]
            for column in answer.columns
        ],
        "rows": list(iter_rows(answer)),
        "total": answer.total,
        "notes": list(answer.notes),
    }


def from_json(values: Any) -> RowsAnswer:
    """The inverse of ``to_json``; raises KeyError, TypeError or ValueError for what it did not write."""
    columns = tuple(
        Column(key, header, label, Unit(unit), decimals, importance)
        for key, header, label, unit, decimals, importance in values["columns"]
    )
    rows = [tuple(row) for row in values["rows"]]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("a row has more or fewer values than there are columns")
    return RowsAnswer(values["name"], columns, rows, values["total"], tuple(values["notes"]))
