"""What an export lacks is a fact to show: one sentence that says so and what to record."""

from __future__ import annotations

import sqlalchemy as sa

from nsystui.exports import canonical
from nsystui.store.session import Session


def missing_note(session: Session, table: sa.Table) -> str:
    """A sentence if no open report has rows of ``table``, or some have none; else the empty string."""
    lacking = [report.name for report in session.reports if not report.count(table)]
    if not lacking:
        return ""
    what, record = canonical.BY_NAME[table.name].what, canonical.BY_NAME[table.name].record
    if len(lacking) < len(session.reports):
        names = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        return f"no {what} in {names}: {record}"
    which = "this export" if len(session.reports) == 1 else "these exports"
    return f"no {what} in {which}: {record}"
