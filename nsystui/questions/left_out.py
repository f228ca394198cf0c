"""Rows that cannot be, and are in no answer: one note says of all open exports how many there are, and why."""

from __future__ import annotations

from collections.abc import Mapping

from nsystui.base.note_words import which_of
from nsystui.exports import canonical
from nsystui.exports.sources import REASONS
from nsystui.store.session import Session
from nsystui.store.tally import LeftOut


def left_out_note(session: Session) -> str:
    """The sentence; empty where no row was left out, as far as rows were read."""
    having = [report for report in session.reports if any(report.packed.left_out.values())]
    found: dict[str, LeftOut] = {}
    for report in having:
        for name, rows in report.packed.left_out.items():
            found[name] = found.get(name, LeftOut()) + rows
    if not having:
        return ""
    where = which_of([report.name for report in having], len(session.reports))
    return f"left out of {where}, for their times cannot be: {'; '.join(_tables(found))}; export the report again"


def _tables(found: Mapping[str, LeftOut]) -> list[str]:
    """``12 GPU kernels (2 without a time, 10 ending before the start)``, for each table in the usual order."""
    parts = []
    for table in canonical.TABLES:
        rows = found.get(table.name, LeftOut())
        reasons = [f"{count:,} {why}" for count, why in zip(rows.by_reason, REASONS, strict=True) if count]
        if reasons:
            what = table.what.partition(",")[0]
            parts.append(f"{rows.rows:,} {what} ({', '.join(reasons)})")
    return parts
