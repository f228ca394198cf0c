"""``nsystui overview``: one row per rank."""

from __future__ import annotations

import argparse

from nsystui.commands import arguments as shared

DESCRIPTION = """One row per rank: how busy its GPUs were and with what, and how much it did.
Compute is kernels but NCCL's, `exposed` NCCL that no compute hides; `kernels` counts both.
Percentages are of the selected time, or of the time from the job's first event to its last, the same for every rank.
This is the table that `e` exports on the Overview screen."""
EXAMPLES = """  nsystui overview rank*.sqlite
  nsystui overview rank*.sqlite --time 1.2s:1.5s --sort idle_percent --top 5
  nsystui overview results/ --format csv -o ranks.csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.overview import TALLIED, task_table
    from nsystui.questions.utilisation import columns_read

    expected = (columns_read(of_streams=bool(arguments.streams)), TALLIED)
    job = shared.open_job(arguments, whole=False, times=True, expected=expected)
    try:
        selection = shared.selection_of(arguments, job)
        return shared.deliver(arguments, task_table(job.session, selection, job.ranks, job.busy(selection)))
    finally:
        job.close()
