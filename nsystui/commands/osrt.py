"""``nsystui osrt``."""

from __future__ import annotations

import argparse

from nsystui.commands import work

DESCRIPTION = "OS runtime calls by name, as `nsys stats -r osrt_sum`."
EXAMPLES = """  nsystui osrt rank0.sqlite
  nsystui osrt rank*.sqlite --ranks 0-3 --time 1s:2s --format json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    work.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return work.run(arguments, "os")
