"""The findings: the table of them on the overview, one with its evidence, and the rules that could not judge."""

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
from nsystui.base.text import safe_text, shorten
from nsystui.base.units import format_value
from nsystui.ui import keys
from nsystui.ui.doors import show_finding
from nsystui.ui.screens.table import TableScreen, TextTableScreen
from nsystui.ui.widgets.panels import Part, PartLines
from nsystui.ui.widgets.plots import bar
from nsystui.ui.widgets.table_layout import BAR_WIDTH
from nsystui.ui.widgets.window_table import WindowTable

if TYPE_CHECKING:
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.triage.finding import Finding
    from nsystui.questions.triage.run import Triage


COLUMNS = (
    Column("severity", header="Severity", label=""),
    Column("id", header="Rule", label="finding"),
    Column("cost", header="Cost (ns)", label="cost", unit=Unit.DURATION),
    Column("percent", header="Cost (%)", label="of job", unit=Unit.PERCENT, decimals=1, has_bar=True),
    Column(
        "recoverable",
        header="Recoverable per Iteration (ns)",
        label="could save",
        unit=Unit.DURATION,
        compared="cost",
        importance=1,
    ),
    Column("sentence", header="Finding", label="what is wrong"),
    Column("number", header="Number", label="number", unit=Unit.NUMBER, importance=FILES_ONLY),
)
HEALTHY, NOT_CHECKED = "ok", "-"
"""The marks in place of a severity in the rows that are no findings."""
_STYLES = {"error": "error", "warning": "warning"}
"""What is coloured of the severities."""
_LABEL = 12
_ROOMY = 30
"""On a terminal of so many lines there are empty ones around the evidence."""


def findings_answer(found: Triage) -> TableAnswer:
    """A row for each finding, worst first; the last one says how many rules could not judge, where there are any."""
    rows: list[Row] = [_row(number, one) for number, one in enumerate(found.findings)]
    if found.health:
        rows.insert(0, (HEALTHY, "", None, None, None, found.health.lower(), None))
    if found.not_checked:
        rules = ", ".join(one.rule for one in found.not_checked)
        rows.append((NOT_CHECKED, "not checked", None, None, None, f"{len(found.not_checked)} rules: {rules}", None))
    label = "could save a step" if found.has_steps else "could save"
    columns = tuple(replace(one, label=label) if one.key == "recoverable" else one for one in COLUMNS)
    return TableAnswer("findings", columns, tuple(rows))


def _row(number: int, one: Finding) -> Row:
    """A symptom is indented: it stands below its cause."""
    name = f"└ {one.id}" if one.under else one.id
    won = None if one.gain is None else one.gain.recoverable
    return (one.severity.value[0].upper(), name, one.cost, one.percent, won, one.sentence, number)


def finding_lines(one: Finding, width: int) -> list[list[Part]]:
    """The lines above the evidence: the finding, its cost, and its cause in a sentence."""
    severity = one.severity.value.capitalize()
    cost = ""
    if one.cost is not None and one.percent is not None:
        share = bar(one.percent, 100.0, BAR_WIDTH).rstrip()
        cost = f"{format_value(Unit.DURATION, one.cost)}, {one.percent:.1f} % of the job  {share}"
    return [
        [(f"{severity}: {one.id}  ", _STYLES.get(one.severity.value, "bold")), (cost, "")],
        *_labelled("", one.sentence, width),
    ]


def advice_lines(one: Finding, width: int) -> list[list[Part]]:
    """The lines below the evidence: how to fix it and why, how the cost was measured, and where to go from here."""
    ways = [
        f"⏎ {keys.with_key(one.door.screen)}",
        *(["L Timeline there"] if one.window and one.door.view != "timeline" else []),
    ]
    return [
        line
        for label, text in (
            ("how to fix", one.advice.text),
            ("why", one.advice.reason),
            ("cost", one.measured),
            ("could save", "" if one.gain is None else one.gain.words),
            ("where", _place(one)),
            ("go to", " · ".join([*ways, f"nsystui {one.door.command}"])),
        )
        for line in _labelled(label, text, width)
    ]


def _labelled(label: str, text: str, width: int) -> list[list[Part]]:
    lines = textwrap.wrap(safe_text(text), max(20, width - _LABEL), break_on_hyphens=False)
    return [[(("" if number else label).ljust(_LABEL), "bold"), (line, "")] for number, line in enumerate(lines)]


def _place(one: Finding) -> str:
    words = []
    if one.window is not None:
        length = format_value(Unit.DURATION, one.window.end - one.window.start)
        words.append(f"at {format_value(Unit.TIME, one.window.start)}, for {length}")
    if one.ranks:
        words.append(f"rank{'s' if len(one.ranks) > 1 else ''} {shorten(one.rank_numbers, 60)}")
    return "; ".join(words)


MOST_KERNELS = 5_000_000
"""Of a job with more kernels nothing is looked for unasked: all rules over them take longer than a glance."""


class _CancelledError(Exception):
    """The findings were cancelled."""


class FindingsTable(WindowTable):
    """A table of findings that runs the triage itself: ``seek`` starts it for a selection, ``found`` is its result."""

    @dataclass
    class Changed(Message):
        """Findings came, or ``status`` says something else."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id, elastic="sentence", row_style=_category)
        self.cell_styles = lambda values: {"severity": _category(values)}
        self.found: Triage | None = None
        self.status = ""
        """The line in place of the table until there are findings."""
        self.waits = False
        """Whether nothing is looked for until the user says so."""
        self.is_looking = False
        """Whether the rules are being checked."""
        self._token: object = None
        self._is_asked_for = False
        self.display = False

    def seek(self, job: OpenJob, selection: Selection, is_asked_for: bool = False) -> None:
        """Looks for the findings of a selection, unless it did; of a huge job only where the user asks for it."""
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
        """The number of the finding under the cursor, in the order of ``found``; ``None`` where the row shows none."""
        number = self.current_values.get("number")
        return number if isinstance(number, int) else None

    @property
    def current(self) -> Finding | None:
        """The finding under the cursor."""
        number = self.number
        return None if self.found is None or number is None else self.found.findings[number]

    @property
    def is_last(self) -> bool:
        """Whether the row under the cursor counts the rules that could not judge."""
        return self.current_values.get("severity") == NOT_CHECKED

    def _say(self, words: str) -> None:
        """One line instead of findings."""
        self.found, self.status = None, words
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
            found = await to_thread(look)
        except Exception as error:
            self.is_looking = False
            self._say(f"could not be checked: {reason_of(error)}")
            return
        self.found, self.status, self.is_looking = found, "", False
        self.set_answer(findings_answer(found), keep_cursor=self.display)
        self.post_message(self.Changed())

    def _advanced(self, done: int, rules: int) -> None:
        if self.is_looking:
            self._say(f"checking {done} of {rules} rules")


def _category(values: Record) -> str:
    """Problems have the colour of their severity; remarks are less prominent."""
    return {"E": "error", "W": "warning"}.get(str(values["severity"]), "idle")


class FindingScreen(TableScreen):
    """A finding of a triage by its number; ``[`` and ``]`` go through all. Its table is the evidence."""

    PARAMETERS = ("number",)
    MODE_KEY = "1"
    PLACES = ("finding", "table", "everywhere")
    HAS_DETAILS = False  # the words around the evidence are
    LENGTHS = ("max", "idle", "duration")

    DEFAULT_CSS = """
    FindingScreen #finding { margin-bottom: 1; }
    FindingScreen #advice { margin-top: 1; }
    FindingScreen.-low #finding, FindingScreen.-low #advice { margin: 0; }
    """

    def __init__(self, found: Triage, number: int) -> None:
        super().__init__("finding")
        self.found = found
        self.number = number

    @property
    def finding(self) -> Finding:
        """The finding that is shown."""
        return self.found.findings[self.number]

    def body(self) -> Iterable[Widget]:
        """Compose the finding above its evidence and the advice below."""
        self.words, self.advice = PartLines(id="finding"), PartLines(id="advice")
        yield self.words
        yield from super().body()
        yield self.advice

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        """Give the evidence, which the triage has already."""
        return self.finding.evidence or TableAnswer("finding", (), ())

    def show(self, result: object, same_place: bool) -> None:
        """Show the finding, with the cursor on the row it is about."""
        self._show_words()
        super().show(result, same_place)
        self.table.styles.max_height = self.table.row_count + 1
        if same_place:
            return
        window, evidence = self.finding.window, self.finding.evidence
        away = {}
        if window is not None and evidence is not None:
            starts = [record(evidence.columns, row).get("start") for row in evidence.page(0, len(evidence))]
            away = {row: abs(start - window.start) for row, start in enumerate(starts) if isinstance(start, int)}
        self.table.move_to(min(away, key=away.__getitem__, default=0))

    def _show_words(self) -> None:
        width, height = self.app.size
        self.set_class(height < _ROOMY, "-low")
        self.words.show_lines(finding_lines(self.finding, width))
        self.advice.show_lines(advice_lines(self.finding, width))

    on_resize = _show_words

    def show_count(self) -> None:
        """Show which of the findings this is."""
        self.show_title(right=f"{self.number + 1} of {len(self.found.findings)} findings")

    def empty_text(self, answer: Answer) -> str:
        """Say that there is no evidence to show."""
        return "this finding has no table"

    def action_next_finding(self, step: int) -> None:
        """Go to the next finding (``step=-1``: the one before)."""
        number = self.number + step
        if 0 <= number < len(self.found.findings):
            self.number = number
            self.job_changed()
        else:
            self.say("this is the " + ("last" if step > 0 else "first") + " finding")

    def free_keys(self) -> frozenset[str]:
        """Where there is no row to open there is a screen to go to all the same."""
        return frozenset({"enter"})

    def action_show_finding(self) -> None:
        """Go to the view behind the finding."""
        self._go_to(self.finding)

    async def action_timeline(self) -> None:
        """Opens the timeline at the time of the finding."""
        if self.finding.window is None:
            await super().action_timeline()
        else:
            from nsystui.questions.triage.finding import Door

            self._go_to(replace(self.finding, door=Door("timeline", window=self.finding.window)))

    def _go_to(self, finding: Finding) -> None:
        self.app.call_later(show_finding, self.explorer, finding)


class NotCheckedScreen(TextTableScreen):
    """The rules that could not judge; the panel says all of what one needs."""

    COUNTED = "rules"
    TEXT = "{rule}: {why}"
    CLOSED = "this cannot be opened: the lines below say what the rule needs"

    def __init__(self, found: Triage) -> None:
        super().__init__("not checked")
        self.found = found

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        columns = (Column("rule", header="Rule", label="not checked"), Column("why", header="Why", label="why"))
        return TableAnswer("not-checked", columns, tuple((one.rule, one.why) for one in self.found.not_checked))
