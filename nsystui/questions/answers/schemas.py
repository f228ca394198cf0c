"""The form of each answer in JSON, as JSON Schema: what a program may rely on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsystui.base.answer import END, START, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.answers.answering import ask
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import Question, Titled
from nsystui.store.session import Session

VERSION = 2
"""Grows when a key goes, or changes its meaning, type or unit; a key that is new leaves it as it is."""
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
"""The unit of the numbers in JSON; other quantities have none."""


@contextmanager
def empty_job() -> Iterator[OpenJob]:
    """A job of one export in which nothing happened: what is asked of it has columns and no rows."""
    from nsystui.exports.forms.kineto.export import TraceExport

    session = Session()
    try:
        with tempfile.TemporaryDirectory(prefix="nsystui-") as place:
            path = Path(place) / "empty.sqlite"
            with TraceExport(path, origin=0, host=""):
                pass
            session.add(path)
            yield OpenJob(session)
    finally:
        session.close()


def schema_of(job: OpenJob, question: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of what ``--format json`` writes for a question with these values of its options.

    The columns are those of the answer about the `empty_job`; what exports name themselves (GPU metrics) comes on top
    of them. Raises UsageError for values that make no sense.
    """
    options = question.read(values)
    name = f"{question.family} {question.name}".strip()
    if question.tables is not None:
        return schema_of_tables(name, question.help, question.tables(job, Selection(), options))
    return schema_of_tables(name, question.help, [Titled("", "", ask(question, job, Selection(), options))])


def schema_of_tables(name: str, description: str, tables: Sequence[Titled]) -> dict[str, Any]:
    """The schema of an array of the rows of a table, or, of several, of objects: each with its name and its rows."""
    forms = [_rows(one.answer.columns) for one in tables]
    return {
        "$schema": DIALECT,
        "$id": f"nsystui:{name.replace(' ', ':')}:{VERSION}",
        "title": name,
        "description": description,
        "type": "array",
        "items": forms[0] if len(forms) == 1 else {"oneOf": list(map(_block, tables, forms))},
    }


def _rows(columns: Sequence[Column]) -> dict[str, Any]:
    is_mixed = any(column.key == "unit" for column in columns)  # times, percents and counts in one column
    properties = {}
    for column in columns:
        # Tables over several kinds of values write a whole number as one.
        is_whole = column.decimals is None and not (is_mixed and column.unit is Unit.NUMBER)
        kind = "string" if column.unit is Unit.TEXT else "integer" if is_whole else "number"
        unit = {"unit": UNITS[column.unit]} if column.unit in UNITS else {}
        properties[column.file_key] = {"type": [kind, "null"], "description": column.header, **unit}
    has_window = {START.file_key, END.file_key} <= {column.file_key for column in columns}
    return {
        **({"description": "The window of a row: --time {start_ns}ns:{end_ns}ns"} if has_window else {}),
        "type": "object",
        "properties": properties,
        "required": [column.file_key for column in columns],
    }


def _block(table: Titled, rows: dict[str, Any]) -> dict[str, Any]:
    properties = {"table": {"const": table.name}, "rows": {"type": "array", "items": rows}}
    return {"type": "object", "properties": properties, "required": list(properties)}
