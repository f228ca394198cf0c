"""The export that a trace becomes: only tables and columns that nsystui reads and a trace can fill."""

import sqlite3
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self

from nsystui.exports.forms.kineto.reading import to_integer
from nsystui.exports.metadata import MADE_OF

TRACE: Final = "PyTorch profiler trace"
MACHINE: Final = 1 << 48
"""The machine's bits of a process id, as in every export seen."""

# A time before 2001 counts from the start of the machine, not from 1970.
_LEAST_UTC, _MOST_UTC = 10**18, 10**19
_GPU_WORK: Final = "start end globalPid deviceId contextId greenContextId streamId correlationId"
_TABLES: Final = {
    "StringIds": "id value:T",
    "TARGET_INFO_SYSTEM_ENV": "name:T value:T",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "ANALYSIS_DETAILS": "duration",
    "PROCESSES": "globalPid pid name:T",
    "ThreadNames": "nameId priority globalTid",
    "DIAGNOSTIC_EVENT": "timestamp severity text:T",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid eventClass correlationId nameId returnValue",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_GPU_WORK} demangledName shortName registersPerThread gridX gridY gridZ blockX blockY blockZ "
        "staticSharedMemory dynamicSharedMemory graphNodeId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_GPU_WORK} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_GPU_WORK} bytes memKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_GPU_WORK} syncType eventId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "globalPid deviceId contextId greenContextId streamId correlationId eventId",
    "NVTX_EVENTS": "start end globalTid eventType text:T textId domainId jsonText:T",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start globalPid deviceId address bytes memKind memoryOperationType",
    "TARGET_INFO_GPU": (
        "id cuDevice name:T totalMemory smCount computeMajor computeMinor threadsPerWarp maxWarpsPerSm "
        "maxThreadsPerBlock maxRegistersPerBlock maxRegistersPerSm maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm"
    ),
    "META_DATA_CAPTURE": "name:T value:T",
    "META_DATA_EXPORT": "name:T value:T",
}
"""Each table's columns, in order: integers, except text (``:T``)."""
_TYPES: Final = ("INTEGER", "TEXT")
_ALWAYS: Final = ("StringIds", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS")


class TraceExport:
    """The export of one trace, completed at the end of a ``with`` statement, or removed after an error.

    Set `facts`, the trace's facts, inside the statement. Rows wait in memory until `flush`.
    """

    def __init__(self, path: Path, origin: int, host: str) -> None:
        """`origin`: the time in the trace, ns, that becomes 0. `host`: the machine's name, if known."""
        self.facts: Mapping[str, Any] = {}
        self._path = path
        self._origin = origin
        self._host = host
        self._last_time = 0
        self._strings: dict[str, int] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _ALWAYS}
        path.unlink(missing_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("BEGIN")

    def add(self, table: str, *values: int | str | None) -> None:
        """Add a row: a value for each column of the table."""
        self._rows.setdefault(table, []).append(values)

    def intern(self, text: str) -> int:
        """Return the id of a text in ``StringIds``, which has each text once."""
        number = self._strings.get(text)
        if number is None:
            number = self._strings[text] = len(self._strings) + 1
            self.add("StringIds", number, text)
        return number

    def flush(self) -> None:
        """Write the waiting rows, each table's by start."""
        for table, rows in self._rows.items():
            columns = _TABLES[table].split()
            typed = [f"{column.removesuffix(':T')} {_TYPES[column.endswith(':T')]}" for column in columns]
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(typed)})")
            if rows and columns[0] == "start":
                rows.sort(key=itemgetter(0))
                self._last_time = max(self._last_time, rows[-1][0])
                if columns[1] == "end":
                    self._last_time = max(self._last_time, *(row[1] or 0 for row in rows))
            self._connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
            rows.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self.flush()
                self._describe_session()
                self.flush()
                self._connection.execute("COMMIT")
        finally:
            self._connection.close()
            if error is not None:
                self._path.unlink(missing_ok=True)

    def _describe_session(self) -> None:
        """Add the session, process group and GPUs of the trace, and the export's origin."""
        started = (to_integer(self.facts.get("baseTimeNanoseconds")) or 0) + self._origin
        if _LEAST_UTC <= started < _MOST_UTC:
            self.add("TARGET_INFO_SESSION_START_TIME", started)
        self.add("ANALYSIS_DETAILS", self._last_time)
        cuda_version = to_integer(self.facts.get("cuda_driver_version")) or ""
        for name, value in {
            "Hostname": self._host or str(self.facts.get("host_name") or ""),
            "CudaDriverVersion": str(cuda_version),
        }.items():
            if value:
                self.add("TARGET_INFO_SYSTEM_ENV", name, value)
        devices = self.facts.get("deviceProperties")
        for device in devices if isinstance(devices, list) else []:
            if isinstance(device, dict):
                self._describe_gpu(device)
        # PyTorch reads rank and number of ranks from these variables.
        group = self.facts.get("distributedInfo")
        for name, key in (("RANK", "rank"), ("WORLD_SIZE", "world_size")):
            number = to_integer(group.get(key)) if isinstance(group, dict) else None
            if number is not None and number >= 0:
                self.add("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{number}"')
        self.add("META_DATA_CAPTURE", "CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")
        # Without a version of nsys, which was not used.
        self.add("META_DATA_EXPORT", MADE_OF, TRACE)
        self.add("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION", "3.28.1")
        self.add("META_DATA_EXPORT", "EXPORT_PARAM_INCLUDE_JSON", "true")
        self.add("META_DATA_EXPORT", "EXPORT_PARAM_INCLUDE_BLOBS", "false")

    def _describe_gpu(self, device: Mapping[str, Any]) -> None:
        """Add a GPU by its ordinal in the process: traces lack the machine's number."""
        number = to_integer(device.get("id"))
        if number is None:
            return
        threads, warp = to_integer(device.get("maxThreadsPerMultiprocessor")), to_integer(device.get("warpSize"))
        self.add(
            "TARGET_INFO_GPU",
            number,
            number,
            str(device.get("name") or ""),
            *(to_integer(device.get(key)) for key in ("totalGlobalMem", "numSms", "computeMajor", "computeMinor")),
            warp,
            threads // warp if threads and warp else None,
            *(to_integer(device.get(key)) for key in ("maxThreadsPerBlock", "regsPerBlock", "regsPerMultiprocessor")),
            *(to_integer(device.get(f"sharedMemPer{of}")) for of in ("Block", "BlockOptin", "Multiprocessor")),
        )
