"""Call stacks of the demo job, in Python, PyTorch and CUDA, as nsys finds them in a stripped driver."""

from __future__ import annotations

from functools import cache
from typing import Final

from synthetic.writing.host import Frame, Stack

_PACKAGES: Final = "/opt/conda/lib/python3.11/site-packages"
_PYTHON: Final = "/opt/conda/bin/python3.11"
_TORCH: Final = f"{_PACKAGES}/torch/lib/libtorch_cpu.so"
_TORCH_CUDA: Final = f"{_PACKAGES}/torch/lib/libtorch_cuda.so"
_TORCH_PYTHON: Final = f"{_PACKAGES}/torch/lib/libtorch_python.so"
_C10_CUDA: Final = f"{_PACKAGES}/torch/lib/libc10_cuda.so"
_RUNTIME: Final = f"{_PACKAGES}/nvidia/cuda_runtime/lib/libcudart.so.12"
_NCCL: Final = f"{_PACKAGES}/nvidia/nccl/lib/libnccl.so.2"
_DRIVER: Final = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
_LIBC: Final = "/usr/lib/x86_64-linux-gnu/libc.so.6"
_KERNEL: Final = "[kernel.kallsyms]"


def _frames(module: str, *functions: str) -> tuple[Frame, ...]:
    return tuple(Frame(function, module) for function in functions)


_INTERPRETER: Final = _frames(_PYTHON, "_PyEval_EvalFrameDefault")
_SCRIPT: Final = (
    *_INTERPRETER,
    *_frames(_PYTHON, "PyEval_EvalCode", "Py_RunMain"),
    *_frames(_LIBC, "__libc_start_main"),
    *_frames(_PYTHON, "_start"),
)
_THREAD: Final = _frames(_LIBC, "start_thread", "clone3")
_ENGINE: Final = (
    *_frames(
        _TORCH,
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, "
        "torch::autograd::Node*, torch::autograd::InputBuffer&, std::shared_ptr<torch::autograd::ReadyQueue> const&)",
        "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
    ),
    *_THREAD,
)
_WORKER: Final = (*_INTERPRETER, *_frames(_PYTHON, "_PyFunction_Vectorcall", "thread_run"), *_THREAD)
_UNRESOLVED_DRIVER: Final = Frame("0x7f3a1c2e43c1", _DRIVER, is_unresolved=True)
_UNRESOLVED_KERNEL: Final = Frame("0xffffffffb1a5e0f2", _KERNEL, is_kernel=True, is_unresolved=True)

PIN_MEMORY: Final[Stack] = (
    *_frames(_TORCH, "at::native::AVX512::direct_copy_kernel(at::TensorIteratorBase&)"),
    *_frames(_TORCH, "at::native::copy_(at::Tensor&, at::Tensor const&, bool)", "at::_ops::copy_::call"),
    *_frames(_TORCH_CUDA, "at::native::_pin_memory_cuda(at::Tensor const&, std::optional<c10::Device>)"),
    *_frames(_TORCH, "at::_ops::pin_memory::call(at::Tensor const&, std::optional<c10::Device>)"),
    *_frames(_TORCH_PYTHON, "torch::autograd::THPVariable_pin_memory(_object*, _object*, _object*)"),
    *_WORKER,
)
"""The data loader's thread copies a batch into pinned memory."""
COLLATE: Final[Stack] = (
    *_frames(_TORCH, "at::native::AVX512::stack_serial_kernel(at::Tensor&, c10::ArrayRef<at::Tensor>, long)"),
    *_frames(_TORCH, "at::native::stack(c10::ArrayRef<at::Tensor>, long)"),
    *_frames(_TORCH_PYTHON, "torch::autograd::THPVariable_stack(_object*, _object*, _object*)"),
    *_WORKER,
)
"""The data loader's thread makes a batch of samples."""
QUEUE: Final[Stack] = (
    *_frames(_LIBC, "sem_timedwait"),
    *_frames(_PYTHON, "PyThread_acquire_lock_timed", "lock_PyThread_acquire_lock"),
    *_SCRIPT,
)
"""The main thread waits for a batch in a queue."""
ALLOCATION: Final[Stack] = (
    *_frames(_LIBC, "ioctl"),
    _UNRESOLVED_DRIVER,
    *_frames(_RUNTIME, "cudaMalloc"),
    *_frames(
        _C10_CUDA,
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(signed char, unsigned long, "
        "CUstream_st*)",
    ),
    *_frames(_TORCH_CUDA, "at::native::empty_cuda"),
    *_SCRIPT,
)
BACKWARD: Final[Stack] = (
    *_frames(_LIBC, "pthread_cond_wait"),
    *_frames(_TORCH, "torch::autograd::Engine::execute"),
    *_frames(_TORCH_PYTHON, "THPEngine_run_backward(_object*, _object*, _object*)"),
    *_SCRIPT,
)
"""The main thread waits for autograd's thread."""


@cache
def stack_of(operator: str, call: str, *, is_autograd: bool) -> Stack:
    """Return the stack of a thread in an operator or another NVTX range, and in a CUDA API call, if any."""
    return (*_of_call(call), *_of_operator(operator), *(_ENGINE if is_autograd else _SCRIPT))


def _of_call(name: str) -> tuple[Frame, ...]:
    if not name:
        return ()
    if name == "cudaFree":  # the first call, which creates the context
        return (_UNRESOLVED_KERNEL, *_frames(_LIBC, "ioctl"), _UNRESOLVED_DRIVER, *_frames(_RUNTIME, name))
    if name.startswith("cuda"):
        return (_UNRESOLVED_DRIVER, *_frames(_RUNTIME, name))
    return _frames(_DRIVER, name)


def _of_operator(operator: str) -> tuple[Frame, ...]:
    space, _, name = operator.partition("::")
    if space == "aten" and name:
        return _frames(_TORCH, f"at::native::{name}", f"at::_ops::{name}::call")
    if operator.startswith("nccl:"):
        return _frames(_TORCH_CUDA, f"c10d::ProcessGroupNCCL::{operator.removeprefix('nccl:')}")
    if operator.startswith("nccl"):
        return (*_frames(_NCCL, operator), *_frames(_TORCH_CUDA, "c10d::ProcessGroupNCCL::collective"))
    if operator.endswith("Backward0"):
        return _frames(_TORCH, f"torch::autograd::generated::{operator}::apply")
    return ()
