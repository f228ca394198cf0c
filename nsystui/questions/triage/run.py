"""All rules over a job: the findings, worst first, and what was not checked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import END, FILES_ONLY, START, Column, Unit
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.exports import canonical
from nsystui.questions.job import Job
from nsystui.questions.triage.case import Case
from nsystui.questions.triage.finding import Finding, NotChecked, Severity
from nsystui.questions.triage.rules import RULES, Thresholds
from nsystui.store.report import Report

Result = Finding | NotChecked
Rule = Callable[[Case], Sequence[Result]]

_JUDGED = frozenset().union(*RULES.values())


@dataclass(frozen=True)
class Triage:
    """The findings of the rules. ``time``: 100 % of a cost, ns; ``gpus``: a cost is their mean.

    ``unsaid``: the modules of the rules that could not judge something.
    """

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    time: int
    gpus: int
    unsaid: frozenset[str] = frozenset()
    step: float | None = None
    """The median time of a step, the mean over the ranks, ns."""
    module_of: Mapping[str, str] = field(default_factory=dict)
    """The module of the rule that made a finding, by the finding's id."""

    @property
    def is_healthy(self) -> bool:
        """Whether no rule found anything worse than a remark."""
        return not any(one.severity is not Severity.INFO for one in self.findings)

    def has(self, least: Severity) -> bool:
        """Whether there is a finding as bad as ``least``, or worse."""
        return any(one.severity.place <= least.place for one in self.findings)

    def first(self, count: int | None) -> Triage:
        """The same with the ``count`` worst findings only (``None``: all)."""
        return self if count is None else replace(self, findings=self.findings[:count])


def triage(
    job: Job,
    selection: Selection | None = None,
    thresholds: Thresholds | None = None,
    step_name: str | None = None,
    rules: Collection[str] = tuple(RULES),
    advanced: Callable[[int, int], None] = lambda done, of: None,
) -> Triage:
    """Every rule over the selected part of a job. Raises UsageError where ``step_name`` is no regular expression.

    A rule that fails is reported among those that were not checked, and the others go on. So are rules that need a
    table which is left out because an export is damaged. ``advanced`` is called before each
    rule with the number of rules that have judged, and that of all; what it raises ends the triage.
    """
    case = Case(job, selection or Selection(), thresholds or Thresholds(), step_name)
    if step_name is not None:
        case.job.steps(step_name)
    findings: list[Finding] = []
    not_checked: list[NotChecked] = []
    unsaid: set[str] = set()
    module_of: dict[str, str] = {}
    for report in case.reports:
        not_checked += _damaged(report)
    for done, name in enumerate(rules):
        advanced(done, len(rules))
        give_back()  # what the rule before held
        for result in _checked(name, case):
            if isinstance(result, Finding):
                findings.append(result)
                module_of[result.id] = name
            else:
                not_checked.append(result)
                unsaid.add(name)
    findings.sort(key=lambda one: (one.severity.place, -(one.cost or 0), one.id, one.sentence))
    return Triage(
        tuple(findings),
        tuple(not_checked),
        case.time,
        len(case.devices),
        frozenset(unsaid),
        _step(case) if "step_times" in rules else None,
        module_of,
    )


def _step(case: Case) -> float | None:
    medians = [float(np.median(one.duration)) for one in case.steps.values() if len(one)]
    return sum(medians) / len(medians) if medians else None


def _damaged(report: Report) -> Iterator[NotChecked]:
    """The parts of damaged exports that are left out, by cause."""
    for cause in dict.fromkeys(report.damaged.values()):
        tables = [name for name, why in report.damaged.items() if why == cause]
        names = _words([name for name in tables if name in _JUDGED] or tables)
        yield NotChecked("damaged", f"{report.name} is judged without {names}: {cause}; export it again")


def _words(names: Iterable[str]) -> str:
    """The contents of canonical tables, in a few words for each."""
    return ", ".join(canonical.BY_NAME[name].what.partition(",")[0] for name in names)


def _checked(name: str, case: Case) -> Sequence[Result]:
    damaged = RULES[name].intersection(table for report in case.reports for table in report.damaged)
    if damaged:
        why = f"needs {_words(sorted(damaged))}: the export is damaged there"
        return [NotChecked(name.replace("_", "-"), why)]
    rule: Rule = importlib.import_module(f"nsystui.questions.triage.rules.{name}").check
    try:
        return rule(case)
    except Exception as error:  # whatever it is, the other rules have something to say
        why = str(error).partition("\n")[0]
        return [NotChecked(name.replace("_", "-"), f"the rule failed ({type(error).__name__}: {why})", failed=True)]


NOT_CHECKED = "not checked"
COLUMNS = (
    Column("severity", header="Severity", label="severity"),
    Column("id", header="Id", label="id"),
    Column("cost", header="Cost (ns)", label="cost", unit=Unit.DURATION),
    Column("percent", header="Cost (%)", label="of job", unit=Unit.PERCENT, decimals=1),
    Column("sentence", header="Finding", label="finding"),
    Column("suggestion", header="Suggestion", label="suggestion", importance=1),
    Column("reason", header="Reason", label="reason", importance=2),
    Column("measured", header="Measured", label="measured", importance=3),
    Column("ranks", header="Ranks", label="ranks", importance=2),
    START.with_importance(3),
    END.with_importance(3),
    Column("screen", header="Screen", label="screen", importance=3),
    Column("command", header="Command", label="command", importance=FILES_ONLY),
)


def triage_table(found: Triage) -> TableAnswer:
    """A row for each finding, worst first, then one for each rule that was not checked (its sentence says why)."""
    rows: list[Row] = [row_of(one) for one in found.findings]
    empty = (None,) * (len(COLUMNS) - 5)
    rows += [(NOT_CHECKED, one.rule, None, None, one.why, *empty) for one in found.not_checked]
    return TableAnswer("triage", COLUMNS, rows, len(rows))


def row_of(one: Finding) -> Row:
    """A finding as a row of `triage_table`."""
    window = one.window
    return (
        one.severity.value,
        one.id,
        one.cost,
        one.percent,
        one.sentence,
        one.advice.text,
        one.advice.reason,
        one.measured or None,
        " ".join(map(str, one.ranks)) or None,
        window.start if window else None,
        window.end if window else None,
        one.door.screen,
        one.door.command,
    )
