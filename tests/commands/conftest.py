"""Shared by the tests of the commands: a command run in this process, and its outcome."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsystui.cli import main


class Ran:
    """The outcome of a command."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def table(self) -> list[dict[str, str]]:
        """The rows of CSV on stdout."""
        return list(csv.DictReader(io.StringIO(self.out)))

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys) -> Callable[..., Ran]:
    """Runs a command in this process."""

    def run(*words: str | Path) -> Ran:
        try:
            status = main([str(word) for word in words])
        except SystemExit as end:
            status = int(end.code or 0)
        done = capsys.readouterr()
        return Ran(status, done.out, done.err)

    return run


@pytest.fixture
def fake_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts an ``nsys`` before all others on the PATH: a shell script, in which ``$out`` is the file to write."""

    def put(body: str) -> None:
        (tmp_path / "bin").mkdir()
        script = tmp_path / "bin/nsys"
        script.write_text(f'#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done\n{body}\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return put
