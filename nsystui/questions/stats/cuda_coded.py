"""Text columns of millions of rows as numbers, so that a frame of them needs eight bytes a cell."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nsystui.store.session import Session


class Coded:
    """A text column as the places of its texts in the list of those that differ; a missing text is the empty one.

    ``conditions`` are on the table of the column and narrow the list.
    """

    def __init__(self, column: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> None:
        self._column = sa.func.coalesce(column, "")
        different = sa.select(self._column.label("text")).where(*conditions).distinct().subquery()
        number = sa.func.row_number().over(order_by=different.c.text) - 1
        self._numbers = sa.select(different.c.text, number.label("number")).subquery()

    def added_to(self, query: sa.Select[Any], label: str) -> sa.Select[Any]:
        """``query``, which selects from the table of the column, with the number as its last column."""
        numbers = self._numbers.c
        return query.add_columns(numbers.number.label(label)).join(self._numbers, numbers.text == self._column)

    def texts(self, session: Session) -> list[str]:
        """The texts that differ, in order."""
        query = sa.select(self._numbers.c.text).order_by(self._numbers.c.text)
        return [str(text) for text in session.arrays(query)["text"]]
