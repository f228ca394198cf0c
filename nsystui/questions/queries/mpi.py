"""MPI calls, however a version of nsys recorded them.

Since 2023 they have tables of their own. Before, nsys wrote each call as an NVTX range of the domain ``MPI``
(docs/exports.md#mpi-and-ucx), of which only name and time are known. A report counts by the one or the other, never by
both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.exports import canonical
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import Condition

DOMAIN = "MPI"
_CALLS, _RANGES = canonical.BY_NAME["mpi_calls"], canonical.BY_NAME["nvtx_ranges"]


def is_mpi_range() -> Condition:
    """Tell whether an NVTX range is an MPI call, by its own name where the row that names its domain is missing."""
    import sqlalchemy as sa

    from nsystui.store import tables

    columns = tables.nvtx_ranges.c
    return sa.or_(columns.domain == DOMAIN, sa.and_(columns.domain.is_(None), columns.name.startswith("MPI_")))


def nvtx_reports(session: Session) -> list[Report]:
    """Return the reports whose MPI calls are NVTX ranges."""
    asked = [one for one in session.reports if not one.count(_CALLS) and one.count(_RANGES)]
    if not asked:
        return []
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    report = tables.nvtx_ranges.c.report
    query = sa.select(report).where(of_reports(report, {one.index for one in asked}), is_mpi_range())
    found = {index for (index,) in session.rows(query.distinct())}
    return [one for one in asked if one.index in found]


def mpi_rows(session: Session) -> sa.FromClause:
    """Select the MPI calls of every report, with the columns of the table ``mpi_calls``."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    by_range, calls, ranges = nvtx_reports(session), tables.mpi_calls, tables.nvtx_ranges.c
    if not by_range:
        return calls
    columns = [
        ranges[one.name] if one.name in ranges else sa.cast(sa.null(), one.type).label(one.name) for one in calls.c
    ]
    is_own = of_reports(ranges.report, {one.index for one in by_range})
    rows = sa.select(*columns).where(is_own, is_mpi_range())
    return (sa.union_all(sa.select(*calls.c), rows) if session.count(_CALLS) else rows).subquery("mpi")


def has_mpi(session: Session) -> bool:
    """Tell whether there is any MPI call."""
    return bool(session.count(_CALLS) or nvtx_reports(session))


def is_by_range(session: Session, report: int) -> bool:
    """Tell whether an MPI call of a report is an NVTX range."""
    return not any(one.index == report and one.count(_CALLS) for one in session.reports)
