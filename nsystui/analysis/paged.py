"""An answer of any length: a query whose rows are fetched a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from nsystui.analysis.answer import Column, Row
from nsystui.store.session import Session

Late = Callable[[sa.Select[Any]], sa.Select[Any]]


@dataclass(frozen=True)
class PagedAnswer:
    """Rows of ``query`` in the order of ``order``; ``ties`` are the columns that make the order definite.

    ``late`` adds columns that ``query`` has not, those of ``late_columns``, to any select of its rows: to those of a
    page only, where the order does not depend on them.
    """

    session: Session
    name: str
    columns: tuple[Column, ...]
    query: sa.Select[Any]
    length: int
    total: int | None
    order: tuple[str, bool]
    ties: tuple[str, ...]
    notes: tuple[str, ...] = ()
    late: Late | None = None
    late_columns: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        session: Session,
        name: str,
        columns: tuple[Column, ...],
        query: sa.Select[Any],
        count: sa.Select[Any],
        everything: sa.Select[Any],
        order: tuple[str, bool],
        ties: tuple[str, ...],
        notes: tuple[str, ...] = (),
    ) -> PagedAnswer:
        """Counts the rows with ``count`` (and without the selection with ``everything``) and fetches none."""
        length = int(session.scalar(count) or 0)
        total = length if everything is count else int(session.scalar(everything) or 0)
        return cls(session, name, columns, query, length, total, order, ties, notes)

    def with_late(self, late: Late, columns: frozenset[str]) -> PagedAnswer:
        """The same with ``columns`` that ``late`` adds."""
        return replace(self, late=late, late_columns=columns)

    def __len__(self) -> int:
        return self.length

    @cached_property
    def _whole(self) -> sa.Select[Any]:
        """Every row with every column, in order."""
        return self._ordered(self.query if self.late is None else self.late(self.query))

    @cached_property
    def _early(self) -> sa.Select[Any]:
        """Every row in order, without the late columns."""
        return self._ordered(self.query, self.late_columns)

    def _ordered(self, query: sa.Select[Any], without: frozenset[str] = frozenset()) -> sa.Select[Any]:
        rows = query.subquery()
        key, descending = self.order
        first = rows.c[key].desc() if descending else rows.c[key].asc()
        chosen = [rows.c[column.key] for column in self.columns if column.key not in without]
        return sa.select(*chosen).order_by(first.nulls_last(), *[rows.c[tie] for tie in self.ties])

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        if self.late is None or self.order[0] in self.late_columns:
            return self.session.rows(self._whole.limit(limit).offset(offset))
        return self.session.rows(self._ordered(self.late(self._early.limit(limit).offset(offset))))

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        """Every row, in one query: a page costs a search of its own, and a million rows are many pages."""
        return self.session.batches(self._whole, size)

    def sorted_by(self, key: str, descending: bool) -> PagedAnswer:
        return replace(self, order=(key, descending))
