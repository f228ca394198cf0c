"""The metadata of a synthetic export: session, machine, GPUs, processes and the command that was profiled."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from nsystui.exports.metadata import process_id
from synthetic.writing.sink import TableSink

VIRTUAL_MACHINE: Final = 1
GLOBAL_VM: Final = VIRTUAL_MACHINE << 48
"""``globalVid`` of the profiled machine, as in every export seen."""
DEFAULT_STREAM: Final = 7
"""The null stream of a CUDA context, as in every export seen."""

_MACHINE_START = 1_779_999_971_745_650_395
"""UTC ns at which every machine of the demo was started."""


@dataclass(frozen=True, slots=True)
class Process:
    """A profiled process: its pid and the ``globalPid`` that the tables hold."""

    pid: int
    name: str

    @property
    def global_id(self) -> int:
        """``globalPid``."""
        return process_id(self.pid, GLOBAL_VM)


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of a profiled process; `global_id` is the ``globalTid`` that the tables hold."""

    process: Process
    tid: int
    name: str
    global_id: int


@dataclass(frozen=True)
class GpuModel:
    """The row of ``TARGET_INFO_GPU`` for a kind of GPU; memory in bytes, bandwidth in bytes/s, clock in Hz."""

    name: str = "NVIDIA H100 80GB HBM3"
    chip: str = "GH100"
    memory: int = 85_014_413_312
    bandwidth: int = 3_352_320_000_000
    clock: int = 1_980_000_000
    multiprocessors: int = 132
    l2_cache: int = 52_428_800
    compute: tuple[int, int] = (9, 0)


H100: Final = GpuModel()


@dataclass(frozen=True)
class CaptureSession:
    """The circumstances of the capture, and the options of the export."""

    hostname: str = "node001"
    utc_epoch_ns: int = 1_780_000_000_000_000_000
    """UTC of the session's t = 0."""
    duration: int | None = None
    """Length of the session in ns; None: up to the last event."""
    command: tuple[str, ...] = ("python", "train.py")
    environment: Mapping[str, str] = field(default_factory=dict)
    event_types: tuple[str, ...] | None = None
    """The requested kinds of events; None: the kinds with rows."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further lines of META_DATA_CAPTURE."""
    kernel: str | None = None
    """Release of the operating system's kernel."""
    graph_mode: str = "Graph"
    """``Graph`` (whole launches) or ``Node``: how CUDA graphs were traced."""
    driver_version: str = "580.95.05"
    cuda_driver_version: str = "13000"
    sampling_period: int | None = None
    """ns on a CPU between two samples of a thread; None: no samples are taken, and no scheduling recorded."""
    include_json: bool = False
    """``--include-json=true``: payloads as ``jsonText``."""
    include_blobs: bool = False
    """``--include-blobs=true``: payloads as ``binaryData``."""


class TargetInfo(TableSink):
    """The part of the writer for everything that is not an event."""

    session: CaptureSession

    def process(self, pid: int, name: str = "python") -> Process:
        """Declare a process."""
        process = Process(pid, name)
        self.rows("PROCESSES").append((process.global_id, pid, name))
        return process

    def thread(self, process: Process, tid: int, name: str, priority: int = 20) -> Thread:
        """Declare a named thread of `process`."""
        thread = Thread(process, tid, name, process.global_id | tid)
        self.rows("ThreadNames").append((self.intern(name), priority, thread.global_id))
        return thread

    def output(self, process: Process, text: str, stream: str = "stdout") -> None:
        """Write the text that a process printed, as a file of nsys."""
        file = f"/tmp/nvidia/nsight_systems/streams/pid_{process.pid}_{stream}.log"
        self.rows("ProcessStreams").append((process.global_id, self.intern(file), self.intern(text)))

    def gpu(self, gpu_id: int, model: GpuModel = H100) -> str:
        """Declare a GPU of the machine (`gpu_id` is the system's number, not CUDA's); returns its UUID.

        The UUID follows from the host name and the number, so that it is the same in all reports from that host.
        """
        uuid = _uuid(f"{self.session.hostname}/{gpu_id}")
        described: dict[str, int | str] = {
            "vmId": GLOBAL_VM, "id": gpu_id, "name": model.name, "busLocation": f"0000:{0x19 + 34 * gpu_id:02x}:00.0",
            "isDiscrete": 1, "l2CacheSize": model.l2_cache, "totalMemory": model.memory,
            "memoryBandwidth": model.bandwidth, "clockRate": model.clock, "smCount": model.multiprocessors,
            "pwGpuId": gpu_id, "uuid": uuid, "luid": 0, "chipName": model.chip, "cuDevice": gpu_id, "revision": 161,
            "nodeMask": 0, "constantMemory": 65536, "maxIPC": 4, "maxRegistersPerBlock": 65536,
            "maxShmemPerBlock": 49152, "maxShmemPerBlockOptin": 232448, "maxShmemPerSm": 233472,
            "maxRegistersPerSm": 65536, "threadsPerWarp": 32, "asyncEngines": 3, "maxWarpsPerSm": 64,
            "maxBlocksPerSm": 32, "maxThreadsPerBlock": 1024, "maxBlockDimX": 1024, "maxBlockDimY": 1024,
            "maxBlockDimZ": 64, "maxGridDimX": 2147483647, "maxGridDimY": 65535, "maxGridDimZ": 65535,
            "computeMajor": model.compute[0], "computeMinor": model.compute[1], "smMajor": model.compute[0],
            "smMinor": model.compute[1], "numaNodeId": gpu_id // 4,
        }  # fmt: skip
        self.add("TARGET_INFO_GPU", **described)
        return uuid

    def cuda_device(self, process: Process, cuda_id: int, gpu_id: int, model: GpuModel = H100) -> None:
        """Say which GPU is CUDA device `cuda_id` of `process`. Before schema 3.20 nothing is written."""
        if self.has("TARGET_INFO_CUDA_DEVICE"):
            uuid = _uuid(f"{self.session.hostname}/{gpu_id}")
            row = (gpu_id, cuda_id, process.pid, uuid, model.multiprocessors)
            self.rows("TARGET_INFO_CUDA_DEVICE").append(row)

    def cuda_context(self, process: Process, device: int = 0, context: int = 1) -> None:
        """Declare a CUDA context with its null stream."""
        stream = (DEFAULT_STREAM, 0, VIRTUAL_MACHINE, process.pid, device, context)
        if self.has("TARGET_INFO_CUDA_NULL_STREAM"):
            self.rows("TARGET_INFO_CUDA_NULL_STREAM").append(stream)
        else:
            self.rows("TARGET_INFO_CUDA_CONTEXT_INFO").append((*stream, 0, 0, *[None] * 6))

    def cuda_stream(self, process: Process, stream: int, *, context: int = 1, device: int = 0, name: str = "") -> None:
        """Declare a non-blocking CUDA stream; the program gives it a `name` through NVTX."""
        self.rows("TARGET_INFO_CUDA_STREAM").append((stream, 0, VIRTUAL_MACHINE, process.pid, context, 0, 2))
        if name:
            row = (name, 0, VIRTUAL_MACHINE, process.pid, device, context, stream)
            self.rows("TARGET_INFO_NVTX_CUDA_STREAM").append(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the file; remove it after an error, because half an export is worse than none."""
        if error is None:
            self.close()
        else:
            self.discard()

    def close(self) -> None:
        """Write waiting rows, the session's facts and the metadata, and finish the file."""
        self.flush()
        duration = self.last_timestamp if self.session.duration is None else self.session.duration
        self.describe_session(duration)
        self.flush()
        self.write_enums()
        if self.has("META_DATA_CAPTURE"):
            self.rows("META_DATA_CAPTURE").extend(self.capture_metadata(duration))
        if self.schema.has_export_metadata:
            table = "META_DATA_EXPORT" if self.has("META_DATA_EXPORT") else "EXPORT_META_DATA"
            self.rows(table).extend(self.export_metadata())
        self.flush()
        self.commit()

    def describe_session(self, duration: int) -> None:
        """Write the facts of the session, whose length is `duration`, and of the machine."""
        session = self.session
        moment = datetime.fromtimestamp(session.utc_epoch_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        # The machine's own clock, since its start: it must never be mixed with event times.
        system_clock = session.utc_epoch_ns - _MACHINE_START
        start = (session.utc_epoch_ns, moment, moment, system_clock, system_clock)
        self.rows("TARGET_INFO_SESSION_START_TIME").append(start)
        self.rows("ANALYSIS_DETAILS").append((GLOBAL_VM, duration, system_clock, system_clock + duration))
        properties = {
            "CpuCores": (1, "96"), "CpuArchitecture": (3, "x86_64"), "NvDriverVersion": (205, session.driver_version),
            "OsDescription": (605, "Ubuntu 22.04.5 LTS"), "CudaDriverVersion": (611, session.cuda_driver_version),
            "Hostname": (619, session.hostname), "HasCudaEvents": (812, "1"),
        }  # fmt: skip
        if session.kernel is not None:
            properties["SoftwareReleaseVersion"] = (606, session.kernel)
        for name, (number, value) in properties.items():
            self.rows("TARGET_INFO_SYSTEM_ENV").append((GLOBAL_VM, "Local (CLI)", name, number, value))

    def capture_metadata(self, duration: int) -> list[tuple[str, str]]:
        """Return names and values of ``META_DATA_CAPTURE``: how the session was recorded."""
        session = self.session
        graph_mode = "CUDA_GRAPH_TRACE_OPTIONS:MODE"
        if self.version < (3, 22):
            graph_mode = f"PROCESS_0:{graph_mode}"
        arguments = [(f"PROCESS_0:ARGUMENT_{n}", text) for n, text in enumerate(session.command[1:])]
        variables = [
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"') for name, value in session.environment.items()
        ]
        perf = {}
        if session.sampling_period is not None:
            perf = {
                "COLLECT_CPU_CTXSW_TRACE": "true", "SAMPLING_PERIOD": str(session.sampling_period),
                "COLLECT_IP_BACKTRACE_SAMPLES": "true", "SAMPLES_PER_BACKTRACE": "1", "CPU_IP_TRIGGER_TYPE": "Software",
            }  # fmt: skip
        event_types = session.event_types
        if event_types is None:
            signs = {"OSRuntime": "OSRT_API", "NvtxEvents": "NVTX_EVENTS", "Cuda": "CUPTI_ACTIVITY_KIND_"}
            event_types = tuple(kind for kind, sign in signs.items() if any(map(re.compile(sign).match, self.filled)))
        return [
            ("DEVICE_ID", "Local (CLI)"),
            *(("CAPTURE_EVENT_TYPE", kind) for kind in event_types),
            *session.settings.items(),
            ("START_TRIGGER", "Immediate"),
            ("STOP_TRIGGER", "Delayed"),
            ("DEVICE_DISPLAY_NAME", session.hostname),
            ("PROCESS_0:HOW_TO_ATTACH", "LaunchAnother"),
            ("PROCESS_0:COMMAND", session.command[0]),
            *arguments,
            ("PROCESS_0:WORKING_DIR", "/home/demo/llm"),
            *variables,
            (graph_mode, session.graph_mode),
            *((f"LINUX_PERF_OPTIONS:{name}", value) for name, value in perf.items()),
            ("RUN_DURATION_MS", str(duration // 1_000_000)),
        ]

    def export_metadata(self) -> list[tuple[str, str]]:
        """Return names and values of ``META_DATA_EXPORT``: how the file was written."""
        session, schema = self.session, self.schema
        major, minor, micro = schema.number.split(".")
        options = []
        if self.version >= (3, 22):
            options = [
                ("EXPORT_PARAM_INCLUDE_JSON", str(session.include_json).lower()),
                ("EXPORT_PARAM_INCLUDE_BLOBS", str(session.include_blobs).lower()),
            ]
        # The oldest form of the table calls its options EXPORT_LAZY, not EXPORT_PARAM_LAZY.
        prefix = "EXPORT_" if self.version < (3, 4) else "EXPORT_PARAM_"
        return [
            ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
            ("EXPORT_PRODUCT_VERSION", schema.product),
            ("EXPORT_SCHEMA_VERSION", schema.number),
            ("EXPORT_SCHEMA_VERSION_MAJOR", major),
            ("EXPORT_SCHEMA_VERSION_MINOR", minor),
            ("EXPORT_SCHEMA_VERSION_MICRO", micro),
            ("EXPORT_PLATFORM", "linux-desktop"),
            ("EXPORT_ARCH", "x64"),
            ("EXPORT_TIME_UTC", "2026-06-01T12:00:00"),
            (f"{prefix}INPUT_FILE", f"{self.path.stem}.nsys-rep"),
            (f"{prefix}INPUT_PATH_ABS", f"/home/demo/llm/{self.path.stem}.nsys-rep"),
            (f"{prefix}LAZY", str(self.lazy).lower()),
            *options,
        ]


def _uuid(seed: str) -> str:
    digest = hashlib.md5(seed.encode(), usedforsecurity=False).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))
