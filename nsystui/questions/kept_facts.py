"""What is computed of single reports once, and then found beside their columns.

What is kept must depend on the report alone: its times are on its own clock, for the offset to the job's clock (and
which rank a process is) depends on what else is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nsystui.store.memory import give_back
from nsystui.store.report import Report
from nsystui.store.session import Session
from nsystui.store.working import Working

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.store.kept import Arrays

Compute = Callable[[Session, list[Report]], "Mapping[int, Arrays]"]
"""Makes the arrays of some reports, which are the whole of the session that it is given, or among others."""

# A query has its cost for each open report, so of many small ones several are asked about at once.
_MOST_ROWS = 1 << 21


def facts_of(
    session: Session,
    reports: Iterable[Report],
    name: str,
    version: int,
    compute: Compute,
    fits: Callable[[Report, Arrays], bool] = lambda report, arrays: True,
    by: sa.Table | None = None,
    doing: str = "",
    is_small: bool = False,
) -> dict[int, Arrays]:
    """The arrays called ``name`` of each report, by its index.

    ``compute`` makes those of the reports that have none yet, or none that ``fits`` the question: all in one go, or in
    runs whose rows of ``by`` fit into memory together, each kept before the next begins. It is given a session of these
    reports. ``version`` is raised whenever it would make others of the same report. ``doing`` says what is computed,
    for the session's ``tell``. What ``is_small`` the session has at hand after that.
    """
    found: dict[int, Arrays] = {}
    missing = []
    for report in reports:
        arrays = session.kept(report, is_small).load(name, version)
        if arrays is None or not fits(report, arrays):
            missing.append(report)
        else:
            found[report.index] = arrays
    for run in told(session, list(runs_of(missing, by)), doing):
        computed = compute(session.part(report.index for report in run), run)
        readable = {report.index for report in session.reports}
        for report in run:
            if report.index in readable:  # what could not be read whole was left out meanwhile
                session.kept(report, is_small).save(name, version, computed[report.index])
            found[report.index] = computed[report.index]
        give_back()
    return found


def told(session: Session, runs: list[list[Report]], doing: str) -> Iterator[list[Report]]:
    """The runs, and before each but the first how far they are: what one run takes nobody waits for."""
    done, total = 0, sum(map(len, runs))
    try:
        for run in runs:
            if doing and done:
                session.tell(Working(doing, done, total))
            yield run
            done += len(run)
    finally:
        if doing and len(runs) > 1:
            session.tell(None)


def runs_of(reports: Sequence[Report], table: sa.Table | None) -> Iterator[list[Report]]:
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
