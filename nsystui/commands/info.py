"""``nsystui info``: what the exports are, what they hold, and what nsys said of its own capture."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from nsystui.analysis.answer import Answer
    from nsystui.analysis.job import Job

TABLES = ("reports", "contents", "diagnostics")

DESCRIPTION = """What the exports are: a row for each with nsys and schema version, host, GPUs, duration, ranks and what
their numbers come from; what they hold, and what to record for the rest; what nsys said of its own capture.
All three tables are printed as text or Markdown; one of them (--show, else `reports`) as CSV or JSON, to a file, sorted
or cut. Captured environments are never shown."""
EXAMPLES = """  nsystui info rank*.sqlite
  nsystui info results/ --show contents
  nsystui info rank0.sqlite --format json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table")
    group.add_argument("--show", choices=TABLES, help="only this table")
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    job = shared.open_job(arguments)
    try:
        answers = [_answer(job, name) for name in _chosen(arguments)]
        status = shared.deliver_all(arguments, answers)
        return status if arguments.show else 0  # that nsys said nothing of its capture is no lack of the exports
    finally:
        job.close()


def _chosen(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The one table that is asked for, or all where several can follow one another."""
    one_only = arguments.format in ("csv", "json") or arguments.output or arguments.sort or arguments.top is not None
    if arguments.show:
        return (arguments.show,)
    return TABLES[:1] if one_only else TABLES


def _answer(job: Job, name: str) -> Answer:
    from nsystui.analysis.capture import contents_table, diagnostics_table
    from nsystui.analysis.report_facts import reports_table
    from nsystui.analysis.selection import Selection

    if name == "contents":
        return contents_table(job.session)
    if name == "diagnostics":
        return diagnostics_table(job.session, Selection())
    return reports_table(job.session, job.ranks)
