"""A table without rows has its reason on stderr and the same exit status in every format."""

import json
import re
import shlex
from pathlib import Path

import pytest
from synthetic import cpu_only_export, empty_export

FORMATS = ("table", "csv", "json", "md")


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> dict[str, Path]:
    """Return exports without any event, and with CPU events alone."""
    place = tmp_path_factory.mktemp("exports")
    return {"BARE": empty_export(place / "bare.sqlite"), "CPU": cpu_only_export(place / "cpu.sqlite")}


def assert_all_alike(run, words, status, forms=FORMATS) -> str:
    """Return the message on stderr, the same in every format; stdout is empty, or an empty list of JSON."""
    done = {form: run(*words, "--format", form) for form in forms}
    assert {form: one.status for form, one in done.items()} == dict.fromkeys(forms, status), words
    assert json.loads(done["json"].out) == []
    (said,) = {one.err for one in done.values()}
    assert said and all(line.startswith("nsystui: ") for line in said.splitlines())
    assert "md" not in forms or all(line.count("|") or not line for line in done["md"].out.splitlines())
    assert len(done["csv"].out.splitlines()) <= 1
    return said


NO_NAME = "--filter 'no such name'"
NO_ROWS = "no rows in this selection"
CASES = [
    # Every other question: tests/answers.
    ("stats -r cuda_gpu_kern_sum BARE", 3, "nsystui: cuda_gpu_kern_sum: no "),
    ("stats BARE", 3, "nsystui: the usual reports: no rows"),
    (f"stats -r osrt_sum,nvtx_sum CPU {NO_NAME}", 0, NO_ROWS),
]


@pytest.mark.parametrize(("line", "status", "reason"), CASES, ids=[line for line, *_ in CASES])
def test_an_empty_table_has_its_reason_in_every_format(run, exports, line, status, reason):
    words = [exports.get(word, word) for word in shlex.split(line)]
    # Each format can write an empty table, but without rows the command decides the output.
    said = assert_all_alike(run, words, status, FORMATS if line.startswith("stats") else ("csv", "json"))
    assert reason in said
    assert not line.startswith("stats") or said.count("\n") == 1 + line.count(",")


def test_of_several_reports_those_with_rows_come(run, exports):
    done = [run("stats", "-r", "cuda_gpu_kern_sum,osrt_sum", exports["CPU"], "--format", form) for form in FORMATS]
    assert {(one.status, one.err) for one in done} == {(0, done[0].err)}
    assert done[0].err.count("\n") == 1
    assert [block["report"] for block in done[FORMATS.index("json")].json] == ["osrt_sum"]


@pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "osrt_sum"])
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_a_file_of_a_report_is_as_empty_and_takes_the_place_of_an_old_one(run, exports, tmp_path, report, ending):
    target = tmp_path / f"table.{ending}"
    target.write_text("of yesterday")
    done = run("stats", "-r", report, exports["CPU"], "--filter", "no such name", "-o", target, "--force")
    assert done.status == (3 if report.startswith("cuda") else 0)
    assert f"nsystui: {report}: no " in done.err and f"wrote 0 rows to {target}" in done.err
    assert done.out == ""
    assert target.read_text() == "[]\n" if ending == "json" else len(target.read_text().splitlines()) <= 2


@pytest.mark.campaign
@pytest.mark.parametrize("words", [("gpu_gaps", "--gap", "900000"), ("gpu_time_util", "--threshold", "0")])
def test_a_recipe_with_a_threshold_says_how_many_there_are_below_it(run, demo_job, words):
    said = assert_all_alike(run, ("recipe", words[0], *demo_job, *words[1:]), 0)
    assert re.search(r"no rows: none of [1-9][\d,]* matches the selection", said)


@pytest.mark.parametrize("words", [(), ("--tables", "gpus"), ("--tables", "gpus,steps")])
def test_a_log_without_a_call(run, tmp_path, words):
    log = tmp_path / "other.log"
    log.write_text("hello\n")
    assert "no calls of NCCL" in assert_all_alike(run, ("nccl-log", log, *words), 3)
