"""Kernels of the demo jobs: a small language model in training, a model that serves, and NCCL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from synthetic.writing.writer import DRIVER_CALL, RUNTIME_CALL, Dim3

LAUNCH: Final = ("cudaLaunchKernel_v7000", RUNTIME_CALL)
LAUNCH_EXTENDED: Final = ("cudaLaunchKernelExC_v11060", RUNTIME_CALL)
LAUNCH_DRIVER: Final = ("cuLaunchKernelEx", DRIVER_CALL)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of the model: its launches, and how busy they keep the GPU."""

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
    meets: bool = False
    """Whether it communicates: it runs on all ranks, and its duration counts from the last rank's start."""


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
    return (_gemm(label, "192x192_64x4_2x1", dgrad), _gemm(label, "256x128_64x4_1x2", wgrad), _reduce(label, 15))


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
    """Return the device kernel of NCCL >= 2.19 for an operation; algorithm and protocol in its name may be wrong."""
    reduction = "_Sum_bf16" if operation in ("AllReduce", "ReduceScatter") else ""
    suffix = "" if operation == "SendRecv" else f"{reduction}_RING_LL"
    base = f"ncclDevKernel_{operation}{suffix}"
    name = f"{base}(ncclDevKernelArgsStorage<(unsigned long)4096>)"
    mangled = f"_Z{len(base)}{base}24ncclDevKernelArgsStorageILm4096EE"
    return KernelSpec("", name, 0.0, (24, 1, 1), (640, 1, 1), 96, 21568, 82240, LAUNCH_EXTENDED, mangled, 0.0, 0.1)


def _vllm(kernel: str, microseconds: float) -> KernelSpec:
    return KernelSpec("", f"void vllm::{kernel}", microseconds, (24, 1, 1), (1024, 1, 1), 40, dram=0.3)


def _layer_served(
    attention: KernelSpec, tiles: Sequence[str], microseconds: Sequence[float], *, tensor: float
) -> tuple[tuple[KernelSpec, ...], ...]:
    """Return a layer's kernels up to each of its two all-reduces, with the times of all kernels except `attention`."""
    norm, query, rotary, output, up, activation, down = microseconds
    norms = _vllm("fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, long, T1 *, const T1 *, float)", norm)
    rotate = _vllm("rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *, T1 *, T1 *, const T1 *)", rotary)
    gate = "act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)"
    linear = [
        replace(_gemm("", tile, time), tensor=tensor, dram=0.9 - tensor)
        for tile, time in zip(tiles, (query, output, up, down), strict=True)
    ]
    return (norms, linear[0], rotate, attention, linear[1]), (norms, linear[2], _vllm(gate, activation), linear[3])


def _flashinfer(kernel: str, microseconds: float) -> KernelSpec:
    name = f"void flashinfer::{kernel}WithPagedKVCacheKernel<flashinfer::DefaultAttention<(bool)0>, __nv_bfloat16>(T1)"
    return KernelSpec("", name, microseconds, (264, 1, 1), (128, 1, 1), 255, 0, 98304, dram=0.6)


DECODE_ATTENTION: Final = _flashinfer("BatchDecode", 12)
PREFILL_ATTENTION: Final = _flashinfer("BatchPrefill", 180)
DECODE_LAYER: Final = _layer_served(
    DECODE_ATTENTION,
    ("64x8_64x16_4x1", "64x8_64x16_2x1", "64x16_64x16_4x1", "64x16_64x16_2x1"),
    (4, 14, 3, 9, 26, 4, 15),
    tensor=0.08,
)
"""9 kernels, about 90 µs: one token of each of 24 requests."""
PREFILL_LAYER: Final = _layer_served(
    PREFILL_ATTENTION,
    ("192x128_64x5_2x1", "192x192_64x4_2x1", "256x128_64x4_1x2", "256x192_64x4_2x1"),
    (18, 140, 14, 95, 300, 24, 150),
    tensor=0.72,
)
"""9 kernels, about 0.9 ms: one prompt of 2,048 tokens."""
LOGITS: Final = (DECODE_LAYER[1][0], _gemm("", "64x16_64x16_4x1", 90))
ARGMAX: Final = replace(_reduce("", 15), name=_reduce("", 15).name.replace("sum_functor", "ArgMaxOps"), mangled=None)


def custom_all_reduce(ranks: int) -> KernelSpec:
    """Return vLLM's kernel for all-reduces that are too small for NCCL, here of 192 KiB."""
    arguments = "vllm::RankData *, vllm::RankSignals, vllm::Signal *, T1 *, int, int"
    name = f"cross_device_reduce_1stage<__nv_bfloat16, (int){ranks}>({arguments})"
    return replace(_vllm(name, 12), meets=True)
