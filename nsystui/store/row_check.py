"""Whether the rows of a chunk are those that were asked for: a damaged export may give others, or some twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.exports.whole import doubled

if TYPE_CHECKING:
    import duckdb


def count_chunk(path: Path, connection: duckdb.DuckDBPyConnection, table: str, first: int, last: int) -> int:
    """How many rows of a native table are in ``chunk``.

    Raises ExportError where one is not between the rowids ``first`` and ``last``, or is there twice.
    """
    query = "SELECT count(*), min(row_id), max(row_id), sum(row_id) FROM chunk"
    ((rows, lowest, highest, total),) = connection.execute(query).fetchall()
    if not rows:
        return 0
    if lowest < first or highest > last:
        raise doubled(path, table)
    # Counted up without a gap is what nsys writes, and quicker to tell than how many different numbers there are.
    if rows != highest - lowest + 1 or 2 * total != rows * (lowest + highest):
        ((different,),) = connection.execute("SELECT count(DISTINCT row_id) FROM chunk").fetchall()
        if different != rows:
            raise doubled(path, table)
    return int(rows)
