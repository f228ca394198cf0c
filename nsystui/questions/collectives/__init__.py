"""Collectives across the ranks of a job: which kernels are one operation, who came late, who waited.

See docs/ranks.md#waiting.
"""
