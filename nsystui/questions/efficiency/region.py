"""MFU and arithmetic intensity of NVTX ranges of a name.

    MFU = FLOPs of a range / its GPU time / GPUs / peak        (docs/numbers.md#mfu)
    intensity = FLOPs of all ranges / bytes that DRAM read and wrote in their GPU time

A range's GPU time is from the start of its first operation to the end of the last. DRAM metrics are shares of the GPU's
bandwidth in the export.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsystui.base.selection import NameFilter, Selection, Task
from nsystui.base.text import few, safe_text
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.efficiency.mfu import Mfu, MfuRequest, peak_of
from nsystui.questions.efficiency.result import Efficiency
from nsystui.questions.gpu.device_time import Device
from nsystui.questions.gpu.metrics import attributed, metric_sources, samples_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables

_DRAM = ("DRAM read", "DRAM write")


def mfu_of_region(job: OpenJob, selection: Selection, result: Efficiency, request: MfuRequest) -> Mfu:
    """Return the MFU of the ranges of `MfuRequest.region` in the result's window, by the median of their GPU time."""
    gpus = result.gpus
    ranges = job.nvtx_ranges(selection.with_name(None).with_window(result.window))
    name_filter = NameFilter(request.region or "")
    is_named = np.array([*map(name_filter.matches, ranges.names), False])
    rows = np.flatnonzero(is_named[ranges.columns["name"]] & (ranges.columns["op_count"] > 0))
    peak, peak_note = peak_of(request, gpus)
    notes = [f"GPUs that share a range: {request.gpus or 1} (--gpus N)", peak_note]
    if not len(rows):
        notes.append(f"no MFU: no NVTX range that matches {safe_text(name_filter.text)} launched GPU work")
        return Mfu(request, None, 0, request.gpus or 1, peak, None, tuple(notes))
    names = sorted({ranges.names[index] for index in ranges.values("name", rows).tolist()})
    notes.insert(0, f"of the NVTX ranges {few(names)}: range time is the median of their GPU time")
    moved = _bytes_moved(job, [device for gpu in gpus for device in gpu.devices], ranges, rows)
    intensity = None if not moved else request.flops_per_step * len(rows) / moved
    if intensity is None:
        reason = (
            "".join(missing_notes(job.session, tables.gpu_metrics)) or "not all GPUs have DRAM metrics and a bandwidth"
        )
        notes.append(f"no arithmetic intensity: {reason}")
    time = float(np.median(ranges.values("gpu_length", rows)))
    return Mfu(request, time, len(rows), request.gpus or 1, peak, None, tuple(notes), intensity)


def _bytes_moved(job: OpenJob, devices: Sequence[Device], ranges: NvtxRanges, rows: Times) -> float | None:
    """Return the bytes that DRAM moved in the ranges' GPU time, or ``None`` if unknown for a range."""
    lanes = [Task(lane.report, lane.process) for lane in ranges.lanes]
    lane, starts = ranges.columns["lane"][rows], ranges.values("gpu_start", rows)
    ends = starts + ranges.values("gpu_length", rows)
    is_known, moved = np.zeros(len(rows), np.bool_), 0.0
    sources = metric_sources(job.session, Selection())
    for device in devices:
        task = device.task.task
        described = {gpu.gpu: gpu for gpu in report_at(job.session, task.report).metadata.gpus}
        bandwidth = described[device.gpu].memory_bandwidth if device.gpu in described else None
        key = (task.report, device.gpu)
        metrics = [source for source in sources if (source.report, source.gpu) == key and source.family in _DRAM]
        of_task = np.array([lane_task == task for lane_task in lanes])[lane]
        if len({source.family for source in metrics}) < len(_DRAM) or not bandwidth or not of_task.any():
            continue
        for time, percent in attributed(next(samples_of(job.session, metrics), []), starts[of_task], ends[of_task]):
            if not time.sum():
                return None
            moved += float(percent.sum() / time.sum()) / 100 * bandwidth * float((ends - starts)[of_task].sum()) / 1e9
        is_known |= of_task
    return moved if is_known.all() else None
