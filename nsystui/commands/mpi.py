"""``nsystui mpi``."""

from __future__ import annotations

import argparse

from nsystui.commands import work

DESCRIPTION = "MPI calls by name (traced with `nsys profile -t mpi`)."
EXAMPLES = """  nsystui mpi rank0.sqlite
  nsystui mpi rank*.sqlite --ranks 0-3 --time 1s:2s --format json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    work.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return work.run(arguments, "mpi")
