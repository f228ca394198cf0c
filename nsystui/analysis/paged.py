"""An answer of any length: a query whose rows are fetched a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from nsystui.analysis.answer import Column, Row
from nsystui.store.session import Session


@dataclass(frozen=True)
class PagedAnswer:
    """Rows of ``query`` in the order of ``order``; ``ties`` are the columns that make the order definite."""

    session: Session
    name: str
    columns: tuple[Column, ...]
    query: sa.Select[Any]
    length: int
    total: int | None
    order: tuple[str, bool]
    ties: tuple[str, ...]
    notes: tuple[str, ...] = ()

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
        total = int(session.scalar(everything) or 0)
        return cls(session, name, columns, query, length, total, order, ties, notes)

    def __len__(self) -> int:
        return self.length

    @cached_property
    def _ordered(self) -> sa.Select[Any]:
        rows = self.query.subquery()
        key, descending = self.order
        first = rows.c[key].desc() if descending else rows.c[key].asc()
        chosen = [rows.c[column.key] for column in self.columns]
        return sa.select(*chosen).order_by(first.nulls_last(), *[rows.c[tie] for tie in self.ties])

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.session.rows(self._ordered.limit(limit).offset(offset))

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        """Every row, in one query: a page costs a search of its own, and a million rows are many pages."""
        return self.session.batches(self._ordered, size)

    def sorted_by(self, key: str, descending: bool) -> PagedAnswer:
        return replace(self, order=(key, descending))
