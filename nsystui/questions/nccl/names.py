"""NCCL's names: its kernels, ranges and collectives, the buckets of message sizes, and the states of a pairing.

A collective is named as in NCCL's API, without the prefix: ``AllReduce``, ``AlltoAll``, ``Send``. The algorithm,
protocol, reduction and data type in a kernel's name are not parsed: they describe the specialised kernel that NCCL
picked, not the operation that ran (NCCL, ``src/device/generate.py``, ``best_kernel``).

Buckets divide the message size of one call: count × size of the data type, as in NCCL's payload, not multiplied by the
ranks. The edges are from the ``nsys-profiling`` workflow (``4-histogram.awk``).
"""

import re
from bisect import bisect_right
from enum import StrEnum

from nsystui.base.units import size_label
from nsystui.exports.nccl_calls import COMMUNICATION

COLLECTIVES: tuple[str, ...] = (*dict.fromkeys(COMMUNICATION.values()), "SendRecv")
"""The collectives and point-to-point operations; the kernel ``SendRecv`` runs any mix of sends, receives and
operations that NCCL makes of them (AlltoAll, Gather and Scatter before 2.28)."""

GROUP_START = "ncclGroupStart"
GROUP_END = "ncclGroupEnd"

_NCCL_KERNEL = re.compile(r"(?:void |_Z\d+)?[nr]ccl", re.IGNORECASE)

# NCCL 2.8 and later: ncclKernel_<Coll>_…, ncclDevKernel_<Coll>_… (2.19), ncclSymDevKernel_… (2.27), ncclSymkDevKernel_…
# (2.28), ncclSymkRun_… Any first word is a collective, so that a collective of a future NCCL keeps its name.
_NEW_KERNEL = re.compile(
    _NCCL_KERNEL.pattern + r"(?:(?:Symk?)?(?:Dev)?Kernel|Symk?Run)_(?P<collective>[A-Za-z]+)", re.IGNORECASE
)
# NCCL 2.7 and before: nccl<Coll><Algo><Proto>Kernel_<op>_<type>; RCCL and MSCCL: ncclKernel<Coll>….
_OLD_KERNEL = re.compile(
    _NCCL_KERNEL.pattern + r"(?:Kernel)?(?P<collective>AllReduce|AllGatherV?|ReduceScatter|AlltoAll|Broadcast|Reduce"
    r"|SendRecv)",
    re.IGNORECASE,
)
# Kernels that look up their operation at run time.
_HIDDEN = {"generic", "nop"}

_API_RANGE = re.compile(r"nccl(?P<call>[A-Z][A-Za-z0-9]*)(?:\(\)|$)")
# RCCL and MSCCL capitalise some names differently, and have AllToAllv.
_COLLECTIVE_OF_CALL = {name.removeprefix("nccl").lower(): collective for name, collective in COMMUNICATION.items()}
_COLLECTIVE_OF_CALL["alltoallv"] = "AlltoAll"
_SPELLED = {name.lower(): name for name in COLLECTIVES}

_PYTORCH_LABEL = re.compile(r"nccl:(?P<operation>[a-z_]+)")
# Longer prefixes first: "reduce" is also a prefix of "reducescatter".
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
    """Return whether a kernel's short or demangled name begins with ``nccl`` or ``rccl``.

    nsys's recipes use this rule since 2024.5: ``nccl`` further in may be a template argument.
    """
    return _NCCL_KERNEL.match(name) is not None


def collective_of_kernel(name: str) -> str | None:
    """Return the collective in the name of a kernel of any NCCL version; ``None`` if hidden, or not NCCL's.

    ``ncclDevKernel_AllReduce_Sum_f32_TREE_LL(…)`` → ``AllReduce``, ``ncclDevKernel_Generic`` → ``None``.
    """
    match = _NEW_KERNEL.match(name) or _OLD_KERNEL.match(name)
    if match is None or match["collective"].lower() in _HIDDEN:
        return None
    return _SPELLED.get(match["collective"].lower(), match["collective"])


_OTHER_LIBRARIES = (
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
    """Return the collective in the name of any kernel that communicates; ``None`` if it is hidden."""
    if is_nccl_kernel(name):
        return collective_of_kernel(name)
    return next((collective for pattern, collective in _OTHER_LIBRARIES if pattern.search(name)), None)


def collective_of_api(name: str) -> str | None:
    """Return the collective of an NCCL API range: ``ncclAllReduce`` → ``AllReduce``; ``None`` for any other range.

    API calls without a collective manage groups, communicators or memory. PyTorch's labels (``nccl:all_reduce``) and
    thread names (``NCCL Progress 0``) are not API calls, unlike an instrumented NCCL's ranges
    (``ncclSend(): commHash …``).
    """
    match = _API_RANGE.match(name)
    return _COLLECTIVE_OF_CALL.get(match["call"].lower()) if match else None


def is_of_nccl(name: str) -> bool:
    """Return whether an NVTX range (``domain:text``) is NCCL's own or PyTorch's label of a collective."""
    return name.lower().startswith("nccl:") or _API_RANGE.match(name.rpartition(":")[2]) is not None


def collective_of_label(text: str) -> str | None:
    """Return the collective of a PyTorch label: ``nccl:all_to_all, op_id = 991144`` → ``AlltoAll``.

    ``None`` for other texts, and labels without a collective, as ``nccl:coalesced``.
    """
    match = _PYTORCH_LABEL.match(text)
    if match is None:
        return None
    operation = match["operation"].replace("_", "")  # the spelling changed over time: _all_gather_base, allgather
    return next((name for prefix, name in _COLLECTIVE_OF_LABEL if operation.startswith(prefix)), None)


EDGES: tuple[int, ...] = (64 * 1024, 1024**2, 16 * 1024**2)
"""The lower edges of the second, third and fourth bucket, bytes (inclusive)."""

_FIRST, _SECOND, _THIRD = map(size_label, EDGES)
BUCKETS: tuple[str, ...] = (f"<{_FIRST}", f"{_FIRST}–{_SECOND}", f"{_SECOND}–{_THIRD}", f">{_THIRD}")
"""The labels, small messages first: ``<64KiB`` …"""


def bucket_of(size: int | None) -> str | None:
    """Return the bucket of a message of ``size`` bytes, if known."""
    return None if size is None or size < 0 else BUCKETS[bisect_right(EDGES, size)]


class PairingState(StrEnum):
    """The certainty of the pairing of a call or a kernel."""

    PAIRED = "paired"
    ESTIMATED = "estimated"  # the export does not prove it, or how the bytes divide among several kernels
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
