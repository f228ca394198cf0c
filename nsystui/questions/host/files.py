"""Which files OS runtime calls read and write, where that is recorded (docs/numbers.md#gaps)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import commonpath

import numpy as np
import sqlalchemy as sa

from nsystui.base.columns import Unit
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.conditions import job_end, job_start, where
from nsystui.questions.host.segments import NO_SEGMENTS, Segments, Thread, by_thread, outermost
from nsystui.store import tables
from nsystui.store.session import Session

_TID = (1 << 24) - 1


@dataclass(frozen=True, eq=False)
class Files:
    """The accesses of each thread, by report and the system's own number of it; their labels are places in the rest."""

    threads: Mapping[Thread, Segments] = field(default_factory=dict)
    paths: Sequence[str] = ()
    sizes: Sequence[int] = ()

    def accessed(self, thread: Thread, when: Intervals) -> str:
        """``/data/a.tar, 12 MiB``, ``1,204 files in /data, 1.3 GiB``: those accessed within ``when``, and the bytes.

        Of an access that begins or ends outside all bytes count; one of a file that is not known does not.
        """
        own = self.threads.get((thread[0], thread[1] & _TID), NO_SEGMENTS).within(when)
        rows = [row for row in np.unique(own.labels).tolist() if self.paths[row]]
        paths = sorted({self.paths[row] for row in rows})
        if not paths:
            return ""
        if len(paths) == 1:
            words = paths[0]
        else:
            is_tree = len({path.startswith("/") for path in paths}) == 1
            folder = commonpath(paths) if is_tree else ""
            words = f"{len(paths):,} files" + (f" in {folder}" if folder else "")
        size = sum(self.sizes[row] for row in rows)
        return f"{words}, {format_value(Unit.BYTES, size)}" if size else words


def files_of(session: Session, selection: Selection) -> Files:
    """The accesses in the window of a selection."""
    table, names = tables.file_accesses, tables.files
    if not session.count(table):
        return Files()
    columns = table.c
    path = sa.select(names.c.report, names.c.file, sa.func.min(names.c.path).label("path"))
    known = path.group_by(names.c.report, names.c.file).subquery("known")
    query = sa.select(
        columns.report,
        columns.tid.label("thread"),
        job_start(table).label("start"),
        job_end(table).label("end"),
        sa.func.coalesce(known.c.path, "").label("path"),
        sa.func.coalesce(columns.bytes, 0).label("bytes"),
    ).outerjoin_from(table, known, sa.and_(known.c.report == columns.report, known.c.file == columns.file))
    found = session.arrays(query.where(*where(table, selection.with_name(None))))
    threads = {key: outermost(found["start"][rows], found["end"][rows], rows) for key, rows in by_thread(found).items()}
    return Files(threads, [str(one) for one in found["path"]], found["bytes"].tolist())
