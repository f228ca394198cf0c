"""A triage against a baseline: what is new, worse, better, gone."""

from __future__ import annotations

import pytest

from nsystui.questions.triage.baseline import Kind, _changes
from nsystui.questions.triage.finding import Advice, Door, Finding, Severity
from nsystui.questions.triage.rules import Thresholds
from nsystui.questions.triage.run import Triage

WARNING, INFO = Severity.WARNING, Severity.INFO


def finding(name: str, percent: float | None, severity: Severity = WARNING, ranks: tuple[int, ...] = ()) -> Finding:
    cost = None if percent is None else int(percent * 1e6)
    return Finding(name, severity, "it is so", Advice("do", "because"), Door("gpu"), cost, percent, ranks=ranks)


def triage(*findings: Finding, unsaid: frozenset[str] = frozenset()) -> Triage:
    return Triage(findings, (), 100_000_000, 1, unsaid, {one.id: f"rule of {one.id}" for one in findings})


def kinds(before: Triage, after: Triage, *below: Finding) -> dict[str, Kind]:
    return {one.finding.id: one.kind for one in _changes(after, before, below, least=2.0)}


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [(10.0, 15.0, Kind.WORSE), (10.0, 11.0, Kind.SAME), (10.0, 5.0, Kind.BETTER), (None, None, Kind.SAME)],
)
def test_a_finding_of_both_is_judged_by_its_share_of_the_job(was, now, kind):
    assert kinds(triage(finding("gaps", was)), triage(finding("gaps", now))) == {"gaps": kind}


def test_a_finding_of_one_is_new_or_gone():
    one, two = triage(finding("gaps", 9.0)), triage(finding("copies", 9.0))
    assert kinds(one, two) == {"copies": Kind.NEW, "gaps": Kind.GONE}


def test_one_that_was_just_below_its_threshold_is_not_new():
    assert kinds(triage(), triage(finding("gaps", 5.1)), finding("gaps", 4.9)) == {"gaps": Kind.SAME}
    assert kinds(triage(), triage(finding("gaps", 15.0)), finding("gaps", 4.9)) == {"gaps": Kind.NEW}


def test_another_straggler_is_another_finding():
    before, after = triage(finding("straggler", 9.0, ranks=(3,))), triage(finding("straggler", 9.0, ranks=(5,)))
    found = _changes(after, before, (), least=2.0)
    assert [(one.kind, one.finding.ranks) for one in found] == [(Kind.NEW, (5,)), (Kind.GONE, (3,))]


def test_one_whose_severity_rises_is_worse():
    assert kinds(triage(finding("errors", None, INFO)), triage(finding("errors", None))) == {"errors": Kind.WORSE}


def test_what_cannot_be_judged_any_more_is_not_gone():
    after = triage(unsaid=frozenset({"rule of gaps"}))
    assert kinds(triage(finding("gaps", 9.0)), after) == {"gaps": Kind.UNKNOWN}


def test_what_got_worse_comes_first():
    before = triage(finding("a", 9.0), finding("b", 9.0), finding("c", 9.0))
    after = triage(finding("b", 9.0), finding("c", 19.0), finding("d", 3.0), finding("e", 4.0))
    found = _changes(after, before, (), least=2.0)
    assert [one.finding.id for one in found] == ["e", "d", "c", "b", "a"]


def test_without_least_costs_only_costs_change():
    lowered = Thresholds().without_least_costs()
    assert lowered.straggler_percent == lowered.gap_percent == lowered.copy_percent == 0
    assert lowered.gap_ms == Thresholds().gap_ms
    assert lowered.shortest_ms == Thresholds().shortest_ms
