"""A triage against a baseline for people: lines for a terminal of 80 columns, and a report in Markdown."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator

from nsystui.base.answer import Head
from nsystui.base.columns import Unit
from nsystui.base.text import safe_text
from nsystui.base.units import format_value
from nsystui.output import findings
from nsystui.output.formats import write
from nsystui.questions.triage.against import Against, Change, counts
from nsystui.questions.triage.finding import Finding

_WIDTH = 79
_INDENT = "   "
_FIRST = 12
"""Rows of the summary: step time, time span, shares."""


def lines(found: Against) -> list[str]:
    """What a terminal shows: what is new or costs more in full, the rest in a line each, then the largest changes."""
    shown = [_headline(found), ""]
    for one in found.changes:
        shown.append(f"{one.kind.value.upper():<7} {_title(one)}")
        if one.kind.is_worse:
            shown += [*findings.body_lines(one.shown), ""]
    if shown[-1]:
        shown.append("")
    shown += [f"Largest changes (A is {found.label}, B this job):", *_summary_lines(found)]
    if found.found.not_checked:
        shown += ["", "Not checked:", *findings.not_checked_lines(found.found)]
    return [safe_text(line.rstrip()) for line in shown]


def report(found: Against) -> str:
    """The same in Markdown, with the evidence of what is new or costs more."""
    parts = ["# Triage against a baseline\n", f"{findings.plain(_headline(found))}.\n"]
    for one in found.changes:
        parts.append(f"## {one.kind.value.capitalize()}: {_title(one)}\n")
        parts += findings.body_report(one.shown) if one.kind.is_worse else [f"{findings.plain(one.shown.sentence)}.\n"]
    text = io.StringIO()
    write(Head(found.summary, _FIRST), "md", text)
    notes = [f"* {findings.plain(note)}" for note in found.summary.notes]
    label = findings.plain(found.label)
    parts += ["## Largest changes\n", f"A is {label}, B this job.\n", text.getvalue(), *notes]
    if found.found.not_checked:
        parts += ["\n## Not checked\n", *findings.not_checked_report(found.found)]
    return "\n".join(parts) + "\n"


def _headline(found: Against) -> str:
    told = [f"{count} {kind.value}" for kind, count in counts(found).items() if count]
    start = "" if any(one.kind.is_worse for one in found.changes) else "Nothing got worse. "
    return f"{start}Against {found.label}: {', '.join(told) if told else 'no findings in either job'}"


def _title(one: Change) -> str:
    letter = one.shown.severity.value[0].upper()
    before = "" if one.before is None else f" (was {_cost(one.before)})"
    if one.after is None:
        return f"{letter}  {one.shown.id}{before}"
    return f"{letter}  {one.shown.id}  {_cost(one.shown)}{before if one.shown.cost is not None else ''}"


def _cost(one: Finding) -> str:
    if one.cost is None or one.percent is None:
        return "without a cost"
    return f"{format_value(Unit.DURATION, one.cost)}, {one.percent:.1f} %"


def _summary_lines(found: Against) -> Iterator[str]:
    rows = [tuple(str(cell) for cell in row[:4]) for row in found.summary.rows[:_FIRST]]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(4)]
    heads = ("", "A", "B", "B - A")
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield _INDENT + "  ".join(cells)
    for note in found.summary.notes:
        yield from textwrap.wrap(safe_text(note), _WIDTH, initial_indent="-  ", subsequent_indent=_INDENT)
