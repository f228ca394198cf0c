"""The findings of a triage for people: lines for a terminal of 80 columns, and a report in Markdown."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator

from nsystui.base.answer import Head
from nsystui.base.columns import Unit
from nsystui.base.text import safe_text
from nsystui.base.units import format_value
from nsystui.output.formats import markdown_text, write
from nsystui.questions.triage.finding import Finding, Severity
from nsystui.questions.triage.run import Triage

_WIDTH = 79
_INDENT = "   "
_EVIDENCE = 20
"""Rows of a table of evidence in a report."""
_HEALTHY = "No rule found anything wrong."
_COSTS = "Costs are time of one GPU (the mean over all) and may be about the same time: they do not add up."


def lines(found: Triage) -> list[str]:
    """What a terminal shows: the findings, worst first, and what was not checked."""
    shown = [headline(found), ""]
    for one in found.findings:
        shown += [*_finding(one), ""]
    if any(one.cost is not None for one in found.findings):
        shown += [*textwrap.wrap(_COSTS, _WIDTH), ""]
    if found.not_checked:
        shown += ["Not checked:", *not_checked_lines(found)]
    return [line.rstrip() for line in shown]


def not_checked_lines(found: Triage) -> list[str]:
    """The rules that could not judge, and what they need."""
    return [line for rule in found.not_checked for line in _wrapped(f"{rule.rule}: {rule.why}", "-  ")]


def headline(found: Triage) -> str:
    """How many findings of each severity there are, or that the job is healthy; and what was judged."""
    counts = {severity: sum(one.severity is severity for one in found.findings) for severity in Severity}
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "remark"}
    told = [f"{count} {words[one]}{'s' if count > 1 else ''}" for one, count in counts.items() if count]
    if found.not_checked:
        told.append(f"{len(found.not_checked)} not checked")
    gpus = f"{found.gpus} GPU{'' if found.gpus == 1 else 's'}"
    judged = f"{format_value(Unit.DURATION, found.time)} on {gpus}"
    start = f"{_HEALTHY} " if found.is_healthy else ""
    return f"{start}{', '.join(told) + '; ' if told else ''}judged: {judged}"


def _finding(one: Finding) -> Iterator[str]:
    yield f"{one.severity.value[0].upper()}  {one.id}{_cost(one)}"
    yield from body_lines(one)


def body_lines(one: Finding) -> Iterator[str]:
    """A finding without its first line."""
    yield from _wrapped(one.sentence)
    yield from _wrapped(f"try: {one.advice.text}")
    yield from _wrapped(f"why: {one.advice.reason}")
    # Not wrapped, so that it can be copied.
    yield f"{_INDENT}see: nsystui {_command(one)} ({one.shown.screen} screen)"


def _cost(one: Finding) -> str:
    if one.cost is None or one.percent is None:
        return ""
    return f"  {format_value(Unit.DURATION, one.cost)}, {one.percent:.1f} % of the job"


def _command(one: Finding) -> str:
    name, _, flags = one.shown.command.partition(" ")
    return f"{name} FILE… {flags}".rstrip()


def _wrapped(text: str, first: str = _INDENT) -> list[str]:
    return textwrap.wrap(
        safe_text(text), _WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def report(found: Triage) -> str:
    """The whole triage in Markdown, with the first rows of each finding's evidence."""
    parts = ["# Triage\n", f"{headline(found)}.\n"]
    if any(one.cost is not None for one in found.findings):
        parts.append(f"{_COSTS}\n")
    for one in found.findings:
        parts.append(f"## {one.severity.value.capitalize()}: {one.id}{_cost(one)}\n")
        parts += body_report(one)
    if found.not_checked:
        parts += ["## Not checked\n", *not_checked_report(found)]
    return "\n".join(parts) + "\n"


def body_report(one: Finding) -> list[str]:
    """A finding without its heading, with the first rows of its evidence."""
    reason = one.advice.reason[:1].upper() + one.advice.reason[1:]
    parts = [f"{plain(one.sentence)}.\n", f"* **Try**: {plain(one.advice.text)}. {plain(reason)}."]
    if one.measured:
        parts.append(f"* **Measured as**: {plain(one.measured)}")
    if one.window is not None:
        parts.append(f"* **When**: `--time {one.window.start}:{one.window.end}` (ns)")
    if one.ranks:
        parts.append(f"* **Ranks**: {' '.join(map(str, one.ranks))}")
    return [*parts, f"* **See**: `nsystui {_command(one)}`", _evidence(one)]


def not_checked_report(found: Triage) -> list[str]:
    """The rules that could not judge, as a list."""
    return [f"* {rule.rule}: {plain(rule.why)}" for rule in found.not_checked]


def _evidence(one: Finding) -> str:
    if one.evidence is None or not len(one.evidence):
        return ""
    text = io.StringIO()
    write(Head(one.evidence, _EVIDENCE), "md", text)
    more = len(one.evidence) - _EVIDENCE
    return f"\n{text.getvalue()}" + (f"\n{more:,} rows more.\n" if more > 0 else "")


_CODE = re.compile("(`[^`]+`)")


def plain(text: str) -> str:
    """A sentence with names of the profiled program in it, as one line whose only markup is our code spans."""
    parts = _CODE.split(safe_text(text))
    return "".join(part if number % 2 else markdown_text(part) for number, part in enumerate(parts))
