"""The efficiency of the host: the time of the processes outside of MPI and of the GPU's runtime.

See docs/numbers.md#host-efficiency.

With T the window and P the processes that used a GPU::

    OutsideMPI_i = T − |U(MPI calls of process i)|
    UsefulHost_i = T − |U(MPI calls) ∪ U(CUDA runtime and driver calls)|

    MPI parallel efficiency   = Σ OutsideMPI_i / (P·T)   = MPI load balance × MPI communication efficiency
    MPI load balance          = (Σ OutsideMPI_i / P) / max OutsideMPI_i
    MPI communication eff.    = max OutsideMPI_i / T
    device offload efficiency = Σ UsefulHost_i / Σ OutsideMPI_i
    host parallel efficiency  = Σ UsefulHost_i / (P·T)   = MPI parallel × device offload

A process is in a call while any of its threads is (one union): if PyTorch starts the backward pass from another thread
while the main thread waits, the process is launching. All time outside of these calls counts as useful: UsefulHost is
an upper bound, as basicanalysis notes for nsys data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Array, Condition
from nsystui.questions.algebra.intervals import Intervals, intervals_at, put_intervals, subtract
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.mpi import is_mpi_range
from nsystui.questions.queries.process_rows import times_by_task
from nsystui.questions.queries.tasks import RankedTask, selected_ranks
from nsystui.questions.queries.time_window import recorded
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session


@dataclass(frozen=True, eq=False)
class HostCalls:
    r"""The calls of a process in job time; ``None`` if its report has no such calls at all.

    ``mpi`` is U(MPI calls), ``cuda_outside_mpi`` U(CUDA calls) \ U(MPI calls), and ``ucx`` U(UCX calls), which MPI may
    make.
    """

    task: RankedTask
    mpi: Intervals | None
    cuda_outside_mpi: Intervals | None
    ucx: Intervals | None = None


def host_calls(session: Session, selection: Selection, ranks: Sequence[RankedTask]) -> list[HostCalls]:
    """Return the calls of the selected processes that used a GPU, by rank. Reads all CUDA calls once per report.

    MPI calls are nsys's MPI trace, or NVTX ranges of the domain ``MPI``, which nsys wrote instead until 2022.
    """
    tasks = [item for item in selected_ranks(ranks, selection) if item.devices]
    indices = {item.task.report for item in tasks}
    reports = {report.index: report for report in session.reports if report.index in indices}
    arrays = of_each_report(
        session, reports.values(), "host-calls", _computed, table=tables.api_calls, activity="calls of the CPU"
    )
    offsets = {index: report.clock_offset for index, report in reports.items()}
    return [_calls_of(item, arrays[item.task.report], offsets[item.task.report]) for item in tasks]


def _calls_of(task: RankedTask, arrays: Arrays, offset: int) -> HostCalls:
    def part(name: str) -> Intervals | None:
        key = f"{task.task.process}.{name}"
        return next(intervals_at(arrays, key)).shifted(offset) if f"{key}.firsts" in arrays else None

    return HostCalls(task, part("mpi"), part("cuda"), part("ucx"))


def _computed(session: Session, reports: Sequence[Report]) -> Mapping[int, Arrays]:
    """Return the intervals of MPI, UCX, and CUDA calls outside of MPI by process, on each report's clock."""
    mpi = _merged(session, tables.mpi_calls, reports)
    traced = {task.report for task in mpi}
    ranges = is_mpi_range(), tables.nvtx_ranges.c.end.is_not(None)
    mpi |= _merged(session, tables.nvtx_ranges, [item for item in reports if item.index not in traced], *ranges)
    cuda = _merged(session, tables.api_calls, reports)
    cuda = {task: subtract(calls, mpi[task]) if task in mpi else calls for task, calls in cuda.items()}
    arrays: dict[int, dict[str, Array]] = {report.index: {} for report in reports}
    for name, calls_by_task in (("ucx", _merged(session, tables.ucx_calls, reports)), ("mpi", mpi), ("cuda", cuda)):
        for task, calls in calls_by_task.items():
            put_intervals(arrays[task.report], f"{task.process}.{name}", calls)
    return arrays


def _merged(session: Session, table: sa.Table, reports: Iterable[Report], *more: Condition) -> dict[Task, Intervals]:
    """Return the time in calls of each process; calls that never returned end with the session."""
    ends = {report.index: recorded(report).end - report.clock_offset for report in reports if report.count(table)}
    if not ends:
        return {}
    columns = table.c
    end = sa.func.coalesce(columns.end, sa.case(ends, value=columns.report), type_=sa.BigInteger).label("end")
    is_placed = of_reports(columns.report, ends), columns.process.is_not(None), columns.start.is_not(None)
    query = sa.select(columns.report, columns.process, columns.start, end).where(*is_placed, *more)
    return times_by_task(session, query)


def ratio(part: int, whole: int) -> float:
    """Return ``part / whole``, or 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class HostTime:
    """The ``time`` of a process (the window) by use, ns: ``mpi + cuda + useful == time``.

    ``cuda`` is the time in CUDA calls outside of MPI. ``mpi`` is ``None`` without traced MPI calls, ``cuda`` and
    ``useful`` without traced CUDA calls.
    """

    task: RankedTask
    time: int
    mpi: int | None
    cuda: int | None

    @property
    def outside_mpi(self) -> int:
        return self.time - (self.mpi or 0)

    @property
    def useful(self) -> int | None:
        return None if self.cuda is None else self.outside_mpi - self.cuda


@dataclass(frozen=True)
class HostEfficiency:
    """The factors, each from 0 to 1; ``None`` unless its calls were recorded for every process."""

    processes: tuple[HostTime, ...]
    mpi_load_balance: float | None
    mpi_communication: float | None
    mpi_parallel: float | None
    offload: float | None
    parallel: float | None

    @classmethod
    def of(cls, processes: Sequence[HostTime]) -> HostEfficiency:
        """Return the efficiency of processes over one window."""
        outside = [process.outside_mpi for process in processes]
        time = processes[0].time if processes else 0
        longest, total, count = max(outside, default=0), sum(outside), len(processes)
        has_mpi = bool(processes) and all(process.mpi is not None for process in processes)
        useful = [process.useful for process in processes if process.useful is not None]
        has_cuda = bool(processes) and len(useful) == count
        return cls(
            tuple(processes),
            mpi_load_balance=ratio(total, count * longest) if has_mpi else None,
            mpi_communication=ratio(longest, time) if has_mpi else None,
            mpi_parallel=ratio(total, count * time) if has_mpi else None,
            offload=ratio(sum(useful), total) if has_cuda else None,
            parallel=ratio(sum(useful), count * time) if has_cuda else None,
        )


def host_times(calls: Sequence[HostCalls], window: Window, pauses: Mapping[int, Intervals]) -> list[HostTime]:
    """Return each process's time in ``window`` by use, without its report's ``pauses``."""
    lo, hi = window.start, window.end

    def within(times: Intervals | None) -> int | None:
        return None if times is None else times.length_within(lo, hi)

    recorded = {report: hi - lo - paused.length_within(lo, hi) for report, paused in pauses.items()}
    return [
        HostTime(of.task, recorded[of.task.task.report], within(of.mpi), within(of.cuda_outside_mpi)) for of in calls
    ]
