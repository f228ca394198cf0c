"""Model FLOPs utilisation: the share of the GPUs' peak that went into the model's own arithmetic (docs/numbers.md#mfu).

    MFU = FLOPs of a step / step time / GPUs / peak
    ceiling = MFU · T / (T - R)    T: time of the steps, R: that in which no compute kernel ran

The user gives the FLOPs of a step of the whole job: about 6·N·tokens for training a transformer of N parameters
(8·N·tokens where activations are recomputed and that shall count). Steps follow one another
on the GPU without time in between (docs/ranks.md#steps), so that no idle time is left out; the median is taken.

The known peaks are those of dense matrix products in BF16 in NVIDIA's data sheets. Data sheets that give the figure
with sparsity give twice of it. Where a name stands for several products, or the figure depends on a power limit that is
not recorded, there is no known peak: a user can give it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import Unit
from nsystui.base.selection import Window
from nsystui.base.text import whole_number
from nsystui.base.units import format_value
from nsystui.exports.metadata import ALLOCATION_VARIABLE, SIZE_VARIABLES
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.blocking.parts import Iterations
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.ranks.steps import StepTimes
from nsystui.questions.steps.task_steps import TaskSteps
from nsystui.questions.steps.times import Steps
from nsystui.store.report import Report


@dataclass(frozen=True)
class Peak:
    """The peak of a GPU in TFLOP/s, and in words whose it is."""

    tflops: float
    source: str


# What the name must match; TFLOP/s; what it is.
_PEAKS = (
    (r"A100", 312.0, "A100 data sheet, dense BF16"),
    (r"H100.*(HBM3|SXM)", 989.0, "H100 SXM data sheet, dense BF16"),
    (r"H100 PCIe", 756.0, "H100 PCIe data sheet, dense BF16"),
    (r"GH200", 989.0, "GH200 data sheet, dense BF16"),
    (r"H200(?! NVL)", 989.0, "H200 SXM data sheet, dense BF16"),
    (r"B200", 2250.0, "HGX B200 data sheet, dense BF16"),
    (r"A40", 149.7, "A40 data sheet, dense BF16"),
    (r"L40S", 362.0, "L40S data sheet, dense BF16"),
    (r"V100-SXM[23]", 125.0, "V100 SXM2 data sheet, FP16 (no BF16)"),
    (r"V100-PCIE", 112.0, "V100 PCIe data sheet, FP16 (no BF16)"),
)
# A part of a GPU (MIG, vGPU), and a make of its own with more multiprocessors than the product.
_UNKNOWN = re.compile(r"\bMIG\b|\bGRID\b|-\d+[ABCQ]\b|A100-SXM-64GB")


def known_peak(model: str) -> Peak | None:
    """The peak of a GPU by its name as nsys writes it (``NVIDIA A100-SXM4-40GB``); ``None`` where it is not known."""
    if _UNKNOWN.search(model):
        return None
    for pattern, tflops, source in _PEAKS:
        if re.search(rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])", model):
            return Peak(tflops, source)
    return None


@dataclass(frozen=True)
class MfuRequest:
    """The user's values. ``peak_tflops`` and ``gpus`` are ``None`` where those of the exports are wanted.

    ``region``: a filter on the names of NVTX ranges; then ``flops_per_step`` are those of one such range.
    """

    flops_per_step: float
    peak_tflops: float | None = None
    gpus: int | None = None
    step_range: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class Mfu:
    """``value`` is the MFU from 0 to 1; ``None`` where a part of it is not known, which ``notes`` say.

    ``step_time``: ns, the median of ``intervals`` step times. ``achieved``: TFLOP/s for each GPU. ``compute``: the
    share, from 0 to 1, of the time of all steps and GPUs in which a compute kernel ran. ``ceiling``: the MFU if one
    always ran. ``intensity``: of a region the FLOPs by the bytes that its DRAM read and wrote.
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


def mfu(
    request: MfuRequest,
    steps: Steps,
    gpus: Sequence[DeviceIntervals],
    reports: Sequence[Report],
    window: Window,
    parts: Sequence[Iterations],
) -> Mfu:
    """The MFU of the steps that lie in ``window``, over the tasks that use ``gpus``; ``parts`` are of these steps."""
    tasks = {device.task.task for gpu in gpus for device in gpu.devices}
    times = [whole_steps(own, window) for task, own in steps.of_task.items() if task in tasks]
    together = np.concatenate([np.empty(0, np.int64), *times])
    step_time = float(np.median(together)) if len(together) else None
    count, count_note = _gpus(request, gpus, reports)
    peak, peak_note = peak_of(request, gpus)
    notes = [count_note, peak_note, *steps.notes]
    time = sum(int(one.time.sum()) for one in parts)
    compute = sum(int(one.part("compute").sum()) for one in parts) / time if time else None
    if compute and step_time is not None:
        without = format_value(Unit.PERCENT, 100 * (1 - compute))
        notes.append(
            f"the ceiling is the MFU if compute kernels ran all of the time: none ran in {without} of the steps"
        )
    if step_time is None and steps.of_task:
        notes.append("no MFU: no step in this time has another step after it")
    elif step_time is None:
        notes.append("no MFU without steps (`nsystui steps` says why there are none)")
    return Mfu(request, step_time, len(together), count, peak, compute, tuple(note for note in notes if note))


def whole_steps(steps: TaskSteps, window: Window) -> Times:
    """The GPU times of the steps that begin in ``window``, ns; the last of all has no end, as no other follows it."""
    times = StepTimes.of(steps)
    if not times.on_gpu:
        return np.empty(0, np.int64)
    starts, durations = times.start[:-1], times.duration[:-1]
    return durations[(starts >= window.start) & (starts < window.end)]


def _gpus(request: MfuRequest, gpus: Sequence[DeviceIntervals], reports: Sequence[Report]) -> tuple[int, str]:
    """The number of GPUs that share a step, and its source."""
    if request.gpus is not None:
        return request.gpus, f"GPUs that share a step: {request.gpus} (--gpus)"
    here, size = len(gpus), recorded_size(reports)
    if size > here:
        return size, f"GPUs that share a step: {size}, as the captured environment says; {here} of them here (--gpus N)"
    return max(here, 1), f"GPUs that share a step: {here}, counted in these exports (--gpus N)"


def recorded_size(reports: Iterable[Report]) -> int:
    """The number of processes of the job by the captured environment; 0 where it does not record it."""
    names = (*SIZE_VARIABLES, ALLOCATION_VARIABLE)
    return max((_number(report, name) or 0 for report in reports for name in names), default=0)


_MOST_PROCESSES = 999_999


def _number(report: Report, name: str) -> int | None:
    return whole_number(report.metadata.environment.get(name, ""), _MOST_PROCESSES)


def peak_of(request: MfuRequest, gpus: Sequence[DeviceIntervals]) -> tuple[Peak | None, str]:
    """The peak of each GPU, ``None`` where it is not known, and in words where it is from, or why."""
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
