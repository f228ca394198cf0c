"""An answer from some of the files or tables is printed first, stderr names the missing parts, and the status is 4."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic
from campaign import first
from support import damage_rows

from nsystui.questions.triage import rules

KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
JSON = ("--format", "json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return synthetic.benchmark_export(tmp_path_factory.mktemp("whole") / "rank0.sqlite", kernels=300)


@pytest.fixture
def damaged(tmp_path, whole) -> Path:
    """Return an export with some unreadable kernels."""
    path = Path(shutil.copyfile(whole, tmp_path / "damaged.sqlite"))
    damage_rows(path, KERNELS)
    return path


@pytest.mark.campaign
@pytest.mark.parametrize(
    "words",
    first(2, ["kernels", "triage", "info", "stats -r cuda_gpu_kern_sum", "recipe", "ncu", "export --trace -"]),
    ids=lambda words: words.partition(" ")[0],
)
def test_a_file_that_is_missing_among_others(run, whole, tmp_path, words):
    command, *options = words.split()
    files = [*(["cuda_gpu_kern_sum"] if command == "recipe" else []), whole]
    alone = run(command, *files, *options)
    done = run(command, *files, tmp_path / "rank1.sqlite", *options)
    assert (alone.status, done.status) == (0, 4)
    if command == "triage":
        assert f"Leftout:{tmp_path}" in "".join(done.out.split()) and "No issues" not in done.out
        (row, *_) = json.loads(run("triage", *files, tmp_path / "rank1.sqlite", *JSON).out)
        assert row["id"] == "left-out" and f"{tmp_path / 'rank1.sqlite'}: no such file" in row["sentence"]
    else:
        assert done.out == alone.out != ""
    assert done.err.splitlines()[-1].startswith(f"nsystui: {tmp_path / 'rank1.sqlite'}: no such file")
    assert done.err.count("no such file") == 1
    allowed = run(command, *files, tmp_path / "rank1.sqlite", *options, "--allow-missing")
    assert (allowed.status, allowed.out, allowed.err) == (0, done.out, done.err)


@pytest.mark.campaign
def test_a_directory_without_exports_is_missing_and_a_file_that_is_none_is_not(run, whole, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.sqlite").write_text("no export")
    (tmp_path / "link.sqlite").symlink_to("nowhere")
    for name, allowed in {"empty": 0, "link.sqlite": 0, "rank*.x": 0, "text.sqlite": 4}.items():
        assert run("kernels", whole, tmp_path / name).status == 4, name
        done = run("kernels", whole, tmp_path / name, "--allow-missing")
        assert done.status == allowed and str(tmp_path / name) in done.err, name
    both = run("kernels", whole, tmp_path / "empty", tmp_path / "text.sqlite", "--allow-missing")
    assert both.status == 4 and both.err.index("empty") < both.err.index("text.sqlite")


def test_files_that_are_all_missing_are_wrong_usage(refused, tmp_path):
    there = f"no such file (see what is there: ls -l {tmp_path})"
    for command in ("kernels", "triage", "nccl-log"):
        assert there in refused(command, tmp_path / "a", tmp_path / "gone/b", "--allow-missing", lines=3)
    assert there in refused(tmp_path / "gone/b")


@pytest.mark.parametrize(
    "words", first(1, ["diff --tables kernels WHOLE -- NONE WHOLE", "triage WHOLE --baseline WHOLE NONE"])
)
def test_a_file_of_the_other_job_counts_too(run, whole, tmp_path, words):
    command, *files = words.replace("NONE", str(tmp_path / "none.sqlite")).replace("WHOLE", str(whole)).split()
    assert run(command, *files).status == 4
    assert run(command, "--allow-missing", *files).status == 0


@pytest.mark.campaign
def test_it_outranks_a_finding(run, whole, tmp_path):
    words = ("triage", "--fail-on", "warning", whole)
    assert run(*words).status == 1
    assert run(*words, tmp_path / "none").status == 4
    assert run(*words, tmp_path / "none", "--allow-missing").status == 1


def test_lacking_data_is_no_part_of_an_answer(run, whole, tmp_path):
    assert run("mpi", whole, tmp_path / "none").status == 3


def test_a_log_that_is_missing_or_cut_among_others(run, tmp_path):
    log = Path(__file__).parents[1] / "answers/nccl.log"
    alone = run("nccl-log", log, *JSON)
    done = run("nccl-log", log, tmp_path / "none.log", *JSON)
    assert (done.status, done.out) == (4, alone.out) and "none.log: no such file" in done.err
    assert run("nccl-log", log, tmp_path / "none.log", "--allow-missing").status == 0


@pytest.mark.parametrize(
    "command", first(3, ["kernels", "overview", "stats -r cuda_gpu_kern_sum,cuda_api_sum", "ncu", "gaps"])
)
def test_a_damaged_table_of_one_of_several_exports(run, whole, damaged, command):
    for _ in range(2):  # with columns in the cache, and an answer that may be remembered
        done = run(*command.split(), whole, damaged, *JSON, "--allow-missing")
        assert done.status == 4 and done.out == run(*command.split(), whole, *JSON).out
        assert done.err.splitlines()[-1].startswith(f"nsystui: {damaged}: ") and KERNELS in done.err


def test_an_answer_that_needs_no_damaged_table_is_whole(run, whole, damaged):
    assert run("api", damaged, *JSON).status == 0


def test_a_triage_without_a_damaged_table(run, whole, damaged, tmp_path):
    done = run("triage", damaged, "--allow-missing")
    assert done.status == 4 and KERNELS in done.err and "an export is damaged" in done.out
    against = run("triage", whole, "--baseline", damaged)
    assert against.status == 4 and KERNELS in against.err and "an export is damaged" in against.out


@pytest.fixture
def failing_rule(tmp_path, monkeypatch) -> str:
    """Replace all rules by a rule that fails; return its name."""

    def judged(self, case):
        if self is chosen:
            raise KeyError("start")
        return []

    chosen = next(iter(rules.rules().values()))
    monkeypatch.setattr(type(chosen), "__call__", judged)
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    return ", ".join(chosen.finds)


@pytest.mark.campaign
@pytest.mark.parametrize("options", first(1, ["--fail-on error", "", "--baseline WHOLE"]))
def test_a_rule_that_fails_is_named_in_the_headline(run, whole, failing_rule, options):
    done = run("triage", whole, *options.replace("WHOLE", str(whole)).split())
    assert done.status == 4 and f"{failing_rule} failed" in " ".join(done.out.split()), done.out
    assert f"nsystui: {failing_rule}: the rule failed (KeyError: 'start')" in done.err


@pytest.mark.campaign
def test_a_report_with_a_rule_that_fails(run, whole, tmp_path, failing_rule):
    page = tmp_path / "report.html"
    done = run("report", whole, "-o", page)
    assert done.status == 4 and f"{failing_rule} failed" in page.read_text() and "the rule failed" in done.err


@pytest.mark.campaign
@pytest.mark.parametrize("stderr", ["/dev/full", "closed"])
def test_a_status_stays_true_where_stderr_cannot_be_written(whole, tmp_path, stderr):
    redirect = "2>&-" if stderr == "closed" else f"2>{stderr}"
    outcomes = {
        f"mpi {whole} --format json": 3, "kernels none.sqlite": 2, f"kernels {whole} none.sqlite": 4,
        "info --no-such": 2,
    }  # fmt: skip
    script = "; ".join(f"{sys.executable} -m nsystui {words} {redirect} >{number}; echo $?"
                       for number, words in enumerate(outcomes))  # fmt: skip
    ran = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert list(map(int, ran.stdout.split())) == list(outcomes.values())
    assert [(tmp_path / number).read_text() for number in "013"] == ["[]\n", "", ""]


@pytest.mark.parametrize(("words", "near"), {
    "api --instances cudaMemcpyAsinc": "cudaMemcpyAsync\n",
    "kernels --instances nvjet": "nvjet_tst_",
    "kernels --instances NVJET --names full --streams 99": "nvjet_tst_",
    "kernels --kernel nvjet": "nvjet_tst_",
    "ncu --kernel indexSelectLargIndex": "indexSelectLargeIndex<",
    "ncu --filter /indexselectLargeIndexes$/": "indexSelectLargeIndex<",
}.items())  # fmt: skip
def test_a_name_that_does_not_exist_is_refused_with_the_nearest(refused, whole, words, near):
    command, *options = words.split()
    said = refused(command, whole, *options, lines=1)
    assert near in re.split("no such name; the nearest (?:is|are) ", said)[1].partition(", ")[0] + ", "
    assert "no such name; none is similar; without --" in refused(command, whole, options[0], "qqq", lines=1)


def test_a_name_outside_of_the_selection_exists(run, whole):
    kernel = run("kernels", whole, *JSON, "--top", "1").json[0]["name"]
    for words in (["kernels", "--instances", kernel], ["ncu", "--kernel", kernel]):
        assert run(*words, whole, "--time", "0:1ns").status == 0
        assert run(*words, whole, "--streams", "99").status == 0


@pytest.mark.campaign
@pytest.mark.parametrize("form", first(1, ["smart", "full", "short"]))
def test_instances_and_its_alias_name_one_kernel_in_any_form(run, whole, form):
    for row in run("kernels", whole, *JSON, "--names", form, "--top", "2").json:
        name = row["smart" if form == "smart" else "name"]
        for flag in ("--instances", "--kernel"):
            assert len(run("kernels", whole, flag, name, *JSON).json) == row["count"]
            assert sum(line["launches"] for line in run("ncu", whole, flag, name, *JSON).json) == row["count"]


@pytest.mark.parametrize(("number", "lines"), [(3, 4), (5, 1)])
def test_many_files_with_the_same_problem_are_one_line(run, tmp_path, number, lines):
    for rank in range(number):
        (tmp_path / f"rank{rank}.sqlite").write_text("no export")
    done = run("kernels", tmp_path)
    assert done.status == 2 and len(done.err.splitlines()) == lines
    assert "rank0.sqlite" in done.err and "no export could be opened" in done.err
