"""Exports with one illness each, at a cost that follows from how they are written.

Each function writes a job and returns its `Ill`. Times are ns; a GPU is busy except where its illness keeps it idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from synthetic.demo.model import nccl_kernel
from synthetic.writing.host import RUNNING, Frame
from synthetic.writing.target import H100, CaptureSession, GpuModel, Thread
from synthetic.writing.writer import DEVICE, MANAGED, PAGEABLE, PINNED

from .variants import start_gpu_process
from .writer import ExportWriter

MS: Final = 1_000_000
_STREAM: Final = 7
_SCHEMA: Final = "3.25.0"
_METRICS: Final = ("GPC Clock Frequency [MHz]", "SMs Active [Throughput %]", "Tensor Active [Throughput %]")


@dataclass(frozen=True)
class Ill:
    """The exports of an ill job, and the cost of the illness on one of its GPUs, ns."""

    paths: tuple[Path, ...]
    cost: int


class OneGpu:
    """A process on one GPU, written call by call; times are ns after the session's start."""

    def __init__(self, export: ExportWriter, gpu: int = 0, model: GpuModel = H100) -> None:
        export.gpu(gpu, model)
        self.export = export
        self.process, self.main = start_gpu_process(export)
        export.cuda_device(self.process, 0, gpu)
        self.correlation = 0

    def call(self, name: str, start: int, end: int, return_value: int = 0) -> int:
        """Write a CUDA call; return its correlation id."""
        self.correlation += 1
        self.export.api(self.main, start, end, name, self.correlation, return_value=return_value)
        return self.correlation

    def kernel(self, start: int, end: int, launched: int, name: str = "work(float*)", stream: int = _STREAM) -> None:
        """Write a kernel whose launch call begins at `launched` and takes 2 µs."""
        correlation = self.call("cudaLaunchKernel_v7000", launched, launched + 2_000)
        self.export.kernel(self.process, 0, stream, start, end, name=name, correlation_id=correlation)

    def copy(self, call: str, start: int, end: int, source: int = PAGEABLE, size: int = 10 * MS) -> None:
        """Write a host-to-device copy by `call`, which returns at once if it is asynchronous."""
        correlation = self.call(call, start - 5_000, end if "Async" not in call else start - 1_000)
        self.export.memcpy(
            self.process, 0, _STREAM, start, end, size=size, kind="HtoD",
            correlation_id=correlation, source=source, destination=DEVICE,
        )  # fmt: skip

    def rounds(self, count: int, every: int, busy: int, early: int = 10_000) -> Iterator[int]:
        """Write kernels of `busy` ns, one every `every` ns, launched `early` ns before; yield their starts."""
        for start in range(MS, MS + count * every, every):
            self.kernel(start, start + busy, launched=start - early)
            yield start

    def in_a_row(self, times: Iterable[int]) -> None:
        """Write kernels of these lengths, ns, without gaps."""
        start = MS
        for time in times:
            self.kernel(start, start + time, launched=start - 10_000)
            start += time

    def steps(self, times: Sequence[int], idle: int = 0) -> list[int]:
        """Write steps of these lengths, ns, each with a kernel as long as the step less `idle`; return their starts."""
        begins, start = [], MS
        for number, time in enumerate(times):
            begins.append(start)
            self.export.nvtx_range(self.main, start, start + time - 1_000, f"step {number}")
            self.kernel(start + 10_000, start + time - idle, launched=start + 1_000)
            start += time
        return begins


@contextmanager
def one_gpu(
    path: Path, schema: str = _SCHEMA, *, session: CaptureSession | None = None, gpu: int = 0, model: GpuModel = H100
) -> Iterator[OneGpu]:
    """Yield an export with one process on one GPU."""
    with ExportWriter(path, schema, session=session or CaptureSession()) as export:
        yield OneGpu(export, gpu, model)


def synchronous_memsets(path: Path) -> Ill:
    """Write 50 memsets of pinned memory by ``cudaMemset``; 0.4 ms of each overlap no kernel."""
    with one_gpu(path) as gpu:
        for start in gpu.rounds(50, 4 * MS, 3 * MS):
            begin, end = start + 2_800_000, start + 3_400_000
            correlation = gpu.call("cudaMemset_v3020", begin - 5_000, end)
            gpu.export.memset(gpu.process, 0, _STREAM, begin, end, size=MS, correlation_id=correlation, memory=PINNED)
            gpu.kernel(end, start + 4 * MS, launched=start)
    return Ill((path,), 50 * 400_000)


PIN = tuple(Frame(name, "/x/libtorch.so") for name in ("at::native::direct_copy_kernel(int)", "THPVariable_pin_memory"))
"""The stack of the thread that pins memory."""


def starved(path: Path, workers: int = 3, pin_ms: int = 4, waits: bool = True) -> Ill:
    """Write 30 steps of 10 ms; before every `workers`-th, the GPU is idle for 20 ms, until a copy begins.

    In each gap the launching thread is off its CPU (without `waits` it runs a checkpoint), and a thread pins
    memory for `pin_ms` ms.
    """
    gaps = 0
    with one_gpu(path) as gpu:
        pins = gpu.export.thread(gpu.process, 5_900, "python")
        checkpoint = [Frame("save_checkpoint", "/x/app.so")]
        start, ready = 3 * MS, 0
        for number in range(30):
            if number and not number % workers:
                if waits:
                    gpu.export.on_cpu(gpu.main, ready, start - 100_000)
                else:
                    gpu.export.on_cpu(gpu.main, ready, start + 20 * MS - 100_000, checkpoint)
                ready = start + 20 * MS - 90_000
                gpu.export.on_cpu(pins, start + MS, start + (1 + pin_ms) * MS, PIN, cpu=1)
                start += 20 * MS
                gaps += 1
            gpu.export.nvtx_range(gpu.main, start - 50_000, start + 9_900_000, f"step {number}")
            gpu.copy("cudaMemcpyAsync_v3020", start, start + MS, PINNED)
            gpu.kernel(start + MS, start + 10 * MS, launched=start - 2_000)
            start += 10 * MS
        gpu.export.on_cpu(gpu.main, ready, start)
    return Ill((path,), gaps * 20 * MS)


def preempted(path: Path, state: int = RUNNING, others: bool = True) -> Ill:
    """Write 50 kernels of 3 ms; in the 1 ms between them, the launching thread is off CPU 0 for 0.99 ms, in `state`.

    With `others` a thread of the process has that CPU then, and one more runs on CPU 1 all the time.
    """
    with one_gpu(path) as gpu:
        team = [gpu.export.thread(gpu.process, 5_900 + number, "omp") for number in range(2)]
        start = MS
        for number in range(50):
            start = MS + 4 * MS * number
            gpu.kernel(start, start + 3 * MS, launched=start - 2_000)
            gpu.export.on_cpu(gpu.main, start - 10_000, start + MS, state=state)
            if others:
                gpu.export.on_cpu(team[0], start + MS, start + 4 * MS - 10_000)
        gpu.export.switch(gpu.main, start + 4 * MS - 10_000, 0, is_in=True)
        if others:
            gpu.export.on_cpu(team[1], 0, start + 4 * MS, cpu=1)
    return Ill((path,), 49 * 990_000)


def allocator_churn(path: Path, calls: int = 40, drains_ns: int = 300_000, steps: bool = True) -> Ill:
    """Write 40 steps of 10 ms; the first `calls` free memory, until `drains_ns` after the kernel, and allocate it.

    After each kernel the GPU is idle for 0.8 ms, or, if that is less than the free takes, for twice as long as that.
    Without `steps` there are no ranges; 60 ms before the loop a kernel runs, then 50 ms of allocation, and 0.1 ms more
    just before the loop.
    """
    cost = 0 if steps else 100_000
    with one_gpu(path) as gpu:
        if not steps:
            gpu.kernel(10 * MS, 10 * MS + 5_000, launched=9 * MS)
            gpu.call("cudaMalloc_v3020", 11 * MS, 61 * MS)
            gpu.call("cudaMalloc_v3020", 69_800_000, 69_900_000)
        for number in range(40):
            start = 70 * MS + 10 * MS * number
            idle = 800_000 if drains_ns < 800_000 else 2 * drains_ns
            end = start + 10 * MS - idle
            if steps:
                gpu.export.nvtx_range(gpu.main, start - 60_000, start + 10 * MS - 70_000, f"step {number}")
            gpu.kernel(start, end, launched=start - 50_000)
            if number < calls:
                gpu.call("cudaFree_v3020", start + MS, end + drains_ns)
                gpu.call("cudaMalloc_v3020", end + drains_ns, end + drains_ns + 100_000)
                cost += 0 if (steps and number < 2) or number == 39 else idle if idle < MS else drains_ns + 100_000
    return Ill((path,), cost)


def full_memory(path: Path, gib: int = 78, failures: int = 0) -> Ill:
    """Write a GPU with 79.2 GiB of which two allocations take `gib` at most, and `failures` calls that get no memory.

    After the first failure two allocations are freed, and it is tried again.
    """
    with one_gpu(path) as gpu:
        sizes = ((gib - 10) << 30, 10 << 30)
        for number, size in enumerate(sizes):
            with_call = gpu.call("cudaMalloc_v3020", MS * (1 + number), MS * (1 + number) + 50_000)
            time = MS * (1 + number) + 40_000
            gpu.export.gpu_memory(gpu.process, 0, time, size, address=4096 * (1 + number), correlation_id=with_call)
        for number in range(failures):
            gpu.call("cudaMalloc_v3020", (4 + number) * MS, (4 + number) * MS + 50_000, return_value=2)
            if not number:
                for again, name in enumerate(("cudaFree", "cudaFree", "cudaMalloc"), 2):
                    gpu.call(f"{name}_v3020", 4 * MS + 50_000 * again, 4 * MS + 50_000 * again + 20_000)
        gpu.kernel(20 * MS, 40 * MS, launched=19 * MS)
        gpu.export.gpu_memory(gpu.process, 0, 50 * MS, sizes[1], address=2 * 4096, is_free=True)
    return Ill((path,), 0)


def staged_copies(path: Path, kind: str = "HtoD") -> Ill:
    """Write 30 copies of 1 ms without a kernel at the same time, device memory at both ends: between GPUs over the host
    if HtoD."""
    with one_gpu(path) as gpu:
        for start in gpu.rounds(30, 4 * MS, 3 * MS):
            correlation = gpu.call("cudaMemcpyPeerAsync_v4000", start, start + 5_000)
            gpu.export.memcpy(
                gpu.process, 0, _STREAM, start + 3 * MS, start + 4 * MS, size=MS, kind=kind, correlation_id=correlation
            )
    return Ill((path,), 30 * MS)


def pageable_copies(path: Path, source: int = PAGEABLE) -> Ill:
    """Write 50 steps of 10 ms, before each a copy of 1 MB that takes 0.1 ms and overlaps no kernel."""
    with one_gpu(path) as gpu:
        for number in range(50):
            start = MS + 10 * MS * number
            gpu.copy("cudaMemcpyAsync_v3020", start, start + 100_000, source, size=MS)
            gpu.kernel(start + 100_000, start + 10 * MS, launched=start)
    return Ill((path,), 50 * 100_000)


def first_use(path: Path, loads: bool = True, pins: bool = True, usual: int = 10_000) -> Ill:
    """Write a first ``cudaMalloc`` of 100 ms, 40 ms of ``cudaMallocHost``, 5 kernels with first launches of 4 ms.

    Later mallocs take `usual` ns. The first launches are the cost: their time minus the 2 µs of a later launch.
    """
    with one_gpu(path) as gpu:
        now = MS
        for _ in range(3):
            gpu.call("cudaMalloc_v3020", now, now + (100 * MS if now == MS else usual))
            now += 100 * MS if now == MS else usual
        if pins:
            for _ in range(4):
                gpu.call("cudaMallocHost_v3020", now, now + 10 * MS)
                now += 10 * MS
        for number in range(5 * 40):
            launch = 4 * MS if loads and number < 5 else 2_000
            correlation = gpu.call("cudaLaunchKernel_v7000", now, now + launch)
            now += launch
            name = f"work{number % 5}(float*)"
            gpu.export.kernel(gpu.process, 0, _STREAM, now, now + MS, name=name, correlation_id=correlation)
            now += MS
    return Ill((path,), 5 * (4 * MS - 2_000))


def launch_bound(path: Path, ahead: int = 0, slower: int = 1) -> Ill:
    """Write 500 kernels of 2 µs, one every 5 µs, launched as the previous kernel ends; 10 ms idle before and after.

    Launches may be `ahead` by some ns, and all times `slower` by a factor. Another thread has shorter ranges meanwhile.
    """
    with one_gpu(path) as gpu:
        start, every, length = 11 * MS, 5_000 * slower, 2_000 * slower
        gpu.kernel(MS, MS + length, launched=MS - 10_000)
        gpu.export.nvtx_range(gpu.main, start - 10_000, start + 500 * every, "main_loop")
        gpu.export.nvtx_range(gpu.export.thread(gpu.process, 5_001, "loader"), start, start + 499 * every, "decode")
        for number in range(500):
            begin = start + every * number
            gpu.kernel(begin, begin + length, launched=begin - 2_500 * slower - ahead)
        gpu.kernel(60 * MS, 60 * MS + length, launched=60 * MS - 10_000)
    return Ill((path,), 499 * 3_000 * slower)


def step_traffic(path: Path) -> Ill:
    """Write 20 steps of 10 ms that each copy 1 GB from pinned memory for 5 ms, of which 1 ms overlaps no kernel."""
    with one_gpu(path) as gpu:
        for start in gpu.steps([10 * MS] * 20, idle=MS):
            gpu.copy("cudaMemcpyAsync_v3020", start + 5 * MS, start + 10 * MS, PINNED, size=1_000 * MS)
    return Ill((path,), 20 * MS)


def profiler_at_work(path: Path) -> Ill:
    """Write a GPU that is idle for 2 of every 20 ms; before and in the first half of that, nsys flushes its buffers."""
    with one_gpu(path) as gpu:
        for start in gpu.rounds(20, 20 * MS, 18 * MS):
            gpu.export.profiler_overhead(gpu.main, start + 15 * MS, start + 19 * MS, "CUPTI Buffer flush")
    return Ill((path,), 19 * MS)


def mpi_waits(folder: Path, schema: str = _SCHEMA, set_up: int = 0) -> Ill:
    """Write two ranks of 20 rounds of 10 ms; rank 0 waits 3 ms in each ``MPI_Allreduce``, 1 ms during a kernel.

    The first call takes `set_up` ns longer. Before schema 3.1 MPI calls are NVTX ranges of a domain of their own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / "rank0.sqlite", folder / "rank1.sqlite")
    for rank, path in enumerate(paths):
        with ExportWriter(path, schema, session=CaptureSession(environment={"RANK": str(rank)})) as export:
            gpu = OneGpu(export, rank)
            mpi = _mpi_writer(gpu, rank)
            mpi("MPI_Init", 0, 900_000)
            for number in range(20):
                start = MS + 10 * MS * number + (set_up if number else 0)
                gpu.kernel(start, start + (8 if rank == 0 else 10) * MS, launched=start - 10_000)
                begin = start + (7_000_000 if rank == 0 else 9_990_000)
                mpi("MPI_Allreduce", begin, start + 10 * MS + (0 if number else set_up))
                # Starting a request waits for nothing.
                mpi("MPI_Start", start + 10 * MS + set_up, start + 10 * MS + set_up + 500)
    return Ill(paths, 20 * 2 * MS // 2 + set_up)


def _mpi_writer(gpu: OneGpu, rank: int) -> Callable[[str, int, int], None]:
    """Return a writer of MPI calls (name, start, end) in the form of the schema version."""
    export, main = gpu.export, gpu.main
    if not export.has("MPI_RANKS"):
        export.nvtx_domain(main, 0, 1, "MPI")
        return lambda name, start, end: export.nvtx_range(main, start, end, name, domain_id=1)
    export.mpi_rank(main, rank)

    def write(name: str, start: int, end: int) -> None:
        if name == "MPI_Allreduce":
            export.mpi_collective(main, start, end, name, size=8, receive_size=8)
        elif name == "MPI_Start":
            export.mpi_wait(main, start, end, name)
        else:
            export.mpi_other(main, start, end, name)

    return write


def unified_memory_faults(path: Path, later: int = 0) -> Ill:
    """Write 40 kernels of 5 ms, and 1 ms of moving pages: a fault group of 0.75 ms, and a migration in its second half.

    It begins with the kernel, or `later` ns after that, and no kernel begins before it ends.
    """
    with one_gpu(path) as gpu:
        for kernel in gpu.rounds(40, 5 * MS + later, 5 * MS):
            start = kernel + later
            gpu.export.memcpy(
                gpu.process, 0, _STREAM, start + 500_000, start + MS, size=2_000_000, kind="UvmHtoD",
                correlation_id=None, source=MANAGED, destination=MANAGED, migration_cause=2,
            )  # fmt: skip
            gpu.export.gpu_page_fault(gpu.process, 0, start, start + 750_000, address=0x7F00_0000_0000, count=100)
            gpu.export.cpu_page_fault(gpu.process, start, 0x7F00_0000_0000)
    return Ill((path,), 40 * MS)


def throttled(path: Path, clock: bool = True) -> Ill:
    """Write 240 launches of 1 ms; over the last two thirds each takes 20 % longer, and the clock falls by as much."""
    lost = 0
    with one_gpu(path) as gpu:
        if clock:
            gpu.export.gpu_metric_names(0, _METRICS)
        start = MS
        for number in range(240):
            slower = number >= 80
            time = 1_200_000 if slower else MS
            lost += time - MS
            gpu.kernel(start, start + time, launched=start - 10_000)
            if clock:
                gpu.export.gpu_metric(0, start, (1_650 if slower else 1_980, 90, 40))
            start += time
    return Ill((path,), lost)


def kernel_outliers(path: Path) -> Ill:
    """Write 200 launches of a kernel of 1 ms, of which 4 take 11 ms; and 200 of a kernel that alternates in length."""
    with one_gpu(path) as gpu:
        start = MS
        for number in range(200):
            time = 11 * MS if number % 50 == 25 else MS
            gpu.kernel(start, start + time, launched=start - 10_000)
            start += time
            other = 2 * MS if number % 2 else 200_000
            gpu.kernel(start, start + other, launched=start - 10_000, name="by_turns(float*)")
            start += other
    return Ill((path,), 4 * 10 * MS)


def masked_outliers(path: Path) -> Ill:
    """Write 480 launches of a kernel of 1 ms; 7 of them take 80 ms, and 7 take 5 ms: less than the mean around them."""
    with one_gpu(path) as gpu:
        gpu.in_a_row({30: 80 * MS, 60: 5 * MS}.get(number % 68, MS) for number in range(480))
    return Ill((path,), 7 * (79 + 4) * MS)


def varying_kernel(path: Path) -> Ill:
    """Write 240 launches of a kernel that take 0.1 to 3.8 ms, the longest rarely: nothing is wrong with that."""
    with one_gpu(path) as gpu:
        gpu.in_a_row(3_800_000 if number % 48 == 7 else 100_000 + 100_000 * (number * 7 % 23) for number in range(240))
    return Ill((path,), 0)


def two_templates(path: Path) -> Ill:
    """Write 200 launches of a kernel that take 1 ms and 4 that take 10, with other arguments of the same template."""
    with one_gpu(path) as gpu:
        start = MS
        for number in range(200):
            kinds = (("float", MS), ("double", 10 * MS)) if number % 50 == 49 else (("float", MS),)
            for kind, length in kinds:
                gpu.kernel(start, start + length, launched=start - 10_000, name=f"void relax<{kind}>({kind} *)")
                start += length
    return Ill((path,), 0)


def slow_numa_node(folder: Path, schema: str = "3.28.1") -> Ill:
    """Write 4 GPUs on each of 2 hosts, 100 launches of 2 ms each; kernels of NUMA node 1 are slower by a quarter.

    Before schema 3.28 there are no NUMA nodes, and there are two slow places by their PCI addresses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"rank{rank}.sqlite" for rank in range(8))
    for rank, path in enumerate(paths):
        host, gpu_id = divmod(rank, 4)
        session = CaptureSession(hostname=f"n{host}", environment={"RANK": str(rank), "SLURM_NTASKS": "8"})
        with ExportWriter(path, schema, session=session) as export:
            gpu = OneGpu(export, 2 + gpu_id)  # of four GPUs each, see `TargetInfo.gpu`
            time = 2_500_000 if gpu_id >= 2 else 2 * MS
            for _ in gpu.rounds(100, 2_500_000, time):
                pass
    return Ill(paths, 100 * 500_000)


def pipeline_stages(folder: Path, slow: float = 1.5, of_names: bool = True) -> Ill:
    """Write two stages of two ranks, 20 steps of 10 ms; in the second, kernels of rank 3 are `slow` times as long.

    A step of a rank of the first stage is six kernels, in 5 ms, and an AllGather; of the second three in 6 ms, and an
    AllReduce. Without `of_names` the kernels of both stages have the same names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"rank{rank}.sqlite" for rank in range(4))
    for rank, path in enumerate(paths):
        is_second = rank >= 2
        count, compute = (3, 6 * MS) if is_second else (6, 5 * MS)
        time = round(compute / count * (slow if rank == 3 else 1))
        with one_gpu(path, session=CaptureSession(environment={"RANK": str(rank)}), gpu=rank) as gpu:
            for number in range(20):
                begin = MS + 10 * MS * number
                gpu.export.nvtx_range(gpu.main, begin - 30_000, begin + 9_900_000, f"step {number}")
                for place in range(count):
                    name = "head(float*)" if of_names and is_second else "work(float*)"
                    gpu.kernel(begin, begin + time, MS + 10 * MS * number - 25_000 + 3_000 * place, name)
                    begin += time
                collective = nccl_kernel("AllReduce" if is_second else "AllGather").name
                gpu.kernel(begin, MS + 10 * MS * (number + 1), MS + 10 * MS * number - 5_000, collective)
    return Ill(paths, round(20 * 6 * MS * (slow - 1)) // 4)


def resting_tensor_cores(path: Path, tensor: int = 2) -> Ill:
    """Write a GPU whose SMs are active for 80 % of the time, and its tensor cores for `tensor` %."""
    with one_gpu(path) as gpu:
        gpu.export.gpu_metric_names(0, _METRICS)
        for start in gpu.rounds(40, MS, MS):
            gpu.export.gpu_metric(0, start + 1, (1_980, 80, tensor))
    return Ill((path,), 0)


def exposed_communication(path: Path) -> Ill:
    """Write 50 rounds in which an AllReduce of 2 ms runs 1 ms longer than the kernel at the same time."""
    with one_gpu(path) as gpu:
        for start in gpu.rounds(50, 4 * MS, 3 * MS):
            gpu.kernel(start + 2 * MS, start + 4 * MS, start - 5_000, name=nccl_kernel("AllReduce").name)
    return Ill((path,), 50 * MS)


def gil_held(path: Path, *, while_busy: bool = False) -> Ill:
    """Write 40 gaps of 4 ms; for 3 ms of each, or during kernels, the main thread waits for the GIL of a monitor."""

    def do(gpu: OneGpu, monitor: Thread, time: int) -> None:
        start = time - 5 * MS if while_busy else time
        gpu.export.gil(gpu.main, waited=[(start, start + 3 * MS)])
        gpu.export.gil(monitor, held=[(start - MS // 2, start + 3 * MS)])

    return with_gaps(path, do, 0 if while_busy else 3 * MS)


def file_reads(path: Path, *, while_busy: bool = False) -> Ill:
    """Write 40 gaps of 4 ms, or kernels: the main thread reads for 2 ms, then waits 1 ms for a reading thread."""

    def do(gpu: OneGpu, loader: Thread, time: int) -> None:
        start = time - 5 * MS if while_busy else time
        gpu.export.file_access(gpu.main, start, start + 2 * MS, "read", f"/data/{time}.jpg", MS, stack=_DECODE)
        gpu.export.osrt(gpu.main, start + 2 * MS, start + 3 * MS, "pthread_cond_wait")
        gpu.export.file_access(loader, start + 2 * MS, start + 3 * MS, "pread64", "/data/index", 4096)

    return with_gaps(path, do, 0 if while_busy else 3 * MS)


_DECODE: Final = (Frame("read", "/usr/lib/libc.so.6"), Frame("load_image(char const*)", "/opt/app/libloader.so"))


def with_gaps(path: Path, do: Callable[[OneGpu, Thread, int], None], cost: int, count: int = 40) -> Ill:
    """Write kernels of 6 ms with gaps of 4 ms after them, in which `do` writes events of the host."""
    with one_gpu(path) as gpu:
        other = gpu.export.thread(gpu.process, gpu.main.tid + 50, "helper")
        for number in range(count + 1):
            start = (1 + 10 * number) * MS
            gpu.kernel(start, start + 6 * MS, launched=start - 10_000)
            if number < count:
                do(gpu, other, start + 6 * MS)
    return Ill((path,), count * cost)


def slow_precision(path: Path, precision: str = "tf32f32_tf32f32_f32", model: GpuModel = H100) -> Ill:
    """Write 50 convolutions of 4 ms in TF32, 1 ms of other work after each, on an H100: BF16 takes half of the time."""
    name = f"sm80_xmma_fprop_implicit_gemm_indexed_{precision}_nhwckrsc_nhwc_tilesize128x128x16_kernel_cudnn"
    with one_gpu(path, model=model) as gpu:
        for number in range(50):
            start = MS + 5 * MS * number
            gpu.kernel(start, start + 4 * MS, start - 10_000, name)
            gpu.kernel(start + 4 * MS, start + 5 * MS, start - 10_000)
    return Ill((path,), 50 * 2 * MS)


def layout_changes(path: Path, name: str = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float>(T2 *)") -> Ill:
    """Write 50 times 1 ms of a change of layout before 4 ms of a convolution in FP16."""
    with one_gpu(path) as gpu:
        for number in range(50):
            start = MS + 5 * MS * number
            gpu.kernel(start, start + MS, start - 10_000, name)
            gpu.kernel(start + MS, start + 5 * MS, start - 10_000, "sm80_xmma_fprop_f16f16_f16f32_f32_kernel_cudnn")
    return Ill((path,), 50 * MS)


def unfused(
    path: Path, name: str = "void vectorized_elementwise_kernel<4, Functor{}>(int)", gap: int = 2_000, kinds: int = 8
) -> Ill:
    """Write 50 steps of 3 ms of a GEMM, then of 8 pointwise kernels of 50 µs each with `gap` ns between them.

    Launched in the range `optimizer`; they are `kinds` different kernels by turns, which could be one kernel.
    """
    with one_gpu(path) as gpu:
        start = MS
        for number in range(50):
            gpu.export.nvtx_range(gpu.main, start - 30_000, start + 3 * MS, f"step {number}")
            gpu.kernel(start, start + 3 * MS, start - 25_000, "nvjet_tst_128x128_64x4_TNN")
            gpu.export.nvtx_range(gpu.main, start - 20_000, start + 100_000, "optimizer")
            start += 3 * MS
            for kind in range(8):
                gpu.kernel(start, start + 50_000, start - 3 * MS - 15_000 + 4_000 * kind, name.format(kind % kinds))
                start += 50_000 + gap
            start += 20_000
    return Ill((path,), 50 * (8 - 8 // kinds) * (50_000 + gap))
