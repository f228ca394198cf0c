"""The single NVTX ranges of one name."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nsystui.base.columns import DURATION, PID, RANK, REPORT_ID, ROW_ID, START, TID, Column
from nsystui.base.selection import Selection
from nsystui.exports.identifiers import pid_column, tid_column
from nsystui.questions.kernels import rank_of
from nsystui.questions.nvtx.loading import LABEL, PUSH_POP_TYPES
from nsystui.questions.paged import PagedAnswer
from nsystui.questions.tasks import RankedTask
from nsystui.questions.where import duration, job_start, where
from nsystui.store import tables
from nsystui.store.session import Session

INSTANCE_COLUMNS = (
    START,
    DURATION,
    Column("style", header="Style", label="style", importance=2),
    RANK.with_importance(1),
    PID.with_importance(2),
    TID.with_importance(1),
    REPORT_ID,
    ROW_ID,
)


def range_instances(session: Session, selection: Selection, name: str, ranks: Sequence[RankedTask] = ()) -> PagedAnswer:
    """The ranges called ``name`` (``domain:text``), a page at a time; start in job time, ns.

    A range that was never closed has no duration.
    """
    table = tables.nvtx_ranges
    is_named = LABEL.in_([name])
    conditions = [*where(table, selection.with_name(None)), is_named, table.c.start.is_not(None)]
    query = sa.select(
        job_start(table).label("start"),
        duration(table).label("duration"),
        sa.case((table.c.event_type.in_(PUSH_POP_TYPES), "PushPop"), else_="StartEnd").label("style"),
        rank_of(table, ranks).label("rank"),
        pid_column(table.c.process).label("pid"),
        tid_column(table.c.thread).label("tid"),
        table.c.report,
        table.c.row,
    ).where(*conditions)
    count = sa.select(sa.func.count()).select_from(table).where(*conditions)
    everything = sa.select(sa.func.count()).select_from(table).where(is_named)
    return PagedAnswer.of(
        session, "nvtx-instances", INSTANCE_COLUMNS, query, count, everything, ("start", False), ("report", "row")
    ).in_time(table)
