"""Exports of any size with the proportions of a training run, for benchmarks."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

from synthetic.demo import model
from synthetic.demo.job import WORLD_STREAM
from synthetic.writing.target import DEFAULT_STREAM, CaptureSession

from .writer import ExportWriter

API_CALLS_PER_KERNEL: Final = 1.76
"""Measured on a PyTorch DDP job (docs/contributing.md#reference-data); so are the other proportions."""
NVTX_RANGES_PER_KERNEL: Final = 0.47
MEMORY_OPERATIONS_PER_KERNEL: Final = 0.12
_MODEL: Final = (
    *(*model.EMBEDDING, *model.LAYER_FORWARD, *model.HEAD_FORWARD),
    *(*model.HEAD_BACKWARD, *model.LAYER_BACKWARD, *model.LAYER_OPTIMIZER),
)
_KERNELS_PER_STEP: Final = 1_000
_OTHER_CALLS: Final = ("cudaEventRecord_v3020", "cudaStreamIsCapturing_v10000", "cudaStreamWaitEvent_v3020")


def benchmark_export(
    path: str | Path, kernels: int = 1_000_000, *, schema: str = "3.25.0", seed: int = 1, names: int = 200
) -> Path:
    """Write one process on one GPU with exactly `kernels` kernels of `names` different names; returns the path.

    A kernel has 1.76 API calls, 0.47 NVTX ranges and 0.12 memory operations on average, one kernel in 50 is
    NCCL's, on its own stream; 1,000 kernels make a step, which ends in a stream synchronization. Memory stays constant;
    a million kernels are about 210 MB and take some 12 s. Raises `ValueError` for an unknown schema.
    """
    random = Random(seed)
    specs = {spec.name: spec for spec in _MODEL}
    variants = -(-names // len(specs))
    compute = [
        (f"{name} [variant {variant}]" if variant else name, spec)
        for variant in range(variants)
        for name, spec in specs.items()
    ][: max(1, names - 1)]
    nccl = model.nccl_kernel("AllReduce")
    with ExportWriter(path, schema, session=CaptureSession(command=("python", "benchmark.py"))) as export:
        process = export.process(4_000, "python")
        main = export.thread(process, 4_000, "python")
        export.gpu(0)
        export.cuda_context(process)
        export.cuda_device(process, 0, 0)
        export.nvtx_domain(main, 0, 1, "NCCL")
        cpu, gpu, correlation = 1_000_000, 0, 0
        api_debt = nvtx_debt = memory_debt = 0.0
        step_start = cpu
        for number in range(kernels):
            start = cpu + 2_000
            cpu = start + random.randrange(4_000, 9_000)
            correlation += 2
            communicates = number % 50 == 49
            name, spec = (nccl.name, nccl) if communicates else compute[number % len(compute)]
            export.api(main, start, cpu, spec.launch[0], correlation, event_class=spec.launch[1])
            begin = max(cpu + 1_500, gpu + 900)
            length = int(random.lognormvariate(10.3, 0.9))
            stream = WORLD_STREAM if communicates else DEFAULT_STREAM
            # NCCL overlaps with what follows, so it does not move the end of the compute stream.
            gpu = gpu if communicates else begin + length
            export.kernel(
                process, 0, stream, begin, begin + length, name=name, correlation_id=correlation, grid=spec.grid,
                block=spec.block, registers=spec.registers, static_smem=spec.static_smem,
                dynamic_smem=spec.dynamic_smem,
            )  # fmt: skip
            nvtx_debt += NVTX_RANGES_PER_KERNEL
            if nvtx_debt >= 1:
                nvtx_debt -= 1
                if communicates:
                    export.nvtx_range(main, start - 1_000, cpu + 500, "ncclGroupEnd", domain_id=1, registered=True)
                else:
                    export.nvtx_range(main, start - 1_000, cpu + 500, f"{spec.label}, op_id = {number}")
            memory_debt += MEMORY_OPERATIONS_PER_KERNEL
            api_debt += API_CALLS_PER_KERNEL - 1
            if memory_debt >= 1:
                memory_debt -= 1
                api_debt -= 1
                correlation += 2
                start, cpu = cpu + 900, cpu + 7_000
                export.api(main, start, cpu, "cudaMemcpyAsync_v3020", correlation)
                begin = max(cpu + 1_500, gpu + 900)
                gpu = begin + 3_000
                export.memcpy(
                    process, 0, DEFAULT_STREAM, begin, gpu, size=65_536, kind="DtoD", correlation_id=correlation
                )
            while api_debt >= 1:
                api_debt -= 1
                start, cpu = cpu + 300, cpu + 1_700
                export.api(main, start, cpu, _OTHER_CALLS[number % 3], correlation + 1)
            if number % _KERNELS_PER_STEP == _KERNELS_PER_STEP - 1 or number == kernels - 1:
                cpu = max(cpu, gpu) + 5_000
                export.nvtx_range(main, step_start, cpu, f"step {number // _KERNELS_PER_STEP}")
                step_start = cpu + 1_000
                cpu = step_start + 3_000_000
                export.flush(until=step_start)
    return Path(path)
