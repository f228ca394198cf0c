"""The writers of demo jobs: exports of a training job and of an inference server, as nsys would write them.

A `TrainingJob` and a `ServingJob` write whole reports; `ExportWriter`, in `synthetic.writing`, single events.
Standard library only.
"""

from __future__ import annotations

from synthetic.writing.schema import SCHEMAS
from synthetic.writing.target import H100, CaptureSession, GpuModel, Process, Thread
from synthetic.writing.writer import ExportWriter, NvtxPayload

from .job import PLANTED_SECRET
from .nccl import NcclPayloads
from .serving import ServingJob
from .training import TrainingJob

__all__ = [
    "H100",
    "PLANTED_SECRET",
    "SCHEMAS",
    "CaptureSession",
    "ExportWriter",
    "GpuModel",
    "NcclPayloads",
    "NvtxPayload",
    "Process",
    "ServingJob",
    "Thread",
    "TrainingJob",
]
