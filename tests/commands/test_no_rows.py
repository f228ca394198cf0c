"""A table without rows says why in a line, is empty as its format is, and has one exit status in all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from synthetic import cpu_only_export, empty_export

from nsystui.questions.stats import all_reports

FORMATS = ("table", "csv", "json", "md")
ENDINGS = {"txt": "table", "csv": "csv", "json": "json", "md": "md"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """An export without one event."""
    return empty_export(tmp_path_factory.mktemp("bare") / "bare.sqlite")


@pytest.fixture(scope="module")
def cpu_only(tmp_path_factory) -> Path:
    return cpu_only_export(tmp_path_factory.mktemp("cpu") / "cpu.sqlite")


def assert_all_alike(run, words, status) -> str:
    """The message on stderr, the same in every format; JSON is an empty list, and nothing else is on stdout."""
    done = {form: run(*words, "--format", form) for form in FORMATS}
    assert {form: one.status for form, one in done.items()} == dict.fromkeys(FORMATS, status)
    assert json.loads(done["json"].out) == []
    (said,) = {one.err for one in done.values()}
    assert said
    assert all(line.count("|") or not line for line in done["md"].out.splitlines())
    assert len(done["csv"].out.splitlines()) <= 1
    return said


@pytest.mark.parametrize("report", [report.name for report in all_reports()])
def test_a_report_whose_tables_are_lacking(run, bare, report):
    said = assert_all_alike(run, ("stats", "-r", report, bare), 3)
    assert said.startswith(f"nsystui: {report}: no ") and said.count("\n") == 1


def test_several_reports_have_a_line_each(run, bare, cpu_only):
    said = assert_all_alike(run, ("stats", "-r", "cuda_gpu_kern_sum,mpi_event_sum", bare), 3)
    assert [line.split(":")[1].strip() for line in said.splitlines()] == ["cuda_gpu_kern_sum", "mpi_event_sum"]
    mixed = [run("stats", "-r", "cuda_gpu_kern_sum,osrt_sum", cpu_only, "--format", form) for form in FORMATS]
    assert {(one.status, one.err) for one in mixed} == {(0, mixed[0].err)}
    assert mixed[0].err.count("\n") == 1
    assert [block["report"] for block in mixed[FORMATS.index("json")].json] == ["osrt_sum"]


def test_the_usual_reports_of_an_export_without_any(run, bare):
    said = assert_all_alike(run, ("stats", bare), 3)
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words", [("-r", "osrt_sum"), ("-r", "osrt_sum", "--by-rank"), ("-r", "osrt_sum,nvtx_sum"), ()]
)
def test_reports_of_which_nothing_is_selected(run, cpu_only, words):
    said = assert_all_alike(run, ("stats", *words, cpu_only, "--filter", "no such name"), 0)
    assert "no rows in this selection" in said


@pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "osrt_sum"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_of_a_report_is_as_empty_and_takes_the_place_of_an_old_one(run, cpu_only, tmp_path, report, ending):
    target = tmp_path / f"table.{ending}"
    target.write_text("of yesterday")
    words = ("stats", "-r", report, cpu_only, "--filter", "no such name", "-o", target, "--force")
    done = run(*words)
    assert done.status == (3 if report.startswith("cuda") else 0)
    assert f"nsystui: {report}: no " in done.err
    assert f"wrote 0 rows to {target}" in done.err
    assert done.out == ""
    assert target.read_text() == "[]\n" if ending == "json" else len(target.read_text().splitlines()) <= 2


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("kernels",), 3),
        (("memory", "--sizes"), 3),
        (("osrt", "--filter", "no such name"), 0),
        (("osrt", "--instances", "no such call"), 0),
        (("events", "--filter", "no such name"), 0),
        (("nccl",), 3),
        (("nccl", "--calls"), 3),
        (("api",), 3),
        (("ranks", "--kinds"), 3),
        (("mpi", "--filter", "no such name"), 0),
    ],
)
def test_the_tables_of_other_commands(run, cpu_only, words, status):
    said = assert_all_alike(run, (words[0], cpu_only, *words[1:]), status)
    assert all(line.startswith("nsystui: ") for line in said.splitlines())


@pytest.mark.parametrize("words", [("cuda_gpu_kern_sum",), ("osrt_sum", "--filter", "no such name"), ("nccl_sum",)])
def test_recipes(run, cpu_only, words):
    assert_all_alike(run, ("recipe", words[0], cpu_only, *words[1:]), 0 if "--filter" in words else 3)


@pytest.mark.parametrize("words", [("gpu_gaps", "--gap", "900000"), ("gpu_time_util", "--threshold", "0")])
def test_a_recipe_with_a_threshold_says_how_many_there_are_below_it(run, demo_job, words):
    said = assert_all_alike(run, ("recipe", words[0], *demo_job, *words[1:]), 0)
    assert re.search(r"no rows: none of [1-9][\d,]* matches the selection", said)


@pytest.mark.parametrize("words", [(), ("--tables", "gpus"), ("--tables", "gpus,steps")])
def test_a_log_without_a_call(run, tmp_path, words):
    log = tmp_path / "other.log"
    log.write_text("hello\n")
    assert "no calls of NCCL" in assert_all_alike(run, ("nccl-log", log, *words), 3)


def test_no_rows_are_asked_for(run, demo_job):
    done = run("kernels", demo_job[0], "--top", "0", "--format", "json")
    assert (done.status, done.json, done.err) == (0, [], "")
