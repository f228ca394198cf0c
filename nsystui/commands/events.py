"""``nsystui events``: everything that happened, in time order."""

from __future__ import annotations

import argparse

from nsystui.commands import arguments as shared

DESCRIPTION = """Everything that happened in the selection, in time order: API calls, kernels, memory operations, whole
graph launches, synchronisations, NVTX ranges and marks, MPI calls; OS runtime calls when asked for."""
EXAMPLES = """  nsystui events rank0.sqlite --time 1.200s:1.201s
  nsystui events rank0.sqlite --kinds kernel,nccl,memory --format csv -o gpu.csv
  nsystui events rank0.sqlite --filter cudaMalloc --sort duration --top 20"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    parser.add_argument(
        "--kinds",
        default="",
        metavar="LIST",
        help="api, kernel, nccl, memory, graph, sync, nvtx, mark, mpi, os, separated by commas",
    )
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.event_kinds import kinds_of
    from nsystui.questions.events import EventList

    kinds = kinds_of(arguments.kinds)
    job = shared.open_job(arguments, times=True)
    try:
        selection = shared.selection_of(arguments, job)
        return shared.deliver(arguments, EventList.build(job.session, selection, job.ranks, kinds))
    finally:
        job.close()
