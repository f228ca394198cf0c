"""Findings: their table, a finding with its evidence, and the rules that could not judge."""

from __future__ import annotations

import textwrap
from asyncio import to_thread
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from textual import work
from textual.message import Message
from textual.widget import Widget
from textual.worker import get_current_worker

from nsystui.base.answer import FILES_ONLY, Answer, Column, Record, Row, TableAnswer, Unit, record
from nsystui.base.errors import reason_of
from nsystui.base.selection import Window
from nsystui.base.text import counted, safe_text, shorten
from nsystui.base.units import format_value
from nsystui.questions.queries.question import view_named
from nsystui.ui import keys
from nsystui.ui.screens import screen_of
from nsystui.ui.screens.table import TableScreen, TextTableScreen
from nsystui.ui.widgets.panels import PartLine, PartLines
from nsystui.ui.widgets.plots import bar
from nsystui.ui.widgets.table_layout import BAR_WIDTH
from nsystui.ui.widgets.window_table import WindowTable

if TYPE_CHECKING:
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.triage.finding import Finding
    from nsystui.questions.triage.run import Triage
    from nsystui.ui.app import NsystuiApp


COLUMNS = (
    Column("severity", header="Severity", label=""),
    Column("id", header="Rule", label="finding"),
    Column("cost", header="Cost (ns)", label="cost", unit=Unit.DURATION, importance=1),
    Column("percent", header="Cost (%)", label="of job", unit=Unit.PERCENT, decimals=1, has_bar=True),
    Column(
        "recoverable", header="Recoverable per Iteration (ns)", label="could save", unit=Unit.DURATION, compared="cost"
    ).with_importance(2),
    Column("line", header="Cause", label="what is wrong", is_prose=True),
    Column("sentence", header="Finding", label="finding", importance=FILES_ONLY),
    Column("number", header="Number", label="number", unit=Unit.NUMBER, importance=FILES_ONLY),
)
HEALTHY, NOT_CHECKED = "ok", "-"
"""Marks instead of a severity, in rows that are not findings."""
_LABEL = 12


def findings_answer(triage: Triage) -> TableAnswer:
    """Return the health if nothing is wrong, findings, worst first, and a count of rules that could not judge."""
    rows: list[Row] = [_row(number, item) for number, item in enumerate(triage.findings)]
    if triage.health:
        rows.insert(0, (HEALTHY, "", None, None, None, *[triage.health.lower()] * 2, None))
    if triage.not_checked:
        count, rules = counted(len(triage.not_checked), "rule"), ", ".join(item.rule for item in triage.not_checked)
        rows.append((NOT_CHECKED, "not checked", None, None, None, count, f"{count}: {rules}", None))
    label = "could save/step" if triage.has_steps else "could save"
    columns = tuple(replace(item, label=label) if item.key == "recoverable" else item for item in COLUMNS)
    return TableAnswer("findings", columns, tuple(rows))


def _row(number: int, finding: Finding) -> Row:
    name = f"└ {finding.id}" if finding.under else finding.id
    amounts = (finding.cost, finding.percent, None if finding.gain is None else finding.gain.recoverable)
    return (finding.severity.value[0].upper(), name, *amounts, finding.in_a_line, finding.sentence, number)


def advice_lines(finding: Finding, width: int, room: int) -> list[PartLine]:
    """Return the lines below the evidence, the less important parts only if all fit into ``room`` lines."""
    timeline = " · L Timeline there" if finding.window and finding.door.view != "timeline" else ""
    texts = {
        "how to fix": finding.advice.text,
        "why": finding.advice.reason,
        "cost": finding.measured,
        "could save": "" if finding.gain is None else finding.gain.words,
        "where": _location(finding),
        "go to": f"⏎ {keys.with_key(finding.door.screen)}{timeline} · nsystui {finding.door.command}",
    }
    parts = {label: _labelled(label, text, width) for label, text in texts.items()}
    for label in ("cost", "why", "where"):
        if sum(map(len, parts.values())) > room:
            del parts[label]
    return [line for lines in parts.values() for line in lines]


def _labelled(label: str, text: str, width: int) -> list[PartLine]:
    lines = textwrap.wrap(safe_text(text), max(20, width - _LABEL), break_on_hyphens=False)
    return [[(("" if number else label).ljust(_LABEL), "bold"), (line, "")] for number, line in enumerate(lines)]


def _location(finding: Finding) -> str:
    window, ranks = finding.window, f"rank{'s' * (len(finding.ranks) > 1)} {shorten(finding.rank_numbers, 60)}"
    length = "" if window is None else format_value(Unit.DURATION, window.end - window.start)
    when = "" if window is None else f"at {format_value(Unit.TIME, window.start)}, for {length}"
    return "; ".join(filter(None, (when, ranks * bool(finding.ranks))))


_MIN_ROWS, _FRAME = 5, 5
"""The least rows of evidence in sight, and the lines of the frame."""
MOST_KERNELS = 5_000_000
"""Jobs with more kernels are checked only on request: the rules take longer than a glance."""


class _CancelledError(Exception):
    """The check was cancelled."""


class FindingsTable(WindowTable):
    """A table of findings: ``seek`` starts the ``triage`` of a selection."""

    @dataclass
    class Changed(Message):
        """The findings or the ``status`` changed."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, elastic="line", row_style=_category)
        self.cell_styles = lambda values: {"severity": _category(values)}
        self.triage: Triage | None = None
        self.status = ""
        """The line shown instead of the table until the check is complete."""
        self.waits = False
        """Whether the check waits for the user's request."""
        self.is_looking = False
        """Whether the rules are being checked."""
        self._token: object = None
        self._is_asked_for = False
        self.display = False

    def seek(self, job: OpenJob, selection: Selection, is_asked_for: bool = False) -> None:
        """Check a selection once; huge jobs are checked only on request."""
        token = (job.version, selection)
        if token == self._token and not (is_asked_for and self.waits):
            return
        self._token = token
        self._is_asked_for |= is_asked_for
        self.is_looking = False
        from nsystui.store import tables

        kernels = job.session.count(tables.kernels)
        self.waits = kernels > MOST_KERNELS and not self._is_asked_for
        if self.waits:
            self._say(f"not checked yet, with {kernels:,} kernels: ! checks")
            return
        self.is_looking = True
        self._say("checking…")
        self._look(job, selection)

    @property
    def number(self) -> int | None:
        """The index of the finding under the cursor; ``None`` if the row is not a finding."""
        number = self.current_values.get("number")
        return number if isinstance(number, int) else None

    @property
    def is_last(self) -> bool:
        """Whether the row under the cursor counts the rules that could not judge."""
        return self.current_values.get("severity") == NOT_CHECKED

    def _say(self, words: str) -> None:
        self.triage, self.status = None, words
        self.post_message(self.Changed())

    @work(group="findings", exclusive=True, description="findings")
    async def _look(self, job: OpenJob, selection: Selection) -> None:
        def look() -> Triage:
            from nsystui.questions.triage.run import triage

            worker = get_current_worker()

            def advanced(done: int, rules: int, name: str) -> None:
                if worker.is_cancelled:
                    raise _CancelledError
                self.call_later(self._advanced, done, rules)

            return job.once(("triage", selection), lambda: triage(job, selection, advanced=advanced))

        try:
            result = await to_thread(look)
        except Exception as error:
            self.is_looking = False
            self._say(f"could not be checked: {reason_of(error)}")
            return
        self.triage, self.status, self.is_looking = result, "", False
        self.set_answer(findings_answer(result), keep_cursor=self.display)
        self.post_message(self.Changed())

    def _advanced(self, done: int, rules: int) -> None:
        if self.is_looking:
            self._say(f"checking {done} of {rules} rules")


def _category(values: Record) -> str:
    return {"E": "error", "W": "warning"}.get(str(values["severity"]), "idle")


class FindingScreen(TableScreen):
    """A finding of a triage, with its evidence as the table; ``[`` and ``]`` show the previous and next finding."""

    PARAMETERS = ("number",)
    MODE_KEY = "1"
    PLACES = ("finding", "table", "everywhere")
    HAS_DETAILS = False  # the words around the evidence are the details
    FREE_KEYS = ("enter",)  # opens the finding's view even without rows
    LENGTHS = ("max", "idle", "duration")

    def __init__(self, triage: Triage, number: int) -> None:
        super().__init__("finding")
        self.triage, self.number = triage, number

    @property
    def finding(self) -> Finding:
        return self.triage.findings[self.number]

    def body(self) -> Iterable[Widget]:
        self.words, self.advice = PartLines(id="finding"), PartLines(id="advice")
        yield from (self.words, *super().body(), self.advice)

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        return self.finding.evidence or TableAnswer("finding", (), ())

    def show(self, answer: Answer, same_place: bool) -> None:
        self._show_words()
        super().show(answer, same_place)
        self.table.styles.max_height = self.table.row_count + 1
        if same_place:
            return
        window, evidence = self.finding.window, self.finding.evidence
        distances = {}
        if window is not None and evidence is not None:
            starts = [record(evidence.columns, row).get("start") for row in evidence.page(0, len(evidence))]
            distances = {row: abs(start - window.start) for row, start in enumerate(starts) if isinstance(start, int)}
        self.table.cursor_row = min(distances, key=distances.__getitem__, default=0)

    def _show_words(self) -> None:
        width, height = self.app.size
        finding, cost = self.finding, ""
        if finding.cost is not None and finding.percent is not None:
            share = bar(finding.percent, 100.0, BAR_WIDTH).rstrip()
            cost = f"{format_value(Unit.DURATION, finding.cost)}, {finding.percent:.1f} % of the job  {share}"
        severity = finding.severity.value
        style = severity if severity in ("error", "warning") else "bold"
        heading = [(f"{severity.capitalize()}: {finding.id}  ", style), (cost, "")]
        lines, evidence = [heading, *_labelled("", finding.sentence, width)], finding.evidence
        self.words.show_lines(lines)
        rows = min(_MIN_ROWS, len(evidence)) + bool(evidence.notes) if evidence else 0
        self.advice.show_lines(advice_lines(finding, width, height - len(lines) - rows - _FRAME))

    on_resize = _show_words

    def show_count(self) -> None:
        self.show_title(right=counted(self.number + 1, "finding", among=len(self.triage.findings)))

    def empty_text(self, answer: Answer) -> str:
        return "this finding has no table"

    def action_next_finding(self, step: int) -> None:
        """Go to the next finding (``step=-1``: the previous finding)."""
        number = self.number + step
        if 0 <= number < len(self.triage.findings):
            self.number = number
            self.job_changed()
        else:
            self.say("this is the " + ("last" if step > 0 else "first") + " finding")

    def action_show_finding(self) -> None:
        self._go_to(self.finding)

    async def action_timeline(self) -> None:
        """Open the timeline at the time of the finding."""
        if self.finding.window is None:
            await super().action_timeline()
        else:
            from nsystui.questions.triage.finding import Door

            self._go_to(replace(self.finding, door=Door("timeline", window=self.finding.window)))

    def _go_to(self, finding: Finding) -> None:
        self.app.call_later(show_finding, self.explorer, finding)


_AROUND = 0.25
"""Context around a finding's window, as a share of its length, because nothing runs in a gap."""


async def show_finding(app: NsystuiApp, finding: Finding) -> None:
    """Go to the view behind a finding's door, with the door's window and names."""
    from nsystui.questions.triage.finding import DIAGNOSTICS

    door, selection = finding.door, app.selection
    if door.view == DIAGNOSTICS:
        app.screen.lay_over(screen_of("diagnostics"))  # type: ignore[attr-defined]
        return
    if door.window is not None:
        margin = max(int(_AROUND * (door.window.end - door.window.start)), 1_000)
        selection = selection.with_window(Window(door.window.start - margin, door.window.end + margin))
    selection = selection.with_name(door.filter) if door.filter else selection
    screen = await app.go(view_named(door.view).home, selection, door.view)
    if screen and app.current_mode == "timeline" and finding.ranks:
        screen.open_rank(min(finding.ranks))


class NotCheckedScreen(TextTableScreen):
    """The rules that could not judge; the panel shows the full reason."""

    COUNTED = "rules"
    TEXT = "{rule}: {why}"
    CLOSED = "this cannot be opened: the lines below say what the rule needs"

    def __init__(self, triage: Triage) -> None:
        super().__init__("not checked")
        self.triage = triage

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        columns = (Column("rule", header="Rule", label="not checked"), Column("why", header="Why", label="why"))
        return TableAnswer("not-checked", columns, tuple((item.rule, item.why) for item in self.triage.not_checked))
