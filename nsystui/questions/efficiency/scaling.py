"""Two jobs of different size: did the useful work stay the same? (docs/numbers.md#device-efficiency)

Both must have done the same work (strong scaling), or the same work for each device (weak): as many steps, say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsystui.questions.efficiency.device import DeviceEfficiency


class Scaling(Enum):
    """What stayed the same between the two jobs; the value is its name in a flag."""

    STRONG = "strong"
    """The problem as a whole."""
    WEAK = "weak"
    """The problem of each device."""


@dataclass(frozen=True)
class Sized:
    """One of the two jobs: its efficiency, and how many steps its window holds (``None`` where nothing tells)."""

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
        """Between what it is, and on what it rests."""
        sizes = f"{self.scaling.value} scaling from {self.baseline.device.devices} to {self.job.device.devices} GPUs"
        here, there = self.job.steps, self.baseline.steps
        if here is not None and there is not None and here != there:
            return f"{sizes}, but of other work: {here} steps here, {there} in the baseline (--time, --baseline-time)"
        what = "the same problem" if self.scaling is Scaling.STRONG else "the same problem for each GPU"
        steps = f"; both have {here} steps" if here is not None and there is not None else ""
        return f"{sizes}: true if both windows hold {what}{steps} (--time, --baseline-time)"


def scalability(job: Sized, baseline: Sized, scaling: Scaling) -> Scalability:
    """What became of the computation from ``baseline`` to ``job``, whichever is larger."""
    after, before = job.device, baseline.device
    if not after.useful or not before.devices:
        return Scalability(scaling, job, baseline, None, None)
    computation = before.useful / after.useful
    if scaling is Scaling.WEAK:
        computation *= after.devices / before.devices
    return Scalability(scaling, job, baseline, computation, after.parallel * computation)
