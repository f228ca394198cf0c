"""Derived results that questions share: computed once of a report, or of all open reports, and found from then on.

A result of a single report must depend on that report alone: its times are on its own clock, for the offset to
the job's clock (and which rank a process is) depends on what else is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nsystui.base.answer import Row
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.store.report import Report, most_rows
from nsystui.store.results import version_of
from nsystui.store.session import Computation, Session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.exports.canonical import CanonicalTable
    from nsystui.store.results import Arrays

Compute = Callable[[Session, list[Report]], "Mapping[int, Arrays]"]
"""Computes the arrays of some reports, which are the whole of the session that it is given, or among others."""

# A query has its cost for each open report, so of many small ones several are asked about at once.
_MOST_ROWS = 1 << 21
# The summary of fewer rows is computed as fast as it is found.
_MANY_ROWS = 1_000_000


def of_each_report(
    session: Session,
    reports: Iterable[Report],
    question: str,
    compute: Compute,
    fits: Callable[[Report, Arrays], bool] = lambda report, arrays: True,
    by: sa.Table | CanonicalTable | None = None,
    doing: str = "",
    in_memory: bool = False,
) -> dict[int, Arrays]:
    """The arrays that answer ``question`` about each report, by its index.

    ``compute`` computes those of the reports that have none yet, or none that ``fits``: all in one go, or in runs whose
    rows of ``by`` fit into memory together, each saved before the next begins. It is given a session of these reports.
    ``doing`` says what is computed, for the session's ``tell``. ``in_memory``: the session has them in memory then.
    """
    version = version_of(compute)
    found: dict[int, Arrays] = {}
    missing = []
    for report in reports:
        arrays = session.results(report, in_memory).load(question, version)
        if arrays is None or not fits(report, arrays):
            missing.append(report)
        else:
            found[report.index] = arrays
    for run in with_progress(session, list(runs_of(missing, by)), doing):
        computed = compute(session.part(report.index for report in run), run)
        readable = {report.index for report in session.reports}
        for report in run:
            if report.index in readable:  # what could not be read whole was left out meanwhile
                session.results(report, in_memory).save(question, computed[report.index], version)
            found[report.index] = computed[report.index]
        give_back()
    return found


def with_progress(session: Session, runs: list[list[Report]], doing: str) -> Iterator[list[Report]]:
    """The runs; before each but the first the session tells how far they are: nobody waits for a single run."""
    done, total = 0, sum(map(len, runs))
    try:
        for run in runs:
            if doing and done:
                session.tell(Computation(doing, done, total))
            yield run
            done += len(run)
    finally:
        if doing and len(runs) > 1:
            session.tell(None)


def runs_of(reports: Sequence[Report], table: sa.Table | CanonicalTable | None) -> Iterator[list[Report]]:
    """The reports in runs whose rows of ``table`` fit into memory together, or that are alone; all without a table."""
    run: list[Report] = []
    rows = 0
    for report in reports:
        more = report.count(table) if table is not None else 0
        if run and rows + more > _MOST_ROWS:
            yield run
            run, rows = [], 0
        run.append(report)
        rows += more
    if run:
        yield run


def of_all_reports(
    session: Session, selection: Selection, table: sa.Table, question: str, compute: Callable[[], list[Row]]
) -> list[Row]:
    """The rows that ``compute`` gives for ``question``, saved where everything of a large ``table`` is selected.

    They must depend on nothing but the open exports, whatever their clocks, and be of texts, numbers and None.
    """
    if session.cache is None or not selection.is_everything or most_rows(session.reports, table) < _MANY_ROWS:
        return compute()
    single = [session.results(report) for report in session.reports]
    if any(results.directory is None for results in single):
        return compute()
    results = session.cache.results_of_several([name for one in single for name in one.reports])
    version = version_of(compute)
    with session.large_questions:
        found = results.load(question, version)
        if found is not None:
            return [tuple(row) for row in found]
        rows = compute()
        results.save(question, rows, version)
        return rows
