"""``nsystui gpu``: how busy each GPU was, in all or over time."""

from __future__ import annotations

import argparse

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared

DEFAULT_BINS = 100

DESCRIPTION = """How busy each GPU was: one row per rank and device, with compute (kernels but NCCL's), NCCL, memory
operations and whole CUDA graphs as unions of time. They overlap, so that together they may exceed `busy`; `exposed` is
NCCL that no compute hides. With --over-time, one row for each device and each of --bins equal spans of the selected
time.
This is the table that `e` exports on the GPU screen; while zoomed, that of --time with the view's ends."""
EXAMPLES = """  nsystui gpu rank*.sqlite
  nsystui gpu rank0.sqlite --time 1.2s:1.5s --format json
  nsystui gpu rank*.sqlite --over-time --bins 1000 --format csv -o busy.csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table")
    group.add_argument("--over-time", action="store_true", help="one row for each span of the time")
    group.add_argument(
        "--bins", type=int, metavar="N", help=f"with --over-time: into how many spans (default: {DEFAULT_BINS})"
    )
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.utilisation import columns_read, utilisation_over_time, utilisation_table

    bins = DEFAULT_BINS if arguments.bins is None else arguments.bins
    if bins < 1:
        raise UsageError(f"--bins {bins}: at least one is needed")
    if arguments.bins is not None and not arguments.over_time:
        raise UsageError("--bins goes with --over-time")
    expected = (columns_read(of_streams=bool(arguments.streams)), ())
    job = shared.open_job(arguments, whole=False, times=True, expected=expected)
    try:
        selection = shared.selection_of(arguments, job)
        busy, window = job.busy(selection), job.extent(selection)
        answer = utilisation_over_time(busy, window, bins) if arguments.over_time else utilisation_table(busy, window)
        return shared.deliver(arguments, answer)
    finally:
        job.close()
