"""The demo job as traces of the PyTorch profiler: one trace for each rank, made from the rank's export.

A trace has no calls of the operating system, no samples, and no record at the launch of a group of sends and receives.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, Any, Final

from nsystui.exports.metadata import pid_of, tid_of
from synthetic.demo.nccl import COMMUNICATOR, MESSAGE_SIZE, PEER, RANKS
from synthetic.writing.writer import COPY_KINDS, PUSH_POP, STREAM_WAIT_EVENT

ENDING: Final = ".pt.trace.json.gz"
_COPY_NAMES: Final = {number: name for name, number in COPY_KINDS.items()}
_MEMORY_NAMES: Final = ("Pageable", "Pinned", "Device", "Array", "Managed")
_COLLECTIVES: Final = {
    "ncclAllReduce": "allreduce",
    "ncclAllGather": "_allgather_base",
    "ncclReduceScatter": "_reduce_scatter_base",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
_ELEMENT: Final = 2
"""The bytes of an element of the model: bfloat16."""
# PyTorch counts from its own base time, months before.
_BASE: Final = 1_775_078_550_000_000_000

Row = Mapping[str, Any]


def write_trace(export: Path, target: Path) -> None:
    """Write the trace of a rank of the demo job next to, or instead of, its export."""
    with (
        closing(sqlite3.connect(export)) as connection,
        gzip.open(target, "wt", encoding="utf-8", compresslevel=1) as out,
    ):
        connection.row_factory = sqlite3.Row
        _Writer(connection, out).write()


class _Writer:
    def __init__(self, connection: sqlite3.Connection, out: IO[str]) -> None:
        self._connection = connection
        self._out = out
        ((started,),) = connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        self._shift = started - _BASE
        ((self._process,),) = connection.execute("SELECT globalPid FROM PROCESSES")
        variables = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'PROCESS_0:ENVIRONMENT_VARIABLE'"
        texts = (text.partition("=") for (text,) in connection.execute(variables))
        self._environment = {name: value.strip('"') for name, _, value in texts}

    def write(self) -> None:
        rank, ranks = int(self._environment["RANK"]), int(self._environment["WORLD_SIZE"])
        head = {
            "schemaVersion": 1,
            "deviceProperties": [dict(row) for row in self._rows(_GPUS)],
            "cuda_driver_version": 13000,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": _BASE,
        }
        self._out.write(json.dumps(head, indent=1).removesuffix("\n}") + ',\n "traceEvents": [\n')
        for event in self._events():
            self._out.write(event + ",\n")
        pid = pid_of(self._process)
        name = {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "python"}}
        self._out.write(json.dumps(name) + f'\n ],\n "traceName": "rank{rank}{ENDING}"\n}}\n')

    def _rows(self, query: str) -> Iterator[Row]:
        yield from map(dict, self._connection.execute(query))

    def _events(self) -> Iterator[str]:
        yield from self._ranges()
        yield from self._calls()
        yield from self._gpu_work()
        yield from self._allocations()

    def _event(
        self, category: str, name: str, pid: int, tid: int, start: int, end: int, arguments: Mapping[str, Any]
    ) -> str:
        begin = start + self._shift
        # As text, because a float cannot hold such a number to the ns.
        times = f'"ts": {_microseconds(begin)}, "dur": {_microseconds(end - start)}'
        place = f'"pid": {pid}, "tid": {tid}'
        return (
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, {place}, {times}, '
            f'"args": {json.dumps(arguments)}}}'
        )

    def _on_thread(self, category: str, row: Row, name: str, arguments: Mapping[str, Any]) -> str:
        thread = row["globalTid"]
        return self._event(category, name, pid_of(thread), tid_of(thread), row["start"], row["end"], arguments)

    def _ranges(self) -> Iterator[str]:
        """Annotations and operators, and the record of each collective: from the start to the end of its group."""
        group: int | None = None
        calls: list[dict[str, Any]] = []
        ranks: dict[int, int] = {}  # by communicator
        for number, row in enumerate(self._rows(_RANGES), start=1):
            name = row["name"].partition(", op_id")[0]
            if row["domainId"]:
                said = json.loads(row["jsonText"] or "{}")
                if RANKS in said:
                    ranks[said[COMMUNICATOR]] = said[RANKS]
                elif name == "ncclGroupStart":
                    group, calls = row["start"], []
                elif name == "ncclGroupEnd" and group is not None and len(calls) == 1:
                    whole = {**calls[0], "start": group, "end": row["end"]}
                    yield self._on_thread("cpu_op", whole, *_record(whole))
                elif name == "ncclGroupEnd":
                    yield from (self._on_thread("cpu_op", call, *_record(call)) for call in calls)
                elif name in _COLLECTIVES:
                    calls.append({**row, "name": name, "said": said, "ranks": ranks[said[COMMUNICATOR]]})
                continue
            is_operator = "::" in name or name.endswith("Backward0")
            name = name.replace("step ", "ProfilerStep#") if name.startswith("step ") else name
            yield self._on_thread("cpu_op" if is_operator else "user_annotation", row, name, {"External id": number})

    def _calls(self) -> Iterator[str]:
        for row in self._rows(_CALLS):
            category = "cuda_driver" if row["eventClass"] else "cuda_runtime"
            arguments = {"cbid": 0, "correlation": row["correlationId"]}
            yield self._on_thread(category, row, row["name"].partition("_v")[0], arguments)

    def _gpu_work(self) -> Iterator[str]:
        for row in self._rows(_KERNELS):
            yield self._on_gpu("kernel", row, row["name"], {
                "registers per thread": row["registersPerThread"],
                "shared memory": row["staticSharedMemory"] + row["dynamicSharedMemory"],
                "grid": [row["gridX"], row["gridY"], row["gridZ"]],
                "block": [row["blockX"], row["blockY"], row["blockZ"]],
                "graph node id": row["graphNodeId"] or 0,
            })  # fmt: skip
        for row in self._rows("SELECT * FROM CUPTI_ACTIVITY_KIND_MEMCPY"):
            memory = f"{_MEMORY_NAMES[row['srcKind']]} -> {_MEMORY_NAMES[row['dstKind']]}"
            name = f"Memcpy {_COPY_NAMES[row['copyKind']]} ({memory})"
            yield self._on_gpu("gpu_memcpy", row, name, {"bytes": row["bytes"]})
        for row in self._rows("SELECT * FROM CUPTI_ACTIVITY_KIND_MEMSET"):
            name = f"Memset ({_MEMORY_NAMES[row['memKind']]})"
            yield self._on_gpu("gpu_memset", row, name, {"bytes": row["bytes"]})
        for row in self._rows("SELECT * FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
            name = "Stream Wait Event" if row["syncType"] == STREAM_WAIT_EVENT else "Stream Sync"
            yield self._on_gpu("cuda_sync", row, name, {"cuda_sync_kind": name})

    def _on_gpu(self, category: str, row: Row, name: str, arguments: Mapping[str, Any]) -> str:
        device, stream = row["deviceId"], row["streamId"]
        known = {"device": device, "context": row["contextId"], "stream": stream, "correlation": row["correlationId"]}
        return self._event(category, name, device, stream, row["start"], row["end"], {**known, **arguments})

    def _allocations(self) -> Iterator[str]:
        for row in self._rows("SELECT * FROM CUDA_GPU_MEMORY_USAGE_EVENTS WHERE memKind = 2"):
            size = -row["bytes"] if row["memoryOperationType"] else row["bytes"]
            arguments = {"Device Type": 1, "Device Id": row["deviceId"], "Bytes": size, "Addr": row["address"]}
            pid, time = pid_of(self._process), _microseconds(row["start"] + self._shift)
            yield (
                f'{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": {pid}, "tid": {pid}, '
                f'"ts": {time}, "args": {json.dumps(arguments)}}}'
            )


def _microseconds(time: int) -> str:
    return f"{time // 1000}.{time % 1000:03d}"


def _record(call: Row) -> tuple[str, dict[str, Any]]:
    """PyTorch's own name and arguments for a collective."""
    said, function, ranks = call["said"], call["name"], call["ranks"]
    elements = said[MESSAGE_SIZE] // _ELEMENT
    taken = elements * ranks if function == "ncclReduceScatter" else elements
    given = elements * ranks if function == "ncclAllGather" else elements
    return "record_param_comms", {
        "Collective name": _COLLECTIVES[function], "dtype": "BFloat16", "In msg nelems": taken,
        "Out msg nelems": given, "In split size": "[]", "Out split size": "[]", "Group size": ranks,
        "Process Group Name": str(said[COMMUNICATOR]), "Process Group Ranks": str(list(range(ranks))),
        "Rank": said.get(PEER, 0),
    }  # fmt: skip


_GPUS: Final = """
    SELECT id, name, totalMemory AS totalGlobalMem, smCount AS numSms, computeMajor, computeMinor,
        maxThreadsPerBlock, maxWarpsPerSm * threadsPerWarp AS maxThreadsPerMultiprocessor,
        maxRegistersPerBlock AS regsPerBlock, threadsPerWarp AS warpSize, maxShmemPerBlock AS sharedMemPerBlock,
        maxRegistersPerSm AS regsPerMultiprocessor, maxShmemPerBlockOptin AS sharedMemPerBlockOptin,
        maxShmemPerSm AS sharedMemPerMultiprocessor
    FROM TARGET_INFO_GPU"""
_RANGES: Final = f"""
    SELECT n.start, n.end, n.globalTid, n.domainId, coalesce(n.text, s.value) AS name, n.jsonText
    FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId
    WHERE n.eventType = {PUSH_POP} ORDER BY n.start"""
_CALLS: Final = """
    SELECT r.*, s.value AS name FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId
    ORDER BY r.start"""
_KERNELS: Final = """
    SELECT k.*, s.value AS name FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
    ORDER BY k.start"""
