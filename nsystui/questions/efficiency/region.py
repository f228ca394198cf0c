"""MFU and arithmetic intensity of a region: the NVTX ranges of a name, whose FLOPs the user gives.

    MFU = FLOPs of a range / its GPU time / GPUs / peak        (docs/numbers.md#mfu)
    intensity = FLOPs of all ranges / bytes that DRAM read and wrote in their GPU time

The GPU time of a range is from the first operation that was launched in it to the end of the last. DRAM metrics are
shares of the bandwidth that the export names for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.text import few, safe_text
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.efficiency.mfu import Mfu, MfuRequest, peak_of
from nsystui.questions.gpu.device_time import Device, DeviceIntervals
from nsystui.questions.gpu.metrics import attributed, metric_sources, samples_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables

_DRAM = ("DRAM read", "DRAM write")


def mfu_of_region(
    job: OpenJob, selection: Selection, window: Window, gpus: Sequence[DeviceIntervals], request: MfuRequest
) -> Mfu:
    """Compute the MFU of the ranges of `MfuRequest.region` in ``window``: of the median of their GPU time."""
    ranges = job.nvtx_ranges(selection.with_name(None).with_window(window))
    wanted = NameFilter(request.region or "")
    is_named = np.array([*map(wanted.matches, ranges.names), False])
    rows = np.flatnonzero(is_named[ranges.name] & (ranges.op_count > 0))
    peak, peak_note = peak_of(request, gpus)
    notes = [f"GPUs that share a range: {request.gpus or 1} (--gpus N)", peak_note]
    if not len(rows):
        notes.append(f"no MFU: no NVTX range that matches {safe_text(wanted.text)} launched GPU work")
        return Mfu(request, None, 0, request.gpus or 1, peak, None, tuple(notes))
    names = sorted({ranges.names[number] for number in ranges.values("name", rows).tolist()})
    notes.insert(0, f"of the NVTX ranges {few(names)}: range time is the median of their GPU time")
    moved = _bytes_moved(job, [device for gpu in gpus for device in gpu.devices], ranges, rows)
    intensity = None if not moved else request.flops_per_step * len(rows) / moved
    if intensity is None:
        lacking = missing_note(job.session, tables.gpu_metrics) or "not all GPUs have DRAM metrics and a bandwidth"
        notes.append(f"no arithmetic intensity: {lacking}")
    time = float(np.median(ranges.values("gpu_length", rows)))
    return Mfu(request, time, len(rows), request.gpus or 1, peak, None, tuple(notes), intensity)


def _bytes_moved(job: OpenJob, devices: Sequence[Device], ranges: NvtxRanges, rows: Times) -> float | None:
    """The bytes that DRAM moved in the GPU time of some ranges; ``None`` where those of any range are not known."""
    lanes = [Task(lane.report, lane.process) for lane in ranges.lanes]
    lane, starts = ranges.lane[rows], ranges.values("gpu_start", rows)
    ends = starts + ranges.values("gpu_length", rows)
    is_known, moved = np.zeros(len(rows), np.bool_), 0.0
    sources = metric_sources(job.session, Selection())
    for device in devices:
        task = device.task.task
        described = {one.gpu: one for one in report_at(job.session, task.report).metadata.gpus}
        bandwidth = described[device.gpu].memory_bandwidth if device.gpu in described else None
        place = (task.report, device.gpu)
        own = [one for one in sources if (one.report, one.gpu) == place and one.family in _DRAM]
        chosen = np.array([one == task for one in lanes])[lane]
        if len({one.family for one in own}) < len(_DRAM) or not bandwidth or not chosen.any():
            continue
        for time, percent in attributed(next(samples_of(job.session, own), []), starts[chosen], ends[chosen]):
            if not time.sum():
                return None
            moved += float(percent.sum() / time.sum()) / 100 * bandwidth * float((ends - starts)[chosen].sum()) / 1e9
        is_known |= chosen
    return moved if is_known.all() else None
