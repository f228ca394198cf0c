"""``nsystui api``."""

from __future__ import annotations

import argparse

from nsystui.commands import work

DESCRIPTION = """CUDA runtime and driver calls by name, as `nsys stats -r cuda_api_sum`; a call that
--cudabacktrace wrote twice counts once."""
EXAMPLES = """  nsystui api rank0.sqlite
  nsystui api rank*.sqlite --ranks 0-3 --time 1s:2s --format json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    work.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return work.run(arguments, "api")
