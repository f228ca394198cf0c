"""The order of findings: what could be gained first, symptoms under their cause, one sentence of summary."""

from __future__ import annotations

from pathlib import Path

from synthetic import ExportWriter
from synthetic.illnesses import OneGpu, exposed_communication
from triaging import triaged

from nsystui.output.findings import lines, report, told
from nsystui.questions.triage.finding import Advice, Door, Finding, Severity
from nsystui.questions.triage.run import Triage

MS = 1_000_000


def starved(path: Path) -> Path:
    """15 steps of 20 ms on the GPU, one of them followed by 300 ms in which the thread is in ``poll``."""
    start = MS
    with ExportWriter(path, "3.25.0") as export:
        gpu = OneGpu(export)
        for number in range(15):
            export.nvtx_range(gpu.main, start, start + 19 * MS, f"step {number}")
            gpu.kernel(start + 10_000, start + 20 * MS - 10_000, launched=start + 1_000)
            start += 20 * MS
            if number == 9:
                export.osrt(gpu.main, start, start + 300 * MS, "poll")
                start += 300 * MS
    return path


def finding(name: str, percent: float | None, under: str = "", severity: Severity = Severity.WARNING) -> Finding:
    cost = None if percent is None else round(percent * MS)
    return Finding(name, severity, f"{name} it is", Advice("a", "b"), Door("kernels"), cost, percent, under=under)


def test_the_cause_comes_before_its_symptom_which_is_folded(tmp_path):
    found = triaged(starved(tmp_path / "a.sqlite"))
    assert [(one.id, one.under) for one in found.findings[:2]] == [("idle-gaps", ""), ("slow-steps", "idle-gaps")]
    text = lines(found)
    assert any(line.startswith("   so: slow-steps") for line in text)
    assert not any(line.startswith("W  slow-steps") for line in text)


def test_the_summary_says_how_busy_the_gpu_is_and_what_it_waits_for(tmp_path):
    found = triaged(starved(tmp_path / "a.sqlite"))
    assert found.summary.startswith("GPU busy 50 %: it waits 300 ms of 6")
    assert "poll" in found.summary
    assert found.summary[:40] in " ".join(lines(found)[:3])
    assert "GPU busy 50 %" in report(found)


def test_a_summary_of_idle_time_that_no_rule_explains_says_where_it_lies(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite", "3.25.0") as export:
        gpu = OneGpu(export)
        gpu.call("cudaMallocHost", MS, 90 * MS)
        gpu.kernel(90 * MS, 100 * MS, launched=90 * MS - 10_000)
    summary = triaged(tmp_path / "a.sqlite").summary
    assert "lies before the first GPU operation or after the last one" in summary
    assert "nothing" not in summary


def test_five_findings_are_told_and_the_others_in_a_line_each():
    found = Triage(tuple(finding(f"rule-{number}", 20.0 - number) for number in range(8)), (), 100 * MS, 1, busy=40.0)
    assert [one.id for one in told(found)] == [f"rule-{number}" for number in range(5)]
    text = lines(found)
    after = text[text.index("More:") + 1 :]
    assert [line.split()[1] for line in after if line.startswith("W")] == ["rule-5", "rule-6", "rule-7"]


def test_every_finding_is_kept_whatever_it_stands_under(tmp_path):
    found = triaged(*exposed_communication(tmp_path / "a.sqlite").paths)
    ids = [one.id for one in found.findings]
    assert len(ids) == len(set(ids))
    assert "exposed-communication" in ids
    assert all(not one.under or one.under in ids for one in found.findings)
