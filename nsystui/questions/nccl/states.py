"""How sure a pairing is, and why there is none: the words that stand in tables and sentences."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """How sure it is what belongs to a call or a kernel."""

    PAIRED = "paired"
    ESTIMATED = "estimated"  # the export does not prove it, or not how the bytes divide among several kernels
    UNPAIRED = "unpaired"


class Reason(StrEnum):
    """Why a kernel or a communication call stays unpaired."""

    NO_CALLS = "no NCCL calls of its process in NVTX"
    IN_GRAPH = "launched by a CUDA graph"
    BEFORE_CAPTURE = "launched before the capture"
    NO_LAUNCH = "launch not recorded"
    OUTSIDE = "launched outside of NCCL calls"
    GROUP_IS_OPEN = "end of its group not in the capture"
    NO_KERNEL = "launched no NCCL kernel"
