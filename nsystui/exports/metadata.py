"""An export's metadata: nsys version, machine, time, hardware; and the numbers in NVIDIA's global ids.

An id is ``<hardware:8><virtual machine:8><process:24><thread:24>``; the id of a process has zeros for the thread.

Only the variables in `ENVIRONMENT_WHITELIST` are read from the captured environment, which may contain secrets.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from nsystui.base.text import whole_number
from nsystui.base.types import Expression, grouped
from nsystui.exports import integrity, opening, sources
from nsystui.exports.schema import GpuClock, Schema, probe

_BITS = 24
_MASK = (1 << _BITS) - 1

Ids = TypeVar("Ids")
"""An id, or a numpy array of ids."""


def pid_of(global_id: Ids) -> Ids:
    """Return the process number in a process's or thread's id."""
    return (global_id >> _BITS) & _MASK  # type: ignore[operator,return-value]


def tid_of(thread: Ids) -> Ids:
    """Return the thread number in a thread's id."""
    return thread & _MASK  # type: ignore[operator,return-value]


def process_of(thread: Ids) -> Ids:
    """Return the id of a thread's process."""
    return thread & ~_MASK  # type: ignore[operator,return-value]


def process_id(pid: int, of_machine: int = 0) -> int:
    """Return the id of a process from its number and the bits above, ``of_machine``."""
    return of_machine | pid << _BITS


def pid_column(global_id: Expression) -> Expression:
    """Return `pid_of` in SQL."""
    return tid_column(global_id.op(">>")(_BITS))


def tid_column(thread: Expression) -> Expression:
    """Return `tid_of` in SQL."""
    return thread.op("&")(_MASK)


RANK_VARIABLES = (
    "RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK", "SLURM_PROCID",
    "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK", "ALPS_APP_PE",
)  # fmt: skip
LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
)  # fmt: skip
SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
ALLOCATION_VARIABLE = "SLURM_NTASKS"
"""The number of tasks of an allocation, started or not."""
MADE_OF = "NSYSTUI_MADE_OF"
"""The name of the export's source in ``META_DATA_EXPORT``, if nsys did not record it."""
ENVIRONMENT_WHITELIST = frozenset((*RANK_VARIABLES, *LOCAL_RANK_VARIABLES, *SIZE_VARIABLES, ALLOCATION_VARIABLE)) | {
    "SLURM_NODEID",
    "PALS_NODEID",
    "SLURMD_NODENAME",
    "VLLM_WORKER_MULTIPROC_METHOD",
}
_EVENT_TYPES = {"NvtxEvents": "nvtx", "OSRuntime": "osrt"}
"""Names for ``-t`` that differ from the CAPTURE_EVENT_TYPE in more than case."""
_SETTINGS = {
    "LINUX_PERF_OPTIONS:COLLECT_CPU_CTXSW_TRACE": "--cpuctxsw",
    "LINUX_PERF_OPTIONS:COLLECT_IP_BACKTRACE_SAMPLES": "--sample",
    "TRACE_AFTER_FORK_BEFORE_EXEC": "--trace-fork-before-exec", "COLLECT_GPU_MEMORY_USAGE": "--cuda-memory-usage",
    "COLLECT_UVM_CPU_PAGE_FAULTS": "--cuda-um-cpu-page-faults",
    "COLLECT_UVM_GPU_PAGE_FAULTS": "--cuda-um-gpu-page-faults", "USE_DWARF": "--backtrace",
}  # fmt: skip
"""Options by the setting of META_DATA_CAPTURE that they make ``true``."""


SYSTEM_WIDE = "--cuda-trace-scope=system-wide"
"""The option that also traces processes that the profiled program did not start."""


@dataclass(frozen=True)
class Multiprocessor:
    """The capacity of a GPU's multiprocessor; shared memory in bytes."""

    warps: int
    blocks: int
    registers: int
    shared_memory: int
    compute_major: int


@dataclass(frozen=True)
class Gpu:
    """A GPU of the machine; memory in bytes. ``cuda_device`` is its CUDA ordinal, which NVIDIA often omits."""

    gpu: int
    name: str
    uuid: str
    bus: str
    chip: str
    sm_count: int | None
    total_memory: int | None
    cuda_device: int | None
    numa: int | None = None
    """The nearest NUMA node, recorded since nsys 2026."""
    multiprocessor: Multiprocessor | None = None
    memory_bandwidth: int | None = None
    """Peak, bytes/s."""


@dataclass(frozen=True)
class CudaDevice:
    """The GPU that a process (by pid) numbers as ``device``."""

    pid: int
    device: int
    gpu: int


@dataclass(frozen=True)
class BlockingStream:
    """A process's stream that the legacy default stream of its context waits for, or the default stream itself."""

    pid: int
    context: int
    stream: int
    is_default: bool


@dataclass(frozen=True)
class Metadata:
    """The facts of one report. Times are ns; ``None`` or an empty string is a value that the export does not have.

    ``made_of`` is the export's source if nsys did not record it, such as ``PyTorch profiler trace``.
    """

    nsys_version: str = ""
    schema_version: str = ""
    session_start_utc: int | None = None
    system_clock: int | None = None
    duration: int | None = None
    host: str = ""
    os: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    command: str = ""
    graph_trace_mode: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    cuda_devices: tuple[CudaDevice, ...] = ()
    blocking_streams: tuple[BlockingStream, ...] = ()
    mpi_ranks: Mapping[int, int] = field(default_factory=dict)
    json_included: bool = False
    blobs_included: bool = False
    cpus: int | None = None
    """The CPUs of the node."""
    made_of: str = ""
    asked: tuple[str, ...] = ()
    """Recorded options of nsys, without values: ``-t cuda``, ``--cpuctxsw``, ``--capture-range``."""
    sandbox: str | None = None
    """``WSL`` or ``gVisor`` if the kernel is theirs, else empty; ``None`` if unknown."""
    session_id: str = ""
    """The PROFILING_SESSION_UUID."""
    gpu_clocks: tuple[GpuClock, ...] = ()
    """The clocks of GPUs that differed from the CPU's before their times were corrected."""
    may_pause: bool = False
    names_vllm: bool = False
    """Whether the names of both cudaProfilerStart and cudaProfilerStop occur."""

    @cached_property
    def gpu_numbers(self) -> Mapping[tuple[int, int], int]:
        """The machine's GPU numbers by (pid, device) of ``cuda_devices``."""
        return {(device.pid, device.device): device.gpu for device in self.cuda_devices}

    @cached_property
    def blocking_streams_by_pid(self) -> Mapping[int, list[BlockingStream]]:
        """``blocking_streams`` by process."""
        return grouped((stream.pid, stream) for stream in self.blocking_streams)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dump``."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metadata:
        """Return the metadata that `to_json` wrote."""
        plain = dict(values)
        plain["gpus"] = tuple(_gpu(gpu) for gpu in plain["gpus"])
        plain["cuda_devices"] = tuple(CudaDevice(**device) for device in plain["cuda_devices"])
        plain["blocking_streams"] = tuple(BlockingStream(**stream) for stream in plain["blocking_streams"])
        plain["asked"] = tuple(plain["asked"])
        plain["gpu_clocks"] = tuple(GpuClock(**clock) for clock in plain["gpu_clocks"])
        plain["mpi_ranks"] = {int(process): rank for process, rank in plain["mpi_ranks"].items()}
        return cls(**plain)


def read(path: Path, connection: sqlite3.Connection, schema: Schema) -> Metadata:
    """Read the metadata of an open export: a few small tables. Raises ExportError if SQLite cannot read them."""
    reader = _Reader(path, connection, schema)
    try:
        return reader.metadata()
    except opening.READ_ERRORS as error:
        raise opening.corrupt(path, error) from None


class _Reader:
    def __init__(self, path: Path, connection: sqlite3.Connection, schema: Schema) -> None:
        self._path = path
        self._connection = connection
        self._schema = schema

    def metadata(self) -> Metadata:
        export = self._names("META_DATA_EXPORT") or self._names("EXPORT_META_DATA")
        starts = self._rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
        start, clock = map(_integer, starts[0] if starts else (None, None))
        system = self._names("TARGET_INFO_SYSTEM_ENV")
        # The command's arguments and directory are not kept.
        capture = self._names("META_DATA_CAPTURE")
        durations = self._rows("ANALYSIS_DETAILS", ("duration",))
        devices = self._rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
        return Metadata(
            nsys_version=export.get("EXPORT_PRODUCT_VERSION", ""),
            schema_version=export.get("EXPORT_SCHEMA_VERSION", ""),
            session_start_utc=start,
            system_clock=clock,
            duration=next((value for (value,) in durations if isinstance(value, int)), None),
            host=system.get("Hostname", ""),
            os=system.get("OsDescription", ""),
            made_of=export.get(MADE_OF, ""),
            asked=self._asked(),
            sandbox=_sandbox(system.get("SoftwareReleaseVersion")),
            session_id=capture.get("PROFILING_SESSION_UUID", ""),
            cpus=whole_number(system.get("CpuCores", ""), _MOST_CPUS),
            # Without points up to nsys 2024: 57013320 is driver 570.133.20, 5154807 is 515.48.07.
            driver_version=_DRIVER.sub(r"\1.\2.\3", system.get("NvDriverVersion", "")),
            cuda_version=_cuda_version(system.get("CudaDriverVersion", "")),
            command=capture.get("PROCESS_0:COMMAND", ""),
            graph_trace_mode=capture.get("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE")
            or capture.get("CUDA_GRAPH_TRACE_OPTIONS:MODE", ""),
            environment=self._environment(),
            gpus=self._gpus(),
            cuda_devices=tuple(CudaDevice(*row) for row in devices if all(isinstance(value, int) for value in row)),
            blocking_streams=self._blocking_streams(),
            mpi_ranks=self._mpi_ranks(),
            may_pause=self._may_pause(),
            names_vllm=any("vllm" in str(row).lower() for row in self._rows("META_DATA_CAPTURE", ("name", "value"))),
            json_included=export.get("EXPORT_PARAM_INCLUDE_JSON", "").lower() == "true",
            blobs_included=export.get("EXPORT_PARAM_INCLUDE_BLOBS", "").lower() == "true",
        )

    def _rows(self, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """Return a small table's rows, with ``None`` for columns that this version lacks."""
        if table not in self._schema.columns:
            return []
        integrity.check_pages(self._path, self._connection, table)
        selected = [f'"{name}"' if self._schema.has_column(table, name) else "NULL" for name in columns]
        return self._connection.execute(f'SELECT {", ".join(selected)} FROM "{table}"').fetchall()

    def _names(self, table: str) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, value in self._rows(table, ("name", "value")):
            values.setdefault(str(name), str(value or ""))
        return values

    def _environment(self) -> dict[str, str]:
        environment: dict[str, str] = {}
        for name, value in self._rows("META_DATA_CAPTURE", ("name", "value")):
            if ":ENVIRONMENT_VARIABLE" not in str(name):
                continue
            variable, _, content = str(value).partition("=")
            if variable in ENVIRONMENT_WHITELIST:
                environment.setdefault(variable, content.strip().strip('"'))
        return environment

    def _asked(self) -> tuple[str, ...]:
        options = set()
        for name, value in self._rows("META_DATA_CAPTURE", ("name", "value")):
            setting = _PROCESS.sub("", str(name))
            if setting == "CAPTURE_EVENT_TYPE":
                options.add(f"-t {_EVENT_TYPES.get(str(value), str(value).lower())}")
            elif setting in _SETTINGS and value == "true":
                options.add(_SETTINGS[setting])
            elif setting.startswith("GPU_METRICS_OPTIONS:"):
                options.add("--gpu-metrics-devices")
            elif setting == "START_TRIGGER" and value != "Immediate":
                options.add("--capture-range")
            elif setting == "CUDA_TRACE_SCOPE" and value.startswith("System"):
                options.add(SYSTEM_WIDE)
        return tuple(sorted(options))

    def _gpus(self) -> tuple[Gpu, ...]:
        texts = ("name", "uuid", "busLocation", "chipName")
        numbers = ("smCount", "totalMemory", "cuDevice", "numaNodeId", "memoryBandwidth")
        gpus = []
        for number, *cells in self._rows("TARGET_INFO_GPU", ("id", *texts, *numbers, *_LIMITS)):
            if isinstance(number, int):
                name, uuid, bus, chip = (str(text or "") for text in cells[:4])
                limits = [_integer(value) for value in cells[9:]]
                positive = [limit for limit in limits if limit is not None and limit > 0]
                multiprocessor = Multiprocessor(*positive) if len(positive) == len(limits) else None
                sms, memory, ordinal, numa, bandwidth = map(_integer, cells[4:9])
                gpus.append(Gpu(number, name, uuid, bus, chip, sms, memory, ordinal, numa, multiprocessor, bandwidth))
        return tuple(sorted(gpus, key=lambda gpu: gpu.gpu))

    def _blocking_streams(self) -> tuple[BlockingStream, ...]:
        names = ("processId", "contextId", "streamId")
        default_streams = self._rows("TARGET_INFO_CUDA_NULL_STREAM", names)
        default_streams += self._rows("TARGET_INFO_CUDA_CONTEXT_INFO", (*names[:2], "nullStreamId"))  # since 3.7
        rows = [(*row, 3) for row in default_streams]
        rows += self._rows("TARGET_INFO_CUDA_STREAM", (*names, "flag"))
        # cudaStreamDefault, and the default stream itself (CUpti_ActivityStreamFlag); other streams do not block.
        streams = {tuple(row) for row in rows if row[3] in (1, 3) and all(isinstance(value, int) for value in row)}
        return tuple(BlockingStream(pid, context, stream, flag == 3) for pid, context, stream, flag in sorted(streams))

    def _may_pause(self) -> bool:
        names = "SELECT DISTINCT value GLOB 'cu*ProfilerStop*' FROM StringIds WHERE value GLOB 'cu*ProfilerSt[ao]*'"
        with suppress(*opening.READ_ERRORS):  # reading the names reports the damage
            is_readable = self._schema.has_column("StringIds", "value")
            return is_readable and len(self._connection.execute(names).fetchall()) > 1
        return False

    def _mpi_ranks(self) -> dict[int, int]:
        """Return ranks by process, unless its threads have different ranks."""
        ranks: dict[int, set[int]] = {}
        for thread, rank in self._rows("MPI_RANKS", ("globalTid", "rank")):
            if isinstance(thread, int) and isinstance(rank, int):
                ranks.setdefault(process_of(thread), set()).add(rank)
        return {process: next(iter(thread_ranks)) for process, thread_ranks in ranks.items() if len(thread_ranks) == 1}


_PROCESS = re.compile(r"PROCESS_\d+:")


def _sandbox(kernel: str | None) -> str | None:
    if not kernel:
        return None
    return "WSL" if "microsoft" in kernel.lower() else "gVisor" if kernel == "4.4.0" else ""


_LIMITS = ("maxWarpsPerSm", "maxBlocksPerSm", "maxRegistersPerSm", "maxShmemPerSm", "computeMajor")
"""The columns of ``Multiprocessor``."""


def _gpu(values: Mapping[str, Any]) -> Gpu:
    limits = values.get("multiprocessor")
    return Gpu(**{**values, "multiprocessor": None if limits is None else Multiprocessor(**limits)})


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) else None


_LATEST_CUDA, _MOST_CPUS = 999_999, 999_999
_DRIVER = re.compile(r"\A(\d{3})(\d{2,3})(\d{2})\Z", re.ASCII)


def _cuda_version(raw: str) -> str:
    """Return ``12.2`` for 12020; empty for a number too large for a version."""
    if not raw.isdecimal():
        return raw
    number = whole_number(raw, _LATEST_CUDA)
    return "" if number is None else f"{number // 1000}.{number % 1000 // 10}"


def device_rows(facts: Metadata, used: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """Return the rows of the canonical table of devices, which has no native table.

    Each (process, device) of ``used`` has a row, every other GPU a row without a process.
    """
    by_number = {gpu.gpu: gpu for gpu in facts.gpus}
    by_ordinal = {gpu.cuda_device: gpu for gpu in facts.gpus if gpu.cuda_device is not None}
    rows: list[tuple[Any, ...]] = []
    used_gpus = set()
    for process, device in used:
        number = facts.gpu_numbers.get((pid_of(process), device))
        gpu = by_number.get(number) if number is not None else by_ordinal.get(device) or by_number.get(device)
        number = gpu.gpu if gpu else number
        used_gpus.add(number)
        rows.append((process, device, number, *_gpu_facts(gpu)))
    rows += [(None, None, gpu.gpu, *_gpu_facts(gpu)) for gpu in facts.gpus if gpu.gpu not in used_gpus]
    return rows


def _gpu_facts(gpu: Gpu | None) -> tuple[Any, ...]:
    if gpu is None:
        return (None, None, None, None, None, None, None)
    names = (gpu.name or None, gpu.uuid or None, gpu.bus or None, gpu.chip or None)
    return (*names, gpu.sm_count, gpu.total_memory, gpu.numa)


@dataclass(frozen=True)
class Opened:
    """A checked export that can be packed: its metadata, and the number of rows of each native table."""

    file: opening.ExportFile
    metadata: Metadata
    native: Schema

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def rows(self) -> int:
        """The number of rows to pack."""
        return self.native.rows(source.table for source in sources.sources(self.native))

    @property
    def kernels(self) -> int | None:
        """The number of kernels, if it is known."""
        return self.native.last_rowid.get("CUPTI_ACTIVITY_KIND_KERNEL")

    @property
    def name(self) -> str:
        """The name of the report in a session."""
        return self.path.stem


def open_export(path: Path) -> Opened:
    """Check an export and read its metadata, in milliseconds whatever its size. Raises ExportError."""
    file = opening.check(path)
    with file.unchanged(), closing(opening.connect(path)) as connection:
        native = probe(path, connection)
        return Opened(file, read(path, connection, native), native)
