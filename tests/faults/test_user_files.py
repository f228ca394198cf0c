"""Pipes, devices and endless text that users name are refused in one line, and nothing waits for them."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import duckdb
import pandas
import program
import pytest

ENDLESS = "9" * 100_000
DEEP = 100_000


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Fail early, because a read of a pipe could wait for ever."""
    monkeypatch.setattr(program, "SECONDS", 60)


def refused(*words: str | Path) -> str:
    """Return the first line of a refused command's message."""
    ran = program.answered(*words)
    assert (ran.status, ran.out) == (2, "")
    return ran.err.splitlines()[0]


def piped(file: Path) -> Path:
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    return file


@pytest.mark.parametrize("name", ["a.sqlite", "a.nsys-rep", "a.pt.trace.json"])
def test_a_pipe_is_no_export(tmp_path, monkeypatch, name):
    (tmp_path / "nsys").write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\ncat "$1"\n')
    (tmp_path / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = refused("kernels", "--convert", piped(tmp_path / name))
    assert said.startswith(f"nsystui: {tmp_path / name}: not a regular file (")


@pytest.mark.parametrize("command", ["kernels --config", "kernels --ncu", "nccl --nccl-log"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
def test_a_pipe_or_a_device_is_no_other_input(tmp_path, export, command, kind):
    name = piped(tmp_path / kind) if kind == "pipe" else Path(kind)
    assert str(name) in refused(*command.split()[:1], export, *command.split()[1:], name)


class TestDirectoryOfParquetFiles:
    @pytest.fixture(scope="class")
    def written(self, tmp_path_factory, original) -> Path:
        directory = tmp_path_factory.mktemp("columns") / "rank0_pqtdir"
        directory.mkdir()
        with sqlite3.connect(original) as export:
            for (name,) in export.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                frame = pandas.read_sql_query(f'SELECT * FROM "{name}" ORDER BY rowid', export).convert_dtypes()
                duckdb.from_df(frame).to_parquet(str(directory / f"{name}.parquet"))
                os.utime(directory / f"{name}.parquet", (1, 1))
        return directory

    @pytest.fixture
    def directory(self, written, tmp_path) -> Path:
        return Path(shutil.copytree(written, tmp_path / written.name))

    @pytest.mark.campaign
    def test_it_opens_whatever_its_name_is(self, directory, original):
        right = program.answered("kernels", original, "--format", "csv").out
        directory = directory.rename(directory.with_name(os.fsdecode(b"r\xe9sum\xe9 [1]*_pqtdir")))
        assert program.answered("kernels", directory, "--format", "csv").out == right

    def test_a_pipe_among_its_files_is_named(self, directory):
        piped(directory / "TARGET_INFO_GPU.parquet")
        said = refused("kernels", directory)
        assert said.startswith(f"nsystui: {directory}: TARGET_INFO_GPU.parquet cannot be read: not a regular file (")


class TestPackedJob:
    @pytest.fixture(scope="class")
    def packed(self, tmp_path_factory, original) -> Path:
        place = tmp_path_factory.mktemp("packed") / "job"
        assert program.run("pack", original, "-o", place).status == 0
        return place

    @pytest.fixture
    def job(self, packed, tmp_path) -> Path:
        return Path(shutil.copytree(packed, tmp_path / "job"))

    @pytest.mark.parametrize("name", ["reports.jsonl", "kernels/*.parquet"])
    def test_a_pipe_in_it_is_named(self, job, name):
        piped(next(job.rglob(name)))
        (group,) = (job / "reports").iterdir()
        assert f"nsystui: {group}/r" in refused("kernels", job)

    @pytest.mark.campaign
    def test_a_pipe_or_nested_json_is_no_file_of_a_scheduler(self, job, tmp_path):
        assert str(tmp_path / "pipe") in refused("ranks", job, "--dask", piped(tmp_path / "pipe"))
        (tmp_path / "scheduler.json").write_text("[" * DEEP + "]" * DEEP)
        assert "not a file that a Dask scheduler" in refused("ranks", job, "--dask", tmp_path / "scheduler.json")

    def test_a_pipe_in_the_place_of_what_was_computed_is_left_alone(self, job, packed):
        for file in job.rglob("result*"):
            piped(file)
        for command in ("overview", "nvtx"):
            right = program.answered(command, packed, "--format", "csv").out
            assert program.answered(command, job, "--format", "csv").out == right

    @pytest.mark.parametrize("text", ["[" * DEEP, f'{{"version": {ENDLESS}}}', '{"name": 1e999}', "[]", "\udcff"])
    def test_facts_that_are_none_are_one_line(self, job, text):
        (file,) = job.rglob("reports.jsonl")
        file.write_text(text, errors="surrogateescape")
        assert "reports.jsonl is not what was written (remove reports/" in refused("kernels", job)


TRACE = '{{"schemaVersion": 1, "traceEvents": [{kernel}{event}]}}'
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9, "dur": 5, "args": {"stream": 7}}
EVENT = ', {{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 100, "tid": 100, "ts": {ts}, "dur": 1}}'


@pytest.mark.parametrize("ts", ["1e99999999", "1e-99999999", '"1e99999999"', "9" * 1_900])
def test_a_time_in_a_trace_that_is_none_is_left_out(tmp_path, ts):
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(TRACE.format(kernel=json.dumps(KERNEL), event=EVENT.format(ts=ts)))
    ran = program.answered("kernels", path, "--format", "csv")
    assert ran.status == 0 and ran.out.count("\n") == 2


@pytest.mark.parametrize("way", ["mkfifo pipe; cat log > pipe & exec {} pipe", "exec {} <(cat log)", "cat log | {} -"])
def test_a_log_is_read_of_a_pipe_that_somebody_writes_to(tmp_path, way):
    (tmp_path / "log").write_text(
        "Training epoch 0, iteration 7/99 | train_step_timing in s: 0.5 | TFLOPS_per_GPU: 1.25e+00 | x: 1\n"
    )
    command = way.format(f"{sys.executable} -m nsystui nccl-log --tables steps --format csv")
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert "1.25" in done.stdout


def test_a_pipe_that_nobody_writes_to_is_empty(tmp_path):
    assert refused("nccl-log", piped(tmp_path / "pipe")).startswith(f"nsystui: {tmp_path / 'pipe'}: it is empty (")
