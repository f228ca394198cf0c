"""The efficiency of a job on its GPUs and hosts: a breakdown that adds up, and the factors of POP and TALP.

The formulas are from BSC's basicanalysis (``06_metrics.rst``) and DLB (``perf_metrics.c``), see
docs/numbers.md#efficiency: products of factors, each 100 % without loss: the lowest shows where to look.
"""
