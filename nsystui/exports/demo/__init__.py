"""The demo writer: exports of a training job, as nsys would write them.

`ExportWriter` writes single events; a `TrainingJob` writes whole reports. Standard library only.
Tests have a writer of more kinds of events, which is built on this one.
"""

from __future__ import annotations

from .nccl import NcclPayloads
from .schema import SCHEMAS
from .target import H100, GpuModel, Process, Session, Thread
from .training import PLANTED_SECRET, TrainingJob
from .writer import ExportWriter, NvtxPayload

__all__ = [
    "H100",
    "PLANTED_SECRET",
    "SCHEMAS",
    "ExportWriter",
    "GpuModel",
    "NcclPayloads",
    "NvtxPayload",
    "Process",
    "Session",
    "Thread",
    "TrainingJob",
]
