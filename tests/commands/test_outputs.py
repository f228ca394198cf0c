"""No command overwrites a file that it reads. A command writes all of its files, or none."""

import gzip
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest
from campaign import first
from support import fingerprint
from synthetic.demo import TrainingJob

from nsystui.questions.recipes import all_recipes

EXPORT = ["rank0.sqlite"]
COMMANDS = {
    "answer": (["kernels", *EXPORT, "-o"], ".csv"), "drawing": (["gpu", *EXPORT, "-o"], ".svg"),
    "parquet": (["events", *EXPORT, "-o"], ".parquet"),
    "stats": (["stats", "-r", "cuda_gpu_kern_sum", *EXPORT, "-o"], ".csv"),
    "recipe": (["recipe", "cuda_gpu_kern_sum", *EXPORT, "-o"], ".csv"), "triage": (["triage", *EXPORT, "-o"], ".md"),
    "baseline": (["triage", "other", "--baseline", *EXPORT, "-o"], ".md"),
    "report": (["report", *EXPORT, "-o"], ".html"), "trace": (["export", *EXPORT, "--trace"], ".json"),
    "paraver": (["export", *EXPORT, "--paraver"], ".prv"),
    "both sides": (["diff", "other", "--", *EXPORT, "-o"], ".csv"), "directory": (["kernels", ".", "-o"], ".csv"),
    "glob": (["kernels", "rank*.sqlite", "-o"], ".csv"), "packed job": (["kernels", "packed", "-o"], ".csv"),
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("inputs")
    TrainingJob(ranks=1, steps=1, layers=1, gpu_metrics=False).write(directory)
    (directory / "other").mkdir()
    shutil.copy(directory / "rank0.sqlite", directory / "other")
    (directory / "packed/reports/000001-00000000000a").mkdir(parents=True)
    (directory / "packed/kernels").mkdir(parents=True)
    (directory / "packed/kernels/part.parquet").write_text("columns")
    return directory


@pytest.fixture
def here(inputs, tmp_path, monkeypatch) -> Path:
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def linked(kind: str, path: Path, ending: str) -> str:
    name = Path(f"output{ending}")
    (name.symlink_to if kind == "symbolic" else name.hardlink_to)(path)
    return str(name)


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_link_to_an_export_is_not_written_over(here, refused, name, kind):
    words, ending = COMMANDS[name]
    path = here / ("packed/kernels/part.parquet" if "packed" in words else "rank0.sqlite")
    before = fingerprint(path)
    output = linked(kind, path, ending)
    said = refused(*words, output, "--force")
    assert output in said and "is an input" in said
    assert fingerprint(path) == before and fingerprint(Path(output)) == before


@pytest.mark.parametrize("place", ["job.pcf", "job.row", "job.nccl.cfg"])
def test_files_beside_a_trace_count(here, refused, place):
    os.link("rank0.sqlite", place)
    assert place in refused("export", *EXPORT, "--trace", "job.prv.gz", "--force")
    assert not Path("job.prv.gz").exists()


@pytest.mark.parametrize(("words", "option"), [
    (["kernels", *EXPORT, "--ncu", "input.csv"], "-o"),
    (["nccl", *EXPORT, "--nccl-log", "input.csv"], "-o"),
    (["nccl-log", "input.csv"], "-o"),
    (["kernels", *EXPORT, "--config", "input.csv"], "-o"),
    (["export", "input.json.gz"], "--trace"),
])  # fmt: skip
def test_whatever_a_command_reads_is_not_written_over(here, refused, words, option):
    name = words[-1]
    Path(name).write_bytes(gzip.compress(b"{}") if name.endswith(".gz") else b"color = true\n")
    before = fingerprint(Path(name))
    for spelling in (name, f"./{name}", f"{here}/other/../{name}"):
        assert "is an input" in refused(*words, option, spelling, "--force")
    assert fingerprint(Path(name)) == before


def test_an_export_that_a_shell_appends_to_stays(here):
    before = fingerprint(here / "rank0.sqlite")
    with open("rank0.sqlite", "ab") as export:
        done = subprocess.run(
            [sys.executable, "-m", "nsystui", "kernels", *EXPORT], stdout=export, stderr=subprocess.PIPE
        )
    assert done.returncode == 2 and b"/dev/stdout is an input" in done.stderr
    assert fingerprint(here / "rank0.sqlite") == before


def test_nothing_is_written_into_the_cache(here, refused, monkeypatch):
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(here / "cache"))
    assert "is in the cache" in refused("kernels", *EXPORT, "-o", "cache/columns/kernels.csv", "--force")


def test_other_files_are_written_over_by_force(here, run):
    for _ in range(2):
        assert run("kernels", ".", "-o", "kernels.csv", "--force").status == 0
    assert run("export", *EXPORT, "--trace", "job.json", "--force").status == 0


@pytest.mark.parametrize("words", [
    ["kernels", *EXPORT, "-o", ""],
    ["kernels", *EXPORT, "--output="],
    ["triage", *EXPORT, "-o", ""],
    ["report", *EXPORT, "-o", ""],
    ["pack", *EXPORT, "-o", ""],
    ["export", *EXPORT, "--trace", ""],
    ["export", *EXPORT, "--paraver", ""],
    ["record", "-o", "", "--", "true"],
    ["demo", "--write-only", "--directory", ""],
    ["kernels", "packed", "--dask", ""],
])  # fmt: skip
def test_an_empty_name_is_refused(here, run, words):
    before = sorted(here.iterdir())
    done = run(*words)
    assert done.status == 2 and "is empty" in done.err and done.out == ""
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize("blocked", first(1, ["job.row", "job.pcf", "job.prv", "job.states.cfg"]))
def test_a_paraver_trace_is_written_whole_or_not_at_all(here, refused, run, blocked):
    assert run("export", *EXPORT, "--trace", "job.prv").status == 0
    before = {path.name: path.read_bytes() for path in sorted(here.glob("job.*"))}
    Path(blocked).unlink()
    Path(blocked).mkdir()
    assert f"{blocked} is a directory" in refused(
        "export", *EXPORT, "--trace", "job.prv", "--kinds", "kernel", "--force"
    )
    Path(blocked).rmdir()
    del before[blocked]
    assert {path.name: path.read_bytes() for path in sorted(here.glob("job.*"))} == before
    assert [path.name for path in here.iterdir() if path.name.startswith(".")] == []


@pytest.mark.campaign
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("name", first(1, ["job.pcf", "job.row", "job.states.cfg"]))
def test_a_name_that_cannot_be_taken_leaves_the_other_files_as_they_were(here, run, monkeypatch, name, is_there):
    if is_there:
        run("export", *EXPORT, "--trace", "job.prv", "--kinds", "kernel")
    before = {path.name: path.read_bytes() for path in here.glob("job.*")}
    replace = Path.replace

    def refusing(path: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise PermissionError(1, "Operation not permitted")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refusing)
        assert run("export", *EXPORT, "--trace", "job.prv", "--force").status == 2
    assert {path.name: path.read_bytes() for path in here.glob("job.*")} == before
    assert [path.name for path in here.iterdir() if path.name.startswith(".")] == []


def test_what_a_killed_program_left_goes_with_the_next_file_there_and_others_stay(here, run):
    left = [here / ".partial-00000000-1-abcdef01", here / ".partial-mine", here / ".nsystui-notes.tmp"]
    for path in left:
        path.write_text("half")
        os.utime(path, (0, 0))
    assert run("kernels", *EXPORT, "-o", "kernels.csv").status == 0
    assert [path.exists() for path in left] == [False, True, True]


@pytest.mark.parametrize(
    "words", first(1, [["kernels", "-o"], ["triage", "-o"], ["report", "-o"], ["export", "--trace"]])
)
@pytest.mark.parametrize("ending", [".csv", ".md", ".html", ".prv", ".json.gz"])
def test_a_name_that_is_too_long_is_refused(here, run, words, ending):
    done = run(words[0], *EXPORT, words[1], "x" * 256 + ending)
    assert done.status == 2 and done.err.count("\n") <= 3
    assert not list(here.glob("x*"))


@pytest.mark.campaign
def test_what_a_killed_pack_left_goes_where_nothing_is_left_to_pack(here, run):
    assert run("pack", *EXPORT, "-o", "job").status == 0
    left = here / "job/.partial-00000000-1-abcdef01"
    left.mkdir()
    os.utime(left, (0, 0))
    assert run("pack", *EXPORT, "-o", "job").status == 0
    assert not left.exists()


class TestExport:
    @pytest.mark.campaign
    @pytest.mark.parametrize(
        ("flag", "name"), [("--trace", "job.json.gz"), ("--paraver", "job.prv"), ("--trace", "j.prv")]
    )
    def test_it_writes_once_and_says_how_much_on_which_clock(self, run, refused, demo_job, tmp_path, flag, name):
        words = ["export", flag, tmp_path / name, *demo_job[:2]]
        done = run(*words)
        assert (done.status, done.out) == (0, "")
        assert "events to" in done.err and "clock: UTC, refined by" in done.err
        before = (tmp_path / name).read_bytes()
        assert "already exists" in refused(*words)
        assert run(*words, "--force").status == 0
        assert (tmp_path / name).read_bytes() == before

    def test_a_selection_of_nothing_is_told_and_writes_nothing(self, run, demo_job, tmp_path):
        done = run("export", "--trace", tmp_path / "job.json", demo_job[0], "--filter", "no_such_name")
        assert done.status == 3 and "the selection has no events" in done.err
        assert not list(tmp_path.iterdir())


class TestNcu:
    def test_a_row_of_the_event_list_is_the_launch_that_it_says(self, run, demo_job):
        with closing(sqlite3.connect(f"{demo_job[0].as_uri()}?mode=ro", uri=True)) as connection:
            starts = connection.execute("SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start").fetchall()
        events = run("events", demo_job[0], "--kinds", "kernel,nccl", "--format", "csv").table
        assert len(events) == len(starts)
        (found,) = run("ncu", demo_job[0], "--event", events[7]["Row"], "--format", "json").json
        function = events[7]["Name"].partition("<")[0].rpartition("::")[2]
        assert function in found["command"] and found["selected"] == 1


SVG = "{http://www.w3.org/2000/svg}"


def titles(text: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(text).iter(f"{SVG}title")]


@pytest.mark.campaign
def test_bars_of_the_budget_are_the_numbers_of_its_table(run, demo_job):
    rows = run("budget", *demo_job, "--format", "json").json
    drawn: dict[str, dict[str, float]] = defaultdict(dict)
    for title in titles(run("budget", *demo_job, "--format", "svg").out):
        if match := re.fullmatch(r"(rank \d+): (.*) ([\d.]+) %", title):
            drawn[match[1]][match[2]] = float(match[3])
    for row in rows:
        own = drawn[f"rank {row['rank']}"]
        assert own["compute"] == pytest.approx(row["compute_percent"], abs=0.05)
        assert own["exposed NCCL"] == pytest.approx(row["exposed_nccl_percent"], abs=0.05)
        assert sum(own.values()) == pytest.approx(100, abs=0.5)


@pytest.mark.campaign
def test_points_of_the_bandwidth_are_the_medians_of_the_sizes(run, demo_job):
    from nsystui.base.answer import Unit
    from nsystui.base.units import format_value

    rows = run("nccl", *demo_job, "--sizes", "exact", "--format", "json").json
    expected = set()
    for row in rows:
        rate = row["busbw_without_wait_bytes_per_s"] or row["busbw_bytes_per_s"]
        if rate is not None:
            size = format_value(Unit.BYTES, row["message_size_bytes"])
            expected.add((row["collective"], size, float(format_value(Unit.RATE, rate).split()[0])))
    drawn = set()
    for title in titles(run("nccl", *demo_job, "--format", "svg").out):
        if match := re.fullmatch(r"(\w+), (.*): ([\d.]+) \w+/s", title):
            drawn.add((match[1], match[2], float(match[3])))
    assert len(drawn) == len(expected)
    for one in drawn:
        assert [other[2] for other in expected if other[:2] == one[:2]] == [pytest.approx(one[2], rel=1e-3)]


def test_a_drawing_never_replaces_a_file_unasked(run, demo_job, tmp_path):
    target = tmp_path / "x.svg"
    target.write_text("mine")
    assert run("gpu", *demo_job, "-o", target).status == 2
    assert target.read_text() == "mine"
    assert run("gpu", *demo_job, "-o", target, "--force").status == 0
    assert target.read_text().startswith("<svg")


@pytest.mark.parametrize("words", [[], ["--list-recipes"]])
def test_without_a_name_it_lists_them_all_with_what_they_answer(run, words):
    done = run("recipe", *words)
    assert (done.status, done.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.out.splitlines()]
    assert lines == [[recipe.name, recipe.help] for recipe in all_recipes()]


def test_a_drawing_is_ascii_where_nothing_else_can_be_shown(run, demo_job, monkeypatch):
    monkeypatch.setattr("nsystui.output.files.wants_ascii", lambda *_: True)
    out = run("recipe", "nccl_gpu_time_util_map", demo_job[0]).out
    assert out.isascii() and "#" in out
