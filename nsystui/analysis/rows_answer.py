"""An answer that is a list of rows: for tables of a few hundred, which need no pandas and its time to load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nsystui.analysis.answer import Column, Row

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.store.session import Session

_AT_ONCE = 10_000


@dataclass(frozen=True)
class RowsAnswer:
    """An answer whose rows are in memory as they are shown."""

    name: str
    columns: tuple[Column, ...]
    values: Sequence[Row]
    total: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def rows(self) -> Sequence[Row]:
        """Every row."""
        return self.values

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.values[offset : offset + limit]

    def sorted_by(self, key: str, descending: bool) -> RowsAnswer:
        place = [column.key for column in self.columns].index(key)
        known = [row for row in self.values if row[place] is not None]
        missing = [row for row in self.values if row[place] is None]

        def cell(row: Row) -> Any:
            return row[place]

        return replace(self, values=[*sorted(known, key=cell, reverse=descending), *missing])


def asked(session: Session, query: sa.Select[Any], columns: Sequence[Column]) -> list[Row]:
    """The rows of ``query``, whose columns have the keys of ``columns`` and are put into their order."""
    names = list(query.selected_columns.keys())
    places = [names.index(column.key) for column in columns]
    return [
        tuple(_known(row[place]) for place in places) for batch in session.batches(query, _AT_ONCE) for row in batch
    ]


def _known(value: Any) -> Any:
    return None if value != value else value  # NaN is not equal to itself
