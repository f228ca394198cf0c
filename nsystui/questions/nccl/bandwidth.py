r"""The cost of NCCL kernels: their bandwidth and their exposed time, as columns of a pairing.

The bandwidth follows the formulas of nccl-tests (its ``doc/PERFORMANCE.md``; docs/nccl.md#bandwidth).

Algorithm bandwidth is S / t and bus bandwidth S · f / t. S is the size of the operation, f is the number of times its
bytes pass the slowest link, and n is the number of ranks in the communicator. Of the message size m of an API call:

======================================  =====  ==========
operation                               S      f
======================================  =====  ==========
AllReduce                               m      2(n−1)/n
AllGather, ReduceScatter                n · m  (n−1)/n
AlltoAll, Gather, Scatter               n · m  (n−1)/n
Broadcast, Reduce, Send, Recv           m      1
======================================  =====  ==========

The message size of the second and third line is that of one rank, or one peer, hence the n. What runs as sends and
receives has no such size: there S is the larger of what the kernel sends and what it receives, as in nccl-tests'
``sendrecv``. For an AlltoAll made of sends that already is n · m, the rank's own share included; a Gather or Scatter
made of them does not send its own share, so f is 1.

t is the duration of the kernel, which includes waiting for the other ranks. Without the wait, t is the transfer of the
operation, the duration of the kernel of the last rank to arrive (`collectives.waiting`).

A formula that needs an n, or a size, that is not known gives nothing; so do collectives without one, and kernels that
mix collectives.

The exposed time of a kernel is its time outside of U(K) of its device (docs/nccl.md#exposed-time-of-kernels): K are the
kernels of the same device that are not NCCL's; copies and whole CUDA graphs hide nothing. Two NCCL kernels side by side
both count, so that a sum over them may be more than the GPU screen's |U(C) \ U(K)|, which counts every moment once.

The nominal rate of the link between the GPUs of a host, by their model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Selection
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.algebra.nesting import NO_PARENT
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.nccl.grouping import selected
from nsystui.questions.nccl.names import is_of_nccl
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.units import whole
from nsystui.questions.nvtx.paths import template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.steps.times import Steps

if TYPE_CHECKING:
    import pandas as pd


Floats = NDArray[np.float64]

_NS_PER_S = 1e9
_TIMES_RANKS = ("AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter")
_ONCE = ("Broadcast", "Reduce", "Send", "Recv", "SendRecv")
_KNOWN = ("AllReduce", *_TIMES_RANKS, *_ONCE)
# Kernels come nearly in order of time: a few of them lie in few blocks of the union, all of them in all.
_AT_ONCE = 4096


def sizes_moved(kernels: pd.DataFrame) -> tuple[Floats, Floats]:
    """S and S · f of each kernel of an `NcclPairing`, bytes; shapes ``(n,)``, NaN where they are not known."""
    collective = kernels["collective"].astype(object)
    numbers = [whole(kernels[key]) for key in ("ranks", "message_size", "one_way")]
    # As floats, NaN where one is missing; bytes stay exact up to 9 PB.
    ranks, message, one_way = (np.where(number >= 0, number, np.nan) for number in numbers)
    ranks[ranks == 0] = np.nan  # damage
    is_of_sends = ~np.isnan(one_way)
    is_multiplied = collective.isin(_TIMES_RANKS).to_numpy(bool)

    size = np.where(is_multiplied, ranks * message, message)
    size = np.where(is_of_sends, one_way, size)
    size[~collective.isin(_KNOWN).to_numpy(bool)] = np.nan

    share = (ranks - 1) / ranks
    factor = np.select(
        [
            (collective == "AllReduce").to_numpy(bool),
            is_multiplied & ~(is_of_sends & collective.isin(("Gather", "Scatter")).to_numpy(bool)),
        ],
        [2 * share, share],
        1.0,
    )
    return size, size * factor


def rate(size: Floats, duration: Floats) -> Floats:
    """Bytes per second from bytes and ns, of one shape; NaN where either is not known or the time is 0."""
    found: Floats = np.full(len(size), np.nan)
    return np.divide(size * _NS_PER_S, duration, out=found, where=duration > 0)


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
            exposed[rows] -= one.parts.kernels.covered(starts[rows], ends[rows])
    return exposed


def measured(pairing: NcclPairing, devices: Iterable[DeviceIntervals]) -> NcclPairing:
    """The pairing with four more columns of its ``kernels``.

    ``exposed``: ns, see `exposed_times`. ``algorithm_size`` and ``bus_size``: bytes as floats, which make a bandwidth
    when divided by the time, see `rate`; NaN where not known. ``transfer``: NaN, until other ranks tell how long a
    kernel took without waiting for them. ``devices``: all devices of the job.
    """
    kernels = pairing.kernels
    algorithm_size, bus_size = sizes_moved(kernels)
    exposed = exposed_times(kernels, devices)
    more = {"exposed": exposed, "algorithm_size": algorithm_size, "bus_size": bus_size, "transfer": np.nan}
    return replace(pairing, kernels=kernels.assign(**more))


def in_steps(pairing: NcclPairing, steps: Steps) -> NcclPairing:
    """The pairing with a column ``step`` of its ``kernels`` and ``calls``: the number of the step, missing outside.

    A kernel belongs to the step of its process whose CPU range contains the start of its launch, whichever thread made
    it, and a call to the step in which it starts. The kernel itself may run when the CPU is a step further.
    """
    import pandas as pd

    parts: dict[str, Any] = {"notes": (*pairing.notes, *steps.notes)}
    for name, frame, moment in (("kernels", pairing.kernels, "launch_start"), ("calls", pairing.calls, "start")):
        numbers = steps.numbers_at(whole(frame["report"]), whole(frame["process"]), whole(frame[moment]))
        step = pd.Series(numbers, index=frame.index, dtype="Int64")
        parts[name] = frame.assign(step=step.where((step >= 0) & frame[moment].notna()))
    return replace(pairing, **parts)


def in_ranges(pairing: NcclPairing, ranges: NvtxRanges) -> NcclPairing:
    """The pairing with a column ``range`` of its ``kernels`` and ``calls``: the NVTX range around the launch, or call.

    It is the innermost that is neither NCCL's nor PyTorch's label of a collective, its numbers replaced by ``*``.
    """
    import pandas as pd

    lane_of = {(lane.report, lane.thread): number for number, lane in enumerate(ranges.lanes)}
    names = [None if is_of_nccl(name) else template(name) for name in ranges.names]
    is_label = np.array([name is None for name in names], bool)
    parts: dict[str, Any] = {}
    for name, frame, thread, moment in (
        ("kernels", pairing.kernels, "launch_thread", "launch_start"),
        ("calls", pairing.calls, "thread", "start"),
    ):
        places = zip(whole(frame["report"]).tolist(), whole(frame[thread]).tolist(), strict=True)
        lanes = np.array([lane_of.get(place, NO_PARENT) for place in places], np.int64)
        found = ranges.innermost_at(lanes, whole(frame[moment]))
        while len(some := np.flatnonzero(found >= 0)) and len(
            some := some[is_label[ranges.values("name", found[some])]]
        ):
            found[some] = ranges.values("parent", found[some])
        of_row = np.where(found >= 0, ranges.values("name", np.maximum(found, 0)), NO_PARENT) if names else found
        texts = [None if number < 0 else names[number] for number in of_row.tolist()]
        parts[name] = frame.assign(range=pd.Series(texts, index=frame.index, dtype=object))
    return replace(pairing, **parts)


def launched_in_steps(pairing: NcclPairing, steps: Steps, selection: Selection) -> Counter[str | None]:
    """The number of selected NCCL kernels that were launched in steps, by collective; ``None`` if it is unknown."""
    kernels = selected(in_steps(pairing, steps).kernels, selection)
    names = kernels.loc[kernels["step"].notna(), "collective"]
    return Counter(name if isinstance(name, str) else None for name in names.tolist())


class LinkRate(NamedTuple):
    """``rate``: of one GPU in one direction, bytes/s."""

    link: str
    rate: float


_OVER_PCIE = re.compile(r"PCIe|NVL\b", re.IGNORECASE)
"""Cards whose NVLink bridges, if any, join them in pairs."""

_NVLINK = (
    (r"G?B[23]00", 900e9),
    (r"GH200|H[12]00|H20", 450e9),
    (r"H800|A800", 200e9),
    (r"A100", 300e9),
    (r"V100-SXM", 150e9),
    (r"P100-SXM", 80e9),
)
"""NVIDIA's data sheets give the sum of both directions; this is half of it."""


def link_rate(ranks: Sequence[RankedTask]) -> LinkRate | None:
    """NVLink's rate, where all ranks are on one host and have GPUs of one model that is known to be joined by it.

    Between hosts the network is the limit, whose rate no export tells.
    """
    models = {name for item in ranks for name in item.gpu_names}
    if len(models) != 1 or len({item.host for item in ranks}) != 1:
        return None
    model = models.pop()
    if _OVER_PCIE.search(model):
        return None
    return next((LinkRate("NVLink", rate) for names, rate in _NVLINK if re.search(rf"\b({names})", model)), None)
