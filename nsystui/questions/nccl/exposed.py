r"""How much of each NCCL kernel nothing hides: its time outside of U(K) of its device.

See docs/nccl.md#exposed-time-of-kernels.

K are the kernels of the same device that are not NCCL's; copies and whole CUDA graphs hide nothing. This is the exposed
time of single kernels: two NCCL kernels side by side both count, so that a sum over them may be more than the GPU
screen's |U(C) \ U(K)|, which counts every moment once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from nsystui.questions.algebra.intervals import Times
from nsystui.questions.device_time import DeviceIntervals
from nsystui.questions.nccl.lines import whole

if TYPE_CHECKING:
    import pandas as pd


def exposed_times(kernels: pd.DataFrame, devices: Iterable[DeviceIntervals]) -> Times:
    """The exposed time of each kernel of an `NcclPairing`, ns, shape ``(n,)``.

    ``devices`` are those that the kernels ran on, with all of their streams: a kernel of a device that is not among
    them counts as exposed all the time.
    """
    starts = whole(kernels["start"])
    ends = np.maximum(whole(kernels["end"]), starts)
    exposed = ends - starts
    places = [whole(kernels[key]) for key in ("report", "process", "device")]
    for one in devices:
        task = one.device.task.task
        own = (task.report, task.process, one.device.device)
        is_own = np.logical_and.reduce([place == key for place, key in zip(places, own, strict=True)])
        everything = np.flatnonzero(is_own)
        for rows in np.array_split(everything, len(everything) // _AT_ONCE + 1):
            before_end, _ = one.parts.kernels.before(ends[rows])
            before_start, _ = one.parts.kernels.before(starts[rows])
            exposed[rows] -= before_end - before_start
    return exposed


# Kernels come nearly in order of time: a few of them lie in few blocks of the union, all of them in all.
_AT_ONCE = 4096
