"""Directories of columns: ``nsys export -t parquetdir`` and ``-t arrowdir`` write a file for each native table.

Tables, named by their files, and columns are the same as in the SQLite export.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsystui.base.errors import ExportError, reason_of
from nsystui.base.inputs import opened
from nsystui.exports.forms.form import Advance, Form

# Every export has one of these tables, and nothing else has such names.
_TYPICAL_TABLES = ("StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV")


def _is_directory_of(ending: str) -> Callable[[Path], bool]:
    return lambda path: any(os.path.isfile(path / f"{table}{ending}") for table in _TYPICAL_TABLES)


def _write_parquet(directory: Path, target: Path, advance: Advance) -> None:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        _write(directory, ".parquet", target, advance, connection.from_parquet)


def _write_arrow(directory: Path, target: Path, advance: Advance) -> None:
    try:
        import pyarrow.ipc
    except ImportError:
        advice = "pip install 'nsystui[formats]', or export it with -t parquetdir or -t sqlite"
        raise ExportError(str(directory), "a directory of Arrow files, which needs pyarrow", advice) from None

    def read(path: str) -> Any:
        try:
            file = pyarrow.ipc.open_file(path)
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
            return pyarrow.RecordBatchReader.from_batches(file.schema, batches)
        except pyarrow.ArrowInvalid:  # a stream, which has no footer
            return pyarrow.ipc.open_stream(path)

    _write(directory, ".arrow", target, advance, read)


def _write(directory: Path, ending: str, target: Path, advance: Advance, read: Callable[[str], Any]) -> None:
    """Write every table into the export, with its column types; no row passes through Python.

    ``read`` gets a name that any library can open, whatever bytes the file's name has.
    """
    import adbc_driver_sqlite
    from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement

    names = sorted(name for name in os.listdir(directory) if name.endswith(ending) and not name.startswith("."))
    tables = [directory / name for name in names]
    database = AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=str(target))
    with database, AdbcConnection(database) as connection:
        for number, path in enumerate(tables):
            advance(number / len(tables))
            try:
                with opened(path) as file, AdbcStatement(connection) as statement:
                    statement.set_options(**{"adbc.ingest.target_table": path.stem})
                    statement.bind_stream(read(f"/dev/fd/{file.fileno()}"))
                    statement.execute_update()
            except Exception as error:  # errors of DuckDB, pyarrow and the driver have no common class
                if isinstance(error, OSError) and error.errno is not None and error.filename != os.fspath(path):
                    raise
                cause = f"{path.name} cannot be read: {reason_of(error)}"
                raise ExportError(str(directory), cause, "copy or export the directory again") from None


PARQUET = Form("a directory of Parquet files", ("_pqtdir", ".parquetdir"), _is_directory_of(".parquet"), _write_parquet)
ARROW = Form("a directory of Arrow files", ("_arwdir", ".arrowdir"), _is_directory_of(".arrow"), _write_arrow)
