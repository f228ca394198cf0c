"""A damaged export: what reads the damaged rows is refused, what does not says that it is damaged, once that is known.

The triage judges with the tables that can be read, and names the others and the rules that need them.
"""

import shutil
from pathlib import Path

import campaign
import program
import pytest
import synthetic
from campaign import first
from support import damage_rows

from nsystui.questions.triage.rules import rules
from nsystui.store import tables

RUNTIME, KERNELS, NVTX = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"
CSV = ("--format", "csv")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return synthetic.benchmark_export(tmp_path_factory.mktemp("whole") / "rank0.sqlite", kernels=1_000)


@pytest.fixture
def export(tmp_path, whole, monkeypatch) -> Path:
    """Return an export with some unreadable API calls."""
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    path = Path(shutil.copyfile(whole, tmp_path / "rank0.sqlite"))
    damage_rows(path, RUNTIME)
    return path


def said(ran: program.Ran) -> list[str]:
    return [line for line in ran.err.splitlines() if "damaged" in line]


@pytest.mark.campaign
def test_an_answer_of_other_tables_says_so_once_it_is_known(export, whole):
    right = program.run("kernels", whole, *CSV).out
    assert said(program.run("kernels", export, *CSV)) == []
    refused = program.run("api", export, *CSV)
    assert refused.status == 2 and RUNTIME in refused.err and refused.out == ""
    again = program.run("api", export, *CSV)  # known damage is reported once
    assert again.status == 2 and again.err.count("malformed") == 1 and again.err.count(RUNTIME) == 2
    for words in (("kernels",), ("kernels",), ("kernels", "--by", "device"), ("stats", "-r", "cuda_gpu_kern_sum")):
        ran = program.run(*words, export, *CSV)
        (line,) = said(ran)
        assert ran.status == 0 and RUNTIME in line and "export it again" in line and export.name in line
        if words == ("kernels",):
            assert ran.out == right


@pytest.mark.parametrize("command", campaign.first(2, ["overview", "api", "events", "info", "ranks"]))
def test_whatever_meets_the_damage_names_the_table(export, command):
    refused = program.run(command, export)
    assert refused.status == 2 and RUNTIME in refused.err
    (line,) = said(program.run("kernels", export, *CSV))
    assert RUNTIME in line


def test_events_of_undamaged_tables_are_listed(export, whole):
    words = ("events", "--kinds", "kernel,memory", *CSV)
    ran = program.run(*words, export)
    assert (ran.status, ran.out) == (0, program.run(*words, whole).out)


@pytest.mark.campaign
def test_it_is_known_of_this_export_alone(export, whole):
    program.run("api", export, *CSV)
    assert said(program.run("kernels", whole, *CSV)) == []
    shutil.copyfile(whole, export)
    assert said(program.run("kernels", export, *CSV)) == []


@pytest.mark.campaign
@pytest.mark.parametrize("words", [("triage", "--no-cache"), ("triage",)], ids=" ".join)
def test_the_triage_judges_with_the_rest(export, whole, words):
    words = (*words, "--set", "dominant_percent=1", "--set", "dominant_cost_percent=1")  # of kernels alone
    expected = program.rows_of(program.run(*words, whole, *CSV))
    ran = program.answered(*words, export, *CSV)
    assert ran.status == 4 and RUNTIME in ran.err, ran.err
    found = program.rows_of(ran)
    assert [row for row in found if row["Severity"] != "not checked" and "API" in row["Finding"]] == []
    (about,) = [row for row in found if row["Id"] == "damaged"]
    assert RUNTIME in about["Finding"] and "CUDA runtime and driver calls" in about["Finding"]
    for rule in (rule for rule in rules().values() if "api_calls" in rule.reads):
        (row,) = [row for row in found if row["Id"] == ", ".join(rule.finds)]
        assert row["Severity"] == "not checked" and "damaged" in row["Finding"]
    judged = [row for row in found if row["Severity"] != "not checked"]
    assert judged == [row for row in expected if row["Severity"] != "not checked"] != []
    for_people = " ".join(program.run(*words, "--not-checked", export).out.split())
    assert RUNTIME in for_people and "CUDA runtime and driver calls" in for_people


@pytest.mark.campaign
def test_what_the_triage_left_out_is_in_no_other_answer(export):
    before = program.run("overview", export, *CSV)
    program.run("triage", export, *CSV)
    after = program.run("overview", export, *CSV)
    assert (before.status, before.out) == (after.status, after.out)
    assert {program.run(name, export, *CSV).status for name in ("api", "events")} == {2}


@pytest.mark.campaign
@pytest.mark.parametrize("table", first(1, (KERNELS, "CUPTI_ACTIVITY_KIND_MEMCPY", RUNTIME)))
def test_a_triage_states_nothing_that_needs_what_could_not_be_read(whole, tmp_path, monkeypatch, table):
    """It states neither that nothing is wrong, nor how busy the GPUs are, nor where the time went."""
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    path = Path(shutil.copyfile(whole, tmp_path / "rank0.sqlite"))
    damage_rows(path, table)
    ran = program.run("triage", path)
    said = " ".join(ran.out.split())
    contents = {KERNELS: "GPU kernels", RUNTIME: "CUDA runtime and driver calls"}.get(
        table, "memory copies and memsets"
    )
    assert ran.status == 4 and f"an export is damaged (not read: {contents})" in " ".join(ran.out.splitlines()[:4])
    assert [words for words in ("No issues found", "blocked most", "Time: ", "late launches") if words in said] == []
    assert ("busy" in said.partition("not checked")[0]) == (table == RUNTIME)
    assert (f"The use of the GPUs is not judged, which needs {contents}." in said) == (table != RUNTIME)
    first = program.rows_of(program.run("triage", path, *CSV))[0]
    assert first["Id"] == "damaged" and contents in first["Finding"]


def test_a_triage_leaves_out_several_tables(export):
    damage_rows(export, KERNELS)
    ran = program.run("triage", export, "--not-checked")
    assert ran.status == 4 and RUNTIME in ran.out and KERNELS in ran.out
    assert "dominant-kernel" in ran.out.partition("Not checked")[2]


@pytest.mark.campaign
def test_a_triage_of_several_exports_leaves_the_damaged_one_out(export, whole, tmp_path):
    ran = program.run("triage", export, Path(shutil.copyfile(whole, tmp_path / "rank1.sqlite")), *CSV)
    assert ran.status == 4 and RUNTIME in ran.err
    assert [row["Finding"] for row in program.rows_of(ran) if row["Id"] == "damaged"] == []


def test_a_triage_without_names_is_refused(export):
    damage_rows(export, "StringIds")
    ran = program.run("triage", export)
    assert ran.status == 2 and "StringIds" in ran.err


def test_every_rule_says_which_tables_it_reads():
    assert frozenset().union(*(rule.reads for rule in rules().values())) <= set(tables.METADATA.tables)
