"""``nsystui triage``: what is wrong with a job."""

from __future__ import annotations

import argparse
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING

from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from nsystui.analysis.triage.run import Triage

DESCRIPTION = """What is wrong with a job, worst first: what it costs, what to try, and where to look.
A rule that lacks data says what it needs; a healthy job is said to be healthy. The letter is the severity: E, W, I."""
EXAMPLES = """  nsystui triage rank*.sqlite
  nsystui triage rank*.sqlite -o triage.md
  nsystui triage rank*.sqlite --fail-on warning --format json
  nsystui triage rank*.sqlite --set gap_ms=5 --set straggler_percent=1 --top 3"""

_SEVERITIES = ("warning", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.analysis.triage.thresholds import meanings

    shared.add_files(parser)
    group = parser.add_argument_group("triage")
    group.add_argument(
        "--fail-on", choices=_SEVERITIES, help="exit with status 1 where there is such a finding, or a worse one"
    )
    told = "; ".join(f"{name} ({value:g}): {meaning}" for name, value, meaning in meanings())
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"change a threshold; may be repeated. {told}".replace("%", "%%"),
    )
    shared.add_step_range(group)
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.analysis.triage.finding import Severity
    from nsystui.analysis.triage.run import triage
    from nsystui.analysis.triage.thresholds import Thresholds

    thresholds = Thresholds().changed(arguments.set)
    job = shared.open_job(arguments, times=True)
    try:
        found = triage(job, shared.selection_of(arguments, job), thresholds, arguments.step_range)
        _deliver(arguments, found)
    finally:
        job.close()
    return int(bool(arguments.fail_on) and found.has(Severity(arguments.fail_on)))


def _deliver(arguments: argparse.Namespace, found: Triage) -> None:
    """As lines or as a report for people, or as a table for programs."""
    from nsystui.analysis.triage.run import triage_table
    from nsystui.output import findings, formats

    top = found.first(arguments.top)
    if shared.to_file(arguments):
        if formats.format_for_path(arguments.output) in ("md", "table"):
            is_report = formats.format_for_path(arguments.output) == "md"
            _save(arguments, findings.report(top) if is_report else "\n".join(findings.lines(top)) + "\n")
            return
    elif arguments.format in (None, "table") and not arguments.sort:
        _print("\n".join(findings.lines(top)) + "\n")
        return
    shared.deliver(arguments, triage_table(found))


def _save(arguments: argparse.Namespace, text: str) -> None:
    from nsystui.output.files import save_text

    save_text(text, arguments.output, overwrite=arguments.force)
    shared.complain(f"wrote the triage to {arguments.output}")


def _print(text: str) -> None:
    from nsystui.output.pipe import quiet_pipe
    from nsystui.terminal import original_environ, wants_ascii
    from nsystui.text import ascii_glyphs

    with quiet_pipe() as stream:
        encoding = stream.encoding
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        environ = original_environ() if sys.stdout.isatty() else {"LC_ALL": "C.UTF-8"}
        stream.write(ascii_glyphs(text) if wants_ascii(environ, encoding) else text)
