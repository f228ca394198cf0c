"""MPI calls, as any version of nsys recorded them.

Since 2023, nsys writes tables of them. Before, it recorded each call as an NVTX range of the domain ``MPI``, with only
a name and a time (docs/exports.md#mpi-and-ucx). If a report has rows in the tables, its ranges do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.base.types import Condition
from nsystui.exports import canonical
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import sqlalchemy as sa


DOMAIN = "MPI"
_CALLS, _RANGES = canonical.BY_NAME["mpi_calls"], canonical.BY_NAME["nvtx_ranges"]


def is_mpi_range() -> Condition:
    """Select NVTX ranges that are MPI calls, by domain, or by name if the domain's name is missing."""
    import sqlalchemy as sa

    from nsystui.store import tables

    columns = tables.nvtx_ranges.c
    return sa.or_(columns.domain == DOMAIN, sa.and_(columns.domain.is_(None), columns.name.startswith("MPI_")))


def nvtx_reports(session: Session) -> list[Report]:
    """Return the reports whose MPI calls are NVTX ranges."""
    without_calls = [item for item in session.reports if not item.count(_CALLS) and item.count(_RANGES)]
    if not without_calls:
        return []
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    report = tables.nvtx_ranges.c.report
    query = sa.select(report).where(of_reports(report, {item.index for item in without_calls}), is_mpi_range())
    indices = {index for (index,) in session.rows(query.distinct())}
    return [item for item in without_calls if item.index in indices]


def mpi_rows(session: Session) -> sa.FromClause:
    """Select the MPI calls of every report, with the columns of the table ``mpi_calls``."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    range_reports, calls, ranges = nvtx_reports(session), tables.mpi_calls, tables.nvtx_ranges.c
    if not range_reports:
        return calls
    columns = [
        ranges[column.name] if column.name in ranges else sa.cast(sa.null(), column.type).label(column.name)
        for column in calls.c
    ]
    rows = sa.select(*columns).where(of_reports(ranges.report, {item.index for item in range_reports}), is_mpi_range())
    return (sa.union_all(sa.select(*calls.c), rows) if session.count(_CALLS) else rows).subquery("mpi")


def has_mpi(session: Session) -> bool:
    """Return whether there is any MPI call."""
    return bool(session.count(_CALLS) or nvtx_reports(session))


def is_by_range(session: Session, report: int) -> bool:
    """Return whether the MPI calls of a report are NVTX ranges."""
    return not any(item.index == report and item.count(_CALLS) for item in session.reports)
