"""Model FLOPs utilisation: the share of the GPUs' peak spent on the model's arithmetic (docs/numbers.md#mfu).

    MFU = FLOPs of a step / step time / GPUs / peak
    ceiling = MFU · T / (T - R)    T: time of the steps, R: their time without a compute kernel

The user gives the FLOPs of a step of the whole job: about 6·N·tokens to train a transformer of N parameters (8·N·tokens
with recomputed activations). The step time is a median, with idle time.

For NVTX ranges of a name, the FLOPs are of a range, and its GPU time is from the start of its first operation to the
end of the last; the arithmetic intensity is the FLOPs of all ranges / the bytes that DRAM read and wrote in this time.
DRAM metrics are shares of the GPU's bandwidth in the export.

The known peaks are from NVIDIA's data sheets: dense matrix products in BF16, half of the figures with sparsity. If a
name means several products, or the figure depends on an unrecorded power limit, the user must give the peak.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import Unit
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.text import few, safe_text
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.blocking.budget import iterations
from nsystui.questions.efficiency.result import Efficiency, recorded_size
from nsystui.questions.gpu.device_time import Device, DeviceIntervals
from nsystui.questions.gpu.metrics import attributed, metric_sources, samples_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.time_window import report_at, selected_reports
from nsystui.questions.ranks.steps import StepTimes
from nsystui.questions.steps.task_steps import TaskSteps
from nsystui.store import tables
from nsystui.store.report import Report


@dataclass(frozen=True)
class Peak:
    """The peak of a GPU in TFLOP/s, and its source in words."""

    tflops: float
    source: str


# Pattern of the GPU's name; TFLOP/s; source.
_PEAKS = (
    (r"A100", 312.0, "A100 data sheet, dense BF16"), (r"H100.*(HBM3|SXM)", 989.0, "H100 SXM data sheet, dense BF16"),
    (r"H100 PCIe", 756.0, "H100 PCIe data sheet, dense BF16"), (r"GH200", 989.0, "GH200 data sheet, dense BF16"),
    (r"H200(?! NVL)", 989.0, "H200 SXM data sheet, dense BF16"), (r"B200", 2250.0, "HGX B200 data sheet, dense BF16"),
    (r"A40", 149.7, "A40 data sheet, dense BF16"), (r"L40S", 362.0, "L40S data sheet, dense BF16"),
    (r"V100-SXM[23]", 125.0, "V100 SXM2 data sheet, FP16 (no BF16)"),
    (r"V100-PCIE", 112.0, "V100 PCIe data sheet, FP16 (no BF16)"),
)  # fmt: skip
# Parts of a GPU (MIG, vGPU), and a custom A100 with more multiprocessors than the product.
_UNKNOWN = re.compile(r"\bMIG\b|\bGRID\b|-\d+[ABCQ]\b|A100-SXM-64GB")


def known_peak(model: str) -> Peak | None:
    """Return a GPU's peak by nsys's name (``NVIDIA A100-SXM4-40GB``), if known."""
    if _UNKNOWN.search(model):
        return None
    for pattern, tflops, source in _PEAKS:
        if re.search(rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])", model):
            return Peak(tflops, source)
    return None


@dataclass(frozen=True)
class MfuRequest:
    """The user's values. ``peak_tflops`` and ``gpus``: by default from the exports.

    ``region``: a filter on NVTX range names; ``flops_per_step`` are then the FLOPs of one matching range.
    """

    flops_per_step: float
    peak_tflops: float | None = None
    gpus: int | None = None
    step_range: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class Mfu:
    """``value`` is the MFU from 0 to 1, or ``None`` if a part is unknown; ``notes`` name the part.

    ``step_time``: median of ``intervals`` step times, ns. ``achieved``: TFLOP/s for each GPU. ``compute``: share, 0 to
    1, of the GPUs' time in steps with a compute kernel. ``ceiling``: the MFU if this share were 1. ``intensity``: FLOPs
    of a region by DRAM bytes read and written.
    """

    request: MfuRequest
    step_time: float | None
    intervals: int
    gpus: int
    peak: Peak | None
    compute: float | None
    notes: tuple[str, ...]
    intensity: float | None = None

    @property
    def achieved(self) -> float | None:
        if not self.step_time:
            return None
        return self.request.flops_per_step / (self.step_time / 1e9) / self.gpus / 1e12

    @property
    def value(self) -> float | None:
        if self.achieved is None or self.peak is None:
            return None
        return self.achieved / self.peak.tflops

    @property
    def ceiling(self) -> float | None:
        return self.value / self.compute if self.value is not None and self.compute else None


def mfu_of(job: OpenJob, selection: Selection, result: Efficiency, request: MfuRequest) -> Mfu:
    """Return the MFU over the window and GPUs of ``result``. Raises UsageError for an invalid step pattern."""
    steps, gpus, window = job.steps(request.step_range), result.gpus, result.window
    gpu_iterations = iterations(job, selection.with_window(window), request.step_range)
    budgets = [gpu.of for gpu in gpu_iterations if gpu.numbers is not None]
    tasks = {device.task.task for gpu in gpus for device in gpu.devices}
    times = [whole_steps(task_steps, window) for task, task_steps in steps.of_task.items() if task in tasks]
    durations = np.concatenate([np.empty(0, np.int64), *times])
    step_time = float(np.median(durations)) if len(durations) else None
    count, count_note = _gpus(request, gpus, selected_reports(job.session, selection))
    peak, peak_note = peak_of(request, gpus)
    notes = [count_note, peak_note, *steps.notes]
    time = sum(int(budget.time.sum()) for budget in budgets)
    compute = sum(int(budget.part("compute").sum()) for budget in budgets) / time if time else None
    if compute and step_time is not None:
        share = format_value(Unit.PERCENT, 100 * (1 - compute))
        notes.append(f"the ceiling is the MFU if compute kernels ran all of the time: none ran in {share} of the steps")
    if step_time is None and steps.of_task:
        notes.append("no MFU: no step in this time has another step after it")
    elif step_time is None:
        notes.append("no MFU without steps (`nsystui steps` says why there are none)")
    return Mfu(request, step_time, len(durations), count, peak, compute, tuple(note for note in notes if note))


def whole_steps(steps: TaskSteps, window: Window) -> Times:
    """Return the GPU times of the steps that begin in ``window``, ns; the last step has no known end."""
    times = StepTimes.of(steps)
    if not times.on_gpu:
        return np.empty(0, np.int64)
    starts, durations = times.start[:-1], times.duration[:-1]
    return durations[(starts >= window.start) & (starts < window.end)]


def _gpus(request: MfuRequest, gpus: Sequence[DeviceIntervals], reports: Sequence[Report]) -> tuple[int, str]:
    if request.gpus is not None:
        return request.gpus, f"GPUs that share a step: {request.gpus} (--gpus)"
    seen, size = len(gpus), recorded_size(reports)
    if size > seen:
        return size, f"GPUs that share a step: {size}, by the captured environment; {seen} of them here (--gpus N)"
    return max(seen, 1), f"GPUs that share a step: {seen}, counted in these exports (--gpus N)"


def peak_of(request: MfuRequest, gpus: Sequence[DeviceIntervals]) -> tuple[Peak | None, str]:
    """Return each GPU's peak, if known, and a note with its source, or why it is unknown."""
    if request.peak_tflops is not None:
        return Peak(request.peak_tflops, "--peak-tflops"), f"peak {request.peak_tflops:g} TFLOP/s (--peak-tflops)"
    models = sorted({gpu.device.model or "" for gpu in gpus})
    if len(models) > 1:
        return None, f"no MFU: GPUs of several models ({', '.join(models)}), give --peak-tflops"
    if not models or not models[0]:
        return None, "no MFU: the export does not name the GPU, give --peak-tflops"
    peak = known_peak(models[0])
    if peak is None:
        return None, f"no MFU: the peak of `{models[0]}` is not known here, give --peak-tflops"
    return peak, f"peak {peak.tflops:g} TFLOP/s of `{models[0]}` ({peak.source}; --peak-tflops N for another)"


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
