"""MPI calls as ``nsys stats`` has them (docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import DURATION, END, NAME, RANK, START, Column, Unit
from nsystui.base.selection import Selection
from nsystui.base.units import MEGABYTE
from nsystui.exports.identifiers import pid_column, tid_column
from nsystui.questions import statistics
from nsystui.questions.missing import absent_note
from nsystui.questions.paged import PagedAnswer
from nsystui.questions.stats.report import Ask, Options
from nsystui.questions.where import duration, job_start, where
from nsystui.store import tables
from nsystui.store.session import Session

_CALLS, _RANKS = tables.mpi_calls, tables.mpi_ranks
_COLLECTIVE, _P2P = "collective", "p2p"
# The words of nsys for the types of calls, where they are not ours.
_SOURCES = {_COLLECTIVE: "collectives", "wait": "start-wait"}

_SUM_COLUMNS = (
    *statistics.duration_columns("Instances"),
    Column("source", header="Source", label="source", importance=1),
    NAME,
)
_TRACE_COLUMNS = (
    START,
    END.with_importance(4),
    DURATION,
    Column("event", header="Event", label="event"),
    Column("pid", header="Pid", label="pid", unit=Unit.NUMBER, importance=3),
    Column("tid", header="Tid", label="tid", unit=Unit.NUMBER, importance=3),
    Column("tag", header="Tag", label="tag", unit=Unit.NUMBER, importance=2),
    RANK,
    Column("peer", header="PeerRank", label="peer", unit=Unit.NUMBER, importance=1),
    Column("root", header="RootRank", label="root", unit=Unit.NUMBER, importance=1),
    Column("size", header="Size (MB)", label="size MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
    Column("send_size", header="CollSendSize (MB)", label="sent MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
    Column("recv_size", header="CollRecvSize (MB)", label="received MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
)


def _summary(session: Session, selection: Selection, _: Options) -> TableAnswer:
    """``mpi_event_sum``: statistics of durations by name and source.

    A call that never returned counts as an instance and has no duration: the statistics are of those that have one.
    """
    keys = [sa.case(_SOURCES, value=_CALLS.c.call_type, else_=_CALLS.c.call_type).label("source")]
    keys.append(_CALLS.c.name.label("name"))
    conditions = where(_CALLS, selection, _CALLS.c.name)
    frame = session.frame(statistics.summary(_CALLS, duration(_CALLS), keys, conditions))
    # Where not one call has a duration its share and its deviation are unknown, and not 0.
    frame.loc[frame["total"].isna(), ["share", "stddev"]] = float("nan")
    total = session.scalar(sa.select(sa.func.count()).select_from(sa.select(*keys).distinct().subquery()))
    return TableAnswer.of_frame("mpi-events", _SUM_COLUMNS, frame, int(total), _notes(session))


def _trace(session: Session, selection: Selection, _: Options) -> PagedAnswer:
    """``mpi_event_trace``: every call with its rank and its partner, by start in job time.

    Sizes are in MB of 10⁶ bytes with three decimals, which is how nsys prints sizes elsewhere: UNVERIFIED here.
    """
    conditions = where(_CALLS, selection, _CALLS.c.name)
    ranks = _ranks()
    is_same = sa.and_(ranks.c.report == _CALLS.c.report, ranks.c.thread == _CALLS.c.thread)
    query = (
        sa.select(
            job_start(_CALLS).label("start"),
            (_CALLS.c.end + _CALLS.c.clock_offset).label("end"),
            duration(_CALLS).label("duration"),
            _CALLS.c.name.label("event"),
            pid_column(_CALLS.c.process).label("pid"),
            tid_column(_CALLS.c.thread).label("tid"),
            _CALLS.c.tag,
            ranks.c.rank,
            _CALLS.c.remote_rank.label("peer"),
            _CALLS.c.root_rank.label("root"),
            _megabytes(_P2P, _CALLS.c.send_bytes).label("size"),
            _megabytes(_COLLECTIVE, _CALLS.c.send_bytes).label("send_size"),
            _megabytes(_COLLECTIVE, _CALLS.c.recv_bytes).label("recv_size"),
            _CALLS.c.report,
            _CALLS.c.row,
        )
        .select_from(_CALLS.outerjoin(ranks, is_same))
        .where(*conditions)
    )
    return PagedAnswer.of(
        session,
        "mpi-calls",
        _TRACE_COLUMNS,
        query,
        sa.select(sa.func.count()).select_from(_CALLS).where(*conditions),
        sa.select(sa.func.count()).select_from(_CALLS),
        ("start", False),
        ("report", "row"),
        _notes(session),
    )


def _ranks() -> sa.Subquery[Any]:
    """The rank of each thread of a report, unknown where it has several; one row each, so that no call doubles."""
    lowest, highest = sa.func.min(_RANKS.c.rank), sa.func.max(_RANKS.c.rank)
    rank = sa.case((lowest == highest, lowest)).label("rank")
    return sa.select(_RANKS.c.report, _RANKS.c.thread, rank).group_by(_RANKS.c.report, _RANKS.c.thread).subquery()


def _megabytes(call_type: str, size: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """``size`` in MB for calls of one type; the others have none of that meaning."""
    return sa.case((_CALLS.c.call_type == call_type, sa.cast(size, sa.Double) / MEGABYTE))


def _notes(session: Session) -> tuple[str, ...]:
    note = absent_note(session, _CALLS)
    return (note,) if note else ()


ASK: dict[str, Ask] = {
    "mpi_event_sum": _summary,
    "mpi_event_trace": _trace,
}
