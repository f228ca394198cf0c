"""``nsystui kernels``: the kernel summary, or the launches of one kernel."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from nsystui.questions.remembered import Remembered

DESCRIPTION = """The kernel summary: the columns and values of `nsys stats -r cuda_gpu_kern_sum`, over all files.
With --instances, every launch of one kernel."""
EXAMPLES = """  nsystui kernels rank0.sqlite
  nsystui kernels rank*.sqlite --names short --by rank --top 20
  nsystui kernels rank*.sqlite --filter '!nccl' --time 1.2s:1.5s --format csv
  nsystui kernels rank0.sqlite --names short --instances ampere_sgemm_128x64_nn --sort duration --top 10"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table")
    group.add_argument("--names", choices=("full", "short", "mangled"), default="full", help="which kernel names")
    group.add_argument(
        "--by",
        default="",
        metavar="LIST",
        help="also group by rank, device, stream, shape (grid and block), separated by commas",
    )
    group.add_argument("--instances", metavar="NAME", help="the launches of the kernel of this name")
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.commands.remembering import remembered

    shared.check_output(arguments)
    memory = remembered(arguments)
    question = ("kernels", arguments.names, arguments.by)
    known = memory.recall(*question) if memory is not None else None
    if known is not None:
        return shared.deliver(arguments, known[1])
    return _asked(arguments, memory, question)


def _asked(arguments: argparse.Namespace, memory: Remembered | None, question: Sequence[str]) -> int:
    from nsystui.questions.kernels import GroupBy, Names, group_by_of, kernel_instances, kernel_summary

    names = Names(arguments.names)
    groups = group_by_of(arguments.by)
    is_ranked = GroupBy.RANK in groups
    job = shared.open_job(arguments, whole=False, times=bool(arguments.instances))
    try:
        selection = shared.selection_of(arguments, job)
        if arguments.instances:
            return shared.deliver(
                arguments, kernel_instances(job.session, selection, arguments.instances, names, job.ranks)
            )
        ranks = job.ranks if is_ranked else ()
        answer = kernel_summary(job.session, selection, names, groups, ranks)
        if memory is not None:
            memory.keep(job, answer, "", *question)
        return shared.deliver(arguments, answer)
    finally:
        job.close()
