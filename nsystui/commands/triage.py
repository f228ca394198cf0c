"""``nsystui triage``: findings about a job, worst first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request

if TYPE_CHECKING:
    from nsystui.base.answer import Answer, TableAnswer
    from nsystui.questions.answers.remembered import Remembered
    from nsystui.questions.triage.thresholds import Thresholds

DESCRIPTION = """What is wrong with a job, worst first: what it costs, how to fix it, and where to look.
A rule that lacks data says what it needs. If nothing is wrong, triage says so. The letter is the severity: E, W, I.

With --baseline: whether the job is faster than another one (by the time of a step, of the same work, or of the job),
what is new, gone, or costs more or less of that time, and the largest changes between the two."""
EXAMPLES = """  nsystui triage rank*.sqlite
  nsystui triage rank*.sqlite -o triage.md
  nsystui triage rank*.sqlite --fail-on warning --format json
  nsystui triage rank*.sqlite --baseline old/ -o triage.md
  nsystui triage new/ --baseline old/ --fail-on warning
  nsystui triage --explain idle-gaps
  nsystui triage rank*.sqlite --set gap_ms=5 --set straggler_percent=1 --top 3"""

_SEVERITIES = ("warning", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser, nargs="*")
    shared.add_dask(parser)
    group = parser.add_argument_group("triage")
    group.add_argument(
        "--fail-on",
        choices=_SEVERITIES,
        help="exit with status 1 if a finding is as severe, or worse; with --baseline if the job is "
        "slower, or, if it is not faster, where a finding is new or costs more than there",
    )
    add_baseline(group)
    group.add_argument(
        "--explain", metavar="RULE", help="explain how a finding is measured, with its thresholds; needs no export"
    )
    group.add_argument(
        "--not-checked", action="store_true", help="list the rules that could not be checked, and what they need"
    )
    add_thresholds(group)
    shared.add_steps(group)
    shared.add_selection(parser)
    shared.add_format(parser)


def add_baseline(group: argparse._ArgumentGroup) -> None:
    """Add ``--baseline``, the job to compare with."""
    group.add_argument(
        "--baseline",
        nargs="+",
        metavar="OTHER",
        help="exports of another job to compare with; the selection applies to both jobs, --time in the time of each",
    )


def add_thresholds(group: argparse._ArgumentGroup) -> None:
    """Add ``--set``, which changes a threshold of the rules."""
    from nsystui.questions.triage.thresholds import meanings

    meanings_text = "; ".join(f"{name} ({value:g}): {meaning}" for name, value, meaning in meanings())
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"change a threshold; may be repeated. {meanings_text}".replace("%", "%%"),
    )


def run(request: Request) -> int:
    from nsystui.exports.discover import named_shortly
    from nsystui.questions.triage.thresholds import Thresholds

    args = request.args
    thresholds = Thresholds().changed(args["set"])
    if args["explain"]:
        import textwrap

        from nsystui.output.files import print_lines
        from nsystui.questions.triage.thresholds import explanation

        explanation_lines = explanation(args["explain"], thresholds)
        print_lines(part for line in explanation_lines for part in textwrap.wrap(line, 79, subsequent_indent="   "))
        return 0
    if not request.opening.files:
        raise UsageError("triage: name an export, a directory of them, or a packed job; or --explain RULE")
    if args["baseline"]:
        return _against(request, thresholds)
    request.check()
    memory = shared.remembered(request)
    files = named_shortly(request.opening.files)
    words = (request.output.top, args["not_checked"], args["step_range"], args["steps_by"], args["set"], files)
    key = ("triage", *map(str, words))
    cached = memory.recall(*key) if memory is not None else None
    text, table = cached or _findings(request, thresholds, files, memory, key)
    texts = json.loads(text)
    _deliver(request, lambda: texts["lines"], lambda: str(texts["report"]), table)
    failing = _SEVERITIES[_SEVERITIES.index(args["fail_on"]) :] if args["fail_on"] else ()
    return int(any(row[0] in failing for row in table.rows))


def _findings(
    request: Request, thresholds: Thresholds, files: str, memory: Remembered | None, key: tuple[str, ...]
) -> tuple[str, TableAnswer]:
    """Return and remember the findings as JSON (``lines`` and ``report`` for people) and as a table."""
    from nsystui.output.findings import lines, report
    from nsystui.questions.triage.run import triage, triage_table
    from nsystui.store.session import Computation

    with shared.opened(request, times=True, partly=True) as (job, selection):
        tell = job.session.tell
        with job.session.waiting("findings"):
            result = triage(
                job, selection, thresholds, request.args["step_range"],
                advanced=lambda done, total, name: tell(Computation(f"findings ({name})", done, total, "rules"))
            )  # fmt: skip
        request.unread.extend(result.unread)
        top, table = result.first(request.output.top), triage_table(result)
        text = json.dumps({"lines": lines(top, files, request.args["not_checked"]), "report": report(top, files)})
        if memory is not None and not any(rule.failed for rule in result.not_checked):
            memory.keep(job, table, text, *key)
    return text, table


def _against(request: Request, thresholds: Thresholds) -> int:
    from nsystui.commands.progress import ProgressLine
    from nsystui.exports.discover import named_shortly
    from nsystui.output.findings import change_lines, change_report
    from nsystui.questions.compare.side import Side, job_labels
    from nsystui.questions.triage.baseline import against, against_table
    from nsystui.questions.triage.finding import Severity

    args = request.args
    other = replace(request, opening=replace(request.opening, files=args["baseline"]))
    request.check()
    line = ProgressLine()
    with (
        shared.opened(request, times=True, partly=True, line=line) as (job, selection),
        shared.opened(other, times=True, partly=True, line=line) as (old, old_selection),
    ):
        label, old_label = job_labels((job, old), (request.opening.files, args["baseline"]))
        sides = Side(job, selection, label), Side(old, old_selection, old_label)
        with job.session.waiting("findings"):
            diff = against(*sides, thresholds, args["step_range"])
        request.unread.extend([*diff.current.unread, *diff.baseline.unread])
        shown = diff.first(request.output.top), named_shortly(request.opening.files)
        texts = partial(change_lines, *shown, args["not_checked"]), partial(change_report, *shown)
        _deliver(request, *texts, against_table(diff))
    return int(bool(args["fail_on"]) and diff.has(Severity(args["fail_on"])))


def _deliver(request: Request, lines: Callable[[], list[str]], report: Callable[[], str], table: Answer) -> None:
    from nsystui.output import formats
    from nsystui.output.files import print_lines, save_text

    is_file = request.output.is_file
    form = formats.format_for_path(str(request.output.target)) if is_file else request.output.format or "table"
    if is_file and form in ("md", "table"):
        notes = ["Notes:", *(f"-  {note}" for note in table.notes)] if table.notes else []
        text = report() if form == "md" else "\n".join([*lines(), *notes]) + "\n"
        save_text(text, str(request.output.target), overwrite=request.output.force)
        shared.complain(f"wrote the triage to {request.output.target}")
    elif not is_file and form == "table" and not request.output.sort:
        print_lines(lines())
    else:
        shared.deliver(request, table)
        return
    shared.say_notes(*table.notes)
