"""Odd values in the command line, the config file and the environment: any bytes, ``--``, 100 kB."""

import argparse
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import campaign
import pytest
from synthetic.nccl_log import call, init

import nsystui
from nsystui.base.files import why_not_ours
from nsystui.base.text import readable
from nsystui.cli import command_parser, main
from nsystui.commands import FILE_NAMES, commands

ODD = os.fsdecode(b"a\xffb")
LONG = 100_000
VALUES = {"no UTF-8": ODD, "a NUL": "a\0b", "dashes": "--", "a long word": "x" * LONG, "long": "x y " * (LONG // 4)}
MOST_PRINTED = 2_500
NAMES = [*(name for name in commands() if name != "schema"), "open"]


def options() -> list[tuple[str, argparse.Action]]:
    """Return every argument that takes a value, with its command."""
    return [(name, action) for name in NAMES for action in command_parser(name)._actions if action.nargs != 0]


def words_of(name: str, action: argparse.Action, value: str, job: list[Path], output: Path) -> list[str]:
    """Return a command line that is valid except for the value of the argument."""
    others = {one.dest for one in command_parser(name)._actions} - {action.dest}
    words = [] if name == "open" else [name]
    words += [value] if not action.option_strings else [f"{action.option_strings[-1]}={value}"]
    given = {
        "recipe": ["nvtx_pace"], "files": [str(job[0])],
        "against": ["--against", str(job[1])], "program": ["--", "true"],
    }  # fmt: skip
    given["target"] = ["-o", str(output / "packed"), "--force"] if name == "pack" else []
    given["target"] = ["-o", str(output / "report.html"), "--force"] if name == "report" else given["target"]
    if name == "export" and action.dest not in ("trace", "paraver"):
        given["trace"] = ["--trace", str(output / "trace.json"), "--force"]
    return [*words, *(word for dest, more in given.items() if dest in others for word in more)]


def test_odd_bytes_and_dashes_are_refused_or_kept_by_each_option(capsys):
    parsers = {name: command_parser(name) for name in NAMES}
    for name, action in options():
        if not action.option_strings:
            continue
        for kind in ("no UTF-8", "a NUL", "dashes"):
            words = [f"{action.option_strings[-1]}={VALUES[kind]}"]
            may_be_refused = action.choices or action.type or kind == "a NUL" or action.metavar not in FILE_NAMES
            try:
                parsed = parsers[name].parse_known_args([*words, "nvtx_pace", "FILE", "-o", "x", "--trace", "x"][:3])[0]
            except SystemExit as end:
                said = capsys.readouterr().err
                assert (end.code == 2 and may_be_refused) or "required" in said, (words, said)
                assert "Traceback" not in said and said.count("\n") == 3, (words, said)
                continue
            except Exception as error:
                assert type(error).__name__ == "UsageError", (words, error)
                continue
            value = getattr(parsed, action.dest)
            assert kind != "a NUL", words
            assert isinstance(value, list) == (action.nargs in ("+", "*") or type(action).__name__ == "_AppendAction")
            text = "".join(value) if isinstance(value, list) else str(value)
            assert kind != "no UTF-8" or ODD not in text or action.metavar in FILE_NAMES or action.dest == "ranks", (
                words
            )


REFUSED = [
    ["kernels", "--instances", ODD], ["memory", "--instances", ODD], ["stats", "--filter-nvtx", ODD],
    ["recipe", "nvtx_pace", "--name", ODD], ["kernels", "--filter", ODD], ["ncu", "--kernel", ODD],
    ["calltree", "--thread", ODD], ["triage", "--step-range", ODD], ["kernels", "--sort", ODD],
    ["efficiency", "--flops-per-step", "1", "--region", ODD], ["kernels", "-o", "a\0b.csv"],
    ["kernels", "--config", "\0"],
]  # fmt: skip


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: " ".join(words).encode("unicode_escape").decode())
def test_a_text_that_no_export_can_have_is_refused(refused, words):
    said = refused(*words, "rank0.sqlite", lines=3)
    assert "is not UTF-8" in said and words[-2] in said


def test_schemas_and_python_have_the_same_rules(refused, demo_job):
    for value in (ODD, "a\0b"):
        assert "is not UTF-8" in refused("schema", "nccl", f"--calls={value}", lines=3)
    assert "group '--'" in refused("schema", "kernels", "--by=--", lines=1)
    assert len(refused("schema", "kernels", f"--names={'x' * LONG}")) < MOST_PRINTED
    with nsystui.open(demo_job[0], no_cache=True) as job:
        assert len(job.ask("kernels", filter="--")) == 0
        for value in (ODD, "a\0b"):
            with pytest.raises(nsystui.UsageError, match="is not UTF-8"):
                job.ask("kernels", instances=value)


def test_names_of_files_may_have_any_bytes(run, demo_job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(f"{ODD}.sqlite").symlink_to(demo_job[0])
    done = run("kernels", f"{ODD}.sqlite", "-o", f"{ODD}.csv", "--ranks", f"{ODD}.sqlite=3")
    assert done.status == 0 and Path(f"{ODD}.csv").stat().st_size, done.err
    assert "No such file" in run("kernels", f"{ODD}.sqlite", "--config", ODD).err


def test_two_dashes_are_a_value(run, demo_job):
    assert "no such name" in run("kernels", demo_job[0], "--instances=--").err
    assert "invalid choice: '--'" in run("kernels", demo_job[0], "--names=--").err
    assert "--: no such file" in run("triage", demo_job[0], "--baseline=--").err


DIRECTORIES = ['"a\\u0000b"', '"$HOME/\\u0000"', '"/dev/null"', "'''\na\n'''", f'"{"x" * 1900}"', '""']


@pytest.mark.parametrize("text", campaign.first(3, DIRECTORIES), ids=lambda text: text[:9].strip())
def test_a_cache_directory_of_any_text_is_one_line_or_a_cache(run, demo_job, tmp_path, monkeypatch, text):
    monkeypatch.delenv("NSYSTUI_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(f"cache-dir = {text}\n")
    done = run("info", demo_job[0], "--config", "config.toml")
    assert done.status == (2 if "u0000" in text else 0), done.err
    assert done.err.count("nsystui: ") <= 2 and ("config.toml: cache-dir" in done.err) == ("u0000" in text)


KINDS = {
    "a file": lambda path: path.write_text("mine"), "a pipe": os.mkfifo,
    "a link to a file": lambda path: path.symlink_to(__file__),
    "a link to a device": lambda path: path.symlink_to("/dev/null"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
}  # fmt: skip


@pytest.mark.parametrize("kind", campaign.first(2, KINDS))
def test_what_is_no_directory_is_no_cache_and_stays_as_it_is(run, demo_job, tmp_path, monkeypatch, kind):
    path = tmp_path / "cache"
    KINDS[kind](path)
    before = os.lstat(path)
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(path))
    why = why_not_ours(path)
    assert ("a broken link" if "nothing" in kind or "itself" in kind else "not a directory") in why
    done = run("info", demo_job[0], "--show", "contents")
    assert done.status == 0 and done.out and why in done.err and "chmod" not in done.err
    after = os.lstat(path)
    assert (after[:7], after.st_mtime_ns) == (before[:7], before.st_mtime_ns)


def test_links_and_devices_are_distinguished(tmp_path):
    for number, kind in enumerate(KINDS):
        KINDS[kind](tmp_path / str(number))
        why = why_not_ours(tmp_path / str(number))
        assert ("a broken link" if "nothing" in kind or "itself" in kind else "not a directory") in why
    assert "not a directory" in why_not_ours(Path("/dev/null"))


LONG_VALUES = [VALUES["a long word"], VALUES["long"], ODD * (LONG // 3), "é\n" * (LONG // 2)]


@pytest.mark.parametrize("value", campaign.first(2, LONG_VALUES), ids=len)
def test_a_long_value_is_cut_where_an_error_quotes_it(run, demo_job, value):
    file = demo_job[0]
    for words in (
        [value], ["kernels", value], ["kernels", file, "--jobs", value], ["kernels", file, "--sort", value],
        ["kernels", file, "--instances", value], ["kernels", file, "--config", value],
        ["kernels", file, f"--{value[0] * LONG}"],
        ["kernels", file, "--names", value], ["kernels", file, "-o", value], ["help", value],
        ["triage", file, "--set", value],
    ):  # fmt: skip
        done = run(*words)
        assert done.status == 2 and len(done.err) < MOST_PRINTED, words[:-1]
        assert not done.out


def test_what_is_cut_keeps_how_it_begins_and_ends():
    path = f"/{'a' * 200}/{'b' * 200}/{'c' * 200}/rank0.sqlite"
    line = readable(f"{path}: cannot be read: {path} (see what is there: ls -l DIR)")
    assert line.startswith("/aaa") and line.endswith("ls -l DIR)") and "/rank0.sqlite" in line
    assert readable("name " * 100) == "name " * 100
    many = readable("word " * 10_000 + "do this")
    assert len(many) <= 2_000 and many.endswith("do this")


class Leaving(io.RawIOBase):
    """Standard output whose reader closes it after some writes."""

    def __init__(self, most: int) -> None:
        self.most, self.written = most, 0
        self._descriptor = os.open(os.devnull, os.O_WRONLY)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: object) -> int:
        self.written += 1
        if self.written > self.most:
            raise BrokenPipeError
        return len(bytes(data))


MANY_LINES = [
    "nccl-log {2}", "nccl-log {2} --format json", "diff {0} -- {1}", "diff {0} -- {1} --format json",
    "stats {0} --format md", "kernels {0}", "efficiency {0} --tables all", "triage {0}", "events {0}",
    "stats --list-reports", "help numbers", "kernels --help", "nvtx {0} --format csv", "info {0} --format json",
    "export {0} --trace -", "recipe", "mpi {0} --format json", "schema kernels",
    "record -- true", "recipe cuda_gpu_time_util_map {0}",
]  # fmt: skip
LOG = "\n".join(line for process in (1, 2) for line in (init(process, rank=process - 1), call(pid=process)))


@pytest.fixture
def lines(demo_job, tmp_path) -> Callable[[str], list[str]]:
    """Return a function that fills in the file names of a command line and splits it."""
    (tmp_path / "nccl.log").write_text(LOG)
    return lambda line: shlex.split(line.format(*demo_job[:2], tmp_path / "nccl.log"))


def test_a_trace_goes_into_a_stream_of_text(lines, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert main(lines("export {0} --trace -")) == 0
    assert json.loads(sys.stdout.getvalue())["traceEvents"]


@pytest.mark.parametrize("line", campaign.first(2, MANY_LINES))
def test_a_reader_that_leaves_ends_a_command_silently(lines, monkeypatch, capsys, line):
    for most in [*range(12), 15, 21, 34, 55]:
        with monkeypatch.context() as patch:
            stream = Leaving(most)
            patch.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding="utf-8", write_through=True))
            try:
                status = main(lines(line))
            except SystemExit as end:
                status = int(end.code or 0)
        assert status == (141 if stream.written > most else 0) or line.startswith("mpi"), (line, most)
        assert "error" not in capsys.readouterr().err
        if status != 141:
            break


@pytest.mark.campaign
@pytest.mark.skipif(os.name != "posix", reason="there is no head")
def test_the_real_head(lines):
    for number, line in enumerate(["diff {0} -- {1}"] * campaign.cases(12) + MANY_LINES):
        command = f"{shlex.join([sys.executable, '-m', 'nsystui', *lines(line)])} | head -n {number % 12 + 1}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert "error" not in done.stderr and "Traceback" not in done.stderr, (line, done.stderr)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", campaign.some(len(VALUES), VALUES))
def test_each_option_of_each_command_takes_any_value(run, demo_job, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    for name, action in options():
        words = words_of(name, action, VALUES[kind], demo_job, tmp_path)
        if not action.option_strings and kind == "dashes":
            continue
        done = run(*words)
        case = [word[:100] for word in words]
        assert done.status in (0, 2, 3, 4) and "Traceback" not in done.err, (case, done.err[:1000])
        assert max(map(len, done.err.splitlines()), default=0) < MOST_PRINTED, case
        assert done.status != 2 or done.err, case
