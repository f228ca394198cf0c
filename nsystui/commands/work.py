"""What the commands ``memory``, ``api``, ``osrt`` and ``mpi`` share: a summary by name, and single instances."""

from __future__ import annotations

import argparse

from nsystui.commands import arguments as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table")
    group.add_argument("--instances", metavar="NAME", help="the single operations or calls of this name")
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace, name: str) -> int:
    """Answers for the work of ``nsystui.questions.activities`` with this name."""
    from nsystui.questions.activities import MEMORY, WORKS, memory_sizes, work_instances, work_summary

    work = WORKS[name]
    job = shared.open_job(arguments, whole=False, times=bool(arguments.instances))
    try:
        selection = shared.selection_of(arguments, job)
        if arguments.instances:
            return shared.deliver(
                arguments, work_instances(job.session, selection, work, arguments.instances, job.ranks)
            )
        if work is MEMORY and getattr(arguments, "sizes", False):
            return shared.deliver(arguments, memory_sizes(job.session, selection))
        return shared.deliver(arguments, work_summary(job.session, selection, work))
    finally:
        job.close()
