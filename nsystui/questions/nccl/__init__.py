"""Questions about NCCL: names and sizes of calls and kernels, their pairing, and bandwidth."""
