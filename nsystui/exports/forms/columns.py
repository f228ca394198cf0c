"""Directories of columns: ``nsys export -t parquetdir`` writes a Parquet file for each native table.

Tables, named by their files, and columns are the same as in the SQLite export.
"""

from __future__ import annotations

import os
from pathlib import Path

from nsystui.base.errors import ExportError, reason_of
from nsystui.base.inputs import opened
from nsystui.exports.forms.form import Advance, Form

# Every export has one of these tables, and nothing else has such names.
_TYPICAL_TABLES = ("StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV")
_ENDING = ".parquet"


def _is_directory_of_columns(path: Path) -> bool:
    return any(os.path.isfile(path / f"{table}{_ENDING}") for table in _TYPICAL_TABLES)


def _write(directory: Path, target: Path, advance: Advance) -> None:
    """Write every table into the export, with its column types; no row passes through Python."""
    import adbc_driver_sqlite
    import duckdb
    from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement

    names = sorted(name for name in os.listdir(directory) if name.endswith(_ENDING) and not name.startswith("."))
    tables = [directory / name for name in names]
    database = AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=str(target))
    with duckdb.connect(config={"threads": 1}) as reader, database, AdbcConnection(database) as connection:
        for number, path in enumerate(tables):
            advance(number / len(tables))
            try:
                with opened(path) as file, AdbcStatement(connection) as statement:
                    statement.set_options(**{"adbc.ingest.target_table": path.stem})
                    # By descriptor, because the name may have any bytes.
                    statement.bind_stream(reader.from_parquet(f"/dev/fd/{file.fileno()}"))
                    statement.execute_update()
            except Exception as error:  # errors of DuckDB and the driver have no common class
                if isinstance(error, OSError) and error.errno is not None and error.filename != os.fspath(path):
                    raise
                cause = f"{path.name} cannot be read: {reason_of(error)}"
                raise ExportError(str(directory), cause, "copy or export the directory again") from None


PARQUET = Form("a directory of Parquet files", ("_pqtdir", ".parquetdir"), _is_directory_of_columns, _write)
