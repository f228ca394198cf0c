"""The canonical tables as SQLAlchemy sees them, over all open reports at once.

Besides its fields every table has ``report`` (the index of the report in the session) and ``clock_offset`` (ns to add
to the report's own times to get job time, the common clock).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable, Kind

_TYPES: dict[Kind, type[sa.types.TypeEngine[Any]]] = {
    Kind.INT: sa.BigInteger,
    Kind.FLOAT: sa.Double,
    Kind.TEXT: sa.Text,
}
METADATA = sa.MetaData()


def _make(table: CanonicalTable) -> sa.Table:
    columns = [sa.Column(item.name, _TYPES[item.kind]()) for item in table.fields]
    return sa.Table(
        table.name, METADATA, sa.Column("report", sa.BigInteger()), sa.Column("clock_offset", sa.BigInteger()), *columns
    )


kernels = _make(canonical.KERNELS)
memory_ops = _make(canonical.MEMORY_OPS)
graph_launches = _make(canonical.GRAPH_LAUNCHES)
api_calls = _make(canonical.API_CALLS)
api_backtraces = _make(canonical.API_BACKTRACES)
syncs = _make(canonical.SYNCS)
nvtx_ranges = _make(canonical.NVTX_RANGES)
nvtx_marks = _make(canonical.NVTX_MARKS)
nccl_calls = _make(canonical.NCCL_CALLS)
gpu_metrics = _make(canonical.GPU_METRICS)
nic_metrics = _make(canonical.NIC_METRICS)
efa_samples = _make(canonical.EFA_SAMPLES)
mpi_calls = _make(canonical.MPI_CALLS)
ucx_calls = _make(canonical.UCX_CALLS)
os_calls = _make(canonical.OS_CALLS)
cpu_page_faults = _make(canonical.CPU_PAGE_FAULTS)
gpu_page_faults = _make(canonical.GPU_PAGE_FAULTS)
openmp_events = _make(canonical.OPENMP_EVENTS)
openacc_events = _make(canonical.OPENACC_EVENTS)
profiler_overhead = _make(canonical.PROFILER_OVERHEAD)
processes = _make(canonical.PROCESSES)
threads = _make(canonical.THREADS)
devices = _make(canonical.DEVICES)
mpi_ranks = _make(canonical.MPI_RANKS)
nic_devices = _make(canonical.NIC_DEVICES)
diagnostics = _make(canonical.DIAGNOSTICS)
