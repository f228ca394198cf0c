"""The demo writer: exports of a training job, as nsys would write them, for the demo and the tests.

`ExportWriter` writes single events; `training_job` and its neighbours write whole scenarios. Standard library only.
"""

from __future__ import annotations

from .nccl import NcclPayloads
from .schema import SCHEMAS
from .target import H100, GpuModel, Process, Session, Thread
from .training import PLANTED_SECRET, TrainingJob, training_job
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
    "training_job",
]
