"""``nsystui diff``: how the sides are named, which tables are given, and what is refused."""

import csv
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from support import shared
from synthetic import cpu_only_export
from synthetic.demo import TrainingJob

from nsystui.commands.diff import prepared

TABLES = ["summary", "kernels", "families", "nvtx", "nccl", "memory", "api", "functions", "steps"]


@pytest.fixture(scope="session")
def other_job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return TrainingJob(ranks=2, steps=3, layers=2, straggler=None).write(tmp_path_factory.mktemp("other"))


def blocks(text: str) -> dict[str, list[dict[str, Any]]]:
    return {block["table"]: block["rows"] for block in json.loads(text)}


@pytest.fixture
def diff(run):
    """Runs ``nsystui diff``: its exit status, its output and its remarks."""

    def diff(*words):
        done = run("diff", *words)
        return done.status, done.out, done.err

    return diff


def test_the_dashes_between_the_jobs_may_be_followed_by_options():
    words = ["a", "b", "--top", "3", "--", "c", "d", "--format", "csv"]
    assert prepared(words) == ["a", "b", "--top", "3", "--against", "c", "d", "--format", "csv"]
    assert prepared(["a", "--ranks-a", "0"]) == ["a", "--ranks-a", "0"]


@pytest.mark.campaign
def test_two_jobs_give_every_table(demo_job, other_job, diff):
    status, out, err = diff(*demo_job, "--", *other_job, "--format", "json")
    assert status == 0
    found = blocks(out)
    assert list(found) == TABLES and all(found.values())
    assert "per rank: A has 4 ranks with a GPU, B 2" in err
    assert err.count("per rank: A has 4 ranks with a GPU") == 1


@pytest.mark.campaign
def test_two_groups_of_one_job_are_named_by_their_ranks(demo_job, diff):
    status, out, _ = diff(*demo_job, "--ranks-a", "0-1", "--ranks-b", "2-3")
    assert status == 0
    assert out.startswith("B is ")  # the verdict
    assert "\n# what changed: A is ranks 0-1, B is ranks 2-3\n" in out
    headings = [line for line in out.splitlines() if line.startswith("# ")]
    assert len(headings) == len(TABLES)
    assert any("kernels by name (10 of " in line for line in headings)


def test_a_text_says_once_who_a_and_b_are_and_has_smart_names(demo_job, diff):
    _, out, _ = diff(*demo_job, "--ranks-a", "0", "--ranks-b", "2", "--tables", "kernels,nvtx,memory")
    assert out.count("A is rank 0, B is rank 2") == 1
    assert "flash_fwd<bfloat16_t>" in out and "flash_fwd_kernel<" not in out
    _, out, _ = diff(*demo_job, "--ranks-a", "0", "--ranks-b", "2", "--tables", "kernels", "--names", "full")
    assert "flash_fwd_kernel<" in out


@pytest.mark.campaign
def test_a_text_that_is_read_on_a_terminal_through_a_pipe_has_its_width(demo_job):
    """As ``nsystui diff … | less`` does: standard output is a pipe, standard error the terminal."""
    terminal, own = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-m", "nsystui", "diff", *demo_job[:2], "--ranks-a", "0", "--ranks-b", "1"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=own, text=True, check=True, timeout=120)
    finally:
        os.close(own)
        os.close(terminal)
    tables = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(tables) > 40 and max(map(len, tables)) <= 100


@pytest.mark.campaign
def test_one_rank_beside_itself_in_two_windows(demo_job, diff):
    words = (demo_job[0], "--time-a", "0:300ms", "--time-b", "300ms:", "--tables", "summary", "--format", "json")
    status, out, _ = diff(*words)
    assert status == 0
    spans = next(row for row in json.loads(out) if row["what"] == "time span")
    assert spans["a"] == 300_000_000 != spans["b"]


@pytest.mark.campaign
def test_chosen_tables_come_sorted_and_cut(demo_job, other_job, diff):
    words = (*demo_job, "--", *other_job, "--tables", "memory,kernels", "--names", "short", "--format", "json")
    _, out, _ = diff(*words, "--sort", "by_duration_ns", "--top", "3")
    found = blocks(out)
    assert list(found) == ["kernels", "memory"] and len(found["kernels"]) == 3
    sizes = [abs(row["by_duration_ns"]) for row in found["kernels"]]
    assert sizes == sorted(sizes, reverse=True)


def test_the_call_tree_of_two_jobs_is_a_table_that_is_asked_for(demo_job, other_job, diff):
    status, out, err = diff(*demo_job, "--", *other_job, "--tables", "calltree", "--format", "csv")
    found = list(csv.DictReader(out.splitlines()))
    assert status == 0 and {"Total Difference per Step (ns)", "Status", "Parent"} <= set(found[0])
    assert "times are per step (A has" in err


@pytest.mark.campaign
def test_csv_has_plain_values(demo_job, diff):
    _, out, _ = diff(*demo_job, "--ranks-a", "0", "--ranks-b", "2", "--tables", "summary", "--format", "csv")
    found = {row["What"].strip(): row for row in csv.DictReader(out.splitlines())}
    assert found["GPU busy"]["Unit"] == "%" and 0 < float(found["GPU busy"]["A"]) < 100
    assert int(found["kernels launched"]["Difference"]) == 0


@pytest.mark.campaign
def test_each_table_gets_a_file(demo_job, other_job, tmp_path, diff):
    target = tmp_path / "out.csv"
    status, _, _ = diff(demo_job[0], "--", other_job[0], "-o", target)
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"out_{name}.csv" for name in TABLES)
    status, _, _ = diff(demo_job[0], "--", other_job[0], "--tables", "summary", "-o", target)
    assert status == 0 and target.exists()


@pytest.mark.campaign
def test_the_jobs_are_called_by_their_folders_where_their_files_are_alike(demo_job, other_job, diff):
    _, out, _ = diff(demo_job[0], "--", other_job[0], "--tables", "summary")
    assert f"A is {demo_job[0]}, B is {other_job[0]}" in next(
        line for line in out.splitlines() if line.startswith("# ")
    )


def test_filters_hold_for_both_sides(demo_job, other_job, diff):
    words = ("--filter", "nccl", "--tables", "kernels", "--format", "json")
    _, out, _ = diff(*demo_job, "--", *other_job, *words)
    assert out and all("nccl" in row["name"] for row in json.loads(out))


def test_a_table_that_neither_side_has_is_missing_data(tmp_path, diff):
    path = cpu_only_export(tmp_path / "cpu.sqlite")
    status, _, err = diff(path, "--", path, "--tables", "kernels")
    assert status == 3 and "no GPU kernels" in err


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "did you mean `nsystui diff "),
        (["--ranks-a", "0", "--ranks-b", "9"], "rank 9 is not open"),
        (["--ranks-a", "0", "--tables", "kernals"], "the tables are summary, kernels"),
        (["--ranks-a", "0", "--tables", ""], "the tables are summary, kernels"),
        (["--ranks-a", "0", "--sort", "nothing"], "--sort nothing: not a column of kernels"),
        (["--ranks-a", "0", "--sort", "gpu_difference"], "choose with --tables nvtx"),
        (["--time-a", "5"], "write A:B"),
        (["--ranks-a", "rank(.)"], "ranks 'rank(.)': write numbers and spans"),
        (["--", "/no/such/file.sqlite"], "no such file"),
        (["--ranks-a", "0", "--screen"], "terminal"),
    ],
)
def test_what_makes_no_sense_is_one_line(demo_job, diff, words, reason):
    status, out, err = diff(*demo_job[:2], *words)
    assert status == 2 and not out
    assert reason in err and "Traceback" not in err


@pytest.mark.campaign
def test_before_and_after_of_a_real_job(diff):
    before, after = shared("h100-2rank-moe-before", "h100-2rank-moe-after")
    status, out, err = diff(before, "--", after, "--names", "short", "--top", "2")
    assert status == 0
    assert "A is h100-2rank-moe-before, B is h100-2rank-moe-after" in out
    assert "flash_fwd_kernel" in out and "AlltoAll" in out
    assert "B launched 10.5 % fewer kernels in about the same time" in err
