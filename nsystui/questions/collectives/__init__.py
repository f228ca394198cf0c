"""Collectives across the ranks of a job: the kernels of each operation, late ranks, and waiting.

See docs/ranks.md#waiting.
"""
