"""How NVIDIA's tables become the canonical ones: for each native table, what to read and how to turn it.

A source reads plain integers (and the few inline texts) from SQLite in chunks by rowid; DuckDB then resolves names
with small lookup tables. The SQL here is made of the words of this folder and of nothing that a file or a user says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nsystui.exports.canonical import BY_NAME
from nsystui.exports.schema import NO_INTEGER, Schema
from nsystui.exports.sources import gpu, host, network
from nsystui.exports.sources.base import REASONS, Source, Transform, times_of
from nsystui.exports.sources.host import nccl_condition
from nsystui.exports.sources.lookups import Lookup, lookups

__all__ = [
    "NO_INTEGER",
    "REASONS",
    "TABLES",
    "Lookup",
    "Source",
    "Transform",
    "lookups",
    "nccl_condition",
    "sources",
]

_MAKERS: dict[str, Callable[[Schema], Source]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": gpu.kernels,
    "CUPTI_ACTIVITY_KIND_MEMCPY": gpu.memcpys,
    "CUPTI_ACTIVITY_KIND_MEMSET": gpu.memsets,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": gpu.graph_launches,
    "CUPTI_ACTIVITY_KIND_RUNTIME": host.api_calls,
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": gpu.syncs,
    "NVTX_EVENTS": host.nvtx,
    "GPU_METRICS": gpu.gpu_metrics,
    "NET_NIC_METRIC": network.nic_metrics,
    "NET_IB_SWITCH_METRIC": network.switch_metrics,
    "MPI_P2P_EVENTS": host.mpi("MPI_P2P_EVENTS", "p2p", 0),
    "MPI_COLLECTIVES_EVENTS": host.mpi("MPI_COLLECTIVES_EVENTS", "collective", 1),
    "MPI_START_WAIT_EVENTS": host.mpi("MPI_START_WAIT_EVENTS", "wait", 2),
    "MPI_OTHER_EVENTS": host.mpi("MPI_OTHER_EVENTS", "other", 3),
    "UCP_SUBMIT_EVENTS": host.ucx("UCP_SUBMIT_EVENTS", 0),
    "UCP_PROGRESS_EVENTS": host.ucx("UCP_PROGRESS_EVENTS", 1),
    "UCP_EVENTS": host.ucx("UCP_EVENTS", 2),
    "OSRT_API": host.os_calls,
    "PROFILER_OVERHEAD": host.profiler_overhead,
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": gpu.cpu_page_faults,
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": gpu.gpu_page_faults,
    "DIAGNOSTIC_EVENT": host.diagnostics,
    "PROCESSES": host.processes,
    "ThreadNames": host.threads,
    "MPI_RANKS": host.mpi_ranks,
    "TARGET_INFO_NIC_INFO": network.nic_devices,
}

TABLES = frozenset(_MAKERS)
"""Native tables that others can do without."""


def sources(schema: Schema) -> list[Source]:
    """The sources of the native tables that ``schema`` has, with rows or without, largest questions first."""
    found = [make(schema) for table, make in _MAKERS.items() if schema.exists(table)]
    found += network.efa_samples(schema) + host.openmp(schema) + host.openacc(schema)
    return [_timed(source) for source in found]


def _timed(source: Source) -> Source:
    """The source with the rule for the times of every table that it makes."""
    made = {name: replace(made, times=times_of(BY_NAME[name])) for name, made in source.makes.items()}
    return replace(source, makes=made)
