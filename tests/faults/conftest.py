"""Shared by the tests of faults: an export to be changed, and the questions to ask about it."""

from __future__ import annotations

import shutil
from pathlib import Path

import program
import pytest
import synthetic


@pytest.fixture(params=["few", pytest.param("all", marks=pytest.mark.campaign)])
def asked(request) -> list[tuple[str, ...]]:
    """A few quick questions, which between them read every table; in the campaign all there are."""
    return program.FEW if request.param == "few" else program.questions()


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.campaign), False], ids=["packed", "read"])
def whole(request) -> bool:
    """Whether an export is packed, or read column by column."""
    return bool(request.param)


@pytest.fixture(scope="package")
def original(tmp_path_factory) -> Path:
    """An export of two processes. Not to be written."""
    return synthetic.two_process_export(tmp_path_factory.mktemp("original") / "rank0.sqlite")


@pytest.fixture
def export(tmp_path, original) -> Path:
    """A copy of it in a directory of its own."""
    (tmp_path / "job").mkdir()
    return Path(shutil.copyfile(original, tmp_path / "job" / "rank0.sqlite"))
