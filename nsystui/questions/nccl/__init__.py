"""Questions about NCCL: names and sizes of its calls and kernels, the calls paired with the kernels, bandwidth."""
