"""One rank of the demo job: a CPU timeline that launches, streams that execute later, and NCCL that waits for peers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from random import Random
from typing import Final, NamedTuple

from .catalog import KernelSpec, nccl_kernel
from .cuda import DEVICE, DRIVER_CALL, PAGEABLE, PINNED, STREAM_SYNC, STREAM_WAIT_EVENT
from .nccl import COMMUNICATOR, NcclPayloads, encode_payload
from .nvtx import NvtxPayload
from .sampling import Activity
from .target import DEFAULT_STREAM, Process, Thread
from .writer import ExportWriter

COPY_STREAM: Final = 24
NCCL_DOMAIN_ID: Final = 1
_STREAM_WAIT: Final = "cudaStreamWaitEvent_v3020"


class Arrival(NamedTuple):
    """A rank is ready for a collective: which ranks take part, since when it is ready, how long data will move.

    Times are ns: `ready` on the true clock that all ranks share, `transfer` a duration.
    """

    members: tuple[int, ...]
    ready: int
    transfer: int


Program = Generator[Arrival, int, None]
"""What a rank does; at each collective it yields its arrival and is sent the true time at which the collective ends."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """An NCCL communicator: its hash, the ranks in it, the stream it works on and its bandwidth in bytes/s."""

    hash: int
    members: tuple[int, ...]
    stream: int
    bandwidth: float

    def transfer(self, moved: float) -> int:
        """ns to move `moved` bytes through the slowest link."""
        return int(18_000 + 1e9 * moved / self.bandwidth)


class NcclCall(NamedTuple):
    """One NCCL API call and what its payload tells."""

    function: str
    values: Mapping[str, int]


@dataclass
class RankTimeline:
    """The state of one rank while its program runs. All times inside are ns on the true clock shared by the ranks."""

    rank: int
    export: ExportWriter
    process: Process
    main: Thread
    autograd: Thread
    origin: int
    """True time of the session's t = 0."""
    speed: float
    """Factor on the duration of compute kernels: 1.15 is a slow GPU."""
    payloads: NcclPayloads
    random: Random
    device: int = 0
    cpu: int = 0
    correlation: int = 0
    operation: int = 0
    free: dict[int, int] = field(default_factory=dict)
    """When each stream has done everything submitted to it."""
    activity: Activity = field(default_factory=Activity)

    def __post_init__(self) -> None:
        self.thread = self.main
        self.cpu = self.origin + 400_000

    def local(self, time: int) -> int:
        """A true time on the clock of this rank's report."""
        return time - self.origin

    def work(self, microseconds: float) -> None:
        """The CPU is busy with something that nobody traces."""
        self.cpu += int(1000 * microseconds * self.random.uniform(0.85, 1.15))

    @contextmanager
    def range(
        self, text: str, *, domain_id: int = 0, registered: bool = False, payload: NvtxPayload | None = None
    ) -> Iterator[None]:
        """An NVTX push/pop range on the current thread around what is done inside."""
        start, thread = self.cpu, self.thread
        self.work(0.4)
        yield
        self.work(0.3)
        self.export.nvtx_range(
            thread, self.local(start), self.local(self.cpu), text,
            domain_id=domain_id, registered=registered, payload=payload,
        )  # fmt: skip

    def operator(self, name: str) -> str:
        """The label PyTorch gives an operator call, with the running number."""
        self.operation += 1
        return f"{name}, op_id = {self.operation}"

    @contextmanager
    def on_autograd_thread(self) -> Iterator[None]:
        """The backward pass: another thread launches while the main thread waits for it."""
        start = self.cpu
        self.thread = self.autograd
        yield
        self.thread = self.main
        self.export.osrt(self.main, self.local(start + 900), self.local(self.cpu - 400), "pthread_cond_wait")

    def call(self, name: str, microseconds: float, *, event_class: int = 0) -> int:
        """A CUDA API call of about that length; returns its correlation id."""
        self.correlation += self.random.randint(1, 4)
        start = self.cpu
        self.work(microseconds)
        start_local, end_local = self.local(start), self.local(self.cpu)
        self.export.api(self.thread, start_local, end_local, name, self.correlation, event_class=event_class)
        return self.correlation

    def block(self, name: str, *, until: int) -> int:
        """A CUDA API call from now until the given true time; returns its correlation id."""
        self.correlation += 1
        start_local, self.cpu = self.local(self.cpu), until
        self.export.api(self.thread, start_local, self.local(until), name, self.correlation)
        return self.correlation

    def launch(self, spec: KernelSpec, stream: int = DEFAULT_STREAM) -> None:
        """Launch one kernel; it starts when the GPU has received it and its stream is free."""
        self.work(3.5)
        name, event_class = spec.launch
        if event_class == DRIVER_CALL:
            self.call("cuKernelGetAttribute", 0.4, event_class=DRIVER_CALL)
        correlation = self.call(name, 5.5, event_class=event_class)
        start = self._earliest(stream)
        end = start + int(1000 * spec.microseconds * self.speed * self.random.uniform(0.97, 1.03))
        self._execute(spec, stream, start, end, correlation)
        self.activity.compute(self.local(start), self.local(end), spec.tensor, spec.dram)

    def launch_all(self, kernels: Sequence[KernelSpec]) -> None:
        """Launch kernels one after the other, each operator in its NVTX range."""
        for label, specs in groupby(kernels, key=lambda spec: spec.label):
            with self.range(self.operator(label)):
                for spec in specs:
                    self.launch(spec)

    def copy(self, kind: str, size: int, *, stream: int = DEFAULT_STREAM, pinned: bool = True) -> None:
        """Copy `size` bytes asynchronously; `kind` is HtoD, DtoH or DtoD."""
        correlation = self.call("cudaMemcpyAsync_v3020", 6.5)
        gigabytes_per_second = {"HtoD": 24.0 if pinned else 9.0, "DtoH": 22.0, "DtoD": 1300.0}[kind]
        host = PINNED if pinned else PAGEABLE
        source, destination = {"HtoD": (host, DEVICE), "DtoH": (DEVICE, host), "DtoD": (DEVICE, DEVICE)}[kind]
        start = self._earliest(stream)
        end = start + 1_100 + int(size / gigabytes_per_second)
        self.free[stream] = end
        self.export.memcpy(
            self.process, self.device, stream, self.local(start), self.local(end), size=size, kind=kind,
            correlation_id=correlation, source=source, destination=destination,
        )  # fmt: skip
        if kind == "HtoD":
            self.activity.receive(self.local(start), self.local(end))

    def fill(self, size: int) -> None:
        """Set `size` bytes of device memory to zero."""
        correlation = self.call("cudaMemsetAsync_v3020", 4.5)
        start = self._earliest(DEFAULT_STREAM)
        end = start + 900 + size // 1_900
        self.free[DEFAULT_STREAM] = end
        self.export.memset(
            self.process, self.device, DEFAULT_STREAM, self.local(start), self.local(end),
            size=size, correlation_id=correlation,
        )  # fmt: skip

    def order(self, waiting: int, awaited: int) -> None:
        """Make stream `waiting` wait for what is submitted to stream `awaited` (record an event, wait for it)."""
        recorded = self.call("cudaEventRecord_v3020", 1.6)
        self.export.cuda_event(self.process, self.device, awaited, correlation_id=recorded, event_id=1000 + recorded)
        start = self.cpu
        correlation = self.call(_STREAM_WAIT, 1.4)
        self.export.sync(
            self.process, self.device, waiting, self.local(start + 200), self.local(self.cpu - 200),
            sync_type=STREAM_WAIT_EVENT, correlation_id=correlation, event_id=1000 + recorded,
        )  # fmt: skip
        self.free[waiting] = max(self.free.get(waiting, 0), self.free.get(awaited, 0))

    def synchronize(self, stream: int = DEFAULT_STREAM) -> None:
        """Block the CPU until the stream is done (``cudaStreamSynchronize``)."""
        start = self.cpu
        correlation = self.block(
            "cudaStreamSynchronize_v3020", until=max(start + 2_500, self.free.get(stream, 0) + 4_000)
        )
        self.export.sync(
            self.process, self.device, stream, self.local(start + 600), self.local(self.cpu - 500),
            sync_type=STREAM_SYNC, correlation_id=correlation,
        )  # fmt: skip

    @contextmanager
    def nccl(self, function: str, communicator: Communicator | None = None, **values: int) -> Iterator[None]:
        """The NVTX range of one NCCL API call; with a communicator it has a payload."""
        payload = None
        if communicator is not None:
            told = {COMMUNICATOR: communicator.hash, **values}
            payload = encode_payload(function, self.payloads, told, domain_id=NCCL_DOMAIN_ID)
        with self.range(function, domain_id=NCCL_DOMAIN_ID, registered=True, payload=payload):
            self.work(1.2)
            yield

    def collective(
        self, operation: str, label: str, communicator: Communicator, calls: Sequence[NcclCall], moved: float
    ) -> Program:
        """One grouped NCCL operation as PyTorch issues it: the kernel is launched by ncclGroupEnd.

        `moved` are the bytes that pass the slowest link. The kernel starts when this rank is ready and ends when the
        last rank has been ready for as long as the transfer takes.
        """
        stream = communicator.stream
        spec = nccl_kernel(operation)
        with self.range(self.operator(f"nccl:{label}")):
            self.order(waiting=stream, awaited=DEFAULT_STREAM)
            with self.nccl("ncclGroupStart"):
                pass
            for function, values in calls:
                with self.nccl(function, communicator, **values):
                    self.work(2)
            with self.nccl("ncclGroupEnd"):
                self.work(14)
                self.call("cudaStreamIsCapturing_v10000", 0.7)
                correlation = self.call(spec.launch[0], 7.5)
        start = self._earliest(stream)
        transfer = communicator.transfer(moved)
        end = yield Arrival(communicator.members, start, transfer)
        end += self.random.randint(0, 3_000)
        self._execute(spec, stream, start, end, correlation)
        self.activity.communicate(self.local(start), self.local(end), transfer)

    def _earliest(self, stream: int) -> int:
        """When something submitted now starts: the GPU sees it a little later, and a stream leaves small gaps."""
        arrives = self.cpu + self.random.randint(1_200, 2_600)
        return max(arrives, self.free.get(stream, 0) + self.random.randint(700, 1_500))

    def _execute(self, spec: KernelSpec, stream: int, start: int, end: int, correlation: int) -> None:
        self.free[stream] = end
        self.export.kernel(
            self.process, self.device, stream, self.local(start), self.local(end), name=spec.name,
            correlation_id=correlation, mangled=spec.mangled, grid=spec.grid, block=spec.block,
            registers=spec.registers, static_smem=spec.static_smem, dynamic_smem=spec.dynamic_smem,
        )  # fmt: skip
