"""The GPUs of a job, each once: processes that share one count together (docs/numbers.md#device-efficiency)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from nsystui.base.selection import Window
from nsystui.questions.algebra.interval_blocks import BlockBuilder, IntervalBlocks, slices
from nsystui.questions.algebra.intervals import merge
from nsystui.questions.device_time import BusyParts, Device, DeviceIntervals
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
        if _told(reports[device.task.task.report], device) is None:
            place = (device.task.host, device.device)
            if place in seen:
                return True
            seen.add(place)
    return False


def _told(report: Report, device: Device) -> int | None:
    """The machine's number of the GPU, where the export says it of this very process."""
    known = report.metadata.cuda_devices
    return next((one.gpu for one in known if (one.pid, one.device) == (device.task.pid, device.device)), None)


def _key(report: Report, device: Device) -> Hashable:
    """The same for the same GPU."""
    number = _told(report, device)
    if number is None:
        return (device.task.task, device.device)
    uuid = next((gpu.uuid for gpu in report.metadata.gpus if gpu.gpu == number), "")
    return uuid or (device.task.host or report.index, number)


def _together(same: Sequence[DeviceIntervals]) -> DeviceIntervals:
    """The work of several processes on one GPU, as that of one."""
    if len(same) == 1:
        return same[0]
    names = ("kernels", "nccl", "memory", "graph")
    parts = BusyParts.of(*(_union([getattr(item.parts, name) for item in same]) for name in names))
    start, end = min(item.recorded.start for item in same), max(item.recorded.end for item in same)
    return replace(same[0], recorded=Window(start, end), parts=parts)


def _union(sets: Sequence[IntervalBlocks]) -> IntervalBlocks:
    builder = BlockBuilder()
    for parts in slices(sets):
        builder.append(merge(*parts))
    return builder.blocks()
