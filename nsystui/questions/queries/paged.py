"""An answer of any length: a query whose rows are fetched by the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import sqlalchemy as sa

from nsystui.base.answer import Answer, Column, Row, Value, adapted, for_files
from nsystui.base.types import Query
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.queries.time_index import TimeIndex

# With fewer rows, a query for a page costs no more than a time index.
_MANY = 50_000
# Rows per fetch if a page needs a scan of all rows, so that neighbouring pages need no scan.
_BLOCK = 4096
# Rows whose late column is looked up together: fewer than a block, because each scattered row has a cost.
_LOOKED_UP = 512


class Late(Protocol):
    """A column outside a query: a join adds it to all rows, or `of_rows` looks it up for a page."""

    key: str

    def joined(self, query: Query) -> Query:
        """Return ``query`` with the column."""

    def of_rows(self, session: Session, rows: Sequence[Mapping[str, Value]]) -> Sequence[Value]:
        """Return the column's values for some rows."""


@dataclass(frozen=True)
class _Block:
    """Rows from ``first`` on, ``fetched`` together; ``completed`` holds them with the late column, by chunk."""

    first: int
    fetched: Sequence[Row]
    completed: dict[int, Sequence[Row]]

    def rows_of(self, offset: int, limit: int, complete: Callable[[Sequence[Row]], Sequence[Row]]) -> Sequence[Row]:
        """Return ``limit`` rows from row ``offset`` of the block on."""
        chunks = range(offset // _LOOKED_UP, -(-(offset + limit) // _LOOKED_UP))
        for chunk in chunks:
            if chunk not in self.completed:
                self.completed[chunk] = complete(self.fetched[chunk * _LOOKED_UP : (chunk + 1) * _LOOKED_UP])
        rows = [row for chunk in chunks for row in self.completed[chunk]]
        skipped = offset - chunks.start * _LOOKED_UP
        return rows[skipped : skipped + limit]


@dataclass(frozen=True)
class PagedAnswer:
    """Rows of ``query`` in ``order``, a key and whether it descends; the columns ``ties`` order equal keys.

    ``late`` is a column outside ``query``, looked up for each page unless it is the sort key. ``time_table`` is the
    table whose starts are the key ``start``: a time index then finds pages among many rows.
    """

    session: Session
    name: str
    columns: tuple[Column, ...]
    query: Query
    length: int
    total: int | None
    order: tuple[str, bool]
    ties: tuple[str, ...]
    notes: tuple[str, ...] = ()
    late: Late | None = None
    time_table: sa.Table | None = None
    _last_block: list[_Block] = field(default_factory=list, init=False, compare=False)

    @classmethod
    def of(
        cls,
        session: Session,
        name: str,
        columns: tuple[Column, ...],
        query: Query,
        everything: Query | None = None,
        notes: tuple[str, ...] = (),
        order: tuple[str, bool] = ("start", False),
        ties: tuple[str, ...] = ("report", "row"),
    ) -> PagedAnswer:
        """Count the rows of ``query``, and of ``everything``, its rows without the selection; fetch no rows."""
        counts = (
            sa.select(sa.func.count()).select_from(rows.subquery()) for rows in (query, everything) if rows is not None
        )
        length, *totals = (int(session.scalar(count) or 0) for count in counts)
        return cls(session, name, columns, query, length, totals[0] if totals else length, order, ties, notes)

    def with_time_index(self, table: sa.Table) -> PagedAnswer:
        """Return the same answer with a time index; its key ``start`` is the start in ``table``, job time."""
        return replace(self, time_table=table)

    def __len__(self) -> int:
        return self.length

    @cached_property
    def _full_query(self) -> Query:
        query = self.query if self.late is None else self.late.joined(self.query)
        return self._ordered(query, [column.key for column in self.columns])

    def _ordered(self, query: Query, keys: Sequence[str]) -> Query:
        rows = query.subquery()
        key, descending = self.order
        first = rows.c[key].desc() if descending else rows.c[key].asc()
        selected = [rows.c[key] for key in keys]
        return sa.select(*selected).order_by(first.nulls_last(), *[rows.c[tie] for tie in self.ties])

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        """Return up to ``limit`` rows from row ``offset`` on."""
        limit = min(limit, self.length - offset)
        if limit <= 0:
            return []
        first = offset - offset % _BLOCK
        if self.length < _MANY or self._is_indexed or offset + limit > first + _BLOCK:
            return self._completed(self._fetched(offset, limit))
        # Keep the block in a local, because another thread may replace it.
        block = next((block for block in self._last_block if block.first == first), None)
        if block is None:
            block = _Block(first, self._fetched(first, min(_BLOCK, self.length - first)), {})
            self._last_block[:] = [block]
        return block.rows_of(offset - first, limit, self._completed)

    def _fetched(self, offset: int, limit: int) -> Sequence[Row]:
        """Fetch rows, without the late column unless it is the sort key."""
        with self.session.waiting(self.name):
            if self._is_late_first:
                return self.session.rows(self._full_query.limit(limit).offset(offset))
            query, offset = self._narrowed(offset, limit)
            return self.session.rows(self._ordered(query, self._early_keys).limit(limit).offset(offset))

    @property
    def _is_late_first(self) -> bool:
        return self.late is not None and self.order[0] == self.late.key

    @property
    def _early_keys(self) -> list[str]:
        return [column.key for column in self.columns if self.late is None or column.key != self.late.key]

    def _completed(self, rows: Sequence[Row]) -> Sequence[Row]:
        if self.late is None or self._is_late_first:
            return rows
        records = [dict(zip(self._early_keys, row, strict=True)) for row in rows]
        values = self.late.of_rows(self.session, records)
        completed = ({**row, self.late.key: value} for row, value in zip(records, values, strict=True))
        return [tuple(row[column.key] for column in self.columns) for row in completed]

    @cached_property
    def _is_indexed(self) -> bool:
        if self.time_table is None or self.order[0] != "start" or self.length < _MANY:
            return False
        # The index lacks rows without a start; if there are any, it cannot count the rows before a page.
        return self._index.rows == self.length

    @cached_property
    def _index(self) -> TimeIndex:
        from nsystui.questions.queries.time_index import TimeIndex

        assert self.time_table is not None
        return TimeIndex.of_table(self.session, self.time_table, self.query)

    def _narrowed(self, offset: int, limit: int) -> tuple[Query, int]:
        """Return the query for the bins of the page, and the page's offset in it."""
        if self.time_table is None or not self._is_indexed:
            return self.query, offset
        index, (_, descending) = self._index, self.order
        row = self.length - offset - limit if descending else offset
        first, last = index.bins_of(row, row + limit)
        skipped = index.rows - int(index.before[last]) if descending else int(index.before[first])
        return self.query.where(*index.within(first, last)(self.time_table)), offset - skipped

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        """Yield all rows from one query: each page of a million rows would cost a search."""
        batches = iter(self.session.batches(self._full_query, size))
        with self.session.waiting(self.name):  # sorts all rows before it returns the first
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches

    def sorted_by(self, key: str, descending: bool) -> PagedAnswer:
        """Return the same rows in the order of a column, without reading any."""
        return replace(self, order=(key, descending))


SMART_NAME = Column("smart", header="Smart Name", label="what")


def smart_named(answer: Answer, names: Mapping[str, str]) -> Answer:
    """Return ``answer`` with a column of smart names, by the column ``name``; missing names are repeated.

    The column ``name`` is in files only, and sorts the smart names.
    """
    name_index = [column.key for column in answer.columns].index("name")
    return replace(
        adapted(answer),
        columns=(*for_files(answer.columns, {"name"}), SMART_NAME),
        change=lambda rows: [(*row, names.get(str(row[name_index]), row[name_index])) for row in rows],
        sorted_as={SMART_NAME.key: "name"},
    )
