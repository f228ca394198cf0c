"""A triage compared with that of a baseline job: new findings, gone ones, and those that cost more or less.

Findings are compared by their cost in the unit that the verdict is about (`compare.verdict`): a step, the same work,
the job; ``worse_points`` is the minimum change in % of the baseline's unit. What is paid once is compared by all of its
cost. A finding depends on a threshold: so that one just above it is not called new where the baseline has it just
below, the baseline's findings are computed again with every such threshold at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nsystui.base.answer import Column, Row, TableAnswer, Unit, record
from nsystui.questions.compare import ComparisonSummary, Side, Verdict, summary, worded
from nsystui.questions.triage.finding import Finding, Severity
from nsystui.questions.triage.rules import kind_of
from nsystui.questions.triage.run import COLUMNS, NOT_CHECKED, Triage, row_of, triage
from nsystui.questions.triage.thresholds import Thresholds


class ChangeKind(Enum):
    """The change of a finding; the changes are reported in this order."""

    NEW = "new"
    WORSE = "worse"
    GONE = "gone"
    BETTER = "better"
    UNKNOWN = "unknown"
    """The rule that found it before lacks the data to judge now."""
    SAME = "same"

    @property
    def is_worse(self) -> bool:
        return self in (ChangeKind.NEW, ChangeKind.WORSE)


@dataclass(frozen=True, eq=False)
class Change:
    """One finding in both jobs; ``before`` may lie below the thresholds, and then is no finding of the baseline.

    ``unit``: what the costs are compared in, where that is not the job; ``costs``: those of before and after in it, ns.
    """

    kind: ChangeKind
    before: Finding | None
    after: Finding | None
    unit: str = ""
    costs: tuple[float, float] = (0, 0)

    @property
    def finding(self) -> Finding:
        """The finding as it is, or as it was where it is gone."""
        one = self.after or self.before
        assert one is not None
        return one


@dataclass(frozen=True, eq=False)
class Against:
    """A triage and its baseline's.

    ``changes``: what is worse first, what is the same last; ``summary``: the largest differences of the jobs.
    """

    found: Triage
    baseline: Triage
    label: str
    changes: tuple[Change, ...]
    summary: ComparisonSummary

    @property
    def told(self) -> list[Change]:
        """The changes of findings that are no symptoms of others."""
        return [one for one in self.changes if not one.finding.under]

    @property
    def verdict(self) -> Verdict | None:
        return self.summary.verdict

    @property
    def words(self) -> str:
        """The verdict and the counts that changed most as a sentence; empty without a verdict."""
        words = self.summary.words
        return words[:1].upper() + words[1:]

    @property
    def headline(self) -> str:
        """The number of changes of each kind, and that nothing got worse where that is so."""
        parts = [f"{count} {kind.value}" for kind, count in counts(self).items() if count]
        parts = parts or ["no issues found in either job"]
        is_slower = self.verdict is not None and not self.verdict.is_no_worse
        is_worse = is_slower or any(one.kind.is_worse for one in self.told)
        start = "" if is_worse else "Nothing got worse. "
        broken = dict.fromkeys([*self.found.broken, *self.baseline.broken])
        return f"{start}Against {self.label}: {', '.join([*parts, *broken])}."

    def has(self, least: Severity) -> bool:
        """Whether the job got worse: it is slower, which is as bad as a warning; or a finding as bad as ``least`` is.

        In a job that is faster, only a finding that costs no time counts.
        """
        found = self.verdict
        if found is not None and found.is_slower and least is Severity.WARNING:
            return True
        worse = [one for one in self.told if one.kind.is_worse and one.finding.severity.place <= least.place]
        return any(one.finding.cost is None for one in worse) if found is not None and found.is_faster else bool(worse)

    def first(self, count: int | None) -> Against:
        """The same with the first ``count`` changes only (``None``: all)."""
        return self if count is None else replace(self, changes=self.changes[:count])


def against(side: Side, baseline: Side, thresholds: Thresholds | None = None, step_name: str | None = None) -> Against:
    """The triage of ``side`` against that of ``baseline``. Raises UsageError as `triage` does."""
    limits = thresholds or Thresholds()
    found, before = (triage(one.job, one.selection, limits, step_name) for one in (side, baseline))
    known = {_key(one) for one in before.findings}
    below: Sequence[Finding] = ()
    if any(one.cost is not None and _key(one) not in known for one in found.findings):
        below = triage(baseline.job, baseline.selection, limits.without_least_costs(), step_name).findings
    # The summary names what changed most, of kernels and of NVTX ranges.
    told = summary(baseline, side, step_name)
    if told.verdict is not None:
        told = replace(told, verdict=replace(told.verdict, least=limits.slower_percent))
    # The costs of other work compare by their shares alone.
    unit = None if told.verdict is not None and told.verdict.other_work else told.verdict
    changes = tuple(_changes(found, before, below, limits.worse_points, unit))
    return Against(found, before, baseline.label, changes, worded(told))


_OF_ITS_WARM_UP = ("host-allocation", "first-launches")
"""Findings that a job has once, too, but whose cost may be much of it."""
_Key = tuple[str, tuple[int, ...]]


def _key(one: Finding) -> _Key:
    """The identity of a finding across jobs: its rule, and the rank where it is about a single one."""
    return one.id, one.ranks if len(one.ranks) == 1 else ()


def _changes(
    after: Triage, before: Triage, below: Sequence[Finding], least: float, verdict: Verdict | None = None
) -> list[Change]:
    were, lower = _by_key(before.findings), _by_key(below)
    changes = []
    for one in after.findings:
        was = were.pop(_key(one), None)
        changes.append(_change(was or lower.get(_key(one)), one, was is not None, least, verdict))
    for was in were.values():
        is_unknown = before.rule_of.get(was.id) in after.unsaid
        changes.append(Change(ChangeKind.UNKNOWN if is_unknown else ChangeKind.GONE, was, None))
    kinds = list(ChangeKind)
    changes.sort(key=lambda one: (kinds.index(one.kind), one.finding.severity.place, -(one.finding.cost or 0)))
    return changes


def _by_key(findings: Sequence[Finding]) -> dict[_Key, Finding]:
    found: dict[_Key, Finding] = {}
    for one in findings:
        found.setdefault(_key(one), one)
    return found


def _change(was: Finding | None, now: Finding, was_found: bool, least: float, verdict: Verdict | None = None) -> Change:
    if was is None:
        return Change(ChangeKind.NEW, None, now)
    if was.cost is None or now.cost is None:
        is_graver = now.severity.place < was.severity.place
        return Change(ChangeKind.WORSE if is_graver else ChangeKind.SAME, was, now)
    once = kind_of(now.id).is_paid_once or now.id in _OF_ITS_WARM_UP
    shares = (now.percent or 0.0) - (was.percent or 0.0)
    grown = shares if verdict is None else verdict.points(was.cost, now.cost, once)
    if abs(grown) < least:
        return Change(ChangeKind.SAME, was, now)
    kind = ChangeKind.BETTER if grown < 0 else ChangeKind.WORSE if was_found else ChangeKind.NEW
    if once or verdict is None or verdict.a.count == verdict.b.count:
        return Change(kind, was, now)
    costs = was.cost / verdict.a.count, now.cost / verdict.b.count
    return Change(kind, was, now, verdict.basis.value, costs)


_MORE = (
    Column("change", header="Change", label="change"),
    Column("baseline_cost", header="Baseline Cost (ns)", label="was", unit=Unit.DURATION, importance=1),
    Column(
        "baseline_percent", header="Baseline Cost (%)", label="was of job", unit=Unit.PERCENT, decimals=1, importance=1
    ),
)


def against_table(found: Against) -> TableAnswer:
    """A row for each change, what got worse first, then one for each rule that was not checked."""
    rows: list[Row] = []
    for one in found.changes:
        own = record(COLUMNS, row_of(one.finding))
        if one.after is None:
            own.update(cost=None, percent=None)
        was = (one.before.cost, one.before.percent) if one.before is not None else (None, None)
        rows.append((one.kind.value, *was, *own.values()))
    empty = (None,) * (len(COLUMNS) - 5)
    rows += [(None, None, None, NOT_CHECKED, one.rule, None, None, one.why, *empty) for one in found.found.not_checked]
    return TableAnswer("triage", (*_MORE, *COLUMNS), rows, len(rows))


def counts(found: Against) -> Mapping[ChangeKind, int]:
    """The number of changes of each kind."""
    return {kind: sum(one.kind is kind for one in found.told) for kind in ChangeKind}
