"""An NCCL program in an export of its own, written call by call, used by the tests of NCCL's tables."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from support import session_over
from synthetic import PAYLOAD_BYTES, ExportWriter
from synthetic.demo import CaptureSession as Capture
from synthetic.demo import NcclPayloads, Thread
from synthetic.demo.nccl import encode_payload, payload_schema

from nsystui.base.answer import TableAnswer
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.queries.tasks import ranked_tasks

COMM, SIZE, REDUCTION = "NCCL communicator ID", "Message size [bytes]", "Reduction operation"
ROOT, PEER = "Root", "Peer rank"
RANKS, RANK, DEVICE = "No. of ranks", "Rank", "CUDA device"
A, B = 0xA0, 0xB0


class Program:
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

    def pairing(self) -> NcclPairing:
        self.export.close()
        return pairing_of(self.export.path)

    def job(self) -> OpenJob:
        self.export.close()
        return job_of(self.export.path)


def pairing_of(*paths: Path) -> NcclPairing:
    session = session_over(*paths)
    try:
        return NcclPairing.load(session, ranked_tasks(session))
    finally:
        session.close()


def job_of(*paths: Path) -> OpenJob:
    """Open exports as a job, which the caller must close."""
    return OpenJob(session_over(*paths))


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return some columns as tuples, missing values as None."""
    plain = [frame[column].astype(object).where(frame[column].notna(), None) for column in columns]
    return list(zip(*plain, strict=True))


def values(answer: TableAnswer, *keys: str) -> list[tuple[Any, ...]]:
    """Return some columns of an answer, row by row."""
    return list(zip(*(answer.cells(key) for key in keys), strict=True))
