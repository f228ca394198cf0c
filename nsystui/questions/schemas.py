"""The form of each answer in JSON, as JSON Schema: what a program may rely on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsystui.base.columns import Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.answering import ask
from nsystui.questions.job import Job
from nsystui.questions.question import Question
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
def empty_job() -> Iterator[Job]:
    """A job of one export in which nothing happened: what is asked of it has columns and no rows."""
    from nsystui.exports.writing.writer import ExportWriter

    session = Session()
    try:
        with tempfile.TemporaryDirectory(prefix="nsystui-") as place:
            path = Path(place) / "empty.sqlite"
            with ExportWriter(path):
                pass
            session.add(path)
            yield Job(session)
    finally:
        session.close()


def schema_of(job: Job, question: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of what ``--format json`` writes for a question with these values of its options.

    The columns are those of the answer about the `empty_job`; what exports name themselves (GPU metrics) comes on top
    of them. Raises UsageError for values that make no sense.
    """
    options = question.read(dict(values) if question.family else {**values, "files": []})
    answer = ask(question, job, Selection(), options)
    name = f"{question.family} {question.name}".strip()
    return {
        "$schema": DIALECT,
        "$id": f"nsystui:{name.replace(' ', ':')}:{VERSION}",
        "title": name,
        "description": question.help,
        "type": "array",
        "items": {
            "type": "object",
            "properties": {column.file_key: _property(column) for column in answer.columns},
            "required": [column.file_key for column in answer.columns],
        },
    }


def _property(column: Column) -> dict[str, Any]:
    kind = "string" if column.unit is Unit.TEXT else "integer" if column.decimals is None else "number"
    # Tables over several kinds of values write a whole number as one.
    unit = {"unit": UNITS[column.unit]} if column.unit in UNITS else {}
    return {"type": [kind, "null"], "description": column.header, **unit}
