"""``nsystui ranks``: the ranks of a job beside each other."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.questions.job import Job
    from nsystui.store.session import Session

DESCRIPTION = """One row per rank: busy, compute, NCCL, exposed NCCL and idle time, step time, how often it came last to
a collective, how long the others waited for it and it for them, and in which of these it is the odd one out. Compute is
kernels but NCCL's; `wait caused` is what a typical other rank waited for this one, hidden by compute or not (the
finding `straggler` costs its exposed part).
Collectives are matched across ranks by communicator and order; who ran shortest came last, whatever the clocks say."""
EXAMPLES = """  nsystui ranks rank*.sqlite
  nsystui ranks rank*.sqlite --sort wait_caused --top 5
  nsystui ranks rank*.sqlite --collectives --sort late_by --top 20
  nsystui ranks rank*.sqlite --kinds
  nsystui ranks node*.sqlite --ranks 'node\\d+_r(\\d+)' --format csv -o ranks.csv
  nsystui ranks --dask tcp://node1:8786 packed -o ranks.csv"""

_TABLES = {
    "collectives": "a row for each collective that several ranks have in common: who came last, and by how much",
    "kinds": "a row for each kind of collective: transfer, waiting, and the rank that is mostly last",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    shared.add_tables(parser, _TABLES)
    shared.add_step_range(parser)
    parser.add_argument(
        "--dask",
        metavar="SCHEDULER",
        help="compute on a Dask cluster: the scheduler's address (tcp://host:8786) or its file; FILE is a packed job "
        "that the workers see under the same path, and they have nsystui[dask]",
    )
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.dask:
        _check_packed(arguments)
    job = shared.open_job(arguments, times=True, prepare=lambda session: _prepare(arguments, session))
    try:
        return shared.deliver(arguments, _asked(arguments, job))
    finally:
        job.close()


def _check_packed(arguments: argparse.Namespace) -> None:
    """Raises UsageError for what the workers could not open: exports are packed where they lie."""
    from nsystui.exports.discover import discover, is_packed_report

    for path in discover(arguments.files):
        if not is_packed_report(path):
            raise UsageError(f"--dask is for packed jobs, and {path} is none: nsystui pack FILE… -o DIR makes one")


def _prepare(arguments: argparse.Namespace, session: Session) -> None:
    """Has the cluster compute what the answer is made of, where it is asked for."""
    if not arguments.dask:
        return
    from nsystui.commands.reading_bar import StatusLine, shown
    from nsystui.questions.ranks.on_dask import compute_on_dask

    every = len(session.reports)
    with shown(StatusLine()) as line:
        line.say(lambda: f"waiting for workers of {arguments.dask}")
        compute_on_dask(
            session,
            arguments.dask,
            arguments.table is not None,
            lambda done: line.say(lambda: f"computed {done} of {every} reports on {arguments.dask}"),
        )


def _asked(arguments: argparse.Namespace, job: Job) -> Answer:
    from nsystui.questions.collectives.waiting import collective_kinds, collective_operations
    from nsystui.questions.ranks.table import rank_table

    selection = shared.selection_of(arguments, job)
    if arguments.table == "collectives":
        return collective_operations(selection, job.ranks, job.collectives())
    if arguments.table == "kinds":
        return collective_kinds(selection, job.ranks, job.collectives())
    return rank_table(job.session, selection, job.ranks, job.rank_facts(selection, arguments.step_range))
