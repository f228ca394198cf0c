"""How the tables of a log are gone through: their order, which rows a filter leaves, and what is inside a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nsystui.base.answer import Row, TableAnswer, Value
from nsystui.base.columns import Column, Unit
from nsystui.base.selection import NameFilter
from nsystui.questions.nccl.names import bucket_of

ORDER = ("ops", "sizes", "calls", "communicators", "ranks", "gpus", "tuning", "steps", "lines")
"""The tables in the order in which a user goes through them: what was called first, then by whom."""

NATURAL_ORDER = {"ops": "total_bytes"}
"""The column by which a table comes sorted, largest first, where it is one column."""

Values = Mapping[str, Value]
Tables = Mapping[str, TableAnswer]


Holds = Callable[[Values], bool]


@dataclass(frozen=True)
class Inside:
    """Those rows of ``table`` that make up a row of another one; ``crumb`` says which.

    ``choose`` gives, for the tables as they are now, what a row must hold.
    """

    table: str
    crumb: str
    choose: Callable[[Tables], Holds]


def filtered(answer: TableAnswer, name: NameFilter | None) -> TableAnswer:
    """The rows whose words (not numbers), with a blank between them, pass the filter; all of them without one."""
    if name is None:
        return answer
    texts = [index for index, column in enumerate(answer.columns) if column.unit is Unit.TEXT]
    found = [row for row in answer.rows if name.matches(" ".join(str(row[i]) for i in texts if row[i] is not None))]
    return replace(answer, rows=found)


def rows_inside(tables: Tables, inside: Inside) -> TableAnswer:
    """The rows that make up a row."""
    answer, holds = tables[inside.table], inside.choose(tables)
    found = [row for row in answer.rows if holds(values_of(answer.columns, row))]
    return replace(answer, rows=found, total=len(found))


def values_of(columns: Sequence[Column], row: Row) -> Values:
    """The values of a row by the keys of its columns."""
    return dict(zip((column.key for column in columns), row, strict=True))


def inside_of(table: str, row: Values) -> Inside | None:
    """What a row of ``table`` is made of; ``None`` where the log tells no more."""
    if table == "ops":
        return Inside("calls", f"{row['op']} calls", lambda _: lambda call: call["op"] == row["op"])
    if table == "sizes":
        return Inside("calls", f"{row['op']} {row['bucket']} calls", lambda _: lambda call: _is_sized(row, call))
    if table == "communicators":
        return Inside("ranks", f"{row['communicator']} ranks", lambda tables: _ranks_of(row, tables))
    if table == "gpus":
        gpu = ("host", "pid", "device")
        where = "unknown GPU" if row["host"] is None else f"{row['host']} pid {row['pid']} device {row['device']}"
        return Inside("ranks", f"{where} ranks", lambda _: lambda rank: all(rank[key] == row[key] for key in gpu))
    return None


def _is_sized(row: Values, call: Values) -> bool:
    size = call["bytes"]
    bucket = bucket_of(size) if isinstance(size, int) else None
    return call["op"] == row["op"] and (bucket or "unknown") == row["bucket"]


def _ranks_of(row: Values, tables: Tables) -> Holds:
    """The ranks of a communicator: by its name, or those of its size that no row names."""
    if row["communicator"] in {rank[0] for rank in tables["ranks"].rows}:
        return lambda rank: rank["communicator"] == row["communicator"]
    named = {communicator[0] for communicator in tables["communicators"].rows}
    return lambda rank: rank["communicator"] not in named and rank["ranks"] == row["ranks"]
