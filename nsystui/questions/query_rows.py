"""The rows of a query as an answer has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Row
from nsystui.base.columns import Column

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.store.session import Session

_AT_ONCE = 10_000


def query_rows(session: Session, query: sa.Select[Any], columns: Sequence[Column]) -> list[Row]:
    """The rows of ``query``, whose columns have the keys of ``columns`` and are put into their order."""
    names = list(query.selected_columns.keys())
    places = [names.index(column.key) for column in columns]
    return [tuple(row[place] for place in places) for batch in session.batches(query, _AT_ONCE) for row in batch]
