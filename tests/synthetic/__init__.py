"""Exports for tests and benchmarks alone: illnesses, odd shapes, every table, millions of rows."""

# ruff: noqa: F401

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsystui.exports.demo import TrainingJob

from .benchmark import benchmark_export
from .shapes import (
    PAYLOAD_BYTES,
    PAYLOAD_COMMUNICATOR,
    crowded_export,
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
from .writer import ExportWriter


def training_job(directory: str | Path, ranks: int = 4, steps: int = 12, **job: Any) -> list[Path]:
    """Writes a demo job and returns its reports, ``rank0.sqlite`` first; ``job``: other properties of `TrainingJob`."""
    return TrainingJob(ranks, steps, **job).write(directory)
