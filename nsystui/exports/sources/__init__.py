"""How NVIDIA's tables become the canonical ones: for each native table, what to read and how to turn it.

A source reads plain integers (and the few inline texts) from SQLite in chunks by rowid; DuckDB then resolves names
with small lookup tables. The SQL here is made of the words of this folder and of nothing that a file or a user says.
"""

from __future__ import annotations

from collections.abc import Callable

from nsystui.exports.schema import Schema
from nsystui.exports.sources import gpu, host
from nsystui.exports.sources.base import Source
from nsystui.exports.sources.host import NCCL_RANGES
from nsystui.exports.sources.lookups import Lookup, lookups

__all__ = ["NCCL_RANGES", "Lookup", "Source", "lookups", "sources"]


def sources(schema: Schema) -> list[Source]:
    """The sources of the event tables that ``schema`` has with rows in them, largest questions first."""
    makers: dict[str, Callable[[Schema], Source]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": gpu.kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": gpu.memcpys,
        "CUPTI_ACTIVITY_KIND_MEMSET": gpu.memsets,
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": gpu.graph_launches,
        "CUPTI_ACTIVITY_KIND_RUNTIME": host.api_calls,
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": gpu.syncs,
        "NVTX_EVENTS": host.nvtx,
        "GPU_METRICS": gpu.gpu_metrics,
        "NET_NIC_METRIC": gpu.nic_metrics,
        "MPI_P2P_EVENTS": host.mpi("MPI_P2P_EVENTS", "p2p", 0),
        "MPI_COLLECTIVES_EVENTS": host.mpi("MPI_COLLECTIVES_EVENTS", "collective", 1),
        "MPI_START_WAIT_EVENTS": host.mpi("MPI_START_WAIT_EVENTS", "wait", 2),
        "MPI_OTHER_EVENTS": host.mpi("MPI_OTHER_EVENTS", "other", 3),
        "OSRT_API": host.os_calls,
        "DIAGNOSTIC_EVENT": host.diagnostics,
        "PROCESSES": host.processes,
        "ThreadNames": host.threads,
    }
    return [make(schema) for table, make in makers.items() if schema.has(table)]
