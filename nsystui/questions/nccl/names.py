"""NCCL's names: its kernels, ranges and collectives, the buckets of message sizes, and the states of a pairing.

A collective is named as NCCL's API spells it without the prefix: ``AllReduce``, ``AlltoAll``, ``Send``. A kernel's name
is a container: the algorithm, protocol, reduction and data type in it are those of the specialised kernel that NCCL
picked, not of the operation that ran, so they are not parsed (NCCL, ``src/device/generate.py``, ``best_kernel``).

A bucket is that of the message size of one call: count × size of the data type, as in NCCL's payload, not multiplied by
the ranks. The edges are those of the ``nsys-profiling`` workflow (``4-histogram.awk``).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from enum import StrEnum

from nsystui.base.units import size_label
from nsystui.exports.nccl_calls import COMMUNICATION

COLLECTIVES: tuple[str, ...] = (*dict.fromkeys(COMMUNICATION.values()), "SendRecv")
"""The collectives and point-to-point operations; ``SendRecv`` is the one kernel that runs any mix of sends, receives
and what NCCL makes of them (AlltoAll, Gather and Scatter before 2.28)."""

GROUP_START = "ncclGroupStart"
GROUP_END = "ncclGroupEnd"

_NCCL_KERNEL = re.compile(r"(?:void )?[nr]ccl", re.IGNORECASE)

# NCCL 2.8 and later: ncclKernel_<Coll>_…, ncclDevKernel_<Coll>_… (2.19), ncclSymDevKernel_… (2.27), ncclSymkDevKernel_…
# (2.28), ncclSymkRun_… The collective is the first word, whatever it is: a collective of a future NCCL keeps its name.
_NEW_KERNEL = re.compile(
    _NCCL_KERNEL.pattern + r"(?:(?:Symk?)?(?:Dev)?Kernel|Symk?Run)_(?P<collective>[A-Za-z]+)", re.IGNORECASE
)
# NCCL 2.7 and before: nccl<Coll><Algo><Proto>Kernel_<op>_<type>, all in one word; its relatives: ncclKernel<Coll>….
_OLD_KERNEL = re.compile(
    _NCCL_KERNEL.pattern + r"(?:Kernel)?(?P<collective>AllReduce|AllGatherV?|ReduceScatter|AlltoAll|Broadcast|Reduce"
    r"|SendRecv)",
    re.IGNORECASE,
)
# Kernels that look up at run time what to do.
_HIDDEN = {"generic", "nop"}

_API_RANGE = re.compile(r"nccl(?P<call>[A-Z][A-Za-z0-9]*)(?:\(\)|$)")
# NCCL's API names, and one that its relatives have; RCCL and MSCCL spell some with other capitals.
_COLLECTIVE_OF_CALL = {name.removeprefix("nccl").lower(): own for name, own in COMMUNICATION.items()}
_COLLECTIVE_OF_CALL["alltoallv"] = "AlltoAll"
_SPELLED = {name.lower(): name for name in COLLECTIVES}

_PYTORCH_LABEL = re.compile(r"nccl:(?P<operation>[a-z_]+)")
# Longer beginnings first: "reduce" also begins "reduce_scatter".
_COLLECTIVE_OF_LABEL = (
    ("allreduce", "AllReduce"),  # all_reduce, all_reduce_barrier, allreduce_coalesced
    ("allgather", "AllGather"),  # all_gather, _all_gather_base, all_gather_into_tensor_coalesced
    ("alltoall", "AlltoAll"),
    ("reducescatter", "ReduceScatter"),
    ("reduce", "Reduce"),
    ("broadcast", "Broadcast"),
    ("gather", "Gather"),
    ("scatter", "Scatter"),
    ("send", "Send"),  # send 0->1
    ("recv", "Recv"),
)


def is_nccl_kernel(name: str) -> bool:
    """Whether a GPU kernel is NCCL's, by its short name (or its demangled one): it begins with ``nccl``.

    As nsys' own recipes decide it since 2024.5. A kernel with ``nccl`` further in, as in a template argument, is not.
    """
    return _NCCL_KERNEL.match(name) is not None


def collective_of_kernel(name: str) -> str | None:
    """The collective in the name of an NCCL kernel of any version; ``None`` where the name hides it or is not NCCL's.

    ``ncclDevKernel_AllReduce_Sum_f32_TREE_LL(…)`` → ``AllReduce``, ``ncclDevKernel_Generic`` → ``None``.
    """
    match = _NEW_KERNEL.match(name) or _OLD_KERNEL.match(name)
    if match is None or match["collective"].lower() in _HIDDEN:
        return None
    return _SPELLED.get(match["collective"].lower(), match["collective"])


_OTHERS = (
    (re.compile(r"all_?reduce|cross_device_reduce|quick_?reduce", re.IGNORECASE), "AllReduce"),
    (re.compile(r"all_?gather", re.IGNORECASE), "AllGather"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "ReduceScatter"),
    (re.compile(r"all_?to_?all|a2a", re.IGNORECASE), "AlltoAll"),
    (re.compile(r"dispatch", re.IGNORECASE), "Dispatch"),
    (re.compile(r"combine", re.IGNORECASE), "Combine"),
    (re.compile(r"broadcast", re.IGNORECASE), "Broadcast"),
    (re.compile(r"barrier", re.IGNORECASE), "Barrier"),
)


def operation_of_kernel(name: str) -> str | None:
    """The collective in the name of a kernel that communicates, of NCCL's or not; ``None`` where the name hides it."""
    if is_nccl_kernel(name):
        return collective_of_kernel(name)
    return next((collective for pattern, collective in _OTHERS if pattern.search(name)), None)


def collective_of_api(name: str) -> str | None:
    """The collective of an NCCL API range: ``ncclAllReduce`` → ``AllReduce``; ``None`` for every other range.

    An API call with a collective is communication. One without is management: groups, communicators, memory. PyTorch's
    labels (``nccl:all_reduce``) and thread names (``NCCL Progress 0``) are no API calls; the calls of an instrumented
    NCCL (``ncclSend(): commHash …``) are.
    """
    match = _API_RANGE.match(name)
    return _COLLECTIVE_OF_CALL.get(match["call"].lower()) if match else None


def is_communication(name: str) -> bool:
    """Whether an NVTX range is an NCCL API call that communicates."""
    return collective_of_api(name) is not None


def is_of_nccl(name: str) -> bool:
    """Whether an NVTX range (``domain:text``) is NCCL's own or PyTorch's label of a collective."""
    return name.lower().startswith("nccl:") or _API_RANGE.match(name.rpartition(":")[2]) is not None


def collective_of_label(text: str) -> str | None:
    """The collective of a PyTorch label: ``nccl:all_to_all, op_id = 991144`` → ``AlltoAll``.

    ``None`` where the text is no such label or says no collective, as ``nccl:coalesced``.
    """
    match = _PYTORCH_LABEL.match(text)
    if match is None:
        return None
    operation = match["operation"].replace("_", "")  # the spelling changed over time: _all_gather_base, allgather
    return next((name for beginning, name in _COLLECTIVE_OF_LABEL if operation.startswith(beginning)), None)


EDGES: tuple[int, ...] = (64 * 1024, 1024**2, 16 * 1024**2)
"""The lower edges of the second, third and fourth bucket, bytes (inclusive)."""

_FIRST, _SECOND, _THIRD = map(size_label, EDGES)
BUCKETS: tuple[str, ...] = (f"<{_FIRST}", f"{_FIRST}–{_SECOND}", f"{_SECOND}–{_THIRD}", f">{_THIRD}")
"""The labels, small messages first: ``<64KiB`` …"""


def bucket_of(size: int | None) -> str | None:
    """The bucket of a message of ``size`` bytes; ``None`` where the size is not known."""
    return None if size is None or size < 0 else BUCKETS[bisect_right(EDGES, size)]


class PairingState(StrEnum):
    """The certainty of a pairing of a call or a kernel."""

    PAIRED = "paired"
    ESTIMATED = "estimated"  # the export does not prove it, or not how the bytes divide among several kernels
    UNPAIRED = "unpaired"


class Reason(StrEnum):
    """The reason why a kernel or a communication call stays unpaired."""

    NO_CALLS = "no NCCL calls of its process in NVTX"
    IN_GRAPH = "launched by a CUDA graph"
    BEFORE_CAPTURE = "launched before the capture"
    NO_LAUNCH = "launch not recorded"
    OUTSIDE = "launched outside of NCCL calls"
    GROUP_IS_OPEN = "end of its group not in the capture"
    NO_KERNEL = "launched no NCCL kernel"
