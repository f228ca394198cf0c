"""DuckDB as SQLAlchemy sees it, for sessions that only ask: what was compiled once is compiled for all of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from duckdb_engine import Dialect
from sqlalchemy.util import LRUCache

NAME = "duckdb+reading"
# A screen asks dozens of different questions. What is kept of one takes 60 to 700 KB.
_KEPT = 100

sa.dialects.registry.register(NAME.replace("+", "."), __name__, "ReadingDialect")


class ReadingDialect(Dialect):
    """The dialect of duckdb-engine, which lets SQLAlchemy keep what it compiles. All of them compile alike.

    There are no transactions: every question is one statement, and finds the views that were made before it runs.
    """

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def do_begin(self, dbapi_connection: Any) -> None:
        pass

    def do_commit(self, dbapi_connection: Any) -> None:
        pass

    def do_rollback(self, dbapi_connection: Any) -> None:
        pass


@cache
def compiled() -> LRUCache[Any, Any]:
    """The compiled queries of this process, for every engine."""
    return LRUCache(_KEPT)
