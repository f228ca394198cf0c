"""``nsystui memory``."""

from __future__ import annotations

import argparse

from nsystui.commands import work

DESCRIPTION = """Memory copies and memsets by operation: time, or with --sizes bytes
(as `nsys stats -r cuda_gpu_mem_time_sum`, `cuda_gpu_mem_size_sum`; in bytes where nsys has MB of 1,000,000)."""
EXAMPLES = """  nsystui memory rank0.sqlite
  nsystui memory rank*.sqlite --ranks 0-3 --time 1s:2s --format json
  nsystui memory rank0.sqlite --sizes --format csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    work.add_arguments(parser)
    parser.add_argument("--sizes", action="store_true", help="bytes instead of time")


def run(arguments: argparse.Namespace) -> int:
    return work.run(arguments, "memory")
