"""How many rows of a table were left out because their times cannot be (`exports.sources.times`), and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsystui.exports.sources import REASONS, Transform

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class LeftOut:
    """Rows by reason, in the order of ``REASONS``."""

    by_reason: tuple[int, ...] = (0,) * len(REASONS)

    def __bool__(self) -> bool:
        return any(self.by_reason)

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(tuple(a + b for a, b in zip(self.by_reason, other.by_reason, strict=True)))

    @property
    def rows(self) -> int:
        return sum(self.by_reason)

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> LeftOut:
        """Of ``by_reason`` as a list."""
        return cls(tuple(map(int, values)))


def left_out_query(transform: Transform, rows: str) -> str:
    """SQL for reasons and numbers of rows among ``rows`` (SQL of a chunk called ``c``), for SQLite and DuckDB."""
    if transform.times is None:
        return "SELECT 0, 0"
    where = f"({transform.where}) AND " if transform.where else ""
    where += f"({transform.times.possible}) IS NOT TRUE"
    return f"SELECT {transform.times.reason}, count(*) FROM {rows} WHERE {where} GROUP BY 1"


def left_out_of(found: Iterable[tuple[int, int]]) -> LeftOut:
    """The result of ``left_out_query``."""
    by_reason = dict(found)
    return LeftOut(tuple(by_reason.get(reason, 0) for reason in range(len(REASONS))))


def count_left_out(connection: duckdb.DuckDBPyConnection, transform: Transform) -> LeftOut:
    """Those of ``chunk``."""
    return left_out_of(connection.execute(left_out_query(transform, "chunk c")).fetchall())
