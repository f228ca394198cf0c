"""The efficiency of the host: what the processes did beside waiting for MPI and for the GPU's runtime.

See docs/numbers.md#host-efficiency.

With T the window and P the processes that used a GPU::

    OutsideMPI_i = T − |U(MPI calls of process i)|
    UsefulHost_i = T − |U(MPI calls) ∪ U(CUDA runtime and driver calls)|

    MPI parallel efficiency   = Σ OutsideMPI_i / (P·T)   = MPI load balance × MPI communication efficiency
    MPI load balance          = (Σ OutsideMPI_i / P) / max OutsideMPI_i
    MPI communication eff.    = max OutsideMPI_i / T
    device offload efficiency = Σ UsefulHost_i / Σ OutsideMPI_i
    host parallel efficiency  = Σ UsefulHost_i / (P·T)   = MPI parallel × device offload

A process is in a call while any of its threads is: the calls of all threads are one union. So in PyTorch, where another
thread launches the backward pass while the main one waits, the process counts as launching. Time outside of these
calls counts as useful whatever the process did then: UsefulHost is an upper bound, as basicanalysis says of nsys data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsystui.base.selection import Window
from nsystui.questions.efficiency.device import ratio
from nsystui.questions.efficiency.host_calls import HostCalls
from nsystui.questions.tasks import RankedTask


@dataclass(frozen=True)
class HostTime:
    """How one process spent ``time`` (the window), ns: ``mpi + cuda + useful == time``.

    ``cuda`` is the time in CUDA calls outside of MPI. ``mpi`` is ``None`` where MPI was not traced, ``cuda`` and
    ``useful`` where no CUDA calls were.
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
    """The factors, each from 0 to 1; ``None`` where the calls that it is made of were not recorded of every process."""

    processes: tuple[HostTime, ...]
    mpi_load_balance: float | None
    mpi_communication: float | None
    mpi_parallel: float | None
    offload: float | None
    parallel: float | None

    @classmethod
    def of(cls, processes: Sequence[HostTime]) -> HostEfficiency:
        """Of processes that were all looked at over the same window."""
        outside = [one.outside_mpi for one in processes]
        time = processes[0].time if processes else 0
        most, total, count = max(outside, default=0), sum(outside), len(processes)
        has_mpi = bool(processes) and all(one.mpi is not None for one in processes)
        useful = [one.useful for one in processes if one.useful is not None]
        has_cuda = bool(processes) and len(useful) == count
        return cls(
            tuple(processes),
            mpi_load_balance=ratio(total, count * most) if has_mpi else None,
            mpi_communication=ratio(most, time) if has_mpi else None,
            mpi_parallel=ratio(total, count * time) if has_mpi else None,
            offload=ratio(sum(useful), total) if has_cuda else None,
            parallel=ratio(sum(useful), count * time) if has_cuda else None,
        )


def host_times(calls: Sequence[HostCalls], window: Window) -> list[HostTime]:
    """How the processes of ``calls`` spent ``window``."""
    lo, hi = window.start, window.end
    return [
        HostTime(
            one.task,
            hi - lo,
            None if one.mpi is None else one.mpi.length_within(lo, hi),
            None if one.cuda_outside_mpi is None else one.cuda_outside_mpi.length_within(lo, hi),
        )
        for one in calls
    ]
