r"""The cost of NCCL kernels: their bandwidth and their exposed time, as columns of a pairing.

The bandwidth follows the formulas of nccl-tests (its ``doc/PERFORMANCE.md``; docs/nccl.md#bandwidth).

Algorithm bandwidth is S / t, bus bandwidth S · f / t. S is the operation's size, f how often its bytes pass the
slowest link, n the communicator's number of ranks, m the message size of an API call:

======================================  =====  ==========
operation                               S      f
======================================  =====  ==========
AllReduce                               m      2(n−1)/n
AllGather, ReduceScatter                n · m  (n−1)/n
AlltoAll, Gather, Scatter               n · m  (n−1)/n
Broadcast, Reduce, Send, Recv           m      1
======================================  =====  ==========

In rows two and three, m is the size for one rank or peer, hence the n. Operations that run as sends and receives lack
it: S is the larger of the bytes sent and received, as in nccl-tests' ``sendrecv``. For an AlltoAll made of sends, S is
already n · m, with the rank's own share; a Gather or Scatter made of sends lacks that share, so f is 1.

t is the duration of the kernel, which includes waiting for other ranks. Without the wait, t is the transfer: the
kernel duration of the last rank to arrive (`collectives.waiting`).

The bandwidth is missing if n or a size is unknown, for collectives without a formula, and for kernels that mix
collectives.

The exposed time of a kernel is its time outside of U(K) of its device (docs/nccl.md#exposed-time-of-kernels). K are the
device's kernels that do not communicate; copies and whole CUDA graphs hide nothing. Concurrent NCCL kernels all count,
so a sum may exceed the GPU screen's |U(C) \ U(K)|, which counts every moment once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nsystui.base.selection import Selection
from nsystui.base.types import Floats
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


_NS_PER_S = 1e9
_TIMES_RANKS = ("AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter")
_ONCE = ("Broadcast", "Reduce", "Send", "Recv", "SendRecv")
_WITH_FORMULA = ("AllReduce", *_TIMES_RANKS, *_ONCE)
# Kernels are nearly in order of time, so a short run touches few blocks of the union.
_KERNELS_AT_ONCE = 4096


def sizes_moved(kernels: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return S and S · f of each kernel of an `NcclPairing`, bytes; shapes ``(n,)``, NaN if unknown."""
    collective = kernels["collective"].astype(object)
    columns = [whole(kernels[key]) for key in ("ranks", "message_size", "one_way")]
    # Floats are exact for bytes up to 9 PB.
    ranks, message, one_way = (np.where(column >= 0, column, np.nan) for column in columns)
    ranks[ranks == 0] = np.nan  # a damaged export
    is_of_sends = ~np.isnan(one_way)
    is_multiplied = collective.isin(_TIMES_RANKS).to_numpy(bool)

    size = np.where(is_of_sends, one_way, np.where(is_multiplied, ranks * message, message))
    size[~collective.isin(_WITH_FORMULA).to_numpy(bool)] = np.nan

    share = (ranks - 1) / ranks
    is_shared = is_multiplied & ~(is_of_sends & collective.isin(("Gather", "Scatter")).to_numpy(bool))
    factor = np.where((collective == "AllReduce").to_numpy(bool), 2 * share, np.where(is_shared, share, 1.0))
    return size, size * factor


def sizes_and_times(kernels: pd.DataFrame) -> dict[str, tuple[Floats, Floats]]:
    """Return size and time of each bandwidth, for `rate`."""
    spent = (kernels["end"] - kernels["start"]).astype("Int64").to_numpy(np.float64, na_value=np.nan)
    algorithm, bus, transfer = (kernels[key].to_numpy(np.float64) for key in ("algorithm_size", "bus_size", "transfer"))
    return {"algbw": (algorithm, spent), "busbw": (bus, spent), "busbw_without_wait": (bus, transfer)}


def rate(size: Floats, duration: Floats) -> Floats:
    """Return bytes per second from bytes and ns, arrays of one shape; NaN if either is unknown or the time is 0."""
    result: Floats = np.full(len(size), np.nan)
    return np.divide(size * _NS_PER_S, duration, out=result, where=duration > 0)


def exposed_times(kernels: pd.DataFrame, devices: Iterable[DeviceIntervals]) -> Times:
    """Return the exposed time of each kernel of an `NcclPairing`, ns, shape ``(n,)``.

    ``devices``: the kernels' devices with all of their streams. Kernels of other devices count as exposed all the time.
    """
    starts = whole(kernels["start"])
    ends = np.maximum(whole(kernels["end"]), starts)
    exposed = ends - starts
    columns = [whole(kernels[key]) for key in ("report", "process", "device")]
    for intervals in devices:
        task = intervals.device.task.task
        keys = (task.report, task.process, intervals.device.device)
        is_on_device = np.logical_and.reduce([column == key for column, key in zip(columns, keys, strict=True)])
        indices = np.flatnonzero(is_on_device)
        for rows in np.array_split(indices, len(indices) // _KERNELS_AT_ONCE + 1):
            exposed[rows] -= intervals.parts.kernels.covered(starts[rows], ends[rows])
    return exposed


def measured(pairing: NcclPairing, devices: Iterable[DeviceIntervals]) -> NcclPairing:
    """Return the pairing with five more columns in ``kernels``; ``devices``: all devices of the job.

    ``exposed``: ns, see `exposed_times`. ``algorithm_size``, ``bus_size``: S and S · f, bytes, for `rate`; NaN if
    unknown. ``fastest``: the job's shortest kernel of the same collective, size and number of ranks, ns. ``transfer``:
    NaN until `Job.pairing` computes it from other ranks, with ``last`` (see `transfer_times`).
    """
    kernels = pairing.kernels
    algorithm_size, bus_size = sizes_moved(kernels)
    exposed = exposed_times(kernels, devices)
    more = {"exposed": exposed, "algorithm_size": algorithm_size, "bus_size": bus_size, "transfer": np.nan}
    kernels = kernels.assign(**more, fastest=(kernels["end"] - kernels["start"]).astype("float64"))
    fastest = kernels.groupby(["collective", "message_size", "ranks"], observed=True)["fastest"].transform("min")
    return replace(pairing, kernels=kernels.assign(fastest=fastest))


def in_steps(pairing: NcclPairing, steps: Steps) -> NcclPairing:
    """Return the pairing with a column ``step`` in ``kernels`` and ``calls``: a number, missing outside of steps.

    The step's CPU range contains the start of the kernel's launch, or of the call, on any thread of the process. The
    kernel itself may run when the CPU is already in the next step.
    """
    import pandas as pd

    parts: dict[str, Any] = {"notes": (*pairing.notes, *steps.notes)}
    for name, frame, moment in (("kernels", pairing.kernels, "launch_start"), ("calls", pairing.calls, "start")):
        numbers = steps.numbers_at(whole(frame["report"]), whole(frame["process"]), whole(frame[moment]))
        step = pd.Series(numbers, index=frame.index, dtype="Int64")
        parts[name] = frame.assign(step=step.where((step >= 0) & frame[moment].notna()))
    return replace(pairing, **parts)


def in_ranges(pairing: NcclPairing, ranges: NvtxRanges) -> NcclPairing:
    """Return the pairing with a column ``range`` in ``kernels`` and ``calls``: the NVTX range around launch or call.

    It is the innermost range that is neither NCCL's nor PyTorch's label of a collective, with ``*`` for its numbers.
    A kernel that a CUDA graph replays is in the range around its capture, if that is known.
    """
    import pandas as pd

    names = [None if is_of_nccl(name) else template(name) for name in ranges.names]
    is_label = np.array([name is None for name in names], bool)
    parts: dict[str, Any] = {}
    for name, frame, thread, moment in (
        ("kernels", pairing.kernels, "launch_thread", "launch_start"),
        ("calls", pairing.calls, "thread", "start"),
    ):
        reports, processes = whole(frame["report"]), whole(frame["process"])
        inner = ranges.innermost_at(ranges.lanes_of(reports, whole(frame[thread])), whole(frame[moment]))
        if "graph_node_id" in frame.columns:
            captured = ranges.around_captures(reports, processes, whole(frame["graph_node_id"]))
            inner = np.where(captured >= 0, captured, inner)
        while len(rows := np.flatnonzero(inner >= 0)) and len(
            rows := rows[is_label[ranges.values("name", inner[rows])]]
        ):
            inner[rows] = ranges.values("parent", inner[rows])
        codes = np.where(inner >= 0, ranges.values("name", np.maximum(inner, 0)), NO_PARENT) if names else inner
        texts = [None if number < 0 else names[number] for number in codes.tolist()]
        parts[name] = frame.assign(range=pd.Series(texts, index=frame.index, dtype=object))
    return replace(pairing, **parts)


def launched_in_steps(pairing: NcclPairing, steps: Steps, selection: Selection) -> Counter[str | None]:
    """Count the selected NCCL kernels that were launched in steps, by collective; ``None`` if it is unknown."""
    kernels = selected(in_steps(pairing, steps).kernels, selection)
    names = kernels.loc[kernels["step"].notna(), "collective"]
    return Counter(name if isinstance(name, str) else None for name in names.tolist())


class LinkRate(NamedTuple):
    """A kind of link, and its nominal rate for one GPU in one direction, bytes/s."""

    link: str
    rate: float


_WITHOUT_NVLINK = re.compile(r"PCIe|NVL\b|\bMIG\b|\bGRID\b|-\d+[ABCQ]\b", re.IGNORECASE)
"""Models whose NVLink bridges, if any, join the cards in pairs, and parts of a GPU (MIG, vGPU)."""

_NVLINK = (
    (r"G?B[23]00", 900e9),
    (r"GH200|H[12]00|H20", 450e9),
    (r"H800|A800", 200e9),
    (r"A100", 300e9),
    (r"V100-SXM", 150e9),
    (r"P100-SXM", 80e9),
)
"""NVLink's rates by GPU model, bytes/s: half of the sum of both directions in NVIDIA's data sheets."""


def link_rate(ranks: Sequence[RankedTask]) -> LinkRate | None:
    """Return NVLink's rate if all ranks are on one host and have GPUs of one model that NVLink joins, else ``None``.

    Between hosts the network is the limit, whose rate no export records.
    """
    models = {name for item in ranks for name in item.gpu_names}
    if len(models) != 1 or len({item.host for item in ranks}) != 1:
        return None
    model = models.pop()
    if _WITHOUT_NVLINK.search(model):
        return None
    return next((LinkRate("NVLink", rate) for names, rate in _NVLINK if re.search(rf"\b({names})", model)), None)
