"""A pairing with what its kernels cost: the columns that every table of NCCL is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nsystui.questions.device_time import DeviceIntervals
from nsystui.questions.nccl.bandwidth import sizes_moved
from nsystui.questions.nccl.exposed import exposed_times
from nsystui.questions.nccl.lines import whole
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.steps import Steps


def measured(pairing: NcclPairing, devices: Iterable[DeviceIntervals]) -> NcclPairing:
    """The pairing, its ``kernels`` with three columns more.

    ``exposed``: ns, see `exposed`. ``algorithm_size`` and ``bus_size``: bytes as floats, which make a bandwidth when
    divided by the time, see `bandwidth`; NaN where not known. ``devices``: all devices of the job.
    """
    kernels = pairing.kernels
    algorithm_size, bus_size = sizes_moved(kernels)
    exposed = exposed_times(kernels, devices)
    more = {"exposed": exposed, "algorithm_size": algorithm_size, "bus_size": bus_size}
    return replace(pairing, kernels=kernels.assign(**more))


def in_steps(pairing: NcclPairing, steps: Steps) -> NcclPairing:
    """The pairing, its ``kernels`` and ``calls`` with a column ``step``: the number of the step, missing outside.

    A kernel belongs to the step of its process whose CPU range contains the start of its launch, whichever thread made
    it, and a call to the step in which it starts. The kernel itself may run when the CPU is a step further.
    """
    import pandas as pd

    parts: dict[str, Any] = {"notes": (*pairing.notes, *steps.notes)}
    for name, frame, moment in (
        ("kernels", pairing.kernels, "launch_start"),
        ("calls", pairing.calls, "start"),
    ):
        numbers = steps.numbers_at(whole(frame["report"]), whole(frame["process"]), whole(frame[moment]))
        step = pd.Series(numbers, index=frame.index, dtype="Int64")
        parts[name] = frame.assign(step=step.where((step >= 0) & frame[moment].notna()))
    return replace(pairing, **parts)
