"""``nsystui nvtx``: NVTX ranges as a tree, with their GPU time."""

from __future__ import annotations

import argparse

from nsystui.commands import arguments as shared

DESCRIPTION = """NVTX ranges by path: push/pop ranges nested as they ran on each thread, with instances, wall time, self
time (in which no nested range runs; DurNonChild of nsys) and the GPU time projected from what was launched inside them.
Start/end ranges may overlap anything: they stand beside the tree, without self time. With --summary, one row for each
name, as `nsys stats -r nvtx_sum`."""
EXAMPLES = """  nsystui nvtx rank0.sqlite --depth 3
  nsystui nvtx rank*.sqlite --by all --filter step
  nsystui nvtx rank0.sqlite --summary --format csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table")
    group.add_argument("--depth", type=int, metavar="N", help="only the outermost N levels")
    group.add_argument(
        "--by", choices=("rank-thread", "rank", "all"), default="rank-thread", help="what is kept apart (rank-thread)"
    )
    group.add_argument("--no-fold", action="store_true", help="numbered names (layer 0, layer 1 …) one by one")
    group.add_argument("--summary", action="store_true", help="by name instead of by path")
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.nvtx.listing import nvtx_summary, nvtx_tree_table

    job = shared.open_job(arguments)
    try:
        selection = shared.selection_of(arguments, job)
        if arguments.summary:
            return shared.deliver(arguments, nvtx_summary(job.session, selection))
        tree = job.nvtx_tree(selection, arguments.by, not arguments.no_fold)
        return shared.deliver(arguments, nvtx_tree_table(tree, arguments.depth))
    finally:
        job.close()
