"""The host's reports of ``nsys stats``: OS runtime, OpenACC, OpenMP, MPI and the network.

See docs/numbers.md#nsys-stats.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import DURATION, END, NAME, RANK, START, Column, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.types import Expression, Labelled
from nsystui.base.units import MEGABYTE
from nsystui.exports.metadata import pid_column, tid_column
from nsystui.questions.kernels.activities import OS, work_summary
from nsystui.questions.queries import statistics
from nsystui.questions.queries.conditions import duration, job_end, job_start, where
from nsystui.questions.queries.data_notes import absent_notes
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.queries.statistics import ValueRows
from nsystui.questions.stats.report import AskReport, ReportOptions
from nsystui.store import tables
from nsystui.store.session import Session


def _openmp(session: Session, selection: Selection, _: ReportOptions) -> TableAnswer:
    """Answer ``openmp_sum``, by name and a hidden kind, because nsys sums each native table separately."""
    table = tables.openmp_events
    keys = [table.c.kind.label("kind"), table.c.name.label("name")]
    return _events(session, selection, table, keys, "openmp", "Count")


def _openacc(session: Session, selection: Selection, _: ReportOptions) -> TableAnswer:
    """Answer ``openacc_sum``, by name over all kinds."""
    table = tables.openacc_events
    return _events(session, selection, table, [table.c.name.label("name")], "openacc", "Num Calls")


def _events(
    session: Session, selection: Selection, table: sa.Table, keys: Sequence[Labelled], name: str, count: str
) -> TableAnswer:
    columns = (*statistics.duration_columns(count), NAME)
    conditions = where(table, selection, table.c.name)
    rows = statistics.summary_rows(session, ValueRows(table, duration(table), keys, conditions), columns)
    total = statistics.number_of_groups(session, sa.select(*keys))
    return TableAnswer(name, columns, rows, total, absent_notes(session, table))


_MPI_CALLS, _MPI_RANKS = tables.mpi_calls, tables.mpi_ranks
_COLLECTIVE, _P2P = "collective", "p2p"
# nsys's words for the types of calls, if they differ from ours.
_MPI_SOURCES = {_COLLECTIVE: "collectives", "wait": "start-wait"}

_MPI_SUM_COLUMNS = (
    *statistics.duration_columns("Instances"), Column("source", header="Source", label="source", importance=1), NAME,
)  # fmt: skip
_MPI_TRACE_COLUMNS = (
    START, END.with_importance(4), DURATION, Column("event", header="Event", label="event"),
    Column("pid", header="Pid", label="pid", unit=Unit.NUMBER, importance=3),
    Column("tid", header="Tid", label="tid", unit=Unit.NUMBER, importance=3),
    Column("tag", header="Tag", label="tag", unit=Unit.NUMBER, importance=2), RANK,
    Column("peer", header="PeerRank", label="peer", unit=Unit.NUMBER, importance=1),
    Column("root", header="RootRank", label="root", unit=Unit.NUMBER, importance=1),
    Column("size", header="Size (MB)", label="size MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
    Column("send_size", header="CollSendSize (MB)", label="sent MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
    Column("recv_size", header="CollRecvSize (MB)", label="received MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
)  # fmt: skip


def _mpi_summary(session: Session, selection: Selection, _: ReportOptions) -> TableAnswer:
    """Answer ``mpi_event_sum``: statistics of durations by name and source.

    A call that never returned counts as an instance; the statistics are over calls with a duration.
    """
    keys = [sa.case(_MPI_SOURCES, value=_MPI_CALLS.c.call_type, else_=_MPI_CALLS.c.call_type).label("source")]
    keys.append(_MPI_CALLS.c.name.label("name"))
    calls = ValueRows(_MPI_CALLS, duration(_MPI_CALLS), keys, where(_MPI_CALLS, selection, _MPI_CALLS.c.name))
    frame = statistics.summary_frame(session, calls, _MPI_SUM_COLUMNS)
    # If no call has a duration, share and deviation are unknown, not 0.
    frame.loc[frame["total"].isna(), ["share", "stddev"]] = float("nan")
    total = statistics.number_of_groups(session, sa.select(*keys))
    return TableAnswer.of_arrays("mpi-events", _MPI_SUM_COLUMNS, frame, total, absent_notes(session, _MPI_CALLS))


def _mpi_trace(session: Session, selection: Selection, _: ReportOptions) -> PagedAnswer:
    """Answer ``mpi_event_trace``: all calls with their rank and partner, by start in job time.

    Sizes are in MB of 10⁶ bytes with three decimals, as nsys prints sizes elsewhere: UNVERIFIED here.
    """
    ranks = _mpi_ranks()
    is_same = sa.and_(ranks.c.report == _MPI_CALLS.c.report, ranks.c.thread == _MPI_CALLS.c.thread)
    columns = _MPI_CALLS.c
    thread = pid_column(columns.process).label("pid"), tid_column(columns.thread).label("tid")
    peers = ranks.c.rank, columns.remote_rank.label("peer"), columns.root_rank.label("root")
    sent, received = (_megabytes(_COLLECTIVE, size) for size in (columns.send_bytes, columns.recv_bytes))
    size = _megabytes(_P2P, columns.send_bytes).label("size")
    sizes = size, sent.label("send_size"), received.label("recv_size")
    call = *_times(_MPI_CALLS), columns.name.label("event"), *thread, columns.tag, *peers, *sizes
    query = sa.select(*call, columns.report, columns.row).select_from(_MPI_CALLS.outerjoin(ranks, is_same))
    query = query.where(*where(_MPI_CALLS, selection, columns.name))
    everything, notes = sa.select(columns.row), absent_notes(session, _MPI_CALLS)
    return PagedAnswer.of(session, "mpi-calls", _MPI_TRACE_COLUMNS, query, everything, notes)


def _times(table: sa.Table) -> tuple[Expression, ...]:
    return job_start(table).label("start"), job_end(table).label("end"), duration(table).label("duration")


def _mpi_ranks() -> sa.Subquery[Any]:
    """Select each thread's rank, NULL if ambiguous, in one row, so that the join never doubles a call."""
    lowest, highest = sa.func.min(_MPI_RANKS.c.rank), sa.func.max(_MPI_RANKS.c.rank)
    keys, rank = (_MPI_RANKS.c.report, _MPI_RANKS.c.thread), sa.case((lowest == highest, lowest)).label("rank")
    return sa.select(*keys, rank).group_by(*keys).subquery()


def _megabytes(call_type: str, size: Expression) -> Expression:
    """Return MB for calls of one type, ``NULL`` for other types."""
    return sa.case((_MPI_CALLS.c.call_type == call_type, sa.cast(size, sa.Double) / MEGABYTE))


_SEND_WAITS = "IB: Send waits"
_SAMPLES, _ADAPTERS = tables.nic_metrics, tables.nic_devices

_CONGESTION_COLUMNS = (
    START, END.with_importance(2), DURATION.with_importance(1),
    Column("send_waits", header="Send wait rate", label="send waits/ms", unit=Unit.TICK_RATE),
    Column("guid", header="GUID", label="guid", importance=1), Column("device", header="Name", label="device"),
)  # fmt: skip


def _congestion(session: Session, selection: Selection, options: ReportOptions) -> PagedAnswer:
    """Answer ``network_congestion``: samples with more send waits (ticks/ms) than the threshold, by start in job time.

    The GUID is an unsigned hexadecimal number; switches have no name. UNVERIFIED: header and GUID follow nsys's
    documentation.
    """
    is_waiting = _SAMPLES.c.metric == _SEND_WAITS
    conditions = [*where(_SAMPLES, selection, _SAMPLES.c.metric), is_waiting]
    columns = _ADAPTERS.c
    first = [sa.func.min(column).label(column.name) for column in (columns.guid, columns.name)]
    adapters = sa.select(columns.report, columns.nic, *first).group_by(columns.report, columns.nic).subquery()
    is_sampled = sa.and_(
        adapters.c.report == _SAMPLES.c.report, adapters.c.nic == _SAMPLES.c.nic, _SAMPLES.c.is_switch == 0
    )
    guid = sa.case((_SAMPLES.c.is_switch == 1, _SAMPLES.c.nic), else_=adapters.c.guid)
    hexadecimal = (sa.literal("0x", sa.Text) + sa.func.to_hex(guid, type_=sa.Text)).label("guid")
    sample = *_times(_SAMPLES), _SAMPLES.c.value.label("send_waits"), hexadecimal, adapters.c.name.label("device")
    query = sa.select(*sample, _SAMPLES.c.report, _SAMPLES.c.row).select_from(_SAMPLES.outerjoin(adapters, is_sampled))
    query = query.where(*conditions, _SAMPLES.c.value > options.ticks_threshold)
    everything, notes = sa.select(_SAMPLES.c.row).where(is_waiting), absent_notes(session, _SAMPLES)
    return PagedAnswer.of(session, "network-congestion", _CONGESTION_COLUMNS, query, everything, notes)


ASK: dict[str, AskReport] = {
    "mpi_event_sum": _mpi_summary,
    "mpi_event_trace": _mpi_trace,
    "network_congestion": _congestion,
    "openacc_sum": _openacc,
    "openmp_sum": _openmp,
    "osrt_sum": lambda session, selection, _: work_summary(session, selection, OS),
}
