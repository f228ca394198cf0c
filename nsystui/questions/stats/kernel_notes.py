"""The sentences that belong to the numbers of the reports on kernels."""

from __future__ import annotations

import sqlalchemy as sa

from nsystui.questions.data_notes import missing_note
from nsystui.questions.kernels import kernel_notes
from nsystui.questions.stats.report import Options
from nsystui.store import tables
from nsystui.store.session import Session


def notes(session: Session, options: Options, *needed: sa.Table) -> tuple[str, ...]:
    """What belongs to the numbers of a report on kernels; ``needed`` are the other tables that it reads."""
    ranges = (tables.nvtx_ranges,) if options.nvtx_name else ()
    lacking = (missing_note(session, table) for table in (*needed, *ranges))
    return (*kernel_notes(session), *(note for note in lacking if note))
