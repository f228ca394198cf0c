"""DuckDB as SQLAlchemy sees it, as far as this program asks: SELECTs in the common SQL that both speak.

SQLAlchemy's default compiler writes nearly all of it. What differs in DuckDB is below: parameters are ``$1``, which may
be used more than once, every name is quoted (so its reserved words need no list here), ``/`` divides as floats, and
``IN`` without values. There is no reflection, no DDL and no INSERT: the store makes views and writes files through
DuckDB's own interface. ``duckdb-engine`` has all of that, through PostgreSQL's dialect, whose import takes as long as
that of DuckDB.

What was compiled once is compiled for all sessions of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.sql.compiler import IdentifierPreparer, SQLCompiler
from sqlalchemy.util import LRUCache

if TYPE_CHECKING:
    import duckdb

NAME = "duckdb"
# A screen asks dozens of different questions. What is kept of one takes 60 to 700 KB.
_KEPT = 100

sa.dialects.registry.register(NAME, __name__, "DuckDB")


class _Names(IdentifierPreparer):
    def quote(self, ident: str) -> str:
        return self.quote_identifier(ident)


class _Compiler(SQLCompiler):
    def visit_empty_set_expr(self, element_types: Sequence[Any], **_: Any) -> str:
        """The right side of ``IN`` without values."""
        kinds = [self.dialect.type_compiler_instance.process(kind) for kind in element_types]
        return f"SELECT {', '.join(f'CAST(NULL AS {kind})' for kind in kinds)} WHERE false"


class DuckDB(DefaultDialect):
    """Reads with DuckDB. All engines compile alike, and so share what is compiled.

    There are no transactions: every question is one statement, and finds the views that were made before it runs.
    """

    name = NAME
    driver = "duckdb"
    preparer = _Names
    statement_compiler = _Compiler
    default_paramstyle = "numeric_dollar"
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    div_is_floordiv = False

    @classmethod
    def import_dbapi(cls) -> Any:
        import duckdb

        return duckdb

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


class Connection:
    """A connection of DuckDB for one statement, of which it is the cursor as well.

    DuckDB's own ``cursor`` makes another connection, without the search path of this one.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def cursor(self) -> duckdb.DuckDBPyConnection:
        return self._connection

    def close(self) -> None:
        self._connection.close()


@cache
def compiled() -> LRUCache[Any, Any]:
    """The compiled queries of this process, for every engine."""
    return LRUCache(_KEPT)
