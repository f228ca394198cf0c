"""The findings of a triage for people: lines for a terminal of 80 columns, and a report in Markdown.

The same for a triage against a baseline: new and worse findings in full, the others in a line each.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsystui.base.answer import Head, Unit
from nsystui.base.selection import window_flag
from nsystui.base.text import safe_text
from nsystui.base.units import format_value
from nsystui.output.formats import markdown_text, write
from nsystui.questions.triage.finding import Finding
from nsystui.questions.triage.run import COSTS, Triage

if TYPE_CHECKING:
    from nsystui.questions.triage.baseline import Against, Change

_WIDTH = 79
_FILES = "FILE…"
_INDENT = "   "
_FULL = 5
"""Findings that are told in full; of the others the first words."""
_EVIDENCE = 20
"""Rows of a table of evidence in a report."""


def lines(found: Triage, files: str = _FILES, lists_unjudged: bool = False) -> list[str]:
    """The lines for a terminal: the findings, worst first, and how many rules could not judge, or which.

    ``files`` are the words of a command line that name the job's.
    """
    text = [*_plainly(found.summary), found.headline, *_plainly(found.account), *_plainly(found.kernels), ""]
    for one in told(found):
        text += [_title(one), *body_lines(one, files), *_symptoms(found, one), ""]
    more = [one for one in found.findings if not one.under][_FULL:]
    if more:
        text += ["More:", *(textwrap.shorten(f"{_title(one)}: {safe_text(one.sentence)}", _WIDTH) for one in more), ""]
    if any(one.cost is not None for one in found.findings):
        text += [*textwrap.wrap(COSTS, _WIDTH), ""]
    text += _not_checked_lines(found, files, lists_unjudged)
    return [line.rstrip() for line in text]


def told(found: Triage) -> list[Finding]:
    """The findings that are told in full: the first that are no symptoms."""
    return [one for one in found.findings if not one.under][:_FULL]


def _symptoms(found: Triage, cause: Finding) -> list[str]:
    """The findings that are folded under their cause, and those under these."""
    own = [one for one in found.findings if one.under == cause.id]
    return [
        line for one in own for line in (*_wrapped(f"so: {one.id}{_cost(one)}: {one.sentence}"), *_symptoms(found, one))
    ]


def _not_checked_lines(found: Triage, files: str, lists_unjudged: bool) -> list[str]:
    """How many rules could not judge, or which, and what they need."""
    if not found.not_checked:
        return []
    if lists_unjudged:
        return ["Not checked:", *(line for text in found.unjudged for line in _wrapped(text, "-  "))]
    count = len(found.not_checked)
    text = f"Not checked: {count} {'rule lacks' if count == 1 else 'rules lack'} data. To list what each needs:"
    return [text, f"{_INDENT}nsystui triage {files} --not-checked"]


def _title(one: Finding) -> str:
    return f"{one.severity.value[0].upper()}  {one.id}{_cost(one)}"


def body_lines(one: Finding, files: str) -> Iterator[str]:
    """A finding without its first line."""
    yield from _wrapped(one.sentence)
    if one.gain is not None:
        yield from _wrapped(f"could save: {one.gain.words}")
    yield from _wrapped(f"how to fix: {one.advice.text}")
    yield from _wrapped(f"why: {one.advice.reason}")
    # Not wrapped, so that it can be copied.
    yield f"{_INDENT}see: {one.door.screen} screen, or nsystui {one.door.command_for(files)}"


def _cost(one: Finding) -> str:
    if one.cost is None or one.percent is None:
        return ""
    return f"  {format_value(Unit.DURATION, one.cost)}, {one.percent:.1f} % of the job"


def _plainly(text: str) -> list[str]:
    return textwrap.wrap(safe_text(text), _WIDTH, break_on_hyphens=False)


def _wrapped(text: str, first: str = _INDENT) -> list[str]:
    return textwrap.wrap(
        safe_text(text), _WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def report(found: Triage, files: str = _FILES) -> str:
    """The whole triage in Markdown, with the first rows of each finding's evidence."""
    parts = ["# Triage\n", f"{plain(found.summary)}\n", f"{found.headline}\n"]
    parts += [f"{plain(line)}\n" for line in (found.account, found.kernels) if line]
    if any(one.cost is not None for one in found.findings):
        parts.append(f"{COSTS}\n")
    for one in found.findings:
        parts.append(f"## {one.severity.value.capitalize()}: {one.id}{_cost(one)}\n")
        parts += [*([f"Caused by: {one.under}.\n"] if one.under else []), *body_report(one, files)]
    if found.not_checked:
        parts += ["## Not checked\n", *not_checked_report(found)]
    if found.notes:
        parts += ["\n## Notes\n", *(f"* {plain(note)}" for note in found.notes)]
    return "\n".join(parts) + "\n"


def body_report(one: Finding, files: str) -> list[str]:
    """A finding without its heading, with the first rows of its evidence."""
    won = [] if one.gain is None else [f"* **To win**: {plain(one.gain.words)}"]
    parts = [f"{plain(one.sentence)}\n", *won, f"* **How to fix**: {plain(one.advice.text)} {plain(one.advice.reason)}"]
    if one.measured:
        parts.append(f"* **Measured as**: {plain(one.measured)}")
    if one.window is not None:
        parts.append(f"* **When**: `{window_flag(one.window)}`")
    if one.ranks:
        parts.append(f"* **{'Rank' if len(one.ranks) == 1 else 'Ranks'}**: {one.rank_numbers}")
    parts.append(f"* **See**: `nsystui {one.door.command_for(files)}`")
    if one.evidence is None or not len(one.evidence):
        return [*parts, ""]
    text = io.StringIO()
    write(Head(one.evidence, _EVIDENCE), "md", text)
    more = len(one.evidence) - _EVIDENCE
    return [*parts, f"\n{text.getvalue()}" + (f"\n{more:,} rows more.\n" if more > 0 else "")]


def not_checked_report(found: Triage) -> list[str]:
    """The rules that could not judge, as a list."""
    return [f"* {plain(text)}" for text in found.unjudged]


_CODE = re.compile("(`[^`]+`)")


def plain(text: str) -> str:
    """A sentence with names of the profiled program in it, as one line whose only markup is our code spans."""
    parts = _CODE.split(safe_text(text))
    return "".join(part if number % 2 else markdown_text(part) for number, part in enumerate(parts))


def change_lines(found: Against, files: str = _FILES, lists_unjudged: bool = False) -> list[str]:
    """The lines for a terminal: new and worse findings in full, the others in a line each, then the largest changes."""
    text = [*textwrap.wrap(found.words, _WIDTH), found.headline, ""]
    for one in found.told:
        title = f"{one.kind.value.upper():<7} {_change_title(one, found)}"
        text += textwrap.wrap(title, _WIDTH, subsequent_indent=" " * 11)
        if one.kind.is_worse:
            text += [*body_lines(one.finding, files), ""]
    if text[-1]:
        text.append("")
    text += [f"Largest changes (A is {found.label}, B this job):", *_summary_lines(found)]
    if unjudged := _not_checked_lines(found.found, files, lists_unjudged):
        text += ["", *unjudged]
    return [safe_text(line.rstrip()) for line in text]


def change_report(found: Against, files: str = _FILES) -> str:
    """The changes in Markdown, with the evidence of new and worse findings."""
    parts = ["# Triage against a baseline\n", *([f"{plain(found.words)}\n"] if found.words else [])]
    parts.append(f"{plain(found.headline)}\n")
    for one in found.told:
        parts.append(f"## {one.kind.value.capitalize()}: {_change_title(one, found)}\n")
        parts += body_report(one.finding, files) if one.kind.is_worse else [f"{plain(one.finding.sentence)}\n"]
    text = io.StringIO()
    write(found.summary, "md", text)
    notes = [f"* {plain(note)}" for note in found.summary.notes if note != found.summary.headline]
    label = plain(found.label)
    parts += ["## Largest changes\n", f"A is {label}, B this job.\n", text.getvalue(), *notes]
    if found.found.not_checked:
        parts += ["\n## Not checked\n", *not_checked_report(found.found)]
    return "\n".join(parts) + "\n"


def _change_title(one: Change, found: Against) -> str:
    # Of two that are about a rank each, the one may be new and the other gone.
    is_one_of_several = sum(other.finding.id == one.finding.id for other in found.told) > 1
    whose = f" of rank {one.finding.rank_numbers}" if is_one_of_several and len(one.finding.ranks) == 1 else ""
    name = f"{one.finding.severity.value[0].upper()}  {one.finding.id}{whose}"
    before = "" if one.before is None or one.before.cost is None else f" (was {_cost_alone(one.before)})"
    if one.after is None:
        return f"{name}{before}"
    compared = ""
    if one.unit:
        was, now = (format_value(Unit.DURATION, cost) for cost in one.costs)
        compared = f"; {one.unit}: {now} instead of {was}"
    return f"{name}  {_cost_alone(one.finding)}{before}{compared}"


def _cost_alone(one: Finding) -> str:
    if one.cost is None or one.percent is None:
        return "without a cost"
    return f"{format_value(Unit.DURATION, one.cost)}, {one.percent:.1f} %"


def _summary_lines(found: Against) -> Iterator[str]:
    headings = {"what": "", "a": "A", "b": "B", "difference": "B - A"}
    columns = [[text, *map(str, found.summary.cells(key))] for key, text in headings.items()]
    widths = [max(map(len, column)) for column in columns[1:]]
    label_width = max(map(len, columns[0]))
    for label, *cells in zip(*columns, strict=True):
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield _INDENT + "  ".join([label.ljust(label_width), *numbers])
    for note in found.summary.notes:
        if note == found.summary.headline:
            continue
        yield from textwrap.wrap(safe_text(note), _WIDTH, initial_indent="-  ", subsequent_indent=_INDENT)
