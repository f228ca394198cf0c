"""Kernel names, and the kernels that communicate (docs/numbers.md#communication)."""

from __future__ import annotations

from collections.abc import Collection

from nsystui.base.kernel_families import backend_of, is_communication
from nsystui.base.text import few
from nsystui.base.types import Condition
from nsystui.exports import canonical
from nsystui.questions.queries.derived import of_each_report
from nsystui.store.report import Report
from nsystui.store.results import Arrays, json_array, json_of
from nsystui.store.session import Session


def full_names(session: Session) -> list[str]:
    """Return the full names of the session's kernels; missing names are empty strings."""

    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        import sqlalchemy as sa

        from nsystui.questions.queries.conditions import of_reports
        from nsystui.store import tables

        report, name = tables.kernels.c.report, sa.func.coalesce(tables.kernels.c.name, "")
        rows = part.rows(sa.select(report, name).distinct().where(of_reports(report, {item.index for item in reports})))
        names = {item.index: [name for index, name in rows if index == item.index] for item in reports}
        return {index: {"names": json_array(report_names)} for index, report_names in names.items()}

    with_kernels = [item for item in session.reports if item.count(canonical.KERNELS)]
    stored = of_each_report(session, with_kernels, "kernel-names", compute, table=canonical.KERNELS)
    return list(dict.fromkeys(name for arrays in stored.values() for name in json_of(arrays["names"])))


def communicating(session: Session) -> list[str]:
    """List the names of kernels whose family communicates without NCCL."""
    return sorted(name for name in full_names(session) if is_communication(name, session.families))


def other_communication(session: Session) -> tuple[str, ...]:
    """Return a note on kernels that count as NCCL's in times by category, if any."""
    backends = list(dict.fromkeys(map(backend_of, communicating(session))))
    return (f"NCCL here means all communication, also kernels of {few(backends)}",) if backends else ()


def communicates(names: Collection[str]) -> Condition:
    """Select NCCL's kernels and kernels with ``names`` (see `communicating`)."""
    import sqlalchemy as sa

    from nsystui.store import tables

    columns = tables.kernels.c
    is_nccl: Condition = columns.is_nccl == 1
    return sa.or_(is_nccl, sa.func.coalesce(columns.name, "").in_(names)) if names else is_nccl
