"""``nsystui triage``: what is wrong with a job."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
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
    shared.add_files(parser, least="*")
    shared.add_dask(parser)
    group = parser.add_argument_group("triage")
    group.add_argument(
        "--fail-on",
        choices=_SEVERITIES,
        help="exit with status 1 where there is such a finding, or a worse one; with --baseline where the job is "
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
    """``--baseline``: the job to judge against."""
    group.add_argument(
        "--baseline",
        nargs="+",
        metavar="OTHER",
        help="exports of another job to compare with; the selection applies to both jobs, --time in the time of each",
    )


def add_thresholds(group: argparse._ArgumentGroup) -> None:
    """``--set``: a threshold of the rules."""
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

    own = request.own
    thresholds = Thresholds().changed(own["set"])
    if own["explain"]:
        import textwrap

        from nsystui.output.files import print_lines
        from nsystui.questions.triage.explain import explanation

        found = explanation(own["explain"], thresholds)
        print_lines(part for line in found for part in textwrap.wrap(line, 79, subsequent_indent="   "))
        return 0
    if not request.opening.files:
        raise UsageError("triage: name an export, a directory of them, or a packed job; or --explain RULE")
    if own["baseline"]:
        return _against(request, thresholds)
    request.output.check()
    memory = shared.remembered(request)
    files = named_shortly(request.opening.files)
    words = (request.output.top, own["not_checked"], own["step_range"], own["steps_by"], own["set"], files)
    key = ("triage", *map(str, words))
    known = memory.recall(*key) if memory is not None else None
    text, table = known or _found(request, thresholds, files, memory, key)
    told = json.loads(text)
    _deliver(request, lambda: told["lines"], lambda: str(told["report"]), table)
    failing = _SEVERITIES[_SEVERITIES.index(own["fail_on"]) :] if own["fail_on"] else ()
    return int(any(row[0] in failing for row in table.rows))


def _found(
    request: Request, thresholds: Thresholds, files: str, memory: Remembered | None, key: tuple[str, ...]
) -> tuple[str, TableAnswer]:
    """The findings, as JSON of their ``lines`` and ``report`` for people and as a table, kept for the next time."""
    from contextlib import closing

    from nsystui.output.findings import lines, report
    from nsystui.questions.triage.run import triage, triage_table
    from nsystui.store.session import Computation

    with closing(shared.open_job(request, times=True, partly=True)) as job:
        tell, selection = job.session.tell, shared.selection_of(request.selecting, job)
        with job.session.waiting("findings"):
            found = triage(
                job, selection, thresholds, request.own["step_range"],
                advanced=lambda done, of, name: tell(Computation(f"findings ({name})", done, of, "rules")),
            )  # fmt: skip
        request.unread.extend(found.unread)
        top, table = found.first(request.output.top), triage_table(found)
        text = json.dumps({"lines": lines(top, files, request.own["not_checked"]), "report": report(top, files)})
        if memory is not None and not any(one.failed for one in found.not_checked):
            memory.keep(job, table, text, *key)
    return text, table


def _against(request: Request, thresholds: Thresholds) -> int:
    """Compares the triage of one job with that of the other."""
    from contextlib import closing

    from nsystui.commands.progress import ProgressLine
    from nsystui.exports.discover import named_shortly
    from nsystui.output.findings import change_lines, change_report
    from nsystui.questions.compare.side import Side, job_labels
    from nsystui.questions.triage.baseline import against, against_table
    from nsystui.questions.triage.finding import Severity

    own = request.own
    other = replace(request, opening=replace(request.opening, files=own["baseline"]))
    request.output.check()
    line = ProgressLine()
    with (
        closing(shared.open_job(request, times=True, partly=True, line=line)) as job,
        closing(shared.open_job(other, times=True, partly=True, line=line)) as old,
    ):
        labels = job_labels((job, old), (request.opening.files, own["baseline"]))
        sides = [
            Side(one, shared.selection_of(request.selecting, one), label)
            for one, label in zip((job, old), labels, strict=True)
        ]
        with job.session.waiting("findings"):
            found = against(sides[0], sides[1], thresholds, own["step_range"])
        request.unread.extend([*found.found.unread, *found.baseline.unread])
        top = found.first(request.output.top)
        files = named_shortly(request.opening.files)
        unjudged = request.own["not_checked"]
        _deliver(
            request, lambda: change_lines(top, files, unjudged), lambda: change_report(top, files), against_table(found)
        )
    return int(bool(own["fail_on"]) and found.has(Severity(own["fail_on"])))


def _deliver(request: Request, lines: Callable[[], list[str]], report: Callable[[], str], table: Answer) -> None:
    """As lines or as a report for people, or as a table for programs."""
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
    for note in table.notes:
        shared.say_note(note)
