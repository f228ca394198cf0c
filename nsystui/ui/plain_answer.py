"""An answer of a few rows that a screen has at hand, made without pandas: shown before that is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nsystui.analysis.answer import Column, Row


@dataclass(frozen=True)
class PlainAnswer:
    """An ``Answer`` of rows in memory."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int | None:
        return len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.rows[offset : offset + limit]

    def sorted_by(self, key: str, descending: bool) -> PlainAnswer:
        """Another answer in this order; missing values come last."""
        place = [column.key for column in self.columns].index(key)
        known = [row for row in self.rows if row[place] is not None]
        missing = [row for row in self.rows if row[place] is None]
        known.sort(key=lambda row: row[place], reverse=descending)  # type: ignore[arg-type,return-value]
        return replace(self, rows=(*known, *missing))
