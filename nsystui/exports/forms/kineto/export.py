"""The export that a trace becomes: its metadata is what the trace says, and nothing that it does not say."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from nsystui.exports.forms.kineto.reading import whole
from nsystui.exports.metadata import MADE_OF
from nsystui.exports.writing.schema import SCHEMAS, TABLES, Tables
from nsystui.exports.writing.target import GLOBAL_VM, CaptureSession
from nsystui.exports.writing.writer import ExportWriter

TRACE: Final = "PyTorch profiler trace"
_NEWEST: Final = next(reversed(SCHEMAS))
# Of a kernel or copy a trace may lack what nsys always has.
_PARTLY_KNOWN: Final = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
)
# Before 2001 nothing was traced: such a number is no time since 1970, but since the machine's start.
_LEAST_UTC, _MOST_UTC = 10**18, 10**19


class TraceExport(ExportWriter):
    """Writes the export of one trace. `facts` are those of the trace, to be set before it is closed."""

    tables: ClassVar[Tables] = Tables(
        {name: text.replace("!", "") if name in _PARTLY_KNOWN else text for name, text in TABLES.items()}
    )
    facts: Mapping[str, Any]

    def __init__(self, path: Path, origin: int, host: str) -> None:
        """`origin`: the time in the trace, ns, that becomes 0. `host`: the name of the machine where that is known."""
        super().__init__(path, _NEWEST, session=CaptureSession(include_json=True))
        self._origin = origin
        self._host = host
        self.facts = {}

    def describe_session(self, duration: int) -> None:
        """Write what the trace says of its session, process group and GPUs."""
        base = whole(self.facts.get("baseTimeNanoseconds")) or 0
        started = base + self._origin
        if _LEAST_UTC <= started < _MOST_UTC:
            moment = datetime.fromtimestamp(started // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=started, utcTime=moment)
        self.add("ANALYSIS_DETAILS", globalVid=GLOBAL_VM, duration=duration, startTime=0, stopTime=duration)
        known = {
            "Hostname": (619, self._host or str(self.facts.get("host_name") or "")),
            "CudaDriverVersion": (611, str(whole(self.facts.get("cuda_driver_version")) or "")),
        }
        for name, (number, value) in known.items():
            if value:
                self.rows("TARGET_INFO_SYSTEM_ENV").append((GLOBAL_VM, "Local (CLI)", name, number, value))
        devices = self.facts.get("deviceProperties")
        for device in devices if isinstance(devices, list) else []:
            if isinstance(device, dict):
                self._describe_gpu(device)

    def _describe_gpu(self, device: Mapping[str, Any]) -> None:
        """Write a GPU. Its number is the ordinal of the process: the machine's own is not in a trace."""
        number = whole(device.get("id"))
        if number is None:
            return
        threads, warp = whole(device.get("maxThreadsPerMultiprocessor")), whole(device.get("warpSize"))
        self.add(
            "TARGET_INFO_GPU",
            vmId=GLOBAL_VM,
            id=number,
            cuDevice=number,
            name=str(device.get("name") or ""),
            totalMemory=whole(device.get("totalGlobalMem")),
            smCount=whole(device.get("numSms")),
            computeMajor=whole(device.get("computeMajor")),
            computeMinor=whole(device.get("computeMinor")),
            threadsPerWarp=warp,
            maxWarpsPerSm=threads // warp if threads and warp else None,
            maxThreadsPerBlock=whole(device.get("maxThreadsPerBlock")),
            maxRegistersPerBlock=whole(device.get("regsPerBlock")),
            maxRegistersPerSm=whole(device.get("regsPerMultiprocessor")),
            maxShmemPerBlock=whole(device.get("sharedMemPerBlock")),
            maxShmemPerBlockOptin=whole(device.get("sharedMemPerBlockOptin")),
            maxShmemPerSm=whole(device.get("sharedMemPerMultiprocessor")),
        )

    def capture_metadata(self, duration: int) -> list[tuple[str, str]]:
        """The rank and the number of ranks as the variables from which PyTorch has them."""
        group = self.facts.get("distributedInfo")
        told = group if isinstance(group, dict) else {}
        known = {"RANK": whole(told.get("rank")), "WORLD_SIZE": whole(told.get("world_size"))}
        variables = [(name, number) for name, number in known.items() if number is not None and number >= 0]
        return [
            *(("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{number}"') for name, number in variables),
            ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
        ]

    def export_metadata(self) -> list[tuple[str, str]]:
        """What the file was made of. The version of nsys is missing, since none was there."""
        return [
            (MADE_OF, TRACE),
            ("EXPORT_SCHEMA_VERSION", self.schema.number),
            ("EXPORT_PARAM_INCLUDE_JSON", "true"),
            ("EXPORT_PARAM_INCLUDE_BLOBS", "false"),
        ]
