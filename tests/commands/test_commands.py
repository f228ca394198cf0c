"""Commands in a script: data on stdout, messages on stderr, and an exit status for each outcome."""

import os
import shlex
import subprocess
import sys

import duckdb
import pytest
import synthetic
from support import native_count
from synthetic import two_process_export

from nsystui.commands import commands


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell, in which ``nsystui`` is this program; a pipe has the status of its first command."""
    program = f"{shlex.quote(sys.executable)} -m nsystui"
    return subprocess.run(
        ["bash", "-c", line.replace("nsystui", program, 1) + "; exit ${PIPESTATUS[0]}"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def kernels_in(path) -> int:
    return native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL")


def instances(rows) -> int:
    return sum(int(row["Instances"]) for row in rows)


@pytest.mark.campaign
class TestFlags:
    def test_several_files_are_one_job_of_which_ranks_are_chosen(self, table, refused, demo_job):
        found = table("kernels", *demo_job, "--by", "rank")
        by_rank = [instances(row for row in found if row["Rank"] == str(rank)) for rank in range(4)]
        assert by_rank == list(map(kernels_in, demo_job))
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
    @pytest.mark.parametrize("options", [(), ("--convert",)])
    def test_a_recording_is_answered_with_its_importer_and_never_exported(self, refused, tmp_path, fake_nsys, options):
        fake_nsys(f"touch {shlex.quote(str(tmp_path / 'asked'))}; exit 1")
        recording = tmp_path / "results/rank0.qdstrm"
        recording.parent.mkdir()
        recording.write_bytes(b"stream")
        said = refused("kernels", tmp_path / "results", *options, lines=2)
        assert (
            "QdstrmImporter, which makes its report, is not found" if options else f"QdstrmImporter -i {recording} "
        ) in said
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
