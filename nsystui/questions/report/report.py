"""A job's report as data: verdict, findings, tables and drawings, for one file to send.

Every table answers a question of the catalogue, or a command. A long table has only its first rows, the number of all
rows, and the command that prints them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nsystui.base.answer import Answer, TableAnswer, Unit
from nsystui.base.drawing import Bars, Drawing
from nsystui.base.errors import MissingDataError, NsystuiError, UsageError
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, window_flag
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.base.version import __version__
from nsystui.questions.blocking.budget import iterations
from nsystui.questions.compare import TABLES, ComparisonOptions, Side, worded
from nsystui.questions.compare.side import with_smart_names
from nsystui.questions.host.time_budget import caused_budgets
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import ask, lacking, question_named
from nsystui.questions.queries.reports import contents_table, diagnostics_table, reports_table
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.ranks.overview import job_facts
from nsystui.questions.report.drawings import (
    bandwidth_curves,
    budget_bars,
    device_bars,
    iteration_bars,
    step_lanes,
    utilisation_lanes,
)
from nsystui.questions.triage.baseline import Against, Change, against
from nsystui.questions.triage.finding import Finding
from nsystui.questions.triage.run import COSTS, Triage, triage
from nsystui.questions.triage.thresholds import Thresholds

TOP = 20
_MAX_RANKS = 64
"""Maximum number of rows in tables by rank, and of bars and lanes in drawings."""


@dataclass(frozen=True)
class ReportTable:
    """The first rows of an answer; ``total``: the number of all rows; ``command`` prints them."""

    title: str
    answer: TableAnswer
    total: int
    command: str = ""

    @property
    def count(self) -> str:
        """``20 of 3,411 rows``; empty if all rows are shown."""
        return counted(len(self.answer), "row", among=self.total) if len(self.answer) < self.total else ""


@dataclass(frozen=True)
class Told:
    """A finding. ``kind``: its change against a baseline, if any; ``was``: its cost in the baseline."""

    id: str
    severity: str
    cost: str
    percent: float | None
    sentence: str
    advice: str
    reason: str
    measured: str
    command: str
    ranks: str = ""
    window: str = ""
    under: str = ""
    kind: str = ""
    was: str = ""
    gain: str = ""  # the possible gain, in words; empty if it is unknown
    is_brief: bool = False  # whether to report only the sentence: it did not get worse
    evidence: ReportTable | None = None


@dataclass(frozen=True)
class Section:
    """A part of a report; ``lines``: sentences; ``method``: how its numbers are counted, by question."""

    key: str
    title: str
    lines: tuple[str, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    method: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class JobPage:
    """A report; ``verdict``: the main sentence first; ``budget``: the time of all GPUs by part.

    ``warnings``: the files that are left out, to read before the numbers.
    """

    title: str
    facts: tuple[str, ...]
    verdict: tuple[str, ...]
    budget: Bars | None
    headline: str
    findings: tuple[Told, ...]
    remarks: tuple[str, ...]
    not_checked: tuple[str, ...]
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # the sections that could not be computed, the rules that failed, and damaged tables
    version: str = __version__


@dataclass(frozen=True, eq=False)
class Asked:
    """The request for a report; ``flags``: the selection, for commands that print whole tables."""

    job: OpenJob
    selection: Selection
    selected: str = ""
    flags: str = ""
    top: int = TOP
    step_range: str | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)


Advanced = Callable[[int, int, str], object]


def job_report(asked: Asked, baseline: Side | None = None, advanced: Advanced = lambda *_: None) -> JobPage:
    """Return the report, also of changes against a ``baseline``. Raises UsageError for an invalid ``step_range``.

    ``advanced`` gets the numbers of finished and of all sections, and the title, before each section.
    """
    job, selection = asked.job, asked.selection
    facts = job_facts(job.session, job.ranks)
    title = facts.title or "job"
    total = len(_SECTIONS) + (1 if baseline is None else 2)
    advanced(0, total, "Findings")
    words = [*facts.words, *facts.machine_words, *([asked.selected] if asked.selected else [])]
    sections: list[Section] = []
    if baseline is None:
        result = triage(job, selection, asked.thresholds, asked.step_range)
        verdict, headline = (result.summary, result.account, result.kernels), result.headline
        findings = tuple(_finding(finding, asked) for finding in result.findings)
        budget = _whole_budget([("all GPUs", result)])
    else:
        change = against(Side(job, selection, title), baseline, asked.thresholds, asked.step_range)
        result, headline = change.current, change.headline
        verdict = (change.words, result.summary, result.account)
        findings = tuple(_changed_finding(item, asked) for item in change.changes)
        budget = _whole_budget([("A baseline", change.baseline), ("B this job", result)])
        advanced(1, total, "What changed")
        sections.append(_comparison(asked, baseline, change))
    unread = [*result.unread, *(change.baseline.unread if baseline is not None else [])]
    for done, (name, make) in enumerate(_SECTIONS, total - len(_SECTIONS)):
        advanced(done, total, name)
        section: Section | None
        try:
            section = make(asked)
        except NsystuiError as error:  # its data cannot be read: the section shows why
            unread += [] if isinstance(error, MissingDataError | UsageError) else [f"{name}: {error}"]
            section = Section(name.lower().replace(" ", "-"), name, (str(error),))
        if section is not None:
            sections.append(section)
    remarks = (COSTS,) if any(finding.percent is not None for finding in findings) else ()
    warnings = _left_out(job, "") + (_left_out(baseline.job, " of the baseline") if baseline is not None else ())
    return JobPage(
        title, tuple(words), tuple(filter(None, verdict)), budget, headline, findings, remarks, tuple(result.unjudged),
        tuple(sections), warnings, tuple(unread),
    )  # fmt: skip


def _left_out(job: OpenJob, whose: str) -> tuple[str, ...]:
    return tuple(f"a file{whose} is left out: {reason}" for reason in job.left_out)


def _whole_budget(triages: Sequence[tuple[str, Triage]]) -> Bars | None:
    budgets = [(label, result.budget) for label, result in triages if result.budget.time]
    return budget_bars(budgets, "where the time of the GPUs went") if budgets else None


_FILES = "FILE…"

# -- findings ---------------------------------------------------------------------------------------------------------


def _finding(finding: Finding, asked: Asked) -> Told:
    evidence = None
    if finding.evidence is not None and len(finding.evidence):
        evidence = _table_of("evidence", finding.evidence, asked.top)
    window = window_flag(finding.window) if finding.window is not None else ""
    cost = "" if finding.cost is None else format_value(Unit.DURATION, finding.cost)
    command, gain = f"nsystui {finding.door.command_for(_FILES)}", "" if finding.gain is None else finding.gain.words
    return Told(
        finding.id, finding.severity.value, cost, finding.percent, finding.sentence, finding.advice.text,
        finding.advice.reason, finding.measured, command, finding.rank_numbers, window, finding.under, gain=gain,
        evidence=evidence,
    )  # fmt: skip


def _changed_finding(change: Change, asked: Asked) -> Told:
    shown = _finding(change.finding, asked)
    was = ""
    if change.before is not None:
        cost, percent = change.before.cost, change.before.percent
        was = "without a cost"
        if cost is not None and percent is not None:
            was = f"{format_value(Unit.DURATION, cost)}, {format_value(Unit.PERCENT, percent)}"
    if change.after is None:
        shown = replace(shown, cost="", percent=None)
    brief = not change.kind.is_worse
    return replace(shown, kind=change.kind.value, was=was, is_brief=brief, evidence=None if brief else shown.evidence)


# -- tables -----------------------------------------------------------------------------------------------------------


def _table_of(title: str, answer: Answer, top: int, command: str = "") -> ReportTable:
    head = TableAnswer(answer.name, answer.columns, list(answer.page(0, top)), answer.total, tuple(answer.notes))
    return ReportTable(title, head, len(answer), command)


def _table(asked: Asked, name: str, title: str = "", top: int = 0, **values: Any) -> ReportTable:
    question = question_named(name)
    given: Mapping[str, Any] = {key: value for key, value in values.items() if value is not None}
    answer = _answer(asked, name, **given)
    give_back()  # the memory of a table of millions of rows, before the next table
    command = _command(asked, question.command(given, _FILES))
    return _table_of(title or question.rows.title, answer, top or asked.top, command)


def _answer(asked: Asked, name: str, **values: Any) -> Answer:
    question = question_named(name)
    return ask(question, asked.job, asked.selection, question.read({**question.default_values(), **values}))


def _command(asked: Asked, words: str) -> str:
    return " ".join(filter(None, ("nsystui", words, asked.flags)))


def _section(
    key: str, title: str, tables: Sequence[ReportTable], *names: str, drawing: Drawing | None = None
) -> Section:
    """Collect the tables with rows, and the notes of all tables, each once."""
    notes = tuple(dict.fromkeys(note for table in tables for note in table.answer.notes))
    filled = tuple(replace(table, answer=replace(table.answer, notes=())) for table in tables if len(table.answer))
    if not filled and not notes:
        notes = ("not recorded, or not in the selection",)
    methods = tuple((f"nsystui {name}", question_named(name).description) for name in names)
    return Section(key, title, notes, (drawing,) if drawing is not None else (), filled, methods)


# -- the sections -----------------------------------------------------------------------------------------------------


def _comparison(asked: Asked, baseline: Side, change: Against) -> Section:
    """Return the tables of `nsystui diff`; A is the baseline, as in the triage."""
    side = Side(asked.job, asked.selection, "B")
    options = ComparisonOptions(step_range=asked.step_range)
    summary = worded(change.summary) if "unit" in {column.key for column in change.summary.columns} else change.summary
    tables = [ReportTable(TABLES["summary"].title, replace(summary, notes=()), len(summary))]
    for name in ("kernels", "families", "nvtx", "nccl", "memory", "steps"):
        answer = TABLES[name].make(baseline, side, options)
        if name == "kernels":
            answer = with_smart_names(answer, baseline, side)
        tables.append(_table_of(TABLES[name].title, answer, asked.top, f"nsystui diff A… -- B… --tables {name}"))
    filled = tuple(replace(table, answer=replace(table.answer, notes=())) for table in tables if len(table.answer))
    return Section("changes", "What changed", (f"A is {baseline.label}, B this job", *summary.remarks), (), filled)


def _over_time(asked: Asked) -> Section:
    lanes = utilisation_lanes(asked.job, asked.selection)
    return _section("over-time", "GPUs over time", [_table(asked, "gpu", "by GPU", _MAX_RANKS)], "gpu", drawing=lanes)


def _budget(asked: Asked) -> Section:
    budgets, _ = caused_budgets(asked.job, asked.selection, asked.step_range)
    table = _table(asked, "budget", "by GPU", _MAX_RANKS, step_range=asked.step_range)
    drawing = device_bars(budgets, _MAX_RANKS) if len(budgets) > 1 else None
    part = _section("budget", "Budget of time", [table], "budget", drawing=drawing)
    return part if table.total else replace(part, lines=lacking(question_named("gaps"), asked.job) or part.lines)


def _blocking(asked: Asked) -> Section:
    table = _table(asked, "budget", "an iteration", by="step", step_range=asked.step_range)
    bars = iteration_bars(iterations(asked.job, asked.selection, asked.step_range), _MAX_RANKS)
    return _section("blocking", "What blocked the GPUs", [table], "budget", drawing=bars)


def _path(asked: Asked) -> Section:
    tables = [_table(asked, "path", f"by {key}", by=key, step_range=asked.step_range) for key in ("kind", "name")]
    return _section("path", "Critical path", tables, "path")


def _ranks(asked: Asked) -> Section:
    tables = [_table(asked, "ranks", "ranks", _MAX_RANKS, step_range=asked.step_range)]
    if len(selected_ranks(asked.job.ranks, asked.selection)) > 1:
        kinds = _table(asked, "ranks", "who waits for whom, by kind of collective", kinds=True)
        tables += [kinds] if len(kinds.answer) else []
    return _section("ranks", "Ranks", tables, "ranks")


def _steps(asked: Asked) -> Section:
    tables = [_table(asked, "steps", "by rank", _MAX_RANKS, step_range=asked.step_range)]
    if len(selected_ranks(asked.job.ranks, asked.selection)) > 1 and len(tables[0].answer):
        tables.append(_table(asked, "steps", "across ranks", across=True, step_range=asked.step_range))
    drawing = step_lanes(_answer(asked, "steps", every=True, step_range=asked.step_range), _MAX_RANKS)
    return _section("steps", "Steps", tables, "steps", drawing=drawing)


def _kernels(asked: Asked) -> Section:
    tables = [_table(asked, "kernels", "by family", by="family"), _table(asked, "kernels", "by name")]
    return _section("kernels", "Kernels", tables, "kernels")


def _nccl(asked: Asked) -> Section | None:
    pairing = asked.job.pairing()
    if not len(pairing.kernels) and not len(pairing.calls):
        return None
    sizes = _answer(asked, "nccl", sizes="exact")
    drawing = bandwidth_curves(asked.job, asked.selection, sizes) if isinstance(sizes, TableAnswer) else None
    command = _command(asked, f"nccl {_FILES} --sizes exact")
    of_sizes = _table_of("durations and bandwidth by message size", sizes, asked.top, command)
    tables = [_table(asked, "nccl", "by collective and size"), of_sizes]
    return _section("nccl", "NCCL", tables, "nccl", drawing=drawing)


def _nvtx(asked: Asked) -> Section:
    return _section("nvtx", "NVTX ranges", [_table(asked, "nvtx", by="all", depth=3)], "nvtx")


def _efficiency(asked: Asked) -> Section:
    question = question_named("efficiency")
    assert question.tables is not None
    named_tables = question.tables(asked.job, asked.selection, question.defaults())
    tables = [
        _table_of(table.title, table.answer, _MAX_RANKS, _command(asked, f"efficiency {_FILES} --tables {table.name}"))
        for table in named_tables
    ]
    return _section("efficiency", "Efficiency", tables, "efficiency")


def _host(asked: Asked) -> Section:
    tables = [
        _table(asked, "gaps", "idle time of the GPUs by cause", step_range=asked.step_range),
        _table(asked, "gaps", "the same by NVTX range", by="range", step_range=asked.step_range),
    ]
    return _section("host", "Host: why the GPUs were idle", tables, "gaps")


def _capture(asked: Asked) -> Section:
    session = asked.job.session
    reports = reports_table(session, asked.job.ranks)
    reports = reports.with_columns(tuple(column for column in reports.columns if column.key != "path"))
    contents = contents_table(session)
    recorded = [row for row in contents.rows if row[2]]
    absent_names = [str(row[1]) for row in contents.rows if not row[2]]
    tables = [
        _table_of("files", reports, _MAX_RANKS, "nsystui info FILE… --show reports"),
        _table_of("recorded", replace(contents, rows=recorded), len(recorded)),
        _table_of("what nsys said of its capture", diagnostics_table(session, asked.selection), asked.top),
    ]
    section = _section("capture", "Capture and versions", tables)
    made = f"made by nsystui {__version__} from {counted(len(session.reports), 'export')}"
    absent = [f"not recorded: {', '.join(absent_names)}"] if absent_names else []
    return replace(section, lines=(made, *absent, *section.lines))


_SECTIONS: tuple[tuple[str, Callable[[Asked], Section | None]], ...] = (
    ("GPUs over time", _over_time), ("Budget of time", _budget), ("What blocked the GPUs", _blocking),
    ("Critical path", _path), ("Ranks", _ranks), ("Steps", _steps), ("Kernels", _kernels), ("NCCL", _nccl),
    ("NVTX ranges", _nvtx), ("Efficiency", _efficiency), ("Host", _host), ("Capture and versions", _capture),
)  # fmt: skip
