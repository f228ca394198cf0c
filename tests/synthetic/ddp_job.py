"""Jobs whose ranks load data, compute and reduce twice in each step, all on one clock."""

from collections.abc import Callable
from pathlib import Path

from .demo.model import nccl_kernel
from .illnesses import one_gpu
from .writing.target import CaptureSession

MS = 1_000_000
ALL_REDUCE = nccl_kernel("AllReduce").name
STEPS = 20
OfStep = Callable[[int, int], int]


def nothing(rank: int, step: int) -> int:
    return 0


def ddp_job(
    folder: Path,
    ranks: int = 4,
    *,
    loads: OfStep = nothing,
    computes: OfStep = nothing,
    transfer: int = MS,
    skips: Callable[[int, int, int], bool] = lambda rank, step, number: False,
    captured: Callable[[int], range] = lambda rank: range(STEPS),
    loses: Callable[[int, int, int], bool] = lambda rank, step, number: False,
    loader: str = "next_batch",
    size: int | None = None,
    clock: Callable[[int], int] | None = None,
    fills: str = "",
    kernel: str = "work(float*)",
) -> list[Path]:
    """Write an export a rank. ``loads`` and ``computes``: extra time by rank and step, ns.

    A rank ``skips`` collectives by rank, step and number, records the steps ``captured``, and ``loses`` kernels.
    ``size``: the recorded number of ranks. ``clock``: of a rank's GPU, MHz. ``fills`` the time in which a rank
    loads data: "copy", "gil" (waits for it), "host" function, "stall". ``kernel``: the kernel that ``computes``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rank{rank}.sqlite" for rank in range(ranks)]
    begins = [10 * MS]
    for step in range(STEPS):
        arrivals = [begins[-1] + 11 * MS + loads(rank, step) + computes(rank, step) for rank in range(ranks)]
        begins.append(max(arrivals) + 2 * transfer + 2 * MS)
    for rank, path in enumerate(paths):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(size or ranks)}
        session = CaptureSession(hostname="host", environment=environment, duration=begins[-1] + 10 * MS)
        with one_gpu(path, session=session, gpu=rank) as gpu:
            if clock is not None:
                gpu.export.gpu_metric_names(rank, ("GPC Clock Frequency [MHz]",))
                for time in begins:
                    gpu.export.gpu_metric(rank, time, (clock(rank),))
            for step in captured(rank):
                begin, ready = begins[step], begins[step] + MS + loads(rank, step)
                arrival, last = ready + 10 * MS + computes(rank, step), begins[step + 1] - 2 * transfer - 2 * MS
                gpu.export.nvtx_range(gpu.main, begin, begins[step + 1] - 2_000, f"step {step}")
                gpu.export.nvtx_range(gpu.main, begin + 1_000, ready - 50_000, loader)
                if fills == "copy":
                    gpu.copy("cudaMemcpyAsync_v3020", begin + 9_000, ready - 50_000)
                elif fills == "gil":
                    gpu.export.gil(gpu.main, waited=[(begin + 9_000, ready - 50_000)])
                elif fills == "host":
                    call = gpu.call("cudaLaunchHostFunc_v10000", begin, begin + 5_000)
                    row = (begin + 9_000, ready - 50_000, 0, 1, 0, 7, call, gpu.process.global_id, None, None)
                    gpu.export.rows("CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH").append(row)
                gpu.kernel(ready, arrival, begin + 5_000 if fills == "stall" else ready - 10_000, kernel)
                for number, start in enumerate((arrival, last + transfer)):
                    end, launch = last + (number + 1) * transfer, ready - 8_000 + number
                    if skips(rank, step, number):
                        continue
                    if loses(rank, step, number):
                        gpu.call("cudaLaunchKernel_v7000", launch, launch + 1_000)
                    else:
                        gpu.kernel(start, end, launch, ALL_REDUCE, stream=20)
                gpu.kernel(last + 2 * transfer, begins[step + 1] - 50_000, ready - 5_000)
    return paths
