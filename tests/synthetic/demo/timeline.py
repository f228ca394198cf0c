"""One rank of the demo job: a CPU timeline that launches, streams that execute later, and NCCL that waits for peers."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from random import Random
from typing import Final, NamedTuple

from synthetic.demo.model import KernelSpec, nccl_kernel
from synthetic.demo.nccl import COMMUNICATOR, NcclPayloads, encode_payload
from synthetic.demo.stacks import BACKWARD, stack_of
from synthetic.writing.host import INTERRUPTIBLE, Stack
from synthetic.writing.target import DEFAULT_STREAM, Process, Thread
from synthetic.writing.writer import (
    DEVICE,
    DRIVER_CALL,
    PAGEABLE,
    PINNED,
    STREAM_SYNC,
    STREAM_WAIT_EVENT,
    ExportWriter,
    NvtxPayload,
)

GPU_PERIOD: Final = 5_000_000
"""ns between GPU samples: 200 Hz."""
NIC_PERIOD: Final = 10_000_000
"""ns between network samples."""

GPU_METRICS: Final = (
    "GPC Clock Frequency [MHz]",
    "GR Active [Throughput %]",
    "SMs Active [Throughput %]",
    "SM Issue [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "NVLink TX Bandwidth [Throughput %]",
    "NVLink RX Bandwidth [Throughput %]",
    "PCIe TX Throughput [Throughput %]",
    "PCIe RX Throughput [Throughput %]",
)
OLD_GPU_METRICS: Final = (
    "GPC Clock Frequency",
    "GR Active",
    "SM Active",
    "SM Issue",
    "Tensor Active",
    "DRAM Read Throughput",
    "DRAM Write Throughput",
    "NVLink TX Responses User Data",
    "NVLink RX Responses User Data",
    "PCIe TX Throughput",
    "PCIe RX Throughput",
)
"""The same metrics as nsys called them until 2023 (schema < 3.13)."""

NIC_METRICS: Final = (
    ("IB: Bytes sent", "bytes/ms"),
    ("IB: Bytes received", "bytes/ms"),
    ("IB: Send waits", "ticks/ms"),
)
_NIC_BYTES_PER_MS: Final = 45_000_000
"""A 400 Gb/s card at 90 %."""
_NCCL_SHARE_OF_SMS: Final = 0.16
"""24 of the 132 multiprocessors run NCCL's channels, also while they only wait."""


@dataclass
class Activity:
    """The activity of one GPU: ns by kind and by number of the sampling period, weighted by the share of the unit."""

    busy: defaultdict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    sampled: int = 0
    nic_sampled: int = 0

    def _add(self, kind: str, start: int, end: int, share: float = 1.0, period: int = GPU_PERIOD) -> None:
        """Add the part of [start, end) (ns since the session start) in each sampling period."""
        for number in range(start // period, (end - 1) // period + 1):
            length = min(end, (number + 1) * period) - max(start, number * period)
            self.busy[kind, number] += length * share

    def compute(self, start: int, end: int, tensor: float, dram: float) -> None:
        """Add a kernel; `tensor` and `dram` are the shares of the units that it used."""
        for kind, share in (("compute", 1.0), ("tensor", tensor), ("dram", dram)):
            self._add(kind, start, end, share)

    def communicate(self, start: int, end: int, transfer: int) -> None:
        """Add an NCCL kernel; data moved only in its last `transfer` ns, before that it waited for its peers."""
        self._add("nccl", start, end)
        self._add("link", end - transfer, end)
        self._add("network", end - transfer, end, period=NIC_PERIOD)

    def receive(self, start: int, end: int) -> None:
        """Add a copy from the host."""
        self._add("pcie_in", start, end)

    def sample_gpu(self, export: ExportWriter, gpu_id: int, until: int) -> None:
        """Write the GPU samples of all periods that end by `until`, and forget those periods."""
        while (self.sampled + 1) * GPU_PERIOD <= until:
            compute, nccl, tensor, dram, link, pcie = (
                self.busy.pop((kind, self.sampled), 0.0) / GPU_PERIOD
                for kind in ("compute", "nccl", "tensor", "dram", "link", "pcie_in")
            )
            self.sampled += 1
            busy = max(compute, nccl)
            clock = 1980 if busy < 0.5 else 1755  # a power limit lowers the clock under load
            if export.version < (3, 13):
                clock *= 1_000_000  # measured in an export of 2023: Hz, although no table records it
            percentages = (
                100 * busy,
                100 * (0.97 * compute + _NCCL_SHARE_OF_SMS * nccl * (1 - compute)),
                42 * compute + 3 * nccl,
                100 * tensor,
                62 * dram + 4 * link,
                38 * dram + 4 * link,
                78 * link,
                78 * link,
                2 * link + busy,
                3 * link + 85 * pcie,
            )
            values = [clock, *(min(int(percentage), 100) for percentage in percentages)]
            export.gpu_metric(gpu_id, self.sampled * GPU_PERIOD, values)

    def sample_nic(self, export: ExportWriter, nic_id: int, until: int) -> None:
        """Write the network samples of all periods that end by `until`, and forget those periods."""
        while (self.nic_sampled + 1) * NIC_PERIOD <= until:
            share = self.busy.pop(("network", self.nic_sampled), 0.0) / NIC_PERIOD
            rate = int(share * _NIC_BYTES_PER_MS)
            start = self.nic_sampled * NIC_PERIOD
            export.nic_metric(nic_id, start, start + NIC_PERIOD, (rate, rate, int(share * 900)))
            self.nic_sampled += 1


COPY_STREAM: Final = 24
SAMPLING_PERIOD: Final = 1_000_000
"""ns on a CPU between two samples of a thread."""
CORES: Final = 12
"""CPUs of each rank, its threads take the first CPUs."""
GPUS_PER_HOST: Final = 8
"""The number of ranks for which a host has CPUs."""
_PAGE: Final = 2 * 1024**2
NCCL_DOMAIN_ID: Final = 1
_NODE: Final = "Graph Node Creation"
_CAPTURED: Final = 1 << 20
"""The captured nodes have the numbers of their copies and this."""
_STREAM_WAIT: Final = "cudaStreamWaitEvent_v3020"


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


class Arrival(NamedTuple):
    """The arrival of a rank at a collective: the communicator, the time, and how long data will move.

    Times are ns: `ready` on the true clock that all ranks share, `transfer` a duration.
    """

    communicator: Communicator
    ready: int
    transfer: int


Program = Generator[Arrival, int, None]
"""The program of a rank: at each collective it yields its arrival, and is sent the true end of the collective."""


class DemoNcclCall(NamedTuple):
    """One NCCL API call and its payload."""

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
    loader: Thread
    origin: int
    """True time of the session's t = 0."""
    speed: float
    """Factor on the duration of compute kernels: 1.15 is a slow GPU."""
    payloads: NcclPayloads
    random: Random
    start_up: float = 1.0
    """Factor on the time that contexts and communicators take."""
    device: int = 0
    cpu: int = 0
    correlation: int = 0
    operation: int = 0
    free: dict[int, int] = field(default_factory=dict)
    """When each stream has finished all submitted operations."""
    activity: Activity = field(default_factory=Activity)
    labels: list[str] = field(default_factory=list)
    """The NVTX ranges that are open."""
    allocated: int = 0
    """Bytes of the GPU's memory in all allocations, the address of the next allocation."""

    def __post_init__(self) -> None:
        self.thread = self.main
        self.cpu = self.origin + 400_000
        self.next_sample = self.cpu + SAMPLING_PERIOD
        self.wake(self.main, self.cpu)

    def local(self, time: int) -> int:
        """Return a true time on the clock of this rank's report."""
        return time - self.origin

    def compute_for(self, microseconds: float, call: str = "") -> None:
        """Let the CPU work, untraced or in a call of the CUDA API."""
        self.cpu += int(1000 * microseconds * self.random.uniform(0.85, 1.15))
        if self.cpu > self.next_sample:
            self._sample(call)

    def _sample(self, call: str) -> None:
        """Take the samples of the launching thread up to now."""
        label = self.labels[-1] if self.labels else ""
        stack = stack_of(label.split(",")[0], call.split("_v")[0], is_autograd=self.thread is self.autograd)
        while self.next_sample < self.cpu:
            self.export.sample(self.thread, self.local(self.next_sample), stack, cpu=self._core(self.thread))
            self.next_sample += SAMPLING_PERIOD

    @property
    def core(self) -> int:
        """The first of its CPUs."""
        return CORES * (self.rank % GPUS_PER_HOST)

    def _core(self, thread: Thread) -> int:
        """Return the CPU that a thread runs on."""
        return self.core + (self.main, self.autograd, self.loader).index(thread)

    def wake(self, thread: Thread, time: int) -> None:
        """Give a CPU to a thread."""
        self.export.switch(thread, self.local(time), self._core(thread), is_in=True)

    def sleep(self, thread: Thread, time: int, state: int = INTERRUPTIBLE) -> None:
        """Take a thread off its CPU."""
        self.export.switch(thread, self.local(time), self._core(thread), is_in=False, state=state)

    @contextmanager
    def asleep(self, state: int = INTERRUPTIBLE) -> Iterator[None]:
        """Take the main thread off its CPU during the block."""
        self.sleep(self.main, self.cpu + 8_000, state)
        left, self.next_sample = self.next_sample - self.cpu, sys.maxsize
        yield
        self.wake(self.main, self.cpu - 5_000)
        self.next_sample = self.cpu + left

    def load(self, start: int, end: int, stack: Stack) -> None:
        """Run the data loader's thread on a CPU."""
        self.export.on_cpu(
            self.loader, self.local(start), self.local(end), stack, cpu=self._core(self.loader), period=SAMPLING_PERIOD
        )

    def allocate(self, size: int, correlation: int | None = None) -> None:
        """Allocate memory of the GPU, at the end of the CUDA call of that correlation id."""
        address = 0x7F20_0000_0000 + self.allocated
        self.allocated += -(-size // _PAGE) * _PAGE
        self.export.gpu_memory(
            self.process, self.device, self.local(self.cpu - 2_000), size, address=address, correlation_id=correlation
        )

    @contextmanager
    def range(
        self, text: str, *, domain_id: int = 0, registered: bool = False, payload: NvtxPayload | None = None
    ) -> Iterator[None]:
        """Write an NVTX push/pop range on the current thread around the block."""
        start, thread = self.cpu, self.thread
        self.labels.append(text)
        self.compute_for(0.4)
        yield
        self.compute_for(0.3)
        self.labels.pop()
        self.export.nvtx_range(
            thread, self.local(start), self.local(self.cpu), text,
            domain_id=domain_id, registered=registered, payload=payload,
        )  # fmt: skip

    def operator(self, name: str) -> str:
        """Return PyTorch's label for an operator call, with the running number."""
        self.operation += 1
        return f"{name}, op_id = {self.operation}"

    @contextmanager
    def on_autograd_thread(self) -> Iterator[None]:
        """Launch the block's work on another thread, as in a backward pass, while the main thread waits for it."""
        start = self.cpu
        self.thread = self.autograd
        self.sleep(self.main, start + 4_000)
        self.wake(self.autograd, start + 3_000)
        yield
        self.thread = self.main
        self.sleep(self.autograd, self.cpu - 1_000)
        self.wake(self.main, self.cpu - 2_000)
        start, end = self.local(start + 900), self.local(self.cpu - 400)
        self.export.osrt(self.main, start, end, "pthread_cond_wait", stack=BACKWARD)

    def call(self, name: str, microseconds: float, *, event_class: int = 0) -> int:
        """Write a CUDA API call of about that length; returns its correlation id."""
        self.correlation += self.random.randint(1, 4)
        start = self.cpu
        self.compute_for(microseconds, name)
        start_local, end_local = self.local(start), self.local(self.cpu)
        self.export.api(self.thread, start_local, end_local, name, self.correlation, event_class=event_class)
        return self.correlation

    def block(self, name: str, *, until: int) -> int:
        """Write a CUDA API call from now until a true time; returns its correlation id."""
        self.correlation += 1
        start_local, self.cpu = self.local(self.cpu), until
        self._sample(name)
        self.export.api(self.thread, start_local, self.local(until), name, self.correlation)
        return self.correlation

    def launch(self, spec: KernelSpec, stream: int = DEFAULT_STREAM) -> None:
        """Launch one kernel; it starts when the GPU has received it and its stream is free."""
        self.compute_for(3.5)
        name, event_class = spec.launch
        if event_class == DRIVER_CALL:
            self.call("cuKernelGetAttribute", 0.4, event_class=DRIVER_CALL)
        correlation = self.call(name, 5.5, event_class=event_class)
        self._compute(spec, stream, correlation)

    def _compute(self, spec: KernelSpec, stream: int, correlation: int, node: int | None = None) -> None:
        start = self._earliest(stream)
        end = start + int(1000 * spec.microseconds * self.speed * self.random.uniform(0.97, 1.03))
        self._execute(spec, stream, start, end, correlation, node)
        self.activity.compute(self.local(start), self.local(end), spec.tensor, spec.dram)

    def replay(self, kernels: Sequence[KernelSpec], communicator: Communicator) -> Program:
        """Launch a CUDA graph that is traced node by node; what `meets` runs on all ranks of the communicator."""
        correlation = self.call("cudaGraphLaunch_v10000", 0.6 * len(kernels))
        for node, spec in enumerate(kernels, start=1):
            if not spec.meets:
                self._compute(spec, DEFAULT_STREAM, correlation, node)
                continue
            start, transfer = self._earliest(DEFAULT_STREAM), int(1000 * spec.microseconds)
            end = yield Arrival(communicator, start, transfer)
            self._execute(spec, DEFAULT_STREAM, start, end, correlation, node)
            self.activity.communicate(self.local(start), self.local(end), transfer)

    def capture(self, parts: Iterable[tuple[str, Sequence[KernelSpec]]]) -> None:
        """Capture the CUDA graph of `replay`, each part in its NVTX range, and instantiate the graph."""
        nodes = 0
        self.call("cudaStreamBeginCapture_v10000", 6)
        for label, specs in parts:
            with self.range(label):
                for spec in specs:
                    start, nodes = self.local(self.cpu), nodes + 1
                    self.call(spec.launch[0], 5.5, event_class=spec.launch[1])
                    self.export.graph_node(self.thread, start, start + 1_000, _NODE, _CAPTURED + nodes)
        self.call("cudaStreamEndCapture_v10000", 20)
        start = self.local(self.cpu)
        self.call("cudaGraphInstantiate_v12000", 3.0 * nodes)
        for node in range(1, nodes + 1):
            self.export.graph_node(self.thread, start, start + 500, _NODE, node, _CAPTURED + node)

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
        """Make stream `waiting` wait for the operations submitted to stream `awaited` (record an event, wait for
        it)."""
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
        """Write the NVTX range of an NCCL API call around the block; with a communicator it has a payload."""
        payload = None
        if communicator is not None:
            described = {COMMUNICATOR: communicator.hash, **values}
            payload = encode_payload(function, self.payloads, described, domain_id=NCCL_DOMAIN_ID)
        with self.range(function, domain_id=NCCL_DOMAIN_ID, registered=True, payload=payload):
            self.compute_for(1.2)
            yield

    def collective(
        self, operation: str, label: str, communicator: Communicator, calls: Sequence[DemoNcclCall], moved: float
    ) -> Program:
        """Run a grouped NCCL operation as PyTorch does: ncclGroupEnd launches the kernel.

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
                    self.compute_for(2)
            with self.nccl("ncclGroupEnd"):
                self.compute_for(14)
                self.call("cudaStreamIsCapturing_v10000", 0.7)
                correlation = self.call(spec.launch[0], 7.5)
        start = self._earliest(stream)
        transfer = communicator.transfer(moved)
        end = yield Arrival(communicator, start, transfer)
        end += self.random.randint(0, 3_000)
        self._execute(spec, stream, start, end, correlation)
        self.activity.communicate(self.local(start), self.local(end), transfer)

    def _earliest(self, stream: int) -> int:
        """Return the start of an operation submitted now: it reaches the GPU later, and streams have small gaps."""
        arrives = self.cpu + self.random.randint(1_200, 2_600)
        return max(arrives, self.free.get(stream, 0) + self.random.randint(700, 1_500))

    def _execute(
        self, spec: KernelSpec, stream: int, start: int, end: int, correlation: int, node: int | None = None
    ) -> None:
        self.free[stream] = end
        self.export.kernel(
            self.process, self.device, stream, self.local(start), self.local(end), name=spec.name,
            correlation_id=correlation, mangled=spec.mangled, grid=spec.grid, block=spec.block,
            registers=spec.registers, static_smem=spec.static_smem, dynamic_smem=spec.dynamic_smem,
            graph_node_id=node,
        )  # fmt: skip
