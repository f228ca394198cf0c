"""Kernels, memory operations and calls by name: summaries and instances."""
