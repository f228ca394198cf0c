"""What an export lacks is a fact to show: one sentence that says so and what to record."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nsystui.exports import canonical
from nsystui.store.report import Report
from nsystui.store.session import Session


def missing_note(session: Session, table: sa.Table) -> str:
    """A sentence if no open report has rows of ``table``, or some have none; else the empty string.

    Rows that were left out were recorded.
    """
    lacking = [report for report in session.reports if not report.count(table)]
    return lacking_note(session, table, [one for one in lacking if not one.packed.left_out.get(table.name)])


def absent_note(session: Session, table: sa.Table) -> str:
    """As ``missing_note``, of reports where nothing was recorded: a table that is there without rows says 0."""
    return lacking_note(session, table, [report for report in session.reports if not report.has(table)])


def lacking_note(session: Session, table: sa.Table, lacking: Sequence[Report]) -> str:
    """The sentence on the reports of ``lacking``; empty where there are none."""
    if not lacking:
        return ""
    what, record = canonical.BY_NAME[table.name].what, canonical.BY_NAME[table.name].record
    if any(table.name in report.damaged for report in lacking):
        record = "the export is damaged: export it again"
    if len(lacking) < len(session.reports):
        names = ", ".join(report.name for report in lacking[:3])
        names += f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        return f"no {what} in {names}: {record}"
    which = "this export" if len(session.reports) == 1 else "these exports"
    return f"no {what} in {which}: {record}"
