"""Which canonical tables and columns a query reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy as sa


def used_columns(query: sa.Executable) -> dict[str, frozenset[str]]:
    """The names of the columns that ``query`` reads of each table, anywhere in it; none for a mere count of rows."""
    import sqlalchemy as sa
    from sqlalchemy.sql import visitors

    used: dict[str, set[str]] = {}
    for item in visitors.iterate(query):  # type: ignore[arg-type]
        if isinstance(item, sa.Table):
            used.setdefault(item.name, set())
        # A selected table stands for all of its columns, and is not followed to them.
        columns = list(item.selected_columns) if isinstance(item, sa.Select) else [item]
        for column in columns:
            for base in column.base_columns if isinstance(column, sa.ColumnElement) else ():
                table = getattr(base, "table", None)
                if isinstance(table, sa.Table):
                    used.setdefault(table.name, set()).add(base.name)
    return {table: frozenset(names) for table, names in used.items()}
