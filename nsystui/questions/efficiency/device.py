"""The efficiency of the GPUs: the useful part of their time, and the losses to which the rest belongs.

See docs/numbers.md#device-efficiency.

With Useful_d the useful time of device d, Moved_d the time of its communication that nothing useful hides, T the
window and D the number of devices::

    parallel efficiency      = Σ Useful_d / (D·T)   = load balance × communication × orchestration
    load balance             = (Σ Useful_d / D) / max Useful_d
    communication efficiency = max Useful_d / max (Useful_d + Moved_d)      (two independent maxima)
    orchestration efficiency = max (Useful_d + Moved_d) / T

A factor with nothing to divide by is 0, as in DLB. What counts as useful is a choice: see ``Useful``. Whole CUDA graphs
count as useful, whatever ran in them. Useful_d + Moved_d is the device's busy time under either choice.

A GPU that several processes share counts once (`gpus_of`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nsystui.base.selection import Window
from nsystui.questions.algebra.interval_blocks import combined
from nsystui.questions.algebra.intervals import merge
from nsystui.questions.gpu.device_time import Breakdown, BusyParts, Device, DeviceIntervals
from nsystui.store.report import Report
from nsystui.store.session import Session


@dataclass(frozen=True, eq=False)
class Gpu:
    """One GPU: ``devices`` are what the processes that used it call it, ``intervals`` the work of all of them."""

    devices: tuple[Device, ...]
    intervals: DeviceIntervals

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(device.task.rank for device in self.devices))

    @property
    def model(self) -> str | None:
        return self.devices[0].model


def gpus_of(session: Session, devices: Iterable[DeviceIntervals]) -> tuple[Gpu, ...]:
    """The GPUs behind ``devices``, in their order.

    Two processes share a GPU where their exports name the same one for both (since schema 3.20). The CUDA ordinal alone
    says nothing: under CUDA_VISIBLE_DEVICES it is 0 in every process.
    """
    reports = {report.index: report for report in session.reports}
    found: dict[Hashable, list[DeviceIntervals]] = {}
    for item in devices:
        found.setdefault(_key(reports[item.device.task.task.report], item.device), []).append(item)
    return tuple(Gpu(tuple(item.device for item in same), _together(same)) for same in found.values())


def unplaced(session: Session, gpus: Sequence[Gpu]) -> bool:
    """Whether some of ``gpus`` could be one and the same for all that the exports say: same host and ordinal."""
    reports = {report.index: report for report in session.reports}
    seen = set()
    for gpu in gpus:
        device = gpu.devices[0]
        if _recorded_gpu(reports[device.task.task.report], device) is None:
            place = (device.task.host, device.device)
            if place in seen:
                return True
            seen.add(place)
    return False


def _recorded_gpu(report: Report, device: Device) -> int | None:
    """The machine's number of the GPU, where the export says it of this very process."""
    known = report.metadata.cuda_devices
    return next((one.gpu for one in known if (one.pid, one.device) == (device.task.pid, device.device)), None)


def _key(report: Report, device: Device) -> Hashable:
    """The identity of a GPU: equal for devices that are the same one."""
    number = _recorded_gpu(report, device)
    if number is None:
        return (device.task.task, device.device)
    uuid = next((gpu.uuid for gpu in report.metadata.gpus if gpu.gpu == number), "")
    return uuid or (device.task.host or report.index, number)


def _together(same: Sequence[DeviceIntervals]) -> DeviceIntervals:
    """The work of several processes on one GPU, as that of one."""
    if len(same) == 1:
        return same[0]
    names = ("kernels", "nccl", "memory", "graph")
    parts = BusyParts.of(*(combined([getattr(item.parts, name) for item in same], merge) for name in names))
    start, end = min(item.recorded.start for item in same), max(item.recorded.end for item in same)
    return replace(same[0], recorded=Window(start, end), parts=parts)


class Useful(Enum):
    """The part of a GPU's time that counts as useful; the value is its name in a flag."""

    POP = "pop"
    """Kernels but NCCL's; NCCL kernels, copies and memsets are communication. BSC's basicanalysis, nsys2prv."""
    TALP = "talp"
    """Every kernel, NCCL's too; copies and memsets are communication. DLB/TALP while a program runs."""

    @property
    def words(self) -> str:
        """The definition, for a note."""
        if self is Useful.POP:
            return "useful (pop): kernels but NCCL's; NCCL kernels, copies and memsets are communication"
        return "useful (talp): every kernel, NCCL's too; copies and memsets are communication"

    def time(self, spent: Breakdown) -> int:
        """Useful_d, ns."""
        if self is Useful.POP:
            return spent.kernels + spent.exposed_graph
        return spent.kernels + spent.exposed_nccl + spent.graph_without_kernels

    def moved(self, spent: Breakdown) -> int:
        r"""Moved_d = |U(communication) \ U(useful)|, ns."""
        return spent.busy - self.time(spent)


@dataclass(frozen=True)
class DeviceEfficiency:
    """The factors, each from 0 to 1. ``useful`` is Σ Useful_d, ns."""

    devices: int
    time: int
    useful: int
    load_balance: float
    communication: float
    orchestration: float

    @property
    def parallel(self) -> float:
        """Σ Useful_d / (D·T); equal to the product of the three factors but for rounding."""
        return ratio(self.useful, self.devices * self.time)

    @classmethod
    def of(cls, spent: Sequence[Breakdown], useful: Useful) -> DeviceEfficiency:
        """The efficiency of devices over the same window; the factors of no device are 0."""
        times = [useful.time(one) for one in spent]
        busy = [one.busy for one in spent]
        total, most, longest = sum(times), max(times, default=0), max(busy, default=0)
        time = spent[0].time if spent else 0
        return cls(
            devices=len(spent),
            time=time,
            useful=total,
            load_balance=ratio(total, len(spent) * most),
            communication=ratio(most, longest),
            orchestration=ratio(longest, time),
        )


def ratio(part: int, whole: int) -> float:
    """``part / whole``; 0 where ``whole`` is 0."""
    return part / whole if whole else 0.0
