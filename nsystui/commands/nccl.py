"""``nsystui nccl``: NCCL kernels and calls by collective, size, communicator and so on, or one by one."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.questions.job import Job
    from nsystui.questions.nccl.grouping import By

DESCRIPTION = """NCCL kernels and API calls by collective and message size, with bandwidth and exposed time.
Kernels get the sizes of the calls that launched them.

  exposed   time of the kernels in which no kernel but NCCL's ran on their GPU, summed over the kernels (two side by
            side both count, once in `nsystui gpu`); overlap: the rest, in percent
  algbw     bytes by kernel time; busbw: the same times nccl-tests' factor, such as 2(n-1)/n for AllReduce, with
            n times the bytes for AllGather, ReduceScatter, AlltoAll, Gather and Scatter. The kernel time includes
            waiting for other ranks. Missing where the size, or the n, is not known
  several   the rows behind this one differ

Sizes are those of a call: of AllGather and ReduceScatter those of one rank, of AlltoAll of one peer. Buckets and
powers of two have base 1024 and include their lower edge."""
EXAMPLES = """  nsystui nccl rank*.sqlite
  nsystui nccl rank*.sqlite --by collective,bytes,communicator --format csv
  nsystui nccl rank0.sqlite --by step --step-range '^iteration (\\d+)'
  nsystui nccl rank*.sqlite --sizes --filter AllReduce
  nsystui nccl rank*.sqlite --calls --format csv
  nsystui nccl rank*.sqlite --nccl-log nccl*.log
  nsystui nccl rank0.sqlite --kernels AllReduce --bucket '1MiB–16MiB' --sort duration --top 10"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table")
    table = group.add_mutually_exclusive_group()
    table.add_argument(
        "--by",
        default="collective,size",
        metavar="LIST",
        help="group by any of collective, size (bucket), pow2 (power of two), bytes (exact size), communicator, "
        "stream, rank, step, datatype, reduction, separated by commas (default: collective,size); calls have no stream",
    )
    table.add_argument("--all-sizes", action="store_true", help="the same as --by collective")
    table.add_argument(
        "--sizes",
        nargs="?",
        const="exact",
        type=_no_file,
        choices=("bucket", "pow2", "exact"),
        help="kernels by collective and size: spread of the durations and bandwidth (default: by exact size)",
    )
    table.add_argument(
        "--calls",
        nargs="?",
        const="",
        type=_no_file,
        metavar="COLLECTIVE",
        help="a row for each call that communicates, with its kernel; or only those of a collective (or management "
        "call, such as ncclGroupEnd)",
    )
    table.add_argument(
        "--kernels",
        nargs="?",
        const="",
        type=_no_file,
        metavar="COLLECTIVE",
        help="a row for each kernel, or only those of a collective",
    )
    group.add_argument(
        "--bucket",
        metavar="SIZE",
        help="with --calls or --kernels: only one message size: <64KiB, 64KiB–1MiB, 1MiB–16MiB, >16MiB, unknown",
    )
    shared.add_step_range(group)
    group.add_argument(
        "--nccl-log",
        action="extend",
        nargs="+",
        metavar="LOG",
        help="NCCL's debug logs of the same job (plain, .gz or globs), after FILE: they tell message sizes that the "
        "exports do not, where they have as many calls",
    )
    shared.add_selection(parser)
    shared.add_format(parser)


def _no_file(text: str) -> str:
    """The word after ``--calls`` and the like, unless it is a file that was meant for the command."""
    if os.path.lexists(text) or text.endswith(".sqlite"):
        raise argparse.ArgumentTypeError(f"{text!r} is a file: write the files first, then the option")
    return text


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.nccl.grouping import by_of

    by = by_of("collective" if arguments.all_sizes else arguments.by)
    row = _row(arguments)
    is_listed = arguments.calls is not None or arguments.kernels is not None
    job = shared.open_job(arguments, times=is_listed)
    try:
        if arguments.nccl_log:
            from nsystui.exports.nccl_log.files import named
            from nsystui.questions.nccl.from_log import read_log

            job.nccl_log = read_log(named(arguments.nccl_log), job.ranks)
        return shared.deliver(arguments, _asked(arguments, job, by, row))
    finally:
        job.close()


def _asked(arguments: argparse.Namespace, job: Job, by: tuple[By, ...], row: dict[By, Any]) -> Answer:
    from nsystui.questions.nccl.bandwidth import in_steps
    from nsystui.questions.nccl.grouping import By
    from nsystui.questions.nccl.listing import nccl_listing
    from nsystui.questions.nccl.sizes import bandwidth_by_size
    from nsystui.questions.nccl.summary import CALL, KERNEL, nccl_summary

    selection = shared.selection_of(arguments, job)
    pairing = job.pairing()
    if By.STEP in by or arguments.step_range is not None:
        pairing = in_steps(pairing, job.steps(arguments.step_range))
    if arguments.sizes:
        size = {"bucket": By.SIZE, "pow2": By.POW2, "exact": By.BYTES}[arguments.sizes]
        return bandwidth_by_size(job.session, selection, job.ranks, pairing, size)
    if arguments.calls is not None:
        return nccl_listing(job.session, selection, job.ranks, pairing, row, CALL)
    if arguments.kernels is not None:
        return nccl_listing(job.session, selection, job.ranks, pairing, row, KERNEL)
    return nccl_summary(job.session, selection, job.ranks, pairing, by)


def _row(arguments: argparse.Namespace) -> dict[By, Any]:
    """What the single rows are to have in common; raises UsageError for a bucket that there is not, or is not asked."""
    from nsystui.base.errors import UsageError
    from nsystui.questions.nccl.grouping import By
    from nsystui.questions.nccl.listing import COMMUNICATION
    from nsystui.questions.nccl.names import BUCKETS

    row: dict[By, Any] = {}
    if arguments.calls is not None:
        row[By.COLLECTIVE] = arguments.calls or COMMUNICATION
    elif arguments.kernels:
        row[By.COLLECTIVE] = arguments.kernels
    if arguments.bucket is None:
        return row
    if arguments.calls is None and arguments.kernels is None:
        raise UsageError("--bucket chooses single rows: add --calls or --kernels")
    # A plain hyphen will do for the dash.
    known: dict[str, str | None] = {bucket.replace("–", "-"): bucket for bucket in BUCKETS}
    known["unknown"] = None
    wanted = arguments.bucket.replace("–", "-")
    if wanted not in known:
        raise UsageError(f"bucket {arguments.bucket!r}: the buckets are {', '.join(known)}")
    return {**row, By.SIZE: known[wanted]}
