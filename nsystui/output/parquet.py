"""An answer written as Parquet, by DuckDB alone: no pyarrow, no pandas.

DuckDB writes a file in one statement, and Python can hand it only what is in memory. So each batch of rows becomes a
small file, and one last statement streams those into the file that was asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Answer, Column, Row, Unit, Value
from nsystui.base.parquet_file import copy_to_parquet
from nsystui.output.formats import Progress, file_values, pages

if TYPE_CHECKING:
    import duckdb

_BATCH = 122_880  # rows: a row group of DuckDB's


def write_parquet(answer: Answer, path: Path, progress: Progress | None = None) -> int:
    """Writes ``answer`` to ``path``, over what is there; returns the number of rows. Columns have their names in files.

    Text is VARCHAR, a column with decimals DOUBLE, any other BIGINT, and NULL is what is missing. Floats keep all their
    digits, as Parquet is for computing with. A column whose values do not fit its type gets a wider one, DOUBLE or
    VARCHAR, rather than other values. Raises ``OSError``, and may then leave a part of ``path``.
    """
    import duckdb

    # The batches are next to ``path``, where there must be room anyway.
    folder = path.with_name(path.name + ".parts")
    folder.mkdir(mode=0o700)
    try:
        # Two threads are enough, and polite on a login node.
        with duckdb.connect(config={"threads": 2}) as connection:
            # An array of objects is text, whatever its first values are; numbers come as arrays of numbers.
            connection.execute("SET pandas_analyze_sample = 0")
            parts: list[Path] = []
            rows = 0
            for batch in pages(answer, _BATCH):
                parts.append(folder / f"{len(parts)}.parquet")
                _write_batch(connection, answer.columns, batch, parts[-1])
                rows += len(batch)
                if progress:
                    progress(rows)
            if len(parts) > 1:
                # By name, because that also reconciles a column that is BIGINT in one part and DOUBLE in another.
                # Absolute, because DuckDB takes a name such as ``s3:x`` for an address.
                names = ", ".join("'" + str(part.absolute()).replace("'", "''") + "'" for part in parts)
                _copy(connection, f"SELECT * FROM read_parquet([{names}], union_by_name = true)", path)
            elif parts:
                parts[0].replace(path)
            else:
                _write_batch(connection, answer.columns, [], path)
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_batch(
    connection: duckdb.DuckDBPyConnection, columns: Sequence[Column], rows: Sequence[Row], path: Path
) -> None:
    held = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [_array(column, values) for column, values in zip(columns, held, strict=True)]
    connection.register("batch", {f"c{index}": array for index, (_, array) in enumerate(arrays)})
    names = ['"' + column.file_key.replace('"', '""') + '"' for column in columns]
    fields = ", ".join(f"c{index}::{kind} AS {names[index]}" for index, (kind, _) in enumerate(arrays))
    _copy(connection, f"SELECT {fields} FROM batch", path)
    connection.unregister("batch")


def _array(column: Column, values: Sequence[Value]) -> tuple[str, Any]:
    """The type of ``column`` in Parquet, and its values as the numpy array that DuckDB reads."""
    import numpy as np

    cleaned = file_values(replace(column, decimals=None), values)  # nothing rounded, whole floats as integers
    kinds = set(map(type, cleaned)) - {type(None)}
    if column.unit is not Unit.TEXT and str not in kinds:
        whole = column.decimals is None and float not in kinds
        try:
            numbers = np.array([value or 0 for value in cleaned], dtype="int64" if whole else "float64")
        except OverflowError:
            pass  # more than 64 bits: as text it keeps its value
        else:
            missing = [value is None for value in cleaned]
            return ("BIGINT" if whole else "DOUBLE"), np.ma.masked_array(numbers, mask=missing)
    text = np.empty(len(cleaned), dtype=object)
    # A lone surrogate is no character: a path that is not UTF-8 has them for its odd bytes, shown as \udcff.
    text[:] = [None if value is None else str(value).encode("utf-8", "backslashreplace").decode() for value in cleaned]
    return "VARCHAR", text


def _copy(connection: duckdb.DuckDBPyConnection, select: str, path: Path) -> None:
    """Writes what ``select`` gives to ``path``; raises ``OSError`` alone."""
    import duckdb

    try:
        copy_to_parquet(connection, select, path, "COMPRESSION snappy")
    except duckdb.Error as error:
        raise OSError(str(error).partition("\n")[0]) from error
