"""Fixtures for tests of terminals: a job, whose columns are read once in a run, and the program on it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from harness import WITHOUT_FINDINGS, Terminal
from synthetic import training_job


@pytest.fixture(scope="session")
def job(written_once) -> list[str]:
    """Return two ranks, which tests open with the cache next to them and must not change."""
    return [str(path) for path in written_once("terminal", lambda place: training_job(place, ranks=2, steps=3))]


@pytest.fixture
def environment(tmp_path, job) -> dict[str, str | None]:
    """Return the variables of a program with a separate directory for temporary files, and of its shell."""
    (tmp_path / "tmp").mkdir()
    return {"NSYSTUI_CACHE_DIR": str(Path(job[0]).parent / "cache"), "TMPDIR": str(tmp_path / "tmp"), "PS1": "shell$ "}


@pytest.fixture
def unpacked(environment, tmp_path) -> dict[str, str | None]:
    """Return the same with an empty cache."""
    return {**environment, "NSYSTUI_CACHE_DIR": str(tmp_path / "cache")}


@pytest.fixture
def running(job, environment) -> Callable[..., AbstractContextManager[Terminal]]:
    """Return a function that starts the program on the job, and waits until it is loaded."""

    @contextmanager
    def start(*flags: str, columns: int = 80, lines: int = 24, **env: str | None) -> Iterator[Terminal]:
        with Terminal([*WITHOUT_FINDINGS, *flags, *job], {**environment, **env}, columns, lines) as terminal:
            terminal.wait_for("? help")
            yield terminal

    return start
