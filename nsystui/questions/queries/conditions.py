"""The selection as SQL: the same conditions for every table and every question."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from nsystui.base.errors import UsageError
from nsystui.base.selection import NameFilter, Selection, Task, Window

Condition = sa.ColumnElement[bool]


def where(table: sa.FromClause, selection: Selection, name: sa.ColumnElement[Any] | None = None) -> list[Condition]:
    """The conditions under which a row of ``table`` is selected; a filter that the table has no column for is left out.

    ``name`` is what the name filter looks at; without it the filter is left out too.
    """
    columns = table.c
    conditions: list[Condition] = []
    if selection.window is not None:
        conditions += _in_window(table, selection.window)
    if selection.windows is not None:
        choices = [sa.and_(columns.report == report, *_in_window(table, one)) for report, one in selection.windows]
        conditions.append(sa.or_(*choices) if choices else sa.false())
    if selection.tasks is not None and "process" in columns:
        conditions.append(of_tasks(table, selection.tasks))
    if selection.devices is not None and "device" in columns:
        conditions.append(columns.device.in_(sorted(selection.devices)))
    if selection.streams is not None and "stream" in columns:
        conditions.append(columns.stream.in_(sorted(selection.streams)))
    if selection.name is not None and name is not None:
        conditions.append(matches(name, selection.name))
    return conditions


def _in_window(table: sa.FromClause, window: Window) -> list[Condition]:
    """Rows that overlap ``[start, end)`` of job time; a moment belongs to the window that it lies in."""
    columns = table.c
    if "start" not in columns:
        moment = columns.time + columns.clock_offset
        return [moment >= window.start, moment < window.end]
    start = columns.start
    after = window.start - columns.clock_offset
    conditions = [start < window.end - columns.clock_offset]
    if "end" in columns:
        # An unfinished range has no end: it reaches into every later window.
        conditions.append(sa.or_(start >= after, columns.end > after, columns.end.is_(None)))
    else:
        conditions.append(start >= after)
    return conditions


def of_reports(report: sa.ColumnElement[int], reports: Collection[int]) -> Condition:
    """Rows of the given reports, by their indices: files of others need not be opened.

    DuckDB decides that file by file, and takes a second for a list of a thousand; for a range it takes none.
    """
    chosen = sorted(reports)
    if len(chosen) > 1 and chosen[-1] - chosen[0] == len(chosen) - 1:
        return report.between(chosen[0], chosen[-1])
    return report.in_(chosen)


def of_tasks(table: sa.FromClause, tasks: frozenset[Task]) -> Condition:
    """Rows of the given processes of the given reports."""
    if not tasks:
        return sa.false()
    report, process = table.c.report, table.c.process
    found: dict[int, list[int]] = {}
    for task in sorted(tasks):
        found.setdefault(task.report, []).append(task.process)
    if max(map(len, found.values())) <= _FEW:
        rows = zip_longest(*found.values())
        is_own = sa.or_(*(process == by_report(table, dict(zip(found, row, strict=True))) for row in rows))
    else:
        is_own = sa.tuple_(report, process).in_([(task.report, task.process) for task in sorted(tasks)])
    return sa.and_(of_reports(report, found), is_own)


_FEW = 8
"""Of so many processes in each report, a row is compared with those of its own: with a thousand pairs takes longer."""


def given(columns: Mapping[str, Sequence[int | str | None]]) -> sa.Select[Any]:
    """Rows to join with. Each column is bound as one array, so the text of the query does not grow with them."""
    unnested: list[sa.ColumnElement[Any]] = []
    for name, values in columns.items():
        kind = sa.BigInteger() if any(isinstance(value, int) for value in values) else sa.Text()
        bound = sa.literal(list(values), sa.ARRAY(kind))
        unnested.append(sa.cast(sa.func.unnest(bound, type_=kind), kind).label(name))
    return sa.select(*unnested)


def matches(name: sa.ColumnElement[Any], wanted: NameFilter) -> Condition:
    """Whether ``name`` passes the filter; a row without a name passes as an empty one.

    Raises UsageError for a regular expression of Python's that SQL has no equal for (look-around, back-references).
    """
    text = sa.func.coalesce(name, "")
    if wanted.is_regex:
        refusal = _refusal(wanted.pattern)
        if refusal:
            raise UsageError(f"filter {wanted.text!r}: {refusal}")
        options = "i" if wanted.ignore_case else "c"
        found: Condition = sa.func.regexp_matches(text, wanted.pattern, options, type_=sa.Boolean)
    elif wanted.ignore_case:
        found = sa.func.contains(sa.func.lower(text), wanted.pattern, type_=sa.Boolean)
    else:
        found = sa.func.contains(text, wanted.pattern, type_=sa.Boolean)
    return sa.not_(found) if wanted.inverse else found


@lru_cache(maxsize=64)
def _refusal(pattern: str) -> str:
    """The reason why DuckDB (RE2) refuses a regular expression; empty where it accepts it."""
    import duckdb

    try:
        with duckdb.connect() as connection:
            connection.execute("SELECT regexp_matches('', $1)", [pattern]).fetchall()
    except duckdb.Error as error:
        return str(error).splitlines()[0].removeprefix("Invalid Input Error: ")
    return ""


def duration(table: sa.FromClause) -> sa.ColumnElement[int]:
    """``end - start`` in ns."""
    return table.c.end - table.c.start


def by_report(table: sa.FromClause, values: Mapping[int, int | None]) -> sa.ColumnElement[Any]:
    """The value of ``values`` for the index of a row's report; NULL where it has none. ``values`` must not be empty."""
    given = [values.get(report) for report in range(max(values) + 1)]
    return sa.func.list_extract(sa.literal(given, sa.ARRAY(sa.BigInteger)), table.c.report + 1, type_=sa.BigInteger)


def job_end(table: sa.FromClause) -> sa.ColumnElement[int]:
    """The end in job time, ns."""
    return table.c.end + table.c.clock_offset


def is_launched_by(work: sa.FromClause, calls: sa.FromClause) -> Condition:
    """The condition on which one of ``calls`` launched a row of ``work`` (docs/exports.md#launches)."""
    return sa.and_(*[calls.c[key] == work.c[key] for key in ("report", "process", "correlation_id")])


def job_start(table: sa.FromClause) -> sa.ColumnElement[int]:
    """The start in job time, ns."""
    return table.c.start + table.c.clock_offset
