"""The selection as SQL conditions, the same for all tables and questions."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest

import sqlalchemy as sa

from nsystui.base.errors import UsageError
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.types import Condition, Expression, Query, grouped
from nsystui.exports.sources.base import MAY_BE_OPEN
from nsystui.store.tables import LEAST_OFFSET, MOST_OFFSET


def where(table: sa.FromClause, selection: Selection, name: Expression | None = None) -> list[Condition]:
    """Return the conditions of the selection on ``table``; filters on columns that it lacks are ignored.

    The name filter applies to ``name``; without ``name``, it is ignored.
    """
    columns = table.c
    conditions: list[Condition] = []
    if selection.window is not None:
        conditions += _in_window(table, selection.window)
    if selection.windows is not None:
        choices = [
            sa.and_(columns.report == report, *_in_window(table, window)) for report, window in selection.windows
        ]
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
    """Select rows that overlap ``[start, end)`` of job time; a row with a single time must lie in it."""
    columns = table.c
    starts, ends = ({report: span[edge] for report, *span in window.spans} for edge in (0, 1))
    edges = ((window.start, starts), (window.end, ends))
    low, high = (sa.func.coalesce(by_report(table, of), edge) if of else sa.literal(edge) for edge, of in edges)
    start, after = columns.get("start", columns.get("time")), low - columns.clock_offset
    # DuckDB skips row groups only by conditions on constants.
    earliest = min([window.start, *starts.values()]) - MOST_OFFSET
    latest = max([window.end, *ends.values()]) - LEAST_OFFSET
    conditions = [start < latest, start < high - columns.clock_offset]
    if "end" not in columns:
        return [*conditions, start >= earliest, start >= after]
    reaches = sa.or_(start >= after, columns.end > after)
    if isinstance(table, sa.Table) and table.name not in [other.name for other in MAY_BE_OPEN]:
        return [*conditions, columns.end >= earliest, reaches]
    # An unfinished range has no end: it reaches into every later window.
    return [*conditions, sa.or_(reaches, columns.end.is_(None))]


def of_reports(report: sa.ColumnElement[int], reports: Collection[int]) -> Condition:
    """Select the rows of reports, by index; DuckDB does not open the files of other reports.

    DuckDB decides this file by file: a list of a thousand indices takes a second, a range no time.
    """
    indices = sorted(reports)
    if len(indices) > 1 and indices[-1] - indices[0] == len(indices) - 1:
        return report.between(indices[0], indices[-1])
    return report.in_(indices)


def of_tasks(table: sa.FromClause, tasks: frozenset[Task]) -> Condition:
    """Select the rows of tasks."""
    if not tasks:
        return sa.false()
    report, process = table.c.report, table.c.process
    processes = grouped((task.report, task.process) for task in sorted(tasks))
    if max(map(len, processes.values())) <= _FEW_PROCESSES:
        rows = zip_longest(*processes.values())
        is_selected = sa.or_(*(process == by_report(table, dict(zip(processes, row, strict=True))) for row in rows))
    else:
        is_selected = sa.tuple_(report, process).in_([(task.report, task.process) for task in sorted(tasks)])
    return sa.and_(of_reports(report, processes), is_selected)


_FEW_PROCESSES = 8
"""The most processes per report that are compared by report; a list of a thousand pairs takes longer."""


def given(columns: Mapping[str, Sequence[int | str | None]]) -> Query:
    """Select given rows. Each column is one bound array, so the text of the query does not grow."""
    unnested: list[Expression] = []
    for name, values in columns.items():
        kind = sa.BigInteger() if any(isinstance(value, int) for value in values) else sa.Text()
        array = sa.literal(list(values), sa.ARRAY(kind))
        unnested.append(sa.cast(sa.func.unnest(array, type_=kind), kind).label(name))
    return sa.select(*unnested)


def matches(name: Expression, name_filter: NameFilter) -> Condition:
    """Select rows whose ``name`` passes the filter; a missing name counts as empty.

    Raises UsageError for a regular expression that only Python supports (look-around, back-references).
    """
    text = sa.func.coalesce(name, "")
    if name_filter.is_regex:
        refusal = _refusal(name_filter.pattern)
        if refusal:
            raise UsageError(f"filter {name_filter.text!r}: {refusal}")
        options = "i" if name_filter.ignore_case else "c"
        passes: Condition = sa.func.regexp_matches(text, name_filter.pattern, options, type_=sa.Boolean)
    elif name_filter.ignore_case:
        passes = sa.func.contains(sa.func.lower(text), name_filter.pattern, type_=sa.Boolean)
    else:
        passes = sa.func.contains(text, name_filter.pattern, type_=sa.Boolean)
    return sa.not_(passes) if name_filter.inverse else passes


@lru_cache(maxsize=64)
def _refusal(pattern: str) -> str:
    """Return why DuckDB (RE2) rejects a regular expression; empty if it accepts it."""
    import duckdb

    try:
        with duckdb.connect() as connection:
            connection.execute("SELECT regexp_matches('', $1)", [pattern]).fetchall()
    except duckdb.Error as error:
        return str(error).splitlines()[0].removeprefix("Invalid Input Error: ")
    return ""


def starts_within(table: sa.FromClause, low: int | None, high: int | None) -> list[Condition]:
    """Select the rows that start in ``[low, high)`` of job time; ``None`` is no bound."""
    start, offset = table.c.start, table.c.clock_offset
    since = [] if low is None else [start >= low - MOST_OFFSET, start >= low - offset]
    return [*since, *([] if high is None else [start < high - LEAST_OFFSET, start < high - offset])]


def duration(table: sa.FromClause) -> sa.ColumnElement[int]:
    """Select ``end - start``, ns."""
    return table.c.end - table.c.start


def by_report(table: sa.FromClause, values: Mapping[int, int | None]) -> Expression:
    """Select the value for a row's report, or NULL. ``values`` must not be empty."""
    ordered = [values.get(report) for report in range(max(values) + 1)]
    return sa.func.list_extract(sa.literal(ordered, sa.ARRAY(sa.BigInteger)), table.c.report + 1, type_=sa.BigInteger)


def job_end(table: sa.FromClause) -> sa.ColumnElement[int]:
    """Select the end in job time, ns."""
    return table.c.end + table.c.clock_offset


def is_launched_by(work: sa.FromClause, calls: sa.FromClause) -> Condition:
    """Match a row of ``work`` with the row of ``calls`` that launched it (docs/exports.md#launches)."""
    return sa.and_(*[calls.c[key] == work.c[key] for key in ("report", "process", "correlation_id")])


def job_start(table: sa.FromClause) -> sa.ColumnElement[int]:
    """Select the start in job time, ns."""
    return table.c.start + table.c.clock_offset


def label(table: sa.FromClause) -> Expression:
    """Return the ``domain:text`` of NVTX ranges or marks as nsys writes it: in the default domain, only the text."""
    domain = sa.func.coalesce(table.c.domain, "")
    return sa.case((domain == "", table.c.name), else_=domain + ":" + table.c.name)
