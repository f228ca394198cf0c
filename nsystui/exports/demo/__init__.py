"""The demo writer: synthetic exports, as nsys would write them, for the demo, the tests and the benchmarks.

`ExportWriter` writes single events; `training_job` and its neighbours write whole scenarios. Standard library only.
"""

from __future__ import annotations

from .benchmark import benchmark_export
from .nccl import NcclPayloads
from .nvtx import NvtxPayload
from .ranks import PLANTED_SECRET
from .schema import SCHEMAS
from .shapes import (
    PAYLOAD_BYTES,
    PAYLOAD_COMMUNICATOR,
    instrumented_nccl_export,
    nccl_without_nvtx_export,
    node_graph_export,
    payload_export,
    two_process_export,
    whole_graph_export,
)
from .simulation import SWITCH_GUID, simulation_export
from .target import H100, GpuModel, Process, Session, Thread
from .training import TrainingJob, training_job
from .variants import (
    HOSTILE_NAMES,
    all_tables_export,
    cpu_only_export,
    deep_nvtx_export,
    delayed_capture_export,
    empty_export,
    hostile_names_export,
    old_schema_export,
    open_ranges_export,
    unified_memory_export,
)
from .writer import ExportWriter

__all__ = [
    "H100",
    "HOSTILE_NAMES",
    "PAYLOAD_BYTES",
    "PAYLOAD_COMMUNICATOR",
    "PLANTED_SECRET",
    "SCHEMAS",
    "SWITCH_GUID",
    "ExportWriter",
    "GpuModel",
    "NcclPayloads",
    "NvtxPayload",
    "Process",
    "Session",
    "Thread",
    "TrainingJob",
    "all_tables_export",
    "benchmark_export",
    "cpu_only_export",
    "deep_nvtx_export",
    "delayed_capture_export",
    "empty_export",
    "hostile_names_export",
    "instrumented_nccl_export",
    "nccl_without_nvtx_export",
    "node_graph_export",
    "old_schema_export",
    "open_ranges_export",
    "payload_export",
    "simulation_export",
    "training_job",
    "two_process_export",
    "unified_memory_export",
    "whole_graph_export",
]
