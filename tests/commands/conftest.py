"""Fixtures for the tests of commands: commands run in this process, and their outcomes."""

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from update_demo import unpack

from nsystui.cli import main


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def table(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys) -> Callable[..., Ran]:
    def run(*words: str | Path) -> Ran:
        try:
            status = main([str(word) for word in words])
        except SystemExit as end:
            status = int(end.code or 0)
        done = capsys.readouterr()
        return Ran(status, done.out, done.err)

    return run


@pytest.fixture
def refused(run) -> Callable[..., str]:
    """Return a function that runs a command, checks that it is refused, and returns its text on stderr."""

    def refused(*words: str | Path, status: int = 2, lines: int | None = None) -> str:
        done = run(*words)
        assert (done.status, done.out) == (status, ""), done.err
        assert "Traceback" not in done.err and done.err.count("\n") == (lines or done.err.count("\n"))
        return done.err

    return refused


@pytest.fixture
def table(run) -> Callable[..., list[dict[str, str]]]:
    """Return a function that runs a command, checks that it succeeds, and returns the rows of its CSV."""

    def table(*words: str | Path) -> list[dict[str, str]]:
        done = run(*words, "--format", "csv")
        assert done.status == 0, done.err
        return done.table

    return table


@pytest.fixture
def records(run) -> Callable[..., Any]:
    """Return a function that runs a command, checks that it succeeds, and returns its JSON."""

    def records(*words: str | Path) -> Any:
        done = run(*words, "--format", "json")
        assert done.status == 0, done.err
        return done.json

    return records


@pytest.fixture
def demo_server(written_once) -> list[Path]:
    """Return the two exports of ``nsystui demo --server``, which tests must not change."""
    return written_once("demo-server", lambda directory: unpack("server", directory))


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Return a function that puts a shell script ``nsys`` first on the PATH; in it ``$out`` is the file to write."""

    def put(body: str) -> None:
        (tmp_path / "bin").mkdir()
        script = tmp_path / "bin/nsys"
        script.write_text(f'#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done\n{body}\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return put
