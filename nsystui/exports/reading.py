"""Rows out of an export as Arrow, by the ADBC SQLite driver: no locks, no rows through Python."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from nsystui.exports import opening

_BATCH_ROWS = 16_384


class ArrowReader:
    """An ADBC connection to one export; a context manager."""

    def __init__(self, path: Path) -> None:
        import adbc_driver_sqlite
        from adbc_driver_manager import AdbcConnection, AdbcDatabase, Error

        self.path = path
        try:
            self._database = AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=opening.uri(path))
            self._connection = AdbcConnection(self._database)
        except Error as error:
            raise opening.corrupt(path, error) from None
        self._statement: Any = None

    def __enter__(self) -> ArrowReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close_statement()
        self._connection.close()
        self._database.close()

    def stream(self, query: str) -> Any:
        """The result of ``query`` as an object with ``__arrow_c_stream__`` (DuckDB takes it as it is).

        It must be read before the next ``stream``. Every column of ``query`` must have one type: the driver settles
        types on the first batch. Raises ExportError where SQLite cannot read the file.
        """
        from adbc_driver_manager import AdbcStatement, Error

        self._close_statement()
        statement = self._statement = AdbcStatement(self._connection)
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH_ROWS})
            statement.set_sql_query(query)
            handle, _ = statement.execute_query()
        except Error as error:
            raise opening.corrupt(self.path, error) from None
        return handle

    def _close_statement(self) -> None:
        """Ends the last statement: its stream reads from it, batch by batch, so it cannot be closed any earlier."""
        if self._statement is not None:
            self._statement.close()
            self._statement = None
