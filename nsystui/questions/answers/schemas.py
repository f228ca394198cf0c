"""JSON Schemas of the answers, which programs may rely on."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsystui.base.answer import END, START, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import Question, Titled, ask
from nsystui.store.session import Session

VERSION = 2
"""Increases if a key is removed, or changes its meaning, type or unit, but not for new keys."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"

UNITS = {
    Unit.TIME: "ns",
    Unit.DURATION: "ns",
    Unit.CHANGE: "ns",
    Unit.BYTES: "B",
    Unit.MEGABYTES: "10^6 B",
    Unit.MEGABYTE_RATE: "10^6 B/s",
    Unit.PERCENT: "%",
    Unit.RATE: "B/s",
    Unit.FREQUENCY: "Hz",
    Unit.TICK_RATE: "ticks/ms",
}
"""Units of numbers in JSON; other quantities have no unit."""


@contextmanager
def empty_job() -> Iterator[OpenJob]:
    """Yield a job of an export without events: answers about it have columns and no rows."""
    from nsystui.exports.forms.kineto.export import TraceExport

    session = Session()
    try:
        with tempfile.TemporaryDirectory(prefix="nsystui-") as folder:
            path = Path(folder) / "empty.sqlite"
            with TraceExport(path, origin=0, host=""):
                pass
            session.add(path)
            yield OpenJob(session)
    finally:
        session.close()


def schema_of(job: OpenJob, question: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of ``--format json`` for a question with these values of its options.

    The columns of the answer about the `empty_job` are included; columns that exports name (GPU metrics) are
    additional. Raises UsageError for invalid values.
    """
    options = question.read(values)
    name = f"{question.family} {question.name}".strip()
    if question.tables is not None:
        return schema_of_tables(name, question.help, question.tables(job, Selection(), options))
    return schema_of_tables(name, question.help, [Titled("", "", ask(question, job, Selection(), options))])


def schema_of_tables(name: str, description: str, tables: Sequence[Titled]) -> dict[str, Any]:
    """Return the schema of an array: of a table's rows or, for several tables, of objects with name and rows."""
    row_schemas = [_row_schema(table.answer.columns) for table in tables]
    return {
        "$schema": DIALECT,
        "$id": f"nsystui:{name.replace(' ', ':')}:{VERSION}",
        "title": name,
        "description": description,
        "type": "array",
        "items": row_schemas[0] if len(row_schemas) == 1 else {"oneOf": list(map(_table_schema, tables, row_schemas))},
    }


def _row_schema(columns: Sequence[Column]) -> dict[str, Any]:
    is_mixed = any(column.key == "unit" for column in columns)  # times, percents and counts in one column
    properties = {}
    for column in columns:
        # Columns of several kinds of values write whole numbers as integers.
        is_integer = column.decimals is None and not (is_mixed and column.unit is Unit.NUMBER)
        kind = "string" if column.unit is Unit.TEXT else "integer" if is_integer else "number"
        unit = {"unit": UNITS[column.unit]} if column.unit in UNITS else {}
        properties[column.file_key] = {"type": [kind, "null"], "description": column.header, **unit}
    has_window = {START.file_key, END.file_key} <= {column.file_key for column in columns}
    return {
        **({"description": "The window of a row: --time {start_ns}ns:{end_ns}ns"} if has_window else {}),
        "type": "object",
        "properties": properties,
        "required": [column.file_key for column in columns],
    }


def _table_schema(table: Titled, row_schema: dict[str, Any]) -> dict[str, Any]:
    properties = {"table": {"const": table.name}, "rows": {"type": "array", "items": row_schema}}
    return {"type": "object", "properties": properties, "required": list(properties)}
