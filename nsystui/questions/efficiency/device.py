"""The efficiency of the GPUs: the useful part of their time, and the losses.

See docs/numbers.md#device-efficiency.

With Useful_d the useful time of device d, Moved_d its communication that no useful work hides, T the window and D the
number of devices::

    parallel efficiency      = Σ Useful_d / (D·T)   = load balance × communication × orchestration
    load balance             = (Σ Useful_d / D) / max Useful_d
    communication efficiency = max Useful_d / max (Useful_d + Moved_d)      (two independent maxima)
    orchestration efficiency = max (Useful_d + Moved_d) / T

A factor with a divisor of 0 is 0, as in DLB. `Useful` defines useful time; whole CUDA graphs always count as useful.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from nsystui.questions.gpu.device_time import Breakdown


class Useful(Enum):
    """The part of a GPU's time that counts as useful; the value is its name in a flag."""

    POP = "pop"
    """Kernels except NCCL's; NCCL kernels, copies and memsets are communication. As in basicanalysis and nsys2prv."""
    TALP = "talp"
    """All kernels, with NCCL's; copies and memsets are communication. As in DLB/TALP while a program runs."""

    @property
    def words(self) -> str:
        """The definition, as a note."""
        if self is Useful.POP:
            return "useful (pop): compute kernels; NCCL kernels, copies and memsets are communication"
        return "useful (talp): every kernel, also NCCL's; copies and memsets are communication"

    def time(self, spent: Breakdown) -> int:
        """Return Useful_d, ns."""
        if self is Useful.POP:
            return spent.kernels + spent.exposed_graph
        return spent.kernels + spent.exposed_nccl + spent.graph_without_kernels

    def moved(self, spent: Breakdown) -> int:
        r"""Return Moved_d = |U(communication) \ U(useful)|, ns."""
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
    lost: Counter[str] = field(default_factory=Counter)

    @property
    def parallel(self) -> float:
        """Σ Useful_d / (D·T), the product of the three factors except for rounding."""
        return ratio(self.useful, self.devices * self.time)

    @classmethod
    def of(cls, spent: Sequence[Breakdown], useful: Useful) -> DeviceEfficiency:
        """Return devices' efficiency over one window; without devices, factors are 0."""
        times = [useful.time(device) for device in spent]
        busy = [device.busy for device in spent]
        total, max_useful, max_busy = sum(times), max(times, default=0), max(busy, default=0)
        time = spent[0].time if spent else 0
        load_balance, communication = ratio(total, len(spent) * max_useful), ratio(max_useful, max_busy)
        return cls(len(spent), time, total, load_balance, communication, orchestration=ratio(max_busy, time))


def ratio(part: int, whole: int) -> float:
    """Return ``part / whole``, or 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0
