"""Findings in words: the table on the overview, and the lines above a finding's evidence. Plain functions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import FILES_ONLY, Column, Unit
from nsystui.base.text import safe_text
from nsystui.base.units import format_value
from nsystui.ui import keys
from nsystui.ui.widgets.part_lines import Part

if TYPE_CHECKING:
    from nsystui.questions.triage.finding import Finding, NotChecked
    from nsystui.questions.triage.run import Triage

COLUMNS = (
    Column("severity", header="Severity", label=""),
    Column("cost", header="Cost (ns)", label="cost", unit=Unit.DURATION),
    Column("percent", header="Cost (%)", label="of job", unit=Unit.PERCENT, decimals=1),
    Column("screen", header="Screen", label="see"),
    Column("sentence", header="Finding", label="finding"),
    Column("number", header="Number", label="number", unit=Unit.NUMBER, importance=FILES_ONLY),
)
HEALTHY, NOT_CHECKED = "ok", "-"
"""What stands for a severity in the rows that are no findings."""
NOT_CHECKED_COLUMNS = (
    Column("rule", header="Rule", label="not checked"),
    Column("why", header="Why", label="why"),
)


def findings_answer(found: Triage) -> TableAnswer:
    """A row for each finding, worst first; the last one says how many rules could not judge, where there are any."""
    rows: list[Row] = [_row(number, one) for number, one in enumerate(found.findings)]
    if found.is_healthy:
        rows.insert(0, (HEALTHY, None, None, "", "no rule found anything wrong", None))
    if found.not_checked:
        rules = ", ".join(one.rule for one in found.not_checked)
        rows.append((NOT_CHECKED, None, None, "", f"{len(found.not_checked)} not checked: {rules}", None))
    return TableAnswer("findings", COLUMNS, tuple(rows))


def _row(number: int, one: Finding) -> Row:
    letter, screen = one.severity.value[0].upper(), screen_words(one.door.view.screen)
    return (letter, one.cost, one.percent, screen, f"{one.id}: {one.sentence}", number)


def not_checked_answer(rules: Sequence[NotChecked]) -> TableAnswer:
    """The rules that could not judge, and what they need."""
    return TableAnswer("not-checked", NOT_CHECKED_COLUMNS, tuple((one.rule, one.why) for one in rules))


def screen_words(screen: str) -> str:
    """``GPU`` as ``4 GPU``: the key that goes there, and its name."""
    return next((f"{key} {name}" for key, name in keys.MODES if name == screen), screen)


def finding_lines(one: Finding, width: int) -> list[list[Part]]:
    """What is found, what it costs and how that was measured, what to try and why."""
    severity = one.severity.value.capitalize()
    cost = ""
    if one.cost is not None and one.percent is not None:
        cost = f"{format_value(Unit.DURATION, one.cost)}, {one.percent:.1f} % of the job"
    lines: list[list[Part]] = [[(f"{severity}: {one.id}  ", "bold"), (cost, "")]]
    for label, text in (
        ("", one.sentence),
        ("try", one.advice.text),
        ("why", one.advice.reason),
        ("cost", one.measured),
        ("when", _place(one)),
    ):
        wrapped = textwrap.wrap(safe_text(text), max(20, width - 6), break_on_hyphens=False)
        lines += [
            [(label.ljust(6) if not number else " " * 6, "bold"), (line, "")] for number, line in enumerate(wrapped)
        ]
    return lines


def _place(one: Finding) -> str:
    words = []
    if one.window is not None:
        length = format_value(Unit.DURATION, one.window.end - one.window.start)
        words.append(f"at {format_value(Unit.TIME, one.window.start)}, for {length}")
    if one.ranks:
        shown = " ".join(map(str, one.ranks[:16]))
        words.append(f"rank{'s' if len(one.ranks) > 1 else ''} {shown}{' …' if len(one.ranks) > 16 else ''}")
    return "; ".join(words)
