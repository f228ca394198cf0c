"""NCCL programs, written call by call; an export may have many small programs."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from .demo import CaptureSession as Capture
from .demo import NcclPayloads, Thread
from .demo.nccl import encode_payload, payload_schema
from .shapes import PAYLOAD_BYTES
from .writer import ExportWriter

COMM, SIZE, REDUCTION = "NCCL communicator ID", "Message size [bytes]", "Reduction operation"
ROOT, PEER = "Root", "Peer rank"
RANKS, RANK, DEVICE = "No. of ranks", "Rank", "CUDA device"
A, B = 0xA0, 0xB0
REDUCE = "AllReduce"


class NcclProgram:
    """Writes what an NCCL program does; every event starts 10 µs after the previous event unless it is inside it."""

    def __init__(self, path: Path, layout: NcclPayloads = NcclPayloads.SINCE_2_25, domain: bool = True) -> None:
        self.export = ExportWriter(path, session=Capture(include_json=True))
        self.layout = layout
        self.process = self.export.process(5000, "python")
        self.main = self.thread(5000)
        self.now = 1_000_000
        self.correlation = count(1)
        if domain:
            self.export.nvtx_domain(self.main, 0, 1, "NCCL")
        functions = ["ncclCommInitRankConfig", *PAYLOAD_BYTES]
        if layout is NcclPayloads.SINCE_2_25:
            functions += ["ncclAlltoAll", "ncclGather", "ncclScatter"]
        self.export.payload_schemas(1, [payload_schema(function, layout) for function in functions])

    def thread(self, tid: int) -> Thread:
        return self.export.thread(self.process, tid, f"thread {tid}")

    def call(
        self, name: str, *, launches: int = 0, stream: int = 20, thread: Thread | None = None, open_end: bool = False,
        kernel: str = "SendRecv", **told: Any,
    ) -> None:  # fmt: skip
        """Write an NCCL call of 8 µs, with a payload if it has fields, and the kernels launched in it."""
        thread = thread or self.main
        start = self.now
        self.now += 10_000
        payload = None
        if told:
            values = {COMM: told.get("comm", A), SIZE: told.get("size", 0), REDUCTION: 0, ROOT: told.get("root", 0)}
            values |= {PEER: told.get("peer", 0), RANKS: told.get("ranks", 0), RANK: 0, DEVICE: 0}
            payload = encode_payload(name, self.layout, values, domain_id=1)
        end = None if open_end else start + 8_000
        self.export.nvtx_range(thread, start, end, name, domain_id=1, registered=True, payload=payload)
        for number in range(launches):
            self.launch(start + 1_000 + 2_000 * number, thread, stream + number, kernel)

    def launch(self, start: int, thread: Thread, stream: int, kernel: str, *, with_call: bool = True) -> None:
        """Write a kernel, launched at ``start`` (by a call of 1 µs), that runs 20 µs later for 5 µs."""
        correlation = next(self.correlation)
        if with_call:
            self.export.api(thread, start, start + 1_000, "cudaLaunchKernelExC_v11060", correlation)
        begin = start + 20_000
        name = kernel if kernel.startswith("nccl") else f"ncclDevKernel_{kernel}_RING_LL(ncclDevComm *)"
        self.export.kernel(self.process, 0, stream, begin, begin + 5_000, name=name, correlation_id=correlation)

    def group(self, *calls: Sequence[Any], launches: int = 1, stream: int = 20, kernel: str = "SendRecv") -> None:
        """Write a group of (name, size, communicator) calls that launches kernels when it ends."""
        self.call("ncclGroupStart")
        for name, *told in calls:
            self.call(name, **dict(zip(("size", "comm"), told, strict=False)))
        self.call("ncclGroupEnd", launches=launches, stream=stream, kernel=kernel)

    def label(self, text: str, start: int, thread: Thread | None = None) -> None:
        """Write a PyTorch label from ``start`` up to now."""
        self.export.nvtx_range(thread or self.main, start, self.now, text)

    def compute(self, start: int, end: int, *, device: int = 0, stream: int = 7) -> None:
        """Write a kernel that is not NCCL's."""
        self.export.kernel(
            self.process, device, stream, start, end, name="gemm(float *)", correlation_id=next(self.correlation)
        )


class NcclProcess(NcclProgram):
    """A program among others in one export; the same times, ids and communicators may occur in each.

    A fact about a communicator in one program holds in the others, too.
    """

    def __init__(self, first: NcclProgram, number: int) -> None:
        self.export, self.layout = first.export, first.layout
        pid = 6000 + 100 * number
        self.process = self.export.process(pid, "python")
        self.main, self.helper = self.thread(pid), self.thread(pid + 1)
        self.now, self.correlation = 1_000_000, count(1)
        self.export.nvtx_domain(self.main, 0, 1, "NCCL")

    def reduce(self, size: int, **told: Any) -> None:
        """Write an AllReduce, by default with its kernel."""
        self.call("ncclAllReduce", size=size, **{"launches": 1, "kernel": REDUCE} | told)

    def graph_kernel(self) -> None:
        """Write an AllReduce kernel of a CUDA graph that is launched now."""
        self.export.api(self.main, self.now, self.now + 1_000, "cudaGraphLaunch_v10000", 99)
        times, name = (self.now + 5_000, self.now + 9_000), "ncclDevKernel_AllReduce(int)"
        self.export.kernel(self.process, 0, 20, *times, name=name, correlation_id=99, graph_node_id=7)
