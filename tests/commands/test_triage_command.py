"""``nsystui triage``."""

from __future__ import annotations

import pytest

from nsystui.exports.demo import TrainingJob, empty_export


@pytest.fixture(scope="module")
def stalled(tmp_path_factory):
    """One rank that stalls for 200 ms in one of ten steps."""
    return TrainingJob(ranks=1, steps=10, layers=4, stall_ms=200).write(tmp_path_factory.mktemp("stalled"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    job = TrainingJob(ranks=1, steps=10, layers=16, straggler=None, stall_ms=0)
    return job.write(tmp_path_factory.mktemp("healthy"))


def test_findings_come_with_cost_advice_and_the_command_that_shows_more(run, stalled):
    done = run("triage", *stalled)
    assert done.status == 0
    lines = done.out.splitlines()
    assert "warning" in lines[0]
    (head,) = [line for line in lines if line.startswith("W  idle-gaps")]
    assert " ms, " in head
    assert head.endswith(" % of the job")
    for start in ("   try: ", "   why: ", "   see: nsystui timeline FILE… --time "):
        assert any(line.startswith(start) for line in lines)
    assert any(line.startswith("-  stragglers: needs ") for line in lines)
    assert all(len(line) < 80 for line in lines if "see: " not in line)


def test_a_healthy_job_is_said_to_be_healthy(run, healthy):
    done = run("triage", *healthy, "--fail-on", "warning")
    assert done.out.startswith("No rule found anything wrong.")
    assert done.status == 0


def test_a_script_may_fail_on_findings(run, stalled):
    assert run("triage", *stalled, "--fail-on", "warning", "--format", "json").status == 1
    assert run("triage", *stalled, "--fail-on", "error").status == 0


def test_fewer_findings_are_shown_and_all_decide_the_status(run, stalled):
    done = run("triage", *stalled, "--top", "0", "--fail-on", "warning")
    assert "idle-gaps" not in done.out
    assert done.status == 1


@pytest.mark.parametrize("form", ["table", "json", "md", "csv"])
def test_the_same_input_gives_the_same_bytes(run, stalled, form):
    words = ("triage", *stalled, "--format", form)
    assert run(*words).out == run(*words, "--no-cache").out


def test_json_has_the_findings_and_what_was_not_checked(run, stalled):
    rows = run("triage", *stalled, "--format", "json").json
    gap = next(row for row in rows if row["id"] == "idle-gaps")
    assert gap["severity"] == "warning"
    assert gap["end"] - gap["start"] == pytest.approx(200e6, rel=0.1)
    assert "not checked" in {row["severity"] for row in rows}


def test_the_report_has_the_evidence_as_tables(run, stalled, tmp_path):
    target = tmp_path / "triage.md"
    assert run("triage", *stalled, "-o", target).status == 0
    text = target.read_text()
    assert text.startswith("# Triage\n")
    assert "## Warning: idle-gaps  " in text
    assert "| Rank | Device | Start (ns) | Duration (ns) |" in text
    assert "## Not checked" in text
    again = run("triage", *stalled, "-o", target)
    assert again.status != 0
    assert "exists already" in again.err
    assert target.read_text() == text
    assert run("triage", *stalled, "-o", target, "--force").status == 0
    assert target.read_text() == text


def test_a_threshold_is_changed(run, stalled):
    done = run("triage", *stalled, "--set", "gap_ms=500", "--format", "csv")
    assert "idle-gaps" not in {row["Id"] for row in done.table if row["Severity"] != "not checked"}
    wrong = run("triage", *stalled, "--set", "gap=5")
    assert wrong.status == 2
    assert wrong.err.count("\n") == 1


def test_an_export_without_anything_is_not_called_healthy(run, tmp_path):
    done = run("triage", empty_export(tmp_path / "empty.sqlite"))
    assert done.status == 0
    assert "No rule found anything wrong" not in done.out
    assert "Not checked:" in done.out
