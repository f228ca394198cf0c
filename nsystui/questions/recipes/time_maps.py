"""When each GPU was busy, and with what."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsystui.base.columns import Column, Unit
from nsystui.base.selection import Selection, Window
from nsystui.questions.device_time import DeviceIntervals
from nsystui.questions.job import Job
from nsystui.questions.recipes.asking import RANK, Draw, Options
from nsystui.questions.recipes.maps import Figure, MapLine, RecipeMap, clock_notes, percent, window_of
from nsystui.questions.utilisation import recording_notes

DEVICE = Column("device", header="Device", label="dev", unit=Unit.NUMBER)

_BUSY = (
    percent("busy_percent", "Busy", "busy"),
    percent("all_percent", "All Kernels", "all kernels", "compute"),
    percent("memory_percent", "Memory", "memory", "memory"),
    percent("graph_percent", "Graph", "graph", "graph"),
)
_NCCL = (
    percent("all_percent", "All Kernels", "all kernels"),
    percent("nccl_percent", "NCCL", "NCCL", "nccl"),
    percent("compute_percent", "Compute", "compute", "compute"),
)
# The lanes of `DeviceLanes` whose shares add up to a figure: they have no point in common.
_LANES = {
    "busy_percent": ("busy",),
    "memory_percent": ("memory",),
    "graph_percent": ("graph",),
    "all_percent": ("kernels", "exposed_nccl"),
    "nccl_percent": ("nccl",),
    "compute_percent": ("kernels",),
}


def _map(name: str, figures: tuple[Figure, ...]) -> Draw:
    def drawn(job: Job, selection: Selection, options: Options) -> RecipeMap:
        busy, window = job.busy(selection), window_of(job, selection)
        several = {item.device.task.task for item in busy.devices if len(item.device.task.devices) > 1}
        lines = []
        for item in busy.devices:
            place = item.device
            label = f"rank {place.task.rank}" + (f" d{place.device}" if place.task.task in several else "")
            values = np.stack([_share(item, figure, window, options.bins) for figure in figures])
            lines.append(MapLine((place.task.rank, place.device), label, values))
        recording = recording_notes(busy, window) if busy.shares_clock else ()
        notes = (*busy.notes, *clock_notes(job, selection), *recording)
        return RecipeMap(name, window, options.bins, (RANK, DEVICE), figures, tuple(lines), notes)

    return drawn


def _share(item: DeviceIntervals, figure: Figure, window: Window, bins: int) -> NDArray[np.float64]:
    lanes = [item.share(lane, window, bins) for lane in _LANES[figure.column.key]]
    shares: NDArray[np.float64] = 100.0 * np.minimum(np.sum(lanes, axis=0), 1.0)
    return shares


MAPS: dict[str, Draw] = {
    "cuda_gpu_time_util_map": _map("gpu-time", _BUSY),
    "nccl_gpu_time_util_map": _map("nccl-gpu-time", _NCCL),
}
