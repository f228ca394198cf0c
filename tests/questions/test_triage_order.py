"""The order of findings and their summary, and the findings of a triage against a baseline's."""

import pytest
from synthetic.illnesses import one_gpu
from triaging import triaged

from nsystui.output.findings import change_lines, lines, report
from nsystui.questions.compare import ComparisonSummary, Verdict
from nsystui.questions.compare.summary import COLUMNS
from nsystui.questions.compare.verdict import _PARTS, ComparedBy, Timed
from nsystui.questions.triage.baseline import Against, ChangeKind, _changes
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.run import Triage
from nsystui.questions.triage.thresholds import Thresholds

MS = 1_000_000
WARNING, INFO = Severity.WARNING, Severity.INFO


def finding(name: str, percent: float | None, severity: Severity = WARNING, ranks: tuple[int, ...] = ()) -> Finding:
    cost = None if percent is None else int(percent * 1e6)
    return Finding(name, severity, "it is so", Advice("do", "because"), Door("gpu"), cost, percent, ranks=ranks)


@pytest.mark.campaign
def test_the_account_has_all_time_with_the_causes_of_what_is_idle(tmp_path):
    """1 s: 600 ms in ``poll``, 200 ms without any record, 100 ms of kernels, 100 ms in ``cudaFree``."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.call("cudaFree_v3020", 0, 1_000)
        gpu.export.osrt(gpu.main, 100 * MS, 700 * MS, "poll")
        for start in range(800 * MS, 900 * MS, MS):
            gpu.kernel(start, start + MS, launched=start - 10_000)
        gpu.call("cudaFree_v3020", 900 * MS, 1000 * MS)
    found = triaged(tmp_path / "a.sqlite")
    assert found.account == (
        "Time: compute 10.0 %. Idle: start-up 80.0 % (poll 60.0 %, nothing recorded, after cudaFree 10.0 %, "
        "nothing recorded, before cudaLaunchKernel 10.0 %), gaps 0.0 %, gaps under 1 ms 0.0 %, "
        "tail 10.0 % (cudaFree 10.0 %)."
    )
    assert found.account in " ".join(lines(found))
    assert found.account in report(found).replace("\\", "")


def test_rules_that_need_the_same_are_one_line():
    needs = [
        NotChecked("gaps", "needs GPU work"),
        NotChecked("slow-steps", "needs steps"),
        NotChecked("gil", "needs GPU work"),
    ]
    text = lines(Triage((), tuple(needs), 100 * MS, 1, busy=40.0), lists_unjudged=True)
    assert text[text.index("Not checked:") + 1 :] == ["-  gaps, gil: needs GPU work", "-  slow-steps: needs steps"]
    assert "3 rules not checked" in text[1]


def test_five_findings_are_told_and_the_others_in_a_line_each():
    found = Triage(tuple(finding(f"rule-{number}", 20.0 - number) for number in range(8)), (), 100 * MS, 1, busy=40.0)
    text = lines(found)
    heads = [line.split()[1] if line.startswith("W") else line for line in text if line.startswith(("W", "More:"))]
    assert heads == [*(f"rule-{number}" for number in range(5)), "More:", "rule-5", "rule-6", "rule-7"]


def triage(*findings: Finding, unsaid: frozenset[str] = frozenset()) -> Triage:
    return Triage(findings, (), 100_000_000, 1, unsaid)


def kinds(before: Triage, after: Triage, *below: Finding) -> dict[str, ChangeKind]:
    return {one.finding.id: one.kind for one in _changes(after, before, below, min_points=2.0)}


@pytest.mark.parametrize(("before", "after", "below", "expected"), [
    # A finding of both jobs is worse by its share of the job, or by a higher severity.
    ([finding("gaps", 10.0)], [finding("gaps", 15.0)], [], {"gaps": ChangeKind.WORSE}),
    ([finding("gaps", 10.0)], [finding("gaps", 11.0)], [], {"gaps": ChangeKind.SAME}),
    ([finding("gaps", 10.0)], [finding("gaps", 5.0)], [], {"gaps": ChangeKind.BETTER}),
    ([finding("gaps", None)], [finding("gaps", None)], [], {"gaps": ChangeKind.SAME}),
    ([finding("errors", None, INFO)], [finding("errors", None)], [], {"errors": ChangeKind.WORSE}),
    ([finding("gaps", 9.0)], [finding("copies", 9.0)], [], {"copies": ChangeKind.NEW, "gaps": ChangeKind.GONE}),
    # It was just below its threshold, or much below its present cost.
    ([], [finding("gaps", 5.1)], [finding("gaps", 4.9)], {"gaps": ChangeKind.SAME}),
    ([], [finding("gaps", 15.0)], [finding("gaps", 4.9)], {"gaps": ChangeKind.NEW}),
])  # fmt: skip
def test_a_finding_changed_or_is_new_or_gone(before, after, below, expected):
    assert kinds(triage(*before), triage(*after), *below) == expected


def test_what_cannot_be_judged_any_more_is_not_gone():
    assert kinds(triage(finding("gaps", 9.0)), triage(unsaid=frozenset({"gaps"}))) == {"gaps": ChangeKind.UNKNOWN}


def test_a_finding_without_a_cost_is_not_said_to_have_had_one():
    before, after = triage(finding("tensor", None)), triage(unsaid=frozenset({"tensor"}))
    nothing = ComparisonSummary("summary", COLUMNS, [], 0)
    text = "\n".join(change_lines(Against(after, before, "a", tuple(_changes(after, before, (), 2.0)), nothing)))
    assert "UNKNOWN W  tensor\n" in text and "cost" not in text


def test_another_straggler_is_another_finding():
    before, after = triage(finding("straggler", 9.0, ranks=(3,))), triage(finding("straggler", 9.0, ranks=(5,)))
    found = _changes(after, before, (), min_points=2.0)
    assert [(one.kind, one.finding.ranks) for one in found] == [(ChangeKind.NEW, (5,)), (ChangeKind.GONE, (3,))]


def test_what_got_worse_comes_first():
    before = triage(finding("a", 9.0), finding("b", 9.0), finding("c", 9.0))
    after = triage(finding("b", 9.0), finding("c", 19.0), finding("d", 3.0), finding("e", 4.0))
    assert [one.finding.id for one in _changes(after, before, (), min_points=2.0)] == ["e", "d", "c", "a", "b"]


def test_what_is_the_same_comes_last():
    names = ("gone", "better", "same", "unknown", "worse")
    before = triage(*(finding(name, 20.0) for name in names))
    costs = {"better": 10.0, "same": 20.0, "worse": 30.0, "new": 5.0}
    after = triage(*(finding(*one) for one in costs.items()), unsaid=frozenset({"unknown"}))
    found = [one.finding.id for one in _changes(after, before, (), min_points=2.0)]
    assert found == ["new", "worse", "gone", "better", "unknown", "same"]


def test_a_finding_that_costs_less_is_not_worse_for_its_share_or_severity():
    """1.973 s of 9.6 s instead of 2.209 s of 18.1 s."""
    times = [Timed({"compute": time}, {"compute": time}) for time in (181e6, 96e6)]
    before, after = triage(finding("precision", 22.09, INFO)), triage(finding("precision", 19.73))
    (one,) = _changes(after, before, (), 2.0, Verdict(ComparedBy.JOB, *times))
    assert one.kind is ChangeKind.SAME


def test_a_finding_that_is_worse_by_step_tells_its_cost_of_a_step():
    """The cost is 19.73 ms in 10 steps instead of 22.09 ms in 20."""
    nothing = dict.fromkeys(_PARTS, 0.0)
    times = [Timed(nothing | {"compute": 5e6}, nothing | {"compute": 5e6 * count}, count) for count in (20, 10)]
    before, after = triage(finding("precision", 22.09)), triage(finding("precision", 19.73))
    verdict = Verdict(ComparedBy.STEP, *times)
    changes = tuple(_changes(after, before, (), 2.0, verdict))
    assert [one.kind for one in changes] == [ChangeKind.WORSE]
    text = change_lines(
        Against(after, before, "a", changes, ComparisonSummary("diff-summary", COLUMNS, [], 0, verdict=verdict))
    )
    title = "W  precision  19.73 ms, 19.7 % (was 22.09 ms, 22.1 %); a step: 1.973 ms instead of 1.105 ms"
    assert title in " ".join(map(str.strip, text)).replace("WORSE   ", "")


def test_what_had_no_cost_is_not_said_to_have_been_without_one():
    before, after = triage(finding("errors", None)), triage()
    changes = tuple(_changes(after, before, (), 2.0))
    text = change_lines(Against(after, before, "a", changes, ComparisonSummary("diff-summary", COLUMNS, [], 0)))
    assert "GONE    W  errors" in text


def test_a_length_can_be_0_but_a_minimum_cost_is_above_0():
    changed = Thresholds().changed(["gap_ms=0", "gap_percent=0"])
    assert changed.gap_ms == 0 < changed.gap_percent < 1e-6


def test_without_least_costs_only_costs_change():
    lowered = Thresholds().without_least_costs()
    assert 0 < lowered.straggler_percent == lowered.gap_percent == lowered.copy_percent < 1e-6
    assert (lowered.gap_ms, lowered.shortest_ms) == (Thresholds().gap_ms, Thresholds().shortest_ms)
