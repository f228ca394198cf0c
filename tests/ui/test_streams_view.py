"""2 Kernels, the view of streams: a row selects its stream on every screen."""

from __future__ import annotations

import pytest
from jobs import WIDE, line_with, press, running


@pytest.mark.campaign
async def test_enter_on_a_stream_selects_it_and_shows_its_work(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "2", "V") as (app, pilot):
        line_with(app, "[streams]")
        values = app.screen.values()
        line_with(await press(pilot, "enter"), "[kernels]")
        assert app.selection.streams == frozenset({values["stream"]})
        assert app.selection.tasks == frozenset({app.job.ranks[0].task})
        line_with(await press(pilot, "escape"), "[streams]")
        assert app.selection.streams is None
        assert (await press(pilot, "down")).screen.values()["kind"] == "copies"
        line_with(await press(pilot, "enter"), "[memory]")
