"""Exports for tests and benchmarks alone: illnesses, odd shapes, every table, millions of rows."""

from __future__ import annotations

from .benchmark import benchmark_export
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

__all__ = [
    "HOSTILE_NAMES",
    "PAYLOAD_BYTES",
    "PAYLOAD_COMMUNICATOR",
    "SWITCH_GUID",
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
    "two_process_export",
    "unified_memory_export",
    "whole_graph_export",
]
