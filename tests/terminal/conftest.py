"""Shared by the tests of terminals: a job, whose columns are read once in the whole run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import training_job


@pytest.fixture(scope="session")
def job(written_once: Callable[..., list[Path]]) -> list[str]:
    """Two ranks, to be opened with the cache beside them. Not to be written."""
    return [str(path) for path in written_once("terminal", lambda place: training_job(place, ranks=2, steps=3))]
