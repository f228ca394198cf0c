"""Kernels, memory operations and calls by name: sums and instances."""
