"""The findings of a triage as lines for a terminal of 80 columns, and as a report in Markdown.

Against a baseline, only new and worse findings are shown in full.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit, head
from nsystui.base.selection import window_flag
from nsystui.base.text import counted, safe_text
from nsystui.base.units import format_value
from nsystui.output.formats import markdown_text, write
from nsystui.questions.triage.finding import Finding
from nsystui.questions.triage.run import COSTS, Triage

if TYPE_CHECKING:
    from nsystui.questions.triage.baseline import Against, Change

_WIDTH = 79
_FILES = "FILE…"
_INDENT = "   "
_MAX_DETAILED = 5  # further findings have a line each
_MAX_EVIDENCE = 20  # rows per finding in a report


def lines(result: Triage, files: str = _FILES, lists_unjudged: bool = False) -> list[str]:
    """Return lines for a terminal: findings, worst first, and rules without a verdict, or their number.

    ``files`` are the words of a command line that name the job's files.
    """
    out, account = [*_paragraph(result.summary), result.headline], (*result.left_out, result.account, result.kernels)
    out += [*(line for words in account for line in _paragraph(words)), ""]
    causes = [finding for finding in result.findings if not finding.under]
    for finding in causes[:_MAX_DETAILED]:
        out += [_head(finding), *body_lines(finding, files), *_symptoms(result, finding), ""]
    if more := causes[_MAX_DETAILED:]:
        out += ["More:", *(textwrap.shorten(f"{_head(item)}: {safe_text(item.sentence)}", _WIDTH) for item in more), ""]
    if any(finding.cost is not None for finding in result.findings):
        out += [*textwrap.wrap(COSTS, _WIDTH), ""]
    out += _not_checked_lines(result, files, lists_unjudged)
    return [line.rstrip() for line in out]


def _symptoms(result: Triage, cause: Finding) -> list[str]:
    symptoms = [finding for finding in result.findings if finding.under == cause.id]
    return [
        line
        for finding in symptoms
        for line in (*_wrapped(f"so: {finding.id}{_cost(finding)}: {finding.sentence}"), *_symptoms(result, finding))
    ]


def _not_checked_lines(result: Triage, files: str, lists_unjudged: bool) -> list[str]:
    count = len(result.not_checked) - len(result.left_out)
    if not count:
        return []
    if lists_unjudged:
        return ["Not checked:", *(line for text in result.unjudged for line in _wrapped(text, "-  "))]
    text = f"Not checked: {count} {'rule lacks' if count == 1 else 'rules lack'} data. To list what each needs:"
    return [text, f"{_INDENT}nsystui triage {files} --not-checked"]


def _head(finding: Finding) -> str:
    return f"{finding.severity.value[0].upper()}  {finding.id}{_cost(finding)}"


def body_lines(finding: Finding, files: str) -> Iterator[str]:
    """Yield a finding without its first line."""
    yield from _wrapped(finding.sentence)
    if finding.gain is not None:
        yield from _wrapped(f"could save: {finding.gain.words}")
    yield from _wrapped(f"how to fix: {finding.advice.text}")
    yield from _wrapped(f"why: {finding.advice.reason}")
    # Not wrapped, so that it can be copied.
    yield f"{_INDENT}see: {finding.door.screen} screen, or nsystui {finding.door.command_for(files)}"


def _cost(finding: Finding) -> str:
    if finding.cost is None or finding.percent is None:
        return ""
    return f"  {format_value(Unit.DURATION, finding.cost)}, {finding.percent:.1f} % of the job"


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(safe_text(text), _WIDTH, break_on_hyphens=False)


def _wrapped(text: str, first: str = _INDENT) -> list[str]:
    return textwrap.wrap(
        safe_text(text), _WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def report(result: Triage, files: str = _FILES) -> str:
    """Return the triage in Markdown, with the first rows of each finding's evidence."""
    parts = ["# Triage\n", f"{plain(result.summary)}\n", f"{result.headline}\n"]
    parts += [f"{plain(line)}\n" for line in (*result.left_out, result.account, result.kernels) if line]
    if any(finding.cost is not None for finding in result.findings):
        parts.append(f"{COSTS}\n")
    for finding in result.findings:
        parts.append(f"## {finding.severity.value.capitalize()}: {finding.id}{_cost(finding)}\n")
        parts += [*([f"Caused by: {finding.under}.\n"] if finding.under else []), *body_report(finding, files)]
    if result.not_checked:
        parts += ["## Not checked\n", *(f"* {plain(text)}" for text in result.unjudged)]
    if result.notes:
        parts += ["\n## Notes\n", *(f"* {plain(note)}" for note in result.notes)]
    return "\n".join(parts) + "\n"


def body_report(finding: Finding, files: str) -> list[str]:
    """Return a finding's body, with the first rows of its evidence."""
    window = "" if finding.window is None else window_flag(finding.window)
    facts = (finding.measured, window, finding.rank_numbers, f"nsystui {finding.door.command_for(files)}")
    gain = "" if finding.gain is None else finding.gain.words
    parts = [f"{plain(finding.sentence)}\n", *points(gain, finding.advice.text, finding.advice.reason, *facts)]
    if finding.evidence is None or not len(finding.evidence):
        return [*parts, ""]
    text = io.StringIO()
    write(head(finding.evidence, _MAX_EVIDENCE), "md", text)
    more = len(finding.evidence) - _MAX_EVIDENCE
    return [*parts, f"\n{text.getvalue()}" + (f"\n{counted(more, 'more row')}.\n" if more > 0 else "")]


def points(gain: str, advice: str, reason: str, measured: str, window: str, ranks: str, command: str) -> list[str]:
    """Return the facts of a finding that are not empty as a list."""
    facts = {"To win": gain, "How to fix": advice, "Why": reason, "Measured as": measured}
    facts |= {"When": window and f"`{window}`", "Rank" if ranks.isdecimal() else "Ranks": ranks, "See": f"`{command}`"}
    return [f"* **{name}**: {plain(text)}" for name, text in facts.items() if text]


CODE = re.compile("(`[^`]+`)")


def plain(text: str) -> str:
    """Return a sentence with names of the profiled program as one line; its only markup is code spans."""
    parts = CODE.split(safe_text(text))
    return "".join(part if number % 2 else markdown_text(part) for number, part in enumerate(parts))


def change_lines(comparison: Against, files: str = _FILES, lists_unjudged: bool = False) -> list[str]:
    """Return lines for a terminal: findings (new and worse in full), and the largest changes."""
    text = [*textwrap.wrap(comparison.words, _WIDTH), comparison.headline, ""]
    for change in comparison.listed:
        title = f"{change.kind.value.upper():<7} {_change_title(change, comparison)}"
        text += textwrap.wrap(title, _WIDTH, subsequent_indent=" " * 11)
        if change.kind.is_worse:
            text += [*body_lines(change.finding, files), ""]
    if text[-1]:
        text.append("")
    text += [f"Largest changes (A is {comparison.label}, B this job):", *_summary_lines(comparison)]
    if unjudged := _not_checked_lines(comparison.current, files, lists_unjudged):
        text += ["", *unjudged]
    return [safe_text(line.rstrip()) for line in text]


def change_report(comparison: Against, files: str = _FILES) -> str:
    """Return the changes in Markdown, with the evidence of new and worse findings."""
    parts = ["# Triage against a baseline\n", *([f"{plain(comparison.words)}\n"] if comparison.words else [])]
    parts.append(f"{plain(comparison.headline)}\n")
    for change in comparison.listed:
        parts.append(f"## {change.kind.value.capitalize()}: {_change_title(change, comparison)}\n")
        parts += body_report(change.finding, files) if change.kind.is_worse else [f"{plain(change.finding.sentence)}\n"]
    text = io.StringIO()
    write(comparison.summary, "md", text)
    notes = [f"* {plain(note)}" for note in comparison.summary.remarks]
    label = plain(comparison.label)
    parts += ["## Largest changes\n", f"A is {label}, B this job.\n", text.getvalue(), *notes]
    if comparison.current.not_checked:
        parts += ["\n## Not checked\n", *(f"* {plain(text)}" for text in comparison.current.unjudged)]
    return "\n".join(parts) + "\n"


def _change_title(change: Change, comparison: Against) -> str:
    # Two findings of a rule may concern different ranks: show the rank.
    is_rule_repeated = sum(other.finding.id == change.finding.id for other in comparison.listed) > 1
    rank = f" of rank {change.finding.rank_numbers}" if is_rule_repeated and len(change.finding.ranks) == 1 else ""
    name = f"{change.finding.severity.value[0].upper()}  {change.finding.id}{rank}"
    before = "" if change.before is None or change.before.cost is None else f" (was {_cost_alone(change.before)})"
    if change.after is None:
        return f"{name}{before}"
    comparison_words = ""
    if change.unit:
        was, now = (format_value(Unit.DURATION, cost) for cost in change.costs)
        comparison_words = f"; {change.unit}: {now} instead of {was}"
    return f"{name}  {_cost_alone(change.finding)}{before}{comparison_words}"


def _cost_alone(finding: Finding) -> str:
    if finding.cost is None or finding.percent is None:
        return "without a cost"
    return f"{format_value(Unit.DURATION, finding.cost)}, {finding.percent:.1f} %"


def _summary_lines(comparison: Against) -> Iterator[str]:
    headings = {"what": "", "a": "A", "b": "B", "difference": "B - A"}
    columns = [[text, *map(str, comparison.summary.cells(key))] for key, text in headings.items()]
    widths = [max(map(len, column)) for column in columns[1:]]
    label_width = max(map(len, columns[0]))
    for label, *cells in zip(*columns, strict=True):
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield _INDENT + "  ".join([label.ljust(label_width), *numbers])
    for note in comparison.summary.remarks:
        yield from textwrap.wrap(safe_text(note), _WIDTH, initial_indent="-  ", subsequent_indent=_INDENT)
