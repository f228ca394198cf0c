"""GPU work by name: kernels, memory operations and calls, in sum and one by one."""
