"""``nsystui info``: identity and contents of exports, and messages of nsys about its capture."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request
from nsystui.questions.queries.question import Titled

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.questions.job.job import OpenJob


TITLES = {
    "reports": "Exports",
    "contents": "What they hold",
    "launches": "Launches and their kernels",
    "diagnostics": "What nsys said of its own capture",
    "job-output": "What the application printed",
}
TABLES = ("reports", "contents", "launches", "diagnostics")

DESCRIPTION = """What the exports are: a row for each with nsys and schema version, host, GPUs, duration, ranks and what
their numbers come from; their contents, and what to record for missing data; which kernel launches have no kernel; what
nsys said of its own capture. All four tables are printed as text or Markdown; one of them (--show, else `reports`) as
CSV or JSON, to a file, sorted or cut. Captured environments are never shown. With --job-output it shows what the
application printed, line by line, with time and step where a line begins with a time; it never shows tokens or lines
that look like environment variables."""
EXAMPLES = """  nsystui info rank*.sqlite
  nsystui info results/ --show contents
  nsystui info rank0.sqlite --format json
  nsystui info rank0.sqlite --job-output"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("table")
    group.add_argument("--job-output", action="store_true", help="what the application printed")
    group.add_argument("--show", choices=TABLES, help="only this table")
    shared.add_format(parser)


def run(request: Request) -> int:
    args, output = request.args, request.output
    request.check()
    if args["job_output"] and args["show"]:
        raise UsageError("--job-output cannot be combined with --show")
    is_single = output.format in ("csv", "json") or output.target or output.sort or output.top is not None
    names: tuple[str, ...] = TABLES[:1] if is_single else TABLES
    if args["show"] or args["job_output"]:
        names = (args["show"] or "job-output",)
    with shared.opened(request) as (job, _):
        with job.session.waiting("info"):
            tables = [Titled(name, TITLES[name], table_of(job, name)) for name in names]
        if len(tables) > 1:
            shared.deliver_tables(request, tables)
            return 0
        status = shared.deliver(request, tables[0].answer)
        # A capture without messages lacks nothing.
        return status if args["show"] or args["job_output"] else 0


def table_of(job: OpenJob, name: str) -> Answer:
    """Return one of `TABLES`, or ``job-output``."""
    from nsystui.questions.capture.job_output import output_table
    from nsystui.questions.capture.launch_account import account_table
    from nsystui.questions.queries.reports import contents_table, diagnostics_table, reports_table

    tables: dict[str, Callable[[], Answer]] = {
        "reports": lambda: reports_table(job.session, job.ranks),
        "contents": lambda: contents_table(job.session),
        "launches": lambda: account_table(job),
        "diagnostics": lambda: diagnostics_table(job.session, Selection()),
        "job-output": lambda: output_table(job),
    }
    return tables[name]()
