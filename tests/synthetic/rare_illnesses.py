"""Exports with illnesses that few jobs have, and variants of illnesses on the healthy side of a threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from synthetic import illnesses
from synthetic.demo import TrainingJob
from synthetic.demo.model import nccl_kernel
from synthetic.illnesses import MS, Ill, OneGpu, one_gpu
from synthetic.writing.host import Frame
from synthetic.writing.target import CaptureSession, Thread
from synthetic.writing.writer import DEVICE, PAGEABLE, PINNED, WARNING


def drifting(path: Path) -> Ill:
    """Write two steps of 20 ms, then 12 of 20 to 31 ms; the median of the first third is 21.5 ms."""
    with one_gpu(path) as gpu:
        gpu.steps([time * MS for time in (20, 20, *range(20, 32))], idle=10_000)
    # The last step ends with its kernel, 20 µs less after the first operation of the step.
    return Ill((path,), int(sum(max(time - 21.5, 0) for time in range(20, 32)) * MS) - 10_000)


def warming_up(path: Path) -> Ill:
    """Write two steps of 60 and 40 ms, then 15 of 10 ms, of which one takes 14 and another 40."""
    with one_gpu(path) as gpu:
        gpu.steps([time * MS for time in (60, 40, *[10] * 6, 14, *[10] * 4, 40, *[10] * 3)], idle=10_000)
    return Ill((path,), 80 * MS)


def round_trips(path: Path, up: tuple[int, ...] = (4, 8), down: tuple[int, ...] = (4,)) -> Ill:
    """Write 20 iterations of a kernel of 10 ms.

    Copies of this size, MiB, 1 ms each, to the device before it and back after it.
    """
    with one_gpu(path) as gpu:
        now = MS
        for _ in range(20):
            for size in up:
                gpu.copy("cudaMemcpyAsync_v3020", now, now + MS, PINNED, size << 20)
                now += MS
            gpu.kernel(now, now + 10 * MS, launched=now - 5_000)
            now += 10 * MS
            for size in down:
                correlation = gpu.call("cudaMemcpyAsync_v3020", now - 5_000, now - 1_000)
                gpu.export.memcpy(
                    gpu.process, 0, 7, now, now + MS, size=size << 20, kind="DtoH",
                    correlation_id=correlation, source=DEVICE, destination=PINNED,
                )  # fmt: skip
                now += MS
    return Ill((path,), 40 * MS)


def synchronising_calls(path: Path) -> Ill:
    """Write 200 kernels of 0.8 ms, after each of which a ``cudaStreamSynchronize`` keeps the GPU idle for 0.2 ms."""
    with one_gpu(path) as gpu:
        for start in gpu.rounds(200, MS, 800_000):
            gpu.call("cudaStreamSynchronize_v3020", start + 10_000, start + 810_000)
    return Ill((path,), 199 * 200_000)


def short_gaps(path: Path) -> Ill:
    """Write 2,000 kernels of 5 µs after gaps of 15 µs, launched long before, and then a kernel of 30 ms."""
    with one_gpu(path) as gpu:
        for _ in gpu.rounds(2_000, 20_000, 5_000, early=900_000):
            pass
        gpu.kernel(41 * MS, 71 * MS, launched=40 * MS)
    return Ill((path,), 2_000 * 15_000)


def long_gaps(path: Path, calls: Sequence[str] = (), do: Callable[..., None] | None = None) -> Ill:
    """Write kernels of 6 ms with gaps of 4 ms, in which the main thread makes a call of 3.5 ms, or `do` writes more."""

    def called(gpu: OneGpu, _: Thread, time: int) -> None:
        for call in calls:
            gpu.call(call, time + 100_000, time + 3_600_000)

    return illnesses.with_gaps(path, do or called, 3_500_000)


def _copies(gpu: OneGpu, _: Thread, time: int) -> None:
    """A call of 3.5 ms that stages 10 µs of copying, at the end of the gap."""
    call, times = gpu.call("cudaMemcpy_v3020", time + 100_000, time + 3_600_000), (time + 3_990_000, time + 4 * MS)
    gpu.export.memcpy(gpu.process, 0, 7, *times, size=1_000, kind="HtoD", correlation_id=call, source=PAGEABLE)


def _waits_in_the_system(gpu: OneGpu, _: Thread, time: int) -> None:
    gpu.export.osrt(gpu.main, time + 100_000, time + 3_800_000, "poll")


def _waits_for_a_thread(gpu: OneGpu, other: Thread, time: int) -> None:
    gpu.export.osrt(gpu.main, time + 100_000, time + 3_800_000, "pthread_cond_wait")
    gpu.export.on_cpu(other, time + 50_000, time + 3_790_000, (Frame("decode", "/x/app.so"),), cpu=1)
    gpu.export.on_cpu(gpu.main, time - 6 * MS, time + 100_000)


def _runs_code(gpu: OneGpu, _: Thread, time: int) -> None:
    gpu.export.on_cpu(gpu.main, time - 5 * MS, time + 3_990_000, (Frame("tokenize", "/x/app.so"),))


def _is_off_its_cpu(gpu: OneGpu, _: Thread, time: int) -> None:
    gpu.export.on_cpu(gpu.main, time - 5 * MS, time + 100_000)


def no_kernels(path: Path, calls: Sequence[str]) -> Ill:
    """Write calls whose work on the GPU was not recorded."""
    with one_gpu(path) as gpu:
        for number, call in enumerate(calls):
            gpu.call(call, number * MS, number * MS + 10_000)
        gpu.export.diagnostic(5, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES.", severity=2)
    return Ill((path,), 0)


def exposed_copies(path: Path, source: int = PINNED, stream: int = 7, busy: int = 3 * MS) -> Ill:
    """Write 50 kernels of `busy` ns, before each of which 1 ms is copied from the host."""
    with one_gpu(path) as gpu:
        for start in gpu.rounds(50, busy + MS, busy):
            correlation = gpu.call("cudaMemcpyAsync_v3020", start - MS - 5_000, start - MS - 1_000)
            gpu.export.memcpy(
                gpu.process, 0, stream, start - MS, start, size=10 * MS, kind="HtoD",
                correlation_id=correlation, source=source, destination=DEVICE,
            )  # fmt: skip
    return Ill((path,), 50 * MS)


def capture_errors(path: Path, *messages: str, severity: int = 3, codes: Sequence[int] = (700, 2, 2, 801, 600)) -> Ill:
    """Write a kernel of 200 ms, calls that return errors, and messages of nsys with a severity."""
    with one_gpu(path) as gpu:
        gpu.kernel(MS, 200 * MS, launched=900_000)
        for number, code in enumerate(codes):
            gpu.call("cudaEventQuery_v3020", (201 + number) * MS, (202 + number) * MS, return_value=code)
        for text in messages or ("The agent has stopped.", "No symbols."):
            gpu.export.diagnostic(5, text, severity=severity)
    return Ill((path,), 0)


def synchronous_copies(path: Path, sources: Sequence[int] = (PAGEABLE,)) -> Ill:
    """Write 50 kernels of 3 ms, each with a ``cudaMemcpy`` of which 0.9 ms overlap no kernel."""
    with one_gpu(path) as gpu:
        for number, start in enumerate(gpu.rounds(50, 4 * MS, 3 * MS)):
            source = sources[number % len(sources)]
            gpu.copy("cudaMemcpy_v3020", start + 2 * MS + 500_000, start + 4 * MS - 100_000, source)
    return Ill((path,), 50 * 900_000)


def waiting_for_launches(path: Path) -> Ill:
    """Write 300 kernels of 5 µs, one every 20 µs, each launched 1 µs after the previous kernel has ended."""
    with one_gpu(path) as gpu:
        for _ in gpu.rounds(300, 20_000, 5_000, early=6_000):
            pass
    return Ill((path,), 299 * 15_000)


def different_runs(folder: Path) -> Ill:
    """Write two ranks of which the second ran a day after the first."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / "rank0.sqlite", folder / "rank1.sqlite")
    for rank, path in enumerate(paths):
        epoch = CaptureSession().utc_epoch_ns + rank * 86_400 * 1_000 * MS
        session = CaptureSession(environment={"RANK": str(rank), "WORLD_SIZE": "4"}, utc_epoch_ns=epoch)
        with one_gpu(path, session=session, gpu=rank) as gpu:
            for start in gpu.rounds(20, 10 * MS, 8 * MS):
                gpu.kernel(start + 8 * MS, start + 9 * MS, start - 5_000, nccl_kernel("AllReduce").name)
    return Ill(paths, 0)


def different_work(folder: Path, launches: int = 140) -> Ill:
    """Write four ranks of 100 kernels of 1 ms each, of which the last has as many as ``launches``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"rank{rank}.sqlite" for rank in range(4))
    for rank, path in enumerate(paths):
        with one_gpu(path, session=CaptureSession(environment={"RANK": str(rank)}), gpu=rank) as gpu:
            for number in range(launches if rank == 3 else 100):
                gpu.kernel(MS + number * MS, 2 * MS + number * MS - 1_000, launched=900_000 + 2_000 * number)
    return Ill(paths, (launches - 100) * 999_000 * 3 // 4)


def compiling(
    path: Path,
    library: str = "/usr/lib/libnvrtc.so.12",
    function: str = "llvm::PassManager::run(llvm::Module&)",
    process: str = "",
    busy: Sequence[tuple[int, int]] = ((50, 70), (130, 170)),
) -> Ill:
    """Write samples of a compiler from 70 to 129 ms, in the launching thread or a `process`; kernels run in `busy`, ms.

    At last a ``cudaFree`` takes 30 ms.
    """
    with one_gpu(path) as gpu:
        gpu.call("cudaFree_v3020", 0, 40 * MS)
        thread = gpu.export.thread(gpu.export.process(9_000, process), 9_000, process) if process else gpu.main
        gpu.export.on_cpu(thread, 70 * MS, 129 * MS, [Frame("main", "/x/app"), Frame(function, library)])
        for start, end in busy:
            gpu.kernel(start * MS, end * MS, launched=(start - 1) * MS)
        gpu.call("cudaFree_v3020", 170 * MS, 200 * MS)
    return Ill((path,), 59 * MS)


def reducing(path: Path, calls: int, after: bool = True, before: int = 0, stream: int = 7) -> Ill:
    """Write 12 steps with 10 ms of compute on stream 7, and `calls` AllReduce of 5 ms in all, during or `after` it.

    Before all steps there are `before` AllReduce.
    """
    name, length = nccl_kernel("AllReduce").name, 5 * MS // calls
    with one_gpu(path) as gpu:
        for call in range(before):
            gpu.kernel(call * 5_000, call * 5_000 + 1_000, launched=call * 5_000, name=name)
        for number, start in enumerate(gpu.rounds(12, 16 * MS, 10 * MS)):
            gpu.export.nvtx_range(gpu.main, start - 20_000, start + 15 * MS, f"step {number}")
            for call in range(calls):
                begin = start + (10 if after else 4) * MS + call * length
                gpu.kernel(begin, begin + length, launched=start - 5_000, name=name, stream=stream)
    return Ill((path,), 12 * 5 * MS)


def _in(write: Callable[..., Ill], **how: object) -> Callable[[Path], Ill]:
    return lambda folder: write(folder / "rank0.sqlite", **how)


_QUICK: Final = TrainingJob(ranks=2, steps=4, layers=1, straggler=None, stall_ms=0, gpu_metrics=False, start_up=0.02)
VARIANTS: Final[dict[str, Callable[[Path], object]]] = {
    "uneven": replace(_QUICK, ranks=3, steps=3, uneven_ms=20).write,
    "small-messages": replace(_QUICK, small_messages=80).write,
    "unsized": replace(_QUICK, small_messages=20, payload=None).write,
    "lost": lambda folder: capture_errors(folder / "rank0.sqlite", "1234 CUDA events were dropped.", severity=2),
    "alike": lambda folder: different_work(folder, 103),
    "churn-drained": _in(illnesses.allocator_churn, drains_ns=MS),
    "churn-stepless": _in(illnesses.allocator_churn, steps=False),
    "launched-ahead": _in(illnesses.launch_bound, ahead=5_000),
    "throttled-unsampled": _in(illnesses.throttled, clock=False),
    "transposes": _in(illnesses.layout_changes, name="loop_transpose_fusion_3"),
    "unfused-alike": _in(illnesses.unfused, kinds=2),
    "starved-pins": _in(illnesses.starved, pin_ms=17),
    "preempted-alone": _in(illnesses.preempted, others=False),
    "stages-even": partial(illnesses.pipeline_stages, slow=1.0, of_names=False),
    "stages-named": partial(illnesses.pipeline_stages, slow=1.0),
    "errors-of-all-kinds": _in(capture_errors, codes=(1, 214, 217, 700, 702, 710, 714, 715, 716, 717, 718, 719, 801)),
    "errors-expected": _in(capture_errors, codes=(801, 1)),
    "errors-of-peers": _in(capture_errors, codes=(217,)),
    "errors-of-memory": _in(capture_errors, codes=(2, 600, 704)),
    "perhaps-lost": lambda folder: capture_errors(
        folder / "rank0.sqlite",
        *(f"Not all {what} events might have been collected." for what in ("NVTX", "CUDA")),
        severity=WARNING,
        codes=(),
    ),
    "copies-pinned": _in(synchronous_copies, sources=(PINNED,)),
    "copies-mixed": _in(synchronous_copies, sources=(PAGEABLE, PINNED)),
    "exposed-pinned": _in(exposed_copies),
    "exposed-apart": _in(exposed_copies, stream=9),
    "exposed-unknown": _in(exposed_copies, source=0),
    "no-kernels": _in(no_kernels, calls=("cudaLaunchKernel_v7000", "cudaMemcpy_v3020", "cudaLaunchKernel_v7000")),
    "no-launches": _in(no_kernels, calls=("cudaMalloc_v3020",)),
    **{
        f"gaps-{name}": _in(long_gaps, calls=(call,))
        for name, call in {
            "synchronised": "cudaStreamSynchronize_v3020",
            "launched": "cudaLaunchHostFunc_v10000",
            "called": "cudaStreamCreate_v3020",
        }.items()
    },
    **{
        f"gaps-{name}": _in(long_gaps, do=do)
        for name, do in {
            "in-the-system": _waits_in_the_system,
            "behind-a-thread": _waits_for_a_thread,
            "running-code": _runs_code,
            "off-cpu": _is_off_its_cpu,
            "copied": _copies,
        }.items()
    },
    "reducing-once": _in(reducing, calls=1, stream=20),
    "reducing-often": _in(reducing, calls=250, stream=20),
    "reducing-beside": _in(reducing, calls=8, after=False),
    "reducing-before": _in(reducing, calls=8, after=False, before=60),
    "mpi-set-up": partial(illnesses.mpi_waits, set_up=100 * MS),
}
"""Jobs that differ from ill jobs only in the fact that decides a rule, and ill training jobs, by directory."""
