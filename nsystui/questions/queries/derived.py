"""Derived results that questions share: computed once of a report, or of all open reports, and found from then on.

A result of a single report must depend on that report alone: its times are on its own clock, for the offset to
the job's clock (and which rank a process is) depends on what else is open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.exports import canonical
from nsystui.store.report import Report, most_rows
from nsystui.store.results import as_arrays, version_of
from nsystui.store.session import Computation, Compute, Session

if TYPE_CHECKING:
    import pandas as pd
    import sqlalchemy as sa

    from nsystui.exports.canonical import CanonicalTable
    from nsystui.store.results import Arrays

T = TypeVar("T")

# A query has its cost for each open report, so of many small ones several are asked about at once.
_MOST_ROWS = 1 << 21
# The summary of fewer rows is computed as fast as it is found.
_MANY_ROWS = 1_000_000
_AT_ONCE = 10_000


def of_each_report(
    session: Session,
    reports: Iterable[Report],
    question: str,
    compute: Compute[Mapping[int, Arrays]],
    fits: Callable[[Report, Arrays], bool] = lambda report, arrays: True,
    by: sa.Table | CanonicalTable | None = None,
    doing: str = "",
    in_memory: bool = False,
) -> dict[int, Arrays]:
    """Return the arrays that answer ``question`` about each report, by its index.

    ``compute`` computes those of the reports that have none yet, or none that ``fits``: all in one go, or in runs whose
    rows of ``by`` fit into memory together, each saved before the next begins. It is given a session of these reports.
    ``doing`` says what is computed, for the session's ``tell``. ``in_memory``: the session has them in memory then.
    """
    version = _version(session, compute)
    found: dict[int, Arrays] = {}
    missing = []
    for report in reports:
        arrays = session.results(report, in_memory).load(question, version, partial(_fitting, fits, report))
        if arrays is None:
            missing.append(report)
        else:
            found[report.index] = arrays
    own = {report.index: report for report in missing}
    for computed in in_runs(session, missing, compute, by, doing):
        readable = {report.index for report in session.reports}
        for index, arrays in computed.items():
            if index in readable:  # what could not be read whole was left out meanwhile
                session.results(own[index], in_memory).save(question, arrays, version)
        found.update(computed)
        give_back()
    return found


def _version(session: Session, compute: Callable[..., object]) -> str:
    version = version_of(compute)
    if session.families:  # which kernels communicate
        version += f"{crc32(repr(session.families).encode()):08x}"
    return version


def _fitting(fits: Callable[[Report, Arrays], bool], report: Report, found: Any) -> Arrays | None:
    arrays = as_arrays(found)
    return arrays if fits(report, arrays) else None


def in_runs(
    session: Session,
    reports: Sequence[Report],
    compute: Compute[T],
    by: sa.Table | CanonicalTable | None = None,
    doing: str = "",
) -> Iterator[T]:
    """Yield what ``compute`` gives for runs of reports, in their order; `runs_of` says how many are a run.

    The session's workers compute it where there are any, side by side; ``compute`` goes to them by pickle, with what is
    bound to it. ``doing`` says what is computed, for the session's ``tell``.
    """
    runs = task_runs(session, reports, by)
    if session.workers is None:
        for run in with_progress(session, runs, doing):
            yield compute(session.part(report.index for report in run), run)
    else:
        yield from on_workers(session, [(run, compute) for run in runs], doing)


def task_runs(
    session: Session, reports: Sequence[Report], by: sa.Table | CanonicalTable | None = None
) -> list[list[Report]]:
    """Split reports into the runs of ``in_runs``: with workers short enough for each of them to get some."""
    if not reports:
        return []
    workers = session.workers
    return list(runs_of(reports, by, len(reports) if workers is None else workers.share(len(reports))))


def on_workers(session: Session, work: Sequence[tuple[list[Report], Compute[T]]], doing: str = "") -> Iterator[T]:
    """Yield the results of the session's workers for runs of reports, in their order."""
    assert session.workers is not None
    if not work:
        return
    total = sum(len(run) for run, _ in work)
    try:
        yield from session.workers.each(
            work, lambda done: session.tell(Computation(doing or "workers", done, total)) if done < total else None
        )
    finally:
        session.tell(None)


def rows_by_report(session: Session, query: sa.Select[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query whose rows are of one report each, or sums that the caller adds up; in no order.

    Workers ask it of runs of reports, so that there may be several rows where one query would have a single one.
    """
    if session.workers is None:
        for rows in session.batches(query, _AT_ONCE):
            yield from rows
        return
    for rows in in_runs(session, session.reports, partial(_rows_of_run, pickled(query))):
        yield from rows


def _rows_of_run(query: bytes, session: Session, _: list[Report]) -> list[tuple[Any, ...]]:
    return [row for rows in session.batches(query_of(query), _AT_ONCE) for row in rows]


def frame_by_report(session: Session, query: sa.Select[Any]) -> pd.DataFrame:
    """Read the rows of `rows_by_report` as a frame; each row must be of one report."""
    if session.workers is None:
        return session.frame(query)
    import pandas as pd

    frames = list(in_runs(session, session.reports, partial(_frame_of_run, pickled(query))))
    return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)


def _frame_of_run(query: bytes, session: Session, _: list[Report]) -> pd.DataFrame:
    return session.frame(query_of(query))


def pickled(query: sa.Select[Any]) -> bytes:
    """Serialise a query on its way to a worker, for `query_of`: a few KB, with our tables by their names."""
    from sqlalchemy.ext.serializer import dumps

    data: bytes = dumps(query)  # type: ignore[no-untyped-call]
    return data


def query_of(data: bytes) -> sa.Select[Any]:
    """Undo ``pickled``."""
    from sqlalchemy.ext.serializer import loads

    from nsystui.store import tables

    query: sa.Select[Any] = loads(data, tables.METADATA)  # type: ignore[no-untyped-call]
    return query


def with_progress(session: Session, runs: list[list[Report]], doing: str) -> Iterator[list[Report]]:
    """Yield the runs; before each the session tells how far they are, unless there is one alone with few rows."""
    done, total = 0, sum(map(len, runs))
    is_long = bool(doing) and (len(runs) > 1 or any(most_rows(run, canonical.KERNELS) >= _MANY_ROWS for run in runs))
    try:
        for run in runs:
            if is_long:
                session.tell(Computation(doing, done, total))
            yield run
            done += len(run)
    finally:
        if is_long:
            session.tell(None)


def runs_of(
    reports: Sequence[Report], table: sa.Table | CanonicalTable | None, most: int = sys.maxsize
) -> Iterator[list[Report]]:
    """Split reports into runs whose rows of ``table`` fit into memory together, or that are alone; all without a table.

    A run has ``most`` reports at the most.
    """
    run: list[Report] = []
    rows = 0
    for report in reports:
        more = report.count(table) if table is not None else 0
        if run and (rows + more > _MOST_ROWS or len(run) == most):
            yield run
            run, rows = [], 0
        run.append(report)
        rows += more
    if run:
        yield run


def of_all_reports(
    session: Session,
    selection: Selection,
    table: sa.Table,
    question: str,
    compute: Callable[[], Sequence[tuple[Any, ...]]],
) -> Sequence[tuple[Any, ...]]:
    """Return the rows that ``compute`` gives for ``question``, saved where everything of a large ``table`` is selected.

    They must depend on nothing but the open exports, whatever their clocks, and be of texts, numbers and None.
    """
    if session.cache is None or not selection.is_everything or most_rows(session.reports, table) < _MANY_ROWS:
        return compute()
    single = [session.results(report) for report in session.reports]
    if any(results.directory is None for results in single):
        return compute()
    results = session.cache.results_of_several([name for one in single for name in one.reports])
    version = _version(session, compute)
    with session.large_questions:
        found = results.load(question, version, lambda rows: [tuple(row) for row in rows])
        if found is not None:
            return found
        rows = compute()
        results.save(question, rows, version)
        return rows
