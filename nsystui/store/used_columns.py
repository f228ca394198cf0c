"""Which canonical tables and columns a query reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.util import LRUCache

_KEPT = 100


def used_columns(query: sa.Executable) -> Mapping[str, frozenset[str]]:
    """The names of the columns that ``query`` reads of each table, anywhere in it; none for a mere count of rows."""
    key = query._generate_cache_key()  # type: ignore[attr-defined]  # as SQLAlchemy's own examples of caches do
    if key is None:
        return _found(query)
    known = _known()
    used = known.get(key.key)
    if used is None:
        used = known[key.key] = _found(query)
    return used


@cache
def _known() -> LRUCache[Any, Mapping[str, frozenset[str]]]:
    """What the queries of this process read: there are a few of them, asked again and again with other values."""
    from sqlalchemy.util import LRUCache

    return LRUCache(_KEPT)


def _found(query: sa.Executable) -> Mapping[str, frozenset[str]]:
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
