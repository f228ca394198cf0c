"""The canonical tables: the vocabulary that every version of NVIDIA's schema is translated into.

``row`` is unique in a table and report and keeps the order of the export. Times are signed, in ns, on the report's own
clock (0 is the start of the session). ``process`` and ``thread`` are NVIDIA's serialised ids (``globalPid``,
``globalTid``); a GPU operation belongs to an API call by (report, process, correlation id), never by the correlation id
alone. GPU work of an unknown process has ``NO_PROCESS``; an unknown device or stream is -1. NVTX ranges never closed,
and MPI and UCX calls that never returned, have no ``end``. ``kind`` of OpenMP and OpenACC events is the end of the
native table's name. A row of page faults is one fault of a CPU, or ``count`` of a GPU; its ``source_file`` is empty,
not missing, if the export has the column but no file. A row of GPU memory is an allocation or a free (``is_free``).
``nic`` of a switch is its GUID. A row of EFA samples is a ``value`` of a ``field``. ``original`` of a graph's node
is the node of which it is a copy, if any.

A file access has only the thread's ``tid``, which is unique on its machine.

``call_chains`` maps the ``chain`` of a sample or call to a ``stack``, separately for each kind (``sample``, ``os``,
``cuda``, and ``python`` for samples of Python, also in ``host_samples``). A chunk of an export has each stack once; a
chain in two chunks has two rows. Depth 0 is the function that ran; ``function`` and ``module`` are numbers in
``stack_names``.
"""

import hashlib
from dataclasses import dataclass
from enum import Enum
from functools import cache

NO_PROCESS = 0
"""The process of GPU work of an unknown process: no program has this globalPid."""


class ColumnKind(Enum):
    """The type of a column, as DuckDB spells it."""

    INT = "BIGINT"
    FLOAT = "DOUBLE"
    TEXT = "VARCHAR"


@dataclass(frozen=True)
class Field:
    """A column of a canonical table; ``None`` is a value that the export does not have."""

    name: str
    kind: ColumnKind = ColumnKind.INT


@dataclass(frozen=True)
class CanonicalTable:
    """A canonical table: its fields in order, its subject, and how to record it.

    ``short`` is ``what`` in few words; ``options``: the options of ``nsys profile`` that record it, if it needs any.
    """

    name: str
    short: str
    what: str
    options: str
    record: str
    fields: tuple[Field, ...]

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


def _table(name: str, short: str, options: str, fields: str, detail: str = "", more: str = "") -> CanonicalTable:
    """Return a table from ``fields``, names separated by blanks: ``:t`` marks text, ``:f`` floats, no mark integers."""
    record = f"record with `nsys profile {options}`" if options else "nothing to record"
    kinds = {"t": ColumnKind.TEXT, "f": ColumnKind.FLOAT, "": ColumnKind.INT}
    parsed = []
    for word in fields.split():
        field, _, mark = word.partition(":")
        parsed.append(Field(field, kinds[mark]))
    return CanonicalTable(name, short, short + detail, options, record + more, tuple(parsed))


_GPU_EVENT = "process device context green_context stream correlation_id"
_CUDA = "-t cuda"
_RANGES = " and a program that has NVTX ranges"

# fmt: off
KERNELS = _table("kernels", "GPU kernels", _CUDA,
    f"row start end {_GPU_EVENT} name:t short_name:t mangled_name:t is_nccl grid_x grid_y grid_z "
    "block_x block_y block_z registers_per_thread static_shared_memory dynamic_shared_memory "
    "local_memory_per_thread local_memory_total graph_node_id graph_id")
MEMORY_OPS = _table("memory_ops", "memory copies and memsets", _CUDA,
    f"row start end {_GPU_EVENT} operation:t is_memset copy_kind bytes source_memory:t target_memory:t "
    "source_device target_device virtual_address graph_node_id")
GRAPH_LAUNCHES = _table("graph_launches", "whole CUDA graph launches", _CUDA,
    f"row start end {_GPU_EVENT} graph_id graph_exec_id", more=" (graph-level tracing is the default)")
GRAPH_NODES = _table("graph_nodes", "nodes of CUDA graphs", "-t cuda --cuda-graph-trace=node",
    "row time thread process node original", detail=", when each was made", more=" before graphs are captured")
API_CALLS = _table("api_calls", "CUDA runtime and driver calls", _CUDA,
    "row start end thread process correlation_id name:t versioned_name:t is_driver return_value chain")
API_BACKTRACES = _table("api_backtraces", "the second row that --cudabacktrace writes for a call (eventClass 67)",
    "--cudabacktrace=all", "row start end thread process correlation_id name:t return_value chain")
SYNCS = _table("syncs", "CUDA synchronisations as the driver saw them", _CUDA,
    f"row start end {_GPU_EVENT} sync_type:t event event_sync")
CUDA_EVENTS = _table("cuda_events", "CUDA events that were recorded on a stream", "-t cuda --cuda-event-trace=true",
    f"row {_GPU_EVENT} event event_sync")
NVTX_RANGES = _table("nvtx_ranges", "NVTX ranges", "-t nvtx",
    "row start end thread process end_thread event_type domain_id domain:t name:t folded:t category color range_id",
    more=_RANGES)
NVTX_MARKS = _table("nvtx_marks", "NVTX marks", "-t nvtx",
    "row start thread process domain_id domain:t name:t category", more=_RANGES)
NCCL_CALLS = _table("nccl_calls", "NCCL API calls (their NVTX ranges)", "-t cuda,nvtx",
    "row start end thread process name:t collective:t message_size communicator:t peer root reduction:t "
    "datatype:t rank ranks cuda_device size_source:t",
    detail=", with their payload", more=" and do not set NCCL_NVTX_DISABLE")
GPU_METRICS = _table("gpu_metrics", "GPU metric samples", "--gpu-metrics-devices=all",
    "row time gpu metric:t value:f metric_id")
NIC_METRICS = _table("nic_metrics", "network adapter and switch samples", "--nic-metrics=true",
    "row start end nic metric:t unit:t value:f is_switch")
EFA_SAMPLES = _table("efa_samples", "samples of AWS's EFA adapters", "--enable efa_metrics",
    "row time type_id source:t type:t event field:t value:f")
MPI_CALLS = _table("mpi_calls", "MPI calls", "-t mpi",
    "row start end thread process name:t call_type:t communicator tag remote_rank root_rank send_bytes recv_bytes")
UCX_CALLS = _table("ucx_calls", "UCX calls", "-t ucx", "row start end thread process name:t")
OS_CALLS = _table("os_calls", "OS runtime library calls", "-t osrt",
    "row start end thread process name:t return_value chain")
_FILES = "-t osrt --osrt-file-access=true"
FILE_ACCESSES = _table("file_accesses", "reads and writes of files by OS runtime calls", _FILES,
    "row start end tid name:t file bytes")
FILES = _table("files", "files that were opened", _FILES, "file path:t", detail=", by the file number in accesses")
LIBRARY_CALLS = _table("library_calls", "cuBLAS and cuDNN calls", "-t cublas,cudnn",
    "row start end thread process name:t library:t")
HOST_SAMPLES = _table("host_samples", "CPU samples", "--sample=process-tree --backtrace=dwarf",
    "row time thread process cpu state:t weight chain is_python")
SCHED_EVENTS = _table("sched_events", "CPU scheduling events", "--cpuctxsw=process-tree",
    "row time thread process cpu is_in state:t block:t")
_SAMPLES = "--sample=process-tree --backtrace=dwarf"
_OTHER_CHAINS = ", `--osrt-backtrace-depth`, `--cudabacktrace`"
CALL_CHAINS = _table("call_chains", "call chains", _SAMPLES,
    "kind:t chain stack", detail=", by the number of their stack", more=_OTHER_CHAINS)
STACK_FRAMES = _table("stack_frames", "frames of stacks", _SAMPLES,
    "kind:t stack depth function module is_kernel is_unresolved", detail=", each stack once", more=_OTHER_CHAINS)
STACK_NAMES = _table("stack_names", "functions and modules", _SAMPLES,
    "number name:t", detail=", by number", more=_OTHER_CHAINS)
PROFILER_OVERHEAD = _table("profiler_overhead", "times that the profiler itself took", "",
    "row start end thread process name:t", more=" (nsys records the overhead that it notices)")
CUDA_OVERHEAD = _table("cuda_overhead", "times that CUDA took to load code or waited for command buffers", _CUDA,
    "row start end thread process correlation_id name:t", more=" (nsys 2025.5.2 and later write it)")
HOST_FUNCTIONS = _table("host_functions", "functions on the CPU that streams run", _CUDA,
    f"row start end {_GPU_EVENT} graph_node_id graph_id", more=" (nsys 2026 and later write them)")
CPU_PAGE_FAULTS = _table("cpu_page_faults", "CPU page faults of unified memory", "--cuda-um-cpu-page-faults=true",
    "row start process address instruction:t source_file:t source_line")
GPU_PAGE_FAULTS = _table("gpu_page_faults", "GPU page faults of unified memory", "--cuda-um-gpu-page-faults=true",
    "row start end process device address count")
GPU_MEMORY = _table("gpu_memory", "allocations and frees of memory by CUDA", "--cuda-memory-usage=true",
    "row start process device context address bytes memory:t is_free correlation_id name:t")
OPENMP_EVENTS = _table("openmp_events", "OpenMP events", "-t openmp", "row start end thread process name:t kind:t")
OPENACC_EVENTS = _table("openacc_events", "OpenACC events", "-t openacc",
    "row start end thread process name:t kind:t event_kind function:t bytes")
PROCESSES = _table("processes", "processes", "", "process pid name:t")
THREADS = _table("threads", "threads", "", "thread process tid name:t priority")
DEVICES = _table("devices", "GPUs as a process numbers them (`device`)", "",
    "process device gpu name:t uuid:t bus:t chip:t sm_count total_memory numa",
    detail=", and the machine's own number (`gpu`)")
MPI_RANKS = _table("mpi_ranks", "ranks in MPI_COMM_WORLD", "-t mpi", "thread rank")
NIC_DEVICES = _table("nic_devices", "network adapters", "",
    "nic guid name:t", detail=": `nic` as the samples number them, and the machine's own GUID and name")
DIAGNOSTICS = _table("diagnostics", "nsys's own messages about the capture", "",
    "row time severity severity_name:t text:t process", more=" (nsys 2024.4 and later write it)")
# fmt: on

TABLES: tuple[CanonicalTable, ...] = tuple(table for table in globals().values() if isinstance(table, CanonicalTable))

BY_NAME: dict[str, CanonicalTable] = {table.name: table for table in TABLES}


@cache
def fingerprint() -> str:
    """Return a short hash that changes with the fields of the canonical tables and their kinds."""
    tables = [(table.name, [(field.name, field.kind.value) for field in table.fields]) for table in TABLES]
    return hashlib.sha256(repr(tables).encode()).hexdigest()[:12]
