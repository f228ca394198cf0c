"""``nsystui ranks``: the ranks of a job beside each other."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from nsystui.analysis.answer import Answer
    from nsystui.analysis.job import Job

DESCRIPTION = """One row per rank: busy, compute, NCCL, exposed NCCL and idle time, step time, how often it came last to
a collective, how long the others waited for it and it for them, and in which of these it is the odd one out.
Collectives are matched across ranks by communicator and order; who ran shortest came last, whatever the clocks say."""
EXAMPLES = """  nsystui ranks rank*.sqlite
  nsystui ranks rank*.sqlite --sort wait_caused --top 5
  nsystui ranks rank*.sqlite --collectives --sort late_by --top 20
  nsystui ranks rank*.sqlite --kinds
  nsystui ranks node*.sqlite --ranks 'node\\d+_r(\\d+)' --format csv -o ranks.csv"""

_TABLES = {
    "collectives": "a row for each collective that several ranks have in common: who came last, and by how much",
    "kinds": "a row for each kind of collective: transfer, waiting, and the rank that is mostly last",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table").add_mutually_exclusive_group()
    for name, text in _TABLES.items():
        group.add_argument(f"--{name}", dest="table", action="store_const", const=name, help=text)
    shared.add_step_range(parser)
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    job = shared.open_job(arguments, times=True)
    try:
        return shared.deliver(arguments, _asked(arguments, job))
    finally:
        job.close()


def _asked(arguments: argparse.Namespace, job: Job) -> Answer:
    from nsystui.analysis.collectives.listing import collective_kinds, collective_operations
    from nsystui.analysis.ranks.table import rank_table

    selection = shared.selection_of(arguments, job)
    if arguments.table == "collectives":
        return collective_operations(selection, job.ranks, job.collectives())
    if arguments.table == "kinds":
        return collective_kinds(selection, job.ranks, job.collectives())
    return rank_table(job.session, selection, job.ranks, job.rank_facts(selection, arguments.step_range))
