"""One rank of the demo job: a CPU timeline that launches, streams that execute later, and NCCL that waits for peers."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from random import Random
from typing import Final, NamedTuple

from nsystui.demo.nccl import COMMUNICATOR, NcclPayloads, encode_payload
from nsystui.demo.stacks import BACKWARD, stack_of
from nsystui.exports.writing.host import INTERRUPTIBLE, Stack
from nsystui.exports.writing.target import DEFAULT_STREAM, Process, Thread
from nsystui.exports.writing.writer import (
    DEVICE,
    DRIVER_CALL,
    PAGEABLE,
    PINNED,
    RUNTIME_CALL,
    STREAM_SYNC,
    STREAM_WAIT_EVENT,
    Dim3,
    ExportWriter,
    NvtxPayload,
)

LAUNCH: Final = ("cudaLaunchKernel_v7000", RUNTIME_CALL)
LAUNCH_EXTENDED: Final = ("cudaLaunchKernelExC_v11060", RUNTIME_CALL)
LAUNCH_DRIVER: Final = ("cuLaunchKernelEx", DRIVER_CALL)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of the model: what is launched, how, and how busy it keeps the GPU."""

    label: str
    """The PyTorch operator that launches it; kernels in a row with one label share its NVTX range."""
    name: str
    microseconds: float
    grid: Dim3
    block: Dim3 = (128, 1, 1)
    registers: int = 32
    static_smem: int = 0
    dynamic_smem: int = 0
    launch: tuple[str, int] = LAUNCH
    mangled: str | None = None
    tensor: float = 0.0
    """Share of its time in which the tensor cores work, 0 to 1."""
    dram: float = 0.5
    """Share of the memory bandwidth that it uses, 0 to 1."""


def _gemm(label: str, tile: str, microseconds: float) -> KernelSpec:
    name = f"nvjet_tst_{tile}_v_bz_TNN"
    return KernelSpec(
        label, name, microseconds, (2, 66, 1), (384, 1, 1), 168, 0, 213196, LAUNCH_DRIVER, name, 0.72, 0.28
    )


def _elementwise(label: str, functor: str, microseconds: float) -> KernelSpec:
    name = (
        f"void at::native::vectorized_elementwise_kernel<(int)4, at::native::{functor}, "
        "std::array<char *, (unsigned long)3>>(int, T2, T3)"
    )
    mangled = f"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_{len(functor)}{functor}St5arrayIPcLm3EEEEviT0_T1_"
    return KernelSpec(label, name, microseconds, (46800, 1, 1), mangled=mangled, dram=0.85)


def _norm(label: str, kernel: str, microseconds: float) -> KernelSpec:
    name = f"void at::native::<unnamed>::{kernel}<c10::BFloat16, float>(int, T2, const T1 *, const T1 *, T1 *)"
    return KernelSpec(label, name, microseconds, (8192, 1, 1), (32, 4, 1), 40, 24, 0, dram=0.7)


def _reduce(label: str, microseconds: float) -> KernelSpec:
    name = (
        "void at::native::reduce_kernel<(int)128, (int)4, at::native::ReduceOp<c10::BFloat16, "
        "at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16>>, unsigned int>>(T3)"
    )
    return KernelSpec(label, name, microseconds, (32, 1, 1), (32, 16, 1), 40, 16, 2048, dram=0.6)


def _flash(label: str, kernel: str, microseconds: float, tensor: float = 0.6) -> KernelSpec:
    name = (
        f"void flash::{kernel}<Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::bfloat16_t>, "
        f"(bool)0, (bool)1>(flash::Flash_{'bwd' if 'bwd' in kernel else 'fwd'}_params)"
    )
    return KernelSpec(
        label, name, microseconds, (16, 8, 16), (128, 1, 1), 255, 0, 114688, LAUNCH_EXTENDED, tensor=tensor, dram=0.3
    )


def _multi_tensor(label: str, functor: str, microseconds: float) -> KernelSpec:
    name = (
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::FusedOptimizerTensorListMetadata"
        f"<(int)4>, at::native::<unnamed>::{functor}<float, (int)4>>(T1, T2, T3...)"
    )
    return KernelSpec(label, name, microseconds, (320, 1, 1), (512, 1, 1), 64, dram=0.9)


def _backward_linear(dgrad: float, wgrad: float) -> tuple[KernelSpec, ...]:
    label = "AddmmBackward0"
    return (
        _gemm(label, "192x192_64x4_2x1", dgrad),
        _gemm(label, "256x128_64x4_1x2", wgrad),
        _reduce(label, 15),
    )


EMBEDDING: Final = (
    KernelSpec(
        "aten::embedding",
        "void at::native::<unnamed>::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, (int)2, (int)2>(T1, T2)",
        38, (1056, 1, 1), dram=0.8,
    ),
    _elementwise("aten::add", "CUDAFunctor_add<c10::BFloat16>", 18),
)  # fmt: skip

LAYER_FORWARD: Final = (
    _norm("aten::layer_norm", "vectorized_layer_norm_kernel", 22),
    _gemm("aten::linear", "256x128_64x4_1x2", 190),
    _flash("aten::scaled_dot_product_attention", "flash_fwd_kernel", 260),
    _gemm("aten::linear", "192x128_64x5_2x1", 75),
    _elementwise("aten::add", "CUDAFunctor_add<c10::BFloat16>", 18),
    _norm("aten::layer_norm", "vectorized_layer_norm_kernel", 22),
    _gemm("aten::linear", "256x128_64x4_1x2", 240),
    _elementwise("aten::gelu", "GeluCUDAKernelImpl", 34),
    _gemm("aten::linear", "192x192_64x4_2x1", 230),
    _elementwise("aten::add", "CUDAFunctor_add<c10::BFloat16>", 18),
)
"""10 kernels, about 1.1 ms."""

HEAD_FORWARD: Final = (
    _norm("aten::layer_norm", "vectorized_layer_norm_kernel", 22),
    _gemm("aten::linear", "256x256_64x3_2x1", 900),
    KernelSpec(
        "aten::cross_entropy_loss",
        "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, c10::BFloat16, float, float, "
        "at::native::<unnamed>::LogSoftMaxForwardEpilogue>(T4 *, const T2 *, int)",
        310, (8192, 1, 1), (1024, 1, 1), 28, 0, 128, dram=0.88,
    ),
    KernelSpec(
        "aten::cross_entropy_loss",
        "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
        "(T1 *, T1 *, const T1 *, const long *, const T1 *, bool, long, long, long, long)",
        12, (1, 1, 1), (32, 1, 1), dram=0.1,
    ),
)  # fmt: skip
HEAD_BACKWARD: Final = (
    KernelSpec(
        "NllLossBackward0",
        "void at::native::<unnamed>::nll_loss_backward_reduce_cuda_kernel_2d<float, long>"
        "(T1 *, const T1 *, const long *, const T1 *, const T1 *, bool, int, int, long, long)",
        9, (1, 1, 1), (32, 1, 1), dram=0.1,
    ),
    KernelSpec(
        "LogSoftmaxBackward0",
        "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)4, c10::BFloat16, float, float, "
        "at::native::<unnamed>::LogSoftMaxBackwardEpilogue>(T2 *, const T3 *, const T3 *, long)",
        340, (8192, 1, 1), (1024, 1, 1), 32, 0, 128, dram=0.88,
    ),
    _gemm("MmBackward0", "256x256_64x3_2x1", 900),
    _gemm("MmBackward0", "256x128_64x4_1x2", 900),
    _norm("NativeLayerNormBackward0", "layer_norm_grad_input_kernel_vectorized", 35),
    _norm("NativeLayerNormBackward0", "GammaBetaBackwardCUDAKernelTemplate", 14),
)  # fmt: skip

LAYER_BACKWARD: Final = (
    _elementwise("AddBackward0", "CUDAFunctor_add<c10::BFloat16>", 18),
    *_backward_linear(230, 240),
    _elementwise("GeluBackward0", "GeluBackwardCUDAKernelImpl", 40),
    *_backward_linear(240, 250),
    _norm("NativeLayerNormBackward0", "layer_norm_grad_input_kernel_vectorized", 35),
    _norm("NativeLayerNormBackward0", "GammaBetaBackwardCUDAKernelTemplate", 14),
    _elementwise("AddBackward0", "CUDAFunctor_add<c10::BFloat16>", 18),
    *_backward_linear(75, 80),
    _flash("ScaledDotProductFlashAttentionBackward0", "flash_bwd_dot_do_o_kernel", 14, 0.0),
    _flash("ScaledDotProductFlashAttentionBackward0", "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", 620),
    _flash("ScaledDotProductFlashAttentionBackward0", "flash_bwd_convert_dq_kernel", 12, 0.0),
    *_backward_linear(190, 200),
    _norm("NativeLayerNormBackward0", "layer_norm_grad_input_kernel_vectorized", 35),
    _norm("NativeLayerNormBackward0", "GammaBetaBackwardCUDAKernelTemplate", 14),
    _elementwise("AddBackward0", "CUDAFunctor_add<c10::BFloat16>", 18),
)
"""23 kernels, about 2.4 ms."""

EMBEDDING_BACKWARD: Final = (
    KernelSpec(
        "EmbeddingBackward0",
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<long, "
        "long, unsigned long long>::Policy900, (bool)0, long, long>(T4 *, T3 *)",
        26, (24, 1, 1), (384, 1, 1), 64, 38016, 0, dram=0.3,
    ),
    KernelSpec(
        "EmbeddingBackward0",
        "void at::native::<unnamed>::compute_grad_weight<c10::BFloat16, long>"
        "(const T2 *, const T1 *, const T2 *, long, long, const T2 *, T1 *)",
        88, (4096, 1, 1), dram=0.75,
    ),
)  # fmt: skip

LAYER_OPTIMIZER: Final = (
    _multi_tensor("Optimizer.step#AdamW.step", "LpNormFunctor", 24),
    _multi_tensor("Optimizer.step#AdamW.step", "BinaryOpScalarFunctor", 30),
    _multi_tensor("Optimizer.step#AdamW.step", "FusedAdamMathFunctor", 165),
)


def nccl_kernel(operation: str) -> KernelSpec:
    """The device kernel NCCL >= 2.19 runs for an operation; its algorithm and protocol are not to be believed."""
    reduction = "_Sum_bf16" if operation in ("AllReduce", "ReduceScatter") else ""
    suffix = "" if operation == "SendRecv" else f"{reduction}_RING_LL"
    base = f"ncclDevKernel_{operation}{suffix}"
    name = f"{base}(ncclDevKernelArgsStorage<(unsigned long)4096>)"
    mangled = f"_Z{len(base)}{base}24ncclDevKernelArgsStorageILm4096EE"
    return KernelSpec("", name, 0.0, (24, 1, 1), (640, 1, 1), 96, 21568, 82240, LAUNCH_EXTENDED, mangled, 0.0, 0.1)


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


@dataclass(slots=True)
class _Bin:
    """Busy ns of each kind in one sampling period, weighted by how much of the unit is used."""

    compute: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    nccl: float = 0.0
    link: float = 0.0
    pcie_in: float = 0.0


@dataclass
class Activity:
    """The activity of one GPU, by sampling period. Times are ns since the session start."""

    bins: defaultdict[int, _Bin] = field(default_factory=lambda: defaultdict(_Bin))
    link: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    sampled: int = 0
    nic_sampled: int = 0

    def compute(self, start: int, end: int, tensor: float, dram: float) -> None:
        """A kernel ran; `tensor` and `dram` are the shares of the units that it used."""
        for number, length in _periods(start, end, GPU_PERIOD):
            found = self.bins[number]
            found.compute += length
            found.tensor += length * tensor
            found.dram += length * dram

    def communicate(self, start: int, end: int, transfer: int) -> None:
        """An NCCL kernel ran; data moved only in its last `transfer` ns, before that it waited for its peers."""
        for number, length in _periods(start, end, GPU_PERIOD):
            self.bins[number].nccl += length
        for number, length in _periods(end - transfer, end, GPU_PERIOD):
            self.bins[number].link += length
        for number, length in _periods(end - transfer, end, NIC_PERIOD):
            self.link[number] += length

    def receive(self, start: int, end: int) -> None:
        """A copy from the host ran."""
        for number, length in _periods(start, end, GPU_PERIOD):
            self.bins[number].pcie_in += length

    def sample_gpu(self, export: ExportWriter, gpu_id: int, until: int) -> None:
        """Write the GPU samples of all periods that end by `until`, and forget those periods."""
        while (self.sampled + 1) * GPU_PERIOD <= until:
            found = self.bins.pop(self.sampled, None) or _Bin()
            self.sampled += 1
            compute, nccl = found.compute / GPU_PERIOD, found.nccl / GPU_PERIOD
            tensor, dram = found.tensor / GPU_PERIOD, found.dram / GPU_PERIOD
            link, pcie = found.link / GPU_PERIOD, found.pcie_in / GPU_PERIOD
            busy = max(compute, nccl)
            clock = 1980 if busy < 0.5 else 1755  # a power limit lowers the clock under load
            if export.version < (3, 13):
                clock *= 1_000_000  # measured in an export of 2023: Hz, although nothing says so
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
            share = self.link.pop(self.nic_sampled, 0.0) / NIC_PERIOD
            rate = int(share * _NIC_BYTES_PER_MS)
            start = self.nic_sampled * NIC_PERIOD
            export.nic_metric(nic_id, start, start + NIC_PERIOD, (rate, rate, int(share * 900)))
            self.nic_sampled += 1


def _periods(start: int, end: int, period: int) -> list[tuple[int, int]]:
    """The part of [start, end) in each sampling period: (number of the period, ns)."""
    first, last = start // period, (end - 1) // period
    if first == last:
        return [(first, end - start)]
    return [
        (number, min(end, (number + 1) * period) - max(start, number * period)) for number in range(first, last + 1)
    ]


COPY_STREAM: Final = 24
SAMPLING_PERIOD: Final = 1_000_000
"""ns on a CPU between two samples of a thread."""
CORES: Final = 12
"""CPUs of each rank, of which its threads take the first ones."""
GPUS_PER_HOST: Final = 8
"""The most ranks on a host, which has CPUs for so many."""
_PAGE: Final = 2 * 1024**2
NCCL_DOMAIN_ID: Final = 1
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
    """A rank is ready for a collective: among whom, since when it is ready, how long data will move.

    Times are ns: `ready` on the true clock that all ranks share, `transfer` a duration.
    """

    communicator: Communicator
    ready: int
    transfer: int


Program = Generator[Arrival, int, None]
"""The program of a rank: at each collective it yields its arrival, and is sent the true time at which that ends."""


class DemoNcclCall(NamedTuple):
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
    loader: Thread
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
    labels: list[str] = field(default_factory=list)
    """The NVTX ranges that are open."""
    allocated: int = 0
    """Bytes of the GPU's memory ever allocated, which is where the next allocation is put."""

    def __post_init__(self) -> None:
        self.thread = self.main
        self.cpu = self.origin + 400_000
        self.next_sample = self.cpu + SAMPLING_PERIOD
        self.wake(self.main, self.cpu)

    def local(self, time: int) -> int:
        """A true time on the clock of this rank's report."""
        return time - self.origin

    def compute_for(self, microseconds: float, call: str = "") -> None:
        """The CPU is busy with something that nobody traces, or with a call of the CUDA API."""
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
        """The CPU that a thread runs on."""
        return self.core + (self.main, self.autograd, self.loader).index(thread)

    def wake(self, thread: Thread, time: int) -> None:
        """A thread gets a CPU."""
        self.export.switch(thread, self.local(time), self._core(thread), is_in=True)

    def sleep(self, thread: Thread, time: int, state: int = INTERRUPTIBLE) -> None:
        """A thread leaves its CPU."""
        self.export.switch(thread, self.local(time), self._core(thread), is_in=False, state=state)

    @contextmanager
    def asleep(self, state: int = INTERRUPTIBLE) -> Iterator[None]:
        """The main thread has no CPU while time goes by inside."""
        self.sleep(self.main, self.cpu + 8_000, state)
        left, self.next_sample = self.next_sample - self.cpu, sys.maxsize
        yield
        self.wake(self.main, self.cpu - 5_000)
        self.next_sample = self.cpu + left

    def load(self, start: int, end: int, stack: Stack) -> None:
        """The data loader's thread has a CPU."""
        self.export.on_cpu(
            self.loader, self.local(start), self.local(end), stack, cpu=self._core(self.loader), period=SAMPLING_PERIOD
        )

    def allocate(self, size: int, correlation: int | None = None) -> None:
        """Memory of the GPU is allocated, at the end of the CUDA call of that correlation id."""
        address = 0x7F20_0000_0000 + self.allocated
        self.allocated += -(-size // _PAGE) * _PAGE
        self.export.gpu_memory(
            self.process, self.device, self.local(self.cpu - 2_000), size, address=address, correlation_id=correlation
        )

    @contextmanager
    def range(
        self, text: str, *, domain_id: int = 0, registered: bool = False, payload: NvtxPayload | None = None
    ) -> Iterator[None]:
        """An NVTX push/pop range on the current thread around what is done inside."""
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
        """The label PyTorch gives an operator call, with the running number."""
        self.operation += 1
        return f"{name}, op_id = {self.operation}"

    @contextmanager
    def on_autograd_thread(self) -> Iterator[None]:
        """The backward pass: another thread launches while the main thread waits for it."""
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
        """A CUDA API call of about that length; returns its correlation id."""
        self.correlation += self.random.randint(1, 4)
        start = self.cpu
        self.compute_for(microseconds, name)
        start_local, end_local = self.local(start), self.local(self.cpu)
        self.export.api(self.thread, start_local, end_local, name, self.correlation, event_class=event_class)
        return self.correlation

    def block(self, name: str, *, until: int) -> int:
        """A CUDA API call from now until the given true time; returns its correlation id."""
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
            described = {COMMUNICATOR: communicator.hash, **values}
            payload = encode_payload(function, self.payloads, described, domain_id=NCCL_DOMAIN_ID)
        with self.range(function, domain_id=NCCL_DOMAIN_ID, registered=True, payload=payload):
            self.compute_for(1.2)
            yield

    def collective(
        self, operation: str, label: str, communicator: Communicator, calls: Sequence[DemoNcclCall], moved: float
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
