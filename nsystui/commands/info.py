"""``nsystui info``: what the exports are, what they hold, and what nsys said of its own capture."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.questions.job import Job

TABLES = ("reports", "contents", "diagnostics")

DESCRIPTION = """What the exports are: a row for each with nsys and schema version, host, GPUs, duration, ranks and what
their numbers come from; what they hold, and what to record for the rest; what nsys said of its own capture.
All three tables are printed as text or Markdown; one of them (--show, else `reports`) as CSV or JSON, to a file, sorted
or cut. Captured environments are never shown. With --diagnostics it tells about the program instead, for a bug report:
versions, terminal, cache, limits, config file, and of the exports the tables with their rows; no hosts, no kernel
names, no paths but the names of FILE."""
EXAMPLES = """  nsystui info rank*.sqlite
  nsystui info results/ --show contents
  nsystui info rank0.sqlite --format json
  nsystui info --diagnostics rank0.sqlite"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser, least="*")
    parser.add_argument(
        "--diagnostics", action="store_true", help="what to paste into a bug report; FILE may be left out"
    )
    group = parser.add_argument_group("table")
    group.add_argument("--show", choices=TABLES, help="only this table")
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.diagnostics:
        _print_diagnostics(arguments)
        return 0
    if not arguments.files:
        raise UsageError("name an export, such as `nsystui info rank0.sqlite`, or ask for --diagnostics")
    job = shared.open_job(arguments)
    try:
        answers = [_answer(job, name) for name in _chosen(arguments)]
        status = shared.deliver_all(arguments, answers)
        return status if arguments.show else 0  # that nsys said nothing of its capture is no lack of the exports
    finally:
        job.close()


def _print_diagnostics(arguments: argparse.Namespace) -> None:
    """Of what is wrong itself a line, for then it is what the report is about."""
    from nsystui.base.terminal import original_environ
    from nsystui.commands import bug_report
    from nsystui.commands.configuration import config_of
    from nsystui.commands.limits import default_cache, limits_of
    from nsystui.output.stdout import print_lines

    config, environ = config_of(arguments), original_environ()
    lines = [*bug_report.program_lines(), *bug_report.terminal_lines(environ)]
    try:
        lines += [*bug_report.limit_lines(limits_of(arguments))]
        lines += bug_report.cache_lines(default_cache(config), config, os.environ)
    except UsageError as error:
        lines.append(f"limits: {error}")
    lines += bug_report.config_lines(config, arguments.no_config, os.environ)
    print_lines([*lines, *bug_report.export_lines(arguments.files)])


def _chosen(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The one table that is asked for, or all where several can follow one another."""
    one_only = arguments.format in ("csv", "json") or arguments.output or arguments.sort or arguments.top is not None
    if arguments.show:
        return (arguments.show,)
    return TABLES[:1] if one_only else TABLES


def _answer(job: Job, name: str) -> Answer:
    from nsystui.base.selection import Selection
    from nsystui.questions.reports import contents_table, diagnostics_table, reports_table

    if name == "contents":
        return contents_table(job.session)
    if name == "diagnostics":
        return diagnostics_table(job.session, Selection())
    return reports_table(job.session, job.ranks)
