"""An inference server, step by step: kernels launched one by one, and kernels that a CUDA graph replays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .gpu_program import Program
from .writer import ExportWriter

US, MS = 1_000, 1_000_000
PREFILL, DECODE = (2, 0), (0, 9)
ORDER = [DECODE, PREFILL, DECODE, DECODE, PREFILL, DECODE, DECODE, DECODE, PREFILL, (1, 9), DECODE]
FMHA = "fmha_v2_flash_attention_bf16_64_64_S_q_paged_kv_128_causal_sm90_kernel(Params)"
CONTEXT = "void fmhaSm100Kernel_QkvBfloat16_PagedKv_Context(Params)"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>(Flash_fwd_params)"
SPLIT = "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>(Flash_fwd_params)"
GEMM = "void gemm<float>(float *)"
ADAM = "void multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>(int)"


class Server(Program):
    """A server whose steps follow one another; each ends with its last kernel."""

    def __init__(self, path: Path, pid: int = 3000) -> None:
        super().__init__(ExportWriter(path), pid)
        self.now = MS
        self.steps: list[tuple[int, int]] = []

    def step(self, name: str, eager: Sequence[tuple[str, int]] = (), replayed: Sequence[tuple[str, int]] = ()) -> None:
        """Write a range, kernels that it launches one by one and kernels of one CUDA graph: their names and
        durations."""
        start = self.now
        self.now += 20 * US
        for kernel, length in eager:
            self.kernel((self.now, self.now + 5 * US), (self.now + 6 * US, self.now + 6 * US + length), name=kernel)
            self.now += 6 * US + length
        if replayed:
            number = self.call("cudaGraphLaunch_v10000", (self.now, self.now + 5 * US))
            self.now += 6 * US
            for node, (kernel, length) in enumerate(replayed):
                place: dict[str, Any] = {"name": kernel, "correlation_id": number, "graph_node_id": 10 + node}
                self.export.kernel(self.process, 0, 13, self.now, self.now + length, context=1, **place)
                self.now += length
        self.export.nvtx_range(self.main, start, self.now, name)
        self.steps.append((start, self.now))

    def forward(self, number: int, requests: tuple[int, int]) -> None:
        """Write a step of TensorRT-LLM: 97.4 ms from its start to the next."""
        prefill, decode = requests
        name = f"[Executor] _forward_step {number}: {prefill} ctx reqs, {decode} gen reqs"
        length = 97_400 * US - 26 * US
        self.step(name, eager=[(FMHA, 3 * length)] if prefill else (), replayed=[(GEMM, length)] if decode else ())

    def forward_all(self) -> None:
        """Write the steps of `ORDER`."""
        for number, requests in enumerate(ORDER):
            self.forward(number, requests)
