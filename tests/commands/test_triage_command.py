"""``nsystui triage``."""

import shlex

import pytest
from synthetic import empty_export, training_job, whole_graph_export
from synthetic import illnesses as ill
from synthetic.demo import TrainingJob


@pytest.fixture(scope="module")
def stalled(tmp_path_factory):
    """One rank that stalls for 200 ms in one of ten steps."""
    return TrainingJob(ranks=1, steps=10, layers=4, stall_ms=200).write(tmp_path_factory.mktemp("stalled"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    job = TrainingJob(ranks=1, steps=10, layers=16, straggler=None, stall_ms=0)
    return job.write(tmp_path_factory.mktemp("healthy"))


def test_findings_come_with_cost_advice_and_the_command_that_shows_more(run, stalled):
    done = run("triage", *stalled, "--fail-on", "error")
    assert done.status == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("In a step, the GPU computes ")
    assert any("warning" in line for line in lines[:4])
    (head,) = [line for line in lines if line.startswith("W  idle-gaps")]
    assert " ms, " in head
    assert head.endswith(" % of the job")
    for start in ("   how to fix: ", "   why: "):
        assert any(line.startswith(start) for line in lines)
    assert all(len(line) < 80 for line in lines if "nsystui" not in line)
    assert run("triage", *stalled, "--no-cache").out == done.out


def test_the_command_that_shows_more_can_be_pasted(run, stalled):
    """It names the files of the job, and a window in milliseconds: the table has the gap that the finding is about."""
    lines = run("triage", *stalled).out.splitlines()
    (command,) = [line.partition(" or nsystui ")[2] for line in lines if "nsystui timeline" in line]
    again = run(*shlex.split(command))
    assert again.status == 0, again.err
    assert "ms:" in command and all(str(path) in command for path in stalled)


@pytest.mark.campaign
def test_the_rules_that_could_not_judge_are_a_count_and_listed_on_request(run, stalled):
    told, listed = run("triage", *stalled).out, run("triage", *stalled, "--not-checked").out
    assert "straggler: needs" not in told and "rules lack data" in told
    assert "\n-  straggler: needs " in listed
    assert told.splitlines()[-1].strip().endswith("--not-checked")


@pytest.mark.campaign
def test_a_healthy_job_is_said_to_be_healthy(run, healthy):
    done = run("triage", *healthy, "--fail-on", "warning")
    assert "\nNo issues found." in done.out
    assert done.status == 0


@pytest.mark.campaign
def test_json_has_the_findings_and_what_was_not_checked_and_a_script_may_fail_on_them(run, stalled):
    words = ("triage", *stalled, "--fail-on", "warning", "--format", "json")
    done, again = run(*words), run(*words, "--no-cache")
    gap = next(row for row in done.json if row["id"] == "idle-gaps")
    assert gap["severity"] == "warning"
    assert gap["end_ns"] - gap["start_ns"] == pytest.approx(200e6, rel=0.1)
    assert "not checked" in {row["severity"] for row in done.json}
    assert (again.status, again.out) == (done.status, done.out) == (1, done.out)
    # Fewer findings are shown, and all decide the status.
    few = run("triage", *stalled, "--top", "0", "--fail-on", "warning")
    assert few.status == 1 and "idle-gaps" not in few.out


@pytest.mark.campaign
def test_json_names_the_cause_of_a_symptom_that_stands_below_it(run, tmp_path):
    export = ill.first_use(tmp_path / "ill.sqlite").paths[0]
    rows = run("triage", export, "--set", "gap_percent=1", "--set", "first_launch_percent=1", "--format", "json").json
    places = {row["id"]: place for place, row in enumerate(rows)}
    symptoms = {row["id"]: row["symptom_of"] for row in rows if row["symptom_of"]}
    assert symptoms["idle-gaps"] == "first-launches"
    assert all(places[cause] < places[symptom] for symptom, cause in symptoms.items())


def test_the_report_has_the_evidence_as_tables(run, refused, stalled, tmp_path):
    target = tmp_path / "triage.md"
    assert run("triage", *stalled, "-o", target).status == 0
    text = target.read_text()
    assert text.startswith("# Triage\n")
    assert "## Warning: idle-gaps  " in text and "| Rank | Device | Start (ns) | Duration (ns) |" in text
    assert "## Not checked" in text
    assert "exists already" in refused("triage", *stalled, "-o", target)
    assert target.read_text() == text


def test_a_file_for_people_has_the_notes_that_go_to_standard_error(run, tmp_path):
    path = whole_graph_export(tmp_path / "a.sqlite")
    note = "10 whole CUDA graph launches count as busy"
    assert note in run("triage", path).err
    for name, start in (("triage.md", "* "), ("triage.txt", "-  ")):
        target = tmp_path / name
        run("triage", path, "-o", target)
        assert f"\n{start}{note}" in target.read_text()


def test_a_threshold_is_changed(run, refused, stalled):
    done = run("triage", *stalled, "--set", "gap_ms=500", "--format", "csv")
    assert "idle-gaps" not in {row["Id"] for row in done.table if row["Severity"] != "not checked"}
    refused("triage", *stalled, "--set", "gap=5", lines=1)


def test_an_export_without_anything_is_not_called_healthy(run, tmp_path):
    done = run("triage", empty_export(tmp_path / "empty.sqlite"))
    assert done.status == 0
    assert "No issues found" not in done.out and "Not checked:" in done.out


@pytest.mark.campaign
class TestBaseline:
    """The healthy job, and the same with a stall."""

    @pytest.fixture(scope="class")
    def ill(self, tmp_path_factory):
        job = TrainingJob(ranks=1, steps=10, layers=16, straggler=None, stall_ms=200)
        return job.write(tmp_path_factory.mktemp("ill"))

    def test_what_is_new_is_told_with_what_changed_most_and_alone_fails(self, run, ill, healthy):
        done = run("triage", *ill, "--baseline", *healthy, "--fail-on", "warning")
        assert done.status == 1
        assert done.out.startswith("1.30 × slower: a step takes ")
        assert any(line.startswith("Against ") for line in done.out.splitlines())
        assert any(line.startswith("NEW     W  idle-gaps  ") for line in done.out.splitlines())
        assert "step time, p95" in done.out
        lines = [line for line in done.out.splitlines() if "nsystui " not in line and str(healthy[0]) not in line]
        assert all(len(line) < 80 for line in lines)
        assert run("triage", *ill, "--baseline", *ill, "--fail-on", "warning").status == 0

    def test_what_is_gone_is_told_and_fails_nothing(self, run, ill, healthy):
        done = run("triage", *healthy, "--baseline", *ill, "--fail-on", "warning")
        assert done.status == 0
        assert done.out.startswith("1.30 × faster: a step takes ")
        assert "\nNothing got worse." in done.out and "GONE    W  idle-gaps (was " in done.out

    def test_programs_get_a_table_and_people_a_report(self, run, ill, healthy, tmp_path):
        words = ("triage", *ill, "--baseline", *healthy)
        gap = next(row for row in run(*words, "--format", "json").json if row["id"] == "idle-gaps")
        assert gap["change"] == "new"
        assert gap["baseline_percent"] < 5 < gap["percent"]
        target = tmp_path / "triage.md"
        assert run(*words, "-o", target).status == 0
        text = target.read_text()
        assert "## New: W  idle-gaps  " in text and "| step time, median |" in text


def test_a_rule_is_explained_without_any_export(run):
    done = run("triage", "--explain", "idle-gaps")
    assert done.status == 0
    assert "what the CPU" in done.out and "gap_ms (1): an idle gap of a GPU is long" in done.out
    assert "Measured" in done.out


def test_every_rule_has_an_explanation_and_an_unknown_one_is_told(run, refused):
    for name in ("straggler", "no-gpu-work", "ranks-missing", "tensor-activity"):
        assert run("triage", "--explain", name).out.startswith(name)
    assert "idle-gaps" in refused("triage", "--explain", "idle-gap")


@pytest.fixture(scope="module")
def straggling(written_once):
    return written_once("python", lambda directory: training_job(directory, ranks=4, steps=6, layers=4))


@pytest.fixture
def told(run, straggling, stalled):
    """The rows of the triage of two jobs."""
    return {job: run("triage", *job, "--format", "json").json for job in (tuple(straggling), tuple(stalled))}


@pytest.mark.campaign
def test_the_command_of_a_finding_sorts_by_a_key_of_its_json(run, told):
    rows = [row for rows in told.values() for row in rows]
    assert {"straggler", "slow-steps"} <= {row["id"] for row in rows}
    sorted_by = [row["command"].split() for row in rows if row["command"] and "--sort" in row["command"]]
    assert sorted_by
    for words in sorted_by:
        schema = run("schema", *words[: words.index("--sort")]).json
        assert words[words.index("--sort") + 1] in schema["items"]["required"], words
