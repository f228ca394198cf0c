"""Answers written as Parquet by DuckDB, without pyarrow and pandas.

DuckDB writes a file in one statement, from memory. So each batch becomes a small file, and a final statement streams
these into the requested file.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Answer, Column, Unit, Value, column_batches
from nsystui.base.parquet_file import copy_to_parquet
from nsystui.output.formats import file_values

if TYPE_CHECKING:
    import duckdb

_BATCH = 122_880  # rows: a row group of DuckDB's


def write_parquet(answer: Answer, path: Path) -> int:
    """Write ``answer`` to ``path``, replacing its content; return the number of rows.

    Text is VARCHAR, a column with decimals DOUBLE, other columns BIGINT; missing values are NULL. Floats keep all their
    digits, because Parquet is for computing. Columns that do not fit their type get a wider type, DOUBLE or VARCHAR, so
    that no value changes. Raises ``OSError``, and may then leave a partial file.
    """
    import duckdb

    # Batches are next to ``path``, where space is needed anyway.
    folder = path.with_name(path.name + ".parts")
    folder.mkdir(mode=0o700)
    try:
        # Two threads are enough, and polite on a login node.
        with duckdb.connect(config={"threads": 2}) as connection:
            # Arrays of objects are text, whatever their first values are.
            connection.execute("SET pandas_analyze_sample = 0")
            parts: list[Path] = []
            rows = 0
            for batch in column_batches(answer, _BATCH):
                parts.append(folder / f"{len(parts)}.parquet")
                _write_batch(connection, answer.columns, batch, parts[-1])
                rows += len(batch[0])
            if len(parts) > 1:
                # "By name" also reconciles a column that is BIGINT in one part and DOUBLE in another. Paths are
                # absolute, because DuckDB takes a name such as ``s3:x`` for an address.
                names = ", ".join("'" + str(part.absolute()).replace("'", "''") + "'" for part in parts)
                _copy(connection, f"SELECT * FROM read_parquet([{names}], union_by_name = true)", path)
            elif parts:
                parts[0].replace(path)
            else:
                _write_batch(connection, answer.columns, [()] * len(answer.columns), path)
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_batch(
    connection: duckdb.DuckDBPyConnection, columns: Sequence[Column], batch: Sequence[Sequence[Value]], path: Path
) -> None:
    arrays = [_array(column, values) for column, values in zip(columns, batch, strict=True)]
    connection.register("batch", {f"c{index}": array for index, (_, array) in enumerate(arrays)})
    names = ['"' + column.file_key.replace('"', '""') + '"' for column in columns]
    fields = ", ".join(f"c{index}::{sql_type} AS {names[index]}" for index, (sql_type, _) in enumerate(arrays))
    _copy(connection, f"SELECT {fields} FROM batch", path)
    connection.unregister("batch")


def _array(column: Column, values: Sequence[Value]) -> tuple[str, Any]:
    import numpy as np

    cleaned = file_values(replace(column, decimals=None), values)  # not rounded; whole floats become integers
    kinds = set(map(type, cleaned)) - {type(None)}
    if column.unit is not Unit.TEXT and str not in kinds:
        is_integer = column.decimals is None and float not in kinds
        try:
            numbers = np.array([value or 0 for value in cleaned], dtype="int64" if is_integer else "float64")
        except OverflowError:
            pass  # more than 64 bits: kept as text
        else:
            missing = [value is None for value in cleaned]
            return ("BIGINT" if is_integer else "DOUBLE"), np.ma.masked_array(numbers, mask=missing)
    text = np.empty(len(cleaned), dtype=object)
    # A lone surrogate, as in a path that is not UTF-8, is not a character, and becomes \udcff.
    text[:] = [None if value is None else str(value).encode("utf-8", "backslashreplace").decode() for value in cleaned]
    return "VARCHAR", text


def _copy(connection: duckdb.DuckDBPyConnection, select: str, path: Path) -> None:
    """Write the rows of ``select`` to ``path``. Raises only ``OSError``."""
    import duckdb

    try:
        copy_to_parquet(connection, select, path, "COMPRESSION snappy")
    except duckdb.Error as error:
        raise OSError(str(error).partition("\n")[0]) from error
