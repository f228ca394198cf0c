"""SQLAlchemy's dialect for DuckDB, only for SELECTs in the SQL that both share.

SQLAlchemy's default compiler writes nearly all of it. DuckDB differs in parameters (``$1``, usable more than once),
names (all are quoted, which avoids a list of reserved words), ``/`` (divides as floats), and ``IN`` without values. It
has no reflection, DDL or INSERT: the store makes views and writes files through DuckDB's own interface.
``duckdb-engine`` has all of that, through PostgreSQL's dialect, which takes as long to import as DuckDB.
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
# A screen needs dozens of different queries, and each compiled query takes 60 to 700 KB.
_MAX_COMPILED = 100

sa.dialects.registry.register(NAME, __name__, "DuckDB")


class _Names(IdentifierPreparer):
    def quote(self, ident: str) -> str:
        return self.quote_identifier(ident)


class _Compiler(SQLCompiler):
    def visit_empty_set_expr(self, element_types: Sequence[Any], **_: Any) -> str:
        """Return the right side of ``IN`` without values."""
        kinds = [self.dialect.type_compiler_instance.process(kind) for kind in element_types]
        return f"SELECT {', '.join(f'CAST(NULL AS {kind})' for kind in kinds)} WHERE false"


class DuckDB(DefaultDialect):
    """A dialect that reads with DuckDB. All engines of the process compile alike, and share compiled queries.

    There are no transactions: a query is one statement, and sees the views that exist when it starts.
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
    """A DuckDB connection for one statement, which is also its cursor.

    DuckDB's ``cursor`` makes another connection, without this connection's search path.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def cursor(self) -> duckdb.DuckDBPyConnection:
        return self._connection

    def close(self) -> None:
        self._connection.close()


@cache
def compiled() -> LRUCache[Any, Any]:
    """Return the process's compiled queries."""
    return LRUCache(_MAX_COMPILED)
