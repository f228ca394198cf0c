"""A triage compared with a baseline job's: new, worse, gone, better and unchanged findings.

Findings are compared by cost per unit of the verdict (`compare.verdict`): a step, the same work or the job.
``worse_points`` is the minimum change in % of the baseline's unit. Costs that a job pays once are compared as a whole.
A finding that the baseline has just below its threshold is not new, so the baseline's findings are computed again with
minimum costs that any cost reaches.
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
    """A finding's change, in report order."""

    NEW = "new"
    WORSE = "worse"
    GONE = "gone"
    BETTER = "better"
    UNKNOWN = "unknown"
    """The baseline finding's rule could not judge this job."""
    SAME = "same"

    @property
    def is_worse(self) -> bool:
        return self in (ChangeKind.NEW, ChangeKind.WORSE)


@dataclass(frozen=True, eq=False)
class Change:
    """A finding of one or both jobs. ``before`` may be below the thresholds: the baseline's triage then lacks it.

    ``unit``: the unit of the costs, if it is not the job; ``costs``: before and after, ns per unit.
    """

    kind: ChangeKind
    before: Finding | None
    after: Finding | None
    unit: str = ""
    costs: tuple[float, float] = (0, 0)

    @property
    def finding(self) -> Finding:
        """This job's finding, or the baseline's if it is gone."""
        finding = self.after or self.before
        assert finding is not None
        return finding


@dataclass(frozen=True, eq=False)
class Against:
    """A triage and its baseline's; ``changes``: in the order of `ChangeKind`; ``summary``: the largest differences."""

    current: Triage
    baseline: Triage
    label: str
    changes: tuple[Change, ...]
    summary: ComparisonSummary

    @property
    def listed(self) -> list[Change]:
        """Changes of findings that are not symptoms."""
        return [change for change in self.changes if not change.finding.under]

    @property
    def verdict(self) -> Verdict | None:
        return self.summary.verdict

    @property
    def words(self) -> str:
        """The verdict and the most changed counts; empty without a verdict."""
        words = self.summary.words
        return words[:1].upper() + words[1:]

    @property
    def headline(self) -> str:
        """The number of changes of each kind, and whether nothing got worse."""
        parts = [f"{count} {kind.value}" for kind, count in counts(self).items() if count]
        parts = parts or ["no issues found in either job"]
        is_slower = self.verdict is not None and not self.verdict.is_no_worse
        is_worse = is_slower or any(change.kind.is_worse for change in self.listed)
        start = "" if is_worse else "Nothing got worse. "
        broken = dict.fromkeys([*self.current.broken, *self.baseline.broken])
        return f"{start}Against {self.label}: {', '.join([*parts, *broken])}."

    def has(self, severity: Severity) -> bool:
        """Return whether the job is slower (like a warning) or a finding of at least this severity is new or worse.

        If the job is faster, only a finding without a cost counts.
        """
        pace = self.verdict
        if pace is not None and pace.is_slower and severity is Severity.WARNING:
            return True
        worse = [item for item in self.listed if item.kind.is_worse and item.finding.severity.order <= severity.order]
        return any(item.finding.cost is None for item in worse) if pace is not None and pace.is_faster else bool(worse)

    def first(self, count: int | None) -> Against:
        """Return only the first ``count`` changes (``None``: all)."""
        return self if count is None else replace(self, changes=self.changes[:count])


def against(side: Side, baseline: Side, thresholds: Thresholds | None = None, step_name: str | None = None) -> Against:
    """Compare the triages of ``side`` and ``baseline``. Raises UsageError as `triage` does."""
    limits = thresholds or Thresholds()
    after, before = (triage(compared.job, compared.selection, limits, step_name) for compared in (side, baseline))
    baseline_keys = {_key(finding) for finding in before.findings}
    below: Sequence[Finding] = ()
    if any(finding.cost is not None and _key(finding) not in baseline_keys for finding in after.findings):
        below = triage(baseline.job, baseline.selection, limits.without_least_costs(), step_name).findings
    differences = summary(baseline, side, step_name)
    if differences.verdict is not None:
        differences = replace(differences, verdict=replace(differences.verdict, least=limits.slower_percent))
    # Costs of different work compare only by share.
    unit = None if differences.verdict is not None and differences.verdict.other_work else differences.verdict
    changes = tuple(_changes(after, before, below, limits.worse_points, unit))
    return Against(after, before, baseline.label, changes, worded(differences))


_WARM_UP_IDS = ("host-allocation", "first-launches")
"""Findings that a job also pays once, but that may cost much of its time."""
_Key = tuple[str, tuple[int, ...]]


def _key(finding: Finding) -> _Key:
    """Identify a finding in both jobs: by id, and by rank if it has only one."""
    return finding.id, finding.ranks if len(finding.ranks) == 1 else ()


def _changes(
    after: Triage, before: Triage, below: Sequence[Finding], min_points: float, verdict: Verdict | None = None
) -> list[Change]:
    before_by_key, below_by_key = _by_key(before.findings), _by_key(below)
    changes = []
    for finding in after.findings:
        old = before_by_key.pop(_key(finding), None)
        changes.append(_change(old or below_by_key.get(_key(finding)), finding, old is not None, min_points, verdict))
    for old in before_by_key.values():
        changes.append(Change(ChangeKind.UNKNOWN if old.id in after.incomplete else ChangeKind.GONE, old, None))
    kinds = list(ChangeKind)
    changes.sort(key=lambda item: (kinds.index(item.kind), item.finding.severity.order, -(item.finding.cost or 0)))
    return changes


def _by_key(findings: Sequence[Finding]) -> dict[_Key, Finding]:
    findings_by_key: dict[_Key, Finding] = {}
    for finding in findings:
        findings_by_key.setdefault(_key(finding), finding)
    return findings_by_key


def _change(old: Finding | None, new: Finding, is_found: bool, limit: float, verdict: Verdict | None = None) -> Change:
    if old is None:
        return Change(ChangeKind.NEW, None, new)
    if old.cost is None or new.cost is None:
        is_graver = new.severity.order < old.severity.order
        return Change(ChangeKind.WORSE if is_graver else ChangeKind.SAME, old, new)
    once = kind_of(new.id).is_paid_once or new.id in _WARM_UP_IDS
    share_change = (new.percent or 0.0) - (old.percent or 0.0)
    growth = share_change if verdict is None else verdict.points(old.cost, new.cost, once)
    if abs(growth) < limit:
        return Change(ChangeKind.SAME, old, new)
    kind = ChangeKind.BETTER if growth < 0 else ChangeKind.WORSE if is_found else ChangeKind.NEW
    if once or verdict is None or verdict.a.count == verdict.b.count:
        return Change(kind, old, new)
    return Change(kind, old, new, verdict.basis.value, (old.cost / verdict.a.count, new.cost / verdict.b.count))


_MORE = (
    Column("change", header="Change", label="change"),
    Column("baseline_cost", header="Baseline Cost (ns)", label="was", unit=Unit.DURATION, importance=1),
    Column(
        "baseline_percent", header="Baseline Cost (%)", label="was of job", unit=Unit.PERCENT, decimals=1, importance=1
    ),
)


def against_table(diff: Against) -> TableAnswer:
    """Return a row for each change, then for each unchecked rule."""
    rows: list[Row] = []
    for change in diff.changes:
        cells = record(COLUMNS, row_of(change.finding))
        if change.after is None:
            cells.update(cost=None, percent=None)
        baseline_cells = (change.before.cost, change.before.percent) if change.before is not None else (None, None)
        rows.append((change.kind.value, *baseline_cells, *cells.values()))
    empty = (None,) * (len(COLUMNS) - 5)
    rows += [
        (None, None, None, NOT_CHECKED, rule.rule, None, None, rule.why, *empty) for rule in diff.current.not_checked
    ]
    return TableAnswer("triage", (*_MORE, *COLUMNS), rows, len(rows))


def counts(comparison: Against) -> Mapping[ChangeKind, int]:
    return {kind: sum(change.kind is kind for change in comparison.listed) for kind in ChangeKind}
