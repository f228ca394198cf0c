"""Two jobs of different size: did the useful work stay the same? (domain §5.4)

Both must have done the same work (strong scaling), or the same work for each device (weak): as many steps, say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsystui.analysis.efficiency.device import DeviceEfficiency


class Scaling(Enum):
    """What stayed the same between the two jobs; the value is its name in a flag."""

    STRONG = "strong"
    """The problem as a whole."""
    WEAK = "weak"
    """The problem of each device."""


@dataclass(frozen=True)
class Scalability:
    """``computation``: ΣUseful(baseline)/ΣUseful, for weak scaling times N/N(baseline). ``overall``: times parallel.

    ``None`` where the job has no useful time. ``computation`` is over 1 where the larger job computed less.
    """

    scaling: Scaling
    baseline: DeviceEfficiency
    computation: float | None
    overall: float | None


def scalability(job: DeviceEfficiency, baseline: DeviceEfficiency, scaling: Scaling) -> Scalability:
    """What became of the computation from ``baseline`` to ``job``, whichever is larger."""
    if not job.useful or not baseline.devices:
        return Scalability(scaling, baseline, None, None)
    computation = baseline.useful / job.useful
    if scaling is Scaling.WEAK:
        computation *= job.devices / baseline.devices
    return Scalability(scaling, baseline, computation, job.parallel * computation)
