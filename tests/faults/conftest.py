"""Fixtures for tests of faults: an export to change, and questions about it."""

import shutil
from pathlib import Path

import program
import pytest


@pytest.fixture(params=["few", pytest.param("all", marks=pytest.mark.campaign)])
def asked(request) -> list[tuple[str, ...]]:
    """Return a few quick questions that together read every table; in campaigns, all questions."""
    return program.FEW if request.param == "few" else program.questions()


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.campaign), False], ids=["packed", "read"])
def whole(request) -> bool:
    """Return whether exports are packed, or read column by column."""
    return bool(request.param)


@pytest.fixture
def export(tmp_path, original) -> Path:
    """Return a copy of the export, alone in a directory."""
    (tmp_path / "job").mkdir()
    return Path(shutil.copyfile(original, tmp_path / "job" / "rank0.sqlite"))
