"""Events whose start or end is no time: damage that no number shows by itself, so a note says how many there are."""

from __future__ import annotations

import sqlalchemy as sa

from nsystui.analysis.note_words import which_of
from nsystui.exports import canonical
from nsystui.store.session import Session


def untimed_note(session: Session, table: sa.Table) -> str:
    """A sentence if events of ``table`` lack a time that nsys always writes; else the empty string.

    A time that cannot be one (`exports.schema.LATEST`) is missing too.
    """
    counts = [report.packed.untimed(table.name) for report in session.reports]
    having = [report for report, rows in zip(session.reports, counts, strict=True) if rows]
    if not having:
        return ""
    what, where = canonical.BY_NAME[table.name].what, which_of([one.name for one in having], len(counts))
    of = sum(report.count(table) for report in having)
    return (
        f"{sum(counts):,} of {of:,} {what} in {where} have no start or end that can be a time: no time here "
        "counts them; export the report again"
    )
