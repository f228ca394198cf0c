"""Commands in a script: data on stdout, messages on stderr, and an exit status for each outcome."""

import fcntl
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
import synthetic
from disks import small_disk
from support import native, native_count
from synthetic import two_process_export

from nsystui.commands import commands
from nsystui.commands.diff import prepared


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell, in which ``nsystui`` is this program; a pipe has the status of its first command."""
    program = f"{shlex.quote(sys.executable)} -m nsystui"
    return subprocess.run(
        ["bash", "-c", line.replace("nsystui", program, 1) + "; exit ${PIPESTATUS[0]}"], capture_output=True,
        text=True, check=False, stdin=subprocess.DEVNULL, env={**os.environ, **environment},
    )  # fmt: skip


def instances(rows) -> int:
    return sum(int(row["Instances"]) for row in rows)


@pytest.mark.campaign
class TestFlags:
    def test_several_files_are_one_job_of_which_ranks_are_chosen(self, table, refused, demo_job):
        found = table("kernels", *demo_job, "--by", "rank")
        by_rank = [instances(row for row in found if row["Rank"] == str(rank)) for rank in range(4)]
        assert by_rank == [native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL") for path in demo_job]
        assert {row["Rank"] for row in table("kernels", *demo_job, "--by", "rank", "--ranks", "1,3")} == {"1", "3"}
        assert "rank 4 is not open: the ranks are 0 to 3" in refused("kernels", *demo_job, "--ranks", "2-5")

    def test_windows_of_which_an_open_one_is_everything(self, run, table, demo_job):
        count = native_count(demo_job[0], "CUPTI_ACTIVITY_KIND_KERNEL", "start < 500000000")
        assert instances(table("kernels", demo_job[0], "--time", ":500ms")) == count > 0
        for command in ("events", "kernels"):
            whole = run(command, demo_job[0], "--format", "csv")
            assert run(command, demo_job[0], "--format", "csv", "--time", ":").out == whole.out

    @pytest.mark.parametrize("command", ["kernels", "events", "overview", "nvtx", "nccl"])
    def test_neither_threads_nor_the_cache_change_anything(self, run, demo_job, command):
        words = [command, demo_job[1], "--format", "csv"]
        alone = run(*words, "--no-cache", "--jobs", "1").out
        assert run(*words, "--no-cache", "--jobs", "4").out == run(*words).out == alone


WRONG = {"an ending of no format": ["-o", "kernels.xlsx"], "two formats": ["-o", "kernels.csv", "--format", "json"]}
"""Refused commands that ``tests/answers/refused.txt`` cannot record, or that could leave a file."""


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_wrong_usage_is_one_line_and_status_2(refused, demo_job, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert refused("kernels", demo_job[0], *words, lines=1).startswith("nsystui: ")
    assert list(tmp_path.iterdir()) == []


class TestFiles:
    def test_a_recording_is_answered_with_its_importer_and_never_exported(self, refused, tmp_path, fake_nsys):
        fake_nsys(f"touch {shlex.quote(str(tmp_path / 'asked'))}; exit 1")
        recording = tmp_path / "results/rank0.qdstrm"
        recording.parent.mkdir()
        recording.write_bytes(b"stream")
        assert f"QdstrmImporter -i {recording} " in refused("kernels", tmp_path / "results", "--convert", lines=2)
        assert not (tmp_path / "asked").exists()

    def test_names_do_not_reach_the_terminal_as_they_are(self, refused, tmp_path):
        path = tmp_path / "evil\x1b[2J\nname\udce9.sqlite"
        path.write_text("no export")
        said = refused("kernels", path, lines=2)
        assert "\x1b" not in said
        said.encode()

    def test_reports_are_converted_when_asked(self, table, tmp_path, monkeypatch, fake_nsys):
        made = synthetic.two_process_export(tmp_path / "made.sqlite")
        fake_nsys(f'cp {shlex.quote(str(made))} "$out"')
        (tmp_path / "results").mkdir()
        (tmp_path / "results/run_rank3.nsys-rep").write_bytes(b"QUADD")
        monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
        assert instances(table("kernels", tmp_path / "results", "--convert")) == 200
        assert os.listdir(tmp_path / "results") == ["run_rank3.nsys-rep"]


class TestOutput:
    @pytest.mark.parametrize("ending", ["csv", "json", "md", "txt", "parquet"])
    def test_the_ending_decides_and_stdout_stays_empty(self, run, demo_job, tmp_path, ending):
        target = tmp_path / f"kernels.{ending}"
        done = run("kernels", demo_job[0], "-o", target)
        assert (done.status, done.out) == (0, "")
        rows = len(run("kernels", demo_job[0], "--format", "csv").table)
        assert f"wrote {rows} rows" in done.err
        if ending == "parquet":
            assert len(duckdb.read_parquet(str(target)).fetchall()) == rows
        else:
            form = "table" if ending == "txt" else ending
            assert target.read_text(encoding="utf-8") == run("kernels", demo_job[0], "--format", form).out

    def test_a_file_that_is_there_is_refused_and_stays(self, run, refused, demo_job, tmp_path):
        target = tmp_path / "kernels.csv"
        target.write_text("mine")
        said = refused("kernels", demo_job[0], "-o", target)
        assert "already exists" in said and "--force" in said
        assert target.read_text() == "mine"
        assert run("kernels", demo_job[0], "-o", target, "--force").status == 0
        assert target.read_text().startswith("Time (%)")
        assert os.listdir(tmp_path) == ["kernels.csv"]

    def test_a_dash_is_stdout(self, run, demo_job):
        words = ["kernels", demo_job[0], "--format", "json"]
        assert run(*words, "-o", "-").out == run(*words).out


class TestShell:
    @pytest.mark.parametrize("words", ["--help", "stats --list-reports"])
    def test_help_into_a_closed_pipe_is_quiet_too(self, words):
        done = shell(f"nsystui {words} | true")
        assert done.stderr == ""
        assert done.returncode in (0, 141)

    def test_help_on_a_terminal_without_utf8(self):
        done = shell("nsystui --help", PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()
        assert "usage: nsystui [OPTIONS] FILE" in done.stdout

    def test_a_full_device_is_said(self, demo_job):
        if not os.path.exists("/dev/full"):
            pytest.skip("this system has no /dev/full")
        done = shell(f"nsystui kernels {demo_job[0]} > /dev/full")
        assert done.returncode == 2
        assert done.stderr.startswith("nsystui: cannot write to standard output")

    def test_interrupting_is_one_line_and_130(self, run, demo_job, monkeypatch):
        def stop(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr("nsystui.commands.arguments.open_job", stop)
        done = run("kernels", "--no-cache", demo_job[0])
        assert (done.status, done.out, done.err) == (130, "", "nsystui: interrupted\n")


class TestWords:
    def test_no_word_is_help(self, run):
        assert run().out == run("--help").out == run("-h").out
        assert "Each command has --help" in run().out
        assert all(f"  {command} " in run().out for command in commands())

    @pytest.mark.parametrize("columns", [70, 80, 200])
    def test_the_help_fits_the_terminal(self, run, monkeypatch, columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = run("--help").out.splitlines()
        assert max(map(len, lines)) <= columns and "start here:" in lines

    @pytest.mark.parametrize("columns", [80, 116])
    def test_the_help_of_a_command_fills_its_lines(self, run, monkeypatch, columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        for name in commands():
            text = run(name, "--help").out
            lines = text.partition("\n\n")[2].partition("\n\n")[0].splitlines()
            assert max(map(len, text.splitlines())) <= columns
            assert all(len(line + next_line.split()[0]) > columns - 2 for line, next_line in pairwise(lines)), lines

    @pytest.mark.campaign
    def test_compare_is_diff_and_two_files_are_its_sides(self, run, demo_job):
        summary = ("--tables", "kernels", "--no-cache")
        first, second = demo_job[:2]
        told = [
            run(*words, *summary).out
            for words in (("diff", first, "--against", second), ("diff", first, second), ("compare", first, second))
        ]
        assert told[0] and told[0] == told[1] == told[2]

    @pytest.mark.parametrize("heading", ["avg ms", "Avg (ns)", "AVG", "avg_ns", "avg us", "avg µs"])
    def test_rows_are_sorted_by_a_heading_with_or_without_its_unit(self, run, demo_job, heading):
        by_key = run("kernels", demo_job[0], "--sort", "avg_ns").out
        assert run("kernels", demo_job[0], "--sort", heading).out == by_key != run("kernels", demo_job[0]).out

    def test_the_version(self, run):
        assert run("--version").out == run("-V").out
        assert run("--version").out.startswith("nsystui 0.")

    def test_a_value_before_two_hyphens_is_no_job(self, refused, demo_job):
        """``--`` ends the options if no file precedes it."""
        assert "terminal" in refused("--theme", "dark", "--", demo_job[0])

    def test_a_file_called_like_a_command_or_without_ending_is_one(self, run, table, demo_job, tmp_path, monkeypatch):
        for name in ("kernels", "rank0"):
            (tmp_path / name).write_text("a list of kernels")
        monkeypatch.chdir(tmp_path)
        assert table("kernels", demo_job[0])
        assert run("kernels", "./kernels").err.startswith("nsystui: kernels: not a SQLite file")
        assert "terminal" in run("rank0").err


ENDED_EARLY = """
import threading, time, duckdb
from nsystui.cli import main
threading.Thread(target=lambda held: time.sleep(60), args=(duckdb.connect(),), daemon=True).start()
raise SystemExit(main(["no-such-file.sqlite"]))
"""


def test_nothing_is_said_of_what_threads_still_hold_at_the_end():
    done = subprocess.run([sys.executable, "-c", ENDED_EARLY], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("nsystui: ")


def test_a_window_beyond_the_sessions_is_refused_and_one_before_the_first_event_is_not(run, refused, tmp_path):
    export = two_process_export(tmp_path / "rank0.sqlite")
    said = refused("kernels", export, "--time", "900s:901s", lines=1)
    assert said.startswith("nsystui: nothing was recorded from 900.000 s to 901.000 s, only from 0.000")
    assert run("kernels", export, "--time", "0:1us").status == 0


TABLES = ["summary", "kernels", "families", "nvtx", "nccl", "memory", "api", "steps"]


def test_the_dashes_between_the_jobs_may_be_followed_by_options():
    words = ["a", "b", "--top", "3", "--", "c", "d", "--format", "csv"]
    assert prepared(words) == ["a", "b", "--top", "3", "--against", "c", "d", "--format", "csv"]
    assert prepared(["a", "--ranks-a", "0"]) == ["a", "--ranks-a", "0"]


@pytest.mark.campaign
def test_a_text_that_is_read_on_a_terminal_through_a_pipe_has_its_width(demo_job):
    """As with ``nsystui diff … | less``: stdout is a pipe, stderr the terminal."""
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
def test_each_table_gets_a_file(run, demo_job, tmp_path):
    (tmp_path / "out").mkdir()
    target, jobs = tmp_path / "out/out.csv", (demo_job[0], "--", two_process_export(tmp_path / "other.sqlite"))
    assert run("diff", *jobs, "-o", target).status == 0
    assert sorted(path.name for path in target.parent.iterdir()) == sorted(f"out_{name}.csv" for name in TABLES)
    assert run("diff", *jobs, "--tables", "summary", "-o", target).status == 0 and target.exists()


@pytest.fixture
def played(tmp_path):
    """Return a function that runs a script with replacements of nsys, srun and nsystui, and returns their calls."""
    log = tmp_path / "log"
    for name, then in (("nsys", ""), ("nsystui", ""), ("torchrun", ""), ("srun", 'exec "$@"'), ("train", "")):
        program = tmp_path / name
        body = f'printf "%s\\n" {name} "$@" END >> {shlex.quote(str(log))}\n' if name != "srun" else ""
        program.write_text(f"#!/bin/bash\n{body}{then}\n")
        program.chmod(0o755)

    def play(script: str, rank: int = 0) -> list[list[str]]:
        log.write_text("")
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_PROCID": str(rank)}
        subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, env=environment, check=True, timeout=60)
        return [call.split("\n")[:-1] for call in log.read_text().split("END\n") if call]

    return play


def test_the_shell_runs_what_is_meant(run, played):
    done = run(
        "record", "--nsys-version", "2025.3", "--why-idle", "--nvtx-range", "step 20", "--", "train", "a b", "--lr=1"
    )
    assert done.status == 0
    profile, *_, triage = played(done.out)
    assert profile[:2] == ["nsys", "profile"]
    assert profile[profile.index("-t") + 1] == "cuda,nvtx,osrt"
    assert "--sample=process-tree" in profile and "--nvtx-capture=step 20" in profile
    assert profile[profile.index("-o") :] == ["-o", "run/rank%q{SLURM_PROCID}", "train", "a b", "--lr=1"]
    assert triage[:2] == ["nsystui", "triage"]


def test_ranks_that_are_not_recorded_run_the_program_alone(run, played):
    script = run("record", "--ranks", "0,2", "--", "train", "it's").out
    assert played(script, rank=2)[0][:2] == ["nsys", "profile"]
    assert played(script, rank=2)[0][-2:] == ["train", "it's"]
    assert played(script, rank=1)[0] == ["train", "it's"]


def test_torchrun_starts_an_nsys_for_each_rank(run, played):
    script = run("record", "--launcher", "torchrun", "--ranks", "0", "--", "train", "a b").out
    line = next(line for line in script.splitlines() if "nsys profile" in line)
    assert line.startswith("torchrun --nproc-per-node=gpu --no-python bash -c")
    assert played(script, rank=0)[0] == [
        "torchrun", *shlex.split(script.splitlines()[1].rstrip(" \\"))[1:], "train", "a b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words", [["--", "train", "a\nb"], ["-o", "run\t1", "--", "train"], ["--nvtx-range", "step\x1b[2J", "--", "train"]]
)
def test_words_that_cannot_be_printed_as_they_are_are_refused_in_a_line(run, words):
    done = run("record", *words)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert "cannot be printed" in done.err


WORDS = ("demo", "--write-only", "--directory")
NAMES = [f"rank{rank}.sqlite" for rank in range(4)]


def test_it_writes_four_ranks_on_two_hosts_and_prints_their_paths(run, tmp_path):
    assert run(*WORDS, tmp_path / "job").out.splitlines() == [str(tmp_path / "job" / name) for name in NAMES]
    assert sorted(os.listdir(tmp_path / "job")) == NAMES
    host = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
    hosts = [text for name in NAMES for (text,) in native(tmp_path / "job" / name, host)]
    assert hosts == ["gpu-a01", "gpu-a01", "gpu-a02", "gpu-a02"]


def test_without_a_directory_the_files_go_into_one_with_a_name_of_its_own(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("demo", "--write-only").out.splitlines() == [f"nsystui-demo/{name}" for name in NAMES]


def test_it_never_writes_over_what_is_there_nor_where_it_cannot(refused, tmp_path):
    (tmp_path / "rank1.sqlite").write_text("somebody's only copy")
    assert "rank1.sqlite already exists" in refused(*WORDS, tmp_path)
    assert "cannot write the demo job" in refused(*WORDS, tmp_path / "rank1.sqlite/below")
    assert os.listdir(tmp_path) == ["rank1.sqlite"]
    (tmp_path / "rank1.sqlite").unlink()
    (tmp_path / "rank3.sqlite").symlink_to("nowhere")
    assert "rank3.sqlite already exists" in refused(*WORDS, tmp_path)
    assert (tmp_path / "rank3.sqlite").is_symlink()


def test_on_a_full_disk_nothing_is_left(refused, tmp_path):
    with small_disk(tmp_path, "size=2m") as disk:
        assert "no space left" in refused(*WORDS, disk / "job", lines=1)
        assert os.listdir(disk / "job") == []


def test_an_interrupt_leaves_nothing(run, tmp_path, monkeypatch):
    replace = Path.replace

    def interrupted(source: Path, target: Path) -> Path:
        if target.name == NAMES[1]:
            raise KeyboardInterrupt
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    assert run(*WORDS, tmp_path / "job").status == 130
    assert os.listdir(tmp_path / "job") == []


def test_a_python_without_lzma_is_told_so(refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lzma", None)
    assert "this Python has no module lzma" in refused(*WORDS, tmp_path, lines=1)
    assert os.listdir(tmp_path) == []
