"""Shared derived results, saved for a report or for all open reports.

The result of a report must depend on it alone. Its times are on the report's own clock, because the offset to the job's
clock (and the rank of a process) depends on the other open reports. If that clock drifts, its rate is part of the key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.base.types import Query
from nsystui.exports import canonical
from nsystui.store.remember import Arrays, as_arrays, json_array, json_of, remember, remember_each, version_of
from nsystui.store.report import Report, most_rows
from nsystui.store.session import Computation, Compute, Session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.exports.canonical import CanonicalTable

T = TypeVar("T")
JsonRow = Sequence[Any]
"""The index of a report, and JSON values."""

# Several small reports share a query, because each query has a cost per open report.
_MOST_ROWS = 1 << 21
# A summary of fewer rows is computed as fast as it is loaded.
_MANY_ROWS = 1_000_000
_BATCH_ROWS = 10_000


def of_each_report(
    session: Session, reports: Iterable[Report], question: str, compute: Compute[Mapping[int, Arrays]],
    is_valid: Callable[[Report, Arrays], bool] = lambda report, arrays: True,
    table: sa.Table | CanonicalTable | None = None,
    activity: str = "", in_memory: bool = False, kept: bool = False, version: str = "",
) -> dict[int, Arrays]:  # fmt: skip
    """Return the arrays that answer ``question`` for each report, by its index.

    ``compute`` makes missing and invalid arrays (``is_valid``) from a session of their reports: all in one call, or in
    runs whose rows of ``table`` fit into memory, each saved before the next run. ``activity`` names the computation in
    progress messages. With ``in_memory``, the session also keeps the arrays. With ``kept``, none are made. ``version``
    is used instead of ``compute``'s.
    """
    by_index = {report.index: report for report in reports}
    unread: dict[int, Arrays] = {}
    """Results of reports that could not be read completely, and were removed meanwhile: they are not saved."""

    def computed(missing: list[int]) -> Iterator[dict[int, Arrays]]:
        for arrays in in_runs(session, [by_index[index] for index in missing], compute, table, activity):
            readable = {report.index for report in session.reports}
            unread.update((index, values) for index, values in arrays.items() if index not in readable)
            yield {index: values for index, values in arrays.items() if index in readable}
            give_back()

    results = {index: session.results(report, in_memory) for index, report in by_index.items()}
    read = partial(_if_valid, is_valid, by_index)
    version = version or _version(session, compute)
    return {**remember_each(results, question, None if kept else computed, version, read), **unread}


def rows_of_each_report(
    session: Session,
    reports: Iterable[Report],
    question: str,
    read: Compute[Iterable[JsonRow]],
    table: sa.Table | CanonicalTable | None = None,
    in_memory: bool = False,
    kept: bool = False,
) -> Iterator[JsonRow]:
    """Yield the rows of ``read`` that answer ``question``, stored like the arrays of `of_each_report`."""
    compute, version = partial(_rows_as_arrays, read), _version(session, read)
    for index, arrays in of_each_report(
        session, reports, question, compute, table=table, in_memory=in_memory, kept=kept, version=version
    ).items():
        yield from ((index, *values) for values in json_of(arrays["rows"]))


def _rows_as_arrays(read: Compute[Iterable[JsonRow]], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    rows: dict[int, list[JsonRow]] = {report.index: [] for report in reports}
    for index, *values in read(session, reports):
        rows[index].append(values)
    return {index: {"rows": json_array(values)} for index, values in rows.items()}


def _version(session: Session, compute: Callable[..., object]) -> str:
    version = version_of(compute)
    if session.families:  # which kernels communicate
        version += f"{crc32(repr(session.families).encode()):08x}"
    return version


def _if_valid(
    is_valid: Callable[[Report, Arrays], bool], reports: Mapping[int, Report], index: int, loaded: Any
) -> Arrays | None:
    arrays = as_arrays(loaded)
    return arrays if is_valid(reports[index], arrays) else None


def in_runs(
    session: Session,
    reports: Sequence[Report],
    compute: Compute[T],
    table: sa.Table | CanonicalTable | None = None,
    activity: str = "",
) -> Iterator[T]:
    """Yield the result of ``compute`` for each run of `runs_of`, in order.

    Workers, if any, compute runs in parallel; ``compute`` is pickled with its bound arguments. ``activity`` is for
    progress messages, which a single run with few kernels does not need.
    """
    if not reports:
        return
    workers, total = session.workers, len(reports)
    runs = list(runs_of(reports, table, total if workers is None else workers.share(total)))
    is_large = len(runs) > 1 or any(most_rows(run, canonical.KERNELS) >= _MANY_ROWS for run in runs)
    is_long = workers is not None or (is_large and bool(activity))

    def tell(done: int) -> None:
        if is_long:
            session.tell(Computation(activity or "workers", done, total) if done < total else None)

    try:
        if workers is not None:
            yield from workers.each([(run, compute) for run in runs], tell)
            return
        done = 0
        for run in runs:
            tell(done)
            yield compute(session.part(report.index for report in run), run)
            done += len(run)
    finally:
        tell(total)


def rows_by_report(session: Session, query: Query) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, unordered.

    Workers query runs of reports, so a group of several reports has several rows, which the caller adds up.
    """
    if session.workers is None:
        for rows in session.batches(query, _BATCH_ROWS):
            yield from rows
        return
    from sqlalchemy.ext.serializer import dumps

    data: bytes = dumps(query)  # type: ignore[no-untyped-call]  # a few KB, with tables by name
    for rows in in_runs(session, session.reports, partial(_rows_of_run, data)):
        yield from rows


def _rows_of_run(data: bytes, session: Session, _: list[Report]) -> list[tuple[Any, ...]]:
    from sqlalchemy.ext.serializer import loads

    from nsystui.store import tables

    query: Query = loads(data, tables.METADATA)  # type: ignore[no-untyped-call]
    return [row for rows in session.batches(query, _BATCH_ROWS) for row in rows]


def runs_of(
    reports: Sequence[Report], table: sa.Table | CanonicalTable | None, max_reports: int = sys.maxsize
) -> Iterator[list[Report]]:
    """Split reports into runs of at most ``max_reports`` whose rows of ``table`` fit into memory, or of one report.

    Without ``table``, memory is no limit.
    """
    run: list[Report] = []
    rows = 0
    for report in reports:
        report_rows = report.count(table) if table is not None else 0
        if run and (rows + report_rows > _MOST_ROWS or len(run) == max_reports):
            yield run
            run, rows = [], 0
        run.append(report)
        rows += report_rows
    if run:
        yield run


def of_all_reports(
    session: Session,
    selection: Selection,
    table: sa.Table,
    question: str,
    compute: Callable[[], Sequence[tuple[Any, ...]]],
) -> Sequence[tuple[Any, ...]]:
    """Return the rows of ``compute``, saved for ``question`` if everything is selected and ``table`` is large.

    The rows must hold texts, numbers and None, and depend only on the open exports, not on clock offsets.
    """
    if session.cache is None or not selection.is_everything or most_rows(session.reports, table) < _MANY_ROWS:
        return compute()
    results_by_report = [session.results(report) for report in session.reports]
    if any(results.directory is None for results in results_by_report):
        return compute()
    names = [name for item in results_by_report for name in item.reports]
    results = replace(session.cache.results_of_several(names), memory=session.large_questions)
    version = _version(session, compute) + "".join(item.variant for item in results_by_report)
    return remember(results, ("all reports", question), compute, version, lambda rows: [tuple(row) for row in rows])
