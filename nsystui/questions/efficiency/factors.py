"""The factors of an efficiency in order, each with its meaning and what a low one says; and those between two jobs.

Scalability compares two jobs of different size (docs/numbers.md#device-efficiency). Both must have done the same work
(strong scaling), or the same work for each device (weak scaling): as many steps, for instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsystui.exports import canonical
from nsystui.questions.efficiency.device import DeviceEfficiency
from nsystui.questions.efficiency.host import HostEfficiency


class Scaling(Enum):
    """The size that stayed the same between the two jobs; the value is its name in a flag."""

    STRONG = "strong"
    """The problem as a whole."""
    WEAK = "weak"
    """The problem of each device."""


@dataclass(frozen=True)
class Sized:
    """One of the two jobs: its efficiency, and the number of steps in its window (``None`` where it is not known)."""

    device: DeviceEfficiency
    steps: int | None = None


@dataclass(frozen=True)
class Scalability:
    """``computation``: ΣUseful(baseline)/ΣUseful, for weak scaling times N/N(baseline). ``overall``: times parallel.

    ``None`` where the job has no useful time. ``computation`` is over 1 where the larger job computed less.
    """

    scaling: Scaling
    job: Sized
    baseline: Sized
    computation: float | None
    overall: float | None

    @property
    def note(self) -> str:
        """The condition under which the comparison holds, for a note."""
        sizes = f"{self.scaling.value} scaling from {self.baseline.device.devices} to {self.job.device.devices} GPUs"
        here, there = self.job.steps, self.baseline.steps
        if here is not None and there is not None and here != there:
            return f"{sizes}, but of other work: {here} steps here, {there} in the baseline (--time, --baseline-time)"
        what = "the same problem" if self.scaling is Scaling.STRONG else "the same problem for each GPU"
        steps = f"; both have {here} steps" if here is not None and there is not None else ""
        return f"{sizes}: true if both windows hold {what}{steps} (--time, --baseline-time)"


def scalability(job: Sized, baseline: Sized, scaling: Scaling) -> Scalability:
    """The change of the computation from ``baseline`` to ``job``, whichever is larger."""
    after, before = job.device, baseline.device
    if not after.useful or not before.devices:
        return Scalability(scaling, job, baseline, None, None)
    computation = before.useful / after.useful
    if scaling is Scaling.WEAK:
        computation *= after.devices / before.devices
    return Scalability(scaling, job, baseline, computation, after.parallel * computation)


@dataclass(frozen=True)
class Factor:
    """One factor. ``value`` is from 0 to 1 (scalability may exceed it), ``None`` where it is not known.

    ``depth`` is how many factors it is a factor of. ``low`` says what a low value means and where to look next.
    """

    key: str
    name: str
    value: float | None
    depth: int
    formula: str
    low: str
    record: str = ""
    """The advice on what to record where it is not known."""


# By key: name, depth, formula, what a low value says. The screens named there are those of the program.
_DEVICE = {
    "parallel": (
        "device parallel efficiency", 0, "load balance × communication × orchestration",
        "useful share of GPU time",
    ),
    "load_balance": (
        "load balance", 1, "mean / max of the useful time of the GPUs",
        "GPUs differ in useful work: 7 Ranks",
    ),
    "communication": (
        "communication", 1, "max useful / max (useful + communication)",
        "NCCL or copies that nothing hides: 3 NCCL",
    ),
    "orchestration": (
        "orchestration", 1, "max (useful + communication) / time",
        "GPUs idle, the host is late: gaps in 4 GPU",
    ),
}  # fmt: skip
_HOST = {
    "parallel": (
        "host parallel efficiency", 0, "MPI parallel × device offload",
        "share of host time outside of MPI and CUDA",
    ),
    "mpi_parallel": (
        "MPI parallel", 1, "MPI load balance × MPI communication",
        "time in MPI calls: 2 Kernels, MPI",
    ),
    "mpi_load_balance": (
        "MPI load balance", 2, "mean / max of the time outside of MPI",
        "ranks wait for others in MPI: 2 Kernels, MPI",
    ),
    "mpi_communication": (
        "MPI communication", 2, "max time outside of MPI / time",
        "every rank waits: transfers, dependencies",
    ),
    "offload": (
        "device offload", 1, "time outside of MPI and CUDA calls / time outside of MPI",
        "launching or waiting in CUDA: 2 Kernels, API",
    ),
}  # fmt: skip
_SCALING = {
    "computation": (
        "computation scalability", 1, "useful time of the baseline / useful time",
        "more GPU time for the same work: 2 Kernels",
    ),
    "overall": (
        "device global efficiency", 0, "device parallel efficiency × computation scalability",
        "useful work per GPU time, by the baseline's",
    ),
}  # fmt: skip


def device_factors(device: DeviceEfficiency, scaled: Scalability | None = None) -> list[Factor]:
    """The factors of the GPUs, unknown without GPUs; with a baseline also scalability and global efficiency."""
    known = device if device.devices else None
    found = [
        Factor(f"device_{key}", name, None if known is None else getattr(known, key), depth, formula, low)
        for key, (name, depth, formula, low) in _DEVICE.items()
    ]
    if scaled is not None:
        rows = [("overall", scaled.overall), ("computation", scaled.computation)]
        names = {"overall": "device_global", "computation": "device_computation_scalability"}
        found += [
            Factor(names[key], name, value, depth, formula, low)
            for key, value in rows
            for name, depth, formula, low in [_SCALING[key]]
        ]
    return found


def host_factors(host: HostEfficiency) -> list[Factor]:
    """The factors of the processes; those of MPI only where it was traced."""
    return [
        Factor(
            f"host_{key}" if key in ("parallel", "offload") else key,
            name,
            getattr(host, key),
            depth,
            formula,
            low,
            _record(key),
        )
        for key, (name, depth, formula, low) in _HOST.items()
    ]


def _record(key: str) -> str:
    return (canonical.MPI_CALLS if key.startswith("mpi") else canonical.API_CALLS).record
