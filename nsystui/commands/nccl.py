"""``nsystui nccl``: NCCL kernels and calls by collective and message size."""

from __future__ import annotations

import argparse

from nsystui.commands import arguments as shared

DESCRIPTION = """NCCL kernels and API calls by collective and message size (buckets of base 1024, lower bound
inclusive). Kernels get the sizes of the calls that launched them. With --calls or --kernels, one row each."""
EXAMPLES = """  nsystui nccl rank*.sqlite
  nsystui nccl rank*.sqlite --calls AllReduce --format csv
  nsystui nccl rank0.sqlite --kernels AllReduce --bucket '1MB–16MB' --sort duration --top 10"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table")
    group.add_argument("--all-sizes", action="store_true", help="by collective alone, not by message size")
    single = group.add_mutually_exclusive_group()
    single.add_argument("--calls", metavar="COLLECTIVE", help="the single API calls of a collective")
    single.add_argument("--kernels", metavar="COLLECTIVE", help="the single kernels of a collective")
    group.add_argument(
        "--bucket", metavar="SIZE", help="only one message size: <64KB, 64KB–1MB, 1MB–16MB, >16MB, unknown"
    )
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.analysis.nccl.table import CALL, KERNEL, What, nccl_listing, nccl_summary

    job = shared.open_job(arguments)
    try:
        selection = shared.selection_of(arguments, job)
        pairing = job.pairing()
        collective = arguments.calls or arguments.kernels
        if collective:
            what: What = CALL if arguments.calls else KERNEL
            bucket = _bucket(arguments.bucket)
            answer = nccl_listing(job.session, selection, job.ranks, pairing, collective, bucket, what)
            return shared.deliver(arguments, answer)
        by_bucket = not arguments.all_sizes
        return shared.deliver(arguments, nccl_summary(job.session, selection, job.ranks, pairing, by_bucket))
    finally:
        job.close()


def _bucket(text: str | None) -> str | None:
    """The bucket of that name (a plain hyphen will do); raises UsageError for one there is not."""
    from nsystui.analysis.nccl.buckets import BUCKETS
    from nsystui.analysis.nccl.table import ALL_SIZES
    from nsystui.errors import UsageError

    if text is None:
        return ALL_SIZES
    if text == "unknown":
        return None
    known = {bucket.replace("–", "-"): bucket for bucket in BUCKETS}
    if text.replace("–", "-") not in known:
        raise UsageError(f"bucket {text!r}: the buckets are {', '.join(known)}, unknown")
    return known[text.replace("–", "-")]
