"""The metadata of an export: who wrote it, on which machine, when, what it counts; and what is in NVIDIA's global ids.

``<hardware:8><virtual machine:8><process:24><thread:24>``; a process has zeros for the thread.

Of the captured environment only the variables that name a rank, a node or a job are ever read out of the file: the
rest may hold secrets.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nsystui.base.text import whole_number
from nsystui.exports import integrity, opening
from nsystui.exports.schema import Schema

if TYPE_CHECKING:
    import sqlalchemy as sa


_BITS = 24
_MASK = (1 << _BITS) - 1

Ids = TypeVar("Ids")
"""One id, or a numpy array of ids."""


def pid_of(global_id: Ids) -> Ids:
    """The process number in the id of a process or a thread."""
    return (global_id >> _BITS) & _MASK  # type: ignore[operator,return-value]


def tid_of(thread: Ids) -> Ids:
    """The thread number in the id of a thread."""
    return thread & _MASK  # type: ignore[operator,return-value]


def process_of(thread: Ids) -> Ids:
    """The id of the process that a thread belongs to."""
    return thread & ~_MASK  # type: ignore[operator,return-value]


def process_id(pid: int, of_machine: int = 0) -> int:
    """The id of a process by its number; ``of_machine`` are the bits above."""
    return of_machine | pid << _BITS


def pid_column(global_id: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """`pid_of` in SQL."""
    return tid_column(global_id.op(">>")(_BITS))


def tid_column(thread: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """`tid_of` in SQL."""
    return thread.op("&")(_MASK)


RANK_VARIABLES = (
    "RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "FLUX_TASK_RANK",
    "JSM_NAMESPACE_RANK",
    "ALPS_APP_PE",
)
LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
)
SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
ALLOCATION_VARIABLE = "SLURM_NTASKS"
"""The tasks that an allocation is for, whether or not they were started."""
NODE_VARIABLES = ("SLURM_NODEID", "PALS_NODEID", "SLURMD_NODENAME")
MADE_OF = "NSYSTUI_MADE_OF"
"""The name under which ``META_DATA_EXPORT`` has what an export was made of, where nsys did not record it."""
ENVIRONMENT_WHITELIST = frozenset(
    (*RANK_VARIABLES, *LOCAL_RANK_VARIABLES, *SIZE_VARIABLES, ALLOCATION_VARIABLE, *NODE_VARIABLES)
) | {"VLLM_WORKER_MULTIPROC_METHOD"}
_EVENT_TYPES = {"NvtxEvents": "nvtx", "OSRuntime": "osrt"}
"""Names for ``-t`` that differ from the CAPTURE_EVENT_TYPE in more than upper case."""
_SETTINGS = {
    "LINUX_PERF_OPTIONS:COLLECT_CPU_CTXSW_TRACE": "--cpuctxsw",
    "LINUX_PERF_OPTIONS:COLLECT_IP_BACKTRACE_SAMPLES": "--sample",
    "TRACE_AFTER_FORK_BEFORE_EXEC": "--trace-fork-before-exec",
}
"""Options by the setting of META_DATA_CAPTURE that is ``true`` with them."""


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor of a GPU holds at once; shared memory in bytes."""

    warps: int
    blocks: int
    registers: int
    shared_memory: int
    compute_major: int


@dataclass(frozen=True)
class Gpu:
    """A GPU of the machine. ``cuda_device`` is NVIDIA's note of its CUDA ordinal, often missing. Memory in bytes."""

    gpu: int
    name: str
    uuid: str
    bus: str
    chip: str
    sm_count: int | None
    total_memory: int | None
    cuda_device: int | None
    numa: int | None = None
    """The NUMA node that it is next to, where nsys says it (2026 and later)."""
    multiprocessor: Multiprocessor | None = None
    memory_bandwidth: int | None = None
    """Its peak, bytes/s."""


@dataclass(frozen=True)
class CudaDevice:
    """Which GPU a process (by pid) numbers as ``device``."""

    pid: int
    device: int
    gpu: int


@dataclass(frozen=True)
class BlockingStream:
    """A stream of a process (by pid) that the legacy default stream of its context waits for, or that stream itself."""

    pid: int
    context: int
    stream: int
    is_default: bool


@dataclass(frozen=True)
class Metadata:
    """The facts of one report. Times are ns; ``None`` or an empty string is what the export does not say.

    ``made_of``: what the export was made of where nsys did not record it, ``PyTorch profiler trace``.
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
    """Options of nsys that the export records, without values: ``-t cuda``, ``--cpuctxsw``, ``--capture-range``."""
    sandbox: str | None = None
    """``WSL`` or ``gVisor``, where the kernel is one of these; empty for other kernels."""
    session_id: str = ""
    """The PROFILING_SESSION_UUID."""

    @cached_property
    def gpu_numbers(self) -> Mapping[tuple[int, int], int]:
        """The machine's number of the GPU behind each (pid, device) of ``cuda_devices``."""
        return {(one.pid, one.device): one.gpu for one in self.cuda_devices}

    @cached_property
    def blocking_streams_by_pid(self) -> Mapping[int, list[BlockingStream]]:
        """``blocking_streams`` by process."""
        found: dict[int, list[BlockingStream]] = {}
        for stream in self.blocking_streams:
            found.setdefault(stream.pid, []).append(stream)
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain values for ``json.dump``."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metadata:
        """The inverse of ``to_json``."""
        plain = dict(values)
        plain["gpus"] = tuple(_gpu(gpu) for gpu in plain["gpus"])
        plain["cuda_devices"] = tuple(CudaDevice(**device) for device in plain["cuda_devices"])
        plain["blocking_streams"] = tuple(BlockingStream(**stream) for stream in plain["blocking_streams"])
        plain["asked"] = tuple(plain["asked"])
        plain["mpi_ranks"] = {int(process): rank for process, rank in plain["mpi_ranks"].items()}
        return cls(**plain)


def read(path: Path, connection: sqlite3.Connection, schema: Schema) -> Metadata:
    """Reads the metadata of an open export; a few small tables, whatever the size of the file.

    Raises ExportError where SQLite cannot read them.
    """
    reader = _Reader(path, connection, schema)
    try:
        return reader.metadata()
    except opening.READ_ERRORS as error:
        raise opening.corrupt(path, error) from None


class _Reader:
    """The small tables of one export."""

    def __init__(self, path: Path, connection: sqlite3.Connection, schema: Schema) -> None:
        self._path = path
        self._connection = connection
        self._schema = schema

    def metadata(self) -> Metadata:
        export = self._names("META_DATA_EXPORT") or self._names("EXPORT_META_DATA")
        starts = self._rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
        start, clock = map(_integer, starts[0] if starts else (None, None))
        system = self._names("TARGET_INFO_SYSTEM_ENV")
        # The command's arguments and directory are left where they are.
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
            # Without its points up to nsys 2024: 57013320 is driver 570.133.20, 5154807 is 515.48.07.
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
            json_included=export.get("EXPORT_PARAM_INCLUDE_JSON", "").lower() == "true",
            blobs_included=export.get("EXPORT_PARAM_INCLUDE_BLOBS", "").lower() == "true",
        )

    def _rows(self, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """The rows of a small table with ``None`` for columns that this version does not have."""
        if table not in self._schema.columns:
            return []
        integrity.check_pages(self._path, self._connection, table)
        chosen = [f'"{name}"' if self._schema.has_column(table, name) else "NULL" for name in columns]
        return self._connection.execute(f'SELECT {", ".join(chosen)} FROM "{table}"').fetchall()

    def _names(self, table: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in self._rows(table, ("name", "value")):
            found.setdefault(str(name), str(value or ""))
        return found

    def _environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in self._rows("META_DATA_CAPTURE", ("name", "value")):
            if not str(name).endswith(":ENVIRONMENT_VARIABLE"):
                continue
            variable, _, content = str(value).partition("=")
            if variable in ENVIRONMENT_WHITELIST:
                found.setdefault(variable, content.strip().strip('"'))
        return found

    def _asked(self) -> tuple[str, ...]:
        asked = set()
        for name, value in self._rows("META_DATA_CAPTURE", ("name", "value")):
            setting = _PROCESS.sub("", str(name))
            if setting == "CAPTURE_EVENT_TYPE":
                asked.add(f"-t {_EVENT_TYPES.get(str(value), str(value).lower())}")
            elif setting in _SETTINGS and value == "true":
                asked.add(_SETTINGS[setting])
            elif setting.startswith("GPU_METRICS_OPTIONS:"):
                asked.add("--gpu-metrics-devices")
            elif setting == "START_TRIGGER" and value != "Immediate":
                asked.add("--capture-range")
        return tuple(sorted(asked))

    def _gpus(self) -> tuple[Gpu, ...]:
        texts = ("name", "uuid", "busLocation", "chipName")
        numbers = ("smCount", "totalMemory", "cuDevice", "numaNodeId", "memoryBandwidth")
        gpus = []
        for number, *values in self._rows("TARGET_INFO_GPU", ("id", *texts, *numbers, *_LIMITS)):
            if isinstance(number, int):
                name, uuid, bus, chip = (str(text or "") for text in values[:4])
                limits = [_integer(value) for value in values[9:]]
                known = [limit for limit in limits if limit is not None and limit > 0]
                holds = Multiprocessor(*known) if len(known) == len(limits) else None
                sms, memory, ordinal, numa, bandwidth = map(_integer, values[4:9])
                gpus.append(Gpu(number, name, uuid, bus, chip, sms, memory, ordinal, numa, holds, bandwidth))
        return tuple(sorted(gpus, key=lambda gpu: gpu.gpu))

    def _blocking_streams(self) -> tuple[BlockingStream, ...]:
        names = ("processId", "contextId", "streamId")
        told = self._rows("TARGET_INFO_CUDA_NULL_STREAM", names)
        told += self._rows("TARGET_INFO_CUDA_CONTEXT_INFO", (*names[:2], "nullStreamId"))  # since 3.7
        rows = [(*row, 3) for row in told]
        rows += self._rows("TARGET_INFO_CUDA_STREAM", (*names, "flag"))
        # cudaStreamDefault, and the default stream itself (CUpti_ActivityStreamFlag); all others are non-blocking.
        found = {tuple(row) for row in rows if row[3] in (1, 3) and all(isinstance(value, int) for value in row)}
        return tuple(BlockingStream(pid, context, stream, flag == 3) for pid, context, stream, flag in sorted(found))

    def _mpi_ranks(self) -> dict[int, int]:
        """Rank by process: a process whose threads say different ranks is left out."""
        ranks: dict[int, set[int]] = {}
        for thread, rank in self._rows("MPI_RANKS", ("globalTid", "rank")):
            if not isinstance(thread, int) or not isinstance(rank, int):
                continue
            ranks.setdefault(process_of(thread), set()).add(rank)
        return {process: next(iter(found)) for process, found in ranks.items() if len(found) == 1}


_PROCESS = re.compile(r"PROCESS_\d+:")
_GVISOR = "4.4.0"
"""The kernel that gVisor claims to be."""


def _sandbox(kernel: str | None) -> str | None:
    if not kernel:
        return None
    return "WSL" if "microsoft" in kernel.lower() else "gVisor" if kernel == _GVISOR else ""


_LIMITS = ("maxWarpsPerSm", "maxBlocksPerSm", "maxRegistersPerSm", "maxShmemPerSm", "computeMajor")
"""The columns of ``Multiprocessor``."""


def _gpu(values: Mapping[str, Any]) -> Gpu:
    """A GPU of `Metadata.to_json`."""
    held = values.get("multiprocessor")
    return Gpu(**{**values, "multiprocessor": None if held is None else Multiprocessor(**held)})


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) else None


_LATEST_CUDA, _MOST_CPUS = 999_999, 999_999
_DRIVER = re.compile(r"\A(\d{3})(\d{2,3})(\d{2})\Z", re.ASCII)


def _cuda_version(raw: str) -> str:
    """12020 is CUDA 12.2; a number that no version will have is missing."""
    if not raw.isdecimal():
        return raw
    number = whole_number(raw, _LATEST_CUDA)
    return "" if number is None else f"{number // 1000}.{number % 1000 // 10}"


def device_rows(facts: Metadata, used: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """Return the rows of the canonical table of devices, for which there is no native table.

    There is a row for each (process, device) of ``used``, and one without a process for each other GPU.
    """
    by_number = {gpu.gpu: gpu for gpu in facts.gpus}
    by_ordinal = {gpu.cuda_device: gpu for gpu in facts.gpus if gpu.cuda_device is not None}
    rows: list[tuple[Any, ...]] = []
    placed = set()
    for process, device in used:
        number = facts.gpu_numbers.get((pid_of(process), device))
        gpu = by_number.get(number) if number is not None else by_ordinal.get(device) or by_number.get(device)
        number = gpu.gpu if gpu else number
        placed.add(number)
        rows.append((process, device, number, *_gpu_facts(gpu)))
    rows += [(None, None, gpu.gpu, *_gpu_facts(gpu)) for gpu in facts.gpus if gpu.gpu not in placed]
    return rows


def _gpu_facts(gpu: Gpu | None) -> tuple[Any, ...]:
    if gpu is None:
        return (None, None, None, None, None, None, None)
    names = (gpu.name or None, gpu.uuid or None, gpu.bus or None, gpu.chip or None)
    return (*names, gpu.sm_count, gpu.total_memory, gpu.numa)
