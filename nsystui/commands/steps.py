"""``nsystui steps``: how long the training steps took."""

from __future__ import annotations

import argparse

from nsystui.commands import arguments as shared

DESCRIPTION = """How long the training steps took on the GPU: a row per rank with median, p5, p95, CV and slow steps.
Steps are the numbered NVTX ranges (`step 7`, `iteration 7`) in which half of the GPU's work or more was launched."""
EXAMPLES = """  nsystui steps rank*.sqlite
  nsystui steps rank*.sqlite --across --sort spread --top 10
  nsystui steps rank0.sqlite --every --format csv -o steps.csv
  nsystui steps rank*.sqlite --step-range '^iteration (\\d+)'"""

_TABLES = {
    "across": "a row for each step number: its time over the ranks, and the slowest rank",
    "every": "a row for each step of each rank",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    shared.add_tables(parser, _TABLES)
    shared.add_step_range(parser)
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.ranks.steps import every_step, steps_across_ranks, steps_by_rank

    job = shared.open_job(arguments, times=True)
    try:
        selection = shared.selection_of(arguments, job)
        steps = job.steps(arguments.step_range)
        chosen = [item for item in job.ranks if selection.tasks is None or item.task in selection.tasks]
        table = {"across": steps_across_ranks, "every": every_step}.get(arguments.table, steps_by_rank)
        return shared.deliver(arguments, table(chosen, steps, selection.window))
    finally:
        job.close()
