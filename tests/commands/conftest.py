"""Shared by the tests of the commands: a command run in this process, and its outcome."""

from __future__ import annotations

import csv
import io
import json
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
