"""Traces of the PyTorch profiler on the screens."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import line_with, press, screen_text, shown
from synthetic import training_job
from synthetic.demo.kineto import ENDING, write_trace

from nsystui.questions.job.opening import JobSource
from nsystui.ui.app import NsystuiApp


@pytest.fixture(scope="module")
def traces(written_once, tmp_path_factory) -> list[Path]:
    exports = written_once("kineto", lambda directory: training_job(directory, ranks=2, steps=3, layers=2))
    place = tmp_path_factory.mktemp("screens")
    paths = [place / f"{export.stem}{ENDING}" for export in exports]
    for export, trace in zip(exports, paths, strict=True):
        write_trace(export, trace)
    return paths


@pytest.mark.campaign
async def test_the_screens_show_traces_and_say_what_they_are(traces, tmp_path):
    source = JobSource(tuple(map(str, traces)), tmp_path / "columns", conversion_directory=tmp_path / "exports")
    async with shown(NsystuiApp(source)) as (app, pilot):
        assert "PyTorch profiler trace" in line_with(app, "2 ranks")
        for key, words in (("2", "nvjet"), ("3", "AllReduce"), ("5", "ProfilerStep#"), ("7", "rank")):
            assert any(words in line for line in screen_text(await press(pilot, key))), words
